"""Patches: JSON patch, JSON merge patch (RFC 7386) and strategic merge patch, which merges lists by keys.

The rules of the last one are those of Kubernetes' community document "Strategic Merge Patch". The keys are the
`patchMergeKey` tags of k8s.io/api, by field name. Arguments are never changed, and unchanged parts are shared.
"""

from collections import deque
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import jsonpatch

from crrd_localnode.api.errors import ApiError, bad_request, unsupported_media_type
from crrd_localnode.api.kinds import Kind
from crrd_localnode.api.objects import Object, loads
from crrd_localnode.api.writes import Make

JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_MERGE_PATCH = "application/strategic-merge-patch+json"

MERGE_KEYS: Mapping[str, str] = {
    **dict.fromkeys(
        ("containers", "env", "ephemeralContainers", "imagePullSecrets", "initContainers", "resourceClaims", "secrets",
         "volumes", "webhooks"), "name"
    ),
    "addresses": "type", "conditions": "type", "hostAliases": "ip", "ownerReferences": "uid", "podIPs": "ip",
    "ports": "containerPort", "topologySpreadConstraints": "topologyKey", "volumeDevices": "devicePath",
    "volumeMounts": "mountPath",
}  # fmt: skip
"""Name of a list of objects -> the field that identifies an element. Lists not named here are replaced."""

PRIMITIVE_SETS = frozenset({"finalizers"})  # Lists of plain values that are merged as sets

_ORDER = "$setElementOrder/"
_DELETE = "$deleteFromPrimitiveList/"


def parsed(body: bytes) -> Any:
    """Parse a body as JSON. Raises ApiError 400."""
    try:
        return loads(body)
    except ValueError as error:
        raise bad_request(f"the object provided is unrecognized (not JSON): {error}") from error


def patch_maker(kind: Kind, content_type: str, body: bytes) -> Make:
    """Return the function that applies a patch of this content type. ApiError 415: other types, 400: bad bodies."""
    supported = [JSON_PATCH, MERGE_PATCH, *([] if kind.custom else [STRATEGIC_MERGE_PATCH])]
    if content_type not in supported:
        raise unsupported_media_type(content_type, supported)
    patch = parsed(body)
    if content_type == JSON_PATCH:
        if not isinstance(patch, list) or not all(isinstance(operation, dict) for operation in patch):
            raise bad_request("a JSON patch is a list of operations")
        return lambda obj: _json_patched(obj, patch)
    if not isinstance(patch, dict):
        raise bad_request("a merge patch is an object")
    if content_type == MERGE_PATCH:
        return lambda obj: merge_patch(obj, patch)
    return lambda obj: strategic_merge_patch(obj, patch)


class _Test(jsonpatch.TestOperation):
    """A test for null also succeeds if there is no such key, as with the real server (evanphx/json-patch)."""

    def apply(self, obj: Any) -> Any:
        """Return the object. Raises JsonPatchTestFailed."""
        where, key = self.pointer.to_last(obj)
        absent = isinstance(where, dict) and key not in where
        return obj if absent and self.operation.get("value", 0) is None else super().apply(obj)


class _JsonPatch(jsonpatch.JsonPatch):
    operations = MappingProxyType({**jsonpatch.JsonPatch.operations, "test": _Test})


def _json_patched(obj: Object, patch: list[Object]) -> Any:
    try:
        return _JsonPatch(patch).apply(obj)
    except (jsonpatch.JsonPatchException, jsonpatch.JsonPointerException) as error:
        # The real server has no further details either, for a failed `test` or an invalid path.
        raise ApiError(422, "the server rejected our request due to an error in our request") from error


def merge_patch(target: Any, patch: Any) -> Any:
    """Return the target with the patch applied: objects are merged, null removes, anything else replaces."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merge_patch(result.get(name), value)
    return result


def strategic_merge_patch(target: Object, patch: Object) -> Object:
    """Return the object with the patch applied. Raises ApiError 400 for an invalid directive or list element."""
    return _merge_map(target, patch, MERGE_KEYS)


def _merge_map(target: Any, patch: Object, keys: Mapping[str, str]) -> Object:
    directive = patch.get("$patch")
    if directive == "replace":
        return {name: _cleaned(value) for name, value in patch.items() if name != "$patch"}
    if directive == "delete":
        return {}
    if directive not in (None, "merge"):
        raise bad_request(f"unknown patch type {directive!r} found in the patch")
    result = dict(target) if isinstance(target, dict) else {}
    retained = patch.get("$retainKeys")
    if isinstance(retained, list):
        result = {name: value for name, value in result.items() if name in retained}
    for name, value in patch.items():
        if name.startswith(_DELETE):
            field = name.removeprefix(_DELETE)
            result[field] = [item for item in result.get(field) or [] if item not in value]
        elif not name.startswith("$"):
            order = patch.get(_ORDER + name)
            _merge_field(result, name, value, keys, order if isinstance(order, list) else None)
    for name, order in patch.items():
        field = name.removeprefix(_ORDER)
        if name.startswith(_ORDER) and field not in patch and isinstance(order, list) and result.get(field):
            result[field] = _ordered(result[field], order, keys.get(field))
    return result


def _merge_field(result: Object, name: str, value: Any, keys: Mapping[str, str], order: list[Any] | None) -> None:
    if value is None:
        result.pop(name, None)
    elif isinstance(value, dict):
        result[name] = _merge_map(result.get(name), value, keys)
    elif isinstance(value, list) and name in keys:
        current, key = result.get(name) or [], keys[name]
        merged = _merge_list(current, value, key, keys)
        result[name] = _ordered(merged, order, key) if order else _patch_first(merged, current, value, key)
    elif isinstance(value, list) and name in PRIMITIVE_SETS:
        current = result.get(name) or []
        merged = current + [item for item in value if item not in current]
        result[name] = _ordered(merged, order, None) if order else merged
    else:
        result[name] = value


def _merge_list(target: list[Any], patch: list[Any], key: str, keys: Mapping[str, str]) -> list[Any]:
    if any(isinstance(item, dict) and item.get("$patch") == "replace" for item in patch):
        return [_cleaned(item) for item in patch if item != {"$patch": "replace"}]
    result = list(target)
    for item in patch:
        if not isinstance(item, dict) or key not in item:
            raise bad_request(f"map: {item} does not contain declared merge key: {key}")
        found = next((at for at, old in enumerate(result) if isinstance(old, dict) and old.get(key) == item[key]), None)
        if item.get("$patch") == "delete":
            result = [old for old in result if not (isinstance(old, dict) and old.get(key) == item[key])]
        elif found is None:
            result.append(_merge_map({}, item, keys))
        else:
            result[found] = _merge_map(result[found], item, keys)
    return result


def _patch_first(merged: list[Any], current: list[Any], patch: list[Any], key: str) -> list[Any]:
    """Order a list without a given order: new elements come before those that the patch does not name.

    Source: `normalizeElementOrder`, `mergeSortedSlice` in k8s.io/apimachinery's pkg/util/strategicpatch.
    """
    before = {item.get(key): at for at, item in enumerate(current) if isinstance(item, dict)}
    named = {item.get(key): at for at, item in enumerate(patch) if isinstance(item, dict)}
    ours = deque(sorted((item for item in merged if item.get(key) in named), key=lambda item: named[item[key]]))
    theirs = deque(item for item in merged if item.get(key) not in named)
    found = []
    while ours and theirs:
        at = before.get(ours[0].get(key))
        found.append((ours if at is None or at < before[theirs[0].get(key)] else theirs).popleft())
    return [*found, *ours, *theirs]


def _ordered(items: list[Any], order: list[Any], key: str | None) -> list[Any]:
    """Put the items that `order` names in its order. Each other item stays behind its predecessor."""

    def identity(item: Any) -> Any:
        return item.get(key) if key and isinstance(item, dict) else item

    wanted = [identity(item) for item in order]
    followers: list[list[Any]] = [[]]
    heads: list[Any] = []
    for item in items:
        if identity(item) in wanted:
            heads.append(item)
            followers.append([])
        else:
            followers[-1].append(item)
    pairs = sorted(zip(heads, followers[1:], strict=True), key=lambda pair: wanted.index(identity(pair[0])))
    return followers[0] + [item for head, tail in pairs for item in (head, *tail)]


def _cleaned(value: Any) -> Any:
    """Return a patch value without its directives."""
    if isinstance(value, dict):
        return {name: _cleaned(inner) for name, inner in value.items() if not name.startswith("$")}
    return [_cleaned(inner) for inner in value] if isinstance(value, list) else value
