"""Maps an HTTP method and path to a verb on a resource, like Kubernetes' RequestInfo."""

from collections.abc import Mapping
from dataclasses import dataclass

from crrd_localnode.api.errors import ApiError, no_such_path
from crrd_localnode.api.kinds import Kind, Registry

_TRUE = ("1", "true", "True", "t", "T", "TRUE")


@dataclass(frozen=True, slots=True)
class Route:
    """The target of a path. `kind` is None for paths without a resource."""

    verb: str
    path: str
    kind: Kind | None = None
    namespace: str = ""
    name: str = ""
    subresource: str = ""


def is_true(query: Mapping[str, str], name: str) -> bool:
    """Whether a boolean query parameter is true."""
    return query.get(name) in _TRUE


def find_route(registry: Registry, method: str, path: str, query: Mapping[str, str]) -> Route:
    """Return the route of a request. Raises ApiError 404 for unknown resources and 405 for unsupported methods."""
    parts = [part for part in path.split("/") if part]
    if parts[:1] == ["api"] and len(parts) > 2:
        group, version, rest = "", parts[1], parts[2:]
    elif parts[:1] == ["apis"] and len(parts) > 3:
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        return Route(method.lower(), path)
    namespace, in_namespace = "", False
    if rest[0] == "namespaces" and len(rest) > 2 and registry.find(group, version, rest[2]) is not None:
        namespace, in_namespace, rest = rest[1], True, rest[2:]
    kind = registry.find(group, version, rest[0])
    if kind is None or len(rest) > 3 or (in_namespace and not kind.namespaced):
        raise no_such_path()
    name = rest[1] if len(rest) > 1 else ""
    subresource = rest[2] if len(rest) > 2 else ""
    if name and kind.namespaced and not in_namespace:
        raise no_such_path()
    verb = _verb(method, name, query)
    route = Route(verb, path, kind, namespace, name, subresource)
    if subresource:
        allowed = {"status": ("get", "update", "patch") * kind.status, "log": ("get",) * kind.logs}.get(subresource)
        if not allowed:
            raise no_such_path()
        if verb not in allowed:
            raise _not_allowed()
    elif verb == "create":
        if name or (kind.namespaced and not in_namespace):
            raise _not_allowed()
    elif not kind.stored:
        raise _not_allowed()
    return route


def _verb(method: str, name: str, query: Mapping[str, str]) -> str:
    if method == "GET" and not name:
        return "watch" if is_true(query, "watch") else "list"
    verbs = {"GET": "get", "PUT": "update", "PATCH": "patch", "DELETE": "delete"} if name else {}
    verb = {**verbs, "POST": "create"}.get(method)
    if verb is None:
        raise _not_allowed()
    return verb


def _not_allowed() -> ApiError:
    return ApiError(405, "the server does not allow this method on the requested resource")
