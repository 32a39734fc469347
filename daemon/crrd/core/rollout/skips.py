"""Why a pod or a container is skipped by a run, and which containers of a pod a run recreates."""

from collections.abc import Iterable, Iterator
from datetime import datetime

from crrd.core.api.pod import ContainerKind, Pod, PodContainer
from crrd.core.api.time import parse_time
from crrd.core.api.types import StatePhase
from crrd.core.config.objects import changes
from crrd.core.config.parts import held_since, parts_of, read_change
from crrd.core.config.references import Reference
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
    if change is not None and container.kind is ContainerKind.SIDECAR and keeps_sidecars(minor):
        return Skip.KEPT
    why_not = barred(container, minor)
    if why_not is Skip.RESTARTS_POD and run.options.allow_pod_restart:
        why_not = None
    if change is not None and why_not is not Skip.NEVER and container.policy(minor) is not RestartPolicy.ALWAYS:
        return Skip.NOT_ALWAYS
    if change is not None and container.container_id:
        return why_not  # also if it crashes, because another image may help
    if not container.running or not container.container_id:
        return why_not if why_not is Skip.NEVER else Skip.NOT_RUNNING
    if failed is None or failed.request.status.state(container.name).phase is not StatePhase.FAILED:
        started, since = parse_time(container.started_at), parse_time(run.options.since or run.started)
        recent = started is not None and since is not None and started > since
        uses = member.config.get(container.name, ())
        if run.options.objects and started is not None:
            if not _misses_change(run, uses, started, member.mounted(container.name)):
                return Skip.RECENT if recent else Skip.FRESH
        elif recent:
            return Skip.RECENT
        if run.options.stale and not changes(uses, container, world.config, world.kept_on(member)):
            return Skip.FRESH
    return why_not


def _misses_change(run: Run, uses: Iterable[Reference], started: datetime, mounted: datetime | None) -> bool:
    """Whether a container misses one of the run's changes. `mounted` is as in `held_since`."""
    held = {part: held_since(some, started, mounted) for part, some in parts_of(uses).items()}
    missed = filter(None, map(read_change, run.options.objects))
    return any(change.misses(part, since) for change in missed for part, since in held.items())


def kubelet_matters(pod: Pod, *, for_image: bool) -> bool:
    """Whether kubelet's version decides which containers of a pod are skipped (`for_image`: by a run with an image)."""
    sidecar = for_image and any(each.kind is ContainerKind.SIDECAR for each in pod.containers.values())
    return sidecar or pod.kubelet_matters


def barred(container: PodContainer, minor: int | None) -> Skip | None:
    """Return why a container can never be restarted in place without its pod, None if it can."""
    if container.policy(minor) is RestartPolicy.NEVER:
        return Skip.NEVER
    return Skip.RESTARTS_POD if restart_all_code(container.restart_rules, minor) is not None else None
