"""What a patch of the pod cannot do for a request. Admission denies such a request, and the manager lets it fail."""

from crrd.core.admission.rules import DenialReason, Denied
from crrd.core.api.pod import Pod
from crrd.core.api.types import Request, Strategy
from crrd.core.rollout.patch.kind import unfit
from crrd.core.rollout.patched import START_SECONDS, most_seconds
from crrd.core.rollout.skips import barred
from crrd.core.rollout.state import Member
from crrd.core.rollout.waits import Skip

LEAD_SECONDS = 30
"""From the creation of a request to its patch, without the unready grace period: rounds, or a change of the leader."""


def review(request: Request, member: Member, kubelet_minor: int | None) -> Denied | None:
    """Deny a new request that a patch cannot carry out; None if it can. Admission has checked all else.

    `kubelet_minor` is the minor version of the kubelet on the pod's node, None if it is unknown.
    """
    least = least_deadline(request, member.pod)
    early = (
        f"spec.activeDeadlineSeconds must be at least {least}: {LEAD_SECONDS}s and the unready grace period until the "
        f"first stop, the grace period of each container, and {START_SECONDS}s until its next start"
    )
    is_early = request.deadline_seconds is not None and request.deadline_seconds < least
    if why := unfit_request(request, member) or (early if is_early else ""):
        return Denied(why, DenialReason.NEEDS_DAEMON)
    for index, name in enumerate(each.name for each in request.containers):
        if (skip := unfit_container(request, member, name, kubelet_minor)) is not None:
            rule = "a container that can be restarted without a node daemon"
            sentence = f"spec.containers[{index}].name must name {rule}: {skip.say(container=name)}"
            return Denied(sentence, DenialReason.NEEDS_DAEMON)
    return None


def unfit_request(request: Request, member: Member) -> str:
    """Return why no patch can carry out the request as a whole: a sentence that names the field; "" if one can.

    Whether there is time left until its deadline is asked again for each container (`View.states`).
    """
    strategy, pod = request.strategy, member.pod
    own = Strategy().grace(pod.grace_seconds)
    image = "containers[0].image must be left out: another image needs a node daemon"
    whole = "wholePod must be false: only a node daemon can restart a whole pod in place"
    reload = "strategy.action must not be Reload: only a node daemon has containers reload"
    force = (
        "strategy.forceRecreate must be left out: without a node daemon, only the instance that ran when the request "
        "was created is restarted"
    )
    grace = (
        "strategy.terminationGracePeriodSeconds must be left out: without a node daemon, kubelet uses the pod's grace "
        f"period ({own}s)"
    )
    rules = (
        (request.for_image, image),
        (request.whole_pod, whole),
        (request.reloads, reload),
        (strategy.force, force),
        (strategy.grace_seconds not in (None, pod.grace_seconds), grace),
    )
    return next((f"spec.{rule}" for broken, rule in rules if broken), "")


def least_deadline(request: Request, pod: Pod) -> int:
    """Return the shortest deadline of a request, in seconds, by which kubelet has certainly started its containers."""
    strategy, count = request.strategy, len(request.containers)
    between = (count - 1) * strategy.min_started_seconds if strategy.ordered else 0
    stops = most_seconds(pod, count, ordered=strategy.ordered)
    return LEAD_SECONDS + (strategy.unready_grace_seconds or 0) + stops + between


def unfit_container(request: Request, member: Member, name: str, kubelet_minor: int | None) -> Skip | None:
    """Return why a patch cannot restart a container of the pod, None if it can."""
    container, allowed = member.pod.containers[name], request.strategy.allow_pod_restart
    why_not = barred(member.pod, container, kubelet_minor, allow_pod_restart=allowed)
    return why_not or unfit(member, container, kubelet_minor)
