"""The stage of each pod of a run, and its containers to recreate. `plan` decides whether more pods may start.

The rules are two ordered tables: one for pods with a request, one for those without (`candidates`). The first rule that
holds gives the stage, and what the pod waits for.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cached_property

from crrd.core.api.reasons import Reason
from crrd.core.api.time import parse_time
from crrd.core.api.types import StatePhase
from crrd.core.rollout.candidates import Candidate
from crrd.core.rollout.kind import Kind
from crrd.core.rollout.phases import Stage
from crrd.core.rollout.requests import RunRequest
from crrd.core.rollout.rows import Row, failure
from crrd.core.rollout.run import attempt_of
from crrd.core.rollout.settling import settled_at
from crrd.core.rollout.state import Member
from crrd.core.rollout.waits import NO_WAIT, Skip, Wait, WaitReason, describe_pod, wait_for, wait_for_node

_GONE = (Reason.POD_GONE, Reason.POD_REPLACED, Reason.POD_DELETING)
"""Reasons of a failed request that do not count as a failure of the run, because pods come and go."""
_TIMELESS = (Stage.WAITING, Stage.DONE, Stage.SKIPPED)  # Stages that do not depend on the time
ATTEMPTS = 3
"""Most requests for a pod whose node goes down each time. A request may be what makes the node daemon crash."""


@dataclass(frozen=True)
class Asked:
    """What is known of a pod that has its request."""

    kind: Kind
    member: Member
    asked: RunRequest
    now: datetime

    @cached_property
    def row(self) -> Row:
        """Its row."""
        if self.asked.request.uid in self.kind.world.retried:
            again = Candidate(self.kind, self.member, self.asked).row
            over = again.skip is Skip.HAS_IMAGE and self.member.ready
            return again if again.skip is None or over else replace(self._by_rules, wait=again.wait)
        return self._by_rules

    def row_at(self, stage: Stage, wait: Wait = NO_WAIT, settled_at: datetime | None = None) -> Row:
        """Return a row in this stage."""
        pod, names = self.member.pod, tuple(each.name for each in self.asked.request.containers)
        about = self.member, self.asked, names
        return Row(pod.name, pod.uid, stage, wait, pod.node_name, *about, settled_at=settled_at)

    @cached_property
    def plain(self) -> Row:
        """A row without its stage."""
        return self.row_at(Stage.REQUESTED)

    @property
    def _by_rules(self) -> Row:
        rule = next(rule for rule in ASKED if rule.holds(self))
        at = self.settled[0] if rule.stage is Stage.SETTLING else None
        return rule.row(self) or self.row_at(rule.stage, rule.wait(self), at)

    @cached_property
    def settled(self) -> tuple[datetime | None, Wait]:
        """If its request has succeeded: when it is done, and what it waits for."""
        return settled_at(self.kind.min_ready, self.member, self.asked, self.now)

    @property
    def is_done(self) -> bool:
        """Whether it was recreated, and is ready for long enough. One that has ended never becomes ready again."""
        if not self.asked.succeeded or self.member.pod.ended:
            return self.asked.succeeded
        at = self.settled[0]
        return at is not None and at <= self.now

    @cached_property
    def wait_for_node(self) -> Wait:
        """Why its node cannot restart containers now."""
        return wait_for_node(self.kind.world, self.member.pod.node_name)

    @property
    def is_away(self) -> bool:
        """Whether its node cannot restart containers now."""
        return bool(self.wait_for_node.why)

    @property
    def is_done_but_away(self) -> bool:
        """Whether it was recreated, and is unready on a node that is down."""
        return self.asked.succeeded and not self.member.ready and self.is_away

    @property
    def was_done(self) -> bool:
        """Whether it was done until its node went down."""
        unready = self.is_done_but_away and self.settled[1].reason is WaitReason.NOT_READY
        return unready and _was_available(self.kind.min_ready, self.member)

    @property
    def wait_until_settled(self) -> Wait:
        """What a pod that was recreated waits for."""
        wait = self.settled[1]
        if wait.reason is not WaitReason.NOT_READY:
            return wait
        names = (*self.plain.containers, *self.member.pod.containers)
        cause = wait_for(self.kind.world, self.member, self.asked, names, self.now)
        return cause if cause.why else Wait.of(WaitReason.NOT_READY, describe_pod(self.member))

    @property
    def wait_while_open(self) -> Wait:
        """What an open request waits for."""
        status = self.asked.request.status
        names = [name for name in self.plain.containers if not status.state(name).phase.final]
        waits = self.wait_for_node, wait_for(self.kind.world, self.member, self.asked, names, self.now)
        return next((wait for wait in waits if wait.why), Wait(status.message))

    @property
    def has_gone(self) -> bool:
        """Whether its request has ended because the pod goes."""
        return self.asked.request.completed and (self.member.pod.deleting or self.plain.has_reason(*_GONE))

    @property
    def run_stopped(self) -> bool:
        """Whether its request has ended because its run had stopped."""
        return self.asked.request.completed and self.plain.has_reason(Reason.RUN_STOPPED)

    @property
    def was_evicted(self) -> bool:
        """Whether its request has ended because the pod was evicted."""
        return self.asked.request.completed and self.member.disrupted and self.plain.has_reason(Reason.POD_ENDED)

    @property
    def removed(self) -> set[str]:
        """The containers that were removed from the pod, if nothing else is the cause of the failure."""
        only = self._has_failed_only_by(Reason.CONTAINER_NOT_FOUND)
        states = self.asked.request.status.states if only else ()
        return {each.name for each in states if each.reason is Reason.CONTAINER_NOT_FOUND}

    @cached_property
    def without_removed(self) -> Row:
        """The row of a pod from which a container of its request was removed, which is no failure of the run.

        The other containers get another request, unless they were restarted for this one.
        """
        left = {name: each for name, each in self.member.pod.containers.items() if name not in self.removed}
        rest = replace(self.member, pod=replace(self.member.pod, containers=left))
        again = Candidate(self.kind, rest).row
        if again.skip not in (Skip.RECENT, Skip.NOT_RUNNING) or self.member.ready:
            return replace(again, member=self.member, request=self.asked)
        return self._unready

    @property
    def ended_before_reload(self) -> bool:
        """Whether a container of its request has ended before it could reload, and nothing else has failed."""
        return self._has_failed_only_by(Reason.ENDED_BEFORE_RELOAD)

    @property
    def started_without_reload(self) -> Row | None:
        """The row of such a pod, which reads its files at its start. None if it is not ready in time."""
        status, again = self.asked.request.status, Candidate(self.kind, self.member).row
        if again.skip is None:
            return replace(again, request=self.asked) if attempt_of(self.asked.request.name) < ATTEMPTS else None
        if again.skip not in (Skip.RECENT, Skip.FRESH, Skip.NOT_RUNNING) or self.member.ready:
            return replace(again, request=self.asked)
        completed, limit = parse_time(status.completion_time), timedelta(seconds=self.kind.run.options.pod_timeout)
        if completed is None or completed + limit <= self.now:
            return None
        return self._unready

    def _has_failed_only_by(self, reason: Reason) -> bool:
        """Whether its request has failed for this reason, and no container has failed by itself for another one."""
        failed = (each for each in self.asked.request.status.states if each.phase is StatePhase.FAILED)
        causes = {each.reason for each in failed} if self.asked.request.completed else set()
        return reason in causes and causes <= {reason, Reason.EARLIER_FAILURE}

    @property
    def _unready(self) -> Row:
        """The row of a pod that has what the run brings, and is not ready."""
        if self.is_away:
            return self.row_at(Stage.PUT_OFF, self.wait_for_node)
        return self.row_at(Stage.SETTLING, Wait.of(WaitReason.NOT_READY, describe_pod(self.member)))

    @property
    def was_interrupted(self) -> bool:
        """Whether its request has ended because its node was down."""
        return self.asked.request.completed and self.plain.has_reason(Reason.NO_ANSWER, Reason.DEADLINE)

    @cached_property
    def asked_again(self) -> Row | None:
        """The row of a pod whose node was down and is back: it gets another request. None if its request has failed.

        After ATTEMPTS requests the last one has failed.
        """
        world, request, node = self.kind.world, self.asked.request, self.member.pod.node_name
        daemon, created = (world.daemons or {}).get(node), self.asked.created_at
        since = daemon.since if daemon is not None else world.ready_since.get(node)
        if since is None or created is None or since <= created or attempt_of(request.name) >= ATTEMPTS:
            return None
        again = Candidate(self.kind, self.member).row
        if again.skip is None:
            return replace(again, request=self.asked)
        return again if again.skip.is_over and self.member.ready else None

    @property
    def is_asked_again(self) -> bool:
        """Whether this is the case."""
        return self.was_interrupted and self.asked_again is not None

    @property
    def wait_after_failure(self) -> Wait:
        """Why its request has failed."""
        wait = NO_WAIT
        if self.plain.has_reason(Reason.DEADLINE):
            wait = wait_for(self.kind.world, self.member, self.asked, self.plain.containers, self.now)
        return Wait("; ".join(filter(None, (wait.why, failure(self.asked)))), wait.command)


@dataclass(frozen=True)
class Rule:
    """A rule for pods with a request."""

    holds: Callable[[Asked], bool]
    stage: Stage
    wait: Callable[[Asked], Wait] = lambda _: NO_WAIT
    row: Callable[[Asked], Row | None] = lambda _: None
    """The row of a pod that counts as without this request. Then its stage may differ from that of the rule."""


ASKED = (
    Rule(lambda pod: pod.is_done, Stage.DONE),
    Rule(lambda pod: pod.was_done, Stage.DONE),
    Rule(lambda pod: pod.is_done_but_away, Stage.PUT_OFF, lambda pod: pod.wait_for_node),
    Rule(lambda pod: pod.asked.succeeded, Stage.SETTLING, lambda pod: pod.wait_until_settled),
    Rule(lambda pod: pod.has_gone, Stage.GONE, lambda _: Wait.of(WaitReason.DELETED)),
    Rule(lambda pod: pod.run_stopped, Stage.WAITING, row=lambda pod: Candidate(pod.kind, pod.member, pod.asked).row),
    Rule(lambda pod: pod.was_evicted, Stage.GONE, lambda _: Wait.of(WaitReason.EVICTED)),
    Rule(lambda pod: bool(pod.removed), Stage.WAITING, row=lambda pod: pod.without_removed),
    Rule(lambda pod: pod.was_interrupted and pod.is_away, Stage.PUT_OFF, lambda pod: pod.wait_for_node),
    Rule(lambda pod: pod.is_asked_again, Stage.WAITING, row=lambda pod: pod.asked_again),
    Rule(
        lambda pod: pod.ended_before_reload,
        Stage.FAILED,
        lambda pod: pod.wait_after_failure,
        lambda pod: pod.started_without_reload,
    ),
    Rule(lambda pod: pod.asked.request.completed, Stage.FAILED, lambda pod: pod.wait_after_failure),
    Rule(lambda pod: pod.asked.started, Stage.RECREATING, lambda pod: pod.wait_while_open),
    Rule(lambda _: True, Stage.REQUESTED, lambda pod: pod.wait_while_open),
)
"""The rules for pods with a request. The first one that holds counts."""


class RowMemo:
    """The rows of the last plan, so that the next one computes only those of pods that have changed."""

    def __init__(self) -> None:
        self._context: object = None
        self._rows: dict[str, tuple[Member, RunRequest | None, Row]] = {}

    def row(self, kind: Kind, member: Member, asked: RunRequest | None, now: datetime) -> Row:
        """Return the row of a pod, whose request is not being created."""
        known = self._rows.get(member.pod.uid)
        if known is not None and known[0] is member and known[1] is asked:
            return known[2]
        row = Candidate(kind, member).row if asked is None else Asked(kind, member, asked, now).row
        if row.stage in _TIMELESS:
            self._rows[member.pod.uid] = (member, asked, row)
        return row

    def expect(self, kind: Kind) -> None:
        """Forget everything if the plan is for another run, or if nodes or configuration have changed."""
        world = kind.world
        of_nodes = world.kubelets, world.daemons, world.down, world.ready_since
        context = kind.run, kind.min_ready, of_nodes, world.config, world.kept, world.refused, world.retried
        if context != self._context:
            self._context, self._rows = context, {}


def make_rows(kind: Kind, now: datetime, memo: RowMemo | None = None) -> tuple[Row, ...]:
    """Return a row for each pod of the run, deleted pods included."""
    memo, world, run = memo or RowMemo(), kind.world, kind.run
    memo.expect(kind)
    own = {each.first_name: each for each in world.requests_of(run)}  # the newest request of each pod
    rows = []
    for each in world.members:
        asked, starting = own.pop(run.request_name(each.pod.uid), None), world.starting.get(each.pod.uid)
        if starting is not None and (asked is None or asked.request.name != starting):
            rows.append(Row(each.pod.name, each.pod.uid, Stage.REQUESTED, node=each.pod.node_name, member=each))
        else:
            rows.append(memo.row(kind, each, asked, now))
    return kind.rows((*_with_silent_node(rows), *(_absent(each) for each in own.values())), now)


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


def _absent(asked: RunRequest) -> Row:
    """Return the row of a request whose pod no longer exists."""
    request, stage = asked.request, Stage.DONE if asked.succeeded else Stage.GONE
    names, wait = tuple(each.name for each in request.containers), Wait.of(WaitReason.DELETED)
    return Row(request.pod_name, request.pod_uid, stage, wait, request.node_name, request=asked, containers=names)


def recorded_rows(requests: Iterable[RunRequest]) -> tuple[Row, ...]:
    """Return the rows of a run as its requests have recorded them, whatever has become of the pods since."""
    newest = {each.first_name: each for each in sorted(requests, key=lambda each: each.age)}
    return tuple(sorted(map(_recorded, newest.values()), key=lambda row: row.pod))


def _recorded(asked: RunRequest) -> Row:
    row = _absent(asked)
    if not asked.request.completed:
        return replace(row, stage=Stage.RECREATING if asked.started else Stage.REQUESTED, wait=NO_WAIT)
    if asked.succeeded or row.has_reason(Reason.RUN_STOPPED):
        return replace(row, stage=Stage.DONE if asked.succeeded else Stage.WAITING, wait=NO_WAIT)
    if row.has_reason(*_GONE, Reason.POD_ENDED):
        return row
    failed = {each.reason for each in asked.request.status.states if each.phase is StatePhase.FAILED}
    is_skipped = failed and failed <= {Reason.CONTAINER_NOT_FOUND, Reason.ENDED_BEFORE_RELOAD}
    return replace(row, stage=Stage.SKIPPED if is_skipped else Stage.FAILED, wait=Wait(failure(asked)))


def _was_available(min_ready: int, member: Member) -> bool:
    """Whether a pod was available until its node went down.

    Then the node controller has set the condition Ready to False, and left the containers ready, as kubelet reported.
    """
    there, unready_since = member.pod.recreatable.values(), member.ready_since
    started = max(filter(None, (parse_time(each.started_at) for each in there)), default=None)
    if started is None or unready_since is None or not all(each.ready for each in there):
        return False
    return unready_since > started + timedelta(seconds=min_ready)
