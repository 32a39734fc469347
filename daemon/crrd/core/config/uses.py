"""Which ConfigMaps and Secrets each container of a pod uses, and which configuration a restart in place does not bring.

What counts is what kubelet gives to the container: see `environment` and `volumes`, and the table of kubelet's rules in
tests/core/config/test_uses.py. imagePullSecrets do not count, because their changes do not reach a container. Invalid
input raises no exception.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from crrd.core.api.pod import ContainerKind, Pod, parse_pod, pod_containers
from crrd.core.config.environment import of_environment, plain_values
from crrd.core.config.references import Kind, Reference, Use
from crrd.core.config.volumes import of_mounts, read_volume
from crrd.lib.jsonfields import items, mapping, text, value_at

_PLATFORM_OBJECTS = {
    (Kind.CONFIG_MAP, name)
    for name in ("kube-root-ca.crt", "openshift-service-ca.crt", "istio-ca-root-cert", "istio-ca-crl")
}
"""Objects that a platform puts into every namespace. A new CA in them must not restart the containers of all pods."""
_CSI_DRIVER = "secrets-store.csi.k8s.io"


class OutOfReach(StrEnum):
    """Why a restart in place does not bring changed configuration, and what to do."""

    INIT_CONTAINER = (
        "only an init container uses it, or some of its keys, and runs again only with the whole pod: use "
        "kubectl recreate --whole-pod, or configChange.allowPodRestart of a policy, or replace the pods"
    )
    CSI_DRIVER = (
        f"the CSI driver {_CSI_DRIVER} mounts it, so no ConfigMap or Secret shows its changes: "
        "use schedule or maxAge, or let the driver sync it to a Secret that the container uses"
    )
    IMMUTABLE = (
        "it is immutable and was replaced under its name, and kubelet may keep the old data while any pod on the node "
        "uses it: use another name for new data, or scale the pods to 0 and back"
    )


@dataclass(frozen=True, slots=True)
class Unreached:
    """Configuration whose changes lead to no restart in place."""

    container: str
    kind: str  # ConfigMap, Secret or SecretProviderClass
    name: str
    why: OutOfReach

    @property
    def of_init(self) -> bool:
        """Whether a restart of the whole pod brings the changes, because init containers run again."""
        return self.why is OutOfReach.INIT_CONTAINER

    def __str__(self) -> str:
        """For messages."""
        return f"{self.kind} {self.name} of container {self.container}: {self.why}"


def references(pod: Mapping[str, Any], *, with_init: bool = False) -> dict[str, tuple[Reference, ...]]:
    """Return what each container that can be recreated uses, by name, from a pod's JSON.

    `with_init`: also init containers, which run again if the whole pod is restarted.
    """
    every = _all_uses(pod).items()
    return {
        name: uses for name, (kind, uses) in every if kind.recreatable or (with_init and kind is ContainerKind.INIT)
    }


def parse_reloading_pod(obj: Mapping[str, Any]) -> Pod:
    """Parse a pod, and find which files kubelet refreshes in those of its containers that declare a reload."""
    pod = parse_pod(obj)
    if not any(each.reload for each in pod.containers.values()):
        return pod
    found = {}
    for name, (_, uses) in _all_uses(obj).items():
        kept = [str(use) for use in uses if use.use is not Use.VOLUME]
        refreshed = any(use.use is Use.VOLUME for use in uses)
        found[name] = replace(pod.containers[name], refreshed=refreshed, needs_restart=tuple(kept))
    return replace(pod, containers={**pod.containers, **found})


def unreached(pod: Mapping[str, Any]) -> tuple[Unreached, ...]:
    """Return the pod's configuration whose changes lead to no restart in place, from its JSON."""
    return tuple(dict.fromkeys([*_only_initial(pod), *_from_csi_driver(mapping(pod.get("spec")))]))


def _only_initial(pod: Mapping[str, Any]) -> Iterator[Unreached]:
    uses = _all_uses(pod)
    others = [use for kind, some in uses.values() if kind.recreatable for use in some]
    for name, (kind, some) in uses.items():
        for use in some:
            if kind is ContainerKind.INIT and not _is_covered(use, others):
                yield Unreached(name, *use.object, OutOfReach.INIT_CONTAINER)


def _from_csi_driver(spec: Mapping[str, Any]) -> Iterator[Unreached]:
    classes = {
        text(volume.get("name")): text(value_at(volume, "csi.volumeAttributes.secretProviderClass"))
        for volume in map(mapping, items(spec.get("volumes")))
        if value_at(volume, "csi.driver") == _CSI_DRIVER
    }
    for name, container, _ in pod_containers(spec):
        for mount in map(mapping, items(container.get("volumeMounts"))):
            if (volume_name := text(mount.get("name"))) in classes:
                yield Unreached(name, "SecretProviderClass", classes[volume_name], OutOfReach.CSI_DRIVER)


def _is_covered(use: Reference, others: Iterable[Reference]) -> bool:
    """Whether containers that can be recreated use the same keys."""
    same = [other for other in others if other.object == use.object]
    whole = any(other.keys is None for other in same)
    return whole if use.keys is None else all(any(other.uses(key) for other in same) for key in use.keys)


def of_platform(pod: Mapping[str, Any]) -> frozenset[tuple[Kind, str]]:
    """Return the objects of the platform that the containers use, and whose changes do not count."""
    return frozenset(use.object for _, _, uses in _each_use(pod) for use in uses) & _PLATFORM_OBJECTS


def _all_uses(pod: Mapping[str, Any]) -> dict[str, tuple[ContainerKind, tuple[Reference, ...]]]:
    """Return the kind of each container, and what it uses and counts, by its name."""
    return {
        name: (kind, tuple(use for use in uses if use.object not in _PLATFORM_OBJECTS))
        for name, kind, uses in _each_use(pod)
    }


def _each_use(pod: Mapping[str, Any]) -> Iterator[tuple[str, ContainerKind, dict[Reference, None]]]:
    spec = mapping(pod.get("spec"))
    volumes = {text(each.get("name")): tuple(read_volume(each)) for each in map(mapping, items(spec.get("volumes")))}
    for name, container, kind in pod_containers(spec):
        uses = [*of_environment(container), *of_mounts(container, volumes, plain_values(pod, container))]
        yield name, kind, dict.fromkeys(uses)
