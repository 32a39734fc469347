"""The webhook's beginning, its changes of certificate, and its end: no call is lost in any of them."""

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import aiohttp
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from structlog.testing import capture_logs

from crrd.lib.errors import ConfigurationError
from crrd.lib.health import Health
from crrd.manager.certificates.pki import CERTIFICATE, KEY, renew, to_data
from crrd.manager.certificates.rotation import Lifetimes, Renewal
from crrd.manager.certificates.tls import ServingTls
from crrd.manager.webhook.server import WebhookServer
from tests.support.admission import JsonObject, new_pod, new_request, new_review
from tests.support.webhook import NAMES, QUICK, Pods, Served, load, new_certificates, trusting, webhook

REVIEW = new_review(new_request())
SERVING = Renewal(new_serving=True)


def pods(before: Callable[[], Awaitable[None]] | None = None) -> Pods:
    table = Pods({("shop", "web-0"): new_pod()})
    if before is not None:
        table.before = before
    return table


@dataclass
class Traffic:
    """Callers that ask without a pause, until told to stop; whatever goes wrong ends in `lost`."""

    answered: int = 0
    lost: list[str] = field(default_factory=list)
    more: asyncio.Condition = field(default_factory=asyncio.Condition)
    stopped: bool = False

    async def ask(self, choose: Callable[[], Served]) -> None:
        while not self.stopped:
            try:
                response = await choose().ask("/mutate-crr", REVIEW)
                assert response["allowed"] is True
            except (aiohttp.ClientError, OSError, AssertionError) as error:
                self.lost.append(repr(error))
            async with self.more:
                self.answered += 1
                self.more.notify_all()

    async def until(self, further: int) -> None:
        """Wait for so many more calls to be answered (or lost)."""
        goal = self.answered + further
        async with asyncio.timeout(30), self.more:
            await self.more.wait_for(lambda: self.answered >= goal)


def serial(writer: asyncio.StreamWriter) -> int:
    raw = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    return x509.load_der_x509_certificate(raw).serial_number


async def connected(served: Served) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", served.port, ssl=trusting(served.certificates))


async def serial_served(served: Served) -> int:
    _, writer = await connected(served)
    try:
        return serial(writer)
    finally:
        writer.close()
        await writer.wait_closed()


async def readyz(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    """One call on a connection that is kept."""
    writer.write(b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n")
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    return head + await reader.readexactly(length)


async def test_certificates_change_during_traffic() -> None:
    async with webhook(pods()) as served, asyncio.TaskGroup() as callers:
        traffic = Traffic()
        for _ in range(4):
            callers.create_task(traffic.ask(lambda: served))
        kept = await connected(served)
        assert b"200 OK" in await readyz(*kept)
        for _ in range(5):
            changed = new_certificates(served.certificates, SERVING)
            assert changed.serving is not None
            load(served.tls, changed)
            assert await serial_served(served) == changed.serving.certificate.serial_number
            await traffic.until(10)
        assert b"200 OK" in await readyz(*kept), "the connection from before the changes was cut"
        kept[1].close()
        traffic.stopped = True
    assert not traffic.lost
    assert traffic.answered >= 50


async def test_a_pair_that_does_not_match_changes_nothing() -> None:
    async with webhook(pods()) as served:
        before = await serial_served(served)
        sound, other = to_data(new_certificates()), to_data(new_certificates())
        with pytest.raises(ConfigurationError, match="cannot be used"):
            served.tls.load(sound[CERTIFICATE], other[KEY])
        with pytest.raises(ConfigurationError, match="cannot be used"):
            served.tls.load(b"odd", sound[KEY])
        assert await serial_served(served) == before
        assert (await served.ask("/mutate-crr", REVIEW))["allowed"] is True


def test_an_encrypted_key_asks_nobody() -> None:
    certificates = new_certificates()
    assert certificates.serving is not None
    key = certificates.serving.key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )
    with pytest.raises(ConfigurationError, match="cannot be used"):
        ServingTls().load(to_data(certificates)[CERTIFICATE], key)


def test_the_same_pair_is_loaded_once() -> None:
    tls, data = ServingTls(), to_data(new_certificates())
    assert tls.not_after is None
    assert tls.load(data[CERTIFICATE], data[KEY]) is True
    assert tls.load(data[CERTIFICATE], data[KEY]) is False
    assert tls.not_after is not None


def test_readiness_knows_the_certificate() -> None:
    tls = ServingTls()
    assert tls.check() == "the serving certificate does not exist yet"
    load(tls, new_certificates())
    assert tls.check() == ""
    long_ago = datetime.now(UTC) - timedelta(days=300)
    data = to_data(renew(new_certificates(), SERVING, NAMES, long_ago, Lifetimes()))
    tls.load(data[CERTIFICATE], data[KEY])
    assert tls.check().startswith("the serving certificate expired at 20")
    days_ahead = datetime.now(UTC) + timedelta(days=3)
    load(tls, renew(new_certificates(), SERVING, NAMES, days_ahead, Lifetimes()))
    assert tls.check().startswith("the serving certificate is not valid before 20")


async def test_drain_loses_no_call() -> None:
    """Two replicas behind something that sends calls to those that were ready a moment ago, as a Service does."""
    limits = replace(QUICK, drain_seconds=0.6, linger_seconds=0.3)
    async with webhook(pods()) as stays, webhook(pods(), limits=limits) as goes:
        traffic, endpoints, turn = Traffic(), [goes, stays], 0

        def choose() -> Served:
            nonlocal turn
            turn += 1
            return endpoints[turn % len(endpoints)]

        async def follow_readiness() -> None:
            while not traffic.stopped:
                await traffic.until(5)
                await asyncio.sleep(0.1)
                endpoints[:] = [one for one in (goes, stays) if not any(bad() for bad in one.health.ready.values())]

        async with asyncio.TaskGroup() as callers:
            for _ in range(8):
                callers.create_task(traffic.ask(choose))
            callers.create_task(follow_readiness())
            await traffic.until(50)
            await goes.server.drain()
            await traffic.until(20)
            traffic.stopped = True
        assert not traffic.lost
        with pytest.raises(aiohttp.ClientConnectorError):
            await goes.page("/readyz")


async def test_connections_are_given_up_by_their_callers_while_draining() -> None:
    limits = replace(QUICK, drain_seconds=0.5)
    async with webhook(pods(), limits=limits) as served:
        kept = await connected(served)
        assert b"connection: close" not in (await readyz(*kept)).lower()
        draining = asyncio.create_task(served.server.drain())
        await asyncio.sleep(0)
        answer = await readyz(*kept)
        assert b"503 " in answer
        assert b"[-]webhook failed: draining" in answer
        assert b"connection: close" in answer.lower()
        kept[1].close()
        assert (await served.ask("/mutate-crr", REVIEW))["allowed"] is True
        await draining


async def test_what_is_in_flight_ends_before_the_server_does() -> None:
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        asked.set()
        await go_on.wait()

    async with webhook(pods(wait)) as served:
        call = asyncio.create_task(served.ask("/mutate-crr", REVIEW))
        await asked.wait()
        draining = asyncio.create_task(served.server.drain())
        while True:  # until nothing new is taken
            try:
                _, writer = await connected(served)
                writer.close()
            except (OSError, ssl.SSLError):
                break
        assert not draining.done()
        go_on.set()
        response: JsonObject = await call
        assert response["allowed"] is True
        await draining


async def test_what_never_ends_is_given_up() -> None:
    asked = asyncio.Event()

    async def stall() -> None:
        asked.set()
        await asyncio.Event().wait()

    async with webhook(pods(stall), limits=replace(QUICK, stop_seconds=0.1)) as served:
        call = asyncio.create_task(served.ask("/mutate-crr", REVIEW))
        await asked.wait()
        await served.server.drain()
        with pytest.raises(aiohttp.ClientError):
            await call


async def test_run_waits_for_a_certificate_then_serves_then_drains() -> None:
    tls, health, stop = ServingTls(), Health(), asyncio.Event()
    certificates = new_certificates()
    server = WebhookServer("127.0.0.1:0", tls, pods(), health, limits=QUICK)
    running = asyncio.create_task(server.run(stop))
    await asyncio.sleep(0)
    assert health.ready["webhook"]() == "not listening yet"
    assert health.ready["certificate"]() == "the serving certificate does not exist yet"
    with capture_logs() as received:
        load(tls, certificates)
        async with asyncio.timeout(10):
            while health.ready["webhook"]():
                await asyncio.sleep(0)
    (address,) = [line["address"] for line in received if line["event"] == "serving admission"]
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trusting(certificates))) as session:
        served = Served(server, tls, health, certificates, address, session)
        assert await served.page("/readyz") == (200, "[+]webhook ok\n[+]certificate ok\ncheck passed\n")
        assert (await served.page("/healthz"))[0] == 200
        stop.set()
        await running
        assert health.ready["webhook"]() == "draining"


async def test_run_stops_before_there_is_a_certificate() -> None:
    stop = asyncio.Event()
    running = asyncio.create_task(WebhookServer("127.0.0.1:0", ServingTls(), pods(), Health()).run(stop))
    await asyncio.sleep(0)
    stop.set()
    await running


async def test_an_address_that_is_taken() -> None:
    tls = ServingTls()
    load(tls, new_certificates())
    with socket.create_server(("127.0.0.1", 0)) as taken:
        server = WebhookServer(f"127.0.0.1:{taken.getsockname()[1]}", tls, pods(), Health(), limits=QUICK)
        with pytest.raises(ConfigurationError, match=r"cannot listen on 127\.0\.0\.1:\d+: .*another address"):
            await server.run(asyncio.Event())
