"""Prometheus is asked over real sockets, and whatever it does instead of answering is a verdict."""

import asyncio
import base64
import socket
import ssl
import zlib
from collections.abc import Collection, Sequence
from pathlib import Path
from urllib.parse import parse_qs

import pytest
import trustme
from aiohttp import web

from crrd.core.judge.metrics import Metric
from crrd.core.judge.verdicts import Holds, Verdict
from crrd.core.rollout.parts import Part, PartState
from crrd.core.rollout.phases import Stage
from crrd.core.rollout.plan import Plan
from crrd.core.rollout.requests import RunRequest
from crrd.core.rollout.rows import Row
from crrd.core.rollout.waits import Skip
from crrd.kube.client import KubeClient
from crrd.rollout import metrics as module
from crrd.rollout.judge import MetricsJudge
from crrd.rollout.metrics import Prometheus, token_of_file, token_of_secret
from tests.support.rollouts import NOW, failed, member, run, succeeded
from tests.support.scripted_api import FixedAccess, Reply, ScriptedApi, refuse, reply, scripted_api

QUERY = 'errors{pod=~"{{pods}}",namespace="{{namespace}}"}'
AUTHORITY = trustme.CA()
CA = AUTHORITY.cert_pem.bytes().decode()
NOT_ASCII = "the bearer token must be one line of ASCII characters without spaces"


async def no_token(metric: Metric, namespace: str) -> str:
    raise AssertionError(f"no metric needs a token: {metric} in {namespace}")


def value(number: str) -> Reply:
    return reply({"status": "success", "data": {"resultType": "scalar", "result": [1, number]}})


def asking(allow: Sequence[str] | None = None, **environ: str) -> Prometheus:
    return Prometheus(no_token, allow, environ)


async def ask(metric: Metric, prometheus: Prometheus | None = None) -> Verdict:
    return await (prometheus or asking()).ask(metric, ["web-1", "web-0"], ["web-2.a"], "shop")


def forms(api: ScriptedApi) -> list[dict[str, list[str]]]:
    return [parse_qs(each.decode()) for each in api.bodies]


@pytest.fixture
def tls() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    AUTHORITY.issue_cert("127.0.0.1").configure_cert(context)
    return context


async def test_a_query_is_a_form() -> None:
    async with scripted_api() as api:
        api.then(value("0.01"))
        verdict = await ask(Metric(f"{api.url}/prefix/", QUERY, high=0.05))
    assert verdict == Verdict(Holds.YES, "0.01 is not above 0.05")
    (seen,) = api.seen
    assert (seen.method, seen.path_qs) == ("POST", "/prefix/api/v1/query")
    assert seen.headers["Host"] == api.url.removeprefix("http://")
    assert "Authorization" not in seen.headers
    assert forms(api) == [{"query": ['errors{pod=~"(?:web-0|web-1)",namespace="shop"}'], "timeout": ["10s"]}]


async def test_a_baseline_asks_for_the_other_pods_too() -> None:
    async with scripted_api() as api:

        async def by_pods(_: web.Request) -> web.StreamResponse:
            return await value("0.25" if b"web-1" in api.bodies[-1] else "0.125")(_)

        api.then(by_pods, by_pods)
        metric = Metric(api.url, QUERY, high=0.05, baseline=True)
        assert await ask(metric) == Verdict(Holds.NO, "0.25 - 0.125 = 0.125 is above 0.05")
        assert {"web-2[.]a" in form["query"][0] for form in forms(api)} == {True, False}
        api.then(value("1"))
        verdict = await asking().ask(metric, ["web-1"], [], "shop")
        assert verdict == Verdict(Holds.YES, "not compared, because no other pods are left")


async def test_an_address_that_is_not_allowed_is_not_asked() -> None:
    async with scripted_api() as api:
        metric = Metric(api.url, QUERY, high=0.05)
        verdict = await ask(metric, asking(allow=()))
        assert verdict.holds is Holds.UNKNOWN
        assert verdict.message.startswith(f"the manager may not ask {api.url}: ")
        assert api.seen == []
        api.then(value("1"))
        assert (await ask(metric, asking(allow=[api.url]))).holds is Holds.NO


async def test_a_redirect_is_not_followed() -> None:
    async with scripted_api() as other, scripted_api() as api:
        for status in (301, 302, 303, 307, 308):
            api.then(reply({}, status, {"Location": f"{other.url}/api/v1/query"}))
            verdict = await ask(Metric(api.url, QUERY, high=0.05))
            assert verdict.holds is Holds.UNKNOWN
            assert verdict.message.startswith(f"the server answers HTTP {status}: redirects are not followed")
    assert other.seen == []


async def cut_off(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def endless(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(b" " * 2**16)


COMPRESSED = zlib.compress(b" " * 2**24)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (reply({"status": "error", "error": "parse error"}, 400), "the server answers HTTP 400: parse error"),
        (reply(b"<html>", 502), "the server answers HTTP 502"),
        (reply(b"not JSON"), "the server answers HTTP 200"),
        (reply(b"[" * 2**19), "the server answers HTTP 200"),
        (reply(COMPRESSED, headers={"Content-Encoding": "deflate"}), "the server answers HTTP 200"),
        (reply(b" " * (2**20 + 1)), "the answer has more than 1 MiB: make the query more specific"),
        (endless, "the answer has more than 1 MiB: make the query more specific"),
        (cut_off, "Server disconnected"),
        (value("NaN"), "NaN cannot be compared"),
    ],
)
async def test_what_is_no_answer(answer: Reply, message: str) -> None:
    async with scripted_api() as api:
        api.then(answer)
        assert await ask(Metric(api.url, QUERY, high=0.05)) == Verdict(Holds.UNKNOWN, message)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\r\n",
        b"\x16\x03\x01\x02\x00",
        b"SSH-2.0-OpenSSH_9\r\n",
        b"HTTP/9.9 abc\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno header\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nA: " + b"x" * 2**17 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: br\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
        b"HTTP/1.1 204 No Content\r\n\r\n",
        b"HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: Digest x\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 302 Found\r\nLocation: http://[\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nSet-Cookie: \xff=\x80\r\nContent-Length: 2\r\n\r\n{}",
    ],
    ids=repr,
)
async def test_what_is_no_http(answer: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"timeout=10s")
        writer.write(answer)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        verdict = await ask(Metric(f"http://{host}:{port}", QUERY, high=0.05))
    assert verdict.holds is Holds.UNKNOWN
    assert verdict.message
    assert verdict.message.isprintable()
    assert len(verdict.message) <= 1024


async def test_a_server_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SECONDS", 0.1)
    async with scripted_api() as api:
        assert await ask(Metric(api.url, QUERY, high=0.05)) == Verdict(Holds.UNKNOWN, "no answer within 0s")


async def test_a_port_without_a_server() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        host = f"127.0.0.1:{taken.getsockname()[1]}"
        verdict = await ask(Metric(f"http://{host}", QUERY, high=0.05))
    assert verdict == Verdict(Holds.UNKNOWN, f"cannot connect to {host}: Connection refused")


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        (Metric("http://127.0.0.1@evil", QUERY, high=1), "an address like https://prometheus.example"),
        (Metric("https://127.0.0.1:1", QUERY, high=1, ca="none"), "ca: the TLS certificates cannot be used: the CA"),
        (
            Metric("http://127.0.0.1:1", QUERY, high=1, token_file=__file__),
            "a bearer token needs an address with https",
        ),
        (Metric("https://127.0.0.1:1", "{{pods}}", high=1, token_file="/nonexistent"), "/nonexistent cannot be read"),
        (Metric(f"http://{'a' * 63}.invalid:1", QUERY, high=1), "cannot connect to "),
    ],
)
async def test_what_cannot_be_asked(metric: Metric, message: str) -> None:
    verdict = await ask(metric, Prometheus(token_of_file, None, {}))
    assert verdict.holds is Holds.UNKNOWN
    assert verdict.message.startswith(message)


async def test_without_pods_nothing_is_asked() -> None:
    async with scripted_api() as api:
        verdict = await asking().ask(Metric(api.url, QUERY, high=1), [], ["web-2"], "shop")
    assert verdict == Verdict(Holds.UNKNOWN, "there are no pods to ask about")
    assert api.seen == []


async def test_tls_with_a_ca_and_a_token(tls: ssl.SSLContext, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("secret\n")
    prometheus = Prometheus(token_of_file, None, {})
    async with scripted_api(tls) as api:
        api.then(value("1"))
        verdict = await ask(Metric(api.url, QUERY, low=1, ca=CA, token_file=str(file)), prometheus)
        assert verdict == Verdict(Holds.YES, "1 is not below 1")
        assert api.seen[0].headers["Authorization"] == "Bearer secret"


@pytest.mark.parametrize("ca", ["", trustme.CA().cert_pem.bytes().decode()], ids=["the system's", "another"])
async def test_a_certificate_of_another_ca(ca: str, tls: ssl.SSLContext, tmp_path: Path) -> None:
    """The token is not sent before the server is known."""
    file = tmp_path / "token"
    file.write_text("secret")
    async with scripted_api(tls) as api:
        verdict = await ask(
            Metric(api.url, QUERY, low=1, ca=ca, token_file=str(file)), Prometheus(token_of_file, None, {})
        )
    assert verdict.holds is Holds.UNKNOWN
    assert "certificate verify failed" in verdict.message
    assert api.seen == []


async def test_a_certificate_of_another_host() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    AUTHORITY.issue_cert("prometheus.example").configure_cert(context)
    async with scripted_api(context) as api:
        verdict = await ask(Metric(api.url, QUERY, low=1, ca=CA))
    assert "certificate verify failed: IP address mismatch" in verdict.message
    assert api.seen == []


@pytest.mark.parametrize("token", ["", "\n", "two words", "a\r\nX-Injected: b", "grün", "a\x00"])
async def test_what_is_no_token(token: str, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(token)
    verdict = await ask(
        Metric("https://127.0.0.1:1", QUERY, low=1, token_file=str(file)), Prometheus(token_of_file, None, {})
    )
    assert verdict == Verdict(Holds.UNKNOWN, NOT_ASCII)


@pytest.mark.parametrize(
    ("secret", "message"),
    [
        (reply({"metadata": {"name": "token"}, "data": {"value": base64.b64encode(b"secret").decode()}}), ""),
        (reply({"metadata": {"name": "token"}, "data": {"other": "x"}}), "the Secret token has no key value"),
        (reply({"metadata": {"name": "token"}}), "the Secret token has no key value"),
        (reply({"metadata": {"name": "token"}, "data": {"value": base64.b64encode(b"\xff").decode()}}), NOT_ASCII),
        (refuse(403, "forbidden"), "get /api/v1/namespaces/shop/secrets/token: forbidden (403)"),
        (refuse(404, "not found"), "get /api/v1/namespaces/shop/secrets/token: not found (404)"),
    ],
)  # fmt: skip
async def test_the_token_of_a_secret(secret: Reply, message: str, tls: ssl.SSLContext) -> None:
    async with scripted_api(tls) as api, scripted_api() as cluster, KubeClient(FixedAccess(cluster.url)) as client:
        cluster.then(secret)
        api.then(value("1"))
        metric = Metric(api.url, QUERY, low=1, ca=CA, token_secret="token", token_key="value")
        verdict = await ask(metric, Prometheus(token_of_secret(client), [api.url], {}))
        assert [each.path for each in cluster.seen] == ["/api/v1/namespaces/shop/secrets/token"]
        if message:
            assert verdict == Verdict(Holds.UNKNOWN, message)
            assert api.seen == []
        else:
            assert verdict.holds is Holds.YES
            assert api.seen[0].headers["Authorization"] == "Bearer secret"


async def test_the_proxy_of_the_environment() -> None:
    metric = Metric("http://prometheus.invalid:9090", QUERY, low=1)
    async with scripted_api() as proxy:
        proxy.then(value("1"))
        assert (await ask(metric, asking(HTTP_PROXY=proxy.url))).holds is Holds.YES
        assert proxy.seen[0].headers["Host"] == "prometheus.invalid:9090"
        verdict = await ask(metric, asking(HTTP_PROXY=proxy.url, NO_PROXY="prometheus.invalid"))
        assert verdict.holds is Holds.UNKNOWN
        assert len(proxy.seen) == 1
    verdict = await ask(metric, asking(HTTP_PROXY="socks5://user:password@proxy"))
    assert verdict == Verdict(
        Holds.UNKNOWN, "HTTP_PROXY must be a URL that begins with http:// or https://, or HOST:PORT"
    )


async def test_a_proxy_that_is_spoken_to_in_https(tls: ssl.SSLContext) -> None:
    metric = Metric("http://prometheus.invalid:9090", QUERY, low=1, ca=CA)
    async with scripted_api(tls) as proxy:
        proxy.then(value("1"))
        assert (await ask(metric, asking(HTTP_PROXY=proxy.url))).holds is Holds.YES
        assert proxy.seen[0].headers["Host"] == "prometheus.invalid:9090"


async def test_a_baseline_has_only_pods_that_wait_for_their_restart() -> None:
    """Those that are skipped may have the change already, for example because they are new."""
    of, sent = run(judge=60), list[tuple[list[str], list[str]]]()

    async def answer(_: Metric, restarted: Collection[str], others: Collection[str], __: str) -> Verdict:
        sent.append((list(restarted), list(others)))
        return Verdict(Holds.YES, "fine")

    def row(name: str, stage: Stage, skip: Skip | None = None, request: RunRequest | None = None) -> Row:
        return Row(name, name, stage, member=member(name), skip=skip, request=request)

    rows = (
        row("done", Stage.DONE, request=succeeded(of, member("done"))),
        row("failed", Stage.FAILED, request=failed(of, member("failed"))),
        row("starts", Stage.REQUESTED),
        row("waits", Stage.WAITING),
        row("away", Stage.PUT_OFF),
        *(row(skip.value, Stage.SKIPPED, skip) for skip in (Skip.NEW, Skip.RECENT, Skip.FRESH, Skip.HAS_IMAGE)),
    )
    judge = MetricsJudge((Metric("https://prometheus", QUERY, high=1),), answer, lambda: NOW)
    assert await judge.learn(Plan(rows, part=Part(state=PartState.JUDGING)), of)
    assert sent == [(["done"], ["waits", "away"])]
