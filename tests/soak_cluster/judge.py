"""What the contract promises, checked on the record of a round: a pure function, `judge`.

Each check yields what is broken. Times of the API may be late by `LATE` seconds, by more only if the record has a fault
that explains it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from tests.soak_cluster.record import FAILED, SUCCEEDED, Fault, Instance, Kind, Part, Record, Request, Word

LATE = 5.0
SEEN = 15.0  # Seconds after which a run must know that a pod is not ready
OUTAGE = 30.0  # Seconds that a part needs after a fault until it works again
NEW_LEADER = 120.0  # Seconds that a new leader may end a request late
CONTROL = (Part.MANAGER, Part.API, Part.ETCD)


@dataclass(frozen=True, slots=True)
class Broken:
    """A broken promise: which one, about what, and a sentence. `pod` and `at` tell which part of the record matters."""

    promise: str
    sentence: str
    pod: str = ""
    at: float = 0.0


def judge(record: Record) -> list[Broken]:
    """Return all broken promises of a round."""
    return [broken for check in CHECKS for broken in check(record)]


def stops_belong(record: Record) -> Iterator[Broken]:
    """Every stop belongs to one request, which had not ended."""
    for instance in record.instances:
        at = instance.stopped
        if at is None or _stopped_by_kubelet(record, instance, at):
            continue
        owners = [each for each in record.owners(instance) if each.stamp <= at + LATE]
        if not owners:
            yield _about(instance, at, "each stop belongs to a request", "was stopped, and no request meant it")
            continue
        if all(each.over is not None and each.over < at - LATE for each in owners) and not record.hit(
            at - OUTAGE, at, Part.NODE, Part.RUNTIME, *CONTROL
        ):
            names = ", ".join(each.name for each in owners)
            yield _about(instance, at, "no stop after the end", f"was stopped after the end of {names}")
        yield from _one_killer(instance, owners)


def _one_killer(instance: Instance, owners: list[Request]) -> Iterator[Broken]:
    """Two requests may send a stop to one instance only if the first had ended before the second one began."""
    name = instance.container
    killers = sorted((each for each in owners if name in each.killed), key=lambda each: each.killed[name])
    for first, second in pairwise(killers):
        at = second.killed[name]
        if first.over is None or first.over > at:
            sentence = f"was stopped by {first.name} and by {second.name}"
            yield _about(instance, at, "each stop belongs to one request", sentence)


def _stopped_by_kubelet(record: Record, instance: Instance, at: float) -> bool:
    """Whether kubelet had a reason: the pod goes, or gets another image, or another sandbox."""
    pod = next((each for each in record.pods if each.uid == instance.pod), None)
    if pod is None or (pod.deleting is not None and pod.deleting <= at + LATE):
        return True
    changed = any(
        container == instance.container and instance.started - LATE <= when <= at + LATE
        for when, container, _ in pod.images[1:]
    )
    later = (each for each in record.instances if each.pod == instance.pod and each.started >= at - LATE)
    return changed or any(each.sandbox != instance.sandbox for each in later)


def one_stop(record: Record) -> Iterator[Broken]:
    """A request stops at most one instance of a container."""
    for request in record.requests:
        for container, ids in request.targets.items():
            ended = [each for each in record.history(request.pod, container) if each.id in ids and each.stopped]
            if len(ended) > 1:
                what = f"{request.name} stopped {len(ended)} instances of {container}"
                yield Broken("at most one stop a request and container", what, request.pod, ended[1].stopped or 0.0)


def one_hook(record: Record) -> Iterator[Broken]:
    """The preStop hook runs before a stop, or the request says that it failed. It runs once unless the daemon died."""
    for instance in record.instances:
        at, begun = instance.stopped, instance.times(Word.HOOK)
        if at is None or instance.container not in record.hooks or _stopped_by_kubelet(record, instance, at):
            continue
        for first, second in pairwise(begun):
            # Until the stop, the request may not say yet that the hook has run.
            deaths = record.hit(first, second, Part.NODE)
            if not any(fault.kind is Kind.KILL for fault in deaths):
                yield _about(instance, second, "a hook runs once", "had its hook twice, though no daemon died in it")
        means = [each for each in record.owners(instance) if instance.container in each.killed]
        told = any(instance.container in each.failed_hooks for each in means)
        if means and not begun and not told and not record.hit(means[0].created, at, Part.RUNTIME, Part.NODE):
            yield _about(instance, at, "a hook runs before the stop", "was stopped without its hook")


def successes_are_true(record: Record) -> Iterator[Broken]:
    """A container is Succeeded only if its instance has ended and a newer one was started."""
    for request in record.requests:
        for container, (phase, at) in request.phases.items():
            if phase != SUCCEEDED or request.image:
                continue
            history = list(record.history(request.pod, container))
            old = [each for each in history if each.id in request.targets.get(container, ())]
            if old and not any(each.started > old[-1].started and each.started <= at + LATE for each in history):
                what = f"{request.name}/{container} is Succeeded, and no newer instance was started"
                yield Broken("a success is true", what, request.pod, at)
            elif old and (old[-1].ended is None or old[-1].ended > at + LATE):
                what = f"{request.name}/{container} is Succeeded, and its old instance still ran"
                yield Broken("a success is true", what, request.pod, at)


def requests_end(record: Record) -> Iterator[Broken]:
    """Every request ends by its deadline, and goes after its TTL, not earlier."""
    for request in record.requests:
        over = request.over
        if request.deadline is not None:
            due = request.created + request.deadline
            due += _allowance(record, request.created, min(due, over or record.ended))
            if (over or record.ended) > due:
                late = (over or record.ended) - request.created
                what = f"{request.name} did not end within its deadline of {request.deadline:.0f} s, but "
                what += f"ended after {late:.0f} s" if over else f"is open after {late:.0f} s"
                yield Broken("every request ends", what, request.pod, due)
        if over is None:
            continue
        states = [request.phases.get(each) for each in request.containers]
        if request.completed and not all(state and state[0] in (SUCCEEDED, FAILED) for state in states):
            what = f"{request.name} is Completed, and not each of its containers is Succeeded or Failed"
            yield Broken("every request ends", what, request.pod, request.completed)
        yield from _goes(record, request, over)


def _goes(record: Record, request: Request, over: float) -> Iterator[Broken]:
    gone = request.gone or record.ended
    if request.deleting is not None and not request.gone:
        if record.ended - request.deleting > _allowance(record, request.deleting, record.ended):
            what = f"{request.name} is being deleted for {record.ended - request.deleting:.0f} s"
            yield Broken("a deleted request goes", what, request.pod, request.deleting)
    elif request.ttl is not None and request.completed is not None and not request.by_user:
        allowed = _allowance(record, over, min(gone, over + request.ttl))
        if gone - request.completed > request.ttl + allowed:
            what = f"{request.name} still existed {gone - request.completed:.0f} s after its end"
            yield Broken("the TTL is kept", f"{what}; its TTL is {request.ttl:.0f} s", request.pod, over)
        # The end may have been reported late, its deletion never early.
        early = record.hit(request.completed - OUTAGE, request.completed, *CONTROL)
        if request.gone and request.gone - request.completed < request.ttl - LATE and not early:
            what = f"{request.name} was deleted {request.gone - request.completed:.0f} s after its end"
            yield Broken("the TTL is kept", f"{what}; its TTL is {request.ttl:.0f} s", request.pod, request.gone)


def _allowance(record: Record, since: float, until: float) -> float:
    """Return by how many seconds the manager may be late: its own faults, and those of what it needs."""
    faults = record.hit(since, until + NEW_LEADER, *CONTROL)
    return OUTAGE + (NEW_LEADER if faults else 0.0) + sum(fault.until - fault.at + OUTAGE for fault in faults)


def nobody_unready(record: Record) -> Iterator[Broken]:
    """After the quiet time each pod is ready, and none is held unready for a request that has ended."""
    if not record.settled:
        return
    live = {each.name for each in record.requests if each.over is None}
    for pod in record.pods:
        if pod.deleting is not None:
            continue
        for holder in pod.holders:
            if holder not in live:
                what = f"{pod.name} is held unready for {holder}, which has ended"
                yield Broken("nobody is left unready", what, pod.uid, record.ended)
        since = pod.unready_since(record.ended)
        if since is not None and not any(each.pod == pod.uid for each in record.requests if each.over is None):
            what = f"{pod.name} is not ready for {record.ended - since:.0f} s, and no request is open"
            yield Broken("nobody is left unready", what, pod.uid, since)


def budgets_kept(record: Record) -> Iterator[Broken]:
    """No run and no policy creates a request while as many other pods of the workload are unready as it may have."""
    pods = {each.uid: each for each in record.pods}
    for request in record.requests:
        pod, at = pods.get(request.pod), request.stamp  # by the API server's time, like the readiness of pods
        if not request.run or pod is None or pod.workload not in record.most_unready:
            continue
        if pod.unready_since(at) is not None:
            continue  # unready pods are restarted first, and do not use the budget again
        rest = (each for each in record.requests if each.run == request.run and each is not request)
        own = {each.pod for each in rest if each.open_at(request.created)}
        others = [
            other
            for other in record.pods
            if other.workload == pod.workload and other is not pod and not _gone_at(other.deleting, at)
            if other.uid in own or _long_unready(other.unready_since(at), at)
        ]
        most = record.most_unready[pod.workload]
        if len(others) >= most:
            names = ", ".join(sorted(each.name for each in others))
            what = f"run {request.run} restarts {pod.name} while {names} are unready; maxUnavailable is {most}"
            yield Broken("budgets are kept", what, pod.uid, at)


def _gone_at(deleting: float | None, at: float) -> bool:
    return deleting is not None and deleting <= at


def _long_unready(since: float | None, at: float) -> bool:
    return since is not None and at - since > SEEN


def policies_arrive(record: Record) -> Iterator[Broken]:
    """After the quiet time, each container of a policy has the data of the last edit, or a condition says why not."""
    if not record.settled:
        return
    for policy in record.policies:
        excused = [reason for status, reason in policy.conditions.values() if status == "False" and reason]
        if not policy.edits or excused:
            continue
        wanted = policy.edits[-1][1]
        for pod in record.pods:
            if pod.workload != policy.workload or pod.deleting is not None:
                continue
            newest = list(record.history(pod.uid, policy.container))[-1:]
            values = [line.value for each in newest for line in each.lines if line.word is Word.START]
            if values != [wanted]:
                what = f"{pod.name}/{policy.container} has {' '.join(values) or 'no data'}, not {wanted}"
                sentence = f"{what}, and no condition of {policy.name} says why"
                yield Broken("policies bring the last edit", sentence, pod.uid, policy.edits[-1][0])


def daemons_stay(record: Record) -> Iterator[Broken]:
    """No daemon of crrd ends by itself."""
    for each in record.exits:
        what = f"a {each.part} has ended by itself with exit code {each.code}: {each.last_line}"
        yield Broken("daemons keep running", what, at=each.at)


def nothing_missed(record: Record) -> Iterator[Broken]:
    """The record is whole: it has each request that the audit log has. If not, the judgement says too little."""
    if record.audited is None:
        return
    for name in sorted(record.audited - {each.name for each in record.requests}):
        yield Broken("the record is whole", f"the audit log has the creation of {name}, which no watch reported")


def _about(instance: Instance, at: float, promise: str, sentence: str) -> Broken:
    return Broken(promise, f"{instance.container} ({instance.id[:12]}) {sentence}", instance.pod, at)


CHECKS: tuple[Callable[[Record], Iterator[Broken]], ...] = (
    stops_belong,
    one_stop,
    one_hook,
    successes_are_true,
    requests_end,
    nobody_unready,
    budgets_kept,
    policies_arrive,
    daemons_stay,
    nothing_missed,
)


def recovery(record: Record, fault: Fault) -> float:
    """Return the seconds from the end of a fault until the requests that were open in it had ended."""
    ends = (each.over or record.ended for each in record.requests if each.created <= fault.until)
    return max((end - fault.until for end in ends if end >= fault.at), default=0.0)
