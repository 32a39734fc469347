"""The demo on a terminal: a table that is redrawn in place, with rich."""

import time
from collections.abc import Sequence

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from daemon.localnode.demo_view import Row, Snapshot

STYLES = {"ready": "green", "not running": "red", "running": "yellow"}


class TerminalView:
    """A story above, a live table below it."""

    def __init__(self) -> None:
        self._console = Console(highlight=False)
        self._start = time.monotonic()
        self._live: Live | None = None
        self._events: list[str] = []
        self._phase = ""

    def say(self, text: str) -> None:
        """See View."""
        self._console.print(f"[dim]{time.monotonic() - self._start:6.2f} s[/]  {text}")

    def show(self, snapshot: Snapshot) -> None:
        """See View."""
        if self._live is None:
            self._live = Live(console=self._console, refresh_per_second=12)
            self._live.start()
        phase = snapshot.request.status.phase.value if snapshot.request else ""
        if snapshot.request and phase != self._phase:
            self._phase = phase
            self.say(f"request is {phase or 'posted'}")
        self._live.update(self._table(snapshot), refresh=True)

    def summary(self, rows: Sequence[Row]) -> None:
        """See View."""
        if self._live is not None:
            self._live.stop()
            self._live = None
        table = Table(title="What changed, and what did not", title_justify="left", expand=False)
        for column in ("", "before", "after", ""):
            table.add_column(column, overflow="fold")
        for what, before, after in rows:
            same = before == after
            verdict = Text("same", "green") if same else Text("new" if before == "-" else "changed", "bold cyan")
            table.add_row(what, before, after, verdict)
        self._console.print(table)

    @staticmethod
    def _table(snapshot: Snapshot) -> Table:
        """The containers, and what the request says of them."""
        title = f"pod {snapshot.pod.name}, UID {snapshot.pod.uid}"
        table = Table(title=title, title_justify="left")
        for column in ("container", "ID", "restarts", "state", "request"):
            table.add_column(column, min_width=8)
        for name, short, restarts, state, said in snapshot.container_rows():
            table.add_row(name, short, restarts, Text(state, STYLES.get(state, "yellow")), Text(said, "cyan"))
        return table
