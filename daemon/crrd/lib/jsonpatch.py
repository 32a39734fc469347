"""Makes JSON patches (RFC 6902)."""

from collections.abc import Mapping
from typing import Any

Operation = dict[str, Any]


def json_patch(before: Mapping[str, Any], after: Mapping[str, Any], path: str = "") -> list[Operation]:
    """Return the operations that change the object `before` at `path` into `after`; none if they are equal.

    Uses only `add`, `replace` and `remove`. Replaces whole lists, because the lists that admission changes are short.
    """
    operations: list[Operation] = []
    for key in [*(key for key in before if key not in after), *after]:
        where = f"{path}/{key.replace('~', '~0').replace('/', '~1')}"  # a JSON pointer (RFC 6901)
        if key not in after:
            operations.append({"op": "remove", "path": where})
        elif key not in before:
            operations.append({"op": "add", "path": where, "value": after[key]})
        elif isinstance(after[key], Mapping) and isinstance(before[key], Mapping):
            operations += json_patch(before[key], after[key], where)
        elif after[key] != before[key]:
            operations.append({"op": "replace", "path": where, "value": after[key]})
    return operations
