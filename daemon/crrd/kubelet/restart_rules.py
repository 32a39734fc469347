"""Whether kubelet restarts a container that has ended: restartPolicy and restartPolicyRules.

Source: `ContainerShouldRestart` and `FindMatchingContainerRestartRule` in pkg/api/v1/pod/util.go.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any

# Minor version from which an init container with restartPolicy Always is a native sidecar (SidecarContainers)
SIDECARS_SINCE = 29
SIDECAR_HASH_SINCE = 32  # Minor version from which kubelet replaces a sidecar whose definition has changed
STATIC_UIDS_DIFFER_SINCE = 30
"""Minor version from which each one is known to derive another UID than the one before from a static pod's manifest.

Source: `applyDefaults` in pkg/kubelet/config hashes the Go structs of the pod, with every field that the version knows.
Each minor version has added some. Kubelet takes a static pod with another UID for another pod, and replaces it.
"""
RESIZE_SINCE = 33
"""Minor version from which kubelet compares the resources of running containers with those that it recorded
(InPlacePodVerticalScaling, on by default since then). Containers started by an older kubelet have no such record."""
# Minor versions with, by default, a container's own restartPolicy and restartPolicyRules (ContainerRestartRules),
# and with the action RestartAllContainers (RestartAllContainersOnContainerExits)
RULES_SINCE, RESTART_ALL_SINCE = 35, 36
RESTART = "Restart"  # The action of a rule that makes kubelet restart the container whatever its restartPolicy
RESTART_ALL = "RestartAllContainers"
"""The action of a rule that makes kubelet restart all containers of the pod, without grace period and preStop hooks."""

_STARTUP_PROBE_BUG = re.compile(r"v?1\.35\.[0-3](?!\d)", re.ASCII)
_EARLY_LIVENESS_BUG = re.compile(r"v?1\.3[5-7]\.\d", re.ASCII)


def comes_back(policy: str | None, exit_code: int | None) -> bool:
    """Whether kubelet restarts a container with this restartPolicy (None is Always).

    `exit_code` is None for a container that is being stopped, because its code is not known yet.
    """
    return policy != RestartPolicy.NEVER and not (policy == RestartPolicy.ON_FAILURE and exit_code == 0)


def stays_down(policy: str, rules: Iterable[Mapping[str, Any]], exit_code: int | None, minor: int | None) -> bool:
    """Whether kubelet 1.`minor` leaves a container down that has ended with this code (None if it is not known)."""
    ruled = exit_code is not None and supported_action(rules, exit_code, minor)
    return not ruled and not comes_back(policy, exit_code)


def effective_policy(of_pod: "RestartPolicy", own: "RestartPolicy | None", minor: int | None) -> "RestartPolicy":
    """Return the restartPolicy of a regular container: its own if kubelet 1.`minor` supports that field, or the pod's.

    If `minor` is unknown (None), return the one of both that restarts less.
    """
    if own is None or (minor is not None and minor < RULES_SINCE):
        return of_pod
    return own if minor is not None else max(of_pod, own, key=list(RestartPolicy).index)


def restart_all_code(rules: Sequence[Mapping[str, Any]], minor: int | None) -> int | None:
    """Return an exit code of a container that makes kubelet restart the whole pod, None if there is none.

    A stopped container may exit with any code: 143 and 137 are from signals, others from a process that handles its
    stop signal. The most likely code is returned. If the version is unknown (None), the rules count.
    """
    if minor is not None and minor < RESTART_ALL_SINCE:
        return None
    if not any(rule.get("action") == RESTART_ALL for rule in rules):
        return None
    codes = (143, 137, 0, *range(1, 256))
    return next((code for code in codes if matching_action(rules, code) == RESTART_ALL), None)


def matching_action(rules: Iterable[Mapping[str, Any]], exit_code: int) -> str:
    """Return the action of the first of a container's restartPolicyRules that matches the exit code; "" for none."""
    for rule in rules:
        condition = rule.get("exitCodes") or {}
        listed = exit_code in (condition.get("values") or [])
        if (condition.get("operator") == "In" and listed) or (condition.get("operator") == "NotIn" and not listed):
            return str(rule.get("action") or "")
    return ""


def supported_action(rules: Iterable[Mapping[str, Any]], exit_code: int, minor: int | None) -> str:
    """Return the matching action if kubelet 1.`minor` supports it, else "". An unknown version supports all."""
    action = matching_action(rules, exit_code)
    since = {RESTART: RULES_SINCE, RESTART_ALL: RESTART_ALL_SINCE}.get(action)
    return action if since is not None and (minor is None or minor >= since) else ""


def has_startup_probe_bug(version: str) -> bool:
    """Whether a kubelet of this version, when restarted, forgets that a sidecar's startupProbe has succeeded.

    If then no regular container of the pod runs, kubelet treats the pod as not initialized, and restarts none of them.
    A vendor's build may have the fix earlier.

    Source: kubernetes#137146, a regression of 1.35.0; CHANGELOG-1.35.md has the fix under 1.35.4 (kubernetes#137885).
    `computeInitContainerActions` in pkg/kubelet/kuberuntime/kuberuntime_container.go.
    """
    return _STARTUP_PROBE_BUG.match(version) is not None


def has_early_liveness_bug(version: str) -> bool:
    """Whether a kubelet of this version may run a livenessProbe before the startupProbe of a restarted container.

    The status of the new container inherits `started` from the old one. A vendor's build, or a later patch release of
    1.35 to 1.37, may have the fix.

    Source: kubernetes#141155, since 1.35.0; CHANGELOG-1.38.md has the fix under 1.38.0-alpha.1 (kubernetes#141342).
    `convertToAPIContainerStatuses` in pkg/kubelet/kubelet_pods.go.
    """
    return _EARLY_LIVENESS_BUG.match(version) is not None


def keeps_sidecars(minor: int | None) -> bool:
    """Whether kubelet 1.`minor` leaves a native sidecar as it is although its image has changed. Unknown: no."""
    return minor is not None and minor < SIDECAR_HASH_SINCE


class RestartPolicy(StrEnum):
    """When kubelet restarts a container that has exited (of a pod, or of one of its containers)."""

    ALWAYS = "Always"
    ON_FAILURE = "OnFailure"
    NEVER = "Never"
