"""The lifecycle controller: watches requests, and carries out the decisions of `core.lifecycle`, pod by pod.

It runs in the leading manager, and each leader starts without state. So the TTL of a completed request starts again
with each leader. A change of leader keeps the request longer, by at most its TTL, and never deletes it early.

It knows only the pods that it needs. `gated` watches the pods that wait for their readiness condition, and `pod_reads`
gets any other pod of a request by name.
"""

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import structlog

from crrd.core.api.pod import PodMeta
from crrd.core.api.types import Request
from crrd.core.api.v1alpha1 import parse_request
from crrd.core.lifecycle import steps as lc
from crrd.core.patching.steps import PatchPod
from crrd.core.recreate.actions import EmitEvent
from crrd.kube.client import KubeClient
from crrd.kube.clock import ServerClock
from crrd.kube.informer import Informer
from crrd.kube.reflector import Selection
from crrd.kube.resources import REQUESTS
from crrd.kube.writer import RequestWriter
from crrd.lib.controller import Controller
from crrd.lib.errors import ConflictError, CrrdError, GoneError
from crrd.lib.health import Health
from crrd.lib.heartbeat import Heartbeat
from crrd.lib.looptime import loop_time
from crrd.lib.supervise import Loop
from crrd.lib.workqueue import progressed
from crrd.manager.cache import ManagerCache
from crrd.manager.gated import GATED_NAMESPACES, GatedPods
from crrd.manager.patches import NOTHING, RequestPatches, Served
from crrd.manager.pod_reads import PodReads
from crrd.manager.readiness import change_readiness
from crrd.manager.state_times import StateSince, StateTimes
from crrd.ports import EventSink

LOOK_SECONDS = 300.0  # Limit for the work on one request of a pod; every call has a deadline
MANY = 100
"""Requests of a pod that a round decides on before other rounds get a turn. A round on more is followed by a pause."""
REST_SECONDS = 0.0002
"""This pause, for each request of the pod: ten times what a decision takes. So events cost the same for any number."""
_TIMER_DELAY_SECONDS = 0.05  # Delay added to every timer, so that it never fires just before its time

log = structlog.get_logger(__name__)
ActionObserver = Callable[[lc.LifecycleAction | PatchPod], None]
Ages = Mapping[tuple[str, bool], StateSince]


class LifecycleController(Controller):
    """Runs the lifecycle of all requests of a cluster. The constructor starts nothing.

    The responses to `client` must reach `clock` (`KubeClient(on_date=clock.observe)`). The caller runs `events`.
    `on_action` is called for each action carried out. `slack` is as in `next_steps`. `account` is the manager's
    ServiceAccount (`namespace:name`) if it carries out requests by patches of their pods, "" if node daemons do.
    `gated` selects the namespaces whose pods have the readiness gate.
    """

    name = "lifecycle"
    round_seconds = LOOK_SECONDS

    def __init__(
        self,
        client: KubeClient,
        events: EventSink,
        clock: ServerClock,
        *,
        on_action: ActionObserver = lambda _: None,
        slack: int = lc.DEFAULT_SLACK_SECONDS,
        account: str = "",
        gated: str = GATED_NAMESPACES["labelled"],
    ) -> None:
        super().__init__()
        self._client, self._events, self._clock = client, events, clock
        self._on_action, self._slack = on_action, slack
        self._writer = RequestWriter(client)
        self._ages = StateTimes(self._clock)
        self._cache = ManagerCache(self._wake, self._ages.begin, self._requests_listed, _has_work)
        self._listed = asyncio.Event()
        self._waiting = Heartbeat()  # For `_listed`
        self._gated = GatedPods(self._client, self._cache, gated)
        self._reads = PodReads(client, self._cache, self._gated, self._ages, self._wake)
        calls: Any = {"read": self._reads.read, "write": self._write, "act": self._patched}
        self._patches = RequestPatches(client, clock, account, **calls) if account else None
        requests = Informer(self._client, Selection(REQUESTS, _parse), self._cache.requests)
        pods = Loop("pods", self._watch_pods, (self._waiting, self._gated), self._gated.ready)
        self.sources = [requests.loop("requests"), pods, Loop("pod-reads", self._reads.queue.run, (self._reads.queue,))]

    async def run(self, health: Health) -> NoReturn:
        """See Controller."""
        forget_steps = self._clock.on_step(self._wake_all)
        try:
            await super().run(health)
        finally:
            forget_steps()

    async def _watch_pods(self) -> None:
        """Watch pods. The requests are listed first: they determine which pods matter, and which they keep unready."""
        self._waiting.until(self._listed, "waiting for the list of requests")
        await self._listed.wait()
        self._waiting.rest()
        await self._gated.run()

    def _requests_listed(self) -> None:
        if not self._listed.is_set():
            self._listed.set()
            self._wake_all()
            log.info("lifecycle started", pods=len(self._cache.requests.groups))

    def _wake(self, key: str) -> None:
        if self._listed.is_set():
            self.queue.wake(key)

    def _wake_all(self) -> None:
        for key in self._cache.requests.groups:
            self._wake(key)

    async def handle(self, key: str) -> float | None:
        """Handle one pod and its requests."""
        seconds, failure = await self._look(key)
        if (number := len(self._cache.requests_of(key))) > MANY:
            await asyncio.sleep(number * REST_SECONDS)
        due = None if seconds is None else loop_time() + max(0.0, seconds) + _TIMER_DELAY_SECONDS
        if failure is None:
            return due
        if due is not None:  # what is due for the pod's other requests does not wait for the back-off
            self.queue.wake_at(key, due)
        raise failure

    async def _look(self, key: str) -> tuple[float | None, CrrdError | None]:
        """Decide and act. Return the seconds until something is due, or None for nothing; and the first error."""
        requests = self._cache.requests_of(key)
        ages = self._ages.of(key, requests)
        pod: PodMeta | None = None
        served, failure = await self._serve(key, requests, ages)
        requests = self._cache.requests_of(key)
        spare = self._reads.seconds_spared(key, requests)
        known = not spare
        try:
            pod, known = await self._reads.pod(key, requests) if known else (None, False)
        except CrrdError as error:  # actions that need no pod are still carried out
            failure, known = failure or error, False
        waits = [each for each in (spare or None, served.wait) if each is not None]
        for number, request in enumerate(requests, 1):
            if number % MANY == 0:
                await asyncio.sleep(0)
            since, held = self._since(request, ages), request.uid in served.held
            now = self._clock.now()
            steps = lc.next_steps(request, pod, now, known=known, since=since, slack=self._slack, held=held)
            if steps.wake_at is not None:
                waits.append((steps.wake_at - self._clock.now()).total_seconds())
            try:
                await self._carry_out(request, steps.actions)
            except CrrdError as error:  # continue with the pod's other requests
                failure = failure or error
            progressed()
        try:
            await self._repair(key, known=known)
        except CrrdError as error:
            failure = failure or error
        if known and (left := self._reads.seconds_used(key)):
            waits.append(left)  # else a routine read is under way, and wakes the pod
        return min(waits, default=None), failure

    def _since(self, request: Request, ages: Ages) -> datetime | None:
        """Return since when a request has been in its state, None if this is not known."""
        found = ages.get((request.uid, request.completed))
        return None if found is None else self._clock.at(found.moment)

    async def _serve(self, key: str, requests: Sequence[Request], ages: Ages) -> tuple[Served, CrrdError | None]:
        """Carry out requests by patches, if this manager does that. If it fails, they keep their finalizers."""

        def deadline(request: Request) -> tuple[float, str]:
            at, words = lc.deadline_of(request, self._since(request, ages), self._slack)
            return (math.inf if at is None else (at - self._clock.now()).total_seconds()), words

        if self._patches is None:
            return NOTHING, None
        try:
            served = await self._patches.serve(key, requests, deadline)
        except CrrdError as error:
            return Served({request.uid for request in requests}), error
        return served, served.failure

    def _patched(self, done: EmitEvent | PatchPod) -> None:
        if isinstance(done, EmitEvent):
            self._events.emit(done)
        else:
            self._on_action(done)

    async def _repair(self, key: str, *, known: bool) -> None:
        """Carry out what a known pod needs for no request."""
        pod = self._cache.pod(key)
        if not known or pod is None:
            return
        repairs = lc.pod_steps(pod, self._cache.requests_of(key)).actions
        await self._carry_out(None, repairs)
        if not self._gated.covers(pod.namespace):
            if repairs:
                self._cache.remember_repair(key)
            if not self._reads.repeats(key):
                self._cache.forget_pod(key)  # no request waits for it, and no watch would report its changes

    async def _carry_out(self, request: Request | None, actions: Sequence[lc.LifecycleAction]) -> None:
        """Carry out the actions in order. Stop if an object has changed: its new version gets a new decision."""
        for action in actions:
            match action:
                case EmitEvent():
                    self._events.emit(action)
                case lc.AcquireUnready() | lc.ReleaseUnready() | lc.InitReadiness():
                    if not await self._change_pod(action) and isinstance(action, lc.AcquireUnready):
                        return
                case _ if request is not None:
                    request = await self._write(request, action)
                    if request is None:
                        return

    async def _write(self, request: Request, action: lc.RequestAction) -> Request | None:
        """Write a request. Return None if nothing more can be written to this version of it."""
        try:
            written = await self._writer.carry_out(request, action)
        except GoneError:
            self._cache.requests.delete(request)
            return None
        except ConflictError:
            if not await self._changed_since(request):
                raise  # the queue backs off, because no event will come for an object that has not changed
            return None
        log.info("request written", request=request.key, step=type(action).__name__)
        self._on_action(action)
        self._cache.requests.put(written.slimmed())
        return written

    async def _changed_since(self, request: Request) -> bool:
        """Read a request again after a conflict, because the watch may be behind. Return whether it has changed."""
        try:
            newest = _parse(await self._client.get(REQUESTS, request.namespace, request.name))
        except GoneError:
            self._cache.requests.delete(request)
            return True
        if newest.uid != request.uid:
            self._cache.requests.delete(request)
        self._cache.requests.put(newest)
        return newest.resource_version != request.resource_version

    async def _change_pod(self, action: lc.PodAction) -> bool:
        """Change a pod's readiness. Return whether the pod still exists."""
        after = await change_readiness(self._client, action, self._clock.now)
        log.info("readiness changed", pod=action.pod.key, step=type(action).__name__, gone=after is None)
        if after is None:
            self._cache.pod_deleted(action.pod)
            return False
        self._on_action(action)
        self._cache.pod_changed(after)
        return True


def _parse(obj: Mapping[str, Any]) -> Request:
    """Return a request as the cache keeps it. A list may contain many completed ones."""
    return parse_request(obj).slimmed()


def _has_work(pod: PodMeta) -> bool:
    """Whether a pod needs an action that no request causes."""
    return bool(lc.pod_steps(pod, ()).actions)
