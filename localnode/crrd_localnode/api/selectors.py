"""Label selectors (equality- and set-based) and field selectors, in the query syntax of list and watch.

The grammar is that of k8s.io/apimachinery's `labels.Parse` and `fields.ParseSelector`. Comparisons of numbers (`>` and
`<`) are rejected, because no client here uses them.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from crrd_localnode.api.errors import ApiError, bad_request
from crrd_localnode.api.objects import Object, dig

Predicate = Callable[[Object], bool]
Test = Callable[[str | None], bool]

_NAME = r"[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?"
LABEL_VALUE = re.compile(rf"(?:{_NAME})?")
QUALIFIED_NAME = re.compile(rf"(?:(?P<prefix>[a-z0-9](?:[-a-z0-9.]*[a-z0-9])?)/)?(?P<name>{_NAME})")

_SET = re.compile(r"(?P<key>\S+)\s+(?P<op>in|notin)\s*\((?P<values>[^()]*)\)")
_COMPARE = re.compile(r"(?P<key>[^\s=!<>]+)\s*(?P<op>==|=|!=)\s*(?P<value>[^\s=!<>]*)")
_EXISTS = re.compile(r"(?P<not>!?)\s*(?P<key>[^\s=!<>()]+)")


def label_error(key: str, value: str | None = None) -> str | None:
    """Return the fault of a label's key, or of its value if one is given, or None."""
    parts = QUALIFIED_NAME.fullmatch(key)
    if parts is None or len(parts["name"]) > 63 or len(parts["prefix"] or "") > 253:
        return (
            f"Invalid value: \"{key}\": name part must consist of alphanumeric characters, '-', '_' or '.', "
            "and must be no more than 63 characters"
        )
    if len(value or "") > 63:
        return f'Invalid value: "{value}": must be no more than 63 bytes'
    if LABEL_VALUE.fullmatch(value or "") is None:
        return (
            f'Invalid value: "{value}": a valid label must be an empty string or consist of alphanumeric characters, '
            "'-', '_' or '.', and must start and end with an alphanumeric character"
        )
    return None


def _split(text: str) -> list[str]:
    """Split at commas outside of parentheses."""
    parts, depth, start = [], 0, 0
    for at, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if character == "," and depth == 0:
            parts.append(text[start:at])
            start = at + 1
    return [*parts, text[start:]]


def label_selector(text: str) -> Predicate | None:
    """Return the predicate for labels, or None if everything matches. Raises ApiError 400 if it cannot be parsed."""
    if not text.strip():
        return None
    tests = []
    for part in _split(text):
        key, test, values = _parse_label(part.strip(), text)
        problem = label_error(key) or next((found for value in values if (found := label_error(key, value))), None)
        if problem:
            raise _unparsable(text, problem)
        tests.append((key, test))

    def matches(obj: Object) -> bool:
        labels: Mapping[str, Any] = dig(obj, "metadata", "labels") or {}
        return all(test(labels.get(key)) for key, test in tests)

    return matches


def _unparsable(text: str, why: str) -> ApiError:
    return bad_request(f'unable to parse requirement in selector "{text}": {why}')


def _parse_label(part: str, text: str) -> tuple[str, Test, Sequence[str]]:
    if found := _SET.fullmatch(part):
        values = frozenset(value.strip() for value in found["values"].split(","))
        if found["op"] == "in":
            return found["key"], lambda label: label in values, tuple(values)
        return found["key"], lambda label: label not in values, tuple(values)
    if found := _COMPARE.fullmatch(part):
        value = found["value"]
        if found["op"] == "!=":
            return found["key"], lambda label: label != value, (value,)
        return found["key"], lambda label: label == value, (value,)
    if found := _EXISTS.fullmatch(part):
        wanted = not found["not"]
        return found["key"], lambda label: (label is not None) is wanted, ()
    raise _unparsable(text, f"found '{part}'")


FieldLabels = Mapping[str, tuple[str, ...]]  # A field selector's name -> the path in the object

_META_FIELDS: FieldLabels = {"metadata.name": ("metadata", "name"), "metadata.namespace": ("metadata", "namespace")}


def field_selector(text: str, supported: FieldLabels) -> Predicate | None:
    """Return the predicate for fields, or None if everything matches.

    `supported` are the kind's names besides metadata.name and metadata.namespace. Raises ApiError 400 for others.
    """
    tests: list[tuple[tuple[str, ...], str, bool]] = []
    for part in filter(None, (part.strip() for part in re.split(r"(?<!\\),", text))):
        found = re.fullmatch(r"(?P<name>[^=!]+?)(?P<op>==|=|!=)(?P<value>.*)", part)
        if found is None:
            raise bad_request(f"invalid field selector: \"{text}\"; can't understand '{part}'")
        path = _META_FIELDS.get(found["name"]) or supported.get(found["name"])
        if path is None:
            raise bad_request(f"field label not supported: {found['name']}")
        tests.append((path, re.sub(r"\\([\\,=])", r"\1", found["value"]), found["op"] != "!="))
    if not tests:
        return None

    def matches(obj: Object) -> bool:
        return all((_text(dig(obj, *path)) == value) is wanted for path, value, wanted in tests)

    return matches


def _text(value: Any) -> str:
    """Return a field's value as text for field selectors. An unset field is ""."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)


def both(*predicates: Predicate | None) -> Predicate | None:
    """Return the conjunction of the predicates, or None if there are none."""
    given = [predicate for predicate in predicates if predicate is not None]
    if len(given) < 2:
        return given[0] if given else None
    return lambda obj: all(predicate(obj) for predicate in given)
