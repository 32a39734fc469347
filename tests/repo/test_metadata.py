"""What the project says of itself to machines: the chart's metadata, and what scanners may report without need."""

import json
import re
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from crrd import __version__
from crrd_localnode.api.crds import POLICIES, REQUESTS, load_crd
from crrd_localnode.api.schema import Schema

ROOT = Path(__file__).parents[2]
Json = dict[str, Any]
GROUP = "crr.apps.kruise.io/"
CHART: Json = yaml.safe_load((ROOT / "manifests" / "chart" / "Chart.yaml").read_text(encoding="utf-8"))
VEX: Json = json.loads((ROOT / ".vex" / "crrd.openvex.json").read_text(encoding="utf-8"))
CRDS: list[Json] = [load_crd(REQUESTS), load_crd(POLICIES)]


def annotation(name: str) -> Any:
    return yaml.safe_load(CHART["annotations"][f"artifacthub.io/{name}"])


def test_artifact_hub_gets_the_crds_that_the_chart_has() -> None:
    found = {(each["name"], each["kind"], each["version"]) for each in annotation("crds")}
    assert found == {
        (crd["metadata"]["name"], crd["spec"]["names"]["kind"], crd["spec"]["versions"][0]["name"]) for crd in CRDS
    }


@pytest.mark.parametrize("crd", CRDS, ids=lambda crd: str(crd["spec"]["names"]["kind"]))
def test_artifact_hub_gets_an_example_that_the_crd_accepts(crd: Json) -> None:
    (example,) = [each for each in annotation("crdsExamples") if each["kind"] == crd["spec"]["names"]["kind"]]
    version = crd["spec"]["versions"][0]
    assert example["apiVersion"] == f"{crd['spec']['group']}/{version['name']}"
    schema = Schema(version["schema"]["openAPIV3Schema"])
    stored, pruned = schema.complete(example)
    assert pruned == []
    assert schema.check(stored, None) == []


def test_artifact_hub_gets_the_changes_of_this_version() -> None:
    assert {each["kind"] for each in annotation("changes")} <= {
        *("added", "changed", "deprecated", "removed", "fixed", "security")
    }
    assert annotation("images") == [{"name": "crrd", "image": f"crrd:{__version__}"}]
    assert f"## {__version__} " in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_chart_names_no_address_before_its_release() -> None:
    assert {"home", "sources", "icon"} & CHART.keys() == set()


def test_the_vex_has_the_form_of_openvex() -> None:
    assert VEX.keys() == {"@context", "@id", "author", "timestamp", "version", "statements"}
    assert VEX["@context"] == "https://openvex.dev/ns/v0.2.0"
    assert datetime.fromisoformat(VEX["timestamp"]).tzinfo is not None
    assert VEX["version"] >= 1
    names = [each["vulnerability"]["name"] for each in VEX["statements"]]
    assert names
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"CVE-\d{4}-\d{4,}|GHSA(-\w{4}){3}", name) for name in names)


@pytest.mark.parametrize("statement", VEX["statements"], ids=lambda each: str(each["vulnerability"]["name"]))
def test_what_the_vex_calls_absent_is_not_in_the_image(statement: Json) -> None:
    """A statement of another kind needs a test of its own here."""
    assert (statement["status"], statement["justification"]) == ("not_affected", "component_not_present")
    assert statement["impact_statement"]
    locked = set(re.findall(r"(?m)^([\w.-]+)==", (ROOT / "locks" / "image.txt").read_text(encoding="utf-8")))
    last_stage = (ROOT / "Dockerfile").read_text(encoding="utf-8").rpartition("\nFROM ")[2]
    (product,) = statement["products"]
    assert product["@id"] == "pkg:oci/crrd"
    for component in product["subcomponents"]:
        name = component["@id"].removeprefix("pkg:pypi/")
        assert name not in locked
        assert f"RUN pip uninstall --yes --root-user-action ignore {name}\n" in last_stage


def test_the_page_about_stability_names_all_that_is_stored() -> None:
    page = (ROOT / "docs" / "stability.md").read_text(encoding="utf-8")
    section = page.partition("## Labels and annotations")[2].partition("\n## ")[0]
    rows = [row.split("|")[1] for row in section.splitlines() if row.startswith("| `")]
    named = {f"{GROUP}{key}" for row in rows for key in re.findall(r"`([\w-]+)`", row)}
    named |= set(re.findall(r"`(crrd\.dev/[\w-]+)`", section))
    code = "".join(file.read_text(encoding="utf-8") for file in (ROOT / "daemon" / "crrd").rglob("*.py"))
    stored = set(re.findall(rf'"((?:{re.escape(GROUP)}|crrd\.dev/(?!v\d))[\w-]+\w)"', code))
    assert len(stored) > 15
    assert named == stored
