"""Compares two specs of a container by meaning (Kubernetes' proposal #63814).

Both specs first get the API server's defaults. 0.5 CPU equals 500m. Order counts only if kubelet or the runtime uses
it. A hash cannot do this, so a new kubelet may restart containers whose specs have not changed their meaning.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from crrd.lib.jsonfields import items, mapping
from crrd_forecast.hash.container_types import Field, Kind, flat_fields, keys
from crrd_forecast.hash.quantity import parse

_NEWEST_STRUCTS = 30
_REFERENCE = re.compile(r"(?<!\$)(?:\$\$)*\$\(([^()]*)\)")  # `$(NAME)` in a variable; `$$(NAME)` is not one

# Source: pkg/apis/core/v1/defaults.go, and for pointers the value that kubelet uses if they are absent.
_DEFAULTS: Mapping[tuple[str, str], Any] = {
    ("Container", "terminationMessagePath"): "/dev/termination-log",
    ("Container", "terminationMessagePolicy"): "File",
    ("ContainerPort", "protocol"): "TCP",
    ("Probe", "timeoutSeconds"): 1,
    ("Probe", "periodSeconds"): 10,
    ("Probe", "successThreshold"): 1,
    ("Probe", "failureThreshold"): 3,
    ("HTTPGetAction", "path"): "/",
    ("HTTPGetAction", "scheme"): "HTTP",
    ("GRPCAction", "service"): "",
    ("ObjectFieldSelector", "apiVersion"): "v1",
    ("ResourceFieldSelector", "divisor"): "1",
    ("ConfigMapEnvSource", "optional"): False,
    ("SecretEnvSource", "optional"): False,
    ("ConfigMapKeySelector", "optional"): False,
    ("SecretKeySelector", "optional"): False,
    ("VolumeMount", "mountPropagation"): "None",
    ("VolumeMount", "recursiveReadOnly"): "Disabled",
    ("SecurityContext", "privileged"): False,
    ("SecurityContext", "readOnlyRootFilesystem"): False,
    ("SecurityContext", "allowPrivilegeEscalation"): True,
    ("SecurityContext", "procMount"): "Default",
    ("WindowsSecurityContextOptions", "hostProcess"): False,
}
# Structs that mean the same whether they are empty or absent
_SAME_WHEN_EMPTY = frozenset(
    {"Capabilities", "Lifecycle", "ResourceRequirements", "SecurityContext", "SELinuxOptions"}
    | {"WindowsSecurityContextOptions"}
)
# The fields that identify the elements of a list whose order does not matter
_KEYS: Mapping[str, tuple[str, ...]] = {
    "ContainerPort": ("containerPort", "protocol"),
    "EnvVar": ("name",),
    "VolumeMount": ("mountPath",),
    "VolumeDevice": ("devicePath",),
    "ContainerResizePolicy": ("resourceName",),
    "ResourceClaim": ("name",),
    "HTTPHeader": ("name",),
}
# Fields that kubelet reads from the pod when it needs them. All others are fixed when the container is created
_NO_RESTART = (
    "imagePullPolicy",
    "lifecycle.preStop",
    "livenessProbe",
    "readinessProbe",
    "resizePolicy",
    "restartPolicy",
    "startupProbe",
)
_RESIZABLE = re.compile(r"resources\.(?:limits|requests)\.(cpu|memory)")
_PORT = re.compile(r"ports\[.*\]\.(?:name|containerPort|protocol)")


@dataclass(frozen=True, slots=True)
class Difference:
    """A field whose meaning differs."""

    path: str  # Path of the field, for example `env[LOG_LEVEL].value`
    before: Any  # Value in the spec that the container was started with, or None if absent
    after: Any  # Value in the current spec
    restart: bool  # Whether only a restarted container gets the change

    def __str__(self) -> str:
        sides = (
            "absent" if side is None else json.dumps(side, ensure_ascii=False) for side in (self.before, self.after)
        )
        return f"{self.path}: {' → '.join(sides)}{' (needs a restart)' if self.restart else ''}"


@dataclass(frozen=True, slots=True)
class _Leaf:
    """A value, and a text that is equal for all values with the same meaning."""

    meaning: str
    shown: Any


def diff(started_with: Mapping[str, Any], today: Mapping[str, Any]) -> list[Difference]:
    """Return the differences between two specs of a container (as in the pod's JSON), if their meaning differs.

    Unknown fields and values of an unexpected type are compared literally.
    """
    restarting = restarting_resources(started_with) | restarting_resources(today)
    sides = sorted(_walk("", _container(started_with), _container(today)), key=lambda each: each[0])
    return [
        Difference(path, before, after, _needs_restart(path, before, after, restarting))
        for path, before, after in sides
    ]


def _walk(path: str, before: Any, after: Any) -> Iterable[tuple[str, Any, Any]]:
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for name in {**before, **after}:
            inner = name if not path else f"{path}{name}" if name.startswith("[") else f"{path}.{name}"
            yield from _walk(inner, before.get(name), after.get(name))
    elif not (isinstance(before, _Leaf) and isinstance(after, _Leaf) and before.meaning == after.meaning):
        yield path, _shown(before), _shown(after)


def _shown(node: Any) -> Any:
    if isinstance(node, Mapping):
        return {name.strip("[]"): _shown(each) for name, each in node.items() if _shown(each) is not None}
    return node.shown if isinstance(node, _Leaf) else None


def _needs_restart(path: str, before: Any, after: Any, restarting: frozenset[str]) -> bool:
    if any(path == each or path.startswith(f"{each}.") for each in _NO_RESTART) or path.startswith("resizePolicy["):
        return False
    if match := _RESIZABLE.fullmatch(path):
        return match[1] in restarting
    if path.startswith("ports["):  # without a host port, a port is only informational
        hosts = (side.get("hostPort") for side in (before, after) if isinstance(side, Mapping))
        return any(hosts) or not (_PORT.fullmatch(path) or path.endswith("]"))
    return True


def restarting_resources(container: Mapping[str, Any]) -> frozenset[str]:
    """Return the resources that kubelet resizes only with a restart (resizePolicy). No policy means NotRequired.

    Source: `SetDefaults_Pod` in pkg/apis/core/v1 up to 1.32, `computePodResizeAction` in pkg/kubelet/kuberuntime since.
    """
    policies = map(mapping, items(container.get("resizePolicy")))
    return frozenset(
        str(each.get("resourceName")) for each in policies if each.get("restartPolicy") == "RestartContainer"
    )


# Converts JSON to trees.


def _container(container: Mapping[str, Any]) -> dict[str, Any]:
    shape = dict(container)
    if not shape.get("imagePullPolicy"):
        shape["imagePullPolicy"] = _pull_policy(shape.get("image"))
    resources = shape.get("resources")
    if isinstance(resources, Mapping) and isinstance(limits := resources.get("limits"), Mapping):
        requests = resources.get("requests") or {}
        if isinstance(requests, Mapping):
            set_requests = {key: each for key, each in requests.items() if each is not None}
            shape["resources"] = {**resources, "requests": {**limits, **set_requests}}
    if isinstance(policies := shape.get("resizePolicy"), list | tuple):
        shape["resizePolicy"] = [each for each in policies if mapping(each).get("restartPolicy") != "NotRequired"]
    return _struct("Container", shape)


def _pull_policy(image: Any) -> str:
    name = image.rpartition("/")[2] if isinstance(image, str) else ""
    tag = name.partition(":")[2]
    return "Always" if "@" not in name and tag in ("", "latest") else "IfNotPresent"


def _struct(struct: str, shape: Mapping[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}  # Names to leaves or trees
    for field in flat_fields(struct, _NEWEST_STRUCTS):
        node = _field(struct, field, shape.get(field.key))
        if field.many and isinstance(node, Mapping):  # a[b] rather than a.[b]
            tree |= {f"{field.key}{name}": each for name, each in node.items()}
        elif node is not None:
            tree[field.key] = node
    known = keys(struct, _NEWEST_STRUCTS)
    return tree | {key: _leaf(value) for key, value in shape.items() if key not in known and value is not None}


def _field(struct: str, field: Field, value: Any) -> Any:
    """Return the tree or leaf of a field, or None if it is absent."""
    if not field.pointer and field.kind in (Kind.STRING, Kind.BOOL, Kind.INT) and not field.many and not value:
        value = None  # in Go, an empty value and an absent one are equal
    if field.many:
        return None if value in (None, [], ()) else _list(field, value)
    if field.kind is Kind.STRUCT:
        if value is None and field.type in _SAME_WHEN_EMPTY:
            value = {}
        if isinstance(value, Mapping):
            return _struct(field.type, value)
    if value is None:
        value = {} if field.kind is Kind.QUANTITIES else _DEFAULTS.get((struct, field.key))
    if value is None:
        return None
    if field.kind is Kind.QUANTITIES and isinstance(value, Mapping):
        return {str(key): _quantity(each) for key, each in value.items() if each is not None}
    if field.kind is Kind.QUANTITY:
        return _Leaf("1", value) if _quantity(value).meaning == "0" else _quantity(value)
    return _leaf(value)


def _list(field: Field, value: Any) -> Any:
    if not isinstance(value, list | tuple):
        return _leaf(value)
    if field.type == "Capability":
        return {f"[{each}]": _leaf(each) for each in value}
    if field.kind is not Kind.STRUCT:
        return _leaf(list(value))
    identity = _KEYS.get(field.type)
    tree: dict[str, Any] = {}
    earlier: list[str] = []
    for position, each in enumerate(value):
        if not isinstance(each, Mapping):
            tree[_unused(tree, str(position))] = _leaf(each)
            continue
        inner = _struct(field.type, each)
        name = str(position) if identity is None else "/".join(_key(inner.get(key)) for key in identity)
        if field.type == "EnvVar":
            if sees := _sees(each, earlier):
                inner["references"] = _leaf(sees)
            earlier.append(name)
        tree[_unused(tree, name.lower() if field.type == "HTTPHeader" else name)] = inner
    return tree


def _key(node: Any) -> str:
    return str(node.shown) if isinstance(node, _Leaf) else ""


def _unused(tree: Mapping[str, Any], name: str) -> str:
    """Return `[name]`, or `[name#2]` if the tree already has it."""
    count, key = 1, f"[{name}]"
    while key in tree:
        count += 1
        key = f"[{name}#{count}]"
    return key


def _sees(variable: Mapping[str, Any], earlier: list[str]) -> list[str]:
    """Return the earlier variables that this one refers to. Only for these does the order of `env` matter."""
    value = variable.get("value")
    names = set(_REFERENCE.findall(value)) if isinstance(value, str) else set()
    return sorted(names & set(earlier))


def _leaf(value: Any) -> _Leaf:
    return _Leaf(json.dumps(value, sort_keys=True, default=str), value)


def _quantity(value: Any) -> _Leaf:
    written = json.dumps(value) if isinstance(value, int | float) and not isinstance(value, bool) else value
    try:
        return _Leaf(str(parse(written.strip()).value), value)
    except (AttributeError, ValueError):
        return _leaf(value)
