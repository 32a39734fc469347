"""The product in the simulated world: its composition, one life of its process, and the replaced outside.

Only `product` knows how the product is composed.
"""

import asyncio
import gc
import logging
import random
import sys
from collections.abc import Callable, Coroutine, Iterator, Mapping, MutableMapping
from contextlib import ExitStack, contextmanager
from contextvars import Context
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import aiohttp
import structlog

import crrd.cri.client
import crrd.lib.memory
import crrd.node.kubelet_health
import crrd.node.slots
import crrd.node.watches
import crrd.rollout.start
from crrd.core.api.pod import parse_pod
from crrd.core.api.types import ACTIVE, ACTIVE_POD, LABEL_ACTIVE, PLURAL
from crrd.cri.client import CriClient
from crrd.cri.runtime import Connection, NodeRuntime
from crrd.kube.access.config import Access
from crrd.kube.client import KubeClient
from crrd.kube.clock import ServerClock
from crrd.kube.events import KubeEventSink
from crrd.lib.errors import ConfigurationError
from crrd.lib.health import Check, Health
from crrd.manager.lifecycle import LifecycleController
from crrd.manager.policies.controller import PolicyController
from crrd.node.daemon import NodeConfig, NodeDaemon
from tests.simulation.channel import LIFE, Channel
from tests.simulation.metrics import PROMETHEUS
from tests.simulation.network import NETWORK, Reply, Sent, Session, open_connection
from tests.simulation.schedule import NODE, RUNTIME
from tests.simulation.store import Object, Passes

if TYPE_CHECKING:
    from tests.simulation.containers import Container
    from tests.simulation.world import SimulatedWorld

KUBELET_PORT = 10248
_MOMENT = 0.01  # Time for which the daemon may still act on a request whose end it has just received


def product(life: "Life") -> Coroutine[Any, Any, None]:
    """Compose the product like its own entry point, to run until `life.stop` is set."""
    node = NodeDaemon(NodeConfig(NODE, "", (), "127.0.0.1:0", "console", "info", kubelet_healthz_port=KUBELET_PORT))
    names = sorted({RUNTIME, *(pod.runtime for pod in life.world.setup.pods)})
    runtime = NodeRuntime([Connection(CriClient(f"unix:///run/{name}.sock"), name) for name in names])
    client = KubeClient(Credentials(lambda: life.world.no_credentials))
    life.live, life.ready = node._health.live, node._health.ready
    crrd.node.watches.SINGLE_WATCHES = life.world.setup.single_watches
    crrd.node.slots.STOPS_AT_ONCE = life.world.setup.stops_at_once
    return node.serve(runtime, client, life.stop)


class Credentials:
    """The API server's address. For a while the credentials may be unusable."""

    description = "the service account"

    def __init__(self, spoilt: Callable[[], bool]) -> None:
        self._spoilt = spoilt
        self._access = Access("http://api:443")

    async def current(self) -> Access:
        if self._spoilt():
            raise ConfigurationError("ca.crt: the TLS certificates cannot be used: not enough data")
        return self._access

    async def renew(self, refused: Access) -> Access:
        return await self.current()


class Life:
    """One life of the daemon's process: what it has received, and how it ends."""

    on_node = True  # Whether it runs on the node, whose clock is sometimes set
    judged = True
    shops = False  # Whether it is a run on the shop's pods
    skew = 0.0  # The error of its machine's wall clock in seconds, unless it is on the node

    def __init__(self, world: "SimulatedWorld", number: int) -> None:
        self.world = world
        self.number = number
        self.dead = False
        self.died = float("inf")
        self.stop = asyncio.Event()
        self.born = world.loop.time()
        self.live: Mapping[str, Check] = {}
        self.ready: Mapping[str, Check] = {}
        self._known: dict[tuple[str, str], Object | None] = {}
        self._versions: dict[tuple[str, str], int] = {}
        self._over: dict[str, float] = {}
        self.writes: dict[str, tuple[Reply, bytes]] = {}  # Path of a request -> its last write
        self.answered: dict[str, str] = {}  # UID of a request -> the version in the response to its last write
        self.failures: dict[tuple[str, bool], int] = {}
        """Name of a request, and whether it is about the status -> the number of failed writes in a row."""
        self.failed_at: dict[str, float] = {}  # Name of a request -> when its last write ended
        self.came: dict[str, float] = {}  # UID of a request -> when the daemon first received it
        self.looks: list[tuple[float, str, str]] = []  # Calls for containers: time, runtime, and pod ("" for all)
        self.looked: dict[tuple[str, str], float] = {}  # Runtime and pod -> the start of the last call that returned
        self.sandbox_looks: dict[tuple[str, str], float] = {}  # The same for its sandboxes
        self.knows_kubelet = False  # Whether kubelet has ever responded to it

    async def ill(self) -> str:
        """Return what /healthz and /readyz report as wrong."""
        for checks in (self.live, self.ready):
            for name, check in checks.items():
                found = check()
                if why := found if isinstance(found, str) else await found:
                    return f"{name}: {why}"
        return ""

    def dead_loop(self) -> str:
        """Return what /healthz alone reports as wrong."""
        for name, check in self.live.items():
            if isinstance(found := check(), str) and found:
                return f"{name}: {found}"
        return ""

    # Received by the daemon.

    def told(self, kind: str, what: str, obj: Object) -> None:
        """Record that an object or its deletion has reached the daemon."""
        if self.dead:
            return
        key, version = (kind, obj["metadata"]["uid"]), int(obj["metadata"]["resourceVersion"])
        if version < self._versions.get(key, 0):
            return
        if kind == PLURAL:
            self.came.setdefault(key[1], self.world.loop.time())
        was = self._live(self._known.get(key))
        self._versions[key] = version
        now = None if what == "DELETED" else obj
        self._known[key] = now
        if was and not self._live(now):
            self._over[key[1]] = self.world.loop.time()

    def starts_over(self) -> None:
        """The API server's objects are now older than those received. The next ones are true all the same."""
        self._versions.clear()

    def listed(self, kind: str, items: list[Object], asked_for: Passes | None) -> None:
        """Record that a list has reached the daemon. Missing objects that really do not exist count as deleted."""
        for obj in items:
            self.told(kind, "ADDED", obj)
        here = {obj["metadata"]["uid"] for obj in items}
        real = {obj["metadata"]["uid"] for obj in self.world.store.all(kind) if self._selected(kind, obj)}
        for known, uid in list(self._known):
            if asked_for and known == kind and uid not in here and uid not in real:
                known_as = self._known[kind, uid]
                if known_as is not None and (kind == PLURAL or asked_for(known_as)):
                    self.told(kind, "DELETED", known_as)

    @staticmethod
    def _selected(kind: str, obj: Object) -> bool:
        return kind != PLURAL or obj["metadata"].get("labels", {}).get(LABEL_ACTIVE) in (ACTIVE, ACTIVE_POD)

    def live_requests(self) -> list[str]:
        """Return the UIDs of the requests that the daemon must believe to be live."""
        now = self.world.loop.time()
        return [
            uid
            for (kind, uid), obj in self._known.items()
            if kind == PLURAL and (self._live(obj) or now - self._over.get(uid, -1.0) <= _MOMENT)
        ]

    def request(self, uid: str) -> Object | None:
        """Return a request as last received."""
        return self._known.get((PLURAL, uid))

    @staticmethod
    def _live(obj: Object | None) -> bool:
        return (
            obj is not None
            and obj["metadata"].get("labels", {}).get(LABEL_ACTIVE) in (ACTIVE, ACTIVE_POD)
            and not obj["metadata"].get("deletionTimestamp")
            and obj.get("status", {}).get("phase") != "Completed"
        )

    def knows_deleting(self, key: str, uid: str) -> bool:
        """Whether the daemon has received that a pod is being deleted."""
        obj = self._known.get(("pods", uid))
        return obj is not None and bool(obj["metadata"].get("deletionTimestamp"))

    def knows_restarting(self, uid: str) -> bool:
        """Whether the daemon has received that kubelet is about to restart all containers of a pod."""
        obj = self._known.get(("pods", uid))
        return obj is not None and parse_pod(obj).restarting

    def looked_at(self, container: "Container") -> float:
        """When the last call that returned this container's pod began; -1 if there was none."""
        return max(self.looked.get((container.runtime, uid), -1.0) for uid in (container.pod_uid, ""))

    # Sent by the daemon.

    def send(self, sent: Sent, reply: Reply) -> None:
        """See Network."""
        if self.dead:
            return
        if sent.host == "api":
            self.world.api.send(self, sent, reply)
        else:
            self.world.visit(self, sent, reply)

    def trapped(self, sent: Sent, when: str) -> bool:
        """Whether the process is killed at this call, before it is carried out, or before it is answered."""
        return self.judged and self.world.trap(self, sent.method, when)

    def run(self) -> asyncio.Task[None]:
        """Start the process."""

        async def live() -> None:
            NETWORK.set(self)
            LIFE.set(self)
            await self.product()

        name = type(self).__name__.lower()  # and nothing else of who starts it, which may be a call of another process
        task = self.world.loop.create_task(live(), name=name, context=Context())
        task.owner = self  # type: ignore[attr-defined]
        return task

    def end(self) -> None:
        """kill -9: its memory is lost, and its connections break."""
        self.dead = True
        self.died = self.world.loop.time()
        self.world.api.forget(self)
        for task in asyncio.all_tasks(self.world.loop):
            if task.owner is self:  # type: ignore[attr-defined]
                task.cancel()

    def logged(self, method: str, event: MutableMapping[str, Any]) -> None:
        """Handle a log line."""
        self.world.logged(self, method, event)

    async def product(self) -> None:
        """Run the product."""
        await product(self)


class Manager(Life):
    """One life of the manager's leader. Its calls are not judged."""

    on_node = False
    judged = False

    def logged(self, method: str, event: MutableMapping[str, Any]) -> None:
        """See Life."""
        self.world.say(
            "manager", " ".join([event["event"], *(f"{key}={event[key]}" for key in event if key != "event")])
        )
        if method in ("error", "exception", "critical"):
            self.world.broken(f"the manager did not foresee this: {event}")

    def trapped(self, sent: Sent, when: str) -> bool:
        """See Life."""
        return self.world.changes.trapped(self, sent, when)

    async def product(self) -> None:
        """See Life."""
        clock = ServerClock()
        client, other = (KubeClient(Credentials(lambda: False), on_date=clock.observe, patient=True) for _ in range(2))
        events = KubeEventSink(client, "manager", "crrd-manager")
        async with asyncio.TaskGroup() as group:
            group.create_task(events.run())
            group.create_task(LifecycleController(client, events, clock).run(Health()))
            if self.world.setup.policies:
                options: Any = {"account": "crrd:manager", "judge_addresses": (PROMETHEUS,)}
                policies = PolicyController(other, events, clock, on_run=lambda *_: None, **options)
                group.create_task(policies.run(Health()))


def _log(_: Any, method: str, event: MutableMapping[str, Any]) -> str:
    """Handle a log line of the daemon."""
    life = LIFE.get(None)
    if life is not None and not life.dead:
        life.logged(method, event)
    raise structlog.DropEvent


@contextmanager
def outside() -> Iterator[None]:
    """Replace the real outside by the simulated one, and skip what only costs time."""
    logging_before = structlog.get_config()
    libc = SimpleNamespace(CDLL=lambda _: SimpleNamespace(malloc_trim=lambda _: 0))
    with ExitStack() as stack:
        for target, name, value in (
            (aiohttp, "ClientSession", Session),
            (aiohttp, "TCPConnector", lambda **_: None),
            (crrd.cri.client, "insecure_channel", Channel),
            (crrd.lib.memory, "ctypes", libc),
            (crrd.node.kubelet_health, "open_connection", open_connection),
            (crrd.node.slots, "STOPS_AT_ONCE", 0),
            (crrd.node.watches, "SINGLE_WATCHES", 0),
            (crrd.rollout.start, "secrets", random),  # the names of runs
            (gc, "collect", lambda *_: 0),
            (gc, "freeze", lambda: None),
        ):
            stack.enter_context(patch.object(target, name, value))
        for name, module in sys.modules.items():
            if name.startswith("crrd.") and (log := getattr(module, "log", None)) is not None:
                vars(log).pop("bind", None)  # a logger may have cached an earlier configuration
        structlog.configure(
            processors=[_log],
            wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
            cache_logger_on_first_use=False,
        )
        gc.disable()
        try:
            yield
        finally:
            gc.enable()
            structlog.configure(**logging_before)
