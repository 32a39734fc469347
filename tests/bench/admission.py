"""How long admission takes: calls over TLS at a fixed rate, a webhook on one core, pods from an API stand-in over HTTP.

Run from the project's root: `python -m tests.bench.admission [--rate 100] [--seconds 10]`. New requests are completed
and the completed ones validated in turn; each call looks the pod up, as in a cluster. The rate is kept whatever the
answers take, so that a slow answer does not hide the ones that would have waited behind it.
"""

import argparse
import asyncio
import json
import os
import ssl
import sys
import time
from pathlib import Path
from statistics import quantiles

import aiohttp
from aiohttp import web

from crrd.kube.client import KubeClient
from crrd.lib.health import Health
from crrd.lib.log import configure
from crrd.manager.certificates.tls import ServingTls
from crrd.manager.metrics import ManagerMetrics
from crrd.manager.webhook.server import WebhookServer
from tests.support.admission import new_pod, new_request, new_review
from tests.support.scripted_api import FixedAccess
from tests.support.webhook import QUICK, load, new_certificates

WARM_UP = 50
ASKED = "/mutate-crr?timeout=10s", json.dumps(new_review(new_request())).encode()
"""A call: its path and its body."""


async def serve(api: str, core: int) -> None:
    """The webhook alone, on one core, until its standard input ends.

    Tells address and authority on one line, and at the end on another how long each call took from its head to its
    answer, and for how many seconds the core was used and waited for (that is other work on this machine).
    """
    os.sched_setaffinity(0, {core})
    configure("json", "warning")
    tls, certificates = ServingTls(), new_certificates()
    load(tls, certificates)
    took: list[float] = []
    metrics = ManagerMetrics()

    def reviewed(webhook: str, decision: str, reason: str, seconds: float) -> None:
        took.append(seconds)
        metrics.reviewed(webhook, decision, reason, seconds)

    async with KubeClient(FixedAccess(api), on_call=metrics.api_call) as client:
        server = WebhookServer(
            "127.0.0.1:0",
            tls,
            client,
            Health(),
            limits=QUICK,
            on_review=reviewed,
            on_admitted=metrics.admitted,
        )
        address = await server.start()
        print(json.dumps({"address": address, "ca": certificates.bundle.decode()}), flush=True)
        before = scheduled()
        await asyncio.to_thread(sys.stdin.read)
        used, waited = scheduled()
        print(json.dumps({"took": took, "used": used - before[0], "waited": waited - before[1]}), flush=True)
        await server.drain()


def scheduled() -> tuple[float, float]:
    """For how many seconds this thread has used a core, and has waited for one."""
    used, waited, _ = Path("/proc/thread-self/schedstat").read_text(encoding="ascii").split()
    return int(used) / 1e9, int(waited) / 1e9


async def pod_api() -> tuple[web.AppRunner, str]:
    """Answers every GET with the same pod."""
    pod = json.dumps(new_pod()).encode()

    async def get(_: web.Request) -> web.Response:
        return web.Response(body=pod, content_type="application/json")

    app = web.Application()
    app.router.add_get("/{path:.*}", get)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return runner, f"http://127.0.0.1:{runner.addresses[0][1]}"


async def measure(url: str, tls: ssl.SSLContext, rate: float, seconds: float) -> list[float]:
    """Seconds that each call took, from when it was sent."""
    headers = {"Content-Type": "application/json"}
    connector = aiohttp.TCPConnector(ssl=tls, limit=0)
    async with aiohttp.ClientSession(connector=connector, headers=headers) as session:

        async def call(path: str, body: bytes) -> float:
            began = time.perf_counter()
            async with session.post(url + path, data=body) as response:
                answer = json.loads(await response.read())
                if not answer["response"]["allowed"]:
                    raise RuntimeError(answer)
            return time.perf_counter() - began

        for _ in range(WARM_UP):
            await call(*ASKED)
        tasks, began = [], time.perf_counter()
        for number in range(int(rate * seconds)):
            due = began + number / rate
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            tasks.append(asyncio.create_task(call(*ASKED)))
        return await asyncio.gather(*tasks)


async def run(rate: float, seconds: float) -> None:
    cores = sorted(os.sched_getaffinity(0))
    runner, api = await pod_api()
    server = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.bench.admission", "--serve", api, "--core", str(cores[-1]),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert server.stdin is not None
    assert server.stdout is not None
    try:
        os.sched_setaffinity(0, set(cores[:-1]) or set(cores))
        ready = json.loads(await server.stdout.readline())
        tls = ssl.create_default_context(cadata=ready["ca"])
        lateness = asyncio.create_task(late())
        took = await measure(f"https://{ready['address']}", tls, rate, seconds)
        lateness.cancel()
        await asyncio.wait([lateness])
        server.stdin.close()
        inside = json.loads(await server.stdout.readline())
    finally:
        server.stdin.close()
        await server.wait()
        await runner.cleanup()
    print(f"admission at {rate:.0f}/s for {seconds:.0f} s, {len(took)} calls over TLS, the webhook on one core:")
    print(f"  as the caller sees it   {summary(took)}")
    print(f"  within the webhook      {summary(inside['took'][WARM_UP:])}")
    used, waited = (inside[key] / len(inside["took"]) * 1000 for key in ("used", "waited"))
    print(f"  per call the webhook used its core for {used:.2f} ms and waited {waited:.2f} ms for it")
    print(f"  for comparison, sleeps of 10 ms in the caller were late by: {summary(LATE)}")


LATE: list[float] = []


async def late() -> None:
    """How late this machine is by itself: other work on it shows here too."""
    while True:
        began = time.perf_counter()
        await asyncio.sleep(0.01)
        LATE.append(time.perf_counter() - began - 0.01)


def summary(seconds: list[float]) -> str:
    cuts = quantiles(seconds, n=100)
    return f"p50 {cuts[49] * 1000:.2f} ms, p99 {cuts[98] * 1000:.2f} ms, longest {max(seconds) * 1000:.2f} ms"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "-").splitlines()[0])
    parser.add_argument("--rate", type=float, default=100.0, help="calls a second (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=10.0, help="how long (default: %(default)s)")
    parser.add_argument("--serve", metavar="API", help=argparse.SUPPRESS)
    parser.add_argument("--core", type=int, default=0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    asyncio.run(serve(args.serve, args.core) if args.serve else run(args.rate, args.seconds))


if __name__ == "__main__":
    main()
