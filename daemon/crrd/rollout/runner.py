"""Carries out a run: makes a plan, carries out its steps, and repeats this until the plan ends.

What is done and when it ends is decided in `core.rollout` (`plan`, `limits`). The process may be killed at any point,
because the next one needs only the created requests. It writes the progress of the run on the requests, at last how the
run has ended.
"""

import asyncio
from contextlib import suppress
from dataclasses import replace
from functools import partial

from crrd.core.api.time import parse_time, rfc3339
from crrd.core.rollout.limits import Limits, Times
from crrd.core.rollout.parts import NOTHING_ALLOWED, Allowed, PartState
from crrd.core.rollout.phases import GOES_ON, End, phase_of
from crrd.core.rollout.plan import Plan, make_plan
from crrd.core.rollout.progress import LIVE_SECONDS, Progress
from crrd.core.rollout.rows import count_done
from crrd.core.rollout.run import Run
from crrd.core.rollout.standing import RowMemo
from crrd.core.rollout.state import World
from crrd.core.rollout.waits import Remedies
from crrd.kube.client import KubeClient
from crrd.kube.clock import ServerClock
from crrd.lib.errors import ApiRefusedError, ApiUnavailableError, GoneError
from crrd.lib.looptime import loop_time
from crrd.rollout.attempt import attempt
from crrd.rollout.cluster import Cluster
from crrd.rollout.display import RunDisplay
from crrd.rollout.judge import NO_METRICS, MetricsJudge
from crrd.rollout.kept import annotate
from crrd.rollout.kind import KindWriter
from crrd.rollout.process import this_process
from crrd.rollout.request_writer import RequestWriter

_PROGRESS_SECONDS = LIVE_SECONDS / 4  # Interval of writing the progress while the state is unchanged
CLEAN_UP_SECONDS = 30.0  # How long a run that ends tries to delete what it leaves behind
RECORD_SECONDS = 5.0  # How long a process tries to record how its run has ended
ANSWER_SECONDS = 5.0  # How long an interrupted command waits for the responses to its writes
_WAITS_CHARACTERS = 500  # Length limit for the waits in the progress


class Runner:
    """Carries out one run. The constructor starts nothing."""

    def __init__(
        self,
        client: KubeClient,
        cluster: Cluster,
        clock: ServerClock,
        display: RunDisplay,
        writer: KindWriter,
        *,
        times: Times,
        remedies: Remedies,
        yes: bool = False,
        resumed: bool = False,
        judge: MetricsJudge = NO_METRICS,
        allowed: Allowed = NOTHING_ALLOWED,
    ) -> None:
        """`cluster` is already entered.

        With `yes`, the user allows what follows the first part. If the user has `resumed` the run, this is also about
        the step that waits or was refused when this process begins. `remedies` are what its user can do about waits,
        `allowed` is what the user has allowed before.
        """
        self._client, self._cluster, self._clock, self._display = client, cluster, clock, display
        self.writer, self._requests, self._memo = writer, RequestWriter(writer.maker, cluster, clock), RowMemo()
        self._limits, self._is_turn = Limits(times, loop_time()), times.is_turn
        self._yes, self._resumed, self._remedies, self._judge = yes, resumed, remedies, judge
        self._allowed = allowed
        self.is_unanswered = False  # Whether the run was interrupted, and a write may still be carried out
        self._written: object = None  # The state of the progress that was written last
        self._write_at = 0.0  # The loop's time of the next write of the same state

    async def run(self, run: Run) -> Plan:
        """Continue the run until it ends. Return its last plan. `finish` follows.

        A command that is interrupted waits a moment for the responses to its writes, so that it knows what it leaves. A
        turn ends at once. Raises ConfigurationError if waiting cannot help.
        """
        try:
            return await self._run(run)
        except asyncio.CancelledError:
            if not self._is_turn:
                await self._finish_soon()
            raise
        finally:
            await self.writer.cancel()
            await self._requests.cancel()

    async def _run(self, run: Run) -> Plan:
        try:
            await self._wait_for_next_second(run)
            if not self._is_turn:  # else an earlier turn may have begun
                await self.writer.begin(run)
            plan = None
            while plan is None or plan.end is None:
                self._cluster.changed.clear()
                run, plan = await self._next(run)
        except Exception:
            await self._finish_begun()
            raise
        await self._finish_begun()
        return plan

    async def _next(self, run: Run) -> tuple[Run, Plan]:
        """Carry out the next plan. Return it, and the run with its present options."""
        trouble = await self._cluster.refresh()
        world, latest, plan = self._look(run)
        if latest != run:
            self._display.print_line("another process has changed the options of this run; using the new options")
        if self._yes and not trouble:
            self._yes = False
            if latest.options.first or (self._resumed and plan.part.waits_for_user):
                self._confirm(plan)
                world, latest, plan = self._look(run)
        if not trouble and (await self._cluster.probes.learn(plan) or await self._judge.learn(plan, latest)):
            return latest, plan.going_on()
        problem = next(iter(self._requests.problems.values()), self.writer.problem)
        plan = self._limits.apply(plan, latest, loop_time(), trouble=trouble, problem=problem)
        self._display.show(plan)
        if plan.end is End.PAUSED and not self._is_turn:
            await self.write_progress(latest, plan)  # others see what it waits for, however long the user thinks
            if await self._display.ask(plan.message):
                self._confirm(plan)
                return latest, plan.going_on()
        if plan.end is None:
            if not trouble:
                await self.write_progress(latest, plan)
            await self.writer.carry_out(latest, plan)
            progress = self._progress(plan) if plan.create else None
            annotation = progress.annotation() if progress is not None else {}
            self._requests.carry_out(latest, world, plan, annotation, partial(self._note_written, progress))
            await self._wait(plan)
        return latest, plan

    def plan(self, run: Run) -> Plan:
        """Return a plan of the present state, with what the user has allowed. Nothing of it is carried out."""
        _, _, plan = self._look(run)
        return plan

    def _look(self, run: Run) -> tuple[World, Run, Plan]:
        """Return the present state, the run with its present options, and the plan."""
        world = replace(self._cluster.world(), measured=self._judge.measured)
        latest = world.latest(run)
        plan = make_plan(world, latest, self._clock.now(), self._allowed, memo=self._memo)
        return world, latest, plan.worded(self._remedies)

    def _confirm(self, plan: Plan) -> None:
        """Record that the user allows what follows the present step, a refusal included if there is one now."""
        self._allowed = replace(self._allowed, confirmed=plan.part.number + 1)
        if plan.part.state is PartState.REFUSED and self._resumed:
            self._allowed = replace(self._allowed, overruled=plan.part.number + 1)
        self._judge.forget()
        self._limits.restart()

    async def finish(self, run: Run, plan: Plan, seconds: float) -> str:
        """Clean up after the run, for so long at most, and then record its end. Return what is left behind, or "".

        A run whose turn is over goes on, so nothing of it is cleaned up.
        """
        try:
            left = await self.writer.clean_up(seconds) if plan.end is not End.YIELDED else ""
        finally:
            write, what = partial(self._write, run, self._progress(plan)), "recording the end of the run"
            problem = await attempt(write, RECORD_SECONDS, self._display, what)
        unrecorded = f"the end of the run could not be recorded: {problem}" if problem else ""
        return "; ".join(filter(None, (left, unrecorded)))

    async def _finish_begun(self) -> None:
        """Begin nothing more. Return when the response to each write that was sent is there."""
        await self._requests.end()
        await self.writer.end()

    async def _finish_soon(self) -> None:
        """Do the same, but not for long."""
        self.is_unanswered = True  # also if it is interrupted again
        with suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_SECONDS):
                await self._finish_begun()
                self.is_unanswered = False

    def _progress(self, plan: Plan) -> Progress:
        end = plan.end
        waits = [plan.part.refusal] if plan.part.refusal else plan.waits
        if plan.part.was_refused and end not in (None, End.ABORTED):
            end = End.HALTED  # what has ended this process does not change that the judgement is no
        if self._is_turn and end is not None and end in GOES_ON:
            end, waits = End.YIELDED, [GOES_ON[end].format(message=plan.message), *waits]
        counts, at = count_done(plan.rows), rfc3339(self._clock.now())
        why, blocked, steps = "; ".join(waits)[:_WAITS_CHARACTERS], bool(plan.wait.why), plan.part.number
        return Progress(
            at, this_process(), phase_of(end, plan.phase), *counts, why, blocked=blocked, end=end, steps=steps
        )

    def _note_written(self, progress: Progress | None) -> None:
        """Record that the progress was written on a request."""
        if progress is not None:
            self._written = progress.phase, progress.blocked, progress.end, progress.steps
            self._write_at = loop_time() + _PROGRESS_SECONDS

    async def write_progress(self, run: Run, plan: Plan) -> None:
        """Write the progress on the request of the run that will live longest, if due."""
        progress = self._progress(plan)
        state = progress.phase, progress.blocked, progress.end, progress.steps
        if self._written == state and loop_time() < self._write_at:
            return
        self._note_written(progress)
        with suppress(ApiRefusedError, ApiUnavailableError):  # the next one says more
            await self._write(run, progress)

    async def _write(self, run: Run, progress: Progress) -> None:
        for each in sorted(self._cluster.world().requests_of(run), key=lambda each: each.lifetime, reverse=True):
            with suppress(GoneError):  # deleted meanwhile: the next one
                self._cluster.written(await annotate(self._client, each, progress.annotation()))
                return

    async def _wait_for_next_second(self, run: Run) -> None:
        """Wait until the second of the run's start is over, because kubelet reports start times in whole seconds.

        So containers that this run restarts start after it, and are known as done even if their request was deleted. If
        the clock was set back meanwhile, one second is all that it waits.
        """
        started = parse_time(run.started)
        if started is not None:
            await asyncio.sleep(max(0.0, min(1.0, 1.0 - (self._clock.now() - started).total_seconds())))

    async def _wait(self, plan: Plan) -> None:
        """Wait until something changes, or until the time matters."""
        seconds = self._limits.seconds_left(loop_time())
        if plan.wake_at is not None:
            seconds = min(seconds, (plan.wake_at - self._clock.now()).total_seconds())
        await self._cluster.wait(max(0.01, seconds))
