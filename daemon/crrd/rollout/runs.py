"""The runs of one namespace, as their requests show them: how they stand, how they end, and an end to one of them."""

import asyncio
import os
import shlex
import socket
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from crrd.core.api.time import rfc3339
from crrd.core.api.types import Request
from crrd.core.rollout.overview import STOPPED, RunStatus, run_status
from crrd.core.rollout.plan import End, Plan, seen_by_others
from crrd.core.rollout.run import ANNOTATION_ABORTED, LABEL_RUN, Amount, Options, Run
from crrd.core.rollout.state import RunRequest, newest_run, read_run_request
from crrd.kube.client import KubeClient
from crrd.kube.clock import ServerClock
from crrd.kube.resources import REQUESTS, Where
from crrd.lib.errors import ApiRefusedError, ConfigurationError, GoneError
from crrd.rollout.cluster import Cluster
from crrd.rollout.display import Display, summary
from crrd.rollout.target import find_again, find_target, split_targets

EXIT_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_TIMED_OUT = 3
EXIT_INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class Command:
    """What the command line asks for."""

    called: str  # As the user called it, for commands that messages suggest
    verb: str  # "" to start a run, or to resume the one of this name
    arguments: tuple[str, ...]  # TYPE/NAME, or TYPE and NAME; the same several times
    selector: str
    run_name: str  # "" to make one up, or for `status` of all runs
    retry_failed: bool  # Restart the pods once more whose requests have failed
    options: Options
    changed_options: Mapping[str, Any]  # Options that a run that is resumed gets in place of its own
    partition: Amount | None
    since: datetime | timedelta | None  # Options.since of a new run, or how long before its start that is
    dry_run: str
    """"" to change something, else `client` or `server`, which asks the API server whether it takes the requests."""
    watch: bool  # With `status`: go on to show it
    timeout: int | None  # Seconds for the whole run; 0 for as long as it takes, None for the default
    yes: bool  # Nobody has to be asked after the first part
    output: str  # text or json
    namespace: str
    context: str
    kubeconfig: str
    access_flags: tuple[str, ...]  # The flags that say which cluster, for commands that messages suggest
    resume_flags: tuple[str, ...]  # The flags just given that `resume` takes, for the same

    @property
    def as_json(self) -> bool:
        """Whether a machine reads the output."""
        return self.output == "json"


@dataclass(frozen=True, slots=True)
class Runs:
    """A connection to one cluster, for one command. What the methods raise is in `session.execute`."""

    client: KubeClient
    clock: ServerClock  # Set by the client's answers
    namespace: str
    display: Display
    command: Command

    async def abort(self) -> int:
        """Begin nothing more of a run; returns the exit code.

        One request has to stay, because its annotation records the abort: without it, a process
        that has not read it would start the run again. If none has started, the oldest stays, and may still be served.
        """
        name = self.command.run_name
        requests = sorted(await self.requests_of(name), key=lambda each: each.age)
        await self._check_not_over(newest_run(requests))
        waiting = [each.request for each in requests if not each.request.completed and not each.started]
        under_way = sum(1 for each in requests if not each.request.completed and each.started)
        # Whoever carries the run out has to know before anything is gone; the newest lives longest.
        kept = next((each.request for each in reversed(requests) if each.request not in waiting), requests[0].request)
        patch = {"metadata": {"annotations": {ANNOTATION_ABORTED: rfc3339(self.clock.now())}}}
        await self.client.merge_patch(REQUESTS, self.namespace, kept.name, patch)
        deleted = 0
        for request in waiting:
            if request.name != kept.name:
                with suppress(GoneError):
                    await self.client.delete(REQUESTS, self.namespace, request.name, uid=request.uid)
                    deleted += 1
        rest = f"; {under_way} in progress will finish" if under_way else ""
        if kept in waiting:
            rest = f"; request {kept.name} is kept to record the abort, and may still restart pod {kept.pod_name}"
        self.display.print_line(f"run {name} aborted, pending requests deleted: {deleted}{rest}")
        return 0

    async def _check_not_over(self, run: Run) -> None:
        """Raise ConfigurationError for a run that is done or aborted."""
        end = None
        with suppress(ConfigurationError, ApiRefusedError):  # its target is gone, or may not be read
            async with await self.cluster_of(run) as cluster:
                end = (await self._status_of(run, cluster))[1].end
        if end in (End.DONE, End.ABORTED):
            raise ConfigurationError(f"run {run.name} has already ended ({end}), so there is nothing to abort")

    async def status(self) -> int:
        """Show how a run stands; without a name, which runs there are, the newest first. Returns the exit code."""
        if not self.command.run_name:
            by_run: dict[str, list[RunRequest]] = {}
            for each in await self.requests(LABEL_RUN):
                by_run.setdefault(each.run.name, []).append(each)
            now = self.clock.now()
            runs = [run_status(newest_run(requests), requests, now, is_gone) for requests in by_run.values()]
            self.display.print_runs(sorted(runs, key=lambda each: (each.run.started, each.run.name), reverse=True))
            return 0
        run = newest_run(await self.requests_of(self.command.run_name))
        async with await self.cluster_of(run) as cluster:
            if self.command.watch:
                return await self._follow(run, cluster)
            status, plan = await self._status_of(run, cluster)
        self.display.print_status(status, plan, self._again(status, plan))
        return 0

    def _again(self, status: RunStatus, plan: Plan) -> str:
        """The command that goes on with a run; "" where it goes on by itself, or is over."""
        line = self.command_line("resume", status.run.name)
        if plan.end is End.PAUSED:
            return f"{line} --yes"
        return {STOPPED: line, str(End.FAILED): f"{line} --retry-failed"}.get(status.state, "")

    async def _status_of(self, run: Run, cluster: Cluster) -> tuple[RunStatus, Plan]:
        world, now = cluster.world(), self.clock.now()
        run = world.latest(run)
        plan = seen_by_others(world, run, now)
        if await cluster.learn_probes(plan):
            plan = seen_by_others(cluster.world(), run, now)
        return run_status(run, world.requests_of(run), now, is_gone, plan), plan

    async def _follow(self, run: Run, cluster: Cluster) -> int:
        """Show a run until it ends or nobody carries it out; returns 0 for one that is done."""
        self.display.begin(run, run.describe(len(cluster.world().members)))
        while True:
            cluster.changed.clear()
            await cluster.learn()
            status, plan = await self._status_of(run, cluster)
            self.display.show(plan)
            if plan.end is not None or status.state == STOPPED:
                again = self._again(status, plan)
                self.display.end(status.state, summary(plan.rows) + (f"; to continue: {again}" if again else ""))
                return 0 if plan.outcome is End.DONE else EXIT_FAILED
            with suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await cluster.changed.wait()

    async def record_options(self, run: Run, cluster: Cluster, failed: Collection[Request]) -> None:
        """Write changed options on the newest request, which lives longest; delete those that are to be retried."""
        kept = [each for each in cluster.world().requests_of(run) if each.request not in failed]
        if kept and newest_run(kept).revision < run.revision:
            patch = {"metadata": {"annotations": run.annotations()}}
            name = kept[-1].request.name
            cluster.written(await self.client.merge_patch(REQUESTS, self.namespace, name, patch))
        for request in failed:
            with suppress(GoneError):
                await self.client.delete(REQUESTS, self.namespace, request.name, uid=request.uid)
            cluster.deleted(request.name)

    async def check_same(self, run: Run) -> None:
        """Raise ConfigurationError where the command names other pods or containers than the run to resume has."""
        command, differs = self.command, ""
        if command.arguments or command.selector:
            (arguments,) = split_targets(command.arguments)
            aim = await find_target(self.client, self.namespace, arguments, command.selector)
            if aim.target.identity != run.target.identity:
                differs = f"is on {run.target.words}, not on {aim.target.words}"
        given = command.options.containers
        if not differs and given and given != run.options.containers:
            differs = f"recreates {run.options.what}, not {', '.join(given)}"
        if differs:
            again = self.command_line("resume", run.name)
            raise ConfigurationError(f"run {run.name} {differs}: use another --run NAME, or resume it: {again}")

    async def cluster_of(self, run: Run) -> Cluster:
        """The pods of a run that has begun, and what else it heeds."""
        aim = await find_again(self.client, self.namespace, run.target)
        return Cluster(self.client, self.namespace, aim, run.options)

    async def requests_of(self, name: str) -> list[RunRequest]:
        """The requests of a run. Raises ConfigurationError where there are none."""
        requests = await self.requests(f"{LABEL_RUN}={name}")
        if not requests:
            where = f"namespace {self.namespace!r}"
            raise ConfigurationError(f"run {name!r} not found in {where}; to list runs: {self.command_line('status')}")
        return requests

    async def requests(self, selector: str) -> list[RunRequest]:
        """The requests of runs that a label selector selects."""
        where = Where(namespace=self.namespace, label_selector=selector)
        listing = await self.client.list_all(REQUESTS, read_run_request, **where)
        return [each for each in listing.items if each is not None]

    def command_line(self, verb: str, *run: str) -> str:
        """A command for a run, or for all, as it is typed: for the same cluster, with the flags that were given."""
        flags = self.command.resume_flags if verb == "resume" else ()
        arguments = [verb, *run, "-n", self.namespace, *self.command.access_flags, *flags]
        return f"{self.command.called} {shlex.join(arguments)}"


def is_gone(by: str) -> bool:
    """Whether it is for certain that the process of a run has ended: it ran on this host."""
    host, _, number = by.rpartition("/")
    if host != socket.gethostname() or not number.isdigit():
        return False
    try:
        os.kill(int(number), 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        pass
    return False


def conclude(plan: Plan, resume_command: str, *, timed_out: bool) -> tuple[str, str, int]:
    """How a run ended for this process, by its last plan: one word for machines, a sentence, and the exit code.

    `timed_out` says that the time for the whole run was over first.
    """
    message, started = summary(plan.rows), has_started(plan)
    again = f"to continue: {resume_command}" if started else "no pod was restarted"
    if timed_out:
        waits = "; ".join(plan.waits) or "nothing"
        return "timed out", f"{message}; last waited for: {waits}; {again}", EXIT_TIMED_OUT
    match plan.outcome:
        case End.PAUSED:
            return "paused", f"{message}; {plan.message}; {again}{' --yes' * started}", 0
        case End.RIVAL:
            return "stopped", f"{message}; {plan.message}", EXIT_BAD_INPUT
        case End.ABORTED:
            return "aborted", f"{message}; {plan.message}", EXIT_FAILED
        case End.FAILED:
            cause = "after fixing the cause, " if started else ""
            retry = " --retry-failed" if started and "--retry-failed" not in resume_command else ""
            return "failed", f"{message}; {cause}{again}{retry}", EXIT_FAILED
    return "done", message, 0


def has_started(plan: Plan) -> bool:
    """Whether any request of the run was created."""
    return any(row.request is not None for row in plan.rows)
