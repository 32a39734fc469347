"""The next step of a run: which pods get their request now, why no more pods may start, or how the run has ended.

`make_plan` keeps no state: after a crash at any moment, the same objects give the rest of the run. Property tests check
at every step that no pod gets two requests of one run, and that the run takes no more pods down than its budgets allow.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from crrd.core.api.time import after
from crrd.core.config.objects import missing
from crrd.core.rollout.rivals import age_of, first_rival, with_open_requests
from crrd.core.rollout.run import Run
from crrd.core.rollout.standing import Row, Stage, make_rows, tally
from crrd.core.rollout.state import Budget, Member, RunRequest, World, last_progress
from crrd.core.rollout.waits import NO_WAIT, Remedies, Skip, Wait, WaitReason, describe_pod

_NAMED = 3  # Most pods that a message names; the others are counted


class End(StrEnum):
    """How a run ends, or stops until a user acts."""

    DONE = "done"
    FAILED = "failed"  # The limit of failed pods is reached
    PAUSED = "paused"  # The first part is done; a user must confirm the rest
    RIVAL = "rival"  # Another run on the same target started first
    ABORTED = "aborted"


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do now, and the state of all pods."""

    rows: tuple[Row, ...]
    create: tuple[Row, ...] = ()  # Pods that get their request now
    wait: Wait = NO_WAIT  # Why the run cannot go on; empty while a pod is under way or none waits. Rows have their own.
    end: End | None = None
    message: str = ""  # Details about the end
    wake_at: datetime | None = None  # When to plan again if nothing changes

    @property
    def outcome(self) -> End | None:
        """How the run ends. A run that is done has failed if any pod has failed, even below the limit."""
        return End.FAILED if self.end is End.DONE and tally(self.rows)[Stage.FAILED] else self.end

    @property
    def waits(self) -> list[str]:
        """What the run waits for: why it makes no progress, or else each pod that is under way."""
        if self.wait.why:
            return [self.wait.with_command]
        return [f"{row.pod} {row.wait.with_command or row.stage.value}" for row in self.rows if row.stage.under_way]

    def worded(self, remedies: Remedies) -> "Plan":
        """Return the plan with remedies in what the run and its pods wait for."""
        rows = tuple(replace(row, wait=row.wait.worded(remedies)) for row in self.rows)
        return replace(self, rows=rows, wait=self.wait.worded(remedies))


def make_plan(world: World, run: Run, now: datetime, *, confirmed: bool = False) -> Plan:
    """Decide the next step from the present state.

    `world` must contain all requests created so far. `now` is the API server's time. `confirmed` means that the user
    has allowed the rest after the first part.
    """
    rows = make_rows(world, run, now)
    available = (each.available_at(world.min_ready(run)) for each in world.members if each.counts)
    times = [row.settled_at for row in rows if row.settled_at is not None]
    wake = min([*times, *(at for at in available if at is not None and at > now)], default=None)
    end, message = _end(world, run, rows)
    if end is not None:
        return Plan(rows, end=end, message=message)
    if held := _wait_of_all(world, run):
        return Plan(_with_reasons(rows, {row.uid: held for row in rows}), wait=held, wake_at=wake)
    left = _left_of_first(run, rows, confirmed=confirmed)
    under_way = any(row.stage.under_way for row in rows)
    if left == 0 and not under_way and not any(row.failed for row in rows):
        message = f"the first part of the run is done, {tally(rows)[Stage.WAITING]} left"
        return Plan(rows, end=End.PAUSED, message=message)
    create, waits = _Round(world, run, rows, now).choose(left)
    wait = NO_WAIT if create or under_way else next(iter(waits.values()), NO_WAIT)
    return Plan(_with_reasons(rows, waits), tuple(create), wait, wake_at=wake)


def seen_by_others(world: World, run: Run, now: datetime) -> Plan:
    """Return the plan as other processes see it: the run is done once no more pods will start.

    What is recorded as done is done. The pods that a run has skipped are not judged again by today's objects: their
    node may have a daemon by now, or their configuration may have changed again, and that is for the next run.

    Other processes do not wait until pods are ready, because they cannot know whether an unready pod was ready before.
    The run only counts as going on for `min_ready` seconds after a request's completion (by the node's clock).
    """
    plan = make_plan(world, run, now)
    own = world.requests_of(run)
    if any(each.aborted or not each.request.completed for each in own) or plan.end in (End.FAILED, End.ABORTED):
        return plan
    last = last_progress(own)
    handled = [row for row in plan.rows if row.request is not None and row.stage in (Stage.DONE, Stage.SETTLING)]
    done = last.state == End.DONE or 0 < last.total <= len(handled)
    if not done and plan.end is not None:
        return plan
    if any(_goes_on(row, world.min_ready(run), now, done=done) for row in plan.rows):
        return plan
    return Plan(tuple(map(_at_the_end, plan.rows)), end=End.DONE)


def _at_the_end(row: Row) -> Row:
    """Return the row of a run that is done."""
    if row.stage is Stage.SETTLING:
        return replace(row, stage=Stage.DONE)
    if row.stage is Stage.WAITING:
        return replace(row, stage=Stage.SKIPPED, skip=Skip.BEFORE, wait=Wait.of(Skip.BEFORE))
    return row


def _goes_on(row: Row, min_ready: int, now: datetime, *, done: bool) -> bool:
    if row.stage is Stage.SETTLING and row.request is not None:
        until = after(row.request.request.status.completion_time, min_ready)
        return until is not None and now < until
    return row.stage.under_way or (row.stage is Stage.WAITING and not done)


def _end(world: World, run: Run, rows: tuple[Row, ...]) -> tuple[End | None, str]:
    counts = tally(rows)
    if run.name in world.aborted:
        return End.ABORTED, "the run was aborted"
    rival = first_rival(world, run)
    if rival is not None:
        return End.RIVAL, f"run {rival.name} on {rival.target.words} started first: wait for it, or abort it"
    if counts[Stage.FAILED] >= run.options.max_failures:
        return End.FAILED, f"{counts[Stage.FAILED]} failed, {counts[Stage.WAITING]} not started"
    if any(row.stage is Stage.WAITING or row.stage.under_way for row in rows):
        return None, ""
    return End.DONE, ""


def _wait_of_all(world: World, run: Run) -> Wait | None:
    """Return why no pod at all may start, None if pods may."""
    if world.workload is None or not world.workload.rolling or run.options.force:
        return None
    target, state = run.target.words, world.workload.rolling
    return Wait.of(WaitReason.ROLLOUT, f"kubectl describe {target} -n {run.namespace}", target=target, state=state)


def unfinished(world: World, run: Run, now: datetime) -> Run | None:
    """Return another unfinished run on the same target, with or without open requests. A new run must wait for it."""
    if others := with_open_requests(world, run):
        return min(others, key=age_of)
    for other in {each.run.name: each.run for each in world.requests}.values():
        if other.name == run.name or other.target.identity != run.target.identity:
            continue
        over = (End.DONE, End.FAILED, End.ABORTED)
        if last_progress(world.requests_of(other)).state in over:
            continue
        end = seen_by_others(world, other, now).end
        unknown = other.options.stale and not world.config  # which of its containers are stale
        if end not in over or (unknown and end is End.DONE):
            return other
    return None


def _left_of_first(run: Run, rows: tuple[Row, ...], *, confirmed: bool) -> int | None:
    """Return how many pods of the first part are left to start; None if there is no first part, or it is over.

    A pod that is restarted again has been started before.
    """
    first = run.options.first
    started = sum(1 for row in rows if row.failed or row.stage not in (Stage.WAITING, Stage.SKIPPED))
    return None if confirmed or not first or started > first else first - started


def _with_reasons(rows: tuple[Row, ...], waits: Mapping[str, Wait]) -> tuple[Row, ...]:
    return tuple(replace(row, wait=waits.get(row.uid, NO_WAIT)) if row.stage is Stage.WAITING else row for row in rows)


class _Round:
    """Chooses the pods to start now, within all budgets."""

    def __init__(self, world: World, run: Run, rows: tuple[Row, ...], now: datetime) -> None:
        self._world, self._run, self._rows = world, run, rows
        self._min_ready = world.min_ready(run)
        self._in_order = world.workload is not None and world.workload.in_order
        requests = [each for each in world.requests if not each.request.completed]
        self._busy = {row.uid for row in rows if row.stage.under_way} | {each.request.pod_uid for each in requests}
        counting = [member for member in world.members if member.counts]
        self._others_busy = {each.request.pod_uid for each in requests if not run.replaces(each.run)}
        self._down = {each.pod.uid: each for each in counting if self._is_down(each, now)}
        desired = world.workload.desired if world.workload is not None else 0
        self._missing = max(0, desired - len(counting))
        self._limit = run.options.max_unavailable.of(max(desired, len(counting)))
        self._under_way = [row.member for row in rows if row.stage.under_way and row.member is not None]
        members = {member.pod.uid: member for member in world.members}
        at_work = [members[uid] for uid in self._busy if uid in members]
        # Open requests, of any run, for pods that do not belong to the target.
        elsewhere = [each for each in requests if each.request.pod_uid not in members]
        self._others = {budget.uid: self._requests_using(budget, elsewhere) for budget in world.budgets}
        self._left = {
            budget.uid: budget.allowed
            - sum(1 for member in at_work if _selects(budget, member.labels))
            - len({each.request.pod_uid or each.request.name for each in self._others[budget.uid]})
            for budget in world.budgets
        }

    def _is_down(self, member: Member, now: datetime) -> bool:
        """Whether a pod is unready, or not ready for long enough yet, or a request for it is in progress."""
        if not member.ready or member.pod.uid in self._busy:
            return True
        at = member.available_at(self._min_ready)
        return at is not None and at > now and self._min_ready > 0

    def _uses_budget(self, member: Member) -> bool:
        """Whether a restart of the pod uses PodDisruptionBudgets. They count each ready pod as healthy."""
        return member.ready and member.pod.uid not in self._busy

    def choose(self, most: int | None) -> tuple[list[Row], dict[str, Wait]]:
        """Return the pods that start now, at most `most` new ones (None: no limit), and why each other pod waits."""
        chosen: list[Row] = []
        waits: dict[str, Wait] = {}
        first = Wait.of(WaitReason.FIRST_PODS, first=self._run.options.first)
        blocked: Wait | None = None
        for row, member in self._candidates():
            over_first = most is not None and not row.failed and sum(1 for each in chosen if not each.failed) >= most
            wait = blocked or (first if over_first else next(self._reasons(row, member), None))
            if wait is None:
                chosen.append(row)
                self._take(member)
                continue
            waits[row.uid] = wait
            if self._in_order and blocked is None:
                why = WaitReason.IN_ORDER.say(pod=row.pod, why=wait.why)
                blocked = replace(wait, why=why)  # with the remedy of that pod's wait
        return chosen, waits

    def _candidates(self) -> list[tuple[Row, Member]]:
        """Return the pods that could start: by their ordinals if required, else unready and failed ones first."""

        def place(pair: tuple[Row, Member]) -> tuple[int, str]:
            row, member = pair
            return -member.ordinal if self._in_order else int(row.uid not in self._down and not row.failed), row.pod

        waiting = [(row, row.member) for row in self._rows if row.stage is Stage.WAITING and row.member is not None]
        return sorted(waiting, key=place)

    def _reasons(self, row: Row, member: Member) -> Iterator[Wait]:
        """Yield why a pod may not start now. A pod that is already unready costs no budget, only a place in the run."""
        uid, options = member.pod.uid, self._run.options
        if uid in self._others_busy:
            yield Wait.of(WaitReason.OTHER_REQUEST)
        yield from (Wait.of(WaitReason.CONFIG_MISSING, missing=each) for each in self._missing_config(row, member))
        costs = uid not in self._down
        down = len(self._down) + self._missing if costs else len(self._under_way)
        if down >= self._limit:
            yield self._too_many(member, down, costs=costs)
        for budget in self._world.budgets if self._uses_budget(member) else ():
            if not _selects(budget, member.labels):
                continue
            command = f"kubectl describe pdb {budget.name} -n {member.pod.namespace}"
            if not budget.current:
                yield Wait.of(WaitReason.BUDGET_OUTDATED, command, budget=budget.name)
            elif self._left[budget.uid] < 1:
                other = self._beside(budget)
                yield Wait.of(WaitReason.BUDGET_USED_UP, command, budget=budget.name, while_other=other)
        nodes = [each.pod.node_name for each in (self._down.values() if costs else self._under_way)]
        zones = [self._world.zones.get(each, "") for each in (*nodes, member.pod.node_name)]
        for reason, place, others, limit in (
            (WaitReason.NODE_LIMIT, member.pod.node_name, nodes, options.max_per_node),
            (WaitReason.ZONE_LIMIT, zones.pop(), zones, options.max_per_zone),
        ):
            if limit and place and others.count(place) >= limit:  # one without a known name has no limit
                yield Wait.of(reason, place=place, limit=limit)

    def _missing_config(self, row: Row, member: Member) -> Iterator[str]:
        """Yield objects and keys that kubelet lacks to start the containers. The volumes of all containers count."""
        for name, uses in member.config.items():
            for use in uses:
                if use.object in self._world.config and (name in row.containers or use.use.mounted):
                    yield from filter(None, [missing(use, self._world.config[use.object])])

    def _requests_using(self, budget: Budget, elsewhere: Iterable[RunRequest]) -> list[RunRequest]:
        """Return the requests for other targets' pods that use up a budget. A pod with unknown labels counts, too."""
        known = self._world.labels
        pods = [(each, each.request.pod_uid) for each in elsewhere]
        return [each for each, uid in pods if uid not in known or _selects(budget, known[uid])]

    def _beside(self, budget: Budget) -> str:
        """Return, as the end of a sentence, which other run may have used up a budget; "" for none."""
        others = self._others[budget.uid]
        if not others or budget.allowed < 1:
            return ""
        first = min(others, key=lambda each: each.request.name)
        return f" while run {first.run.name} restarts pod {first.request.pod_name}"

    def _too_many(self, member: Member, down: int, *, costs: bool) -> Wait:
        if not costs:
            return Wait.of(WaitReason.TOO_MANY_STARTED, pods=_pods_are(down), limit=self._limit)
        names = sorted(member.pod.name for member in self._down.values())
        more = len(names) - _NAMED
        named = ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")
        missing = f"{self._missing} not created yet" if self._missing else ""
        state = "unready or in progress" if any(member.ready for member in self._down.values()) else "unready"
        if any(self._uses_budget(each) for each in self._down.values()):
            state = f"not ready for {self._min_ready}s yet"
        named = ", ".join(filter(None, (named, missing)))
        values: dict[str, Any] = {"pods": _pods_are(down), "state": state, "limit": self._limit, "names": named}
        unready = [each for each in self._down.values() if not each.ready and each.pod.uid not in self._busy]
        if not unready:
            return Wait.of(WaitReason.TOO_MANY_UNREADY, **values)
        first = min(unready, key=lambda each: each.pod.name)
        command = describe_pod(first)
        if self._in_order and first.ordinal < member.ordinal:
            return Wait.of(WaitReason.UNREADY_IN_ORDER, command, **values, pod=first.pod.name, enough=down + 1)
        return Wait.of(WaitReason.TOO_MANY_UNREADY, command, **values)

    def _take(self, member: Member) -> None:
        """Count a pod that starts now."""
        for budget in self._world.budgets if self._uses_budget(member) else ():
            if _selects(budget, member.labels):
                self._left[budget.uid] -= 1
        self._down[member.pod.uid] = member
        self._busy.add(member.pod.uid)
        self._under_way.append(member)


def _selects(budget: Budget, labels: Mapping[str, str]) -> bool:
    return budget.selector is not None and budget.selector.matches(labels)


def _pods_are(count: int) -> str:
    return "1 pod is" if count == 1 else f"{count} pods are"
