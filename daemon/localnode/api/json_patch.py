"""JSON patch, RFC 6902, with JSON pointers, RFC 6901. Neither argument is changed; untouched parts are shared."""

import re
from collections.abc import Callable, Sequence
from typing import Any

from daemon.localnode.api.objects import Object

_INDEX = re.compile(r"0|[1-9][0-9]*")

Edit = Callable[[Any, str], Any]
"""Makes a new parent out of a parent (a dict or a list) and the last token of a pointer."""


class PatchError(Exception):
    """The patch cannot be applied to this document; `test_failed` says that a `test` operation said no."""

    def __init__(self, message: str, *, test_failed: bool = False) -> None:
        super().__init__(message)
        self.test_failed = test_failed


def apply_json_patch(document: Any, operations: Sequence[Object]) -> Any:
    """The document after all operations, in order. Raises PatchError at the first that fails."""
    for operation in operations:
        document = _apply(document, operation)
    return document


def _apply(document: Any, operation: Object) -> Any:
    if not isinstance(operation, dict):
        raise PatchError("an operation is not an object")
    kind, path = operation.get("op"), _tokens(operation, "path")
    match kind:
        case "add":
            return _edit(document, path, lambda parent, token: _insert(parent, token, _value(operation)))
        case "remove":
            return _edit(document, path, _remove)
        case "replace":
            return _edit(document, path, lambda parent, token: _replace(parent, token, _value(operation)))
        case "test":
            if not _same(_find(document, path), _value(operation)):
                raise PatchError(f"testing value {operation['path']} failed", test_failed=True)
            return document
        case "copy":
            found = _find(document, _tokens(operation, "from"))
            return _edit(document, path, lambda parent, token: _insert(parent, token, found))
        case "move":
            source = _tokens(operation, "from")
            if path[: len(source)] == source and len(path) > len(source):
                raise PatchError("a value cannot be moved into itself")
            found = _find(document, source)
            document = _edit(document, source, _remove)
            return _edit(document, path, lambda parent, token: _insert(parent, token, found))
        case _:
            raise PatchError(f"unknown operation {kind!r}")


def _tokens(operation: Object, member: str) -> list[str]:
    pointer = operation.get(member)
    if not isinstance(pointer, str) or (pointer and not pointer.startswith("/")):
        raise PatchError(f"{member} is not a JSON pointer: {pointer!r}")
    return [token.replace("~1", "/").replace("~0", "~") for token in pointer.split("/")[1:]]


def _value(operation: Object) -> Any:
    if "value" not in operation:
        raise PatchError(f"{operation.get('op')} without a value")
    return operation["value"]


def _same(one: Any, other: Any) -> bool:
    """Equality of JSON values: numbers by value, but true is not 1."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(value, other[name]) for name, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other)


def _find(document: Any, path: Sequence[str]) -> Any:
    for token in path:
        document = document[_key(document, token)]
    return document


def _edit(document: Any, path: Sequence[str], edit: Edit) -> Any:
    """The document with its part at the path's parent replaced by what `edit` makes of it."""
    if not path:
        return edit({"": document}, "").get("")
    if len(path) == 1:
        return edit(document, path[0])
    key = _key(document, path[0])
    copy = document.copy()
    copy[key] = _edit(document[key], path[1:], edit)
    return copy


def _key(parent: Any, token: str) -> Any:
    """The token as a key of an existing member of the parent."""
    if isinstance(parent, dict):
        if token not in parent:
            raise PatchError(f"no member {token!r}")
        return token
    return _index(parent, token, -1)


def _index(parent: Any, token: str, extra: int) -> int:
    """The token as an index of a list, at most the last element's plus 1 + extra."""
    if not isinstance(parent, list):
        raise PatchError(f"no member {token!r} in what is neither an object nor a list")
    if not _INDEX.fullmatch(token):
        raise PatchError(f"not an index: {token!r}")
    if int(token) > len(parent) + extra:
        raise PatchError(f"index {token} is out of bounds")
    return int(token)


def _insert(parent: Any, token: str, value: Any) -> Any:
    if isinstance(parent, dict):
        return {**parent, token: value}
    if isinstance(parent, list) and token == "-":  # noqa: S105 - a JSON pointer's token, no secret
        return [*parent, value]
    index = _index(parent, token, 0)
    return [*parent[:index], value, *parent[index:]]


def _remove(parent: Any, token: str) -> Any:
    key = _key(parent, token)
    copy = parent.copy()
    del copy[key]
    return copy


def _replace(parent: Any, token: str, value: Any) -> Any:
    key = _key(parent, token)
    copy = parent.copy()
    copy[key] = value
    return copy
