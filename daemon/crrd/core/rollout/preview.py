"""What a run would do if every request succeeded: plans in sequence, each with the batch before it done."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from crrd.core.api.types import RecreateState, Request, RequestedContainer, RequestPhase, StatePhase, Status
from crrd.core.config.objects import Change, changes
from crrd.core.config.uses import OutOfReach, Unreached
from crrd.core.recreate.hazards import find_hazards
from crrd.core.rollout.kinds import kind_of
from crrd.core.rollout.parts import Allowed
from crrd.core.rollout.phases import End, Stage
from crrd.core.rollout.plan import Plan, make_plan
from crrd.core.rollout.requests import RunRequest
from crrd.core.rollout.rows import Row
from crrd.core.rollout.run import Run
from crrd.core.rollout.standing import RowMemo
from crrd.core.rollout.state import World
from crrd.core.rollout.waits import NO_WAIT, Remedies, Wait


@dataclass(frozen=True, slots=True)
class Preview:
    """The batches, and what follows them."""

    batches: tuple[tuple[Row, ...], ...]
    plan: Plan  # Of the present state
    stopped: Wait = NO_WAIT  # Why not all pods are in a batch; empty if all are
    later: tuple[tuple[Row, ...], ...] = ()  # The batches once `stopped` no longer applies
    parts: tuple[int, ...] = ()  # After each of these numbers of batches, the first part or a step is over
    pause: int | None = None  # How many seconds the run waits then; None to ask the user
    judge: int = 0  # How many seconds it judges the pods before that, and after the last one
    warnings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Why a pod of the batches may not come back as it was -> these pods."""
    stale: tuple["Stale", ...] = ()  # Containers that a run with `stale` would recreate, in a batch or not
    unreached: tuple[Unreached, ...] = ()  # Configuration that a run with `stale` leaves as it is
    writes: tuple[str, ...] = ()  # What follows the last pod
    min_ready: int = 0  # How many seconds a pod must be ready before the next batch

    def worded(self, remedies: Remedies) -> "Preview":
        """Return the preview with remedies in what the run and its pods wait for."""
        return replace(self, plan=self.plan.worded(remedies), stopped=self.stopped.worded(remedies))


@dataclass(frozen=True, slots=True)
class Stale:
    """A container that uses configuration which has changed since it started."""

    pod: str
    container: str
    changes: tuple[Change, ...]  # The latest first
    started: str  # RFC 3339, kubelet's clock


def make_preview(world: World, run: Run, now: datetime, *, overrules: bool = False) -> Preview:
    """Return the batches of a new run, or of the rest of a run; pods under way are done before the first batch.

    `overrules`: the user continues the run although its judgement is no. Else it has no batches.
    """
    plan = make_plan(world, run, now)
    if plan.end is End.HALTED and not overrules:
        return Preview((), plan, Wait(plan.message))
    kind = kind_of(world, run)
    world, run = kind.shown()
    pause, judge = run.options.step_pause, run.options.judge
    step_pause = None if pause is None else 0  # a preview shows the order, not the time
    run = replace(run, options=replace(run.options, min_ready=0, step_pause=step_pause, judge=0))
    plan = make_plan(world, run, now)
    batches, parts, last, after = _batches(replace(world, refused={}), run, now)
    later = _batches(_unblocked(after, run), run, now)[0] if last.end is None else ()
    warnings: dict[str, tuple[str, ...]] = {}
    chosen = (row for batch in (*batches, *later) for row in batch)
    for row, member in ((row, row.member) for row in chosen if row.member is not None):
        for hazard, values in find_hazards(
            member.pod, row.containers, row.containers, world.kubelets.get(row.node, "")
        ):
            warning = hazard.say(**values)
            warnings[warning] = (*warnings.get(warning, ()), row.pod)
    stopped = last.wait
    if last.end is not None:  # pods that are put off are named anyway
        plain = Wait("" if last.end.incomplete else last.message)
        stopped = last.wait_before_end if last.wait_before_end.why and last.end is not End.PUT_OFF else plain
    stale, unreached = tuple(_stale(after, plan, run)), out_of_reach(world, run)
    return Preview(
        *(batches, plan, stopped, later, parts, pause, judge, warnings),
        *(stale, unreached, kind.planned_writes(), kind.min_ready),
    )


def out_of_reach(world: World, run: Run) -> tuple[Unreached, ...]:
    """Return the configuration that a run with `stale` leaves as it is, because a restart in place cannot bring it."""
    found: list[Unreached] = []
    for member in world.members if run.options.stale else ():
        found += (each for each in member.unreached if not (run.options.whole_pod and each.of_init))
        kept = world.kept_on(member)
        for name in member.config:
            lost = dict.fromkeys(use.object for use in member.config[name] if use.object in kept)
            found += (Unreached(name, *each, OutOfReach.IMMUTABLE) for each in lost)
    return tuple(dict.fromkeys(found))


def _batches(world: World, run: Run, now: datetime) -> tuple[tuple[tuple[Row, ...], ...], tuple[int, ...], Plan, World]:
    """Return the batches, after how many of them each step is over, the last plan, and the world then."""
    memo = RowMemo()
    current = make_plan(world, run, now, memo=memo)
    batches: list[tuple[Row, ...]] = []
    parts: list[int] = []
    while True:
        before = current.part.number
        under_way = tuple(row for row in current.rows if row.stage.under_way)
        if current.end is End.PAUSED:
            before += 1
            parts.append(len(batches))
        elif current.end is None and (current.create or under_way):
            batches += [current.create] if current.create else []
            world = _done(world, run, (*current.create, *under_way))
        else:
            return tuple(batches), tuple(parts), current, world
        current = make_plan(world, run, now, Allowed(before), memo=memo)
        if current.part.number > before:
            parts.append(len(batches))


def _unblocked(world: World, run: Run) -> World:
    """Return the world without budgets, rollouts, other runs and unready pods, so that no pod is held back."""
    members = tuple(replace(each, ready=True) for each in world.members)
    workload = replace(world.workload, rolling="", desired=0) if world.workload is not None else None
    return replace(world, members=members, workload=workload, requests=tuple(world.requests_of(run)), budgets=())


def _stale(world: World, plan: Plan, run: Run) -> Iterator[Stale]:
    for row in plan.rows:
        if row.stage not in (Stage.WAITING, Stage.PUT_OFF) or row.member is None:
            continue
        there = row.member.pod.containers  # one of the row's may have been removed since its request
        names = row.member.config if run.options.whole_pod else row.containers
        for name in (name for name in names if name in there):
            container, kept = there[name], world.kept_on(row.member)
            if found := changes(row.member.config.get(name, ()), container, world.config, kept):
                yield Stale(row.pod, name, found, container.started_at)


def _done(world: World, run: Run, batch: tuple[Row, ...]) -> World:
    """Return the world after these pods were recreated and are ready again."""
    uids = {row.uid for row in batch}
    members = tuple(replace(each, ready=True) if each.pod.uid in uids else each for each in world.members)
    done = {run.request_name(row.uid) for row in batch}
    others = (each for each in world.requests if each.first_name not in done)
    requests = tuple(RunRequest(_request(run, row), run) for row in batch)
    return replace(world, members=members, requests=(*others, *requests))


def _request(run: Run, row: Row) -> Request:
    status = Status(RequestPhase.COMPLETED, tuple(RecreateState(name, StatePhase.SUCCEEDED) for name in row.containers))
    name, containers = run.request_name(row.uid), tuple(map(RequestedContainer, row.containers))
    place = (row.pod, row.uid, row.node)
    return Request(run.namespace, name, row.uid, "", run.started, *place, containers, status=status)
