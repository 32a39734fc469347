"""Carries out what `decide` decided. It never decides anything itself.

Writes, hooks and stops run as tasks of their own, so that a pod's handler returns at once; each pokes the pod's key
when it has ended. What became of them is kept for `decide` to see, by intent: one request, one container instance. It
is forgotten with the request; but a hook of a request that was deleted counts until its grace period would have ended.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import structlog

from crrd.core.api.types import Request, RequestPhase, Status
from crrd.core.recreate.actions import Action, EmitEvent, PinContainers, RunHook, StopContainer, WriteStatus
from crrd.core.recreate.observation import NO_WORK, HookResult, StopAttempt, Work, WorkKind
from crrd.kube.cache import NodeCache
from crrd.lib.backoff import Backoff
from crrd.lib.errors import ApiUnavailableError, ConflictError, CrrdError, GoneError
from crrd.node.edges import Edges

log = structlog.get_logger(__name__)

WRITE_RETRY = Backoff(initial=0.2, factor=2.0, maximum=30.0, jitter=0.2)
"""Between tries of a write of one request, whatever it failed of: also of having had no effect."""
DUE_WRITE_SECONDS = 0.01
"""Seconds between looks at a write whose next try is due: the queue is about to start it."""
STOPS_AT_ONCE = 128
"""StopContainers that are sent to the runtime at once. Measured with containerd 1.6 on two cores and 110 containers: 32
and 64 make the last ones wait, behind what kubelet starts again already, and kubelet has none ready sooner for it."""
LEFT_SECONDS = 60.0
"""For how long hooks and stops are remembered for a request that left the selection, and may come back to it."""
SLOT_SECONDS = 2.0
"""For how long a stop holds its slot at most: one that waits for its container to end costs the runtime nothing."""

LASTING_CONFLICT = 8
"""So many conflicts in a row are no race with somebody else's write."""

Key = tuple[str, str]
"""Request UID, bare container ID."""
Write = tuple[str, type[WriteStatus | PinContainers]]
"""Request UID, and what is written of it: one that is refused holds back none of the other kind."""


class Executor:
    """Runs actions against the ports.

    Args:
        edges: the ports.
        cache: what writes return is put in there.
        poke: called with a pod's key when something of it has ended.
        own_pod: UID of the pod that this process runs in: the stop of its own container ends with it, not before.
    """

    def __init__(self, edges: Edges, cache: NodeCache, poke: Callable[[str], None], own_pod: str) -> None:
        self._edges = edges
        self._cache = cache
        self._poke = poke
        self._own_pod = own_pod
        self._works: dict[str, dict[Key, Work]] = {}
        """By pod (`namespace/name`)."""
        self._kept: dict[Key, asyncio.TimerHandle] = {}
        """Of these, the ones that are kept for a while, with what ends that."""
        self._free = STOPS_AT_ONCE
        self._waiting: dict[str, None] = {}
        """Pods that wait for a slot, in the order in which they came."""
        self._called: set[str] = set()
        """Pods that have a slot each, and were poked to use it: those that do not pass it on after their round."""
        self._writing: set[str] = set()
        self._ending: set[str] = set()
        """Of these, the requests whose last status is being written: nothing is begun for them."""
        self._write_failures: dict[Write, int] = {}
        self._write_after: dict[Write, tuple[float, str]] = {}
        """When the next write may come, and the version that must wait for it ("" for every one)."""
        self.pin_errors: dict[str, str] = {}
        """Request UID -> why its pins could not be written the last time."""
        self._emitted: dict[str, set[tuple[str, str]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._write_tasks: set[asyncio.Task[None]] = set()
        self._working: set[asyncio.Task[None]] = set()
        self.prunes_is_killed = False
        """Whether the cluster's CRD was seen to drop the field isKilled."""

    def works(self, pod_key: str) -> Mapping[Key, Work]:
        """What this process has done to the pod's containers, as of now."""
        return dict(self._works.get(pod_key, {}))

    def under_way(self, pod_key: str) -> set[Key]:
        """Which of these are going on."""
        return {key for key, work in self._works.get(pod_key, {}).items() if work.under_way is not None}

    def wake_for_write(self, requests: Iterable[Request]) -> float | None:
        """When a write that failed may be tried again (monotonic), None where none waits."""
        waiting = {request.uid for request in requests} - self._writing
        return min((at for (uid, _), (at, _) in self._write_after.items() if uid in waiting), default=None)

    @property
    def working(self) -> int:
        """How many hooks and stops are under way whose end can be waited for."""
        return len(self._working)

    @property
    def writing(self) -> int:
        """How many writes are under way or wait for another try."""
        return len(self._writing | {uid for uid, _ in self._write_after})

    def owes_stop(self, pod_key: str) -> bool:
        """Whether a hook of a live request has run, and its stop was not sent yet."""
        for (uid, _), work in self._works.get(pod_key, {}).items():
            request = self._cache.request(uid)
            if work.hook is not None and work.stop_sent is None and request is not None and request.live:
                return True
        return False

    async def wait_for_work(self) -> None:
        """Return when one of the hooks and stops under way has ended, and what follows from it was decided."""
        await asyncio.wait(self._working, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.sleep(0)

    async def wait_for_writes(self) -> None:
        """Return when the writes under way have ended and the next try of those that failed may come."""
        if self._write_tasks:
            await asyncio.wait(self._write_tasks)
        now = asyncio.get_running_loop().time()
        if self._write_after:
            next_try = min(at for at, _ in self._write_after.values())
            await asyncio.sleep(max(next_try - now, DUE_WRITE_SECONDS))

    def writes(self, uid: str) -> bool:
        """Whether a write of the request is under way; its pod's key is poked when it has ended."""
        return uid in self._writing

    def forget(self, request: Request) -> None:
        """A request has ended or gone, and no write of it is under way: drop what is kept for it.

        What is still under way stays until it has ended, a hook without its stop for its grace period, and what was
        done for one that may come back for a while.
        """
        for kind in (WriteStatus, PinContainers):
            self._write_failures.pop((request.uid, kind), None)
            self._write_after.pop((request.uid, kind), None)
        self.pin_errors.pop(request.uid, None)
        self._emitted.pop(request.uid, None)
        for key in list(self._works.get(request.pod_key, {})):  # a hook may have been kept for this one
            self._drop_unneeded(request.pod_key, key)

    async def close(self) -> None:
        """Cancel what still runs. A stop that was sent is finished by the runtime or by the next daemon."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def carry_out(self, requests: Iterable[Request], actions: Sequence[Action]) -> None:
        """Start every action. At most one write per request is under way: a further one is decided anew after it.

        Args:
            requests: those that were decided on. Where no write is wanted any more, none waits for another try: one
                whose answer was lost may have been carried out.
            actions: what was decided.
        """
        wanted = {_write_of(action) for action in actions if isinstance(action, WriteStatus | PinContainers)}
        here = {request.uid for request in requests}
        for write in self._write_after.keys() - wanted:
            if write[0] in here:
                del self._write_after[write]
        ordered = sorted(actions, key=lambda action: not isinstance(action, StopContainer | RunHook))
        for action in ordered:
            match action:
                case StopContainer() | RunHook():
                    self._start_work(action)
                case WriteStatus() | PinContainers():
                    self._start_write(action)
                case EmitEvent():
                    self._emit(action)

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _emit(self, action: EmitEvent) -> None:
        """Queue an event, once per request, reason and text in this process' life."""
        said = self._emitted.setdefault(action.request.uid, set())
        mark = (action.reason.value, action.message)
        if mark not in said:
            said.add(mark)
            self._edges.events.emit(action)

    # What is done to containers.

    def _work(self, action: StopContainer | RunHook) -> Work:
        return self._works.get(action.request.pod_key, {}).get(_key(action), NO_WORK)

    def _note(self, action: StopContainer | RunHook, **changes: Any) -> None:
        """Remember what has become of the work on an instance."""
        pod_key, key = action.request.pod_key, _key(action)
        works = self._works.setdefault(pod_key, {})
        works[key] = replace(works.get(key, NO_WORK), **changes)
        self._drop_unneeded(pod_key, key)

    def _drop_unneeded(self, pod_key: str, key: Key, *, completed: bool = False) -> None:
        """Forget the work on an instance, unless it goes on, its request is live or may come back, or a hook counts.

        `completed`: by this process, so it does not come back.
        """
        works = self._works.get(pod_key, {})
        work, request = works.get(key, NO_WORK), self._cache.request(key[0])
        if work.under_way is not None or (request is not None and request.live):
            return
        loop = asyncio.get_running_loop()
        stopped = work.stop is not None and not work.stop.error
        ended = work.hook_ended
        if ended is not None and not stopped and self._waited_for(pod_key, ended):
            return
        kept_until = 0.0
        if work.hook_until is not None and not stopped:
            kept_until = max(work.hook_until, (work.hook_began or 0.0) + LEFT_SECONDS)
        if work.stop is not None and request is None and not completed:
            kept_until = max(kept_until, work.stop.ended + LEFT_SECONDS)
        if until := self._kept.pop(key, None):
            until.cancel()
        if loop.time() < kept_until:
            self._kept[key] = loop.call_at(kept_until, self._drop_unneeded, pod_key, key)
            return
        works.pop(key, None)
        if not works:
            self._works.pop(pod_key, None)

    def _waited_for(self, pod_key: str, ended: float) -> bool:
        """Whether a live request of the pod was there when a hook ended: it must not run it again."""
        live = (request.uid for request in self._cache.requests(pod_key) if request.live)
        return any(self._cache.first_seen[uid] <= ended for uid in live)

    def _start_work(self, action: StopContainer | RunHook) -> None:
        """Start a hook or a stop: `decide` wants none of a container that the request is at work on already."""
        if action.request.uid in self._ending:
            return
        kind = WorkKind.STOP if isinstance(action, StopContainer) else WorkKind.HOOK
        first = self._work(action) == NO_WORK
        known = {"name": action.instance.name, "pin": action.instance.pin, "spent_before": action.spent_before}
        self._note(action, under_way=kind, until=None, **(known if first else {}))
        if isinstance(action, StopContainer):
            self._take_slot(action.request.pod_key)
            run = self._stop(action)
        else:
            run = self._hook(action)
        task = self._spawn(run, f"{type(action).__name__} {action.instance.id[:12]}")
        if action.instance.pod_uid != self._own_pod:
            self._working.add(task)
            task.add_done_callback(self._working.discard)

    async def _hook(self, action: RunHook) -> None:
        """Run a hook; one that broke off is not run again in this life."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        who = _who(action)
        ends = began + action.seconds
        self._note(action, until=ends, hook_began=began, hook_until=ends)
        self._edges.recorder.hook_started(action.request)
        log.info("preStop hook started", kind=action.hook.kind.value, **who)
        pod = self._cache.pod(action.request.pod_key)
        result = HookResult(0.0, "it was cut off")
        try:
            result = await self._edges.hooks.run(action, pod.pod_ip if pod else "")
        except Exception as error:  # noqa: BLE001 - a broken hook must not keep the container from being stopped
            result = HookResult(loop.time() - began, _reason(error, "hook"))
        finally:
            self._note(action, under_way=None, until=None, hook=result)
        self._edges.recorder.hook_ended(action.request, action.hook, result)
        log.info("preStop hook ended", seconds=round(result.seconds, 3), error=result.error or None, **who)
        self._poke(action.request.pod_key)

    async def _stop(self, action: StopContainer) -> None:
        """Stop a container once; whether to try again is decided elsewhere."""
        loop = asyncio.get_running_loop()
        who = _who(action)
        with self._slot():
            work = self._work(action)
            count = (work.stop.count if work.stop else 0) + 1
            began, error = loop.time(), "it was cut off"
            sent = began if work.stop_sent is None else work.stop_sent
            self._note(action, until=began + action.seconds, stop_sent=sent)
            self._edges.recorder.stop_sent(action.request, action.instance.name)
            log.info("stopping container", timeout=round(action.seconds, 1), **who)
            try:
                # Awaited here and now: a task of its own would be sent after all that is ready by then, even writes.
                await self._edges.runtime.stop(action.instance, action.seconds)
                error = ""
            except Exception as failure:  # noqa: BLE001 - whatever broke becomes the attempt's error
                error = _reason(failure, "stop")
            finally:
                self._note(action, under_way=None, until=None, stop=StopAttempt(count, loop.time(), error))
        seconds = loop.time() - began
        if error:
            log.warning("container not stopped", attempt=count, error=error, **who)
        else:
            if not self._stopped_by_another(action):
                self._edges.recorder.stop_ended(action.request, seconds)
            log.info("container stopped", seconds=round(seconds, 3), **who)
        self._poke(action.request.pod_key)

    def _stopped_by_another(self, action: StopContainer) -> bool:
        """Whether another request's stop of the same instance has been answered: of two that go on, both are."""
        works = self._works.get(action.request.pod_key, {}).items()
        others = (work.stop for key, work in works if key != _key(action) and key[1] == action.instance.id)
        return any(stop is not None and not stop.error for stop in others)

    def may_stop(self, pod_key: str) -> bool:
        """Whether a stop of the pod may be sent now."""
        return self._free > 0 or pod_key in self._called

    def wait_for_slot(self, pod_key: str, *, wanted: bool) -> None:
        """After each round: poke the pod once it may send a stop, in its turn. Then all is decided anew."""
        if pod_key in self._called:
            self._called.discard(pod_key)
            self._give_back_slot()
        if wanted:
            self._waiting.setdefault(pod_key)
        else:
            self._waiting.pop(pod_key, None)

    def _take_slot(self, pod_key: str) -> None:
        if pod_key in self._called:
            self._called.discard(pod_key)
        else:
            self._free -= 1

    def _give_back_slot(self) -> None:
        if not self._waiting:
            self._free += 1
            return
        pod_key = next(iter(self._waiting))
        del self._waiting[pod_key]
        self._called.add(pod_key)
        self._poke(pod_key)

    @contextmanager
    def _slot(self) -> Iterator[None]:
        """Hold a slot that was taken, for SLOT_SECONDS at most."""
        held = True

        def give_back() -> None:
            nonlocal held
            if held:
                held = False
                self._give_back_slot()

        timer = asyncio.get_running_loop().call_later(SLOT_SECONDS, give_back)
        try:
            yield
        finally:
            timer.cancel()
            give_back()

    # What is written.

    def _start_write(self, action: WriteStatus | PinContainers) -> None:
        """Start a write, unless one of the request is under way or has to wait after a failure."""
        uid = action.request.uid
        if uid in self._writing:
            return
        if waits := self._write_after.get(_write_of(action)):
            until, version = waits
            if asyncio.get_running_loop().time() < until and version in ("", action.request.resource_version):
                return
        self._writing.add(uid)
        if isinstance(action, WriteStatus) and action.status.phase is RequestPhase.COMPLETED:
            self._ending.add(uid)
        task = self._spawn(self._write(action), f"{type(action).__name__} {action.request.key}")
        self._write_tasks.add(task)
        task.add_done_callback(self._write_tasks.discard)

    async def _write(self, action: WriteStatus | PinContainers) -> None:
        """Write once. Every outcome passes here; after each but success the pod is looked at again later."""
        request = action.request
        try:
            await asyncio.sleep(0)  # a stop that was decided with it goes first: gRPC sends in a task of its own
            if isinstance(action, WriteStatus):
                written = await self._edges.writer.write_status(request, action.status)
                ineffective = self._lacks(written, action.status)
            else:
                written = await self._edges.writer.pin(request, action.pins, action.begun)
                ineffective = "" if written.pinned == action.pins else "the annotation is not what was written"
        except GoneError:
            self._cache.request_deleted(request)
        except Exception as error:  # noqa: BLE001 - whatever a write fails of, it is tried again, more and more rarely
            self._write_later(action, error)
        else:
            if written.uid != request.uid:
                self._write_later(action, CrrdError("the answer to the write is about something else"))
            else:
                self._written(action, written, ineffective)
        finally:
            self._writing.discard(request.uid)
            self._ending.discard(request.uid)
            self._poke(request.pod_key)

    def _written(self, action: WriteStatus | PinContainers, written: Request, ineffective: str) -> None:
        """The API server took a write; what it kept of it is what counts."""
        request = action.request
        if ineffective:
            self._write_later(action, CrrdError(f"the write had no effect: {ineffective}"))
        else:
            self._write_failures.pop(_write_of(action), None)
            self._write_after.pop(_write_of(action), None)
            if isinstance(action, PinContainers):
                self.pin_errors.pop(request.uid, None)
        said = (
            replace(written, status=action.status) if isinstance(action, WriteStatus) and not ineffective else written
        )
        self._edges.recorder.written(request, said)
        _say_moves(request, written)
        self._cache.request_changed(written, own_pins=isinstance(action, PinContainers) and not ineffective)
        if request.uid in self._ending and not ineffective:  # it may have left already, before this answer
            for key in [key for key in self._works.get(request.pod_key, {}) if key[0] == request.uid]:
                self._drop_unneeded(request.pod_key, key, completed=True)

    def _lacks(self, written: Request, wanted: Status) -> str:
        """What of a status the API server has not kept, "" for nothing that matters."""
        if written.uid and written.status != wanted:
            killed = tuple(replace(state, is_killed=False) for state in wanted.states)
            if written.status == replace(wanted, states=killed):
                if not self.prunes_is_killed:
                    log.warning("the CRD has no field isKilled: the annotation takes its place; update the CRD")
                self.prunes_is_killed = True
                return ""
            return "the status is not what was written"
        return ""

    def _write_later(self, action: WriteStatus | PinContainers, error: Exception) -> None:
        """Note when the next try may come. A conflict is quiet at first: the watch brings the newer version.

        That one need not wait; after any other failure each version has to, whoever makes it.
        """
        request, write = action.request, _write_of(action)
        failures = self._write_failures[write] = self._write_failures.get(write, 0) + 1
        delay = WRITE_RETRY.delay(failures)
        if isinstance(error, ApiUnavailableError):
            delay = max(delay, error.retry_after)
        until = asyncio.get_running_loop().time() + delay
        conflict = isinstance(error, ConflictError)
        if isinstance(action, PinContainers) and not conflict:
            self.pin_errors[request.uid] = str(error)
        self._write_after[write] = (until, request.resource_version if conflict else "")
        say = log.debug if conflict and failures < LASTING_CONFLICT else log.warning
        unforeseen = None if isinstance(error, CrrdError) else error
        say("request not written", **_whose(request), error=str(error), retry_in=round(delay, 1), exc_info=unforeseen)


def _write_of(action: WriteStatus | PinContainers) -> Write:
    return action.request.uid, type(action)


def _key(action: StopContainer | RunHook) -> Key:
    return action.request.uid, action.instance.id


def _reason(error: Exception, what: str) -> str:
    """An error as a state's message says it; one that nobody foresaw is logged in full."""
    if isinstance(error, CrrdError):
        return str(error)
    log.error(f"{what} broke", exc_info=error)
    return f"internal error: {error!r}"


def _who(action: StopContainer | RunHook) -> dict[str, str]:
    """What every log line of a hook or a stop says."""
    return {**_whose(action.request), "container": action.instance.name, "container_id": action.instance.id}


def _whose(request: Request) -> dict[str, str]:
    """What every log line about a request says."""
    return {"request": request.key, "request_uid": request.uid, "pod": request.pod_key}


def _say_moves(before: Request, after: Request) -> None:
    """One log line for each container, and for the request itself, whose phase a write has changed."""
    say = log.bind(**_whose(after))
    for state in after.status.states:
        old = before.status.state(state.name)
        if state.phase is not old.phase:
            say.info("container state", container=state.name, phase=state.phase.value, message=state.message or None)
    if after.completed and not before.completed:
        say.info("request completed", message=after.status.message)
    elif after.status.phase is not before.status.phase:
        say.info("request state", phase=after.status.phase.value, message=after.status.message or None)
