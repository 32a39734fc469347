"""One key at a time, all keys at once, timers and failures; in virtual time."""

import asyncio
from contextvars import ContextVar
from typing import Any

import pytest
import structlog

from crrd.lib.errors import RuntimeUnavailableError
from crrd.lib.workqueue import QueueState, WorkQueue, progressed

pytestmark = pytest.mark.virtual_time


async def test_serial_within_a_key_parallel_across_keys() -> None:
    running: set[str] = set()
    most = 0

    async def handle(key: str) -> None:
        nonlocal most
        assert key not in running
        running.add(key)
        most = max(most, len(running))
        await asyncio.sleep(1)
        running.discard(key)

    queue = WorkQueue(handle, "node")
    for _ in range(3):
        for key in ("a", "b", "c"):
            queue.wake(key)
        await asyncio.sleep(0.3)
    name, depth, oldest = queue.state()
    assert (name, depth, round(oldest, 3)) == ("node", 3, 0.6)
    await asyncio.sleep(5)
    assert most == 3
    assert queue.state() == QueueState("node", 0, 0.0)


async def test_a_round_has_nothing_of_the_context_of_who_wakes_it() -> None:
    """That may say of itself that its calls are routine, or of no use any more."""
    own: ContextVar[str] = ContextVar("own", default="")
    found: list[str] = []

    async def handler(key: str) -> None:
        found.append(f"{key} {own.get()}".strip())

    async def waker() -> None:
        own.set("of the waker")
        queue.wake("now")
        queue.wake_at("later", asyncio.get_running_loop().time() + 0.01)

    queue = WorkQueue(handler, "test")
    await asyncio.create_task(waker())
    await asyncio.sleep(0.1)
    assert found == ["now", "later"]
    await queue.close()


async def test_wakes_during_the_handler_are_one_more_round() -> None:
    rounds = 0

    async def handle(key: str) -> None:
        nonlocal rounds
        rounds += 1
        await asyncio.sleep(1)

    queue = WorkQueue(handle, "node")
    queue.wake("a")
    await asyncio.sleep(0.5)
    for _ in range(10):
        queue.wake("a")
    await queue.settled()
    assert rounds == 2


async def test_the_earlier_timer_wins_and_a_round_clears_it() -> None:
    times: list[float] = []
    loop = asyncio.get_running_loop()
    start = loop.time()

    async def handle(key: str) -> float | None:
        times.append(round(loop.time() - start, 3))
        return start + 10 if len(times) == 1 else None

    queue = WorkQueue(handle, "node")
    queue.wake_at("a", start + 5)
    queue.wake_at("a", start + 7)
    queue.wake_at("a", start + 3)
    await asyncio.sleep(60)
    assert times == [3, 10]


async def test_a_failure_is_tried_again_with_back_off() -> None:
    times: list[float] = []
    loop = asyncio.get_running_loop()
    start = loop.time()

    async def handle(key: str) -> None:
        times.append(loop.time() - start)
        if len(times) == 1:
            raise RuntimeUnavailableError("the runtime is away")
        if len(times) == 2:
            raise ValueError("a bug")

    queue = WorkQueue(handle, "node")
    queue.wake("a")
    await asyncio.sleep(30)
    assert len(times) == 3
    assert 0.5 <= times[1] <= 0.6
    assert 1.0 <= times[2] - times[1] <= 1.2


async def test_close_ends_handlers_and_timers() -> None:
    rounds = 0

    async def handle(key: str) -> None:
        nonlocal rounds
        rounds += 1
        await asyncio.sleep(100)

    queue = WorkQueue(handle, "node")
    queue.wake("a")
    queue.wake_at("b", asyncio.get_running_loop().time() + 1)
    await asyncio.sleep(0.1)
    await queue.close()
    queue.wake("a")
    await asyncio.sleep(10)
    assert rounds == 1
    assert queue.depth == 0


async def test_a_round_that_makes_progress_has_not_run_long() -> None:
    async def handle(key: str) -> None:
        await asyncio.sleep(10)
        progressed()
        await asyncio.sleep(10)

    queue = WorkQueue(handle, "node")
    began = asyncio.get_running_loop().time()
    queue.wake("a")
    await asyncio.sleep(9)
    queue.wake("b")
    await asyncio.sleep(0.5)
    assert queue.longest is not None
    assert (queue.longest.key, queue.longest.since) == ("a", began)
    await asyncio.sleep(3)
    assert str(queue.longest.key) == "b"
    await queue.settled()
    assert queue.state().depth == 0
    progressed()  # does nothing, because no round runs here


async def test_the_log_lines_of_one_round_have_its_number() -> None:
    lines: list[tuple[str, dict[str, Any]]] = []

    async def handle(key: str) -> None:
        for _ in range(2):
            lines.append((key, structlog.contextvars.get_contextvars()))
            await asyncio.sleep(1)

    queue = WorkQueue(handle, "node")
    queue.wake("a")
    queue.wake("b")
    await queue.settled()
    a, b = ((key, {"controller": "node", "round": number}) for key, number in (("a", 1), ("b", 2)))
    assert lines == [a, b, a, b]
    assert structlog.contextvars.get_contextvars() == {}
