"""Kubernetes objects as plain JSON values, and operations that all parts of the local API server need.

An object in the store is never changed. To change it, a new dict is built that shares the unchanged parts. So readers,
watchers and writers can share objects without copies.
"""

import json
from collections.abc import Mapping
from typing import Any

Object = dict[str, Any]  # A JSON object; the values are those of `json.loads`

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


def dumps(value: object) -> bytes:
    """Return the compact JSON text of a value, in UTF-8."""
    return _encode(value).encode()


def loads(text: bytes | str) -> Any:
    """Parse a JSON text. ValueError if it is invalid (including NaN and Infinity, as in Kubernetes)."""
    return json.loads(text, parse_constant=_refuse)


def _refuse(constant: str) -> None:
    raise ValueError(f"invalid character in number: {constant}")


def metadata(obj: Mapping[str, Any]) -> Object:
    """Return the object's metadata, or {}."""
    found = obj.get("metadata")
    return found if isinstance(found, dict) else {}


def with_metadata(obj: Object, **changes: Any) -> Object:
    """Return the object with some metadata fields set, or removed if the value is None."""
    meta = dict(metadata(obj))
    for name, value in changes.items():
        if value is None:
            meta.pop(name, None)
        else:
            meta[name] = value
    return {**obj, "metadata": meta}


def dig(obj: Any, *path: str) -> Any:
    """Return the value at a path of field names, or None if a field is missing."""
    for name in path:
        if not isinstance(obj, dict):
            return None
        obj = obj.get(name)
    return obj
