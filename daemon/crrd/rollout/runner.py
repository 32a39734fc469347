"""Carries a run out: asks for a plan, creates one request, and looks again; ends where the plan does.

It may be killed between any two lines: what it has created is all that the next one needs to know.
"""

import asyncio
import time
from contextlib import suppress
from dataclasses import replace

from crrd.core.api.time import parse_time
from crrd.core.api.types import LABEL_ACTIVE
from crrd.core.rollout.overview import STOPPED
from crrd.core.rollout.plan import End, Plan, make_plan
from crrd.core.rollout.run import Run, read_run
from crrd.core.rollout.standing import Row, Stage
from crrd.core.rollout.state import with_latest_options
from crrd.kube.client import KubeClient
from crrd.kube.clock import ServerClock
from crrd.kube.resources import REQUESTS
from crrd.lib.backoff import Backoff
from crrd.lib.errors import ApiRefusedError, ApiUnavailableError, ConfigurationError, ConflictError, GoneError
from crrd.lib.jsonfields import mapping
from crrd.rollout.cluster import Cluster
from crrd.rollout.display import Display
from crrd.rollout.report import Reporter

_RETRY = Backoff(initial=0.5, factor=2.0, maximum=8.0, jitter=0.5)
PATIENCE_SECONDS = 3600.0
"""For how long nothing may get on, where no time is given: a pod that waits for a budget must not wait forever."""
_TICK_SECONDS = 1.0  # How often what is shown is drawn anew, for its seconds


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
        self.reporter = Reporter(client, cluster, clock)

    async def run(self, run: Run) -> tuple[Plan, bool]:
        """Go on with the run until it ends: its last plan, and whether the time for the whole run was over first.

        Raises ConfigurationError where waiting does not help.
        """
        await self._let_a_second_pass(run)
        while True:
            self._cluster.changed.clear()
            trouble = self._cluster.problem or await self._learn()
            world = self._cluster.world()
            latest = with_latest_options(world, run)
            if latest != run:
                self._display.print_line("another process has changed the options of this run; using the new options")
            run = latest
            plan = make_plan(world, run, self._clock.now(), confirmed=self._confirmed)
            if not trouble and await self._cluster.learn_probes(plan):
                continue
            if trouble and plan.end is not End.ABORTED:
                # On what may be out of date nothing is begun, and nothing ends.
                plan = replace(plan, create=(), end=None, waiting=trouble, command="")
            self._display.show(plan)
            self._see_progress(run, plan)
            if plan.end is None and not trouble:
                await self.reporter.write(run, plan)
            if plan.end is End.ASK and await self._display.ask(plan.message):
                self._confirmed, self._stages = True, []
                continue
            if plan.end is not None or time.monotonic() >= self._ends:
                state = STOPPED if plan.outcome in (None, End.RIVAL) else str(plan.outcome)
                await self.reporter.write(run, plan, state)
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
        try:
            async with asyncio.timeout(max(0.01, seconds)):
                await self._cluster.changed.wait()
        except TimeoutError:
            pass

    async def _create(self, run: Run, plan: Plan) -> None:
        """Create the first of the requests. Returns once it is known whether it is there, so that budgets hold."""
        row = plan.create[0]
        body = run.request(row.pod, row.uid, row.containers)
        body["metadata"]["annotations"] |= self.reporter.annotation(plan)
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
                self._display.show(replace(plan, create=(), waiting=reason, command=""))
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
            annotations = read_run(found)
            if annotations is None or annotations.run.name != run.name:
                self._cluster.refused(
                    row.uid, f"request {name} exists, but does not belong to this run; delete it and resume the run"
                )
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
