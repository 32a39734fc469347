"""Look at one pod and carry out what is decided about it: observe, decide, execute. Ends there."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from math import inf

import structlog

from crrd.core.api.pod import Pod
from crrd.core.api.time import rfc3339
from crrd.core.api.types import Pin, Request
from crrd.core.recreate.decide import decide, in_turn
from crrd.core.recreate.draft import QUIET
from crrd.core.recreate.observation import Ending, Instance, Live, Observation
from crrd.core.recreate.record import hook_end_untold, stop_untold, target_of
from crrd.kube.cache import NodeCache
from crrd.kubelet.runtime_status import ContainerState, newest
from crrd.lib.backoff import Backoff
from crrd.lib.errors import ApiUnavailableError, CrrdError, RuntimeCallError, RuntimeUnavailableError
from crrd.node.edges import Edges
from crrd.node.execute import Executor

log = structlog.get_logger(__name__)

SHORTEST_PAUSE_SECONDS = 0.01
"""Seconds between two looks at one pod at least: what can be done at once was done."""
RUNTIME_RETRY = Backoff(initial=0.5, factor=2.0, maximum=5.0, jitter=0.1)
"""Between looks at a runtime that does not answer; whatever pokes the pod meanwhile."""
QUESTION_RETRY = Backoff(initial=0.5, factor=2.0, maximum=10.0, jitter=0.1)
"""Between questions for a pod that the API server does not answer, unless it names a time."""
FORGIVEN_SECONDS = 30.0
"""After so long without a failed look the next one is a first one again."""
SHORT_LOOK_SECONDS = 2.0
"""For a look while a hook's end or a stop is to be told: a daemon that dies meanwhile would do it again, or anew."""


@dataclass(slots=True)
class _Watched:
    """What was seen of one pod's containers while it has a live request."""

    running_since: dict[str, float] = field(default_factory=dict)
    endings: dict[str, Ending] = field(default_factory=dict)
    foreign: dict[str, Instance | None] = field(default_factory=dict)
    """An ID never changes its pod: it is looked up once."""
    runtime_failures: int = 0
    runtime_error: str = ""
    """What became of the last look at the runtime, "" for an answer."""
    runtime_failed: float = -inf
    """When a look failed the last time; what happens meanwhile is told by that, until the next look is due."""
    next_look: float = -inf
    questions_failed: int = 0
    """How often in a row the API server did not say what it was asked for."""
    next_question: float = -inf


class Reconciler:
    """Handles one pod's key at a time for the queue.

    Args:
        node_name: this node.
        watch_runtime: called with (pod key, pod UID, wanted) after each round: whether a change of the pod's
            containers in the runtime is awaited.
    """

    def __init__(
        self,
        node_name: str,
        edges: Edges,
        cache: NodeCache,
        executor: Executor,
        watch_runtime: Callable[[str, str, bool], None],
    ) -> None:
        self._node_name = node_name
        self._edges = edges
        self._cache = cache
        self._executor = executor
        self._watch_runtime = watch_runtime
        self._seen: dict[str, Request] = {}
        self._watched: dict[str, _Watched] = {}
        self.draining = False

    async def handle(self, pod_key: str) -> float | None:
        """One round for a pod; returns when to look again."""
        waits_for_slot = False
        try:
            wake_at, waits_for_slot = await self._round(pod_key)
        finally:
            self._executor.wait_for_slot(pod_key, wanted=waits_for_slot)
        return wake_at

    @property
    def owes_stops(self) -> bool:
        """Whether a hook has run whose stop waits for the runtime to answer."""
        failing = (pod_key for pod_key, watched in self._watched.items() if watched.runtime_error)
        return any(map(self._executor.owes_stop, failing))

    async def _round(self, pod_key: str) -> tuple[float | None, bool]:
        """When to look again, and whether a stop waits for its slot."""
        requests = self._cache.requests(pod_key)
        self._note(pod_key, requests)
        live = [request for request in requests if request.live]
        if not live:
            self._watched.pop(pod_key, None)
            self._watch_runtime(pod_key, "", False)
            return None, False
        if all(request.error for request in live):
            observation = Observation(self._node_name, self._edges.runtime.names, utc=_utc())
        else:
            observation = await self._observe(pod_key, live)
        # The cache may have moved on while the runtime was asked: decide on what it says now.
        requests = self._cache.requests(pod_key)
        now = asyncio.get_running_loop().time
        decision = decide(requests, observation, now())
        watched = self._watched.get(pod_key) or _Watched()
        current = [request for request in requests if request.live and not request.error]
        # Without an answer what was decided is carried out, and is all words: what has no pod yet is not begun.
        if decision.ask_api and current and (answer := await self._ask(pod_key, watched)) is not None:
            # It may be about another pod than the one whose containers were listed.
            observation = replace(await self._observe(pod_key, current), live=answer)
            requests = self._cache.requests(pod_key)
            decision = decide(requests, observation, now())
        pod = self._cache.pod(pod_key)
        self._watch_runtime(pod_key, pod.runtime_uid if pod else "", decision.watch_runtime)
        self._executor.carry_out(requests, decision.actions)
        next_look = watched.next_look if observation.runtime_error else None
        next_question = watched.next_question if decision.ask_api and watched.questions_failed else None
        wakes = (decision.wake_at, self._executor.wake_for_write(requests), next_look, next_question)
        first = min((at for at in wakes if at is not None), default=None)
        return None if first is None else max(first, now() + SHORTEST_PAUSE_SECONDS), decision.waits_for_slot

    async def _ask(self, pod_key: str, watched: _Watched) -> Live | None:
        """The API server's own word on the pod; None where it says nothing, or was asked in vain just now."""
        asked_at = asyncio.get_running_loop().time()
        if asked_at < watched.next_question:
            return None
        try:
            found = await self._find(pod_key)
        except CrrdError as error:
            watched.questions_failed += 1
            delay = QUESTION_RETRY.delay(watched.questions_failed)
            if isinstance(error, ApiUnavailableError):
                delay = max(delay, error.retry_after)
            watched.next_question = asyncio.get_running_loop().time() + delay
            say = log.warning if watched.questions_failed == 1 else log.debug
            say("pod not asked for", pod=pod_key, error=str(error), retry_in=round(delay, 1))
            return None
        watched.questions_failed, watched.next_question = 0, -inf
        return Live(found, asked_at)

    async def _find(self, pod_key: str) -> Pod | None:
        """Ask the API server for the pod; the cache learns of one that it should have.

        What a watch has told meanwhile may be newer.
        """
        namespace, _, name = pod_key.partition("/")
        heard = self._cache.heard_of(pod_key)
        found = await self._edges.pods.find(namespace, name)
        watched = self._cache.known_since(pod_key) is not None  # else nobody would keep it up to date
        behind = watched and self._cache.heard_of(pod_key) == heard
        if found is not None and found.node_name == self._node_name and behind:
            self._cache.pod_changed(found)
        return found

    def _note(self, pod_key: str, requests: Sequence[Request]) -> None:
        """Tell the recorder which requests came and which went.

        The watch may bring the end of a request before the write that ended it is answered: what that write did is
        told first.
        """
        known = {request.uid: request for request in requests}
        for uid, request in list(self._seen.items()):
            ended = request.pod_key == pod_key and (uid not in known or not known[uid].live)
            if ended and not self._executor.writes(uid):
                del self._seen[uid]
                self._executor.forget(known.get(uid, request))
                self._edges.recorder.forgotten(known.get(uid, request))
        for uid, request in known.items():
            if request.live and uid not in self._seen:
                self._seen[uid] = request
                self._edges.recorder.seen(request)

    async def _observe(self, pod_key: str, live: Sequence[Request]) -> Observation:
        """All that `decide` wants to know about one pod; each source with the time at which it was true."""
        watched = self._watched.setdefault(pod_key, _Watched())
        loop = asyncio.get_running_loop()
        current = in_turn(live, self._executor.works(pod_key))[0]
        self._edges.recorder.turn(current)
        silent = asyncio.ensure_future(self._edges.kubelet.silent_since())
        listed_at = loop.time()
        instances: tuple[Instance, ...] = ()
        if listed_at >= watched.next_look:
            watched.runtime_error = ""
            try:
                async with asyncio.timeout(self._patience(pod_key, live)):
                    listed_at, instances = await self._as_of_now(pod_key, live, current, watched, silent)
            except (RuntimeCallError, RuntimeUnavailableError, TimeoutError) as failure:
                self._note_failure(watched, str(failure) or f"it has not answered within {SHORT_LOOK_SECONDS:.0f} s")
            else:
                self._watch_instances(current, instances, watched)
        if watched.runtime_error:  # else it has been waited for, and no turn of the loop may come in between
            await asyncio.wait((silent,))
        works = self._executor.works(pod_key)
        self._note_successors(current, instances, {key[1] for key, work in works.items() if work.stop_sent is not None})
        return Observation(
            node_name=self._node_name,
            runtime_names=self._edges.runtime.names,
            runtime_error=watched.runtime_error,
            instances=instances,
            listed_at=listed_at,
            foreign=dict(watched.foreign),
            pod=self._cache.pod(pod_key),
            pod_at=self._cache.pod_at(pod_key),
            pod_gone=self._cache.pod_gone(pod_key),
            works=works,
            running_since=dict(watched.running_since),
            endings=dict(watched.endings),
            first_seen=self._cache.first_seen,
            unready_seen=self._cache.unready_seen,
            utc=_utc(),
            wall=time.time(),
            known_since=self._cache.known_since(pod_key),
            kubelet_silent_since=silent.result(),
            unpinned=frozenset(self._cache.unpinned),
            pin_errors=dict(self._executor.pin_errors),
            may_stop=self._executor.may_stop(pod_key),
            prunes_is_killed=self._executor.prunes_is_killed,
            draining=self.draining,
        )

    @staticmethod
    def _note_failure(watched: _Watched, error: str) -> None:
        now = asyncio.get_running_loop().time()
        if now - watched.runtime_failed > FORGIVEN_SECONDS:
            watched.runtime_failures = 0
        watched.runtime_failures += 1
        watched.runtime_error, watched.runtime_failed = error, now
        watched.next_look = now + RUNTIME_RETRY.delay(watched.runtime_failures)

    async def _as_of_now(
        self,
        pod_key: str,
        live: Sequence[Request],
        current: Request,
        watched: _Watched,
        silent: "asyncio.Future[float | None]",
    ) -> tuple[float, tuple[Instance, ...]]:
        """When the container instances were asked for, and which there are; asked again until that still holds.

        Nothing may be waited for after that: so what kubelet says is awaited in here, too, side by side.
        """
        while True:
            going_on = self._executor.under_way(pod_key)
            uid, listed_at, instances = await self._instances(pod_key, live)
            await self._find_foreign(current, instances, watched)
            await asyncio.wait((silent,))  # the loop has a turn, too: a stop that was answered just now is noted
            # Meanwhile another pod may have got the name, or a stop have ended, of a request that is gone as well.
            if self._runtime_uid(pod_key, uid) == uid and going_on <= self._executor.under_way(pod_key):
                return listed_at, instances

    def _patience(self, pod_key: str, live: Sequence[Request]) -> float | None:
        """Seconds that a look at the pod may take, None for as long as its calls may."""
        works, now = self._executor.works(pod_key).items(), asyncio.get_running_loop().time()
        own = [(request, work) for request in live for (uid, _), work in works if uid == request.uid]
        untold = (hook_end_untold(request, work) or stop_untold(request, work, now) for request, work in own)
        return SHORT_LOOK_SECONDS if any(untold) else None

    def _runtime_uid(self, pod_key: str, otherwise: str) -> str:
        """The UID that the pod's containers have in the runtime, as far as the pod is known."""
        pod = self._cache.pod(pod_key)
        return pod.runtime_uid if pod else otherwise

    async def _instances(self, pod_key: str, live: Sequence[Request]) -> tuple[str, float, tuple[Instance, ...]]:
        """The UID that was asked for, when, and the container instances; none while the pod's UID is not known."""
        loop = asyncio.get_running_loop()
        uid = self._runtime_uid(pod_key, next((request.pod_uid for request in live if request.pod_uid), ""))
        asked = loop.time()
        instances = await self._edges.runtime.instances(uid)
        answered = loop.time()
        await self._pod_known(pod_key)  # it is being asked for by its watch: the runtime's answer takes as long
        if loop.time() > answered + SHORTEST_PAUSE_SECONDS:
            asked = loop.time()
            instances = await self._edges.runtime.instances(uid)
        return uid, asked, instances

    async def _pod_known(self, pod_key: str) -> None:
        """Wait for what the API server says of the pod, but not for long: a wait is worth telling."""
        try:
            async with asyncio.timeout(QUIET):
                await self._cache.wait_until_known(pod_key)
        except TimeoutError:
            return

    async def _find_foreign(self, request: Request, instances: Sequence[Instance], watched: _Watched) -> None:
        """Look up container IDs of the request that are not among the pod's: another pod's, or collected ones."""
        own = {instance.id for instance in instances}
        pins: list[Pin] = [container.context for container in request.containers if container.context]
        wanted = {
            pin.bare_id: pin
            for pin in (*pins, *request.pinned.values())
            if pin.bare_id not in own
            and pin.bare_id not in watched.foreign
            and pin.runtime in self._edges.runtime.names
        }
        found = await asyncio.gather(*(self._edges.runtime.find(pin) for pin in wanted.values()))
        watched.foreign.update(zip(wanted, found, strict=True))

    def _watch_instances(self, request: Request, instances: Sequence[Instance], watched: _Watched) -> None:
        """Since when what runs has been running, and what does not has not, on this process' own clock."""
        now = asyncio.get_running_loop().time()
        running = {instance.id for instance in instances if instance.state is ContainerState.RUNNING}
        watched.running_since = {bare_id: watched.running_since.get(bare_id, now) for bare_id in running}
        endings = {}
        for container in request.containers:
            current, known = newest(instances, container.name), watched.endings.get(container.name)
            if current is None or current.state is ContainerState.EXITED:
                same = known is not None and (current is None or current.id == known.instance)
                anew = Ending(now, time.time(), current.id if current else "")
                endings[container.name] = known if known is not None and same else anew
        watched.endings = endings

    def _note_successors(self, request: Request, instances: Sequence[Instance], stopped: set[str]) -> None:
        """Tell the recorder which awaited instances the runtime has by now."""
        for container in request.containers:
            current, target = newest(instances, container.name), target_of(request, container)
            if current and target and current.id != target.bare_id and target.bare_id in stopped:
                self._edges.recorder.successor_seen(request, container.name)


def _utc() -> str:
    """The node's wall clock as Kubernetes writes times."""
    return rfc3339(datetime.now(UTC))
