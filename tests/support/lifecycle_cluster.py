"""A cluster for the manager's tests: the local API server, a clock that can be set, a pod, and a simulated node.

Each replica is the lifecycle part of a manager. It can be interrupted before any of its writes.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import patch

from crrd.core.api.time import rfc3339
from crrd.core.api.types import FINALIZER, LABEL_READINESS_GATE
from crrd.core.lifecycle import steps as lc
from crrd.core.patching.steps import PatchPod
from crrd.core.recreate.actions import EmitEvent
from crrd.kube.access.config import Access
from crrd.kube.client import Deadlines, KubeClient
from crrd.kube.clock import ServerClock
from crrd.kube.leader import LeaderElection, LeaseTiming
from crrd.kube.resources import NAMESPACES, PODS, REQUESTS, Resource
from crrd.lib.errors import ApiUnavailableError, ConflictError, CrrdError, GoneError
from crrd.lib.health import Health
from crrd.manager import pod_reads
from crrd.manager.gated import GATED_NAMESPACES
from crrd.manager.lifecycle import LifecycleController
from tests.support.faulty_api import Call, FaultyApiServer

CRRS = "apps.kruise.io/containerrecreaterequests"
GATED = {"readinessGates": [{"conditionType": "KruisePodReady"}]}
SECONDS = 30.0  # Time limit for any wait, even on a busy machine

Before = Callable[[int, str], Awaitable[object]]


class Wire:
    """An AccessSource that can be cut. From then on, no call reaches the server."""

    description = "a wire"

    def __init__(self, url: str) -> None:
        self._access = Access(url)
        self.cut = False

    async def current(self) -> Access:
        if self.cut:
            raise ApiUnavailableError("the wire is cut")
        return self._access

    async def renew(self, _: Access) -> Access:
        return self._access


class SteppedClient(KubeClient):
    """Counts its writes of pods and requests. `before` is called before each, with number (from 1) and name."""

    def __init__(self, wire: Wire, clock: ServerClock, deadlines: Deadlines | None) -> None:
        super().__init__(wire, on_call=self._called, on_date=clock.observe, deadlines=deadlines)
        self.writes: list[str] = []
        self.before: Before | None = None
        self.answered: list[tuple[str, str, int]] = []  # Verb, resource and HTTP status of every call so far

    def _called(self, verb: str, resource: str, status: int, _: float) -> None:
        self.answered.append((verb, resource, status))

    async def _step(self, what: str) -> None:
        self.writes.append(what)
        if self.before is not None:
            await self.before(len(self.writes), what)

    async def merge_patch(
        self, resource: Resource, namespace: str, name: str, body: Mapping[str, Any], *, subresource: str = ""
    ) -> Mapping[str, Any]:
        if resource in (PODS, REQUESTS):
            await self._step(f"patch {resource.plural}{'/' if subresource else ''}{subresource}")
        return await super().merge_patch(resource, namespace, name, body, subresource=subresource)

    async def json_patch(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        operations: Sequence[Mapping[str, Any]],
        *,
        dry_run: bool = False,
    ) -> Mapping[str, Any]:
        if not dry_run:
            await self._step(f"patch {resource.plural}")
        return await super().json_patch(resource, namespace, name, operations, dry_run=dry_run)

    async def delete(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        *,
        uid: str = "",
        version: str = "",
        grace_seconds: int | None = None,
    ) -> None:
        await self._step(f"delete {resource.plural}")
        await super().delete(resource, namespace, name, uid=uid, version=version, grace_seconds=grace_seconds)


class Events:
    """An EventSink that keeps its events."""

    def __init__(self) -> None:
        self.seen: list[EmitEvent] = []

    def emit(self, event: EmitEvent) -> None:
        self.seen.append(event)


class PassingClock(ServerClock):
    """A process' clock whose time the test advances."""

    def __init__(self) -> None:
        super().__init__()
        self._passed = 0.0
        self._passed_at = float("-inf")  # The real monotonic time of the last advance

    def monotonic(self) -> float:
        return super().monotonic() + self._passed

    def observe(self, date: str, sent: float, received: float) -> None:
        if sent >= self._passed_at:  # a call in progress meanwhile would report a wrong time
            super().observe(date, sent + self._passed, received + self._passed)

    def pass_time(self, seconds: float) -> None:
        """Advance the time by `seconds`, and run all timers that are due."""
        self._passed += seconds
        self._passed_at = super().monotonic()
        for watcher in tuple(self._watchers):
            watcher()


class Replica:
    """The lifecycle part of a manager."""

    def __init__(
        self,
        url: str,
        name: str,
        deadlines: Deadlines | None = None,
        account: str = "",
        gated: str = GATED_NAMESPACES["labelled"],
    ) -> None:
        """`account` and `gated` are as in LifecycleController."""
        self.name, self.account, self.gated = name, account, gated
        self.wire = Wire(url)
        self.clock = PassingClock()
        self.client = SteppedClient(self.wire, self.clock, deadlines)
        self.events = Events()
        self.done: list[lc.LifecycleAction | PatchPod] = []
        self.health = Health()
        self.controller = self._controller()
        self._task: asyncio.Task[object] | None = None

    def start(self) -> None:
        """Start at once, without a lease."""
        self._task = asyncio.create_task(self._lead(), name=self.name)

    def compete(self, timing: LeaseTiming) -> LeaderElection:
        """Work while it is the leader."""
        election = LeaderElection(self.client, "default", self.name, now=self.clock.now, timing=timing)
        self._task = asyncio.create_task(election.run(self._lead), name=self.name)
        return election

    def _controller(self) -> LifecycleController:
        return LifecycleController(
            self.client,
            self.events,
            self.clock,
            on_action=self.done.append,
            account=self.account,
            gated=self.gated,
        )

    async def _lead(self) -> None:
        self.controller = self._controller()
        await self.controller.run(self.health)

    @property
    def ready(self) -> bool:
        """Whether it works, and its checks of readiness pass."""
        return bool(self.health.ready) and not any(check() for check in self.health.ready.values())

    async def kill(self) -> None:
        """Stop the manager at once, without any further call."""
        self.wire.cut = True
        await self.stop()

    async def stop(self) -> None:
        """Shut down gracefully."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
            self._task = None
        await self.client.close()

    async def learn_time(self) -> None:
        """Make a call, whose response has the API server's time."""
        with suppress(CrrdError):
            await self.client.get(PODS, "default", "nobody")


class LifecycleCluster:
    """The API server with its objects, and helpers to read and change them."""

    def __init__(self) -> None:
        self.ahead = timedelta()
        self.calls: list[Call] = []  # All calls to the API server so far
        self.server = FaultyApiServer(clock=self.now, log=self.calls.append)
        self.account = ""  # Of its managers, as in LifecycleController
        self.gated = GATED_NAMESPACES["labelled"]  # Likewise
        self._replicas: list[Replica] = []
        self._client: KubeClient | None = None
        self._markers = 0

    def now(self) -> datetime:
        """The API server's time."""
        return datetime.now(UTC) + self.ahead

    @property
    def client(self) -> KubeClient:
        """The client of the users and the node."""
        assert self._client is not None
        return self._client

    @asynccontextmanager
    async def running(self) -> AsyncIterator["LifecycleCluster"]:
        async with self.server:
            try:
                async with KubeClient(Wire(self.server.url)) as self._client:
                    await self.label_namespace("enabled")
                    yield self
            finally:
                self.server.resume()
                for replica in self._replicas:
                    await replica.stop()

    async def label_namespace(self, value: str | None) -> None:
        """Set or remove the readiness label of the namespace of all objects."""
        labels = {LABEL_READINESS_GATE: value}
        await self.client.merge_patch(NAMESPACES, "", "default", {"metadata": {"labels": labels}})

    def replica(self, name: str = "manager-a", deadlines: Deadlines | None = None) -> Replica:
        made = Replica(self.server.url, name, deadlines, self.account, self.gated)
        self._replicas.append(made)
        return made

    def manager(self, name: str = "manager-a", deadlines: Deadlines | None = None) -> Replica:
        """Return a replica that has been started."""
        made = self.replica(name, deadlines)
        made.start()
        return made

    def jump(self, seconds: float) -> None:
        """Let time pass for the API server and the managers."""
        self.ahead += timedelta(seconds=seconds)
        for replica in self._replicas:
            replica.clock.pass_time(seconds)

    async def set_clock(self, seconds: float) -> None:
        """Change the API server's clock without time passing, and let the managers know."""
        self.ahead += timedelta(seconds=seconds)
        for replica in self._replicas:
            await replica.learn_time()

    async def until(self, what: str, true: Callable[[], object]) -> None:
        """Wait for a condition."""
        try:
            async with asyncio.timeout(SECONDS):
                while not true():
                    await asyncio.sleep(0.005)
        except TimeoutError:
            raise AssertionError(f"never came true: {what}; {self.crrs()}") from None

    async def pod(self, name: str = "web-0", *, gate: bool = True) -> Mapping[str, Any]:
        spec = {"nodeName": "node-a", "containers": [{"name": "app", "image": "app:1"}], **(GATED if gate else {})}
        shape = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
        return await self.client.create(PODS, "default", shape)

    async def remove_pod(self, name: str = "web-0") -> None:
        await self.client.delete(PODS, "default", name, grace_seconds=0)

    async def ready_pod(self, name: str = "web-0") -> Mapping[str, Any]:
        """Create a pod with the gate, and wait until the manager has made it ready."""
        pod = await self.pod(name)
        await self.until("the condition begins", lambda: self.condition(name) == ("True", ""))
        return pod

    async def request(
        self, name: str, pod: Mapping[str, Any], *, grace: int | None = None, active: bool = True, **spec: Any
    ) -> None:
        """Create a request as admission leaves it."""
        strategy = {} if grace is None else {"strategy": {"unreadyGracePeriodSeconds": grace}}
        labels = {"crr.apps.kruise.io/pod-uid": pod["metadata"]["uid"], "crr.apps.kruise.io/node-name": "node-a"}
        if active:
            labels["crr.apps.kruise.io/active"] = "true"
        shape = {
            "apiVersion": "apps.kruise.io/v1alpha1",
            "kind": "ContainerRecreateRequest",
            "metadata": {"name": name, "labels": labels},
            "spec": {"podName": pod["metadata"]["name"], "containers": [{"name": "app"}], **strategy, **spec},
        }
        await self.client.create(REQUESTS, "default", shape)

    async def node_says(self, name: str, phase: str, state: str = "Pending") -> None:
        """Write a status like the node, only to the version it has read, and never after the end."""
        while True:
            found = await self.client.get(REQUESTS, "default", name)
            if found.get("status", {}).get("phase") == "Completed":
                return
            status: dict[str, Any] = {"phase": phase, "containerRecreateStates": [{"name": "app", "phase": state}]}
            if phase == "Completed":
                status["completionTime"] = rfc3339(self.now())
            bound = {"resourceVersion": found["metadata"]["resourceVersion"]}
            with suppress(ConflictError):
                body = {"metadata": bound, "status": status}
                await self.client.merge_patch(REQUESTS, "default", name, body, subresource="status")
                return

    async def serve(self, name: str) -> None:
        """Handle one request like the node daemon: wait for the annotation, then complete it, unless others end it."""

        def over() -> bool:
            return not self.crr(name) or self.phase(name) == "Completed" or self.deleting(name)

        with suppress(GoneError):
            if not over():
                await self.node_says(name, "Recreating")
            await self.until("the mark", lambda: over() or self.acquired(name))
            if not over():
                await self.node_says(name, "Completed", "Succeeded")

    async def label(self, name: str, key: str, value: str | None) -> None:
        """Change a label of a request."""
        await self.client.merge_patch(REQUESTS, "default", name, {"metadata": {"labels": {key: value}}})

    async def finalizers(self, name: str, *names: str) -> None:
        """Change a request's finalizers by force."""
        await self.client.merge_patch(REQUESTS, "default", name, {"metadata": {"finalizers": list(names)}})

    async def delete(self, name: str) -> None:
        await self.client.delete(REQUESTS, "default", name)

    def crrs(self) -> dict[str, Mapping[str, Any]]:
        return {name: stored.obj for (_, name), stored in self.server.store.objects(CRRS).items()}

    def crr(self, name: str) -> Mapping[str, Any]:
        """Return a request, or {} if it does not exist."""
        return self.crrs().get(name, {})

    def status(self, name: str) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.crr(name).get("status", {})
        return found

    def phase(self, name: str) -> str:
        return str(self.status(name).get("phase", ""))

    def message(self, name: str) -> str:
        return str(self.status(name).get("message", ""))

    def _meta(self, name: str) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.crr(name).get("metadata", {})
        return found

    def acquired(self, name: str) -> bool:
        """Whether the request reports that the pod is unready."""
        return "crr.apps.kruise.io/unready-acquired" in self._meta(name).get("annotations", {})

    def has_finalizer(self, name: str) -> bool:
        return FINALIZER in self._meta(name).get("finalizers", ())

    def active(self, name: str) -> bool:
        return "crr.apps.kruise.io/active" in self._meta(name).get("labels", {})

    def deleting(self, name: str) -> bool:
        return "deletionTimestamp" in self._meta(name)

    def created(self, name: str) -> datetime:
        return datetime.fromisoformat(self._meta(name)["creationTimestamp"])

    def completed(self, name: str) -> datetime:
        return datetime.fromisoformat(self.status(name)["completionTime"])

    def settled(self, name: str) -> bool:
        """Whether the request is completed and cleaned up."""
        return self.phase(name) == "Completed" and not self.has_finalizer(name) and not self.active(name)

    async def settle(self, *names: str) -> None:
        """Wait until the requests are completed and cleaned up."""
        await self.until("settled", lambda: all(map(self.settled, names)))

    async def later(self) -> None:
        """Wait until the manager has handled an event that is later than all events so far."""
        self._markers += 1
        name = f"marker-{self._markers}"
        await self.request(name, {"metadata": {"name": "nowhere", "uid": "u"}})
        await self.settle(name)

    def condition(self, pod: str = "web-0") -> tuple[str, str]:
        """Return status and message of the condition KruisePodReady, or "" and "" if it does not exist."""
        stored = self.server.store.get("/pods", ("default", pod))
        for condition in stored.obj["status"].get("conditions", ()) if stored else ():
            if condition["type"] == "KruisePodReady":
                return condition["status"], condition.get("message", "")
        return "", ""


def entry(*names: str) -> str:
    """Return the condition's message for these requests."""
    return "[" + ",".join(f'{{"userAgent":"ContainerRecreateRequest","key":"default/{name}"}}' for name in names) + "]"


@asynccontextmanager
async def lifecycle_cluster() -> AsyncIterator[LifecycleCluster]:
    """Its managers read pods at once, as they otherwise do after PATIENCE_SECONDS."""
    with patch.object(pod_reads, "PATIENCE_SECONDS", 0.0):
        async with LifecycleCluster().running() as made:
            yield made
