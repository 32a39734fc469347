"""The sandboxes of the simulated runtime: kubelet's, and the second ones that the daemon makes.

As in containerd and CRI-O, a name (pod, UID and number) exists only once, and is reserved while its sandbox is made.
Removing a sandbox kills its containers at once.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc

from cri_stubs import api_pb2
from crrd.cri.convert import LABEL_MADE_BY, LABEL_REQUEST_UID, MADE_BY
from crrd.kubelet import labels as on_cri
from tests.simulation.channel import failed
from tests.simulation.containers import KILLED, Container
from tests.simulation.pod import Pod

if TYPE_CHECKING:
    from tests.simulation.channel import Call
    from tests.simulation.world import SimulatedWorld

RUN_SECONDS = 0.3  # How long the runtime takes for a sandbox
Reply = Callable[[Any], None]


@dataclass(eq=False)
class Sandbox:
    """One sandbox of a pod."""

    id: str
    pod_uid: str  # The runtime's UID of the pod
    runtime: str
    attempt: int
    created_ns: int
    message: api_pb2.PodSandbox
    request_uid: str = ""  # Of the request for which the daemon made it, "" for kubelet's
    ready: bool = True
    made: float = 0.0  # The loop's time

    @property
    def has_network(self) -> bool:
        """Whether it has a network of its own, and so an IP. The daemon's have none."""
        return not self.request_uid


def parent_of(pod_uid: str) -> str:
    """Return the cgroup of a pod."""
    return f"/kubepods/pod{pod_uid}"


class Sandboxes:
    """All sandboxes of the node."""

    def __init__(self, world: "SimulatedWorld") -> None:
        self._world = world
        self.present: dict[str, Sandbox] = {}
        self.all: dict[str, Sandbox] = {}  # Including removed ones
        self._reserved: set[tuple[str, int]] = set()  # UID and number of those that are being made
        self._made = 0
        self._last_ns = 0
        self.calls: dict[str, Callable[[Call, Reply], None]] = {
            "ListPodSandbox": self._list,
            "PodSandboxStatus": self._status,
            "RunPodSandbox": self._run,
            "RemovePodSandbox": self._remove,
        }

    def of(self, pod_uid: str) -> list[Sandbox]:
        """Return a pod's existing sandboxes, the oldest first."""
        return [one for one in self.present.values() if one.pod_uid == pod_uid]

    def history(self, pod_uid: str) -> list[Sandbox]:
        """Return a pod's sandboxes including removed ones, the oldest first."""
        return [one for one in self.all.values() if one.pod_uid == pod_uid]

    def is_free(self, pod_uid: str, attempt: int) -> bool:
        """Whether a sandbox of this number can be made."""
        return (pod_uid, attempt) not in self._reserved | {(one.pod_uid, one.attempt) for one in self.present.values()}

    def create(self, pod: Pod, attempt: int) -> Sandbox:
        """Make kubelet's sandbox of a pod."""
        marks = {
            on_cri.LABEL_POD_NAME: pod.name,
            on_cri.LABEL_POD_NAMESPACE: pod.namespace,
            on_cri.LABEL_POD_UID: pod.runtime_uid,
        }
        meta = api_pb2.PodSandboxMetadata(name=pod.name, uid=pod.runtime_uid, namespace=pod.namespace, attempt=attempt)
        return self._create(meta, marks, pod.shape.runtime)

    def _create(self, meta: api_pb2.PodSandboxMetadata, marks: dict[str, str], runtime: str) -> Sandbox:
        self._made += 1
        self._last_ns = max(int(self._world.loop.wall() * 1e9), self._last_ns + 1000)
        made_id = f"b{self._made}"
        message = api_pb2.PodSandbox(
            id=made_id, metadata=meta, state=api_pb2.SANDBOX_READY, created_at=self._last_ns, labels=marks
        )
        request_uid = marks.get(LABEL_REQUEST_UID, "")
        made = Sandbox(made_id, meta.uid, runtime, meta.attempt, self._last_ns, message, request_uid)
        made.made = self._world.loop.time()
        self.present[made_id] = self.all[made_id] = made
        return made

    def stop(self, sandbox: Sandbox) -> None:
        """The sandbox ends, with everything that runs in it."""
        if not sandbox.ready:
            return
        sandbox.ready = False
        sandbox.message.state = api_pb2.SANDBOX_NOTREADY
        for container in self.containers_in(sandbox):
            self._world.containers.end(container, KILLED)

    def containers_in(self, sandbox: Sandbox) -> list[Container]:
        """Return the instances in a sandbox that the runtime has."""
        return [one for one in self._world.containers.present.values() if one.sandbox == sandbox.id]

    def collect(self, sandbox: Sandbox) -> None:
        """Remove a sandbox that has ended."""
        if self.present.pop(sandbox.id, None) is not None:
            self._world.say("node", f"sandbox {sandbox.id} is collected")

    # The daemon's calls.

    def _list(self, call: "Call", reply: Reply) -> None:
        """ListPodSandbox."""
        wanted = call.message.filter
        ignores = self._world.setup.ignores_filters
        found = [
            one.message
            for one in self.present.values()
            if one.runtime == call.runtime and (ignores or wanted.label_selector.items() <= one.message.labels.items())
        ]
        reply(api_pb2.ListPodSandboxResponse(items=found))

    def _status(self, call: "Call", reply: Reply) -> None:
        """PodSandboxStatus, with the configuration."""
        sandbox = self._get(call)
        if sandbox is None:
            reply(_not_found(call.message.pod_sandbox_id))
            return
        config = {"linux": {"cgroup_parent": parent_of(sandbox.pod_uid)}}
        info = {"info": json.dumps({"config": config})} if call.message.verbose else {}
        reply(api_pb2.PodSandboxStatusResponse(info=info))

    def _run(self, call: "Call", reply: Reply) -> None:
        """RunPodSandbox. The runtime goes on when the caller has gone, every other time."""
        meta = call.message.config.metadata
        key = (meta.uid, meta.attempt)
        if not self.is_free(*key):
            said = f'name "{meta.name}_{meta.namespace}_{meta.uid}_{meta.attempt}" is reserved'
            reply(failed(grpc.StatusCode.UNKNOWN, f"failed to reserve sandbox name: {said}"))
            return
        self._reserved.add(key)
        gone = [False]

        def give_up() -> None:
            gone[0] = int(self._world.loop.time() * 1000) % 2 == 0

        def make() -> None:
            self._reserved.discard(key)
            if gone[0]:
                return
            call.give_up = lambda: None
            made = self._create(meta, dict(call.message.config.labels), call.runtime)
            self._world.say("node", f"sandbox {made.id} of {meta.name}, number {meta.attempt}, for {made.request_uid}")
            self._world.judge.sandbox_made(made)
            self._world.kubelet.notice(made.pod_uid)
            reply(api_pb2.RunPodSandboxResponse(pod_sandbox_id=made.id))

        call.give_up = give_up
        self._world.loop.call_later(RUN_SECONDS, make)

    def _remove(self, call: "Call", reply: Reply) -> None:
        """RemovePodSandbox: what runs in it is killed and removed."""
        sandbox = self._get(call)
        if sandbox is not None:
            self._world.judge.sandbox_removed(sandbox)
            self._world.say("node", f"sandbox {sandbox.id} is removed")
            self.stop(sandbox)
            for container in self.containers_in(sandbox):
                self._world.containers.collect(container)
            self.present.pop(sandbox.id, None)
            self._world.kubelet.notice(sandbox.pod_uid)
        reply(api_pb2.RemovePodSandboxResponse())

    def _get(self, call: "Call") -> Sandbox | None:
        found = self.present.get(call.message.pod_sandbox_id)
        return found if found is not None and found.runtime == call.runtime else None


def is_second(config: api_pb2.PodSandboxConfig) -> bool:
    """Whether a configuration is one of the daemon, on the host's network, with the cgroup of its pod."""
    marked = config.labels.get(LABEL_MADE_BY) == MADE_BY
    own = config.linux.cgroup_parent == parent_of(config.metadata.uid)
    return marked and own and config.linux.security_context.namespace_options.network == api_pb2.NODE


def _not_found(sandbox_id: str) -> Any:
    return failed(grpc.StatusCode.NOT_FOUND, f'an error occurred when try to find sandbox "{sandbox_id}": not found')
