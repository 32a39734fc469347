"""A world for policies in virtual time: the manager's own controller, and a kubelet and node daemons that are played.

kubelet is not kinder than the real one: it keeps immutable objects while a pod on the node uses them, starts no
container whose object is missing, and does nothing while its node is down. `judge` is asked at every restart.
"""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, cast

from crrd.core.admission.rules import Denied
from crrd.core.api.time import rfc3339
from crrd.core.api.types import API_VERSION, KIND
from crrd.core.policy import types as policy_types
from crrd.core.rollout.requests import read_run_request
from crrd.kube.client import KubeClient
from crrd.kube.events import KubeEventSink
from crrd.kube.resources import CONFIG_MAPS, NODES, PODS, POLICIES, REQUESTS, Resource
from crrd.lib.errors import ApiRefusedError
from crrd.lib.health import Health
from crrd.manager.policies.controller import PolicyController
from tests.support.admission import reviewed
from tests.support.object_api import ObjectApi
from tests.support.virtual_time import LoopClock

Json = Mapping[str, Any]
QUIET, NOISY, SYSTEM = "quiet", "noisy", "crrd-system"
NODE_NAMES = ("node-a", "node-b")
OBJECTS = ("a", "b")
SETTLE = 5
DEADLINE = 60  # Of the schedule
LAG = 0.5
"""Seconds. What has happened later than this before a restart, the manager need not know."""
DEPLOYMENTS, REPLICA_SETS = Resource("deployments", "apps"), Resource("replicasets", "apps")
OWNERS = {"web": ("web-rs",), "all": ("web-rs", "canary-rs"), "timed": ("timed-rs",)}
"""By policy: the ReplicaSets of its pods."""
DAEMON = {"app.kubernetes.io/name": "crrd", "app.kubernetes.io/component": "node"}


@dataclass(frozen=True)
class Kind:
    """A kind of pods: their label, their ReplicaSet, and the ConfigMaps that they use (True: optional)."""

    app: str
    owner: str
    uses: Mapping[str, bool]


KINDS = {
    "web": Kind("web", "web-rs", {"a": True}),
    "canary": Kind("web", "canary-rs", {"a": True, "b": False}),
    "timed": Kind("timed", "timed-rs", {}),
}
"""The pods of the canary have the label that the selector of Deployment web matches."""


@dataclass
class Pod:
    """One pod with one container."""

    name: str
    kind: Kind
    node: str
    created: float
    started: float | None = None
    values: dict[str, str | None] = field(default_factory=dict)
    ready: bool = False
    unready_since: float = 0.0
    starts: int = 0
    deleting: bool = False
    gone: bool = False


@dataclass
class Config:
    """One ConfigMap: its present data, when it last changed, and whether the manager has seen that."""

    value: str | None = None
    immutable: bool = False
    changed: float = 0.0
    visible: list[tuple[float, set[str]]] = field(default_factory=list)
    """Changes since the policies were made, and the nodes where a restart could bring them."""
    seen: bool = True


class PolicyWorld:
    """The world. Its clock is the loop's."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.clock = LoopClock()
        self.api = ObjectApi(self.clock, self._created)
        self.pods: dict[str, Pod] = {}
        self.configs = {name: Config() for name in OBJECTS}
        self.down: set[str] = set()
        self.kept: dict[tuple[str, str], str] = {}
        """What kubelet keeps of immutable objects, by node and name."""
        self.faults: list[str] = []
        self.stops: list[tuple[float, str, str]] = []  # Time, pod and policy
        self.resumed = 0.0
        self.blind = False  # Whether a manager has missed changes of pods, or has had no record of an object
        self.bad: set[str | None] = set()  # Values with which no container becomes ready
        self._noticed = True  # Whether a manager has looked since the policies were suspended
        self._leader: asyncio.Task[Any] | None = None
        self._made = 0
        for node in NODE_NAMES:
            self._daemon(node)
        for name in ("web", "canary"):
            meta = {"name": f"{name}-rs", "uid": f"{name}-rs"}
            owner = {"apiVersion": "apps/v1", "kind": "Deployment", "name": name, "uid": name, "controller": True}
            self.api.put(REPLICA_SETS, QUIET, {"metadata": {**meta, "ownerReferences": [owner]}})
        for name in OBJECTS:
            self.write(name, "0")
        for name in ("web", "web", "canary", "timed"):
            self.create(name, NODE_NAMES[self._made % 2])

    # Users

    async def prepare(self) -> None:
        """Let the pods start, then create the policies, and let the first manager look."""
        await asyncio.sleep(5)
        change: Json = {"triggers": {"configChange": {"settle": f"{SETTLE}s"}}}
        target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}
        self._policy(QUIET, "web", {**change, "targetRef": target})
        self._policy(QUIET, "all", {**change, "selector": {"matchLabels": {"app": "web"}}})
        schedule = {"cron": "*/10 * * * *", "startingDeadline": f"{DEADLINE}s"}
        timed = {"triggers": {"schedule": schedule}, "selector": {"matchLabels": {"app": "timed"}}}
        self._policy(QUIET, "timed", timed)
        self._policy(NOISY, "noisy", {**change, "selector": {"matchLabels": {"app": "web"}}})
        self.resumed = self.loop.time()
        await asyncio.sleep(2)
        for config in self.configs.values():
            config.changed = 0.0
            config.visible.clear()
        self.lead()
        await self.go_on(5)

    def _policy(self, namespace: str, name: str, spec: Json) -> None:
        head = {"apiVersion": policy_types.API_VERSION, "kind": policy_types.KIND}
        self.api.put(POLICIES, namespace, {**head, "metadata": {"name": name}, "spec": spec})

    def write(self, name: str, value: str | None, *, immutable: bool = False, again: bool = False) -> None:
        """Write a ConfigMap; None deletes it, and `again` deletes it first, as for one that is immutable."""
        config, now = self.configs[name], self.loop.time()
        if any(kept != config.value for (_, each), kept in self.kept.items() if each == name):
            self.blind = True  # after two replacements, nodes have different data, and the manager does not know which
        if (value is None or again) and config.value is not None:
            self.api.remove(CONFIG_MAPS, QUIET, name)
        changed = value != config.value
        if value is not None:
            entry = {"operation": "Update", "time": rfc3339(self.clock.now()), "fieldsV1": {"f:data": {"f:K": {}}}}
            old = self.api.find(CONFIG_MAPS, QUIET, name)
            fields = [entry] if changed or old is None else old["metadata"]["managedFields"]
            meta = {"name": name, "managedFields": fields}
            self.api.put(CONFIG_MAPS, QUIET, {"metadata": meta, "data": {"K": value}, "immutable": immutable})
        if changed:
            config.changed = now
            nodes = {node for node in NODE_NAMES if self.kept.get((node, name), value) == value}
            config.visible.append((now, nodes))
        config.value, config.immutable, config.seen = value, immutable and value is not None, False
        if config.immutable and value is not None:  # a kubelet that syncs a pod now stops its watch
            for node in {pod.node for pod in self.pods.values() if name in pod.kind.uses}:
                self.kept.setdefault((node, name), value)

    def create(self, kind: str, node: str) -> None:
        """Create a pod that runs on this node."""
        self._made += 1
        pod = Pod(f"{kind}-{self._made}", KINDS[kind], node, self.loop.time(), unready_since=self.loop.time())
        self.pods[pod.name] = pod
        self._show(pod)
        self._scale()
        self.loop.call_later(1.1, self._start, pod)

    def delete(self, pod: Pod) -> None:
        """Delete a pod. It is gone after two seconds."""
        pod.deleting = True
        used = {name for each in self.pods.values() if not each.deleting for name in each.kind.uses}
        self.blind |= used != {*OBJECTS}  # a policy forgets records that none of its pods uses
        self._show(pod)
        self._scale()
        self.loop.call_later(2.0, self._gone, pod)

    def crash(self, pod: Pod) -> None:
        """The container ends, and kubelet starts it again."""
        if pod.started is not None and pod.node not in self.down:
            self._stopped(pod)
            self._start(pod)

    def toggle(self, node: str) -> None:
        """A node goes down with its kubelet and its daemon, or comes back."""
        self.down ^= {node}
        self._daemon(node)
        for pod in self.pods.values():
            if pod.node == node:
                pod.unready_since = self.loop.time()
                self._show(pod)

    def suspend(self, *, suspended: bool) -> None:
        """Suspend all policies of the quiet namespace, or resume them."""
        if suspended:
            self._noticed = False
        elif self._noticed:
            self.resumed = self.loop.time()
        for policy in self.api.all(POLICIES, QUIET):
            self.api.put(POLICIES, QUIET, {**policy, "spec": {**policy["spec"], "suspend": suspended}})

    @property
    def suspended(self) -> bool:
        """Whether the policies are suspended."""
        return any(each["spec"].get("suspend") for each in self.api.all(POLICIES, QUIET))

    # The manager

    def lead(self) -> None:
        """A manager with empty memory begins to lead."""
        client = cast("KubeClient", self.api)
        events = cast("KubeEventSink", _Events())
        account = "crrd-system:crrd-manager"
        controller = PolicyController(client, events, self.clock, account=account, on_run=lambda *_: None)
        self._leader = self.loop.create_task(controller.run(Health()))

    async def die(self) -> None:
        """The leader is gone between any two lines."""
        self.blind = True
        if self._leader is not None:
            self._leader.cancel()
            with suppress(asyncio.CancelledError):
                await self._leader
            self._leader = None
            await asyncio.sleep(0.1)  # its runs end, too

    def knows(self, name: str) -> bool:
        """Whether the policies have a record of the object that their pods use, as it is now."""
        obj = self.api.find(CONFIG_MAPS, QUIET, name)
        uid = obj["metadata"]["uid"] if obj is not None and obj["immutable"] else None
        owners = {pod.kind.owner for pod in self.pods.values() if name in pod.kind.uses}
        for policy in ("web", "all"):
            found = self.api.find(POLICIES, QUIET, policy)
            records = found.get("status", {}).get("config") or () if found is not None else ()
            known = [each.get("immutable") for each in records if each["name"] == name]
            if owners & {*OWNERS[policy]} and known != [uid]:
                return False
        return True

    @property
    def led(self) -> bool:
        """Whether a manager leads."""
        return self._leader is not None

    async def go_on(self, seconds: float) -> None:
        """Let time pass. Changes are seen if a manager looks meanwhile."""
        await asyncio.sleep(seconds)
        self._noticed |= self.led
        if self.led and not self.suspended and seconds >= 1:
            for config in self.configs.values():
                config.seen = True
        if self._leader is not None and self._leader.done():
            self._leader.result()

    # Nodes

    def _daemon(self, node: str) -> None:
        up = "False" if node in self.down else "True"
        ready = {"type": "Ready", "status": up, "lastTransitionTime": rfc3339(self.clock.now())}
        meta = {"name": f"crrd-{node}", "labels": DAEMON}
        self.api.put(PODS, SYSTEM, {"metadata": meta, "spec": {"nodeName": node}, "status": {"conditions": [ready]}})
        self.api.put(NODES, "", {"metadata": {"name": node}, "status": {"conditions": [ready]}})

    def effective(self, pod: Pod, name: str) -> str | None:
        """Return the data that kubelet would give to the container now."""
        return self.kept.get((pod.node, name), self.configs[name].value)

    def _start(self, pod: Pod) -> None:
        if pod.gone or pod.node in self.down or pod.started is not None:
            if not pod.gone and pod.started is None:
                self.loop.call_later(1.0, self._start, pod)
            return
        values = {name: self.effective(pod, name) for name in pod.kind.uses}
        if any(value is None and not pod.kind.uses[name] for name, value in values.items()):
            self.loop.call_later(2.0, self._start, pod)
            return
        for name, value in values.items():
            if self.configs[name].immutable and value is not None:
                self.kept.setdefault((pod.node, name), value)
        pod.started, pod.values, pod.starts = self.loop.time(), values, pod.starts + 1
        self._show(pod)
        self.loop.call_later(1.5, self._ready, pod, pod.starts)

    def _ready(self, pod: Pod, start: int) -> None:
        if not pod.gone and pod.starts == start and pod.started is not None and not self.bad & {*pod.values.values()}:
            pod.ready = True
            self._show(pod)

    def _stopped(self, pod: Pod) -> None:
        pod.started, pod.ready, pod.unready_since = None, False, self.loop.time()
        self._show(pod)

    def _gone(self, pod: Pod) -> None:
        if pod.node in self.down:
            self.loop.call_later(1.0, self._gone, pod)
            return
        pod.gone = True
        del self.pods[pod.name]
        self.api.remove(PODS, QUIET, pod.name)
        for name in pod.kind.uses:
            if not any(each.node == pod.node and name in each.kind.uses for each in self.pods.values()):
                self.kept.pop((pod.node, name), None)

    def _show(self, pod: Pod) -> None:
        """Write the pod to the API server. Of a node that is down, the node controller writes that it is unready."""
        up, now = pod.node not in self.down, rfc3339(self.clock.now())
        state: Json = {"waiting": {"reason": "CreateContainerConfigError"}}
        if pod.started is not None:
            state = {"running": {"startedAt": rfc3339(self._at(pod.started))}}
        status = {
            "name": "app",
            "containerID": f"containerd://{pod.name}-{pod.starts}" if pod.starts else "",
            "restartCount": max(0, pod.starts - 1),
            "ready": pod.ready,
            "started": pod.started is not None,
            "image": "i:1",
            "imageID": "",
            "state": state,
        }
        old = self.api.find(PODS, QUIET, pod.name)
        ready = {"type": "Ready", "status": "True" if pod.ready and up else "False", "lastTransitionTime": now}
        for each in old["status"]["conditions"] if old is not None else ():
            ready = each if each["status"] == ready["status"] else ready
        sources = [{"configMapRef": {"name": name, "optional": opt}} for name, opt in pod.kind.uses.items()]
        owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": pod.kind.owner, "uid": pod.kind.owner}
        meta: dict[str, Any] = {"name": pod.name, "labels": {"app": pod.kind.app}}
        meta["ownerReferences"] = [{**owner, "controller": True}]
        meta |= {"deletionTimestamp": now} if pod.deleting else {}
        spec = {"nodeName": pod.node, "containers": [{"name": "app", "image": "i:1", "envFrom": sources}]}
        shown = {"phase": "Running" if pod.starts else "Pending", "conditions": [ready], "containerStatuses": [status]}
        self.api.put(PODS, QUIET, {"metadata": meta, "spec": spec, "status": shown})

    def _scale(self) -> None:
        """Keep the Deployment's number of replicas: its rollout is always complete."""
        count = sum(each.kind is KINDS["web"] and not each.deleting for each in self.pods.values())
        spec = {"replicas": count, "selector": {"matchLabels": {"app": "web"}}}
        status = {"observedGeneration": 10**6, "replicas": count, "updatedReplicas": count}
        meta = {"name": "web", "uid": "web"}
        self.api.put(DEPLOYMENTS, QUIET, {"metadata": meta, "spec": spec, "status": status})

    def _at(self, moment: float) -> datetime:
        return self.clock.at(moment).astimezone(UTC)

    # Requests

    def _created(self, resource: Resource, body: Json) -> Json:
        """Admission, and the node daemon that notices the request."""
        if resource.plural != REQUESTS.plural:
            return body
        pod = self.pods.get(body["spec"]["podName"])
        shown = self.api.find(PODS, QUIET, pod.name) if pod is not None else None
        found = reviewed({"apiVersion": API_VERSION, "kind": KIND, **body}, dict(shown) if shown is not None else None)
        if isinstance(found, Denied):
            raise ApiRefusedError(found.message, status=422)
        assert pod is not None
        self._judge_budget(pod, found)
        self.loop.call_later(1.0, self._serve, str(found["metadata"]["name"]))
        return found

    def _serve(self, name: str) -> None:
        request = self.api.find(REQUESTS, QUIET, name)
        if request is None or request.get("status", {}).get("phase") == "Completed":
            return
        pod = self.pods.get(request["spec"]["podName"])
        if pod is None:
            self._report(name, "Completed", "Failed", "PodGone")
            return
        (container,) = request["spec"]["containers"]
        own = f"containerd://{pod.name}-{pod.starts}"
        if pod.node in self.down or (pod.started is None and container["statusContext"]["containerID"] == own):
            self.loop.call_later(1.0, self._serve, name)
        elif container["statusContext"]["containerID"] == own:
            self._report(name, "Recreating", "Recreating")
            self._judge_restart(pod, request)
            self._stopped(pod)
            self.loop.call_later(0.7, self._start, pod)
            self.loop.call_later(1.0, self._serve, name)
        else:
            self._report(name, "Completed", "Succeeded")

    def _report(self, name: str, phase: str, state: str, reason: str = "") -> None:
        states = [{"name": "app", "phase": state, **({"reason": reason} if reason else {})}]
        status = {"phase": phase, "containerRecreateStates": states}
        done = {"completionTime": rfc3339(self.clock.now())} if phase == "Completed" else {}
        self.api.change(REQUESTS, QUIET, name, {"status": {**status, **done}})

    # The judge

    def _policy_of(self, request: Json) -> str:
        run = read_run_request(request)
        assert run is not None
        uids = {each["metadata"]["uid"]: each["metadata"]["name"] for each in self.api.all(POLICIES, QUIET)}
        return str(uids[run.run.options.policy])

    def _judge_budget(self, pod: Pod, request: Json) -> None:
        """No more pods of its target are unavailable than one, whichever run of the manager starts them."""
        policy, late = self._policy_of(request), self.loop.time() - LAG
        busy = {
            each["spec"]["podName"]
            for each in self.api.all(REQUESTS, QUIET)
            if each.get("status", {}).get("phase") != "Completed"
        }
        others = [
            each.name
            for each in self.pods.values()
            if each.kind.owner in OWNERS[policy] and each is not pod and not each.deleting
            if each.name in busy or (not (each.ready and each.node not in self.down) and each.unready_since < late)
        ]
        if others and pod.ready and pod.node not in self.down:
            self.faults.append(f"{policy} restarts {pod.name} while {others} are unavailable")

    def _judge_restart(self, pod: Pod, request: Json) -> None:
        """There is a change that the container could not see, and that a restart can bring."""
        policy, now = self._policy_of(request), self.loop.time()
        self.stops.append((now, pod.name, policy))
        found = read_run_request(request)
        assert found is not None
        times = (datetime.fromisoformat(each) for each in (found.run.options.since, found.run.started))
        since, began = ((each - self._at(0)).total_seconds() for each in times)
        if pod.kind.owner not in OWNERS[policy]:
            self.faults.append(f"{policy} restarts {pod.name}, which its target does not own")
        if policy == "timed":
            if since % 600 or began - since > DEADLINE + 2 or (since < self.resumed - 1 and began >= self.resumed):
                self.faults.append(f"the time {since} of the schedule ran at {began}, resumed at {self.resumed}")
            return
        for name in pod.kind.uses:
            config = self.configs[name]
            changes = [at for at, nodes in config.visible if pod.node in nodes]
            due = self.kept.get((pod.node, name), config.value) == config.value
            if due and any(began - SETTLE + 1 < at < began - 1 for at in changes):
                self.faults.append(f"{policy} begins a run at {began}, and {name} has changed at {changes}")
            last = max(changes, default=0.0)
            could_miss = pod.started is not None and pod.started <= last + SETTLE + 1
            if self.effective(pod, name) != pod.values[name] or could_miss:
                return
        self.faults.append(f"{policy} restarts {pod.name} at {now} with {pod.values}, and nothing has changed")

    def condition(self, policy: str) -> str:
        """Return the reason of the condition Ready."""
        found = self.api.find(POLICIES, QUIET, policy)
        assert found is not None
        return str(next(each["reason"] for each in found["status"]["conditions"] if each["type"] == "Ready"))

    def judge_end(self) -> None:
        """Each container has the present data, or the condition of its policies says that kubelet keeps older data."""
        for policy in ("web", "all"):
            stale = [
                f"{pod.name} on {pod.node} has {pod.values}"
                for pod in self.pods.values()
                if pod.kind.owner == "web-rs" or (policy == "all" and pod.kind.owner == "canary-rs")
                if pod.values != {name: self.configs[name].value for name in pod.kind.uses}
            ]
            reason = self.condition(policy)
            if stale and reason != "ImmutableReplaced":
                self.faults.append(f"{policy} is {reason}, and {stale}")
            used = {"web": {"a"}, "all": {"a", "b"}}[policy]
            kept = [
                each for each, value in self.kept.items() if each[1] in used and value != self.configs[each[1]].value
            ]
            if reason == "ImmutableReplaced" and not kept and not self.blind:
                self.faults.append(f"{policy} is {reason}, and no node keeps old data")
            if reason not in ("Idle", "ImmutableReplaced"):
                self.faults.append(f"{policy} is {reason} in the end")


class _Events:
    """The events are of no interest here."""

    def record(self, _: object) -> None:
        """See KubeEventSink."""
