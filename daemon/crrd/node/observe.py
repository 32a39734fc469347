"""Observes one pod through the runtime, kubelet and the API server. Each result has the time at which it was true.

The list of its containers is what every decision needs. What only some need is looked up beside it (`lookups`), so that
a failure there is not one of the whole pod.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial

from crrd.core.api.pod import Pod, PodContainer
from crrd.core.api.reasons import Reason
from crrd.core.api.types import WHOLE_POD, Pin, Request
from crrd.core.recreate.decide import in_serving_order
from crrd.core.recreate.observation import ApiAnswer, Ending, Instance, Observation, ObservedNode, ObservedPod
from crrd.core.recreate.request_view import QUIET
from crrd.kubelet.runtime_status import ContainerState, newest
from crrd.lib.errors import RuntimeCallError, RuntimeUnavailableError
from crrd.lib.looptime import loop_time
from crrd.node.execute import Executor
from crrd.node.lookups import Answer, Key, Lookups
from crrd.node.pods import Pods
from crrd.node.records import PodRecord, RuntimeState
from crrd.ports import Edges, RequestRecorder

SHORT_TIMEOUT_SECONDS = 2.0
"""Time limit for observing while the end of a hook or the start of a stop is not written to the request yet, because a
restarted daemon would run the hook again or start the grace period again."""
LAST_LOOK_SECONDS = 3.0
"""Least time limit while a stop after the hook of an ended request is due. It leaves time for another look."""
NO_CONTAINER = PodContainer("")
WAITED_SECONDS = 0.01  # A wait longer than this makes the runtime's earlier response too old


class PodInspector:
    """Observes one pod at a time."""

    def __init__(self, node_name: str, edges: Edges, pods: Pods, executor: Executor, lookups: Lookups) -> None:
        self._node_name = node_name
        self._edges = edges
        self._pods = pods
        self._executor = executor
        self._lookups = lookups

    async def observe(self, pod_record: PodRecord, answer: ApiAnswer | None = None) -> Observation:
        """Return what `decide` needs to know. Requests may change meanwhile: they are as they are at its return.

        The runtime is asked only if a request can be served, or if a stop after a hook is still due.
        """
        runtime_state = pod_record.runtime
        served = in_serving_order(record.observed() for record in pod_record.to_look_at(loop_time()))
        served += [record.observed() for record in pod_record.ended_before_stop(loop_time())]
        if not served:
            return self._observed(pod_record, ObservedPod(), None)
        current = served[0].request
        recorder = pod_record.requests[current.uid].recorder
        if recorder is not None:
            recorder.served()
        silent = asyncio.ensure_future(self._edges.kubelet.silent_since())
        listed_at = loop_time()
        instances: tuple[Instance, ...] = ()
        if listed_at >= runtime_state.retry.next_try:
            runtime_state.error = ""
            try:
                async with asyncio.timeout(_patience(pod_record)):
                    requests = [known.request for known in served]
                    listed_at, instances = await self._list_current(pod_record, requests, current, silent)
            except (RuntimeCallError, RuntimeUnavailableError, TimeoutError) as failure:  # reset by time alone
                runtime_state.error = str(failure) or f"it has not answered within {SHORT_TIMEOUT_SECONDS:.0f}s"
                runtime_state.retry.fail(loop_time())
            else:
                _note_running(current, instances, runtime_state)
        # On success `_list_current` has awaited kubelet's response, and another await would make the list stale.
        if runtime_state.error:
            await asyncio.wait((silent,))
        if recorder is not None:
            _count_successors(recorder, pod_record, current, instances)
        pod = ObservedPod(
            instances=instances,
            listed_at=listed_at,
            runtime_error=runtime_state.error,
            foreign=dict(runtime_state.foreign),
            running_since=dict(runtime_state.running_since),
            endings=dict(runtime_state.endings),
            unanswered=_unanswered(runtime_state),
            sandboxes=runtime_state.sandboxes,
            images=_images(runtime_state),
            hashes=dict(runtime_state.hashes),
            pod=pod_record.state.pod,
            pod_at=pod_record.state.at,
            refreshed_at=pod_record.state.refreshed_at,
            gone=pod_record.state.gone_at is not None,
            known_since=self._pods.known_since(pod_record.key),
            answer=answer,
            api_silent=pod_record.api_retry.waiting,
            deleting_uid=pod_record.deleting_uid,
            may_stop=self._executor.slots.may_stop(pod_record.key),
            unready=dict(runtime_state.unready),
        )
        return self._observed(pod_record, pod, silent.result())

    def _observed(self, pod_record: PodRecord, pod: ObservedPod, silent_since: float | None) -> Observation:
        """Return the pod with its requests and the node as they are now."""
        node = ObservedNode(
            name=self._node_name,
            runtimes=self._edges.runtime.names,
            wall=time.time(),
            kubelet_minor=pod_record.runtime.kubelet_minor,
            kubelet_silent_since=silent_since,
            prunes_is_killed=self._executor.writes.prunes_is_killed,
            draining=self._executor.draining,
        )
        now = loop_time()
        return Observation(pod, tuple(record.observed() for record in pod_record.to_look_at(now)), node, now)

    async def _list_current(
        self,
        pod_record: PodRecord,
        requests: Sequence[Request],
        current: Request,
        silent: "asyncio.Future[float | None]",
    ) -> tuple[float, tuple[Instance, ...]]:
        """Return the list of instances and its time. List again if the pod UID changed or work ended meanwhile.

        An await after listing would make the list stale. So this also awaits kubelet's response.
        """
        while True:
            going_on = pod_record.under_way
            uid, listed_at, instances = await self._instances(pod_record, requests)
            await self._look_up(pod_record, current, instances)
            await asyncio.wait((silent,))  # this also lets a stop that has just returned be recorded
            # Work of a deleted request may have ended, too.
            if _runtime_uid(pod_record, uid) == uid and going_on <= pod_record.under_way:
                return listed_at, instances

    async def _instances(
        self, pod_record: PodRecord, requests: Sequence[Request]
    ) -> tuple[str, float, tuple[Instance, ...]]:
        """Return the pod UID, the time of the list, and the instances. Without a known UID there are no instances."""
        uid = _runtime_uid(pod_record, next((request.pod_uid for request in requests if request.pod_uid), ""))
        urgent = not pod_record.works
        concerned = (
            requests[0].whole_pod or requests[0].reloads or any(work.name == WHOLE_POD for work in pod_record.works)
        )
        pod_record.runtime.sandboxes = await self._edges.runtime.sandboxes(uid) if concerned else ()
        unready = asyncio.ensure_future(self._edges.runtime.false_conditions(uid))
        asked = loop_time()
        instances = await self._edges.runtime.instances(uid, urgent=urgent)
        answered = loop_time()
        pod_record.runtime.unready = await unready
        if pod_record.live:  # otherwise no watch reports it; QUIET, because a longer wait needs a message
            with suppress(TimeoutError):
                async with asyncio.timeout(QUIET):
                    await self._pods.wait_until_known(pod_record.key)
        if loop_time() > answered + WAITED_SECONDS:
            asked = loop_time()
            instances = await self._edges.runtime.instances(uid, urgent=urgent)
        return uid, asked, instances

    async def _look_up(self, pod_record: PodRecord, request: Request, instances: Sequence[Instance]) -> None:
        """Look up what the request needs besides the pod's instances, as soon as its pod is known.

        These are the IDs that are not among them (of other pods, or removed), the image, unless the pod has it or the
        status says that the node has it, and kubelet's version.
        """
        runtime, state, pod = self._edges.runtime, pod_record.runtime, pod_record.state.pod
        own = state.foreign.keys() | {instance.id for instance in instances}
        pins = [each.context for each in request.containers if each.context]
        pins += [pin for name, pin in request.pinned.items() if name != WHOLE_POD]
        pins = [pin for pin in pins if pin.runtime in runtime.names and pin.bare_id not in own]
        wanted: dict[Key, Callable[[], Awaitable[Answer]]] = {pin: partial(runtime.find, pin) for pin in pins}
        if pod is not None:
            for image in _missing_images(request, pod):
                wanted[image] = partial(runtime.has_image, pod.runtime_uid, image)
            if pod.kubelet_matters or (request.for_image and not all(instance.image for instance in instances)):
                wanted[None] = self._edges.kubelet.minor
        record = pod_record.requests.get(request.uid)
        since = 0.0 if record is None else record.first_seen
        await self._lookups.make(pod_record.key, state.lookups, wanted, since=since)
        for key, lookup in state.lookups.items():
            if isinstance(key, Pin) and lookup.answered:
                state.foreign[key.bare_id] = lookup.answer if isinstance(lookup.answer, Instance) else None
            elif key is None and lookup.answered:
                minor = lookup.take()
                state.kubelet_minor, state.kubelet_asked = minor if isinstance(minor, int) else None, True


def _runtime_uid(pod_record: PodRecord, otherwise: str) -> str:
    """Return the UID that the pod's containers have in the runtime, as far as the pod is known.

    If no request is live, no watch reports the pod. Then it is the UID of the pod in which work began.
    """
    if pod_record.state.pod:
        return pod_record.state.pod.runtime_uid
    return otherwise if pod_record.live else next((work.pod_uid for work in pod_record.works), otherwise)


def _patience(pod_record: PodRecord) -> float | None:
    """Return the time limit in seconds for observing the pod, or None if only its calls have limits."""
    now, worked = loop_time(), pod_record.worked.values()
    own = [(record.request, work) for record in worked if record.live for work in record.works.values()]
    if any(work.hook_unrecorded(request) or work.stop_unrecorded(request, now) for request, work in own):
        return SHORT_TIMEOUT_SECONDS
    ended = [work for record in pod_record.ended_before_stop(now) for work in record.works.values()]
    due_until = min((work.stop_until for work in ended if work.stop_still_due(now)), default=None)
    return None if due_until is None else max(LAST_LOOK_SECONDS, (due_until - now) / 2)


def _missing_images(request: Request, pod: Pod) -> list[str]:
    """Return the image that the pod is to get, unless the status says that the node has it."""
    return [
        each.image
        for each in request.containers
        if each.image
        and each.image != pod.containers.get(each.name, NO_CONTAINER).image
        and request.status.state(each.name).reason is not Reason.IMAGE_PRESENT
    ]


def _unanswered(runtime_state: RuntimeState) -> dict[Key, str]:
    """Return what is looked up and has no answer yet, and why. An earlier version of kubelet is an answer, too."""
    now, asked = loop_time(), runtime_state.kubelet_asked
    open_ones = ((key, each) for key, each in runtime_state.lookups.items() if not each.answered)
    return {key: each.trouble(now) for key, each in open_ones if not (key is None and asked)}


def _images(runtime_state: RuntimeState) -> dict[str, bool]:
    """Return which of the images that were looked up the node has."""
    found = ((key, each) for key, each in runtime_state.lookups.items() if isinstance(key, str) and each.answered)
    return {image: bool(each.take()) for image, each in found}


def _note_running(request: Request, instances: Sequence[Instance], runtime_state: RuntimeState) -> None:
    """Record what the runtime does not show later.

    These are when instances were first seen running, and containers first seen not running (this process' clock), and
    the hashes of the instances before another image.
    """
    now = loop_time()
    running = {instance.id for instance in instances if instance.state is ContainerState.RUNNING}
    runtime_state.running_since = {bare_id: runtime_state.running_since.get(bare_id, now) for bare_id in running}
    endings = {}
    for container in request.containers:
        current, previous = newest(instances, container.name), runtime_state.endings.get(container.name)
        if current is None or current.state is ContainerState.EXITED:
            same = previous is not None and (current is None or current.id == previous.instance)
            anew = Ending(now, time.time(), current.id if current else "")
            endings[container.name] = previous if previous is not None and same else anew
    runtime_state.endings = endings
    targets = {pin.bare_id for each in request.containers if each.image and (pin := request.target(each)) is not None}
    runtime_state.hashes |= {instance.id: instance.hash for instance in instances if instance.id in targets}


def _count_successors(
    recorder: RequestRecorder, pod_record: PodRecord, request: Request, instances: Sequence[Instance]
) -> None:
    """Report to the metrics which awaited instances the runtime lists."""
    stopped = {work.pin.bare_id for work in pod_record.works if work.stop_sent is not None}
    for container in request.containers:
        current, target = newest(instances, container.name), request.target(container)
        if current and target and current.id != target.bare_id and target.bare_id in stopped:
            recorder.successor_seen(container.name)
