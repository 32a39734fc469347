"""One run: the world of a schedule, the daemon in it, and all events, in virtual time.

The world has no tasks: its actions are callbacks of the loop, so a run mostly costs what the daemon does.
"""

import asyncio
import gc
import random
import traceback
from collections import Counter
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from typing import Any

from crrd.core.api.gate import has_gate, readiness_of
from crrd.core.api.types import PLURAL
from crrd.lib.errors import ConfigurationError
from tests.simulation.apiserver import ApiServer
from tests.simulation.changes import Changing
from tests.simulation.clock import START, NothingLeftError, NoTimePassesError, SimulatedLoop, virtual_time
from tests.simulation.containers import KILLED, Containers
from tests.simulation.cri import Cri
from tests.simulation.daemon import Life, Manager, outside
from tests.simulation.happenings import Happenings
from tests.simulation.images import Images
from tests.simulation.judge import Judge
from tests.simulation.kubelet import SimulatedKubelet
from tests.simulation.manager import SimulatedUsers
from tests.simulation.memory import remembered
from tests.simulation.metrics import METRICS_HOST
from tests.simulation.network import Reply, Response, Sent, refused
from tests.simulation.sandboxes import Sandboxes
from tests.simulation.schedule import LONG_GRACE, NAMESPACE, NODE, SHOP, Schedule, is_own
from tests.simulation.shop import Shop
from tests.simulation.store import Change, Store
from tests.simulation.teams import Teams

PATIENCE = 900.0
"""Seconds after the last fault within which every request has ended, besides its own waits. A half-open watch is given
up after 150 s, a server's Retry-After is followed for 300 s, and kubelet's back-off grows to 160 s in such a run."""
IDLE = 1000.0
"""Seconds after the last request until the daemon's memory is checked. A hook may count for ten more minutes, and a
hanging watch reports a deleted request late."""
QUIET = 60.0  # The last part of this time, in which it must not call the runtime
IDLE_TASKS = 9  # Limit for its tasks when there is nothing to do: its loops and the watch of requests, with a margin


@dataclass(slots=True)
class Outcome:
    """The result of a run."""

    broken: str  # The violated invariant, or ""
    story: list[str]
    seconds: float  # Virtual seconds, including the quiet ones after the last request
    active: float  # Virtual seconds until every request had ended
    steps: int
    faults: Counter[str] = field(default_factory=Counter)  # The faults that had an effect
    scheduled: Counter[str] = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)
    objects: int = 0  # Number of objects that the daemon still had at its end, when nothing was left to do


class SimulatedWorld(Happenings):
    """The whole simulated world and its events."""

    def __init__(self, loop: SimulatedLoop, plan: Schedule) -> None:
        self.loop = loop
        self.setup = plan.setup
        self._plan = plan
        self.story: list[str] = []
        self.judge = Judge(self)
        self.kubelet = SimulatedKubelet(self)
        self.cri = Cri(self)
        self.containers = Containers(self)
        self.sandboxes = Sandboxes(self)
        self.cluster = SimulatedUsers(self)
        self.teams = Teams(self)
        self.images = Images(self)
        self.shop = Shop(self)
        self.changes = Changing(self)
        self.api = ApiServer(self)
        self.life: Life | None = None
        self.lives: list[Life] = []  # The lives that have not ended, sometimes two
        self.mirrors: dict[str, list[str]] = {}  # Static pod -> UIDs of its earlier mirrors
        self.no_credentials = False
        self.stepped = False  # Whether the node's wall clock was ever set
        self.faults: Counter[str] = Counter()
        self.scheduled: Counter[str] = Counter()
        self.active = 0.0  # Virtual seconds from the start of the run until every request had ended
        self.objects = 0
        self.led = False  # Whether there was ever a leader of the manager
        self._traps: list[list[Any]] = []
        self._lives = 0
        self._ending = False
        self._deaf: list[tuple[float, float]] = []
        self._unwritten: list[tuple[float, float]] = []
        self._unlooked: list[tuple[float, float]] = []
        self._over: asyncio.Future[str] = loop.create_future()
        self._successors: set[str] = set()
        self._main: asyncio.Task[Any] | None = None
        self._last_look: asyncio.Task[None] | None = None

    @property
    def store(self) -> Store:
        return self.api.store

    # Reporting.

    def say(self, who: str, what: str) -> None:
        self.story.append(f"{self.loop.time() - START:9.3f} {who:8} {what}")

    def broken(self, what: str) -> None:
        """An invariant is violated: end the run."""
        if not self._over.done():
            self.say("BROKEN", what)
            self._over.set_result(what)

    def logged(self, life: Life, method: str, event: MutableMapping[str, Any]) -> None:
        told = " ".join(f"{key}={value}" for key, value in event.items() if key != "event")
        self.say("log", f"{event['event']} {told}")
        self.judge.said(event, life)
        error = event.get("exc_info")
        if error or method in ("error", "exception", "critical"):
            trace = f": {error!r}" if isinstance(error, BaseException) else ""
            self.broken(f"the daemon did not foresee this: {event['event']} {event.get('error', '')}{trace}")

    def unhandled(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Handle an error that nobody caught, of a task of the daemon or of the world."""
        error = context.get("exception")
        if self._main is not None and not self._main.done():
            where = traceback.extract_tb(error.__traceback__)[-1] if error is not None and error.__traceback__ else ""
            self.broken(f"nobody took this error: {context['message']}: {error!r} {where}")

    def changed(self, kind: str, change: Change) -> None:
        """The store has changed."""
        if (some := change.new or change.old) is not None and not is_own(some):
            if some["metadata"]["namespace"] == SHOP:
                self.shop.changed(kind, change)
                self.changes.changed(kind, change)
            return
        if kind == "pods":
            self.judge.pod_changed(change.old, change.new)
        elif kind == PLURAL:
            self.judge.request_changed(change.old, change.new)

    # The daemon's process.

    def start(self) -> None:
        if self.life is not None:
            return
        self._lives += 1
        self.cluster.unpin_changed()  # a new process could only believe them
        self.say("daemon", "starts" if self._lives == 1 else "starts anew")
        self.life = life = Life(self, self._lives)
        self.lives = [*(each for each in self.lives if not each.dead), life]
        life.run().add_done_callback(lambda task: self._ended(life, task))

    def lead(self, *, beside: bool = False) -> None:
        """Start a leader of the manager, if there is none, or `beside` the present one."""
        if self.led and not (beside or self.manager.dead):
            return
        self.led = True
        self.manager = manager = Manager(self, 0)
        manager.run().add_done_callback(lambda task: self._manager_ended(manager, task))

    def _manager_ended(self, manager: Manager, task: asyncio.Task[None]) -> None:
        if not (manager.dead or task.cancelled() or self._over.done()):
            self.broken(f"the manager has ended by itself: {task.exception()!r}")

    def _ended(self, life: Life, task: asyncio.Task[None]) -> None:
        if life.dead:
            return
        life.dead = True
        life.died = self.loop.time()
        self.api.forget(life)
        if self.life is life:
            self.life = None
            if not self._ending:
                self.loop.call_later(1.0, self.start)
        error = None if task.cancelled() else task.exception()
        if error is None and life.stop.is_set():
            self.say("daemon", "has stopped in good order")
            return
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        self.say("daemon", f"has ended: {error!r}")
        refusal = any(rule.kind == "api_status" for rule in self.api.rules) or self.no_credentials
        if not (isinstance(error, ConfigurationError) and refusal):
            self.broken(f"the daemon has ended by itself: {error!r}")

    @property
    def deaths(self) -> int:
        """How often the daemon's memory was lost."""
        return self._lives - 1

    def kill(self, away: float) -> None:
        """kill -9: the process' memory is lost, and its connections break."""
        life, self.life = self.life, None
        if life is None:
            return
        self.faults["kill"] += 1
        self._deaf.append((self.loop.time(), self.loop.time() + away + 5.0))
        self._kill(life)
        self.loop.call_later(max(away, 0.01), self.start)

    def _kill(self, life: Life) -> None:
        if life.dead:
            return
        self.say("daemon", "is killed")
        life.end()
        for call in [call for call in self.cri.under_way if call.life is life]:
            call.give_up()
            self.cri.left(call)

    def double(self, seconds: float) -> bool:
        """Start another daemon while one still runs (its pod was deleted by force)."""
        before, self.life = self.life, None
        if before is None:
            return False
        self.start()
        self.loop.call_later(seconds, self._kill, before)
        return True

    def trap(self, life: Life, call: str, when: str) -> bool:
        """Whether this daemon is killed at this step."""
        for trap in self._traps:
            if trap[:2] == [call, when] and life is self.life:
                trap[2] -= 1
                if trap[2] == 0:
                    self._traps.remove(trap)
                    self.say("fault", f"kill {when} {call}")
                    self.kill(trap[3])
                    return True
        return False

    def could_write(self, since: float, until: float) -> bool:
        """Whether no fault of the API prevented a write in that time."""
        return all(end < since or begin > until for begin, end in self._unwritten)

    def could_look(self, since: float) -> bool:
        """Whether no fault of the runtime prevented an observation since then."""
        return not any(end > since for _, end in self._unlooked)

    @property
    def knows_kubelet(self) -> bool:
        """Whether the daemon could always read its Node. Otherwise it has to be careful."""
        return self.setup.node_known and not self._deaf

    def deaf_since(self, since: float) -> bool:
        """Whether a fault has kept the daemon from responding since then."""
        return any(end > since for _, end in self._deaf)

    def visit(self, life: Life, sent: Sent, reply: Reply) -> None:
        """Handle an HTTP call to another server than the API server."""
        if sent.host == METRICS_HOST:
            self.changes.metrics.visit(sent, reply)
            return
        if sent.host == "127.0.0.1":
            if not self.kubelet.down:
                life.knows_kubelet = True
                self.loop.call_later(0.001, reply.answer, Response(200, b"ok"))
            elif self.kubelet.refuses:
                self.loop.call_later(0.001, reply.fail, refused(sent.host, sent.port or 0))
            return
        pod = next((pod for pod in self.kubelet.pods.values() if pod.ip == sent.host), None)
        name = sent.path.strip("/")
        newest = self.containers.of(pod.runtime_uid, name)[-1:] if pod is not None else []
        if not newest or newest[0].state != "running":
            self.loop.call_later(0.001, reply.fail, refused(sent.host, 8080))
            return
        container = newest[0]
        self.say("daemon", f"httpGet hook of {container.id}")
        answered = self.judge.http_hook(container, life)
        status = 500 if container.shape.hook_code else 200
        self.loop.call_later(container.shape.hook_seconds, reply.answer, Response(status, b"drained"))
        self.loop.call_later(container.shape.hook_seconds, answered)

    # The run.

    async def run(self) -> str:
        """Run everything, from the pods' start to the daemon's end. Return the violated invariant, or ""."""
        self._main = asyncio.current_task()
        if self.setup.node_known:
            info = {"nodeInfo": {"kubeletVersion": f"v1.{self.setup.kubelet}.2"}}
            ready = {"conditions": [{"type": "Ready", "status": "True"}]}
            self.store.create("nodes", {"metadata": {"name": NODE, "uid": "n1"}, "status": {**info, **ready}})
        for shape in self.setup.pods:
            self.kubelet.add(shape)
        self.shop.open()
        self.lead()
        self.start()
        for event in self._plan.events:
            self.loop.call_at(START + event.at, self.happen, event)
        self.loop.call_at(START + self._plan.end + 0.001, self._settle, START + self._plan.end + self._patience())
        return await self._over

    def _patience(self) -> float:
        own = 0.0
        comes_back = any(event.kind == "restore" for event in self._plan.events)
        given_up = [event.about["request"] for event in self._plan.events if event.kind == "delete" and not comes_back]
        for event in self._plan.events:
            if event.kind == "create" and event.about["request"] not in given_up:
                strategy = event.about["strategy"]
                own += strategy.get("unreadyGracePeriodSeconds", 0) + strategy.get("terminationGracePeriodSeconds", 30)
                own += strategy.get("minStartedSeconds", 0) + 30 * len(event.about["containers"])
        return PATIENCE + own + self.changes.patience

    def _settle(self, limit: float) -> None:
        """The last fault is over: wait until every request has ended."""
        self._traps.clear()
        if self._over.done():
            return
        if self.life is not None and (why := self.life.dead_loop()):
            self.broken(f"/healthz is red: {why}")
        gated = self.shop.gated()
        if gated or not (self.judge.finished and self.shop.finished and self.changes.finished):
            if self.loop.time() > limit:
                self.judge.unfinished()
                self.changes.unfinished()
                for name in gated:
                    self.broken(f"{name} has never got the condition of its readiness gate")
                self._end("")
                return
            self.loop.call_later(2.0, self._settle, limit)
            return
        self.say("end", "every request has ended")
        self.active = self.loop.time() - START
        self.loop.call_later(5.0, self._clear)

    def _clear(self) -> None:
        for container in list(self.containers.present.values()):
            if container.on_end:  # a stop that was given up, with a grace period of an hour
                self.containers.end(container, KILLED)
        self.shop.close()
        self.teams.leave()
        long = [event for event in self._plan.events if LONG_GRACE in event.about.get("strategy", {}).values()]
        # the hook of a deleted request counts until its grace period would have ended
        self.loop.call_later(IDLE - QUIET + (LONG_GRACE if long else 0.0), self._grow_quiet)

    def _grow_quiet(self) -> None:
        runtime = sum(self.judge.calls[name] for name in ("ListContainers", "ContainerStatus"))
        self.loop.call_later(QUIET, self._look_back, runtime)

    def _look_back(self, runtime: int) -> None:
        now = sum(self.judge.calls[name] for name in ("ListContainers", "ContainerStatus"))
        if now != runtime:
            self.broken("the runtime is asked though no request is left")
        if self.life is None:
            self.broken("the daemon is not there")
            return
        self._last_look = self.loop.create_task(self._check(self.life))

    async def _check(self, life: Life) -> None:
        if why := await life.ill():
            self.broken(f"not ready after all is over: {why}")
        tasks = {task for task in asyncio.all_tasks(self.loop) if task.owner is life} - {self._last_look}  # type: ignore[attr-defined]
        if len(tasks) > IDLE_TASKS:
            names = sorted(task.get_name() for task in tasks)
            self.broken(f"more tasks are left than an idle daemon needs: {', '.join(names)}")
        where, self.objects = remembered(tasks, self._names())
        if where:
            self.broken(f"remembered of what has ended: {where}")
        self.judge.look_at_pods()
        for obj in self.store.all(PLURAL):
            self.broken(f"{obj['metadata']['name']} was deleted, and is kept by {obj['metadata'].get('finalizers')}")
        for obj in self.store.all("pods"):
            if has_gate(obj) and readiness_of(obj).status == "False":
                self.broken(f"{obj['metadata']['name']} is still unready: {readiness_of(obj).message}")
        self._ending = True
        life.stop.set()
        self.loop.call_later(30.0, lambda: self._end("the daemon does not stop" if self.life is life else ""))

    def _names(self) -> set[str]:
        """Return all names under which something of a request, its pod or its containers could be kept."""
        names = {*self.containers.all, *self.sandboxes.all}
        for known in self.judge.known.values():
            names |= {known.uid, known.name, f"{NAMESPACE}/{known.name}"}
        for pod in self.kubelet.pods.values():
            names |= {pod.uid, pod.runtime_uid, pod.name, pod.key}
        return names

    def _end(self, what: str) -> None:
        if what:
            self.broken(what)
        if not self._over.done():
            self._over.set_result("")


def run(plan: Schedule) -> Outcome:
    """Run one schedule."""
    state = random.getstate()
    random.seed(plan.seed)
    with outside(), virtual_time() as loop:
        world = SimulatedWorld(loop, plan)
        loop.set_exception_handler(world.unhandled)
        try:
            what = loop.run_until_complete(world.run())
        except NoTimePassesError:
            what = "no time passes: something goes round and round"
        except NothingLeftError:
            what = "everything waits for ever"
        world.story += [] if not what or world.story[-1].endswith(what) else [f"{'':9} BROKEN   {what}"]
        if world.life is not None:
            world.life.dead = True
        world.manager.dead = True
        _clean_up(loop)
        seconds = loop.time() - START
    random.setstate(state)
    return Outcome(
        what,
        world.story,
        seconds,
        world.active or seconds,
        loop.steps,
        world.faults,
        world.scheduled,
        world.judge.calls,
        world.objects,
    )


def _clean_up(loop: SimulatedLoop) -> None:
    for _ in range(3):  # cancelled tasks may start others
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        if not tasks:
            return
        try:
            loop.run_until_complete(asyncio.wait(tasks, timeout=5))
        except (NoTimePassesError, NothingLeftError):
            return


def collect() -> None:
    """Collect garbage. Runs leave reference cycles, and the collector is off during runs and called in between."""
    gc.collect()
