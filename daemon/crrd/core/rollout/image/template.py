"""The template of a workload and its revisions, as far as one image in it matters.

Controllers compare templates, and the labels of pods. They never look at the images of pods. A revision is a ReplicaSet
of a Deployment, or a ControllerRevision of a StatefulSet or DaemonSet.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from crrd.core.rollout.workload import read_owner
from crrd.lib.jsonfields import decimal, items, mapping, number, text

LABEL_ADOPTING = "crr.apps.kruise.io/adopting-run"
"""On a workload: the run that holds its controller, while the template gets the image. Labels of a Deployment are not
copied to its ReplicaSets, other than annotations."""
LABEL_HELD = "crr.apps.kruise.io/held"  # On a workload: the value of its update strategy that was replaced to hold it
LABEL_REVISION = "controller-revision-hash"
HOLDING_PARTITION = 1_000_000_000  # Above every ordinal, also if the StatefulSet is scaled up meanwhile
ON_DELETE = "OnDelete"  # The update strategy of a set that does not replace pods itself
_LABEL_TEMPLATE = "pod-template-hash"
_REVISION = "deployment.kubernetes.io/revision"


@dataclass(frozen=True, slots=True)
class Content:
    """A pod template as seen by a run that changes one image of it."""

    image: str = ""  # Of the container; "" if the template does not have the container
    path: str = ""  # JSON pointer to the container, in the pod's spec
    rest: str = ""  # Digest of all else
    images: tuple[
        tuple[str, str], ...
    ] = ()  # Of each container that kubelet replaces for another image: name and image
    shape: str = ""  # Digest of all but these images, and that of the container


@dataclass(frozen=True, slots=True)
class Template:
    """A workload whose template a run may change."""

    kind: str
    name: str
    uid: str
    content: Content
    generation: int = 0  # Number of the last change of the spec
    observed: bool = True  # Whether its controller has seen the last change
    has_labels: bool = False
    holder: str = ""  # The run that holds its controller (LABEL_ADOPTING)
    left_by: str = ""  # The run in that label, if somebody else has released the controller
    held: str = ""  # See LABEL_HELD
    paused: bool = False  # A Deployment's
    strategy: str = ""  # Type of the update strategy
    partition: int | None = None  # A StatefulSet's; None without a rollingUpdate
    first_ordinal: int = 0  # A StatefulSet's `ordinals.start`
    replicas: int = 0  # Its pods by its status; of a DaemonSet: nodes with one
    updated: int = 0  # Those of them that its controller takes for updated
    update_revision: str = ""  # Name of a StatefulSet's newest ControllerRevision

    @property
    def is_suspended(self) -> bool:
        """Whether the controller rolls out no changed template, or not to all pods, because its user has said so."""
        return self.paused or self.strategy == ON_DELETE or bool(self.partition)

    def rolls_out(self, ordinal: int) -> bool:
        """Whether the controller of a set replaces the pod with this ordinal if it is not of the newest revision.

        The partition of a StatefulSet counts from its first ordinal (updateStatefulSet,
        pkg/controller/statefulset/stateful_set_control.go).
        """
        if self.strategy == ON_DELETE:
            return False
        return self.kind == "DaemonSet" or ordinal >= self.first_ordinal + (self.partition or 0)


NO_TEMPLATE = Template("", "", "", Content())
"""That of a target which is no workload."""


@dataclass(frozen=True, slots=True)
class Revision:
    """A ReplicaSet or ControllerRevision of the workload."""

    name: str
    uid: str
    version: str  # resourceVersion
    owner: str  # UID of the workload
    content: Content
    number: int = 0  # Its place in the order
    replicas: int = 0  # The pods that a ReplicaSet is to have
    label: str = ""  # LABEL_REVISION of the pods that a ControllerRevision stands for


def read_content(template: Mapping[str, Any], container: str) -> Content:
    """Return what a run needs of a pod template."""
    meta, spec = mapping(template.get("metadata")), mapping(template.get("spec"))
    labels = {key: value for key, value in mapping(meta.get("labels")).items() if key != _LABEL_TEMPLATE}
    shape = {key: value for key, value in template.items() if key != "$patch"}
    shape["metadata"] = {key: value for key, value in {**meta, "labels": labels}.items() if key != "creationTimestamp"}
    image, path, images, bare = "", "", [], dict(spec)
    for kind in ("containers", "initContainers"):
        entries = [*map(mapping, items(spec.get(kind)))]
        without = [*entries]
        for index, entry in enumerate(entries):
            if entry.get("name") == container and not path:
                image, path = text(entry.get("image")), f"/{kind}/{index}"
                others = [*entries[:index], {**entry, "image": ""}, *entries[index + 1 :]]
                shape["spec"] = {**spec, kind: others}
            runs = kind == "containers" or entry.get("restartPolicy") == "Always"
            if runs:
                images.append((text(entry.get("name")), text(entry.get("image"))))
            if runs or entry.get("name") == container:  # the pods restart with that of an init container
                without[index] = {**entry, "image": ""}
        if entries:
            bare[kind] = without
    return Content(image, path, _digest(shape), tuple(images), _digest({**shape, "spec": bare}))


def _digest(shape: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(shape, sort_keys=True, default=str).encode()).hexdigest()[:16]


def read_template(obj: Mapping[str, Any], container: str) -> Template:
    """Parse a workload. Its JSON must have the kind."""
    meta, spec, status = (mapping(obj.get(key)) for key in ("metadata", "spec", "status"))
    labels, strategy = mapping(meta.get("labels")), mapping(spec.get("updateStrategy"))
    rolling, paused, kind = strategy.get("rollingUpdate"), spec.get("paused") is True, text(strategy.get("type"))
    partition = number(mapping(rolling).get("partition")) if rolling is not None else None
    holder, held = text(labels.get(LABEL_ADOPTING)), paused or kind == ON_DELETE or partition == HOLDING_PARTITION
    return Template(
        text(obj.get("kind")),
        text(meta.get("name")),
        text(meta.get("uid")),
        read_content(mapping(spec.get("template")), container),
        generation=number(meta.get("generation")),
        observed=number(status.get("observedGeneration")) >= number(meta.get("generation")),
        has_labels=bool(labels),
        holder=holder if held else "",
        left_by="" if held else holder,
        held=text(labels.get(LABEL_HELD)),
        paused=paused,
        strategy=kind,
        partition=partition,
        first_ordinal=number(mapping(spec.get("ordinals")).get("start")),
        replicas=number(status.get("replicas", status.get("currentNumberScheduled"))),
        updated=number(status.get("updatedReplicas", status.get("updatedNumberScheduled"))),
        update_revision=text(status.get("updateRevision")),
    )


def read_revision(obj: Mapping[str, Any], container: str) -> Revision:
    """Parse a ReplicaSet or a ControllerRevision."""
    meta, spec = mapping(obj.get("metadata")), mapping(obj.get("spec"))
    owner, data = read_owner(obj), mapping(mapping(obj.get("data")).get("spec"))
    template = mapping((spec or data).get("template"))
    place = decimal(text(mapping(meta.get("annotations")).get(_REVISION)))
    name, label = text(meta.get("name")), text(mapping(meta.get("labels")).get(LABEL_REVISION))
    return Revision(
        name,
        text(meta.get("uid")),
        text(meta.get("resourceVersion")),
        owner.uid if owner is not None else "",
        read_content(template, container),
        number=number(obj.get("revision")) if place is None else place,
        replicas=number(spec.get("replicas")),
        label=name if owner is not None and owner.kind == "StatefulSet" else label,
    )
