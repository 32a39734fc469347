"""When a recreated pod counts as done: once it has been ready for long enough with its new containers."""

from datetime import datetime, timedelta

from crrd.core.api.time import parse_time
from crrd.core.rollout.requests import RunRequest
from crrd.core.rollout.state import Member
from crrd.core.rollout.waits import NO_WAIT, Wait, WaitReason


def settled_at(min_ready: int, member: Member, asked: RunRequest, now: datetime) -> tuple[datetime | None, Wait]:
    """Return when a recreated pod is done (None if unknown), and what it waits for.

    Kubelet's times are compared with the API server's, as a Deployment's controller does for `minReadySeconds`. Without
    `min_ready`, no times are compared.
    """
    since = [member.ready_since]
    if asked.request.reloads:
        since.append(parse_time(asked.request.status.completion_time))
    for each in asked.request.containers:
        container = member.pod.containers.get(each.name)
        if container is None:
            continue
        is_same = each.context is not None and each.context.container_id == container.container_id
        if is_same and not asked.keeps(each.name):
            return None, Wait.of(WaitReason.NEW_STATUS)
        since.append(parse_time(container.started_at))
    if not member.ready:
        return None, Wait.of(WaitReason.NOT_READY)
    if not min_ready:
        return now, NO_WAIT
    known = [moment for moment in since if moment is not None]
    if not known:
        return None, Wait.of(WaitReason.NO_READY_TIME)
    return max(known) + timedelta(seconds=min_ready), Wait.of(WaitReason.MIN_READY, seconds=min_ready)
