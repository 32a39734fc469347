"""One call of `crrd recreate`: starts, resumes or aborts a run, or shows runs, based on the requests in the API."""

import asyncio
import os
import secrets
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import chain
from typing import Any

from crrd.core.api.time import rfc3339
from crrd.core.rollout.overview import STOPPED
from crrd.core.rollout.plan import End, Plan, make_plan, unfinished
from crrd.core.rollout.preview import Preview, make_preview
from crrd.core.rollout.run import LABEL_RUN, Run
from crrd.core.rollout.standing import Stage, tally
from crrd.core.rollout.state import World, newest_run
from crrd.kube.client import KubeClient
from crrd.kube.clock import ServerClock
from crrd.kube.config import find_access
from crrd.kube.resources import REQUESTS
from crrd.lib.errors import ApiRefusedError, ConfigurationError, CrrdError, OutputError
from crrd.lib.output import complain
from crrd.lib.plain import plain
from crrd.rollout.cluster import Cluster
from crrd.rollout.display import Display, failures, summary
from crrd.rollout.events import WorkloadEvent, create_event
from crrd.rollout.jsonlines import JsonLines
from crrd.rollout.remedies import FLAGS
from crrd.rollout.runner import Runner
from crrd.rollout.runs import EXIT_FAILED, Command, Runs, conclude, has_started
from crrd.rollout.target import Aim, check_run, find_target, split_targets
from crrd.rollout.text import TextLines

_LETTERS = "bcdfghjklmnpqrstvwxz2456789"  # The letters of Kubernetes' generated names, which cannot form words
_FINAL_WRITES_SECONDS = 5.0  # Time limit for the last writes of an interrupted run, because the user waits after Ctrl-C
Explainer = Callable[[KubeClient, ServerClock, Mapping[str, Any]], Awaitable[str]]
"""Explains the state of a request in a few lines."""


async def execute(command: Command, explainer: Explainer) -> int:
    """Connect to the API server and carry out the command. Return the exit code.

    Raises ConfigurationError if it cannot be done and nothing was started, ApiUnavailableError, ApiRefusedError.
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    for number in (signal.SIGTERM, signal.SIGHUP):
        if task is not None and signal.getsignal(number) is not signal.SIG_IGN:  # ignored under nohup
            loop.add_signal_handler(number, task.cancel)
    clock = ServerClock()
    access = find_access(command.kubeconfig, os.environ, command.context)
    async with KubeClient(access, on_date=clock.observe) as client:
        namespace = command.namespace or (await access.current()).namespace or "default"
        display = _make_display(clock.now, as_json=command.as_json)
        return await Session(client, clock, namespace, display, command, explainer).run()


def _make_display(now: Callable[[], datetime], *, as_json: bool) -> Display:
    if as_json:
        return JsonLines(now)
    if sys.stdout.isatty():
        with suppress(ImportError):
            from crrd.rollout.table import Terminal  # noqa: PLC0415 - without rich, plain lines are shown

            if not (terminal := Terminal()).is_dumb:
                return terminal
    return TextLines()


@dataclass(frozen=True, slots=True)
class Session(Runs):
    """One call of the command."""

    explainer: Explainer

    async def run(self) -> int:
        """Carry out the command. Return the exit code."""
        verbs = {"status": self.status, "abort": self.abort, "resume": self.resume, "": self.start}
        return await verbs[self.command.verb]()

    async def start(self) -> int:
        """Start a run for each target, one after the other, or resume an existing run of the given name."""
        command = self.command
        if command.run_name and await self.requests(f"{LABEL_RUN}={command.run_name}"):
            return await self.resume()
        targets = split_targets(command.arguments)
        aims = [await find_target(self.client, self.namespace, each, command.selector) for each in targets]
        if len(aims) > 1:
            for aim in aims:  # check all targets before the first run
                async with Cluster(self.client, self.namespace, aim, command.options) as cluster:
                    self._make_run(aim, cluster)
        for done, aim in enumerate(aims, start=1):
            code, over = await self._start(aim)
            if not over:
                if left := [each.target.words for each in aims[done:]]:
                    self.display.print_line(f"not started: {', '.join(left)}")
                return code
        return 0

    def _make_run(self, aim: Aim, cluster: Cluster) -> Run:
        """Return a run for the target. Raises ConfigurationError if it is not possible."""
        command, world, now = self.command, cluster.world(), self.clock.now()
        options = replace(command.options, since=_since(command.since, now))
        name = command.run_name or _make_name(aim.target.name)
        run = Run(self.namespace, name, aim.target, options, rfc3339(now))
        check_run(world, run)
        if (first := unfinished(world, run, now)) is not None and not command.dry_run:
            way_out = f"check it with {self.command_line('status', first.name)}, then resume or abort it"
            raise ConfigurationError(f"run {first.name} on {first.target.words} is not finished: {way_out}")
        return run

    async def _start(self, aim: Aim) -> tuple[int, bool]:
        """Carry out a run for the target, or show it. Return the exit code, and whether the next target may follow."""
        command = self.command
        async with Cluster(self.client, self.namespace, aim, command.options) as cluster:
            run, world = self._make_run(aim, cluster), cluster.world()
            plan = make_plan(world, run, self.clock.now(), confirmed=True).worded(FLAGS)
            waiting = tally(plan.rows)[Stage.WAITING]
            if not waiting:
                return self._nothing_to_do(run, plan), True
            if command.partition is not None:
                first_part = min(waiting, command.partition.of(waiting))
                run = replace(run, options=replace(run.options, first=first_part))
            if command.dry_run:
                code = await self._preview(world, run)
                return code, not code
            return await self._carry_out(run, cluster, run.describe(waiting))

    async def _preview(self, world: World, run: Run) -> int:
        """Show what the run would do."""
        preview = make_preview(world, run, self.clock.now()).worded(FLAGS)
        refused = await self._refusals(run, preview) if self.command.dry_run == "server" else {}
        several = len(split_targets(self.command.arguments)) > 1
        self.display.print_preview(run.target.words, preview, refused, of_several=several)
        return EXIT_FAILED if refused else 0

    async def _refusals(self, run: Run, preview: Preview) -> dict[str, str]:
        """Return the pods whose requests the API server would reject (admission and policies), and its messages."""
        refused: dict[str, str] = {}
        for row in chain(*preview.batches, *preview.later):
            body = run.request(row.pod, row.uid, row.containers, row.failed)
            try:
                await self.client.create(REQUESTS, run.namespace, body, dry_run=True)
            except ApiRefusedError as error:
                refused[row.pod] = str(error)
        return refused

    def _nothing_to_do(self, run: Run, plan: Plan) -> int:
        """Say why no pod is recreated. Raises ConfigurationError if the user must act on the reason."""
        odd = [row for row in plan.rows if row.skip is not None and not row.skip.normal]
        if odd:
            skipped = "pod" if len(odd) == 1 else f"{len(odd)} pods are skipped, for example"
            raise ConfigurationError(f"no container can be restarted: {skipped} {odd[0].pod} ({odd[0].wait.why})")
        self.display.begin(run, run.describe(0))
        self.display.show(plan)
        self.display.end("done", "nothing to do: " + summary(plan.rows))
        return 0

    async def resume(self) -> int:
        """Continue the run of this name, or show what is left of it."""
        command, name = self.command, self.command.run_name
        run = newest_run(await self.requests_of(name))
        await self.check_same(run)
        run = run.changed(**command.changed_options)
        async with await self.cluster_of(run) as cluster:
            world, now = cluster.world(), self.clock.now()
            if name in world.aborted:
                raise ConfigurationError(f"run {name} was aborted: start a new one")
            if command.retry_failed:
                rows = make_plan(world, run, now).rows
                failed = (row.request.request.uid for row in rows if row.stage is Stage.FAILED and row.request)
                cluster.retried = frozenset(failed)
                world = cluster.world()
            if command.dry_run:
                return await self._preview(world, run)
            if (first := unfinished(world, run, now)) is not None:
                other = f"run {first.name} on {first.target.words} is not finished"
                way_out = f"finish it, or abort it: {self.command_line('abort', first.name)}"
                raise ConfigurationError(f"cannot resume run {name}: {other}; {way_out}")
            left = tally(make_plan(world, run, now, confirmed=True).rows)[Stage.WAITING]
            await self.record_options(run, cluster)
            begins = f"resuming on {run.target.words}, {left} left to restart"
            return (await self._carry_out(run, cluster, begins))[0]

    async def _carry_out(self, run: Run, cluster: Cluster, begins: str) -> tuple[int, bool]:
        """Carry out the run, with events on the workload before and after. Return the exit code, and if it is done.

        Raises CancelledError if it is interrupted or the output is closed. The run is then left as it is.
        """
        command, clock = self.command, self.clock
        parts = self.client, cluster, clock, self.display
        runner = Runner(*parts, timeout=command.timeout, confirmed=command.yes, remedies=FLAGS)
        try:
            self.display.begin(run, begins)
            await self._record(run, WorkloadEvent.RECREATING, run.describe(len(cluster.world().members)))
            plan, timed_out = await runner.run(run)
        except (asyncio.CancelledError, OutputError) as error:
            plan = make_plan(cluster.world(), run, self.clock.now()).worded(FLAGS)
            waits = f"last waited for: {'; '.join(plan.waits)}; " if plan.waits else ""
            again = f"{waits}requests in progress will finish; to continue: {self.command_line('resume', run.name)}"
            message = f"{summary(plan.rows)}; {again if has_started(plan) else 'no pod was restarted'}"
            self._end("interrupted", message)
            with suppress(TimeoutError):
                async with asyncio.timeout(_FINAL_WRITES_SECONDS):
                    await self._record(run, WorkloadEvent.INTERRUPTED, message)
                    await runner.write_progress(run, plan, STOPPED)
            raise asyncio.CancelledError from error
        if plan.outcome is End.DONE:
            await self._record(run, WorkloadEvent.RECREATED, summary(plan.rows))
        elif plan.outcome is End.FAILED:
            await self._record(run, WorkloadEvent.FAILED, f"{summary(plan.rows)}: {failures(plan.rows)}")
        outcome, message, exit_code = conclude(plan, self.command_line("resume", run.name), timed_out=timed_out)
        if outcome == "failed":
            with suppress(OutputError):  # the last line is still printed
                await self._print_failures(plan)
        if timed_out:
            await self._record(run, WorkloadEvent.TIMED_OUT, message)
        self._end(outcome, message)
        return exit_code, plan.outcome is End.DONE

    async def _record(self, run: Run, reason: WorkloadEvent, message: str) -> None:
        await create_event(self.client, self.clock.now(), run, reason, f"run {run.name}: {message}")

    async def _print_failures(self, plan: Plan) -> None:
        """Print why pods failed, and the state of their requests."""
        for row in plan.rows:
            if row.stage is not Stage.FAILED:
                continue
            explanation = ""
            if row.request is not None:
                with suppress(CrrdError):  # deleted or not readable; the failure itself is known
                    request = await self.client.get(REQUESTS, self.namespace, row.request.request.name)
                    explanation = await self.explainer(self.client, self.clock, request)
            self.display.print_line(f"{row.pod} failed: {row.wait.with_command}", explanation.splitlines())

    def _end(self, outcome: str, message: str) -> None:
        """Show the end, or print it on stderr if stdout fails."""
        try:
            self.display.end(outcome, message)
        except OutputError as error:
            complain(f"{self.command.called}: {error}; {outcome}: {plain(message)}")


def _since(given: datetime | timedelta | None, now: datetime) -> str:
    """Return the time as RFC 3339 by the API server's clock. Raises ConfigurationError."""
    if given is None:
        return ""
    moment = now - given if isinstance(given, timedelta) else given
    if moment > now:
        raise ConfigurationError(f"--since {rfc3339(moment)} must not be in the future")
    return rfc3339(moment)


def _make_name(target: str) -> str:
    """Generate a name for a run."""
    letters = "".join(secrets.choice(_LETTERS) for _ in range(5))
    return f"{(target or 'pods')[:30].rstrip('-.').replace('.', '-')}-{letters}"
