"""What a run or a pod waits for, and a command that shows more.

The sentences name no flag and no field, because `crrd recreate` has flags and a policy has fields. Each adds its own
remedies with `worded`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from crrd.core.api.pod import PodContainer
from crrd.core.api.reason_table import ReasonTable
from crrd.core.api.reasons import Reason
from crrd.core.api.time import format_duration, parse_time
from crrd.core.api.types import NODE_DAEMONS, Pin
from crrd.core.recreate.messages import LATER_STEPS, held_back
from crrd.core.rollout.requests import RunRequest
from crrd.core.rollout.state import Member, NodeDaemon, ProbeFailure, World
from crrd.lib.jsonfields import mapping, text

_DAEMON_PODS = f"kubectl get pods -A -l {NODE_DAEMONS} -o wide --field-selector spec.nodeName="
_CHARACTERS = 200  # Most characters of a probe's output, which may be a whole page
_STILL_TRUE = (Reason.NOT_BACK, Reason.POD_RESTARTING)
"""Reasons in a request that still apply when the next instance runs, and that the pod's status does not have."""
_GROUP = (
    "container {container}: after a restart, its LeaderWorkerSet or RoleBasedGroup may replace all pods of the group"
)


class WaitReason(ReasonTable):
    """Why a pod or a whole run has to wait."""

    REPORTED = "Reported", "{message}"  # In a message of the request, of kubelet or of the API server
    ROLLOUT = "RolloutNotFinished", "the rollout of {target} is not finished: {state}"
    FIRST_PODS = "WaitingForFirstPods", "waiting for the first {first} pods"
    JUDGING = "Judging", "the pods of {step} are judged until {at}{detail}"
    STEP_PAUSE = "StepPause", "{step} is done, and the next one begins at {at}"
    IN_ORDER = "PodsInOrder", "pods are restarted in order, and {pod} waits: {why}"
    OTHER_REQUEST = "OtherRequest", "another request for this pod is in progress"
    CONFIG_MISSING = "ConfigMissing", "{missing}"
    FILES = "RefreshingFiles", "kubelet refreshes its files before the restart"
    TOO_MANY_STARTED = "TooManyStarted", "{pods} in progress, the limit is {limit}"
    TOO_MANY_UNREADY = "TooManyUnready", "{pods} {state}, the limit is {limit}: {names}"
    UNREADY_IN_ORDER = (
        "UnreadyInOrder",
        "{pods} {state}, the limit is {limit}: {names}; {pod} comes later in the order",
    )
    BUDGET_OUTDATED = "BudgetOutdated", "the status of PodDisruptionBudget {budget} is out of date"
    BUDGET_USED_UP = "BudgetUsedUp", "PodDisruptionBudget {budget} allows no disruption now{while_other}"
    NODE_LIMIT = "NodeLimit", "node {place} has reached the limit of {limit} pods in progress or unready"
    ZONE_LIMIT = "ZoneLimit", "zone {place} has reached the limit of {limit} pods in progress or unready"
    NODE_NOT_READY = "NodeNotReady", "node {node} is not ready"
    DAEMON_NOT_READY = "NodeDaemonNotReady", "the node daemon on node {node} is not ready"
    PULLING = "PullingImage", "kubelet pulls {image} on node {node}{message}"
    PULL_FAILED = (
        "PullFailed",
        "kubelet cannot pull {image} on node {node}, and no container was stopped there: {message}",
    )
    PULL_REFUSED = (
        "PullRefused",
        "the API server rejects the pod that would pull {image} on node {node}, so no container was stopped: {message}",
    )
    PULLED_OTHERWISE = (
        "PulledOtherwise",
        "pod {pull} has pulled {image} with other {fields} than this pod has, so no container was stopped",
    )
    SETTING_IMAGE = "SettingImage", "container {container} gets the image {image} now"
    NOT_REPLACED = (
        "NotReplacedYet",
        "kubelet has not replaced container {container} yet since it got the image",
    )
    FOREIGN_IMAGE = "ForeignImage", "container {container} was given the image {image} meanwhile"
    ENDED_AGAIN = "EndedAgain", "container {container} has ended again with the image {image}"
    SET_BACK = "ImageSetBack", "container {container} was given the image {image} back"
    MISSING_PODS = "MissingPods", "waiting for new pods of {target}, it has {count} of {desired}"
    ADOPTING = "AdoptingPods", "{message}"
    NOT_READY = "NotReady", "the pod is not ready"
    NOT_STARTED = "NotStartedYet", "kubelet has not started all containers of {pods} again yet"
    NEW_STATUS = "WaitingForStatus", "waiting for the pod's new status"
    NO_READY_TIME = "NoReadyTime", "the pod's Ready condition has no transition time"
    MIN_READY = "MustStayReady", "must be ready for {seconds}s"
    DELETED = "Deleted", "the pod was deleted"
    EVICTED = "Evicted", "the pod was evicted"
    NO_ANSWER = "NoDaemonAnswered", "the node daemon on node {node} has not answered the request"


class Skip(ReasonTable):
    """Why a pod is skipped."""

    DELETING = "Deleting", "the pod is being deleted"
    ENDED = "Ended", "the pod has ended"
    NEW = "New", "the pod was created after the run started"
    NO_CONTAINER = "NoContainer", "container {container} not found in the pod"
    NEVER = "NeverRestarted", "container {container} would not be started again (restartPolicy Never)"
    NOT_RUNNING = "NotRunning", "container {container} is not running"
    RESTARTS_POD = (
        "RestartsWholePod",
        "container {container}: stopping it may restart all containers of the pod (restartPolicyRules)",
    )
    RESTARTS_GROUP = "RestartsGroup", _GROUP
    NOT_STARTED = "NotStarted", "container {container} has not started yet"
    POD_WOULD_END = (
        "PodWouldEnd",
        "the whole pod may end after a restart: the restartPolicy of container {container} or of its pod is not Always",
    )
    HOOK_NEEDS_IP = (
        "HookNeedsPodIP",
        "a restart of the whole pod would skip the httpGet preStop hook of container {container}, which has no host",
    )
    HOST_NETWORK = "HostNetwork", "a pod on the host's network is not restarted as a whole"
    RESTARTS_TWICE = (
        "PodWouldRestartTwice",
        "the restartPolicyRules of container {container} may restart the whole pod a second time",
    )
    OTHER_RUNTIME = (
        "OtherRuntime",
        "whole pods are not restarted in place with the container runtime of container {container}",
    )
    POD_RECENT = "PodAlreadyRestarted", "the pod was already restarted"
    POD_FRESH = "PodNotStale", "the pod uses no ConfigMap or Secret that has changed since its containers started"
    RECENT = "AlreadyRestarted", "container {container} was already restarted"
    FRESH = "NotStale", "container {container} uses no ConfigMap or Secret that has changed since it started"
    CANNOT_RELOAD = (
        "ReloadNotDeclared",
        "the pod does not declare how container {container} reloads (annotation reload.crrd.dev/{container})",
    )
    OLD_DAEMON = "OldNodeDaemon", "the node daemon on its node is too old to have containers reload"
    HAS_IMAGE = "HasImage", "container {container} has the image"
    NOT_ALWAYS = (
        "NotAlwaysRestarted",
        "the restartPolicy of container {container} is not Always, so kubelet may not start it again with an image",
    )
    NO_INIT = "NoInitContainer", "container {container} is no init container, and needs no restart of its pod"
    KEPT = (
        "KeptByKubelet",
        "kubelet on its node is older than 1.32, and would not replace native sidecar {container}",
    )
    LONG_GRACE = "GracePeriodTooLong", "its containers may take longer to stop than the time limit of a pod"
    STATIC = "StaticPod", "it is a static pod, whose containers only the files on its node define"
    OF_KRUISE = "OwnedByOpenKruise", "its controller is of OpenKruise, which writes the images of its pods itself"
    INJECTED = (
        "InjectedByOpenKruise",
        "container {container} was injected by a SidecarSet of OpenKruise, which writes its image itself",
    )
    CHANGED = (
        "ImageChanged",
        "the image of container {container} was changed after its start, and kubelet has not replaced it yet",
    )
    NO_SPELLING = (
        "NoSpelling",
        "container {container}: its image has no other name that the container runtime knows for certain",
    )
    BEFORE = "SkippedBefore", "the run has ended without it"
    NO_DAEMON = "NoNodeDaemon", "the node has no node daemon"
    LONG_NODE_NAME = (
        "NodeNameTooLong",
        "the name of its node is longer than 63 characters, and requests have it in a label",
    )

    @property
    def normal(self) -> bool:
        """Whether the skip needs no action by a user."""
        left = Skip.DELETING, Skip.ENDED, Skip.NEW, Skip.FRESH, Skip.POD_FRESH, Skip.BEFORE
        return self.is_over or self in left

    @property
    def is_over(self) -> bool:
        """Whether the pod has what the run would bring."""
        return self in (Skip.RECENT, Skip.POD_RECENT, Skip.HAS_IMAGE)


Remedies = Mapping[WaitReason | Skip, str]
"""What a user of `crrd recreate`, or of a policy, can do about waits and skips; each takes the values of its row."""


@dataclass(frozen=True, slots=True)
class Wait:
    """What a pod or a run waits for."""

    why: str = ""
    command: str = ""  # A command that shows more; "" for none
    topic: str = ""  # `why` without its duration; "" if it has none
    reason: WaitReason | Skip = WaitReason.REPORTED
    values: Mapping[str, object] = field(default_factory=dict)  # For the remedy

    @classmethod
    def of(cls, reason: WaitReason | Skip, command: str = "", **values: object) -> "Wait":
        """Return a wait with its sentence."""
        return cls(reason.say(**values), command, reason=reason, values=values)

    def worded(self, remedies: Remedies) -> "Wait":
        """Return the wait with the remedy for its reason, if there is one."""
        if self.reason not in remedies:
            return self
        return replace(self, why=f"{self.why}; {remedies[self.reason].format(**self.values)}")

    @property
    def with_command(self) -> str:
        """`why`, followed by the command."""
        return f"{self.why} ({self.command})" if self.command else self.why


NO_WAIT = Wait()


def unserved(node: str, daemons: Mapping[str, NodeDaemon] | None) -> str:
    """Return why no node daemon serves a node now; "" if one does, or it is unknown."""
    if daemons is None or not node:
        return ""
    if node not in daemons:
        return Skip.NO_DAEMON.say()
    return "" if daemons[node].ready else WaitReason.DAEMON_NOT_READY.say(node=node)


def wait_for_node(world: World, node: str) -> Wait:
    """Return why a node cannot restart containers now; an empty Wait if it can, or it is unknown."""
    if node in world.down:
        return Wait.of(WaitReason.NODE_NOT_READY, f"kubectl describe node {node}", node=node)
    daemon = (world.daemons or {}).get(node)
    if daemon is None or daemon.ready:
        return NO_WAIT
    return Wait.of(WaitReason.DAEMON_NOT_READY, f"{_DAEMON_PODS}{node}", node=node)


def wait_for(world: World, member: Member, asked: RunRequest, names: Iterable[str], now: datetime) -> Wait:
    """Return what the first waiting one of these containers waits for; an empty Wait if none waits, or it is unknown.

    The pod's status has priority over the request's message, which may be about an instance that has ended since.
    """
    old = {each.name: each.context.container_id for each in asked.request.containers if each.context is not None}
    for name in names:
        container, state = member.pod.containers.get(name, PodContainer(name)), asked.request.status.state(name)
        is_next = container.running and container.container_id != old.get(name)
        if is_next and not container.ready:
            return _not_ready(world, member, container, now)
        if message := held_back(container):
            crashes = container.waiting_reason == "CrashLoopBackOff"
            return Wait(f"{name}: {message}", f"{_logs(member, name)} --previous" if crashes else describe_pod(member))
        if state.message and not state.phase.final and (not is_next or state.reason in _STILL_TRUE):
            return Wait(state.message)
    return NO_WAIT


def _not_ready(world: World, member: Member, container: PodContainer, now: datetime) -> Wait:
    """Return the wait for a new instance that runs: how long it has been unready, and its probe's last message."""
    started = parse_time(container.started_at)
    since = max((at for at in (started, None if member.ready else member.ready_since) if at is not None), default=now)
    seconds = (now - since).total_seconds()
    if seconds < LATER_STEPS[0]:
        return NO_WAIT
    probe = world.probes.get((member.pod.uid, container.name))
    why = f"its {'readiness' if container.started else 'startup'} probe has not succeeded yet"
    if probe is not None and (started is None or probe.at >= started):
        why = probe.message
    head = f"container {container.name} ({Pin(container.container_id).bare_id[:12]}) is running, but not ready"
    logs = _logs(member, container.name)
    return Wait(f"{head} for {format_duration(seconds)}: {why}", logs, f"{head}: {why}")


def _logs(member: Member, container: str) -> str:
    return f"kubectl logs {member.pod.name} -c {container} -n {member.pod.namespace}"


def describe_pod(member: Member) -> str:
    """Return the command that shows a pod."""
    return f"kubectl describe pod {member.pod.name} -n {member.pod.namespace}"


def read_probe_failure(obj: Mapping[str, Any]) -> tuple[tuple[str, str], ProbeFailure] | None:
    """Return pod UID, container and message of kubelet's event `Unhealthy`; None if the event is malformed."""
    involved = mapping(obj.get("involvedObject"))
    container = text(involved.get("fieldPath")).partition("{")[2].removesuffix("}")
    times = (obj.get("lastTimestamp"), obj.get("eventTime"), mapping(obj.get("metadata")).get("creationTimestamp"))
    at = next((moment for moment in map(parse_time, map(text, times)) if moment is not None), None)
    message = " ".join(text(obj.get("message")).split())
    if at is None or not container or not message:
        return None
    key = (text(involved.get("uid")), container)
    return key, ProbeFailure(message[0].lower() + message[1:_CHARACTERS], at)
