"""Each row of the table of triggers has its docs, its ClusterRole and its time series."""

from pathlib import Path

import pytest
import yaml

from crrd.core.policy.triggers import TRIGGERS, Trigger
from crrd.manager.metrics import ManagerMetrics

ROOT = Path(__file__).parents[2]

every = pytest.mark.parametrize("trigger", TRIGGERS.values(), ids=TRIGGERS)


@every
def test_the_docs_say_what_it_does_and_how_its_role_is_bound(trigger: Trigger) -> None:
    text = (ROOT / "docs" / "policy.md").read_text(encoding="utf-8")
    before, _, after = text.partition("<!-- fields of spec")
    prose = before + after.partition("<!-- end of fields -->")[2]
    assert f"`{trigger.name}`" in prose or f"{trigger.name}:" in prose
    assert f"kubectl create rolebinding {trigger.role} -n shop --clusterrole={trigger.role}" in prose
    assert trigger.name in (ROOT / "README.md").read_text(encoding="utf-8")


@every
def test_its_role_is_installed(trigger: Trigger) -> None:
    files = (ROOT / "manifests" / "base").glob("*.yaml")
    objects = [each for file in files for each in yaml.safe_load_all(file.read_text(encoding="utf-8")) if each]
    roles = [each["metadata"]["name"] for each in objects if each.get("kind") == "ClusterRole"]
    assert trigger.role in roles


@every
@pytest.mark.parametrize("result", ["succeeded", "incomplete", "failed"])
def test_its_runs_are_counted_from_zero(trigger: Trigger, result: str) -> None:
    metrics = ManagerMetrics()
    labels = {"trigger": trigger.name, "result": result}
    assert metrics.registry.get_sample_value("crrd_policy_runs_total", labels) == 0
