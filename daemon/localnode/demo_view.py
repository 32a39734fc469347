"""How the demo looks: a live table on a terminal, plain lines anywhere else."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from daemon.core.api.pod import Pod, PodContainer
from daemon.core.api.types import Request

Row = tuple[str, str, str]


def short_id(container: PodContainer) -> str:
    """A container's ID as crictl prints it."""
    return container.container_id.partition("://")[2][:13]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What is shown at one moment."""

    pod: Pod
    request: Request | None

    def container_rows(self) -> list[tuple[str, str, str, str, str]]:
        """Per container: name, short ID, restarts, state, what the request says of it."""
        rows = []
        for name, container in self.pod.containers.items():
            state = "ready" if container.ready else "running" if container.running else "not running"
            if container.waiting_reason:
                state = container.waiting_reason
            said = ""
            if self.request is not None and any(wanted.name == name for wanted in self.request.containers):
                recreate = self.request.status.state(name)
                said = f"{recreate.phase}{', stop sent' if recreate.is_killed else ''}"
            rows.append((name, short_id(container) or "-", str(container.restart_count), state, said))
        return rows

    def line(self) -> str:
        """The snapshot in one line."""
        parts = [
            f"{name} {short} restarts={restarts} {state}{f' [{said}]' if said else ''}"
            for name, short, restarts, state, said in self.container_rows()
        ]
        phase = f"request {self.request.status.phase or 'new'} | " if self.request else ""
        return phase + " | ".join(parts)


class View(Protocol):
    """Shows the demo."""

    def say(self, text: str) -> None:
        """One step of the story."""
        ...

    def show(self, snapshot: Snapshot) -> None:
        """The state of things, when it has changed."""
        ...

    def summary(self, rows: Sequence[Row]) -> None:
        """What changed and what did not."""
        ...


class PlainView:
    """Lines with the time since the start."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._last = ""

    def say(self, text: str) -> None:
        """See View."""
        print(f"{time.monotonic() - self._start:6.2f} s  {text}", flush=True)

    def show(self, snapshot: Snapshot) -> None:
        """See View."""
        line = snapshot.line()
        if line != self._last:
            self._last = line
            self.say(line)

    def summary(self, rows: Sequence[Row]) -> None:
        """See View."""
        print()
        for what, before, after in rows:
            verdict = "same   " if before == after else "new    " if before == "-" else "changed"
            print(f"  {what:20} {verdict}  {after if before in (after, '-') else f'{before} -> {after}'}")
        print(flush=True)
