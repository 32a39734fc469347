"""Evaluates JSONPaths, like client-go's util/jsonpath with missing keys allowed.

Supported are names, `['name']`, `[2]`, `*`, and filters that compare one field with a literal (`==`, `!=`) or test that
it exists. Other paths are refused.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

_STEP = re.compile(
    r"""\[\?\(\s*@(?P<filter>[^=!<>()]*?)\s*(?:(?P<operator>[=!]=)\s*(?P<literal>"[^"]*"|'[^']*'|[^()]+?)\s*)?\)\]
    | (?:\[|\.) (?P<all>\*) \]?
    | \[ (?P<index>-?\d+) \]
    | \[ (?P<quote>['"]) (?P<quoted>[^'"]+) (?P=quote) \]
    | \.? (?P<name>(?:\\.|[^.\[\]\\*])+)""",
    re.VERBOSE,
)

JsonPath = tuple[dict[str, Any], ...]  # The groups of _STEP for each step


def parse_path(path: str) -> JsonPath:
    """Return the path. ValueError if it is not supported."""
    steps, at = [], 0
    while at < len(path):
        match = _STEP.match(path, at)
        if match is None:
            raise ValueError(f"unrecognized part of the path: {path[at:]}")
        step: dict[str, Any] = match.groupdict()
        step["name"] = step["quoted"] or (step["name"] or "").replace("\\", "")
        if step["filter"] is not None:
            step["filter"] = parse_path(step["filter"])
        if literal := step["literal"]:
            step["literal"] = literal[1:-1] if literal[0] in "'\"" else json.loads(literal)
        steps.append(step)
        at = match.end()
    return tuple(steps)


def find_all(path: JsonPath, value: Any) -> list[Any]:
    """Return all values at the path. LookupError where the API server fails (the cell is empty then)."""
    found = [value]
    for step in path:
        found = [each for one in found for each in _follow(step, one)]
    return found


def _follow(step: dict[str, Any], value: Any) -> Iterator[Any]:
    if step["name"]:
        yield from [value[step["name"]]] if isinstance(value, dict) and step["name"] in value else []
    elif not isinstance(value, list) and not (step["all"] and isinstance(value, dict)):
        raise LookupError("not an array")
    elif step["index"]:
        yield value[int(step["index"])]  # IndexError is a LookupError
    elif step["all"]:
        yield from value.values() if isinstance(value, dict) else value
    else:
        yield from (item for item in value if _passes(step, item))


def _passes(step: dict[str, Any], item: Any) -> bool:
    found = find_all(step["filter"], item)
    if step["operator"] is None:
        return bool(found)
    if len(found) != 1 or type(found[0]) is not type(step["literal"]):
        raise LookupError("only one value can be compared, with one of the same type")
    return (found[0] == step["literal"]) is (step["operator"] == "==")
