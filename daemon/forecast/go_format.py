"""A container as kubelet writes it before it hashes: Go's `%#v` dump up to 1.15, Go's JSON from 1.16.

Both walk the same tables (`go_types`). What a version cannot express raises InexpressibleError.
Sources: github.com/davecgh/go-spew (dump with SortKeys, DisableMethods, SpewKeys), Go's encoding/json.
"""

import json
from collections.abc import Mapping
from typing import Any

from daemon.forecast.go_types import STRUCTS, Field, Version, fields
from daemon.forecast.quantity import ZERO, Quantity, UnknownQuantityError, parse

_INTEGERS = {"int32": 2**31, "int64": 2**63}
_NIL = "<nil>"


class InexpressibleError(ValueError):
    """The container has something that the version's structs do not, or of another type."""


def dump(container: Mapping[str, Any], version: Version) -> str:
    """The container as `spew` prints it."""
    _check_known(container, "v1.Container", version)
    return f"(v1.Container){_dump_struct(container, 'v1.Container', version)}"


def marshal(container: Mapping[str, Any], version: Version) -> str:
    """The container as Go's JSON encoder writes it."""
    _check_known(container, "v1.Container", version)
    return go_json(_json_struct(container, "v1.Container", version))


def go_json(value: Any) -> str:
    """JSON text with Go's escapes: HTML's characters and U+2028, U+2029 are written as escapes."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text.replace("\x7f", "\x7f")


def _check_known(value: Any, struct: str, version: Version) -> None:
    """Refuse fields that the struct does not have in this version."""
    if not isinstance(value, Mapping):
        raise InexpressibleError(f"{struct} is not an object")
    known = set(_json_names(struct, version))
    for name, found in value.items():
        if name not in known and found is not None:
            raise InexpressibleError(f"{struct} has no field {name}")


def _json_names(struct: str, version: Version) -> list[str]:
    """Names that may stand in the struct's JSON object, those of embedded structs too."""
    names: list[str] = []
    for field in fields(struct, version):
        names += [field.json] if field.json else _json_names(field.type, version)
    return names


def _inner(value: Mapping[str, Any], field: Field) -> Any:
    """The field's value; an embedded struct reads from the outer object."""
    return value if not field.json else value.get(field.json)


def _scalar(value: Any, kind: str) -> Any:
    """A bool, integer or string, checked."""
    if kind == "bool":
        if not isinstance(value, bool):
            raise InexpressibleError(f"{value!r} is not a bool")
    elif kind in _INTEGERS:
        if isinstance(value, bool) or not isinstance(value, int) or not -_INTEGERS[kind] <= value < _INTEGERS[kind]:
            raise InexpressibleError(f"{value!r} is not an {kind}")
    elif not isinstance(value, str):
        raise InexpressibleError(f"{value!r} is not a string")
    return value


def _zero(kind: str) -> Any:
    """Go's zero value of a scalar."""
    return False if kind == "bool" else 0 if kind in _INTEGERS else ""


def _quantity(value: Any) -> Quantity:
    """A quantity from its JSON: text, or a bare number."""
    if value is None:
        return ZERO
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise InexpressibleError(f"{value!r} is not a quantity")
    try:
        return parse(str(value))
    except UnknownQuantityError as error:
        raise InexpressibleError(str(error)) from error


def _items(value: Any) -> list[Any]:
    """A list; protobuf knows no difference between an empty one and none."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise InexpressibleError(f"{value!r} is not a list")
    return value


# The dump.


def _dump_struct(value: Any, struct: str, version: Version) -> str:
    parts = [f"{field.go}:{_dump(_inner(value, field), field.type, version)}" for field in fields(struct, version)]
    return "{" + " ".join(parts) + "}"


def _dump(value: Any, kind: str, version: Version) -> str:
    """A value with its type in front."""
    if kind.startswith("*"):
        return f"({kind}){_NIL}" if value is None else f"({kind}){_dump_bare(value, kind[1:], version)}"
    if kind.startswith("[]"):
        elements = [_dump_bare(each, kind[2:], version) for each in _items(value)]
        return f"({kind})[{' '.join(elements)}]" if elements else f"({kind}){_NIL}"
    return f"({kind}){_dump_bare(value, kind, version)}"


def _dump_bare(value: Any, kind: str, version: Version) -> str:
    """A value without its type."""
    if kind in STRUCTS:
        value = {} if value is None else value
        if kind not in {"v1.Handler", "v1.LocalObjectReference"}:
            _check_known(value, kind, version)
        elif not isinstance(value, Mapping):
            raise InexpressibleError(f"{kind} is not an object")
        return _dump_struct(value, kind, version)
    if kind == "v1.ResourceList":
        return _dump_resources(value)
    if kind == "resource.Quantity":
        return _dump_quantity(_quantity(value))
    if kind == "intstr.IntOrString":
        number, text = (0, value) if isinstance(value, str) else (_scalar(value or 0, "int32"), "")
        which = int(isinstance(value, str))
        return f"{{Type:(intstr.Type){which} IntVal:(int32){number} StrVal:(string){text}}}"
    scalar = _zero(kind) if value is None else _scalar(value, kind)
    return str(scalar).lower() if isinstance(scalar, bool) else str(scalar)


def _dump_resources(value: Any) -> str:
    if not value:
        return _NIL
    if not isinstance(value, Mapping):
        raise InexpressibleError(f"{value!r} is not a resource list")
    return "map[" + " ".join(f"{name}:{_dump_quantity(_quantity(value[name]))}" for name in sorted(value)) + "]"


def _dump_quantity(quantity: Quantity) -> str:
    dec = _NIL
    if quantity.unscaled is not None:
        size, words = abs(quantity.unscaled), []
        while size:
            words.append(str(size % 2**64))
            size //= 2**64
        absolute = f"[{' '.join(words)}]" if words else _NIL
        negative = str(quantity.unscaled < 0).lower()
        dec = f"{{unscaled:(big.Int){{neg:(bool){negative} abs:(big.nat){absolute}}} scale:(inf.Scale)9}}"
    return (
        f"{{i:(resource.int64Amount){{value:(int64){quantity.int_value} scale:(resource.Scale){quantity.int_scale}}} "
        f"d:(resource.infDecAmount){{Dec:(*inf.Dec){dec}}} s:(string){quantity.cached} "
        f"Format:(resource.Format){quantity.format}}}"
    )


# The JSON.


def _json_struct(value: Any, struct: str, version: Version) -> dict[str, Any]:
    shape: dict[str, Any] = {}
    for field in fields(struct, version):
        if not field.json:
            shape |= _json_struct(value, field.type, version)
            continue
        found = _json(value.get(field.json), field, version)
        if found is not None or field.required:
            shape[field.json] = found
    return shape


def _json(value: Any, field: Field, version: Version) -> Any:
    """What the encoder makes of a field's value; None for what omitempty leaves out (or a nil pointer)."""
    kind = field.type
    if kind.startswith("*"):
        return None if value is None else _json_bare(value, kind[1:], version)
    if kind.startswith("[]"):
        return [_json_bare(each, kind[2:], version) for each in _items(value)] or None
    if kind == "v1.ResourceList":
        return _json_resources(value)
    bare = _json_bare(value, kind, version)
    plain = kind not in STRUCTS and kind != "resource.Quantity"
    return None if plain and not field.required and bare == _zero(kind) else bare


def _json_bare(value: Any, kind: str, version: Version) -> Any:
    if kind in STRUCTS:
        value = {} if value is None else value
        _check_known(value, kind, version)
        return _json_struct(value, kind, version)
    if kind == "resource.Quantity":
        return _canonical(value)
    if kind == "intstr.IntOrString":
        return value if isinstance(value, str) else _scalar(value or 0, "int32")
    return _zero(kind) if value is None else _scalar(value, kind)


def _json_resources(value: Any) -> Any:
    if not value:
        return None
    if not isinstance(value, Mapping):
        raise InexpressibleError(f"{value!r} is not a resource list")
    return {name: _canonical(value[name]) for name in sorted(value)}


def _canonical(value: Any) -> str:
    quantity = _quantity(value)
    try:
        return quantity.canonical()
    except UnknownQuantityError as error:
        raise InexpressibleError(str(error)) from error
