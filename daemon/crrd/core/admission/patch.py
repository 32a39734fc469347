"""JSON patches (RFC 6902) as admission webhooks answer with them: what turns one JSON value into another.

Only `add`, `replace` and `remove` are used. Lists are replaced whole: none that admission changes is long.
"""

from collections.abc import Mapping
from typing import Any

Operation = dict[str, Any]


def json_patch(before: Mapping[str, Any], after: Mapping[str, Any], path: str = "") -> list[Operation]:
    """The operations that turn the object `before`, which lies at `path`, into `after`; none where they are equal."""
    operations: list[Operation] = [{"op": "remove", "path": _pointer(path, key)} for key in before if key not in after]
    for key, value in after.items():
        where = _pointer(path, key)
        if key not in before:
            operations.append({"op": "add", "path": where, "value": value})
        elif isinstance(value, Mapping) and isinstance(before[key], Mapping):
            operations += json_patch(before[key], value, where)
        elif value != before[key]:
            operations.append({"op": "replace", "path": where, "value": value})
    return operations


def _pointer(path: str, key: str) -> str:
    """A JSON pointer (RFC 6901) one step deeper."""
    return f"{path}/{key.replace('~', '~0').replace('/', '~1')}"
