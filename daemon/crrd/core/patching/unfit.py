"""What a patch of the pod cannot do for a request. Admission denies such a request, and the manager lets it fail."""

from crrd.core.admission.rules import DenialReason, Denied
from crrd.core.api.types import Request, Strategy
from crrd.core.rollout.patch.kind import unfit
from crrd.core.rollout.patch.operations import START_SECONDS, most_seconds
from crrd.core.rollout.skips import barred
from crrd.core.rollout.state import Member
from crrd.core.rollout.waits import Skip


def review(request: Request, member: Member, kubelet_minor: int | None) -> Denied | None:
    """Deny a new request that a patch cannot carry out; None if it can. Admission has checked all else.

    `kubelet_minor` is the minor version of the kubelet on the pod's node, None if it is unknown.
    """
    if why := unfit_request(request, member):
        return Denied(why, DenialReason.NEEDS_DAEMON)
    for index, name in enumerate(each.name for each in request.containers):
        if (skip := unfit_container(request, member, name, kubelet_minor)) is not None:
            rule = "a container that can be restarted without a node daemon"
            sentence = f"spec.containers[{index}].name must name {rule}: {skip.say(container=name)}"
            return Denied(sentence, DenialReason.NEEDS_DAEMON)
    return None


def unfit_request(request: Request, member: Member) -> str:
    """Return why no patch can carry out the request as a whole: a sentence that names the field; "" if one can."""
    strategy, pod = request.strategy, member.pod
    own = Strategy().grace(pod.grace_seconds)
    count = 1 if strategy.ordered else len(request.containers)
    least, stop = most_seconds(member, count), "the pod's grace period"
    stop = f"{stop} for each of {count} containers, which kubelet stops one after the other" if count > 1 else stop
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
    early = (
        f"activeDeadlineSeconds must be at least {least}: {stop}, and {START_SECONDS}s until kubelet starts a "
        "container again"
    )
    rules = (
        (request.for_image, image),
        (request.whole_pod, whole),
        (request.reloads, reload),
        (strategy.force, force),
        (strategy.grace_seconds not in (None, pod.grace_seconds), grace),
        (request.deadline_seconds is not None and request.deadline_seconds < least, early),
    )
    return next((f"spec.{rule}" for broken, rule in rules if broken), "")


def unfit_container(request: Request, member: Member, name: str, kubelet_minor: int | None) -> Skip | None:
    """Return why a patch cannot restart a container of the pod, None if it can."""
    container, allowed = member.pod.containers[name], request.strategy.allow_pod_restart
    why_not = barred(member.pod, container, kubelet_minor, allow_pod_restart=allowed)
    return why_not or unfit(member, container, kubelet_minor)
