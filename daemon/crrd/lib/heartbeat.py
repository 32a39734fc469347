"""How a loop shows that it goes on: it says how long its next step may take, or what it waits for, and a page looks.

Nothing here wakes anybody up: a loop that has nothing to do sleeps on, and is alive by definition. What follows from a
loop that hangs is the reader's concern (`lib.health`, and kubelet's liveness probe behind it).
"""

import asyncio
from typing import Protocol

LATE_SECONDS = 30.0  # By how much a loop may be later than it said before it counts as hanging
PATIENCE_SECONDS = 15.0  # For how long what a loop waits for may have come before the loop counts as hanging


class Sign(Protocol):
    """One sign of life, or several behind one."""

    def check(self) -> str:
        """What is late, "" for nothing."""
        ...


class Heartbeat:
    """One loop's word. Before the first one, and after `rest`, nothing is expected of it."""

    def __init__(self) -> None:
        self._doing = ""
        self._due: float | None = None
        self._awaited: asyncio.Event | None = None
        self._came: float | None = None

    def within(self, seconds: float, doing: str) -> None:
        """The next word comes within this time, at the worst."""
        self._doing, self._awaited = doing, None
        self._due = asyncio.get_running_loop().time() + seconds

    def until(self, event: asyncio.Event, doing: str) -> None:
        """The next word comes soon after the event was set, however long that takes."""
        self._doing, self._due = doing, None
        self._awaited, self._came = event, None

    def rest(self) -> None:
        """The loop does not run now."""
        self._due = self._awaited = None

    def check(self) -> str:
        """What is late, "" for nothing. Of an event it takes two looks to tell, the first of which sees it set."""
        now = asyncio.get_running_loop().time()
        late, patience = 0.0, 0.0
        if self._awaited is not None:
            if not self._awaited.is_set():
                self._came = None
                return ""
            self._came = now if self._came is None else self._came
            late, patience = now - self._came, PATIENCE_SECONDS
        elif self._due is not None:
            late = now - self._due
        return f"hangs: {self._doing}, {late:.0f}s longer than expected" if late > patience else ""
