"""The part of kubectl's JSONPath that printer columns use: field names with escapes, indices, and a whole list."""

import re
from collections.abc import Callable
from typing import Any

_STEP = re.compile(r"\.?(?P<name>(?:\\.|[^.\[\]\\])+)|\[(?P<index>-?\d+|\*|'(?:[^'\\]|\\.)*')\]")


def compile_path(path: str) -> Callable[[Any], Any]:
    """A function that finds the path's value in an object, None where there is none.

    With `[*]` the values are those of all elements, and what is found is a list. ValueError for what is not a path of
    this kind, such as one with a filter.
    """
    steps: list[str | int | None] = []
    at = 0
    while at < len(path):
        found = _STEP.match(path, at)
        if found is None:
            raise ValueError(f"not a path that this server can follow: {path}")
        index = found["index"]
        if index is None:
            steps.append(re.sub(r"\\(.)", r"\1", found["name"]))
        elif index == "*":
            steps.append(None)
        else:
            steps.append(re.sub(r"\\(.)", r"\1", index[1:-1]) if index.startswith("'") else int(index))
        at = found.end()
    return lambda obj: _follow(obj, steps)


def _follow(value: Any, steps: list[str | int | None]) -> Any:
    for number, step in enumerate(steps):
        if step is None:
            items = value if isinstance(value, list) else []
            return [found for item in items if (found := _follow(item, steps[number + 1 :])) is not None]
        if isinstance(step, str) and isinstance(value, dict):
            value = value.get(step)
        elif isinstance(step, int) and isinstance(value, list) and -len(value) <= step < len(value):
            value = value[step]
        else:
            return None
    return value
