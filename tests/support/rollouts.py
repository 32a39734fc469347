"""Builders for runs and their input: ready pods, a simple run, requests in different states."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from crrd.core.api.pod import Pod, PodContainer
from crrd.core.api.reasons import Reason
from crrd.core.api.types import (
    Pin,
    RecreateState,
    Request,
    RequestedContainer,
    RequestPhase,
    StatePhase,
    Status,
)
from crrd.core.rollout.image.facts import ImageRun
from crrd.core.rollout.image.state import ImageState
from crrd.core.rollout.image.steps import ImageActions
from crrd.core.rollout.image.template import Template
from crrd.core.rollout.labels import read_selector
from crrd.core.rollout.phases import RUN_MOVES, RunPhase
from crrd.core.rollout.plan import Plan, make_plan
from crrd.core.rollout.requests import RunRequest
from crrd.core.rollout.run import Options, Run, Target
from crrd.core.rollout.state import Budget, Member, World
from crrd.core.rollout.workload import Workload

START = datetime(2026, 1, 1, 12, tzinfo=UTC)
NOW = START + timedelta(seconds=60)
BEFORE = "2026-01-01T11:00:00Z"
AFTER = "2026-01-01T12:00:30Z"
WEB = Target("deployment.apps/web", "apps/v1", "Deployment", "web", "uid-of-web")


def container(name: str = "app", **changes: Any) -> PodContainer:
    """Return a container that has run for an hour."""
    plain = PodContainer(name, container_id=f"containerd://{name}-1", running=True, ready=True, started_at=BEFORE)
    return replace(plain, **changes)


def member(name: str, *containers: PodContainer, node: str = "node-a", **changes: Any) -> Member:
    """Return a pod that has been ready for an hour. `changes` may include fields of the Pod itself."""
    there = containers or (container(),)
    plain = Pod("default", name, f"uid-{name}", containers={each.name: each for each in there}, node_name=node)
    own = {key: changes.pop(key) for key in ("deleting", "phase") if key in changes}
    ready = Member(
        replace(plain, **own), BEFORE, ready=True, ready_since=START - timedelta(hours=1), labels={"app": "web"}
    )
    return replace(ready, **changes)


def members(count: int) -> tuple[Member, ...]:
    """Return this many pods: web-0, web-1 ..."""
    return tuple(member(f"web-{number}") for number in range(count))


def run(*containers: str, name: str = "run", target: Target = WEB, started: str = "", **options: Any) -> Run:
    """Return a run that began at START."""
    given = Options(**{"containers": containers or ("app",), **options})
    return Run("default", name, target, given, started or "2026-01-01T12:00:00Z")


def workload(desired: int, **changes: Any) -> Workload:
    """Return a Deployment that is rolled out."""
    return replace(Workload("uid-of-web", desired), **changes)


def budget(allowed: int, name: str = "guard", selector: Mapping[str, Any] | None = None, **changes: Any) -> Budget:
    """Return a PodDisruptionBudget for all pods of the workload."""
    chosen = read_selector({"matchLabels": {"app": "web"}} if selector is None else selector)
    return replace(Budget(name, f"uid-{name}", chosen, allowed), **changes)


def asked(of: Run, pod: Member, phase: RequestPhase = RequestPhase.EMPTY, **status: Any) -> RunRequest:
    """Return the run's request for a pod."""
    names = of.options.containers
    wanted = tuple(RequestedContainer(name, Pin(f"containerd://{name}-1")) for name in names)
    request = Request(
        "default",
        of.request_name(pod.pod.uid),
        f"uid-of-{of.request_name(pod.pod.uid)}",
        "1",
        of.started,
        pod.pod.name,
        pod.pod.uid,
        pod.pod.node_name,
        wanted,
        status=Status(phase, **status),
    )
    return RunRequest(request, of)


def succeeded(of: Run, pod: Member, **status: Any) -> RunRequest:
    """Return a request whose containers were all recreated."""
    states = tuple(RecreateState(name, StatePhase.SUCCEEDED) for name in of.options.containers)
    return asked(of, pod, RequestPhase.COMPLETED, states=states, **status)


def failed(of: Run, pod: Member, reason: Reason = Reason.STOP_FAILED, message: str = "it would not end") -> RunRequest:
    """Return a request that has failed."""
    states = tuple(RecreateState(name, StatePhase.FAILED, message, reason=reason) for name in of.options.containers)
    return asked(of, pod, RequestPhase.COMPLETED, states=states)


def again(found: RunRequest, before: RunRequest) -> RunRequest:
    """Return the request as the one that follows a failed one of the same pod."""
    name = before.run.request_name(before.request.pod_uid, before.request.name)
    return replace(found, request=replace(found.request, name=name, uid=f"uid-of-{name}"))


def recreated(pod: Member, *, ready: bool = True, seconds: float = 30) -> Member:
    """Return the pod with the next instances of its containers, which started so many seconds before NOW."""
    at = NOW - timedelta(seconds=seconds)
    started = at.strftime("%Y-%m-%dT%H:%M:%SZ")
    there = {
        name: replace(each, container_id=f"containerd://{name}-2", started_at=started, restart_count=1)
        for name, each in pod.pod.containers.items()
    }
    return replace(pod, pod=replace(pod.pod, containers=there), ready=ready, ready_since=at)


def planned(world: World, of: Run | None = None, **options: Any) -> Plan:
    """Return the plan at NOW."""
    return make_plan(world, of or run(), NOW, **options)


class Phases:
    """The phases of a run's plans. Each follows from the one before by a move of the table."""

    def __init__(self) -> None:
        self._last: RunPhase | None = None

    def saw(self, found: Plan) -> None:
        """Note the phase of the next plan."""
        last, self._last = self._last, found.phase if found.end is None else None  # whoever goes on begins anew
        assert last in (None, found.phase) or (last, found.phase) in RUN_MOVES, f"{last} -> {found.phase}"


def image_actions(found: Plan) -> ImageActions:
    """Return what a run with an image does besides its requests."""
    return found.actions if isinstance(found.actions, ImageActions) else ImageActions()


def with_template(of: Run, found: Template) -> ImageRun:
    """Return a run with an image whose workload has this template."""
    return ImageRun.of(World((), extra=ImageState(template=found)), of)


def chosen(found: Plan) -> list[str]:
    """Return the pods that get their request now."""
    return [row.pod for row in found.create]


def stages(found: Plan) -> dict[str, str]:
    """Return the stage of each pod."""
    return {row.pod: row.stage.value for row in found.rows}


def why(found: Plan) -> dict[str, str]:
    """Return what each pod waits for, or why it is skipped."""
    return {row.pod: row.wait.why for row in found.rows}
