"""Look at one pod and carry out what is decided about it: observe, decide, execute. Ends there."""

import asyncio
from dataclasses import replace

import structlog

from crrd.core.api.pod import Pod
from crrd.core.api.types import Request
from crrd.core.recreate.actions import Decision
from crrd.core.recreate.decide import decide
from crrd.core.recreate.observation import Live, Observation
from crrd.lib.errors import ApiUnavailableError, CrrdError
from crrd.node.edges import Edges
from crrd.node.execute import Executor
from crrd.node.observe import PodObserver
from crrd.node.pods import ContainerWatch, PodRecord, Pods

log = structlog.get_logger(__name__)

ROUND_SECONDS = 0.01
"""Seconds between two rounds of one pod at least: what can be done at once was done."""


class Reconciler:
    """Handles one pod's key at a time for the queue.

    Args:
        node_name: this node.
        edges: the ports.
        pods: what is known of each pod.
        executor: starts what was decided.
    """

    def __init__(self, node_name: str, edges: Edges, pods: Pods, executor: Executor) -> None:
        self._node_name = node_name
        self._edges = edges
        self._pods = pods
        self._executor = executor
        self._observer = PodObserver(node_name, edges, pods)
        self.draining = False

    async def handle(self, pod_key: str) -> float | None:
        """One round for a pod; returns when to look again."""
        waits_for_slot = False
        try:
            wake_at, waits_for_slot = await self._round(pod_key)
        finally:
            self._executor.slots.end_round(pod_key, wanted=waits_for_slot)
            self._pods.tidy(self._pods.record_of(pod_key))
        return wake_at

    @property
    def owes_stops(self) -> bool:
        """Whether a hook has run whose stop waits for the runtime to answer."""
        return any(record.containers.runtime_error and record.owes_stop for record in self._pods)

    async def _round(self, pod_key: str) -> tuple[float | None, bool]:
        """When to look again, and whether a stop waits for its slot."""
        record = self._pods.record(pod_key)
        self._count_requests(record)
        live = [request for request in record.requests() if request.live]
        if not live:
            record.containers = ContainerWatch()
            return None, False
        observation = await self._observer.observe(record, live)
        requests, decision = self._decide(record, observation)
        current = [request for request in requests if request.live and not request.error]
        if decision.ask_api and current:
            answer = await self._ask(record)
            # Requests may have come and gone meanwhile, and the answer may be about another pod than was listed.
            self._count_requests(record)
            current = [request for request in record.requests() if request.live and not request.error]
            if answer is not None and current:
                observation = replace(await self._observer.observe(record, current), live=answer)
            requests, decision = self._decide(record, observation)
        containers = record.containers
        containers.awaited = decision.watch_runtime
        self._executor.carry_out(pod_key, decision.actions)
        next_look = containers.runtime.next_try if observation.runtime_error else None
        next_question = containers.api.next_try if decision.ask_api and containers.api.waiting else None
        wakes = (decision.wake_at, self._executor.writes.wake_at(pod_key), next_look, next_question)
        first = min((at for at in wakes if at is not None), default=None)
        now = asyncio.get_running_loop().time()
        return None if first is None else max(first, now + ROUND_SECONDS), decision.waits_for_slot

    def _decide(self, record: PodRecord, observation: Observation) -> tuple[list[Request], Decision]:
        """Decide on the requests as they are now: they may have changed while the runtime was asked."""
        requests = record.requests()
        live = {each.request.uid: each for each in record.present if each.request.live}
        observation = replace(
            observation,
            first_seen={uid: each.first_seen for uid, each in live.items()},
            unready_seen={uid: each.unready_seen for uid, each in live.items() if each.unready_seen is not None},
            unpinned=frozenset(uid for uid, each in live.items() if each.unpinned),
            pin_errors={uid: each.pins.error for uid, each in live.items() if each.pins.error},
            may_stop=self._executor.slots.may_stop(record.key),
            prunes_is_killed=self._executor.writes.prunes_is_killed,
            draining=self.draining,
        )
        return requests, decide(requests, observation, asyncio.get_running_loop().time())

    async def _ask(self, record: PodRecord) -> Live | None:
        """The API server's own word on the pod; None where it says nothing, or was asked in vain just now."""
        retry, asked_at = record.containers.api, asyncio.get_running_loop().time()
        if asked_at < retry.next_try:
            return None
        try:
            found = await self._find(record.key)
        except CrrdError as error:
            at_least = error.retry_after if isinstance(error, ApiUnavailableError) else 0.0
            delay = retry.fail(asyncio.get_running_loop().time(), at_least)
            report = log.warning if retry.failures == 1 else log.debug
            report("pod not asked for", pod=record.key, error=str(error), retry_in=round(delay, 1))
            return None
        retry.succeed()
        return Live(found, asked_at)

    async def _find(self, pod_key: str) -> Pod | None:
        """Ask the API server for the pod; the record learns of one that it should have.

        What a watch has told meanwhile may be newer.
        """
        namespace, _, name = pod_key.partition("/")
        heard = self._pods.heard_of(pod_key)
        found = await self._edges.pods.find(namespace, name)
        watched = self._pods.known_since(pod_key) is not None  # else nobody would keep it up to date
        behind = watched and self._pods.heard_of(pod_key) == heard
        if found is not None and found.node_name == self._node_name and behind:
            self._pods.pod_changed(found)
        return found

    def _count_requests(self, record: PodRecord) -> None:
        """Let the metrics begin with requests that came, and end with those that went."""
        for ended in self._pods.end_requests(record):
            if ended.recorder is not None:
                ended.recorder.forgotten(ended.request)
                ended.recorder = None
            for key in list(record.works):  # another request's hook may have been kept for this one
                self._executor.works.drop_unneeded(record, key)
        for each in record.present:
            if each.request.live and each.recorder is None:
                each.recorder = self._edges.recorder.begin(each.request)
