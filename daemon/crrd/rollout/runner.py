"""Carries a run out: asks for a plan, creates one request, and looks again; ends where the plan does.

It may be killed between any two lines: what it has created is all that the next one needs to know. It writes how far
the run is on the requests, so that `status` tells a run that goes on from one whose process has gone.
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
from crrd.core.rollout.run import Progress, Run
from crrd.core.rollout.standing import Row, Stage, count_done
from crrd.core.rollout.state import read_run_request
from crrd.core.rollout.waits import Wait
from crrd.kube.client import KubeClient
from crrd.kube.clock import ServerClock
from crrd.kube.resources import REQUESTS
from crrd.lib.backoff import Backoff
from crrd.lib.errors import ApiRefusedError, ApiUnavailableError, ConfigurationError, ConflictError, GoneError
from crrd.lib.jsonfields import mapping
from crrd.rollout.cluster import Cluster
from crrd.rollout.display import Display

_RETRY = Backoff(initial=0.5, factor=2.0, maximum=8.0, jitter=0.5)
PATIENCE_SECONDS = 3600.0
"""For how long nothing may get on, where no time is given: a pod that waits for a budget must not wait forever."""
_TICK_SECONDS = 1.0  # How often what is shown is drawn anew, for its seconds
_PROGRESS_SECONDS = LIVE_SECONDS / 4  # How often the progress is written while the state is the same
_WAITS_CHARACTERS = 500  # Of what is waited for, in the progress


class Runner:
    """One run."""

    def __init__(
        self,
        client: KubeClient,
        cluster: Cluster,
        clock: ServerClock,
        display: Display,
        *,
        timeout: float | None,
        confirmed: bool,
        patience: float | None = None,
    ) -> None:
        """Start nothing.

        `cluster` is entered already, `timeout` is in seconds for the whole run (0 for none, None for `patience` without
        progress), `confirmed` means that nobody has to be asked after the first part. `patience` is PATIENCE_SECONDS
        where it is None, and what a pod may take where that is longer.
        """
        self._client, self._cluster, self._clock, self._display = client, cluster, clock, display
        self._patient, self._patience = timeout is None, patience
        self._ends = time.monotonic() + timeout if timeout else float("inf")
        self._stages: list[Stage] = []
        self._confirmed = confirmed
        self._written_state, self._write_at = "", 0.0  # Of the progress that was written last; monotonic

    async def run(self, run: Run) -> tuple[Plan, bool]:
        """Go on with the run until it ends: its last plan, and whether the time for the whole run was over first.

        Raises ConfigurationError where waiting does not help.
        """
        await self._let_a_second_pass(run)
        while True:
            self._cluster.changed.clear()
            trouble = self._cluster.problem or await self._learn()
            world = self._cluster.world()
            latest = world.latest(run)
            if latest != run:
                self._display.print_line("another process has changed the options of this run; using the new options")
            run = latest
            plan = make_plan(world, run, self._clock.now(), confirmed=self._confirmed)
            if not trouble and await self._cluster.learn_probes(plan):
                continue
            if trouble and plan.end is not End.ABORTED:
                # On what may be out of date nothing is begun, and nothing ends.
                plan = replace(plan, create=(), end=None, wait=Wait(trouble))
            self._display.show(plan)
            self._see_progress(run, plan)
            if plan.end is None and not trouble:
                await self.write_progress(run, plan)
            if plan.end is End.PAUSED and await self._display.ask(plan.message):
                self._confirmed, self._stages = True, []
                continue
            if plan.end is not None or time.monotonic() >= self._ends:
                state = STOPPED if plan.outcome in (None, End.RIVAL) else str(plan.outcome)
                await self.write_progress(run, plan, state)
                return plan, plan.end is None
            if plan.create:
                await self._create(run, plan)
            else:
                await self._wait(plan)

    def _see_progress(self, run: Run, plan: Plan) -> None:
        """Put the end off while pods get on, unless a time for the whole run was given."""
        stages = [row.stage for row in plan.rows]
        if self._patient and stages != self._stages:
            of_a_pod = run.options.pod_timeout + run.options.min_ready
            seconds = max(PATIENCE_SECONDS, of_a_pod) if self._patience is None else self._patience
            self._stages, self._ends = stages, time.monotonic() + seconds

    def _progress(self, plan: Plan, state: str) -> dict[str, str]:
        """How far the run is, as the annotation of a request that is written now."""
        self._written_state, self._write_at = state, time.monotonic() + _PROGRESS_SECONDS
        process, waits = f"{socket.gethostname()}/{os.getpid()}", "; ".join(plan.waits)[:_WAITS_CHARACTERS]
        return Progress(rfc3339(self._clock.now()), process, state, *count_done(plan.rows), waits).annotation()

    async def write_progress(self, run: Run, plan: Plan, state: str = "") -> None:
        """Write how far the run is on its newest request, where that is due; `state` says how the process ends."""
        state = state or _state(plan)
        own = self._cluster.world().requests_of(run)
        if not own or (state == self._written_state and time.monotonic() < self._write_at):
            return
        body = {"metadata": {"annotations": self._progress(plan, state)}}
        with suppress(ApiRefusedError, ApiUnavailableError):  # the requests themselves are what counts
            name = own[-1].request.name
            self._cluster.written(await self._client.merge_patch(REQUESTS, run.namespace, name, body))

    async def _let_a_second_pass(self, run: Run) -> None:
        """Kubelet says in whole seconds when a container was started: what this run restarts starts after its start.

        So a pod is known to be done even when its request has been deleted.
        """
        started = parse_time(run.started)
        if started is not None:
            await asyncio.sleep(max(0.0, 1.0 - (self._clock.now() - started).total_seconds()))

    async def _learn(self) -> str:
        """Why it is not known to whom all pods belong; "" where it is."""
        try:
            await self._cluster.learn()
        except ApiUnavailableError as error:
            await asyncio.sleep(_RETRY.initial)
            return str(error)
        return ""

    async def _wait(self, plan: Plan) -> None:
        """Until something is different, or time has made a difference."""
        seconds = min(_TICK_SECONDS, self._ends - time.monotonic())
        if plan.wake_at is not None:
            seconds = min(seconds, (plan.wake_at - self._clock.now()).total_seconds())
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.01, seconds)):
                await self._cluster.changed.wait()

    async def _create(self, run: Run, plan: Plan) -> None:
        """Create the first of the requests. Returns once it is known whether it is there, so that budgets hold."""
        row = plan.create[0]
        body = run.request(row.pod, row.uid, row.containers)
        body["metadata"]["annotations"] |= self._progress(plan, _state(plan))
        failures = 0
        while time.monotonic() < self._ends:
            try:
                if not await self._is_still_next(run, row):
                    return
                made = await self._client.create(REQUESTS, run.namespace, body)
            except ConflictError:
                await self._take_over(run, row)
                return
            except ApiRefusedError as error:
                await self._not_let_in(run, row, error)
                return
            except ApiUnavailableError as error:
                failures += 1
                reason = f"cannot create the ContainerRecreateRequest, retrying: {error}"
                self._display.show(replace(plan, create=(), wait=Wait(reason)))
                await asyncio.sleep(max(_RETRY.delay(failures), error.retry_after))
            else:
                await self._seen_by_admission(run, made)
                self._cluster.written(made)
                return

    async def _is_still_next(self, run: Run, row: Row) -> bool:
        """Whether the pod's turn is now, by the pod as the API server has it: what the watch shows may be older.

        Else a pod would be restarted twice whose first request has ended and was deleted since.
        """
        await self._cluster.look_again(row.pod)
        plan = make_plan(self._cluster.world(), run, self._clock.now(), confirmed=self._confirmed)
        return any(each.uid == row.uid for each in plan.create)

    async def _take_over(self, run: Run, row: Row) -> None:
        """The request exists already: a response was lost, a process was killed, or another process created it."""
        name = run.request_name(row.uid)
        with suppress(GoneError):  # it was there a moment ago: everything is decided anew
            found = await self._client.get(REQUESTS, run.namespace, name)
            request = read_run_request(found)
            if request is None or request.run.name != run.name:
                why = f"request {name} exists, but does not belong to this run; delete it and resume the run"
                self._cluster.refused(row.uid, why)
            self._cluster.written(found)

    async def _not_let_in(self, run: Run, row: Row, error: ApiRefusedError) -> None:
        """Admission has refused it: because the pod went, which is normal, or for good."""
        if error.status in (401, 403, 404):
            raise ConfigurationError(str(error)) from error
        await self._cluster.look_again(row.pod)
        again = make_plan(self._cluster.world(), run, self._clock.now(), confirmed=True)
        if any(each.uid == row.uid and each.stage is Stage.WAITING for each in again.rows):
            self._cluster.refused(row.uid, str(error))

    async def _seen_by_admission(self, run: Run, made: object) -> None:
        """Without the labels that admission sets, no daemon would ever look at a request."""
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
