"""Strategic merge patch: a merge patch that knows which lists are keyed, and by what.

The rules are those of Kubernetes' community document "Strategic Merge Patch"; the keys are the `patchMergeKey` tags of
k8s.io/api, by field name, which is unambiguous within the kinds served here once a kind's own exceptions are given.
Neither argument is changed; unchanged parts are shared.
"""

from collections import deque
from collections.abc import Mapping
from typing import Any

from crrd_localnode.api.errors import bad_request
from crrd_localnode.api.objects import Object

MERGE_KEYS: Mapping[str, str] = {
    "addresses": "type",
    "conditions": "type",
    "containers": "name",
    "env": "name",
    "ephemeralContainers": "name",
    "hostAliases": "ip",
    "imagePullSecrets": "name",
    "initContainers": "name",
    "ownerReferences": "uid",
    "podIPs": "ip",
    "ports": "containerPort",
    "resourceClaims": "name",
    "secrets": "name",
    "topologySpreadConstraints": "topologyKey",
    "volumeDevices": "devicePath",
    "volumeMounts": "mountPath",
    "volumes": "name",
    "webhooks": "name",
}
"""Field name of a list of objects -> the field that identifies an element. Lists not named here are replaced."""

KIND_MERGE_KEYS: Mapping[str, Mapping[str, str]] = {"Service": {"ports": "port"}}  # Kind -> what it has otherwise

PRIMITIVE_SETS = frozenset({"finalizers"})  # Lists of plain values that are merged as sets

_ORDER = "$setElementOrder/"
_DELETE = "$deleteFromPrimitiveList/"


def strategic_merge_patch(target: Object, patch: Object) -> Object:
    """The object with the patch applied. Raises ApiError 400 where a directive or a list's element makes no sense."""
    keys = {**MERGE_KEYS, **KIND_MERGE_KEYS.get(str(target.get("kind")), {})}
    return _merge_map(target, patch, keys)


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
        current = result.get(name) or []
        merged = _merge_list(current, value, name, keys)
        result[name] = (
            _ordered(merged, order, keys[name]) if order else _patch_first(merged, current, value, keys[name])
        )
    elif isinstance(value, list) and name in PRIMITIVE_SETS:
        current = result.get(name) or []
        merged = current + [item for item in value if item not in current]
        result[name] = _ordered(merged, order, None) if order else merged
    else:
        result[name] = value


def _merge_list(target: list[Any], patch: list[Any], name: str, keys: Mapping[str, str]) -> list[Any]:
    if any(isinstance(item, dict) and item.get("$patch") == "replace" for item in patch):
        return [_cleaned(item) for item in patch if item != {"$patch": "replace"}]
    key = keys[name]
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
    """The order without a given one: what was not there before comes in front of what the patch does not name.

    Source: `normalizeElementOrder` and `mergeSortedSlice` in k8s.io/apimachinery's pkg/util/strategicpatch.
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
    """The items that `order` names in its order; each other one stays behind the item it stood behind."""

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
    """A value out of a patch without its directives."""
    if isinstance(value, dict):
        return {name: _cleaned(inner) for name, inner in value.items() if not name.startswith("$")}
    return [_cleaned(inner) for inner in value] if isinstance(value, list) else value
