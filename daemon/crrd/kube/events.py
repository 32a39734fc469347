"""Kubernetes events: one shape, written at once (`write_event`) or in the background (`KubeEventSink`).

The sink only queues. One worker writes the events one by one, with a pause before each, so that container stops get the
connection and the CPU first. A write that is slow, for example because of one namespace's webhook, goes on beside the
next ones, and with many slow writes the further events of this namespace wait. Events that cannot be written are
dropped, counted and logged. `decide` chooses the events. Each event is a write for the API server, so a successful
recreate has two: its start on the request, its end on the pod. All other events are written on both objects.
"""

import asyncio
import json
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NoReturn

import structlog

from crrd.core.api.pod import ContainerKind
from crrd.core.api.reasons import EventReason
from crrd.core.api.time import rfc3339
from crrd.core.api.types import API_VERSION, KIND
from crrd.core.recreate.actions import EmitEvent
from crrd.kube.client import KubeClient
from crrd.kube.lanes import SLOW_SECONDS
from crrd.kube.resources import EVENTS
from crrd.lib.backoff import Backoff
from crrd.lib.errors import ApiUnavailableError, ConflictError, CrrdError
from crrd.lib.heartbeat import Heartbeat
from crrd.lib.supervise import cancel

CAPACITY = 4000
"""Most events that wait, of 2.5 KB each; beyond that the oldest is dropped. A manager that ends a thousand requests
at once has 2 000; the API server keeps events for an hour."""
_PAUSE_SECONDS = 0.02
_MOST_SLOW = 6  # Slow writes in one namespace. Its further events wait for one of them
_MANY = 1000  # If more events wait, pauses are short; a node's burst of stops has fewer
_SHORT_PAUSE_SECONDS = 0.002
FLUSH_SECONDS = 3.0  # Time limit for the last events of a daemon that shuts down
_TRIES = 3
_RETRY = Backoff(initial=0.5, factor=4.0, maximum=5.0, jitter=0.5)
_LONGEST_PATIENCE_SECONDS = 10.0
_WRITE_SECONDS = 120.0  # Longest time of one try and the pause after it; the client times out before that
_MESSAGE_CHARACTERS = 1024
"""The longest message that the events API allows (k8s.io/kubernetes/pkg/apis/core/validation/events.go)."""
_NAME_CHARACTERS = 253
_FIELDS = {ContainerKind.REGULAR: "containers", ContainerKind.EPHEMERAL: "ephemeralContainers"}
"""The field of the pod's spec that lists a kind of container; all other kinds are in `initContainers`."""

log = structlog.get_logger(__name__)

_Waiting = deque[tuple[str, str]]  # Namespaces and JSON texts; thousands of dicts would fragment the memory


@dataclass(frozen=True, slots=True)
class Event:
    """A core/v1 Event before it is written."""

    involved: Mapping[str, str]  # The reference to the object that it is about
    reason: str
    message: str
    warning: bool
    component: str
    instance: str  # Which one of the component: a node, a manager, a run
    at: datetime
    host: str = ""

    def body(self) -> dict[str, Any]:
        """Return its JSON, named as kubelet names its events: the object's name and a time in hexadecimal."""
        suffix = f".{_stamp():x}"
        name = self.involved["name"][: _NAME_CHARACTERS - len(suffix)].rstrip("-.") + suffix
        at = rfc3339(self.at)
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"namespace": self.involved["namespace"], "name": name},
            "involvedObject": dict(self.involved),
            "type": "Warning" if self.warning else "Normal",
            "reason": self.reason,
            "message": self.message[:_MESSAGE_CHARACTERS],
            "count": 1,
            "firstTimestamp": at,
            "lastTimestamp": at,
            "source": {"component": self.component} | ({"host": self.host} if self.host else {}),
            "reportingComponent": self.component,
            "reportingInstance": self.instance,
        }


_last_stamp = 0


def _stamp() -> int:
    """Return the time in nanoseconds, later than all stamps before, so that no two events have one name."""
    global _last_stamp  # noqa: PLW0603 - one for the process
    _last_stamp = max(_last_stamp + 1, time.time_ns())
    return _last_stamp


async def write_event(client: KubeClient, body: Mapping[str, Any]) -> None:
    """Create an event. Raises ApiUnavailableError, ApiRefusedError."""
    with suppress(ConflictError):  # names are unique, so an earlier try wrote it, but its response was lost
        await client.create(EVENTS, body["metadata"]["namespace"], body)


class KubeEventSink:
    """The EventSink that writes to the API server. `run` must run for the daemon's whole life."""

    def __init__(
        self, client: KubeClient, node_name: str, component: str = "crrd", *, on_drop: Callable[[], None] = lambda: None
    ) -> None:
        """`on_drop` is called for each dropped event: the queue was full, or the event could not be written."""
        self._client = client
        self._on_drop = on_drop
        self._node_name = node_name
        self._component = component
        self._queue: _Waiting = deque()
        self._held: dict[str, _Waiting] = {}  # Events that wait for slow writes of their namespace
        self._writing: dict[asyncio.Task[None], str] = {}  # With the namespace of the event
        self._wanted = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._hurry = asyncio.Event()  # Set during `flush`
        self._failing = False
        self._overflowed = 0  # Events dropped since the queue became full
        self.heartbeat = Heartbeat()

    def emit(self, event: EmitEvent) -> None:
        """See EventSink."""
        name, node, now = self._component, self._node_name, datetime.now(UTC)
        for involved in _involved(event):
            self.record(Event(involved, event.reason.value, event.message, event.warning, name, node, now, host=node))

    def record(self, event: Event) -> None:
        """Queue one event about any object."""
        if self._waiting() >= CAPACITY:
            max((*self._held.values(), self._queue), key=len).popleft()
            self._on_drop()
            if not self._overflowed:  # log only the start and the end of an overflow
                log.warning("events dropped", error="too many events wait")
            self._overflowed += 1
        self._queue.append((event.involved["namespace"], json.dumps(event.body())))
        self._idle.clear()
        self._wanted.set()

    def _waiting(self) -> int:
        return len(self._queue) + sum(map(len, self._held.values()))

    async def run(self) -> NoReturn:
        """Write queued events, until cancelled."""
        try:
            while True:
                if not self._queue and not self._writing:
                    self._idle.set()
                    self.heartbeat.until(self._wanted, "waiting for events")
                wanted = asyncio.ensure_future(self._wanted.wait())
                try:
                    await asyncio.wait({wanted, *self._writing}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    wanted.cancel()
                await self._write_all()
        finally:
            await cancel(self._writing)

    async def _write_all(self) -> None:
        """Write the queued events, but do not wait for slow writes."""
        while self._queue:
            waiting = namespace, text = self._queue.popleft()
            slow = [*self._writing.values()].count(namespace)
            if slow >= _MOST_SLOW:
                self._held.setdefault(namespace, deque()).append(waiting)
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(_SHORT_PAUSE_SECONDS if self._waiting() > _MANY else _PAUSE_SECONDS):
                    await self._hurry.wait()
            write = asyncio.create_task(self._write(json.loads(text)), name="write an event")
            self._writing[write] = namespace
            write.add_done_callback(self._written)
            if not slow:
                await asyncio.wait((write,), timeout=SLOW_SECONDS)
        self._wanted.clear()
        if self._overflowed and not self._held:
            log.warning("events dropped", count=self._overflowed, error="too many events waited")
            self._overflowed = 0

    def _written(self, write: asyncio.Task[None]) -> None:
        """Let the next event of this namespace be written."""
        namespace = self._writing.pop(write)
        if held := self._held.pop(namespace, None):
            self._queue.appendleft(held.popleft())
            if held:
                self._held[namespace] = held

    async def flush(self, seconds: float) -> bool:
        """Make `run` write the queue without pauses, for at most `seconds`. Return whether the queue is empty."""
        self._hurry.set()
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        except TimeoutError:
            return False
        finally:
            self._hurry.clear()
        return True

    async def _write(self, body: dict[str, Any]) -> None:
        for attempt in range(1, _TRIES + 1):
            self.heartbeat.within(_WRITE_SECONDS, "writing an event")
            try:
                await write_event(self._client, body)
            except CrrdError as error:
                if attempt < _TRIES and isinstance(error, ApiUnavailableError):
                    patience = min(error.retry_after, _LONGEST_PATIENCE_SECONDS)
                    await asyncio.sleep(max(_RETRY.delay(attempt), patience))
                    continue
                self._drop(str(error))
                return
            self._failing = False
            return

    def _drop(self, error: str) -> None:
        """Count an event that is not written. Log only the first one in a row."""
        self._on_drop()
        if not self._failing:
            log.warning("events dropped", error=error)
        self._failing = True


def _involved(event: EmitEvent) -> Iterator[dict[str, str]]:
    """Yield references to the objects that the event is about, as far as the request names them."""
    request = event.request
    if not request.namespace:
        return
    if request.name and event.reason is not EventReason.RECREATED:
        yield {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "namespace": request.namespace,
            "name": request.name,
            "uid": request.uid,
            "resourceVersion": request.resource_version,
        }
    if request.pod_name and event.reason is not EventReason.RECREATING:
        pod = {"apiVersion": "v1", "kind": "Pod", "namespace": request.namespace, "name": request.pod_name}
        # `kubectl describe` looks for a static pod's events by the UID on its node, which kubelet uses in its events
        if uid := event.pod.runtime_uid if event.pod else request.pod_uid:
            pod["uid"] = uid
        if event.container:
            known = event.pod.containers.get(event.container) if event.pod else None
            field = _FIELDS.get(known.kind if known else ContainerKind.REGULAR, "initContainers")
            pod["fieldPath"] = f"spec.{field}{{{event.container}}}"
        yield pod
