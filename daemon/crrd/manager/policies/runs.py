"""Carries out the runs of policies: one task for each. A run's state is in its requests and in the policy's status."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial

import structlog

from crrd.core.policy.course import ended, make_run
from crrd.core.policy.types import API_VERSION, KIND, Policy, RunRecord
from crrd.core.rollout.kinds import kind_of
from crrd.core.rollout.limits import Times
from crrd.core.rollout.phases import End, RunPhase, Stage
from crrd.core.rollout.plan import Plan
from crrd.core.rollout.rows import tally
from crrd.core.rollout.run import Run, Target
from crrd.core.rollout.skips import barred_containers
from crrd.core.rollout.state import World
from crrd.core.rollout.waits import Remedies, Skip, WaitReason
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
from crrd.rollout.display import RunDisplay, failures, summary
from crrd.rollout.events import BEGUN, workload_event
from crrd.rollout.image.leftovers import release_runs
from crrd.rollout.kinds import make_cluster, make_writer
from crrd.rollout.runner import Runner
from crrd.rollout.target import Aim

RETRY_SECONDS = 5.0  # Pause of a run that waits for another one
PROGRESS_SECONDS = 5.0  # Interval of status writes about what a run waits for
PARALLEL_RUNS = 16
"""Runs that have a turn at once, with four watches each. One run delays another by MOST_SECONDS at most, and by
CHECK_SECONDS if it has waited in vain before; longer only while an unready pod waits for its image."""
TURN_SECONDS = 60.0  # Time without progress after which a run lets others run
MOST_SECONDS = 120.0
"""Time after which a run lets others run even if it makes progress. It leaves a whole minute (`NODE_SECONDS`) to wait
for nodes."""
CHECK_SECONDS = 5.0  # The same for a run whose last turn brought no progress
STUCK_SECONDS = 240.0
"""How long a run whose pods are done may wait, after its turn, for what follows them, for example for a pod to start.
Then it ends, so that others of the policy can start."""
LATE_SECONDS = 15.0
"""When to clean up once more after a stopped run, because a write may arrive late. Its response was not awaited."""

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
    stages: tuple[Stage, ...] = ()  # Of its pods when it was last looked whether it goes on
    memory: object = None  # That of the run's kind (`KindObjects.memory`)
    idle: bool = False  # Whether the last turn brought no progress
    stuck_since: float | None = None
    """The loop's time of the first of the last turns that only waited for what follows the pods; None for none."""

    def closed(self, now: datetime) -> bool:
        """Whether the policy's window has closed."""
        return self.until is not None and now >= self.until

    @property
    def identity(self) -> tuple[str, int, Target]:
        """The run's name, the policy's generation, and the target with its UID."""
        return self.record.name, self.policy.generation, self.aim.target

    @property
    def key(self) -> str:
        """The policy's key."""
        return self.policy.key


@dataclass
class Leftovers:
    """What the stopped runs of a policy may have left behind. Each leader begins anew."""

    policy: Policy
    keep: str  # The run that is carried out, "" for none
    times: int = 2  # How often to clean up
    due_at: float = 0.0  # The loop's time of the next clean-up


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
        self._moved: dict[str, float] = {}  # By policy: the loop's time of the start of its run, or its last progress
        self._turns, self._clusters = Turns(PARALLEL_RUNS), list[Cluster]()
        self._left: dict[str, Leftovers] = {}  # By policy

    def progress(self, key: str) -> str:
        """Return what the active run of a policy waits for, "" for nothing."""
        return active.progress if (active := self._active.get(key)) else ""

    def idle_for(self, key: str) -> float:
        """Return how many seconds ago the active run of a policy has made progress, 0 if there is none."""
        return loop_time() - self._moved[key] if key in self._moved else 0.0

    def goes_on(self, policy: Policy, wanted: RunRecord | None, aim: Aim | None) -> bool:
        """Return whether this run of a policy is active. Stop any other."""
        active = self._active.get(policy.key)
        identity = (wanted.name, policy.generation, aim.target) if wanted is not None and aim is not None else None
        if active is not None and active.identity == identity:
            return True
        if active is not None or wanted is None:
            self.stop(policy.key)
        return False

    def follow(self, policy: Policy, wanted: RunRecord | None, aim: Aim | None, until: datetime | None) -> None:
        """Carry out this run of a policy, and stop any other."""
        if self.goes_on(policy, wanted, aim):
            return
        last = policy.status.run
        if policy.template_image or (last is not None and last.image):
            self._note_left(policy, wanted.name if wanted is not None else "")
        if wanted is None or aim is None:
            return
        self._moved.setdefault(policy.key, loop_time())
        self._active[policy.key] = made = ActiveRun(policy, wanted, aim, until, make_run(policy, wanted, aim.target))
        made.task = asyncio.create_task(self._carry_out(made), name=f"run {wanted.name}")

    def stop(self, key: str) -> None:
        """Begin no more pods of the policy's run. Requests under way continue."""
        self._moved.pop(key, None)
        self._interrupted.pop(key, None)
        if (active := self._active.pop(key, None)) and active.task is not None:
            active.task.cancel()

    def forget(self, key: str) -> None:
        """Call `stop` for a policy that was deleted, and leave nothing behind."""
        if (active := self._active.get(key)) is not None and active.record.image:
            self._note_left(active.policy)
        self.stop(key)

    async def release(self, key: str) -> None:
        """Clean up what stopped runs of a policy have left, if due: pull pods, and requests that wait for an image.

        Raises ApiUnavailableError.
        """
        left, now = self._left.get(key), loop_time()
        if left is None or not left.times or now < left.due_at:
            return
        try:
            await release_runs(self._client, left.policy.namespace, left.policy.uid, left.keep)
        except ApiRefusedError as error:  # again with the next look, because the right may come back
            log.warning("what a policy's run has left cannot be deleted", policy=key, error=str(error))
            return
        left.times, left.due_at = left.times - 1, now + LATE_SECONDS
        if left.times:
            self._wake_at(key, left.due_at)
        elif self._policies.get(key) is None:
            del self._left[key]

    def _note_left(self, policy: Policy, keep: str = "") -> None:
        left = self._left.get(policy.key)
        if left is None or (left.policy.uid, left.keep) != (policy.uid, keep):
            self._left[policy.key] = Leftovers(policy, keep)

    def stop_all(self) -> None:
        """Stop everything at once. The next leader continues."""
        for key in tuple(self._active):
            self.stop(key)

    async def _carry_out(self, active: ActiveRun) -> None:
        """Carry out a run, and record how it ended. Wait while another run on the target is first."""
        name = {"policy": active.key, "run": active.run.name}
        log.info("policy run started", **name, reason=active.record.reason)
        last = active.policy.status.run
        continues = last is not None and last.name == active.record.name
        if not continues:
            self._record(active, BEGUN, active.record.reason)
        display = TurnDisplay(
            partial(self._progressed, active),
            partial(self._on_refresh, active.policy),
            has_problem=continues and any(each.get("type") == "FilesRefreshed" for each in active.policy.conditions),
        )
        try:
            plan = await self._take_turn(active, display)
            while plan is None and not active.closed(self._clock.now()):
                await asyncio.sleep(RETRY_SECONDS)
                plan = await self._take_turn(active, display)
            if plan is None:
                log.info("policy run interrupted", **name, error="the window has closed")
            else:
                await self._end(active, plan)
            self._moved.pop(active.key, None)
        except Exception as error:
            if active.record.image and isinstance(error, ApiRefusedError | ConfigurationError):
                # It holds no pod unready until a user acts. A look says what is missing, and it is tried again later.
                await self._end(active, Plan((), end=End.LEFT_OUT, message=str(error)))
            else:
                is_known = isinstance(error, CrrdError)
                log.warning("policy run interrupted", **name, error=str(error), exc_info=not is_known)
                self._progressed(active, str(error))
                failures = self._interrupted[active.key] = self._interrupted.get(active.key, 0) + 1
                await asyncio.sleep(retry_delay(error, failures))
        else:
            self._interrupted.pop(active.key, None)
        self._active.pop(active.key, None)
        self._wake_at(active.key, loop_time())

    async def _take_turn(self, active: ActiveRun, display: RunDisplay) -> Plan | None:
        """Return the plan with which a run has ended, None if its window or its turn has ended first.

        A turn goes on for as long as nobody else needs its place.
        """
        run = active.run
        if self._turns.full and not active.progress:
            self._progressed(active, f"waiting for its turn: {PARALLEL_RUNS} runs of other policies are in progress")
        limited = active.aim, run.options, self._daemons
        cluster = make_cluster(self._client, run.namespace, *limited, peers=self._clusters, memory=active.memory)
        active.memory = cluster.own.memory
        async with self._turns.take(run.namespace, idle=active.idle), AsyncExitStack() as stack:
            if active.closed(self._clock.now()):
                return None
            try:
                async with asyncio.timeout(TURN_SECONDS):
                    await stack.enter_async_context(cluster)
            except TimeoutError:
                raise ApiUnavailableError(f"the run's objects were not listed within {TURN_SECONDS:.0f}s") from None
            while (plan := await self._carry_on(active, cluster, display)) is None or plan.end is End.RIVAL:
                if plan is not None:
                    self._progressed(active, plan.message)
                if self._turns.wanted or active.closed(self._clock.now()):
                    return None
                if plan is not None:
                    await asyncio.sleep(RETRY_SECONDS)
        return plan

    async def _carry_on(self, active: ActiveRun, cluster: Cluster, display: RunDisplay) -> Plan | None:
        """Carry out a part of a run. Return its last plan if the run has ended, else None."""
        run, left = active.run, None
        if active.until is not None:
            left = max(1.0, (active.until - self._clock.now()).total_seconds())
        for_nodes = Stage.PUT_OFF in active.stages and Stage.WAITING not in active.stages  # longer than CHECK_SECONDS
        patience = CHECK_SECONDS if active.idle and self._turns.full and not for_nodes else TURN_SECONDS
        parts = self._client, cluster, self._clock, display, make_writer(self._client, cluster, run, display)
        times = Times(left, patience, MOST_SECONDS)
        runner = Runner(*parts, times=times, confirmed=True, remedies=POLICY_REMEDIES)
        plan = await runner.run(kind_of(cluster.world(), run).completed())
        timed_out = plan.end in (End.YIELDED, End.TIMED_OUT)
        stages = tuple(row.stage for row in plan.rows)
        if stages != active.stages:
            self._moved[active.key] = loop_time()
        active.idle = (timed_out and not active.idle) or stages == active.stages
        active.stages = stages
        after_pods = plan.phase in (RunPhase.ADOPTING, RunPhase.RELEASING) or plan.awaits.why
        waits, now = timed_out and after_pods, loop_time()
        active.stuck_since = (active.stuck_since or now) if waits else None
        if active.stuck_since is not None and now >= active.stuck_since + STUCK_SECONDS:
            plan, timed_out = plan.ended(End.LEFT_OUT, plan.wait.why), False
        if left_behind := await runner.finish(run, plan, CHECK_SECONDS):
            log.warning("policy run cannot clean up", policy=active.key, run=run.name, error=left_behind)
        return None if timed_out else plan

    async def _end(self, active: ActiveRun, plan: Plan) -> None:
        record, uid = active.record, active.policy.uid
        odd, end = [row for row in plan.rows if row.is_odd], plan.end or End.DONE
        barred = [*barred_containers(kind_of(World(()), active.run), plan.rows)]
        left = barred or any(row.skip is not Skip.NO_CONTAINER for row in odd)
        unserved = any(row.skip is Skip.NO_DAEMON for row in odd)
        if end is End.DONE and left:
            end = End.LEFT_OUT
        if record.image and unserved and end is End.FAILED and not tally(plan.rows)[Stage.FAILED]:
            end = End.LEFT_OUT  # what new pods are made of cannot follow, because pods are left without the image
        failed = end.metric == "failed"
        named = record.image and plan.end is not None and plan.end.incomplete  # the plan's message names them
        skipped = [] if named else [f"{row.pod}: {row.wait.why}" for row in odd]
        details = failures(plan.rows) or "; ".join([*skipped, *filter(None, [plan.message])])
        message = ": ".join(filter(None, [summary(plan.rows) if plan.rows else "", details]))[:1000]
        log.info("policy run ended", policy=active.key, run=record.name, failed=failed, message=message)
        self._record(active, End.FAILED if failed else end, message)
        self._on_run(record.trigger, end.metric)
        tries = 0
        while (latest := self._policies.get(active.key)) is not None and latest.uid == uid:
            status = ended(
                latest, record, failed=failed, message=message, now=self._clock.now(), complete=end is End.DONE
            )
            try:
                await self._policies.write(latest, status, latest.conditions)
            except CrrdError as error:  # retried here, because a new attempt of the run would repeat the event
                tries += 1
                await asyncio.sleep(retry_delay(error, tries))
            else:
                return

    def _record(self, active: ActiveRun, end: End | None, message: str) -> None:
        """Queue events on the workload and on the policy."""
        policy = active.policy
        own = Target(policy.name, API_VERSION, KIND, policy.name, policy.uid)
        for each in (active.run, replace(active.run, target=own)):
            if (event := workload_event(each, end, message, self._clock.now())) is not None:
                self._events.record(event)

    def _progressed(self, active: ActiveRun, text: str) -> None:
        """Record that a run waits for something else than before."""
        if active.progress != text:
            active.progress = text
            self._wake_at(active.key, loop_time() + PROGRESS_SECONDS)
