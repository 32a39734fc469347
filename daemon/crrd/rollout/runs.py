"""The runs of one namespace, as their requests show them: how they stand, and an end to one of them."""

import shlex
from contextlib import suppress
from dataclasses import dataclass

from crrd.core.api.time import rfc3339
from crrd.core.rollout.plan import seen_by_others
from crrd.core.rollout.run import ANNOTATION_ABORTED, LABEL_RUN, Run
from crrd.core.rollout.state import RunRequest, newest_run, read_run_request
from crrd.kube.client import KubeClient
from crrd.kube.clock import ServerClock
from crrd.kube.resources import REQUESTS
from crrd.lib.errors import ConfigurationError, GoneError
from crrd.rollout.cluster import Cluster
from crrd.rollout.command import Command
from crrd.rollout.display import Display
from crrd.rollout.target import find_again


@dataclass(frozen=True, slots=True)
class Runs:
    """A connection to one cluster, for one command. What the methods raise is in `session.execute`."""

    client: KubeClient
    clock: ServerClock
    """Set by the client's answers."""
    namespace: str
    display: Display
    command: Command

    async def abort(self) -> int:
        """Begin nothing more of a run; returns the exit code.

        The mark on one of its requests says that it was aborted, so one request has to stay: without any, a process
        that missed the mark would begin the run anew. Where none has begun, the oldest stays, and may still be served.
        """
        name = self.command.run_name
        requests = sorted(await self.requests_of(name), key=lambda each: each.age)
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
        """Show how a run stands; without a name, which runs there are, the newest first. Returns the exit code."""
        if not self.command.run_name:
            by_run: dict[str, list[RunRequest]] = {}
            for each in await self.requests(LABEL_RUN):
                by_run.setdefault(each.mark.run.name, []).append(each)
            runs = [(newest_run(requests), requests) for requests in by_run.values()]
            self.display.print_runs(sorted(runs, key=lambda pair: (pair[0].started, pair[0].name), reverse=True))
            return 0
        run = newest_run(await self.requests_of(self.command.run_name))
        async with await self.watch(run) as cluster:
            plan = seen_by_others(cluster.world(), run, self.clock.now())
        self.display.print_status(run, plan)
        return 0

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
        words = [verb, *run, "-n", self.namespace, *self.command.access_flags, *flags]
        return f"{self.command.program} {shlex.join(words)}"
