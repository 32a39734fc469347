"""Why a pod or a container is skipped by a run, and which containers of a pod a run recreates."""

from collections.abc import Iterator

from crrd.core.api.pod import ContainerKind, PodContainer
from crrd.core.api.time import parse_time
from crrd.core.api.types import StatePhase
from crrd.core.config.objects import changes
from crrd.core.config.parts import parts_of, read_change
from crrd.core.rollout.requests import RunRequest
from crrd.core.rollout.run import Run
from crrd.core.rollout.state import Member, World
from crrd.core.rollout.waits import Skip
from crrd.kubelet.restart_rules import RestartPolicy, keeps_sidecars, restart_all_code
from crrd.kubelet.version import known_minor


def skips(world: World, run: Run, member: Member, failed: RunRequest | None) -> Iterator[tuple[Skip, str]]:
    """Yield reasons to skip a pod, each with its container or "". The first one is shown."""
    pod = member.pod
    if pod.deleting:
        yield Skip.DELETING, ""
    if pod.ended:
        yield Skip.ENDED, ""
    created, started = parse_time(member.created), parse_time(run.started)
    late = created is not None and started is not None and created > started
    if late and run.options.image is None:  # a new pod has the present configuration, but maybe another image
        yield Skip.NEW, ""
    chosen = wanted(run, member)
    if not chosen:
        yield Skip.NO_CONTAINER, " or ".join(run.options.containers)
    fits = [(skip_reason(world, run, member, each, failed), each.name) for each in chosen]
    unfit = [(skip, name) for skip, name in fits if skip is not None]
    yield from (each for each in unfit if each[0] is Skip.RESTARTS_POD)
    if len(unfit) == len(chosen):
        yield from unfit
    if world.daemons is not None and pod.node_name not in world.daemons:
        yield Skip.NO_DAEMON, ""


def wanted(run: Run, member: Member) -> tuple[PodContainer, ...]:
    """Return the run's containers that exist in the pod, in the run's order."""
    there = member.pod.recreatable
    return tuple(there[name] for name in run.options.containers or there if name in there)


def skip_reason(
    world: World, run: Run, member: Member, container: PodContainer, failed: RunRequest | None
) -> Skip | None:
    """Return why a container is skipped, by the rules of its kubelet's version; None if it is to be recreated.

    A container that a failed request could not recreate is recreated again, even if it has started since.
    """
    minor, change = known_minor(world.kubelets.get(member.pod.node_name, "")), run.options.image
    if change is not None and container.image == change.image:
        return Skip.HAS_IMAGE
    known = member.pod.node_name in world.kubelets  # else it is read before the pod starts
    if change is not None and container.kind is ContainerKind.SIDECAR and known and keeps_sidecars(minor):
        return Skip.KEPT
    if container.policy(minor) is RestartPolicy.NEVER:
        return Skip.NEVER
    if change is not None and container.policy(minor) is not RestartPolicy.ALWAYS:
        return Skip.NOT_ALWAYS
    if change is not None and container.container_id:
        return _restarts_pod(run, container, minor)  # also if it crashes, because another image may help
    if not container.running or not container.container_id:
        return Skip.NOT_RUNNING
    if failed is None or failed.request.status.state(container.name).phase is not StatePhase.FAILED:
        started, since = parse_time(container.started_at), parse_time(run.options.since or run.started)
        if started is not None and since is not None and started > since:
            return Skip.RECENT
        uses = member.config.get(container.name, ())
        if run.options.stale and not changes(uses, container, world.config, world.kept_on(member)):
            return Skip.FRESH
        if run.options.objects and started is not None:
            missed = filter(None, map(read_change, run.options.objects))
            if not any(change.misses(part, started) for change in missed for part in parts_of(uses)):
                return Skip.FRESH
    return _restarts_pod(run, container, minor)


def _restarts_pod(run: Run, container: PodContainer, minor: int | None) -> Skip | None:
    ruled = restart_all_code(container.restart_rules, minor) is not None
    return Skip.RESTARTS_POD if ruled and not run.options.allow_pod_restart else None
