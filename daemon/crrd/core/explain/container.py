"""Where one container of a request stands, by the request's status and the pod's; the runtime is not asked."""

import re
from typing import Any

from crrd.core.api.pod import PodContainer
from crrd.core.api.reasons import EventReason, Reason
from crrd.core.api.time import parse_time
from crrd.core.api.types import DEFAULT_GRACE_SECONDS, RecreateState, RequestedContainer, StartTimes, StatePhase
from crrd.core.explain.facts import Facts
from crrd.core.explain.findings import Advice, ContainerReport, Finding, Step, Topic
from crrd.core.recreate.messages import UNREMARKABLE_WAITS, held_back

OVERDUE_SECONDS = 15.0
"""How much longer than its grace period a stop may take before it counts as stuck: kubelet reports with a delay."""
DAEMON_PATIENCE_SECONDS = 30.0  # After which what the node's daemon should have done counts as not being done
READY_PATIENCE_SECONDS = 300.0  # After which a container that runs and is not ready is worth a look

_BACK_OFF = re.compile(r"back-off (\S+) restarting failed container")
_GO_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|h|m|s)")
_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_IMAGE = frozenset({"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError"})
_CONFIG = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError", "PreCreateHookError"})

_GOES_ON = frozenset({Reason.NONE, Reason.HOOK_FAILED, Reason.HELD_BACK})
"""Reasons of a container whose stop nothing holds up."""


def container_report(facts: Facts, container: RequestedContainer) -> ContainerReport:
    """Where this container of the request stands now."""
    state = facts.request.status.state(container.name)
    return ContainerReport(state.name, state.phase.value, _find(facts, container, state))


def _find(facts: Facts, container: RequestedContainer, state: RecreateState) -> Finding:
    known = facts.own_pod.containers.get(container.name) if facts.own_pod else None
    if state.phase is StatePhase.SUCCEEDED:
        return _recreated(facts, container, known, state)
    if state.phase is StatePhase.FAILED:
        return Finding(Topic.FAILED, {"message": state.message}, stuck=True)
    if facts.request.completed:
        return Finding(Topic.NOT_FINISHED, {"message": facts.request.status.message}, stuck=True)
    if known is None:
        return _status_message(state, Topic.NOT_IN_POD_STATUS)
    if not known.running:
        return _not_running(facts, state, known)
    if _is_successor(facts, container, known):
        return _runs_again(facts, known)
    return _to_be_stopped(facts, state)


def _status_message(state: RecreateState, otherwise: Topic) -> Finding:
    """What the status says of the container; where it says nothing, the other finding."""
    return Finding(Topic.STATUS_MESSAGE, {"message": state.message}) if state.message else Finding(otherwise)


def _recreated(
    facts: Facts, container: RequestedContainer, known: PodContainer | None, state: RecreateState
) -> Finding:
    target = facts.request.target(container)
    if target is None or known is None or not _is_successor(facts, container, known):
        return Finding(Topic.RECREATED_UNSEEN, {"message": state.message})
    values = {
        "old": target.container_id,
        "new": known.container_id,
        "old_count": target.restart_count,
        "new_count": known.restart_count,
        "message": state.message,
    }
    once = known.restart_count <= target.restart_count + 1
    return Finding(Topic.RECREATED if once else Topic.RECREATED_MORE_THAN_ONCE, values)


def _is_successor(facts: Facts, container: RequestedContainer, known: PodContainer) -> bool:
    """Whether the pod's status shows a later instance than the one that has to go."""
    target = facts.request.target(container)
    if target is None or not known.container_id:
        return False
    return known.container_id != target.container_id or known.restart_count > target.restart_count


def _to_be_stopped(facts: Facts, state: RecreateState) -> Finding:
    """The instance that has to go still runs, as far as the API says."""
    start_times = facts.request.start_times.get(state.name, StartTimes())
    event = facts.last_event(EventReason.RECREATING, state.name)
    if state.reason is Reason.NOT_STARTED_AGAIN:
        return _end_not_reported(facts, state, facts.seconds_since(parse_time(start_times.stop) or event))
    since = facts.seconds_since(event or parse_time(start_times.hook or start_times.stop))
    if state.reason not in _GOES_ON:
        advice = (Advice(state.reason),) if state.reason.remedy else ()
        return Finding(Topic.STATUS_MESSAGE, {"message": state.message}, since, bool(advice), advice)
    if state.is_killed or start_times.stop:
        reason = Topic.STOP_SENT
    elif state.phase is StatePhase.RECREATING or since is not None:
        reason = Topic.STOPPING
    else:
        return _status_message(state, Topic.TURN_AWAITED)
    grace = _grace(facts)
    over = None if since is None or since <= grace + OVERDUE_SECONDS else since - grace
    advice = () if over is None else (Advice(Step.RUNTIME_DOES_NOT_STOP),)
    message = "" if state.reason else state.message
    return Finding(reason, {"message": message, "grace": grace, "over": over}, since, over is not None, advice)


def _end_not_reported(facts: Facts, state: RecreateState, stopped: float | None) -> Finding:
    """The daemon has seen the container's end, which kubelet has yet to report.

    No field says when that was: after the stop was sent, `stopped` seconds ago, and before the status was written.
    """
    written = facts.seconds_since(facts.times.written) or 0.0
    late = written if stopped is None else stopped - _grace(facts)
    stuck = late >= OVERDUE_SECONDS
    advice = (Advice(Reason.KUBELET_SILENT),) if stuck else ()
    return Finding(Topic.END_NOT_REPORTED, {"message": state.message}, stopped, stuck, advice)


def _not_running(facts: Facts, state: RecreateState, known: PodContainer) -> Finding:
    """No instance runs: kubelet has to make the next one."""
    since = facts.seconds_since(parse_time(known.finished_at))
    reason = known.waiting_reason
    if reason in UNREMARKABLE_WAITS:
        if state.reason is Reason.NOT_STARTED_AGAIN:
            return Finding(Topic.NOT_STARTED_AGAIN, {"exit_code": known.exit_code, "message": state.message}, since)
        return Finding(Topic.STOPPED, {"exit_code": known.exit_code}, since)
    if found := _BACK_OFF.match(known.waiting_message):
        left = None if since is None else _seconds(found[1]) - since
        over = left is not None and left <= 0
        steps = (Advice(Step.AWAIT_BACK_OFF), Advice(Step.READ_PREVIOUS_LOG, {"container": state.name}))
        return Finding(
            Topic.BACK_OFF_OVER if over else Topic.BACK_OFF,
            {"reason": reason, "back_off": found[1], "left": left},
            since,
            advice=steps,
        )
    values = {"kubelet": held_back(known)}
    if reason in _IMAGE:
        steps = (Advice(Step.CHECK_IMAGE), Advice(Step.AWAIT_RETRY))
        return Finding(Topic.IMAGE_NOT_PULLED, values, since, stuck=True, advice=steps)
    if reason in _CONFIG:
        return Finding(Topic.NOT_CREATED, values, since, stuck=True, advice=(Advice(Step.CHECK_CONFIG),))
    return Finding(Topic.HELD_BACK, values, since, advice=(Advice(Step.DESCRIBE_POD),))


def _runs_again(facts: Facts, known: PodContainer) -> Finding:
    """The next instance runs; what is missing for it to count."""
    started = parse_time(known.started_at)
    since = facts.seconds_since(started)
    if not known.ready:
        probe = "readiness probe" if known.started else "startup probe"
        key = (facts.pod.uid if facts.pod else "", known.name)
        failures = [found for whose, found in filter(None, facts.probes) if whose == key]
        last = max(failures, key=lambda found: found.at, default=None)
        values: dict[str, Any] = {"id": known.container_id, "probe": probe, "failure": None, "failed": None}
        if last is not None and (started is None or last.at >= started):
            values |= {"failure": last.message, "failed": facts.seconds_since(last.at)}
        late = since is not None and since > READY_PATIENCE_SECONDS
        steps = (Advice(Step.CHECK_PROBE, {"probe": probe}), Advice(Step.READ_LOG, {"container": known.name}))
        return Finding(Topic.NOT_READY, values, since, late, steps)
    least = facts.request.strategy.min_started_seconds
    left = least - (since or 0.0)
    if least and left > 0:
        return Finding(Topic.MIN_STARTED, {"id": known.container_id, "least": least, "left": left}, since)
    ready = facts.seconds_since(facts.ready_since)
    late = ready is not None and min(-left, ready) > DAEMON_PATIENCE_SECONDS
    advice = (Advice(Step.DAEMON_DOES_NOT_SEE),) if late else ()
    return Finding(Topic.READY, {"id": known.container_id}, since, late, advice)


def _grace(facts: Facts) -> int:
    """The grace period of a stop: the strategy's, else the pod's."""
    for seconds in (facts.request.strategy.grace_seconds, facts.pod.grace_seconds if facts.pod else None):
        if seconds is not None:
            return max(0, seconds)
    return DEFAULT_GRACE_SECONDS


def _seconds(duration: str) -> float:
    """A duration as Go prints it, `1m20s`, in seconds."""
    return sum(float(number) * _UNITS[unit] for number, unit in _GO_DURATION.findall(duration))
