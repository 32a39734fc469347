"""Kinds of objects as they stand in URLs, and what lists and watches of them give."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Protocol, TypedDict, TypeVar
from urllib.parse import quote

from crrd.core.api import types as model
from crrd.core.config.references import Kind

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Resource:
    """One kind of object, as it stands in URLs."""

    plural: str
    group: str = ""
    version: str = "v1"
    others: tuple[str, ...] = ()
    """Versions with the same fields, which are asked for where the server does not serve that one."""
    page: int = field(default=250, compare=False)
    """Objects in one page of a list: some 500 KB. A page is read in one go, and keeps the loop for 10 ms or so.

    Of what any user may write as large as etcd takes it (1.5 MiB), a page has to fit the daemons' memory four times.
    """

    metadata_only: bool = False  # Whether lists and watches bring the objects' metadata alone (PartialObjectMetadata)

    @property
    def full_name(self) -> str:
        """As kubectl names it: the plural and the group."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """The URL's path, quoted: of one object, or without a name of the whole list."""
        root = ["apis", self.group, self.version] if self.group else ["api", self.version]
        scope = ["namespaces", namespace] if namespace else []
        parts = [*root, *scope, self.plural, *filter(None, (name, subresource))]
        return "/" + "/".join(quote(part, safe="", errors="replace") for part in parts)


def metadata_of(resource: Resource) -> Resource:
    """The same kind, of which lists and watches bring metadata alone."""
    return replace(resource, page=250, metadata_only=True)


REQUESTS = Resource(model.PLURAL, model.GROUP, model.VERSION, model.VERSIONS[1:], page=25)
PODS = Resource("pods", page=25)
EVENTS = Resource("events")
NODES = Resource("nodes")
LEASES = Resource("leases", "coordination.k8s.io")
NAMESPACES = Resource("namespaces")
CONFIG_MAPS = Resource("configmaps", page=25)
SECRETS = Resource("secrets", page=25)
CONFIGURATION: Mapping[Kind, Resource] = {Kind.CONFIG_MAP: CONFIG_MAPS, Kind.SECRET: SECRETS}
WEBHOOKS = Resource("mutatingwebhookconfigurations", "admissionregistration.k8s.io")
POLICIES = Resource(model.POLICY_PLURAL, model.POLICY_GROUP, "v1alpha1")
BUDGETS = Resource("poddisruptionbudgets", "policy")
DISCOVERY = Resource("discovery")  # Stands in for the documents that say what the API server serves

NODE_DAEMONS = "app.kubernetes.io/name=crrd,app.kubernetes.io/component=node"
"""Selects the pods of the node daemon, by the labels that the manifests give them."""
MANAGERS = "app.kubernetes.io/name=crrd,app.kubernetes.io/component=manager"  # Likewise those of the manager


class Where(TypedDict, total=False):
    """Which objects of a kind are meant."""

    namespace: str  # "" for all
    label_selector: str
    field_selector: str


class ObjectReader(Protocol):
    """Reads single objects, as `client.KubeClient` does."""

    async def get(self, resource: Resource, namespace: str, name: str) -> Mapping[str, Any]:
        """One object; GoneError where there is none of that name."""
        ...


@dataclass(frozen=True, slots=True)
class Page:
    """A part of a list."""

    items: Iterable[Mapping[str, Any]]  # To be gone through once, decoded on the way (or MalformedAnswerError raised)
    resource_version: str


@dataclass(frozen=True, slots=True)
class Listing(Generic[T]):
    """A whole list, parsed."""

    items: tuple[T, ...]
    resource_version: str  # The version to watch from


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """One event of a watch; `kind` is ADDED, MODIFIED, DELETED or BOOKMARK."""

    kind: str
    object: Mapping[str, Any]
