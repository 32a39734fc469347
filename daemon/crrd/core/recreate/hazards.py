"""Why containers that are stopped may not come back as they were. These are only warnings: no decision uses them."""

from collections.abc import Collection, Iterator
from typing import Any

from crrd.core.api.pod import ContainerKind, Pod
from crrd.core.api.reason_table import ReasonTable
from crrd.kubelet.restart_rules import has_early_liveness_bug, has_startup_probe_bug

_STARTUP_FORGOTTEN = (
    "kubelet {kubelet} has a defect (kubernetes#137146, fixed in 1.35.4): if it was restarted after the pod "
    "started, regular containers might stay down, because the pod has a sidecar with a startupProbe"
)
_EARLY_LIVENESS = (
    "kubelet {kubelet} has a defect (kubernetes#141155, fixed in 1.38): after a restart it may run the livenessProbe "
    "of container {container} before its startupProbe has succeeded. A container that starts slowly may be killed"
)
_PULLS_IMAGE = (
    "imagePullPolicy of container {container} is Always, so kubelet pulls its image again. The container may get "
    "another image than in other pods, or not start while the registry is down (kubernetes#111822)"
)
_REPLACES_GROUP = (
    "after the restart of container {container}, its {owner} may replace all pods of the group "
    "(RecreateGroupOnPodRestart, or a similar restartPolicy)"
)
_COUNTS = "its {owner} counts the restart of container {container} against its backoffLimit, and may fail because of it"


class Hazard(ReasonTable):
    """The table of what may happen, with sentences."""

    MAY_STAY_DOWN = "MayStayDown", _STARTUP_FORGOTTEN
    EARLY_LIVENESS = "EarlyLiveness", _EARLY_LIVENESS
    PULLS_IMAGE = "PullsImage", _PULLS_IMAGE
    REPLACES_GROUP = "ReplacesGroup", _REPLACES_GROUP
    COUNTS_RESTARTS = "CountsRestarts", _COUNTS


def find_hazards(
    pod: Pod, names: Collection[str], down: Collection[str], kubelet: str
) -> Iterator[tuple[Hazard, dict[str, Any]]]:
    """Yield what may happen to the containers `names`, of which `down` have no process, with values for its sentence.

    It is not known whether kubelet was restarted, which one of the defects needs.
    """
    if _none_runs(pod, down) and pod.waits_for_startup and has_startup_probe_bug(kubelet):
        yield Hazard.MAY_STAY_DOWN, {"kubelet": kubelet}
    for name in names:
        container = pod.containers[name]
        if container.startup_probe and container.liveness_probe and has_early_liveness_bug(kubelet):
            yield Hazard.EARLY_LIVENESS, {"kubelet": kubelet, "container": name}
        if container.pulls_image:
            yield Hazard.PULLS_IMAGE, {"container": name}
        if pod.group:
            yield Hazard.REPLACES_GROUP, {"container": name, "owner": pod.group}
        if pod.counted_by:
            yield Hazard.COUNTS_RESTARTS, {"container": name, "owner": pod.counted_by}


def _none_runs(pod: Pod, down: Collection[str]) -> bool:
    """Whether a regular container is down, and no other one runs."""
    regular = [each for each in pod.containers.values() if each.kind is ContainerKind.REGULAR]
    another_runs = any(each.running and each.name not in down for each in regular)
    return not another_runs and any(each.name in down for each in regular)
