"""Builders for the core's values. The defaults are a healthy pod and a simple request."""

from dataclasses import replace
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
from crrd.core.recreate.observation import HookResult, Instance, Observation, StopAttempt, Work, WorkKind
from crrd.kubelet.runtime_status import ContainerState

RUNTIME = "containerd"
NODE = "node-a"
POD_UID = "uid-of-web"


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


def observed(*instances: Instance, **changes: Any) -> Observation:
    """Return an observation of default/web."""
    plain = Observation(
        node_name=NODE,
        runtime_names=frozenset({RUNTIME}),
        instances=instances,
        foreign={f"old{suffix}": None for suffix in ("", "-a", "-b", "-c", "-app", "-side")},
        pod=pod(),
        known_since=0.0,
        listed_at=100.0,
        utc="2026-01-01T00:01:00Z",
        wall=1767225660.0,
    )
    return replace(plain, **changes)
