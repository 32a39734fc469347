"""When a recreated pod counts as done: once it has been ready for long enough with its new containers."""

from dataclasses import replace
from datetime import datetime, timedelta

from crrd.core.api.reasons import Reason
from crrd.core.api.time import parse_time
from crrd.core.rollout.requests import RunRequest
from crrd.core.rollout.run import Run
from crrd.core.rollout.state import Member, World

NOT_READY = "the pod is not ready"
UNPROBED_SECONDS = 10
"""How long a pod must be ready by default, if its container gets another image and has no readiness probe."""


def with_min_ready(world: World, run: Run) -> Run:
    """Return a run with an image with its default of `Options.min_ready`.

    Without a readiness probe, a container is ready at once, and may crash a moment later because of its image.
    """
    containers = (each.pod.containers.get(run.options.containers[0]) for each in world.members if each.counts)
    unprobed = any(each is not None and not each.readiness_probe for each in containers)
    if run.options.min_ready is not None or world.min_ready(run) or not unprobed:
        return run
    return replace(run, options=replace(run.options, min_ready=UNPROBED_SECONDS))


def settled_at(min_ready: int, member: Member, asked: RunRequest, now: datetime) -> tuple[datetime | None, str]:
    """Return when a recreated pod is done (None if unknown), and what it waits for.

    Kubelet's times are compared with the API server's, as a Deployment's controller does for `minReadySeconds`. Without
    `min_ready`, no times are compared.
    """
    since = [member.ready_since]
    for each in asked.request.containers:
        container = member.pod.containers.get(each.name)
        if container is None:
            continue
        kept = asked.request.status.state(each.name).reason is Reason.IMAGE_KEPT
        if not kept and each.context is not None and each.context.container_id == container.container_id:
            return None, "waiting for the pod's new status"
        since.append(parse_time(container.started_at))
    if not member.ready:
        return None, NOT_READY
    if not min_ready:
        return now, ""
    known = [moment for moment in since if moment is not None]
    if not known:
        return None, "the pod's Ready condition has no transition time"
    return max(known) + timedelta(seconds=min_ready), f"must be ready for {min_ready}s"
