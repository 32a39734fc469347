"""How the user sees runs: the interfaces that displays implement, and functions by which all of them count and compare.

`text`, `table` and `jsonlines` each have a Display.
"""

import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from crrd.core.rollout.overview import RUNNING, RunStatus
from crrd.core.rollout.phases import Stage
from crrd.core.rollout.plan import Plan
from crrd.core.rollout.preview import Preview
from crrd.core.rollout.rows import Row, count_done, tally
from crrd.core.rollout.run import Run
from crrd.core.rollout.waits import Wait

REMIND_SECONDS = 30.0  # Interval of reminders while a wait lasts
FILES_NOT_REFRESHED = "restarted containers can read a file that is up to a minute old, because pods cannot be patched"
"""kubelet refreshes the files of a pod at once after a patch of the pod's annotation."""


class RunDisplay(ABC):
    """Shows one run while it is carried out."""

    @abstractmethod
    def show(self, plan: Plan) -> None:
        """Show the current state."""

    @abstractmethod
    def print_line(self, message: str, details: Sequence[str] = ()) -> None:
        """Print another message, and lines that explain it."""

    @abstractmethod
    def files_refreshed(self, problem: str, *, lacks_right: bool) -> None:
        """Handle that the files of a pod are being refreshed before its restart, or why they are not ("" if they are).

        `lacks_right` means that the right to patch pods is missing.
        """

    @abstractmethod
    async def ask(self, question: str) -> bool:
        """Ask the user, and return whether the answer was yes. False if nobody can answer."""


class Display(RunDisplay):
    """Shows a run from its begin to its end, or prints one page.

    `access_flags` are those that select the cluster: every command in its output has them. `context` is the name of the
    kubeconfig's context, "" for none.
    """

    def __init__(self, access_flags: str = "", context: str = "") -> None:
        self.access_flags, self.context = access_flags, context
        self._has_warned_of_files = False

    def files_refreshed(self, problem: str, *, lacks_right: bool) -> None:
        """See RunDisplay. The user is warned once."""
        if problem and not self._has_warned_of_files:
            self._has_warned_of_files = True
            remedy = "; to allow it, bind the ClusterRole crrd-read-config" if lacks_right else ""
            self.print_line(f"{FILES_NOT_REFRESHED}: {problem}{remedy}")

    @abstractmethod
    def begin(self, run: Run, message: str) -> None:
        """Show what will be done or continued."""

    @abstractmethod
    def end(self, outcome: str, message: str) -> None:
        """Show how the run ended: one word for programs, and a sentence for people."""

    @abstractmethod
    def print_status(self, status: RunStatus, plan: Plan, resume: str) -> None:
        """Print the state of a run, and the command that continues it ("" if none is needed)."""

    @abstractmethod
    def print_runs(self, runs: Sequence[RunStatus]) -> None:
        """Print a list of runs."""

    @abstractmethod
    def print_preview(self, target: str, preview: Preview, refused: Mapping[str, str], *, of_several: bool) -> None:
        """Print what a dry run found: the batches, skipped pods, and why requests of pods would be rejected."""

    def about(self, target: str) -> None:
        """Begin what a dry run says about a target."""

    def close(self) -> None:
        """Print what was kept for the end of the command."""


class Changes:
    """Tells what has changed between the plans of one run, and how long this process has seen it."""

    def __init__(self) -> None:
        self._began = self._reminded_at = time.monotonic()
        self._waiting = ""  # Why the last plan made no progress
        self._shown: dict[str, tuple[Stage, str]] = {}  # By pod (UID): its stage and wait in the last plan
        self._since: dict[str, float] = {}  # By pod (UID): when this process first saw it in progress

    @property
    def passed(self) -> float:
        """Seconds since the begin."""
        return time.monotonic() - self._began

    def rows(self, plan: Plan) -> list[Row]:
        """Return the pods whose stage or wait has changed, except those that have not begun."""
        changed = []
        for row in plan.rows:
            if row.stage.under_way:
                self._since.setdefault(row.uid, time.monotonic())
            if row.stage is Stage.REQUESTED and row.request is None:
                continue  # shown once its request exists
            tells_why = row.stage in (Stage.PUT_OFF, Stage.RECREATING, Stage.SKIPPED, Stage.FAILED)
            why = row.wait.topic or (row.wait.why if tells_why else "")
            stage, why_before = self._shown.get(row.uid, (None, ""))
            self._shown[row.uid] = (row.stage, why)
            if row.stage is not Stage.WAITING and (row.stage is not stage or (why and why != why_before)):
                changed.append(row)
        return changed

    def has_new_wait(self, plan: Plan) -> bool:
        """Whether there is no progress, for another reason than before."""
        before, self._waiting = self._waiting, plan.wait.why
        return self._waiting not in ("", before)

    def reminders(self, plan: Plan) -> list[str]:
        """Return what is still waited for, every REMIND_SECONDS: cause, pods, and the command that shows more."""
        if time.monotonic() < self._reminded_at + REMIND_SECONDS:
            return []
        self._reminded_at = time.monotonic()
        if plan.wait.why:
            waiting = [row for row in plan.rows if row.stage is Stage.WAITING]
            pods = [row.pod for row in waiting if row.wait.command == plan.wait.command]
            more = f" and {len(pods) - 1} more pods" if len(pods) > 1 else ""
            return [": ".join([*(f"{pod}{more}" for pod in pods[:1]), *plan.waits])]
        slow = [row for row in plan.rows if row.stage.under_way and (self.seconds(row) or 0) >= REMIND_SECONDS]
        waits = [(row, Wait(row.wait.why or row.stage.value, row.wait.command or _explain(row))) for row in slow]
        return [f"{row.pod} {wait.with_command}" for row, wait in waits]

    def seconds(self, row: Row) -> float | None:
        """Return how long this process has seen the pod in progress, or None if it has not."""
        since = self._since.get(row.uid)
        return None if since is None else time.monotonic() - since


def old_ids(row: Row) -> dict[str, str]:
    """Return, by container, the ID of the instance that admission recorded in the request, if it had one."""
    containers = row.request.request.containers if row.request is not None else ()
    return {each.name: each.context.container_id for each in containers if each.context is not None}


def new_ids(row: Row) -> dict[str, str]:
    """Return, by container, the ID of the next instance, if there is one."""
    old, there = old_ids(row), row.member.pod.containers if row.member is not None else {}
    names = (each.name for each in row.request.request.containers) if row.request is not None else ()
    now = {name: there[name].container_id for name in names if name in there}
    return {name: container_id for name, container_id in now.items() if container_id not in ("", old.get(name))}


def summary(rows: tuple[Row, ...]) -> str:
    """Return a sentence with the number of pods in each state."""
    counts = tally(rows)
    reloads = any(row.request is not None and row.request.request.reloads for row in rows)
    parts = [f"{counts[Stage.DONE]} of {count_done(rows)[1]} pods {'reloaded' if reloads else 'recreated'}"]
    names = {Stage.FAILED: "failed", Stage.PUT_OFF: "put off", Stage.SKIPPED: "skipped", Stage.GONE: "deleted"}
    parts += [f"{counts[stage]} {name}" for stage, name in names.items() if counts[stage]]
    under_way = sum(1 for row in rows if row.stage.under_way)
    return ", ".join(parts + [f"{under_way} in progress"] * bool(under_way))


def failures(rows: tuple[Row, ...]) -> str:
    """Return the failed pods, each with the reason, or ""."""
    return "; ".join(f"{row.pod}: {row.wait.why}" for row in rows if row.stage is Stage.FAILED)


def pods_by_reason(preview: Preview, stage: Stage) -> dict[str, list[str]]:
    """Return the pods that are put off, or skipped, by reason."""
    found: dict[str, list[str]] = {}
    for row in preview.plan.rows:
        if row.stage is stage:
            found.setdefault(row.wait.with_command, []).append(row.pod)
    return found


def _explain(row: Row) -> str:
    return f"crrd explain {row.request.request.key}" if row.request is not None else ""


def state_of(status: RunStatus) -> str:
    """Return the state of a run as text."""
    if status.word != RUNNING:
        return status.word
    return "running here" if status.host == socket.gethostname() else f"running elsewhere ({status.host})"
