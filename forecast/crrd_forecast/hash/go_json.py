"""Writes a container as Go's encoding/json does: fields in the struct's order, without empty ones, HTML escaped."""

import json
import re
from functools import cache
from typing import Any

from crrd_forecast.hash import go_values
from crrd_forecast.hash.container_types import Field, InexpressibleError, Kind, flat_fields, require_known
from crrd_forecast.hash.quantity import Quantity

_ESCAPED = re.compile(r"""[<>&\u2028\u2029"\\\x00-\x1f]""")
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t", '"': '\\"', "\\": "\\\\"}
_GO_1_22 = {"\b": "\\b", "\f": "\\f"}  # Since Go 1.22; before, they were `\u0008` and `\u000c`
_BEFORE_GO_1_22, _SINCE_GO_1_22 = 26, 30
"""The last minor version with Go before 1.22 in all patch releases, and the first with a later Go in all of them."""

_texts = go_values.Texts()


class Writer:
    """Writes containers as kubelet 1.`minor` does."""

    def __init__(self, minor: int) -> None:
        self._minor = minor

    def text(self, value: str, path: str = "text") -> str:
        """Return a string in quotes, with escapes."""
        if _ESCAPED.search(value) is None:
            return f'"{value}"'

        def escape(match: re.Match[str]) -> str:
            character = match[0]
            if character in _GO_1_22 and self._minor > _BEFORE_GO_1_22:
                if self._minor < _SINCE_GO_1_22:
                    reason = f"has a control character that releases of 1.{self._minor} write differently"
                    raise InexpressibleError(f"{path} {reason}")
                return _GO_1_22[character]
            return _SHORT.get(character) or f"\\u{ord(character):04x}"

        return f'"{_ESCAPED.sub(escape, value)}"'

    def struct(self, value: Any, struct: str = "Container", path: str = "container") -> str:
        """Return the JSON of a struct. Raises InexpressibleError if the value does not fit the version's structs."""
        shape = require_known(value, struct, self._minor, path)
        parts = []
        for field, label, absent in _layout(struct, self._minor):
            found = shape.get(field.key)
            if found is None:
                if absent:
                    parts.append(absent)
            elif (written := self._field(field, found, f"{path}.{field.key}")) is not None:
                parts.append(label + written)
        return f"{{{','.join(parts)}}}"

    def _field(self, field: Field, value: Any, path: str) -> str | None:
        """Return the JSON of a field's value; None if it is omitted."""
        if field.many:
            listed = go_values.elements(value, path)
            if not listed:
                return None
            return f"[{','.join(self._value(field, each, f'{path}[{n}]') for n, each in enumerate(listed))}]"
        if field.kind is Kind.QUANTITIES:
            return self._quantities(value, path) if value else None
        if field.omit_empty and not field.pointer and field.kind in (Kind.STRING, Kind.BOOL, Kind.INT):
            return self._value(field, value, path) if go_values.scalar(field, value, path) else None
        return self._value(field, value, path)

    def _value(self, field: Field, value: Any, path: str) -> str:
        if field.kind is Kind.STRUCT:
            return _texts(value, field.type, self._minor, lambda: self.struct(value, field.type, path))
        if field.kind is Kind.QUANTITY:
            return self._quantity(go_values.amount(value, path), path)
        if field.kind is Kind.INT_OR_STRING:
            if isinstance(value, str):
                return self.text(go_values.text(value, path), path)
            return str(go_values.whole(value, 32, path))
        plain = go_values.scalar(field, value, path)
        return self.text(plain, path) if isinstance(plain, str) else json.dumps(plain)

    def _quantities(self, value: Any, path: str) -> str:
        amounts = go_values.amounts(value, path)
        parts = (f"{self.text(key, path)}:{self._quantity(each, f'{path}[{key}]')}" for key, each in amounts)
        return f"{{{','.join(parts)}}}"

    def _quantity(self, value: Quantity, path: str) -> str:
        try:
            return f'"{value.canonical()}"'
        except ValueError as error:
            raise InexpressibleError(f"{path}: {error}") from error


@cache
def _layout(struct: str, minor: int) -> tuple[tuple[Field, str, str], ...]:
    """Return each field with its key, and with the text that is written if it is absent ("" for nothing)."""
    labels = ((field, f'"{field.key}":', _absent(field, minor)) for field in flat_fields(struct, minor))
    return tuple((field, label, label + absent if absent else "") for field, label, absent in labels)


def _absent(field: Field, minor: int) -> str:
    """Return the text for an absent field, "" for nothing. Go writes structs even with `omitempty`."""
    if field.pointer or field.many or field.kind is Kind.QUANTITIES:
        return "" if field.omit_empty else "null"
    if field.kind is Kind.STRUCT:
        return Writer(minor).struct({}, field.type, "")
    if field.kind is Kind.QUANTITY:
        return '"0"'
    if field.omit_empty:
        return ""
    return '""' if field.kind is Kind.STRING else "0"
