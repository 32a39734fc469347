"""What a run of a policy reports while it is carried out."""

from collections.abc import Callable, Sequence

import structlog

from crrd.core.rollout.phases import RunPhase
from crrd.core.rollout.plan import Plan
from crrd.core.rollout.waits import NO_WAIT
from crrd.rollout.display import RunDisplay, summary

log = structlog.get_logger(__name__)


class TurnDisplay(RunDisplay):
    """Reports what a run waits for, and whether files could be refreshed."""

    def __init__(
        self, on_progress: Callable[[str], None], on_refresh: Callable[[str, bool], None], *, has_problem: bool
    ) -> None:
        """`has_problem` means that files could not be refreshed in an earlier part of the run."""
        self._on_progress, self._on_refresh, self._has_problem = on_progress, on_refresh, has_problem
        self.plan: Plan | None = None  # The last one

    def show(self, plan: Plan) -> None:
        """See RunDisplay. Durations are left out, because each new text is written to the status."""
        self.plan = plan
        first = next((row.wait for row in plan.rows if row.stage.under_way), NO_WAIT)
        waits = (each.replace(first.why, first.topic) if first.topic else each for each in plan.waits[:1])
        phase = [plan.phase.value] if plan.phase is not RunPhase.RESTARTING else []
        self._on_progress(": ".join([*phase, summary(plan.rows), *waits]))

    def print_line(self, message: str, details: Sequence[str] = ()) -> None:
        """See RunDisplay."""
        log.debug(message, details=details)

    def files_refreshed(self, problem: str, *, lacks_right: bool) -> None:
        """See RunDisplay. The problem of one pod counts until the end."""
        if not self._has_problem:
            self._has_problem = bool(problem)
            self._on_refresh(problem, lacks_right)

    async def ask(self, question: str) -> bool:
        """See RunDisplay. The owner of a policy answers by an annotation (`Policy.allowed_steps`)."""
        return False
