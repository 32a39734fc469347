"""Asks the metrics of a judgement while it goes on."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from datetime import UTC, datetime

from crrd.core.judge.metrics import Metric
from crrd.core.judge.verdicts import Holds, Verdict
from crrd.core.rollout.parts import PartState
from crrd.core.rollout.phases import Stage
from crrd.core.rollout.plan import Plan
from crrd.core.rollout.run import Run
from crrd.core.rollout.state import Measured
from crrd.lib.looptime import loop_time

INTERVAL_SECONDS, LAST_SECONDS = 10.0, 2.0
"""Between two looks at the metrics: during the judgement, and once only they are missing."""
Ask = Callable[[Metric, Collection[str], Collection[str], str], Awaitable[Verdict]]
"""As `metrics.Prometheus.ask`."""


class MetricsJudge:
    """Remembers what the metrics have said. It outlives the turns of a policy's run. The constructor asks nothing."""

    def __init__(self, metrics: Sequence[Metric], ask: Ask | None, now: Callable[[], datetime]) -> None:
        """`ask` is not None if there are metrics. `now` returns the API server's time."""
        self._metrics, self._ask, self._now = metrics, ask, now
        self.measured: Measured | None = None
        self._asked_at = float("-inf")  # The loop's time

    def forget(self) -> None:
        """Forget what they have said, because a user has overruled it."""
        self.measured, self._asked_at = None, float("-inf")

    async def learn(self, plan: Plan, run: Run) -> bool:
        """Ask them if that is due. Return whether they were asked."""
        if self._ask is None or not self._metrics or plan.part.state is not PartState.JUDGING:
            return False
        seconds = LAST_SECONDS if plan.part.at is None else INTERVAL_SECONDS
        if loop_time() < self._asked_at + seconds:
            return False
        before, at = self.measured, self._now()
        there = [row for row in plan.rows if row.member is not None and row.member.counts]
        restarted = [row.pod for row in there if row.request is not None and row.request.succeeded]
        others = [row.pod for row in there if row.request is None and row.stage in (Stage.WAITING, Stage.PUT_OFF)]
        found = await asyncio.gather(*(self._ask(each, restarted, others, run.namespace) for each in self._metrics))
        holds = next((each for each in (Holds.NO, Holds.UNKNOWN) if any(one.holds is each for one in found)), Holds.YES)
        words = "; ".join(each.message for each in found if each.holds is holds)
        unknown = (before.unknown if before is not None else 0) + 1 if holds is Holds.UNKNOWN else 0
        self.measured, self._asked_at = Measured(at, _KNOWN[holds], words, unknown), loop_time()
        return True


_KNOWN = {Holds.YES: True, Holds.NO: False, Holds.UNKNOWN: None}
NO_METRICS = MetricsJudge((), None, lambda: datetime.now(UTC))
