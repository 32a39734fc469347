"""Carries out what `decide` decided. It never decides anything itself.

Writes, hooks and stops run as tasks of their own, so that a pod's handler returns at once; each pokes the pod's key
when it has ended. What this process did so far to a container (its own life's memory) is kept here, because `decide`
wants to see it: hooks that ended, stops that were tried, what is still under way.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog

from daemon.core.api.types import Request
from daemon.core.recreate.actions import (
    NO_CAUSES,
    Action,
    EmitEvent,
    PinContainers,
    RunHook,
    StopContainer,
    WriteStatus,
)
from daemon.core.recreate.observation import HookResult, StopAttempt
from daemon.kube.cache import NodeCache
from daemon.lib.backoff import Backoff
from daemon.lib.errors import ApiRefusedError, ApiUnavailableError, ConflictError, CrrdError, GoneError
from daemon.ports import EventSink, Hooks, Recorder, Runtime, StatusWriter

log = structlog.get_logger(__name__)

WRITE_RETRY = Backoff(initial=0.2, factor=2.0, maximum=10.0, jitter=0.2)
REFUSED_RETRY = Backoff(initial=5.0, factor=2.0, maximum=60.0, jitter=0.2)
"""A write that the API server refuses is tried again too: roles and schemas get repaired."""
A_MOMENT = 0.01
"""Seconds between looks at a write whose next try is due: the queue is about to start it."""
MEMORY_SECONDS = 600.0
"""How long a pod's work is remembered after its last request, e.g. for the hook of a request that was deleted."""


@dataclass(slots=True)
class PodWork:
    """What this process has done to the containers of one pod; keys are bare container IDs."""

    busy: dict[str, str] = field(default_factory=dict)
    hooks: dict[str, HookResult] = field(default_factory=dict)
    stops: dict[str, StopAttempt] = field(default_factory=dict)
    sent: dict[str, str] = field(default_factory=dict)
    touched: float = 0.0


class Executor:
    """Runs actions against the ports.

    Args:
        runtime, hooks, writer, events: the edges.
        cache: what writes return is put in there.
        poke: called with a pod's key when something of it has ended.
        recorder: is told what happened, for metrics.
    """

    def __init__(
        self,
        *,
        runtime: Runtime,
        hooks: Hooks,
        writer: StatusWriter,
        events: EventSink,
        cache: NodeCache,
        poke: Callable[[str], None],
        recorder: Recorder,
    ) -> None:
        self._runtime = runtime
        self._hooks = hooks
        self._writer = writer
        self._events = events
        self._cache = cache
        self._poke = poke
        self._recorder = recorder
        self._pods: dict[str, PodWork] = {}
        self._writing: set[str] = set()
        self._write_failures: dict[str, int] = {}
        self._write_after: dict[str, tuple[float, str]] = {}
        self._emitted: dict[str, set[tuple[str, str]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._working: set[asyncio.Task[None]] = set()

    def work(self, pod_key: str) -> PodWork:
        """What this process has done to the pod's containers; made on demand, dropped when long unused."""
        now = asyncio.get_running_loop().time()
        work = self._pods.get(pod_key)
        if work is None:
            for key in [key for key, old in self._pods.items() if self._forgettable(key, old, now)]:
                del self._pods[key]
            work = self._pods[pod_key] = PodWork()
        work.touched = now
        return work

    def wake_for_write(self, requests: Iterable[Request]) -> float | None:
        """When a write that failed may be tried again (monotonic), None where none waits."""
        now = asyncio.get_running_loop().time()
        waits = [self._write_after[request.uid][0] for request in requests if request.uid in self._write_after]
        return min((at for at in waits if at > now), default=None)

    @property
    def working(self) -> int:
        """How many hooks and stops are under way."""
        return len(self._working)

    @property
    def writing(self) -> int:
        """How many writes are under way or wait for another try."""
        return len(self._writing | self._write_after.keys())

    async def wait_for_work(self) -> None:
        """Return when one of the hooks and stops under way has ended, and what follows from it was decided."""
        await asyncio.wait(self._working, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.sleep(0)

    async def wait_for_writes(self) -> None:
        """Return when the writes under way have ended and the next try of those that failed may come."""
        writes = self._tasks - self._working
        if writes:
            await asyncio.wait(writes)
        now = asyncio.get_running_loop().time()
        if self._write_after:
            next_try = min(at for at, _ in self._write_after.values())
            await asyncio.sleep(max(next_try - now, A_MOMENT))

    def writes(self, uid: str) -> bool:
        """Whether a write of the request is under way; its pod's key is poked when it has ended."""
        return uid in self._writing

    def forget(self, uid: str) -> None:
        """A request has ended or gone, and no write of it is under way: drop what is kept for it."""
        for memory in (self._write_failures, self._write_after, self._emitted):
            memory.pop(uid, None)

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
        wanted = {action.request.uid for action in actions if isinstance(action, WriteStatus | PinContainers)}
        for request in requests:
            if request.uid not in wanted:
                self._write_after.pop(request.uid, None)
        ordered = sorted(actions, key=lambda action: not isinstance(action, StopContainer | RunHook))
        for action in ordered:
            match action:
                case StopContainer() | RunHook():
                    self._start_work(action)
                case WriteStatus() | PinContainers():
                    self._start_write(action)
                case EmitEvent():
                    self._emit(action)

    def _forgettable(self, key: str, work: PodWork, now: float) -> bool:
        """Whether a pod's work needs no remembering."""
        return not work.busy and not self._cache.requests(key) and now - work.touched > MEMORY_SECONDS

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
            self._events.emit(action)

    def _start_work(self, action: StopContainer | RunHook) -> None:
        """Start a hook or a stop, unless something is at work on the container already."""
        work = self.work(action.request.pod_key)
        if action.instance.id in work.busy:
            return
        work.busy[action.instance.id] = action.request.uid
        run = self._stop(action, work) if isinstance(action, StopContainer) else self._hook(action, work)
        task = self._spawn(run, f"{type(action).__name__} {action.instance.id[:12]}")
        self._working.add(task)
        task.add_done_callback(self._working.discard)

    async def _hook(self, action: RunHook, work: PodWork) -> None:
        """Run a hook; one that broke off is not run again in this life."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        who = _who(action)
        self._recorder.hook_started(action.request)
        log.info("preStop hook started", kind=action.hook.kind, **who)
        pod = self._cache.pod(action.request.pod_key)
        try:
            result = await self._hooks.run(action, pod.pod_ip if pod else "")
        except Exception as error:  # noqa: BLE001 - a broken hook must not keep the container from being stopped
            result = HookResult(loop.time() - started, _reason(error, "hook"))
        finally:
            work.busy.pop(action.instance.id, None)
        work.hooks[action.instance.id] = result
        self._recorder.hook_ended(action.request, action.hook, result)
        log.info("preStop hook ended", seconds=round(result.seconds, 3), error=result.error or None, **who)
        self._poke(action.request.pod_key)

    async def _stop(self, action: StopContainer, work: PodWork) -> None:
        """Stop a container once; whether to try again is decided elsewhere."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        container_id = action.instance.id
        work.sent[container_id] = action.request.uid
        previous = work.stops.get(container_id)
        who = _who(action)
        self._recorder.stop_sent(action.request, action.instance.name)
        log.info("stopping container", timeout=round(action.seconds, 1), **who)
        error = ""
        try:
            await self._runtime.stop(action.instance, action.seconds)
        except Exception as failure:  # noqa: BLE001 - whatever broke becomes the attempt's error
            error = _reason(failure, "stop")
        finally:
            work.busy.pop(container_id, None)
        ended = loop.time()
        count = (previous.count if previous else 0) + 1
        first_sent = previous.first_sent if previous else started
        work.stops[container_id] = StopAttempt(count, first_sent, ended, error)
        self._recorder.stop_ended(action.request, action.instance.name, ended - started, error)
        if error:
            log.warning("container not stopped", attempt=count, error=error, **who)
        else:
            log.info("container stopped", seconds=round(ended - started, 3), **who)
        self._poke(action.request.pod_key)

    def _start_write(self, action: WriteStatus | PinContainers) -> None:
        """Start a write, unless one of the request is under way or has to wait after a failure."""
        uid = action.request.uid
        now = asyncio.get_running_loop().time()
        wait_until, failed_version = self._write_after.get(uid, (0.0, ""))
        if uid in self._writing or (wait_until > now and failed_version == action.request.resource_version):
            return
        self._writing.add(uid)
        self._spawn(self._write(action), f"{type(action).__name__} {action.request.key}")

    async def _write(self, action: WriteStatus | PinContainers) -> None:
        """Write once; on failure the pod is looked at again later, and the write decided anew."""
        request = action.request
        try:
            if isinstance(action, WriteStatus):
                written = await self._writer.write_status(request, action.status)
            else:
                written = await self._writer.pin(request, action.pins)
        except GoneError:
            self._cache.request_deleted(request)
        except ConflictError as error:
            self._write_later(request, error, WRITE_RETRY)
        except ApiUnavailableError as error:
            self._write_later(request, error, WRITE_RETRY, error.retry_after)
        except ApiRefusedError as error:
            self._write_later(request, error, REFUSED_RETRY)
        else:
            self._write_failures.pop(request.uid, None)
            self._write_after.pop(request.uid, None)
            causes = action.causes if isinstance(action, WriteStatus) else NO_CAUSES
            self._recorder.written(request, written, causes)
            _say_moves(request, written)
            self._cache.request_changed(written)
        finally:
            self._writing.discard(request.uid)
            self._poke(request.pod_key)

    def _write_later(
        self, request: Request, error: CrrdError, backoff: Backoff, retry_after: float | None = None
    ) -> None:
        """Note when the next try may come. A conflict is quiet: the watch brings the newer version."""
        failures = self._write_failures[request.uid] = self._write_failures.get(request.uid, 0) + 1
        delay = max(backoff.delay(failures), retry_after or 0.0)
        self._write_after[request.uid] = (asyncio.get_running_loop().time() + delay, request.resource_version)
        say = log.debug if isinstance(error, ConflictError) else log.warning
        say("request not written", **_whose(request), error=str(error), retry_in=round(delay, 1))


def _reason(error: Exception, what: str) -> str:
    """An error as a state's message says it; one that nobody foresaw is logged whole."""
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
