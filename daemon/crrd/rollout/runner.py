"""Carries out a run: makes a plan, refreshes files or creates one request, and repeats this until the plan ends.

The process may be killed at any point, because the next one needs only the created requests. It writes the progress of
the run on the requests, so that `status` can distinguish a running run from one whose process has ended.
"""

import asyncio
import os
import socket
from contextlib import suppress
from dataclasses import replace
from functools import partial

from crrd.core.api.time import parse_time, rfc3339
from crrd.core.rollout.image_steps import NO_STEPS, left_behind
from crrd.core.rollout.plan import End, Plan, make_plan
from crrd.core.rollout.run import LIVE_SECONDS, RUNNING, STOPPED, WAITING, Progress, Run
from crrd.core.rollout.standing import RowMemo, Stage, count_done
from crrd.core.rollout.state import World
from crrd.core.rollout.waits import Remedies, Wait
from crrd.kube.client import KubeClient
from crrd.kube.clock import ServerClock
from crrd.kube.resources import REQUESTS
from crrd.lib.errors import ApiRefusedError, ApiUnavailableError
from crrd.lib.looptime import loop_time
from crrd.rollout.cluster import Cluster
from crrd.rollout.display import RunDisplay
from crrd.rollout.image_writer import ImageWriter
from crrd.rollout.refresher import FileRefresher
from crrd.rollout.starts import Starts

PATIENCE_SECONDS = 3600.0
"""Default time without progress until the run ends. A pod that waits for a budget must not wait forever."""
NODE_SECONDS = 60.0
"""How long a run waits for nodes that are down, once no other pods are left. An update of the node daemons takes each
away for seconds. A run with an image waits as long for pods that are just being recreated."""
_TICK_SECONDS = 1.0  # Interval of updating the displayed seconds
_PROGRESS_SECONDS = LIVE_SECONDS / 4  # Interval of writing the progress while the state is unchanged
ANSWER_SECONDS = 5.0  # How long an interrupted command waits for the responses to its writes
_WAITS_CHARACTERS = 500  # Length limit for the waits in the progress


class Runner:
    """Carries out one run."""

    def __init__(
        self,
        client: KubeClient,
        cluster: Cluster,
        clock: ServerClock,
        display: RunDisplay,
        *,
        timeout: float | None,
        confirmed: bool,
        remedies: Remedies,
        patience: float | None = None,
        most: float = float("inf"),
    ) -> None:
        """The constructor starts nothing.

        `cluster` is already entered. `timeout` limits the whole run, in seconds (0: no limit). Without it, or with
        `patience`, the run ends after that time without progress. If `patience` is None, it is PATIENCE_SECONDS, or the
        time limit for one pod if that is longer. Otherwise this is one turn of a run, which continues in other turns
        until `timeout`. After `most` seconds it begins no more pods, and ends once no pod is unready and waits for its
        image.
        With `confirmed`, the user is not asked after the first part.
        `remedies` are what its user can do about waits.
        """
        self._client, self._cluster, self._clock, self._display = client, cluster, clock, display
        self._patient, self._patience = timeout is None or patience is not None, patience
        self._limit = loop_time() + timeout if timeout else float("inf")
        self._turn_ends = self._ends = min(self._limit, loop_time() + most)
        self._refresher = FileRefresher(client, cluster, display)
        self._images = ImageWriter(client, cluster, cluster.images) if cluster.images is not None else None
        self._stages: tuple[list[Stage], list[str]] | None = None  # And the pods whose files were about to be refreshed
        self._nodes_until: float | None = None  # While it waits before its end (`Plan.awaits`): when the run ends
        self._confirmed, self._remedies = confirmed, remedies
        self._starts, self._memo = Starts(client, cluster, clock), RowMemo()
        self.is_over = False  # Whether `run` was not only a turn, so its user cleans up
        self.is_unanswered = False  # Whether the run was interrupted, and a write may still be carried out
        self._written_state, self._write_at = "", 0.0  # Last written state, and the loop's time of the next write

    async def run(self, run: Run) -> tuple[Plan, bool]:
        """Continue the run until it ends. Return its last plan, and whether the run timed out.

        A command that is interrupted waits a moment for the responses to its writes, so that it knows what it leaves. A
        turn ends at once. Raises ConfigurationError if waiting cannot help.
        """
        try:
            return await self._run(run)
        except asyncio.CancelledError:
            if self._patience is None:
                await self._finish_soon()
            raise
        finally:
            if self._images is not None:
                await self._images.cancel()
            await self._starts.cancel()
            await self._refresher.cancel()

    async def _run(self, run: Run) -> tuple[Plan, bool]:
        try:
            await self._wait_for_next_second(run)
            if self._images is not None and self._patience is None:  # else an earlier turn has begun the pulls
                await self._images.begin(run)
            return await self._carry_out(run)
        except Exception:
            await self._finish_begun()
            raise

    async def _carry_out(self, run: Run) -> tuple[Plan, bool]:
        while True:
            self._cluster.changed.clear()
            trouble = await self._cluster.refresh()
            world = self._cluster.world()
            latest = world.latest(run)
            if latest != run:
                self._display.print_line("another process has changed the options of this run; using the new options")
            run = latest
            plan = make_plan(world, run, self._clock.now(), confirmed=self._confirmed, memo=self._memo)
            plan = plan.worded(self._remedies)
            if not trouble and await self._cluster.probes.learn(plan):
                continue
            if trouble and plan.end is not End.ABORTED:
                # The state may be out of date, so begin nothing and do not end the run.
                plan = replace(plan, create=(), refresh=(), image=NO_STEPS, end=None, wait=Wait(trouble))
            if loop_time() >= self._turn_ends:  # the pods under way become fewer, and the turn ends
                plan = replace(plan, create=(), refresh=())
            plan = self._wait_before_end(plan)
            if self._starts.problems and plan.end is None:
                plan = replace(plan, wait=Wait(next(iter(self._starts.problems.values()))))
            self._display.show(plan)
            self._extend_time_limit(run, world, plan)
            state = WAITING if plan.wait.why else RUNNING
            if plan.end is None and not trouble:
                await self.write_progress(run, plan, state)
            if plan.outcome is End.PAUSED and await self._display.ask(plan.message):
                self._confirmed, self._stages = True, None
                continue
            if plan.end is not None or loop_time() >= self._ends:
                await self._finish_begun()
                self.is_over = plan.end is not None or self._patience is None or loop_time() >= self._limit
                state = STOPPED if plan.outcome in (None, End.RIVAL) else str(plan.outcome)
                await self.write_progress(run, plan, state)
                return plan, plan.end is None
            if self._images is not None:
                await self._images.carry_out(run, plan)
            self._refresher.begin(plan)
            progress = self._progress(plan, state) if plan.create else {}
            self._starts.choose(run, world, plan, progress, partial(self._note_written, state))
            await self._wait(plan)

    async def _finish_begun(self) -> None:
        """Begin nothing more. Return when the response to each write that was sent is there."""
        await self._starts.finish()
        if self._images is not None:
            await self._images.end()

    async def _finish_soon(self) -> None:
        """Do the same, but not for long."""
        self.is_unanswered = True  # also if it is interrupted again
        with suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_SECONDS):
                await self._finish_begun()
                self.is_unanswered = False

    def _wait_before_end(self, plan: Plan) -> Plan:
        """Return the plan without an end while nodes may still come back, or pods are being recreated."""
        if plan.end is None or not plan.awaits.why:
            self._nodes_until = None if plan.create or plan.refresh else self._nodes_until
            return plan
        now = loop_time()
        self._nodes_until = self._nodes_until or now + NODE_SECONDS
        until = min(self._nodes_until, self._limit) if plan.end is End.DONE else self._nodes_until
        return replace(plan, end=None, wait=plan.awaits) if now < until else plan

    def _extend_time_limit(self, run: Run, world: World, plan: Plan) -> None:
        """Extend the time limit after progress, but not beyond one for the whole run."""
        stages = [row.stage for row in plan.rows], [row.uid for row, _ in plan.refresh]
        if self._patient and stages != self._stages:
            of_a_pod = run.options.pod_timeout + world.min_ready(run)
            seconds = max(PATIENCE_SECONDS, of_a_pod) if self._patience is None else self._patience
            self._stages, self._ends = stages, min(self._turn_ends, loop_time() + seconds)
        images = self._images is not None and self._patience is not None
        if images and (world.starting or left_behind(run, plan.rows)):  # a pod is unready, and waits for its image
            self._ends = min(self._limit, max(self._ends, loop_time() + _TICK_SECONDS))

    def _progress(self, plan: Plan, state: str) -> dict[str, str]:
        """Return the progress as annotation of a request."""
        process, waits = f"{socket.gethostname()}/{os.getpid()}", "; ".join(plan.waits)[:_WAITS_CHARACTERS]
        return Progress(rfc3339(self._clock.now()), process, state, *count_done(plan.rows), waits).annotation()

    def _note_written(self, state: str) -> None:
        """Record that the progress was written on a request."""
        self._written_state, self._write_at = state, loop_time() + _PROGRESS_SECONDS

    async def write_progress(self, run: Run, plan: Plan, state: str) -> None:
        """Write the progress on the run's newest request, if due."""
        if state == self._written_state and loop_time() < self._write_at:
            return
        if own := self._cluster.world().requests_of(run):
            self._note_written(state)
            body = {"metadata": {"annotations": self._progress(plan, state)}}
            with suppress(ApiRefusedError, ApiUnavailableError):  # optional: the requests have all other state
                name = own[-1].request.name
                self._cluster.written(await self._client.merge_patch(REQUESTS, run.namespace, name, body))

    async def _wait_for_next_second(self, run: Run) -> None:
        """Wait until the second of the run's start is over, because kubelet reports start times in whole seconds.

        So containers that this run restarts start after it, and are known as done even if their request was deleted.
        """
        started = parse_time(run.started)
        if started is not None:
            await asyncio.sleep(max(0.0, 1.0 - (self._clock.now() - started).total_seconds()))

    async def _wait(self, plan: Plan) -> None:
        """Wait until something changes, or until the time matters."""
        seconds = min(_TICK_SECONDS, self._ends - loop_time())
        if plan.wake_at is not None:
            seconds = min(seconds, (plan.wake_at - self._clock.now()).total_seconds())
        await self._cluster.wait(max(0.01, seconds))
