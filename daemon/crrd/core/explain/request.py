"""The state of a ContainerRecreateRequest: what it waits for, since when, and what to do about it.

`explain_request` uses the same order as `decide` and `lifecycle`. It sees only the API and not the runtime, so it
reports what a request waits for, and does not predict what will be decided.
"""

from collections.abc import Iterator
from dataclasses import replace

from crrd.core.api.reasons import Reason, reason_of
from crrd.core.api.time import format_duration, parse_time
from crrd.core.api.types import LABEL_ACTIVE, LABEL_NODE_NAME, UNANSWERED_SECONDS, Request, RequestPhase, StatePhase
from crrd.core.api.v1alpha1 import active_value
from crrd.core.explain.advice import check_manager, find_server, remove_finalizers
from crrd.core.explain.container import DAEMON_PATIENCE_SECONDS, find_container
from crrd.core.explain.facts import Facts
from crrd.core.explain.findings import Explanation, Finding, Topic, make_finding, optional
from crrd.core.explain.notes import MANAGER_PATIENCE_SECONDS, find_notes
from crrd.core.recreate.decide import serving_order

ANSWER_PATIENCE_SECONDS = 5.0  # A running daemon answers within about a second


def explain_request(facts: Facts) -> Explanation:
    """Return the state of a request."""
    request = _with_reasons(facts.request)
    facts = replace(facts, request=request)
    containers = tuple(find_container(facts, each) for each in request.containers)
    cause = next(_causes(facts, containers))
    node = _node_state(facts)
    also = replace(node, advice=()) if node is not None and node.topic is not cause.topic else None
    unread = (make_finding(facts, Topic.UNREAD, object=what, error=why) for what, why in facts.unread.items())
    notes = (*find_notes(facts, also), *unread)
    return Explanation(request, facts.age, facts.node_name, cause, containers, notes)


def _with_reasons(request: Request) -> Request:
    """Return the request with the reasons that its CRD has pruned, which its messages show."""
    status = request.status
    states = tuple(
        replace(each, reason=each.reason or reason_of(each.message, final=each.phase is StatePhase.FAILED))
        for each in status.states
    )
    reason = status.reason or reason_of(status.message, final=request.completed)
    return replace(request, status=replace(status, states=states, reason=reason))


def _causes(facts: Facts, containers: tuple[Finding, ...]) -> Iterator[Finding]:
    """Yield possible causes. The first one counts, and the last one always applies."""
    request = facts.request
    if request.completed:
        yield _completed(facts, containers)
    if request.deleting:
        yield _deleting(facts)
    yield from _pod_lost(facts)
    yield from _not_served(facts)
    if request.error:
        yield make_finding(facts, Topic.INVALID, stuck=True, error=request.error)
    if request.status.phase is RequestPhase.EMPTY:
        yield _unanswered(facts)
    yield from _earlier_request(facts)
    if facts.node is None or facts.node.exists:
        yield from _from_daemon(facts, containers)
    if node := _node_state(facts):
        yield node
    written = facts.seconds_since(facts.times.written)
    if facts.no_daemon and (written is None or written > DAEMON_PATIENCE_SECONDS):  # it may be on its way back
        yield make_finding(facts, Topic.NO_DAEMON, stuck=True, advice=find_server(facts))
    yield from _gate(facts)
    yield from _stop_not_started(facts, containers)
    yield _current(facts, containers)


def _completed(facts: Facts, containers: tuple[Finding, ...]) -> Finding:
    """Return the finding for a completed request."""
    status = facts.request.status
    since = facts.seconds_since(parse_time(status.completion_time))
    if containers and all(each.phase == StatePhase.SUCCEEDED for each in containers):
        message = status.message or "all containers were recreated"
        return make_finding(facts, Topic.COMPLETED, since, message=message)
    reasons = [state.reason for state in status.states if state.phase is StatePhase.FAILED]
    reason = next((reason for reason in reasons if reason is not Reason.EARLIER_FAILURE), status.reason)
    where = find_server(facts) if reason is Reason.NO_ANSWER and facts.request.node_name else ()
    failed = (each for each in containers if each.phase != StatePhase.SUCCEEDED)
    failures = "; ".join(f"{each.container}: {each.message}" for each in failed) or f"all ({status.message})"
    advice = (*where, *reason.advise(**facts.names))
    return make_finding(facts, Topic.COMPLETED_WITH_FAILURES, since, advice=advice, failures=failures)


def _deleting(facts: Facts) -> Finding:
    """Return the finding for a request in deletion."""
    since = facts.seconds_since(facts.times.deleted)
    if facts.request.has_finalizer:
        late = since is not None and since > MANAGER_PATIENCE_SECONDS
        advice = check_manager(facts) if late else ()
        return make_finding(facts, Topic.BEING_RELEASED, since, stuck=late, advice=advice)
    return make_finding(facts, Topic.BEING_DELETED, since, advice=remove_finalizers(facts))


def _pod_lost(facts: Facts) -> Iterator[Finding]:
    """Yield a finding if the pod is gone, was replaced, has ended or is in deletion."""
    pod = facts.pod
    if pod is None:
        if facts.pod_read:
            yield make_finding(facts, Topic.NO_POD, stuck=True)
    elif facts.own_pod is None:
        yield make_finding(facts, Topic.POD_REPLACED, stuck=True, uid=pod.uid)
    elif pod.deleting:
        yield make_finding(facts, Topic.POD_DELETING, stuck=True)
    elif pod.ended:
        yield make_finding(facts, Topic.POD_ENDED, stuck=True, phase=pod.phase)


def _not_served(facts: Facts) -> Iterator[Finding]:
    """Yield a finding if no daemon serves the request, because a label or the node is wrong."""
    request = facts.request
    value = active_value(request.containers, whole_pod=request.whole_pod, reloads=request.reloads)
    if not request.node_name:
        yield make_finding(facts, Topic.NO_LABEL, stuck=True, label=LABEL_NODE_NAME)
    if not request.active:
        yield make_finding(facts, Topic.NO_LABEL, stuck=True, label=f'{LABEL_ACTIVE}: "{value}"')
    if facts.pod is not None and facts.pod.node_name not in ("", request.node_name):
        yield make_finding(facts, Topic.ANOTHER_NODE, stuck=True, found=facts.pod.node_name)


def _unanswered(facts: Facts) -> Finding:
    """Return the finding for a request that has not been answered."""
    if facts.age < ANSWER_PATIENCE_SECONDS:
        return make_finding(facts, Topic.JUST_CREATED)
    left, age, advice = UNANSWERED_SECONDS - facts.age, facts.age, find_server(facts)
    if left > 0:
        return make_finding(facts, Topic.NO_ANSWER, age, stuck=True, advice=advice, left=format_duration(left))
    advice += check_manager(facts) if left < -MANAGER_PATIENCE_SECONDS and not facts.manager else ()
    return make_finding(facts, Topic.NO_ANSWER_FOR_LONG, age, stuck=True, advice=advice)


def _started(request: Request) -> bool:
    """Whether anything has been done to a container."""
    return bool(request.start_times) or any(state.started for state in request.status.states)


def _earlier_request(facts: Facts) -> Iterator[Finding]:
    """Yield a finding if another request of the pod is served first."""
    request = facts.request
    served = [other for other in facts.others if other.live and not other.error and other.node_name]
    before = sorted((other for other in served if serving_order(other) < serving_order(request)), key=serving_order)
    if before and not _started(request):
        first, more = before[0], optional(" and {} more requests", len(before) - 1 or None)
        where, name = first.namespace, first.name
        yield make_finding(facts, Topic.ANOTHER_REQUEST_FIRST, facts.age, first_namespace=where, first=name, more=more)


def _from_daemon(facts: Facts, containers: tuple[Finding, ...]) -> Iterator[Finding]:
    """Yield what the daemon reports about its node. This goes before the node's state in the API."""
    status = facts.request.status
    if status.reason in (Reason.WAITING_FOR_POD, Reason.RUNTIME_UNAVAILABLE):
        advice = status.reason.advise(**facts.names)
        yield make_finding(facts, Topic.DAEMON_WAITS, stuck=True, advice=advice, message=status.message)
    waits = (Reason.KUBELET_SILENT, Reason.RUNTIME_NOT_READY)
    held = [each for each in containers if status.state(each.container).reason in waits]
    if stuck := tuple(each for each in held if each.stuck):
        yield _current(facts, stuck)


def _node_state(facts: Facts) -> Finding | None:
    """Return what is wrong with the node or its kubelet, or None.

    The API shows the pods of a node that is not ready as not ready, too. So a daemon that has written since then runs.
    """
    node, written = facts.node, facts.times.written
    if node is None or node.ready:
        return None
    if not node.exists:
        return make_finding(facts, Topic.NO_NODE, stuck=True, advice=check_manager(facts))
    silent = facts.no_daemon if written is None or node.since is None else written <= node.since
    silent = silent and facts.by_daemon
    topic = Topic.NODE_NOT_READY if node.why else Topic.NODE_SILENT if silent else Topic.KUBELET_SILENT
    return make_finding(facts, topic, facts.seconds_since(node.since), stuck=True, why=node.why)


def _gate(facts: Facts) -> Iterator[Finding]:
    """Yield a finding while the request waits for the pod to be unready, or for the unready grace period."""
    request, grace = facts.request, _unready_grace(facts)
    if grace is None or _started(request) or facts.pod is None:
        return
    since = facts.seconds_since(facts.times.acquired if request.unready_acquired else facts.times.written)
    if not request.unready_acquired:
        late = since is not None and since > MANAGER_PATIENCE_SECONDS
        yield make_finding(facts, Topic.WAITING_FOR_UNREADY, since, stuck=late, advice=check_manager(facts))
    elif since is None:
        yield make_finding(facts, Topic.UNREADY, grace=grace)
    elif since < grace:
        yield make_finding(facts, Topic.UNREADY_GRACE, since, left=format_duration(grace - since))
    elif since > grace + MANAGER_PATIENCE_SECONDS:
        advice, over = find_server(facts), format_duration(since - grace)
        yield make_finding(facts, Topic.UNREADY_GRACE_OVER, since, stuck=True, advice=advice, over=over)


def _unready_grace(facts: Facts) -> int | None:
    """Return the unready grace period in seconds, or None if the request does not wait for one."""
    gated = facts.pod is None or facts.pod.readiness_gate
    return facts.request.strategy.unready_grace_seconds if gated else None


def _stop_not_started(facts: Facts, containers: tuple[Finding, ...]) -> Iterator[Finding]:
    """Yield a finding if no container has its turn although nothing delays it. `_gate` covers the grace period."""
    current = _current(facts, containers)
    written = facts.seconds_since(facts.times.written)
    since = facts.age if written is None else written
    awaited = current.topic is Topic.TURN_AWAITED and _unready_grace(facts) is None
    if awaited and since > DAEMON_PATIENCE_SECONDS:
        finding = make_finding(facts, Topic.TURN_NOT_GIVEN, since, stuck=True, advice=find_server(facts))
        yield replace(finding, container=current.container)


def _current(facts: Facts, containers: tuple[Finding, ...]) -> Finding:
    """Return the finding of the current container: the first that is stuck, or else the first of its phase."""
    for phase in (StatePhase.RECREATING, StatePhase.PENDING):
        if at_work := [each for each in containers if each.phase == phase]:
            return min(at_work, key=lambda each: not each.stuck)
    return make_finding(facts, Topic.ALL_ENDED)
