"""The time limits of a process that carries out a run: when it ends it, and what it waits for before an end."""

from dataclasses import dataclass, replace

from crrd.core.rollout.kind import NO_ACTIONS
from crrd.core.rollout.phases import End, RunPhase
from crrd.core.rollout.plan import Plan
from crrd.core.rollout.run import Run
from crrd.core.rollout.waits import NO_WAIT, Wait

PATIENCE_SECONDS = 3600.0
"""Default time without progress until the run ends. A pod that waits for a budget must not wait forever."""
NODE_SECONDS = 60.0
"""How long a run waits for nodes that are down, once no other pods are left. An update of the node daemons takes each
away for seconds. A run waits as long for the pods of a workload that has none, and one with an image for each that is
just being recreated."""
TICK_SECONDS = 1.0  # Longest time from one plan to the next


@dataclass(frozen=True, slots=True)
class Times:
    """The time limits that a user or a policy sets, in seconds."""

    timeout: float | None = None
    """For the whole run; 0 for none. With None, the run ends after `patience` without progress."""
    patience: float | None = None
    """If given, the process carries out one turn of the run, which ends after this time without progress, too. If None,
    it is PATIENCE_SECONDS, or the time limit for one pod if that is longer."""
    most: float = float("inf")
    """After this time, a turn begins no more pods, and ends once no pod is unready and waits for its next step."""

    @property
    def is_turn(self) -> bool:
        """Whether the process has only a turn of the run, which goes on in another one. Runs of policies take turns."""
        return self.patience is not None


class Limits:
    """The limits of one process. All times are the loop's, in seconds."""

    def __init__(self, times: Times, now: float) -> None:
        self._times = times
        self._limit = now + times.timeout if times.timeout else float("inf")
        self._turn_ends = self._ends = min(self._limit, now + times.most)
        self._until: float | None = None  # While it waits before its end (`Plan.wait_before_end`): when the run ends
        self._reached = frozenset[object]()  # By this process; with anything more, the time is extended

    def seconds_left(self, now: float) -> float:
        """Return the time until the next plan at the latest."""
        return min(TICK_SECONDS, self._ends - now)

    def restart(self) -> None:
        """Count the next plan as progress, because a user has answered."""
        self._reached = frozenset()

    def apply(self, plan: Plan, run: Run, now: float, *, trouble: str = "", problem: str = "") -> Plan:
        """Return the plan that is carried out now.

        `trouble` says why the known state may be out of date: then nothing begins, and nothing ends but by an abort or
        because the time is over. Nobody knows then whether the run still waits for what follows its pods, so that time
        does not count as such. `problem` says why the last request could not be created.
        """
        if trouble and plan.end is not End.ABORTED:
            plan = replace(plan, create=(), actions=NO_ACTIONS, wait=Wait(trouble))
            phase = plan.part.phase or RunPhase.RESTARTING  # a later process must know that its pods were done
            plan = replace(plan, end=None, wait_before_end=NO_WAIT, phase=phase)
        if now >= self._turn_ends:  # the pods under way become fewer, and the turn ends
            plan = replace(plan, create=(), actions=plan.actions.for_started())
        plan = self._wait_before_end(plan, now)
        if problem and plan.end is None:
            plan = replace(plan, wait=Wait(problem))
        self._extend(plan, run, now)
        if plan.end is not None or now < self._ends:
            return plan
        return plan.ended(End.YIELDED if self._times.is_turn and now < self._limit else End.TIMED_OUT)

    def _wait_before_end(self, plan: Plan, now: float) -> Plan:
        """Return the plan without an end while nodes may still come back, or pods are being recreated."""
        if plan.end is None or not plan.wait_before_end.why:
            self._until = None if plan.begins else self._until
            return plan
        self._until = self._until or now + NODE_SECONDS
        until = self._until if plan.end.incomplete else min(self._until, self._limit)
        return replace(plan.going_on(), wait=plan.wait_before_end) if now < until else plan

    def _extend(self, plan: Plan, run: Run, now: float) -> None:
        """Extend the time limit after progress, but not beyond one for the whole run."""
        patience, reached = self._times.patience, plan.reached
        if (self._times.timeout is None or patience is not None) and not reached <= self._reached:
            options = run.options
            rest = options.judge + (options.step_pause or 0)  # it belongs to the run, and needs no turn
            most = max(PATIENCE_SECONDS, options.pod_timeout + plan.min_ready) + rest
            seconds = most if patience is None else patience
            self._reached, self._ends = self._reached | reached, min(self._turn_ends, now + seconds)
        if patience is not None and not plan.drained:
            self._ends = min(self._limit, max(self._ends, now + TICK_SECONDS))
