"""The API server's time from the Date headers of its answers: one server, a clock that is set, two servers."""

import time
from datetime import UTC, datetime
from email.utils import format_datetime

import pytest

from crrd.kube.clock import CONFIRM_SECONDS, ServerClock

BEGAN = 1_000.0
"""Monotonic."""
EPOCH = datetime(2026, 1, 1, tzinfo=UTC).timestamp()


class Servers:
    """API servers whose clocks may be off; every answer takes 10 ms."""

    def __init__(self) -> None:
        self.clock = ServerClock()
        self.steps = 0
        self.at = BEGAN
        self.clock.on_step(self._stepped)

    def _stepped(self) -> None:
        self.steps += 1

    def answer(self, off: float = 0.0, *, after: float = 0.3) -> None:
        """An answer so many seconds after the one before."""
        self.at += after
        said = datetime.fromtimestamp(int(EPOCH + self.at + off), UTC)
        self.clock.observe(format_datetime(said, usegmt=True), self.at - 0.01, self.at)

    @property
    def error(self) -> float:
        """By how much the estimate is ahead of a clock that is not off."""
        return self.clock.now().timestamp() - time.monotonic() - EPOCH


def test_one_server() -> None:
    servers = Servers()
    for _ in range(50):
        servers.answer()
    assert servers.error == pytest.approx(-0.1, abs=0.15), "right, and rather late than early"
    assert servers.steps == 0


@pytest.mark.parametrize("apart", [1.0, 2.5, 4.0, 9.0])
def test_two_servers_cause_no_steps(apart: float) -> None:
    servers = Servers()
    for round_ in range(400):
        servers.answer(apart * (round_ % 2))
        assert -1.1 <= servers.error <= apart + 0.1, "outside of what anybody said"
    assert servers.steps == 0


def test_two_servers_on_both_sides_of_the_estimate() -> None:
    servers = Servers()
    servers.answer()
    for round_ in range(400):
        servers.answer(-4.0 if round_ % 2 else 4.0)
    assert servers.steps == 1, "nobody has agreed with the first one ever since; then one of the two is believed"


@pytest.mark.parametrize("by", [-3600.0, -11.5, 11.5, 3600.0])
def test_a_large_step_is_told_at_once(by: float) -> None:
    servers = Servers()
    servers.answer()
    servers.answer(by)
    assert servers.steps == 1
    assert servers.error == pytest.approx(by, abs=1.1)


@pytest.mark.parametrize("by", [-5.0, 5.0])
def test_a_small_step_is_told_once_it_has_lasted(by: float) -> None:
    servers = Servers()
    servers.answer()
    for _ in range(int(CONFIRM_SECONDS)):
        servers.answer(by, after=1.0)
    assert servers.steps == 0
    assert servers.error == pytest.approx(0.0, abs=1.1)
    servers.answer(by, after=1.0)
    assert servers.steps == 1
    assert servers.error == pytest.approx(by, abs=1.1)
    for _ in range(100):
        servers.answer(by)
    assert servers.steps == 1


def test_an_odd_header_says_nothing() -> None:
    clock = ServerClock()
    for header in ("", "soon", "Thu, 99 Jan 2026 00:00:00 GMT"):
        clock.observe(header, 1.0, 2.0)
    assert abs((clock.now() - datetime.now(UTC)).total_seconds()) < 60
