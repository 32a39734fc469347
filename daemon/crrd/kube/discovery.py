"""The kinds that the API server serves, and its version.

A kind is found by a name that a user typed, or by an owner reference. Kinds that every cluster has need no call. The
version is only for a warning: if it cannot be read, crrd works all the same.
"""

import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

import structlog

from crrd.kube.client import KubeClient
from crrd.kube.errors import MalformedAnswerError, ResourceMissingError
from crrd.kube.resources import PODS, Resource
from crrd.lib.errors import ApiRefusedError, ApiUnavailableError, ConfigurationError, CrrdError, GoneError
from crrd.lib.jsonfields import items, mapping, text

LEAST = (1, 30)
"""The first Kubernetes version with ValidatingAdmissionPolicy v1 and with the node's name in the tokens of pods. The
node daemon's policy needs both."""
_NUMBER = re.compile(r"\d+", re.ASCII)

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Served:
    """A kind that the API server serves."""

    resource: Resource
    kind: str
    names: tuple[str, ...] = ()  # Its names on a command line, the plural included
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """The `apiVersion` of objects of this kind."""
        group, version = self.resource.group, self.resource.version
        return f"{group}/{version}" if group else version

    @property
    def word(self) -> str:
        """The kind as kubectl prints it before an object's name."""
        return ".".join(filter(None, (self.kind.lower(), self.resource.group)))


def _apps(kind: str, short: str) -> Served:
    one = kind.lower()
    return Served(Resource(f"{one}s", "apps"), kind, (one, f"{one}s", short))


_API_VERSION = re.compile(r"([a-z0-9.-]+/)?[a-z0-9]+", re.ASCII)
KNOWN = (
    Served(PODS, "Pod", ("pod", "pods", "po")),
    _apps("Deployment", "deploy"),
    _apps("StatefulSet", "sts"),
    _apps("DaemonSet", "ds"),
    _apps("ReplicaSet", "rs"),
    Served(Resource("jobs", "batch"), "Job", ("job", "jobs")),
)


async def find_kind(client: KubeClient, word: str) -> Served:
    """Return the kind for `TYPE`, `TYPE.GROUP` or `TYPE.VERSION.GROUP`, as kubectl accepts it.

    Raises ConfigurationError if the API server has no kind of that name, and the errors of every call.
    """
    name, _, rest = word.lower().partition(".")
    for known in KNOWN:
        if name in known.names and rest in ("", known.resource.group, f"v1.{known.resource.group}"):
            return known
    failed: list[str] = []
    async for served in _all(client, rest, failed):
        if name in served.names:
            return served
    if failed:
        raise ConfigurationError(f"resource type {word!r} not found, and not all API groups can be read: {failed[0]}")
    raise ConfigurationError(f"the API server has no resource type {word!r}: kubectl api-resources shows them")


async def kind_of(client: KubeClient, api_version: str, kind: str) -> Served:
    """Return the kind of an owner reference. Raises as `find_kind` does."""
    known = [each for each in KNOWN if (each.api_version, each.kind) == (api_version, kind)]
    for served in known or await _served(client, api_version):
        if served.kind == kind:
            return served
    raise ConfigurationError(f"the API server has no kind {kind} in {api_version}")


async def serves(client: KubeClient, resource: Resource) -> bool:
    """Return whether the API server has a resource. Every user may ask this."""
    api_version = f"{resource.group}/{resource.version}" if resource.group else resource.version
    return any(each.resource.plural == resource.plural for each in await _served(client, api_version))


async def _all(client: KubeClient, group: str, failed: list[str]) -> AsyncIterator[Served]:
    """Yield all kinds, the core group first; with `group` (`GROUP` or `VERSION.GROUP`), only those of that group.

    A group that cannot be read is skipped, as kubectl does, and its error is added to `failed`: an aggregated API whose
    server is down must not hide the kinds of others.
    """
    if not group:
        for served in await _served(client, "v1"):
            yield served
    for entry in map(mapping, items((await client.document("/apis")).get("groups"))):
        name = text(entry.get("name"))
        versions = [text(mapping(each).get("groupVersion")) for each in items(entry.get("versions"))]
        versions.sort(key=lambda each: each != text(mapping(entry.get("preferredVersion")).get("groupVersion")))
        exact = [each for each in versions if ".".join(reversed(each.split("/"))) == group]
        for api_version in exact or (versions if group in ("", name) else ()):
            try:
                found = await _served(client, api_version)
            except (ApiUnavailableError, ApiRefusedError) as error:
                if _ends_discovery(error):
                    raise
                failed.append(str(error))
                continue
            for served in found:
                yield served


def _ends_discovery(error: ApiUnavailableError | ApiRefusedError) -> bool:
    """Whether an error is not about a single group: the API server cannot be reached, or refuses the credentials."""
    if isinstance(error, ApiRefusedError):
        return error.status != 403
    return error.__cause__ is not None and not isinstance(error, MalformedAnswerError)


async def _served(client: KubeClient, api_version: str) -> list[Served]:
    """Return the kinds of one API version; none if it is not served."""
    if not _API_VERSION.fullmatch(api_version):  # it comes from users' objects, and must not lead to another path
        return []
    group, _, version = api_version.rpartition("/")
    try:
        found = await client.document(f"/apis/{api_version}" if group else f"/api/{api_version}")
    except (GoneError, ResourceMissingError):
        return []
    entries = [mapping(each) for each in items(found.get("resources"))]
    return [_read(each, group, version) for each in entries if "/" not in text(each.get("name"))]


def _read(entry: Mapping[str, Any], group: str, version: str) -> Served:
    kind, plural = text(entry.get("kind")), text(entry.get("name"))
    names = (plural, text(entry.get("singularName")), kind.lower(), *map(text, items(entry.get("shortNames"))))
    found = tuple(name for name in names if name)
    return Served(Resource(plural, group, version), kind, found, namespaced=entry.get("namespaced") is True)


async def warn_of_old_server(client: KubeClient) -> None:
    """Log a warning if the API server is older than the oldest version that crrd supports."""
    try:
        answer = await client.document("/version")
    except CrrdError as error:
        log.debug("API server version unknown", error=str(error))
        return
    found = server_version(answer)
    if found is not None and found < LEAST:
        least = ".".join(map(str, LEAST))
        log.warning(
            "API server too old",
            version=text(answer.get("gitVersion")),
            least=least,
            consequence="the policies that keep a node daemon to its own node's requests do not work there",
            remedy=f"upgrade the control plane to Kubernetes {least} or newer",
        )


def server_version(answer: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return major and minor version from `/version`; None if missing. Some providers add a plus sign: `29+`."""
    major, minor = (_NUMBER.match(text(answer.get(key))) for key in ("major", "minor"))
    return (int(major[0]), int(minor[0])) if major and minor else None
