"""Strangers at the status port, which anybody reaches: whoever asks is answered, whatever they do."""

import asyncio
import os
import resource
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from crrd.lib import health as lib_health
from crrd.lib.health import Health, StatusServer, split_address

MOST = 64
Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]
LimitIs = Callable[[str, float], None]


@dataclass
class Door:
    """The port of a daemon, one of whose checks takes until `go_on` is set."""

    port: int
    go_on: asyncio.Event
    streams: list[Stream] = field(default_factory=list)

    async def knock(self) -> Stream:
        """Connect, and say nothing."""
        made = await asyncio.open_connection("127.0.0.1", self.port)
        self.streams.append(made)
        return made

    async def crowd(self, count: int) -> list[Stream]:
        return [await self.knock() for _ in range(count)]

    async def open(self, among: list[Stream], most: int) -> None:
        """Wait until no more than so many of these are open, but all that may be."""
        async with asyncio.timeout(20):
            while sum(not reader.at_eof() and reader.exception() is None for reader, _ in among) > most:
                await asyncio.sleep(0.005)


async def say(stream: Stream, page: str) -> None:
    stream[1].write(f"GET {page} HTTP/1.1\r\nHost: crrd\r\n\r\n".encode())
    await stream[1].drain()


async def hear(stream: Stream) -> int:
    """The status of an answer; the connection is as before."""
    async with asyncio.timeout(20):
        head = (await stream[0].readuntil(b"\r\n\r\n")).decode().lower()
        await stream[0].readexactly(int(head.partition("content-length: ")[2].split()[0]))
    return int(head.split()[1])


async def ask(stream: Stream, page: str = "/healthz") -> int:
    await say(stream, page)
    return await hear(stream)


Open = Callable[[], Awaitable[Door]]


@pytest.fixture
async def opened() -> AsyncIterator[Open]:
    made: list[tuple[StatusServer, Door]] = []

    async def start() -> Door:
        health, go_on = Health(), asyncio.Event()

        async def slow() -> str:
            await go_on.wait()
            return ""

        health.ready["slow"] = slow
        server = StatusServer("127.0.0.1:0", health.routes())
        door = Door(split_address(await server.start())[1], go_on)
        made.append((server, door))
        return door

    yield start
    for server, door in made:
        door.go_on.set()
        for _, writer in door.streams:
            writer.transport.abort()
        await server.stop()


@pytest.fixture
def limit_is(monkeypatch: pytest.MonkeyPatch) -> LimitIs:
    return lambda name, value: monkeypatch.setattr(lib_health, name, value, raising=False)


async def test_whoever_says_nothing_makes_room(opened: Open, limit_is: LimitIs) -> None:
    limit_is("HEAD_SECONDS", 600.0)  # long enough for nobody to be closed for his silence
    door = await opened()
    strangers = await door.crowd(5 * MOST)
    assert await ask(await door.knock()) == 200
    await door.open(strangers, MOST - 1)


async def test_nobody_is_closed_while_being_answered(opened: Open) -> None:
    door = await opened()
    slow = await door.knock()
    await say(slow, "/readyz")
    strangers = await door.crowd(3 * MOST)
    await door.open(strangers, MOST - 1)
    door.go_on.set()
    assert await hear(slow) == 200


async def test_who_is_answered_for_long_makes_room_too(opened: Open, limit_is: LimitIs) -> None:
    limit_is("ANSWER_SECONDS", 0.2)
    door = await opened()
    for stranger in await door.crowd(MOST):
        await say(stranger, "/readyz")
    assert await ask(await door.knock()) == 200


@pytest.mark.parametrize(("page", "status"), [("/healthz", 200), ("/nowhere", 404)])
async def test_whoever_was_answered_makes_room_again(opened: Open, page: str, status: int) -> None:
    door = await opened()
    answered = await door.crowd(MOST)
    for each in answered:
        assert await ask(each, page) == status
    assert await ask(await door.knock()) == 200
    await door.open(answered, MOST - 1)


async def test_what_is_no_http_is_told_so_and_takes_no_place(opened: Open) -> None:
    door = await opened()
    for stranger in await door.crowd(MOST):
        stranger[1].write(b"\x16\x03\x01 hello\r\n\r\n")
        assert await hear(stranger) == 400
        assert await stranger[0].read() == b""
    assert await ask(await door.knock()) == 200


async def test_only_who_has_never_asked_is_hurried(opened: Open, limit_is: LimitIs) -> None:
    """Prometheus keeps its connection from one scrape to the next."""
    limit_is("HEAD_SECONDS", 0.2)
    door = await opened()
    scraper = await door.knock()
    assert await ask(scraper) == 200
    async with asyncio.timeout(20):
        assert await (await door.knock())[0].read() == b""
    assert await ask(scraper) == 200


async def test_a_connection_that_is_not_used_is_closed_in_the_end(opened: Open, limit_is: LimitIs) -> None:
    limit_is("IDLE_SECONDS", 0.2)
    door = await opened()
    scraper = await door.knock()
    assert await ask(scraper) == 200
    async with asyncio.timeout(20):
        assert await scraper[0].read() == b""


DESCRIPTORS = Path("/proc/self/fd")


@contextmanager
def no_descriptor_left() -> Iterator[None]:
    """As many files are open as may be."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as undo:
        most = max(int(each.name) for each in DESCRIPTORS.iterdir()) + 1
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        undo.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        with suppress(OSError):
            while True:
                undo.callback(os.close, os.dup(0))
        yield


@pytest.mark.skipif(not DESCRIPTORS.exists(), reason="this machine does not tell its open files")
async def test_without_descriptors_whoever_says_nothing_makes_room(opened: Open) -> None:
    door = await opened()
    silent = await door.crowd(3)
    asking = await door.knock()
    assert await ask(asking) == 200
    with socket.socket() as another:
        another.setblocking(False)
        with no_descriptor_left():
            await asyncio.get_running_loop().sock_connect(another, ("127.0.0.1", door.port))
            stream = await asyncio.open_connection(sock=another)
            door.streams.append(stream)
            assert await ask(stream) == 200
            assert await ask(asking) == 200
        await door.open(silent, 2)
        assert not silent[1][0].at_eof()
        assert not silent[2][0].at_eof()
