"""Whether kubelet starts a container again that has ended: its restartPolicy, and its restartPolicyRules.

Source: `ContainerShouldRestart` and `FindMatchingContainerRestartRule` in pkg/api/v1/pod/util.go.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any

# Minor version from which an init container with restartPolicy Always is a native sidecar (SidecarContainers)
SIDECARS_SINCE = 29
SIDECAR_HASH_SINCE = 32  # Minor version from which a sidecar whose definition has changed is replaced
RESIZE_SINCE = 33
"""Minor version from which kubelet compares the resources of running containers with those that it once set
(InPlacePodVerticalScaling, on by default since then). Containers that an older one started have no such record."""
# Minor versions from which, by default, a container's own restartPolicy and restartPolicyRules count
# (ContainerRestartRules), and the action RestartAllContainers (RestartAllContainersOnContainerExits)
RULES_SINCE, RESTART_ALL_SINCE = 35, 36
RESTART = "Restart"  # The action of a rule that has kubelet start the container again whatever its restartPolicy
RESTART_ALL = "RestartAllContainers"
"""The action of a rule that has kubelet restart every container of the pod, without a grace period or preStop hooks."""

_FORGETFUL = re.compile(r"v?1\.35\.[0-3](?!\d)", re.ASCII)


def comes_back(policy: str | None, exit_code: int | None) -> bool:
    """Whether kubelet starts a container again by this restartPolicy (absent is Always).

    `exit_code` is None for a container that is being stopped: its code is not known yet.
    """
    return policy != RestartPolicy.NEVER and not (policy == RestartPolicy.ON_FAILURE and exit_code == 0)


def effective_policy(of_pod: "RestartPolicy", own: "RestartPolicy | None", minor: int | None) -> "RestartPolicy":
    """The restartPolicy that counts for a regular container: its own one where kubelet 1.`minor` knows that field.

    `minor` is None where nobody knows it: then the one that restarts less counts.
    """
    if own is None or (minor is not None and minor < RULES_SINCE):
        return of_pod
    return own if minor is not None else max(of_pod, own, key=list(RestartPolicy).index)


def restart_all_code(rules: Sequence[Mapping[str, Any]], minor: int | None) -> int | None:
    """An exit code with which a container has kubelet restart its whole pod; None where there is none.

    A container that is stopped may end with any code: 143 and 137 are those of the signals, others those of a process
    that handles its stop signal. The most likely one is given. Where nobody knows the version, the rules count.
    """
    if minor is not None and minor < RESTART_ALL_SINCE:
        return None
    if not any(rule.get("action") == RESTART_ALL for rule in rules):
        return None
    codes = (143, 137, 0, *range(1, 256))
    return next((code for code in codes if matching_action(rules, code) == RESTART_ALL), None)


def matching_action(rules: Iterable[Mapping[str, Any]], exit_code: int) -> str:
    """The action of the first of a container's restartPolicyRules that holds for the code; "" for none."""
    for rule in rules:
        condition = rule.get("exitCodes") or {}
        listed = exit_code in (condition.get("values") or [])
        if (condition.get("operator") == "In" and listed) or (condition.get("operator") == "NotIn" and not listed):
            return str(rule.get("action") or "")
    return ""


def heeded_action(rules: Iterable[Mapping[str, Any]], exit_code: int, minor: int | None) -> str:
    """The same where kubelet 1.`minor` knows the action, else ""; a kubelet whose version nobody knows has them all."""
    action = matching_action(rules, exit_code)
    since = {RESTART: RULES_SINCE, RESTART_ALL: RESTART_ALL_SINCE}.get(action)
    return action if since is not None and (minor is None or minor >= since) else ""


def forgets_startup(version: str) -> bool:
    """Whether such a kubelet, when it is restarted, forgets that a sidecar's startupProbe has succeeded.

    It then takes the pod for one that is not initialized while none of its regular containers runs, and restarts none
    of them. A vendor's build may have the fix earlier.

    Source: kubernetes#137146, a regression of 1.35.0; CHANGELOG-1.35.md has the fix under 1.35.4 (kubernetes#137885).
    `computeInitContainerActions` in pkg/kubelet/kuberuntime/kuberuntime_container.go.
    """
    return _FORGETFUL.match(version) is not None


class RestartPolicy(StrEnum):
    """When kubelet starts an exited container again (of a pod, or of one container of it)."""

    ALWAYS = "Always"
    ON_FAILURE = "OnFailure"
    NEVER = "Never"
