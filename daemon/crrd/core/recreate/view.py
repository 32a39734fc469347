"""One requested container in a round: its target, whether it comes back, and what is left of its grace period.

A view is built once a round, and computes each answer once. It changes no phase.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

from crrd.core.api.pod import ContainerKind, PodContainer
from crrd.core.api.reasons import Reason
from crrd.core.api.time import parse_time
from crrd.core.api.types import (
    Pin,
    RecreateState,
    Request,
    RequestedContainer,
    StartTimes,
)
from crrd.core.recreate.messages import NO_MESSAGE, Message
from crrd.core.recreate.observation import NO_WORK, Instance, Work
from crrd.core.recreate.request_view import ASK_AGAIN
from crrd.core.recreate.whole_pod import PodView
from crrd.kubelet.restart_rules import RestartPolicy, comes_back, restart_all_code, stays_down
from crrd.kubelet.runtime_status import ContainerState


@dataclass(frozen=True)
class ContainerView:
    """One requested container: what its request, its pod, the runtime and this process know about it."""

    whole: PodView  # The pod, and the request
    name: str
    status: PodContainer  # In the pod's spec and status; empty if the pod has no such container
    image: str  # The image that it is to get; "" if it is to be stopped
    named: tuple[Pin, ...]  # The instances that the request names
    newest: Instance | None
    work: Work  # What this process has done to it for this request
    target: Pin | None  # The instance to stop: the one that this process worked on, or else the request's
    start_times: StartTimes  # Start times of that instance in the annotation, written by this process or an earlier one
    written: RecreateState  # Its state in the request's status

    @classmethod
    def of(cls, container: RequestedContainer, whole: PodView) -> Self:
        """Return the view of a container of the request."""
        name, request, work = container.name, whole.known.request, whole.known.work_on(container.name)
        named = tuple(pin for pin in (container.context, request.pinned.get(name)) if pin is not None)
        target = request.target(container) if work is NO_WORK else work.pin
        status, current = whole.pod.containers.get(name, PodContainer(name)), whole.observed.newest(name)
        times, written = request.start_times_of(name, target), request.status.state(name)
        return cls(whole, name, status, container.image, named, current, work, target, times, written)

    @property
    def request(self) -> Request:
        """The request."""
        return self.whole.known.request

    @property
    def runs_again(self) -> bool:
        """Whether it is an init container that gets another image, and runs with it when the whole pod restarts."""
        return self.request.whole_pod and bool(self.image) and self.status.kind is ContainerKind.INIT

    @cached_property
    def outgoing(self) -> Instance | None:
        """The instance to stop, None once it has ended (step 4).

        Kubelet may run a newer instance beside it. Then an old one that was only created never starts.
        """
        found = None if self.target is None else self.whole.observed.instance(self.target.bare_id)
        if found is None or self.target is None or found.restart_count > self.target.restart_count:
            return None
        left_behind = self.newest is not None and found.id != self.newest.id
        over = found.state is ContainerState.EXITED or (left_behind and found.state is not ContainerState.RUNNING)
        return None if over or found.name != self.name else found

    @property
    def nothing_to_stop(self) -> bool:
        """Step 8: whether certainly nothing is left to stop, or to reload."""
        if self.request.reloads:
            return bool(self.start_times.reload)
        gone = self.target is not None and self.outgoing is None
        return (gone or self.work.stopped) and self.look_again_at is None

    @cached_property
    def state(self) -> RecreateState:
        """The written state, with is_killed if a stop was sent: its write may have been lost."""
        sent = self.work.stop_sent is not None or bool(self.start_times.stop)
        return replace(self.written, is_killed=True) if sent else self.written

    # May it be recreated, and is it what the request means?

    @cached_property
    def problem(self) -> Message:
        """Steps 3 and 4: why the pod's spec, or the runtime's labels, do not allow this container to be recreated.

        An ID that the runtime does not know any more is no mistake: dead containers are collected.
        """
        if self.name not in self.whole.pod.containers:
            return Message.of(Reason.CONTAINER_NOT_FOUND, key=self.request.pod_key, name=self.name)
        if not (self.status.kind.recreatable or self.runs_again):
            return Message.of(Reason.NOT_RECREATABLE, kind=self.status.kind)
        for pin, problem in self._mismatches():
            if problem:
                return Message.of(Reason.CONTAINER_MISMATCH, container_id=pin.container_id, problem=problem)
        return NO_MESSAGE

    def _mismatches(self) -> Iterator[tuple[Pin, str]]:
        """Yield each instance that is named or runs, and why it is not this pod's container ("" if it is)."""
        for pin in self.named:
            if pin.runtime not in self.whole.node.runtimes:
                names = ", ".join(sorted(self.whole.node.runtimes))
                yield pin, f"belongs to runtime {pin.runtime!r}, but this node runs {names}"
            observed = self.whole.observed
            yield pin, self._label_mismatch(observed.instance(pin.bare_id) or observed.foreign.get(pin.bare_id))
        if self.newest is not None:
            yield self.newest.pin, self._label_mismatch(self.newest)

    def _label_mismatch(self, instance: Instance | None) -> str:
        """Return how the runtime's labels differ from the request. They have the UID that the pod has on its node."""
        if instance is None:
            return ""
        request, uid = self.request, self.whole.pod.static_uid or self.request.pod_uid or self.whole.pod.uid
        if (instance.pod_namespace, instance.pod_name, instance.pod_uid) != (request.namespace, request.pod_name, uid):
            return f"belongs to pod {instance.pod_namespace}/{instance.pod_name} with UID {instance.pod_uid}"
        own = instance.name == self.name
        return "" if own else f'belongs to container "{instance.name}", not to container "{self.name}"'

    @property
    def unanswered(self) -> str | None:
        """Why it is not known yet what a named ID is that is not among the pod's instances; None if it is known."""
        unanswered = self.whole.observed.unanswered
        return max((unanswered[pin] for pin in self.named if pin in unanswered), default=None)

    @cached_property
    def look_again_at(self) -> float | None:
        """When the runtime must be listed again, because the decision needs it; None if it does not.

        Either a named ID was not looked up yet, or the API shows an instance that came after the runtime was asked.
        """
        observed, shown = self.whole.observed, Pin(self.status.container_id).bare_id
        listed = {instance.id for instance in observed.instances}
        if any(pin.bare_id not in listed and pin.bare_id not in observed.foreign for pin in self.named):
            return self.whole.now
        behind = shown and shown not in listed and observed.pod_at > observed.listed_at
        return self.whole.now + ASK_AGAIN if behind else None

    @cached_property
    def to_pin(self) -> Pin | None:
        """Steps 4 and 5: the instance to pin if the request does not name one; None if there is nothing to pin.

        None, too, for an image, and after work has begun for the request: the newest instance may be the successor.
        """
        if self.newest is None or self.target is not None or self.written.phase.final or self.written.started:
            return None
        return None if self.image or self.problem or self.unfit else self.newest.pin

    # Does it come back?

    @cached_property
    def _policy(self) -> RestartPolicy:
        """The container's restartPolicy, as this version of kubelet applies it.

        If work has begun, kubelet's version was known then and the policy was not Never. So if the version is not known
        any more, use the policy that restarts more.
        """
        own, of_pod, minor = self.status.own_restart_policy, self.status.restart_policy, self.whole.node.kubelet_minor
        policy = self.status.policy(minor)
        begun = self.state.is_killed or self.work.hook_began is not None or bool(self.start_times.hook)
        if own is None or minor is not None or policy is not RestartPolicy.NEVER or not begun:
            return policy
        return min(of_pod, own, key=list(RestartPolicy).index)

    @cached_property
    def unfit(self) -> Message:
        """Step 6: why the container must not be stopped: it would stay down, or kubelet would restart the whole pod.

        A RestartAllContainers rule does not end work that has begun. A reload stops nothing.
        """
        if self.request.reloads:
            return self.pod_ended
        if not comes_back(self._policy, None):
            return Message.of(Reason.NOT_RESTARTABLE)
        rules, minor = self.status.restart_rules, self.whole.node.kubelet_minor
        code, started = restart_all_code(rules, minor), self.must_be_stopped or self.work.stop_sent is not None
        if self.pod_ended or code is None or self.request.strategy.allow_pod_restart or started:
            return self.pod_ended
        return Message.of(Reason.RESTARTS_POD, code=code)

    @cached_property
    def left_down(self) -> Message:
        """Step 6: why kubelet does not start the ended container again.

        The exit code decides only if the pod's status shows this instance as terminated. Otherwise kubelet may have
        ended it (a new image, a failed probe), and then it starts the next one whatever the exit code. Source:
        kubelet's ShouldContainerBeRestarted, computePodActions.
        """
        status, policy = self.status, self._policy
        ends = self.newest is not None and status.terminated and status.container_id == self.newest.pin.container_id
        code = status.exit_code if ends else None
        down = stays_down(policy, status.restart_rules, code, self.whole.node.kubelet_minor)
        if down and (ends or self.newest is None):
            if policy is RestartPolicy.NEVER:
                return Message(Reason.LEFT_DOWN, Reason.NOT_RESTARTABLE.say())
            return Message.of(Reason.LEFT_DOWN)
        return self.pod_ended

    @property
    def pod_ended(self) -> Message:
        """Step 6: a message if the pod has ended, because kubelet starts nothing in it any more."""
        return Message.of(Reason.POD_ENDED, phase=self.whole.pod.phase) if self.whole.pod.ended else NO_MESSAGE

    @property
    def not_back(self) -> list[str]:
        """The pod's other containers that are not back after a restart of the whole pod."""
        return self.whole.not_back(self.name, self.work.last_stop)

    @property
    def restarted_beside(self) -> list[str]:
        """The containers that the request does not name and that were restarted since this one's stop."""
        now, before = self.whole.beside(self.status), self.work.beside or {}
        return sorted(name for name, bare_id in now.items() if bare_id and before.get(name, bare_id) != bare_id)

    # Its hook, and its grace period.

    @cached_property
    def must_be_stopped(self) -> bool:
        """Step 9: whether this process or an earlier one began a hook, and the container still runs: a stop follows."""
        if self.outgoing is None or self.outgoing.state is ContainerState.CREATED or self.request.reloads:
            return False
        hook_ended = self.state.is_killed and self.work.stop_sent is None
        return self.work.hook_began is not None or bool(self.start_times.hook) or hook_ended

    @cached_property
    def others(self) -> tuple[Work, ...]:
        """What this process has done to the outgoing instance for other requests, live or not."""
        return () if self.outgoing is None else tuple(work for _, work in self.whole.works_of_others(self.outgoing.id))

    @cached_property
    def hook_done(self) -> bool:
        """Whether the outgoing instance's hook has run to its end (step 9).

        A hook of another request counts (a) until its `stop_until`, or (b) if this request was seen before it ended.
        """
        here_since = self.whole.known.first_seen
        return self.work.hook_result is not None or any(
            work.hook_ended is not None and (self.whole.now < work.stop_until or here_since <= work.hook_ended)
            for work in self.others
        )

    @cached_property
    def grace(self) -> int:
        """Step 9: the grace period in whole seconds."""
        return self.request.strategy.grace(self.outgoing.grace_seconds if self.outgoing is not None else None)

    @cached_property
    def spent_before(self) -> float:
        """Seconds of the grace period that an earlier process of the daemon used up (step 12).

        The wall clock measures them, and the result is limited to the grace period. A time later than `first_seen` was
        written by this process: it marks the end of another request's hook, which spends no grace.
        """
        if self.work.hook_began is not None or self.work.stop_sent is not None:
            return self.work.spent_before
        started, wall = parse_time(self.start_times.hook or self.start_times.stop), self.whole.node.wall
        seen_for = self.whole.now - self.whole.known.first_seen
        if started is None or started.timestamp() + 1 > wall - seen_for:
            return 0.0  # times are recorded in whole seconds
        return min(wall - started.timestamp(), float(self.grace))

    @cached_property
    def stop_seconds(self) -> float:
        """Step 9: StopContainer's timeout (`Work.stop_seconds`)."""
        return self.work.stop_seconds(self.grace - self.spent_before, self.whole.now)
