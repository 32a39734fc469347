"""What a container's environment variables use, by the rules of kubelet's `makeEnvironmentVariables`."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from crrd.core.config.references import Kind, Reference, Use
from crrd.lib.jsonfields import items, mapping, text, value_at

_VARIABLE = re.compile(r"\$(?:\$|\(([^)]*)\))")
"""`$$` or `$(NAME)`, as in third_party/forked/golang/expansion in Kubernetes."""
_SHOWN = re.compile(r"(?=\$\(([^)]*)\))")  # Each `$(NAME)`, also after another `$(`


def of_environment(container: Mapping[str, Any]) -> Iterator[Reference]:
    """Yield what `env` and `envFrom` use. A variable that another one replaces shows the container nothing."""
    variables = list(map(mapping, items(container.get("env"))))
    replaced_at = _replaced(variables)
    for index, variable in enumerate(variables):
        if text(variable.get("value")):
            continue  # kubelet ignores `valueFrom` then
        replaced = replaced_at.get(text(variable.get("name")), index) > index
        for kind, field in ((Kind.CONFIG_MAP, "configMapKeyRef"), (Kind.SECRET, "secretKeyRef")):
            ref = mapping(value_at(variable, f"valueFrom.{field}"))
            name, key, optional = text(ref.get("name")), text(ref.get("key")), ref.get("optional") is True
            if name and key:
                keys = frozenset({key})
                required = frozenset[str]() if optional else keys
                yield Reference(kind, name, Use.ENV, frozenset() if replaced else keys, required, optional)
    for source in map(mapping, items(container.get("envFrom"))):
        prefix = text(source.get("prefix"))
        without = frozenset(name.removeprefix(prefix) for name in replaced_at if name.startswith(prefix))
        for kind, field in ((Kind.CONFIG_MAP, "configMapRef"), (Kind.SECRET, "secretRef")):
            ref = mapping(source.get(field))
            if name := text(ref.get("name")):
                yield Reference(kind, name, Use.ENV_FROM, optional=ref.get("optional") is True, without=without)


def _replaced(variables: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Return the names that variables replace for certain, so that nothing shows them, each with the last index.

    An optional source may set nothing, and `$(NAME)` may show the replaced value.
    """
    shown = {name for variable in variables for name in _SHOWN.findall(text(variable.get("value")))}
    found = {}
    for index, variable in enumerate(variables):
        name, sources = text(variable.get("name")), mapping(variable.get("valueFrom")).values()
        certain = text(variable.get("value")) or not any(mapping(each).get("optional") is True for each in sources)
        if certain and name not in shown:
            found[name] = index
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
