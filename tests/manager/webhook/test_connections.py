"""Strangers who open connections and say nothing: they make room, and whoever asks is answered."""

import asyncio
import gc
import json
from asyncio import sslproto
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace

import pytest

from crrd.lib.connections import CROWDED, SILENT
from crrd.lib.memory import small_tls_buffers
from crrd.manager.webhook import server
from crrd.manager.webhook.server import Limits
from tests.support.admission import new_pod, new_request, new_review
from tests.support.webhook import QUICK, Pods, Served, trusting, webhook

MOST = 4
REVIEW = new_review(new_request())
Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass
class Door:
    """A webhook with room for few."""

    served: Served
    pods: Pods
    closed: list[str] = field(default_factory=list)
    _streams: list[Stream] = field(default_factory=list)

    async def knock(self, *, tls: bool = True) -> Stream:
        """Connect, and say nothing beyond the handshake."""
        context = trusting(self.served.certificates) if tls else None
        made = await asyncio.open_connection("127.0.0.1", self.served.port, ssl=context)
        self._streams.append(made)
        return made

    async def known(self, count: int) -> None:
        """Wait until so many are open."""
        async with asyncio.timeout(20):
            while len(self.served.server.connections) != count:
                await asyncio.sleep(0.005)

    def leave(self) -> None:
        for _, writer in self._streams:
            writer.transport.abort()


@pytest.fixture
async def door() -> AsyncIterator[Door]:
    pods, closed = Pods({("shop", "web-0"): new_pod()}), list[str]()
    limits = replace(QUICK, connections=MOST, min_open_seconds=0.0)
    async with webhook(pods, limits=limits, on_close=closed.append) as served:
        made = Door(served, pods, closed)
        yield made
        made.leave()


async def is_closed(stream: Stream) -> bool:
    try:
        async with asyncio.timeout(20):
            return await stream[0].read() == b""
    except ConnectionError:
        return True


@pytest.mark.parametrize("tls", [True, False])
async def test_whoever_says_nothing_makes_room(door: Door, *, tls: bool) -> None:
    strangers = [await door.knock(tls=tls) for _ in range(MOST + 2)]
    assert [await is_closed(stranger) for stranger in strangers[:2]] == [True, True]
    assert (await door.served.ask("/mutate-crr", REVIEW))["allowed"]
    assert await is_closed(strangers[2])
    assert not strangers[3][0].at_eof()
    assert door.closed == [CROWDED] * 3
    await door.known(MOST)


async def test_who_asks_keeps_the_connection(door: Door) -> None:
    for _ in range(3 * MOST):
        assert (await door.served.ask("/mutate-crr", REVIEW))["allowed"]
        await door.knock()
    assert (await door.served.ask("/mutate-crr", REVIEW))["allowed"]
    connector = door.served.session.connector
    assert connector is not None
    assert door.closed == [CROWDED] * (2 * MOST + 1)
    assert len(door.pods.asked) == 3 * MOST + 1


async def test_nobody_is_closed_while_being_answered_or_before() -> None:
    """With all places taken by calls under way, the next one waits for its turn."""
    pods, closed, go_on = Pods({("shop", "web-0"): new_pod()}), list[str](), asyncio.Event()

    async def wait() -> None:
        await go_on.wait()

    pods.before = wait
    limits = replace(QUICK, connections=MOST, min_open_seconds=2.0)
    async with webhook(pods, limits=limits, on_close=closed.append) as served:
        calls = [asyncio.create_task(served.ask("/mutate-crr", REVIEW)) for _ in range(MOST + 2)]
        async with asyncio.timeout(20):
            while len(pods.asked) < MOST:
                await asyncio.sleep(0.005)
        assert len(served.server.connections) == MOST
        assert closed == []
        go_on.set()
        assert all(answer["allowed"] for answer in await asyncio.gather(*calls))


async def test_those_that_have_gone_take_no_place(door: Door) -> None:
    for _ in range(MOST):
        await door.knock()
    await door.known(MOST)
    door.leave()
    await door.known(0)
    for _ in range(MOST):
        await door.knock()
    assert door.closed == []


async def test_a_handshake_that_fails_takes_no_place(door: Door) -> None:
    for _ in range(MOST):
        stream = await door.knock(tls=False)
        stream[1].write(b"GET / HTTP/1.1\r\n\r\n")
        assert await is_closed(stream)
    await door.known(0)
    assert door.closed == []


def test_an_api_server_closes_unused_connections_first() -> None:
    limits = Limits()
    assert min(limits.idle_seconds, limits.head_seconds) > 90


async def test_only_who_has_never_asked_is_hurried() -> None:
    pods, closed = Pods({("shop", "web-0"): new_pod()}), list[str]()
    async with webhook(pods, limits=replace(QUICK, head_seconds=0.3), on_close=closed.append) as served:
        assert (await served.ask("/mutate-crr", REVIEW))["allowed"]
        door = Door(served, pods)
        assert await is_closed(await door.knock())
        assert closed == [SILENT]
        await door.known(1)
        assert (await served.ask("/mutate-crr", REVIEW))["allowed"]
        await door.known(1)


async def test_a_call_that_takes_longer_to_answer_is_not_cut(door: Door) -> None:
    pods = Pods({("shop", "web-0"): new_pod()})
    released = asyncio.Event()

    async def slowly() -> None:
        await released.wait()

    pods.before = slowly
    async with webhook(pods, limits=replace(QUICK, head_seconds=0.1)) as served:
        call = asyncio.create_task(served.ask("/mutate-crr", REVIEW))
        stranger = await Door(served, pods).knock()
        assert await is_closed(stranger)  # by now the call has waited for longer
        released.set()
        assert (await call)["allowed"]


async def test_fewer_where_descriptors_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "room_for_connections", lambda wanted: min(wanted, MOST))
    closed = list[str]()
    async with webhook(Pods(), limits=replace(QUICK, min_open_seconds=0.0), on_close=closed.append) as served:
        door = Door(served, Pods())
        strangers = [await door.knock() for _ in range(MOST + 1)]
        assert await is_closed(strangers[0])
        assert closed == [CROWDED]
        door.leave()


async def test_tls_sets_little_memory_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sslproto.SSLProtocol, "max_size", sslproto.SSLProtocol.max_size)  # put back afterwards
    small_tls_buffers()
    before = set(map(id, tls_protocols()))
    async with webhook(Pods({("shop", "web-0"): new_pod()})) as served:
        padded = json.dumps(REVIEW).encode() + b" " * 2**21
        assert (await served.post("/mutate-crr", padded))[0] == 200
        made = [each for each in tls_protocols() if id(each) not in before]
        assert len(made) == 2  # the caller's end is here too
        assert max(len(each.get_buffer(-1)) for each in made) == 2**14


def tls_protocols() -> list[sslproto.SSLProtocol]:
    return [each for each in gc.get_objects() if isinstance(each, sslproto.SSLProtocol)]
