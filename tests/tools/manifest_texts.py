"""The sentences of the manifests, the Helm chart and the runbooks, for `messages.py`."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
MANIFESTS = ROOT / "manifests"
ALERT, RUNBOOK, PANEL, HEADS = "alerts", "runbooks", "dashboard", "table heads"
FIELD, POLICY, CHART, SCRIPT = "fields of the CRDs", "admission policies", "Helm chart and krew", "uninstall.sh"


@dataclass(frozen=True, slots=True)
class Sentence:
    """One text, and where it comes from."""

    group: str
    source: str
    """The name of a reason, a flag or a metric, or the module and line."""
    text: str
    """With `{name}` in place of each value."""


def manifest_sentences() -> Iterator[Sentence]:
    """Alerts, runbooks, panels, fields, policies, values of the chart, and the lines of the scripts."""
    for file in sorted((MANIFESTS / "monitoring" / "rules").glob("*.yaml")):
        for group in yaml.safe_load(file.read_text(encoding="utf-8"))["groups"]:
            for rule in group["rules"]:
                for kind in ("summary", "description"):
                    if text := rule.get("annotations", {}).get(kind):
                        yield Sentence(ALERT, f"{rule['alert']} {kind}", _folded(text))
    yield from _runbooks()
    for panel in json.loads((MANIFESTS / "monitoring" / "dashboard.json").read_text(encoding="utf-8"))["panels"]:
        yield from (Sentence(PANEL, panel["title"], panel[key]) for key in ("title", "description") if panel.get(key))
    yield from _crds()
    for name in ("node/policy", "requests/policy", "manager/policy"):
        for document in yaml.safe_load_all((MANIFESTS / f"{name}.yaml").read_text(encoding="utf-8")):
            for each in document.get("spec", {}).get("validations", ()):
                yield Sentence(POLICY, document["metadata"]["name"], _folded(each["message"]))
    schema = json.loads((MANIFESTS / "chart" / "values.schema.json").read_text(encoding="utf-8"))
    yield from (Sentence(CHART, path, text) for path, text in _descriptions(schema, "values", ("description",)))
    notes = (MANIFESTS / "chart" / "templates" / "NOTES.txt").read_text(encoding="utf-8")
    yield Sentence(CHART, "NOTES.txt", re.sub(r"\{\{-.*?\}\}\n?", "", notes))
    krew = yaml.safe_load((MANIFESTS / "krew" / "recreate.yaml").read_text(encoding="utf-8"))["spec"]
    yield from (Sentence(CHART, f"krew {key}", krew[key]) for key in ("shortDescription", "description", "caveats"))
    script = (MANIFESTS / "uninstall.sh").read_text(encoding="utf-8")
    yield from (Sentence(SCRIPT, "uninstall.sh", text) for text in re.findall(r'^ *echo "(.*)"', script, re.MULTILINE))


def _runbooks() -> Iterator[Sentence]:
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    section = re.search(r"^## Runbooks\n(.*?)^## ", page, re.MULTILINE | re.DOTALL)
    assert section
    for book in section[1].split("\n### ")[1:]:
        alert, text = book.split("\n", 1)
        yield Sentence(RUNBOOK, alert, _folded(text))


def _crds() -> Iterator[Sentence]:
    for name in ("crd", "policies-crd"):
        crd = yaml.safe_load((MANIFESTS / "base" / f"{name}.yaml").read_text(encoding="utf-8"))["spec"]
        for version in crd["versions"]:
            columns = version["additionalPrinterColumns"]
            heads = " ".join(column["name"] for column in columns).upper()
            yield Sentence(HEADS, f"kubectl get {crd['names']['shortNames'][0]} ({version['name']})", heads)
        newest, kind = crd["versions"][0], crd["names"]["kind"]
        for column in newest["additionalPrinterColumns"]:
            yield Sentence(FIELD, f"{kind} column {column['name']}", _folded(column["description"]))
        schema = newest["schema"]["openAPIV3Schema"]
        found = _descriptions(schema, kind, ("description", "message"))
        yield from (Sentence(FIELD, path, text) for path, text in found)


def _descriptions(schema: Any, path: str, keys: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """The descriptions and messages of a JSON schema, each with the path of its field."""
    if isinstance(schema, list):
        for each in schema:
            yield from _descriptions(each, path, keys)
    elif isinstance(schema, dict):
        yield from ((path, _folded(schema[key])) for key in keys if isinstance(schema.get(key), str))
        for name, each in schema.items():
            if name == "properties":
                for field, below in each.items():
                    yield from _descriptions(below, f"{path}.{field}", keys)
            else:
                yield from _descriptions(each, path, keys)


def _folded(text: str) -> str:
    return " ".join(text.split())
