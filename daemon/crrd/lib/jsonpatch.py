"""Makes JSON patches (RFC 6902) and their JSON pointers (RFC 6901)."""

from collections.abc import Mapping
from typing import Any

Operation = dict[str, Any]


def pointer(*keys: str) -> str:
    """Return the JSON pointer to the value under these keys, one in the other."""
    return "".join(f"/{key.replace('~', '~0').replace('/', '~1')}" for key in keys)


def test(path: str, value: object) -> Operation:
    """Return the operation with which a patch fails unless this value is at `path`."""
    return {"op": "test", "path": path, "value": value}


def add(path: str, value: object) -> Operation:
    """Return the operation that sets a key."""
    return {"op": "add", "path": path, "value": value}


def replace(path: str, value: object) -> Operation:
    """Return the operation that changes a value which must exist."""
    return {"op": "replace", "path": path, "value": value}


def remove(path: str) -> Operation:
    """Return the operation that removes a value which must exist."""
    return {"op": "remove", "path": path}


def json_patch(before: Mapping[str, Any], after: Mapping[str, Any], path: str = "") -> list[Operation]:
    """Return the operations that change the object `before` at `path` into `after`; none if they are equal.

    Uses only `add`, `replace` and `remove`. Replaces whole lists, because the lists that admission changes are short.
    """
    operations: list[Operation] = []
    for key in [*(key for key in before if key not in after), *after]:
        where = path + pointer(key)
        if key not in after:
            operations.append(remove(where))
        elif key not in before:
            operations.append(add(where, after[key]))
        elif isinstance(after[key], Mapping) and isinstance(before[key], Mapping):
            operations += json_patch(before[key], after[key], where)
        elif after[key] != before[key]:
            operations.append(replace(where, after[key]))
    return operations
