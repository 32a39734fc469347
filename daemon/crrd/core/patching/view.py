"""What is known of a request that a patch carries out, and what has become of each of its containers.

The pod records the patch with the UID of the request (`core.rollout.patched`), and its status says what kubelet has
done since. So no memory is needed to tell that a container was restarted.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property

from crrd.core.api.pod import PodContainer
from crrd.core.api.reasons import Reason
from crrd.core.api.types import FailurePolicy, Pin, RecreateState, Request, RequestedContainer, StatePhase
from crrd.core.patching.unfit import unfit_container, unfit_request
from crrd.core.recreate.messages import LATER_STEPS, NO_MESSAGE, Message, kubelet_message, waited
from crrd.core.recreate.settle import fail_rest
from crrd.core.recreate.step import failed, with_message
from crrd.core.rollout.patch.operations import record_of
from crrd.core.rollout.patched import PatchedContainer, is_due, most_seconds, state_of
from crrd.core.rollout.state import Member
from crrd.core.rollout.waits import Skip

_Shown = tuple[tuple[str, bool, bool, str, str], ...]


@dataclass(frozen=True, slots=True)
class Seen:
    """What this process has seen of one pod, and since when, in seconds of its monotonic clock.

    A new leader starts from its own time, so that a wait may be longer, but never shorter. No other clock matters.
    """

    request: str = ""  # UID of the request whose turn it is
    refused: str = ""  # Why the API server refuses the patch for it
    unready: float | None = None  # Since when the pod is unready for it
    running: Mapping[str, tuple[str, float]] = field(default_factory=dict)
    """By container: the ID of the instance that runs, and since when."""
    shown: _Shown = ()  # What the pod's status says about its containers
    changed: float = 0.0  # Since when

    def after(self, request: Request, member: Member, now: float) -> "Seen":
        """Return what was seen after this version of the pod."""
        known = self if self.request == request.uid else Seen(request.uid, changed=now)
        there = member.pod.containers.values()
        running = {each.name: (each.container_id, now) for each in there if each.running}
        kept = {
            name: known.running[name] for name, (at, _) in running.items() if known.running.get(name, ("",))[0] == at
        }
        shown = tuple((each.container_id, each.running, each.ready, each.waiting_reason, each.image) for each in there)
        unready = known.unready if known.unready is not None else now
        return replace(
            known,
            unready=unready if request.unready_acquired else None,
            running=running | kept,
            shown=shown,
            changed=known.changed if shown == known.shown else now,
        )


class View:
    """A request, its pod, and the time. The pod has the request's UID."""

    def __init__(
        self,
        request: Request,
        member: Member,
        seen: Seen,
        *,
        now: float,
        utc: datetime,
        first: bool = True,
        served: bool = False,
        deadline: str = "",
        left: float = math.inf,
        kubelet_minor: int | None = None,
    ) -> None:
        """Set what is known.

        Args:
            request: the request.
            member: its pod.
            seen: what this process has seen of them, this version of the pod included.
            now: the time of `seen`.
            utc: the API server's time.
            first: whether it is the first of the requests for its pod.
            served: whether a node daemon serves the requests of the pod's node.
            deadline: the request's deadline for messages.
            left: seconds until then.
            kubelet_minor: as in `unfit.review`.
        """
        self.request, self.member, self.seen, self.now, self.utc = request, member, seen, now, utc
        self.first, self.served, self._minor = first, served, kubelet_minor
        self._deadline, self._left, self.overdue = deadline, left, left <= 0
        record = record_of(member)
        self.record = record if record is not None and record.uid == request.uid else None
        self.other = record if self.record is None else None  # The record of another request or run

    @property
    def over(self) -> bool:
        """Whether nothing more begins for the request."""
        return not self.request.live

    @cached_property
    def entries(self) -> dict[str, PatchedContainer]:
        """The containers that were restarted for the request, by name."""
        return {each.name: each for each in self.record.containers} if self.record is not None else {}

    @cached_property
    def due(self) -> tuple[str, ...]:
        """The containers that kubelet has yet to start again after a patch for the request."""
        return self._due(self.entries.values())

    @cached_property
    def blocked(self) -> str:
        """What still works on the pod by a patch: another request, or a run of `kubectl recreate`; "" for nothing."""
        if self.other is None:
            return ""
        run = self.member.patched.at(self.utc) if self.member.patched is not None else None
        busy = self._due(self.other.containers) or (run is not None and not run.request.completed)
        return f"a restart by a patch for {self.other.request}" if busy else ""

    def _due(self, restarted: Iterable[PatchedContainer]) -> tuple[str, ...]:
        return tuple(each.name for each in restarted if is_due(each, self.member.pod))

    @cached_property
    def hopeless(self) -> dict[str, RecreateState]:
        """The containers that get their image back: kubelet cannot start them, or has not until the deadline."""
        found = {}
        for name in self.due:
            state = _reasoned(state_of(self.entries[name], self.member.pod.containers[name]))
            if state.phase is not StatePhase.FAILED and self.overdue:
                state = failed(state, Message.of(Reason.DEADLINE, deadline=self._deadline, waited=""))
            if state.phase is StatePhase.FAILED:
                found[name] = state
        return found

    @cached_property
    def states(self) -> tuple[RecreateState, ...]:
        """What has become of each container by now. With failurePolicy Fail, the first failure ends the others.

        But one that kubelet is about to start is awaited, because it may need its image back. One that is next fails if
        kubelet may not have started it by the deadline: it would get its image back, and be restarted twice.
        """
        states = tuple(self._state(each) for each in self.request.containers)
        ignores = self.request.strategy.failure_policy is FailurePolicy.IGNORE
        names = self._next(states)
        while names and self._left < (seconds := most_seconds(self.member.pod, len(names))):
            late = Message.of(Reason.TOO_LATE, seconds=seconds, deadline=self._deadline)
            states = tuple(failed(each, late) if each.name in names else each for each in states)
            names = self._next(states) if ignores else ()  # with orderedRecreate, the one after it
        causes = (
            each for each in states if each.phase is StatePhase.FAILED and each.reason is not Reason.EARLIER_FAILURE
        )
        cause = next(causes, None)
        if cause is None or ignores:
            return states
        awaited = Message.of(Reason.EARLIER_FAILURE, what="stopped waiting", name=cause.name)
        pending = Message.of(Reason.EARLIER_FAILURE, what="skipped", name=cause.name)
        return fail_rest(states, awaited, pending, self.due)

    @cached_property
    def next_names(self) -> tuple[str, ...]:
        """The containers that the next patch restarts: all that are left, or the next one with orderedRecreate."""
        return self._next(self.states)

    def _next(self, states: Sequence[RecreateState]) -> tuple[str, ...]:
        left = [number for number, each in enumerate(states) if each.phase is StatePhase.PENDING]
        if self.request.strategy.ordered:
            left = [number for number in left[:1] if all(each.phase.final for each in states[:number])]
        return tuple(states[number].name for number in left)

    @property
    def gate(self) -> Message:
        """What the request says about the readiness of its pod."""
        grace = self.request.strategy.unready_grace_seconds
        if grace is None:
            return NO_MESSAGE
        if not self.member.pod.readiness_gate:
            return Message.of(Reason.NO_READINESS_GATE)
        if self.entries or not self.next_names:
            return NO_MESSAGE
        if self.seen.unready is None:
            return Message.of(Reason.WAITING_FOR_UNREADY)
        return Message.of(Reason.UNREADY_GRACE, grace=grace) if self.grace_left > 0 else NO_MESSAGE

    @property
    def grace_left(self) -> float:
        """Seconds that are left of the unready grace period, 0 if that has not started."""
        grace = self.request.strategy.unready_grace_seconds
        if grace is None or self.seen.unready is None:
            return 0.0
        return max(0.0, self.seen.unready + grace - self.now)

    @property
    def invalid(self) -> str:
        """Why no patch can carry out the request; "" if one can."""
        missing = (number for number, each in enumerate(self.request.containers) if each.context is None)
        unset = next(
            (f"spec.containers[{number}].statusContext is missing: admission sets it" for number in missing), ""
        )
        return self.request.error or unfit_request(self.request, self.member) or unset

    def _state(self, asked: RequestedContainer) -> RecreateState:
        """What has become of a container."""
        pod, before = self.member.pod, self.request.status.state(asked.name)
        if before.phase.final:
            return before
        container, entry = pod.containers.get(asked.name), self.entries.get(asked.name)
        if container is None:
            return failed(before, Message.of(Reason.CONTAINER_NOT_FOUND, key=pod.key, name=asked.name))
        begun = replace(before, phase=StatePhase.RECREATING)
        if entry is not None:
            found = _reasoned(state_of(entry, container))
            if found.phase is StatePhase.FAILED:
                return found
            return self._awaited(begun, container) if asked.name in self.due else self._restarted(begun, container)
        if _is_next(asked.context, container):
            return self._restarted(begun, container)
        if before.started or not (container.running and container.container_id):
            # A node daemon restarts it, or it has ended by itself. Then kubelet may start it at any moment.
            return self._awaited(begun, container)
        skip = unfit_container(self.request, self.member, asked.name, self._minor)
        if skip is Skip.CHANGED:  # kubelet is about to start it with the image that somebody has given it
            return self._awaited(begun, container)
        if skip is not None:
            return failed(before, Message.of(Reason.NEEDS_DAEMON, why=skip.say(container=asked.name)))
        return with_message(before, NO_MESSAGE)

    def _awaited(self, begun: RecreateState, container: PodContainer) -> RecreateState:
        """The state of a container whose next instance kubelet has not started yet."""
        grace = 0 if not container.running else self.request.strategy.grace(self.member.pod.grace_seconds)
        seconds, _ = waited(self.seen.changed + grace, self.now, LATER_STEPS)
        late = Message.of(Reason.NOT_STARTED_AGAIN, seconds=seconds, before="") if seconds else NO_MESSAGE
        return with_message(begun, kubelet_message(container) or late)

    def _restarted(self, begun: RecreateState, container: PodContainer) -> RecreateState:
        """The state of a container whose next instance was started."""
        if not container.running:
            return self._awaited(begun, container)
        _, since = self.seen.running[container.name]
        if not container.ready:
            seconds, _ = waited(since, self.now, LATER_STEPS)
            why = f"its {'readiness' if container.started else 'startup'} probe has not succeeded yet"
            slow = Message.of(Reason.NOT_READY, seconds=seconds, why=why) if seconds else NO_MESSAGE
            return with_message(begun, slow)
        if self.member.pod.restarting:
            return with_message(begun, Message.of(Reason.POD_RESTARTING))
        if self.now < since + self.request.strategy.min_started_seconds:
            return with_message(begun, NO_MESSAGE)
        return with_message(replace(begun, phase=StatePhase.SUCCEEDED), NO_MESSAGE)


def _is_next(target: Pin | None, container: PodContainer) -> bool:
    """Whether an instance after the target was started, which counts as recreated (step 4)."""
    if target is None or not container.container_id:
        return False
    other = Pin(container.container_id).bare_id != target.bare_id
    return other or container.restart_count > target.restart_count


def _reasoned(state: RecreateState) -> RecreateState:
    """Return the state with a reason if it has failed."""
    if state.reason or state.phase is not StatePhase.FAILED:
        return state
    return with_message(state, Message.of(Reason.PATCH_FAILED, error=state.message))
