"""Where a daemon listens: at the address that was asked for, and on both families where none was."""

import socket
import ssl

import aiohttp
import pytest

from crrd.lib.errors import ConfigurationError
from crrd.lib.health import Health, StatusServer, bound_socket, split_address
from crrd.manager.certificates.tls import ServingTls
from crrd.manager.webhook.server import WebhookServer
from tests.support.webhook import QUICK, Pods, load, new_certificates

HAS_IPV6 = socket.has_dualstack_ipv6()
BOTH = {"127.0.0.1", "::1"} if HAS_IPV6 else {"127.0.0.1"}
needs_ipv6 = pytest.mark.skipif(not HAS_IPV6, reason="this machine has no IPv6")

WHERE = [
    pytest.param(":0", BOTH, id="every"),
    pytest.param("[::]:0", BOTH, id="every, as IPv6 has it"),
    pytest.param("127.0.0.1:0", {"127.0.0.1"}, id="IPv4"),
    pytest.param("0.0.0.0:0", {"127.0.0.1"}, id="every of IPv4"),
    pytest.param("[::1]:0", {"::1"}, id="IPv6", marks=needs_ipv6),
]


async def answering(port: int, tls: bool = False) -> set[str]:
    """The loopback addresses on which /healthz is answered."""
    found = set()
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    async with aiohttp.ClientSession() as session:
        for host in ("127.0.0.1", "::1"):
            url = f"{'https' if tls else 'http'}://{f'[{host}]' if ':' in host else host}:{port}/healthz"
            try:
                async with session.get(url, ssl=context) as answer:
                    assert answer.status == 200
                    found.add(host)
            except aiohttp.ClientConnectorError:
                continue
    return found


@pytest.mark.parametrize(("address", "hosts"), WHERE)
async def test_the_pages_are_served_on_both_families(address: str, hosts: set[str]) -> None:
    server = StatusServer(address, Health().routes())
    shown = await server.start()
    try:
        assert await answering(split_address(shown)[1]) == hosts
    finally:
        await server.stop()


@pytest.mark.parametrize(("address", "hosts"), WHERE)
async def test_admission_is_served_on_both_families(address: str, hosts: set[str]) -> None:
    tls = ServingTls()
    load(tls, new_certificates())
    server = WebhookServer(address, tls, Pods(), Health(), limits=QUICK)
    shown = await server.start()
    try:
        assert await answering(split_address(shown)[1], tls=True) == hosts
    finally:
        await server.drain()


@pytest.mark.parametrize("has", [True, False])
def test_without_ipv6_every_address_is_every_one_of_ipv4(has: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: has and HAS_IPV6)
    with bound_socket("", 0) as bound:
        assert bound.family == (socket.AF_INET6 if has and HAS_IPV6 else socket.AF_INET)


def test_a_port_that_is_taken_is_not_taken_again() -> None:
    with bound_socket("", 0) as first:
        first.listen()
        with pytest.raises(OSError, match="in use"):
            bound_socket("", first.getsockname()[1])


NO_ADDRESSES = [
    "",
    "9420",
    "host",
    "host:",
    "host:x",
    "host:²",
    "host:70000",
    "[::1]",
    "a..b:1",
    "\udcff:1",
    "a" * 64 + ":1",
]


@pytest.mark.parametrize("address", NO_ADDRESSES)
def test_what_is_no_address_is_told(address: str) -> None:
    with pytest.raises(ConfigurationError, match=r"must be HOST:PORT"):
        split_address(address)
