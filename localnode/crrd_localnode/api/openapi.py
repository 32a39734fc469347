"""OpenAPI v3 documents, as far as kubectl reads them: for `kubectl explain`, and to learn that the server validates.

Custom resources are described in full by their CRD's schema. Built-in kinds are only named: clients bring their own.
"""

from collections.abc import Mapping
from typing import Any

from crrd_localnode.api.kinds import Kind, Registry
from crrd_localnode.api.objects import Object

_PREFIX = "/openapi/v3"


def openapi_document(registry: Registry, path: str) -> Object | None:
    """The index of all documents, or the document of one group's version; None where there is none."""
    versions = {_path_of(kind): kind.api_version for kind in registry.kinds}
    if path.rstrip("/") == _PREFIX:
        return {"paths": {found: {"serverRelativeURL": f"{_PREFIX}/{found}?hash={found}"} for found in versions}}
    found = path.removeprefix(f"{_PREFIX}/")
    if found not in versions:
        return None
    kinds = [kind for kind in registry.kinds if _path_of(kind) == found]
    return {
        "openapi": "3.0.0",
        "info": {"title": "crrd local API server", "version": versions[found]},
        "paths": {path: item for kind in kinds for path, item in _paths(kind).items()},
        "components": {"schemas": {_model(kind): _schema(kind) for kind in kinds}},
    }


def _path_of(kind: Kind) -> str:
    return f"apis/{kind.group}/{kind.version}" if kind.group else f"api/{kind.version}"


def _model(kind: Kind) -> str:
    return f"{kind.group or 'core'}.{kind.version}.{kind.kind}"


def _gvk(kind: Kind) -> Object:
    return {"group": kind.group, "version": kind.version, "kind": kind.kind}


def _paths(kind: Kind) -> Object:
    base = f"/{_path_of(kind)}{'/namespaces/{namespace}' if kind.namespaced else ''}/{kind.plural}"
    answer = {"200": {"description": "OK"}}
    about = {"x-kubernetes-group-version-kind": _gvk(kind)}
    parameters = [
        {"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": True}}
        for name in ("dryRun", "fieldValidation")
    ]
    get = {"responses": answer, "x-kubernetes-action": "get", **about}
    patch = {"responses": answer, "x-kubernetes-action": "patch", "parameters": parameters, **about}
    return {
        base: {"get": {**get, "x-kubernetes-action": "list"}, "post": {**patch, "x-kubernetes-action": "post"}},
        f"{base}/{{name}}": {"get": get, "patch": patch},
    }


def _schema(kind: Kind) -> Object:
    schema: Mapping[str, Any] = kind.schema.openapi if kind.schema is not None else {"type": "object"}
    return {**schema, "x-kubernetes-group-version-kind": [_gvk(kind)]}
