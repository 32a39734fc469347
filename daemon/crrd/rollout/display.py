"""How the user sees runs: the Display, and functions that all displays use to count and compare."""

import asyncio
import socket
import sys
import time
from collections.abc import Mapping, Sequence

from crrd.core.api.time import format_duration, rfc3339
from crrd.core.api.types import Pin
from crrd.core.recreate.messages import STARTUP_FORGOTTEN
from crrd.core.rollout.overview import RUNNING, RunStatus
from crrd.core.rollout.plan import Plan
from crrd.core.rollout.preview import Preview
from crrd.core.rollout.run import Run
from crrd.core.rollout.standing import Row, Stage, count_done, tally
from crrd.core.rollout.waits import Wait
from crrd.lib.plain import columns, plain

REMIND_SECONDS = 30.0  # Interval of reminders while a wait lasts


class Display:
    """Shows a run: `begin`, then `show` for every plan, then `end`. Or prints one page.

    This class is for output that is not a terminal: one line for every change, and pages as text.
    """

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        """Reset the state for a new run."""
        self._began = self._reminded_at = time.monotonic()
        self._waiting = ""  # Why the last plan made no progress
        self._shown: dict[str, tuple[Stage, str]] = {}  # By pod (UID): its stage and wait in the last plan
        self._since: dict[str, float] = {}  # By pod (UID): when this process first saw it in progress

    def begin(self, run: Run, message: str) -> None:
        """Show what will be done or continued."""
        self._reset()
        self.print_line(f"run {run.name}: {message}")

    def print_line(self, message: str) -> None:
        """Print another message."""
        print(plain(message))
        sys.stdout.flush()

    def show(self, plan: Plan) -> None:
        """Show the current state."""
        passed = f"{time.monotonic() - self._began:7.1f} s"
        done, total = count_done(plan.rows)
        for row in self._changed(plan):
            parts = [passed, row.pod, *filter(None, [row.node]), row.stage.value]
            seconds = self._seconds(row)
            if row.stage is Stage.DONE and seconds is not None:
                old = old_ids(row)
                parts += [f"{Pin(old[name]).short} -> {Pin(new).short}" for name, new in new_ids(row).items()]
                parts += [f"in {seconds:.1f} s", f"({done} of {total})"]
            elif row.wait.why:
                parts.append(f"- {row.wait.with_command}")
            self.print_line("  ".join(parts))
        if self._has_new_wait(plan):
            self.print_line(f"{passed}  waiting: {plan.wait.with_command}")
        for reminder in self._reminders(plan):
            self.print_line(f"{passed}  still waiting: {reminder}")

    def _changed(self, plan: Plan) -> list[Row]:
        """Return the pods whose stage or wait has changed, except those that have not begun."""
        changed = []
        for row in plan.rows:
            if row.stage.under_way:
                self._since.setdefault(row.uid, time.monotonic())
            tells_why = row.stage in (Stage.RECREATING, Stage.SKIPPED, Stage.FAILED)
            why = row.wait.topic or (row.wait.why if tells_why else "")
            stage, why_before = self._shown.get(row.uid, (None, ""))
            self._shown[row.uid] = (row.stage, why)
            if row.stage is not Stage.WAITING and (row.stage is not stage or (why and why != why_before)):
                changed.append(row)
        return changed

    def _has_new_wait(self, plan: Plan) -> bool:
        """Whether there is no progress, for another reason than before."""
        before, self._waiting = self._waiting, plan.wait.why
        return self._waiting not in ("", before)

    def _reminders(self, plan: Plan) -> list[str]:
        """Return what is still waited for, every REMIND_SECONDS: cause, pods, and the command that shows more."""
        if time.monotonic() < self._reminded_at + REMIND_SECONDS:
            return []
        self._reminded_at = time.monotonic()
        if plan.wait.why:
            waiting = [row for row in plan.rows if row.stage is Stage.WAITING]
            pods = [row.pod for row in waiting if row.wait.command == plan.wait.command]
            more = f" and {len(pods) - 1} more pods" if len(pods) > 1 else ""
            return [": ".join([*(f"{pod}{more}" for pod in pods[:1]), *plan.waits])]
        slow = [row for row in plan.rows if row.stage.under_way and (self._seconds(row) or 0) >= REMIND_SECONDS]
        waits = [(row, Wait(row.wait.why or row.stage.value, row.wait.command or _explain(row))) for row in slow]
        return [f"{row.pod} {wait.with_command}" for row, wait in waits]

    def _seconds(self, row: Row) -> float | None:
        """Return how long this process has seen the pod in progress, or None if it has not."""
        since = self._since.get(row.uid)
        return None if since is None else time.monotonic() - since

    async def ask(self, question: str) -> bool:
        """Ask the user, and return whether the answer was yes. False without a terminal."""
        if sys.stdin is None or not sys.stdin.isatty() or not sys.stdout.isatty():
            return False
        self.print_line(f"{question}. Continue? [y/N]")
        loop, typed = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(sys.stdin.fileno(), typed.set)
        try:
            await typed.wait()
        finally:
            loop.remove_reader(sys.stdin.fileno())
        return sys.stdin.readline().strip().lower() in ("y", "yes")

    def end(self, outcome: str, message: str) -> None:
        """Show how the run ended: one word for programs, and a sentence for people."""
        self.print_line(f"{outcome}: {message} (after {format_duration(time.monotonic() - self._began)})")

    def print_status(self, status: RunStatus, plan: Plan, resume: str) -> None:
        """Show the state of a run, and the command that continues it ("" if none is needed)."""
        run = status.run
        reason = f"; {run.options.reason}" if run.options.reason else ""
        rows = [(row.pod, row.node, row.stage.value, row.wait.why) for row in plan.rows]
        _print(
            f"run {run.name}: {run.options.what} of {run.target.words}, since {run.started}{reason}",
            f"{state_of(status)}: {summary(plan.rows)}; last activity {format_duration(status.idle)} ago",
            *([f"waits for: {status.waits}"] if status.waits else []),
            *([f"to continue: {resume}"] if resume else []),
            *columns([("POD", "NODE", "PHASE", ""), *rows], gap=3),
        )

    def print_runs(self, runs: Sequence[RunStatus]) -> None:
        """Show a list of runs."""
        rows = [("RUN", "TARGET", "STATE", "DONE", "STARTED", "LAST ACTIVITY", "WAITS FOR")]
        for each in runs:
            done, active = f"{each.done}/{each.total}", f"{format_duration(each.idle)} ago"
            run = each.run
            rows.append((run.name, run.target.words, state_of(each), done, run.started, active, each.waits))
        _print(*(columns(rows, gap=3) if runs else ["no runs"]))

    def print_preview(self, target: str, preview: Preview, refused: Mapping[str, str]) -> None:
        """Show the batches of a dry run, the pods that are left out, and why requests of pods are rejected."""
        lines = stale_table(preview)
        batches = [", ".join(f"{row.pod} ({row.node})" for row in each) for each in (*preview.batches, *preview.later)]
        numbered = [f"batch {number}: {pods}" for number, pods in enumerate(batches, start=1)]
        now = len(preview.batches)
        asks = ["then asks whether to continue"] if preview.pause_after else []
        lines += [*numbered[: preview.pause_after], *asks, *numbered[preview.pause_after : now]]
        if preview.stopped.why:
            lines.append(f"then waits: {preview.stopped.with_command}")
        lines += numbered[now:]
        lines += [f"{pod}: the API server would reject the request: {why}" for pod, why in refused.items()]
        lines += [f"skipped: {', '.join(pods)} ({why})" for why, pods in skipped_pods(preview).items()]
        lines += [f"warning: {', '.join(pods)}: {warning}" for warning, pods in warned_pods(preview).items()]
        _print(*(lines or ["no pods left to restart"]))


def old_ids(row: Row) -> dict[str, str]:
    """Return, by container, the ID of the instance that admission recorded in the request."""
    containers = row.request.request.containers if row.request is not None else ()
    return {each.name: each.context.container_id for each in containers if each.context is not None}


def new_ids(row: Row) -> dict[str, str]:
    """Return, by container, the ID of the next instance, if there is one."""
    old, there = old_ids(row), row.member.pod.containers if row.member is not None else {}
    now = {name: there[name].container_id for name in old if name in there}
    return {name: container_id for name, container_id in now.items() if container_id not in ("", old[name])}


def summary(rows: tuple[Row, ...]) -> str:
    """Return a sentence with the number of pods in each state."""
    counts = tally(rows)
    parts = [f"{counts[Stage.DONE]} of {count_done(rows)[1]} pods recreated"]
    names = {Stage.FAILED: "failed", Stage.SKIPPED: "skipped", Stage.GONE: "deleted"}
    parts += [f"{counts[stage]} {name}" for stage, name in names.items() if counts[stage]]
    under_way = sum(1 for row in rows if row.stage.under_way)
    return ", ".join(parts + [f"{under_way} in progress"] * bool(under_way))


def failures(rows: tuple[Row, ...]) -> str:
    """Return the failed pods, each with the reason, or ""."""
    return "; ".join(f"{row.pod}: {row.wait.why}" for row in rows if row.stage is Stage.FAILED)


def skipped_pods(preview: Preview) -> dict[str, list[str]]:
    """Return the skipped pods by reason."""
    skipped: dict[str, list[str]] = {}
    for row in preview.plan.rows:
        if row.skip is not None:
            skipped.setdefault(row.wait.why, []).append(row.pod)
    return skipped


def stale_table(preview: Preview) -> list[str]:
    """Return the stale containers of a dry run and their changes. Empty if the run does not look for them."""
    rows = [("POD", "CONTAINER", "CHANGED", "STARTED")]
    for each in preview.stale:
        change = each.changes[0]
        rows.append((each.pod, each.container, f"{change.reference}  {rfc3339(change.at)}", each.started))
    return [*columns(rows, gap=3), ""] if preview.stale else []


def warned_pods(preview: Preview) -> dict[str, list[str]]:
    """Return the pods whose containers may stay down, by warning."""
    return {STARTUP_FORGOTTEN.format(kubelet=version): list(pods) for version, pods in preview.may_stay_down.items()}


def _explain(row: Row) -> str:
    return f"crrd explain {row.request.request.key}" if row.request is not None else ""


def state_of(status: RunStatus) -> str:
    """Return the state of a run as text."""
    if status.state != RUNNING:
        return status.state
    return "running here" if status.host == socket.gethostname() else f"running elsewhere ({status.host})"


def _print(*lines: str) -> None:
    print("\n".join(map(plain, lines)))
