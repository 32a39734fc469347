"""Renders reports: as a table, JSON, YAML, and a picture with one bar per node."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from enum import StrEnum
from typing import Any

from crrd.core.api.pod import ContainerKind
from crrd.lib.jsonfields import text
from crrd.lib.plain import columns
from crrd_forecast.report import Change, Forecast, Outcome, Report

FORMATS = ("table", "json", "yaml")
_UNCHANGED = "the spec has not changed since its start"
_HEADINGS = ("NAMESPACE", "POD", "CONTAINER", "STORED", "EXPECTED", "OUTCOME", "REASON")


def _changes(found: Any) -> tuple[Change, ...] | None:
    """Read back the changes that `shape` wrote. None also if the daemon does not support them."""
    return None if found is None else tuple(Change(str(each["what"]), each["restart"] is True) for each in found)


# Fields of a container in JSON: the field of Forecast, and the function that reads it
_FIELDS: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    "namespace": ("namespace", str),
    "pod": ("pod", str),
    "container": ("name", str),
    "id": ("id", str),
    "kind": ("kind", ContainerKind),
    "storedHash": ("stored", lambda found: found),
    "targetHash": ("target", lambda found: found),
    "outcome": ("outcome", Outcome),
    "reason": ("reason", str),
    "differsNow": ("differs_now", lambda found: found is True),
    "changedSinceStart": ("changes", _changes),
}


def shape(report: Report) -> dict[str, Any]:
    """Return the report as JSON values."""
    return {
        "node": report.node,
        "from": report.from_version,
        "to": report.to_version,
        "totals": {outcome.value: count for outcome, count in report.totals.items()},
        "differingNow": report.differing_now,
        "notes": list(report.notes),
        "failed": report.failed,
        "containers": [
            {key: _written(getattr(each, name)) for key, (name, _) in _FIELDS.items()} for each in report.containers
        ],
    }


def _written(value: Any) -> Any:
    """Return a field's value as JSON and YAML values."""
    if isinstance(value, tuple):
        return [asdict(change) for change in value]
    return value.value if isinstance(value, StrEnum) else value


def report_from(body: Mapping[str, Any]) -> Report:
    """Read a report that `shape` wrote. If it cannot be read (a daemon of another version), return a failed one."""
    try:
        found = ({"changedSinceStart": None, **each} for each in body["containers"])
        containers = (Forecast(**{name: read(each[key]) for key, (name, read) in _FIELDS.items()}) for each in found)
        notes = tuple(map(str, body["notes"]))
        failed = body["failed"] is True
        return Report(str(body["from"]), str(body["to"]), tuple(containers), str(body["node"]), notes, failed)
    except (KeyError, TypeError, ValueError):
        return Report("", "", (), text(body.get("node"))).failing("the node daemon's response cannot be read")


def to_text(reports: Sequence[Report], output: str, *, several: bool = False) -> str:
    """Return the reports as text in one of FORMATS. With `several`, json and yaml are a list, else a single report."""
    if output == "table":
        return "\n\n".join(_table(report) for report in reports) or "the API server lists no nodes"
    shapes: Any = [shape(report) for report in reports]
    if not several:
        (shapes,) = shapes
    if output == "json":
        return json.dumps(shapes, indent=2, ensure_ascii=False)
    import yaml  # noqa: PLC0415 - the rest of this package needs only the standard library

    return yaml.safe_dump(shapes, sort_keys=False, allow_unicode=True, width=10_000).rstrip("\n")


def summary(report: Report) -> str:
    """Return one line with versions and totals."""
    where = f"node {report.node}: " if report.node else ""
    if report.failed:
        return f"{where}no report"
    totals = ", ".join(f"{count} {outcome.value}" for outcome, count in report.totals.items())
    return f"{where}{totals} (kubelet {report.from_version} to {report.to_version})"


def _table(report: Report) -> str:
    rows = []
    for each in report.containers:
        reason = each.reason
        if each.changes is not None:
            changed = ", ".join(change.what for change in each.changes)
            reason += "; " + (f"changed since its start: {changed}" if changed else _UNCHANGED)
        hashes = ("-" if value is None else str(value) for value in (each.stored, each.target))
        names = (name or "-" for name in (each.namespace, each.pod, each.name))
        rows.append((*names, *hashes, each.outcome.value, reason))
    return "\n".join([*columns([_HEADINGS, *rows] if rows else []), summary(report), *report.notes])


def draw(reports: Sequence[Report], path: str) -> None:
    """Draw one bar per node, split by outcome, into a file. Its extension is the format (png, svg, pdf).

    Many nodes get narrower bars, because few programs show pictures of more than 16384 pixels.
    Raises ImportError without matplotlib (the extra `plot`), OSError, and ValueError for an unknown format.
    """
    from matplotlib.figure import Figure  # noqa: PLC0415 - an extra, and slow to import

    bar = min(0.4, 160 / max(1, len(reports)))  # inches, of 100 pixels and 72 points
    figure = Figure(figsize=(8, 1.2 + bar * max(1, len(reports))), layout="constrained")
    axes = figure.add_subplot()
    axes.tick_params(axis="y", labelsize=min(10, 60 * bar))
    names = [(report.node or "this node") + (" (no report)" if report.failed else "") for report in reports]
    left = [0] * len(reports)
    colours = {Outcome.KEEP: "tab:green", Outcome.RESTART: "tab:red", Outcome.UNKNOWN: "tab:gray"}
    for outcome, colour in colours.items():
        counts = [report.totals[outcome] for report in reports]
        axes.barh(names, counts, left=left, color=colour, label=outcome.value)
        left = [a + b for a, b in zip(left, counts, strict=True)]
    axes.invert_yaxis()
    axes.set_xlabel("containers")
    axes.set_title(f"Upgrade of kubelet to {reports[0].to_version}" if reports else "Upgrade of kubelet")
    axes.locator_params(axis="x", integer=True)
    figure.legend(loc="outside right upper")
    figure.savefig(path)
