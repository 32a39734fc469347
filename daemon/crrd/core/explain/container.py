"""The state of one container of a request, from the status of request and pod. The runtime is not asked."""

import re

from crrd.core.api.pod import PodContainer
from crrd.core.api.reasons import Reason
from crrd.core.api.time import parse_time
from crrd.core.api.types import Pin, RecreateState, RequestedContainer, StartTimes, StatePhase
from crrd.core.explain.facts import Facts
from crrd.core.explain.findings import Advice, Finding, Step, Topic
from crrd.core.recreate.messages import UNREMARKABLE_WAITS, held_back

OVERDUE_SECONDS = 15.0
"""How much longer than its grace period a stop may take before it counts as stuck: kubelet reports with a delay."""
DAEMON_PATIENCE_SECONDS = 30.0  # The node's daemon should have acted by then
READY_PATIENCE_SECONDS = 300.0  # A running container should be ready by then

_BACK_OFF = re.compile(r"back-off (\S+) restarting failed container")
_GO_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|h|m|s)")  # As Go prints one: `1m20s`
_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_IMAGE = frozenset({"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError"})
_CONFIG = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError", "PreCreateHookError"})
_NOT_BLOCKING = frozenset({Reason.NONE, Reason.HOOK_FAILED, Reason.HELD_BACK})
"""Reasons of containers whose stop is not delayed."""


def find_container(facts: Facts, container: RequestedContainer, state: RecreateState) -> Finding:
    """Return the state of this container of the request."""
    known = facts.own_pod.containers.get(container.name) if facts.own_pod else None
    target = facts.request.target(container)
    if state.phase is StatePhase.SUCCEEDED:
        return _recreated(target, known, state)
    if state.phase is StatePhase.FAILED:
        return Finding(Topic.FAILED, {"message": state.message}, stuck=True)
    if facts.request.completed:
        return Finding(Topic.NOT_FINISHED, {"message": facts.request.status.message}, stuck=True)
    if known is None:
        return _status_message(state, Topic.NOT_IN_POD_STATUS)
    if not known.running:
        return _not_running(facts, state, known)
    return _runs_again(facts, known) if _is_successor(target, known) else _to_be_stopped(facts, state)


def _status_message(state: RecreateState, otherwise: Topic) -> Finding:
    """Return the status' message about the container, or the other topic if there is none."""
    return Finding(Topic.STATUS_MESSAGE, {"message": state.message}) if state.message else Finding(otherwise)


def _is_successor(target: Pin | None, known: PodContainer) -> bool:
    """Whether the pod's status shows an instance after the target."""
    if target is None or not known.container_id:
        return False
    return known.container_id != target.container_id or known.restart_count > target.restart_count


def _recreated(target: Pin | None, known: PodContainer | None, state: RecreateState) -> Finding:
    if target is None or known is None or not _is_successor(target, known):
        return Finding(Topic.RECREATED_UNSEEN, {"message": state.message})
    counts = {"old_count": target.restart_count, "new_count": known.restart_count}
    values = {"old": target.container_id, "new": known.container_id, **counts, "message": state.message}
    once = known.restart_count <= target.restart_count + 1
    return Finding(Topic.RECREATED if once else Topic.RECREATED_MORE_THAN_ONCE, values)


def _to_be_stopped(facts: Facts, state: RecreateState) -> Finding:
    """Return the finding for a target that still runs, according to the API."""
    start_times = facts.request.start_times.get(state.name, StartTimes())
    begun, stop = facts.begun(state.name), parse_time(start_times.stop)
    if state.reason is Reason.NOT_STARTED_AGAIN:
        return _end_not_reported(facts, state, facts.seconds_since(stop or begun))
    since = facts.seconds_since(begun or parse_time(start_times.hook) or stop)
    if state.reason not in _NOT_BLOCKING:
        advice = (Advice(state.reason),) if state.reason.remedy else ()
        return Finding(Topic.STATUS_MESSAGE, {"message": state.message}, since, bool(advice), advice)
    if state.is_killed or start_times.stop:
        topic = Topic.STOP_SENT
    elif state.phase is StatePhase.RECREATING or since is not None:
        topic = Topic.STOPPING
    else:
        return _status_message(state, Topic.TURN_AWAITED)
    over = None if since is None or since <= facts.grace + OVERDUE_SECONDS else since - facts.grace
    advice = () if over is None else (Advice(Step.RUNTIME_DOES_NOT_STOP),)
    values = {"message": "" if state.reason else state.message, "grace": facts.grace, "over": over}
    return Finding(topic, values, since, over is not None, advice)


def _end_not_reported(facts: Facts, state: RecreateState, stopped: float | None) -> Finding:
    """Return the finding for a container whose end the daemon has seen and kubelet has not reported yet.

    No field has the time of the end. It was after the stop was sent (`stopped` seconds ago), and before the status was
    written.
    """
    written = facts.seconds_since(facts.times.written) or 0.0
    stuck = (written if stopped is None else stopped - facts.grace) >= OVERDUE_SECONDS
    advice = (Advice(Reason.KUBELET_SILENT),) if stuck else ()
    return Finding(Topic.END_NOT_REPORTED, {"message": state.message}, stopped, stuck, advice)


def _not_running(facts: Facts, state: RecreateState, known: PodContainer) -> Finding:
    """Return the finding for a container without a running instance. Kubelet has to create the next one."""
    since = facts.seconds_since(parse_time(known.finished_at))
    reason, kubelet = known.waiting_reason, {"kubelet": held_back(known)}
    if reason in UNREMARKABLE_WAITS:
        if state.reason is Reason.NOT_STARTED_AGAIN:
            return Finding(Topic.NOT_STARTED_AGAIN, {"exit_code": known.exit_code, "message": state.message}, since)
        return Finding(Topic.STOPPED, {"exit_code": known.exit_code}, since)
    if found := _BACK_OFF.match(known.waiting_message):
        whole = sum(float(number) * _UNITS[unit] for number, unit in _GO_DURATION.findall(found[1]))
        left = None if since is None else whole - since
        topic = Topic.BACK_OFF if left is None or left > 0 else Topic.BACK_OFF_OVER
        steps = (Advice(Step.AWAIT_BACK_OFF), Advice(Step.READ_PREVIOUS_LOG, {"container": state.name}))
        return Finding(topic, {"reason": reason, "back_off": found[1], "left": left}, since, advice=steps)
    if reason in _IMAGE:
        steps = (Advice(Step.CHECK_IMAGE), Advice(Step.AWAIT_RETRY))
        return Finding(Topic.IMAGE_NOT_PULLED, kubelet, since, stuck=True, advice=steps)
    if reason in _CONFIG:
        return Finding(Topic.NOT_CREATED, kubelet, since, stuck=True, advice=(Advice(Step.CHECK_CONFIG),))
    return Finding(Topic.HELD_BACK, kubelet, since, advice=(Advice(Step.DESCRIBE_POD),))


def _runs_again(facts: Facts, known: PodContainer) -> Finding:
    """Return the finding for a container whose next instance runs, but does not count as recreated yet."""
    since = facts.seconds_since(parse_time(known.started_at))
    if not known.ready:
        probe = {"probe": "readiness probe" if known.started else "startup probe"}
        failed, failure = facts.probe_failure(known)
        values = {"id": known.container_id, "failed": failed, "failure": failure, **probe}
        late = since is not None and since > READY_PATIENCE_SECONDS
        steps = (Advice(Step.CHECK_PROBE, probe), Advice(Step.READ_LOG, {"container": known.name}))
        return Finding(Topic.NOT_READY, values, since, late, steps)
    least = facts.request.strategy.min_started_seconds
    left = least - (since or 0.0)
    if least and left > 0:
        return Finding(Topic.MIN_STARTED, {"id": known.container_id, "least": least, "left": left}, since)
    ready = facts.seconds_since(facts.ready_since)
    late = ready is not None and min(-left, ready) > DAEMON_PATIENCE_SECONDS
    advice = (Advice(Step.DAEMON_DOES_NOT_SEE),) if late else ()
    return Finding(Topic.READY, {"id": known.container_id}, since, late, advice)
