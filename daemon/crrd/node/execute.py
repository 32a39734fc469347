"""Carries out the actions that `decide` returned: hooks, stops, writes and events.

Each hook, stop and write runs as its own task, so that a pod's round returns at once. At its end it wakes the pod's
key. `decide` finds the result in the pod's record, by request and container instance.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import structlog

from crrd.core.recreate.actions import (
    Action,
    EmitEvent,
    PinContainers,
    RestartPod,
    RunHook,
    RunReload,
    StopContainer,
    WorkAction,
    WriteStatus,
)
from crrd.core.recreate.observation import NO_WORK, HookResult, StopAttempt, WorkKind
from crrd.lib.errors import CrrdError
from crrd.lib.looptime import loop_time
from crrd.lib.supervise import cancel
from crrd.node.pods import Pods, note_work
from crrd.node.records import RequestRecord
from crrd.node.slots import StopSlots
from crrd.node.writes import RequestWrites, log_fields
from crrd.ports import Edges, RequestRecorder

log = structlog.get_logger(__name__)


class Executor:
    """Carries out actions through the ports. Wakes a pod's key when one of its actions has ended.

    `own_pod` is the UID of this process' pod. StopContainer for it returns only when this process ends.
    """

    def __init__(self, edges: Edges, pods: Pods, wake: Callable[[str], None], own_pod: str) -> None:
        self._edges = edges
        self._pods = pods
        self._wake = wake
        self._own_pod = own_pod
        self.slots = StopSlots(wake)
        self.writes = RequestWrites(edges, pods, wake)
        self.draining = False  # Whether the daemon shuts down: no hook or stop begins but the stop after a hook
        self._tasks: set[asyncio.Task[None]] = set()  # Hooks and stops
        self._awaited: set[asyncio.Task[None]] = set()  # All except a stop of the daemon's own container

    @property
    def working(self) -> int:
        """Number of running hooks and stops that a drain waits for."""
        return len(self._awaited)

    async def wait_for_work(self) -> None:
        """Return when one of the running hooks and stops has ended and its pod was woken."""
        await asyncio.wait(self._awaited, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.sleep(0)

    async def close(self) -> None:
        """Cancel everything that still runs. The runtime or the next daemon finishes a stop that was sent."""
        await cancel(self._tasks)
        await self.writes.close()

    def carry_out(self, actions: Sequence[Action]) -> None:
        """Start the actions on a pod's requests, hooks and stops first.

        Skips a write while another write of the request is running or backs off. The next round decides on it again.
        """
        for action in sorted(actions, key=lambda action: not isinstance(action, WorkAction)):
            match action:
                case StopContainer() | RunHook() | RunReload() | RestartPod():
                    self._start_work(action)
                case WriteStatus() | PinContainers():
                    self.writes.start(action)
                case EmitEvent():
                    self._emit(action)

    def _emit(self, action: EmitEvent) -> None:
        """Queue an event, once per reason and text while the request is live."""
        record = self._pods.peek(action.request.pod_key).requests.get(action.request.uid)
        event = (action.reason.value, action.message)
        if record is None or event not in record.emitted:
            self._edges.events.emit(action)
        if record is not None:
            record.emitted.add(event)

    def _start_work(self, action: WorkAction) -> None:
        """Start a hook, a reload, a stop or the restart of a pod, unless the request is being completed."""
        request, target = action.request, action.target
        record = self._pods.peek(request.pod_key).requests.get(request.uid)
        if record is None or record.completing:
            return
        recorder = record.recorder or self._edges.recorder.begin(request)
        work = record.works.get(target.id, NO_WORK)
        changes: dict[str, object] = {"name": action.name, "pin": target.pin, "pod_uid": target.pod_uid}
        changes |= {"until": None, "spent_before": action.spent_before}
        match action:
            case StopContainer():
                changes |= {"under_way": WorkKind.STOP, "beside": action.beside if work.beside is None else work.beside}
                self.slots.take(request.pod_key)
                run = self._stop(action, record, recorder)
            case RestartPod():
                changes |= {"under_way": WorkKind.SANDBOX, "pod_grace": action.grace}
                self.slots.take(request.pod_key)
                run = self._restart_pod(action, record, recorder)
            case RunHook():
                changes["under_way"] = WorkKind.HOOK
                run = self._hook(action, record, recorder)
            case RunReload():
                changes["under_way"] = WorkKind.RELOAD
                run = self._reload(action, record, recorder)
        note_work(self._pods, record, target.id, **changes)
        task = asyncio.create_task(run, name=f"{type(action).__name__} {target.id[:12]}")
        for tasks in (self._tasks, self._awaited) if target.pod_uid != self._own_pod else (self._tasks,):
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    async def _hook(self, action: RunHook, record: RequestRecord, recorder: RequestRecorder) -> None:
        """Run a hook. This process does not run it again, even if the hook was interrupted."""
        note = partial(note_work, self._pods, record, action.instance.id)
        began, fields = loop_time(), _log_fields(action)
        ends = began + action.seconds
        note(until=ends, hook_began=began, hook_until=ends)
        recorder.work_started()
        log.info("preStop hook started", kind=action.hook.kind.value, **fields)
        result = HookResult(0.0, "it was interrupted")
        try:
            result = await self._edges.hooks.run(action)
        except Exception as error:  # noqa: BLE001 - a broken hook must not keep the container from being stopped
            result = HookResult(loop_time() - began, _reason(error, "hook"))
        finally:
            note(under_way=None, until=None, hook_result=result)
        recorder.hook_ended(action.hook, result)
        log.info("preStop hook ended", seconds=round(result.seconds, 3), error=result.error or None, **fields)
        self._wake(action.request.pod_key)

    async def _reload(self, action: RunReload, record: RequestRecord, recorder: RequestRecorder) -> None:
        """Have a container reload its files. This process does not do it again, even if it was interrupted."""
        note = partial(note_work, self._pods, record, action.instance.id)
        began, fields = loop_time(), _log_fields(action)
        note(until=began + action.reload.seconds)
        recorder.work_started()
        log.info("reload started", kind=action.reload.kind, **fields)
        result = HookResult(0.0, "it was interrupted")
        try:
            result = await self._edges.hooks.reload(action)
        except Exception as error:  # noqa: BLE001 - any failure becomes the result
            result = HookResult(loop_time() - began, _reason(error, "reload"))
        finally:
            note(under_way=None, until=None, reload_result=result, reload_ended=loop_time())
        recorder.reload_ended(action.reload, result)
        log.info("reload ended", seconds=round(result.seconds, 3), error=result.error or None, **fields)
        self._wake(action.request.pod_key)

    async def _stop(self, action: StopContainer, record: RequestRecord, recorder: RequestRecorder) -> None:
        """Stop a container once. `decide` decides whether to retry."""
        note = partial(note_work, self._pods, record, action.target.id)
        note(until=loop_time() + action.seconds)
        recorder.stop_sent(action.name)
        log.info("stopping container", timeout=round(action.seconds, 1), **_log_fields(action))
        # StopContainer must be sent before the status write. So the write's task first waits for one loop step.
        call = self._edges.runtime.stop(action.instance, action.seconds)
        seconds = await self._attempt(action, record, call)
        if seconds is not None:
            if not self._other_stop_answered_first(action):
                recorder.stop_ended(seconds)
            log.info("container stopped", seconds=round(seconds, 3), **_log_fields(action))
        self._wake(action.request.pod_key)

    async def _restart_pod(self, action: RestartPod, record: RequestRecord, recorder: RequestRecorder) -> None:
        """Make the second sandbox of a pod once. `decide` decides whether to retry."""
        for container in action.request.containers:
            recorder.stop_sent(container.name)
        log.info("restarting pod", **_log_fields(action))
        call = self._edges.runtime.run_sandbox(action.target, action.request.uid)
        seconds = await self._attempt(action, record, call)
        if not record.live:
            self._pods.sweep_due.set()
        if seconds is not None:
            recorder.pod_restarted()
            log.info("second sandbox made", seconds=round(seconds, 3), **_log_fields(action))
        self._wake(action.request.pod_key)

    async def _attempt(
        self, action: StopContainer | RestartPod, record: RequestRecord, call: Awaitable[None]
    ) -> float | None:
        """Make one call to the runtime, and note it. Return its seconds, or None if it has failed."""
        note = partial(note_work, self._pods, record, action.target.id)
        with self.slots.used():
            work = record.works[action.target.id]
            count = (work.last_stop.count if work.last_stop else 0) + 1
            began, error = loop_time(), "it was interrupted"
            note(stop_sent=began if work.stop_sent is None else work.stop_sent)
            try:
                await call
                error = ""
            except Exception as failure:  # noqa: BLE001 - any failure becomes the attempt's error
                error = _reason(failure, "stop")
            finally:
                note(under_way=None, until=None, last_stop=StopAttempt(count, loop_time(), error))
        if error:
            what = "container stop" if isinstance(action, StopContainer) else "second sandbox"
            log.warning(f"{what} failed", attempt=count, error=error, **_log_fields(action))
            return None
        return loop_time() - began

    def _other_stop_answered_first(self, action: StopContainer) -> bool:
        """Whether another request's stop of the same instance returned earlier. Only the first one is counted."""
        others = self._pods.peek(action.request.pod_key).worked.items()
        works = (each.works.get(action.instance.id, NO_WORK) for uid, each in others if uid != action.request.uid)
        return any(work.stopped for work in works)


def _reason(error: Exception, what: str) -> str:
    """Return the error for a status message. Log an unexpected error in full."""
    if isinstance(error, CrrdError):
        return str(error)
    log.error(f"{what} crashed", exc_info=error)
    return f"internal error: {error!r}"


def _log_fields(action: WorkAction) -> dict[str, str]:
    """Return the fields that all log lines of a hook, a stop or a pod's restart contain."""
    if isinstance(action, RestartPod):
        return {**log_fields(action.request), "sandbox_id": action.target.id}
    return {**log_fields(action.request), "container": action.instance.name, "container_id": action.instance.id}
