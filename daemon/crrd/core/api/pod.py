"""The fields of a pod that crrd needs.

Nothing here raises for invalid input. A field that cannot be read counts as absent.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import chain
from typing import Any

from crrd.core.api.gate import NO_CONDITION, Readiness, has_gate, readiness_of
from crrd.core.api.images import ANNOTATION_PATCHED, has_image, pins, plainest, recorded_names
from crrd.core.api.types import ANNOTATION_REFRESH, ANNOTATION_RELOAD
from crrd.kubelet.labels import ANNOTATION_CONFIG_HASH, ANNOTATION_MIRROR
from crrd.kubelet.restart_rules import RestartPolicy, effective_policy
from crrd.lib.jsonfields import INT32_MAX, INT32_MIN, Reader, condition_is_true, items, mapping, number, text

SIDECAR_SETS = "kruise.io/sidecarset"
"""The annotations begin with this that OpenKruise's SidecarSets write on pods (pkg/control/sidecarcontrol)."""
STATUSES = ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses")  # Of containers
CONDITION_RESTARTING = "AllContainersRestarting"
"""Kubelet sets it True when a container's rule restarts the pod, and False when all containers have ended."""


class ContainerKind(StrEnum):
    """The kinds of containers in a pod's spec."""

    REGULAR = "container"
    SIDECAR = "sidecar"
    INIT = "init container"
    EPHEMERAL = "ephemeral container"

    @property
    def recreatable(self) -> bool:
        """Whether kubelet restarts such a container while its pod runs."""
        return self in (ContainerKind.REGULAR, ContainerKind.SIDECAR)


_POLICY_OF_KIND = {ContainerKind.SIDECAR: RestartPolicy.ALWAYS, ContainerKind.EPHEMERAL: RestartPolicy.NEVER}


_REPLACED = {
    "leaderworkerset.sigs.k8s.io/name": "LeaderWorkerSet",
    "rolebasedgroup.workloads.x-k8s.io/name": "RoleBasedGroup",
    "rbg.workloads.x-k8s.io/group-name": "RoleBasedGroup",
}
"""Labels of pods whose controller may replace all pods of their group once a container has a restart count above 0:
RecreateGroupOnPodRestart (the default, kubernetes-sigs/lws, pkg/controllers/pod_controller.go), RecreateRBGOnPodRestart
(sgl-project/rbg). What the group has chosen is not written on its pods."""
_COUNTED = {
    "batch.kubernetes.io/job-name": ("Job", ("OnFailure",)),
    "job-name": ("Job", ("OnFailure",)),
    "training.kubeflow.org/job-name": ("Kubeflow job", ("OnFailure", "Always")),
}
"""Labels of pods whose owner counts restarts against its backoffLimit if the pod has one of these restartPolicies
(pkg/controller/job/job_controller.go, `pastBackoffLimitOnFailure`; kubeflow/training-operator, `PastBackoffLimit`)."""


@dataclass(frozen=True, slots=True)
class PodContainer:
    """One container of the pod's spec, and its status in the API. Times: RFC 3339, kubelet's clock, "" if unset."""

    name: str
    kind: ContainerKind = ContainerKind.REGULAR
    restart_policy: RestartPolicy = RestartPolicy.ALWAYS
    """By its kind: the pod's for a regular container, Always for a sidecar, Never for an ephemeral container."""
    own_restart_policy: RestartPolicy | None = None  # The container's own, of a regular or init container
    restart_rules: tuple[Mapping[str, Any], ...] = ()  # restartPolicyRules, as in the pod's JSON
    startup_probe: bool = False
    liveness_probe: bool = False
    readiness_probe: bool = False
    image: str = ""  # In the spec
    image_names: tuple[str, ...] = ()  # Names of its image that restarts by a patch have recorded, the oldest first
    pulls_image: bool = False  # Whether kubelet pulls its image at every start (imagePullPolicy Always)
    hook_needs_ip: bool = False  # Whether its preStop hook is an httpGet to the pod's IP
    injected: bool = False  # Whether a SidecarSet of OpenKruise has injected it
    reload: str = ""  # How it reloads its files: the pod's annotation (ANNOTATION_RELOAD)
    refreshed: bool = False  # Whether kubelet refreshes files of it. Known if it declares a reload, as the next one
    needs_restart: tuple[str, ...] = ()  # Configuration that a container which runs never gets, for messages
    container_id: str = ""
    image_id: str = ""  # Of that instance, as kubelet reports it
    image_shown: str = ""  # A name of that image, as kubelet reports it. It need not be the one in the spec
    running: bool = False
    terminated: bool = False  # Whether kubelet shows that instance as ended, and has not begun another start
    ready: bool = False
    started: bool = False
    waiting_reason: str = ""
    waiting_message: str = ""
    restart_count: int = 0
    started_at: str = ""  # Of the running instance. Of an init container, also of one that has ended
    finished_at: str = ""  # Of the last ended instance
    exit_code: int | None = None  # Of that instance
    status_path: str = field(default="", compare=False)  # The JSON pointer to its status in the pod; "" if it has none

    @property
    def version_matters(self) -> bool:
        """Whether kubelet's version decides what happens after the container has ended."""
        return self.own_restart_policy is not None or bool(self.restart_rules)

    def has_image(self, image: str) -> bool:
        """Whether it has the image that a run or a request gives, by this name or a recorded one."""
        return has_image(self.image, image, self.image_id, self.image_names)

    def pins(self, image: str) -> bool:
        """Whether its image is this tag of a template, pinned to a digest."""
        return pins(self.image, image, self.image_id, self.image_names)

    @property
    def plain_image(self) -> str:
        """The image by the name that it had before restarts by a patch."""
        plain = plainest(self.image_names) if self.image in self.image_names else self.image
        return plain if self.has_image(plain) else self.image

    def image_among(self, known: Iterable[str]) -> str:
        """Return the first of these names that it has, else the first that it pins, else `plain_image`.

        So what a run has given, or a template has with its digest, is not taken for a tag beside it.
        """
        names = [*known]
        return next(chain(filter(self.has_image, names), filter(self.pins, names)), self.plain_image)

    def policy(self, minor: int | None) -> RestartPolicy:
        """Return the restartPolicy that kubelet 1.`minor` applies (None: unknown version)."""
        return effective_policy(self.restart_policy, self.own_restart_policy, minor)


@dataclass(frozen=True, slots=True)
class PodMeta:
    """A pod without its containers, as the manager keeps it."""

    namespace: str
    name: str
    uid: str
    deleting: bool = False
    phase: str = "Running"
    readiness_gate: bool = False  # Whether the pod has the readiness gate KruisePodReady
    readiness: Readiness = NO_CONDITION  # Also NO_CONDITION without the gate
    grace_ends: str = ""
    """deletionTimestamp of a pod that is being deleted: the end of its grace period, RFC 3339, API server's clock."""

    @property
    def key(self) -> str:
        """`namespace/name` of the pod."""
        return f"{self.namespace}/{self.name}"

    @property
    def ended(self) -> bool:
        """Whether the pod has ended, so that kubelet starts no container in it any more."""
        return self.phase in ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class Pod(PodMeta):
    """A pod with its containers."""

    containers: Mapping[str, PodContainer] = field(default_factory=dict)
    node_name: str = ""  # "" if it is not scheduled
    pod_ip: str = ""
    grace_seconds: int | None = None  # terminationGracePeriodSeconds
    host_network: bool = False
    shares_pids: bool = False  # Whether process 1 is not that of its container (shareProcessNamespace, hostPID)
    refresh: str = ""  # ANNOTATION_REFRESH
    static_uid: str = ""  # UID of a static pod on its node; its mirror pod in the API has another UID
    spec_observed: bool = False
    """Whether its status is about its present spec (status.observedGeneration, since 1.34). False if unknown."""
    group: str = ""  # The kind of its owner if that may replace all pods of a group after a restart (see _REPLACED)
    counted_by: str = ""  # Its owner if that counts restarts of its containers (see _COUNTED)
    restarting: bool = False  # Whether kubelet is about to restart all containers (condition AllContainersRestarting)

    @property
    def recreatable(self) -> dict[str, PodContainer]:
        """The containers that can be recreated, by name: no ordinary init or ephemeral containers."""
        return {name: each for name, each in self.containers.items() if each.kind.recreatable}

    @property
    def kubelet_matters(self) -> bool:
        """Whether kubelet's version decides what happens after a container was stopped."""
        return any(each.version_matters for each in self.containers.values())

    def path_of(self, name: str) -> str:
        """Return the JSON pointer to a regular or init container. Raises ValueError if the pod has no such one."""
        regular = [each.name for each in self.containers.values() if each.kind is ContainerKind.REGULAR]
        init = [
            each.name for each in self.containers.values() if each.kind in (ContainerKind.SIDECAR, ContainerKind.INIT)
        ]
        kind, names = ("containers", regular) if name in regular else ("initContainers", init)
        return f"/spec/{kind}/{names.index(name)}"

    @property
    def waits_for_startup(self) -> bool:
        """Whether kubelet starts regular containers only after a sidecar's startupProbe has succeeded."""
        return any(each.startup_probe and each.kind is ContainerKind.SIDECAR for each in self.containers.values())

    @property
    def has_startup_probe(self) -> bool:
        """Whether a container has a startupProbe, which some versions of kubelet handle wrongly at a restart."""
        return any(each.startup_probe for each in self.containers.values())

    @property
    def runtime_uid(self) -> str:
        """The pod's UID in the runtime: kubelet's label `io.kubernetes.pod.uid`."""
        return self.static_uid or self.uid


def parse_meta(obj: Mapping[str, Any]) -> PodMeta:
    """Parse a pod. A field that cannot be read counts as absent."""
    return PodMeta(**_meta_fields(mapping(obj)))


def parse_pod(obj: Mapping[str, Any]) -> Pod:
    """Parse a pod with its containers. A field that cannot be read counts as absent."""
    pod = mapping(obj)
    meta, spec, status = (mapping(pod.get(key)) for key in ("metadata", "spec", "status"))
    statuses: dict[str, tuple[Mapping[str, Any], str]] = {}
    for key in STATUSES:
        for index, entry in enumerate(map(mapping, items(status.get(key)))):
            statuses.setdefault(text(entry.get("name")), (entry, f"/status/{key}/{index}"))
    containers: dict[str, PodContainer] = {}
    annotations, labels = mapping(meta.get("annotations")), mapping(meta.get("labels"))
    recorded = recorded_names(text(annotations.get(ANNOTATION_PATCHED)))
    of_pod = _restart_policy(spec.get("restartPolicy"), RestartPolicy.ALWAYS)
    by_sets = any(each.startswith(SIDECAR_SETS) for each in annotations)  # only then, as a pod may have many variables
    for name, entry, kind in pod_containers(spec):
        own = entry.get("restartPolicy") if kind in (ContainerKind.REGULAR, ContainerKind.INIT) else None
        plain = PodContainer(
            name,
            kind,
            _POLICY_OF_KIND.get(kind, of_pod),
            _restart_policy(own, of_pod) if own else None,
            tuple(map(mapping, items(entry.get("restartPolicyRules")))),
            entry.get("startupProbe") is not None,
            entry.get("livenessProbe") is not None,
            entry.get("readinessProbe") is not None,
            text(entry.get("image")),
            recorded.get(name, ()),
            entry.get("imagePullPolicy") == "Always",
            _needs_ip(mapping(mapping(entry.get("lifecycle")).get("preStop"))),
            by_sets and _is_injected(entry),
            text(annotations.get(f"{ANNOTATION_RELOAD}{name}")),
        )
        containers.setdefault(name, _with_status(plain, *statuses.get(name, ({}, ""))))
    counted = (owner for label, (owner, policies) in _COUNTED.items() if label in labels and of_pod in policies)
    return Pod(
        **_meta_fields(pod),
        containers=containers,
        node_name=text(spec.get("nodeName")),
        pod_ip=text(status.get("podIP")),
        grace_seconds=Reader().integer(spec.get("terminationGracePeriodSeconds"), ""),
        host_network=spec.get("hostNetwork") is True,
        shares_pids=spec.get("shareProcessNamespace") is True or spec.get("hostPID") is True,
        refresh=text(annotations.get(ANNOTATION_REFRESH)),
        static_uid=text(annotations.get(ANNOTATION_CONFIG_HASH)) if ANNOTATION_MIRROR in annotations else "",
        spec_observed=0 < number(meta.get("generation")) <= number(status.get("observedGeneration")),
        group=next((kind for label, kind in _REPLACED.items() if label in labels), ""),
        counted_by=next(counted, ""),
        restarting=condition_is_true(pod, CONDITION_RESTARTING),
    )


def _meta_fields(pod: Mapping[str, Any]) -> dict[str, Any]:
    meta = mapping(pod.get("metadata"))
    gate = has_gate(pod)
    return {
        "namespace": text(meta.get("namespace")),
        "name": text(meta.get("name")),
        "uid": text(meta.get("uid")),
        "deleting": meta.get("deletionTimestamp") is not None,
        "phase": text(mapping(pod.get("status")).get("phase")) or "Pending",
        "readiness_gate": gate,
        "readiness": readiness_of(pod) if gate else NO_CONDITION,
        "grace_ends": text(meta.get("deletionTimestamp")),
    }


def pod_containers(spec: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any], ContainerKind]]:
    """Name, entry in the spec and kind of each container; an init container with restartPolicy Always is a sidecar."""
    keys = {ContainerKind.INIT: "initContainers", ContainerKind.EPHEMERAL: "ephemeralContainers"}
    for kind, key in {ContainerKind.REGULAR: "containers", **keys}.items():
        for entry in map(mapping, items(spec.get(key))):
            sidecar = kind is ContainerKind.INIT and entry.get("restartPolicy") == RestartPolicy.ALWAYS
            if name := text(entry.get("name")):
                yield name, entry, ContainerKind.SIDECAR if sidecar else kind


def _needs_ip(hook: Mapping[str, Any]) -> bool:
    """Whether kubelet needs the pod's IP for a preStop hook. It takes the first of exec, httpGet and sleep."""
    return "exec" not in hook and "httpGet" in hook and not mapping(hook["httpGet"]).get("host")


def _is_injected(entry: Mapping[str, Any]) -> bool:
    """Whether a SidecarSet has injected a container (`SidecarEnvKey` in OpenKruise's pkg/control/sidecarcontrol)."""
    env = map(mapping, items(entry.get("env")))
    return any((each.get("name"), each.get("value")) == ("IS_INJECTED", "true") for each in env)


def _restart_policy(value: object, default: RestartPolicy) -> RestartPolicy:
    return Reader().choice(value, "restartPolicy", default)


def _with_status(container: PodContainer, status: Mapping[str, Any], path: str) -> PodContainer:
    """Return a container of the spec together with its status."""
    state, last = mapping(status.get("state")), mapping(status.get("lastState"))
    began = mapping(state.get("terminated")) if container.kind is ContainerKind.INIT else {}
    waiting, running = mapping(state.get("waiting")), mapping(state.get("running"))
    ended = mapping(state.get("terminated")) or mapping(last.get("terminated"))
    return replace(
        container,
        container_id=text(status.get("containerID")),
        image_id=text(status.get("imageID")),
        image_shown=text(status.get("image")),
        running=state.get("running") is not None,
        terminated=state.get("terminated") is not None,
        ready=status.get("ready") is True,
        started=status.get("started") is True,
        waiting_reason=text(waiting.get("reason")),
        waiting_message=text(waiting.get("message")),
        restart_count=number(status.get("restartCount"), INT32_MAX),
        started_at=text(running.get("startedAt") or began.get("startedAt")),
        finished_at=text(ended.get("finishedAt")),
        exit_code=Reader().integer(ended.get("exitCode"), "", low=INT32_MIN),
        status_path=path,
    )
