"""What else is worth knowing of a request: how long it has left, what is missing, what still happens once it ended."""

from collections.abc import Iterator

from crrd.core.api.reasons import Reason
from crrd.core.api.time import after, parse_time
from crrd.core.api.types import FINALIZER, LABEL_ACTIVE, RequestPhase
from crrd.core.explain.facts import Facts
from crrd.core.explain.findings import Advice, Finding, Step, Topic
from crrd.core.lifecycle.steps import DEFAULT_SLACK_SECONDS, default_deadline
from crrd.core.recreate.messages import UNREMARKABLE_WAITS, may_stay_down

MANAGER_PATIENCE_SECONDS = 30.0  # After which what the manager should have done counts as not being done


def check_manager(facts: Facts) -> tuple[Advice, ...]:
    """To look for the manager; where crrd's did not admit the request, OpenKruise's may be the one that runs."""
    return (Advice(Step.CHECK_MANAGER if facts.admitted else Step.CHECK_ANY_MANAGER),)


def remove_finalizers(facts: Facts) -> tuple[Advice, ...]:
    """To wait for other controllers, where only they keep the request from being deleted."""
    others = [each for each in facts.request.finalizers if each != FINALIZER]
    return (Advice(Step.REMOVE_FINALIZERS, {"finalizers": others}),) if others else ()


def notes(facts: Facts, node: Finding | None) -> Iterator[Finding]:
    """What else there is to say; `node` is what is wrong with the node, unless that is said already."""
    request = facts.request
    yield from _may_stay_down(facts)
    if request.completed:
        yield from _cleanup(facts)
        return
    yield from _deadline(facts)
    if node is not None and request.status.phase is not RequestPhase.EMPTY:
        yield node
    if request.node_name and any(request.target(container) is None for container in request.containers):
        yield Finding(Topic.FORCED if request.strategy.force else Topic.NOT_ADMITTED)
    no_gate = facts.pod is not None and not facts.pod.readiness_gate
    if request.strategy.unready_grace_seconds is not None and no_gate:
        yield Finding(Topic.NO_READINESS_GATE)


def _may_stay_down(facts: Facts) -> Iterator[Finding]:
    """Yield a warning if a bug of this kubelet may keep a container of the request down."""
    pod, status = facts.own_pod, facts.request.status
    if pod is None or facts.node is None:
        return
    states = [status.state(container.name) for container in facts.request.containers]
    awaited = {each.name for each in states if not each.phase.final or each.reason is Reason.DEADLINE}
    waiting = (each for each in pod.containers.values() if each.waiting_reason in UNREMARKABLE_WAITS)
    down = {each.name for each in waiting if each.name in awaited and not each.running}
    if may_stay_down(pod, down, facts.node.kubelet):
        yield Finding(Topic.MAY_STAY_DOWN, {"kubelet": facts.node.kubelet}, advice=(Advice(Step.DELETE_POD),))


def _deadline(facts: Facts) -> Iterator[Finding]:
    """Yield the time until the deadline. Without a deadline, the manager's default counts."""
    seconds, default = facts.request.deadline_seconds, None
    if seconds is None:
        seconds = default_deadline(facts.request, DEFAULT_SLACK_SECONDS)
        default = "crrd" if facts.admitted else "any"
    deadline = after(facts.request.created, seconds)
    if deadline is None:
        return
    left = (deadline - facts.now).total_seconds()
    if left > 0:
        yield Finding(Topic.DEADLINE, {"left": left, "seconds": seconds, "default": default})
    else:
        yield Finding(Topic.DEADLINE_PASSED, {"over": -left, "default": default}, advice=check_manager(facts))


def _cleanup(facts: Facts) -> Iterator[Finding]:
    """Yield what still happens to a completed request."""
    request = facts.request
    completed = parse_time(request.status.completion_time)
    if request.active or request.has_finalizer:
        left = [f"label {LABEL_ACTIVE}"] * request.active + [f"finalizer {FINALIZER}"] * request.has_finalizer
        late = (facts.seconds_since(completed) or 0.0) > MANAGER_PATIENCE_SECONDS
        yield Finding(Topic.NOT_CLEANED_UP, {"left": left}, advice=check_manager(facts) if late else ())
    # The manager counts from when it saw the completion: from the last write of the status, by the API server's clock.
    # The completionTime is of the node's.
    written = facts.times.written or completed
    if request.deleting:
        yield Finding(Topic.DELETED_ONCE_COMPLETED, advice=remove_finalizers(facts))
    elif request.ttl_seconds is None:
        yield Finding(Topic.NO_TTL)
    elif written is not None:
        seconds = request.ttl_seconds - (facts.now - written).total_seconds()
        if seconds > 0:
            yield Finding(Topic.TTL, {"left": seconds})
        else:
            yield Finding(Topic.TTL_OVER, {"over": -seconds}, advice=check_manager(facts))
