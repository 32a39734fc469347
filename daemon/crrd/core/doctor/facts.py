"""What the API says about an installation of crrd, read from JSON. Nothing raises for bad input."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from crrd.core.admission.rules import Denied, read_new, review_create
from crrd.core.api.pod import ContainerKind, parse_pod
from crrd.core.api.reasons import reason_of
from crrd.core.api.time import parse_time
from crrd.core.api.types import GROUP, LABEL_NODE_NAME, PLURAL
from crrd.core.api.v1alpha1 import parse_request
from crrd.lib.jsonfields import condition_is_true, items, mapping, name_of, text, value_at

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Webhook:
    """A webhook that names ContainerRecreateRequests in its rules."""

    name: str
    configuration: str
    trusted: bool = True  # Whether the API server can know its CA: a Service needs a caBundle, a URL does not
    ignored: bool = False  # Whether failurePolicy is Ignore


@dataclass(frozen=True, slots=True)
class PodSeen:
    """A pod of the manager or of the node daemon."""

    key: str  # `namespace/name`
    node: str
    ready: bool
    why: str  # Why it is not ready, in kubelet's word; "" where kubelet gives none
    version: str  # The tag or digest of its image
    account: str  # `namespace:name` of its ServiceAccount
    ended: bool = False  # Whether it stays ended, as an evicted pod
    patches: bool = False  # Whether it is a manager that restarts containers by patches (`--via patch`)

    @property
    def namespace(self) -> str:
        """Its namespace."""
        return self.key.partition("/")[0]


VIRTUAL_NODES = {"type": "virtual-kubelet", "eks.amazonaws.com/compute-type": "fargate"}
"""Labels of virtual nodes, which have no container runtime; as in manifests/node/daemonset.yaml."""


@dataclass(frozen=True, slots=True)
class NodeSeen:
    """A node."""

    name: str
    ready: bool
    has_runtime: bool  # Linux, and no virtual node: the DaemonSet of the node daemon leaves out all others
    runtime: str = ""  # Name and version of its container runtime, as `cri-o://1.36.0`


@dataclass(frozen=True, slots=True)
class LeaseSeen:
    """A Lease: who holds it, and when it was renewed. By the holder's clock; by the API server's if it is crrd's."""

    name: str
    holder: str
    renewed: datetime | None
    seconds: float  # For how long it holds


@dataclass(frozen=True, slots=True)
class Trial:
    """The answer to a dry-run create of a request."""

    status: int  # The HTTP status; 0 for none, or for a failure inside the server (5xx)
    error: str = ""
    pod: str = ""  # The pod (`namespace/name`); "" for one that does not exist
    admitted: bool = False  # Whether the request came back with all that admission sets


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that the API says, read at one time."""

    version: str  # The API server's
    too_old: bool
    now: datetime  # The API server's time
    here: datetime  # The time of the machine that asks
    trial: Trial  # For a pod that does not exist
    unread: Mapping[str, str]  # Which of the fields below could not be read, and why
    valid_trial: Trial | None = None  # For a pod and a container that can be recreated; None if there is none
    by_version: Mapping[str, tuple[Trial, Trial | None]] = field(default_factory=dict)
    """Both trials by each further version of requests that is served."""
    crd: Json | None = None
    policy_crd: Json | None = None
    hooks: tuple[Webhook, ...] = ()
    policies: tuple[str, ...] = ()
    bound: tuple[str, ...] = ()  # The policies that a binding has deny
    managers: tuple[PodSeen, ...] = ()
    leader: LeaseSeen | None = None
    daemons: tuple[PodSeen, ...] = ()
    nodes: tuple[NodeSeen, ...] = ()
    node_leases: tuple[LeaseSeen, ...] = ()
    waiting: tuple[tuple[str, frozenset[str]], ...] = ()  # Node and reasons of each active request
    other_names: tuple[str, ...] = ()
    """Of each pod that a run has patched: `namespace/name` if an image has another name because of that, else ""."""
    missing_rights: tuple[str, ...] = ()  # What the user may not do: verb and resource
    missing_for_patches: tuple[str, ...] = ()  # Likewise, of what restarts by patches need
    accounts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Likewise, by ServiceAccount (`namespace:name`) of crrd's pods."""
    kruise_daemons: tuple[int, ...] = ()  # How many pods each DaemonSet of OpenKruise wants

    @property
    def is_absent(self) -> bool:
        """Whether nothing that serves requests is installed, as far as everything about that could be read."""
        unknown = self.unread.keys() & {"crd", "hooks", "managers", "daemons"}
        return not unknown and self.crd is None and not (self.hooks or self.managers or self.daemons)

    @property
    def needs_no_daemons(self) -> bool:
        """Whether there are no node daemons, because the manager restarts containers by patches."""
        return not self.daemons and any(each.patches for each in self.managers)


def read_hooks(obj: Json) -> tuple[Webhook, ...]:
    """Return the webhooks of a configuration that the API server calls for requests."""
    found = []
    for each in map(mapping, items(obj.get("webhooks"))):
        rules = map(mapping, items(each.get("rules")))
        if any(GROUP in items(rule.get("apiGroups")) and PLURAL in items(rule.get("resources")) for rule in rules):
            client = mapping(each.get("clientConfig"))
            trusted = "service" not in client or bool(client.get("caBundle"))
            found.append(Webhook(text(each.get("name")), name_of(obj), trusted, each.get("failurePolicy") == "Ignore"))
    return tuple(found)


def read_pod(obj: Json) -> PodSeen:
    """Parse a pod."""
    namespace = text(value_at(obj, "metadata.namespace"))
    containers = items(value_at(obj, "status.containerStatuses"))
    waiting = (text(value_at(each, "state.waiting.reason")) for each in containers)
    image = next((text(value_at(each, "image")) for each in items(value_at(obj, "spec.containers"))), "")
    return PodSeen(
        key=f"{namespace}/{name_of(obj)}",
        node=text(value_at(obj, "spec.nodeName")),
        ready=condition_is_true(obj, "Ready"),
        why=next(filter(None, waiting), text(value_at(obj, "status.reason")) or _unscheduled(obj)),
        version=image.rpartition("/")[2].partition("@")[0].partition(":")[2] or image.partition("@")[2],
        account=f"{namespace}:{text(value_at(obj, 'spec.serviceAccountName')) or 'default'}",
        ended=value_at(obj, "status.phase") in ("Failed", "Succeeded"),
        patches=any(map(_patches, items(value_at(obj, "spec.containers")))),
    )


def _unscheduled(obj: Json) -> str:
    """Return the scheduler's message about a pod that it finds no node for, else ""."""
    conditions = map(mapping, items(value_at(obj, "status.conditions")))
    found = (text(each.get("message")) for each in conditions if each.get("type") == "PodScheduled")
    return next(found, "")


def _patches(container: Any) -> bool:
    """Whether a container of the manager has `--via patch`, or the environment variable that stands for it."""
    entry = mapping(container)
    words = " ".join(text(each) for key in ("command", "args") for each in items(entry.get(key)))
    variables = ((each.get("name"), each.get("value")) for each in map(mapping, items(entry.get("env"))))
    return "--via patch" in words.replace("=", " ") or ("CRRD_VIA", "patch") in variables


def read_other_name(obj: Json) -> str:
    """Return `namespace/name` of a pod if a restart by a patch has given an image of it another name, else ""."""
    pod = parse_pod(obj)
    return pod.key if any(each.plain_image != each.image for each in pod.containers.values()) else ""


def read_target(obj: Json) -> tuple[str, str] | None:
    """Return the name of a pod and of its first container that any user could recreate. None if it has none."""
    pod = parse_pod(obj)
    for each in pod.containers.values():
        asked = read_new({"spec": {"podName": pod.name, "containers": [{"name": each.name}]}})
        admitted = not isinstance(asked, Denied) and not isinstance(review_create(asked, pod, ""), Denied)
        if each.kind is ContainerKind.REGULAR and each.running and admitted:
            return pod.name, each.name
    return None


def is_complete(obj: Json) -> bool:
    """Whether a new request has all that admission sets, so that a node daemon serves it."""
    request = parse_request(obj)
    found = request.pod_uid and request.node_name and all(each.context for each in request.containers)
    return request.active and bool(found)


def read_node(obj: Json) -> NodeSeen:
    """Parse a node."""
    system, labels = text(value_at(obj, "status.nodeInfo.operatingSystem")), mapping(value_at(obj, "metadata.labels"))
    virtual = any(labels.get(key) == value for key, value in VIRTUAL_NODES.items())
    return NodeSeen(
        name=name_of(obj),
        ready=condition_is_true(obj, "Ready"),
        has_runtime=system in ("", "linux") and not virtual,
        runtime=text(value_at(obj, "status.nodeInfo.containerRuntimeVersion")),
    )


def read_lease(obj: Json) -> LeaseSeen:
    """Parse a Lease."""
    seconds = value_at(obj, "spec.leaseDurationSeconds")
    return LeaseSeen(
        name=name_of(obj),
        holder=text(value_at(obj, "spec.holderIdentity")),
        renewed=parse_time(text(value_at(obj, "spec.renewTime"))),
        seconds=float(seconds) if isinstance(seconds, int) else 0.0,
    )


def read_waiting(obj: Json) -> tuple[str, frozenset[str]]:
    """Return the node of a request, and the reasons in its status."""
    labels, status = mapping(value_at(obj, "metadata.labels")), mapping(obj.get("status"))
    parts = (status, *map(mapping, items(status.get("containerRecreateStates"))))
    return text(labels.get(LABEL_NODE_NAME)), frozenset(map(_reason, parts))


def _reason(status: Json) -> str:
    """Return the reason of a wait, also if the CRD has pruned it."""
    return text(status.get("reason")) or reason_of(text(status.get("message")), final=False).value


def read_bound(obj: Json) -> str:
    """Return the policy of a binding, or "" if the binding does not deny."""
    denies = "Deny" in items(value_at(obj, "spec.validationActions"))
    return text(value_at(obj, "spec.policyName")) if denies else ""


def read_desired(obj: Json) -> int:
    """Return how many pods a DaemonSet wants."""
    found = value_at(obj, "status.desiredNumberScheduled")
    return found if isinstance(found, int) else 0
