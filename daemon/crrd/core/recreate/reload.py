"""Step 17: a container reloads its files, and is not stopped.

Its pod declares how (`declared`). First kubelet must have refreshed the files. Then the reload runs once. Its success
is recorded before anything else follows, so a later daemon does not run it again. If the daemon dies before that, the
next one runs it again, with its whole timeout. Last, the container must be ready.

`serve` is an ordered table of rules, the first match wins. Nothing here stops a container.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property

from crrd.core.api.reasons import EventReason, Reason
from crrd.core.api.types import RecreateState, StatePhase
from crrd.core.recreate.actions import RunReload, earliest
from crrd.core.recreate.declared import Reload, changed_since, read_reload, recorded_for, undeclared
from crrd.core.recreate.messages import NO_MESSAGE, Message, not_ready
from crrd.core.recreate.observation import HookKind, Instance, Work, WorkKind
from crrd.core.recreate.outcome import LOOK_AT_UNREADY
from crrd.core.recreate.step import Step, event, fail, hold, resting, with_message
from crrd.core.recreate.stop import LOOK_AGAIN
from crrd.core.recreate.view import ContainerView
from crrd.kubelet.runtime_status import ContainerState

REFRESH_SECONDS = 2.0
"""From a change of the pod's annotation until kubelet has refreshed its files. kubelet 1.30 and 1.36 had the new files
0.3 to 0.7 s after the annotation."""
SYNC_SECONDS = 100.0
"""The same without a change of the pod. Kubelet syncs each pod at least every 90 s: after syncFrequency (1 minute by
default) and up to half of it (pkg/kubelet, workerResyncIntervalJitterFactor)."""
OUTPUT_CHARACTERS = 500  # Most characters of a reload's output in the status

NO_CONTAINERS = Message.of(
    Reason.INVALID_REQUEST, error="spec.containers is empty, because admission has not named the containers to reload"
)


class Turn(StrEnum):
    """What is done for a container that is to reload now."""

    FAILED = "fails, because its reload has failed"
    RUNNING = "waits until its reload has ended"
    UNNAMED = "waits until it is known which instance is meant, or fails because its record was removed"
    ENDED_AFTER = "fails, because the instance has ended since its reload began"
    ENDED_BEFORE = "fails, because the instance that was meant has ended"
    NOT_STARTED = "waits until the instance has started"
    UNLISTED = "waits until the runtime has listed the sandbox of the instance"
    UNRECORDED = "records that it has reloaded"
    UNREADY = "waits until the pod's status shows it as running and ready"
    TOO_SHORT = "waits until it has run for minStartedSeconds after its reload"
    DONE = "has reloaded"
    POD_ENDED = "fails, because the pod has ended"
    UNDECLARED = "fails, because the pod does not declare how it reloads"
    BLOCKED = "waits for the unready grace period, or for an earlier container"
    DRAINING = "begins nothing, because the daemon shuts down"
    RESTARTING = "waits until kubelet has restarted all containers of the pod"
    OTHER_WORK = "waits for the work of an earlier request"
    KUBELET_SILENT = "waits for kubelet, which refreshes the files"
    REFRESHING = "waits until kubelet has refreshed the files"
    NO_IP = "waits for the pod's IP"
    SENT = "runs its reload"


@dataclass(frozen=True)
class ReloadView:
    """One container that is to reload, and what is known of it."""

    container: ContainerView
    blocked: bool  # Whether it waits for the unready grace period, or for an earlier container

    @property
    def work(self) -> Work:
        """What this process has done for it."""
        return self.container.work

    @cached_property
    def instance(self) -> Instance | None:
        """The instance that is meant, None once it has ended or kubelet has started a newer one."""
        outgoing, newest = self.container.outgoing, self.container.newest
        return outgoing if outgoing is not None and (newest is None or newest.id == outgoing.id) else None

    @property
    def error(self) -> str:
        """Why its reload has failed."""
        return self.work.reload_result.error if self.work.reload_result is not None else ""

    @property
    def recorded(self) -> bool:
        """Whether the request records that it has reloaded."""
        return bool(self.container.start_times.reload)

    @property
    def begun(self) -> bool:
        """Whether its reload has begun, as far as this process knows."""
        return self.recorded or self.work.reload_result is not None or self.container.written.started

    @property
    def ready(self) -> bool:
        """Whether the pod's status shows the instance as running and ready."""
        status = self.container.status
        shown = self.instance is not None and status.container_id == self.instance.pin.container_id
        return shown and status.running and status.ready

    @property
    def runs_until(self) -> float:
        """Until when it must run after its reload. After a restart of the daemon, this counts from then."""
        known, ended = self.container.whole.known, self.work.reload_ended
        since = known.first_seen if ended is None else ended
        return since + self.container.request.strategy.min_started_seconds

    @cached_property
    def recorded_declarations(self) -> Mapping[str, str] | None:
        """The declarations on the sandbox of the instance, None if the runtime has not listed it."""
        listed = self.container.whole.observed.sandboxes
        return None if self.instance is None else recorded_for(self.instance, listed)

    @cached_property
    def undeclared(self) -> Message:
        """Why it cannot reload by its declaration."""
        pod, name = self.container.whole.pod, self.container.name
        return undeclared(pod, name) or changed_since(pod, name, self.recorded_declarations or {})

    @cached_property
    def reload(self) -> Reload:
        """How it reloads."""
        return read_reload(self.container.status.reload)

    @property
    def other_work(self) -> str:
        """The work of another request on the instance that is under way, or a stop of one that is due. "" for none."""
        others = self.container.others
        due = (WorkKind.STOP for work in others if work.stop_still_due(self.container.whole.now))
        return next(map(str, (*(work.under_way for work in others if work.under_way is not None), *due)), "")

    @property
    def refreshed_at(self) -> float:
        """When kubelet has refreshed the files: after the annotation that the request names, or by itself."""
        whole, request = self.container.whole, self.container.request
        if not self.container.status.refreshed:
            return whole.now
        by_itself = whole.known.first_seen + SYNC_SECONDS
        if request.refresh and request.refresh == whole.pod.refresh:
            return min(by_itself, whole.observed.refreshed_at + REFRESH_SECONDS)
        return by_itself

    @property
    def needs_ip(self) -> bool:
        """Whether the API server must be asked for the pod's IP."""
        hook, whole = self.reload.hook, self.container.whole
        return hook.kind is HookKind.HTTP_GET and not (hook.host or whole.pod_ip) and whole.pod_lost() is None


def serve(container: ContainerView, *, blocked: bool) -> tuple[Turn, Step]:
    """Decide about a container of the current request, which is for a reload. `blocked` is as in `ReloadView`."""
    view = ReloadView(container, blocked)
    return next((turn, act(view)) for applies, turn, act in _RULES if applies(view))


def _failed(view: ReloadView) -> Step:
    return fail(view.container, Message.of(Reason.RELOAD_FAILED, error=view.error))


def _running(view: ReloadView) -> Step:
    return Step(state=_in_progress(view), hook_runs=True)


def _unnamed(view: ReloadView) -> Step:
    container = view.container
    if container.state.started:
        return fail(container, Message.of(Reason.PIN_LOST))
    error = container.whole.known.pin_error
    pinned = Message.of(Reason.NOT_PINNED, error=error) if container.newest and error else NO_MESSAGE
    return hold(container, pinned or Message.of(Reason.NOT_CREATED))


def _record(view: ReloadView) -> Step:
    state, error = _in_progress(view), view.container.whole.known.pin_error
    step = hold(view.container, Message.of(Reason.NOT_PINNED, error=error), state) if error else Step(state=state)
    return replace(step, lasting=True)


def _await_ready(view: ReloadView) -> Step:
    container, now = view.container, view.container.whole.now
    since = container.whole.known.first_seen if view.work.reload_ended is None else view.work.reload_ended
    why, more_at = (
        (NO_MESSAGE, None) if view.instance is None else not_ready(container.status, view.instance, since, now)
    )
    look_at = earliest(more_at, now + LOOK_AT_UNREADY)
    return Step(state=_in_progress(view, why), wake_at=look_at, poll_runtime=True)


def _run_on(view: ReloadView) -> Step:
    return Step(state=_in_progress(view), wake_at=view.runs_until, poll_runtime=True)


def _done(view: ReloadView) -> Step:
    state = replace(_in_progress(view), phase=StatePhase.SUCCEEDED)
    done = event(view.container, EventReason.RELOADED, f"Container {view.container.name}: {state.message}")
    return Step((done,), state=state)


def _unlisted(view: ReloadView) -> Step:
    look_at = view.container.whole.now + LOOK_AGAIN
    return hold(view.container, Message.of(Reason.NOT_CREATED), look_at=look_at)


def _rest(view: ReloadView) -> Step:
    return Step(state=resting(view.container))


def _other_work(view: ReloadView) -> Step:
    until = view.container.whole.pod_restart_until
    work = view.other_work or WorkKind.SANDBOX
    look_at = view.container.whole.now + LOOK_AGAIN if until is None else until
    return hold(view.container, Message.of(Reason.OTHER_WORK, work=work), look_at=look_at)


def _silent(view: ReloadView) -> Step:
    whole = view.container.whole
    return hold(view.container, whole.kubelet_waits or NO_MESSAGE, look_at=whole.now + LOOK_AGAIN)


def _refresh(view: ReloadView) -> Step:
    """Wait for kubelet. The message of a long wait says how long it may take at most."""
    at = view.refreshed_at
    if at - view.container.whole.now <= REFRESH_SECONDS:
        return Step(state=view.container.written, wake_at=at)
    return hold(view.container, Message.of(Reason.REFRESHING, seconds=round(SYNC_SECONDS)), look_at=at)


def _await_ip(view: ReloadView) -> Step:
    return replace(hold(view.container, Message.of(Reason.WAITING_FOR_IP)), ask_api=True)


def _send(view: ReloadView) -> Step:
    container, whole = view.container, view.container.whole
    events = [event(container, EventReason.RELOADING, f"Container {container.name} reloads its files")]
    if whole.gate.message:
        why = f"Request {whole.request.name}: {whole.gate.message.text}"
        events.append(whole.event(EventReason.NO_READINESS_GATE, why))
    run = () if view.instance is None else (RunReload(whole.request, view.instance, view.reload, whole.pod_ip),)
    return Step((*events, *run), state=_in_progress(view), hook_runs=True)


def _in_progress(view: ReloadView, why: Message = NO_MESSAGE) -> RecreateState:
    """Return the state of a container whose reload runs or has run: what it waits for, or else what the reload did."""
    written = view.container.written
    state, result = replace(written, phase=StatePhase.RECREATING), view.work.reload_result
    if why:
        return with_message(state, why)
    if result is None and written.reason is Reason.RELOADED:
        return state  # an earlier process has written it
    if result is None and not view.recorded:
        return with_message(state, NO_MESSAGE)
    took = "" if result is None else f" in {result.seconds:.1f}s"
    kept = view.container.status.needs_restart
    rest = f"; it gets changes of {', '.join(kept)} only by a restart" if kept else ""
    output = f": {result.output[:OUTPUT_CHARACTERS]}" if result is not None and result.output else ""
    return with_message(state, Message.of(Reason.RELOADED, details=f"{took}{rest}{output}"))


_Rule = tuple[Callable[[ReloadView], object], Turn, Callable[[ReloadView], Step]]
_RULES: tuple[_Rule, ...] = (
    (lambda view: view.error, Turn.FAILED, _failed),
    (lambda view: view.work.under_way is not None, Turn.RUNNING, _running),
    (lambda view: view.container.target is None, Turn.UNNAMED, _unnamed),
    (
        lambda view: view.instance is None and view.begun,
        Turn.ENDED_AFTER,
        lambda view: fail(view.container, Message.of(Reason.ENDED_AFTER_RELOAD)),
    ),
    (
        lambda view: view.instance is None,
        Turn.ENDED_BEFORE,
        lambda view: fail(view.container, Message.of(Reason.ENDED_BEFORE_RELOAD)),
    ),
    (
        lambda view: view.instance is not None and view.instance.state is ContainerState.CREATED,
        Turn.NOT_STARTED,
        lambda view: hold(view.container, Message.of(Reason.NOT_STARTED)),
    ),
    (lambda view: view.work.reload_result is not None and not view.recorded, Turn.UNRECORDED, _record),
    (lambda view: view.recorded and not view.ready, Turn.UNREADY, _await_ready),
    (lambda view: view.recorded and view.container.whole.now < view.runs_until, Turn.TOO_SHORT, _run_on),
    (lambda view: view.recorded, Turn.DONE, _done),
    (
        lambda view: view.container.pod_ended,
        Turn.POD_ENDED,
        lambda view: fail(view.container, view.container.pod_ended),
    ),
    (lambda view: view.container.status.reload and view.recorded_declarations is None, Turn.UNLISTED, _unlisted),
    (lambda view: view.undeclared, Turn.UNDECLARED, lambda view: fail(view.container, view.undeclared)),
    (lambda view: view.blocked, Turn.BLOCKED, _rest),
    (lambda view: view.container.whole.node.draining, Turn.DRAINING, _rest),
    (
        lambda view: view.container.whole.pod.restarting,
        Turn.RESTARTING,
        lambda view: hold(view.container, Message.of(Reason.POD_RESTARTING)),
    ),
    (
        lambda view: view.other_work or view.container.whole.pod_restart_until is not None,
        Turn.OTHER_WORK,
        _other_work,
    ),
    (lambda view: view.container.whole.kubelet_waits is not None, Turn.KUBELET_SILENT, _silent),
    (lambda view: view.container.whole.now < view.refreshed_at, Turn.REFRESHING, _refresh),
    (lambda view: view.needs_ip, Turn.NO_IP, _await_ip),
    (lambda view: True, Turn.SENT, _send),
)
