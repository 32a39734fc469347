"""Schedules over absences and suspensions: each time runs once and in time, or the status says why it was skipped."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from crrd.core.api.time import rfc3339
from crrd.core.policy.course import ended
from crrd.core.policy.decide import decide
from crrd.core.policy.observed import Observed, Running
from crrd.core.policy.outcome import Outcome
from crrd.core.policy.types import Policy, Schedule, TargetRef
from crrd.core.rollout.phases import End
from tests.support.worlds import BUDGET

CREATED = datetime(2026, 1, 1, 12, tzinfo=UTC)
DEADLINE = 600
HOURLY = Schedule("0 * * * *", "UTC", DEADLINE)
POLICY = Policy(
    "shop", "web", "u", "1", 1, rfc3339(CREATED), BUDGET, TargetRef("apps/v1", "Deployment", "web"), schedule=HOURLY
)  # fmt: skip
FOUND = Observed((Running("web-0", "app", CREATED - timedelta(days=1), ()),))
STEPS = st.lists(st.tuples(st.integers(1, 9000), st.booleans()), max_size=12)
"""Seconds until the manager looks again, and whether the policy is suspended then."""


@given(STEPS)
def test_each_time_runs_in_time_or_is_skipped_in_words(steps: list[tuple[int, bool]]) -> None:
    policy, now, earliest, times = POLICY, CREATED, CREATED, list[str]()
    for seconds, suspended in steps:
        resumed = policy.suspended and not suspended
        now += timedelta(seconds=seconds)
        policy = replace(policy, suspended=suspended)
        decision = decide(policy, FOUND, now)
        policy = replace(policy, status=decision.status, conditions=decision.conditions)
        if suspended:
            assert decision.run is None
            continue
        newest = HOURLY.latest(earliest, now)
        earliest = now if resumed else earliest
        if decision.run is not None:
            assert newest is not None
            assert decision.run.since == rfc3339(newest)
            assert now <= newest + timedelta(seconds=DEADLINE)
            assert not resumed
            assert decision.run.since not in times
            times.append(decision.run.since)
            policy = replace(policy, status=ended(policy, decision.run, Outcome(End.DONE), message="", now=now))
        elif newest is not None and rfc3339(newest) not in times:
            assert decision.status.skipped.startswith(rfc3339(newest))
