"""The formats of a command's output for programs, as kubectl has them: `-o json`, `yaml`, `name` and `jsonpath`."""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from crrd.lib.jsonpath import JsonPath, find_all, parse_path
from crrd.lib.plain import json_with_flags

FORMATS = ("text", "json", "yaml", "name")  # And jsonpath=TEMPLATE
_JSONPATH = "jsonpath="
_ESCAPED, _ESCAPES = re.compile(r"\\(.)"), {"n": "\n", "t": "\t"}
_PART = re.compile(r"""\{((?:"(?:\\.|[^"])*"|'[^']*'|[^{}"'])*)\}""")  # In braces; quoted text may have braces


@dataclass(frozen=True, slots=True)
class Format:
    """How a command prints its output."""

    name: str = "text"  # text, json, yaml, name or jsonpath
    template: str = ""  # Of jsonpath

    def __str__(self) -> str:
        return f"{_JSONPATH}{self.template}" if self.name == "jsonpath" else self.name

    @property
    def is_text(self) -> bool:
        """Whether it is for people."""
        return self.name == "text"

    def render(self, shape: object, flags: str, names: Iterable[str] = (), *, one_line: bool = False) -> str:
        """Return an object as text that ends with a line break, or "".

        Each command in its texts has these flags. `names` are those of `-o name`. `one_line` means that objects follow
        each other: JSON takes a line then, and YAML is a document for each.
        """
        if self.name == "name":
            return "".join(f"{each}\n" for each in names)
        text = json_with_flags(shape, flags, indent=None if one_line else 2)
        if self.name == "json":
            return f"{text}\n"
        value = json.loads(text)
        if self.name == "yaml":
            import yaml  # noqa: PLC0415 - it takes time, and only this format needs it

            document = str(yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=10_000))
            return f"---\n{document}" if one_line else document
        filled, _ = _fill(_parts(self.template), 0, value)
        return filled if filled.endswith("\n") or not filled else f"{filled}\n"


def read_format(given: str) -> Format:
    """Parse the value of `-o`. ValueError for an unknown format, or a wrong template."""
    if given in FORMATS:
        return Format(given)
    if not given.startswith(_JSONPATH):
        raise ValueError(f"{', '.join(FORMATS)} or jsonpath=TEMPLATE")
    template = given.removeprefix(_JSONPATH)
    _parts(template)
    return Format("jsonpath", template)


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of a template: a text, a path, or the beginning or end of a range."""

    text: str = ""
    path: JsonPath | None = None
    begins: bool = False  # Whether a range over the values of the path begins
    ends: bool = False  # Whether the last range ends


def _parts(template: str) -> list[_Part]:
    """Return the parts of a template. ValueError if it is wrong."""
    found, at = list[_Part](), 0
    for match in _PART.finditer(template):
        found.append(_literal(template[at : match.start()]))
        at, inner = match.end(), match[1].strip()
        if inner[:1] in ("'", '"'):
            found.append(_Part(_ESCAPED.sub(lambda each: _ESCAPES.get(each[1], each[1]), inner[1:-1])))
        elif inner == "end":
            found.append(_Part(ends=True))
        else:
            begins = inner[:6] == "range "
            found.append(_Part(path=_path(inner[6:] if begins else inner), begins=begins))
    return [*found, _literal(template[at:])]


def _literal(written: str) -> _Part:
    if "{" in written or "}" in written:
        raise ValueError(f"a JSONPath template whose braces belong together, not {written!r}")
    return _Part(written)


def _path(written: str) -> JsonPath:
    found = written.strip().removeprefix("$").removeprefix("@")
    if found[:1] not in ("", ".", "[") or ".." in found:
        raise ValueError(f"a JSONPath template with paths like {{.checks[*].state}}, not {written!r}")
    return parse_path("" if found == "." else found)


def _fill(parts: list[_Part], at: int, value: Any) -> tuple[str, int]:
    """Return the text of the parts from `at` to the end of their range, and the place after it."""
    text = ""
    while at < len(parts):
        part = parts[at]
        at += 1
        text += part.text
        if part.ends:
            return text, at
        if part.path is None:
            continue
        values = _found(part.path, value)
        if part.begins:
            filled = [_fill(parts, at, each) for each in values]
            text, at = text + "".join(each for each, _ in filled), _fill(parts, at, None)[1]
        else:
            text += " ".join(each if isinstance(each, str) else json.dumps(each) for each in values)
    return text, at


def _found(path: JsonPath, value: Any) -> list[Any]:
    """Return the values at a path. As in kubectl, a missing key and a value that is not a list give no values."""
    try:
        return find_all(path, value)
    except LookupError:
        return []
