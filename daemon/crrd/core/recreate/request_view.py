"""One request in a round: what is known of it, and the parts of a decision that every wait of a request has."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from crrd.core.api.phases import check_move
from crrd.core.api.reasons import EventReason, Reason
from crrd.core.api.time import parse_time, rfc3339
from crrd.core.api.types import (
    UNANSWERED_SECONDS,
    WHOLE_POD,
    Pin,
    RecreateState,
    Request,
    RequestPhase,
    StartTimes,
    Status,
)
from crrd.core.recreate.actions import NOTHING, Decision, EmitEvent, PinContainers, WriteStatus, earliest
from crrd.core.recreate.messages import NO_MESSAGE, Message, waited
from crrd.core.recreate.observation import (
    NETWORK_READY,
    Observation,
    ObservedNode,
    ObservedPod,
    ObservedRequest,
    Work,
)

QUIET = 1.0  # Seconds until a wait for the pod or a container is written to the status
ASK_AGAIN = 0.05  # Seconds until a look that came too early is repeated
PERSIST_SECONDS = 2.0
"""Seconds until a hook's or stop's start is persisted. A restart before that may add up to them to the grace period."""
RESTART_SECONDS = 10.0  # Seconds beyond the grace period within which kubelet restarts a pod


@dataclass(frozen=True)
class RequestView:
    """A request, and everything that is known of its pod."""

    known: ObservedRequest
    observation: Observation

    @property
    def request(self) -> Request:
        """The request."""
        return self.known.request

    @property
    def observed(self) -> ObservedPod:
        """Its pod, in the runtime and in the API."""
        return self.observation.pod

    @property
    def node(self) -> ObservedNode:
        """The node."""
        return self.observation.node

    @property
    def now(self) -> float:
        """Monotonic seconds."""
        return self.observation.now

    @property
    def kubelet_waits(self) -> Message | None:
        """Step 6: why kubelet would not start a container of the pod now, None if it would.

        Source: kubelet starts nothing while its runtime is not ready (`syncLoop`), and only pods on the host's network
        while the network is not (`syncPod`).
        """
        observed = self.observed
        if (since := self.node.kubelet_silent_since) is not None:
            seconds, _ = waited(since, self.now)
            return Message.of(Reason.KUBELET_SILENT, seconds=seconds)
        pod = observed.pod or (observed.answer.pod if observed.answer is not None else None)
        of_host = pod is not None and pod.host_network
        barring = (each for each in observed.unready.items() if each[0] != NETWORK_READY or not of_host)
        return next((Message.of(Reason.RUNTIME_NOT_READY, condition=name, why=why) for name, why in barring), None)

    def works_of_others(self, bare_id: str) -> list[tuple[ObservedRequest, Work]]:
        """Return what this process has done to an instance for the pod's other requests, live or not."""
        others = (each for each in self.observation.requests if each.request.uid != self.request.uid)
        return [(other, work) for other in others if (work := other.works.get(bare_id)) is not None]

    @property
    def pod_restart_until(self) -> float | None:
        """Until when kubelet may be restarting the whole pod for another request (step 16), None if it is not.

        It has done so when it has made a later sandbox. Then it has stopped all containers.
        """
        there = any(each.ready and each.request_uid for each in self.observed.sandboxes)
        until = [
            (self.now if there or work.last_stop is None or work.under_way else work.last_stop.ended)
            + work.pod_grace
            + RESTART_SECONDS
            for each in self.observation.requests
            for work in each.works.values()
            if each.request.uid != self.request.uid and work.name == WHOLE_POD and self._restarts(each, work)
        ]
        return max((at for at in until if at > self.now), default=None)

    def _restarts(self, other: ObservedRequest, work: Work) -> bool:
        """Whether the runtime makes or has made a second sandbox, and kubelet has made none after it."""
        sandboxes = self.observed.sandboxes
        if any(not each.request_uid and each.attempt > work.pin.restart_count for each in sandboxes):
            return False
        made = work.stopped or work.under_way is not None
        return made or any(each.request_uid == other.request.uid for each in sandboxes)

    def quiet_until(self) -> float | None:
        """Return until when a wait gets no message, because it may end soon. None if that time is over."""
        return self._unless_over(self.known.first_seen + QUIET)

    def started_until(self, *, hook_runs: bool, stops: Iterable[float]) -> float | None:
        """Return until when work that has only started is not written, because it may end soon. None if it is over.

        `stops`: when the pending stops were sent.
        """
        quiet = self.known.first_seen + QUIET if hook_runs else None
        until = earliest(quiet, *(sent + PERSIST_SECONDS for sent in stops))
        return None if until is None else self._unless_over(until)

    def _unless_over(self, until: float) -> float | None:
        """Return the time, or None if it is over, or if the request needs a status before UNANSWERED_SECONDS."""
        created = parse_time(self.request.created) if self.request.status.phase is RequestPhase.EMPTY else None
        if created is not None and self.node.wall - created.timestamp() > UNANSWERED_SECONDS / 2:
            return None
        return None if self.now >= until else until

    def pod_lost(self) -> Message | None:
        """Return why the request's pod is lost, from a get at the API server.

        Return NO_MESSAGE if the pod exists, and None if there was no get since the request came.
        """
        request, answer, node = self.request, self.observed.answer, self.node.name
        if answer is None or answer.asked_at < self.known.first_seen:
            return None
        key, found = request.pod_key, answer.pod
        if found is None:
            return Message.of(Reason.POD_GONE)
        if request.pod_uid not in ("", found.uid):
            return Message.of(Reason.POD_REPLACED, wanted=request.pod_uid, key=key, found=found.uid)
        if found.node_name != node:
            where = f"node {found.node_name}" if found.node_name else "no node (not scheduled yet)"
            return Message.of(Reason.POD_ELSEWHERE, key=key, found=where, node=node)
        return NO_MESSAGE

    def persist(self, works: Iterable[Work], hooks_ended: Mapping[str, Pin]) -> Decision:
        """Step 12: record for a restarted daemon when hooks and stops that last began, and which have ended.

        The success of a reload is recorded, too.

        `hooks_ended`: instances by container name. The status records them as isKilled, unless the CRD prunes that.
        """
        request, wakes, due = self.request, list[float](), dict[str, tuple[Pin, StartTimes]]()
        for work in works:
            if work.stopped:
                continue  # a restarted daemon finds that the instance has ended
            recorded = request.start_times_of(work.name, work.pin)
            began = {"hook": None if recorded.hook else work.hook_began, "stop": work.stop_sent}
            since = {what: at for what, at in began.items() if at is not None and not recorded.stop}
            wakes += [at + PERSIST_SECONDS for at in since.values() if self.now < at + PERSIST_SECONDS]
            lasting = {what: self._wall_time(at) for what, at in since.items() if self.now >= at + PERSIST_SECONDS}
            if work.reload_result is not None and not (work.reload_result.error or recorded.reload):
                lasting["reload"] = self.node.utc
            if lasting:
                due[work.name] = work.pin, replace(recorded, **lasting)
        for name, pin in hooks_ended.items() if self.node.prunes_is_killed else ():
            due[name] = pin, StartTimes(request.start_times.get(name, StartTimes()).hook, self.node.utc)
        pins = {**request.pinned, **{name: pin for name, (pin, _) in due.items()}}
        start_times = {**request.start_times, **{name: times for name, (_, times) in due.items()}}
        persisted = (PinContainers(request, pins, start_times),) if due or request.unpinned else ()
        return Decision(persisted, earliest(*wakes))

    def _wall_time(self, at: float) -> str:
        """Return a monotonic time as wall-clock time."""
        return rfc3339(datetime.fromtimestamp(self.node.wall - (self.now - at), UTC))

    def write(self, status: Status) -> Decision:
        """Write a status if it differs from the request's."""
        if self.node.prunes_is_killed:
            status = replace(status, states=tuple(replace(state, is_killed=False) for state in status.states))
        if status == self.request.status:
            return NOTHING
        check_move(self.request.status, status)
        return Decision((WriteStatus(self.request, status),))

    def event(self, reason: EventReason, message: str, container: str = "", *, warning: bool = False) -> EmitEvent:
        """Return an event on the request and its pod."""
        pod = self.observed.pod
        own = pod if pod is not None and self.request.pod_uid in ("", pod.uid) else None
        return EmitEvent(self.request, reason, message, container, warning, own)


def all_states(request: Request, moved: Iterable[RecreateState] = ()) -> tuple[RecreateState, ...]:
    """Return a state for each container, in the order of the spec. `moved` replaces states of the status."""
    by_name = {state.name: state for state in (*request.status.states, *moved)}
    names = dict.fromkeys(container.name for container in request.containers)
    return tuple(by_name.get(name, RecreateState(name)) for name in names)
