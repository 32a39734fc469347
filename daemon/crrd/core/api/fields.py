"""Tables of fields: one row has everything about one field of an object of ours, and `Section` reads by it.

There is a table for each kind (`core.api.schema`, `core.policy.schema`). `manifests/base/generate.py` writes the CRDs
and the tables in docs from them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

from crrd.core.api.time import format_duration, parse_duration
from crrd.lib.jsonfields import INT32_MAX, INT64_MAX, Choice, Reader, shown, text


class Type(StrEnum):
    """The types of fields, with their names in docs."""

    OBJECT = "object"
    LIST = "list"
    STRING = "string"
    TIME = "RFC 3339 time"
    BOOLEAN = "bool"
    INT32 = "int32"
    INT64 = "int64"
    NUMBER = "number"
    STRINGS = "list of strings"
    DURATION = "duration"
    CRON = "cron expression"
    AMOUNT = "number or percentage"
    AMOUNTS = "list of numbers or percentages"
    QUANTITY = "quantity"
    SELECTOR = "label selector"
    CONDITIONS = "conditions"


NUMBERS = (Type.INT32, Type.INT64)


class SetBy(StrEnum):
    """The writers of fields."""

    USER = "user"  # Admission sets the default if it is absent
    ADMISSION = "admission"
    OPENKRUISE = "OpenKruise's admission"
    STATUS = "node and manager"
    OTHERS = "other managers"


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a kind."""

    type: Type
    path: str  # From the root of the object; `[]` means the entries of a list
    description: str
    set_by: SetBy = SetBy.USER
    required: bool = False
    low: int = 0  # Least number or seconds, characters of a string, entries of a list, or fields of an object
    high: int | None = None  # Most characters or entries; numbers are limited by their type
    default: str | bool | int | None = None
    """What the reader takes for an absent field. A member of an enumeration: the field is one of its members."""
    of_pod: bool = False  # Whether admission takes the default from the pod's terminationGracePeriodSeconds
    longest: tuple[int, str] | None = None
    """The most seconds that admission lets in, also in words. Requests that no admission saw are served with more."""
    high_each: int | None = None  # Most characters of each of the strings

    @property
    def parent(self) -> str:
        """The path of the object or list that has the field."""
        return self.path.rpartition(".")[0]

    @property
    def name(self) -> str:
        """The field's name in its object."""
        return self.path.rpartition(".")[2].removesuffix("[]")

    @property
    def filled_in(self) -> bool:
        """Whether admission writes the default into a new request. None, false and 0 are not written."""
        return self.set_by is SetBy.USER and (self.of_pod or bool(self.default))

    @property
    def number(self) -> int | None:
        """The default of a number or, in seconds, of a duration."""
        return parse_duration(self.default) if isinstance(self.default, str) else self.default

    def absent(self, value: object) -> bool:
        """Whether a value stands for the default."""
        return value is None or (value == "" and self.type is Type.STRING)


class Section:
    """One object of a kind, the fields of which are read as the table has them; `reader` keeps what is wrong.

    Args:
        path: of the object in the table.
        shown: what messages call it; its path if nothing is given.
    """

    def __init__(self, fields: Mapping[str, Field], reader: Reader, value: object, path: str, shown: str = "") -> None:
        self._fields, self._reader, self._path, self._shown = fields, reader, path, shown or path
        self.raw: Mapping[str, Any] = reader.mapping(value, self._shown)

    def where(self, key: str) -> str:
        """Return the name of a field for messages."""
        return f"{self._shown}.{key}"

    def reject(self, rule: str, key: str = "") -> None:
        """Remember that the object or a field of it breaks the rule, unless something else was wrong before."""
        self._reader.reject(self.where(key) if key else self._shown, rule)

    def reject_unknown(self) -> None:
        """Remember that the object has a field that the table does not have, unless something else was wrong before."""
        known = [each.name for each in self._fields.values() if each.parent == self._path]
        for key in self.raw.keys() - {*known}:
            self.reject(f"has an unknown field {shown(str(key))}; its fields are {', '.join(known)}")

    def value(self, key: str) -> Any:
        """Return a field as it stands, or its default."""
        value, field = self.raw.get(key), self._field(key)
        return field.default if field.absent(value) else value

    def text(self, key: str) -> str:
        """Return a string field."""
        return self._reader.text(self.value(key), self.where(key), required=self._field(key).required)

    def texts(self, key: str) -> tuple[str, ...]:
        """Return a list of strings, without empty ones."""
        where = self.where(key)
        return tuple(
            filter(None, (self._reader.text(each, where) for each in self._reader.items(self.value(key), where)))
        )

    def values(self, key: str) -> list[Any] | None:
        """Return a list as it stands, None if it is absent."""
        return None if self.raw.get(key) is None else [*self._reader.items(self.raw.get(key), self.where(key))]

    def flag(self, key: str) -> bool:
        """Return a boolean field."""
        return self._reader.flag(self.value(key), self.where(key))

    def integer(self, key: str) -> int:
        """Return an integer, or the seconds of a duration, or else its default. The least if it has none."""
        found = self.optional_integer(key)
        return self._field(key).low if found is None else found

    def optional_integer(self, key: str) -> int | None:
        """Return an integer, or the seconds of a duration, or else its default. None if it has none."""
        field, value = self._field(key), self.value(key)
        if field.type is Type.DURATION:
            found = self._duration(field, value)
        else:
            most = INT32_MAX if field.type is Type.INT32 else INT64_MAX
            found = self._reader.integer(value, self.where(key), low=field.low, high=most)
        return field.number if found is None else found

    def optional_number(self, key: str) -> float | None:
        """Return a number that may be a fraction; None if it is absent."""
        return self._reader.finite(self.value(key), self.where(key))

    def _duration(self, field: Field, value: object) -> int | None:
        if value is None and not field.required:
            return None
        given = text(value)
        seconds = parse_duration(given) if given[-1:].isalpha() else None  # 30 alone leaves open of what
        if seconds is not None and seconds >= field.low:
            return seconds
        least = f", at least {format_duration(field.low)}" if field.low else ""
        self.reject(f"must be a time like 30s, 5m or 72h{least}", field.name)
        return None

    def choice(self, key: str, kind: type[Choice]) -> Choice:
        """Return a member of the enumeration that the field's default belongs to."""
        return self._reader.choice(self.raw.get(key), self.where(key), kind(str(self._field(key).default)))

    def section(self, key: str) -> Self:
        """Return the object in a field."""
        return self._of(self.raw.get(key), self._field(key).path, self.where(key))

    def optional_section(self, key: str) -> Self | None:
        """Return the object in a field, or None if it is absent."""
        return None if self.raw.get(key) is None else self.section(key)

    def sections(self, key: str) -> list[Self]:
        """Return the objects in a list."""
        entries = enumerate(self._reader.items(self.raw.get(key), self.where(key)))
        return [self._of(raw, f"{self._path}.{key}[]", f"{self.where(key)}[{at}]") for at, raw in entries]

    def _of(self, value: object, path: str, shown: str) -> Self:
        return type(self)(self._fields, self._reader, value, path, shown)

    def _field(self, key: str) -> Field:
        return self._fields[f"{self._path}.{key}"]
