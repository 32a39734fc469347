"""Whether kubelet starts a container again that has ended: its restartPolicy, and its restartPolicyRules.

Source: `ContainerShouldRestart` and `FindMatchingContainerRestartRule` in pkg/api/v1/pod/util.go.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any

SIDECARS_SINCE = 29
"""Minor version from which an init container with restartPolicy Always is a native sidecar (SidecarContainers)."""
SIDECAR_HASH_SINCE = 32
"""Minor version from which a sidecar whose definition has changed is replaced."""


def comes_back(policy: str | None, exit_code: int | None) -> bool:
    """Whether kubelet starts a container again by this restartPolicy (absent is Always).

    `exit_code` is None for a container that is being stopped: its code is not known yet.
    """
    return policy != RestartPolicy.NEVER and not (policy == RestartPolicy.ON_FAILURE and exit_code == 0)


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
