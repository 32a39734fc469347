"""The paths for discovery: versions, groups, resources, health, and OpenAPI v3 as kubectl reads it.

The OpenAPI documents are for `kubectl explain`, and show kubectl that the server validates. Custom resources have the
complete schema of their CRD. Built-in kinds have only a name, because clients know them.
"""

import platform
import re
from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any

from crrd_localnode.api.kinds import Kind, Registry
from crrd_localnode.api.objects import Object

MAJOR, MINOR = "1", "36"  # The Kubernetes version whose behaviour is implemented

_OPENAPI = "/openapi/v3"
_VERBS = ["create", "delete", "get", "list", "patch", "update", "watch"]
_STATUS_VERBS = ["get", "patch", "update"]


def discover(registry: Registry, path: str, address: str) -> Object | str | None:
    """Return the document or plain text at a path, or None. `address` is the server's, host:port."""
    plain = _PLAIN.get(path.rstrip("/") or "/")
    if plain is not None:
        return plain(registry, address)
    parts = [part for part in path.split("/") if part]
    if parts[:2] == ["openapi", "v3"]:
        return _openapi_document(registry, path)
    groups = registry.groups()
    if len(parts) == 2 and parts[0] == "api":
        return _resources(registry, "", parts[1]) if parts[1] in groups[""] else None
    if parts[:1] == ["apis"] and len(parts) in (2, 3) and parts[1] in groups:
        if len(parts) == 2:
            return {"kind": "APIGroup", "apiVersion": "v1", **_group(parts[1], groups[parts[1]])}
        return _resources(registry, parts[1], parts[2]) if parts[2] in groups[parts[1]] else None
    return None


def _ok(_registry: Registry, _address: str) -> str:
    return "ok"


def _version(_registry: Registry, _address: str) -> Object:
    return {
        "major": MAJOR, "minor": MINOR, "gitVersion": f"v{MAJOR}.{MINOR}.0+crrd-localnode", "gitCommit": "",
        "gitTreeState": "clean", "buildDate": "1970-01-01T00:00:00Z", "goVersion": "",
        "compiler": f"{platform.python_implementation()} {platform.python_version()}",
        "platform": f"{platform.system().lower()}/{platform.machine()}",
    }  # fmt: skip


def _versions(_registry: Registry, address: str) -> Object:
    addresses = [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}]
    return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": addresses}


def _groups(registry: Registry, _address: str) -> Object:
    groups = [_group(name, versions) for name, versions in registry.groups().items() if name]
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}


def _paths(registry: Registry, _address: str) -> Object:
    groups = [(name, version) for name, versions in registry.groups().items() for version in versions]
    served = [f"/apis/{name}/{version}" if name else f"/api/{version}" for name, version in groups]
    return {"paths": sorted([*(path for path in _PLAIN if path != "/"), *served])}


_PLAIN: dict[str, Callable[[Registry, str], Object | str]] = {
    "/": _paths,
    "/api": _versions,
    "/apis": _groups,
    "/healthz": _ok,
    "/livez": _ok,
    "/readyz": _ok,
    "/version": _version,
}


def _group(name: str, versions: list[str]) -> Object:
    """Return a group. The preferred version is first: stable, beta, alpha, each with the highest number first."""
    versions = sorted(versions, key=_priority, reverse=True)
    listed = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions]
    return {"name": name, "versions": listed, "preferredVersion": listed[0]}


def _priority(version: str) -> tuple[int, int, int]:
    """Return a version's sort key; see `version.CompareKubeAwareVersionStrings` in k8s.io/apimachinery."""
    found = re.fullmatch(r"v(\d+)(?:(alpha|beta)(\d+))?", version)
    if found is None:
        return (-1, 0, 0)
    return ({"alpha": 0, "beta": 1}.get(found[2], 2), int(found[1]), int(found[3] or 0))


def _resources(registry: Registry, group: str, version: str) -> Object:
    kinds = [kind for kind in registry.kinds if (kind.group, kind.version) == (group, version)]
    resources = list(chain.from_iterable(map(_entries, kinds)))
    about = {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": kinds[0].api_version}
    return {**about, "resources": resources}


def _entries(kind: Kind) -> list[Object]:
    common = {"namespaced": kind.namespaced, "kind": kind.kind}
    one = kind.singular or kind.kind.lower()
    entry: Object = {"name": kind.plural, "singularName": one, **common, "verbs": _VERBS if kind.stored else ["create"]}
    if kind.short_names:
        entry["shortNames"] = list(kind.short_names)
    if kind.categories:
        entry["categories"] = list(kind.categories)
    subresources = {"status": _STATUS_VERBS} if kind.status else {}
    if kind.logs:
        subresources["log"] = ["get"]
    return [
        entry,
        *({"name": f"{kind.plural}/{name}", "singularName": "", **common, "verbs": verbs}
          for name, verbs in subresources.items()),
    ]  # fmt: skip


def _openapi_document(registry: Registry, path: str) -> Object | None:
    """Return the index of all documents, or the document of a group's version, or None."""
    versions = {_path_of(kind): kind.api_version for kind in registry.kinds}
    if path.rstrip("/") == _OPENAPI:
        return {"paths": {found: {"serverRelativeURL": f"{_OPENAPI}/{found}?hash={found}"} for found in versions}}
    found = path.removeprefix(f"{_OPENAPI}/")
    if found not in versions:
        return None
    kinds = [kind for kind in registry.kinds if _path_of(kind) == found]
    return {
        "openapi": "3.0.0",
        "info": {"title": "crrd local API server", "version": versions[found]},
        "paths": {path: item for kind in kinds for path, item in _operations(kind).items()},
        "components": {
            "schemas": {f"{each.group or 'core'}.{each.version}.{each.kind}": _schema(each) for each in kinds}
        },
    }


def _path_of(kind: Kind) -> str:
    return f"apis/{kind.group}/{kind.version}" if kind.group else f"api/{kind.version}"


def _gvk(kind: Kind) -> Object:
    return {"group": kind.group, "version": kind.version, "kind": kind.kind}


def _operations(kind: Kind) -> Object:
    base = f"/{_path_of(kind)}{'/namespaces/{namespace}' if kind.namespaced else ''}/{kind.plural}"
    answer = {"200": {"description": "OK"}}
    about = {"x-kubernetes-group-version-kind": _gvk(kind)}
    text = {"in": "query", "schema": {"type": "string", "uniqueItems": True}}
    parameters = [{"name": name, **text} for name in ("dryRun", "fieldValidation")]
    get = {"responses": answer, "x-kubernetes-action": "get", **about}
    patch = {"responses": answer, "x-kubernetes-action": "patch", "parameters": parameters, **about}
    post = {"post": {**patch, "x-kubernetes-action": "post"}}
    if not kind.stored:
        return {base: post}
    return {
        base: {"get": {**get, "x-kubernetes-action": "list"}, **post},
        f"{base}/{{name}}": {"get": get, "patch": patch},
    }


def _schema(kind: Kind) -> Object:
    schema: Mapping[str, Any] = kind.schema.openapi if kind.schema is not None else {"type": "object"}
    return {**schema, "x-kubernetes-group-version-kind": [_gvk(kind)]}
