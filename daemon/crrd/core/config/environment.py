"""What a container's environment variables use, by the rules of kubelet's `makeEnvironmentVariables`."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from crrd.core.config.references import Kind, Reference, Use
from crrd.lib.jsonfields import items, mapping, text, value_at

_VARIABLE = re.compile(r"\$(?:\$|\(([^)]*)\))")
"""`$$` or `$(NAME)`, as in third_party/forked/golang/expansion in Kubernetes."""


def of_environment(container: Mapping[str, Any]) -> Iterator[Reference]:
    """Yield what `env` and `envFrom` use. A variable that another one replaces shows the container nothing."""
    variables = list(map(mapping, items(container.get("env"))))
    for index, variable in enumerate(variables):
        if text(variable.get("value")):
            continue  # kubelet ignores `valueFrom` then
        replaced = text(variable.get("name")) in _replaced(variables, index + 1)
        for kind, field in ((Kind.CONFIG_MAP, "configMapKeyRef"), (Kind.SECRET, "secretKeyRef")):
            ref = mapping(value_at(variable, f"valueFrom.{field}"))
            name, key, optional = text(ref.get("name")), text(ref.get("key")), ref.get("optional") is True
            if name and key:
                keys = frozenset({key})
                required = frozenset[str]() if optional else keys
                yield Reference(kind, name, Use.ENV, frozenset() if replaced else keys, required, optional)
    names = _replaced(variables)
    for source in map(mapping, items(container.get("envFrom"))):
        prefix = text(source.get("prefix"))
        without = frozenset(name.removeprefix(prefix) for name in names if name.startswith(prefix))
        for kind, field in ((Kind.CONFIG_MAP, "configMapRef"), (Kind.SECRET, "secretRef")):
            ref = mapping(source.get(field))
            if name := text(ref.get("name")):
                yield Reference(kind, name, Use.ENV_FROM, optional=ref.get("optional") is True, without=without)


def _replaced(variables: Sequence[Mapping[str, Any]], start: int = 0) -> set[str]:
    """Return the names that the variables from the index `start` on replace for certain, so that nothing shows them.

    An optional source may set nothing, and `$(NAME)` may show the replaced value.
    """
    values = [text(variable.get("value")) for variable in variables]
    found = set()
    for variable in variables[start:]:
        name, sources = text(variable.get("name")), mapping(variable.get("valueFrom")).values()
        certain = text(variable.get("value")) or not any(mapping(each).get("optional") is True for each in sources)
        if certain and not any(f"$({name})" in value for value in values):
            found.add(name)
    return found


def plain_values(pod: Mapping[str, Any], container: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables of a container whose values are in the pod's JSON: plain ones, and the pod's own name."""
    known: dict[str, str] = {}
    for variable in map(mapping, items(container.get("env"))):
        name, path = text(variable.get("name")), text(value_at(variable, "valueFrom.fieldRef.fieldPath"))
        value = expand(text(variable.get("value")), known)
        if not value and variable.get("valueFrom") is not None:
            value = text(value_at(pod, path)) if path in ("metadata.name", "metadata.namespace") else None
        known.pop(name, None)
        if value is not None:
            known[name] = value
    return known


def expand(expression: str, values: Mapping[str, str]) -> str | None:
    """Return the text with the values of its variables; None if one of them is not known."""
    if any(match[1] is not None and match[1] not in values for match in _VARIABLE.finditer(expression)):
        return None
    return _VARIABLE.sub(lambda match: "$" if match[1] is None else values[match[1]], expression)
