"""Reports as people and programs read them: a table, JSON, YAML, and a picture with a bar per node."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from crrd.core.api.pod import ContainerKind
from crrd.forecast.report import Change, Forecast, Outcome, Report
from crrd.lib.jsonfields import text

FORMATS = ("table", "json", "yaml")
_HEADINGS = ("NAMESPACE", "POD", "CONTAINER", "STORED", "EXPECTED", "OUTCOME", "REASON")


def shape(report: Report) -> dict[str, Any]:
    """The report as JSON has it."""
    return {
        "node": report.node,
        "from": report.from_version,
        "to": report.to_version,
        "totals": {outcome.value: count for outcome, count in report.totals.items()},
        "differingNow": report.differing_now,
        "notes": list(report.notes),
        "failed": report.failed,
        "containers": [
            {
                "namespace": each.namespace,
                "pod": each.pod,
                "container": each.name,
                "id": each.id,
                "kind": each.kind.value,
                "storedHash": each.stored,
                "targetHash": each.target,
                "outcome": each.outcome.value,
                "reason": each.reason,
                "differsNow": each.differs_now,
                "changedSinceStart": None
                if each.changes is None
                else [{"what": change.what, "restart": change.restart} for change in each.changes],
            }
            for each in report.containers
        ],
    }


def report_from(body: Mapping[str, Any]) -> Report:
    """The report whose `shape` this is; one that failed where it is none, since a daemon may be of another version."""
    try:
        containers = tuple(
            Forecast(
                namespace=str(each["namespace"]),
                pod=str(each["pod"]),
                name=str(each["container"]),
                id=str(each["id"]),
                kind=ContainerKind(each["kind"]),
                stored=each["storedHash"],
                target=each["targetHash"],
                outcome=Outcome(each["outcome"]),
                reason=str(each["reason"]),
                differs_now=each["differsNow"] is True,
                changes=_changes(each.get("changedSinceStart")),
            )
            for each in body["containers"]
        )
        notes = tuple(map(str, body["notes"]))
        return Report(str(body["from"]), str(body["to"]), containers, str(body["node"]), notes, body["failed"] is True)
    except (KeyError, TypeError, ValueError):
        return Report("", "", (), text(body.get("node"))).failing("its daemon's answer cannot be read")


def _changes(found: Any) -> tuple[Change, ...] | None:
    """What `shape` made of them; None also for a daemon that does not know them."""
    if found is None:
        return None
    return tuple(Change(str(each["what"]), each["restart"] is True) for each in found)


def render(reports: Sequence[Report], output: str, *, several: bool = False) -> str:
    """The reports as text in one of FORMATS; `several` makes json and yaml a list, else they are the one report."""
    if output == "table":
        return "\n\n".join(_table(report) for report in reports) or "the API lists no nodes"
    shapes: Any = [shape(report) for report in reports]
    if not several:
        (shapes,) = shapes
    if output == "json":
        return json.dumps(shapes, indent=2, ensure_ascii=False)
    import yaml  # noqa: PLC0415 - the rest of this package needs the standard library alone

    return yaml.safe_dump(shapes, sort_keys=False, allow_unicode=True, width=10_000).rstrip("\n")


def summary(report: Report) -> str:
    """One line: versions and totals."""
    totals = ", ".join(f"{count} {outcome.value}" for outcome, count in report.totals.items())
    where = f"node {report.node}: " if report.node else ""
    if report.failed:
        return f"{where}no report"
    return f"{where}{totals} (kubelet {report.from_version} to {report.to_version})"


def _table(report: Report) -> str:
    rows = [
        (
            each.namespace or "-",
            each.pod or "-",
            each.name or "-",
            _number(each.stored),
            _number(each.target),
            each.outcome.value,
            "; ".join([each.reason, *_told(each.changes)]),
        )
        for each in report.containers
    ]
    return "\n".join([*_columns([_HEADINGS, *rows] if rows else []), summary(report), *report.notes])


def _told(changes: Sequence[Change] | None) -> list[str]:
    """What a table says of the changes since a container's start."""
    if changes is None:
        return []
    if not changes:
        return ["the spec means what it was started with"]
    return [f"changed since its start: {', '.join(change.what for change in changes)}"]


def _number(value: int | None) -> str:
    return "-" if value is None else str(value)


def _columns(rows: Sequence[Sequence[str]]) -> Iterable[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def draw(reports: Sequence[Report], path: str) -> None:
    """Draw a bar per node, split by outcome, into a file; its ending says the format (png, svg, pdf).

    Many nodes get narrower bars: few programs show pictures of more than 16384 pixels.
    Raises ImportError without matplotlib (the extra `plot`), OSError, and ValueError for an unknown format.
    """
    from matplotlib.figure import Figure  # noqa: PLC0415 - an extra, and slow to import

    bar = min(0.4, 160 / max(1, len(reports)))  # inches, of 100 pixels and 72 points
    figure = Figure(figsize=(8, 1.2 + bar * max(1, len(reports))), layout="constrained")
    axes = figure.add_subplot()
    axes.tick_params(axis="y", labelsize=min(10, 60 * bar))
    names = [(report.node or "this node") + (" (no report)" if report.failed else "") for report in reports]
    left = [0] * len(reports)
    colours = {Outcome.KEEP: "tab:green", Outcome.REBUILD: "tab:red", Outcome.UNKNOWN: "tab:gray"}
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
