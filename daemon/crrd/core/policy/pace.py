"""How the runs of policies share a few turns: how long a turn goes on, and when a run that gets nowhere is ended."""

from dataclasses import dataclass

from crrd.core.rollout.limits import Times
from crrd.core.rollout.parts import RESTS
from crrd.core.rollout.phases import End, RunPhase, Stage
from crrd.core.rollout.plan import Plan

TURN_SECONDS = 60.0  # Time without progress after which a run lets others run
MOST_SECONDS = 120.0
"""Time after which a run lets others run even if it makes progress. It leaves a whole minute (`NODE_SECONDS`) to wait
for nodes."""
CHECK_SECONDS = 5.0  # The same for a run whose last turn brought no progress
STUCK_SECONDS = 240.0
"""How long a run whose pods are done may wait, after its turn, for what follows them, for example for a pod to start.
Then it ends, so that others of the policy can start."""


@dataclass(slots=True)
class Pace:
    """What a run's turns have brought so far. All times are the loop's, in seconds."""

    moved_at: float  # The start of the run, or its last progress
    stages: tuple[Stage, ...] = ()  # Of its pods after the last turn
    reached: frozenset[object] = frozenset()  # After any turn so far, as in `Plan.reached`
    idle: bool = False  # Whether the last turn was in vain
    stuck_since: float | None = None
    """The end of the first of the last turns that only waited for what follows the pods; None for none."""
    began: float = 0.0  # The start of the last turn, or of the last part of one

    def times(self, left: float | None, now: float, *, full: bool) -> Times:
        """Return the time limits of the turn that begins now. The window closes in `left` seconds, None for never.

        `full` means that others wait for their turn, or would have to.
        """
        self.began = now
        for_nodes = Stage.PUT_OFF in self.stages and Stage.WAITING not in self.stages  # longer than CHECK_SECONDS
        patience = CHECK_SECONDS if self.idle and full and not for_nodes else TURN_SECONDS
        return Times(None if left is None else max(1.0, left), patience, MOST_SECONDS)

    def after(self, plan: Plan, now: float) -> Plan:
        """Record the last plan of a turn, or of a part of one. Return it, or the end of a run that gets nowhere."""
        out_of_time = plan.end in (End.YIELDED, End.TIMED_OUT)
        reached = plan.reached
        has_moved = not reached <= self.reached
        if has_moved or plan.part.state in RESTS:
            self.moved_at = now  # nobody is kept waiting by a judgement or a pause
        # A full turn was in vain if it got nowhere in its last TURN_SECONDS, and a short one if it made no progress.
        gave_up = out_of_time and now < self.began + MOST_SECONDS
        self.idle = not has_moved or (gave_up and not self.idle)
        self.stages, self.reached = tuple(row.stage for row in plan.rows), self.reached | reached
        after_pods = plan.phase in (RunPhase.ADOPTING, RunPhase.RELEASING) or plan.wait_before_end.why
        is_stuck = out_of_time and after_pods
        self.stuck_since = (now if self.stuck_since is None else self.stuck_since) if is_stuck else None
        if self.stuck_since is not None and now >= self.stuck_since + STUCK_SECONDS:
            return plan.ended(End.LEFT_OUT, plan.wait.why)
        return plan
