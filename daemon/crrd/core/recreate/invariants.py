"""What must hold for every decision, checked from the observed values alone, apart from the code that decides.

The node daemon, the property tests and the simulator check each decision. A decision that breaks a rule is a bug of
crrd, and starts no hook and no stop (`decide.without_work`).
"""

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from math import inf

from crrd.core.api.pod import ContainerKind, Pod
from crrd.core.api.types import DEFAULT_GRACE_SECONDS, WHOLE_POD
from crrd.core.recreate.actions import Decision, RestartPod, RunHook, RunReload, StopContainer, WorkAction, WriteStatus
from crrd.core.recreate.declared import changed_since, read_reload, recorded_for, undeclared
from crrd.core.recreate.observation import (
    NETWORK_READY,
    NO_WORK,
    Observation,
    ObservedNode,
    ObservedPod,
    ObservedRequest,
    Work,
    WorkKind,
)
from crrd.kubelet.restart_rules import RestartPolicy, comes_back, restart_all_code
from crrd.kubelet.runtime_status import ContainerState


class Rule(StrEnum):
    """The invariants. A StopContainer, RunHook, RunReload or RestartPod is decided only if the first four hold."""

    LIVE = "request_not_live"  # Its request is live, or it is a stop that is still due after a hook of the request
    TARGET = "not_the_target"  # The request means this instance, it runs, and its pod declares the reload
    ALONE = "other_work"  # Nothing else is at work on the instance, except what a stop of another request may shorten
    RETURNS = "not_restarted"  # Kubelet would start the container again
    FINAL = "already_completed"  # A Completed status is never followed by another one


@dataclass(frozen=True, slots=True)
class Violation:
    """A rule that a decision breaks, and the action that breaks it."""

    rule: Rule
    action: WorkAction | WriteStatus

    @property
    def container(self) -> str:
        """The container that the action would work on, "" for none."""
        return self.action.name if isinstance(self.action, RunHook | RunReload | StopContainer) else ""


def check(decision: Decision, observation: Observation) -> tuple[Violation, ...]:
    """Return how a decision on these values breaks the rules; empty if it breaks none."""
    pod, node, now = observation.pod, observation.node, observation.now
    known = {each.request.uid: each for each in observation.requests}
    works = (each for each in decision.actions if isinstance(each, RunHook | RunReload | StopContainer))
    begun = Counter(each.instance.id for each in works)
    found = []
    for action in decision.actions:
        if isinstance(action, WriteStatus) and action.request.completed:
            found.append(Violation(Rule.FINAL, action))
        if isinstance(action, RestartPod):
            found += [
                Violation(rule, action) for rule, kept in _pod_start(action, decision, observation).items() if not kept
            ]
        if isinstance(action, RunHook | RunReload | StopContainer):
            others = [each for uid, each in known.items() if uid != action.request.uid]
            own = known.get(action.request.uid) or ObservedRequest(action.request, now, left=True)
            start = _Start(action, own, others, pod, node, now)
            holds = {
                Rule.LIVE: start.live,
                Rule.TARGET: start.meant,
                Rule.ALONE: begun[action.instance.id] == 1 and start.alone,
                Rule.RETURNS: start.returns,
            }
            found += [Violation(rule, action) for rule, kept in holds.items() if not kept]
    return tuple(found)


def _starts(found: Pod | None, pod: ObservedPod, node: ObservedNode) -> bool:
    """Whether kubelet works, and starts containers of a pod."""
    conditions = {*pod.unready} - ({NETWORK_READY} if found is not None and found.host_network else set())
    return node.kubelet_silent_since is None and not conditions


def _pod_start(action: RestartPod, decision: Decision, observation: Observation) -> dict[Rule, bool]:
    """Return which rules hold for the restart of a whole pod.

    Its sandbox was recorded before, and is ready. The pod has no other one that is ready, and none that is later. It
    has the image of the request.
    """
    pod, node, request, target = observation.pod, observation.node, action.request, action.target
    known = next((each for each in observation.requests if each.request.uid == request.uid), None)
    pin, live = request.pinned.get(WHOLE_POD), known is not None and known.servable
    ready = [each for each in pod.sandboxes if each.ready or each.attempt > target.attempt]
    own = (target.pod_namespace, target.pod_name) == (request.namespace, request.pod_name)
    begun = [each for each in decision.actions if isinstance(each, WorkAction)]
    idle = all(work.under_way is None for each in observation.requests for work in each.works.values())
    found = pod.pod
    there = {} if found is None else found.containers
    images = [(there[each.name], each.image) for each in request.containers if each.image and each.name in there]
    has_image = all(container.has_image(image) for container, image in images)
    returns = (
        found is not None
        and _starts(found, pod, node)
        and not (found.deleting or found.ended or found.restarting)
        and target.pod_uid == found.runtime_uid
        and all(
            each.policy(node.kubelet_minor) is RestartPolicy.ALWAYS
            for each in found.containers.values()
            if each.kind is ContainerKind.REGULAR
        )
    )
    return {
        Rule.LIVE: live and request.whole_pod,
        Rule.TARGET: has_image and own and ready == [target] and pin is not None and pin.bare_id == target.id,
        Rule.ALONE: begun == [action] and idle,
        Rule.RETURNS: returns,
    }


@dataclass(frozen=True, slots=True)
class _Start:
    """A hook, reload or stop that a decision starts, and what was known."""

    action: RunHook | RunReload | StopContainer
    known: ObservedRequest
    others: list[ObservedRequest]
    pod: ObservedPod
    node: ObservedNode
    now: float

    @property
    def work(self) -> Work:
        """What was done to the instance for the request."""
        return self.known.works.get(self.action.instance.id, NO_WORK)

    @property
    def live(self) -> bool:
        due = isinstance(self.action, StopContainer) and self.work.stop_still_due(self.now)
        return self.known.servable or due

    @property
    def meant(self) -> bool:
        instance = self.pod.instance(self.action.instance.id)
        if (
            instance is None
            or self.known.request.for_image
            or self.known.request.whole_pod
            or self.known.request.reloads is not isinstance(self.action, RunReload)
            or instance.state not in (ContainerState.RUNNING, ContainerState.UNKNOWN)
        ):
            return False
        if isinstance(self.action, RunReload):
            return self.known.is_target(instance) and self._declared
        return self.work is not NO_WORK or self.known.is_target(instance)

    @property
    def _declared(self) -> bool:
        """Whether the reload is the one that the pod declares, and that kubelet recorded on the instance's sandbox."""
        pod, name = self.pod.pod, self.action.instance.name
        recorded = recorded_for(self.action.instance, self.pod.sandboxes)
        if pod is None or name not in pod.containers or recorded is None:
            return False
        own = isinstance(self.action, RunReload) and self.action.reload == read_reload(recorded.get(name, ""))
        return own and not (undeclared(pod, name) or changed_since(pod, name, recorded))

    @property
    def alone(self) -> bool:
        """Whether nothing else is under way, except what a stop may shorten.

        That is another request's stop with a longer timeout, or a hook of one after this request's grace period.
        """
        if self.work.under_way is not None or self._pod_restarts:
            return False
        of_others = [each.works.get(self.action.instance.id, NO_WORK) for each in self.others]
        under_way = [work for work in of_others if work.under_way is not None]
        if not under_way or not isinstance(self.action, StopContainer):
            return not under_way
        longest = max(under_way, key=lambda work: inf if work.until is None else work.until)
        if longest.under_way is WorkKind.STOP:
            return longest.until is None or self.now + self.action.seconds < longest.until
        grace = (self.known.request.strategy.grace_seconds, self.action.instance.grace_seconds, DEFAULT_GRACE_SECONDS)
        return self.now >= self.known.first_seen + max(0, next(each for each in grace if each is not None))

    @property
    def _pod_restarts(self) -> bool:
        """Whether a second sandbox is being made, or is there, for which kubelet stops all containers itself."""
        uids = {each.request.uid for each in self.others}
        made = any(each.ready and each.request_uid in uids for each in self.pod.sandboxes)
        return made or any(w.under_way is WorkKind.SANDBOX for each in self.others for w in each.works.values())

    @property
    def returns(self) -> bool:
        """Whether kubelet works and would start the container again. What has begun is finished by the same rules."""
        pod = self.pod.pod or (self.pod.answer.pod if self.pod.answer is not None else None)
        if not _starts(pod, self.pod, self.node):
            return False
        if pod is None:  # the API server did not say in time whether it is being deleted
            return not self.known.servable and self.action.instance.pod_uid != self.pod.deleting_uid
        if pod.deleting or pod.ended or pod.restarting:
            return False
        name, request = self.action.instance.name, self.known.request
        times = request.start_times.get(name)
        if name not in pod.containers:
            return False
        if isinstance(self.action, RunReload):
            return True
        if self.work is not NO_WORK or request.status.state(name).is_killed or times is not None:
            return True
        container, minor = pod.containers[name], self.node.kubelet_minor
        if not container.kind.recreatable or not comes_back(container.policy(minor), None):
            return False
        return request.strategy.allow_pod_restart or restart_all_code(container.restart_rules, minor) is None
