"""Prints a container as Go's spew library does with `%#v`: each field with its type, also nil values, and sorted maps.

Kubelets up to 1.15 hashed this text. Pointers are followed, strings are printed as they are, and elements of lists
and maps have no type. Big numbers are printed in 64-bit words.

It stays, although these kubelets are out of support: a dump has every field, also absent ones, so the recorded hashes
of 1.7, 1.9 and 1.13 check the table of fields from which the JSON of later versions is written.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any

from crrd_forecast.hash import go_values
from crrd_forecast.hash.container_types import Field, InexpressibleError, Kind, fields, require_known
from crrd_forecast.hash.quantity import NOTHING, Quantity

_WORD = 64
_texts = go_values.Texts()


def dump(container: Mapping[str, Any], minor: int) -> str:
    """Print the container with the structs of 1.`minor`. Raises InexpressibleError if it does not fit them."""
    return f"(v1.Container){_struct(container, 'Container', minor, 'container')}"


def _struct(value: Any, struct: str, minor: int, path: str) -> str:
    shape = require_known(value, struct, minor, path)
    return f"{{{_fields(shape, struct, minor, path)}}}"


def _fields(shape: Mapping[str, Any], struct: str, minor: int, path: str) -> str:
    parts = []
    for field, label, absent in _layout(struct, minor):
        if not field.key:  # an embedded struct; its keys were checked with those of the outer struct
            parts.append(f"{label}{{{_fields(shape, field.type, minor, path)}}}")
        elif (value := shape.get(field.key)) is None:
            parts.append(absent)
        else:
            parts.append(label + _field(field, value, minor, f"{path}.{field.key}"))
    return " ".join(parts)


@cache
def _layout(struct: str, minor: int) -> tuple[tuple[Field, str, str], ...]:
    """Return each field with its printed name and type, and with the text that is printed if it is absent."""
    labels = ((field, f"{field.name}:({field.go_type})") for field in fields(struct, minor))
    return tuple((field, label, label + _absent(field, minor)) for field, label in labels)


def _field(field: Field, value: Any, minor: int, path: str) -> str:
    if field.many:
        listed = go_values.elements(value, path)
        if not listed:  # nil, because kubelet gets pods as protobuf, which has no empty lists
            return "<nil>"
        return f"[{' '.join(_value(field, each, minor, f'{path}[{n}]') for n, each in enumerate(listed))}]"
    if field.kind is Kind.QUANTITIES:
        return _quantities(value, path) if value else "<nil>"
    return _value(field, value, minor, path)


def _absent(field: Field, minor: int) -> str:
    """Return the text for the value of an absent field."""
    if field.pointer or field.many or field.kind is Kind.QUANTITIES:
        return "<nil>"
    if field.kind is Kind.STRUCT:
        return _struct({}, field.type, minor, "")
    if field.kind is Kind.QUANTITY:
        return _quantity(NOTHING, "")
    if field.kind is Kind.INT_OR_STRING:
        return _int_or_string(0, "")
    return {Kind.STRING: "", Kind.BOOL: "false", Kind.INT: "0"}[field.kind]


def _value(field: Field, value: Any, minor: int, path: str) -> str:
    if field.kind is Kind.STRUCT:
        return _texts(value, field.type, minor, lambda: _struct(value, field.type, minor, path))
    if field.kind is Kind.QUANTITY:
        return _quantity(go_values.amount(value, path), path)
    if field.kind is Kind.INT_OR_STRING:
        return _int_or_string(value, path)
    plain = go_values.scalar(field, value, path)
    return str(plain).lower() if isinstance(plain, bool) else str(plain)


def _int_or_string(value: Any, path: str) -> str:
    kind, number, text = 0, 0, ""
    if isinstance(value, str):
        kind, text = 1, go_values.text(value, path)
    else:
        number = go_values.whole(value, 32, path)
    return f"{{Type:(intstr.Type){kind} IntVal:(int32){number} StrVal:(string){text}}}"


def _quantities(value: Any, path: str) -> str:
    return f"map[{' '.join(f'{key}:{_quantity(each, path)}' for key, each in go_values.amounts(value, path))}]"


def _quantity(value: Quantity, path: str) -> str:
    if value.big and not value.unscaled:
        raise InexpressibleError(f"{path} is a zero that is written in an odd way")
    number, scale = (0, 0) if value.big else (value.unscaled, value.scale)
    decimal = _decimal(value) if value.big else "<nil>"
    return (
        f"{{i:(resource.int64Amount){{value:(int64){number} scale:(resource.Scale){scale}}} "
        f"d:(resource.infDecAmount){{Dec:(*inf.Dec){decimal}}} "
        f"s:(string){value.text} Format:(resource.Format){value.format}}}"
    )


def _decimal(value: Quantity) -> str:
    words, rest = [], abs(value.unscaled)
    while rest:
        words.append(str(rest & (1 << _WORD) - 1))
        rest >>= _WORD
    negative = str(value.unscaled < 0).lower()
    number = f"{{neg:(bool){negative} abs:(big.nat)[{' '.join(words)}]}}"
    return f"{{unscaled:(big.Int){number} scale:(inf.Scale){-value.scale}}}"
