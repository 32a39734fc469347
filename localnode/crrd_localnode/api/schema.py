"""A custom resource's structural schema: pruning, defaults and validation.

The jsonschema library validates. Keywords in which Kubernetes' OpenAPI differs are translated or added, and errors get
Kubernetes' texts. Of CEL, only `self == oldSelf` is enforced, also for the order of lists, and the rules in `_RULES`.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, cast

import jsonschema
from jsonschema.protocols import Validator

from crrd.core.api.time import parse_duration, parse_time
from crrd.lib.jsonfields import value_at
from crrd_localnode.api.errors import Cause
from crrd_localnode.api.objects import Object, dig, dumps

_ROOT_FIELDS = ("apiVersion", "kind", "metadata")
_formats = jsonschema.FormatChecker(formats=())


@_formats.checks("int32")
def _int32(value: object) -> bool:
    return not isinstance(value, int | float) or -(2**31) <= value < 2**31


@_formats.checks("int64")
def _int64(value: object) -> bool:
    return not isinstance(value, int | float) or -(2**63) <= value < 2**63


@_formats.checks("date-time")
def _date_time(value: object) -> bool:
    return not isinstance(value, str) or parse_time(value) is not None


def _required(
    _validator: Validator, names: Sequence[str], instance: Any, _schema: Mapping[str, Any]
) -> Iterator[jsonschema.ValidationError]:
    """`required`, with the missing field in the error's path, as in Kubernetes."""
    if isinstance(instance, dict):
        for name in names:
            if name not in instance:
                yield jsonschema.ValidationError("missing", path=(name,))


def _unique_keys(
    _validator: Validator, keys: Sequence[str], instance: Any, _schema: Mapping[str, Any]
) -> Iterator[jsonschema.ValidationError]:
    """`x-kubernetes-list-map-keys`: no two elements have the same keys."""
    if not isinstance(instance, list):
        return
    seen: set[bytes] = set()
    for at, item in enumerate(instance):
        if isinstance(item, dict):
            shown = {key: item[key] for key in keys if key in item}
            if dumps(shown) in seen:
                yield jsonschema.ValidationError("duplicate", path=(at,), instance=shown)
            seen.add(dumps(shown))


def _matches(text: object, pattern: str) -> bool:
    """Whether a text matches a pattern, in which `$` does not match before a newline at the end, as in Go."""
    return isinstance(text, str) and bool(re.search(re.sub(r"(?<!\\)\$(?=\)|$)", r"\\Z", pattern), text))


def _pattern(
    _validator: Validator, pattern: str, instance: Any, _schema: Mapping[str, Any]
) -> Iterator[jsonschema.ValidationError]:
    """`pattern`, as Go matches it."""
    if isinstance(instance, str) and not _matches(instance, pattern):
        yield jsonschema.ValidationError("no match")


_Checker: type[Validator] = jsonschema.validators.extend(  # type: ignore[no-untyped-call]  # the stubs leave it open
    jsonschema.Draft202012Validator,
    {"required": _required, "pattern": _pattern, "x-kubernetes-list-map-keys": _unique_keys},
)


def to_json_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a structural OpenAPI v3 schema to JSON Schema."""
    kept = ("enum", "format", "maxItems", "maxLength", "maxProperties", "maximum", "minItems", "minLength",
            "minProperties", "minimum", "multipleOf", "pattern", "required", "type", "uniqueItems",
            "x-kubernetes-list-map-keys")  # fmt: skip
    result = {word: schema[word] for word in kept if word in schema}
    for bound, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if schema.get(exclusive) is True and bound in result:
            result[exclusive] = result.pop(bound)
    if schema.get("x-kubernetes-list-type") == "set":
        result["uniqueItems"] = True
    if schema.get("x-kubernetes-int-or-string"):
        result["type"] = ["integer", "string"]
    if schema.get("nullable") and "type" in result:
        result["type"] = [*([result["type"]] if isinstance(result["type"], str) else result["type"]), "null"]
        if "enum" in result:
            result["enum"] = [*result["enum"], None]
    if "properties" in schema:
        result["properties"] = {name: to_json_schema(inner) for name, inner in schema["properties"].items()}
    for word in ("items", "additionalProperties", "not"):
        if isinstance(schema.get(word), dict):
            result[word] = to_json_schema(schema[word])
    for word in ("allOf", "anyOf", "oneOf"):
        if word in schema:
            result[word] = [to_json_schema(inner) for inner in schema[word]]
    return result


class Schema:
    """The schema of one version of a custom resource."""

    def __init__(self, openapi: Mapping[str, Any]) -> None:
        self.openapi = openapi
        self._immutable = list(_immutable(openapi, ()))

    @cached_property
    def _checkers(self) -> tuple[Validator, dict[str, Validator]]:
        """A validator for the whole object, and one for each of its fields."""
        whole = to_json_schema(self.openapi)
        fields = whole.pop("properties", {})
        schemas = {name: {"properties": {name: fields[name]}} for name in fields if name not in _ROOT_FIELDS}
        return _Checker(whole), {name: _Checker(each, format_checker=_formats) for name, each in schemas.items()}

    def complete(self, obj: Object) -> tuple[Object, list[str]]:
        """Return the object without unknown fields and with defaults, and the paths of the dropped fields."""
        dropped: list[str] = []
        kept = {name: obj[name] for name in _ROOT_FIELDS if name in obj}
        rest = {name: value for name, value in obj.items() if name not in _ROOT_FIELDS}
        return {**kept, **_complete(rest, self.openapi, "", dropped)}, dropped

    def check(self, obj: Object, old: Object | None) -> list[Cause]:
        """Return the faults of the object. Fields that are unchanged since `old` are not checked again."""
        whole, fields = self._checkers
        errors, broken = list(whole.iter_errors(obj)), list[Cause]()
        for name, checker in fields.items():
            if name in obj and (old is None or obj[name] != old.get(name)):
                errors += checker.iter_errors(obj)
                broken += _broken(self.openapi["properties"][name], obj[name], name)
        causes = [_cause(error) for error in errors] + broken
        if old is not None:
            for path, message in self._immutable:
                before = dig(old, *path)
                if before is not None and dig(obj, *path) not in (before, None):
                    causes.append(Cause(".".join(path), f'Invalid value: "object": {message}'))
        return causes


def _complete(value: Any, schema: Mapping[str, Any], path: str, dropped: list[str]) -> Any:
    """Prune one value and set defaults. Unknown fields are kept if the schema allows them."""
    if isinstance(value, list) and isinstance(schema.get("items"), dict):
        return [_complete(item, schema["items"], f"{path}[{at}]", dropped) for at, item in enumerate(value)]
    if not isinstance(value, dict):
        return value
    properties: Mapping[str, Any] = schema.get("properties", {})
    additional = schema.get("additionalProperties")
    result: Object = {}
    for name, inner in value.items():
        where = f"{path}.{name}" if path else name
        if name in properties:
            if inner is not None or properties[name].get("nullable"):
                result[name] = _complete(inner, properties[name], where, dropped)
        elif isinstance(additional, dict):
            result[name] = _complete(inner, additional, where, dropped)
        elif additional or schema.get("x-kubernetes-preserve-unknown-fields"):
            result[name] = inner
        else:
            dropped.append(where)
    for name, inner in properties.items():
        if name not in result and "default" in inner:
            result[name] = inner["default"]
    return result


def _is_immutability(rule: str) -> bool:
    return "".join(rule.split()) in ("self==oldSelf", "oldSelf==self")


def _immutable(schema: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the paths (outside of lists) with the rule `self == oldSelf`, and its message."""
    for rule in schema.get("x-kubernetes-validations", ()):
        if _is_immutability(rule.get("rule", "")):
            yield path, rule.get("message") or f"failed rule: {rule['rule']}"
    for name, inner in schema.get("properties", {}).items():
        yield from _immutable(inner, (*path, name))


def _is_long_enough(value: Any, least: str) -> bool:
    seconds = parse_duration(value) if isinstance(value, str) and value[-1:].isalpha() else None
    return seconds is not None and seconds >= int(least)


def _is_shorter(value: Any, shorter: str, longer: str) -> bool:
    short, long = (parse_duration(str(value_at(value, path) or "")) for path in (shorter, longer))
    return short is None or long is None or short < long


_RULES: Mapping[re.Pattern[str], Callable[..., bool]] = {
    re.compile(r"duration\(self\) >= duration\('(\d+)s'\)"): _is_long_enough,
    re.compile(r"(?:!has\(self\.[\w.]+\) \|\| )+duration\(self\.([\w.]+)\) < duration\(self\.([\w.]+)\)"): _is_shorter,
    re.compile(r"self\.matches\(r'(.*)'\)"): _matches,
    re.compile(r"has\(self\.(\w+)\) != has\(self\.(\w+)\)"): lambda value, one, other: (
        (one in value) != (other in value)
    ),
    re.compile(r"!has\(self\.([\w.]+)\) \|\| has\(self\.(\w+)\)"): lambda value, needing, needed: (
        needed in value or value_at(value, needing) is None
    ),
    re.compile(r"has\(self\.(\w+)\) \|\| has\(self\.(\w+)\)"): lambda value, one, other: one in value or other in value,
    re.compile(r"!has\(self\.(\w+)\) \|\| !self\.\1 \|\| !has\(self\.(\w+)\)"): lambda value, flag, other: (
        not value.get(flag) or other not in value
    ),
    re.compile(r"!has\(self\.(\w+)\) \|\| !has\(self\.(\w+)\) \|\| self\.\1 <= self\.\2"): lambda value, low, high: (
        low not in value or high not in value or value[low] <= value[high]
    ),
    re.compile(r"!has\(self\.(\w+)\) \|\| !self\.\1 \|\| self\.(\w+)\.contains\('(.*)'\)"): (
        lambda value, flag, name, part: not value.get(flag) or part in value[name]
    ),
    re.compile(
        r"!has\(self\.(\w+)\) \|\| self\.\1 == '' \|\| self\.\1\.contains\('(.*)'\)"
    ): lambda value, name, part: not value.get(name) or part in value[name],
    re.compile(
        r"\(!has\(self\.(\w+)\) \|\| self\.\1 == ''\) && !has\(self\.(\w+)\) \|\| self\.(\w+)\.matches\('(.*)'\)"
    ): lambda value, one, other, name, pattern: (
        (not value.get(one) and other not in value) or _matches(value[name], pattern)
    ),
}
"""CEL rules about a single object that are enforced, and functions of the value and of the rule's groups."""


def _holds(holds: Callable[..., bool], value: Any, groups: Iterable[str]) -> bool:
    """Whether a rule holds, or cannot be asked because a field is missing or has another type: the schema says that."""
    try:
        return holds(value, *groups)
    except (AttributeError, KeyError, TypeError):
        return True


def _broken(schema: Mapping[str, Any], value: Any, path: str) -> Iterator[Cause]:
    """Yield the broken rules of `_RULES` in a value that has the schema's type."""
    for rule in schema.get("x-kubernetes-validations", ()):
        for pattern, holds in _RULES.items():
            if (found := pattern.fullmatch(rule["rule"])) and not _holds(holds, value, found.groups()):
                yield Cause(path, f'Invalid value: "{_type_name(value)}": {rule["message"]}')
    if isinstance(value, dict):
        for name, inner in schema.get("properties", {}).items():
            if name in value:
                yield from _broken(inner, value[name], f"{path}.{name}")
    elif isinstance(value, list):
        for at, item in enumerate(value):
            yield from _broken(schema.get("items", {}), item, f"{path}[{at}]")


def unenforced_rules(schema: Mapping[str, Any], *, root: bool = True, in_list: bool = False) -> Iterator[str]:
    """Yield the CEL rules of a schema that are not enforced."""
    rules = [str(each.get("rule", "")) for each in schema.get("x-kubernetes-validations", ())]
    fixed = not in_list and any(map(_is_immutability, rules))
    for rule in rules:
        of_order = fixed and rule.startswith("self != oldSelf || ")  # lists are compared with their order anyway
        known = _is_immutability(rule) and not in_list
        known = known or (not root and any(pattern.fullmatch(rule) for pattern in _RULES))
        if not known and not of_order:
            yield rule
    for inner in schema.get("properties", {}).values():
        yield from unenforced_rules(inner, root=False, in_list=in_list)
    if isinstance(items := schema.get("items"), dict):
        yield from unenforced_rules(items, root=False, in_list=True)


_SHOULD = "Invalid value: {shown}: {field} in body should be"
_TEXTS = {
    "minimum": f"{_SHOULD} greater than or equal to {{limit}}",
    "maximum": f"{_SHOULD} less than or equal to {{limit}}",
    "exclusiveMinimum": f"{_SHOULD} greater than {{limit}}",
    "exclusiveMaximum": f"{_SHOULD} less than {{limit}}",
    "minLength": f"{_SHOULD} at least {{limit}} chars long",
    "maxLength": "Too long: may not be more than {limit} bytes",
    "minItems": "Invalid value: {length}: {field} in body should have at least {limit} items",
    "maxItems": "Too many: {length}: must have at most {limit} items",
    "pattern": "Invalid value: {shown}: {field} in body should match '{limit}'",
    "required": "Required value",
    "enum": "Unsupported value: {shown}: supported values: {options}",
    "format": "Invalid value: {shown}: {field} in body must be of type {limit}: {shown}",
    "type": "Invalid value: {type}: {field} in body must be of type {options}: {type}",
    "x-kubernetes-list-map-keys": "Duplicate value: {whole}",
}
"""JSON Schema's keyword -> the API server's text."""


def _cause(error: jsonschema.ValidationError) -> Cause:
    """Translate an error of jsonschema to the API server's text."""
    field = ""
    for step in error.absolute_path:
        field += f"[{step}]" if isinstance(step, int) else f".{step}" if field else str(step)
    word, value, limit = str(error.validator), cast("Any", error.instance), cast("Any", error.validator_value)
    type_name, whole = f'"{_type_name(value)}"', dumps(value).decode()
    shown = whole if isinstance(value, (str, int, float)) else type_name
    wrong_type = word == "type" or (word == "format" and isinstance(value, str))
    options = limit if isinstance(limit, list) else [limit]
    listed = options[0] if word == "type" else ", ".join(f'"{each}"' for each in options if each is not None)
    length = len(value) if isinstance(value, list) else 0
    text = _TEXTS.get(word, "Invalid value: {shown}: {message}").format(
        shown=shown, field=field, limit=limit, length=length, options=listed, type=type_name, whole=whole,
        message=error.message,
    )  # fmt: skip
    return Cause(field, text, "FieldValueTypeInvalid" if wrong_type else "")


def _type_name(value: object) -> str:
    names = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    return names.get(type(value), "null")
