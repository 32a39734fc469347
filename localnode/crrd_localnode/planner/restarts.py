"""Whether kubelet starts a container again that has ended, by the version of kubelet.

Kubelet heeds the container's own policy and rules since 1.35, where the feature ContainerRestartRules is on by default;
this follows the defaults of each version, not its feature gates.
"""

from collections.abc import Mapping
from typing import Any

from crrd.kubelet.restart_rules import (
    RESTART_ALL,
    RULES_SINCE,
    SIDECARS_SINCE,
    RestartPolicy,
    comes_back,
    heeded_action,
)

Spec = Mapping[str, Any]  # A container, or a pod's spec, as in the pod's JSON


def is_sidecar(init_container: Spec, minor: int) -> bool:
    """Whether kubelet 1.`minor` keeps this init container running beside the pod's regular ones."""
    return minor >= SIDECARS_SINCE and init_container.get("restartPolicy") == RestartPolicy.ALWAYS


def restarts(container: Spec, pod_spec: Spec, exit_code: int, minor: int) -> bool:
    """Whether a container is started again that has ended with this code."""
    own = minor >= RULES_SINCE and container.get("restartPolicy")
    if own and heeded_action(container.get("restartPolicyRules") or [], exit_code, minor):
        return True
    return comes_back(_policy(container, pod_spec, minor) or RestartPolicy.ALWAYS, exit_code)


def _policy(container: Spec, pod_spec: Spec, minor: int) -> str | None:
    """The restart policy that counts: the container's own, else the pod's."""
    own: str | None = container.get("restartPolicy") if minor >= RULES_SINCE else None
    return own or pod_spec.get("restartPolicy")


def restarts_on_failure(container: Spec, pod_spec: Spec, minor: int) -> bool:
    """The same for one that is stopped for a reason without an exit code, as for a probe: rules are not asked."""
    return comes_back(_policy(container, pod_spec, minor), None)


def runs_once(container: Spec, pod_spec: Spec, minor: int) -> bool:
    """Whether a container that has succeeded is left out where the pod gets a new sandbox."""
    return _policy(container, pod_spec, minor) == RestartPolicy.ON_FAILURE


def restarts_all(container: Spec, exit_code: int, minor: int) -> bool:
    """Whether the pod's containers are all begun anew because this one has ended with this code."""
    return heeded_action(container.get("restartPolicyRules") or [], exit_code, minor) == RESTART_ALL
