"""A real Prometheus is asked about pods: each kind of result, its errors, and its way to read regular expressions."""

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest
import trustme
from aiohttp import web

from crrd.core.judge.metrics import Metric
from crrd.core.judge.verdicts import Holds, Verdict
from crrd.rollout.metrics import Prometheus, token_of_file
from tests.support import prometheus as support
from tests.support.scripted_api import Reply, scripted_api

pytestmark = pytest.mark.skipif(bool(support.missing()), reason=support.missing())

PAGE = b"""
errors{namespace="shop",pod="web-0"} 0.5
errors{namespace="shop",pod="web.1"} 0.25
errors{namespace="shop",pod="webx1"} 100
errors{namespace="shop",pod="web-10"} 100
errors{namespace="other",pod="web-0"} 100
requests{namespace="shop",pod="web-0"} 0
requests{namespace="shop",pod="web.1"} 0
"""
PODS, OTHERS = ["web-0"], ["web.1"]
BOTH = [*PODS, *OTHERS]
OWN = '{namespace="{{namespace}}",pod=~"{{pods}}"}'
YES, NO, UNKNOWN = Holds
CASES: list[tuple[str, str, list[str], Holds, str]] = [
    ("a number", f"scalar(sum(errors{OWN}))", BOTH, NO, "0.75 is above 0.3"),
    ("a vector of one", f"sum(errors{OWN})", OTHERS, YES, "0.25 is not above 0.3"),
    ("a vector", f"avg by (pod) (errors{OWN})", BOTH, NO, '0.5 is above 0.3 for {pod="web-0"}'),
    ("a vector that holds", f"avg by (pod) (requests{OWN})", BOTH, YES,
     '0 is not above 0.3 for {pod="web.1"}, the worst of 2 values'),
    ("other quotes", "sum(errors{namespace='{{namespace}}',pod=~`{{pods}}`})", OTHERS, YES, "0.25 is not above 0.3"),
    ("inside of an expression", 'sum(errors{namespace="shop",pod=~"{{pods}}0"})', ["web-", "web-1"], NO,
     "100.5 is above 0.3"),
    ("NaN", f"sum(requests{OWN}) / sum(requests{OWN})", BOTH, UNKNOWN, "NaN cannot be compared"),
    ("infinite", f"sum(errors{OWN}) / sum(requests{OWN})", BOTH, NO, "+Inf is above 0.3"),
    ("no data", f"sum(absent{OWN})", BOTH, UNKNOWN, "no data"),
    ("no such pods", f"sum(errors{OWN})", ["web-7"], UNKNOWN, "no data"),
    ("many pods", f"sum(errors{OWN})", ["web.1", *(f"{'a' * 200}-{at}.{at}" for at in range(5000))], YES,
     "0.25 is not above 0.3"),
    ("a text", '"text"', BOTH, UNKNOWN, "the query gives a string, but must give a number or an instant vector"),
    ("a range", "errors[1m]", BOTH, UNKNOWN, "the query gives a matrix, but must give a number or an instant vector"),
    ("no query", "sum(", BOTH, UNKNOWN, "the server answers HTTP 400: invalid parameter"),
    ("a query that fails", "errors * on(namespace) errors", BOTH, UNKNOWN, "the server answers HTTP 422: "),
]  # fmt: skip


async def page(_: web.Request) -> web.StreamResponse:
    return web.Response(body=PAGE, content_type="text/plain")


@asynccontextmanager
async def scraped(folder: Path) -> AsyncIterator[support.Prometheus]:
    """A Prometheus that knows PAGE."""
    app = web.Application()
    app.router.add_get("/metrics", page)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.01)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        async with support.Prometheus(folder, {"pods": {"all": f"{host}:{port}"}}) as prometheus:
            await prometheus.until("count(errors)", lambda value: value == 5)
            yield prometheus
    finally:
        await runner.cleanup()


def behind_a_token(prometheus: support.Prometheus) -> Reply:
    """Return a reverse proxy that lets in the bearer of a token."""

    async def pass_on(request: web.Request) -> web.StreamResponse:
        if request.headers.get("Authorization") != "Bearer secret":
            return web.json_response({"status": "error", "error": "unknown token"}, status=401)
        headers = {"Content-Type": request.headers["Content-Type"]}
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{prometheus.url}{request.path}", data=await request.read(), headers=headers) as answer,
        ):
            return web.Response(body=await answer.read(), status=answer.status)

    return pass_on


async def test_what_prometheus_answers(tmp_path: Path) -> None:
    asking = Prometheus(token_of_file, None, {})
    async with scraped(tmp_path / "prometheus") as prometheus:
        for name, query, pods, holds, message in CASES:
            verdict = await asking.ask(Metric(prometheus.url, query, high=0.3), pods, [], "shop")
            assert verdict.holds is holds, f"{name}: {verdict}"
            assert verdict.message.startswith(message), f"{name}: {verdict}"
            assert holds is UNKNOWN or verdict.message == message, f"{name}: {verdict}"

        baseline = Metric(prometheus.url, f"sum(errors{OWN})", high=0.3, baseline=True)
        assert await asking.ask(baseline, PODS, OTHERS, "shop") == Verdict(YES, "0.5 - 0.25 = 0.25 is not above 0.3")
        verdict = await asking.ask(baseline, PODS, ["web-7"], "shop")
        assert verdict == Verdict(UNKNOWN, "for the other pods: no data")

        found, authority = [], trustme.CA()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("127.0.0.1").configure_cert(context)
        files = {given: tmp_path / given for given in ("secret", "other")}
        for given, file in files.items():
            file.write_text(f"{given}\n")
        metric = Metric("", f"sum(errors{OWN})", high=0.6, ca=authority.cert_pem.bytes().decode())
        async with scripted_api(context) as api:
            for file in files.values():
                api.then(behind_a_token(prometheus))
                asked = replace(metric, address=api.url, token_file=str(file))
                found.append(await asking.ask(asked, PODS, [], "shop"))
        assert found == [
            Verdict(YES, "0.5 is not above 0.6"),
            Verdict(UNKNOWN, "the server answers HTTP 401: unknown token"),
        ]
