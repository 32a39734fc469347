"""Kinds of objects as they appear in URLs, and the results of lists and watches."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Protocol, TypedDict, TypeVar
from urllib.parse import quote

from crrd.core.api import types as model
from crrd.core.config.references import Kind

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Resource:
    """One kind of object, as it appears in URLs."""

    plural: str
    group: str = ""
    version: str = "v1"
    others: tuple[str, ...] = ()
    """Versions with the same fields, for servers that do not serve `version`."""
    page: int = field(default=250, compare=False)
    """Objects in one page of a list: about 500 KB. Parsing a page blocks the event loop for about 10 ms.

    The page is smaller for objects that users can make as large as etcd allows (1.5 MiB), because a daemon needs up to
    four times the size of such a page in memory.
    """

    metadata_only: bool = False  # Whether lists and watches return only metadata (PartialObjectMetadata)

    @property
    def full_name(self) -> str:
        """Plural and group, as kubectl prints it."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """Return the quoted URL path of one object, or of the list if there is no name."""
        root = ["apis", self.group, self.version] if self.group else ["api", self.version]
        scope = ["namespaces", namespace] if namespace else []
        parts = [*root, *scope, self.plural, *filter(None, (name, subresource))]
        return "/" + "/".join(quote(part, safe="", errors="replace") for part in parts)


def metadata_of(resource: Resource) -> Resource:
    """Return the same kind, with lists and watches that return only metadata."""
    return replace(resource, page=250, metadata_only=True)


REQUESTS = Resource(model.PLURAL, model.GROUP, model.VERSION, model.VERSIONS[1:], page=25)
PODS = Resource("pods", page=25)
EVENTS = Resource("events")
NODES = Resource("nodes")
REPLICA_SETS, CONTROLLER_REVISIONS = Resource("replicasets", "apps"), Resource("controllerrevisions", "apps")
LEASES = Resource("leases", "coordination.k8s.io")
NAMESPACES, LIMIT_RANGES = Resource("namespaces"), Resource("limitranges")
CONFIG_MAPS = Resource("configmaps", page=25)
SECRETS = Resource("secrets", page=25)
CONFIGURATION: Mapping[Kind, Resource] = {Kind.CONFIG_MAP: CONFIG_MAPS, Kind.SECRET: SECRETS}
WEBHOOKS = Resource("mutatingwebhookconfigurations", "admissionregistration.k8s.io")
POLICIES = Resource(model.POLICY_PLURAL, model.POLICY_GROUP, "v1alpha1")
BUDGETS = Resource("poddisruptionbudgets", "policy")
DISCOVERY = Resource("discovery")  # A placeholder for the API server's discovery documents


class Where(TypedDict, total=False):
    """Which objects of a kind to list or watch."""

    namespace: str  # "" for all
    label_selector: str
    field_selector: str


class ObjectReader(Protocol):
    """Reads single objects, as `client.KubeClient` does."""

    async def get(self, resource: Resource, namespace: str, name: str) -> Mapping[str, Any]:
        """Return one object; GoneError if it does not exist."""
        ...


@dataclass(frozen=True, slots=True)
class Page:
    """A part of a list."""

    items: Iterable[Mapping[str, Any]]  # Iterate only once: decodes on the way, and may raise MalformedAnswerError
    resource_version: str


@dataclass(frozen=True, slots=True)
class Listing(Generic[T]):
    """A whole list, parsed."""

    items: tuple[T, ...]
    resource_version: str  # The version from which to watch


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """One event of a watch; `kind` is ADDED, MODIFIED, DELETED or BOOKMARK."""

    kind: str
    object: Mapping[str, Any]
