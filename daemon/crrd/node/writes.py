"""Writes requests: one write per request at a time, with a back-off after each failure."""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

import structlog

from crrd.core.api.types import Request, RequestPhase, Status
from crrd.core.recreate.actions import Action, PinContainers, WriteStatus
from crrd.kube.lanes import wanted
from crrd.lib.errors import ConflictError, CrrdError, GoneError, WithdrawnError
from crrd.lib.looptime import loop_time
from crrd.lib.supervise import cancel
from crrd.node.pods import Pods, drop_unneeded
from crrd.node.records import RequestRecord, WriteRetry
from crrd.ports import Edges

log = structlog.get_logger(__name__)

LASTING_CONFLICT = 8  # This many conflicts in a row are not a race with another client's write
DUE_WRITE_SECONDS = 0.01  # Poll interval for a write whose next attempt is due, because the queue is about to start it

Write = WriteStatus | PinContainers


class RequestWrites:
    """Starts writes, tracks them in the request's record, and wakes the pod's key when one has ended."""

    def __init__(self, edges: Edges, pods: Pods, wake: Callable[[str], None]) -> None:
        self._edges = edges
        self._pods = pods
        self._wake = wake
        self._tasks: set[asyncio.Task[None]] = set()
        self.prunes_is_killed = False  # Whether the cluster's CRD was seen to drop the field isKilled

    def release_unwanted(self, looked_at: Iterable[RequestRecord], actions: Iterable[Action]) -> None:
        """Clear the back-off of a failed write that is not wanted any more. Perhaps only its response was lost."""
        still = {(action.request.uid, type(action)) for action in actions}
        for record in looked_at:
            for kind, retry in ((WriteStatus, record.status_retry), (PinContainers, record.pin_retry)):
                if retry.waiting and (record.request.uid, kind) not in still:
                    retry.release()

    def start(self, write: Write) -> None:
        """Start a write, unless another write of the request is running or has to wait after a failure."""
        request = write.request
        record = self._pods.peek(request.pod_key).requests.get(request.uid)
        if record is None:
            return
        if record.writing:
            record.superseded = record.superseded or (_completes(write) and not record.completing)
            return
        retry, now = _retry_of(record, write), loop_time()
        if now < retry.next_try and retry.version in ("", request.resource_version):
            return
        repeated = isinstance(write, WriteStatus) and write.status == record.last_written
        if repeated and now < record.overwrite_retry.next_try:
            return
        record.writing, record.superseded, record.completing = True, False, _completes(write)
        name = f"{type(write).__name__} {request.key}"
        task = asyncio.get_running_loop().create_task(self._run(write, record), name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @property
    def pending(self) -> int:
        """The number of requests with a write that is running or waits for another attempt."""
        records = [each for pod_record in self._pods for each in pod_record.requests.values()]
        return sum(each.writing or each.status_retry.waiting or each.pin_retry.waiting for each in records)

    async def wait(self) -> None:
        """Return when the running writes have ended and the next attempt of the failed ones is due."""
        if self._tasks:
            await asyncio.wait(self._tasks)
        next_try = _next_try(each for pod_record in self._pods for each in pod_record.requests.values())
        if next_try is not None:
            await asyncio.sleep(max(next_try - loop_time(), DUE_WRITE_SECONDS))

    async def close(self) -> None:
        """Cancel running writes."""
        await cancel(self._tasks)

    async def _run(self, write: Write, record: RequestRecord) -> None:
        """Write once, then wake the pod at once. A failed write waits for its back-off."""
        request = write.request
        wanted.set(partial(_is_wanted, write, record))
        try:
            await asyncio.sleep(0)  # let gRPC's task send a StopContainer first (Executor._stop)
            written, ineffective = await self._send(write)
            if written.uid != request.uid:
                why = "unexpected response from the API server: it is not the request that was written"
                raise CrrdError(why)  # noqa: TRY301 - handled like any failure
            self._written(write, record, written, ineffective)
        except GoneError:
            self._pods.requests.delete(request)
        except WithdrawnError:
            pass  # the next round decides anew
        except Exception as error:  # noqa: BLE001 - a write is retried after any failure, with a growing back-off
            _retry_later(write, record, error)
        finally:
            record.writing = record.completing = False
            agenda = self._pods.peek(request.pod_key).agenda
            agenda.add(request.uid)
            for retry in (record.status_retry, record.pin_retry, record.overwrite_retry):
                agenda.add_later(request.uid, retry.next_try)
            self._wake(request.pod_key)

    async def _send(self, write: Write) -> tuple[Request, str]:
        """Send a write. Return the request after it, and why it had no effect ("" if it had)."""
        if isinstance(write, WriteStatus):
            written = await self._edges.writer.write_status(write.request, write.status)
            return written, self._missing_fields(written, write.status)
        written = await self._edges.writer.pin(write.request, write.pins, write.start_times)
        stored = written.pinned == write.pins and written.start_times == write.start_times
        return written, "" if stored else "the API server did not store the annotation"

    def _written(self, write: Write, record: RequestRecord, written: Request, ineffective: str) -> None:
        """Handle a response to a write: record what the API server stored."""
        request, pins = write.request, isinstance(write, PinContainers)
        if ineffective:
            _retry_later(write, record, CrrdError(f"the write had no effect: {ineffective}"))
        else:
            retry = _retry_of(record, write)
            retry.succeed()
            retry.error = ""
            if isinstance(write, WriteStatus):
                _note_overwritten(record, write.status)
        if record.recorder is not None:  # the CRD may prune `reason`, so the metrics use the wanted status
            meant = isinstance(write, WriteStatus) and not ineffective
            after = replace(written, status=write.status) if meant else written  # type: ignore[union-attr]
            record.recorder.written(request, after)
        _log_moves(request, written)
        self._pods.requests.put(written, own=pins and not ineffective)
        if record.completing and not ineffective:  # the request may already have left the selection
            drop_unneeded(self._pods, record, completed=True)

    def _missing_fields(self, written: Request, wanted: Status) -> str:
        """Return why the API server has not stored the status, or "" if nothing important is missing."""
        if written.uid and written.status != wanted:
            killed = tuple(replace(state, is_killed=False) for state in wanted.states)
            if written.status == replace(wanted, states=killed):
                if not self.prunes_is_killed:
                    log.warning("CRD too old, field isKilled missing")
                self.prunes_is_killed = True
                return ""
            return "the API server did not store the status (crrd doctor checks the CRD)"
        return ""


def _is_wanted(write: Write, record: RequestRecord) -> bool:
    """Whether a write is still of use when its turn comes.

    Progress is not if the request can be completed meanwhile, and start times are not if what they concern has stopped.
    """
    request = write.request
    if isinstance(write, WriteStatus):
        return not record.superseded
    if request.unpinned:
        return True
    changed = {name for name, pin in write.pins.items() if request.pinned.get(name) != pin}
    changed |= {name for name, times in write.start_times.items() if request.start_times.get(name) != times}
    stopped = {work.name for work in record.works.values() if work.stopped}
    return not changed or not changed <= stopped


def _completes(write: Write) -> bool:
    return isinstance(write, WriteStatus) and write.status.phase is RequestPhase.COMPLETED


def _retry_of(record: RequestRecord, write: Write) -> WriteRetry:
    return record.status_retry if isinstance(write, WriteStatus) else record.pin_retry


def _next_try(records: Iterable[RequestRecord]) -> float | None:
    now, times = loop_time(), []
    for record in records:
        times += [retry.next_try for retry in (record.status_retry, record.pin_retry) if retry.waiting]
        times += [record.overwrite_retry.next_try] if record.overwrite_retry.next_try > now else []
    return min(times, default=None)


def _note_overwritten(record: RequestRecord, status: Status) -> None:
    """Record a written status. If it is the same as the last one, another client had replaced that.

    Two daemons on one node would each restore their own status, as fast as the API server accepts it. So the same
    status is written again only after a growing back-off. Another status does not wait.
    """
    if status == record.last_written:
        record.overwrite_retry.fail(loop_time())
    else:
        record.overwrite_retry.succeed()
    record.last_written = status


def _retry_later(write: Write, record: RequestRecord, error: Exception) -> None:
    """Record when the next attempt may start. After a conflict, only a newer version may be written at once.

    After any other failure, every version has to wait. Only lasting conflicts are logged as warnings.
    """
    request, retry = write.request, _retry_of(record, write)
    delay = retry.fail(loop_time(), error)
    conflict = isinstance(error, ConflictError)
    if not conflict:
        retry.error = str(error)
    retry.version = request.resource_version if conflict else ""
    report = log.debug if conflict and retry.failures < LASTING_CONFLICT else log.warning
    fields = {**log_fields(request), "error": str(error), "retry_in": round(delay, 1)}
    report("request write failed", **fields, exc_info=None if isinstance(error, CrrdError) else error)


def log_fields(request: Request) -> dict[str, str]:
    """Return the fields that all log lines about a request contain."""
    return {"request": request.key, "request_uid": request.uid, "pod": request.pod_key}


def _log_moves(before: Request, after: Request) -> None:
    """Log one line for each container, and for the request itself, whose phase a write has changed."""
    bound = log.bind(**log_fields(after))
    for state in after.status.states:
        old = before.status.state(state.name)
        if state.phase is not old.phase:
            bound.info("container state", container=state.name, phase=state.phase.value, message=state.message or None)
    if after.completed and not before.completed:
        bound.info("request completed", message=after.status.message)
    elif after.status.phase is not before.status.phase:
        bound.info("request state", phase=after.status.phase.value, message=after.status.message or None)
