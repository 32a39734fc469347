"""One run of a policy, from its first turn to the record of its end. Its state is in its requests and in the status."""

import asyncio
import os
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum

import structlog

from crrd.core.policy.course import ended, make_run
from crrd.core.policy.order import past_first_step
from crrd.core.policy.outcome import outcome_of
from crrd.core.policy.pace import CHECK_SECONDS, TURN_SECONDS, Pace
from crrd.core.policy.types import ANNOTATION_CONTINUE, API_VERSION, KIND, Policy, RunRecord
from crrd.core.rollout.kinds import kind_of
from crrd.core.rollout.parts import Allowed
from crrd.core.rollout.phases import GOES_ON, End
from crrd.core.rollout.plan import Plan, make_plan
from crrd.core.rollout.run import Target
from crrd.core.rollout.skips import RESTART_MORE
from crrd.core.rollout.waits import Remedies, WaitReason
from crrd.kube.client import KubeClient
from crrd.kube.clock import ServerClock
from crrd.kube.events import KubeEventSink
from crrd.lib.backoff import retry_delay
from crrd.lib.errors import ApiRefusedError, ApiUnavailableError, ConfigurationError, CrrdError
from crrd.lib.looptime import loop_time
from crrd.manager.policies.statuses import Policies
from crrd.manager.policies.turn_display import TurnDisplay
from crrd.manager.policies.turns import Turns
from crrd.rollout.cluster import Cluster
from crrd.rollout.daemons import NodeDaemons
from crrd.rollout.display import failures, summary
from crrd.rollout.events import BEGUN, workload_event
from crrd.rollout.judge import MetricsJudge
from crrd.rollout.kinds import make_cluster, make_writer
from crrd.rollout.metrics import Prometheus, token_of_secret
from crrd.rollout.runner import Runner
from crrd.rollout.target import Aim

PARALLEL_RUNS = 16
"""Runs that have a turn at once, with four watches each. One run delays another by MOST_SECONDS at most, and by
CHECK_SECONDS if it has waited in vain before; longer only while an unready pod waits for its image. A turn needs about
0.9 MiB for its watches, and rounds without watches would list four kinds of objects each time. So runs take turns."""
RETRY_SECONDS = 5.0  # Pause of a run that waits for another one, or for its next turn
PROGRESS_SECONDS = 5.0  # Interval of status writes about what a run waits for

POLICY_REMEDIES: Remedies = {
    WaitReason.UNREADY_IN_ORDER: "restart pod {pod} first, or set spec.budget.maxUnavailable to {enough}",
    WaitReason.NODE_LIMIT: "to change the limit: spec.budget.maxPerNode",
    **dict.fromkeys(RESTART_MORE, "a policy does not allow this; to restart it: "
        "kubectl recreate pod/{pod} -n {namespace} -c {container} --allow-pod-restart"),
}  # fmt: skip
"""What a user of a policy can do about a wait or a skipped pod: its fields, or a command."""

log = structlog.get_logger(__name__)
RunObserver = Callable[[str, str], None]
"""Called for each ended run, with its trigger, and `succeeded`, `failed`, `halted` or `incomplete`."""
RefreshObserver = Callable[[Policy, str, bool], None]
"""Called after refreshes of files, with why one failed ("" if none has), and whether the right to patch is missing."""


@dataclass(frozen=True, slots=True)
class Shared:
    """What the runs of a process share."""

    client: KubeClient
    events: KubeEventSink
    clock: ServerClock
    policies: Policies
    daemons: NodeDaemons
    on_run: RunObserver
    on_refresh: RefreshObserver
    wake_at: Callable[[str, float], None]
    """Called with a policy's key, and the loop's time at which its round is due at the latest."""
    judge_addresses: tuple[str, ...] = ()  # Which servers the manager may ask for metrics, as in `allowed`
    turns: Turns = field(default_factory=lambda: Turns(PARALLEL_RUNS))
    clusters: list[Cluster] = field(default_factory=list)  # Of all turns that are under way


class TaskPhase(StrEnum):
    """What the task of a run does."""

    QUEUED = "queued"  # It waits for a turn
    LISTING = "listing"  # Its turn has begun, and the objects that it needs are listed
    WORKING = "working"  # Its pods are restarted, as far as its budgets allow it
    BEHIND = "behind"  # Another run on the same pods is first, or the owner must allow the next step
    PAUSING = "pausing"  # After an error, or before the next turn
    ENDING = "ending"  # Its end is recorded


class RunTask:
    """Carries out one run. The constructor starts nothing."""

    def __init__(
        self,
        shared: Shared,
        policy: Policy,
        record: RunRecord,
        aim: Aim,
        until: datetime | None,
        *,
        only: frozenset[str] = frozenset(),
    ) -> None:
        """`until` is the end of the policy's window, None if it has none, or is open for ever. `only` is as in Run."""
        self._shared, self.policy, self.record, self._aim = shared, policy, record, aim
        self.until = until
        self.run = replace(make_run(policy, record, aim.target), only=only)
        self.pace = Pace(loop_time())
        self.phase, self.progress = TaskPhase.QUEUED, ""
        self._brought = ""  # What its last turn has brought; "" if it waits for something else than its next turn
        self._memory: object = None  # That of the run's kind (`KindObjects.memory`)
        self._failures = 0  # In a row
        prometheus = Prometheus(token_of_secret(shared.client), shared.judge_addresses, os.environ)
        metrics = policy.judge.metrics if policy.judge is not None else ()
        self._judge = MetricsJudge(metrics, prometheus.ask, shared.clock.now)
        last = policy.status.run
        self._continues = last is not None and last.name == record.name and not last.finished
        self._log = log.bind(policy=policy.key, run=record.name)
        refreshes = any(each.get("type") == "FilesRefreshed" for each in policy.conditions)
        self._display = TurnDisplay(self._progressed, self._refreshed, has_problem=self._continues and refreshes)

    @property
    def identity(self) -> tuple[str, int, Target]:
        """The run's name, the policy's generation, and the target with its UID."""
        return self.record.name, self.policy.generation, self._aim.target

    @property
    def past_first_step(self) -> bool:
        """Whether runs of other policies for the same change may begin."""
        plan = self._display.plan
        return plan is not None and past_first_step(self.run.options, plan)

    def _closed(self) -> bool:
        """Whether the policy's window has closed."""
        return self.until is not None and self._shared.clock.now() >= self.until

    async def carry_out(self) -> None:
        """Take turns until the run has ended, and record its end; or until the policy's window has closed."""
        self._log.info("policy run started", reason=self.record.reason)
        if not self._continues:
            self._record_event(BEGUN, self.record.reason)
        ended = False
        while not ended and not self._closed():
            pause = RETRY_SECONDS
            try:
                self.phase = TaskPhase.QUEUED
                plan = await self._take_turn()
                if plan.end not in GOES_ON:
                    self.phase = TaskPhase.ENDING
                    await self._end(plan)
                    ended = True
                self._failures = 0
            except Exception as error:  # noqa: BLE001 - it is tried again after any failure, with a growing back-off
                self._failures, pause = self._failures + 1, retry_delay(error, self._failures + 1)
                is_known = isinstance(error, CrrdError)
                self._log.warning("policy run interrupted", phase=self.phase, error=str(error), exc_info=not is_known)
                self._progressed(str(error))
                self._shared.wake_at(self.policy.key, loop_time() + pause)  # a look says what is missing
            if not ended:
                self.phase = TaskPhase.PAUSING
                await asyncio.sleep(pause)
        if not ended:
            self._log.info("policy run interrupted", error="the window has closed")

    async def _take_turn(self) -> Plan:
        """Return the last plan of a turn. With an end of GOES_ON, the run goes on in the next one.

        A turn goes on for as long as nobody else needs its place.
        """
        shared, run, turns = self._shared, self.run, self._shared.turns
        brought, self._brought = self._brought, ""
        if turns.full and (brought or not self.progress):
            waits = f"waiting for its turn: {turns.places} runs of other policies are in progress"
            self._progressed(": ".join(filter(None, (brought, waits))))
        limited = self._aim, run.options, shared.daemons
        cluster = make_cluster(shared.client, run.namespace, *limited, peers=shared.clusters, memory=self._memory)
        self._memory = cluster.kind_objects.memory
        async with turns.take(run.namespace, idle=self.pace.idle), AsyncExitStack() as stack:
            if self._closed():
                return Plan((), end=End.TIMED_OUT)
            self.phase = TaskPhase.LISTING
            try:
                async with asyncio.timeout(TURN_SECONDS):
                    await stack.enter_async_context(cluster)
            except TimeoutError:
                raise ApiUnavailableError(f"the run's objects were not listed within {TURN_SECONDS:.0f}s") from None
            except (ApiRefusedError, ConfigurationError) as error:
                return self._without_right(Plan(()), error)
            while True:
                self.phase = TaskPhase.WORKING
                plan = await self._carry_on(cluster)
                is_behind = plan.end in (End.RIVAL, End.PAUSED)
                if is_behind:
                    self._progressed(plan.message if plan.end is End.RIVAL else self._asks(plan))
                if plan.end not in GOES_ON or turns.wanted or self._closed():
                    return plan
                if is_behind:
                    self.phase = TaskPhase.BEHIND
                    await asyncio.sleep(RETRY_SECONDS)

    async def _carry_on(self, cluster: Cluster) -> Plan:
        """Carry out a part of the run. Return its last plan."""
        shared, run, left = self._shared, self.run, None
        if self.until is not None:
            left = (self.until - shared.clock.now()).total_seconds()
        writer = make_writer(shared.client, cluster, run, self._display, shared.clock)
        parts = shared.client, cluster, shared.clock, self._display, writer
        times = self.pace.times(left, loop_time(), full=shared.turns.full)
        latest = shared.policies.get(self.policy.key)
        allowed = Allowed(latest.allowed_steps(run.name) if latest is not None else 0)
        runner = Runner(*parts, times=times, remedies=POLICY_REMEDIES, judge=self._judge, allowed=allowed)
        try:
            plan = await runner.run(kind_of(cluster.world(), run).completed())
        except (ApiRefusedError, ConfigurationError) as error:
            known = make_plan(cluster.world(), run, shared.clock.now())
            plan = self._without_right(known, error)
        plan = self.pace.after(plan, loop_time())
        self._brought = summary(plan.rows) if plan.end is End.YIELDED and not self.pace.idle else ""
        if problem := await runner.finish(run, plan, CHECK_SECONDS):
            self._log.warning("policy run cannot clean up", error=problem)
        return plan

    def _asks(self, plan: Plan) -> str:
        """Return what the owner can do after a step."""
        allowed = f"{ANNOTATION_CONTINUE}={self.run.name}/{plan.part.number + 1}"
        command = f"kubectl annotate crp {self.policy.name} -n {self.policy.namespace} --overwrite {allowed}"
        return f"{plan.message}; to continue: {command}"

    def _without_right(self, plan: Plan, error: CrrdError) -> Plan:
        """Return the end of a run with an image: it keeps no pod unready until a user acts, and is tried again later.

        Raises `error` if it has none: then no pod is unready because of it.
        """
        if not self.record.image:
            raise error
        return plan.ended(End.LEFT_OUT, str(error))

    async def _end(self, plan: Plan) -> None:
        """Report how the run has ended, and record it in the policy's status."""
        outcome, message = outcome_of(plan, gives_image=bool(self.record.image)), self._message(plan)
        end = outcome.end
        record = replace(
            self.record, generation=self.policy.generation
        )  # an edit before the end does not void a failure
        self._log.info("policy run ended", failed=end.has_failed, message=message)
        self._record_event(End.FAILED if end.has_failed and end is not End.HALTED else end, message)
        self._shared.on_run(record.trigger, end.metric)
        tries, uid, policies = 0, self.policy.uid, self._shared.policies
        while (latest := policies.get(self.policy.key)) is not None and latest.uid == uid:
            if (known := latest.status.run) is None or known.name != record.name or known.finished:
                return  # another leader, or an edit, has ended it
            status = ended(latest, record, outcome, message=message, now=self._shared.clock.now())
            try:
                await policies.write(latest, status, latest.conditions)
            except CrrdError as error:  # retried here, because a new attempt of the run would repeat the event
                tries += 1
                await asyncio.sleep(retry_delay(error, tries))
            else:
                return

    def _message(self, plan: Plan) -> str:
        """Return the sentence that the status has about the end of the run."""
        named = self.record.image and plan.end is not None and plan.end.incomplete  # the plan's message names them
        skipped = [f"{row.pod}: {row.wait.why}" for row in plan.rows if row.is_odd and not named]
        details = failures(plan.rows) or "; ".join([*skipped, *filter(None, [plan.message])])
        return ": ".join(filter(None, [summary(plan.rows) if plan.rows else "", details]))[:1000]

    def _record_event(self, end: End | None, message: str) -> None:
        """Queue events on the workload and on the policy."""
        policy = self.policy
        own = Target(policy.name, API_VERSION, KIND, policy.name, policy.uid)
        for each in (self.run, replace(self.run, target=own)):
            if (event := workload_event(each, end, message, self._shared.clock.now())) is not None:
                self._shared.events.record(event)

    def _progressed(self, text: str) -> None:
        """Record that the run waits for something else than before."""
        if self.progress != text:
            self.progress = text
            self._shared.wake_at(self.policy.key, loop_time() + PROGRESS_SECONDS)

    def _refreshed(self, problem: str, lacks_right: bool) -> None:
        self._shared.on_refresh(self.policy, problem, lacks_right)
