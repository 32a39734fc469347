"""Builders for the core's values. The defaults are a healthy pod and a simple request."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from crrd.core.api.pod import Pod, PodContainer
from crrd.core.api.types import (
    Pin,
    RecreateState,
    Request,
    RequestedContainer,
    RequestPhase,
    StatePhase,
    Status,
    Strategy,
)
from crrd.core.policy.v1alpha1 import read_policy
from crrd.core.recreate.actions import Decision
from crrd.core.recreate.decide import decide
from crrd.core.recreate.invariants import check
from crrd.core.recreate.observation import (
    HookResult,
    Instance,
    Observation,
    ObservedNode,
    ObservedPod,
    ObservedRequest,
    StopAttempt,
    Work,
    WorkKind,
)
from crrd.kubelet.runtime_status import ContainerState

RUNTIME = "containerd"
NODE = "node-a"
POD_UID = "uid-of-web"
BUDGET = read_policy({}).budget  # Of a policy that says nothing


def pin(container_id: str, restart_count: int = 0) -> Pin:
    """Return a statusContext."""
    return Pin(f"{RUNTIME}://{container_id}", restart_count)


def instance(container_id: str, name: str = "app", **changes: Any) -> Instance:
    """Return a running instance of pod default/web."""
    plain = Instance(
        id=container_id,
        runtime=RUNTIME,
        name=name,
        pod_namespace="default",
        pod_name="web",
        pod_uid=POD_UID,
        state=ContainerState.RUNNING,
        created_at=1,
        grace_seconds=30,
    )
    return replace(plain, **changes)


def exited(container_id: str, name: str = "app", **changes: Any) -> Instance:
    """Return an instance that has ended."""
    return instance(container_id, name, state=ContainerState.EXITED, **changes)


def pod(*containers: PodContainer, **changes: Any) -> Pod:
    """Return pod default/web, with one container `app` unless others are given."""
    known = containers or (PodContainer("app", container_id=f"{RUNTIME}://old", running=True, ready=True),)
    plain = Pod(
        "default",
        "web",
        POD_UID,
        containers={container.name: container for container in known},
        pod_ip="127.0.0.1",
    )
    return replace(plain, **changes)


def request(*names: str, uid: str = "r1", strategy: Strategy | None = None, **changes: Any) -> Request:
    """Return a request for containers of default/web. Each statusContext is `old` (`old-NAME` for several)."""
    wanted = names or ("app",)
    context = {name: pin("old" if len(wanted) == 1 else f"old-{name}") for name in wanted}
    plain = Request(
        namespace="default",
        name=uid,
        uid=uid,
        resource_version="10",
        created="2099-01-01T00:00:00Z",  # later than any clock here, so no response is overdue
        pod_name="web",
        pod_uid=POD_UID,
        node_name=NODE,
        containers=tuple(RequestedContainer(name, context[name]) for name in wanted),
        strategy=strategy or Strategy(),
    )
    return replace(plain, **changes)


def recreating(*states: RecreateState) -> Status:
    """Return the status of a request in progress."""
    return Status(RequestPhase.RECREATING, states)


def killed(name: str = "app", message: str = "") -> RecreateState:
    """Return the state of a container whose stop was sent."""
    return RecreateState(name, StatePhase.RECREATING, message, is_killed=True)


def stopping(
    container_id: str = "old", name: str = "app", uid: str = "r1", *, since: float = 99.5, seconds: float = 30.0
) -> dict[tuple[str, str], Work]:
    """Return a stop in progress."""
    under_way = Work(name, pin(container_id), WorkKind.STOP, since + seconds, stop_sent=since)
    return {(uid, container_id): under_way}


def hooking(
    container_id: str = "old", name: str = "app", uid: str = "r1", *, since: float = 99.5, seconds: float = 30.0
) -> dict[tuple[str, str], Work]:
    """Return a hook in progress."""
    return {(uid, container_id): Work(name, pin(container_id), WorkKind.HOOK, since + seconds, hook_began=since)}


def hooked(
    result: HookResult, container_id: str = "old", uid: str = "r1", *, until: float = 120.0
) -> dict[tuple[str, str], Work]:
    """Return a hook that has ended."""
    return {(uid, container_id): Work("app", pin(container_id), hook_began=90.0, hook_until=until, hook_result=result)}


def stopped(
    sent: float, attempt: StopAttempt, container_id: str = "old", uid: str = "r1", *, name: str = "app"
) -> dict[tuple[str, str], Work]:
    """Return a stop that has returned."""
    return {(uid, container_id): Work(name, pin(container_id), stop_sent=sent, last_stop=attempt)}


@dataclass(frozen=True)
class Scene:
    """What is known of default/web, of the node, and of the requests by UID."""

    pod: ObservedPod
    node: ObservedNode
    works: Mapping[tuple[str, str], Work] = field(default_factory=dict)
    first_seen: Mapping[str, float] = field(default_factory=dict)
    unready_seen: Mapping[str, float] = field(default_factory=dict)
    pin_errors: Mapping[str, str] = field(default_factory=dict)
    ended: tuple[Request, ...] = ()  # Requests that have left the selection

    def known(self, request: Request, now: float) -> ObservedRequest:
        """Return what is known of a request. Without a time in `first_seen`, it was first seen now."""
        uid = request.uid
        return ObservedRequest(
            request,
            self.first_seen.get(uid, min(now, self.pod.listed_at)),
            self.unready_seen.get(uid),
            left=request in self.ended,
            pin_error=self.pin_errors.get(uid, ""),
            works={container_id: work for (of, container_id), work in self.works.items() if of == uid},
        )


def observed(*instances: Instance, **changes: Any) -> Scene:
    """Return what is observed of default/web, with changes of any of its parts."""
    plain: dict[str, Any] = {
        "instances": instances,
        "foreign": {f"old{suffix}": None for suffix in ("", "-a", "-b", "-c", "-app", "-side")},
        "pod": pod(),
        "known_since": 0.0,
        "listed_at": 100.0,
        "name": NODE,
        "runtimes": frozenset({RUNTIME}),
        "wall": 1767225660.0,  # 2026-01-01T00:01:00Z
    }
    given = plain | changes
    parts = {
        kind: {each.name: given.pop(each.name) for each in fields(kind) if each.name in given}
        for kind in (ObservedPod, ObservedNode)
    }
    return Scene(ObservedPod(**parts[ObservedPod]), ObservedNode(**parts[ObservedNode]), **given)


def decided(requests: Iterable[Request], scene: Scene, now: float) -> Decision:
    """Return what is decided about these requests, and about others for which this process has worked."""
    all_of_them = {each.uid: each for each in (*requests, *scene.ended)}
    gone = tuple(request(uid=uid) for uid in dict.fromkeys(uid for uid, _ in scene.works) if uid not in all_of_them)
    scene = replace(scene, ended=(*scene.ended, *gone))
    known = [scene.known(each, now) for each in (*all_of_them.values(), *gone)]
    observation = Observation(scene.pod, tuple(known), scene.node, now)
    decision = decide(observation)
    assert not check(decision, observation)
    return decision
