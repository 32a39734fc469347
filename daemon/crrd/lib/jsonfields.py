"""Reads typed fields out of JSON that anybody may have written, without ever raising.

A `Reader` keeps the first thing that is wrong as one sentence that names the field; the value of a wrong field is
its default, so that the rest of the object can still be read. What the fields mean is `core.api`'s concern.
"""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, TypeVar

INT32_MAX = 2**31 - 1
INT32_MIN = -(2**31)
INT64_MAX = 2**63 - 1
_DIGITS = 20  # Most of them in a number. Python raises an error for thousands of them
_SHOWN = 60  # Characters of a wrong value that a message repeats

Choice = TypeVar("Choice", bound=StrEnum)


def mapping(value: object) -> Mapping[str, Any]:
    """Return the value if it is a JSON object, else an empty one."""
    return value if isinstance(value, (dict, Mapping)) else {}


def items(value: object) -> Sequence[Any]:
    """Return the value if it is a JSON list, else an empty one."""
    return value if isinstance(value, list | tuple) else ()


def text(value: object) -> str:
    """Return the value if it is a string, else ""."""
    return value if isinstance(value, str) else ""


def number(value: object, most: int = INT64_MAX) -> int:
    """Return the value if it is a whole number from 0 to `most`, else 0."""
    found = Reader().integer(value, "", high=most)
    return 0 if found is None else found


def decimal(given: str, most: int = INT64_MAX) -> int | None:
    """Parse a whole number from 0 to `most` in digits, as labels and annotations have it. None for anything else."""
    if not given.isascii() or not given.isdigit() or len(given) > _DIGITS:
        return None
    value = int(given)
    return value if value <= most else None


def value_at(obj: object, path: str) -> Any:
    """Return the value in a JSON object at a path such as `spec.podName`, or None."""
    for key in path.split("."):
        obj = mapping(obj).get(key)
    return obj


def name_of(obj: object) -> str:
    """Return the name of an object of the API, or ""."""
    return text(value_at(obj, "metadata.name"))


def mapping_at(obj: object, path: str) -> Mapping[str, Any]:
    """Return the JSON object in a JSON object at a path, or an empty one."""
    return mapping(value_at(obj, path))


def condition(obj: object, kind: str) -> Mapping[str, Any]:
    """Return the condition of this type in an object's status, or an empty one."""
    conditions = map(mapping, items(value_at(obj, "status.conditions")))
    return next((each for each in conditions if each.get("type") == kind), {})


def condition_is_true(obj: object, kind: str) -> bool:
    """Whether an object's condition of this type has the status True."""
    return condition(obj, kind).get("status") == "True"


def with_values(obj: object, values: Mapping[str, object]) -> dict[str, Any]:
    """Return the JSON object with these values at these paths. Objects on the way that do not exist are created."""
    result = dict(mapping(obj))
    for path, value in values.items():
        key, _, rest = path.partition(".")
        result[key] = with_values(result.get(key), {rest: value}) if rest else value
    return result


def lost_fields(sent: object, stored: object, path: str) -> Iterator[str]:
    """Yield the paths of what was sent to the API server and is not in its answer. A null asks for no field."""
    for key, value in mapping(sent).items():
        if value is not None and key not in mapping(stored):
            yield f"{path}.{key}"
        elif value is not None:
            yield from lost_fields(value, mapping(stored)[key], f"{path}.{key}")
    for one, other in zip(items(sent), items(stored), strict=False):
        yield from lost_fields(one, other, f"{path}[]")


def shown(value: object) -> str:
    """Return a wrong value for a message: quoted, escaped and cut. Of objects and lists, only the type is shown."""
    if isinstance(value, str):
        return repr(value[:_SHOWN])
    if isinstance(value, Mapping):
        return "an object"
    return "a list" if isinstance(value, list | tuple) else json.dumps(value, default=str)[:_SHOWN]


class Reader:
    """Reads fields; `error` is the first sentence of what is wrong, "" while all is well.

    As in Kubernetes, a null is the same as an absent field.
    """

    def __init__(self) -> None:
        self.error = ""

    def reject(self, path: str, rule: str) -> None:
        """Remember that the field breaks the rule, unless something else was wrong before."""
        self.error = self.error or f"{path} {rule}"

    def mapping(self, value: object, path: str) -> Mapping[str, Any]:
        """Return a JSON object; an empty one if it is absent or invalid."""
        if value is not None and not isinstance(value, Mapping):
            self.reject(path, "must be an object")
        return mapping(value)

    def items(self, value: object, path: str) -> Sequence[Any]:
        """Return a JSON list; an empty one if it is absent or invalid."""
        if value is not None and not isinstance(value, list | tuple):
            self.reject(path, "must be a list")
        return items(value)

    def text(self, value: object, path: str, *, required: bool = False) -> str:
        """Return a string; "" if it is absent or invalid. A required one must not be empty."""
        if value is not None and not isinstance(value, str):
            self.reject(path, "must be a string")
        elif required and not value:
            self.reject(path, "must be a string that is not empty")
        return text(value)

    def flag(self, value: object, path: str) -> bool:
        """Return a boolean; False if it is absent or invalid."""
        if value is not None and not isinstance(value, bool):
            self.reject(path, "must be true or false")
        return value is True

    def integer(self, value: object, path: str, *, low: int = 0, high: int = INT64_MAX) -> int | None:
        """Return a whole number from `low` to `high`; None if it is absent or invalid. 30.0 counts as 30."""
        if value is None:
            return None
        number = int(value) if isinstance(value, float) and value.is_integer() else value
        if isinstance(number, int) and not isinstance(number, bool) and low <= number <= high:
            return number
        self.reject(path, f"must be a whole number from {low} to {high}, not {shown(value)}")
        return None

    def finite(self, value: object, path: str) -> float | None:
        """Return a number that may be a fraction, but not infinite or NaN; None if it is absent or invalid."""
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max:
            return float(value)
        if value is not None:
            self.reject(path, f"must be a number, not {shown(value)}")
        return None

    def choice(self, value: object, path: str, default: Choice) -> Choice:
        """Return a member of the default's enumeration; the default if it is absent, empty or invalid."""
        if value is None or value == "":
            return default
        known = {member.value: member for member in type(default)}
        if isinstance(value, str) and value in known:
            return known[value]
        *most, last = filter(None, known)
        self.reject(path, f"must be {', '.join(most)} or {last}, not {shown(value)}")
        return default
