"""All container runtimes of the node behind one `crrd.ports.Runtime`.

Most nodes have one runtime. If there are several, this module finds the runtime of a pod or of a container ID. The
controller decides what to do with a container, and when.
"""

import asyncio
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import structlog

from cri_stubs import api_pb2
from crrd.core.api.types import Pin
from crrd.core.recreate.observation import ExecResult, Instance, Sandbox
from crrd.cri import convert, discovery
from crrd.cri.client import CriClient, OnCall
from crrd.cri.looks import Looks
from crrd.cri.readiness import Readiness
from crrd.kubelet.labels import LABEL_POD_UID
from crrd.kubelet.runtime_status import ContainerState
from crrd.lib.errors import CrrdError, RuntimeCallError, RuntimeUnavailableError

CHECK_SECONDS = 2.0  # Deadline of a runtime's response in `check`
OTHERS_SECONDS = 0.5  # How long a search waits for further runtimes, once one has answered with the pod's containers
REMEMBERED_PODS = 1024  # Pods whose runtime is remembered: several times the pods of a node

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,254}")  # A container ID or pod UID; a request may hold anything

_T = TypeVar("_T")

log = structlog.get_logger()


@dataclass(slots=True)
class Connection:
    """One runtime: its client, and the name and version that it reports."""

    client: CriClient
    name: str
    version: str = ""
    looks: Looks = field(init=False)
    readiness: Readiness = field(init=False)

    def __post_init__(self) -> None:
        self.looks, self.readiness = Looks(self.client.list_containers), Readiness(self.client.status)

    async def instances(self, pod_uid: str, *, urgent: bool) -> tuple[Instance, ...]:
        """Return all instances of the pod's containers in this runtime."""
        containers = await self.looks.of_pod(pod_uid, urgent=urgent)
        return tuple(convert.instance(container, self.name) for container in containers)


async def connect(endpoints: Sequence[str] = (), root: Path = Path("/")) -> "NodeRuntime":
    """Return a NodeRuntime that has found its runtimes. Raises as `NodeRuntime.discover`."""
    runtime = NodeRuntime()
    await runtime.discover(endpoints, root, wait_for_socket=False)
    return runtime


class NodeRuntime:
    """Implements `crrd.ports.Runtime` with one or several CRI clients. All calls fail until a runtime is found."""

    def __init__(self, connections: Sequence[Connection] = (), *, on_call: OnCall | None = None) -> None:
        self._connections = tuple(connections)
        self._on_call = on_call
        self._runtimes_by_pod: OrderedDict[str, Connection] = OrderedDict()
        self._cgroups: OrderedDict[str, str] = OrderedDict()  # Sandbox ID -> its cgroup
        self._discovery_error = "no container runtime has answered yet"
        self.found = asyncio.Event()  # Set once there is a runtime
        if connections:
            self.found.set()

    async def discover(
        self, endpoints: Sequence[str] = (), root: Path = Path("/"), *, wait_for_socket: bool = True
    ) -> None:
        """Find the node's runtimes and connect to them. Waits and raises as `discovery.discover` does."""
        if self._connections:
            return
        probes = await discovery.discover(endpoints, root, self._note, wait_for_socket=wait_for_socket)
        for probe in probes:
            log.info("container runtime found", endpoint=probe.endpoint, runtime=probe.runtime, version=probe.version)
        self._connections = tuple(
            Connection(CriClient(probe.endpoint, on_call=self._on_call), probe.runtime, probe.version)
            for probe in probes
        )
        self.found.set()

    def _note(self, trouble: str) -> None:
        self._discovery_error = trouble

    def _found(self) -> tuple[Connection, ...]:
        if not self._connections:
            raise RuntimeUnavailableError(self._discovery_error)
        return self._connections

    async def check(self) -> str:
        """For readiness: return why one of the runtimes does not respond now, "" if all do."""
        try:
            await asyncio.gather(*(connection.client.version(CHECK_SECONDS) for connection in self._found()))
        except CrrdError as error:
            return str(error)
        return ""

    @property
    def names(self) -> frozenset[str]:
        """Names of the node's runtimes, the prefixes of container IDs."""
        return frozenset(connection.name for connection in self._connections)

    @property
    def versions(self) -> tuple[tuple[str, str], ...]:
        """Name and version of each runtime, as it reports them."""
        return tuple((connection.name, connection.version) for connection in self._connections)

    async def instances(self, pod_uid: str, *, urgent: bool = False) -> tuple[Instance, ...]:
        """Return all instances of the pod's containers, exited ones too; one call if the pod's runtime is known."""
        if not _ID.fullmatch(pod_uid):
            return ()
        connections = self._found()
        home = connections[0] if len(connections) == 1 else self._runtimes_by_pod.get(pod_uid)
        if home is not None:
            found = await home.instances(pod_uid, urgent=urgent)
            if len(connections) == 1 or not _over(found):
                return found
            if found:
                with suppress(RuntimeCallError, RuntimeUnavailableError, TimeoutError):
                    async with asyncio.timeout(OTHERS_SECONDS):
                        return await self._search(pod_uid, urgent=urgent)
                return found  # another runtime does not answer
        return await self._search(pod_uid, urgent=urgent)

    async def _search(self, pod_uid: str, *, urgent: bool) -> tuple[Instance, ...]:
        """Return the instances of the runtime with the newest one; another runtime may still list old, exited ones.

        Once containers that run are found, a runtime that does not answer is not waited for.
        """
        looks = {asyncio.ensure_future(each.instances(pod_uid, urgent=urgent)): each for each in self._connections}
        try:
            await asyncio.wait(looks, timeout=OTHERS_SECONDS)
            if all(_over(_listed(look)) for look in looks):  # the pod may run in a runtime that has not answered
                await asyncio.wait(looks)
        finally:
            for look in looks:
                look.cancel()
        found = [
            (max(each.created_at for each in _listed(look)), home) for look, home in looks.items() if _listed(look)
        ]
        _, home = max(found, key=lambda each: each[0], default=(0, None))
        instances = next((_listed(look) for look, each in looks.items() if each is home), ())
        failures = [failure for look in looks if look.done() and (failure := look.exception()) is not None]
        if failures and _over(instances):
            raise failures[0]
        if home is not None:
            self._runtimes_by_pod[pod_uid] = home
            self._runtimes_by_pod.move_to_end(pod_uid)
            if len(self._runtimes_by_pod) > REMEMBERED_PODS:
                self._runtimes_by_pod.popitem(last=False)
        return instances

    async def containers(self) -> list[api_pb2.Container]:
        """Return all containers of all runtimes, exited ones too, as CRI messages.

        Raises RuntimeUnavailableError or RuntimeCallError if one of the runtimes fails.
        """
        answers = await asyncio.gather(*(connection.client.list_containers() for connection in self._found()))
        return [container for answer in answers for container in answer]

    async def find(self, pin: Pin) -> Instance | None:
        """Return the instance with exactly this ID, None if it does not exist or the node does not have its runtime.

        The IDs in the response are compared with the pin's, because runtimes also find a container by a part of its ID.
        """
        if not _ID.fullmatch(pin.bare_id):
            return None
        named = [connection for connection in self._found() if connection.name == pin.runtime]
        asked = (connection.client.list_containers(container_id=pin.bare_id) for connection in named)
        failure: BaseException | None = None
        for answer in await asyncio.gather(*asked, return_exceptions=True):
            if isinstance(answer, BaseException):
                failure = answer
                continue
            for container in answer:
                if container.id == pin.bare_id:
                    return convert.instance(container, pin.runtime)
        if failure is not None:
            raise failure
        return None

    async def has_image(self, pod_uid: str, image: str) -> bool:
        """Whether the pod's runtime has this image, or any runtime if the pod has no containers.

        Nothing runs in such a pod. If it is in a runtime without the image, kubelet pulls the image there.
        """
        asked = (each.client.has_image(image) for each in await self._homes(pod_uid))
        return any(await asyncio.gather(*asked))

    async def _homes(self, pod_uid: str) -> tuple[Connection, ...]:
        """Return the pod's runtime, or all if the pod has no containers."""
        found = self._found()
        if len(found) > 1 and pod_uid not in self._runtimes_by_pod:
            await self._search(pod_uid, urgent=True)
        home = self._runtimes_by_pod.get(pod_uid)
        return (home,) if home in found else found

    async def false_conditions(self, pod_uid: str) -> Mapping[str, str]:
        """Return which conditions of the pod's runtime are false, and why. Raises nothing."""
        if not _ID.fullmatch(pod_uid):
            return {}
        with suppress(CrrdError):
            for each in await self._homes(pod_uid):
                if found := await each.readiness.false_conditions():
                    return found
        return {}

    async def stop(self, instance: Instance, seconds: float) -> None:
        """CRI StopContainer with this timeout; returns when the container has stopped. Not found counts as stopped."""
        await self._unless_gone(instance, lambda client: client.stop_container(instance.id, seconds))

    async def sandboxes(self, pod_uid: str) -> tuple[Sandbox, ...]:
        """Return all sandboxes of the pod, also those that are not ready."""
        if not _ID.fullmatch(pod_uid):
            return ()
        found = await self._list_sandboxes(await self._homes(pod_uid), {LABEL_POD_UID: pod_uid})
        await asyncio.gather(*(self._cgroup(each) for each in found if each.ready and not each.request_uid))
        return found

    async def _cgroup(self, sandbox: Sandbox) -> str:
        """Return the cgroup in which the runtime has made a sandbox, "" if it was removed meanwhile.

        It is looked up with the list, and remembered, so that nothing delays RunPodSandbox after its decision.
        """
        if (known := self._cgroups.get(sandbox.id)) is not None:
            return known
        info = await self._unless_gone(sandbox, lambda client: client.sandbox_info(sandbox.id))
        if info is None:
            return ""
        self._cgroups[sandbox.id] = parent = convert.cgroup_parent(info)
        if len(self._cgroups) > REMEMBERED_PODS:
            self._cgroups.popitem(last=False)
        return parent

    async def made_sandboxes(self) -> tuple[Sandbox, ...]:
        """Return the sandboxes that crrd has made, of all pods."""
        found = await self._list_sandboxes(self._found(), {convert.LABEL_MADE_BY: convert.MADE_BY})
        return tuple(each for each in found if each.request_uid)  # a pod may have the same label

    async def _list_sandboxes(
        self, connections: Sequence[Connection], labels: Mapping[str, str]
    ) -> tuple[Sandbox, ...]:
        answers = await asyncio.gather(*(each.client.list_sandboxes(labels) for each in connections))
        return tuple(
            convert.sandbox(listed, each.name)
            for each, answer in zip(connections, answers, strict=True)
            for listed in answer
            if labels.items() <= dict(listed.labels).items()  # a runtime may ignore the filter
        )

    async def run_sandbox(self, first: Sandbox, request_uid: str) -> None:
        """Make an empty sandbox beside this one of a pod, so that kubelet restarts the pod."""
        config = convert.second_sandbox(first, request_uid, await self._cgroup(first))
        await self._call_runtime_of(first, lambda client: client.run_sandbox(config))

    async def remove_sandbox(self, sandbox: Sandbox) -> None:
        """Stop and remove a sandbox. One that the runtime does not know counts as removed."""
        await self._unless_gone(sandbox, lambda client: client.remove_sandbox(sandbox.id))

    async def execute(self, instance: Instance, command: tuple[str, ...], seconds: float) -> ExecResult:
        """CRI ExecSync with this timeout."""
        return await self._call_runtime_of(instance, lambda client: client.exec_sync(instance.id, command, seconds))

    async def _unless_gone(self, instance: Instance | Sandbox, call: Callable[[CriClient], Awaitable[_T]]) -> _T | None:
        """Call as `_call_runtime_of` does. Return None if no runtime knows it."""
        try:
            return await self._call_runtime_of(instance, call)
        except RuntimeCallError as error:
            if not error.not_found:
                raise
            return None

    async def _call_runtime_of(self, instance: Instance | Sandbox, call: Callable[[CriClient], Awaitable[_T]]) -> _T:
        """Call its runtime: that of its pod if known, else each with the name of its runtime in turn."""
        home = self._runtimes_by_pod.get(instance.pod_uid)
        named = [connection for connection in self._found() if connection.name == instance.runtime]
        missing: RuntimeCallError | None = None
        silent: RuntimeUnavailableError | None = None
        for connection in [home] if home in named else named:
            try:
                return await call(connection.client)
            except RuntimeCallError as error:
                if not error.not_found:
                    raise
                missing = error
            except RuntimeUnavailableError as error:
                silent = error
        raise silent or missing or RuntimeCallError(f"this node has no runtime {instance.runtime!r}", code="NOT_FOUND")

    async def close(self) -> None:
        """Close all connections."""
        await asyncio.gather(*(connection.client.close() for connection in self._connections))
        await asyncio.gather(*(connection.looks.close() for connection in self._connections))


def _listed(look: "asyncio.Future[tuple[Instance, ...]]") -> tuple[Instance, ...]:
    """Return the instances that a look has found, () if it has not ended or has failed."""
    return look.result() if look.done() and not look.cancelled() and look.exception() is None else ()


def _over(instances: Sequence[Instance]) -> bool:
    """Whether all instances have exited."""
    return all(instance.state is ContainerState.EXITED for instance in instances)
