"""The display for programs: one object per event, in JSON one line each, and pages as one document.

A dry run is a page, too: what would be a message of a run is a note in it.

Fields are never removed.
"""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from crrd.core.api.time import rfc3339
from crrd.core.rollout.overview import RunStatus
from crrd.core.rollout.parts import place
from crrd.core.rollout.phases import Stage
from crrd.core.rollout.plan import Plan
from crrd.core.rollout.preview import Preview, Stale
from crrd.core.rollout.rows import Row, tally
from crrd.core.rollout.run import Run
from crrd.kube.resources import REQUESTS
from crrd.lib.formats import Format
from crrd.rollout.display import Changes, Display, new_ids, old_ids, pods_by_reason, state_of

JSON = Format("json")


class JsonLines(Display):
    """`now` returns the API server's time."""

    def __init__(
        self,
        now: Callable[[], datetime],
        access_flags: str = "",
        context: str = "",
        shape: Format = JSON,
        *,
        dry_run: bool = False,
        of_several: bool = False,
    ) -> None:
        super().__init__(access_flags, context)
        self._now, self._format, self._dry_run, self._of_several = now, shape, dry_run, of_several
        self._previews: list[dict[str, Any]] = []  # Of a dry run, one for each target
        self._target, self._notes = "", list[str]()  # What the next preview is about, and the messages before it
        self._batched: list[str] = []  # The pods of all batches
        self._named: set[str] = set()  # Requests whose names were printed
        self._changes = Changes()
        self._run = ""
        self._last: Plan | None = None

    def _line(self, event: str, **fields: Any) -> None:
        shape = {"time": rfc3339(self._now()), "run": self._run, "event": event, **fields}
        names = _requests([fields]) if fields.get("request") not in self._named else []
        self._named.add(fields.get("request", ""))
        print(self._format.render(shape, self.access_flags, names, one_line=True), end="")
        sys.stdout.flush()

    def _page(self, shape: object, names: Iterable[str]) -> None:
        print(self._format.render(shape, self.access_flags, names), end="")

    def begin(self, run: Run, message: str) -> None:
        """See Display."""
        self._changes, self._run = Changes(), run.name
        options = run.options
        aim = {"target": run.target.words, "containers": list(options.containers), "wholePod": options.whole_pod}
        aim["reload"] = options.reload
        self._line("begin", **aim, namespace=run.namespace, context=self.context, message=message)

    def print_line(self, message: str, details: Sequence[str] = ()) -> None:
        """See Display."""
        if self._dry_run:
            self._notes += [message, *details]
        else:
            self._line("message", message=message, details=list(details))

    def show(self, plan: Plan) -> None:
        """See Display."""
        self._last = plan
        for row in self._changes.rows(plan):
            seconds = self._changes.seconds(row)
            self._line("pod", **_pod(row), seconds=None if seconds is None else round(seconds, 1))
        if self._changes.has_new_wait(plan):
            self._line("waiting", message=plan.wait.why, command=plan.wait.command)
        for reminder in self._changes.reminders(plan):
            self._line("waiting", message=reminder)

    async def ask(self, question: str) -> bool:
        """See Display."""
        return False

    def end(self, outcome: str, message: str) -> None:
        """See Display."""
        counts = tally(self._last.rows) if self._last is not None else {}
        self._line("end", outcome=outcome, message=message, pods={stage.value: n for stage, n in counts.items()})

    def print_status(self, status: RunStatus, plan: Plan, resume: str) -> None:
        """See Display."""
        pods = [_pod(row) for row in plan.rows]
        self._page(_run(status) | {"pods": pods}, _requests(pods))

    def print_runs(self, runs: Sequence[RunStatus]) -> None:
        """See Display."""
        self._page([_run(each) for each in runs], [each.run.name for each in runs])

    def print_preview(self, target: str, preview: Preview, refused: Mapping[str, str], *, of_several: bool) -> None:
        """See Display."""
        shape = {
            "target": target,
            "batches": _batches(preview.batches),
            "asksAfter": preview.parts[0] if preview.parts and preview.pause is None else 0,
            "stepsAfter": preview.parts,
            "stepPauseSeconds": preview.pause,
            "judgeSeconds": preview.judge,
            "minReadySeconds": preview.min_ready,
            "stopped": preview.stopped.why,
            "command": preview.stopped.command,
            "later": _batches(preview.later),
            "putOff": pods_by_reason(preview, Stage.PUT_OFF),
            "skipped": pods_by_reason(preview, Stage.SKIPPED),
            "writes": preview.writes,
            "warnings": preview.warnings,
            "stale": [_stale(each) for each in preview.stale],
            "notCovered": list(map(str, preview.unreached)),
            "refused": refused,
            "notes": self._notes,
        }
        self._previews.append(shape)
        self._notes = []
        self._batched += [f"pod/{row.pod}" for batch in (*preview.batches, *preview.later) for row in batch]

    def about(self, target: str) -> None:
        """See Display."""
        if self._notes:  # there is nothing to do for the one before
            self._previews.append({"target": self._target, "batches": [], "notes": self._notes})
        self._target, self._notes = target, []

    def close(self) -> None:
        """See Display. The dry run of several targets is a list, also in YAML."""
        if self._dry_run:
            self.about("")
            self._page(self._previews if self._of_several else self._previews[0], self._batched)


def _requests(shapes: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the names of the requests of pods, as kubectl prints them."""
    return [f"{REQUESTS.full_name}/{each['request']}" for each in shapes if each.get("request")]


def _batches(batches: Sequence[Sequence[Row]]) -> list[list[dict[str, Any]]]:
    return [[{"pod": row.pod, "node": row.node, "containers": row.containers} for row in batch] for batch in batches]


def _stale(each: Stale) -> dict[str, Any]:
    changes = [{"object": str(change.reference), "at": rfc3339(change.at)} for change in each.changes]
    return {"pod": each.pod, "container": each.container, "started": each.started, "changes": changes}


def _run(status: RunStatus) -> dict[str, Any]:
    """Return the fields of a run."""
    step, steps = place(status.run, status.requests)
    return {
        "run": status.run.name,
        "target": status.run.target.words,
        "wholePod": status.run.options.whole_pod,
        "reload": status.run.options.reload,
        "started": status.run.started,
        "succeeded": sum(each.succeeded for each in status.requests),
        "requests": len(status.requests),
        "state": state_of(status),
        "undoneBy": status.undone_by,
        "phase": status.phase.value,
        "done": status.done,
        "total": status.total,
        "lastActivity": rfc3339(status.active_at) if status.active_at is not None else "",
        "step": step,
        "steps": steps,
        "waitsFor": status.waits,
        "pullPods": status.pulls,
    }


def _pod(row: Row) -> dict[str, Any]:
    """Return the fields of a pod of a run."""
    return {
        "pod": row.pod,
        "uid": row.uid,
        "node": row.node,
        "stage": row.stage.value,
        "message": row.wait.why,
        "command": row.wait.command,
        "request": row.request.request.name if row.request is not None else "",
        "old": old_ids(row),
        "new": new_ids(row),
    }
