"""Carries out ContainerRecreatePolicies: observes targets, calls `core.policy`, writes statuses, and starts runs.

All state is in the policy's status and the run's requests, so that the next leader can continue. The status has the
name of a run before its first request is created.
"""

from contextlib import suppress
from dataclasses import replace
from typing import NoReturn

import structlog

from crrd.core.config.references import ObjectName
from crrd.core.policy.conditions import look_failed
from crrd.core.policy.decide import decide
from crrd.core.policy.triggers import READ_ROLE, grant
from crrd.core.policy.types import Policy
from crrd.core.rollout.waits import WaitReason, unserved
from crrd.kube.client import KubeClient
from crrd.kube.clock import ServerClock
from crrd.kube.events import KubeEventSink
from crrd.lib.controller import Controller
from crrd.lib.errors import ConflictError, CrrdError
from crrd.lib.health import Health
from crrd.lib.looptime import loop_time
from crrd.lib.supervise import Loop
from crrd.manager.policies.leftovers import CarriedOn, Leftovers
from crrd.manager.policies.look import Memory, TargetObserver
from crrd.manager.policies.obstacles import RESYNC_SECONDS, Obstacle, obstacle_of
from crrd.manager.policies.peers import Peers
from crrd.manager.policies.restorer import Restorer
from crrd.manager.policies.run_task import RunObserver, Shared
from crrd.manager.policies.runs import PolicyRuns
from crrd.manager.policies.statuses import Policies
from crrd.manager.policies.watches import NamespaceWatches, Scope
from crrd.rollout.daemons import NodeDaemons, daemon_informer
from crrd.rollout.display import FILES_NOT_REFRESHED
from crrd.rollout.nodes import DownNodes

LOOK_SECONDS = 300.0  # Longest time between two answers while a policy is observed
ACTED_SECONDS = 0.5  # Until the look after a write for which the watches may be late
FAILING_SECONDS = 60.0  # How long no look at a policy succeeds until its status says so

log = structlog.get_logger(__name__)


class PolicyController(Controller):
    """Runs all policies of a cluster. The constructor starts nothing.

    The responses to `client` must reach `clock`. The caller runs `events`. `account` is the manager's ServiceAccount as
    `namespace:name`, `pull_resources` and `patch` as in `read_policy`, and `judge_addresses` as in `allowed`.
    """

    name = "policies"
    round_seconds = LOOK_SECONDS

    def __init__(
        self,
        client: KubeClient,
        events: KubeEventSink,
        clock: ServerClock,
        *,
        account: str,
        on_run: RunObserver,
        pull_resources: str = "",
        patch: bool = False,
        judge_addresses: tuple[str, ...] = (),
    ) -> None:
        super().__init__()
        self._clock, self._nodes, self._account = clock, DownNodes(client), account
        self._policies = Policies(client, self._changed, pull_resources, patch=patch)
        wake_at = self.queue.wake_at
        self._daemons = NodeDaemons(self._daemons_changed)
        parts = client, events, clock, self._policies, self._daemons
        self._left = Leftovers(client, clock, self._carried_on, lambda: self._policies.informer.listed)
        shared = Shared(
            *parts, on_run=on_run, on_refresh=self._refreshed, wake_at=wake_at, judge_addresses=judge_addresses
        )
        self._runs = PolicyRuns(shared, on_stop=self._left.wake)
        self._waiting: dict[str, set[str]] = {}  # Policy -> nodes of its pods that were down at the last look
        self._memories: dict[str, Memory] = {}
        self._watches = NamespaceWatches(client, self._object_changed, self._object_freed)
        self._observer = TargetObserver(client, self._watches, account)
        self._peers = Peers(self._memories, self._runs, self._watches, self.queue.wake)
        self._restorer = Restorer(client, events, clock, account)
        # A namespace whose configuration may not be read is no reason to be unready: the policies' status reports it.
        self.sources = [
            Loop("configuration", self._watches.run, (self._watches,)),
            self._policies.informer.loop("policies"),
            daemon_informer(client, self._daemons, strict=False).loop("node daemons"),
            Loop("policy-leftovers", self._left.run, (self._left.queue,)),
        ]

    async def run(self, health: Health) -> NoReturn:
        """See Controller."""
        try:
            await super().run(health)
        finally:
            self._runs.stop_all()

    def states(self) -> dict[str, int]:
        """Return the number of policies by the reason of their condition Ready, as far as it could be written."""
        return self._policies.states({key for key, memory in self._memories.items() if memory.fails})

    def _changed(self, before: Policy | None, after: Policy | None) -> None:
        policy = after or before
        if policy is not None and (before is None or after is None or before.generation != after.generation):
            if (present := self._policies.get(policy.key)) is None:
                self._memories.pop(policy.key, None)
                self._waiting.pop(policy.key, None)
                self._runs.stop(policy.key)
            elif present.is_off:
                self._runs.stop(policy.key)  # at once: a look may take minutes
            self._left.wake(before, after)
            self._forget_unwatched(policy.namespace)
            self.queue.wake(policy.key)

    def _in(self, namespace: str) -> list[Policy]:
        return [each for each in self._policies.objects if each.namespace == namespace]

    def _carried_on(self, namespace: str) -> CarriedOn:
        found, undecided = set[str](), False
        for policy in self._in(namespace):
            memory, run = self._memories.get(policy.key, Memory()), policy.status.run
            if (active := self._runs.active(policy.key)) is not None:
                found.add(active.record.name)
            elif policy.is_off:
                continue
            elif memory.begins:
                found.add(memory.begins)  # its task begins once the status is written
            elif memory.claims is None and run is not None and not run.finished:
                found.add(run.name)  # an earlier leader has begun it, and this one has not decided yet
                undecided = True
        return CarriedOn(found, undecided)

    def _forget_unwatched(self, namespace: str) -> None:
        """End the watches of a namespace that no policy needs any more."""
        needed = (self._memories.get(each.key, Memory()).resources(each) for each in self._in(namespace))
        self._watches.keep_only(namespace, set().union(*needed))

    def _object_changed(self, scope: Scope, name: str) -> None:
        """Look at the policies that use an object, or whose target it may be."""
        now = loop_time()
        for policy in self._in(scope.namespace):
            memory = self._memories.get(policy.key)
            if memory is None or memory.should_observe(policy, scope, name, now):
                self.queue.wake_at(policy.key, memory.when_to_look(now) if memory is not None and name else now)

    def _object_freed(self, namespace: str, name: ObjectName) -> None:
        """Look at the policies that wait until no pod on a node uses an object."""
        for policy in self._in(namespace):
            if any(each.nodes and each.part.object_name == name for each in policy.status.config):
                self.queue.wake(policy.key)

    def _daemons_changed(self) -> None:
        """Look at the policies that wait for a node which is back."""
        for key, nodes in self._waiting.items():
            if any(not unserved(node, self._daemons.by_node) for node in nodes):
                self.queue.wake(key)

    async def handle(self, key: str) -> float | None:
        """Observe one policy and act."""
        policy = self._policies.get(key)
        if policy is None:
            self._waiting.pop(key, None)  # a round may have set it after the deletion
            return None
        memory = self._memories.setdefault(key, Memory())
        try:
            wait = await self._round(policy, memory)
        except ConflictError:  # the policy has changed
            raise
        except Exception as error:
            await self._note_failure(policy, memory, str(error) if isinstance(error, CrrdError) else repr(error))
            raise
        if wait is None:
            await self._note_failure(policy, memory, self._watches.problem(policy.namespace))
            wait = Obstacle.RIGHT.value.maximum  # a list wakes it before that, but a watch that goes on makes none
        else:
            memory.failing_since, memory.fails = None, False
        return loop_time() + wait

    async def _note_failure(self, policy: Policy, memory: Memory, error: str) -> None:
        """Show in the status that no look has succeeded for a while. Its other parts stay."""
        now = loop_time()
        memory.failing_since = now if memory.failing_since is None else memory.failing_since
        memory.fails = now >= memory.failing_since + FAILING_SECONDS
        if memory.fails and self._policies.get(policy.key) is policy:
            with suppress(CrrdError):  # the metric shows it in any case
                conditions = look_failed(policy, error, self._clock.now())
                await self._policies.write(policy, policy.status, conditions)

    async def _round(self, policy: Policy, memory: Memory) -> float | None:
        """Observe one policy and act. Return the seconds until the next time, None while a list is incomplete."""
        key = policy.key
        absent = memory.absent
        aim, found = await self._observer.look(policy, memory, self._clock.now())
        if self._policies.get(key) is not policy or memory.absent != absent:
            self._forget_unwatched(policy.namespace)  # the look may have begun a watch that is not needed any more
        if found is None:
            return None
        daemons = None if policy.patch else self._daemons.by_node
        down = {node: why for node in {each.node for each in found.running} if (why := unserved(node, daemons))}
        self._waiting[key] = {*down}
        doubtful = {each.node for each in found.running if not each.ready} if policy.patch else down
        down |= {node: WaitReason.NODE_NOT_READY.say(node=node) for node in await self._nodes.among(doubtful)}
        old = frozenset(node for node, each in (daemons or {}).items() if not each.reloads)
        found = replace(
            found, down=down, old_daemons=old, progress=self._runs.progress(key), idle_for=self._runs.idle_for(key)
        )
        found = replace(found, old_files=memory.old_files, dropped=memory.dropped, unsettled=memory.unsettled)
        found = await self._restorer.look(policy, memory, found)
        if self._memories.get(key) is not memory:  # the policy was deleted meanwhile
            return 0.0
        others = [each for each in self._in(policy.namespace) if each.key != key]
        found = replace(found, peers=self._peers.of(others))
        decision = decide(policy, found, self._clock.now())
        self._peers.claim(policy, found, decision.claims, others)
        memory.unsettled = decision.unsettled
        memory.begins = "" if decision.run is None else decision.run.name
        self._runs.stop_others(policy, decision.run, aim)  # before the write, which may fail
        parts = policy, decision.status, decision.conditions
        memory.dropped = await self._policies.write(*parts, always=bool(found.dropped))
        present = self._policies.get(key)
        if present is None or (present.uid, present.generation) != (policy.uid, policy.generation):
            return 0.0  # it was deleted or edited meanwhile, maybe while there was nothing to write
        if memory.dropped and not found.dropped:  # the policy must not act on what it could not record
            log.warning("fields of a policy's status dropped", policy=key, fields=memory.dropped)
            self._runs.stop(key)
            return 0.0
        self._runs.follow(policy, decision.run, aim, decision.run_until, only=decision.run_only)
        memory.begins = ""
        acted = await self._restorer.carry_out(policy, memory, decision.data)
        obstacle = obstacle_of(replace(found, refused=memory.refused), is_watched=memory.absent is not None)
        memory.hindered = memory.hindered + 1 if obstacle is memory.obstacle else 1
        memory.obstacle = obstacle
        wait = RESYNC_SECONDS if obstacle is None else obstacle.value.delay(memory.hindered)
        if decision.wake_at is not None:
            wait = min(wait, max(0.0, (decision.wake_at - self._clock.now()).total_seconds()) + 0.01)
        before, after = policy.status, decision.status
        if acted or (before.bad, before.revisions) != (after.bad, after.revisions):
            wait = min(wait, ACTED_SECONDS)
        return wait

    def _refreshed(self, policy: Policy, problem: str, lacks_right: bool) -> None:
        """Record whether the run of a policy could have files refreshed."""
        command = grant(policy.namespace, READ_ROLE, self._account)
        remedy = f"; to allow it, bind the present ClusterRole {READ_ROLE}: {command}"
        message = f"{FILES_NOT_REFRESHED}: {problem}{remedy if lacks_right else ''}" if problem else ""
        memory = self._memories.get(policy.key)
        if memory is not None and memory.old_files != message:
            memory.old_files = message
            self.queue.wake(policy.key)
