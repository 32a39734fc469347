"""Heartbeats of loops: a loop states how long its next step may take, or which event it waits for; health pages check.

A heartbeat starts no timer: a loop without work sleeps, and counts as alive. `lib.health` reports a loop that hangs,
and kubelet's liveness probe acts on that.
"""

import asyncio
from typing import Protocol

from crrd.lib.looptime import loop_time

LATE_SECONDS = 30.0  # How late a loop may be before it counts as hanging
PATIENCE_SECONDS = 15.0  # How long an event may be set before the loop that waits for it counts as hanging


class Sign(Protocol):
    """One heartbeat, or several behind one interface."""

    def check(self) -> str:
        """Return what is late, "" for nothing."""
        ...


class Heartbeat:
    """The heartbeat of one loop. Before the first call, and after `rest`, nothing is expected of the loop."""

    def __init__(self) -> None:
        self._doing = ""
        self._due: float | None = None
        self._awaited: asyncio.Event | None = None
        self._came: float | None = None

    def within(self, seconds: float, doing: str) -> None:
        """State that the next call comes within this time at the latest. `doing` describes the step."""
        self._doing, self._awaited = doing, None
        self._due = loop_time() + seconds

    def until(self, event: asyncio.Event, doing: str) -> None:
        """State that the next call comes soon after the event is set, however long that takes."""
        self._doing, self._due = doing, None
        self._awaited, self._came = event, None

    def rest(self) -> None:
        """State that the loop does not run now."""
        self._due = self._awaited = None

    def check(self) -> str:
        """Return what is late, "" for nothing. For an event this takes two checks: the first one only sees it set."""
        now = loop_time()
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
