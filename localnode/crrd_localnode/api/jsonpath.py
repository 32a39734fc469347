"""Evaluates the JSONPaths of a CRD's printer columns, like client-go's util/jsonpath with missing keys allowed.

Supported are names, `['name']`, `[2]`, `*`, and filters that compare one field with a literal or test that it exists. A
CRD with other paths is refused.
"""

import json
import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

_STEP = re.compile(
    r"""\[\?\(\s*@(?P<filter>[^=!<>()]*?)\s*(?:(?P<operator>==|!=|<=|>=|<|>)\s*(?P<literal>"[^"]*"|'[^']*'|[^()]+?)\s*)?\)\]
    | (?:\[|\.) (?P<all>\*) \]?
    | \[ (?P<index>-?\d+) \]
    | \[ (?P<quote>['"]) (?P<quoted>[^'"]+) (?P=quote) \]
    | \.? (?P<name>(?:\\.|[^.\[\]\\*])+)""",
    re.VERBOSE,
)
_OPERATORS = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge,
}  # fmt: skip

Step = Callable[[Any], Iterator[Any]]  # Returns what a step finds in one value. Raises LookupError like the API server


class InvalidPathError(ValueError):
    """The text is not a path that the local API server supports."""


@dataclass(frozen=True, slots=True)
class JsonPath:
    """A parsed path."""

    steps: tuple[Step, ...]

    @classmethod
    def parse(cls, text: str) -> "JsonPath":
        """Return the path. Raises InvalidPathError."""
        steps, at = [], 0
        while at < len(text):
            match = _STEP.match(text, at)
            if match is None or not match[0]:
                raise InvalidPathError(f"unrecognized part of the path: {text[at:]}")
            steps.append(_step(match.groupdict()))
            at = match.end()
        return cls(tuple(steps))

    def find(self, value: Any) -> list[Any]:
        """Return all values at the path. LookupError where the API server fails (the cell is empty then)."""
        found = [value]
        for step in self.steps:
            found = [each for one in found for each in step(one)]
        return found


def _step(part: dict[str, Any]) -> Step:
    if part["filter"] is not None:
        return _filter(JsonPath.parse(part["filter"]), part["operator"], part["literal"])
    if part["all"]:
        return lambda value: iter(value.values() if isinstance(value, dict) else _list(value))
    if part["index"]:
        return lambda value: iter([_list(value)[int(part["index"])]])  # IndexError is a LookupError
    name = part["quoted"] or part["name"].replace("\\", "")
    return lambda value: iter([value[name]] if isinstance(value, dict) and name in value else [])


def _list(value: Any) -> list[Any]:
    if isinstance(value, list):
        return value
    raise LookupError("not an array")


def _filter(path: JsonPath, comparison: str | None, literal: str | None) -> Step:
    def passes(item: Any) -> bool:
        found = path.find(item)
        if comparison is None or literal is None:
            return bool(found)
        try:
            expected = literal[1:-1] if literal[0] in "'\"" else json.loads(literal)
            (actual,) = found
            if _sort(actual) is not _sort(expected):
                raise LookupError("incompatible types for comparison")
            return bool(_OPERATORS[comparison](actual, expected))
        except (TypeError, ValueError) as error:
            raise LookupError("can only compare one element at a time") from error

    return lambda value: (item for item in _list(value) if passes(item))


def _sort(value: Any) -> type:
    return next((kind for kind in (bool, str, float) if isinstance(value, kind)), float)
