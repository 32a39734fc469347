"""What else is worth knowing of a request: its deadline, what is missing, and what happens after its end."""

from collections.abc import Iterator

from crrd.core.api.reasons import Reason
from crrd.core.api.time import after, format_duration, parse_time
from crrd.core.api.types import FINALIZER, LABEL_ACTIVE, RequestPhase
from crrd.core.explain.advice import check_manager, remove_finalizers
from crrd.core.explain.facts import Facts
from crrd.core.explain.findings import Finding, Topic, make_finding
from crrd.core.lifecycle.steps import DEFAULT_SLACK_SECONDS, default_deadline
from crrd.core.recreate.hazards import find_hazards
from crrd.kubelet.waiting import ORDINARY

MANAGER_PATIENCE_SECONDS = 30.0  # The manager should have acted by then
_DEFAULT = " (crrd's default, see --default-deadline-slack-seconds of its manager)"
_DEFAULT_OF_ANY = " (crrd's default, OpenKruise's manager applies none)"


def find_notes(facts: Facts, node: Finding | None) -> Iterator[Finding]:
    """Yield what else is worth knowing. `node` is what is wrong with the node, if that is not the cause already."""
    request = facts.request
    yield from _template_kept(facts)
    yield from _may_not_come_back(facts)
    if request.completed:
        yield from _cleanup(facts)
        return
    yield from _deadline(facts)
    if node is not None and request.status.phase is not RequestPhase.EMPTY:
        yield node
    unpinned = any(request.target(each) is None and not each.image for each in request.containers)
    if request.node_name and unpinned:
        yield make_finding(facts, Topic.FORCED if request.strategy.force else Topic.NOT_ADMITTED)
    no_gate = facts.pod is not None and not facts.pod.readiness_gate
    if request.strategy.unready_grace_seconds is not None and no_gate:
        yield make_finding(facts, Topic.NO_READINESS_GATE)


def _template_kept(facts: Facts) -> Iterator[Finding]:
    """Yield that new pods do not get the image of the run."""
    run = facts.run
    change = run.options.image if run is not None else None
    if run is not None and change is not None and not change.adopt and run.target.uid:
        target, image = run.target.words, change.image
        yield make_finding(facts, Topic.TEMPLATE_KEPT, run=run.name, target=target, image=image)


def _may_not_come_back(facts: Facts) -> Iterator[Finding]:
    """Yield why a container of the request may stay down, or get another image."""
    pod, status = facts.own_pod, facts.request.status
    if pod is None or facts.request.reloads:
        return
    states = [status.state(container.name) for container in facts.request.containers]
    awaited = {each.name for each in states if not each.phase.final or each.reason is Reason.DEADLINE}
    waiting = (each for each in pod.containers.values() if each.waiting_reason in ORDINARY)
    down = {each.name for each in waiting if each.name in awaited and not each.running}
    kubelet = facts.node.kubelet if facts.node is not None else ""
    names = [name for name in pod.containers if name in awaited]
    for hazard, values in find_hazards(pod, names, down, kubelet):
        yield make_finding(facts, Topic(hazard), **values)


def _deadline(facts: Facts) -> Iterator[Finding]:
    """Yield the time until the deadline. Without a deadline, the manager's default counts."""
    seconds, default = facts.request.deadline_seconds, ""
    if seconds is None:
        seconds = default_deadline(facts.request, DEFAULT_SLACK_SECONDS)
        default = _DEFAULT if facts.admitted else _DEFAULT_OF_ANY
    deadline = after(facts.request.created, seconds)
    if deadline is None:
        return
    left = (deadline - facts.now).total_seconds()
    if left > 0:
        yield make_finding(facts, Topic.DEADLINE, left=format_duration(left), seconds=seconds, default=default)
    else:
        advice, over = check_manager(facts), format_duration(-left)
        yield make_finding(facts, Topic.DEADLINE_PASSED, advice=advice, over=over, default=default)


def _cleanup(facts: Facts) -> Iterator[Finding]:
    """Yield what still happens to a completed request."""
    request = facts.request
    completed = parse_time(request.status.completion_time)
    if request.active or request.has_finalizer:
        left = [f"the label {LABEL_ACTIVE}"] * request.active + [f"the finalizer {FINALIZER}"] * request.has_finalizer
        late = (facts.seconds_since(completed) or 0.0) > MANAGER_PATIENCE_SECONDS
        advice = check_manager(facts) if late else ()
        yield make_finding(facts, Topic.NOT_CLEANED_UP, advice=advice, left=" and ".join(left))
    # The manager counts from when it saw the completion: from the last write of the status, by the API server's clock.
    # The completionTime is of the node's.
    written = facts.times.written or completed
    if request.deleting:
        yield make_finding(facts, Topic.DELETED_ONCE_COMPLETED, advice=remove_finalizers(facts))
    elif request.ttl_seconds is None:
        yield make_finding(facts, Topic.NO_TTL)
    elif written is not None:
        seconds = request.ttl_seconds - (facts.now - written).total_seconds()
        if seconds > 0:
            yield make_finding(facts, Topic.TTL, left=format_duration(seconds))
        else:
            yield make_finding(facts, Topic.TTL_OVER, advice=check_manager(facts), over=format_duration(-seconds))
