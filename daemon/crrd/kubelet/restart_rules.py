"""Whether kubelet starts a container again that has ended: the pod's restartPolicy, the container's own, and its rules.

Source: `ContainerShouldRestart` and `FindMatchingContainerRestartRule` in pkg/api/v1/pod/util.go. Kubelet heeds the
container's own policy and rules since 1.35, where the feature ContainerRestartRules is on by default; this follows the
defaults of each version, not its feature gates.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any

SIDECARS_SINCE = 29
"""Minor version from which an init container with restartPolicy Always is a native sidecar (SidecarContainers)."""
SIDECAR_HASH_SINCE = 32
"""Minor version from which a sidecar whose definition has changed is replaced."""
RULES_SINCE = 35
"""Minor version from which a container's own restartPolicy and restartPolicyRules count (ContainerRestartRules)."""
RESTART_ALL_SINCE = 36
"""Minor version from which the action RestartAllContainers does (RestartAllContainersOnContainerExits)."""

Spec = Mapping[str, Any]
"""A container, or a pod's spec, as in the pod's JSON."""


def comes_back(policy: str | None, exit_code: int | None) -> bool:
    """Whether a restartPolicy alone has a container started again.

    Args:
        policy: the one that counts for it; absent is Always.
        exit_code: what it has ended with; None for one that is stopped, whose code nobody knows yet.
    """
    return policy != RestartPolicy.NEVER and not (policy == RestartPolicy.ON_FAILURE and exit_code == 0)


def is_sidecar(init_container: Spec, minor: int) -> bool:
    """Whether kubelet 1.`minor` keeps this init container running beside the pod's regular ones."""
    return minor >= SIDECARS_SINCE and init_container.get("restartPolicy") == RestartPolicy.ALWAYS


def restarts(container: Spec, pod_spec: Spec, exit_code: int, minor: int) -> bool:
    """Whether a container is started again that has ended with this code."""
    own = container.get("restartPolicy") if minor >= RULES_SINCE else None
    action = matching_action(container.get("restartPolicyRules") or [], exit_code)
    if own and (action == "Restart" or restarts_all(container, exit_code, minor)):
        return True
    policy = own or pod_spec.get("restartPolicy") or RestartPolicy.ALWAYS
    return comes_back(policy, exit_code)


def restarts_on_failure(container: Spec, pod_spec: Spec, minor: int) -> bool:
    """The same for one that is stopped for a reason without an exit code, as for a probe: rules are not asked."""
    own = container.get("restartPolicy") if minor >= RULES_SINCE else None
    return comes_back(own or pod_spec.get("restartPolicy"), None)


def runs_once(container: Spec, pod_spec: Spec, minor: int) -> bool:
    """Whether a container that has succeeded is left out where the pod gets a new sandbox."""
    own = container.get("restartPolicy") if minor >= RULES_SINCE else None
    return bool((own or pod_spec.get("restartPolicy")) == RestartPolicy.ON_FAILURE)


def restarts_all(container: Spec, exit_code: int, minor: int) -> bool:
    """Whether the pod's containers are all begun anew because this one has ended with this code."""
    action = matching_action(container.get("restartPolicyRules") or [], exit_code)
    return minor >= RESTART_ALL_SINCE and action == "RestartAllContainers"


def matching_action(rules: Iterable[Mapping[str, Any]], exit_code: int) -> str:
    """The action of the first of a container's restartPolicyRules that holds for the code; "" for none."""
    for rule in rules:
        condition = rule.get("exitCodes") or {}
        listed = exit_code in (condition.get("values") or [])
        if (condition.get("operator") == "In" and listed) or (condition.get("operator") == "NotIn" and not listed):
            return str(rule.get("action") or "")
    return ""


class RestartPolicy(StrEnum):
    """When kubelet starts an exited container again (of a pod, or of one container of it)."""

    ALWAYS = "Always"
    ON_FAILURE = "OnFailure"
    NEVER = "Never"
