"""The other runs beside a run: those that it must wait for, and those that it replaces."""

from collections.abc import Mapping

from crrd.core.rollout.requests import RunRequest
from crrd.core.rollout.run import Run
from crrd.core.rollout.state import World


def first_rival(world: World, run: Run) -> Run | None:
    """Return a run on the same target, or on one of its pods, that is older than this one and has unended requests."""
    first = min(
        (each for each in with_unended_requests(world, run) if not run.replaces(each)), key=age_of, default=None
    )
    return first if first is not None and age_of(first) < age_of(run) else None


def taken_over(world: World, run: Run) -> Mapping[str, list[RunRequest]]:
    """Return, by pod (UID), the open requests of runs that this run replaces.

    They must end, because the node serves the requests of a pod one after the other.
    """
    found: dict[str, list[RunRequest]] = {}
    for each in world.requests:
        if run.replaces(each.run) and each.is_open:
            found.setdefault(each.request.pod_uid, []).append(each)
    return found


def with_unended_requests(world: World, run: Run) -> list[Run]:
    """Return other runs with a request for the same target, or for one of its pods, that has not ended.

    Also one that somebody is about to end, because until then, the node may serve it.
    """
    pods = {member.pod.uid for member in world.members}
    others = [each for each in world.requests if each.run.name != run.name and not each.request.completed]
    own = run.target.identity
    return [each.run for each in others if each.run.target.identity == own or each.request.pod_uid in pods]


def age_of(run: Run) -> tuple[str, str]:
    """Sort key of runs, the oldest first."""
    return run.started, run.name
