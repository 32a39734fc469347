"""Writes dashboard.json and prometheusrule.yaml: `python manifests/monitoring/generate.py`.

The panels stand here as a table, the rules in rules/*.yaml; of those only the links to runbooks are written from here.
The tests check that the committed files are up to date.
"""

import json
import re
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

REPOSITORY = "https://crrd.example"
"""Where people read this repository's files: a placeholder. Set it here, for your copy, and run this script."""
RUNBOOKS = f"{REPOSITORY}/docs/operations.md"
"""The page that alerts link to; each alert has a heading of its name there."""

FOLDER = Path(__file__).parent
BY_HAND = ("rules/alerts.yaml", "rules/manager.yaml", "tests/rules.yaml")
"""The files in which nothing but those links is written from here."""
HERE = 'instance=~"$instance"'
"""What narrows a query to the chosen nodes."""
WIDTH = 24
"""Grafana's grid."""


@dataclass(frozen=True)
class Panel:
    """One panel: its queries as (PromQL, legend)."""

    title: str
    queries: tuple[tuple[str, str], ...]
    kind: str = "timeseries"
    unit: str = "short"
    width: int = 8
    says: str = ""
    """What to read from it, shown at its title."""
    thresholds: tuple[float, ...] = ()
    """Values from which it turns orange, then red."""


def stopped() -> str:
    """The reasons of policies that have stopped, as the alert on them has them: a pattern of PromQL."""
    text = (FOLDER / "rules" / "manager.yaml").read_text(encoding="utf-8")
    return "|".join(re.findall(r'crrd_policies{reason=~"([^"]+)"}', text))


def rate(metric: str, by: str, more: str = "") -> str:
    """Per second, by labels."""
    return f"sum by ({by}) (rate({metric}{{{HERE}{more}}}[$__rate_interval]))"


def quantile(q: float, metric: str, by: str) -> str:
    """A quantile of a histogram, by labels, over what happened in the last five minutes."""
    labels = f"{by}, le" if by else "le"
    return f"histogram_quantile({q}, sum by ({labels}) (rate({metric}_bucket{{{HERE}}}[5m])))"


def total(metric: str, by: str, more: str = "") -> str:
    """How many since the daemons started: series that begin with their first event have no increase to show."""
    return f"sum by ({by}) ({metric}{{{HERE}{more}}})"


STAGES, CRI, ADMISSION = (
    "crrd_stage_duration_seconds",
    "crrd_cri_call_duration_seconds",
    "crrd_admission_review_duration_seconds",
)
REQUESTS = f'sum(rate({STAGES}_count{{stage="total", {HERE}}}[5m]))'
WATCH = f'time() - crrd_last_activity_timestamp_seconds{{resource="containerrecreaterequests", {HERE}}}'

ROWS: dict[str, tuple[Panel, ...]] = {
    "Now": (
        Panel("Active requests", ((f"sum(crrd_active_requests{{{HERE}}})", ""),), "stat", width=4),
        Panel(
            "Oldest active request",
            ((f"max(crrd_oldest_request_age_seconds{{{HERE}}})", ""),),
            "stat",
            "s",
            4,
            "Since the daemon first saw it. `crrd explain` shows what it waits for.",
            (300, 900),
        ),
        Panel(
            "Failed requests, last hour",
            ((f'sum(increase(crrd_requests_total{{outcome=~"failed|partial", {HERE}}}[1h]))', ""),),
            "stat",
            width=4,
            thresholds=(1, 10),
        ),
        Panel(
            "Node daemons with a silent watch",
            ((f"sum(({WATCH}) > bool 300)", ""),),
            "stat",
            width=4,
            says="No event or bookmark from the API server for 5m.",
            thresholds=(1, 1),
        ),
        Panel("Leaders", (("sum(crrd_leader)", ""),), "stat", width=4),
        Panel(
            "Kubelet would restart",
            ((f"sum(crrd_kubelet_hash_mismatch_containers{{{HERE}}}) or vector(0)", ""),),
            "stat",
            width=4,
            says="Containers whose spec hash has changed. Only known if the daemon keeps specs (--spec-dir).",
            thresholds=(1, 1),
        ),
        Panel(
            "Active requests, by namespace",
            ((f"sum by (pod_namespace, phase) (crrd_active_requests{{{HERE}}})", "{{pod_namespace}} {{phase}}"),),
        ),
        Panel(
            "Active requests, by node",
            ((f"sum by (instance) (crrd_active_requests{{{HERE}}})", "{{instance}}"),),
            "bargauge",
        ),
        Panel(
            "Admitted requests, by user",
            (("topk(10, sum by (requested_by) (crrd_admitted_requests_total))", "{{requested_by}}"),),
            "bargauge",
            says="Since the managers started.",
        ),
    ),
    "Results": (
        Panel("Requests by outcome", ((rate("crrd_requests_total", "outcome"), "{{outcome}}"),), unit="reqps"),
        Panel(
            "Containers that failed, by reason",
            ((total("crrd_container_recreations_total", "reason", ', result="failed"') + " > 0", "{{reason}}"),),
            "bargauge",
            says="Since the daemons started.",
        ),
        Panel(
            "preStop hooks",
            (
                (total("crrd_pre_stop_hooks_total", "kind"), "{{kind}}"),
                (total("crrd_pre_stop_hook_failures_total", "kind"), "{{kind}} failed"),
            ),
            says="Since the daemons started.",
        ),
        Panel(
            "Reloads",
            (
                (total("crrd_reloads_total", "kind"), "{{kind}}"),
                (total("crrd_reload_failures_total", "kind"), "{{kind}} failed"),
            ),
            says="Since the daemons started.",
        ),
        Panel(
            "Restarts on request, by namespace",
            ((total("crrd_requested_restarts_total", "pod_namespace"), "{{pod_namespace}}"),),
            "bargauge",
            says="Since the daemons started.",
        ),
        Panel(
            "Containers by result", ((rate("crrd_container_recreations_total", "result"), "{{result}}"),), unit="ops"
        ),
        Panel(
            "Failed requests, by node",
            ((total("crrd_requests_total", "instance", ', outcome=~"failed|partial"'), "{{instance}}"),),
            "bargauge",
            says="Since the daemons started.",
        ),
    ),
    "How long it takes": (
        Panel("Stages, median", ((quantile(0.5, STAGES, "stage"), "{{stage}}"),), unit="s"),
        Panel("Stages, p95", ((quantile(0.95, STAGES, "stage"), "{{stage}}"),), unit="s"),
        Panel(
            "Seconds spent in each stage, per request",
            ((f"sum by (stage) (rate({STAGES}_sum{{{HERE}}}[5m])) / on () group_left {REQUESTS}", "{{stage}}"),),
            unit="s",
        ),
    ),
    "Runtime and API server": (
        Panel(
            "Calls to the runtime", ((rate("crrd_cri_calls_total", "method, code"), "{{method}} {{code}}"),), unit="ops"
        ),
        Panel("Runtime latency, p95", ((quantile(0.95, CRI, "method"), "{{method}}"),), unit="s"),
        Panel(
            "Calls to the API server",
            ((rate("crrd_api_calls_total", "verb, code"), "{{verb}} {{code}}"),),
            unit="ops",
        ),
        Panel(
            "Queue",
            (
                (f"sum by (instance) (crrd_queue_depth{{{HERE}}})", "{{instance}}"),
                (f"max(crrd_queue_oldest_age_seconds{{{HERE}}})", "oldest, seconds"),
            ),
        ),
        Panel(
            "Time since the last watch event", ((WATCH, "{{instance}}"),), unit="s", says="Bookmarks come every minute."
        ),
        Panel(
            "Watch restarts",
            ((total("crrd_watch_restarts_total", "resource, reason"), "{{resource}} {{reason}}"),),
            says="Since the daemons started.",
        ),
    ),
    "Managers": (
        Panel(
            "Admission",
            (
                (
                    "sum by (webhook, decision) (rate(crrd_admission_reviews_total[$__rate_interval]))",
                    "{{webhook}} {{decision}}",
                ),
            ),
            unit="reqps",
        ),
        Panel(
            "Denied, by reason",
            (('sum by (reason) (crrd_admission_reviews_total{decision="denied"}) > 0', "{{reason}}"),),
            "bargauge",
            says="Since the managers started.",
        ),
        Panel(
            "Admission latency",
            tuple(
                (f"histogram_quantile({q}, sum by (le) (rate({ADMISSION}_bucket[5m])))", name)
                for q, name in ((0.5, "median"), (0.99, "p99"))
            ),
            unit="s",
        ),
        Panel(
            "Lifecycle",
            (("sum by (action, reason) (crrd_lifecycle_actions_total) > 0", "{{action}} {{reason}}"),),
            "bargauge",
            says="Actions of the lifecycle controller since it started.",
        ),
        Panel(
            "Certificate expires in",
            (("min(crrd_certificate_expiry_timestamp_seconds) - time()", ""),),
            "stat",
            "s",
        ),
        Panel(
            "Admission's connections",
            (
                ("sum by (instance) (crrd_admission_connections)", "{{instance}}"),
                (
                    "sum by (reason) (rate(crrd_admission_connections_closed_total[$__rate_interval]))",
                    "closed per second, {{reason}}",
                ),
            ),
            says="At most 1024 per replica. Reasons to close one: crowded (to make room), silent (no call arrived).",
        ),
        Panel(
            "caBundle written",
            (
                ("sum by (instance) (increase(crrd_ca_bundle_writes_total[30m]))", "{{instance}}"),
                ("min(crrd_ca_bundles_wrong)", "wrong now"),
            ),
            says="How often a manager wrote the caBundle in the last 30 minutes, because it was renewed or changed.",
        ),
        Panel("Deleted after their TTL", (("sum(crrd_ttl_deletions_total)", ""),), "stat"),
    ),
    "Policies": (
        Panel(
            "Policies that have stopped",
            ((f'sum(crrd_policies{{reason=~"{stopped()}"}}) or vector(0)', ""),),
            "stat",
            says="ContainerRecreatePolicies that start no runs, or leave old data, until the cause is fixed.",
            thresholds=(1, 10),
        ),
        Panel(
            "Policies by reason",
            (("sum by (reason) (crrd_policies)", "{{reason}}"),),
            says="ContainerRecreatePolicies by what they do or wait for (the reason of their condition Ready).",
        ),
        Panel(
            "Runs of policies",
            (("sum by (trigger, result) (rate(crrd_policy_runs_total[$__rate_interval]))", "{{trigger}} {{result}}"),),
        ),
    ),
    "Daemons": (
        Panel("Memory", (('process_resident_memory_bytes{job=~"crrd-.+"}', "{{job}} {{instance}}"),), unit="bytes"),
        Panel(
            "CPU",
            (('rate(process_cpu_seconds_total{job=~"crrd-.+"}[$__rate_interval])', "{{job}} {{instance}}"),),
            unit="percentunit",
        ),
        Panel(
            "Events and log lines dropped",
            (
                ('sum(increase(crrd_events_dropped_total{job=~"crrd-.+"}[1h]))', "events"),
                ('sum(increase(crrd_log_lines_dropped_total{job=~"crrd-.+"}[1h]))', "log lines"),
            ),
            "stat",
            says="Kubernetes events and log lines that were dropped in the last hour.",
            thresholds=(1, 100),
        ),
        Panel("Versions", (("count by (version) (crrd_build_info)", "crrd {{version}}"),), "bargauge"),
    ),
}

DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}


def identity(title: str) -> int:
    """The id of a panel or row, from its title: it stays when others come and go. Grafana wants positive numbers."""
    return 1 + zlib.crc32(title.encode()) % (2**31 - 1)


def panel(one: Panel, x: int, y: int, height: int) -> dict[str, Any]:
    """A panel in Grafana's schema."""
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    steps += [{"color": color, "value": at} for color, at in zip(("orange", "red"), one.thresholds, strict=False)]
    options: dict[str, Any] = {"reduceOptions": {"calcs": ["lastNotNull"]}}
    if one.kind == "timeseries":
        options = {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}}
    if one.kind == "bargauge":
        options |= {"orientation": "horizontal", "displayMode": "basic"}
    return {
        "id": identity(one.title),
        "type": one.kind,
        "title": one.title,
        "description": one.says,
        "datasource": DATASOURCE,
        "gridPos": {"x": x, "y": y, "w": one.width, "h": height},
        "fieldConfig": {
            "defaults": {"unit": one.unit, "min": 0, "thresholds": {"mode": "absolute", "steps": steps}},
            "overrides": [],
        },
        "options": options,
        "targets": [
            {
                "refId": chr(ord("A") + place),
                "expr": query,
                "legendFormat": legend or "__auto",
                "instant": one.kind != "timeseries",
                "range": one.kind == "timeseries",
                "datasource": DATASOURCE,
            }
            for place, (query, legend) in enumerate(one.queries)
        ],
    }


def dashboard() -> dict[str, Any]:
    """The dashboard, panels laid out row by row."""
    panels: list[dict[str, Any]] = []
    y = 0
    for title, row in ROWS.items():
        panels.append(
            {"id": identity(title), "type": "row", "title": title, "gridPos": {"x": 0, "y": y, "w": WIDTH, "h": 1}}
        )
        y += 1
        x, tallest = 0, 0
        for one in row:
            if x + one.width > WIDTH:
                x, y, tallest = 0, y + tallest, 0
            height = 4 if one.kind == "stat" else 8
            panels.append(panel(one, x, y, height))
            x, tallest = x + one.width, max(tallest, height)
        y += tallest
    return {
        "uid": "crrd",
        "title": "crrd: containers restarted on request",
        "tags": ["kubernetes", "crrd"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [
                {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"},
                {
                    "name": "instance",
                    "label": "Node",
                    "type": "query",
                    "datasource": DATASOURCE,
                    "query": {"query": "label_values(crrd_queue_depth, instance)", "refId": "instance"},
                    "refresh": 2,
                    "includeAll": True,
                    "allValue": ".+",
                    "multi": True,
                    "current": {"text": "All", "value": "$__all"},
                },
            ]
        },
        "panels": panels,
    }


def prometheus_rule() -> dict[str, Any]:
    """The groups of all rule files, for the Prometheus Operator."""
    groups = []
    for file in sorted((FOLDER / "rules").glob("*.yaml")):
        groups += yaml.safe_load(file.read_text(encoding="utf-8"))["groups"]
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "crrd", "namespace": "crrd-system"},
        "spec": {"groups": groups},
    }


def linked(text: str) -> str:
    """Rules whose alerts link to RUNBOOKS, whatever page they named before."""
    return re.sub(r"(?<=runbook_url: )\S*(?=#)", RUNBOOKS, text)


def files() -> dict[str, str]:
    """What is generated: file name -> text."""
    rule = yaml.safe_dump(prometheus_rule(), sort_keys=False, width=1000)
    by_hand = {name: (FOLDER / name).read_text(encoding="utf-8") for name in BY_HAND}
    return {
        "dashboard.json": json.dumps(dashboard(), indent=1) + "\n",
        "prometheusrule.yaml": linked(f"# Made of rules/*.yaml by generate.py.\n{rule}"),
        **{name: linked(text) for name, text in by_hand.items()},
    }


if __name__ == "__main__":
    for name, text in files().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
