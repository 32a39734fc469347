"""Carries out a run: makes a plan, refreshes files or creates one request, and repeats this until the plan ends.

The process may be killed at any point, because the next one needs only the created requests. It writes the progress of
the run on the requests, so that `status` can distinguish a running run from one whose process has ended.
"""

import asyncio
import os
import socket
import time
from contextlib import suppress
from dataclasses import replace

from crrd.core.api.time import parse_time, rfc3339
from crrd.core.api.types import LABEL_ACTIVE
from crrd.core.rollout.overview import LIVE_SECONDS, RUNNING, STOPPED, WAITING
from crrd.core.rollout.plan import End, Plan, make_plan
from crrd.core.rollout.requests import read_run_request
from crrd.core.rollout.rivals import taken_over
from crrd.core.rollout.run import Progress, Run
from crrd.core.rollout.standing import Row, Stage, count_done
from crrd.core.rollout.waits import Remedies, Wait
from crrd.kube.client import KubeClient
from crrd.kube.clock import ServerClock
from crrd.kube.resources import REQUESTS
from crrd.lib.backoff import Backoff
from crrd.lib.errors import ApiRefusedError, ApiUnavailableError, ConfigurationError, ConflictError, GoneError
from crrd.lib.jsonfields import mapping
from crrd.rollout.cluster import Cluster
from crrd.rollout.display import RunDisplay
from crrd.rollout.refresher import FileRefresher, lacks_right

_RETRY = Backoff(initial=0.5, factor=2.0, maximum=8.0, jitter=0.5)
PATIENCE_SECONDS = 3600.0
"""Default time without progress until the run ends. A pod that waits for a budget must not wait forever."""
NODE_SECONDS = 60.0
"""How long a run waits for nodes that are down, once no other pods are left. An update of the node daemons takes each
away for seconds."""
_TICK_SECONDS = 1.0  # Interval of updating the displayed seconds
_PROGRESS_SECONDS = LIVE_SECONDS / 4  # Interval of writing the progress while the state is unchanged
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
    ) -> None:
        """The constructor starts nothing.

        `cluster` is already entered. `timeout` limits the whole run, in seconds (0: no limit). Without it, or with
        `patience`, the run ends after that time without progress. If `patience` is None, it is PATIENCE_SECONDS, or the
        time limit for one pod if that is longer. With `confirmed`, the user is not asked after the first part.
        `remedies` are what its user can do about waits.
        """
        self._client, self._cluster, self._clock, self._display = client, cluster, clock, display
        self._patient, self._patience = timeout is None or patience is not None, patience
        self._ends = self._limit = time.monotonic() + timeout if timeout else float("inf")
        self._refresher = FileRefresher(client, cluster, display)
        self._stages: tuple[list[Stage], list[str]] | None = None  # And the pods whose files were about to be refreshed
        self._nodes_until: float | None = None  # When only pods on nodes that are down are left: when the run ends
        self._confirmed, self._remedies = confirmed, remedies
        self._written_state, self._write_at = "", 0.0  # Last written state, and the time (monotonic) of the next write

    async def run(self, run: Run) -> tuple[Plan, bool]:
        """Continue the run until it ends. Return its last plan, and whether the run timed out.

        Raises ConfigurationError if waiting cannot help.
        """
        await self._wait_for_next_second(run)
        while True:
            self._cluster.changed.clear()
            trouble = await self._cluster.refresh()
            world = self._cluster.world()
            latest = world.latest(run)
            if latest != run:
                self._display.print_line("another process has changed the options of this run; using the new options")
            run = latest
            plan = make_plan(world, run, self._clock.now(), confirmed=self._confirmed).worded(self._remedies)
            if not trouble and await self._cluster.learn_probes(plan):
                continue
            if trouble and plan.end is not End.ABORTED:
                # The state may be out of date, so begin nothing and do not end the run.
                plan = replace(plan, create=(), refresh=(), end=None, wait=Wait(trouble))
            plan = self._wait_for_nodes(plan)
            self._display.show(plan)
            self._extend_time_limit(run, plan)
            if plan.end is None and not trouble:
                await self.write_progress(run, plan)
            if plan.end is End.PAUSED and await self._display.ask(plan.message):
                self._confirmed, self._stages = True, None
                continue
            if plan.end is not None or time.monotonic() >= self._ends:
                state = STOPPED if plan.outcome in (None, End.RIVAL) else str(plan.outcome)
                await self.write_progress(run, plan, state)
                return plan, plan.end is None
            if plan.refresh:
                await self._refresher.refresh(plan)
            elif plan.create:
                await self._create(run, plan)
            else:
                await self._wait(plan)

    def _wait_for_nodes(self, plan: Plan) -> Plan:
        """Return the plan without an end while nodes may still come back."""
        if plan.end is not End.INCOMPLETE:
            self._nodes_until = None if plan.create or plan.refresh else self._nodes_until
            return plan
        now = time.monotonic()
        self._nodes_until = self._nodes_until or now + NODE_SECONDS
        return replace(plan, end=None, wait=Wait(plan.message)) if now < self._nodes_until else plan

    def _extend_time_limit(self, run: Run, plan: Plan) -> None:
        """Extend the time limit after progress, but not beyond one for the whole run."""
        stages = [row.stage for row in plan.rows], [row.uid for row, _ in plan.refresh]
        if self._patient and stages != self._stages:
            of_a_pod = run.options.pod_timeout + self._cluster.world().min_ready(run)
            seconds = max(PATIENCE_SECONDS, of_a_pod) if self._patience is None else self._patience
            self._stages, self._ends = stages, min(self._limit, time.monotonic() + seconds)

    def _progress(self, plan: Plan, state: str) -> dict[str, str]:
        """Return the progress as annotation of a request that is written now."""
        self._written_state, self._write_at = state, time.monotonic() + _PROGRESS_SECONDS
        process, waits = f"{socket.gethostname()}/{os.getpid()}", "; ".join(plan.waits)[:_WAITS_CHARACTERS]
        return Progress(rfc3339(self._clock.now()), process, state, *count_done(plan.rows), waits).annotation()

    async def write_progress(self, run: Run, plan: Plan, state: str = "") -> None:
        """Write the progress on the run's newest request, if due. `state` is given when the process ends."""
        state = state or _state(plan)
        own = self._cluster.world().requests_of(run)
        if not own or (state == self._written_state and time.monotonic() < self._write_at):
            return
        body = {"metadata": {"annotations": self._progress(plan, state)}}
        with suppress(ApiRefusedError, ApiUnavailableError):  # progress is optional: the requests have all other state
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
        seconds = min(_TICK_SECONDS, self._ends - time.monotonic())
        if plan.wake_at is not None:
            seconds = min(seconds, (plan.wake_at - self._clock.now()).total_seconds())
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.01, seconds)):
                await self._cluster.changed.wait()

    async def _create(self, run: Run, plan: Plan) -> None:
        """Create the first request. Return when it is known whether it exists, so that budgets are respected."""
        row = plan.create[0]
        body = run.request(row.pod, row.uid, row.containers, row.failed)
        body["metadata"]["annotations"] |= self._progress(plan, _state(plan))
        failures = 0
        while time.monotonic() < self._ends:
            try:
                if not await self._is_still_next(run, row):
                    return
                for old in taken_over(self._cluster.world(), run, row.uid):
                    with suppress(GoneError):
                        await self._client.delete(REQUESTS, run.namespace, old.request.name, uid=old.request.uid)
                made = await self._client.create(REQUESTS, run.namespace, body)
            except ConflictError:
                await self._take_over(run, row)
                return
            except ApiRefusedError as error:
                await self._handle_denial(run, row, error)
                return
            except ApiUnavailableError as error:
                failures += 1
                reason = f"cannot create the ContainerRecreateRequest, retrying: {error}"
                self._display.show(replace(plan, create=(), wait=Wait(reason)))
                await asyncio.sleep(max(_RETRY.delay(failures), error.retry_after))
            else:
                await self._check_admission_labels(run, made)
                self._cluster.written(made)
                return

    async def _is_still_next(self, run: Run, row: Row) -> bool:
        """Whether the pod is still next, based on a fresh read of it, because the watch may lag.

        Otherwise a pod could be restarted twice if its first request has ended and was deleted.
        """
        await self._cluster.look_again(row.pod)
        plan = make_plan(self._cluster.world(), run, self._clock.now(), confirmed=self._confirmed)
        return any(each.uid == row.uid for each in plan.create)

    async def _take_over(self, run: Run, row: Row) -> None:
        """Handle a request that already exists: a response was lost, or another process created it."""
        name = run.request_name(row.uid, row.failed)
        with suppress(GoneError):  # it was deleted meanwhile, so the next plan decides
            found = await self._client.get(REQUESTS, run.namespace, name)
            request = read_run_request(found)
            if request is None or request.run.name != run.name:
                why = f"request {name} exists, but does not belong to this run; delete it and resume the run"
                self._cluster.refused(row.uid, why)
            self._cluster.written(found)

    async def _handle_denial(self, run: Run, row: Row, error: ApiRefusedError) -> None:
        """Handle a rejection by admission: the pod was deleted (which is normal), or the rejection is final."""
        if error.status in (401, 404) or lacks_right(error):
            raise ConfigurationError(str(error)) from error
        await self._cluster.look_again(row.pod)
        again = make_plan(self._cluster.world(), run, self._clock.now(), confirmed=True)
        if any(each.uid == row.uid and each.stage is Stage.WAITING for each in again.rows):
            self._cluster.refused(row.uid, str(error))

    async def _check_admission_labels(self, run: Run, made: object) -> None:
        """Check that admission has set its labels. Without them no daemon would serve the request."""
        meta = mapping(mapping(made).get("metadata"))
        if mapping(meta.get("labels")).get(LABEL_ACTIVE) == "true":
            return
        await self._client.delete(REQUESTS, run.namespace, str(meta.get("name")))
        raise ConfigurationError(
            "admission did not handle the request, so it was deleted again: check that the manager is running and that "
            "its webhook exists (kubectl get mutatingwebhookconfigurations crrd)"
        )


def _state(plan: Plan) -> str:
    return WAITING if plan.wait.why else RUNNING
