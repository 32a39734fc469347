"""The runs of one namespace, as their requests show them: how they stand, and an end to one of them."""

import asyncio
import shlex
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass

from crrd.core.api.time import rfc3339
from crrd.core.api.types import Request
from crrd.core.rollout.overview import STOPPED, RunStatus, run_status
from crrd.core.rollout.plan import End, Plan, seen_by_others
from crrd.core.rollout.run import ANNOTATION_ABORTED, LABEL_RUN, Run
from crrd.core.rollout.state import RunRequest, newest_run, read_run_request, with_latest_options
from crrd.kube.client import KubeClient
from crrd.kube.clock import ServerClock
from crrd.kube.resources import REQUESTS
from crrd.lib.errors import ApiRefusedError, ConfigurationError, GoneError
from crrd.rollout.cluster import Cluster
from crrd.rollout.command import Command
from crrd.rollout.display import Display, summary
from crrd.rollout.ending import EXIT_FAILED
from crrd.rollout.report import is_gone
from crrd.rollout.target import find_again, find_target, split_targets


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
        kept = next(
            (each for each in reversed(requests) if each.request.completed or each.started), requests[0]
        ).request
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
            async with await self.watch(run) as cluster:
                end = (await self._look(run, cluster))[1].end
        if end in (End.DONE, End.ABORTED):
            raise ConfigurationError(f"run {run.name} has already ended ({end}), so there is nothing to abort")

    async def status(self) -> int:
        """Show how a run stands; without a name, which runs there are, the newest first. Returns the exit code."""
        if not self.command.run_name:
            by_run: dict[str, list[RunRequest]] = {}
            for each in await self.requests(LABEL_RUN):
                by_run.setdefault(each.annotations.run.name, []).append(each)
            now = self.clock.now()
            runs = [run_status(newest_run(requests), requests, now, is_gone) for requests in by_run.values()]
            self.display.print_runs(sorted(runs, key=lambda each: (each.run.started, each.run.name), reverse=True))
            return 0
        run = newest_run(await self.requests_of(self.command.run_name))
        async with await self.watch(run) as cluster:
            if self.command.watch:
                return await self._follow(run, cluster)
            status, plan = await self._look(run, cluster)
        self.display.print_status(status, plan, self._again(status, plan))
        return 0

    def _again(self, status: RunStatus, plan: Plan) -> str:
        """The command that goes on with a run; "" where it goes on by itself, or is over."""
        line = self.line("resume", status.run.name)
        if plan.end is End.ASK:
            return f"{line} --yes"
        return {STOPPED: line, str(End.FAILED): f"{line} --retry-failed"}.get(status.state, "")

    async def _look(self, run: Run, cluster: Cluster) -> tuple[RunStatus, Plan]:
        world, now = cluster.world(), self.clock.now()
        run = with_latest_options(world, run)
        plan = seen_by_others(world, run, now)
        if await cluster.learn_probes(plan):
            plan = seen_by_others(cluster.world(), run, now)
        own = [each for each in world.requests if each.annotations.run.name == run.name]
        return run_status(run, own, now, is_gone, plan), plan

    async def _follow(self, run: Run, cluster: Cluster) -> int:
        """Show a run until it ends or nobody carries it out; returns 0 for one that is done."""
        self.display.begin(run, run.describe(len(cluster.world().members)))
        while True:
            cluster.changed.clear()
            await cluster.learn()
            status, plan = await self._look(run, cluster)
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
        own = [each for each in cluster.world().requests if each.annotations.run.name == run.name]
        kept = [each for each in own if each.request not in failed]
        if kept and newest_run(kept).revision < run.revision:
            name = max(kept, key=lambda each: each.age).request.name
            patch = {"metadata": {"annotations": run.annotations()}}
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
            differs = f"recreates {', '.join(run.options.containers) or 'stale containers'}, not {', '.join(given)}"
        if differs:
            again = self.line("resume", run.name)
            raise ConfigurationError(f"run {run.name} {differs}: use another --run NAME, or resume it: {again}")

    async def watch(self, run: Run) -> Cluster:
        """The pods of a run that has begun, and what else it heeds."""
        aim = await find_again(self.client, self.namespace, run.target)
        return Cluster(self.client, self.namespace, aim, run.options)

    async def requests_of(self, name: str) -> list[RunRequest]:
        """The requests of a run. Raises ConfigurationError where there are none."""
        requests = await self.requests(f"{LABEL_RUN}={name}")
        if not requests:
            where = f"namespace {self.namespace!r}"
            raise ConfigurationError(f"run {name!r} not found in {where}; to list runs: {self.line('status')}")
        return requests

    async def requests(self, selector: str) -> list[RunRequest]:
        """The requests of runs that a label selector selects."""
        listing = await self.client.list_all(
            REQUESTS, read_run_request, namespace=self.namespace, label_selector=selector
        )
        return [each for each in listing.items if each is not None]

    def line(self, verb: str, *run: str) -> str:
        """A command for a run, or for all, as it is typed: for the same cluster, with the flags that were given."""
        flags = self.command.resume_flags if verb == "resume" else ()
        arguments = [verb, *run, "-n", self.namespace, *self.command.access_flags, *flags]
        return f"{self.command.called} {shlex.join(arguments)}"
