"""The displays for people: what lines and the live table (`table`) have in common, and lines of text."""

import asyncio
import sys
from collections.abc import Mapping, Sequence

from crrd.core.api.time import format_duration, rfc3339
from crrd.core.api.types import Pin
from crrd.core.rollout.overview import RunStatus
from crrd.core.rollout.parts import place
from crrd.core.rollout.phases import End, Stage
from crrd.core.rollout.plan import Plan
from crrd.core.rollout.preview import Preview
from crrd.core.rollout.rows import count_done
from crrd.core.rollout.run import Run
from crrd.lib.plain import columns, plain, with_flags
from crrd.rollout.display import Changes, Display, new_ids, old_ids, pods_by_reason, state_of, summary


class TextDisplay(Display):
    """A display for people. It is complete with `print_line` and `show`."""

    def __init__(self, access_flags: str = "", context: str = "") -> None:
        super().__init__(access_flags, context)
        self._changes = Changes()

    def _plain(self, text: str) -> str:
        """Return a text as it is shown."""
        return plain(with_flags(text, self.access_flags))

    def _print(self, *lines: str) -> None:
        print("\n".join(map(self._plain, lines)))

    def begin(self, run: Run, message: str) -> None:
        """See Display."""
        self._changes = Changes()
        where = f"namespace {run.namespace}" + (f", context {self.context}" if self.context else "")
        self.print_line(f"run {run.name}: {message}; {where}")

    async def ask(self, question: str) -> bool:
        """See Display."""
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
        """See Display."""
        self.print_line(f"{outcome}: {message} (after {format_duration(self._changes.passed)})")

    def print_status(self, status: RunStatus, plan: Plan, resume: str) -> None:
        """See Display."""
        run = status.run
        reason = f"; {run.options.reason}" if run.options.reason else ""
        rows = [(row.pod, row.node, row.stage.value, row.wait.why) for row in plan.rows]
        idle = format_duration(status.idle)
        what = f"{run.options.what} of {run.target.words}" if status.requests else "no pod has a request"
        step, steps = place(run, status.requests)
        self._print(
            f"run {run.name}: {what}, since {run.started}{reason}",
            f"{_state(status)} ({status.phase}): {summary(plan.rows)}; last activity {idle} ago",
            *([f"step {step} of {steps} (--steps {run.steps})"] if steps else []),
            *([f"{'why' if status.end is End.HALTED else 'waits for'}: {status.waits}"] if status.waits else []),
            *([f"to continue: {resume}"] if resume else []),
            *columns([("POD", "NODE", "PHASE", ""), *rows], gap=3),
        )

    def print_runs(self, runs: Sequence[RunStatus]) -> None:
        """See Display."""
        rows = [("RUN", "TARGET", "STATE", "PHASE", "DONE", "STARTED", "LAST ACTIVITY", "WAITS FOR")]
        for each in runs:
            done, active = f"{each.done}/{each.total}", f"{format_duration(each.idle)} ago"
            run = each.run
            rows.append((run.name, run.target.words, _state(each), each.phase, done, run.started, active, each.waits))
        self._print(*(columns(rows, gap=3) if runs else ["no runs"]))

    def print_preview(self, target: str, preview: Preview, refused: Mapping[str, str], *, of_several: bool) -> None:
        """See Display."""
        lines = _stale(preview)
        batches = [", ".join(f"{row.pod} ({row.node})" for row in each) for each in (*preview.batches, *preview.later)]
        numbered = [f"batch {number}: {pods}" for number, pods in enumerate(batches, start=1)]
        now = len(preview.batches)
        for number, line in enumerate(numbered[:now], start=1):
            lines += [line, *([_next_step(preview.pause, preview.judge)] if number in preview.parts else [])]
        if preview.judge and numbered:
            lines.append(f"in the end, judges the pods of the last step for {format_duration(preview.judge)}")
        if preview.min_ready and numbered:
            lines.append(f"each pod must be ready for {preview.min_ready}s before the next batch")
        if preview.stopped.why:
            lines.append(f"then waits: {preview.stopped.with_command}")
        lines += numbered[now:]
        lines += [f"then {each}" for each in preview.writes]
        lines += [f"{pod}: the API server would reject the request: {why}" for pod, why in refused.items()]
        lines += [f"put off: {', '.join(pods)} ({why})" for why, pods in pods_by_reason(preview, Stage.PUT_OFF).items()]
        lines += [f"skipped: {', '.join(pods)} ({why})" for why, pods in pods_by_reason(preview, Stage.SKIPPED).items()]
        lines += [f"warning: {', '.join(pods)}: {warning}" for warning, pods in preview.warnings.items()]
        lines += [f"not covered by --stale: {each}" for each in preview.unreached]
        heading = [f"{target}:"] if of_several else []
        self._print(*heading, *(lines or ["no pods left to restart"]))


class TextLines(TextDisplay):
    """For output that is not a terminal, and for terminals without a live table: one line for every change."""

    def print_line(self, message: str, details: Sequence[str] = ()) -> None:
        """See Display."""
        self._print(message, *(f"  {each}" for each in details))
        sys.stdout.flush()

    def show(self, plan: Plan) -> None:
        """See Display."""
        passed = f"{self._changes.passed:7.1f} s"
        done, total = count_done(plan.rows)
        for row in self._changes.rows(plan):
            parts = [passed, row.pod, *filter(None, [row.node]), row.stage.value]
            seconds = self._changes.seconds(row)
            if row.stage is Stage.DONE and seconds is not None:
                old = {name: f"{Pin(container_id).short} -> " for name, container_id in old_ids(row).items()}
                parts += [f"{old.get(name, '')}{Pin(new).short}" for name, new in new_ids(row).items()]
                parts += [f"in {seconds:.1f} s", f"({done} of {total})"]
            elif row.wait.why:
                parts.append(f"- {row.wait.with_command}")
            self.print_line("  ".join(parts))
        if self._changes.has_new_wait(plan):
            self.print_line(f"{passed}  waiting: {plan.wait.with_command}")
        for reminder in self._changes.reminders(plan):
            self.print_line(f"{passed}  still waiting: {reminder}")


def _next_step(pause: int | None, judge: int) -> str:
    """Return what a run does between two steps."""
    judges = f"judges these pods for {format_duration(judge)}, and " if judge else ""
    if pause is None:
        return f"then {judges}asks whether to continue"
    return f"then {judges}{f'pauses for {format_duration(pause)}' if pause else 'begins the next step'}"


def _stale(preview: Preview) -> list[str]:
    """Return the stale containers of a dry run and their changes. Empty if the run does not look for them."""
    rows = [("POD", "CONTAINER", "CHANGED", "STARTED")]
    for each in preview.stale:
        change = each.changes[0]
        rows.append((each.pod, each.container, f"{change.reference}  {rfc3339(change.at)}", each.started))
    return [*columns(rows, gap=3), ""] if preview.stale else []


def _state(status: RunStatus) -> str:
    """Return the state of a run, and which one undoes it."""
    return f"{state_of(status)}, undone by run {status.undone_by}" if status.undone_by else state_of(status)
