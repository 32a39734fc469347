"""Pull pods: each brings an image to one node, before a container there is replaced.

Kubelet stops a container first, and pulls its new image then. So a wrong tag, an expired secret or a registry that
does not answer would be an outage. A pull pod has kubelet pull the image as it would for the container: with the same
secrets and credential providers, and seen by every policy for new pods. Its command does not exist, so nothing runs.
While the pod exists, kubelet keeps the image on the node.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from crrd.core.api.pod import parse_pod
from crrd.core.api.time import parse_time
from crrd.core.rollout.image.resources import resources_of
from crrd.core.rollout.run import Run
from crrd.core.rollout.state import Member, pull_source
from crrd.kubelet.waiting import IMAGE_NOT_PULLED, IMAGE_REFUSED, NOT_CREATED
from crrd.lib.jsonfields import items, mapping, number, text

LABEL_PULL = "crr.apps.kruise.io/pull-for-run"
"""On a pull pod: its run. Not LABEL_RUN, by which the requests of runs are found."""
LABEL_PULL_POLICY = "crr.apps.kruise.io/pull-for-policy"
"""On a pull pod of a policy's run, too: the UID of the policy."""
RETRY_SECONDS = 30
"""How long kubelet may try again to pull an image, after it could not be pulled, before the pull has failed."""
PULL_CONTAINER = "pull"
_UNKNOWN = "ContainerStatusUnknown"  # Reason of a container that had not been created when its pod ended
_NOBODY = 65534  # The usual UID of the user nobody
_COMMAND = "/crrd-pulls-only-the-image"
_NO_INJECTION = {
    "sidecar.istio.io/inject": "false",
    "linkerd.io/inject": "disabled",
    "kuma.io/sidecar-injection": "disabled",
    "config.linkerd.io/skip-inject": "true",
    "eks.amazonaws.com/skip-pod-identity-webhook": "true",
}


class PullState(StrEnum):
    """What has come of a pull."""

    PULLING = "pulling"
    RETRYING = "retrying"  # It has failed, and kubelet tries again
    PULLED = "pulled"
    FAILED = "failed"
    REFUSED = "refused"  # The API server has rejected the pull pod, so there is none


@dataclass(frozen=True, slots=True)
class PullPod:
    """A pull pod in the cluster, or one that was refused."""

    name: str
    uid: str
    run: str  # "" if it is no pull pod
    node: str
    state: PullState
    message: str = ""  # Kubelet's, if the image could not be pulled
    created: datetime | None = None
    deleting: bool = False
    source: Mapping[str, Any] = field(default_factory=dict)  # See `pull_source`
    always: bool = False  # Its imagePullPolicy is Always
    image: str = ""  # The one that it pulls; "" if it was refused

    def failure(self, now: datetime, limit: int) -> str | None:
        """Return why the pull has failed, None if it has not. It may take `limit` seconds.

        Kubelet does not end the pod at its deadline while it pulls, and a runtime may wait for a registry for minutes.
        """
        if self.state in (PullState.FAILED, PullState.REFUSED):
            return self.message
        late = self.created is not None and (now - self.created).total_seconds() >= limit
        if self.state is PullState.PULLED or not late:
            return None
        return ": ".join(filter(None, (f"not pulled within {limit}s", self.message)))


def read_pull_pod(obj: Mapping[str, Any]) -> PullPod:
    """Parse a pull pod. Its run is "" if it has only the labels of one: somebody else has given them to that pod."""
    meta, spec, status = (mapping(obj.get(key)) for key in ("metadata", "spec", "status"))
    name, uid, created = (text(meta.get(key)) for key in ("name", "uid", "creationTimestamp"))
    containers = [*map(mapping, items(spec.get("containers")))]  # webhooks may add some
    is_own = [_COMMAND] in [each.get("command") for each in containers] and not items(meta.get("ownerReferences"))
    image = next((text(each.get("image")) for each in containers if each.get("name") == PULL_CONTAINER), "")
    run, node = text(mapping(meta.get("labels")).get(LABEL_PULL)) if is_own else "", text(spec.get("nodeName"))
    deleting = meta.get("deletionTimestamp") is not None
    state, at, source, always = _state(status), parse_time(created), pull_source(obj), asks_always(obj, PULL_CONTAINER)
    known = name, uid, run, node, *state, at, deleting, source, always, image
    return PullPod(*known)


class PullMemory:
    """What is known of pull pods besides their status, by UID."""

    def __init__(self) -> None:
        self._failing: dict[str, float] = {}  # Since when kubelet tries again
        self._pulled: set[str] = set()

    def seen(self, pull: PullPod, now: float) -> PullPod:
        """Return a pull pod as it is `now` (monotonic seconds).

        It has failed if kubelet has tried again for long enough. What was pulled stays pulled, also if the pod ends
        later because its container cannot be created.
        """
        if pull.state is PullState.PULLED or pull.uid in self._pulled:
            self._pulled.add(pull.uid)
            return replace(pull, state=PullState.PULLED, message="")
        if pull.state is not PullState.RETRYING:
            return pull
        late = now - self._failing.setdefault(pull.uid, now) >= RETRY_SECONDS
        return replace(pull, state=PullState.FAILED) if late else pull


def _state(status: Mapping[str, Any]) -> tuple[PullState, str]:
    statuses = map(mapping, items(status.get("containerStatuses")))  # a webhook may have added other containers
    state = next((mapping(each.get("state")) for each in statuses if each.get("name") == PULL_CONTAINER), {})
    waiting, ended = mapping(state.get("waiting")), text(mapping(state.get("terminated")).get("reason"))
    reason, message = text(waiting.get("reason")), " ".join(text(waiting.get("message")).split())
    if ended not in ("", _UNKNOWN) or state.get("running") is not None or reason in NOT_CREATED:
        return PullState.PULLED, ""
    if text(status.get("phase")) == "Failed":  # kubelet has not admitted it, or its deadline has passed
        why = text(status.get("reason")) or "Failed", " ".join(text(status.get("message")).split())
        return PullState.FAILED, ": ".join(filter(None, why))
    if reason in IMAGE_NOT_PULLED:
        state_now = PullState.FAILED if reason in IMAGE_REFUSED else PullState.RETRYING
        return state_now, ": ".join(filter(None, (reason, message)))
    return PullState.PULLING, ""


def lacking(pull: PullPod, member: Member, name: str) -> str:
    """Return the fields that make the pull worthless for a pod's container, because kubelet pulls for it otherwise."""
    always = member.pod.containers[name].pulls_image and not pull.always
    keys = sorted(pull.source.keys() | member.pull_source.keys())
    odd = [key for key in keys if pull.source.get(key) != member.pull_source.get(key)]
    return " and ".join([*odd, *["imagePullPolicy"] * always])


def pull_pod_name(run: Run, node: str) -> str:
    """Return the name of the run's pull pod for a node. So it cannot be created twice."""
    return f"{run.name}-pull-{hashlib.sha256(node.encode()).hexdigest()[:10]}"


def asks_always(pod: Mapping[str, Any], container: str) -> bool:
    """Whether kubelet asks the registry at each start of a container."""
    found = parse_pod(pod).containers.get(container)
    return found is not None and found.pulls_image


def _user_of(like: Mapping[str, Any], container: str) -> dict[str, int]:
    """Return the user of a container, if it is not root.

    Without any, kubelet creates no container of an image whose user is root, and so nothing keeps the image on the
    node. But where a pod has the user of its image, and that must not be root, the pull pod has it, too.
    """
    spec = mapping(like.get("spec"))
    entries = map(mapping, (*items(spec.get("containers")), *items(spec.get("initContainers"))))
    own = next((mapping(each.get("securityContext")) for each in entries if each.get("name") == container), {})
    context = {**mapping(spec.get("securityContext")), **own}
    if uid := number(context.get("runAsUser")):
        return {"runAsUser": uid}
    return {} if context.get("runAsNonRoot") is True else {"runAsUser": _NOBODY}


def pull_pod(run: Run, node: str, image: str, like: Mapping[str, Any]) -> dict[str, Any]:
    """Return the pull pod for a node as JSON. `like` is a pod of the target, whose credentials and user it gets.

    It meets the Pod Security Standard `restricted`, uses next to no resources, and fits on a node with any taint.
    """
    pulls = "Always" if asks_always(like, run.options.containers[0]) else "IfNotPresent"
    policy = run.options.policy
    labels = {LABEL_PULL: run.name, **({LABEL_PULL_POLICY: policy} if policy else {})}
    resources = resources_of(run.options.pull_resources)
    container = {
        "name": PULL_CONTAINER,
        "image": image,
        "imagePullPolicy": pulls,
        "command": [_COMMAND],
        "resources": {"limits": resources, "requests": {**resources}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": pull_pod_name(run, node),
            "namespace": run.namespace,
            "labels": {**labels, **_NO_INJECTION},
            "annotations": {**_NO_INJECTION},
        },
        "spec": {
            **pull_source(like),
            "nodeName": node,
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": 0,
            "activeDeadlineSeconds": run.options.pod_timeout,
            "tolerations": [{"operator": "Exists"}],
            "securityContext": {
                "runAsNonRoot": True,
                **_user_of(like, run.options.containers[0]),
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [container],
        },
    }
