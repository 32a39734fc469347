"""Carries out ContainerRecreatePolicies: observes targets, calls `core.policy`, writes statuses, and carries out runs.

All state is in the policy's status and the run's requests, so that the next leader can continue. The status has the
name of a run before its first request is created.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import NoReturn

import structlog

from crrd.core.config.references import Kind
from crrd.core.policy.decide import Decision, decide, ended, make_run
from crrd.core.policy.types import API_VERSION, KIND, Policy, PolicyStatus, RunRecord
from crrd.core.policy.v1alpha1 import read_policy, write_status
from crrd.core.rollout.plan import End, Plan
from crrd.core.rollout.run import Run, Target
from crrd.core.rollout.waits import Remedies, Skip, WaitReason
from crrd.kube.client import KubeClient
from crrd.kube.clock import ServerClock
from crrd.kube.events import KubeEventSink
from crrd.kube.informer import Informer, Objects
from crrd.kube.reflector import Selection
from crrd.kube.resources import POLICIES
from crrd.lib.controller import Controller
from crrd.lib.errors import ConflictError, CrrdError, GoneError
from crrd.lib.health import Health
from crrd.lib.supervise import Loop
from crrd.manager.policies.look import ConfigVersions, Memory, TargetObserver
from crrd.rollout.cluster import Cluster
from crrd.rollout.display import RunDisplay, failures, summary
from crrd.rollout.events import WorkloadEvent, workload_event
from crrd.rollout.runner import Runner
from crrd.rollout.target import Aim

RESYNC_SECONDS = 300.0  # Interval of observations without a change, because new pods may use other objects
OBSTACLE_SECONDS = 15.0
"""Interval of checks for a missing target or right, which no watch reports."""
RETRY_SECONDS = 5.0  # Pause after a run that could not continue, or waits for another one
DAEMON_SECONDS = 60.0
"""How long a run waits for the daemon of a node. During an update of the DaemonSet a node has none for seconds. After
this time the run has failed, because containers on the node keep the old configuration."""
PROGRESS_SECONDS = 5.0  # Interval of status writes about what a run waits for
LOOK_SECONDS = 300.0  # Longest time between two answers while a policy is observed
PARALLEL_RUNS = 16  # Each run has four watches
TURN_SECONDS = 60.0  # Time without progress after which a run without a window lets others run

FIELDS: Remedies = {
    WaitReason.UNREADY_IN_ORDER: "restart pod {pod} first, or set spec.budget.maxUnavailable to {enough}",
    WaitReason.NODE_LIMIT: "to change the limit: spec.budget.maxPerNode",
    Skip.RESTARTS_POD:
        "a policy does not allow this; to restart it: "
        "kubectl recreate pod/{pod} -n {namespace} -c {container} --allow-pod-restart",
}  # fmt: skip
"""What a user of a policy can do about a wait or a skipped pod: its fields, or a command."""

log = structlog.get_logger(__name__)
RunObserver = Callable[[str, str], None]
"""Called for each ended run, with its trigger, and `succeeded` or `failed`."""


@dataclass(slots=True)
class _Active:
    """A run that is being carried out."""

    identity: tuple[str, int]  # The run's name and the policy's generation
    task: asyncio.Task[None]
    progress: str = ""


class PolicyController(Controller):
    """Runs all policies of a cluster. The constructor starts nothing.

    The responses to `client` must reach `clock`. The caller runs `events`. `account` is the manager's ServiceAccount as
    `namespace:name`.
    """

    name = "policies"
    round_seconds = LOOK_SECONDS

    def __init__(
        self, client: KubeClient, events: KubeEventSink, clock: ServerClock, *, account: str, on_run: RunObserver
    ) -> None:
        super().__init__()
        self._client, self._events, self._clock, self._on_run = client, events, clock, on_run
        self._policies = Objects[Policy](self._changed, group=lambda policy: policy.key)
        self._memories: dict[str, Memory] = {}
        self._active: dict[str, _Active] = {}
        self._versions = ConfigVersions(client, self._config_changed)
        self._observer = TargetObserver(client, self._versions, account)
        self._runs = asyncio.Semaphore(PARALLEL_RUNS)
        watch = Informer(client, Selection(POLICIES, read_policy), self._policies)
        # A namespace whose configuration may not be read is no reason to be unready: the policies' status reports it.
        self.sources = [Loop("configuration", self._versions.run, (self._versions,)), watch.loop("policies")]

    async def run(self, health: Health) -> NoReturn:
        """See Controller."""
        try:
            await super().run(health)
        finally:
            for active in self._active.values():
                active.task.cancel()

    def states(self) -> dict[str, int]:
        """Return the number of policies by the reason of their condition Ready."""
        counts = Counter[str]()
        for policy in self._policies:
            ready = next((each for each in policy.conditions if each.get("type") == "Ready"), {})
            counts[str(ready.get("reason") or "Unknown")] += 1
        return counts

    def _policy(self, key: str) -> Policy | None:
        """Return the policy `namespace/name`, or None."""
        return next(reversed(tuple(self._policies.of(key))), None)

    def _changed(self, before: Policy | None, after: Policy | None) -> None:
        policy = after or before
        if policy is not None and (before is None or after is None or before.generation != after.generation):
            if self._policy(policy.key) is None:
                self._memories.pop(policy.key, None)
            self._forget_unwatched(policy.namespace)
            self.queue.wake(policy.key)

    def _forget_unwatched(self, namespace: str) -> None:
        """End the watches of a namespace if no policy needs them any more."""
        rest = [each.config for each in self._policies if each.namespace == namespace]
        if not any(rest):
            self._versions.forget(namespace, Kind.CONFIG_MAP)
        if not any(config is not None and config.secrets for config in rest):
            self._versions.forget(namespace, Kind.SECRET)

    def _config_changed(self, namespace: str, kind: Kind, name: str) -> None:
        now = asyncio.get_running_loop().time()
        for policy in self._policies:
            if policy.namespace == namespace and policy.config is not None:
                memory = self._memories.get(policy.key)
                if not name or memory is None or memory.should_observe(kind, name, now):
                    self.queue.wake(policy.key)

    async def handle(self, key: str) -> float | None:
        """Observe one policy and act."""
        policy = self._policy(key)
        if policy is None:
            self._stop(key)
            return None
        now = asyncio.get_running_loop().time()
        memory = self._memories.setdefault(key, Memory())
        aim, found = await self._observer.look(policy, memory, self._clock.now())
        if self._policy(key) is not policy:
            self._forget_unwatched(policy.namespace)  # the look may have begun a watch that is not needed any more
        if found is None:
            return now + OBSTACLE_SECONDS  # a list wakes it before that, but a watch that goes on makes none
        active = self._active.get(key)
        decision = decide(policy, replace(found, progress=active.progress if active else ""), self._clock.now())
        if not await self._write(policy, decision.status, decision.conditions):
            return now + 1.0
        self._follow(policy, decision, aim)
        wait = OBSTACLE_SECONDS if found.problem or found.unreadable else RESYNC_SECONDS
        if decision.wake_at is not None:
            wait = min(wait, max(0.0, (decision.wake_at - self._clock.now()).total_seconds()) + 0.01)
        return asyncio.get_running_loop().time() + wait

    async def _write(self, policy: Policy, status: PolicyStatus, conditions: object) -> bool:
        """Write the status if it has changed. Return False if the policy has changed meanwhile."""
        if status == policy.status and conditions == policy.conditions:
            return True
        whole = {**write_status(status), "conditions": conditions, "observedGeneration": policy.generation}
        body = {"metadata": {"resourceVersion": policy.resource_version}, "status": whole}
        try:
            name = policy.namespace, policy.name
            self._policies.put(read_policy(await self._client.merge_patch(POLICIES, *name, body, subresource="status")))
        except (ConflictError, GoneError):
            return False
        return True

    def _follow(self, policy: Policy, decision: Decision, aim: Aim | None) -> None:
        """Carry out the run of the decision, and stop any other."""
        active, wanted = self._active.get(policy.key), decision.run
        if active is not None and wanted is not None and active.identity == (wanted.name, policy.generation):
            return
        self._stop(policy.key)
        if wanted is None or aim is None:
            return
        task = asyncio.create_task(self._carry_out(policy, wanted, aim, decision.run_until), name=f"run {wanted.name}")
        self._active[policy.key] = _Active((wanted.name, policy.generation), task)

    def _stop(self, key: str) -> None:
        """Begin no more pods of the policy's run. Requests under way continue."""
        if active := self._active.pop(key, None):
            active.task.cancel()

    async def _carry_out(self, policy: Policy, record: RunRecord, aim: Aim, until: datetime | None) -> None:
        """Carry out a run, and record how it ended. Wait while another run on the target is first."""
        key, run = policy.key, make_run(policy, record, aim.target)
        log.info("policy run started", policy=key, run=run.name, reason=record.reason)
        if policy.status.run != record:  # else it continues
            self._record(policy, run, WorkloadEvent.RECREATING, record.reason)
        try:
            plan, timed_out = await self._run(policy, run, aim, until)
            patient_until = asyncio.get_running_loop().time() + DAEMON_SECONDS
            while (
                plan.end is End.RIVAL
                or (timed_out and until is None)
                or (_without_daemon(plan) and asyncio.get_running_loop().time() < patient_until)
            ):
                if not timed_out:  # else the last plan has what it waits for
                    self._progressed(key, plan.message or _without_daemon(plan)[0])
                await asyncio.sleep(RETRY_SECONDS)
                plan, timed_out = await self._run(policy, run, aim, until)
            if timed_out:
                log.info("policy run interrupted", policy=key, run=run.name, error="the window has closed")
            else:
                await self._end(policy, run, record, plan)
        except Exception as error:
            expected = isinstance(error, CrrdError)
            log.warning("policy run interrupted", policy=key, run=run.name, error=str(error), exc_info=not expected)
            self._progressed(key, str(error))
            await asyncio.sleep(RETRY_SECONDS)
        self._active.pop(key, None)
        self.queue.wake(key)

    async def _run(self, policy: Policy, run: Run, aim: Aim, until: datetime | None) -> tuple[Plan, bool]:
        """Return the last plan of a run, and whether its window or its turn ended first."""
        timeout = None if until is None else max(1.0, (until - self._clock.now()).total_seconds())
        async with self._runs, Cluster(self._client, policy.namespace, aim, run.options) as cluster:
            parts = self._client, cluster, self._clock, _Progress(partial(self._progressed, policy.key))
            runner = Runner(*parts, timeout=timeout, confirmed=True, remedies=FIELDS, patience=TURN_SECONDS)
            return await runner.run(run)

    async def _end(self, policy: Policy, run: Run, record: RunRecord, plan: Plan) -> None:
        failed = plan.outcome is not End.DONE or bool(_without_daemon(plan))
        skipped = (f"{row.pod}: {row.wait.why}" for row in plan.rows if row.skip is not None and not row.skip.normal)
        details = failures(plan.rows) or "; ".join(skipped) or (plan.message if failed else "")
        message = ": ".join(filter(None, [summary(plan.rows), details]))[:1000]
        log.info("policy run ended", policy=policy.key, run=run.name, failed=failed, message=message)
        self._record(policy, run, WorkloadEvent.FAILED if failed else WorkloadEvent.RECREATED, message)
        self._on_run(record.trigger, "failed" if failed else "succeeded")
        while (latest := self._policy(policy.key)) is not None and latest.uid == policy.uid:
            status = ended(latest, record, failed=failed, message=message, now=self._clock.now())
            with suppress(CrrdError):  # retried, because a new attempt of the run would repeat the event
                if await self._write(latest, status, latest.conditions):
                    break
            await asyncio.sleep(0.5)

    def _record(self, policy: Policy, run: Run, reason: WorkloadEvent, message: str) -> None:
        """Queue events on the workload and on the policy."""
        own = Target(policy.name, API_VERSION, KIND, policy.name, policy.uid)
        for each in (run, replace(run, target=own)):
            if (event := workload_event(each, reason, message, self._clock.now())) is not None:
                self._events.record(event)

    def _progressed(self, key: str, text: str) -> None:
        """Record that the run of a policy waits for something else than before."""
        if (active := self._active.get(key)) is not None and active.progress != text:
            active.progress = text
            self.queue.wake_at(key, asyncio.get_running_loop().time() + PROGRESS_SECONDS)


def _without_daemon(plan: Plan) -> list[str]:
    """Return the pods that were skipped because their nodes have no daemon."""
    return [f"{row.pod}: {row.wait.why}" for row in plan.rows if row.skip is Skip.NO_DAEMON]


class _Progress(RunDisplay):
    """Reports what a run waits for."""

    def __init__(self, on_progress: Callable[[str], None]) -> None:
        self._on_progress = on_progress

    def show(self, plan: Plan) -> None:
        """See RunDisplay."""
        self._on_progress(": ".join([summary(plan.rows), *plan.waits[:1]]))

    def print_line(self, message: str, details: Sequence[str] = ()) -> None:
        """See RunDisplay."""
        log.debug(message, details=details)

    async def ask(self, question: str) -> bool:
        """See RunDisplay. The runs of policies are confirmed from their start."""
        return False
