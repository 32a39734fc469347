"""What is printed once: how a run stands, which runs there are, and a dry run's batches; as text or as JSON."""

import json
from typing import Any

from crrd.core.rollout.plan import Plan
from crrd.core.rollout.preview import Preview
from crrd.core.rollout.run import Run
from crrd.core.rollout.standing import Row
from crrd.core.rollout.state import RunRequest
from crrd.lib.plain import plain
from crrd.rollout.lines import row_shape, summary


def status_page(run: Run, found: Plan, *, as_json: bool) -> str:
    """How a run stands."""
    state = found.end.value if found.end is not None else found.waiting or "goes on"
    shapes = [row_shape(row) for row in found.rows]
    if as_json:
        return _json({"run": run.name, "target": run.target.words, "state": state, "pods": shapes})
    reason = f"; {run.options.reason}" if run.options.reason else ""
    lines = [
        f"run {run.name}: {', '.join(run.options.containers)} of {run.target.words}, since {run.started}{reason}",
        f"{state}: {summary(found.rows)}",
        *_columns([("POD", "NODE", "PHASE", ""), *(_cells(row) for row in found.rows)]),
    ]
    return "\n".join(map(plain, lines))


def runs_page(runs: list[tuple[Run, list[RunRequest]]], *, as_json: bool) -> str:
    """Which runs there are."""
    head = ("RUN", "TARGET", "STARTED", "SUCCEEDED", "REQUESTS")
    listed = [
        (run.name, run.target.words, run.started, str(sum(each.succeeded for each in requests)), str(len(requests)))
        for run, requests in runs
    ]
    if as_json:
        return _json([{key.lower(): cell for key, cell in zip(head, line, strict=True)} for line in listed])
    return "\n".join(map(plain, _columns([head, *listed]))) if listed else "no runs"


def preview_page(found: Preview, *, as_json: bool) -> str:
    """The batches of a dry run, and what is left out."""
    skipped: dict[str, list[str]] = {}
    for row in found.first.rows:
        if row.skip is not None:
            skipped.setdefault(row.why, []).append(row.pod)
    if as_json:
        batches = [[_shape(row) for row in batch] for batch in found.batches]
        return _json({"batches": batches, "asksAfter": found.asks_after, "stopped": found.stopped, "skipped": skipped})
    lines = []
    for number, batch in enumerate(found.batches, start=1):
        lines.append(f"batch {number}: " + ", ".join(f"{row.pod} ({row.node})" for row in batch))
        if number == found.asks_after:
            lines.append("then asks whether to go on")
    if found.stopped:
        lines.append(f"then waits: {found.stopped}")
    lines += [f"skipped, {why}: {', '.join(pods)}" for why, pods in skipped.items()]
    return "\n".join(map(plain, lines or ["nothing is left to begin"]))


def _shape(row: Row) -> dict[str, Any]:
    return {"pod": row.pod, "node": row.node, "containers": list(row.containers)}


def _cells(row: Row) -> tuple[str, ...]:
    return row.pod, row.node, row.stage.value, row.why


def _columns(lines: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(line[at]) for line in lines) for at in range(len(lines[0]))]
    padded = ([cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in lines)
    return ["   ".join(cells).rstrip() for cells in padded]


def _json(shape: object) -> str:
    return json.dumps(shape, indent=2)
