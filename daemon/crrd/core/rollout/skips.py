"""Why a pod or a container is skipped by a run, and which containers of a pod a run recreates."""

from collections.abc import Iterable, Iterator

from crrd.core.api.pod import ContainerKind, Pod, PodContainer
from crrd.core.rollout.kind import Kind
from crrd.core.rollout.requests import RunRequest
from crrd.core.rollout.rows import Row
from crrd.core.rollout.run import Run
from crrd.core.rollout.state import Member
from crrd.core.rollout.waits import Skip
from crrd.kubelet.restart_rules import RestartPolicy, restart_all_code

RESTART_MORE = (Skip.RESTARTS_POD, Skip.RESTARTS_GROUP)  # What `allow_pod_restart` allows
BAR_POD = (
    *RESTART_MORE,
    Skip.NOT_STARTED,
    Skip.POD_WOULD_END,
    Skip.HOOK_NEEDS_IP,
    Skip.HOST_NETWORK,
    Skip.RESTARTS_TWICE,
    Skip.OTHER_RUNTIME,
)
"""Why a pod is skipped because of one container, even if others could be recreated."""
LABEL_CHARACTERS = 63  # Most characters of a label's value (k8s.io/apimachinery, LabelValueMaxLength)


def skips(kind: Kind, member: Member, failed: RunRequest | None) -> Iterator[tuple[Skip, str]]:
    """Yield reasons to skip a pod, each with its container or "". The first one is shown. `failed`: see `Kind.skip`."""
    pod, run, daemons = member.pod, kind.run, kind.world.daemons
    if pod.deleting:
        yield Skip.DELETING, ""
    if pod.ended:
        yield Skip.ENDED, ""
    if member.created_after(run.started) and not kind.takes_new_pods:
        yield Skip.NEW, ""
    chosen = wanted(run, member)
    if not chosen:
        yield Skip.NO_CONTAINER, " or ".join(run.options.containers)
    beside = (each for each in pod.containers.values() if each.kind in kind.beside)
    fits = [(kind.skip(member, each, failed), each.name) for each in (*chosen, *beside)]
    unfit = [(skip, name) for skip, name in fits if skip is not None]
    yield from (each for each in unfit if each[0] in BAR_POD)
    if len(unfit) == len(fits):
        yield from unfit
    if not kind.needs_daemon:
        return
    if len(pod.node_name) > LABEL_CHARACTERS:
        yield Skip.LONG_NODE_NAME, ""
    if daemons is not None and pod.node_name not in daemons:
        yield Skip.NO_DAEMON, ""


def wanted(run: Run, member: Member) -> tuple[PodContainer, ...]:
    """Return the run's containers that exist in the pod, in the run's order.

    With whole pods, the only one that is named is the init container that gets an image.
    """
    names = run.options.containers
    there = member.pod.containers if names and run.options.whole_pod else member.pod.recreatable
    return tuple(there[name] for name in names or there if name in there)


def barred_containers(kind: Kind, rows: Iterable[Row]) -> Iterator[str]:
    """Yield the containers that a run has left because they can never be restarted in place, with the reason."""
    there = ((row.pod, row.member) for row in rows if row.skip is None and row.member is not None and row.member.counts)
    for pod, member in there:
        for each in wanted(kind.run, member):
            skip = kind.skip(member, each, None)
            if skip is Skip.NEVER or skip in RESTART_MORE:
                yield f"{pod}: {skip.say(container=each.name)}"


def kubelet_matters(pod: Pod, *, for_image: bool) -> bool:
    """Whether kubelet's version decides which containers of a pod are skipped (`for_image`: by a run with an image)."""
    sidecar = for_image and any(each.kind is ContainerKind.SIDECAR for each in pod.containers.values())
    return sidecar or pod.kubelet_matters


def barred(pod: Pod, container: PodContainer, minor: int | None, *, allow_pod_restart: bool = False) -> Skip | None:
    """Return why a container can never be restarted in place, None if it can.

    `allow_pod_restart` means that the rest of its pod may be restarted with it, and its group may be replaced.
    """
    if container.policy(minor) is RestartPolicy.NEVER:
        return Skip.NEVER
    if allow_pod_restart:
        return None
    if restart_all_code(container.restart_rules, minor) is not None:
        return Skip.RESTARTS_POD
    return Skip.RESTARTS_GROUP if pod.group else None
