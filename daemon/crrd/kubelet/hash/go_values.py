"""What Go would read out of a value of JSON: text, truth, a whole number, a quantity; or why it could not.

Texts remembers what parts of containers were written as: probes, mounts and limits are the same over and over.
"""

import json
import re
from collections.abc import Callable
from typing import Any

from crrd.kubelet import quantity
from crrd.kubelet.hash.container_types import INT_BITS, Field, InexpressibleError, Kind

_MOST_KEPT = 4096  # Texts that are kept, of some hundred bytes each; then it begins anew
_NEVER_ALIKE = frozenset({"EnvVar"})  # Structs that are seldom found twice: to remember them costs more than it saves
_SURROGATE = re.compile("[\ud800-\udfff]")


def text(value: Any, path: str) -> str:
    """A string; half a surrogate pair becomes U+FFFD, as Go's decoder has it."""
    if not isinstance(value, str):
        raise InexpressibleError(f"{path} is no text")
    return value if value.isascii() else _SURROGATE.sub("\ufffd", value)


def whole(value: Any, bits: int, path: str) -> int:
    """A whole number of so many bits."""
    if isinstance(value, bool) or not isinstance(value, int) or not -(1 << bits - 1) <= value < 1 << bits - 1:
        raise InexpressibleError(f"{path} is no whole number of {bits} bits")
    return value


def amount(value: Any, path: str) -> quantity.Quantity:
    """A quantity, which may be written as a number."""
    written = json.dumps(value) if isinstance(value, int | float) and not isinstance(value, bool) else value
    stripped = text(written, path).strip()
    try:
        return quantity.parse(stripped)
    except ValueError as error:
        raise InexpressibleError(f"{path}: {error}") from error


def scalar(field: Field, value: Any, path: str) -> str | bool | int:
    """A string, boolean or whole number, as the field's type wants it."""
    if field.kind is Kind.STRING:
        return text(value, path)
    if field.kind is Kind.BOOL:
        if not isinstance(value, bool):
            raise InexpressibleError(f"{path} is neither true nor false")
        return value
    return whole(value, INT_BITS[field.type], path)


def elements(value: Any, path: str) -> list[Any]:
    """A list."""
    if not isinstance(value, list | tuple):
        raise InexpressibleError(f"{path} is no list")
    return list(value)


def amounts(value: Any, path: str) -> list[tuple[str, quantity.Quantity]]:
    """A map of quantities, in the order that Go writes it."""
    if not isinstance(value, dict):
        raise InexpressibleError(f"{path} is no object")
    found = [(text(key, path), amount(each, f"{path}[{key}]")) for key, each in value.items() if each is not None]
    return sorted(found, key=lambda pair: pair[0].encode())


class Texts:
    """Texts by part."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str, int], str] = {}

    def __call__(self, part: Any, struct: str, minor: int, write: Callable[[], str]) -> str:
        """What `write` returns, or returned for such a part before. Raises as `write` does, each time."""
        if type(part) is not dict or struct in _NEVER_ALIKE:
            return write()
        key = (repr(part), struct, minor)
        text = self._kept.get(key)
        if text is None:
            text = write()
            if len(self._kept) >= _MOST_KEPT:
                self._kept.clear()
            self._kept[key] = text
        return text
