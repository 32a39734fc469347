"""The question to kubelet's /healthz, over real connections to something on loopback that plays kubelet."""

import asyncio
import errno
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from aiohttp import web

from crrd.node import kubelet_health
from crrd.node.kubelet_health import KubeletProbe


class HealthEndpoint:
    """Answers /healthz with a status, or keeps quiet; may go and come back on the same port."""

    def __init__(self, port: int) -> None:
        self.port, self.address = port, "127.0.0.1"
        self.status: int | None = 200
        """None for no answer at all."""
        self.asked: list[str] = []
        self._runner: web.AppRunner | None = None

    async def come(self) -> None:
        app = web.Application()
        app.router.add_get("/{page:.*}", self._answer)
        self._runner = web.AppRunner(app, shutdown_timeout=0.01, handler_cancellation=True)
        await self._runner.setup()
        await web.TCPSite(self._runner, self.address, self.port).start()

    async def go(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _answer(self, request: web.Request) -> web.Response:
        self.asked.append(request.path)
        if self.status is None:
            await asyncio.Event().wait()
        return web.Response(status=self.status or 500, text="ok", headers={"Location": "/elsewhere"})


async def unasked() -> int | None:
    """Nobody asks for the version here."""
    raise AssertionError


async def not_ready() -> bool:
    return False


@pytest.fixture
async def kubelet(unused_tcp_port: int) -> AsyncIterator[HealthEndpoint]:
    made = HealthEndpoint(unused_tcp_port)
    yield made
    await made.go()


@pytest.fixture
def probe(kubelet: HealthEndpoint, monkeypatch: pytest.MonkeyPatch) -> KubeletProbe:
    """One that asks each time."""
    monkeypatch.setattr(kubelet_health, "FRESH_SECONDS", -1.0)
    return KubeletProbe(kubelet.port, unasked, not_ready)


Hang = Callable[[], Awaitable[None]]


@pytest.fixture
def hang(kubelet: HealthEndpoint, monkeypatch: pytest.MonkeyPatch) -> Hang:
    async def begin() -> None:
        monkeypatch.setattr(kubelet_health, "PATIENCE_SECONDS", 0.1)
        kubelet.status = None

    return begin


def now() -> float:
    return asyncio.get_running_loop().time()


async def since(probe: KubeletProbe) -> float:
    """Ask for the first time after something went wrong: the time is that of the question."""
    before = now()
    found = await probe.silent_since()
    assert found is not None
    assert before <= found <= now()
    return found


async def test_one_that_answers_is_there(kubelet: HealthEndpoint, probe: KubeletProbe) -> None:
    await kubelet.come()
    assert await probe.silent_since() is None
    assert kubelet.asked == ["/healthz"]


@pytest.mark.parametrize("status", [500, 302, 404])
async def test_any_answer_counts(kubelet: HealthEndpoint, probe: KubeletProbe, status: int) -> None:
    """Kubelet says 500 while it cannot sync its pods' state, and starts containers all the same."""
    kubelet.status = status
    await kubelet.come()
    assert await probe.silent_since() is None
    assert kubelet.asked == ["/healthz"], "a redirection is an answer, and not followed"


async def test_one_that_listens_with_ipv6_alone(kubelet: HealthEndpoint, probe: KubeletProbe) -> None:
    kubelet.address = "::1"
    try:
        await kubelet.come()
    except OSError:
        pytest.skip("this machine has no IPv6")
    assert await probe.silent_since() is None
    assert kubelet.asked == ["/healthz"]
    await kubelet.go()
    assert await since(probe) <= now()


async def test_a_node_without_ipv6(
    kubelet: HealthEndpoint, probe: KubeletProbe, monkeypatch: pytest.MonkeyPatch
) -> None:
    await kubelet.come()
    assert await probe.silent_since() is None
    await kubelet.go()
    connect = asyncio.open_connection

    async def only_ipv4(address: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if address == "::1":
            raise OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")
        return await connect(address, port)

    monkeypatch.setattr(kubelet_health, "open_connection", only_ipv4)
    assert await since(probe) <= now()


async def test_one_that_was_never_there_decides_nothing(probe: KubeletProbe) -> None:
    assert await probe.silent_since() is None
    assert await probe.silent_since() is None


async def test_one_that_refuses_after_it_has_answered_is_silent_since_the_first_refusal(
    kubelet: HealthEndpoint, probe: KubeletProbe
) -> None:
    await kubelet.come()
    assert await probe.silent_since() is None
    await kubelet.go()
    first = await since(probe)
    assert await probe.silent_since() == first


async def test_one_that_hangs_is_silent_though_it_never_answered(
    kubelet: HealthEndpoint, probe: KubeletProbe, hang: Hang
) -> None:
    await kubelet.come()
    await hang()
    first = await since(probe)
    await kubelet.go()
    assert await probe.silent_since() == first


async def test_one_that_hangs_after_it_has_answered(kubelet: HealthEndpoint, probe: KubeletProbe, hang: Hang) -> None:
    await kubelet.come()
    assert await probe.silent_since() is None
    await hang()
    await since(probe)


async def test_one_that_hangs_up_without_a_word_does_not_answer(kubelet: HealthEndpoint, probe: KubeletProbe) -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.close()

    await kubelet.come()
    assert await probe.silent_since() is None
    await kubelet.go()
    async with await asyncio.start_server(hang_up, "127.0.0.1", kubelet.port):
        await since(probe)


async def test_one_that_comes_back_is_there_and_may_go_again(kubelet: HealthEndpoint, probe: KubeletProbe) -> None:
    await kubelet.come()
    assert await probe.silent_since() is None
    await kubelet.go()
    first = await since(probe)
    await kubelet.come()
    assert await probe.silent_since() is None
    await kubelet.go()
    assert await since(probe) > first


async def test_a_restart_between_two_questions_is_not_noticed(kubelet: HealthEndpoint, probe: KubeletProbe) -> None:
    """The connection of before is dead: that is not kubelet's silence."""
    await kubelet.come()
    assert await probe.silent_since() is None
    await kubelet.go()
    await kubelet.come()
    assert await probe.silent_since() is None


OURS = [errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS]


@pytest.mark.parametrize("number", OURS)
async def test_what_fails_on_our_own_side_changes_nothing(
    kubelet: HealthEndpoint, probe: KubeletProbe, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    async def fail(*_: object) -> None:
        raise OSError(number, "our own")

    await kubelet.come()
    assert await probe.silent_since() is None
    with monkeypatch.context() as patched:
        patched.setattr(kubelet_health, "open_connection", fail)
        assert await probe.silent_since() is None
    await kubelet.go()
    first = await since(probe)
    monkeypatch.setattr(kubelet_health, "open_connection", fail)
    assert await probe.silent_since() == first


async def test_a_silence_of_which_nothing_was_heard_for_long_counts_anew(
    kubelet: HealthEndpoint, probe: KubeletProbe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody asked meanwhile: kubelet may have been there."""
    await kubelet.come()
    assert await probe.silent_since() is None
    await kubelet.go()
    first = await since(probe)
    monkeypatch.setattr(kubelet_health, "STALE_SECONDS", -1.0, raising=False)
    assert await since(probe) > first


async def test_a_silence_does_not_outlast_what_fails_on_our_own_side_for_long(
    kubelet: HealthEndpoint, probe: KubeletProbe, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> None:
        raise OSError(errno.EMFILE, "our own")

    await kubelet.come()
    assert await probe.silent_since() is None
    await kubelet.go()
    await since(probe)
    monkeypatch.setattr(kubelet_health, "open_connection", fail)
    monkeypatch.setattr(kubelet_health, "STALE_SECONDS", -1.0, raising=False)
    assert await probe.silent_since() is None


async def test_port_0_is_never_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(kubelet_health, "open_connection")
    assert await KubeletProbe(0, unasked, not_ready).silent_since() is None


async def test_a_burst_asks_once(
    kubelet: HealthEndpoint, probe: KubeletProbe, hang: Hang, monkeypatch: pytest.MonkeyPatch
) -> None:
    await kubelet.come()
    monkeypatch.setattr(kubelet_health, "FRESH_SECONDS", 3600.0)
    assert await asyncio.gather(*(probe.silent_since() for _ in range(20))) == [None] * 20
    assert len(kubelet.asked) == 1
    await hang()
    monkeypatch.setattr(kubelet_health, "FRESH_SECONDS", -1.0)
    first = await since(probe)
    monkeypatch.setattr(kubelet_health, "FRESH_SECONDS", 3600.0)
    assert await asyncio.gather(*(probe.silent_since() for _ in range(20))) == [first] * 20
    assert len(kubelet.asked) == 2


@pytest.mark.parametrize("ready", [True, False])
async def test_one_that_serves_it_elsewhere_now_holds_up_nothing(
    kubelet: HealthEndpoint, monkeypatch: pytest.MonkeyPatch, *, ready: bool
) -> None:
    """--healthz-port was changed, or set to 0, under a daemon that goes on."""
    asked = 0

    async def node_is_ready() -> bool:
        nonlocal asked
        asked += 1
        return ready

    monkeypatch.setattr(kubelet_health, "FRESH_SECONDS", -1.0)
    probe = KubeletProbe(kubelet.port, unasked, node_is_ready)
    await kubelet.come()
    assert await probe.silent_since() is None
    await kubelet.go()
    began = await since(probe)
    assert await probe.silent_since() == began
    assert asked == 0, "a kubelet that restarts is away for seconds"
    monkeypatch.setattr(kubelet_health, "MOVED_SECONDS", 0.0)
    assert await probe.silent_since() == (None if ready else began)
    assert await probe.silent_since() == (None if ready else began)
    assert asked == (1 if ready else 2)


@pytest.mark.virtual_time
async def test_it_has_moved_after_two_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    async def node_is_ready() -> bool:
        return True

    async def hang(*_: object) -> None:
        await asyncio.Event().wait()

    async def refuse(*_: object) -> None:
        raise ConnectionRefusedError

    probe = KubeletProbe(1, unasked, node_is_ready)
    monkeypatch.setattr(kubelet_health, "open_connection", hang)
    began = await probe.silent_since()
    assert began is not None
    monkeypatch.setattr(kubelet_health, "open_connection", refuse)
    for seconds in range(20, 120, 20):
        await asyncio.sleep(began + seconds - now())
        assert await probe.silent_since() == began
    await asyncio.sleep(began + 120.5 - now())
    assert await probe.silent_since() is None


async def test_one_that_hangs_has_not_moved(
    kubelet: HealthEndpoint, probe: KubeletProbe, hang: Hang, monkeypatch: pytest.MonkeyPatch
) -> None:
    await kubelet.come()
    await hang()
    began = await since(probe)
    monkeypatch.setattr(kubelet_health, "MOVED_SECONDS", 0.0)
    assert await probe.silent_since() == began
