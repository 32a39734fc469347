"""Loops that run beside a body: how they end, how they break, and what the health page says of it."""

import asyncio
from collections.abc import Callable

import pytest

from crrd.lib.errors import ConfigurationError
from crrd.lib.health import Health
from crrd.lib.heartbeat import Heartbeat
from crrd.lib.supervise import Loop, Supervised, configuration_errors_alone, supervise


class Worker:
    """A loop that goes on until it is told to end or to break, and that takes its time to clean up."""

    def __init__(self, name: str = "work") -> None:
        self.name = name
        self.heartbeat = Heartbeat()
        self.runs = asyncio.Event()
        self.over = asyncio.Event()
        self.error: BaseException | None = None
        self.cleaned = False

    async def run(self) -> None:
        self.runs.set()
        try:
            await self.over.wait()
            if self.error is not None:
                raise self.error
        finally:
            for _ in range(5):
                await asyncio.sleep(0)
            self.cleaned = True

    def breaks(self, error: BaseException) -> None:
        self.error = error
        self.over.set()

    @property
    def loop(self) -> Loop:
        return Loop(self.name, self.run, (self.heartbeat,))


def cleaned(*workers: Worker) -> list[bool]:
    return [worker.cleaned for worker in workers]


def check(health: Health, name: str) -> str:
    found = health.live[name]()
    assert isinstance(found, str)
    return found


async def settled(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0)


async def test_loops_end_with_the_body() -> None:
    health, one, other = Health(), Worker("one"), Worker("other")
    async with supervise([one.loop, other.loop], health):
        await one.runs.wait()
        await other.runs.wait()
        assert [check(health, name) for name in ("one", "other")] == ["", ""]
        assert cleaned(one, other) == [False, False]
    assert cleaned(one, other) == [True, True]


async def test_loops_end_with_a_body_that_breaks() -> None:
    one = Worker()

    async def body() -> None:
        async with supervise([one.loop], Health()):
            await one.runs.wait()
            raise LookupError("the body")

    with pytest.raises(BaseExceptionGroup) as caught:
        await body()
    assert caught.group_contains(LookupError, match="the body")
    assert one.cleaned


async def test_a_loop_that_breaks_ends_the_body_and_is_told_until_then() -> None:
    health, one, other = Health(), Worker("one"), Worker("other")
    said: list[str] = []

    async def body() -> None:
        async with supervise([one.loop, other.loop], health):
            await other.runs.wait()
            one.breaks(LookupError("odd"))
            try:
                await asyncio.Event().wait()
            finally:
                said.append(check(health, "one"))

    with pytest.raises(BaseExceptionGroup) as caught:
        await body()
    assert caught.group_contains(LookupError, match="odd")
    assert said == ["the loop failed: LookupError('odd')"]
    assert other.cleaned


async def test_a_matter_of_configuration_comes_alone() -> None:
    one, other = Worker("one"), Worker("other")

    async def body() -> None:
        async with supervise([one.loop, other.loop], Health()):
            await one.runs.wait()
            one.breaks(ConfigurationError("give another"))
            other.breaks(LookupError("odd"))
            await asyncio.Event().wait()

    with pytest.raises(ConfigurationError, match="give another"):
        await body()
    assert other.cleaned


def test_a_matter_of_configuration_is_found_at_any_depth() -> None:
    error = ConfigurationError("give another")
    inner = BaseExceptionGroup("inner", [LookupError("odd"), error])
    with pytest.raises(ConfigurationError) as caught, configuration_errors_alone():
        raise BaseExceptionGroup("outer", [LookupError("odd"), inner])
    assert caught.value is error


async def test_the_end_of_one_loop_waits_for_its_clean_up_and_leaves_the_others() -> None:
    health, one, other = Health(), Worker("one"), Worker("other")
    async with supervise([one.loop, other.loop], health) as running:
        await one.runs.wait()
        await running.end("one")
        assert one.cleaned
        assert not other.cleaned
        assert check(health, "one") == "the loop has stopped"
        assert check(health, "other") == ""
    assert other.cleaned


async def test_the_end_of_a_loop_that_has_ended_is_over_at_once() -> None:
    one = Worker()
    async with supervise([one.loop], Health()) as running:
        one.over.set()
        await settled(lambda: one.cleaned)
        await running.end("work")


async def test_a_loop_that_has_ended_is_named_and_the_rest_goes_on() -> None:
    health, one, other = Health(), Worker("one"), Worker("other")
    async with supervise([one.loop, other.loop], health) as running:
        assert isinstance(running, Supervised)
        one.over.set()
        await settled(lambda: check(health, "one") != "")
        assert check(health, "one") == "the loop has stopped"
        assert check(health, "other") == ""
        assert not other.cleaned


async def test_a_loop_whose_heartbeat_is_late_is_named() -> None:
    health, one = Health(), Worker()
    async with supervise([one.loop], health):
        await one.runs.wait()
        one.heartbeat.within(-1.0, "counting")
        assert check(health, "work").startswith("hangs: counting")
