"""The demo's output: its steps, and on a terminal a live table below them, else one line for every change."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from crrd.core.api.pod import Pod, PodContainer
from crrd.core.api.types import Request

Row = tuple[str, str, str]
_STYLES = {"ready": "green", "not running": "red"}


def short_id(container: PodContainer) -> str:
    """Return a container's ID in crictl's short form."""
    return container.container_id.partition("://")[2][:13]


def pod_rows(before: Pod, after: Pod) -> list[Row]:
    """Return the rows of a summary for the containers and the identity of a pod."""

    def container(name: str, pod: Pod) -> str:
        found = pod.containers[name]
        return f"{short_id(found)}, restartCount {found.restart_count}"

    containers = [(f"container {name}", container(name, before), container(name, after)) for name in before.containers]
    return [*containers, ("pod UID", before.uid, after.uid), ("pod IP", before.pod_ip, after.pod_ip)]


def image_rows(name: str, before: Pod, after: Pod) -> list[Row]:
    """Return the rows of a summary for the image of a container."""
    old, new = before.containers[name], after.containers[name]
    return [(f"image of {name}", old.image, new.image), (f"image ID of {name}", old.image_id, new.image_id)]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state at one moment."""

    pod: Pod
    request: Request | None

    def container_rows(self) -> list[tuple[str, str, str, str, str]]:
        """Return for each container its name, short ID, restarts, state, and its phase in the request."""
        rows = []
        for name, container in self.pod.containers.items():
            state = "ready" if container.ready else "running" if container.running else "not running"
            if container.waiting_reason:
                state = container.waiting_reason
            recreate_state = ""
            if self.request is not None and any(wanted.name == name for wanted in self.request.containers):
                recreate = self.request.status.state(name)
                recreate_state = f"{recreate.phase}{', stop sent' if recreate.is_killed else ''}"
            rows.append((name, short_id(container) or "-", str(container.restart_count), state, recreate_state))
        return rows

    @property
    def phase(self) -> str:
        """The request's phase, or "" if there is no request yet."""
        return (self.request.status.phase.value or "posted") if self.request else ""

    def line(self) -> str:
        """Return the snapshot as one line."""
        rows = [(*row[:4], f" [{row[4]}]" if row[4] else "") for row in self.container_rows()]
        parts = [f"{name} {short} restarts={restarts} {state}{note}" for name, short, restarts, state, note in rows]
        return " | ".join([*([f"request {self.phase}"] if self.phase else []), *parts])

    def table(self) -> Table:
        """Return the snapshot as a table."""
        table = Table(title=f"pod {self.pod.name}, UID {self.pod.uid}", title_justify="left")
        for column in ("container", "ID", "restarts", "state", "request"):
            table.add_column(column, min_width=8)
        for name, short, restarts, state, phase in self.container_rows():
            table.add_row(name, short, restarts, Text(state, _STYLES.get(state, "yellow")), Text(phase, "cyan"))
        return table


class View:
    """Prints the demo on standard output."""

    def __init__(self) -> None:
        self._console = Console(highlight=False, soft_wrap=True)
        self._live = Live(console=self._console, refresh_per_second=12)
        self._start = time.monotonic()
        self._last = ""

    def print_line(self, text: str) -> None:
        """Print one step, with the time since the start."""
        self._console.print(Text(f"{time.monotonic() - self._start:6.2f} s ", "dim"), text, markup=False)

    def show(self, snapshot: Snapshot) -> None:
        """Show the state, if it has changed."""
        terminal = self._console.is_terminal
        line = f"request is {snapshot.phase}" if terminal and snapshot.phase else "" if terminal else snapshot.line()
        if line not in ("", self._last):
            self._last = line
            self.print_line(line)
        if terminal:
            self._live.start()
            self._live.update(snapshot.table(), refresh=True)

    def pause(self) -> None:
        """Leave the terminal to another program, until the next state is shown."""
        self._live.stop()

    def summary(self, rows: Sequence[Row]) -> None:
        """Print what changed and what did not."""
        self.pause()
        self._console.print()
        for what, before, after in rows:
            verdict, style = ("same", "green") if before == after else ("new" if before == "-" else "changed", "cyan")
            line = after if before in (after, "-") else f"{before} -> {after}"
            self._console.print(f"  {what:20}", Text(f"{verdict:7}", style), f" {line}", markup=False)
        self._console.print()
