"""What the user sees of runs: the Display that all ways of showing share, and what each of them counts and compares."""

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
from crrd.core.rollout.standing import Row, Stage, progress, tally
from crrd.core.rollout.waits import Wait
from crrd.lib.plain import columns, plain

REMIND_SECONDS = 30.0  # How often a wait that lasts is shown again


class Changes:
    """What is different from one plan to the next, and for how long each pod has been under way."""

    def __init__(self) -> None:
        self._stages: dict[str, tuple[Stage, str]] = {}
        self._since: dict[str, float] = {}
        self._waiting = ""
        self._shown_at = time.monotonic()

    def rows(self, plan: Plan) -> list[Row]:
        """Pods that stand elsewhere than before, or wait for something else; those that have not begun are left out."""
        changed = []
        for row in plan.rows:
            if row.stage.under_way:
                self._since.setdefault(row.uid, time.monotonic())
            why = row.why if row.stage in (Stage.RECREATING, Stage.SKIPPED, Stage.FAILED) else ""
            why = row.topic or why
            before = self._stages.get(row.uid)
            self._stages[row.uid] = (row.stage, why)
            same = before is not None and before[0] is row.stage
            if row.stage is not Stage.WAITING and (not same or (why and before != (row.stage, why))):
                changed.append(row)
        return changed

    def waiting(self, plan: Plan) -> str:
        """What is waited for, where that is something else than before."""
        before, self._waiting = self._waiting, plan.waiting
        return plan.waiting if plan.waiting != before else ""

    def overdue(self, plan: Plan) -> list[str]:
        """What is still waited for, every REMIND_SECONDS: the cause, the pods, and the command that shows more."""
        if time.monotonic() < self._shown_at + REMIND_SECONDS:
            return []
        self._shown_at = time.monotonic()
        if plan.waiting:
            pods = [row.pod for row in plan.rows if row.stage is Stage.WAITING and row.command == plan.command]
            more = f" and {len(pods) - 1} more pods" if len(pods) > 1 else ""
            return [": ".join([*(f"{pod}{more}" for pod in pods[:1]), *plan.waits])]
        slow = [row for row in plan.rows if row.stage.under_way and (self.seconds(row) or 0) >= REMIND_SECONDS]
        waits = [(row, Wait(row.why or row.stage.value, row.command or _explain(row))) for row in slow]
        return [f"{row.pod} {wait.with_command}" for row, wait in waits]

    def seconds(self, row: Row) -> float | None:
        """For how long a pod has been under way as far as this process has seen; None where it was not."""
        since = self._since.get(row.uid)
        return None if since is None else time.monotonic() - since


class Display:
    """Shows a run: `begin`, then `show` for every plan, then `end`; or prints one page.

    This one is for people without a terminal: a line for every change, and pages as text.
    """

    def __init__(self) -> None:
        self._changes = Changes()
        self._began = time.monotonic()

    def begin(self, run: Run, message: str) -> None:
        """What is about to be done, or gone on with."""
        self._changes, self._began = Changes(), time.monotonic()
        self.print_line(f"run {run.name}: {message}")

    def print_line(self, message: str) -> None:
        """Something else."""
        print(plain(message))
        sys.stdout.flush()

    def show(self, plan: Plan) -> None:
        """How things stand now."""
        passed = f"{time.monotonic() - self._began:7.1f} s"
        done, total = progress(plan.rows)
        for row in self._changes.rows(plan):
            parts = [passed, row.pod, *filter(None, [row.node]), row.stage.value]
            seconds = self._changes.seconds(row)
            if row.stage is Stage.DONE and seconds is not None:
                old = old_ids(row)
                parts += [f"{Pin(old[name]).short} -> {Pin(new).short}" for name, new in new_ids(row).items()]
                parts += [f"in {seconds:.1f} s", f"({done} of {total})"]
            elif row.why:
                parts.append(f"- {row.with_command}")
            self.print_line("  ".join(parts))
        if waiting := self._changes.waiting(plan):
            self.print_line(f"{passed}  waiting: {Wait(waiting, plan.command).with_command}")
        for each in self._changes.overdue(plan):
            self.print_line(f"{passed}  still waiting: {each}")

    async def ask(self, question: str) -> bool:
        """Whether somebody has said yes; False where nobody is there to be asked."""
        if sys.stdin is None or not sys.stdin.isatty() or not sys.stdout.isatty():
            return False
        self.print_line(f"{question}. Continue? [y/N]")
        loop = asyncio.get_running_loop()
        line: asyncio.Future[str] = loop.create_future()

        def typed() -> None:
            if not line.done():
                line.set_result(sys.stdin.readline())

        loop.add_reader(sys.stdin.fileno(), typed)
        try:
            return (await line).strip().lower() in ("y", "yes")
        finally:
            loop.remove_reader(sys.stdin.fileno())

    def end(self, outcome: str, message: str) -> None:
        """How it has ended: one word for machines, a sentence for people."""
        self.print_line(f"{outcome}: {message} (after {format_duration(time.monotonic() - self._began)})")

    def print_status(self, status: RunStatus, plan: Plan, resume: str) -> None:
        """How a run stands, and how to go on with it; "" where nobody has to."""
        run = status.run
        reason = f"; {run.options.reason}" if run.options.reason else ""
        containers = ", ".join(run.options.containers) or "stale containers"
        rows = [(row.pod, row.node, row.stage.value, row.why) for row in plan.rows]
        _print(
            f"run {run.name}: {containers} of {run.target.words}, since {run.started}{reason}",
            f"{state_of(status)}: {summary(plan.rows)}; last activity {format_duration(status.idle)} ago",
            *([f"waits for: {status.waits}"] if status.waits else []),
            *([f"to continue: {resume}"] if resume else []),
            *columns([("POD", "NODE", "PHASE", ""), *rows], gap=3),
        )

    def print_runs(self, runs: Sequence[RunStatus]) -> None:
        """Which runs there are."""
        head = ("RUN", "TARGET", "STATE", "DONE", "STARTED", "LAST ACTIVITY", "WAITS FOR")
        rows = [
            (
                *(each.run.name, each.run.target.words, state_of(each), f"{each.done}/{each.total}", each.run.started),
                *(f"{format_duration(each.idle)} ago", each.waits),
            )
            for each in runs
        ]
        _print(*(columns([head, *rows], gap=3) if rows else ["no runs"]))

    def print_preview(self, target: str, preview: Preview, refused: Mapping[str, str]) -> None:
        """The batches of a dry run, what is left out, and why pods' requests are refused."""
        lines = stale_table(preview)
        batches = [", ".join(f"{row.pod} ({row.node})" for row in each) for each in (*preview.batches, *preview.later)]
        numbered = [f"batch {number}: {pods}" for number, pods in enumerate(batches, start=1)]
        now = len(preview.batches)
        asks = ["then asks whether to continue"] if preview.asks_after else []
        lines += [*numbered[: preview.asks_after], *asks, *numbered[preview.asks_after : now]]
        if preview.stopped:
            lines.append(f"then waits: {Wait(preview.stopped, preview.command).with_command}")
        lines += numbered[now:]
        lines += [f"{pod}: the API server would reject the request: {why}" for pod, why in refused.items()]
        lines += [f"skipped: {', '.join(pods)} ({why})" for why, pods in skipped_pods(preview).items()]
        lines += [f"warning: {', '.join(pods)}: {warning}" for warning, pods in warned_pods(preview).items()]
        _print(*(lines or ["no pods left to restart"]))


def old_ids(row: Row) -> dict[str, str]:
    """By container: the instance that the request means, as admission saw it."""
    containers = row.request.request.containers if row.request is not None else ()
    return {each.name: each.context.container_id for each in containers if each.context is not None}


def new_ids(row: Row) -> dict[str, str]:
    """By container: the instance that has followed, as far as there is one."""
    if row.member is None:
        return {}
    there = row.member.pod.containers
    return {
        name: there[name].container_id
        for name, old in old_ids(row).items()
        if name in there and there[name].container_id not in ("", old)
    }


def summary(rows: tuple[Row, ...]) -> str:
    """How many pods of what became of them, in words."""
    counts = tally(rows)
    _, total = progress(rows)
    parts = [f"{counts[Stage.DONE]} of {total} pods recreated"]
    names = {Stage.FAILED: "failed", Stage.SKIPPED: "skipped", Stage.GONE: "deleted"}
    parts += [f"{counts[stage]} {name}" for stage, name in names.items() if counts[stage]]
    under_way = sum(1 for row in rows if row.stage.under_way)
    return ", ".join(parts + [f"{under_way} in progress"] * bool(under_way))


def failures(rows: tuple[Row, ...]) -> str:
    """The pods that failed, each with the reason; "" for none."""
    return "; ".join(f"{row.pod}: {row.why}" for row in rows if row.stage is Stage.FAILED)


def skipped_pods(preview: Preview) -> dict[str, list[str]]:
    """The pods that are left out, by reason."""
    skipped: dict[str, list[str]] = {}
    for row in preview.first.rows:
        if row.skip is not None:
            skipped.setdefault(row.why, []).append(row.pod)
    return skipped


def stale_table(preview: Preview) -> list[str]:
    """The stale containers of a dry run, with what has changed; empty for a run that does not look for them."""
    rows = [
        (each.pod, each.container, f"{each.changes[0].reference}  {rfc3339(each.changes[0].at)}", each.started)
        for each in preview.stale
    ]
    return [*columns([("POD", "CONTAINER", "CHANGED", "STARTED"), *rows], gap=3), ""] if rows else []


def warned_pods(preview: Preview) -> dict[str, list[str]]:
    """The pods whose containers may stay down, by the warning."""
    return {STARTUP_FORGOTTEN.format(kubelet=version): list(pods) for version, pods in preview.may_stay_down.items()}


def _explain(row: Row) -> str:
    return f"crrd explain {row.request.request.key}" if row.request is not None else ""


def state_of(status: RunStatus) -> str:
    """How a run stands, in words."""
    if status.state != RUNNING:
        return status.state
    return "running here" if status.host == socket.gethostname() else f"running elsewhere ({status.host})"


def _print(*lines: str) -> None:
    print("\n".join(map(plain, lines)))
