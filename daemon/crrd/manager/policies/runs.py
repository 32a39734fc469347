"""Carries out the runs of policies: one task for each. A run's state is in its requests and in the policy's status."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial

import structlog

from crrd.core.policy.runs import ended, make_run
from crrd.core.policy.types import API_VERSION, KIND, Policy, RunRecord
from crrd.core.rollout.plan import End, Plan
from crrd.core.rollout.run import Run, Target
from crrd.core.rollout.standing import Stage
from crrd.core.rollout.waits import Remedies, Skip, WaitReason
from crrd.kube.client import KubeClient
from crrd.kube.clock import ServerClock
from crrd.kube.events import KubeEventSink
from crrd.lib.backoff import retry_delay
from crrd.lib.errors import ApiUnavailableError, CrrdError
from crrd.manager.policies.statuses import Policies
from crrd.rollout.cluster import Cluster
from crrd.rollout.daemons import NodeDaemons
from crrd.rollout.display import RunDisplay, failures, summary
from crrd.rollout.events import WorkloadEvent, workload_event
from crrd.rollout.runner import Runner
from crrd.rollout.target import Aim

RETRY_SECONDS = 5.0  # Pause of a run that waits for another one
PROGRESS_SECONDS = 5.0  # Interval of status writes about what a run waits for
PARALLEL_RUNS = 16
"""Runs that have a turn at once, with four watches each. One run delays another by TURN_SECONDS at most, and by
CHECK_SECONDS if it has waited in vain before."""
TURN_SECONDS = 60.0  # Time without progress after which a run lets others run
CHECK_SECONDS = 5.0  # The same for a run whose last turn brought no progress

POLICY_REMEDIES: Remedies = {
    WaitReason.UNREADY_IN_ORDER: "restart pod {pod} first, or set spec.budget.maxUnavailable to {enough}",
    WaitReason.NODE_LIMIT: "to change the limit: spec.budget.maxPerNode",
    Skip.RESTARTS_POD:
        "a policy does not allow this; to restart it: "
        "kubectl recreate pod/{pod} -n {namespace} -c {container} --allow-pod-restart",
}  # fmt: skip
"""What a user of a policy can do about a wait or a skipped pod: its fields, or a command."""

log = structlog.get_logger(__name__)
RunObserver = Callable[[str, str], None]
"""Called for each ended run, with its trigger, and `succeeded`, `failed` or `incomplete`."""
RefreshObserver = Callable[[Policy, str, bool], None]
"""Called after refreshes of files, with why one failed ("" if none has), and whether the right to patch is missing."""


@dataclass(slots=True)
class ActiveRun:
    """A run that is being carried out."""

    policy: Policy
    record: RunRecord
    aim: Aim
    until: datetime | None  # The end of the policy's window
    run: Run
    task: asyncio.Task[None] | None = None
    progress: str = ""
    stages: tuple[Stage, ...] = ()  # Of its pods after the last turn
    idle: bool = False  # Whether the last turn brought no progress

    def closed(self, now: datetime) -> bool:
        """Whether the policy's window has closed."""
        return self.until is not None and now >= self.until

    @property
    def identity(self) -> tuple[str, int]:
        """The run's name and the policy's generation."""
        return self.record.name, self.policy.generation

    @property
    def key(self) -> str:
        """The policy's key."""
        return self.policy.key


class Turns:
    """A few places. Those who have waited in vain before come after all others."""

    def __init__(self, places: int) -> None:
        self._free = places
        self._waiting: dict[bool, deque[asyncio.Future[None]]] = {False: deque(), True: deque()}

    @property
    def full(self) -> bool:
        """Whether the next one has to wait."""
        return self._free <= 0

    @asynccontextmanager
    async def take(self, *, idle: bool) -> AsyncIterator[None]:
        """Wait for a place, and have it inside the block."""
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[idle].append(granted)
        self._hand_on()
        try:
            await granted
            yield
        finally:
            if granted.done() and not granted.cancelled():
                self._free += 1
            granted.cancel()
            self._hand_on()

    def _hand_on(self) -> None:
        for waiting in self._waiting.values():
            while waiting and self._free > 0:
                granted = waiting.popleft()
                if not granted.done():
                    self._free -= 1
                    granted.set_result(None)


class PolicyRuns:
    """The active runs, by policy. The constructor starts nothing.

    `wake_at` is called with a policy's key, and the loop's time at which its round is due at the latest.
    """

    def __init__(
        self,
        client: KubeClient,
        events: KubeEventSink,
        clock: ServerClock,
        policies: Policies,
        daemons: NodeDaemons,
        *,
        on_run: RunObserver,
        on_refresh: RefreshObserver,
        wake_at: Callable[[str, float], None],
    ) -> None:
        self._client, self._events, self._clock, self._policies = client, events, clock, policies
        self._daemons = daemons
        self._on_run, self._on_refresh, self._wake_at = on_run, on_refresh, wake_at
        self._active: dict[str, ActiveRun] = {}
        self._interrupted: dict[str, int] = {}  # By policy: how often its runs have failed in a row
        self._turns, self._clusters = Turns(PARALLEL_RUNS), list[Cluster]()

    def progress(self, key: str) -> str:
        """Return what the active run of a policy waits for, "" for nothing."""
        return active.progress if (active := self._active.get(key)) else ""

    def follow(self, policy: Policy, wanted: RunRecord | None, aim: Aim | None, until: datetime | None) -> None:
        """Carry out this run of a policy, and stop any other."""
        active = self._active.get(policy.key)
        if active is not None and wanted is not None and active.identity == (wanted.name, policy.generation):
            return
        self.stop(policy.key)
        if wanted is None or aim is None:
            return
        self._active[policy.key] = made = ActiveRun(policy, wanted, aim, until, make_run(policy, wanted, aim.target))
        made.task = asyncio.create_task(self._carry_out(made), name=f"run {wanted.name}")

    def stop(self, key: str) -> None:
        """Begin no more pods of the policy's run. Requests under way continue."""
        if (active := self._active.pop(key, None)) and active.task is not None:
            active.task.cancel()

    def stop_all(self) -> None:
        """Call `stop` for all policies."""
        for key in tuple(self._active):
            self.stop(key)

    async def _carry_out(self, active: ActiveRun) -> None:
        """Carry out a run, and record how it ended. Wait while another run on the target is first."""
        name, loop = {"policy": active.key, "run": active.run.name}, asyncio.get_running_loop()
        log.info("policy run started", **name, reason=active.record.reason)
        last = active.policy.status.run
        if last is None or last.name != active.record.name:  # else it continues
            self._record(active, WorkloadEvent.RECREATING, active.record.reason)
        try:
            plan, timed_out = await self._take_turn(active)
            while plan.end is End.RIVAL or (timed_out and not active.closed(self._clock.now())):
                if not timed_out:  # else the last plan has what it waits for
                    self._progressed(active, plan.message)
                await asyncio.sleep(RETRY_SECONDS)
                plan, timed_out = await self._take_turn(active)
            if timed_out:
                log.info("policy run interrupted", **name, error="the window has closed")
            else:
                await self._end(active, plan)
        except Exception as error:
            log.warning("policy run interrupted", **name, error=str(error), exc_info=not isinstance(error, CrrdError))
            self._progressed(active, str(error))
            failures = self._interrupted[active.key] = self._interrupted.get(active.key, 0) + 1
            await asyncio.sleep(retry_delay(error, failures))
        else:
            self._interrupted.pop(active.key, None)
        self._active.pop(active.key, None)
        self._wake_at(active.key, loop.time())

    async def _take_turn(self, active: ActiveRun) -> tuple[Plan, bool]:
        """Return the last plan of a run, and whether its window or its turn ended first."""
        run, until = active.run, active.until
        timeout = None if until is None else max(1.0, (until - self._clock.now()).total_seconds())
        if self._turns.full and not active.progress:
            self._progressed(active, f"waiting for its turn: {PARALLEL_RUNS} runs of other policies are in progress")
        limited = active.aim, run.options, self._daemons
        cluster = Cluster(self._client, run.namespace, *limited, peers=self._clusters)
        async with self._turns.take(idle=active.idle), AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(TURN_SECONDS):
                    await stack.enter_async_context(cluster)
            except TimeoutError:
                raise ApiUnavailableError(f"the run's objects were not listed within {TURN_SECONDS:.0f}s") from None
            display = _Progress(partial(self._progressed, active), partial(self._on_refresh, active.policy))
            parts = self._client, cluster, self._clock, display
            patience = CHECK_SECONDS if active.idle else TURN_SECONDS
            runner = Runner(*parts, timeout=timeout, confirmed=True, remedies=POLICY_REMEDIES, patience=patience)
            plan, timed_out = await runner.run(run)
        stages = tuple(row.stage for row in plan.rows)
        active.idle = (timed_out and not active.idle) or stages == active.stages
        active.stages = stages
        return plan, timed_out

    async def _end(self, active: ActiveRun, plan: Plan) -> None:
        record, uid = active.record, active.policy.uid
        complete = plan.outcome is End.DONE and not any(row.skip is Skip.NO_DAEMON for row in plan.rows)
        failed = plan.outcome not in (End.DONE, End.INCOMPLETE)
        skipped = (f"{row.pod}: {row.wait.why}" for row in plan.rows if row.skip is not None and not row.skip.normal)
        details = failures(plan.rows) or "; ".join([*skipped, *filter(None, [plan.message])])
        message = ": ".join(filter(None, [summary(plan.rows), details]))[:1000]
        log.info("policy run ended", policy=active.key, run=record.name, failed=failed, message=message)
        reason = WorkloadEvent.RECREATED if complete else WorkloadEvent.INCOMPLETE
        self._record(active, WorkloadEvent.FAILED if failed else reason, message)
        self._on_run(record.trigger, "failed" if failed else "succeeded" if complete else "incomplete")
        tries = 0
        while (latest := self._policies.get(active.key)) is not None and latest.uid == uid:
            status = ended(latest, record, failed=failed, message=message, now=self._clock.now(), complete=complete)
            try:
                await self._policies.write(latest, status, latest.conditions)
            except CrrdError as error:  # retried here, because a new attempt of the run would repeat the event
                tries += 1
                await asyncio.sleep(retry_delay(error, tries))
            else:
                return

    def _record(self, active: ActiveRun, reason: WorkloadEvent, message: str) -> None:
        """Queue events on the workload and on the policy."""
        policy = active.policy
        own = Target(policy.name, API_VERSION, KIND, policy.name, policy.uid)
        for each in (active.run, replace(active.run, target=own)):
            if (event := workload_event(each, reason, message, self._clock.now())) is not None:
                self._events.record(event)

    def _progressed(self, active: ActiveRun, text: str) -> None:
        """Record that a run waits for something else than before."""
        if active.progress != text:
            active.progress = text
            self._wake_at(active.key, asyncio.get_running_loop().time() + PROGRESS_SECONDS)


class _Progress(RunDisplay):
    """Reports what a run waits for, and whether files could be refreshed."""

    def __init__(self, on_progress: Callable[[str], None], on_refresh: Callable[[str, bool], None]) -> None:
        self._on_progress, self._on_refresh = on_progress, on_refresh
        self._has_problem = False

    def show(self, plan: Plan) -> None:
        """See RunDisplay."""
        self._on_progress(": ".join([summary(plan.rows), *plan.waits[:1]]))

    def print_line(self, message: str, details: Sequence[str] = ()) -> None:
        """See RunDisplay."""
        log.debug(message, details=details)

    def files_refreshed(self, problem: str, *, lacks_right: bool) -> None:
        """See RunDisplay. The problem of one pod counts until the end."""
        if not self._has_problem:
            self._has_problem = bool(problem)
            self._on_refresh(problem, lacks_right)

    async def ask(self, question: str) -> bool:
        """See RunDisplay. The runs of policies are confirmed from their start."""
        return False
