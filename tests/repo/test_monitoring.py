"""Rules, dashboard and runbooks: what is committed is what is made, says only what there is, and works."""

import importlib.util
import json
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry

from crrd.core.policy.reasons import PolicyReason
from crrd.lib.metrics import new_registry
from crrd.manager.metrics import ManagerMetrics
from crrd.node.metrics import NodeMetrics
from tests.support.manifests import needs_kubectl, one, rendered
from tests.support.scrapes import node_state, show_manager

ROOT = Path(__file__).parents[2]
MONITORING = ROOT / "manifests" / "monitoring"
RULES = sorted((MONITORING / "rules").glob("*.yaml"))
CASES = MONITORING / "tests" / "rules.yaml"
FOREIGN = {
    "up",
    "kube_pod_container_status_restarts_total",
    "kube_daemonset_status_desired_number_scheduled",
    "kube_daemonset_status_current_number_scheduled",
}
"""Metrics of Prometheus itself and of kube-state-metrics."""
NOT_ALWAYS = {"crrd_kubelet_hash_mismatch_containers"}
"""Metrics that a daemon has only when it is asked to look."""
needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool (Debian: prometheus) is not here"
)

Json = dict[str, Any]


def load(file: Path) -> Json:
    found: Json = yaml.safe_load(file.read_text(encoding="utf-8"))
    return found


def rules(kind: str) -> list[Json]:
    """Every rule of a kind, `alert` or `record`."""
    return [rule for file in RULES for group in load(file)["groups"] for rule in group["rules"] if kind in rule]


ALERTS = rules("alert")


def promtool(*arguments: str | Path, text: str | None = None) -> str:
    result = subprocess.run(
        ["promtool", *map(str, arguments)], input=text, capture_output=True, text=True, check=False, timeout=60
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout + result.stderr


def expressions() -> list[str]:
    """Every PromQL expression of rules and dashboard."""
    panels = json.loads((MONITORING / "dashboard.json").read_text(encoding="utf-8"))["panels"]
    shown = [target["expr"] for panel in panels for target in panel.get("targets", ())]
    return [*(rule["expr"] for rule in (*ALERTS, *rules("record"))), *shown]


def families(registry: CollectorRegistry) -> set[str]:
    """Names of the samples that a registry can have."""
    return {name for known in registry._collector_to_names.values() for name in known} | {
        family.name for family in registry.collect()
    }


@pytest.fixture
def exposed() -> set[str]:
    """Names of all series of both daemons."""
    registry = new_registry()
    NodeMetrics(registry).show(node_state())
    manager = ManagerMetrics()
    show_manager(manager)
    return families(registry) | families(manager.registry) | {"crrd_certificate_expiry_timestamp_seconds"}


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    """The script that writes them."""
    spec = importlib.util.spec_from_file_location("generate", MONITORING / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_what_is_committed_is_what_is_generated(generate: ModuleType) -> None:
    files: Mapping[str, str] = generate.files()
    assert set(files) == {"dashboard.json", "prometheusrule.yaml", *generate.BY_HAND}
    for name, text in files.items():
        assert (MONITORING / name).read_text(encoding="utf-8") == text, "run: python manifests/monitoring/generate.py"


def test_a_new_panel_leaves_the_others_their_ids(generate: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    def ids() -> dict[str, int]:
        return {panel["title"]: panel["id"] for panel in generate.dashboard()["panels"]}

    before = ids()
    assert len(set(before.values())) == len(generate.dashboard()["panels"]), "two have one title, or one id"
    assert all(0 < each < 2**31 for each in before.values())
    monkeypatch.setitem(generate.ROWS, "Now", (generate.Panel("Another", ()), *generate.ROWS["Now"]))
    after = ids()
    assert after == before | {"Another": after["Another"]}


def test_the_operators_rule_is_the_plain_files() -> None:
    groups = load(MONITORING / "prometheusrule.yaml")["spec"]["groups"]
    plain = [group for file in RULES for group in load(file)["groups"]]
    assert sorted(groups, key=lambda group: group["name"]) == sorted(plain, key=lambda group: group["name"])


@needs_promtool
def test_prometheus_accepts_the_rules() -> None:
    assert promtool("check", "rules", *RULES).count("SUCCESS") == len(RULES)


@needs_promtool
def test_every_alert_fires_and_stays_quiet_as_it_should() -> None:
    assert "SUCCESS" in promtool("test", "rules", CASES)


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: str(alert["alert"]))
def test_every_alert_has_both_cases(alert: Json) -> None:
    fires = quiet = 0
    for case in load(CASES)["tests"]:
        for test in case.get("alert_rule_test", ()):
            if test["alertname"] == alert["alert"]:
                does = "fires" if test.get("exp_alerts") else "stays quiet"
                assert case["name"].startswith(f"{alert['alert']} {does}")
                fires += bool(test.get("exp_alerts"))
                quiet += not test.get("exp_alerts")
    assert fires >= 1
    assert quiet >= 1


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: str(alert["alert"]))
def test_every_alert_has_a_runbook_and_a_severity(alert: Json, generate: ModuleType) -> None:
    assert alert["labels"]["severity"] in ("page", "ticket", "info")
    assert {"summary", "description"} < alert["annotations"].keys()
    page = generate.RUNBOOKS.removeprefix(f"{generate.REPOSITORY}/")
    headings = re.findall(r"^### (.+)$", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE)
    assert alert["alert"] in headings
    assert alert["annotations"]["runbook_url"] == f"{generate.RUNBOOKS}#{alert['alert'].lower()}"


def test_every_runbook_is_that_of_an_alert(generate: ModuleType) -> None:
    text = (ROOT / generate.RUNBOOKS.removeprefix(f"{generate.REPOSITORY}/")).read_text(encoding="utf-8")
    runbooks = text.partition("\n## Runbooks\n")[2].partition("\n## ")[0]
    assert set(re.findall(r"^### (.+)$", runbooks, re.MULTILINE)) == {alert["alert"] for alert in ALERTS}


def test_the_page_of_runbooks_is_set_in_one_place(generate: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generate, "RUNBOOKS", "https://elsewhere.example/runbooks")
    for name, text in generate.files().items():
        links = set(re.findall(r"runbook_url: (\S+)#", text))
        assert links == (set() if name == "dashboard.json" else {"https://elsewhere.example/runbooks"})


def test_what_rules_and_panels_ask_for_is_there(exposed: set[str]) -> None:
    recorded = {rule["record"] for rule in rules("record")}
    known = exposed | recorded | FOREIGN | NOT_ALWAYS
    asked = set()
    for expression in expressions():
        bare = re.sub(r'"[^"]*"|\{[^}]*\}', "", expression)
        asked |= set(re.findall(r"[a-z_:]*(?:crrd|kube|process)_[a-z0-9_:]+|\bup\b", bare))
    assert asked
    ends = ("_bucket", "_sum", "_count", "_total", "")
    missing = {name for name in asked if not any(name.removesuffix(end) in known or name in known for end in ends)}
    assert missing == set()


def test_every_metric_of_ours_is_shown_or_alerted_on(exposed: set[str]) -> None:
    text = "\n".join(expressions())
    own = {
        name
        for name in exposed
        if name.startswith("crrd_") and not name.endswith(("_bucket", "_sum", "_count", "_created"))
    }
    unused = {name for name in own if name.removesuffix("_total") not in text}
    assert unused == {"crrd_runtime_info", "crrd_last_list_timestamp_seconds", "crrd_api_call_duration_seconds"}


@needs_kubectl
def test_every_reason_for_which_a_policy_is_not_ready_is_alerted_on() -> None:
    (alert,) = (each for each in ALERTS if each["alert"] == "CrrdPolicyStopped")
    named = {reason for group in re.findall(r'reason=~"([^"]+)"', alert["expr"]) for reason in group.split("|")}
    unready = {reason for reason in PolicyReason if reason.ready is False}
    assert named == {reason.value for reason in unready - {PolicyReason.SUSPENDED}}, "a user has suspended it"


def test_the_folder_renders() -> None:
    found = {each["kind"]: each for each in rendered("monitoring")}
    assert found.keys() == {"ConfigMap", "PodMonitor", "PrometheusRule"}
    assert found["ConfigMap"]["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert json.loads(found["ConfigMap"]["data"]["crrd.json"])["uid"] == "crrd"


@needs_kubectl
def test_beside_openkruise_nothing_is_said_of_a_manager() -> None:
    objects = rendered("overlays/monitoring-beside-openkruise")
    assert {(each["kind"], each["metadata"]["name"], each["metadata"]["namespace"]) for each in objects} == {
        ("ConfigMap", "crrd-dashboard", "crrd-node"),
        ("PodMonitor", "crrd-node", "crrd-node"),
        ("PrometheusRule", "crrd", "crrd-node"),
    }
    groups = one(objects, "PrometheusRule", "crrd")["spec"]["groups"]
    whole = one(rendered("monitoring"), "PrometheusRule", "crrd")["spec"]["groups"]
    assert groups == [group for group in whole if group["name"] != "crrd.manager"]
    assert len(groups) == len(whole) - 1
    assert not [
        rule for group in groups for rule in group["rules"] if "manager" in rule["expr"] or "leader" in rule["expr"]
    ]


@needs_kubectl
def test_without_node_daemons_none_is_missed() -> None:
    objects = rendered("overlays/monitoring-lean")
    assert {(each["kind"], each["metadata"]["name"], each["metadata"]["namespace"]) for each in objects} == {
        ("ConfigMap", "crrd-dashboard", "crrd-system"),
        ("PodMonitor", "crrd-manager", "crrd-system"),
        ("PrometheusRule", "crrd", "crrd-system"),
    }
    groups = one(objects, "PrometheusRule", "crrd")["spec"]["groups"]
    whole = one(rendered("monitoring"), "PrometheusRule", "crrd")["spec"]["groups"]
    assert groups == [group for group in whole if group["name"] not in ("crrd.node", "crrd.requests")]
    assert len(groups) == len(whole) - 2
    assert not [rule for group in groups for rule in group["rules"] if 'absent(up{job="crrd-node' in rule["expr"]]


def test_what_is_scraped_are_ports_that_there_are() -> None:
    monitors = list(yaml.safe_load_all((MONITORING / "podmonitors.yaml").read_text(encoding="utf-8")))
    for monitor, file in zip(monitors, ("node/daemonset.yaml", "manager/deployment.yaml"), strict=True):
        workload = next(yaml.safe_load_all((ROOT / "manifests" / file).read_text(encoding="utf-8")))
        assert workload["metadata"]["namespace"] == monitor["metadata"]["namespace"]
        labels = workload["spec"]["template"]["metadata"]["labels"]
        assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()
        [container] = workload["spec"]["template"]["spec"]["containers"]
        [endpoint] = monitor["spec"]["podMetricsEndpoints"]
        assert endpoint["port"] in {port["name"] for port in container["ports"]}


def test_panels_do_not_lie_upon_each_other() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in json.loads((MONITORING / "dashboard.json").read_text(encoding="utf-8"))["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells
