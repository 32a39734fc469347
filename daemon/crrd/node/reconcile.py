"""Handles one pod: observe, decide, execute."""

import asyncio

import structlog

from crrd.core.api.pod import Pod
from crrd.core.recreate.actions import Decision, earliest
from crrd.core.recreate.decide import decide, without_work
from crrd.core.recreate.invariants import check
from crrd.core.recreate.observation import ApiAnswer, Observation
from crrd.lib.errors import CrrdError
from crrd.lib.looptime import loop_time
from crrd.node.execute import Executor
from crrd.node.lookups import Lookups
from crrd.node.observe import PodInspector
from crrd.node.pods import Pods, drop_unneeded
from crrd.node.records import PodRecord, WriteRetry
from crrd.node.writes import log_fields
from crrd.ports import Edges

log = structlog.get_logger(__name__)

ROUND_SECONDS = 0.01  # Least time between two rounds of one pod, because the first one has done what was possible
ANSWER_SECONDS = 1.0  # Least time in seconds for the API server's answer, before a due stop is sent without it


class Reconciler:
    """Handles one pod's key at a time for the queue."""

    def __init__(self, node_name: str, edges: Edges, pods: Pods, executor: Executor, lookups: Lookups) -> None:
        self._node_name = node_name
        self._edges = edges
        self._pods = pods
        self._executor = executor
        self._inspector = PodInspector(node_name, edges, pods, executor, lookups)

    async def handle(self, pod_key: str) -> float | None:
        """Do one round for a pod. Return the loop's time of the next round."""
        waits_for_slot = False
        try:
            wake_at, waits_for_slot = await self._round(pod_key)
        finally:
            self._executor.slots.end_round(pod_key, wanted=waits_for_slot)
            self._pods.tidy(self._pods.peek(pod_key))
        return wake_at

    @property
    def stops_outstanding(self) -> bool:
        """Whether a stop after a hook is still missing, so that a drain must wait for it.

        True if the runtime failed for a live request whose hook has ended, or if an ended request's stop is still due.
        """
        now = loop_time()
        for pod_record in self._pods:
            failed = [record for record in pod_record.worked.values() if record.live and pod_record.runtime.error]
            works = [work for record in failed for work in record.works.values()]
            hooked = any(work.hook_result is not None and work.stop_sent is None for work in works)
            if hooked or pod_record.ended_before_stop(now):
                return True
        return False

    async def _round(self, pod_key: str) -> tuple[float | None, bool]:
        """Return the time of the next round, and whether a stop waits for a slot."""
        pod_record = self._pods.ensure(pod_key)
        self._refresh(pod_record)
        if not pod_record.live and not pod_record.ended_before_stop(loop_time()):
            pod_record.forget_observations()
            return self._not_at_once(pod_record.agenda.next_at), False
        observed = await self._inspector.observe(pod_record)
        decision = self._decide(observed)
        if decision.ask_api and loop_time() >= pod_record.api_retry.next_try:
            answer = await self._ask(pod_record)
            self._refresh(pod_record)  # requests may have changed meanwhile
            observed = await self._inspector.observe(pod_record, answer)
            decision = self._decide(observed)
        pod_record.runtime.awaited = decision.poll_runtime
        looked_at = {known.request.uid: pod_record.requests[known.request.uid] for known in observed.requests}
        # Requests that came or ended while the pod was observed are first refreshed, in the next round.
        pod_record.agenda.done(uid for uid, each in looked_at.items() if each.live and each.recorder is not None)
        self._executor.writes.release_unwanted(looked_at.values(), decision.actions)
        self._executor.carry_out(decision.actions)
        next_look = pod_record.runtime.next_look(loop_time())
        next_question = pod_record.api_retry.next_try if decision.ask_api and pod_record.api_retry.waiting else None
        first = earliest(decision.wake_at, pod_record.agenda.next_at, next_look, next_question)
        return self._not_at_once(first), decision.waits_for_slot

    @staticmethod
    def _not_at_once(at: float | None) -> float | None:
        """Return the time of the next round, not before ROUND_SECONDS."""
        return None if at is None else max(at, loop_time() + ROUND_SECONDS)

    def _decide(self, observed: Observation) -> Decision:
        """Decide what to do now. If that breaks a rule, no hook and no stop starts, because it is a bug."""
        decision = decide(observed)
        violations = check(decision, observed)
        for each in violations:
            what = {"action": type(each.action).__name__, "container": each.container or None}
            log.error("decision withheld", rule=each.rule.value, **what, **log_fields(each.action.request))
            self._edges.recorder.withheld(each.rule)
        return without_work(decision, observed) if violations else decision

    async def _ask(self, pod_record: PodRecord) -> ApiAnswer | None:
        """Read the pod from the API server. None if it does not respond."""
        retry, asked_at = pod_record.api_retry, loop_time()
        try:
            async with asyncio.timeout_at(self._answer_by(pod_record, asked_at)):
                found = await self._find(pod_record.key)
        except (CrrdError, TimeoutError) as error:
            delay = retry.fail(loop_time(), error)
            report = log.warning if retry.failures == 1 else log.debug
            reason = str(error) or "no answer in time"
            report("pod lookup failed", pod=pod_record.key, error=reason, retry_in=round(delay, 1))
            return None
        retry.succeed()
        if found is not None:
            pod_record.note_deletion(found)
        return ApiAnswer(found, asked_at)

    def _answer_by(self, pod_record: PodRecord, now: float) -> float | None:
        """Return until when (monotonic) to wait for the API server. A due stop or a shutdown cannot wait longer."""
        if not pod_record.ended_before_stop(now):
            return None
        ends = (work.hook_until for work in pod_record.works if work.hook_until and work.stop_still_due(now))
        return now + ANSWER_SECONDS if self._executor.draining else max(min(ends), now + ANSWER_SECONDS)

    async def _find(self, pod_key: str) -> Pod | None:
        """Read the pod from the API server, and record it if the watch has not reported it yet.

        If the watch has reported something meanwhile, that may be newer.
        """
        namespace, _, name = pod_key.partition("/")
        state_before = self._pods.watch_state(pod_key)
        found = await self._edges.find_pod(namespace, name)
        watched = self._pods.known_since(pod_key) is not None  # else no watch would keep it up to date
        behind = watched and self._pods.watch_state(pod_key) == state_before
        if found is not None and found.node_name == self._node_name and behind:
            self._pods.pod_changed(found)
        return found

    def _refresh(self, pod_record: PodRecord) -> None:
        """End what is kept for requests that have ended, as far as nothing needs it, and start the live ones' metrics.

        Requests with a running write are skipped, because the watch may report their end before the write returns, and
        the write's result must be recorded first.
        """
        for each in pod_record.to_look_at(loop_time()):
            if each.live:
                each.recorder = each.recorder or self._edges.recorder.begin(each.request)
                continue
            pod_record.agenda.done((each.request.uid,))
            if not each.writing:
                if each.recorder is not None:
                    each.recorder.forgotten(each.request)
                each.recorder, each.emitted = None, set()
                each.status_retry, each.pin_retry = WriteRetry(), WriteRetry()
                drop_unneeded(self._pods, each)  # a hook may have been kept for a request that was deleted meanwhile
