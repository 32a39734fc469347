"""Kubernetes objects as plain JSON values, and the few operations that every part of the local API server needs.

An object that has reached the store is never changed again: whoever wants another one builds a new dict around the
parts that stay. That is what lets readers, watchers and writers share objects without copying them.
"""

import json
from collections.abc import Mapping
from typing import Any

Object = dict[str, Any]  # One JSON object; the values are what `json.loads` yields

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


def dumps(value: object) -> bytes:
    """The compact JSON text of a value, in UTF-8."""
    return _encode(value).encode()


def loads(text: bytes | str) -> Any:
    """The value of a JSON text; ValueError if it is none (NaN and Infinity are none, as in Kubernetes)."""
    return json.loads(text, parse_constant=_refuse)


def _refuse(constant: str) -> None:
    raise ValueError(f"invalid character in number: {constant}")


def metadata(obj: Mapping[str, Any]) -> Object:
    """The object's metadata, empty where it has none."""
    found = obj.get("metadata")
    return found if isinstance(found, dict) else {}


def with_metadata(obj: Object, **changes: Any) -> Object:
    """The object with some metadata fields set, or, where the value is None, removed."""
    meta = dict(metadata(obj))
    for name, value in changes.items():
        if value is None:
            meta.pop(name, None)
        else:
            meta[name] = value
    return {**obj, "metadata": meta}


def dig(obj: Any, *path: str) -> Any:
    """The value at a path of field names, None where a step is missing."""
    for name in path:
        if not isinstance(obj, dict):
            return None
        obj = obj.get(name)
    return obj
