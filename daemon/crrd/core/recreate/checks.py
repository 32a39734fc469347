"""The questions that `decide` asks before it moves anything: who is meant, may it be stopped, is it time.

Pure predicates over one request and one observation. No phase is moved here.
"""

from dataclasses import dataclass
from zlib import crc32

from crrd.core.api.pod import Pod, PodContainer
from crrd.core.api.reasons import Reason, say
from crrd.core.api.time import parse_time
from crrd.core.api.types import (
    DEFAULT_GRACE_SECONDS,
    MINIMUM_GRACE_SECONDS,
    Begun,
    Pin,
    Request,
    RequestedContainer,
)
from crrd.core.recreate.observation import Ending, Hook, HookKind, Instance, Observation, Work, WorkKind
from crrd.kubelet.restart_rules import comes_back, matching_action

UNREMARKABLE_WAITS = frozenset({"", "ContainerCreating", "PodInitializing"})
"""Reasons of a waiting container that every start goes through: not worth a write."""
STEPS = (2, 10, 30, 60, 120, 300, 600, 1800, 3600, 4 * 3600, 24 * 3600)
"""Seconds after which a wait is told, and told again: a status is not written every second."""
BACK_OFF_RESET_SECONDS = 600.0
"""After which kubelet's restart back-off begins anew (twice its maximum, pkg/kubelet/kuberuntime)."""
HASTE_SECONDS = 10.0
"""For how long a stop that is still to be persisted makes looks at the runtime short."""
RETRY_FIRST = 0.5
RETRY_LIMIT = 20.0
RETRY_JITTER = 0.2
"""Step 9: the wait after a failed stop doubles from the first to the limit, and grows by up to this share of itself."""


@dataclass(frozen=True, slots=True)
class Told:
    """A reason and the sentence that goes with it; falsy where there is nothing to tell."""

    reason: Reason = Reason.NONE
    message: str = ""

    def __bool__(self) -> bool:
        return bool(self.reason)


NOTHING = Told()


def told(reason: Reason, **values: object) -> Told:
    """A reason with its sentence."""
    return Told(reason, say(reason, **values))


@dataclass(frozen=True, slots=True)
class Gate:
    """Whether the unready grace period lets stops through."""

    open: bool
    told: Told = NOTHING
    wake_at: float | None = None


def unready_gate(request: Request, seen: Observation, pod: Pod, now: float) -> Gate:
    """Step 7: the mark, then the grace period on this node's monotonic clock from when the mark was seen.

    A request that has already stopped something has its grace period behind it.
    """
    grace = request.strategy.unready_grace_seconds
    if grace is None:
        return Gate(open=True)
    if not pod.readiness_gate:
        return Gate(open=True, told=told(Reason.NO_READINESS_GATE))
    if any(state.is_killed for state in request.status.states) or any(begun.stop for begun in request.begun.values()):
        return Gate(open=True)
    if not request.unready_acquired:
        return Gate(open=False, told=told(Reason.WAITING_FOR_UNREADY))
    until = seen.unready_seen.get(request.uid, now) + grace
    if now < until:
        return Gate(open=False, told=told(Reason.UNREADY_GRACE, grace=grace), wake_at=until)
    return Gate(open=True)


def wrong_container(request: Request, container: RequestedContainer, pod: Pod) -> Told:
    """Why the pod's spec does not allow this container to be recreated."""
    known = pod.containers.get(container.name)
    if known is None:
        return told(Reason.CONTAINER_NOT_FOUND, key=request.pod_key, name=container.name)
    if not known.kind.recreatable:
        return told(Reason.NOT_RECREATABLE, kind=known.kind)
    return NOTHING


def wrong_identity(request: Request, container: RequestedContainer, seen: Observation) -> Told:
    """Steps 3 and 4: why a container ID of the request is not this pod's container.

    An ID that the runtime does not know any more is no mistake: dead containers are collected.
    """
    for pin in (container.context, request.pinned.get(container.name)):
        if pin is None:
            continue
        if pin.runtime not in seen.runtime_names:
            runtimes = ", ".join(sorted(seen.runtime_names))
            return _mismatch(pin, f"is of runtime {pin.runtime!r}, this node has {runtimes}")
        instance = seen.instance(pin.bare_id) or seen.foreign.get(pin.bare_id)
        if instance is not None and (problem := _not_its_own(request, container.name, instance, seen)):
            return _mismatch(pin, problem)
    newest = seen.newest(container.name)
    if newest is not None and (problem := _not_its_own(request, container.name, newest, seen)):
        return _mismatch(newest.pin, problem)
    return NOTHING


def _mismatch(pin: Pin, problem: str) -> Told:
    return told(Reason.CONTAINER_MISMATCH, container_id=pin.container_id, problem=problem)


def _not_its_own(request: Request, name: str, instance: Instance, seen: Observation) -> str:
    """What the runtime's labels say otherwise than the request; they have the UID that the pod has on its node."""
    uid = seen.pod.static_uid if seen.pod else ""
    uid = uid or request.pod_uid or (seen.pod.uid if seen.pod else "")
    if (instance.pod_namespace, instance.pod_name, instance.pod_uid) != (request.namespace, request.pod_name, uid):
        return f"belongs to pod {instance.pod_namespace}/{instance.pod_name} with UID {instance.pod_uid}"
    if instance.name != name:
        return f'is container "{instance.name}", not "{name}"'
    return ""


def not_looked_up(request: Request, container: RequestedContainer, seen: Observation) -> bool:
    """Whether nobody has asked the runtime yet whose a container ID of the request is: nothing may follow from it."""
    pins = (container.context, request.pinned.get(container.name))
    return any(
        pin is not None and seen.instance(pin.bare_id) is None and pin.bare_id not in seen.foreign for pin in pins
    )


def list_is_behind(status: PodContainer, seen: Observation) -> bool:
    """Whether the API shows an instance that came after the runtime was asked: it has to be asked again."""
    bare_id = Pin(status.container_id).bare_id
    return bool(bare_id) and seen.pod_at > seen.listed_at and seen.instance(bare_id) is None


def target_of(request: Request, container: RequestedContainer) -> Pin | None:
    """Which instance has to go, as the request says; None where it must be pinned first (steps 4 and 5)."""
    pin = request.pinned.get(container.name)
    if request.strategy.force:
        return pin
    return container.context or pin


def meant(request: Request, container: RequestedContainer, seen: Observation) -> Pin | None:
    """The same; what this process has worked on for it goes before what the request says by now."""
    own = (work.pin for (uid, _), work in seen.works.items() if uid == request.uid and work.name == container.name)
    return next(own, None) or target_of(request, container)


def will_not_return(status: PodContainer, pod: Pod, newest: Instance | None, *, exited: bool) -> Told:
    """Step 6: why kubelet would not start the container again.

    One that has exited may be kubelet's own doing (a new image, a failed probe), and then it starts the next one
    whatever the exit code; it shows an instance as ended only where it has begun nothing after it. Source: kubelet's
    ShouldContainerBeRestarted, computePodActions.
    """
    shown = newest is not None and status.terminated and status.container_id == newest.pin.container_id
    code = status.exit_code if exited and shown else None
    ruled = code is not None and matching_action(status.restart_rules, code)
    if not ruled and (shown or newest is None or not exited):
        if not comes_back(status.restart_policy, None):
            return told(Reason.NOT_RESTARTABLE)
        if not comes_back(status.restart_policy, code):
            return told(Reason.LEFT_DOWN)
    if pod.ended:
        return told(Reason.POD_ENDED, phase=pod.phase)
    return NOTHING


def held_back(status: PodContainer) -> str:
    """Kubelet's own words for what it waits for before it starts the container, "" for nothing remarkable."""
    if status.waiting_reason in UNREMARKABLE_WAITS:
        return ""
    return f"{status.waiting_reason}: {status.waiting_message}".removesuffix(": ")


def not_started_again(ending: Ending | None, last: Instance | None, now: float) -> tuple[Told, float | None]:
    """Step 10: what is known of a container that kubelet has not started again, and when there is more to tell.

    Kubelet (1.36) shows its back-off only when that ends. What can be told before: for how long nothing has come, and
    whether the instance that ended was itself a restart of less than ten minutes before.
    """
    if ending is None:
        return NOTHING, None
    passed = [step for step in STEPS if now >= ending.at + step]
    coming = next((ending.at + step for step in STEPS if now < ending.at + step), None)
    if not passed:
        return NOTHING, coming
    before = ""
    if last is not None and last.restart_count > 0:
        lived = ending.wall - last.created_at / 1e9
        if 0 <= lived < BACK_OFF_RESET_SECONDS:
            before = f"; it was restarted {lived:.0f} s before, so kubelet's back-off (10 s or more) may hold it"
    return told(Reason.NOT_STARTED_AGAIN, seconds=passed[-1], before=before), coming


def told_seconds(seconds: float) -> int:
    """A duration as it is told: the last of the steps, so that the text changes seldom."""
    return max((step for step in STEPS if seconds >= step), default=0)


def retry_delay(attempts: int, salt: str) -> float:
    """Seconds to wait after this many failed attempts (at least 1); the jitter is the salt's, the same at each look."""
    base = float(min(RETRY_LIMIT, RETRY_FIRST * 2 ** (attempts - 1)))
    return base * (1 + RETRY_JITTER * (crc32(f"{salt}/{attempts}".encode()) % 1000) / 1000)


def grace_of(request: Request, instance: Instance) -> int:
    """Step 9: the grace period in whole seconds: the strategy's, else the pod's, else Kubernetes' default."""
    for seconds in (request.strategy.grace_seconds, instance.grace_seconds):
        if seconds is not None:
            return max(0, seconds)
    return DEFAULT_GRACE_SECONDS


def begun_by_an_earlier_life(request: Request, name: str, pin: Pin) -> Begun:
    """What the annotation says was begun with this instance; Begun() where it speaks of another one."""
    pinned = request.pinned.get(name)
    return request.begun.get(name, Begun()) if pinned is not None and pinned.bare_id == pin.bare_id else Begun()


def spent_before(request: Request, instance: Instance, seen: Observation, now: float) -> float:
    """Seconds of the grace period that an earlier life of the daemon used up, before this one did anything (step 12).

    Only the wall clock tells; it is trusted between nothing and the grace period. What was begun since this life first
    saw the request is its own, and no stop yet: that a hook of an earlier request has ended, told in a stop's place.
    """
    work = seen.work(request.uid, instance.id)
    if work.hook_began is not None or work.stop_sent is not None:
        return work.spent_before
    begun = begun_by_an_earlier_life(request, instance.name, instance.pin)
    started = parse_time(begun.hook or begun.stop)
    if started is None or started.timestamp() + 1 > seen.wall - (now - seen.first_seen.get(request.uid, now)):
        return 0.0  # times are told in whole seconds
    return min(max(0.0, seen.wall - started.timestamp()), float(grace_of(request, instance)))


def stop_seconds(request: Request, instance: Instance, seen: Observation, now: float) -> float:
    """Step 9: StopContainer's timeout: what hook and earlier attempts left of the grace period, at least 2 s."""
    work = seen.work(request.uid, instance.id)
    left = float(grace_of(request, instance)) - spent_before(request, instance, seen, now)
    if work.hook is not None:
        left -= work.hook.seconds
    if work.stop_sent is not None:
        left -= now - work.stop_sent
    return max(float(MINIMUM_GRACE_SECONDS), left)


def hook_done(request: Request, instance: Instance, seen: Observation, now: float) -> bool:
    """Whether the instance's hook has run to its end (step 9).

    For this request, or for one that was deleted since: that counts until its grace period would have ended, and for
    as long as this request lasts if it was there when the hook ended.
    """
    if seen.work(request.uid, instance.id).hook is not None:
        return True
    here_since = seen.first_seen.get(request.uid, now)
    return any(
        (ended := hook_ended(work)) is not None
        and work.hook_until is not None
        and (now < work.hook_until or here_since <= ended)
        for work in seen.others(request.uid, instance.id)
    )


def hook_ended(work: Work) -> float | None:
    """Monotonic time at which the hook ended, None where none has."""
    if work.hook is None or work.hook_began is None:
        return None
    return work.hook_began + work.hook.seconds


def hook_end_untold(request: Request, work: Work) -> bool:
    """Whether the request does not say yet that this hook of it has ended, as it has to once it did (step 12)."""
    said = request.status.state(work.name).phase.final or hook_end_told(request, work.name, work.pin)
    return not said and (work.under_way is WorkKind.HOOK or work.hook_began is not None)


def stop_untold(request: Request, work: Work, now: float) -> bool:
    """Whether a stop was sent a short while ago that goes on, or failed, and is still to be persisted (step 12)."""
    done = work.stop is not None and not work.stop.error
    if work.stop_sent is None or done or now >= work.stop_sent + HASTE_SECONDS:
        return False
    return not begun_by_an_earlier_life(request, work.name, work.pin).stop


def hook_end_told(request: Request, name: str, pin: Pin) -> bool:
    """Whether the request says that the instance's hook has ended: by isKilled, or by its pin if a CRD prunes that."""
    return request.status.state(name).is_killed or bool(begun_by_an_earlier_life(request, name, pin).stop)


def lacks_ip(hook: Hook, seen: Observation) -> bool:
    """Whether a hook needs the pod's IP, and nobody has told it yet."""
    return hook.kind is HookKind.HTTP_GET and not hook.host and not (seen.pod and seen.pod.pod_ip)


def at_work(request: Request, instance: Instance, seen: Observation) -> tuple[WorkKind, float | None] | None:
    """What another, ended, request still does to the instance, and when that must have had its effect."""
    works = [work for work in seen.others(request.uid, instance.id) if work.under_way is not None]
    if not works:
        return None
    longest = max(works, key=lambda work: float("inf") if work.until is None else work.until)
    assert longest.under_way is not None  # noqa: S101 - chosen so
    return longest.under_way, longest.until
