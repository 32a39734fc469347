"""Where a ContainerRecreateRequest stands, in plain words: what it waits for, since when, and what to do about it.

`explain` goes by the same order as `decide` and `lifecycle`, but from the outside: it sees what the API says and
nothing of the runtime, so it tells what is awaited and never what will be decided. One container's part is
`container`'s, reading the API's objects `facts`', printing `cli.explain`'s.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from crrd.core.api.reasons import Reason, reason_of, say
from crrd.core.api.time import after, parse_time
from crrd.core.api.types import FINALIZER, LABEL_ACTIVE, LABEL_NODE_NAME, Request, RequestPhase, StatePhase
from crrd.core.explain.container import (
    DAEMON_PATIENCE_SECONDS,
    ContainerReport,
    advice_for,
    container_report,
    format_duration,
)
from crrd.core.explain.facts import Facts
from crrd.core.lifecycle.steps import ANSWER_SECONDS, DEFAULT_SLACK_SECONDS, default_deadline
from crrd.core.recreate.decide import turn_order
from crrd.core.recreate.record import target_of

ANSWER_PATIENCE_SECONDS = 5.0
"""A daemon that is there answers within a second or so."""
MANAGER_PATIENCE_SECONDS = 30.0
"""After which what the manager should have done counts as not being done."""

DAEMONS = "app.kubernetes.io/name=crrd,app.kubernetes.io/component=node"
"""The labels of the node daemons' pods in the manifests."""
MANAGERS = "app.kubernetes.io/name=crrd,app.kubernetes.io/component=manager"
"""The labels of the managers' pods in the manifests."""
MANAGER_PODS = f"kubectl get pods -A -l {MANAGERS}"


class Verdict(StrEnum):
    """The shortest answer."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    """Ended, and not every container was recreated."""
    MOVING = "moving"
    """Goes on by itself."""
    STUCK = "stuck"
    """Somebody has to do something, or it will not end well."""


@dataclass(frozen=True, slots=True)
class Cause:
    """What holds for the request as a whole."""

    verdict: Verdict
    what: str
    since: float | None = None
    """For how many seconds it has been so, None where nobody can tell."""
    advice: tuple[str, ...] = ()
    says_since: bool = False
    """Whether `what` says for how long."""
    container: ContainerReport | None = None
    """The container that it is about, as that is reported."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """The answer."""

    request: str
    """`namespace/name`."""
    phase: str
    """"" for a request that nobody has answered."""
    age: float
    """Seconds since its creation."""
    pod: str
    node: str
    cause: Cause
    containers: tuple[ContainerReport, ...]
    notes: tuple[str, ...] = ()
    """What else is worth knowing: times left, what is missing, what could not be read."""


def explain(facts: Facts) -> Explanation:
    """Say where a request stands."""
    facts = replace(facts, request=_with_reasons(facts.request))
    request = facts.request
    reports = tuple(container_report(facts, container) for container in request.containers)
    node = request.node_name or (facts.pod.node_name if facts.pod else "")
    cause = next(_causes(facts, reports))
    notes = (*(note for note in _notes(facts) if note != cause.what), *facts.unread)
    phase = request.status.phase.value
    return Explanation(request.key, phase, facts.age, request.pod_key, node, cause, reports, notes)


def _with_reasons(request: Request) -> Request:
    """The request with those reasons that its CRD has pruned."""
    status = request.status
    states = (
        replace(each, reason=each.reason or reason_of(each.message, final=each.phase is StatePhase.FAILED))
        for each in status.states
    )
    reason = status.reason or reason_of(status.message, final=request.completed)
    return replace(request, status=replace(status, states=tuple(states), reason=reason))


def _causes(facts: Facts, reports: tuple[ContainerReport, ...]) -> Iterator[Cause]:
    """What could be said first; the first one holds. The last always does."""
    request = facts.request
    if request.completed:
        yield _completed(facts, reports)
    if request.deleting:
        yield _deleting(facts)
    yield from _pod_lost(facts)
    yield from _not_served(facts)
    if request.error:
        yield Cause(
            Verdict.STUCK,
            f"it cannot be served: {request.error}",
            advice=advice_for(facts, Reason.INVALID_REQUEST),
        )
    if request.status.phase is RequestPhase.EMPTY:
        yield _unanswered(facts)
    yield from _behind(facts)
    if facts.node is None or facts.node.exists:
        yield from _told(facts, reports)
    yield from _away(facts)
    yield from _deserted(facts)
    yield from _gate(facts)
    yield from _idle(facts, reports)
    yield _current(reports)


def _completed(facts: Facts, reports: tuple[ContainerReport, ...]) -> Cause:
    """It has ended."""
    request = facts.request
    since = facts.seconds_since(parse_time(request.status.completion_time))
    failed = [each for each in reports if each.phase != StatePhase.SUCCEEDED]
    said = request.status.message
    if not failed:
        return Cause(Verdict.SUCCEEDED, f"Completed: {said or 'every container was recreated'}", since)
    why = "; ".join(f"{each.name}: {each.what}" for each in failed)
    what = f"Completed, but not every container was recreated: {why}"
    return Cause(Verdict.FAILED, what, since, _after_failure(facts))


def _after_failure(facts: Facts) -> tuple[str, ...]:
    """What to do about what a request failed of."""
    reasons = [state.reason for state in facts.request.status.states if state.phase is StatePhase.FAILED]
    reason = next((reason for reason in reasons if reason is not Reason.EARLIER_FAILURE), facts.request.status.reason)
    found = _find_daemon(facts) if reason is Reason.NO_ANSWER else ()
    return (*found, *advice_for(facts, reason))


def _deleting(facts: Facts) -> Cause:
    """Somebody wants it gone."""
    since = facts.seconds_since(facts.times.deleted)
    if facts.request.has_finalizer:
        what = "it is being deleted; the manager has to make the pod ready again first"
        late = since is not None and since > MANAGER_PATIENCE_SECONDS
        return Cause(Verdict.STUCK if late else Verdict.MOVING, what, since, (_manager(facts),) if late else ())
    others = ", ".join(facts.request.finalizers)
    advice = (f"whoever set the finalizer has to take it away: {others}",) if others else ()
    return Cause(Verdict.MOVING, "it is being deleted: nothing more is begun for it", since, advice)


def _pod_lost(facts: Facts) -> Iterator[Cause]:
    """The pod is not there any more, or will not be for long."""
    request, pod = facts.request, facts.pod
    advice = (f"the manager completes it as failed; if it does not: {MANAGER_PODS}",)
    if pod is None:
        if facts.pod_read:
            yield Cause(Verdict.STUCK, f"pod deleted: there is no pod {request.pod_key}", advice=advice)
    elif request.pod_uid not in ("", pod.uid):
        what = f"pod deleted: the pod that is now called {request.pod_key} is another one (UID {pod.uid})"
        yield Cause(Verdict.STUCK, what, advice=advice)
    elif pod.deleting:
        yield Cause(Verdict.STUCK, "the pod is being deleted: nothing is stopped in it any more", advice=advice)
    elif pod.ended:
        what = f"the pod has ended (phase {pod.phase}): kubelet starts nothing in it any more"
        yield Cause(Verdict.STUCK, what, advice=advice)


def _not_served(facts: Facts) -> Iterator[Cause]:
    """No daemon will ever look at it."""
    request = facts.request
    advice = (
        f"admission sets that label: is the manager running? {MANAGER_PODS}",
        "is it asked? kubectl get mutatingwebhookconfigurations",
        "then create the request anew",
    )
    if not request.node_name:
        yield Cause(Verdict.STUCK, f"no daemon serves it: the label {LABEL_NODE_NAME} is missing", advice=advice)
    if not request.active:
        yield Cause(Verdict.STUCK, f'no daemon serves it: the label {LABEL_ACTIVE}: "true" is missing', advice=advice)
    if facts.pod is not None and facts.pod.node_name not in ("", request.node_name):
        what = f"no daemon serves it: it is for node {request.node_name}, and the pod is on {facts.pod.node_name}"
        yield Cause(Verdict.STUCK, what, advice=advice[-1:])


def _unanswered(facts: Facts) -> Cause:
    """The node's daemon has not said a word."""
    node = facts.request.node_name
    if facts.age < ANSWER_PATIENCE_SECONDS:
        return Cause(Verdict.MOVING, f"just created; the daemon on node {node} has not answered yet")
    what = f"no daemon has answered on node {node} for {format_duration(facts.age)}"
    left = ANSWER_SECONDS - facts.age
    if left > 0:
        what += f"; the manager gives it up in {format_duration(left)}"
        return Cause(Verdict.STUCK, what, facts.age, _find_daemon(facts), says_since=True)
    late = (_manager(facts),) if left < -MANAGER_PATIENCE_SECONDS else ()
    what += "; the manager is to give it up"
    return Cause(Verdict.STUCK, what, facts.age, (*_find_daemon(facts), *late), says_since=True)


def _find_daemon(facts: Facts) -> tuple[str, ...]:
    """What is known about the daemon of the request's node, and where to look."""
    node = facts.request.node_name
    if facts.node is not None and not facts.node.exists:
        return (f"there is no node {node} any more",)
    found: list[str] = []
    if facts.node is not None and not facts.node.ready:
        since = facts.seconds_since(facts.node.since)
        found.append(f"node {node} is not ready" + (f" for {format_duration(since)}" if since is not None else ""))
    if facts.daemons:
        for daemon in facts.daemons:
            state = f"{daemon.phase}, {'ready' if daemon.ready else 'not ready'}"
            namespace, _, name = daemon.key.partition("/")
            found.append(f"its daemon's pod {daemon.key} is {state}: kubectl -n {namespace} logs {name}")
        return tuple(found)
    there = "is the DaemonSet's pod running there?" if facts.daemons is None else "no pod of the DaemonSet is there:"
    where = f"kubectl get pods -A -l {DAEMONS} -o wide --field-selector spec.nodeName={node}"
    return (*found, f"{there} {where}")


def _begun(request: Request) -> bool:
    """Whether anything has been done to a container."""
    return bool(request.begun) or any(state.begun for state in request.status.states)


def _behind(facts: Facts) -> Iterator[Cause]:
    """Requests of one pod are served one after the other; one that has begun goes before."""
    request = facts.request
    if _begun(request):
        return
    served = [other for other in facts.others if other.live and not other.error and other.node_name]
    before = sorted((other for other in served if turn_order(other) < turn_order(request)), key=turn_order)
    if not before:
        return
    first: Request = before[0]
    what = f"waits behind request {first.key} of the same pod"
    if len(before) > 1:
        what += f" and {len(before) - 1} more"
    advice = (
        f"crrd explain {first.key} says what that one waits for",
        f"without it, this one goes on at once: kubectl -n {first.namespace} delete crr {first.name}",
    )
    yield Cause(Verdict.MOVING, what, facts.age, advice)


def _told(facts: Facts, reports: tuple[ContainerReport, ...]) -> Iterator[Cause]:
    """What the daemon says of its node goes before what the API says of it."""
    status = facts.request.status
    if status.reason in (Reason.WAITING_FOR_POD, Reason.RUNTIME_UNAVAILABLE):
        what = f"the node daemon is {status.message}"
        yield Cause(Verdict.STUCK, what, advice=advice_for(facts, status.reason))
    silent = tuple(each for each in reports if each.stuck and status.state(each.name).reason is Reason.KUBELET_SILENT)
    if silent:
        yield _current(silent)


def _away(facts: Facts) -> Iterator[Cause]:
    """The node, and with it kubelet, has gone or does not work."""
    node = facts.node
    if node is None or node.ready:
        return
    if node.exists:
        since = facts.seconds_since(node.since)
        yield Cause(Verdict.STUCK, _node_state(facts), since, (f"kubectl describe node {node.name}",))
    else:
        yield Cause(Verdict.STUCK, _node_state(facts), advice=(_manager(facts),))


def _node_state(facts: Facts) -> str:
    """What is wrong with the node, "" for nothing.

    The pods of a node that is not ready are shown as not ready too, whether or not they are: a daemon that has written
    since is there.
    """
    node, written = facts.node, facts.times.written
    if node is None or node.ready:
        return ""
    if not node.exists:
        return f"there is no node {node.name} any more"
    if node.why:
        return f"node {node.name} is not ready: {node.why}"
    silent = facts.no_daemon if written is None or node.since is None else written <= node.since
    reports = "neither kubelet nor the daemon there reports" if silent else "kubelet there does not report"
    return f"node {node.name} is not ready: {reports}"


def _deserted(facts: Facts) -> Iterator[Cause]:
    """There is no daemon any more; one that has just written may be on its way back."""
    written = facts.seconds_since(facts.times.written)
    if facts.no_daemon and (written is None or written > DAEMON_PATIENCE_SECONDS):
        what = f"no daemon is ready on node {facts.request.node_name}: nobody goes on with it"
        yield Cause(Verdict.STUCK, what, advice=_find_daemon(facts))


def _gate(facts: Facts) -> Iterator[Cause]:
    """The unready grace period: the manager's mark, then the time that traffic has to go elsewhere."""
    request, grace = facts.request, _unready_grace(facts)
    if grace is None or _begun(request) or facts.pod is None:
        return
    since = facts.seconds_since(facts.times.acquired if request.unready_acquired else facts.times.written)
    if not request.unready_acquired:
        late = since is not None and since > MANAGER_PATIENCE_SECONDS
        what = "waiting for the manager to make the pod unready"
        yield Cause(Verdict.STUCK if late else Verdict.MOVING, what, since, (_manager(facts),))
    elif since is None:
        yield Cause(Verdict.MOVING, f"unready grace: the pod is unready, stopping after {grace} s")
    elif since < grace:
        what = (
            f"unready grace: mark acquired {format_duration(since)} ago, {format_duration(grace - since)} left at most"
        )
        yield Cause(Verdict.MOVING, what, since, says_since=True)
    elif since > grace + MANAGER_PATIENCE_SECONDS:
        what = f"unready grace over for {format_duration(since - grace)}, but nothing was stopped yet"
        yield Cause(Verdict.STUCK, what, since, _find_daemon(facts))


def _unready_grace(facts: Facts) -> int | None:
    """The unready grace period that has to pass, as far as one knows; None where nothing is waited for."""
    gated = facts.pod is None or facts.pod.readiness_gate
    return facts.request.strategy.unready_grace_seconds if gated else None


def _idle(facts: Facts, reports: tuple[ContainerReport, ...]) -> Iterator[Cause]:
    """Nothing is before the first container, and still its turn does not come; `_gate` says so of a grace period."""
    current = _current(reports)
    since = facts.seconds_since(facts.times.written)
    since = facts.age if since is None else since
    waits = current.container is not None and current.container.turn_awaited
    if _unready_grace(facts) is None and since > DAEMON_PATIENCE_SECONDS and waits:
        yield Cause(Verdict.STUCK, f"{current.what}, though nothing is before it", since, _find_daemon(facts))


def _current(reports: tuple[ContainerReport, ...]) -> Cause:
    """The container that the request is at, of those being recreated, else to come: the first stuck, or the first."""
    unfinished = [each for each in reports if each.phase in (StatePhase.RECREATING, StatePhase.PENDING)]
    working = [each for each in unfinished if each.phase == StatePhase.RECREATING]
    current = min(working or unfinished, key=lambda each: not each.stuck, default=None)
    if current is None:
        return Cause(Verdict.MOVING, "every container has ended; the request is about to be Completed")
    verdict = Verdict.STUCK if current.stuck else Verdict.MOVING
    what = f"container {current.name}: {current.what}"
    return Cause(verdict, what, current.since, current.advice, current.says_since, current)


def _notes(facts: Facts) -> Iterator[str]:
    """What else there is to say."""
    request = facts.request
    if request.completed:
        yield from _leftovers(facts)
        return
    yield from _deadline(facts)
    if (node := _node_state(facts)) and request.status.phase is not RequestPhase.EMPTY:
        yield node
    if any(target_of(request, container) is None for container in request.containers):
        if request.strategy.force:
            yield "forceRecreate: whatever runs when its turn comes is stopped, once"
        else:
            yield "no statusContext: no admission saw the request; the daemon takes the instances that it finds"
    no_gate = facts.pod is not None and not facts.pod.readiness_gate
    if request.strategy.unready_grace_seconds is not None and no_gate:
        yield say(Reason.NO_READINESS_GATE)


def _deadline(facts: Facts) -> Iterator[str]:
    """How long it has left: every request ends, by the manager's default if by nothing else."""
    request = facts.request
    seconds, default = request.deadline_seconds, ""
    if seconds is None:
        seconds = default_deadline(request, DEFAULT_SLACK_SECONDS)
        flag = (
            "unless its flag says otherwise"
            if facts.admitted
            else "if that is the one that runs: OpenKruise's has none"
        )
        default = f" (none was given: the default of crrd's manager, {flag})"
    deadline = after(request.created, seconds)
    if deadline is None:
        return
    left = (deadline - facts.now).total_seconds()
    if left > 0:
        yield f"deadline: {format_duration(left)} left of {seconds} s{default}; what is not done by then fails"
    else:
        passed = f"deadline: passed {format_duration(-left)} ago{default}"
        yield f"{passed}, the manager is to complete it; {_manager(facts)}"


def _leftovers(facts: Facts) -> Iterator[str]:
    """What still happens to a completed request."""
    request = facts.request
    if request.active or request.has_finalizer:
        left = [f"the label {LABEL_ACTIVE}"] * request.active + [f"the finalizer {FINALIZER}"] * request.has_finalizer
        ended = facts.seconds_since(parse_time(request.status.completion_time)) or 0.0
        late = f"; {_manager(facts)}" if ended > MANAGER_PATIENCE_SECONDS else ""
        yield f"the manager has yet to take {' and '.join(left)} away{late}"
    if request.deleting:
        others = ", ".join(each for each in request.finalizers if each != FINALIZER)
        yield "it is being deleted" + (f"; whoever set the finalizer has to take it away: {others}" if others else "")
        return
    if request.ttl_seconds is None:
        yield "no ttlSecondsAfterFinished: it stays until somebody deletes it"
        return
    # The manager counts from when it saw the completion: from the last write of the status, by the API server's clock.
    # The completionTime is of the node's.
    seen = facts.times.written or parse_time(request.status.completion_time)
    if seen is None:
        return
    left_seconds = request.ttl_seconds - (facts.now - seen).total_seconds()
    if left_seconds > 0:
        yield f"TTL: deleted in {format_duration(left_seconds)}"
    else:
        over = format_duration(-left_seconds)
        yield f"TTL: over for {over}, unless a manager has come to lead since, which counts anew; {_manager(facts)}"


def _manager(facts: Facts) -> str:
    """Where to look for the manager."""
    if facts.admitted:
        return f"is the manager running? {MANAGER_PODS}"
    return f"is the manager running? crrd's: {MANAGER_PODS}; or OpenKruise's"
