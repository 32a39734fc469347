"""Converts JSON values as Go does, to strings, booleans, integers and quantities. Raises InexpressibleError if invalid.

`Texts` caches the texts of parts of containers, because many containers have the same probes, mounts and limits.
"""

import json
import re
from collections.abc import Callable
from typing import Any

from crrd_forecast.hash import quantity
from crrd_forecast.hash.container_types import INT_BITS, Field, InexpressibleError, Kind

_MOST_KEPT = 4096  # Most cached texts, of some hundred bytes each; then the cache is cleared
_UNCACHED_STRUCTS = frozenset({"EnvVar"})  # Structs that are not cached, because they seldom occur twice
_SURROGATE = re.compile("[\ud800-\udfff]")


def text(value: Any, path: str) -> str:
    """Return a string. A lone surrogate becomes U+FFFD, as in Go's decoder."""
    if not isinstance(value, str):
        raise InexpressibleError(f"{path} is no text")
    return value if value.isascii() else _SURROGATE.sub("\ufffd", value)


def whole(value: Any, bits: int, path: str) -> int:
    """Return a signed integer of this many bits."""
    if isinstance(value, bool) or not isinstance(value, int) or not -(1 << bits - 1) <= value < 1 << bits - 1:
        raise InexpressibleError(f"{path} is no whole number of {bits} bits")
    return value


def amount(value: Any, path: str) -> quantity.Quantity:
    """Return a quantity, from a string or a number."""
    written = json.dumps(value) if isinstance(value, int | float) and not isinstance(value, bool) else value
    stripped = text(written, path).strip()
    try:
        return quantity.parse(stripped)
    except ValueError as error:
        raise InexpressibleError(f"{path}: {error}") from error


def scalar(field: Field, value: Any, path: str) -> str | bool | int:
    """Return a string, boolean or integer, according to the field's type."""
    if field.kind is Kind.STRING:
        return text(value, path)
    if field.kind is Kind.BOOL:
        if not isinstance(value, bool):
            raise InexpressibleError(f"{path} is neither true nor false")
        return value
    return whole(value, INT_BITS[field.type], path)


def elements(value: Any, path: str) -> list[Any]:
    """Return a list."""
    if not isinstance(value, list | tuple):
        raise InexpressibleError(f"{path} is no list")
    return list(value)


def amounts(value: Any, path: str) -> list[tuple[str, quantity.Quantity]]:
    """Return the entries of a map of quantities, in Go's order of keys."""
    if not isinstance(value, dict):
        raise InexpressibleError(f"{path} is no object")
    found = [(text(key, path), amount(each, f"{path}[{key}]")) for key, each in value.items() if each is not None]
    return sorted(found, key=lambda pair: pair[0].encode())


class Texts:
    """A cache of the texts of parts of containers."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str, int], str] = {}

    def __call__(self, part: Any, struct: str, minor: int, write: Callable[[], str]) -> str:
        """Return the cached text of an equal part, else that of `write`. Errors of `write` are not cached."""
        if type(part) is not dict or struct in _UNCACHED_STRUCTS:
            return write()
        key = (repr(part), struct, minor)
        text = self._kept.get(key)
        if text is None:
            text = write()
            if len(self._kept) >= _MOST_KEPT:
                self._kept.clear()
            self._kept[key] = text
        return text
