"""The state of a ContainerRecreateRequest: what it waits for, since when, and what to do about it.

`explain_request` uses the same order as `decide` and `lifecycle`. It sees only the API and not the runtime, so it
reports what a request waits for, and does not predict what will be decided.
"""

from collections.abc import Iterator
from dataclasses import replace

from crrd.core.api.reasons import Reason, reason_of
from crrd.core.api.time import parse_time
from crrd.core.api.types import LABEL_ACTIVE, LABEL_NODE_NAME, UNANSWERED_SECONDS, Request, RequestPhase, StatePhase
from crrd.core.explain.container import DAEMON_PATIENCE_SECONDS, find_container
from crrd.core.explain.facts import Facts
from crrd.core.explain.findings import Advice, ContainerReport, Explanation, Finding, Step, Topic
from crrd.core.explain.notes import MANAGER_PATIENCE_SECONDS, check_manager, notes, remove_finalizers
from crrd.core.recreate.decide import serving_order

ANSWER_PATIENCE_SECONDS = 5.0  # A running daemon answers within about a second


def explain_request(facts: Facts) -> Explanation:
    """Return the state of a request."""
    request = _with_reasons(facts.request)
    facts = replace(facts, request=request)
    states = [(container, request.status.state(container.name)) for container in request.containers]
    reports = tuple(
        ContainerReport(state.name, state.phase.value, find_container(facts, container, state))
        for container, state in states
    )
    cause = next(_causes(facts, reports))
    node = _node_state(facts)
    also = replace(node, advice=()) if node is not None and node.reason is not cause.reason else None
    return Explanation(
        request=request,
        age=facts.age,
        node=request.node_name or (facts.pod.node_name if facts.pod else ""),
        daemon=facts.daemons[0].key if facts.daemons else "",
        cause=cause,
        containers=reports,
        notes=(*notes(facts, also), *facts.unread),
    )


def _with_reasons(request: Request) -> Request:
    """Return the request with the reasons that its CRD has pruned, which its messages show."""
    status = request.status
    states = tuple(
        replace(each, reason=each.reason or reason_of(each.message, final=each.phase is StatePhase.FAILED))
        for each in status.states
    )
    reason = status.reason or reason_of(status.message, final=request.completed)
    return replace(request, status=replace(status, states=states, reason=reason))


def _causes(facts: Facts, reports: tuple[ContainerReport, ...]) -> Iterator[Finding]:
    """Yield possible causes. The first one counts, and the last one always applies."""
    request = facts.request
    if request.completed:
        yield _completed(facts, reports)
    if request.deleting:
        yield _deleting(facts)
    yield from _pod_lost(facts)
    yield from _not_served(facts)
    if request.error:
        yield Finding(Topic.INVALID, {"error": request.error}, stuck=True, advice=(Advice(Reason.INVALID_REQUEST),))
    if request.status.phase is RequestPhase.EMPTY:
        yield _unanswered(facts)
    yield from _earlier_request(facts)
    if facts.node is None or facts.node.exists:
        yield from _from_daemon(facts, reports)
    if node := _node_state(facts):
        yield node
    written = facts.seconds_since(facts.times.written)
    if facts.no_daemon and (written is None or written > DAEMON_PATIENCE_SECONDS):  # it may be on its way back
        yield Finding(Topic.NO_DAEMON, stuck=True, advice=_find_daemon(facts))
    yield from _gate(facts)
    yield from _stop_not_started(facts, reports)
    yield _current(reports)


def _completed(facts: Facts, reports: tuple[ContainerReport, ...]) -> Finding:
    """Return the finding for a completed request."""
    status = facts.request.status
    since = facts.seconds_since(parse_time(status.completion_time))
    if all(each.phase == StatePhase.SUCCEEDED for each in reports):
        return Finding(Topic.COMPLETED, {"message": status.message}, since)
    reasons = [state.reason for state in status.states if state.phase is StatePhase.FAILED]
    reason = next((reason for reason in reasons if reason is not Reason.EARLIER_FAILURE), status.reason)
    found = _find_daemon(facts) if reason is Reason.NO_ANSWER and facts.request.node_name else ()
    return Finding(Topic.COMPLETED_WITH_FAILURES, {}, since, advice=(*found, Advice(reason)))


def _deleting(facts: Facts) -> Finding:
    """Return the finding for a request in deletion."""
    since = facts.seconds_since(facts.times.deleted)
    if facts.request.has_finalizer:
        late = since is not None and since > MANAGER_PATIENCE_SECONDS
        return Finding(Topic.BEING_RELEASED, {}, since, late, check_manager(facts) if late else ())
    return Finding(Topic.BEING_DELETED, {}, since, advice=remove_finalizers(facts))


def _pod_lost(facts: Facts) -> Iterator[Finding]:
    """Yield a finding if the pod is gone, was replaced, has ended or is in deletion."""
    pod, advice = facts.pod, (Advice(Step.AWAIT_MANAGER),)
    if pod is None:
        if facts.pod_read:
            yield Finding(Topic.NO_POD, stuck=True, advice=advice)
    elif facts.own_pod is None:
        yield Finding(Topic.POD_REPLACED, {"uid": pod.uid}, stuck=True, advice=advice)
    elif pod.deleting:
        yield Finding(Topic.POD_DELETING, stuck=True, advice=advice)
    elif pod.ended:
        yield Finding(Topic.POD_ENDED, {"phase": pod.phase}, stuck=True, advice=advice)


def _not_served(facts: Facts) -> Iterator[Finding]:
    """Yield a finding if no daemon serves the request, because a label or the node is wrong."""
    request = facts.request
    advice = (Advice(Step.CHECK_ADMISSION), Advice(Step.CHECK_WEBHOOKS), Advice(Step.CREATE_AGAIN))
    if not request.node_name:
        yield Finding(Topic.NO_LABEL, {"label": LABEL_NODE_NAME}, stuck=True, advice=advice)
    if not request.active:
        yield Finding(Topic.NO_LABEL, {"label": f'{LABEL_ACTIVE}: "true"'}, stuck=True, advice=advice)
    if facts.pod is not None and facts.pod.node_name not in ("", request.node_name):
        yield Finding(Topic.ANOTHER_NODE, {"found": facts.pod.node_name}, stuck=True, advice=advice[-1:])


def _unanswered(facts: Facts) -> Finding:
    """Return the finding for a request that the node's daemon has not answered."""
    if facts.age < ANSWER_PATIENCE_SECONDS:
        return Finding(Topic.JUST_CREATED)
    left, advice = UNANSWERED_SECONDS - facts.age, _find_daemon(facts)
    if left > 0:
        return Finding(Topic.NO_ANSWER, {"left": left}, facts.age, stuck=True, advice=advice)
    advice += check_manager(facts) if left < -MANAGER_PATIENCE_SECONDS else ()
    return Finding(Topic.NO_ANSWER_FOR_LONG, {}, facts.age, stuck=True, advice=advice)


def _find_daemon(facts: Facts) -> tuple[Advice, ...]:
    """Return where to look for the daemon of the request's node."""
    if facts.node is not None and not facts.node.exists:
        return (Advice(Step.NODE_IS_GONE),)
    found = []
    if facts.node is not None and not facts.node.ready:
        found.append(Advice(Step.NODE_IS_NOT_READY, {"since": facts.seconds_since(facts.node.since)}))
    if facts.daemons:
        for daemon in facts.daemons:
            namespace, _, name = daemon.key.partition("/")
            values = {"phase": daemon.phase, "ready": "ready" if daemon.ready else "not ready"}
            found.append(Advice(Step.CHECK_DAEMON, {"daemon_namespace": namespace, "daemon": name, **values}))
    else:
        found.append(Advice(Step.FIND_DAEMON if facts.daemons is None else Step.START_DAEMON))
    return tuple(found)


def _started(request: Request) -> bool:
    """Whether anything has been done to a container."""
    return bool(request.start_times) or any(state.started for state in request.status.states)


def _earlier_request(facts: Facts) -> Iterator[Finding]:
    """Yield a finding if another request of the pod is served first."""
    request = facts.request
    served = [other for other in facts.others if other.live and not other.error and other.node_name]
    before = sorted((other for other in served if serving_order(other) < serving_order(request)), key=serving_order)
    if before and not _started(request):
        first = {"first_namespace": before[0].namespace, "first": before[0].name}
        advice = (Advice(Step.EXPLAIN_FIRST, first), Advice(Step.DELETE_FIRST, first))
        more = len(before) - 1 or None
        yield Finding(Topic.ANOTHER_REQUEST_FIRST, {**first, "more": more}, facts.age, advice=advice)


def _from_daemon(facts: Facts, reports: tuple[ContainerReport, ...]) -> Iterator[Finding]:
    """Yield what the daemon reports about its node. This goes before the node's state in the API."""
    status = facts.request.status
    if status.reason in (Reason.WAITING_FOR_POD, Reason.RUNTIME_UNAVAILABLE):
        yield Finding(Topic.DAEMON_WAITS, {"message": status.message}, stuck=True, advice=(Advice(status.reason),))
    silent = [each for each in reports if status.state(each.name).reason is Reason.KUBELET_SILENT]
    if stuck := tuple(each for each in silent if each.finding.stuck):
        yield _current(stuck)


def _node_state(facts: Facts) -> Finding | None:
    """Return what is wrong with the node or its kubelet, or None.

    The API shows the pods of a node that is not ready as not ready, too. So a daemon that has written since then runs.
    """
    node, written = facts.node, facts.times.written
    if node is None or node.ready:
        return None
    if not node.exists:
        return Finding(Topic.NO_NODE, stuck=True, advice=check_manager(facts))
    silent = facts.no_daemon if written is None or node.since is None else written <= node.since
    reason = Topic.NODE_NOT_READY if node.why else Topic.NODE_SILENT if silent else Topic.KUBELET_SILENT
    since, advice = facts.seconds_since(node.since), (Advice(Step.DESCRIBE_NODE),)
    return Finding(reason, {"why": node.why}, since, stuck=True, advice=advice)


def _gate(facts: Facts) -> Iterator[Finding]:
    """Yield a finding while the request waits for the pod to be unready, or for the unready grace period."""
    request, grace = facts.request, _unready_grace(facts)
    if grace is None or _started(request) or facts.pod is None:
        return
    since = facts.seconds_since(facts.times.acquired if request.unready_acquired else facts.times.written)
    if not request.unready_acquired:
        late = since is not None and since > MANAGER_PATIENCE_SECONDS
        yield Finding(Topic.WAITING_FOR_UNREADY, {}, since, late, check_manager(facts))
    elif since is None:
        yield Finding(Topic.UNREADY, {"grace": grace})
    elif since < grace:
        yield Finding(Topic.UNREADY_GRACE, {"left": grace - since}, since)
    elif since > grace + MANAGER_PATIENCE_SECONDS:
        advice = _find_daemon(facts)
        yield Finding(Topic.UNREADY_GRACE_OVER, {"over": since - grace}, since, stuck=True, advice=advice)


def _unready_grace(facts: Facts) -> int | None:
    """Return the unready grace period in seconds, or None if the request does not wait for one."""
    gated = facts.pod is None or facts.pod.readiness_gate
    return facts.request.strategy.unready_grace_seconds if gated else None


def _stop_not_started(facts: Facts, reports: tuple[ContainerReport, ...]) -> Iterator[Finding]:
    """Yield a finding if no container has its turn although nothing delays it. `_gate` covers the grace period."""
    current = _current(reports)
    written = facts.seconds_since(facts.times.written)
    since = facts.age if written is None else written
    awaited = current.reason is Topic.TURN_AWAITED and _unready_grace(facts) is None
    if awaited and since > DAEMON_PATIENCE_SECONDS:
        advice, container = _find_daemon(facts), current.container
        yield Finding(Topic.TURN_NOT_GIVEN, {}, since, stuck=True, advice=advice, container=container)


def _current(reports: tuple[ContainerReport, ...]) -> Finding:
    """Return the finding of the current container: the first that is stuck, or else the first of its phase."""
    for phase in (StatePhase.RECREATING, StatePhase.PENDING):
        if at_work := [each for each in reports if each.phase == phase]:
            current = min(at_work, key=lambda each: not each.finding.stuck)
            return replace(current.finding, container=current.name)
    return Finding(Topic.ALL_ENDED)
