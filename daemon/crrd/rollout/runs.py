"""The runs of one namespace, read from their requests: their status, how they ended, and aborting one."""

import asyncio
import os
import shlex
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from crrd.core.api.time import rfc3339
from crrd.core.rollout.overview import RUNNING, STOPPED, WAITING, RunStatus, run_status
from crrd.core.rollout.plan import End, Plan, seen_by_others
from crrd.core.rollout.run import ANNOTATION_ABORTED, LABEL_RUN, Amount, Options, Run
from crrd.core.rollout.state import RunRequest, newest_run, read_run_request
from crrd.core.rollout.waits import Wait
from crrd.kube.client import KubeClient
from crrd.kube.clock import ServerClock
from crrd.kube.resources import REQUESTS, Where
from crrd.lib.errors import ApiRefusedError, ConfigurationError, GoneError
from crrd.rollout.cluster import Cluster
from crrd.rollout.display import Display, summary
from crrd.rollout.remedies import FLAGS
from crrd.rollout.target import find_again, find_target, split_targets

EXIT_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_TIMED_OUT = 3
EXIT_INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class Command:
    """The parsed command line."""

    called: str  # The command as the user called it, for messages that suggest commands
    verb: str  # "" starts a run, or resumes the run with this name
    arguments: tuple[str, ...]  # TYPE/NAME, or TYPE and NAME; may be several
    selector: str
    run_name: str  # "" to generate a name, or for `status` of all runs
    retry_failed: bool  # Restart the pods of failed requests again
    options: Options
    changed_options: Mapping[str, Any]  # Options that replace those of a resumed run
    partition: Amount | None
    since: datetime | timedelta | None  # Options.since of a new run, or the time before its start
    dry_run: str
    """Empty to make changes, else `client`, or `server` to check whether the API server accepts the requests."""
    watch: bool  # With `status`: keep showing it
    timeout: int | None  # Seconds for the whole run. 0 for no limit, None for the default
    yes: bool  # Do not ask after the first part
    output: str  # text or json
    namespace: str
    context: str
    kubeconfig: str
    access_flags: tuple[str, ...]  # The given flags that select the cluster, for messages that suggest commands
    resume_flags: tuple[str, ...]  # The given flags that `resume` accepts, for the same purpose

    @property
    def as_json(self) -> bool:
        """Whether the output is for programs."""
        return self.output == "json"


@dataclass(frozen=True, slots=True)
class Runs:
    """A connection to one cluster, for one command. For the errors of its methods see `session.execute`."""

    client: KubeClient
    clock: ServerClock  # Set by the responses to the client
    namespace: str
    display: Display
    command: Command

    async def abort(self) -> int:
        """Abort a run: begin no more pods of it. Return the exit code.

        One request must be kept, because its annotation records the abort. Without it, a process that has not read it
        would start the run again. If no request has started, the oldest is kept, and it may still be served.
        """
        name = self.command.run_name
        requests = sorted(await self.requests_of(name), key=lambda each: each.age)
        await self._check_not_over(newest_run(requests))
        waiting = [each.request for each in requests if not each.request.completed and not each.started]
        under_way = sum(1 for each in requests if not each.request.completed and each.started)
        # The process of the run must see the abort before requests are deleted. The newest request lives longest.
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
        """Raise ConfigurationError if a run is done or aborted."""
        end = None
        with suppress(ConfigurationError, ApiRefusedError):  # the target was deleted, or a right is missing
            async with await self.cluster_of(run) as cluster:
                end = (await self._status_of(run, cluster))[1].end
        if end in (End.DONE, End.ABORTED):
            raise ConfigurationError(f"run {run.name} has already ended ({end}), so there is nothing to abort")

    async def status(self) -> int:
        """Show the status of a run, or list all runs, the newest first, if no name is given. Return the exit code."""
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
        """Return the command that continues a run, or "" if it is running or over."""
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
        plan = plan.worded(FLAGS)
        return run_status(run, world.requests_of(run), now, is_gone, plan), plan

    async def _follow(self, run: Run, cluster: Cluster) -> int:
        """Show a run until it ends or its process has stopped. Return 0 if it is done."""
        self.display.begin(run, run.describe(len(cluster.world().members)))
        trouble = ""
        while True:
            cluster.changed.clear()
            before, trouble = trouble, await cluster.refresh()
            outdated = trouble or before  # the first changes after a trouble may still be on their way
            status, plan = await self._status_of(run, cluster)
            self.display.show(replace(plan, wait=Wait(outdated)) if outdated else plan)
            if not outdated and status.state not in (RUNNING, WAITING):
                again = self._again(status, plan)
                self.display.end(status.state, summary(plan.rows) + (f"; to continue: {again}" if again else ""))
                return 0 if plan.outcome is End.DONE else EXIT_FAILED
            with suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await cluster.changed.wait()

    async def record_options(self, run: Run, cluster: Cluster) -> None:
        """Write changed options to the newest request, which lives longest."""
        own = cluster.world().requests_of(run)
        if own and newest_run(own).revision < run.revision:
            patch = {"metadata": {"annotations": run.annotations()}}
            name = own[-1].request.name
            cluster.written(await self.client.merge_patch(REQUESTS, self.namespace, name, patch))

    async def check_same(self, run: Run) -> None:
        """Raise ConfigurationError if the command has other pods or containers than the run to resume."""
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
        """Return the pods of an existing run, and the other objects that it needs."""
        aim = await find_again(self.client, self.namespace, run.target)
        return Cluster(self.client, self.namespace, aim, run.options)

    async def requests_of(self, name: str) -> list[RunRequest]:
        """Return the requests of a run. Raises ConfigurationError if there are none."""
        requests = await self.requests(f"{LABEL_RUN}={name}")
        if not requests:
            where = f"namespace {self.namespace!r}"
            raise ConfigurationError(f"run {name!r} not found in {where}; to list runs: {self.command_line('status')}")
        return requests

    async def requests(self, selector: str) -> list[RunRequest]:
        """Return the requests of runs that match a label selector."""
        where = Where(namespace=self.namespace, label_selector=selector)
        listing = await self.client.list_all(REQUESTS, read_run_request, **where)
        return [each for each in listing.items if each is not None]

    def command_line(self, verb: str, *run: str) -> str:
        """Return a command for one or all runs, for the same cluster and with the flags that were given."""
        flags = self.command.resume_flags if verb == "resume" else ()
        arguments = [verb, *run, "-n", self.namespace, *self.command.access_flags, *flags]
        return f"{self.command.called} {shlex.join(arguments)}"


def is_gone(by: str) -> bool:
    """Whether the process of a run has certainly ended. Known only for processes of this host."""
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
    """Return how a run ended for this process, by its last plan: one word for programs, a sentence, and the exit code.

    `timed_out` means that the time limit of the whole run was reached first.
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
