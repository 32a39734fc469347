"""Whether a kubelet version restarts a container that has ended.

Kubelet uses the container's own policy and rules since 1.35, where the feature ContainerRestartRules is on by default.
This module assumes each version's default feature gates.
"""

from collections.abc import Mapping
from typing import Any

from crrd.kubelet.restart_rules import (
    RESTART_ALL,
    RULES_SINCE,
    SIDECARS_SINCE,
    RestartPolicy,
    comes_back,
    supported_action,
)

Spec = Mapping[str, Any]  # A container or a pod's spec, in the pod's JSON


def is_sidecar(init_container: Spec, minor: int) -> bool:
    """Whether kubelet 1.`minor` keeps this init container running beside the regular containers."""
    return minor >= SIDECARS_SINCE and init_container.get("restartPolicy") == RestartPolicy.ALWAYS


def restarts(container: Spec, pod_spec: Spec, exit_code: int, minor: int) -> bool:
    """Whether a container with this exit code is restarted."""
    own = minor >= RULES_SINCE and container.get("restartPolicy")
    if own and supported_action(container.get("restartPolicyRules") or [], exit_code, minor):
        return True
    return comes_back(_policy(container, pod_spec, minor) or RestartPolicy.ALWAYS, exit_code)


def _policy(container: Spec, pod_spec: Spec, minor: int) -> str | None:
    """Return the restart policy that applies: the container's own, or else the pod's."""
    own: str | None = container.get("restartPolicy") if minor >= RULES_SINCE else None
    return own or pod_spec.get("restartPolicy")


def restarts_on_failure(container: Spec, pod_spec: Spec, minor: int) -> bool:
    """Whether a container that is stopped without an exit code (for example by a probe) is restarted. Ignores rules."""
    return comes_back(_policy(container, pod_spec, minor), None)


def runs_once(container: Spec, pod_spec: Spec, minor: int) -> bool:
    """Whether a container that has succeeded is not started again in a new sandbox."""
    return _policy(container, pod_spec, minor) == RestartPolicy.ON_FAILURE


def restarts_all(container: Spec, exit_code: int, minor: int) -> bool:
    """Whether this exit code restarts all containers of the pod."""
    return supported_action(container.get("restartPolicyRules") or [], exit_code, minor) == RESTART_ALL
