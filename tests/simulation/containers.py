"""The container runtime of a run: simulated containers, and their true state.

It behaves like containerd: StopContainer sends TERM, waits, then sends KILL. A caller that disconnects ends the wait
and not the container. A second StopContainer has its own timeout. Containers survive a restart of the runtime.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cri_stubs import api_pb2
from crrd.kubelet import labels as on_cri
from crrd.kubelet.image_hash import hash_of_name_and_image
from tests.simulation.schedule import ContainerShape

if TYPE_CHECKING:
    from tests.simulation.channel import Call
    from tests.simulation.world import SimulatedWorld

KILLED = 137
_STATES = {
    "created": api_pb2.CONTAINER_CREATED,
    "running": api_pb2.CONTAINER_RUNNING,
    "exited": api_pb2.CONTAINER_EXITED,
    "unknown": api_pb2.CONTAINER_UNKNOWN,
}


@dataclass(eq=False)
class Container:
    """One instance, and its history."""

    id: str
    shape: ContainerShape
    pod_uid: str  # The runtime's UID of the pod: a static pod's own, not its mirror's
    attempt: int
    created_ns: int
    message: api_pb2.Container
    runtime: str
    image: str = ""
    sandbox: str = ""  # ID of the sandbox in which it was created
    state: str = "created"
    exit_code: int = 0
    started: float | None = None
    ended: float | None = None
    termed: bool = False
    ready_seen: float | None = None  # When the API first showed it running and ready
    on_end: list[Callable[[], None]] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.shape.name

    @property
    def shown_ended(self) -> bool:
        """Whether a list shows it as ended."""
        return self.state == "exited" and self.message.state == api_pb2.CONTAINER_EXITED

    @property
    def is_unknown(self) -> bool:
        return self.message.state == api_pb2.CONTAINER_UNKNOWN


class Containers:
    """All containers of the node. Creation times never decrease, because kubelet relies on their order."""

    def __init__(self, world: "SimulatedWorld") -> None:
        self._world = world
        self.present: dict[str, Container] = {}
        self.all: dict[str, Container] = {}  # Including removed ones
        self._made = 0
        self._last_ns = 0

    def of(self, pod_uid: str, name: str) -> list[Container]:
        """Return a container's existing instances, the oldest first."""
        return [one for one in self.present.values() if one.pod_uid == pod_uid and one.name == name]

    def get(self, call: "Call") -> Container | None:
        """Return the container of a call, or None if its runtime does not have it."""
        found = self.present.get(call.message.container_id)
        return found if found is not None and found.runtime == call.runtime else None

    def history(self, pod_uid: str, name: str) -> list[Container]:
        """Return a container's instances including removed ones, the oldest first."""
        return [one for one in self.all.values() if one.pod_uid == pod_uid and one.name == name]

    def create(self, pod: Any, shape: ContainerShape, attempt: int) -> Container:
        self._made += 1
        self._last_ns = max(int(self._world.loop.wall() * 1e9), self._last_ns + 1000)
        annotations = {on_cri.ANNOTATION_RESTART_COUNT: str(attempt)}
        if pod.shape.grace is not None:
            annotations[on_cri.ANNOTATION_GRACE] = str(pod.shape.grace)
        if shape.hook:
            annotations[on_cri.ANNOTATION_PRE_STOP] = json.dumps(hook_of(shape))
            annotations[on_cri.ANNOTATION_PORTS] = '[{"name":"http","containerPort":8080}]'
        image = pod.images.get(shape.name, "")
        if image:
            annotations[on_cri.ANNOTATION_HASH] = hash_of_name_and_image(shape.name, image)
        container_id = f"c{self._made}"
        home = self._world.kubelet.restarts.current(pod)
        sandbox = home.id if home is not None else ""
        message = api_pb2.Container(
            id=container_id,
            metadata=api_pb2.ContainerMetadata(name=shape.name, attempt=attempt),
            created_at=self._last_ns,
            labels={
                on_cri.LABEL_POD_NAME: pod.name,
                on_cri.LABEL_POD_NAMESPACE: pod.namespace,
                on_cri.LABEL_POD_UID: pod.runtime_uid,
                on_cri.LABEL_CONTAINER_NAME: shape.name,
            },
            annotations=annotations,
            pod_sandbox_id=sandbox,
        )
        shop = self._world.setup.shop
        if shop is not None and shop.tells_image:
            message.image.user_specified_image = image
        runtime = pod.shape.runtime
        made = Container(container_id, shape, pod.runtime_uid, attempt, self._last_ns, message, runtime, image, sandbox)
        self.present[container_id] = self.all[container_id] = made
        self._moved(made, "created", f"for {pod.name}/{shape.name}")
        return made

    def start(self, container: Container) -> None:
        if container.state == "created" and container.id in self.present:
            container.started = self._world.loop.time()
            self._moved(container, "running", f"as {container.name}")

    def abandon(self, container: Container, code: int = 0) -> None:
        """A container that was created is never started."""
        container.ended = self._world.loop.time()
        container.exit_code = code
        self._moved(container, "exited", "before it was started")

    def end(self, container: Container, code: int) -> None:
        """End the container, by itself or by a signal."""
        if container.state != "running":
            return
        container.exit_code = code
        container.ended = self._world.loop.time()
        self._moved(container, "exited", f"with {code}")
        waiting, container.on_end = container.on_end, []
        for tell in waiting:
            tell()

    def stop(self, container: Container, seconds: float, ended: Callable[[], None]) -> Callable[[], None]:
        """Send TERM now and KILL after `seconds`. Return the function that cancels this."""
        if container.state != "running":
            self._world.loop.call_soon(ended)
            return lambda: None
        container.on_end.append(ended)
        if seconds > 0 and not container.termed:
            container.termed = True
            if container.shape.term_seconds is not None:
                self._world.loop.call_later(
                    container.shape.term_seconds, self.end, container, container.shape.term_code
                )
        timer = self._world.loop.call_later(seconds, self.end, container, KILLED)

        def give_up() -> None:
            timer.cancel()
            if ended in container.on_end:
                container.on_end.remove(ended)

        return give_up

    def collect(self, container: Container) -> None:
        """Remove a container that has ended."""
        if self.present.pop(container.id, None) is not None:
            self._world.say("node", f"{container.id} is collected")

    def _moved(self, container: Container, state: str, what: str) -> None:
        container.state = state
        self._world.say("node", f"{container.id} {state} {what}")
        lag = self._world.setup.list_lag if state == "exited" else 0.0
        self._world.loop.call_later(lag, self._show, container, state) if lag else self._show(container, state)

    def _show(self, container: Container, state: str) -> None:
        """Make the true state visible in lists."""
        container.message.state = _STATES[state]
        self._world.kubelet.notice(container.pod_uid)

    def lose(self, container: Container) -> None:
        """The runtime loses track of a container's state, so kubelet will stop it."""
        if container.state == "running":
            container.message.state = _STATES["unknown"]
            self._world.say("node", f"{container.id} is in an unknown state")
            self._world.kubelet.notice(container.pod_uid)


def hook_of(shape: ContainerShape) -> dict[str, Any]:
    """Return the preStop hook of a container."""
    hooks: dict[str, dict[str, Any]] = {
        "exec": {"command": ["/bin/drain"]},
        "httpGet": {"port": "http", "path": f"/{shape.name}"},
        "sleep": {"seconds": int(shape.hook_seconds)},
    }
    return {shape.hook: hooks[shape.hook]}
