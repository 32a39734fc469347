"""preStop hooks against real servers on loopback and a stand-in runtime."""

import asyncio
import datetime as dt
import gzip
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field

import pytest
import trustme
from aiohttp import web

from crrd import __version__
from crrd.core.api.types import Pin, Request
from crrd.core.recreate.actions import RunHook
from crrd.core.recreate.observation import ExecResult, Hook, HookKind, HookResult, Instance, Sandbox
from crrd.kubelet.runtime_status import ContainerState
from crrd.lib.errors import RuntimeCallError, RuntimeUnavailableError
from crrd.node import hooks
from crrd.node.hooks import HookRunner
from crrd.ports import Hooks

INSTANCE = Instance(
    id="a1",
    runtime="containerd",
    name="app",
    pod_namespace="shop",
    pod_name="web-0",
    pod_uid="uid-1",
    state=ContainerState.RUNNING,
    created_at=1,
)
REQUEST = Request(
    namespace="shop",
    name="crr",
    uid="u",
    resource_version="1",
    created="2026-01-01T00:00:00Z",
    pod_name="web-0",
    pod_uid="uid-1",
    node_name="n",
    containers=(),
)


@dataclass
class ExecRuntime:
    """A runtime that executes what the test says; the other methods are not for hooks."""

    behave: Callable[[float], Awaitable[ExecResult]]
    commands: list[tuple[str, tuple[str, ...], float]] = field(default_factory=list)
    names: frozenset[str] = frozenset({"containerd"})

    async def execute(self, instance: Instance, command: tuple[str, ...], seconds: float) -> ExecResult:
        self.commands.append((instance.id, command, seconds))
        return await self.behave(seconds)

    async def instances(self, pod_uid: str, *, urgent: bool = False) -> tuple[Instance, ...]:
        raise AssertionError(pod_uid, urgent)

    async def false_conditions(self, pod_uid: str) -> dict[str, str]:
        raise AssertionError(pod_uid)

    async def find(self, pin: Pin) -> Instance | None:
        raise AssertionError(pin)

    async def has_image(self, pod_uid: str, image: str) -> bool:
        raise AssertionError(pod_uid, image)

    async def stop(self, instance: Instance, seconds: float) -> None:
        raise AssertionError(instance, seconds)

    async def sandboxes(self, pod_uid: str) -> tuple[Sandbox, ...]:
        raise AssertionError(pod_uid)

    async def made_sandboxes(self) -> tuple[Sandbox, ...]:
        raise AssertionError

    async def run_sandbox(self, first: Sandbox, request_uid: str) -> None:
        raise AssertionError(first, request_uid)

    async def remove_sandbox(self, sandbox: Sandbox) -> None:
        raise AssertionError(sandbox)


async def unexpected(_: float) -> ExecResult:
    raise AssertionError("no exec hook is run here")


def runner(behave: Callable[[float], Awaitable[ExecResult]] = unexpected) -> Hooks:
    return HookRunner(ExecRuntime(behave))


async def run(
    hook: Hook, seconds: float = 30.0, pod_ip: str = "127.0.0.1", ports: tuple[tuple[str, int], ...] = ()
) -> HookResult:
    instance = Instance(**{name: getattr(INSTANCE, name) for name in INSTANCE.__slots__} | {"ports": ports})
    return await runner().run(RunHook(REQUEST, instance, hook, seconds, 0.0, pod_ip))


def exec_action(seconds: float = 30.0) -> RunHook:
    return RunHook(REQUEST, INSTANCE, Hook(HookKind.EXEC, command=("sh", "-c", "bye")), seconds, 0.0)


# exec


async def test_exec_runs_the_command_in_the_container() -> None:
    async def behave(_: float) -> ExecResult:
        return ExecResult(0, b"bye", b"")

    runtime = ExecRuntime(behave)

    result = await HookRunner(runtime).run(exec_action())

    assert result.error == ""
    assert result.seconds >= 0
    assert runtime.commands == [("a1", ("sh", "-c", "bye"), 30.0)]


@pytest.mark.virtual_time
async def test_exec_may_take_all_of_its_time_and_the_runtime_some_more_to_say_so() -> None:
    async def behave(seconds: float) -> ExecResult:
        await asyncio.sleep(seconds + 2)
        return ExecResult(0, b"", b"")

    assert (await runner(behave).run(exec_action(5.0))) == HookResult(7.0, "")


@pytest.mark.virtual_time
@pytest.mark.parametrize(
    ("hook", "seconds"), [(Hook(HookKind.SLEEP, seconds=60), 5), (Hook(HookKind.EXEC), 5 + hooks.HOOK_MARGIN_SECONDS)]
)
async def test_only_exec_gets_some_more(hook: Hook, seconds: float) -> None:
    async def behave(_: float) -> ExecResult:
        await asyncio.sleep(60)
        return ExecResult(0, b"", b"")

    result = await runner(behave).run(RunHook(REQUEST, INSTANCE, hook, 5.0, 0.0))

    assert result.seconds == pytest.approx(seconds)
    assert "was cancelled, because it had not finished when the grace period ended (5s)" in result.error


async def test_exec_that_fails_tells_code_and_output() -> None:
    async def behave(_: float) -> ExecResult:
        return ExecResult(3, b"out\n", b"no\x00such\x1b[31m\nthing \xff")

    result = await runner(behave).run(exec_action())

    assert result.error == "exec ended with exit code 3: no such [31m thing � out"


async def test_exec_that_fails_silently_tells_the_code() -> None:
    async def behave(_: float) -> ExecResult:
        return ExecResult(1, b"", b"")

    assert (await runner(behave).run(exec_action())).error == "exec ended with exit code 1"


async def test_a_command_that_cri_o_has_cancelled_used_up_its_grace_period() -> None:
    async def behave(*_: object) -> ExecResult:
        return ExecResult(-1, b"", b"command timed out")

    assert "it had not finished when the grace period ended" in (await runner(behave).run(exec_action())).error


async def test_exec_output_is_cut() -> None:
    async def behave(_: float) -> ExecResult:
        return ExecResult(1, b"x" * 60_000, b"")

    error = (await runner(behave).run(exec_action())).error
    assert error == f"exec ended with exit code 1: {'x' * 1023}…"


async def test_exec_that_cannot_start_is_an_error() -> None:
    async def behave(_: float) -> ExecResult:
        raise RuntimeCallError('ExecSync failed: "bye": not found (UNKNOWN)', code="UNKNOWN")

    result = await runner(behave).run(exec_action())

    assert result.error == 'exec could not be run: ExecSync failed: "bye": not found (UNKNOWN)'


async def test_exec_that_the_runtime_cut_off_took_too_long() -> None:
    async def behave(_: float) -> ExecResult:
        raise RuntimeCallError("ExecSync failed: timeout 30s exceeded", code="DEADLINE_EXCEEDED")

    result = await runner(behave).run(exec_action())

    assert result.error == "exec was cancelled, because it had not finished when the grace period ended (30s)"


async def test_exec_that_said_too_much_has_run() -> None:
    async def behave(_: float) -> ExecResult:
        raise RuntimeCallError("ExecSync failed: too large (RESOURCE_EXHAUSTED)", code="RESOURCE_EXHAUSTED")

    result = await runner(behave).run(exec_action())

    assert result.error == (
        "exec ran, but its result is unknown, because its output was too large (ExecSync failed: too "
        "large (RESOURCE_EXHAUSTED))"
    )


async def test_exec_that_not_even_the_runtime_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hooks, "HOOK_MARGIN_SECONDS", 0.01)

    async def behave(_: float) -> ExecResult:
        await asyncio.Event().wait()
        raise AssertionError

    assert "exec was cancelled" in (await runner(behave).run(exec_action(0.01))).error


async def test_a_runtime_that_goes_away_is_no_failed_hook() -> None:
    async def behave(_: float) -> ExecResult:
        raise RuntimeUnavailableError("Socket closed")

    with pytest.raises(RuntimeUnavailableError):
        await runner(behave).run(exec_action())


# sleep and the others


async def test_sleep_waits() -> None:
    result = await run(Hook(HookKind.SLEEP, seconds=0.05))

    assert result.error == ""
    assert result.seconds >= 0.05


async def test_sleep_is_cut_when_the_grace_period_is_used_up() -> None:
    result = await run(Hook(HookKind.SLEEP, seconds=float(2**62)), seconds=0.01)

    assert result.error == "sleep was cancelled, because it had not finished when the grace period ended (0s)"
    assert 0.01 <= result.seconds < 10


@pytest.mark.parametrize(
    ("hook", "error"),
    [
        (Hook(HookKind.TCP_SOCKET), "tcpSocket is not supported as a preStop hook"),
        (Hook(HookKind.INVALID, error="the preStop hook is odd"), "the preStop hook is odd"),
    ],
)
async def test_what_cannot_be_run_is_an_error(hook: Hook, error: str) -> None:
    assert (await run(hook)).error == error


# httpGet


@dataclass
class Server:
    """An HTTP server on loopback and what it was asked."""

    port: int = 0
    asked: list[web.Request] = field(default_factory=list)
    answer: Callable[[web.Request], Awaitable[web.StreamResponse]] | None = None

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(request)
        return await self.answer(request) if self.answer else web.Response(text="bye")


Serve = Callable[..., Awaitable[Server]]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    runners: list[web.AppRunner] = []

    async def start(host: str = "127.0.0.1", context: ssl.SSLContext | None = None) -> Server:
        server = Server()
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", server.handle)
        app_runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1)
        runners.append(app_runner)
        await app_runner.setup()
        site = web.TCPSite(app_runner, host, 0, ssl_context=context)
        await site.start()
        server.port = int(app_runner.addresses[0][1])
        return server

    yield start
    for app_runner in runners:
        await app_runner.cleanup()


@pytest.fixture(scope="module")
def tls() -> ssl.SSLContext:
    """A server's context with a certificate that has expired, for another name, of an authority that nobody knows."""
    expired = dt.datetime.now(dt.UTC) - dt.timedelta(days=1)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    trustme.CA().issue_cert("somebody.else", not_after=expired).configure_cert(context)
    return context


async def test_http_get_goes_to_the_pods_ip(serve: Serve) -> None:
    server = await serve()

    result = await run(Hook(HookKind.HTTP_GET, port=server.port, path="/bye/%41 ü?now=1&x=%20y#part"))

    assert result.error == ""
    (request,) = server.asked
    assert (request.method, request.raw_path) == ("GET", "/bye/%41%20%C3%BC?now=1&x=%20y")
    assert request.headers["Host"] == f"127.0.0.1:{server.port}"
    assert request.headers["User-Agent"] == f"crrd/{__version__}"
    assert request.headers["Accept"] == "*/*"


@pytest.mark.parametrize(("path", "sent"), [("", "/"), ("bye", "/bye"), ("//evil.example/x", "//evil.example/x")])
async def test_http_get_paths(serve: Serve, path: str, sent: str) -> None:
    server = await serve()

    assert (await run(Hook(HookKind.HTTP_GET, port=server.port, path=path))).error == ""
    assert [request.raw_path for request in server.asked] == [sent]


async def test_http_get_sends_the_hooks_headers(serve: Serve) -> None:
    server = await serve()
    headers = (("Host", "shop.example"), ("X-A", "1"), ("x-a", "2"), ("user-agent", "me"), ("Accept", ""))

    assert (await run(Hook(HookKind.HTTP_GET, port=server.port, headers=headers))).error == ""

    sent = server.asked[0].headers
    assert sent["Host"] == "shop.example"
    assert sent.getall("X-A") == ["1", "2"]
    assert sent.getall("User-Agent") == ["me"]
    assert "Accept" not in sent


@pytest.mark.parametrize("port", ["web", "number"])
async def test_http_get_resolves_ports_as_kubelet_does(serve: Serve, port: str) -> None:
    server = await serve()
    wanted = "web" if port == "web" else str(server.port)

    result = await run(Hook(HookKind.HTTP_GET, port=wanted), ports=(("web", server.port), ("web", 1), ("admin", 2)))

    assert result.error == ""
    assert len(server.asked) == 1


@pytest.mark.parametrize("port", ["nix", "0", "70000", "999999999", "000080", "-1", "٣", 0, 65536])
async def test_http_get_without_a_port_is_an_error(port: int | str) -> None:
    result = await run(Hook(HookKind.HTTP_GET, port=port), ports=(("web", 80),))

    assert result.error == (
        f"httpGet could not be sent: {port!r} is neither a port number nor the name of one of the ports"
    )


async def test_http_get_to_a_named_host(serve: Serve) -> None:
    server = await serve()

    assert (await run(Hook(HookKind.HTTP_GET, host="localhost", port=server.port), pod_ip="")).error == ""
    assert server.asked[0].headers["Host"] == f"localhost:{server.port}"


async def test_http_get_needs_somewhere_to_go() -> None:
    assert (await run(Hook(HookKind.HTTP_GET, port=80), pod_ip="")).error == (
        "httpGet could not be sent: the pod's IP is not known"
    )


@pytest.mark.parametrize("host", ["[::1]", "::1"])
async def test_http_get_to_ipv6(serve: Serve, host: str) -> None:
    try:
        server = await serve("::1")
    except OSError:
        pytest.skip("no IPv6 on this machine's loopback")

    assert (
        await run(Hook(HookKind.HTTP_GET, host=host if host[0] == "[" else "", port=server.port), pod_ip=host)
    ).error == ""
    assert server.asked[0].headers["Host"] == f"[::1]:{server.port}"


async def test_a_host_cannot_name_another_port_and_path(serve: Serve) -> None:
    server = await serve()
    result = await run(Hook(HookKind.HTTP_GET, host=f"127.0.0.1:{server.port}/x?", port=80))
    assert "is not a host name" in result.error
    assert server.asked == []


async def test_the_lowest_port_is_one() -> None:
    result = await run(Hook(HookKind.HTTP_GET, port=1))
    assert result.error.startswith("httpGet http://127.0.0.1:1 failed: ")


async def test_an_answer_is_neither_unpacked_nor_its_connection_kept(serve: Serve) -> None:
    server = await serve()

    async def packed(_: web.Request) -> web.Response:
        return web.Response(body=b"not gzip at all", headers={"Content-Encoding": "gzip"})

    server.answer = packed
    assert (await run(Hook(HookKind.HTTP_GET, port=server.port))).error == ""
    assert server.asked[0].headers["Connection"] == "close"


@pytest.mark.parametrize("host", ["evil.example/x", "a@b", "a b", "a\r\nX: y", "\ud800", "ü" * 100])
async def test_http_get_to_what_is_no_host_is_an_error(host: str) -> None:
    result = await run(Hook(HookKind.HTTP_GET, host=host, port=80))

    assert result.error.startswith("httpGet http://")
    assert result.error.isprintable()


@pytest.mark.parametrize("header", [("X-A", "1\r\nX-B: 2"), ("X A\r\n", "1")])
async def test_http_get_with_an_impossible_header_is_an_error(serve: Serve, header: tuple[str, str]) -> None:
    server = await serve()

    result = await run(Hook(HookKind.HTTP_GET, port=server.port, headers=(header,)), seconds=5)

    assert "failed" in result.error
    assert server.asked == []


@pytest.mark.parametrize("status", [204, 404, 500, 304])
async def test_any_answer_is_a_success(serve: Serve, status: int) -> None:
    server = await serve()

    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=status)

    server.answer = answer

    assert (await run(Hook(HookKind.HTTP_GET, port=server.port))).error == ""


async def test_a_long_header_is_an_answer_too(serve: Serve) -> None:
    server = await serve()

    async def answer(_: web.Request) -> web.Response:
        return web.Response(headers={"X-Long": "x" * 70_000})

    server.answer = answer

    assert (await run(Hook(HookKind.HTTP_GET, port=server.port))).error == ""


async def test_a_head_without_end_is_not_kept() -> None:
    sent = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n")
        with suppress(ConnectionError):
            for number in range(120):
                writer.write(b"X-%d: " % number + b"x" * 1_000_000 + b"\r\n")
                await writer.drain()
                sent += 1
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        result = await run(Hook(HookKind.HTTP_GET, port=port))

    assert "the response is not HTTP" in result.error
    assert sent < 20  # millions of bytes; sockets keep a few


async def test_an_answer_that_is_no_http_is_told_without_a_status_that_nobody_sent() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b"SSH-2.0-OpenSSH_9.2\r\n")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        result = await run(Hook(HookKind.HTTP_GET, port=port))

    assert result.error.startswith(f"httpGet http://127.0.0.1:{port}: the response is not HTTP: ")
    assert "400" not in result.error.replace(str(port), "PORT")


async def test_a_hooks_headers_say_nothing_of_a_body_that_is_not_sent(serve: Serve) -> None:
    server = await serve()
    headers = (("Content-Length", "5"), ("transfer-encoding", "chunked"), ("X-Own", "yes"))

    assert (await run(Hook(HookKind.HTTP_GET, port=server.port, headers=headers))).error == ""

    (asked,) = server.asked
    assert asked.headers["X-Own"] == "yes"
    assert not {"Content-Length", "Transfer-Encoding"} & asked.headers.keys()


async def test_nobody_there_is_an_error(serve: Serve, unused_tcp_port: int) -> None:
    result = await run(Hook(HookKind.HTTP_GET, port=unused_tcp_port))

    assert result.error.startswith(f"httpGet http://127.0.0.1:{unused_tcp_port} failed: ")


async def test_who_hangs_up_is_an_error() -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.close()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as server:
        result = await run(Hook(HookKind.HTTP_GET, port=server.sockets[0].getsockname()[1]))

    assert "failed" in result.error


async def test_who_never_answers_is_cut_off(serve: Serve) -> None:
    server = await serve()
    gone = asyncio.Event()

    async def answer(_: web.Request) -> web.Response:
        try:
            await asyncio.Event().wait()
        finally:
            gone.set()
        raise AssertionError

    server.answer = answer

    result = await run(Hook(HookKind.HTTP_GET, port=server.port), seconds=0.2)

    assert result.error.startswith("httpGet was cancelled")
    await asyncio.wait_for(gone.wait(), 20)


async def test_a_small_body_is_waited_for(serve: Serve) -> None:
    """A handler may answer first and work then; kubelet reads up to 10 KiB, and so waits for it."""
    server = await serve()
    worked = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"begun")
        worked.set()
        await response.write_eof(b"done")
        return response

    server.answer = answer

    assert (await run(Hook(HookKind.HTTP_GET, port=server.port))).error == ""
    assert worked.is_set()


async def test_a_body_counts_as_it_is_sent(serve: Serve) -> None:
    """What would be large when unpacked is waited for as long as what is small."""
    server = await serve()
    worked = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Encoding": "gzip"})
        await response.prepare(request)
        await response.write(gzip.compress(bytes(20 * 1024)))
        await asyncio.sleep(0.2)  # cancelled when the client hangs up
        worked.set()
        return response

    server.answer = answer

    assert (await run(Hook(HookKind.HTTP_GET, port=server.port))).error == ""
    assert worked.is_set()


async def test_an_endless_body_is_not_read_to_its_end(serve: Serve) -> None:
    server = await serve()

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b"x" * 4096)

    server.answer = answer

    assert (await run(Hook(HookKind.HTTP_GET, port=server.port))).error == ""


async def test_a_body_is_read_up_to_kubelets_limit(serve: Serve) -> None:
    server = await serve()

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"x" * 10 * 1024)
        await asyncio.Event().wait()
        return response

    server.answer = answer

    assert (await run(Hook(HookKind.HTTP_GET, port=server.port))).error == ""


async def test_a_body_that_breaks_off_is_no_failure(serve: Serve) -> None:
    server = await serve()

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "100"})
        await response.prepare(request)
        await response.write(b"x")
        assert request.transport is not None
        request.transport.close()
        return response

    server.answer = answer

    assert (await run(Hook(HookKind.HTTP_GET, port=server.port))).error == ""


# redirects


def redirecting(
    target: Callable[[web.Request], str], status: int = 302
) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def answer(request: web.Request) -> web.Response:
        if request.path == "/end":
            return web.Response()
        return web.Response(status=status, headers={"Location": target(request)})

    return answer


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_on_the_same_host_is_followed(serve: Serve, status: int) -> None:
    server = await serve()
    server.answer = redirecting(lambda _: "/end", status)

    assert (await run(Hook(HookKind.HTTP_GET, port=server.port, headers=(("Host", "shop"), ("X-A", "1"))))).error == ""

    assert [(request.path, request.headers["Host"], request.headers["X-A"]) for request in server.asked] == [
        ("/", "shop", "1"),
        ("/end", "shop", "1"),
    ]


async def test_a_redirect_to_another_port_of_the_host_is_followed(serve: Serve) -> None:
    server, other = await serve(), await serve()
    server.answer = redirecting(lambda _: f"http://127.0.0.1:{other.port}/end")

    assert (await run(Hook(HookKind.HTTP_GET, port=server.port, headers=(("Host", "shop"),)))).error == ""

    assert [request.headers["Host"] for request in other.asked] == [f"127.0.0.1:{other.port}"]


@pytest.mark.parametrize("target", ["http://localhost:{port}/end", "//localhost:{port}/end", "ftp://127.0.0.1/", ""])
async def test_a_redirect_elsewhere_is_the_answer_itself(serve: Serve, target: str) -> None:
    """Kubelet does not let a pod send it to other hosts."""
    server, other = await serve(), await serve("localhost")
    server.answer = redirecting(lambda _: target.format(port=other.port))

    assert (await run(Hook(HookKind.HTTP_GET, port=server.port))).error == ""

    assert (len(server.asked), len(other.asked)) == (1, 0)


async def test_redirects_are_followed_ten_times(serve: Serve) -> None:
    server = await serve()
    server.answer = redirecting(lambda _: "/again")

    result = await run(Hook(HookKind.HTTP_GET, port=server.port))

    assert "stopped after 10 redirects" in result.error
    assert len(server.asked) == 10


async def test_a_redirect_that_cannot_be_read_is_an_error(serve: Serve) -> None:
    server = await serve()
    server.answer = redirecting(lambda _: "http://[")

    assert "failed" in (await run(Hook(HookKind.HTTP_GET, port=server.port))).error


# https


async def test_https_is_not_verified(serve: Serve, tls: ssl.SSLContext) -> None:
    server = await serve(context=tls)

    assert (await run(Hook(HookKind.HTTP_GET, port=server.port, scheme="https"))).error == ""
    assert server.asked[0].scheme == "https"


async def test_https_to_an_http_server_falls_back(serve: Serve) -> None:
    server = await serve()
    headers = (("Authorization", "Bearer secret"), ("X-A", "1"))

    result = await run(Hook(HookKind.HTTP_GET, port=server.port, scheme="https", path="/bye?x", headers=headers))

    assert result.error == ""
    request = server.asked[-1]
    assert (request.raw_path, request.headers["X-A"]) == ("/bye?x", "1")
    assert "Authorization" not in request.headers


async def test_https_to_a_plain_server_falls_back() -> None:
    """One that answers a TLS hello with HTTP, as Go's and nginx do."""
    lines: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        lines.append(await reader.read(1000))
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        result = await run(Hook(HookKind.HTTP_GET, port=server.sockets[0].getsockname()[1], scheme="https"))

    assert result.error == ""
    assert [line[:3] for line in lines] == [b"\x16\x03\x01", b"GET"]


async def test_https_to_a_server_that_refuses_tls_is_an_error() -> None:
    hellos: list[bytes] = []

    async def alert(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        hellos.append(await reader.read(1000))
        writer.write(bytes((0x15, 3, 3, 0, 2, 2, 40)))  # a fatal alert: handshake_failure
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(alert, "127.0.0.1", 0) as server:
        result = await run(Hook(HookKind.HTTP_GET, port=server.sockets[0].getsockname()[1], scheme="https"))

    assert result.error.startswith("httpGet https://127.0.0.1")
    assert [hello[:3] for hello in hellos] == [b"\x16\x03\x01"], "and it is not sent the hook in plain text"
