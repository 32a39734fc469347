"""The stage of each pod of a run, and its containers to recreate. `plan` decides whether more pods may start."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

from crrd.core.api.reasons import Reason
from crrd.core.api.time import parse_time
from crrd.core.api.types import StatePhase
from crrd.core.rollout.requests import RunRequest
from crrd.core.rollout.run import Run, attempt_of
from crrd.core.rollout.settling import NOT_READY, settled_at
from crrd.core.rollout.skips import skip_reason, skips, wanted
from crrd.core.rollout.state import Member, World
from crrd.core.rollout.waits import NO_WAIT, Skip, Wait, WaitReason, describe_pod, wait_for, wait_for_node

_GONE = {Reason.POD_GONE, Reason.POD_REPLACED, Reason.POD_DELETING}
"""Reasons of a failed request that do not count as a failure of the run, because pods come and go."""
ATTEMPTS = 3
"""Most requests for a pod whose node goes down each time. A request may be what makes the node daemon crash."""
_DELETED, _EVICTED = Wait("the pod was deleted"), Wait("the pod was evicted")


class Stage(StrEnum):
    """The stages of a pod in a run, in order of time. The last four are final."""

    WAITING = "waiting"  # Not started yet
    PUT_OFF = "put off"  # Its node is down, so the run goes on without it, and restarts it when the node is back
    REQUESTED = "requested"  # Its request exists, but the node has not started it
    RECREATING = "recreating"
    SETTLING = "getting ready"  # Recreated, but not ready for long enough
    DONE = "done"
    SKIPPED = "skipped"
    GONE = "deleted"  # The pod was deleted or evicted before it was done
    FAILED = "failed"

    @property
    def under_way(self) -> bool:
        """Whether the run is working on the pod now."""
        return self in (Stage.REQUESTED, Stage.RECREATING, Stage.SETTLING)


@dataclass(frozen=True, slots=True)
class Row:
    """One pod of a run."""

    pod: str  # Its name
    uid: str
    stage: Stage
    wait: Wait = NO_WAIT  # What the pod waits for, why it was skipped, or why it failed
    node: str = ""
    member: Member | None = None  # None if the pod no longer exists
    request: RunRequest | None = None  # The pod's newest one; if WAITING: the failed one that is retried
    containers: tuple[str, ...] = ()  # The containers to recreate
    skip: Skip | None = None
    settled_at: datetime | None = None  # If SETTLING: when the pod is done if nothing changes, None if unknown

    @property
    def failed(self) -> str:
        """If WAITING: the name of the request that has failed and is retried, or ""."""
        return self.request.request.name if self.request is not None and self.stage is Stage.WAITING else ""

    @property
    def has_started(self) -> bool:
        """Whether the run has started to work on the pod, now or before."""
        return self.request is not None or self.stage not in (Stage.WAITING, Stage.PUT_OFF, Stage.SKIPPED)

    @property
    def is_recreated(self) -> bool:
        """Whether the pod's request has succeeded, and the pod is not ready for long enough yet."""
        succeeded = self.request is not None and self.request.succeeded
        return self.stage is Stage.SETTLING or (self.stage is Stage.PUT_OFF and succeeded)

    def has_reason(self, *reasons: Reason) -> bool:
        """Whether the pod's request has failed for one of these reasons."""
        return self.request is not None and not _reasons(self.request).isdisjoint(reasons)


class RowMemo:
    """The rows of the last plan, so that the next one computes only those of pods that have changed."""

    def __init__(self) -> None:
        self._context: object = None
        self._rows: dict[str, tuple[Member, RunRequest | None, Row]] = {}

    def row(self, world: World, run: Run, member: Member, asked: RunRequest | None, now: datetime) -> Row:
        """Return the row of a pod, whose request is not being created."""
        known = self._rows.get(member.pod.uid)
        if known is not None and known[0] is member and known[1] is asked:
            return known[2]
        row = _row(world, run, member, asked, now)
        if row.stage in (Stage.WAITING, Stage.SKIPPED, Stage.DONE):  # they do not depend on the time
            self._rows[member.pod.uid] = (member, asked, row)
        return row

    def expect(self, world: World, run: Run) -> None:
        """Forget everything if the plan is for another run, or if nodes or configuration have changed."""
        of_nodes = world.kubelets, world.daemons, world.down
        context = run, world.min_ready(run), of_nodes, world.config, world.kept, world.refused, world.retried
        if context != self._context:
            self._context, self._rows = context, {}


def make_rows(world: World, run: Run, now: datetime, memo: RowMemo | None = None) -> tuple[Row, ...]:
    """Return a row for each pod of the run, deleted pods included."""
    memo = memo or RowMemo()
    memo.expect(world, run)
    own = {each.first_name: each for each in world.requests_of(run)}  # the newest request of each pod
    rows = []
    for each in world.members:
        asked, starting = own.pop(run.request_name(each.pod.uid), None), world.starting.get(each.pod.uid)
        if starting is not None and (asked is None or asked.request.name != starting):
            rows.append(Row(each.pod.name, each.pod.uid, Stage.REQUESTED, node=each.pod.node_name, member=each))
        else:
            rows.append(memo.row(world, run, each, asked, now))
    return (*_with_silent_node(rows), *(_absent(each) for each in own.values()))


def _with_silent_node(rows: list[Row]) -> list[Row]:
    """Put off the pods of a node that has not answered a request while pods of other nodes can go on.

    The node may be down, which the API server notices later. If two nodes do not answer, there is another cause. Then,
    and once only pods of this node are left, the request has failed.
    """
    silent = {row.node for row in rows if row.stage is Stage.FAILED and row.has_reason(Reason.NO_ANSWER)}
    goes_on = any(row.stage is Stage.WAITING or row.stage.under_way for row in rows if row.node not in silent)
    if len(silent) != 1 or not goes_on:
        return rows
    wait = Wait.of(WaitReason.NO_ANSWER, node=next(iter(silent)))
    return [
        replace(row, stage=Stage.PUT_OFF, wait=wait)
        if row.node in silent and (row.stage is Stage.WAITING or row.has_reason(Reason.NO_ANSWER))
        else row
        for row in rows
    ]


def _row(world: World, run: Run, member: Member, asked: RunRequest | None, now: datetime) -> Row:
    if asked is None:
        return _candidate(world, run, member)
    row = _requested(world, run, member, asked, now)
    if asked.request.uid not in world.retried:
        return row
    again = _candidate(world, run, member, asked)
    over = again.skip is Skip.HAS_IMAGE and member.ready
    return again if again.skip is None or over else replace(row, wait=again.wait)


def _candidate(world: World, run: Run, member: Member, failed: RunRequest | None = None) -> Row:
    pod = member.pod
    row = Row(pod.name, pod.uid, Stage.WAITING, node=pod.node_name, member=member, request=failed)
    if row.uid in world.refused:
        return replace(row, stage=Stage.FAILED, wait=Wait(world.refused[row.uid]))
    skip, container = next(skips(world, run, member, failed), (None, ""))
    if skip is not None:
        wait = Wait.of(skip, container=container, pod=pod.name, namespace=pod.namespace)
        return replace(row, stage=Stage.SKIPPED, wait=wait, skip=skip)
    names = tuple(each.name for each in wanted(run, member) if skip_reason(world, run, member, each, failed) is None)
    return _put_off(world, replace(row, containers=names))


def _put_off(world: World, row: Row) -> Row:
    """Return the row, put off if its node cannot restart containers now."""
    wait = wait_for_node(world, row.node)
    return replace(row, stage=Stage.PUT_OFF, wait=wait) if wait.why else row


def _requested(world: World, run: Run, member: Member, asked: RunRequest, now: datetime) -> Row:
    """Return the row of a pod that has its request."""
    request, pod = asked.request, member.pod
    names = tuple(each.name for each in request.containers)
    row = Row(pod.name, pod.uid, Stage.REQUESTED, node=pod.node_name, member=member, request=asked, containers=names)
    if asked.succeeded and pod.ended:  # it was evicted, or its Job is done: it never becomes ready again
        return replace(row, stage=Stage.DONE)
    if asked.succeeded:
        settled, why = settled_at(world.min_ready(run), member, asked, now)
        if settled is not None and settled <= now:
            return replace(row, stage=Stage.DONE)
        wait = Wait(why)
        if why == NOT_READY:
            wait = wait_for(world, member, asked, (*names, *pod.containers), now)
            wait = wait if wait.why else Wait(why, describe_pod(member))
        row = replace(row, stage=Stage.SETTLING, settled_at=settled, wait=wait)
        off = row if member.ready else _put_off(world, row)
        was_done = off.stage is Stage.PUT_OFF and why == NOT_READY and _was_available(world.min_ready(run), member)
        return replace(row, stage=Stage.DONE, settled_at=None, wait=NO_WAIT) if was_done else off
    if request.completed:
        if member.pod.deleting or row.has_reason(*_GONE):
            return replace(row, stage=Stage.GONE, wait=_DELETED)
        if row.has_reason(Reason.RUN_STOPPED):
            return _candidate(world, run, member, asked)
        if member.disrupted and row.has_reason(Reason.POD_ENDED):
            return replace(row, stage=Stage.GONE, wait=_EVICTED)
        causes = {each.reason for each in request.status.states if each.phase is StatePhase.FAILED}
        if Reason.CONTAINER_NOT_FOUND in causes and causes <= {Reason.CONTAINER_NOT_FOUND, Reason.EARLIER_FAILURE}:
            return _without_removed(world, run, member, asked, row)
        if (interrupted := _interrupted(world, run, row, member)) is not None:
            return interrupted
        wait = wait_for(world, member, asked, names, now) if row.has_reason(Reason.DEADLINE) else NO_WAIT
        why = "; ".join(filter(None, (wait.why, failure(asked))))
        return replace(row, stage=Stage.FAILED, wait=Wait(why, wait.command))
    open_names = [name for name in names if not request.status.state(name).phase.final]
    wait = wait_for_node(world, row.node)
    wait = wait if wait.why else wait_for(world, member, asked, open_names, now)
    wait = wait if wait.why else Wait(request.status.message)
    return replace(row, stage=Stage.RECREATING if asked.started else Stage.REQUESTED, wait=wait)


def _without_removed(world: World, run: Run, member: Member, asked: RunRequest, row: Row) -> Row:
    """Return the row of a pod from which a container of its request was removed. This is no failure of the run.

    The other containers get another request, unless they were restarted for this one.
    """
    removed = {each.name for each in asked.request.status.states if each.reason is Reason.CONTAINER_NOT_FOUND}
    left = {name: each for name, each in member.pod.containers.items() if name not in removed}
    again = _candidate(world, run, replace(member, pod=replace(member.pod, containers=left)))
    if again.skip in (Skip.RECENT, Skip.NOT_RUNNING) and not member.ready:
        return _put_off(world, replace(row, stage=Stage.SETTLING, wait=Wait(NOT_READY, describe_pod(member))))
    return replace(again, member=member, request=asked)


def _interrupted(world: World, run: Run, row: Row, member: Member) -> Row | None:
    """Return the row of a pod whose request has ended because its node was down; None if the request has failed.

    When the node is back, the pod gets another request, unless its containers were restarted meanwhile. After ATTEMPTS
    requests the last one has failed.
    """
    if row.request is None or not row.has_reason(Reason.NO_ANSWER, Reason.DEADLINE):
        return None
    if (found := _put_off(world, row)).stage is Stage.PUT_OFF:
        return found
    daemon = (world.daemons or {}).get(row.node)
    since, created = daemon.since if daemon is not None else None, parse_time(row.request.request.created)
    if since is None or created is None or since <= created or attempt_of(row.request.request.name) >= ATTEMPTS:
        return None
    again = _candidate(world, run, member)
    if again.skip is None:
        return replace(again, request=row.request)
    return again if again.skip in (Skip.RECENT, Skip.HAS_IMAGE) and member.ready else None


def _absent(asked: RunRequest) -> Row:
    """Return the row of a request whose pod no longer exists."""
    request, stage = asked.request, Stage.DONE if asked.succeeded else Stage.GONE
    names = tuple(each.name for each in request.containers)
    return Row(request.pod_name, request.pod_uid, stage, _DELETED, request.node_name, request=asked, containers=names)


def _was_available(min_ready: int, member: Member) -> bool:
    """Whether a pod was available until its node went down.

    Then the node controller has set the condition Ready to False, and left the containers ready, as kubelet reported.
    """
    there, unready_since = member.pod.recreatable.values(), member.ready_since
    started = max(filter(None, (parse_time(each.started_at) for each in there)), default=None)
    if started is None or unready_since is None or not all(each.ready for each in there):
        return False
    return unready_since > started + timedelta(seconds=min_ready)


def barred_containers(run: Run, rows: Iterable[Row]) -> Iterator[str]:
    """Yield the containers that a run has left because they can never be restarted in place, with the reason."""
    for row in rows:
        if row.member is None or not row.member.counts or (row.skip is not None and row.skip.normal):
            continue
        for each in wanted(run, row.member):
            skip = skip_reason(World(()), run, row.member, each, None)
            if skip is Skip.NEVER or skip is Skip.RESTARTS_POD:
                yield f"{row.pod}: {skip.say(container=each.name)}"


def _reasons(asked: RunRequest) -> set[Reason]:
    status = asked.request.status
    return {status.reason, *(each.reason for each in status.states)}


def failure(asked: RunRequest) -> str:
    """Return why a request failed, from its status."""
    status = asked.request.status
    failed = [each for each in status.states if each.phase is StatePhase.FAILED]
    cause = next((each for each in failed if each.reason is not Reason.EARLIER_FAILURE), None)
    return f"{cause.name}: {cause.message}" if cause is not None else status.message or "no reason was recorded"


def tally(rows: tuple[Row, ...]) -> Mapping[Stage, int]:
    """Return the number of pods in each stage."""
    return dict.fromkeys(Stage, 0) | Counter(row.stage for row in rows)


def count_done(rows: tuple[Row, ...]) -> tuple[int, int]:
    """Return how many pods are done or failed, and the total. Skipped and deleted pods do not count."""
    counts = tally(rows)
    left_out = counts[Stage.SKIPPED] + counts[Stage.GONE]
    return counts[Stage.DONE] + counts[Stage.FAILED], len(rows) - left_out
