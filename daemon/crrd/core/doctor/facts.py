"""What the API says about an installation of crrd, read from JSON. Nothing raises for bad input."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from crrd.core.api.time import parse_time
from crrd.core.api.types import GROUP, LABEL_NODE_NAME, PLURAL
from crrd.lib.jsonfields import items, mapping, text

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Unread:
    """Stands for what could not be read."""

    why: str


@dataclass(frozen=True, slots=True)
class Hook:
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

    @property
    def namespace(self) -> str:
        """Its namespace."""
        return self.key.partition("/")[0]


@dataclass(frozen=True, slots=True)
class NodeSeen:
    """A node."""

    name: str
    ready: bool
    linux: bool


@dataclass(frozen=True, slots=True)
class LeaseSeen:
    """A Lease: who holds it, and when its holder renewed it by its own clock."""

    name: str
    holder: str
    renewed: datetime | None
    seconds: float  # For how long it holds


@dataclass(frozen=True, slots=True)
class Trial:
    """The answer to a dry-run create of a request for a pod that does not exist."""

    status: int  # The HTTP status; 0 for none, or for a failure inside the server (5xx)
    error: str = ""


@dataclass(frozen=True, slots=True)
class Right:
    """Whether somebody may do something."""

    what: str  # The verb and the resource
    allowed: bool
    account: str = ""  # The ServiceAccount, `namespace:name`; "" for the user


@dataclass(frozen=True, slots=True)
class Facts:
    """All of it, at one moment."""

    version: str  # The API server's
    too_old: bool
    now: datetime  # The API server's time
    here: datetime  # The time of the machine that asks
    crd: Json | Unread | None
    hooks: tuple[Hook, ...] | Unread
    trial: Trial
    policies: tuple[str, ...] | Unread
    bound: tuple[str, ...] | Unread  # The policies that a binding has deny
    managers: tuple[PodSeen, ...] | Unread
    leader: LeaseSeen | Unread | None
    daemons: tuple[PodSeen, ...] | Unread
    nodes: tuple[NodeSeen, ...] | Unread
    node_leases: tuple[LeaseSeen, ...] | Unread
    waiting: tuple[tuple[str, frozenset[str]], ...] | Unread  # Node and reasons of each active request
    rights: tuple[Right, ...] | Unread
    account_rights: tuple[Right, ...] | Unread
    kruise_daemons: tuple[int, ...] | Unread  # How many pods each DaemonSet of OpenKruise wants


def read_hooks(obj: Json) -> tuple[Hook, ...]:
    """The webhooks of a configuration that are asked about requests."""
    found = []
    for each in map(mapping, items(obj.get("webhooks"))):
        rules = [mapping(rule) for rule in items(each.get("rules"))]
        if any(GROUP in items(rule.get("apiGroups")) and PLURAL in items(rule.get("resources")) for rule in rules):
            client = mapping(each.get("clientConfig"))
            trusted = "service" not in client or bool(client.get("caBundle"))
            ignored = each.get("failurePolicy") == "Ignore"
            found.append(Hook(text(each.get("name")), read_name(obj), trusted, ignored))
    return tuple(found)


def read_pod(obj: Json) -> PodSeen:
    """A pod."""
    meta, spec, status = (mapping(obj.get(key)) for key in ("metadata", "spec", "status"))
    namespace = text(meta.get("namespace"))
    states = [mapping(mapping(each).get("state")) for each in items(status.get("containerStatuses"))]
    waiting = (text(mapping(state.get("waiting")).get("reason")) for state in states)
    image = next((text(mapping(each).get("image")) for each in items(spec.get("containers"))), "")
    return PodSeen(
        key=f"{namespace}/{read_name(obj)}",
        node=text(spec.get("nodeName")),
        ready=_is_ready(status),
        why=next(filter(None, waiting), text(status.get("reason"))),
        version=image.rpartition("/")[2].partition("@")[0].partition(":")[2] or image.partition("@")[2],
        account=f"{namespace}:{text(spec.get('serviceAccountName')) or 'default'}",
        ended=status.get("phase") in ("Failed", "Succeeded"),
    )


def read_node(obj: Json) -> NodeSeen:
    """A node."""
    status = mapping(obj.get("status"))
    system = text(mapping(status.get("nodeInfo")).get("operatingSystem"))
    return NodeSeen(read_name(obj), _is_ready(status), system in ("", "linux"))


def read_lease(obj: Json) -> LeaseSeen:
    """A Lease."""
    spec = mapping(obj.get("spec"))
    seconds = spec.get("leaseDurationSeconds")
    return LeaseSeen(
        name=read_name(obj),
        holder=text(spec.get("holderIdentity")),
        renewed=parse_time(text(spec.get("renewTime"))),
        seconds=float(seconds) if isinstance(seconds, int) else 0.0,
    )


def read_waiting(obj: Json) -> tuple[str, frozenset[str]]:
    """The node of a request, and the reasons in its status."""
    status = mapping(obj.get("status"))
    states = map(mapping, items(status.get("containerRecreateStates")))
    labels = mapping(mapping(obj.get("metadata")).get("labels"))
    return text(labels.get(LABEL_NODE_NAME)), frozenset(text(each.get("reason")) for each in (status, *states))


def read_bound(obj: Json) -> str:
    """The policy of a binding, "" where it does not deny."""
    spec = mapping(obj.get("spec"))
    return text(spec.get("policyName")) if "Deny" in items(spec.get("validationActions")) else ""


def read_name(obj: Json) -> str:
    """An object's name."""
    return text(mapping(obj.get("metadata")).get("name"))


def read_desired(obj: Json) -> int:
    """How many pods a DaemonSet wants."""
    found = mapping(obj.get("status")).get("desiredNumberScheduled")
    return found if isinstance(found, int) else 0


def _is_ready(status: Json) -> bool:
    conditions = map(mapping, items(status.get("conditions")))
    return any(each.get("type") == "Ready" and each.get("status") == "True" for each in conditions)
