"""The state of one container of a request, from the status of request and pod. The runtime is not asked."""

import re
from dataclasses import replace

from crrd.core.api.pod import ContainerKind, PodContainer
from crrd.core.api.reasons import Reason
from crrd.core.api.time import format_duration, parse_time
from crrd.core.api.types import Pin, RecreateState, RequestedContainer, StartTimes, StatePhase
from crrd.core.explain.facts import Facts
from crrd.core.explain.findings import Finding, Topic, make_finding, optional
from crrd.core.recreate.messages import held_back
from crrd.kubelet.waiting import IMAGE_NOT_PULLED, NOT_CREATED, ORDINARY

OVERDUE_SECONDS = 15.0
"""How much longer than its grace period a stop may take before it counts as stuck: kubelet reports with a delay."""
DAEMON_PATIENCE_SECONDS = 30.0  # The node's daemon should have acted by then
READY_PATIENCE_SECONDS = 300.0  # A running container should be ready by then
PATIENCE_RESTARTS = 2  # A container that is restarted more often after its recreation does not get ready by itself

_BACK_OFF = re.compile(r"back-off (\S+) restarting failed container")
_GO_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(ms|h|m|s)")  # As Go prints one: `1m20s`
_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_NO_REASON = "no reason was recorded"
_NOT_BLOCKING = frozenset({Reason.NONE, Reason.HOOK_FAILED, Reason.HELD_BACK})
"""Reasons of containers whose stop is not delayed."""


def find_container(facts: Facts, container: RequestedContainer) -> Finding:
    """Return the state of this container of the request."""
    state = facts.request.status.state(container.name)
    return replace(_find(facts, container, state), container=state.name, phase=state.phase.value)


def _find(facts: Facts, container: RequestedContainer, state: RecreateState) -> Finding:
    known = facts.own_pod.containers.get(container.name) if facts.own_pod else None
    target = facts.request.target(container)
    if state.phase is StatePhase.SUCCEEDED and facts.request.reloads:
        return make_finding(facts, Topic.STATUS_MESSAGE, message=state.message or "reloaded")
    if state.phase is StatePhase.SUCCEEDED:
        return _recreated(facts, target, known, state)
    if state.phase is StatePhase.FAILED:
        return make_finding(facts, Topic.FAILED, stuck=True, message=state.message or _NO_REASON)
    if facts.request.completed:
        message = facts.request.status.message or _NO_REASON
        return make_finding(facts, Topic.NOT_FINISHED, stuck=True, message=message)
    if known is None:
        return _status_message(facts, state, Topic.NOT_IN_POD_STATUS)
    if facts.request.reloads:
        return _reloading(facts, state)
    if container.image and (pending := _image_pending(facts, container, state, known)) is not None:
        return pending
    if known.kind is ContainerKind.INIT:
        return _status_message(facts, state, Topic.TURN_AWAITED)
    if not known.running:
        return _keeps_ending(facts, target, known, _not_running(facts, state, known))
    if _runs_next(target, container, known):
        return _keeps_ending(facts, target, known, _runs_again(facts, known))
    return _to_be_stopped(facts, state)


def _image_pending(
    facts: Facts, container: RequestedContainer, state: RecreateState, known: PodContainer
) -> Finding | None:
    """Return the finding for a container that does not run its new image yet; None if it does, or waits otherwise."""
    written, image = facts.seconds_since(facts.times.written), container.image
    has_image, target = known.has_image(image), facts.request.target(container)
    if known.waiting_reason in IMAGE_NOT_PULLED and has_image and target is not None:
        back = f"kubectl -n {facts.request.namespace} set image pod/{facts.request.pod_name} {known.name}=IMAGE"
        if facts.run is not None:
            back = f"kubectl recreate undo {facts.run.name} -n {facts.request.namespace}"
        values = {"image": image, "kubelet": held_back(known), "back": back}
        return make_finding(facts, Topic.NEW_IMAGE_NOT_PULLED, written, stuck=True, **values)
    if state.reason is Reason.IMAGE_PRESENT and not has_image:
        late = written is None or written > DAEMON_PATIENCE_SECONDS  # a run sets it within seconds
        advice = None if late else ()
        return make_finding(facts, Topic.NEW_IMAGE_NOT_SET, written, stuck=late, advice=advice, image=image)
    if not known.running or _runs_next(target, container, known):
        return None
    if has_image:
        late = written is not None and written > OVERDUE_SECONDS
        advice = None if late else ()
        return make_finding(facts, Topic.NEW_IMAGE_NOT_TAKEN, written, stuck=late, advice=advice, image=image)
    return _status_message(facts, state, Topic.TURN_AWAITED)


def _reloading(facts: Facts, state: RecreateState) -> Finding:
    """Return the finding for a container that has not reloaded yet, or is not ready since."""
    if not state.message:
        topic = Topic.RELOADING if state.started else Topic.TURN_AWAITED
        return make_finding(facts, topic, facts.seconds_since(facts.times.written) if state.started else None)
    advice = state.reason.advise(**facts.names) if state.reason.remedy else ()
    stuck = bool(advice) and state.reason is not Reason.REFRESHING
    return make_finding(facts, Topic.STATUS_MESSAGE, stuck=stuck, advice=advice, message=state.message)


def _status_message(facts: Facts, state: RecreateState, otherwise: Topic) -> Finding:
    """Return the status' message about the container, or the other topic if there is none."""
    return make_finding(facts, Topic.STATUS_MESSAGE if state.message else otherwise, message=state.message)


def _runs_next(target: Pin | None, container: RequestedContainer, known: PodContainer) -> bool:
    """Whether the pod's status shows the next instance. A container that had never run gets its first one."""
    if target is None and container.image:
        return known.has_image(container.image) and bool(known.container_id)
    return _is_successor(target, known)


def _is_successor(target: Pin | None, known: PodContainer) -> bool:
    """Whether the pod's status shows an instance after the target."""
    if target is None or not known.container_id:
        return False
    return known.container_id != target.container_id or known.restart_count > target.restart_count


def _recreated(facts: Facts, target: Pin | None, known: PodContainer | None, state: RecreateState) -> Finding:
    more = optional("; {}", state.message)
    if target is None or known is None or not _is_successor(target, known):
        return make_finding(facts, Topic.RECREATED_UNSEEN, more=more)
    topic = Topic.RECREATED
    if known.restart_count > target.restart_count + 1:
        topic = Topic.RECREATED_MORE_THAN_ONCE
    old_count, new_count, new = target.restart_count, known.restart_count, Pin(known.container_id).short
    return make_finding(facts, topic, old=target.short, new=new, old_count=old_count, new_count=new_count, more=more)


def _to_be_stopped(facts: Facts, state: RecreateState) -> Finding:
    """Return the finding for a target that still runs, according to the API."""
    start_times = facts.request.start_times.get(state.name, StartTimes())
    begun, stop = facts.begun(state.name), parse_time(start_times.stop)
    if state.reason is Reason.NOT_STARTED_AGAIN:
        return _end_not_reported(facts, state, facts.seconds_since(stop or begun))
    since = facts.seconds_since(begun or parse_time(start_times.hook) or stop)
    if state.reason not in _NOT_BLOCKING:
        advice = state.reason.advise(**facts.names) if state.reason.remedy else ()
        topic, stuck = Topic.STATUS_MESSAGE, bool(advice)
        return make_finding(facts, topic, since, stuck=stuck, advice=advice, message=state.message)
    if state.is_killed or start_times.stop:
        return _stopping(facts, state, Topic.STOP_SENT, since, "stop sent; the container is still running")
    if state.phase is StatePhase.RECREATING or since is not None:
        doing = "the preStop hook is running, or the stop is being sent"
        return _stopping(facts, state, Topic.STOPPING, since, doing)
    return _status_message(facts, state, Topic.TURN_AWAITED)


def _stopping(facts: Facts, state: RecreateState, topic: Topic, since: float | None, doing: str) -> Finding:
    """Return the finding for a container that is being stopped. `doing` is for a status without a message."""
    over = ""
    if since is not None and since > facts.grace + OVERDUE_SECONDS:
        over = f", exceeded by {format_duration(since - facts.grace)}"
    message = doing if state.reason or not state.message else state.message
    values = {"message": message, "grace": facts.grace, "over": over}
    advice = Topic.NEW_IMAGE_NOT_TAKEN.advise(**facts.names) if facts.manager else None  # kubelet stops it
    return make_finding(facts, topic, since, stuck=bool(over), advice=advice if over else (), **values)


def _end_not_reported(facts: Facts, state: RecreateState, stopped: float | None) -> Finding:
    """Return the finding for a container whose end the daemon has seen and kubelet has not reported yet.

    No field has the time of the end. It was after the stop was sent (`stopped` seconds ago), and before the status was
    written.
    """
    ended = facts.seconds_since(facts.times.written) if stopped is None else stopped - facts.grace
    stuck = ended is not None and ended >= OVERDUE_SECONDS
    after_stop = "" if stopped is None else f" {format_duration(stopped)} after the stop"
    values = {"message": state.message, "after_stop": after_stop}
    return make_finding(facts, Topic.END_NOT_REPORTED, stopped, stuck=stuck, advice=None if stuck else (), **values)


def _not_running(facts: Facts, state: RecreateState, known: PodContainer) -> Finding:
    """Return the finding for a container without a running instance. Kubelet has to create the next one."""
    since = facts.seconds_since(parse_time(known.finished_at))
    if known.waiting_reason in ORDINARY:
        topic = Topic.NOT_STARTED_AGAIN if state.reason is Reason.NOT_STARTED_AGAIN else Topic.STOPPED
        with_code = optional(" with exit code {}", known.exit_code)
        return make_finding(facts, topic, since, with_code=with_code, message=state.message)
    if found := _BACK_OFF.match(known.waiting_message):
        return _in_back_off(facts, known, found[1], since)
    if known.waiting_reason in IMAGE_NOT_PULLED:
        return make_finding(facts, Topic.IMAGE_NOT_PULLED, since, stuck=True, kubelet=held_back(known))
    if known.waiting_reason in NOT_CREATED:
        return make_finding(facts, Topic.NOT_CREATED, since, stuck=True, kubelet=held_back(known))
    return make_finding(facts, Topic.HELD_BACK, since, kubelet=held_back(known))


def _in_back_off(facts: Facts, known: PodContainer, back_off: str, since: float | None) -> Finding:
    """Return the finding for a container that kubelet restarts after its back-off, a duration as Go prints it."""
    topic, next_try = Topic.BACK_OFF, ""
    if since is not None:
        whole = sum(float(number) * _UNITS[unit] for number, unit in _GO_DURATION.findall(back_off))
        topic = Topic.BACK_OFF if whole > since else Topic.BACK_OFF_OVER
        next_try = f"; next try in about {format_duration(whole - since)}"
    reason, name = known.waiting_reason, known.name
    return make_finding(facts, topic, since, reason=reason, back_off=back_off, next_try=next_try, container=name)


def _keeps_ending(facts: Facts, target: Pin | None, known: PodContainer, found: Finding) -> Finding:
    """Return the finding, as stuck and with the last end, if the container keeps ending after its recreation."""
    restarts = known.restart_count - target.restart_count - 1 if target is not None else 0
    if known.ready or restarts <= PATIENCE_RESTARTS:
        return found
    reason, code = facts.ends.get(known.name, ""), known.exit_code
    last = optional(f"{reason} ({{}})" if reason else "exit code {}", code)
    message = f"{found.message}; restarted {restarts} times more than requested{optional(', last: {}', last)}"
    _, check_log = Topic.BACK_OFF.advise(**facts.names, container=known.name)
    advice = tuple(dict.fromkeys((check_log, *found.advice)))
    return replace(found, message=message, stuck=True, advice=advice)


def _runs_again(facts: Facts, known: PodContainer) -> Finding:
    """Return the finding for a container whose next instance runs, but does not count as recreated yet."""
    since = facts.seconds_since(parse_time(known.started_at))
    instance = Pin(known.container_id).short
    if not known.ready:
        return _not_ready(facts, known, instance, since)
    least = facts.request.strategy.min_started_seconds
    left = least - (since or 0.0)
    if least and left > 0:
        return make_finding(facts, Topic.MIN_STARTED, since, id=instance, least=least, left=format_duration(left))
    ready = facts.seconds_since(facts.ready_since)
    late = ready is not None and min(-left, ready) > DAEMON_PATIENCE_SECONDS
    return make_finding(facts, Topic.READY, since, stuck=late, advice=None if late else (), id=instance)


def _not_ready(facts: Facts, known: PodContainer, instance: str, since: float | None) -> Finding:
    """Return the finding for a next instance that is not ready, with the last message of its probe."""
    failed, failure = facts.probe_failure(known)
    last_event = "" if failed is None else f"; kubelet's last event, {format_duration(failed)} ago: {failure}"
    probe = "readiness probe" if known.started else "startup probe"
    late = since is not None and since > READY_PATIENCE_SECONDS
    values = {"id": instance, "probe": probe, "last_event": last_event, "container": known.name}
    return make_finding(facts, Topic.NOT_READY, since, stuck=late, **values)
