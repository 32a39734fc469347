"""Writes the chart's templates, values and README: `python manifests/chart/generate.py` (needs kubectl).

The templates are what `kubectl kustomize` renders of the folders beside this one, with expressions for what a value
changes. Where an overlay differs from `default`, the template has both, behind the value that stands for the overlay.
values.yaml and the table in README.md come from values.schema.json. By hand are Chart.yaml, values.schema.json and, of
the templates, _helpers.tpl, NOTES.txt, checks.yaml and uninstall.yaml. The tests check that the committed
files are up to date, and that the chart renders the same objects as kustomize.
"""

import json
import re
import subprocess
from collections.abc import Iterator, Mapping
from difflib import SequenceMatcher
from itertools import groupby
from pathlib import Path
from textwrap import indent
from typing import Any

import yaml

CHART = Path(__file__).parent
MANIFESTS = CHART.parent
Json = dict[str, Any]
Key = tuple[str, str]
"""Kind and name of an object."""

ENABLED = 'ne (toString .Values.enabled) "false"'
"""Also if the value is missing, as with `helm upgrade --reuse-values`, which would uninstall everything otherwise."""
BESIDE = ".Values.besideOpenKruise.enabled"
LEAN = 'eq (toString .Values.node.enabled) "false"'
"""Not if the value is missing, for the same reason."""
HOST_NETWORK = ".Values.manager.hostNetwork"
GATE_ALL = 'eq (toString .Values.manager.readinessGate) "all"'
NAMESPACES = {
    "crrd-system": ".Values.namespaces.manager",
    "crrd-node": ".Values.namespaces.node",
    "kruise-system": ".Values.besideOpenKruise.namespace",
}
WORKLOADS = {"Deployment": "manager", "DaemonSet": "node"}
"""Kinds of the workloads, and where their values are."""
DASHBOARD_LABELS = ("grafana_dashboard",)
"""Labels of the dashboard that a value replaces."""
FIXED = ("CRRD_BIND_ADDRESS", "CRRD_CRI_ENDPOINTS", "CRRD_READINESS_GATE", "CRRD_SPEC_DIR", "CRRD_VIA")
"""Variables that belong to a port, a volume or another value; all others of a container with a value are in `env`."""
HEAD = "{{- /* Made by generate.py of what kustomize renders. */}}\n"
KEPT = {"helm.sh/resource-policy": "keep"}
"""Annotation of what Helm must not delete, because content of others would be deleted with it."""
_PLACEHOLDER = re.compile(r"( *)(.*?)'@(inline|block|entries|variables) (.+)@'(: null)?")


def inline(expression: str) -> str:
    """Stands for a scalar that the template works out."""
    return f"@inline {expression}@"


def block(value: str) -> str:
    """Stands for a value of any shape; its key is left out where the value is empty."""
    return f"@block {value}@"


def entries(value: str) -> Json:
    """Stands for more entries of a mapping, from a value that is one."""
    return {f"@entries {value}@": None}


def variables(value: str) -> str:
    """Stands for more variables of a container, from a value with the texts by name."""
    return f"@variables {value}@"


def rendered(folder: str) -> dict[Key, Json]:
    """The objects of a folder of manifests, as kustomize renders them."""
    command = ["kubectl", "kustomize", str(MANIFESTS / folder)]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout  # noqa: S603 - our own folders
    return {(each["kind"], each["metadata"]["name"]): each for each in yaml.safe_load_all(text)}


def with_values(found: Any) -> Any:
    """A part of an object with placeholders for namespaces and for OpenKruise's ServiceAccount."""
    if isinstance(found, list):
        return [with_values(each) for each in found]
    if not isinstance(found, dict):
        return found
    made = {key: with_values(value) for key, value in found.items()}
    if made.get("namespace") in NAMESPACES:
        made["namespace"] = inline(f"{NAMESPACES[made['namespace']]} | quote")
    if (made.get("kind"), made.get("name")) == ("ServiceAccount", "kruise-manager"):
        made["name"] = inline(".Values.besideOpenKruise.serviceAccount | quote")
    return made


def with_workload_values(workload: Json) -> None:
    """Put placeholders into a Deployment or DaemonSet."""
    values = f".Values.{WORKLOADS[workload['kind']]}"
    meta, spec = (workload["spec"]["template"][key] for key in ("metadata", "spec"))
    (container,) = spec["containers"]
    meta["labels"] |= entries(f"{values}.podLabels")
    meta["annotations"] = block(f"{values}.podAnnotations")
    changeable = texts(container)
    container["env"] = [each for each in container["env"] if each["name"] not in changeable]
    container["env"].append(variables(f"{values}.env"))
    container["image"] = inline('include "crrd.image" . | quote')
    container["imagePullPolicy"] = block(".Values.image.pullPolicy")
    container["resources"] = block(f"{values}.resources")
    spec["imagePullSecrets"] = block('(include "crrd.imagePullSecrets" . | fromYamlArray)')
    for key in ("priorityClassName", "nodeSelector", "affinity", "tolerations"):
        spec[key] = block(f"{values}.{key}")
    spread = f'include "crrd.spread" (list "{meta["labels"]["app"]}" {values}.topologySpreadConstraints)'
    spec["topologySpreadConstraints"] = block(f"({spread} | fromYamlArray)")
    if workload["kind"] == "Deployment":
        workload["spec"]["replicas"] = inline(f"{values}.replicas")
        return
    workload["spec"]["updateStrategy"]["rollingUpdate"]["maxUnavailable"] = inline(f"{values}.maxUnavailable")
    for variable in container["env"][:-1]:
        if variable["name"] == "CRRD_CRI_ENDPOINTS":
            variable["value"] = inline(f'printf "unix://%s" {values}.runtimeSocket | quote')
    (mount,) = (each for each in container["volumeMounts"] if each["name"] == "cri")
    (volume,) = (each for each in spec["volumes"] if each["name"] == "cri")
    mount["mountPath"] = volume["hostPath"]["path"] = inline(f"dir {values}.runtimeSocket | quote")


def texts(container: Json) -> dict[str, str]:
    """The variables of a container that a value may change."""
    return {each["name"]: each["value"] for each in container["env"] if "value" in each and each["name"] not in FIXED}


class _Dumper(yaml.SafeDumper):
    """Long texts as blocks, nothing as an alias."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


_Dumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None),
)


def dumped(found: Json | None) -> list[str]:
    """The lines of an object with placeholders, in Helm's language for what is not; none for None."""
    if found is None:
        return []
    found = with_values(found)
    if found["kind"] in WORKLOADS:
        with_workload_values(found)
    if found["kind"] in ("PodMonitor", "PrometheusRule"):
        found["metadata"]["labels"] |= entries(".Values.monitoring.labels")
    if found["kind"] == "ConfigMap":
        labels = found["metadata"]["labels"]
        found["metadata"]["labels"] = {key: labels[key] for key in labels if key not in DASHBOARD_LABELS}
        found["metadata"]["labels"] |= entries(".Values.monitoring.dashboardLabels")
    if found["kind"] == "Namespace":
        found["metadata"]["name"] = inline(f"{NAMESPACES[found['metadata']['name']]} | quote")
        found["metadata"]["annotations"] = KEPT
    text = yaml.dump(found, Dumper=_Dumper, sort_keys=False, width=1000, allow_unicode=True)
    return text.replace("{{", '{{ "{{" }}').splitlines()


def merged(usual: list[str], others: Mapping[str, list[str]]) -> Iterator[str]:
    """Lines that are the usual ones, or another text where a condition holds. Each changes other lines."""
    changes = [
        (i1, i2, condition, other[j1:j2])
        for condition, other in others.items()
        for tag, i1, i2, j1, j2 in SequenceMatcher(None, usual, other, autojunk=False).get_opcodes()
        if tag != "equal"
    ]
    at = 0
    for begin, end, condition, instead in sorted(changes):
        if begin < at:
            raise ValueError(f"two conditions change {usual[begin]!r}")
        yield from usual[at:begin]
        yield f"{{{{- if {condition} }}}}" if instead else f"{{{{- if {negated(condition)} }}}}"
        yield from instead
        if begin < end and instead:
            yield "{{- else }}"
        yield from usual[begin:end]
        yield "{{- end }}"
        at = end
    yield from usual[at:]


def negated(condition: str) -> str:
    """The opposite of a condition."""
    return f"not ({condition})" if " " in condition else f"not {condition}"


def filled(lines: list[str]) -> str:
    """The text of lines, with Helm's expressions for placeholders."""
    made = []
    for line in lines:
        found = _PLACEHOLDER.fullmatch(line)
        if found is None:
            made.append(line)
            continue
        spaces, before, kind, value, _ = found.groups()
        if kind == "inline":
            made.append(f"{spaces}{before}{{{{ {value} }}}}")
        elif kind == "entries":
            made += [f"{spaces}{{{{- with {value} }}}}", f"{spaces}{{{{- toYaml . | nindent {len(spaces)} }}}}"]
            made.append(f"{spaces}{{{{- end }}}}")
        elif kind == "variables":
            made += [f"{spaces}{{{{- range $name, $value := {value} }}}}", f"{spaces}- name: {{{{ $name }}}}"]
            # Helm reads numbers as floats, and writes 1e+06 for a million.
            shown = '(kindIs "float64" $value | ternary (int64 $value) $value) | quote'
            made += [f"{spaces}  value: {{{{ {shown} }}}}", f"{spaces}{{{{- end }}}}"]
        else:
            made += [f"{spaces}{{{{- with {value} }}}}", f"{spaces}{before.rstrip()}"]
            made += [f"{spaces}  {{{{- toYaml . | nindent {len(spaces) + 2} }}}}", f"{spaces}{{{{- end }}}}"]
    return "\n".join(made) + "\n"


def file_of(found: Json) -> str:
    """The template that an object is in."""
    if found["kind"] == "CustomResourceDefinition":
        return "crd"
    return str(found["metadata"].get("labels", {}).get("app.kubernetes.io/component", "access"))


def chunk(key: Key, found: Json, others: Mapping[str, dict[Key, Json]]) -> tuple[str, list[str]]:
    """An object as `if` it is there ("" for always), and its lines, with what conditions change of it.

    `others` are all objects as they are where a condition holds.
    """
    changed = {condition: there[key] for condition, there in others.items() if there.get(key, found) != found}
    if found["kind"] == "CustomResourceDefinition":
        changed[".Values.crd.keep"] = {**found, "metadata": {**found["metadata"], "annotations": KEPT}}
    lines = list(merged(dumped(found), {condition: dumped(each) for condition, each in changed.items()}))
    if found["kind"] == "Namespace":
        name = NAMESPACES[found["metadata"]["name"]]
        created = f"{{{{- if and .Values.namespaces.create (ne .Release.Namespace {name}) }}}}"
        lines = [created, f'{{{{- include "crrd.checkNamespace" {name} }}}}', *lines, "{{- end }}"]
    absent = [negated(condition) for condition, there in others.items() if key not in there]
    return absent[0] if len(absent) == 1 else f"and {' '.join(f'({each})' for each in absent)}" if absent else "", lines


def templates() -> dict[str, str]:
    """The templates: file name -> text."""
    overlays = {
        BESIDE: "beside-openkruise",
        LEAN: "lean",
        HOST_NETWORK: "host-network",
        GATE_ALL: "gate-all-namespaces",
    }
    parts = [
        (rendered("default"), {value: rendered(f"overlays/{name}") for value, name in overlays.items()}),
        (
            rendered("monitoring"),
            {value: rendered(f"overlays/monitoring-{overlays[value]}") for value in (BESIDE, LEAN)},
        ),
    ]
    files: dict[str, list[tuple[str, list[str]]]] = {}
    for usual, others in parts:
        for key, found in usual.items():
            files.setdefault(file_of(found), []).append(chunk(key, found, others))
    made = {}
    for name, chunks in files.items():
        text = ""
        for condition, group in groupby(chunks, lambda each: each[0]):
            inside = "".join("---\n" + filled(lines) for _, lines in group)
            text += f"{{{{- if {condition} }}}}\n{inside}{{{{- end }}}}\n" if condition else inside
        there = f"and ({ENABLED}) .Values.monitoring.enabled" if name == "monitoring" else ENABLED
        made[f"templates/{name}.yaml"] = f"{HEAD}{{{{- if {there} }}}}\n{text}{{{{- end }}}}\n"
    return made


def defaults() -> Json:
    """What the manifests have where the schema names no default."""
    workloads = {kind: each for (kind, _), each in rendered("default").items() if kind in WORKLOADS}
    made = {}
    for kind, workload in workloads.items():
        spec = workload["spec"]["template"]["spec"]
        (container,) = spec["containers"]
        made[WORKLOADS[kind]] = {**spec, "resources": container["resources"], "env": texts(container)}
    made["node"]["maxUnavailable"] = workloads["DaemonSet"]["spec"]["updateStrategy"]["rollingUpdate"]["maxUnavailable"]
    return made


def values() -> Iterator[tuple[tuple[str, ...], Json]]:
    """Path and schema of each value; a default is filled in from the manifests where the schema has none."""
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    known = defaults()
    for name, one in schema["properties"].items():
        if "description" in one:
            yield (name,), one
        for inner, each in one.get("properties", {}).items():
            yield (name, inner), {"default": known.get(name, {}).get(inner), **each}


def values_yaml() -> str:
    """values.yaml: each value below its description."""
    text, section = "# Made by generate.py of values.schema.json.\n", ""
    for path, one in values():
        if len(path) > 1 and path[0] != section:
            text += f"{path[0]}:\n"
        section = path[0]
        lines = f"# {one['description']}\n{yaml.safe_dump({path[-1]: one['default']}, sort_keys=False)}"
        text += indent(lines, "  " * (len(path) - 1))
    return text


def readme() -> str:
    """README.md, with a table of the values."""
    rows = [f"| `{'.'.join(path)}` | `{json.dumps(one['default'])}` | {one['description']} |" for path, one in values()]
    table = "\n".join(["| value | default | meaning |", "|---|---|---|", *rows])
    text = (CHART / "README.md").read_text(encoding="utf-8")
    return re.sub(r"(?s)(?<=<!-- values -->\n).*?(?=<!-- end -->)", lambda _: f"{table}\n", text)


def files() -> dict[str, str]:
    """What is generated: file name -> text."""
    return {**templates(), "values.yaml": values_yaml(), "README.md": readme()}


if __name__ == "__main__":
    for name, text in files().items():
        (CHART / name).write_text(text, encoding="utf-8")
