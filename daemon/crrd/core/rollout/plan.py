"""The next step of a run: which pods get their request now, why no more pods may start, or how the run has ended.

`make_plan` keeps no state: after a crash at any moment, the same objects give the rest of the run. Property tests check
at every step that no pod gets two requests of one run, and that the run takes no more pods down than its budgets allow.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from crrd.core.rollout.budgets import Budgets
from crrd.core.rollout.kind import NO_ACTIONS, Actions, Choice, Kind, LastStep
from crrd.core.rollout.kinds import kind_of
from crrd.core.rollout.parts import NOTHING_ALLOWED, Allowed, Part, PartState, find_part
from crrd.core.rollout.phases import End, RunPhase, Stage
from crrd.core.rollout.rivals import first_rival
from crrd.core.rollout.rows import Row, count_left, put_off_pods, tally
from crrd.core.rollout.run import Run
from crrd.core.rollout.skips import barred_containers
from crrd.core.rollout.standing import RowMemo, make_rows
from crrd.core.rollout.state import World
from crrd.core.rollout.waits import NO_WAIT, Remedies, Wait, WaitReason

_MOST_NAMED = 10  # Pods that the end of a run names


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do now, and the state of all pods."""

    rows: tuple[Row, ...]
    create: tuple[Row, ...] = ()  # Pods that get their request now
    actions: Actions = NO_ACTIONS  # What to do besides, by the run's kind
    wait: Wait = NO_WAIT  # Why the run cannot go on; empty while a pod is under way or none waits. Rows have their own.
    end: End | None = None
    message: str = ""  # Details about the end
    wait_before_end: Wait = NO_WAIT  # What lets a run that ends go on, if it comes soon
    wake_at: datetime | None = None  # When to plan again if nothing changes
    phase: RunPhase = RunPhase.RESTARTING
    min_ready: int = 0  # How many seconds a pod must be ready to count as done
    part: Part = Part()  # noqa: RUF009 - it is frozen

    @property
    def begins(self) -> bool:
        """Whether it begins with another pod."""
        return bool(self.create or self.actions.begins_with)

    @property
    def started(self) -> bool:
        """Whether any request of the run was created."""
        return any(row.request is not None for row in self.rows)

    @property
    def reached(self) -> frozenset[object]:
        """What the run has reached by now: stages of its pods, the pods that it begins with, and the state of a step.

        It makes progress if any of this is new. A pod that is ready and unready in turns, for example because it
        crashes, comes back to the same stages.
        """
        stages = {(row.uid, row.request and row.request.request.name, row.stage) for row in self.rows}
        return frozenset((*stages, *self.actions.begins_with, (self.part.number, self.part.state)))

    @property
    def drained(self) -> bool:
        """Whether no pod needs a step of this run. Else its process must not leave it."""
        return not any(row.needs_step for row in self.rows)

    @property
    def waits(self) -> list[str]:
        """What the run waits for: why it makes no progress, or else each pod that is under way."""
        if self.wait.why:
            return [self.wait.with_command]
        return [f"{row.pod} {row.wait.with_command or row.stage.value}" for row in self.rows if row.stage.under_way]

    def worded(self, remedies: Remedies) -> "Plan":
        """Return the plan with remedies in what the run and its pods wait for."""
        rows = tuple(
            row.waiting_for(row.wait.worded(remedies)) if row.wait.reason in remedies else row for row in self.rows
        )
        return replace(self, rows=rows, wait=self.wait.worded(remedies))

    def going_on(self) -> "Plan":
        """Return the plan without its end."""
        return replace(self, end=None, phase=RunPhase.RESTARTING if self.end is not None else self.phase)

    def ended(self, end: End, message: str = "") -> "Plan":
        """Return the plan with this end. If the run is not over, its phase is the one in which it was left."""
        phase = RunPhase.PAUSED if end is End.PAUSED else RunPhase.CLEANING_UP if end.over else self.phase
        return replace(self, end=end, message=message, phase=phase, create=())


def make_plan(
    world: World, run: Run, now: datetime, allowed: Allowed = NOTHING_ALLOWED, *, memo: RowMemo | None = None
) -> Plan:
    """Decide the next step from the present state.

    `world` must contain all requests created so far. `now` is the API server's time. Plans that follow each other are
    quicker with the same `memo`.
    """
    return plan_of(kind_of(world.at(now), run), now, allowed, memo=memo)


def plan_of(kind: Kind, now: datetime, allowed: Allowed = NOTHING_ALLOWED, *, memo: RowMemo | None = None) -> Plan:
    """Decide the next step of a run of any kind. The parameters are those of `make_plan`."""
    rows = make_rows(kind, now, memo)
    part = find_part(kind, rows, now, allowed)
    plan = Plan(rows, min_ready=kind.min_ready, part=part)
    end, message = find_end(kind, rows, part)
    if (step := kind.last_step(rows, end)) is not None:
        return _with_last_step(plan, step, end, message)
    if end is not None:
        return _ended(kind, plan, end, message)
    return _next_pods(kind, plan, now)


def _with_last_step(plan: Plan, step: LastStep, end: End | None, message: str) -> Plan:
    if step.problem:
        failed = End.ABORTED if end is End.ABORTED else End.FAILED
        return plan.ended(failed, "; ".join(filter(None, (message, step.problem))))
    wait = Wait.of(WaitReason.ADOPTING, message=step.wait) if step.wait else NO_WAIT
    return replace(plan, wait=wait, actions=step.actions, phase=step.phase)


def _ended(kind: Kind, plan: Plan, end: End, message: str) -> Plan:
    """Return the plan of a run that ends. It has failed if any pod has failed, even below the limit."""
    if end is End.DONE and (left := left_out(kind, plan.rows)):
        end, message = End.LEFT_OUT, left
    wait = Wait(message) if end is End.PUT_OFF else kind.wait_before_end(plan.rows, end)
    if (end in (End.DONE, End.PAUSED) or end.incomplete) and tally(plan.rows)[Stage.FAILED]:
        end = End.FAILED
    return replace(plan.ended(end, message), wait_before_end=wait, actions=kind.actions_before_end(plan.rows))


def _next_pods(kind: Kind, plan: Plan, now: datetime) -> Plan:
    """Return the plan with the pods that start now."""
    rows, part, held = plan.rows, plan.part, _wait_of_all(kind)
    budgets = Budgets(kind, rows, now)
    plan = replace(plan, wake_at=budgets.next_time)
    over = kind.over_budget(rows, now, budgets.are_exceeded, held=held is not None)
    if held is not None:
        actions = kind.prepare(rows, Choice((), (), over), now).actions
        waiting = _with_reasons(rows, {row.uid: held for row in rows})
        return replace(plan, rows=waiting, wait=held, actions=actions, phase=part.phase or plan.phase)
    under_way = any(row.stage.under_way for row in rows)
    chosen, waits = budgets.choose(part.left, part.wait)
    found = kind.prepare(rows, Choice(chosen, tuple(waits), over), now)
    wait = found.wait if chosen or under_way else next(iter(waits.values()), found.wait)
    if part.phase is not None and part.wait.why:
        wait = part.wait
    return replace(
        plan,
        rows=_with_reasons(rows, {**waits, **found.waits}),
        create=found.ready,
        actions=found.actions,
        wait=wait,
        wake_at=min((at for at in (plan.wake_at, found.wake_at, part.at) if at is not None), default=None),
        phase=part.phase or found.phase,
    )


def _aborted(kind: Kind, _: tuple[Row, ...], __: Part) -> str | None:
    return "the run was aborted" if kind.run.name in kind.world.aborted else None


def _has_rival(kind: Kind, _: tuple[Row, ...], __: Part) -> str | None:
    rival = first_rival(kind.world, kind.run)
    why = "started first: wait for it, or abort it"
    return f"run {rival.name} on {rival.target.words} {why}" if rival is not None else None


def _changed(kind: Kind, _: tuple[Row, ...], __: Part) -> str | None:
    return kind.obstacle or None


def _too_many_failed(kind: Kind, rows: tuple[Row, ...], _: Part) -> str | None:
    failed = tally(rows)[Stage.FAILED]
    return f"{failed} failed, {count_left(rows)} not started" if failed >= kind.run.options.max_failures else None


def _refused(_: Kind, __: tuple[Row, ...], part: Part) -> str | None:
    return part.message if part.state is PartState.REFUSED else None


def _asks(kind: Kind, rows: tuple[Row, ...], part: Part) -> str | None:
    """The user is asked once pods could start, and only if any are left."""
    may_start = tally(rows)[Stage.WAITING] > 0 and _wait_of_all(kind) is None
    return part.message if part.state is PartState.ASKING and may_start else None


def _goes_on(_: Kind, rows: tuple[Row, ...], part: Part) -> str | None:
    if part.state is PartState.JUDGING or any(row.stage is Stage.WAITING or row.stage.under_way for row in rows):
        return ""
    return None


def _lost_pods(kind: Kind, rows: tuple[Row, ...], _: Part) -> str | None:
    """Pods may have left the run before they were done, because their workload is deleted, maybe without them.

    Another workload may own them by now, with the old data. Those that are put off are not waited for, because the run
    cannot be resumed without its workload.
    """
    world, target = kind.world, kind.run.target
    there, left = world.workload, kind.needs_workload or any(row.stage is Stage.PUT_OFF for row in rows)
    deleted = (left or not world.members) if there is None else there.deleting
    if target.uid and deleted:
        return f"{target.words} was deleted"
    has_none = there is not None and there.desired > 0 and not world.members
    return f"{target.words} owns no pods any more" if target.uid and has_none else None


def _put_off(_: Kind, rows: tuple[Row, ...], __: Part) -> str | None:
    return put_off_pods(rows) or None


def _not_replaced(kind: Kind, rows: tuple[Row, ...], _: Part) -> str | None:
    """Pods were deleted, and nobody says that new pods replace them."""
    counts = tally(rows)
    if kind.run.target.uid or not counts[Stage.GONE] or counts[Stage.DONE]:
        return None
    return "; ".join(f"{row.pod}: {row.wait.why}" for row in rows if row.stage is Stage.GONE)


def _all_done(_: Kind, __: tuple[Row, ...], ___: Part) -> str | None:
    return ""


ENDS: tuple[tuple[Callable[[Kind, tuple[Row, ...], Part], str | None], End | None], ...] = (
    (_aborted, End.ABORTED),
    (_has_rival, End.RIVAL),
    (_changed, End.FAILED),
    (_refused, End.HALTED),
    (_too_many_failed, End.FAILED),
    (_asks, End.PAUSED),
    (_goes_on, None),
    (_lost_pods, End.LEFT_OUT),
    (_put_off, End.PUT_OFF),
    (_not_replaced, End.LEFT_OUT),
    (_all_done, End.DONE),
)
"""Why a run ends, or goes on. The first one that returns a sentence counts; "" is one, too."""


def find_end(kind: Kind, rows: tuple[Row, ...], part: Part) -> tuple[End | None, str]:
    """Return how a run ends, and details about it. None if it goes on."""
    return next((end, message) for find, end in ENDS if (message := find(kind, rows, part)) is not None)


def left_out(kind: Kind, rows: tuple[Row, ...]) -> str:
    """Return the pods and containers that a run which is done has left out, or "".

    Each run leaves out chosen containers that can never be restarted in place.
    """
    left = kind.left_out(rows)
    if kind.run.options.containers:
        left += barred_containers(kind, rows)
    more = f" and {len(left) - _MOST_NAMED} more" if len(left) > _MOST_NAMED else ""
    return "; ".join(left[:_MOST_NAMED]) + more


def _wait_of_all(kind: Kind) -> Wait | None:
    """Return why no pod at all may start, None if pods may."""
    world, run = kind.world, kind.run
    if world.workload is None or not world.workload.rolling or run.options.force or kind.holds_rollout:
        return None
    lost = sum(each.pod.node_name in world.down for each in world.members)
    if 0 < world.workload.behind <= lost:
        return None  # a DaemonSet's controller does not update the pods of nodes that are down
    target, state = run.target.words, world.workload.rolling
    return Wait.of(WaitReason.ROLLOUT, f"kubectl describe {target} -n {run.namespace}", target=target, state=state)


def _with_reasons(rows: tuple[Row, ...], waits: Mapping[str, Wait]) -> tuple[Row, ...]:
    waiting = Stage.WAITING
    return tuple(row.waiting_for(waits.get(row.uid, NO_WAIT)) if row.stage is waiting else row for row in rows)
