"""One use of `crrd recreate`: starts, resumes or aborts a run, or shows how runs stand, by the requests in the API."""

import asyncio
import os
import secrets
import shlex
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from crrd.core.api.time import rfc3339
from crrd.core.rollout.plan import End, Plan, make_plan, seen_by_others, unfinished
from crrd.core.rollout.preview import make_preview
from crrd.core.rollout.run import ANNOTATION_ABORTED, LABEL_RUN, Amount, Options, Run
from crrd.core.rollout.standing import Stage, tally
from crrd.core.rollout.state import RunRequest, newest_run, read_run_request
from crrd.kube.client import KubeClient
from crrd.kube.clock import ServerClock
from crrd.kube.config import find_access
from crrd.kube.resources import REQUESTS
from crrd.lib.errors import ConfigurationError, CrrdError, GoneError, OutputError
from crrd.lib.output import complain
from crrd.lib.plain import plain
from crrd.rollout.cluster import Cluster
from crrd.rollout.display import Display, reason_of, summary, waits_of
from crrd.rollout.ending import conclude, has_begun
from crrd.rollout.events import WorkloadEvent, create_event
from crrd.rollout.jsonlines import JsonLines
from crrd.rollout.runner import Runner
from crrd.rollout.target import check_run, find_again, find_target

_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
"""As Kubernetes makes up names: nothing that spells words."""
Explainer = Callable[[KubeClient, ServerClock, Mapping[str, Any]], Awaitable[str]]
"""Says in some lines where a request stands."""


@dataclass(frozen=True, slots=True)
class Command:
    """What the command line asks for."""

    program: str
    """As the user called it, for commands that messages suggest."""
    verb: str
    """"" to start a run, or to resume the one of this name."""
    words: tuple[str, ...]
    """TYPE/NAME, or TYPE and NAME."""
    selector: str
    run_name: str
    """"" to make one up, or for `status` of all runs."""
    options: Options
    changes: Mapping[str, Any]
    """Options that a run that is resumed gets in place of its own."""
    partition: Amount | None
    since: datetime | timedelta | None
    """Options.since of a new run, or how long before its start that is."""
    dry_run: bool
    timeout: int
    """Seconds for the whole run; 0 for as long as it takes."""
    confirmed: bool
    """Nobody has to be asked after the first part."""
    as_json: bool
    namespace: str
    context: str
    kubeconfig: str
    access_flags: tuple[str, ...]
    """The flags that say which cluster, for commands that messages suggest."""


async def execute(command: Command, explainer: Explainer) -> int:
    """Connect to the API server and do what is asked; returns the exit code.

    Raises ConfigurationError where it cannot be done and nothing was begun, ApiUnavailableError, ApiRefusedError.
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    for number in (signal.SIGTERM, signal.SIGHUP):
        if task is not None and signal.getsignal(number) is not signal.SIG_IGN:  # as nohup has it
            loop.add_signal_handler(number, task.cancel)
    clock = ServerClock()
    access = find_access(command.kubeconfig, os.environ, command.context)
    async with KubeClient(access, on_date=clock.observe) as client:
        namespace = command.namespace or (await access.current()).namespace or "default"
        display = _make_display(clock.now, as_json=command.as_json)
        session = Session(client, clock, namespace, display, command, explainer)
        match command.verb:
            case "status":
                return await session.status()
            case "abort":
                return await session.abort()
            case "resume":
                return await session.resume()
        return await session.start()


def _make_display(now: Callable[[], datetime], *, as_json: bool) -> Display:
    if as_json:
        return JsonLines(now)
    if sys.stdout.isatty():
        with suppress(ImportError):
            from crrd.rollout.table import Terminal  # noqa: PLC0415 - rich is not everywhere: lines do as well

            return Terminal()
    return Display()


@dataclass(frozen=True, slots=True)
class Session:
    """A connection to one cluster, for one command. What the methods raise is in `execute`; all return exit codes."""

    client: KubeClient
    clock: ServerClock
    """Set by the client's answers."""
    namespace: str
    display: Display
    command: Command
    explainer: Explainer

    async def start(self) -> int:
        """Start a run and carry it out; the one of that name, where there is one already, is resumed."""
        command = self.command
        if command.run_name and await self._requests(f"{LABEL_RUN}={command.run_name}"):
            return await self.resume()
        aim = await find_target(self.client, self.namespace, command.words, command.selector)
        async with Cluster(self.client, self.namespace, aim, command.options) as cluster:
            world, now = cluster.world(), self.clock.now()
            options = replace(command.options, since=_since(command.since, now))
            run = Run(
                self.namespace, command.run_name or _make_name(aim.target.name), aim.target, options, rfc3339(now)
            )
            check_run(world, run)
            if (first := unfinished(world, run, now)) is not None and not command.dry_run:
                raise ConfigurationError(
                    f"run {first.name} on {first.target.words} is not finished: check it with "
                    f"{self._line('status', first.name)}, then resume or abort it"
                )
            plan = make_plan(world, run, now, confirmed=True)
            waiting = tally(plan.rows)[Stage.WAITING]
            if not waiting:
                return self._nothing_to_do(plan)
            if command.partition is not None:
                first_part = min(waiting, command.partition.of(waiting))
                run = replace(run, options=replace(run.options, first=first_part))
            if command.dry_run:
                self.display.print_preview(make_preview(world, run, now))
                return 0
            return await self._carry_out(run, cluster, run.describe(waiting))

    def _nothing_to_do(self, plan: Plan) -> int:
        """Say why no pod is recreated. Raises ConfigurationError for a reason that somebody has to see to."""
        odd = [row for row in plan.rows if row.skip is not None and not row.skip.normal]
        if odd:
            pods = "" if len(odd) == 1 else f" ({len(odd)} pods)"
            raise ConfigurationError(f"no container can be restarted: {odd[0].pod}: {odd[0].why}{pods}")
        self.display.show(plan)
        self.display.end("done", "nothing to do: " + summary(plan.rows))
        return 0

    async def resume(self) -> int:
        """Go on with the run of this name, or show what is left of it."""
        command, name = self.command, self.command.run_name
        run = newest_run(await self._requests_of(name))
        await self._check_same(run)
        run = replace(run, options=replace(run.options, **command.changes))
        async with await self._watch(run) as cluster:
            world, now = cluster.world(), self.clock.now()
            if name in world.aborted:
                raise ConfigurationError(f"run {name} was aborted: start a new one")
            if command.dry_run:
                self.display.print_preview(make_preview(world, run, now))
                return 0
            if (first := unfinished(world, run, now)) is not None:
                raise ConfigurationError(
                    f"run {first.name} on {first.target.words} is in progress: abort one of the two"
                )
            left = tally(make_plan(world, run, now, confirmed=True).rows)[Stage.WAITING]
            return await self._carry_out(run, cluster, f"resuming on {run.target.words}, {left} left to restart")

    async def _check_same(self, run: Run) -> None:
        """Raise ConfigurationError where the command names other pods or containers than the run to resume has."""
        command, differs = self.command, ""
        if command.words or command.selector:
            aim = await find_target(self.client, self.namespace, command.words, command.selector)
            if aim.target.identity != run.target.identity:
                differs = f"is on {run.target.words}, not on {aim.target.words}"
        given = command.options.containers
        if not differs and given and given != run.options.containers:
            differs = f"recreates {', '.join(run.options.containers)}, not {', '.join(given)}"
        if differs:
            again = self._line("resume", run.name)
            raise ConfigurationError(f"run {run.name} {differs}: use another --run NAME, or resume it: {again}")

    async def _carry_out(self, run: Run, cluster: Cluster, begins: str) -> int:
        """Carry out the run, with events on the workload before and after.

        Raises CancelledError where it is interrupted, or nobody reads the output: the run is left as it is.
        """
        command, clock = self.command, self.clock
        runner = Runner(self.client, cluster, clock, self.display, timeout=command.timeout, confirmed=command.confirmed)
        try:
            self.display.begin(run, begins)
            await self._record(run, WorkloadEvent.RECREATING, run.describe(len(cluster.world().members)))
            plan, timed_out = await runner.run(run)
        except (asyncio.CancelledError, OutputError) as error:
            plan = make_plan(cluster.world(), run, self.clock.now())
            waits = f"last waited for: {'; '.join(waits_of(plan))}; " if waits_of(plan) else ""
            again = f"{waits}requests in progress will finish; to continue: {self._line('resume', run.name)}"
            self._end("interrupted", f"{summary(plan.rows)}; {again if has_begun(plan) else 'no pod was restarted'}")
            raise asyncio.CancelledError from error
        failures = "; ".join(f"{row.pod}: {row.why}" for row in plan.rows if row.stage is Stage.FAILED)
        if plan.end is End.DONE and not failures:
            await self._record(run, WorkloadEvent.RECREATED, summary(plan.rows))
        elif plan.end in (End.DONE, End.FAILED):
            await self._record(run, WorkloadEvent.FAILED, f"{summary(plan.rows)}: {failures}")
        ending = conclude(plan, self._line("resume", run.name), timed_out=timed_out)
        if ending.outcome == "failed":
            with suppress(OutputError):  # the end is told all the same
                await self._print_failures(plan)
        self._end(ending.outcome, ending.message)
        return ending.exit_code

    async def _record(self, run: Run, reason: WorkloadEvent, message: str) -> None:
        await create_event(self.client, self.clock.now(), run, reason, f"run {run.name}: {message}")

    async def _print_failures(self, plan: Plan) -> None:
        """Print why pods failed, and where their requests stand."""
        for row in plan.rows:
            if row.stage is not Stage.FAILED:
                continue
            self.display.say(f"{row.pod} failed: {reason_of(row)}")
            if row.request is None or self.command.as_json:
                continue
            with suppress(CrrdError):  # gone, or not to be read: its own words stand above
                request = await self.client.get(REQUESTS, self.namespace, row.request.request.name)
                explanation = await self.explainer(self.client, self.clock, request)
                print("\n".join(f"  {line}" for line in explanation.splitlines()))

    async def abort(self) -> int:
        """Begin nothing more of a run.

        The mark on one of its requests says that it was aborted, so one request has to stay: without any, a process
        that missed the mark would begin the run anew. Where none has begun, the oldest stays, and may still be served.
        """
        name = self.command.run_name
        requests = sorted(await self._requests_of(name), key=lambda each: each.age)
        waiting = [each.request for each in requests if not each.request.completed and not each.begun]
        under_way = sum(1 for each in requests if not each.request.completed and each.begun)
        # Whoever carries the run out has to know before anything is gone; the newest lives longest.
        marked = next(
            (each for each in reversed(requests) if each.request.completed or each.begun), requests[0]
        ).request
        mark = {"metadata": {"annotations": {ANNOTATION_ABORTED: rfc3339(self.clock.now())}}}
        await self.client.merge_patch(REQUESTS, self.namespace, marked.name, mark)
        deleted = 0
        for request in waiting:
            if request.name != marked.name:
                with suppress(GoneError):
                    await self.client.delete(REQUESTS, self.namespace, request.name, uid=request.uid)
                    deleted += 1
        rest = f"; in progress, to finish on their own: {under_way}" if under_way else ""
        if marked in waiting:
            rest = f"; request {marked.name} is kept to record the abort, and may still run"
        self.display.say(f"run {name} aborted, pending requests deleted: {deleted}{rest}")
        return 0

    async def status(self) -> int:
        """Show how a run stands; without a name, which runs there are, the newest first."""
        if not self.command.run_name:
            by_run: dict[str, list[RunRequest]] = {}
            for each in await self._requests(LABEL_RUN):
                by_run.setdefault(each.mark.run.name, []).append(each)
            runs = [(newest_run(requests), requests) for requests in by_run.values()]
            self.display.print_runs(sorted(runs, key=lambda pair: (pair[0].started, pair[0].name), reverse=True))
            return 0
        run = newest_run(await self._requests_of(self.command.run_name))
        async with await self._watch(run) as cluster:
            plan = seen_by_others(cluster.world(), run, self.clock.now())
        self.display.print_status(run, plan)
        return 0

    async def _watch(self, run: Run) -> Cluster:
        """The pods of a run that has begun, and what else it heeds."""
        aim = await find_again(self.client, self.namespace, run.target)
        return Cluster(self.client, self.namespace, aim, run.options)

    async def _requests_of(self, name: str) -> list[RunRequest]:
        """The requests of a run. Raises ConfigurationError where there are none."""
        requests = await self._requests(f"{LABEL_RUN}={name}")
        if not requests:
            where = f"namespace {self.namespace!r}"
            raise ConfigurationError(f"run {name!r} not found in {where}; to list runs: {self._line('status')}")
        return requests

    async def _requests(self, selector: str) -> list[RunRequest]:
        listing = await self.client.list_all(
            REQUESTS, read_run_request, namespace=self.namespace, label_selector=selector
        )
        return [each for each in listing.items if each is not None]

    def _line(self, verb: str, *run: str) -> str:
        """A command for a run, or for all, as it is typed: for the same namespace of the same cluster."""
        words = [verb, *run, "-n", self.namespace, *self.command.access_flags]
        return f"{self.command.program} {shlex.join(words)}"

    def _end(self, outcome: str, message: str) -> None:
        """Show the end; on stderr where stdout takes nothing more."""
        try:
            self.display.end(outcome, message)
        except OutputError as error:
            complain(f"{self.command.program}: {error}; {outcome}: {plain(message)}")


def _since(given: datetime | timedelta | None, now: datetime) -> str:
    """RFC 3339, by the API server's clock. Raises ConfigurationError."""
    if given is None:
        return ""
    moment = now - given if isinstance(given, timedelta) else given
    if moment > now:
        raise ConfigurationError(f"--since {rfc3339(moment)} must not be in the future")
    return rfc3339(moment)


def _make_name(target: str) -> str:
    """A name for a run that nobody has named."""
    letters = "".join(secrets.choice(_LETTERS) for _ in range(5))
    return f"{(target or 'pods')[:30].rstrip('-.').replace('.', '-')}-{letters}"
