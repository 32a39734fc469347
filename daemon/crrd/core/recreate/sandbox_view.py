"""What is known of the sandboxes of a pod that is restarted as a whole, and which pods must not be."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from crrd.core.api.pod import ContainerKind, Pod, PodContainer
from crrd.core.api.reasons import Reason
from crrd.core.api.types import WHOLE_POD, Pin
from crrd.core.recreate.messages import NO_MESSAGE, Message
from crrd.core.recreate.observation import NO_ATTEMPT, NO_PIN, Sandbox, StopAttempt, Work, WorkKind
from crrd.core.recreate.stop import stop_pause
from crrd.core.recreate.view import ContainerView
from crrd.core.recreate.whole_pod import PodView
from crrd.kubelet.restart_rules import RestartPolicy, restart_all_code

RUNTIMES = frozenset({"containerd", "cri-o", "crrd-local"})  # Where it was tried (docs/support.md)


def unfit(pod: Pod, kubelet_minor: int | None, of: Iterable[PodContainer] | None = None) -> Message:
    """Return why a pod must not be restarted in place: it would end, or a hook would be left out.

    Admission, runs and the node ask here. `of`: the containers that are looked at, by default all.

    Kubelet makes no second sandbox for a pod with restartPolicy Never, whatever its containers say. If an init
    container with Never fails, the pod ends (`computePodActions`, `computeInitContainerActions`). A container that
    exits with code 0 on its SIGTERM counts as completed, if its restartPolicy is not Always. A rule that restarts all
    containers does so in addition, for the exit code of a container that kubelet stops. Kubelet takes the pod's IP for
    an httpGet hook from the newest sandbox, which has none then. If kubelet is killed between the stops of both
    sandboxes, it keeps the second one, which is on the host's network, for a pod that is on it, too.
    """
    if pod.host_network:
        return Message.of(Reason.HOST_NETWORK)
    for each in pod.containers.values() if of is None else of:
        if each.kind is ContainerKind.EPHEMERAL:
            continue
        if restart_all_code(each.restart_rules, kubelet_minor) is not None:
            return Message.of(Reason.RESTARTS_TWICE, name=each.name)
        policy, whose = each.policy(kubelet_minor), f"container {each.name}"
        if each.restart_policy is RestartPolicy.NEVER:
            policy, whose = RestartPolicy.NEVER, "the pod"
        if policy is RestartPolicy.NEVER or (each.kind is ContainerKind.REGULAR and policy is not RestartPolicy.ALWAYS):
            return Message.of(Reason.POD_WOULD_END, whose=whose, policy=policy)
        if each.kind.recreatable and each.hook_needs_ip:
            return Message.of(Reason.HOOK_NEEDS_IP, name=each.name)
    return NO_MESSAGE


@dataclass(frozen=True)
class SandboxView:
    """What is known of the sandboxes of a pod, for one request."""

    whole: PodView

    @cached_property
    def containers(self) -> list[ContainerView]:
        """The containers of the request."""
        return [ContainerView.of(each, self.whole) for each in self.whole.request.containers]

    @cached_property
    def gets_image(self) -> ContainerView | None:
        """The init container that gets another image, None if there is none."""
        return next((each for each in self.containers if each.image), None)

    @property
    def sandboxes(self) -> Sequence[Sandbox]:
        """All sandboxes of the pod."""
        return self.whole.observed.sandboxes

    @cached_property
    def work(self) -> Work:
        """What this process has done for the request."""
        return self.whole.known.work_on(WHOLE_POD)

    @property
    def asks(self) -> bool:
        """Whether a container ID of the request is not known yet, or the list of the runtime is too old."""
        return any(each.unanswered is not None or each.look_again_at is not None for each in self.containers)

    @property
    def started(self) -> bool:
        """Whether the status says that the restart has begun."""
        return any(each.written.started for each in self.containers if not each.image)

    @property
    def names(self) -> set[str]:
        """The names of the containers of the request, without one that gets an image."""
        return {each.name for each in self.containers if not each.image}

    @property
    def pin(self) -> Pin | None:
        """The recorded sandbox that is to go."""
        return self.whole.request.pinned.get(WHOLE_POD)

    @cached_property
    def to_pin(self) -> Sandbox | None:
        """The sandbox that the request means: that of the instances that it names, or else the one of kubelet's last.

        Kubelet keeps one ended instance of a container. If all that are named have gone, the pod's restart is not known
        any more, and the pod is restarted. For an image, only a restart after the pod has got it counts (`init_image`).
        """
        own = {each.id: each for each in self.sandboxes if not each.request_uid}
        if not self.whole.request.strategy.force and self.gets_image is None:
            pins = (each.context for each in self.whole.request.containers if each.context is not None)
            named = (self.whole.observed.instance(pin.bare_id) for pin in pins)
            homes = [own[each.sandbox] for each in named if each is not None and each.sandbox in own]
            if homes:
                return min(homes, key=_age)
        return self.current

    @cached_property
    def current(self) -> Sandbox | None:
        """The newest sandbox that kubelet has made."""
        return max((each for each in self.sandboxes if not each.request_uid), key=_age, default=None)

    @cached_property
    def first(self) -> Sandbox | None:
        """The recorded sandbox, if the runtime still has it."""
        return next((each for each in self.sandboxes if self.pin is not None and each.id == self.pin.bare_id), None)

    @cached_property
    def second(self) -> Sandbox | None:
        """The sandbox that crrd has made for the request, if the runtime still has it."""
        return next((each for each in self.sandboxes if each.request_uid == self.whole.request.uid), None)

    @cached_property
    def others_second(self) -> Sandbox | None:
        """A sandbox that crrd has made for another request, and that is ready. Kubelet restarts the pod for it."""
        uid = self.whole.request.uid
        return next((each for each in self.sandboxes if each.ready and each.request_uid not in ("", uid)), None)

    @property
    def restarted(self) -> bool:
        """Whether kubelet has made a later sandbox than the recorded one, or has removed that one."""
        later = any(self.is_later(each) and not each.request_uid for each in self.sandboxes)
        return later or self.first is None

    def is_later(self, sandbox: Sandbox) -> bool:
        """Whether a sandbox was made after the recorded one."""
        return sandbox.attempt > (self.pin or NO_PIN).restart_count

    @property
    def other_work(self) -> str:
        """The work of other requests on containers of the pod that is under way, or a stop that is due. "" for none."""
        others = (each for each in self.whole.observation.requests if each.request.uid != self.whole.request.uid)
        works = [work for other in others for work in other.works.values()]
        due = (WorkKind.STOP for work in works if work.stop_still_due(self.whole.now))
        return next(map(str, (*(work.under_way for work in works if work.under_way is not None), *due)), "")

    @property
    def waits_for_others(self) -> bool:
        """Whether an earlier request is at work on the pod, or kubelet may be restarting the pod for one."""
        made = self.others_second is not None or self.whole.pod_restart_until is not None
        return made or bool(self.other_work)

    @property
    def unfit(self) -> Message:
        """Why the pod must not be restarted in place."""
        meant = self.first or self.to_pin
        if meant is not None and meant.runtime not in RUNTIMES:
            return Message.of(Reason.RUNTIME_UNFIT, runtime=meant.runtime)
        return unfit(self.whole.pod, self.whole.node.kubelet_minor)

    @property
    def last(self) -> StopAttempt:
        """The last attempt of this process to make the second sandbox."""
        return self.work.last_stop or NO_ATTEMPT

    @property
    def retry_at(self) -> float:
        """When the next attempt may be made."""
        return self.last.ended + stop_pause(self.last.count, self.whole.request.uid)


def _age(sandbox: Sandbox) -> tuple[int, int]:
    return sandbox.attempt, sandbox.created_at
