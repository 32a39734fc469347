"""Whether a defect of kubelet may keep stopped containers down. People are warned of it; no decision depends on it."""

from collections.abc import Collection

from crrd.core.api.pod import ContainerKind, Pod
from crrd.kubelet.restart_rules import forgets_startup

STARTUP_FORGOTTEN = (
    "kubelet {kubelet} has a defect (kubernetes#137146, fixed in 1.35.4): if it was restarted after the pod "
    "started, regular containers might stay down, because the pod has a sidecar with a startupProbe"
)


def may_stay_down(pod: Pod, stopped: Collection[str], kubelet: str) -> bool:
    """Whether a regular container may stay down once the containers of these names are stopped.

    It needs a kubelet that forgets a sidecar's startup, and no other regular container that runs: see
    `forgets_startup`. Nobody can tell whether kubelet was restarted.

    Args:
        pod: as the API has it.
        stopped: names of containers.
        kubelet: the version that the pod's node reports.
    """
    regular = [each for each in pod.containers.values() if each.kind is ContainerKind.REGULAR]
    named = any(each.name in stopped for each in regular)
    another_runs = any(each.running and each.name not in stopped for each in regular)
    return pod.waits_for_startup and named and not another_runs and forgets_startup(kubelet)
