"""How a run is told where no terminal is: a line for every change, for people or, as JSON, for machines."""

import json
import sys
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any, Protocol

from crrd.core.api.time import rfc3339
from crrd.core.explain.container import format_duration, short
from crrd.core.rollout.plan import Plan
from crrd.core.rollout.run import Run
from crrd.core.rollout.standing import Row, Stage, tally
from crrd.lib.plain import plain


class View(Protocol):
    """Shows a run; `end` comes last."""

    def begin(self, run: Run, words: str) -> None:
        """What is about to be done, or gone on with."""
        ...

    def show(self, current: Plan) -> None:
        """How things stand now."""
        ...

    def end(self, outcome: str, words: str) -> None:
        """How it has ended: one word for machines, a sentence for people."""
        ...

    def say(self, words: str) -> None:
        """Something else."""
        ...


def old_ids(row: Row) -> dict[str, str]:
    """By container: the instance that the request means, as admission saw it."""
    containers = row.request.request.containers if row.request is not None else ()
    return {each.name: each.context.container_id for each in containers if each.context is not None}


def new_ids(row: Row) -> dict[str, str]:
    """By container: the instance that has followed, as far as there is one."""
    if row.member is None:
        return {}
    found = {name: row.member.pod.containers.get(name) for name in row.containers}
    old = old_ids(row)
    return {
        name: each.container_id
        for name, each in found.items()
        if each is not None and name in old and each.container_id not in ("", old[name])
    }


def progress(rows: tuple[Row, ...]) -> tuple[int, int]:
    """How many pods are through, and of how many; those that are left out are none of them."""
    counts = tally(rows)
    left_out = counts[Stage.SKIPPED] + counts[Stage.GONE]
    return counts[Stage.DONE] + counts[Stage.FAILED], len(rows) - left_out


def summary(rows: tuple[Row, ...]) -> str:
    """How many pods of what became of them, in words."""
    counts = tally(rows)
    _, total = progress(rows)
    told = [f"{counts[Stage.DONE]} of {total} pods recreated"]
    names = {Stage.FAILED: "failed", Stage.SKIPPED: "skipped", Stage.GONE: "gone meanwhile"}
    told += [f"{counts[stage]} {word}" for stage, word in names.items() if counts[stage]]
    under_way = sum(1 for row in rows if row.stage.under_way)
    return ", ".join(told + [f"{under_way} under way"] * bool(under_way))


class Changes:
    """What is different from one plan to the next, and for how long each pod has been under way."""

    def __init__(self) -> None:
        self._stages: dict[str, tuple[Stage, str]] = {}
        self._since: dict[str, float] = {}
        self._waiting = ""

    def rows(self, current: Plan) -> list[Row]:
        """Pods that stand elsewhere than before; those that have not begun are told of only when they are left out."""
        found = []
        for row in current.rows:
            if row.stage.under_way:
                self._since.setdefault(row.uid, time.monotonic())
            said = row.why if row.stage in (Stage.RECREATING, Stage.SKIPPED, Stage.FAILED) else ""
            before = self._stages.get(row.uid)
            self._stages[row.uid] = (row.stage, said)
            same = before is not None and before[0] is row.stage
            if row.stage is not Stage.WAITING and (not same or (said and before != (row.stage, said))):
                found.append(row)
        return found

    def waiting(self, current: Plan) -> str:
        """What is waited for, where that is something else than before."""
        before, self._waiting = self._waiting, current.waiting
        return current.waiting if current.waiting != before else ""

    def seconds(self, row: Row) -> float | None:
        """For how long a pod has been under way as far as this process has seen; None where it was not."""
        since = self._since.get(row.uid)
        return None if since is None else time.monotonic() - since


class Lines:
    """For people."""

    def __init__(self, write: Callable[[str], None] = print) -> None:
        self._write = write
        self._changes = Changes()
        self._began = time.monotonic()

    def begin(self, run: Run, words: str) -> None:
        """See View."""
        self.say(f"run {run.name}: {words}")

    def say(self, words: str) -> None:
        """See View."""
        self._write(plain(words))
        sys.stdout.flush()

    def show(self, current: Plan) -> None:
        """See View."""
        done, total = progress(current.rows)
        for row in self._changes.rows(current):
            parts = [f"{time.monotonic() - self._began:7.1f} s", row.pod, *filter(None, [row.node]), row.stage.value]
            ids = [
                f"{short(old)} -> {short(new_ids(row)[name])}"
                for name, old in old_ids(row).items()
                if name in new_ids(row)
            ]
            seconds = self._changes.seconds(row)
            if row.stage is Stage.DONE and seconds is not None:
                parts += [*ids, f"in {seconds:.1f} s", f"({done} of {total})"]
            elif row.why:
                parts.append(f"- {row.why}")
            self.say("  ".join(parts))
        if waiting := self._changes.waiting(current):
            self.say(f"{time.monotonic() - self._began:7.1f} s  waiting: {waiting}")

    def end(self, outcome: str, words: str) -> None:
        """See View."""
        self.say(f"{outcome}: {words} (after {format_duration(time.monotonic() - self._began)})")


class JsonLines:
    """For machines: one object a line; fields are only ever added."""

    def __init__(self, now: Callable[[], datetime], write: Callable[[str], None] = print) -> None:
        self._now, self._write = now, write
        self._changes = Changes()
        self._run = ""
        self._last: Plan | None = None

    def _line(self, event: str, **fields: Any) -> None:
        shape = {"time": rfc3339(self._now()), "run": self._run, "event": event, **fields}
        self._write(json.dumps(shape, separators=(",", ":")))
        sys.stdout.flush()

    def begin(self, run: Run, words: str) -> None:
        """See View."""
        self._run = run.name
        self._line("begin", target=run.target.words, containers=list(run.options.containers), message=words)

    def say(self, words: str) -> None:
        """See View."""
        self._line("message", message=words)

    def show(self, current: Plan) -> None:
        """See View."""
        self._last = current
        for row in self._changes.rows(current):
            self._line("pod", **row_shape(row), seconds=_rounded(self._changes.seconds(row)))
        if waiting := self._changes.waiting(current):
            self._line("waiting", message=waiting)

    def end(self, outcome: str, words: str) -> None:
        """See View."""
        counts = tally(self._last.rows) if self._last is not None else {}
        self._line("end", outcome=outcome, message=words, pods={stage.value: count for stage, count in counts.items()})


def row_shape(row: Row) -> dict[str, Any]:
    """A pod of a run as JSON."""
    return {
        "pod": row.pod,
        "uid": row.uid,
        "node": row.node,
        "stage": row.stage.value,
        "message": row.why,
        "request": row.request.request.name if row.request is not None else "",
        "old": old_ids(row),
        "new": new_ids(row),
    }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 1)
