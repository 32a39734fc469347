"""Where one container of a request stands, in words: what it waits for, since when, and what can be done about it.

Judged by the request's status and the pod's, as anybody can read them; the runtime is not asked. The request as a
whole is `explain`'s concern.
"""

import re
from dataclasses import dataclass

from crrd.core.api.pod import PodContainer
from crrd.core.api.reasons import CAUSES, EventReason, Reason, remedy, value_of
from crrd.core.api.time import parse_time
from crrd.core.api.types import DEFAULT_GRACE_SECONDS, Begun, Pin, RecreateState, RequestedContainer, StatePhase
from crrd.core.explain.facts import Facts
from crrd.core.recreate.messages import UNREMARKABLE_WAITS, held_back
from crrd.core.recreate.record import target_of

NOT_ITS_TURN = "its turn has not come yet"
LATE_SECONDS = 15.0
"""How much later than its grace period a stop may be before it counts as stuck: kubelet tells the API with a delay."""
DAEMON_PATIENCE_SECONDS = 30.0
"""After which what the node's daemon should have done counts as not being done."""
READY_PATIENCE_SECONDS = 300.0
"""After which a container that runs and is not ready is worth a look."""

_BACK_OFF = re.compile(r"back-off (\S+) restarting failed container")
_GO_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|h|m|s)")
_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_IMAGE = frozenset({"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError"})
_CONFIG = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError", "PreCreateHookError"})

_GOES_ON = frozenset({Reason.NONE, Reason.HOOK_FAILED, Reason.HELD_BACK})
"""Reasons of a container whose stop nothing holds up."""


@dataclass(frozen=True, slots=True)
class ContainerReport:
    """Where one container stands."""

    name: str
    phase: str
    what: str
    since: float | None = None
    """For how many seconds it has been so, None where nobody can tell."""
    advice: tuple[str, ...] = ()
    """What to do, one sentence or command each."""
    stuck: bool = False
    """Whether it does not go on by itself."""
    turn_awaited: bool = False
    """Whether nothing is known but that its turn has not come."""
    says_since: bool = False
    """Whether `what` says for how long."""


def format_duration(seconds: float) -> str:
    """A time in words, to the second below an hour: `40 s`, `3 min 20 s`, `2 h 5 min`, `3 d 4 h`."""
    whole = max(0, round(seconds))
    for large, small, size, part in (("d", "h", 86400, 3600), ("h", "min", 3600, 60), ("min", "s", 60, 1)):
        if whole >= size:
            rest = whole % size // part
            return f"{whole // size} {large}" + (f" {rest} {small}" if rest else "")
    return f"{whole} s"


def short(container_id: str) -> str:
    """A container ID as it is usually shown: the runtime's name, and as much as tells it from others."""
    pin = Pin(container_id)
    return f"{pin.runtime}://{pin.bare_id[:12]}" if pin.runtime else pin.bare_id[:12]


def container_report(facts: Facts, container: RequestedContainer) -> ContainerReport:
    """Where this container of the request stands now."""
    state = facts.request.status.state(container.name)
    known = facts.own_pod.containers.get(container.name) if facts.own_pod else None
    phase = state.phase.value
    if state.phase is StatePhase.SUCCEEDED:
        return ContainerReport(state.name, phase, _recreated(facts, container, known, state))
    if state.phase is StatePhase.FAILED:
        return ContainerReport(state.name, phase, state.message or "no reason was given", stuck=True)
    if facts.request.completed:
        said = facts.request.status.message or "nobody said why"
        return ContainerReport(state.name, phase, f"not finished: {said}", stuck=True)
    if known is None:
        return ContainerReport(state.name, phase, state.message or "nothing is known about it in the pod's status")
    if not known.running:
        return _not_running(facts, state, known)
    if _is_successor(facts, container, known):
        return _runs_again(facts, state, known)
    return _to_be_stopped(facts, state)


def _recreated(facts: Facts, container: RequestedContainer, known: PodContainer | None, state: RecreateState) -> str:
    said = f"; {state.message}" if state.message else ""
    target = target_of(facts.request, container)
    if target is None or known is None or not _is_successor(facts, container, known):
        return f"recreated{said}"
    ids = f"{short(target.container_id)} -> {short(known.container_id)}"
    again = "; restarted more than once" if known.restart_count > target.restart_count + 1 else ""
    return f"recreated: {ids}, restart count {target.restart_count} -> {known.restart_count}{again}{said}"


def _is_successor(facts: Facts, container: RequestedContainer, known: PodContainer) -> bool:
    """Whether the pod's status shows a later instance than the one that has to go."""
    target = target_of(facts.request, container)
    if target is None or not known.container_id:
        return False
    return known.container_id != target.container_id or known.restart_count > target.restart_count


def _to_be_stopped(facts: Facts, state: RecreateState) -> ContainerReport:
    """The instance that has to go still runs, as far as the API says."""
    if state.reason is Reason.NOT_STARTED_AGAIN:
        return _end_not_shown(facts, state)
    begun = facts.request.begun.get(state.name, Begun())
    event = facts.last_event(EventReason.RECREATING, state.name)
    since = facts.seconds_since(event or parse_time(begun.hook or begun.stop))
    if state.reason not in _GOES_ON:
        advice = advice_for(facts, state.reason) if CAUSES[state.reason].remedy else ()
        return ContainerReport(state.name, state.phase.value, state.message, since, advice, stuck=bool(advice))
    said = "" if state.reason else state.message
    grace = _grace(facts)
    stuck = since is not None and grace + LATE_SECONDS < since
    limit = f"grace {grace} s" + (f", {format_duration((since or 0.0) - grace)} over" if stuck else "")
    over = (f"the runtime does not end the container: {daemon_log(facts)}",) if stuck else ()
    if state.is_killed or begun.stop:
        what = f"{said or 'stop sent, the container still runs'}; {limit}"
    elif state.phase is StatePhase.RECREATING or since is not None:
        what = f"{said or 'its preStop hook runs, or its stop is just being sent'}; {limit}"
    else:
        waits = state.message or NOT_ITS_TURN
        return ContainerReport(state.name, state.phase.value, waits, turn_awaited=not state.message)
    return ContainerReport(state.name, state.phase.value, what, since, over, stuck)


def _end_not_shown(facts: Facts, state: RecreateState) -> ContainerReport:
    """The daemon has seen the container's end, which kubelet has yet to tell the API."""
    seconds = value_of(Reason.NOT_STARTED_AGAIN, "seconds", state.message)
    since = float(seconds or 0.0) + (facts.seconds_since(facts.times.written) or 0.0)
    stuck = since >= LATE_SECONDS
    what = f"{state.message}, and the pod's status still shows the old one: kubelet has not reported its end"
    advice = advice_for(facts, Reason.KUBELET_SILENT) if stuck else ()
    told = format_duration(since) == f"{seconds} s"
    return ContainerReport(state.name, state.phase.value, what, since, advice, stuck, says_since=told)


def _not_running(facts: Facts, state: RecreateState, known: PodContainer) -> ContainerReport:
    """No instance runs: kubelet has to make the next one."""
    since = facts.seconds_since(parse_time(known.finished_at))
    reason, words = known.waiting_reason, held_back(known)
    pod = f"-n {facts.request.namespace} {facts.request.pod_name}"
    ended = "the container has stopped" + (f" with exit code {known.exit_code}" if known.exit_code is not None else "")
    advice: tuple[str, ...] = ()
    if reason in UNREMARKABLE_WAITS:
        what = f"{ended}; waiting for kubelet to start the next one"
        if state.reason is Reason.NOT_STARTED_AGAIN:
            what = f"{ended}; {state.message}"
    elif found := _BACK_OFF.match(known.waiting_message):
        what = f"waiting for kubelet: {reason}, {found[0]}"
        if since is not None:
            left = _seconds(found[1]) - since
            what += f"; next try in about {format_duration(left)}" if left > 0 else "; next try any moment"
        advice = (
            "kubelet starts it by itself when its back-off is over",
            f"if the container ends by itself, see why: kubectl logs {pod} -c {state.name} --previous",
        )
    elif reason in _IMAGE:
        what = f"waiting for kubelet: the image cannot be pulled ({words})"
        advice = (
            f"check the image's name, the registry and the pod's imagePullSecrets: kubectl describe pod {pod}",
            "kubelet tries again by itself, more and more rarely",
        )
    elif reason in _CONFIG:
        what = f"waiting for kubelet: the container cannot be made ({words})"
        advice = (f"see what is missing (a ConfigMap, a Secret, a volume): kubectl describe pod {pod}",)
    else:
        what = f"waiting for kubelet: {words}"
        advice = (f"see kubectl describe pod {pod}",)
    return ContainerReport(state.name, state.phase.value, what, since, advice, stuck=reason in _IMAGE | _CONFIG)


def _runs_again(facts: Facts, state: RecreateState, known: PodContainer) -> ContainerReport:
    """The next instance runs; what is missing for it to count."""
    since = facts.seconds_since(parse_time(known.started_at))
    runs = f"the new container {short(known.container_id)} runs" + (f" for {format_duration(since)}" if since else "")
    least = facts.request.strategy.min_started_seconds
    if known.ready:
        left = least - (since or 0.0)
        ready = facts.seconds_since(facts.ready_since)
        what, late = "is ready; the node daemon has yet to say so", False
        if least and left > 0:
            what = f"is ready; minStartedSeconds {least}: counts in {format_duration(left)}"
        elif ready is not None:
            late = min(-left, ready) > DAEMON_PATIENCE_SECONDS
        why = (f"why does it not? {daemon_log(facts)}",) if late else ()
        return ContainerReport(
            state.name, state.phase.value, f"{runs}, {what}", since, why, late, says_since=bool(since)
        )
    probe = "readiness probe" if known.started else "startup probe"
    pod = f"-n {facts.request.namespace} {facts.request.pod_name}"
    late = since is not None and since > READY_PATIENCE_SECONDS
    advice = (
        f"see what its {probe} says: kubectl describe pod {pod}",
        f"and what the container says: kubectl logs {pod} -c {state.name}",
    )
    return ContainerReport(
        state.name,
        state.phase.value,
        f"{runs}, but is not ready: its {probe} has not succeeded yet",
        since,
        advice,
        late,
        says_since=bool(since),
    )


def advice_for(facts: Facts, reason: Reason) -> tuple[str, ...]:
    """What to do about a reason, for this request."""
    request = facts.request
    return remedy(
        reason,
        namespace=request.namespace,
        request=request.name,
        pod=request.pod_name,
        node=request.node_name,
        log=daemon_log(facts),
    )


def daemon_log(facts: Facts) -> str:
    """How to read the log of the node's daemon."""
    if facts.daemons:
        namespace, _, name = facts.daemons[0].key.partition("/")
        return f"kubectl -n {namespace} logs {name}"
    return f"see the log of crrd on node {facts.request.node_name}"


def _grace(facts: Facts) -> int:
    """The grace period of a stop, as `checks.grace_of` has it; the pod's where the strategy has none."""
    for seconds in (facts.request.strategy.grace_seconds, facts.pod.grace_seconds if facts.pod else None):
        if seconds is not None:
            return max(0, seconds)
    return DEFAULT_GRACE_SECONDS


def _seconds(duration: str) -> float:
    """A duration as Go prints it, `1m20s`, in seconds."""
    return sum(float(number) * _UNITS[unit] for number, unit in _GO_DURATION.findall(duration))
