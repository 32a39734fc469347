"""One requested container as a round sees it: which instance has to go, does it come back, what is left of its grace.

Built once a round, each question is answered once. No phase is moved here.
"""

from dataclasses import dataclass, replace
from functools import cached_property

from crrd.core.api.pod import Pod, PodContainer
from crrd.core.api.reasons import Reason, say
from crrd.core.api.time import parse_time
from crrd.core.api.types import (
    DEFAULT_GRACE_SECONDS,
    MINIMUM_GRACE_SECONDS,
    Begun,
    Pin,
    RecreateState,
    Request,
    RequestedContainer,
    StatePhase,
)
from crrd.core.recreate.draft import with_message
from crrd.core.recreate.messages import NO_MESSAGE, Message
from crrd.core.recreate.observation import NO_WORK, Instance, Observation, Work
from crrd.core.recreate.record import begun_with, hook_end_told
from crrd.kubelet.restart_rules import RestartPolicy, comes_back, matching_action
from crrd.kubelet.runtime_status import ContainerState


def target_of(request: Request, container: RequestedContainer) -> Pin | None:
    """Which instance has to go, as the request says; None where it must be pinned first (steps 4 and 5)."""
    pin = request.pinned.get(container.name)
    if request.strategy.force:
        return pin
    return container.context or pin


def recreating(state: RecreateState, work: Work, why: Message = NO_MESSAGE) -> RecreateState:
    """The container's turn goes on, and what it waited for before is over; `why`: what it waits for now.

    That its hook has failed outlives the waits.
    """
    if not why and state.reason is Reason.HOOK_FAILED:
        why = Message(state.reason, state.message)
    elif not why and work.hook is not None and work.hook.error:
        why = Message.of(Reason.HOOK_FAILED, error=work.hook.error)
    return with_message(replace(state, phase=StatePhase.RECREATING), why)


@dataclass(frozen=True)
class ContainerView:
    """One requested container: what its request, its pod, the runtime and this process know of it."""

    request: Request
    container: RequestedContainer
    pod: Pod
    seen: Observation
    now: float

    @property
    def name(self) -> str:
        """The container's."""
        return self.container.name

    @cached_property
    def status(self) -> PodContainer:
        """The container in the pod's spec and status; an empty one where the pod has none of that name."""
        return self.pod.containers.get(self.name, PodContainer(self.name))

    @cached_property
    def newest(self) -> Instance | None:
        """Its current instance in the runtime."""
        return self.seen.newest(self.name)

    @cached_property
    def work(self) -> Work:
        """What this process has done to it for this request."""
        works = self.seen.works.items()
        own = (work for (uid, _), work in works if uid == self.request.uid and work.name == self.name)
        return next(own, NO_WORK)

    @cached_property
    def target(self) -> Pin | None:
        """Which instance has to go; what was worked on goes before what the request says by now."""
        return target_of(self.request, self.container) if self.work is NO_WORK else self.work.pin

    @cached_property
    def outgoing(self) -> Instance | None:
        """The instance that has to go, as long as it is the newest one and has not ended (step 4)."""
        newest, target = self.newest, self.target
        if newest is None or target is None or newest.state is ContainerState.EXITED:
            return None
        return newest if newest.id == target.bare_id and newest.restart_count <= target.restart_count else None

    @cached_property
    def begun_before(self) -> Begun:
        """What the annotation says was begun with that instance, in this life of the daemon or an earlier one."""
        return begun_with(self.request, self.name, self.target)

    @property
    def written(self) -> RecreateState:
        """The container's state as the request's status has it."""
        return self.request.status.state(self.name)

    @cached_property
    def state(self) -> RecreateState:
        """The same; a stop that was sent is in it, also where its write got lost."""
        sent = self.work.stop_sent is not None or bool(self.begun_before.stop)
        return replace(self.written, is_killed=True) if sent else self.written

    def recreating(self, why: Message = NO_MESSAGE) -> RecreateState:
        """The state while the container's turn goes on."""
        return recreating(self.state, self.work, why)

    def resting(self) -> RecreateState:
        """The state while it is not the container's turn; what it waited for before is over."""
        begun = self.state.phase is StatePhase.RECREATING
        return self.recreating() if begun else with_message(self.state, NO_MESSAGE)

    # May it be recreated, and is it what the request means?

    @cached_property
    def problem(self) -> Message:
        """Why the pod's spec, or the runtime's labels, do not allow this container to be recreated."""
        if self.name not in self.pod.containers:
            return Message.of(Reason.CONTAINER_NOT_FOUND, key=self.request.pod_key, name=self.name)
        if not self.status.kind.recreatable:
            return Message.of(Reason.NOT_RECREATABLE, kind=self.status.kind)
        return self._mismatch()

    def _mismatch(self) -> Message:
        """Steps 3 and 4: why a container ID of the request is not this pod's container.

        An ID that the runtime does not know any more is no mistake: dead containers are collected.
        """
        for pin in self._named:
            if pin.runtime not in self.seen.runtime_names:
                runtimes = ", ".join(sorted(self.seen.runtime_names))
                return _mismatch(pin, f"is of runtime {pin.runtime!r}, this node has {runtimes}")
            instance = self.seen.instance(pin.bare_id) or self.seen.foreign.get(pin.bare_id)
            if instance is not None and (problem := self._not_its_own(instance)):
                return _mismatch(pin, problem)
        if self.newest is not None and (problem := self._not_its_own(self.newest)):
            return _mismatch(self.newest.pin, problem)
        return NO_MESSAGE

    @property
    def _named(self) -> tuple[Pin, ...]:
        """The instances that the request names."""
        return tuple(pin for pin in (self.container.context, self.request.pinned.get(self.name)) if pin is not None)

    def _not_its_own(self, instance: Instance) -> str:
        """What the runtime's labels say otherwise than the request; they have the UID that the pod has on its node."""
        request, uid = self.request, self.pod.static_uid or self.request.pod_uid or self.pod.uid
        if (instance.pod_namespace, instance.pod_name, instance.pod_uid) != (request.namespace, request.pod_name, uid):
            return f"belongs to pod {instance.pod_namespace}/{instance.pod_name} with UID {instance.pod_uid}"
        return "" if instance.name == self.name else f'is container "{instance.name}", not "{self.name}"'

    @property
    def not_looked_up(self) -> bool:
        """Whether nobody has asked the runtime yet whose a container ID of the request is: nothing may follow."""
        ids = (pin.bare_id for pin in self._named)
        return any(self.seen.instance(bare_id) is None and bare_id not in self.seen.foreign for bare_id in ids)

    @property
    def list_is_behind(self) -> bool:
        """Whether the API shows an instance that came after the runtime was asked: it has to be asked again."""
        bare_id = Pin(self.status.container_id).bare_id
        return bool(bare_id) and self.seen.pod_at > self.seen.listed_at and self.seen.instance(bare_id) is None

    @cached_property
    def to_pin(self) -> Pin | None:
        """Steps 4 and 5: the instance to pin where nobody has said which is meant, None where there is nothing to pin.

        Never after something was begun for the request: what runs then may be the successor.
        """
        if self.newest is None or self.target is not None or self.written.phase.final or self.written.begun:
            return None
        return None if self.problem or self.never_returns else self.newest.pin

    # Does it come back?

    @cached_property
    def never_returns(self) -> Message:
        """Step 6: why kubelet would not start the container again if it was stopped."""
        if not comes_back(self.status.restart_policy, None):
            return Message.of(Reason.NOT_RESTARTABLE)
        return self._pod_ended

    @cached_property
    def left_down(self) -> Message:
        """Step 6: why kubelet does not start the container again, which has ended.

        It may have ended by kubelet's own doing (a new image, a failed probe), and then kubelet starts the next one
        whatever the exit code; it shows an instance as ended only where it has begun nothing after it. Source:
        kubelet's ShouldContainerBeRestarted, computePodActions.
        """
        status, policy = self.status, self.status.restart_policy
        ends = self.newest is not None and status.terminated and status.container_id == self.newest.pin.container_id
        code = status.exit_code if ends else None
        ruled = code is not None and matching_action(status.restart_rules, code)
        if not ruled and (ends or self.newest is None) and not comes_back(policy, code):
            if policy is RestartPolicy.NEVER:
                return Message(Reason.LEFT_DOWN, say(Reason.NOT_RESTARTABLE))
            return Message.of(Reason.LEFT_DOWN)
        return self._pod_ended

    @property
    def _pod_ended(self) -> Message:
        return Message.of(Reason.POD_ENDED, phase=self.pod.phase) if self.pod.ended else NO_MESSAGE

    # Its hook, and its grace period.

    @cached_property
    def owes_stop(self) -> bool:
        """Step 9: whether a hook has begun, in whichever life, and its container runs: its stop follows in any case."""
        if self.outgoing is None or self.outgoing.state is ContainerState.CREATED:
            return False
        ended = self.work.stop_sent is None and hook_end_told(self.request, self.name, self.target)
        return self.work.hook_began is not None or bool(self.begun_before.hook) or ended

    @cached_property
    def hook_done(self) -> bool:
        """Whether the outgoing instance's hook has run to its end (step 9).

        For this request, or for one that was deleted since: that counts until its grace period would have ended, and
        for as long as this request lasts if it was there when the hook ended.
        """
        here_since = self.seen.first_seen.get(self.request.uid, self.now)
        return self.work.hook is not None or any(
            work.hook_ended is not None
            and work.hook_until is not None
            and (self.now < work.hook_until or here_since <= work.hook_ended)
            for work in self.others
        )

    @cached_property
    def others(self) -> tuple[Work, ...]:
        """What this process has done to the outgoing instance for other requests, all of which have ended or gone."""
        return self.seen.others(self.request.uid, self.outgoing.id) if self.outgoing is not None else ()

    @cached_property
    def grace(self) -> int:
        """Step 9: the grace period in whole seconds: the strategy's, else the pod's, else Kubernetes' default."""
        of_pod = self.outgoing.grace_seconds if self.outgoing is not None else None
        for seconds in (self.request.strategy.grace_seconds, of_pod):
            if seconds is not None:
                return max(0, seconds)
        return DEFAULT_GRACE_SECONDS

    @cached_property
    def spent_before(self) -> float:
        """Seconds of the grace period that an earlier life of the daemon used up, before this one began (step 12).

        Only the wall clock tells; it is trusted between nothing and the grace period. What was begun since this life
        first saw the request is its own, and no stop yet: that a hook of an earlier request has ended, told in a
        stop's place.
        """
        if self.work.hook_began is not None or self.work.stop_sent is not None:
            return self.work.spent_before
        started, wall = parse_time(self.begun_before.hook or self.begun_before.stop), self.seen.wall
        seen_for = self.now - self.seen.first_seen.get(self.request.uid, self.now)
        if started is None or started.timestamp() + 1 > wall - seen_for:
            return 0.0  # times are told in whole seconds
        return min(max(0.0, wall - started.timestamp()), float(self.grace))

    @cached_property
    def stop_seconds(self) -> float:
        """Step 9: StopContainer's timeout: what hook and earlier attempts left of the grace period, at least 2 s."""
        left = float(self.grace) - self.spent_before
        if self.work.hook is not None:
            left -= self.work.hook.seconds
        if self.work.stop_sent is not None:
            left -= self.now - self.work.stop_sent
        return max(float(MINIMUM_GRACE_SECONDS), left)


def _mismatch(pin: Pin, problem: str) -> Message:
    return Message.of(Reason.CONTAINER_MISMATCH, container_id=pin.container_id, problem=problem)
