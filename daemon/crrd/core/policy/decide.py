"""The next step of a policy (start a run, continue one, or wait), and its new status. Keeps no state."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from crrd.core.api.time import format_duration, parse_time, rfc3339
from crrd.core.config.parts import read_change
from crrd.core.policy.config import Due, covered, due, remember
from crrd.core.policy.observed import Observed
from crrd.core.policy.problems import PolicyReason, problems
from crrd.core.policy.types import Policy, PolicyStatus, RunRecord, Window
from crrd.core.rollout.run import Options, Run, Target

FAILED_RETRY = timedelta(seconds=15)
"""Until a failed run is looked at again, because no watch reports what a user does about it."""
AGE_RETRY = timedelta(minutes=10)  # After a run for maxAge, until the containers that it has left are tried again


class Trigger(StrEnum):
    """Why a run starts."""

    CONFIG = "configChange"
    SCHEDULE = "schedule"
    AGE = "maxAge"


_BEFORE_READING = (PolicyReason.INVALID, PolicyReason.SUSPENDED, PolicyReason.TARGET)
"""With these reasons it is unknown whether configuration can be read."""
READY = (
    PolicyReason.RUNNING,
    PolicyReason.WINDOW,
    PolicyReason.INTERVAL,
    PolicyReason.SETTLING,
    PolicyReason.RETRY,
    PolicyReason.IDLE,
)
_CHARACTERS = 2000  # Length limit for the message of the condition Effective


@dataclass(frozen=True, slots=True)
class Decision:
    """The status to write, the run to carry out, and when to decide again."""

    status: PolicyStatus
    conditions: tuple[Mapping[str, Any], ...]
    run: RunRecord | None = None  # The active run, None for none; `status` already contains it
    run_until: datetime | None = None  # When its window closes
    wake_at: datetime | None = None


def decide(policy: Policy, found: Observed, now: datetime) -> Decision:
    """Decide the next step; `now` is the API server's time."""
    obstacles = (
        (PolicyReason.INVALID, policy.error),
        (PolicyReason.SUSPENDED, "spec.suspend is true" if policy.suspended else ""),
        (PolicyReason.TARGET, found.problem),
        (PolicyReason.UNREADABLE, found.unreadable),
    )
    for reason, message in obstacles:
        if message:
            status = _forget_schedule(policy) if policy.suspended else policy.status
            return _Round(policy, found, now, status).rest(reason, message)
    status = replace(_note_schedule(policy, now), config=remember(policy, found, now))
    return _Round(policy, found, now, status).decide()


def _forget_schedule(policy: Policy) -> PolicyStatus:
    """Return the status during a suspension, after which the schedule counts as new."""
    scheduled = policy.status.scheduled or (policy.created if policy.schedule is not None else "")
    return replace(policy.status, schedule="", scheduled=scheduled)


def _note_schedule(policy: Policy, now: datetime) -> PolicyStatus:
    """Return the status for the policy's current schedule.

    Times before an edit of the schedule, or before the end of a suspension, do not count. The times of a new policy
    count from its creation.
    """
    status, schedule = policy.status, policy.schedule
    if schedule is None:
        return replace(status, schedule="", scheduled="", skipped="")
    if str(schedule) == status.schedule:
        return status
    skipped = ""
    if not status.schedule and (before := parse_time(status.scheduled)) is not None:  # it was suspended
        missed = schedule.latest(before, now)
        skipped = status.skipped if missed is None else f"{rfc3339(missed)}: the policy was suspended"
    scheduled = rfc3339(now) if policy.conditions else policy.created
    return replace(status, schedule=str(schedule), scheduled=scheduled, skipped=skipped)


def ended(
    policy: Policy, run: RunRecord, *, failed: bool, message: str, now: datetime, complete: bool = True
) -> PolicyStatus:
    """Return the status after the end of a run. It is not `complete` if pods are left whose nodes are down."""
    over = replace(run, finished=rfc3339(now), failed=failed, message=message)
    config = policy.status.config
    if not failed and complete and run.trigger == Trigger.CONFIG and policy.config is not None:
        config = covered(policy, config, run, done=True)
    return replace(policy.status, run=over, config=config)


def make_run(policy: Policy, record: RunRecord, target: Target) -> Run:
    """Return the run in the form of `kubectl recreate`."""
    budget = policy.budget
    options = Options(
        record.containers,
        max_unavailable=budget.max_unavailable,
        max_per_node=budget.max_per_node,
        min_ready=budget.min_ready,
        preflight=True,
        since=record.since,
        objects=record.objects,
        reason=record.reason,
        policy=policy.uid,
    )
    return Run(policy.namespace, record.name, target, options, record.started)


class _Round:
    """One decision. It updates `_status` in steps."""

    def __init__(self, policy: Policy, found: Observed, now: datetime, status: PolicyStatus) -> None:
        self._policy, self._observed, self._now, self._status = policy, found, now, status
        self._problems = problems(replace(policy, status=status), found, now)
        self._running = tuple(each for each in found.running if each.node not in found.down)
        self._wakes: list[datetime] = []
        self._settling: Due | None = None
        """Changed configuration that settles next; None if all has."""
        self._retries_at: datetime | None = None
        """When containers that a run for maxAge has left are tried again; None for none."""

    def decide(self) -> Decision:
        """See `decide`."""
        if self._observed.missing:
            why = f"{self._observed.missing[0]}; not restarting containers, because they could not start again"
            return self.rest(PolicyReason.MISSING, why)
        self._note_user()
        wanted, last = self._wanted(), self._status.run
        active = last if last is not None and not last.finished else None
        if active is not None and (why := _misfit(self._policy, active)):
            last, active = replace(active, finished=rfc3339(self._now), message=f"ended because {why}"), None
            self._status = replace(self._status, run=last)
        if active is not None and (newer := [each for each in wanted if _supersedes(each, active)]):
            last = replace(active, finished=rfc3339(self._now), message="replaced by a run for a newer change")
            self._status, active, wanted = replace(self._status, run=last), None, newer[-1:]
        if active is None and last is not None and last.failed and last.generation == self._policy.generation:
            wanted = [each for each in wanted if each.trigger == Trigger.CONFIG and each.since > last.since][-1:]
            if not wanted:
                self._wakes.append(self._now + FAILED_RETRY)
                command = f"`kubectl recreate resume {last.name} --retry-failed -n {self._policy.namespace}`"
                until = f"no run starts until the policy or the configuration changes, or {command} succeeds"
                return self.rest(PolicyReason.FAILED, f"run {last.name} failed: {last.message}; {until}")
        run = active or next(iter(wanted), None)
        if run is None:
            return self._idle()
        opens, closes = _window_at(self._policy.window, self._now)
        self._wakes += filter(None, (opens, closes))
        if opens is not None:
            return self.rest(PolicyReason.WINDOW, f"the window opens at {rfc3339(opens)}")
        if active is None:
            if last is not None:
                began, pause = parse_time(last.started) or self._now, self._policy.budget.min_interval
                if (next_at := began + timedelta(seconds=pause)) > self._now:
                    self._wakes.append(next_at)
                    return self.rest(PolicyReason.INTERVAL, f"the next run may start at {rfc3339(next_at)}")
            self._begin(run)
        message = f"run {run.name}: {self._observed.progress or run.reason}"
        return replace(self.rest(PolicyReason.RUNNING, message), run=run, run_until=closes)

    def _note_user(self) -> None:
        """Note in the status that a user has done what a failed run had left."""
        run, policy = self._status.run, replace(self._policy, status=self._status)
        if run is not None and run.failed and not _left_of(run, policy, self._observed, self._now):
            message = f"{run.message}; after that, all containers of the run were restarted and are ready"
            self._status = ended(policy, run, failed=False, message=message, now=self._now)

    def _begin(self, run: RunRecord) -> None:
        """Put a run into the status. Once a run for a change starts, containers may have the new data."""
        self._status = replace(self._status, run=run)
        if run.trigger == Trigger.SCHEDULE:
            self._status = replace(self._status, scheduled=run.since, skipped="")
        elif run.trigger == Trigger.CONFIG:
            config = covered(self._policy, self._status.config, run, done=False)
            self._status = replace(self._status, config=config)

    def _wanted(self) -> list[RunRecord]:
        """Return the runs that should start, those for the earliest changes first."""
        policy, found = self._policy, self._observed
        changes, self._settling = due(policy, self._status.config, self._running, self._now)
        self._wakes += [self._settling.limit] if self._settling is not None else []
        if changes:
            return [self._record(Trigger.CONFIG, each.containers, each.limit, each) for each in changes]
        names = policy.containers or tuple(sorted({each.name for each in found.running}))
        run = (self._scheduled(names) if names else None) or self._aged(names)
        return [run] if run is not None else []

    def _scheduled(self, names: tuple[str, ...]) -> RunRecord | None:
        schedule, now = self._policy.schedule, self._now
        if schedule is None:
            return None
        after = parse_time(self._status.scheduled) or now
        if (time := schedule.latest(after, now)) is not None:
            if schedule.deadline is None or not self._is_late(time, timedelta(seconds=schedule.deadline)):
                return self._record(Trigger.SCHEDULE, names, time)
            skipped = f"{rfc3339(time)}: no run could start within {format_duration(schedule.deadline)}"
            self._status = replace(self._status, scheduled=rfc3339(time), skipped=skipped)
        self._wakes.append(schedule.next_after(now))
        return None

    def _is_late(self, time: datetime, deadline: timedelta) -> bool:
        """Whether the deadline of a scheduled time is over. It begins when window and minInterval allow a run."""
        last, start = self._status.run, time
        began = None if last is None else parse_time(last.started)
        if began is not None and began <= time + deadline:
            start = max(time, began + timedelta(seconds=self._policy.budget.min_interval))
        opens, _ = _window_at(self._policy.window, start)
        return self._now > (opens or start) + deadline

    def _aged(self, names: tuple[str, ...]) -> RunRecord | None:
        policy, now, last = self._policy, self._now, self._status.run
        if policy.max_age is None:
            return None
        age = timedelta(seconds=policy.max_age)
        running = sorted((each.started, each.name) for each in self._running if each.name in names)
        old = [each for each in running if each[0] <= now - age]
        self._wakes += [started + age for started, _ in running if started > now - age][:1]
        ended_at = parse_time(last.finished) if last is not None and last.trigger == Trigger.AGE else None
        if last is not None and ended_at is not None and ended_at + AGE_RETRY > now:
            untried = [each for each in old if rfc3339(each[0]) > last.since]
            if len(untried) < len(old):
                self._retries_at = ended_at + AGE_RETRY
                self._wakes.append(self._retries_at)
            old = untried
        return self._record(Trigger.AGE, tuple(dict.fromkeys(name for _, name in old)), now - age) if old else None

    def _idle(self) -> Decision:
        if self._settling is not None:
            until = rfc3339(self._settling.limit)
            why = f"{self._settling.objects} changed; waiting until {until} for more changes"
            return self.rest(PolicyReason.SETTLING, why)
        if (blocking := next((each for each in self._problems if each.blocking), None)) is not None:
            return self.rest(blocking.reason, blocking.message)
        last = self._status.run
        if self._retries_at is not None and last is not None:
            why = f"Trying again at {rfc3339(self._retries_at)}, because containers are older than maxAge"
            return self.rest(PolicyReason.RETRY, f"run {last.name}: {last.message}. {why}")
        skipped = f"; skipped {self._status.skipped}" if self._status.skipped else ""
        more = "; see condition Effective" if self._problems else ""
        return self.rest(PolicyReason.IDLE, f"no container has to be restarted{skipped}{more}")

    def rest(self, reason: PolicyReason, message: str) -> Decision:
        """Return a decision that starts or continues no run."""
        return Decision(self._status, self._conditions(reason, message), wake_at=min(self._wakes, default=None))

    def _conditions(self, reason: PolicyReason, message: str) -> tuple[Mapping[str, Any], ...]:
        """Return the conditions, each with the time of its last transition."""
        policy, unreadable = self._policy, self._observed.unreadable
        wanted = [("Ready", reason in READY, reason, message)]
        if policy.config is not None and reason not in _BEFORE_READING:
            why = PolicyReason.UNREADABLE if unreadable else PolicyReason.READABLE
            wanted.append(("ConfigReadable", not unreadable, why, unreadable or "the configuration can be read"))
            kept = (each.get("message") for each in policy.conditions if each.get("type") == "FilesRefreshed")
            found = self._observed.old_files
            if old_files := next(kept, "") if found is None else found:
                wanted.append(("FilesRefreshed", False, PolicyReason.OLD_FILES, old_files))
        if reason not in _BEFORE_READING:
            first = self._problems[0].reason if self._problems else PolicyReason.EFFECTIVE
            detail = "; ".join(each.message for each in self._problems)[:_CHARACTERS]
            wanted.append(("Effective", not self._problems, first, detail or first.say()))
        made = []
        for kind, holds, why, detail in wanted:
            status = "True" if holds else "False"
            same = (each for each in policy.conditions if (each.get("type"), each.get("status")) == (kind, status))
            since = next(same, {}).get("lastTransitionTime") or rfc3339(self._now)
            times = {"observedGeneration": policy.generation, "lastTransitionTime": since}
            made.append({"type": kind, "status": status, "reason": why.value, "message": detail, **times})
        return tuple(made)

    def _record(
        self, trigger: Trigger, containers: tuple[str, ...], since: datetime, change: Due | None = None
    ) -> RunRecord:
        """Make the record of a run."""
        policy, at, started = self._policy, rfc3339(since), rfc3339(self._now)
        message = f"policy {policy.name}: " + (f"{change.objects} changed" if change is not None else trigger)
        objects = tuple(map(str, change.changes)) if change is not None else ()
        run = RunRecord("", trigger.value, containers, at, started, policy.generation, message, objects)
        return replace(run, name=_run_name(policy, run))


def _window_at(window: Window | None, moment: datetime) -> tuple[datetime | None, datetime | None]:
    """Return when the window opens (None: it is open or there is none), and when it closes (None: never)."""
    if window is None:
        return None, None
    length = timedelta(seconds=window.duration)
    opened = window.opens.latest(moment - length, moment)
    return (window.opens.next_after(moment), None) if opened is None else (None, opened + length)


def _run_name(policy: Policy, run: RunRecord) -> str:
    """Return the name of a run. Every process computes the same name, and another one for another target."""
    identity = [policy.uid, str(run.generation), run.trigger, run.since, *run.containers]
    digest = hashlib.sha256("|".join([*identity, str(policy.target), policy.selector]).encode()).hexdigest()
    return f"{policy.name.replace('.', '-')[:28].rstrip('-')}-{digest[:10]}"


def _left_of(run: RunRecord, policy: Policy, found: Observed, now: datetime) -> bool:
    """Whether a run has containers left that have not started since its time, or are not ready for long enough."""
    changes = [change for change in map(read_change, run.objects) if change is not None]
    since, available = parse_time(run.since) or now, now - timedelta(seconds=found.min_ready(policy))
    for each in found.running:
        own = [change.until for change in changes if (each.name, change.part) in each.keys]
        concerned = each.name in run.containers and (own or not run.objects)
        if concerned and not (each.ready and max(own, default=since) < each.started <= available):
            return True
    return False


def _misfit(policy: Policy, run: RunRecord) -> str:
    """Return why an active run does not fit the policy after an edit, "" if it fits."""
    triggers: dict[str, object] = {
        Trigger.CONFIG: policy.config,
        Trigger.SCHEDULE: policy.schedule,
        Trigger.AGE: policy.max_age,
    }
    if run.generation == policy.generation:
        return ""
    if triggers.get(run.trigger) is None:
        return f"the policy no longer has the trigger {run.trigger}"
    if policy.containers and not {*run.containers} <= {*policy.containers}:
        return "the policy no longer has all of its containers"
    return "" if run.name == _run_name(policy, run) else "the policy has another target"


def _supersedes(wanted: RunRecord, active: RunRecord) -> bool:
    """Whether `wanted` is for a newer change than the active run, to a container that the active run recreates."""
    changes = wanted.trigger == active.trigger == Trigger.CONFIG
    return changes and wanted.since > active.since and not {*wanted.containers}.isdisjoint(active.containers)
