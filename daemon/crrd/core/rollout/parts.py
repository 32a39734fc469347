"""The steps of a run: how many pods may start in each, how its pods are judged, and when the next one begins.

A step is a limit for the number of pods that the run has started, and nothing else. Which pods these are follows from
the order in which the budgets choose. The first part (`--partition`) is the first of two steps, after which a user must
allow the rest. A run without steps that has a judgement is one step.

The state of a step is found from the pods, by an ordered table. How many steps are over is recorded in the progress of
the run, and since when one is over is a fact about its pods. So a process that continues the run waits only for the
rest of a pause, and judges from the pods' times.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from functools import cached_property
from itertools import pairwise

from crrd.core.api.time import parse_time, rfc3339
from crrd.core.rollout.judgement import Judgement
from crrd.core.rollout.kind import Kind
from crrd.core.rollout.phases import RunPhase, Stage
from crrd.core.rollout.requests import RunRequest, last_progress
from crrd.core.rollout.rows import Row, count_left, tally
from crrd.core.rollout.run import Amount, Run, read_amount
from crrd.core.rollout.skips import wanted
from crrd.core.rollout.waits import NO_WAIT, Skip, Wait, WaitReason

_SHAPE = "numbers or percentages of pods that increase, for example 1,10%,50%"
_HAS_CHANGE = (Skip.RECENT, Skip.POD_RECENT, Skip.HAS_IMAGE, Skip.FRESH, Skip.POD_FRESH)


def read_steps(given: str) -> tuple[Amount, ...]:
    """Parse `1,10%,50%`. Raises ValueError with a description of valid values.

    A number and a percentage can be compared only once the number of pods is known, see `sizes`.
    """
    try:
        steps = tuple(map(read_amount, given.split(",")))
    except ValueError:
        raise ValueError(_SHAPE) from None
    if any(a.percent is b.percent and a.number >= b.number for a, b in pairwise(steps)):
        raise ValueError(_SHAPE)
    return steps


def written(steps: Iterable[Amount]) -> str:
    """Return the steps as `read_steps` reads them."""
    return ",".join(map(str, steps))


def sizes(steps: Iterable[Amount], total: int) -> tuple[int, ...]:
    """Return after how many of `total` pods each step is over, without the last one, which has all pods that are left.

    Percentages are rounded up. A step that has no more pods than the one before is left out.
    """
    counts: list[int] = []
    for each in steps:
        count = -(-each.number * total // 100) if each.percent else each.number
        if (counts[-1] if counts else 0) < count < total:
            counts.append(count)
    return tuple(counts)


class PartState(StrEnum):
    """What the present step of a run does."""

    OPEN = "open"  # More of its pods may start
    WORKING = "working"  # All of its pods have started, and not all are done
    REFUSED = "refused"  # The judgement is no
    JUDGING = "judging"  # All of its pods are done, and they are watched
    ASKING = "asking"  # It is over, and a user must allow the next one
    PAUSING = "pausing"  # It is over, and the next one begins at a known time
    OVER = "over"  # It is over. As the state of a run: no step is left that has an end


RESTS = (PartState.JUDGING, PartState.ASKING, PartState.PAUSING)
"""While a step is in one of these states, it is on purpose that no pod starts."""


@dataclass(frozen=True, slots=True)
class Part:
    """The present step of a run."""

    number: int = 0  # How many steps are over
    state: PartState = PartState.OPEN
    left: int | None = None  # How many more pods may start in it; None for all. Below 0 if too many have started
    at: datetime | None = None  # When it changes its state if nothing else happens
    wait: Wait = NO_WAIT  # What the pods beyond it wait for
    message: str = ""  # A sentence about it, for a user who must decide
    refusal: str = ""  # If REFUSED: why the judgement is no
    was_refused: bool = False  # Whether that is recorded, so that it stays no

    @property
    def waits_for_user(self) -> bool:
        """Whether the next step begins only, or at once, if a user allows it."""
        return self.state in (PartState.REFUSED, PartState.ASKING, PartState.PAUSING)

    @property
    def phase(self) -> RunPhase | None:
        """The phase of the run because of it, None if the pods decide."""
        return {PartState.JUDGING: RunPhase.JUDGING, PartState.PAUSING: RunPhase.PAUSED}.get(self.state)


def recorded(requests: Iterable[RunRequest]) -> int:
    """Return how many steps of a run are over. This never decreases, whichever process has written last."""
    return max((each.progress.steps for each in requests if each.progress is not None), default=0)


def place(run: Run, requests: Iterable[RunRequest]) -> tuple[int, int]:
    """Return which step of a run has begun last, from 1, and how many it has. Both are 0 for a run without steps."""
    total = len(run.options.steps)
    return (min(recorded(requests), total) + 1, total + 1) if total else (0, 0)


@dataclass(frozen=True, slots=True)
class Allowed:
    """What a user has allowed."""

    confirmed: int = 0  # How many steps of the run may end
    overruled: int = 0  # How many of them although the judgement is no. What was allowed before that does not say so


NOTHING_ALLOWED = Allowed()


@dataclass(frozen=True)
class PartFacts:
    """What is known of one step of a run."""

    kind: Kind
    rows: Sequence[Row]
    requests: Sequence[RunRequest]  # Of the run, the oldest first
    now: datetime
    number: int
    allowed: Allowed

    @property
    def limits(self) -> tuple[int, ...]:
        """After how many pods each step but the last one is over."""
        options = self.kind.run.options
        return (options.first,) if options.first else options.steps

    @property
    def is_last(self) -> bool:
        """Whether no step follows."""
        return self.number == len(self.limits)

    @property
    def is_allowed(self) -> bool:
        """Whether a user has allowed the next one, failed pods or not."""
        return self.allowed.confirmed > self.number

    @property
    def is_overruled(self) -> bool:
        """Whether the next one begins whatever is known of the pods."""
        options = self.kind.run.options
        is_overruled = self.allowed.overruled > self.number
        return is_overruled or (self.is_allowed and bool(options.first) and not options.judge)

    @cached_property
    def left(self) -> int | None:
        """See Part. Each step has a pod by which it is judged."""
        if self.is_last:
            return None
        left = self.limits[self.number] - len(self._places)
        return max(left, 1) if self.kind.run.options.judge and not self.judgement.has_pods else left

    @property
    def is_open(self) -> bool:
        """Whether more of its pods may start. Those that are put off may once their nodes are back."""
        if self.left is None:
            return tally(self.rows)[Stage.WAITING] > 0
        return self.left > 0 and any(row.stage in (Stage.WAITING, Stage.PUT_OFF) for row in self.rows)

    @property
    def is_working(self) -> bool:
        """Whether pods are not done, or are restarted again."""
        return any(row.stage.under_way or row.failed for row in self.rows) or any(
            row.stage is Stage.PUT_OFF for row in self._places
        )

    @cached_property
    def judgement(self) -> Judgement:
        """What is known of its pods since they were restarted."""
        before = self.limits[self.number - 1] if self.number else 0
        last = last_progress(self.requests)
        about = last if last is not None and last.steps == self.number else None
        own = [row for row in self._places[before:] if row.has_started]
        return Judgement(self.kind, own, self.now, about)

    @property
    def refused(self) -> bool:
        """Whether the judgement is no."""
        return bool(self.kind.run.options.judge) and bool(self.judgement.refusal)

    @property
    def judges(self) -> bool:
        """Whether its pods are done, and the judgement goes on."""
        return bool(self.kind.run.options.judge) and self.judgement.has_pods and not self.judgement.is_over

    @property
    def asks(self) -> bool:
        """Whether a user must allow the next one."""
        return not (self.is_last or self.is_allowed) and (self.kind.run.options.step_pause is None or self._has_failed)

    @property
    def pauses(self) -> bool:
        """Whether the pause before the next one is not over."""
        return not (self.is_last or self.is_allowed) and self.begins_at > self.now

    @property
    def begins_at(self) -> datetime:
        """When the next one begins."""
        return self._done_at + timedelta(seconds=self.kind.run.options.step_pause or 0)

    @property
    def _has_failed(self) -> bool:
        return tally(self.rows)[Stage.FAILED] > 0

    @cached_property
    def _places(self) -> Sequence[Row]:
        """The pods that count for the limits, in the order in which the run has started them.

        One that is retried keeps its place, and so does one that has no request any more: those come first.

        A pod that was deleted before it was done leaves its place to another one, because it does not show whether the
        restart works. One that kubelet has evicted does not: its restart may be the cause. Nor does one whose node has
        gone down since, except in a first part.
        """
        run, first = self.kind.run, dict[str, tuple[str, str]]()
        for each in self.requests:
            first.setdefault(each.first_name, each.age)
        own = [row for row in self.rows if row.has_started and self._keeps_place(row)]
        own.sort(key=lambda row: first.get(run.request_name(row.uid), ("~" if row.stage.under_way else "", row.uid)))
        return [*filter(self._has_restarted, self.rows), *own]

    def _keeps_place(self, row: Row) -> bool:
        if row.stage is Stage.PUT_OFF:
            return not self.kind.run.options.first
        evicted = row.member is not None and row.member.pod.phase == "Failed"
        return row.stage is not Stage.SKIPPED and (row.stage is not Stage.GONE or evicted)

    def _has_restarted(self, row: Row) -> bool:
        """Whether a pod is skipped because it has restarted since the run began.

        It has what the run brings, by a crash, or by a request of the run that was deleted since.
        """
        run = self.kind.run
        if row.skip not in _HAS_CHANGE or row.member is None or row.member.created_after(run.started):
            return False
        began = parse_time(run.started)
        started = [at for each in wanted(run, row.member) if (at := parse_time(each.started_at)) is not None]
        return began is not None and any(at > began for at in started)

    @cached_property
    def _done_at(self) -> datetime:
        """When the last pod of the steps so far was done, by the clocks of its kubelet and of the API server."""
        times = [parse_time(self.kind.run.started)]
        for row in self._places:
            times += [row.member.available_at(self.kind.min_ready)] if row.member is not None else []
            times += [parse_time(row.request.request.status.completion_time)] if row.request is not None else []
        done = max(at for at in times if at is not None)
        return max(done, self.judgement.ends_at) if self.kind.run.options.judge else done

    def part(self) -> Part:
        """Return the step."""
        state = next(state for holds, state in PARTS if holds(self))
        total = len(self.limits) + 1
        name = f"step {self.number + 1} of {total}" if total > 1 else "the run"
        if self.kind.run.options.first:
            name = "the rest of the run" if self.number else "the first part of the run"
        left = count_left(self.rows)
        match state:
            case PartState.REFUSED:
                why, others = self.judgement.refusal, self.judgement.others
                message = f"the judgement of {name} is no: {why}; {others}{left} left"
                return Part(self.number, state, 0, message=message, refusal=why, was_refused=self.judgement.was_no)
            case PartState.JUDGING:
                at, detail = self.judgement.ends_at, self.judgement.detail
                wait = Wait.of(WaitReason.JUDGING, step=name, at=rfc3339(at), detail=detail)
                return Part(self.number, state, 0, at if at > self.now else None, wait)
            case PartState.PAUSING:
                run = self.kind.run
                values = {"run": run.name, "namespace": run.namespace, "step": name}
                wait = Wait.of(WaitReason.STEP_PAUSE, at=rfc3339(self.begins_at), **values)
                return Part(self.number, state, 0, self.begins_at, wait)
            case _:
                away = next((row for row in self._places if row.stage is Stage.PUT_OFF), None)
                wait = NO_WAIT if self.is_last else Wait.of(WaitReason.FIRST_PODS, first=self.limits[self.number])
                if wait.why and away is not None:
                    wait = replace(away.wait, why=f"{wait.why}: {away.pod}: {away.wait.why}")
                return Part(self.number, state, self.left, wait=wait, message=f"{name} is done, {left} left")


PARTS: tuple[tuple[Callable[[PartFacts], bool], PartState], ...] = (
    (lambda part: part.is_overruled, PartState.OVER),
    (lambda part: part.refused, PartState.REFUSED),
    (lambda part: part.is_open, PartState.OPEN),
    (lambda part: part.is_working, PartState.WORKING),
    (lambda part: part.judges, PartState.JUDGING),
    (lambda part: part.asks, PartState.ASKING),
    (lambda part: part.pauses, PartState.PAUSING),
    (lambda _: True, PartState.OVER),
)
"""The state of a step. The first one that holds counts."""


def find_part(kind: Kind, rows: Sequence[Row], now: datetime, allowed: Allowed) -> Part:
    """Return the present step of a run."""
    options = kind.run.options
    if not (options.first or options.steps or options.judge):
        return Part()
    requests = kind.world.requests_of(kind.run)
    number = recorded(requests)
    limits = PartFacts(kind, rows, requests, now, number, allowed).limits
    ends = len(limits) + bool(options.judge)  # without a judgement, the last step has no end of its own
    for each in range(number, ends):
        part = PartFacts(kind, rows, requests, now, each, allowed).part()
        if part.state is not PartState.OVER:
            return part
    if options.judge and max(number, allowed.overruled) < ends and tally(rows)[Stage.PUT_OFF]:
        return Part(ends - 1, PartState.OVER)  # pods whose nodes come back later are judged, too
    return Part(max(number, ends), PartState.OVER)
