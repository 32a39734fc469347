"""The records of all pods. All parts of the node daemon read and write them, and the watches update them."""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from crrd.core.api.pod import Pod, PodMeta
from crrd.core.api.types import WHOLE_POD, Request
from crrd.core.recreate.observation import NO_WORK, StopAttempt, Work
from crrd.core.recreate.request_view import RESTART_SECONDS
from crrd.kube.informer import Objects
from crrd.node.records import PodRecord, PodState, RequestRecord

LEFT_SECONDS = 60.0
"""Seconds from a hook's start or a stop's end for which work is kept, in case its request comes back."""


class Pods:
    """The records by pod. The watches call the methods that report what they see.

    `on_change` is called with a pod's `namespace/name` when something about it has changed. `clock`: monotonic.
    """

    def __init__(self, on_change: Callable[[str], None], clock: Callable[[], float]) -> None:
        self._on_change = on_change
        self._clock = clock
        self._records: dict[str, PodRecord] = {}
        self.sweep_due = asyncio.Event()  # Set when a second sandbox may be left over. `SandboxSweep` clears it
        self.requests = Objects(
            self._request_changed,
            listed=self.sweep_due.set,
            wanted=lambda request: request.active,
            merge=_merged,
        )
        self._live = 0
        self._all_known_since: float | None = None  # Like `PodState.known_since`, for every pod of the node
        self.live_changed = asyncio.Event()  # Set when a request becomes live or ends. The reader clears it.
        self.any_live = asyncio.Event()  # Set while at least one request is live
        self.none_live = asyncio.Event()  # Set while none is
        self.none_live.set()

    # What is known.

    def __iter__(self) -> Iterator[PodRecord]:
        return iter(tuple(self._records.values()))

    def ensure(self, pod_key: str) -> PodRecord:
        """Return the pod's record, and create it if there is none."""
        return self._records.setdefault(pod_key, PodRecord(pod_key))

    def tidy(self, pod_record: PodRecord) -> None:
        """Drop a record that is empty."""
        if pod_record.empty and self._records.get(pod_record.key) is pod_record:
            del self._records[pod_record.key]

    def peek(self, pod_key: str) -> PodRecord:
        """Return the pod's record, or an empty one that is not kept."""
        return self._records.get(pod_key) or PodRecord(pod_key)

    def live_pods(self) -> set[str]:
        """Return the pods (`namespace/name`) with at least one live request."""
        return {pod_record.key for pod_record in self._records.values() if pod_record.live}

    def is_live(self, uid: str) -> bool:
        """Whether the request with this UID is live."""
        return any(uid in pod_record.live for pod_record in self._records.values())

    def known_since(self, pod_key: str) -> float | None:
        """Return the monotonic time since which it is known whether the pod exists, or None."""
        since = self.peek(pod_key).state.known_since
        return self._all_known_since if since is None else since

    def watch_state(self, pod_key: str) -> object:
        """Return a value that changes when a watch reports a change of the pod."""
        state = self.peek(pod_key).state
        return state.pod, state.gone_at

    async def wait_until_known(self, pod_key: str) -> None:
        """Wait until it is known whether the pod exists."""
        if self.known_since(pod_key) is not None:
            return
        pod_record = self.ensure(pod_key)
        pod_record.pod_known = pod_known = pod_record.pod_known or asyncio.Event()
        try:
            await pod_known.wait()
        finally:
            if pod_record.pod_known is pod_known:
                pod_record.pod_known = None
            self.tidy(pod_record)

    # What the watches and this process' own writes report of requests.

    def _request_changed(self, before: Request | None, after: Request | None) -> None:
        """Record a change of a request, and wake its pod."""
        left = None
        if before is not None and (after is None or after.pod_key != before.pod_key):
            left = self._leave(before)  # only a CRD without crrd's rules lets a request change its pod
        if after is not None:
            self._keep(after, left)
        was_live, is_live = (each is not None and each.live for each in (before, after))
        self._live += is_live - was_live
        if was_live and not is_live and before is not None and before.whole_pod:
            self.sweep_due.set()
        if is_live != was_live or (left is not None and after is not None):
            self._signal()

    def _keep(self, request: Request, moved: RequestRecord | None) -> None:
        """Record a version of a request. `moved`: its record, if it was in another pod before."""
        pod_record, now = self.ensure(request.pod_key), self._clock()
        record = pod_record.requests.get(request.uid)
        pod_record.present += record is None or record.left
        if record is None:
            record = pod_record.requests[request.uid] = RequestRecord(request, moved.first_seen if moved else now)
        elif record.left:
            record.left, record.first_seen, record.unready_seen = False, now, None
        record.request = request
        if not request.unready_acquired:
            record.unready_seen = None
        elif record.unready_seen is None:
            record.unready_seen = moved.unready_seen if moved and moved.unready_seen is not None else now
        pod_record.note_change(record)
        self._on_change(request.pod_key)

    def _leave(self, request: Request) -> RequestRecord:
        """Remove the request from its pod, and wake the pod so that its next request is served."""
        pod_record = self._records[request.pod_key]
        record = pod_record.requests[request.uid]
        record.left = True
        pod_record.present -= 1
        pod_record.note_change(record)
        self.drop_if_done(pod_record, record)
        if not pod_record.present:
            pod_record.state.gone_at = None  # no request needs it any more, so the record can be dropped
        self._on_change(request.pod_key)
        self.tidy(pod_record)
        return record

    def drop_if_done(self, pod_record: PodRecord, record: RequestRecord) -> None:
        """Drop the record of a request that has left the node's selection, unless something still needs it."""
        if record.left and record.recorder is None and not record.writing and not record.works:
            pod_record.requests.pop(record.request.uid, None)

    # What the watches report of pods.

    def pod_changed(self, pod: Pod) -> None:
        """Record that a pod of this node was added or modified."""
        pod_record = self.ensure(pod.key)
        state = pod_record.state
        state.gone_at = None
        pod_record.note_deletion(pod)
        if state.pod != pod:
            before, state.pod, state.at = state.pod, pod, self._clock()
            if before is None or (before.uid, before.refresh) != (pod.uid, pod.refresh):
                state.refreshed_at = state.at
            self._notify(pod_record)

    def pod_deleted(self, pod: PodMeta) -> None:
        """Record that a pod was deleted. The next one of the same name may be known already."""
        pod_record = self.peek(pod.key)
        state = pod_record.state
        if state.pod is not None and state.pod.uid == pod.uid:
            state.pod, state.at = None, 0.0
            if pod_record.present:
                state.gone_at = self._clock()
            self._notify(pod_record)
            self.tidy(pod_record)

    def pods_listed(self, pods: Iterable[Pod], _version: str) -> None:
        """Record a whole list of this node's pods. Pods that are not in it are not on this node."""
        first = self._all_known_since is None
        if first:
            self._all_known_since = self._clock()
        listed = {pod.key: pod for pod in pods}
        for pod_record in tuple(self._records.values()):
            if pod_record.key not in listed and pod_record.state.pod is not None:
                self.pod_deleted(pod_record.state.pod)
        for pod in listed.values():
            self.pod_changed(pod)
        for pod_record in tuple(self._records.values()):
            if first and pod_record.state.pod is None:
                self._notify(pod_record)  # it is known now that the pod does not exist
            if pod_record.pod_known is not None:
                pod_record.pod_known.set()

    def pod_listed(self, pod_key: str, pod: Pod | None) -> None:
        """Record the node's pod of this name, or that there is none (None)."""
        first = self.known_since(pod_key) is None
        pod_record = self.ensure(pod_key)
        state = pod_record.state
        if state.known_since is None:
            state.known_since = self._clock()
        if pod is not None:
            self.pod_changed(pod)
        elif state.pod is not None:
            self.pod_deleted(state.pod)
        elif first:
            self._notify(pod_record)  # it is known now that the pod does not exist
        if pod_record.pod_known is not None:
            pod_record.pod_known.set()

    def forget_pod(self, pod_key: str) -> None:
        """Reset the pod's PodState, because no watch covers the pod any more."""
        if (pod_record := self._records.get(pod_key)) is not None:
            pod_known, pod_record.pod_known, pod_record.state = pod_record.pod_known, None, PodState()
            if pod_known is not None:
                pod_known.set()  # end the wait: nothing reports the pod any more
            self.tidy(pod_record)

    def forget_pods(self) -> None:
        """Call `forget_pod` for all pods."""
        self._all_known_since = None
        for pod_key in tuple(self._records):
            self.forget_pod(pod_key)

    def _notify(self, pod_record: PodRecord) -> None:
        """Wake a pod that has changed, if it has requests."""
        if pod_record.present:
            self._on_change(pod_record.key)

    def _signal(self) -> None:
        """Set and clear the events after a request became live or ended."""
        came, went = (self.any_live, self.none_live) if self._live else (self.none_live, self.any_live)
        came.set()
        went.clear()
        self.live_changed.set()


def _merged(previous: Request, request: Request, own_pins: bool) -> Request:
    """Return a new version of a request. Its pins stay, even if another client changes them."""
    if request.spoilt and not previous.error:
        request = replace(request, error="")  # a valid version is known
    return request if own_pins else request.with_pins_of(previous)


def note_work(pods: Pods, record: RequestRecord, bare_id: str, **changes: Any) -> None:
    """Record a change of the work on an instance."""
    record.works[bare_id] = replace(record.works.get(bare_id, NO_WORK), **changes)
    pods.peek(record.request.pod_key).worked[record.request.uid] = record
    drop_unneeded(pods, record)


def note_second_sandbox(pods: Pods, pod_key: str, request_uid: str) -> None:
    """Record that a second sandbox was there, although the answer of its call may have been lost."""
    if (record := pods.peek(pod_key).worked.get(request_uid)) is not None:
        made = StopAttempt(1, asyncio.get_running_loop().time())
        for bare_id in [bare_id for bare_id, work in record.works.items() if work.name == WHOLE_POD]:
            note_work(pods, record, bare_id, last_stop=made)


def drop_unneeded(pods: Pods, record: RequestRecord, *, completed: bool = False) -> None:
    """Forget the work of a request that is not live, as far as it is not under way.

    Keep it (a) if its hook ended without a stop, and a live request of the pod was first seen before that, or (b) until
    `_kept_until`. `completed`: by this process, so the request does not come back.
    """
    if record.live:
        return
    pod_record = pods.peek(record.request.pod_key)
    live = pod_record.live.values()
    for bare_id, work in [each for each in record.works.items() if each[1].under_way is None]:
        ended = work.hook_ended
        if ended is not None and not work.stopped and any(each.first_seen <= ended for each in live):
            continue  # that request must not run the hook again
        if timer := record.expiries.pop(bare_id, None):
            timer.cancel()
        loop, kept_until = asyncio.get_running_loop(), _kept_until(work, may_return=record.left and not completed)
        if loop.time() < kept_until:
            record.expiries[bare_id] = loop.call_at(kept_until, drop_unneeded, pods, record)
        else:
            del record.works[bare_id]
            if not record.works:
                pod_record.worked.pop(record.request.uid, None)
    pods.drop_if_done(pod_record, record)
    pods.tidy(pod_record)


def _kept_until(work: Work, *, may_return: bool) -> float:
    """Monotonic time until which the work of a request that is not live counts.

    A hook without a successful stop counts for LEFT_SECONDS, and until it is too late for the stop. A stop counts for
    LEFT_SECONDS if the request may come back, as does a reload. A second sandbox does, because kubelet needs time for
    the pod's restart.
    """
    until = 0.0
    if work.reload_ended is not None and may_return:
        until = work.reload_ended + LEFT_SECONDS
    if work.hook_until is not None and not work.stopped:
        until = max(work.stop_until, (work.hook_began or 0.0) + LEFT_SECONDS)
    if work.last_stop is not None and (may_return or work.name == WHOLE_POD):
        until = max(until, work.last_stop.ended + max(LEFT_SECONDS, work.pod_grace + RESTART_SECONDS))
    return until
