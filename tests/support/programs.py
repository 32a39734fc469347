"""The parts of a local node as separate programs, so that each can be killed and restarted.

Run as `python -m tests.support.programs api|kubelet|runtime`. SIGTERM and SIGINT end them gracefully.
"""

import argparse
import asyncio
from contextlib import suppress
from pathlib import Path

from aiohttp import web

from crrd.kube.client import KubeClient
from crrd.kube.config import KubeconfigAccess
from crrd.lib.signals import stop_on_signals
from crrd_localnode.api.admission import User
from crrd_localnode.api.front import Front
from crrd_localnode.api.routing import Route
from crrd_localnode.apiserver import ApiServer
from crrd_localnode.kubelet import Kubelet, Timing
from crrd_localnode.runtime import ProcessRuntime
from tests.bench.latency import pass_time

MODULE = "tests.support.programs"


class LateFront(Front):
    """Responds with the latency of a real API server."""

    async def serve(self, request: web.BaseRequest, route: Route, user: User) -> web.StreamResponse:
        await pass_time(request.method)
        return await super().serve(request, route, user)


class LateApiServer(ApiServer):
    FRONT = LateFront


async def _api(arguments: argparse.Namespace) -> None:
    ended = stop_on_signals()
    async with (LateApiServer if arguments.late else ApiServer)() as server:
        server.kubeconfig(arguments.kubeconfig_out)
        print(server.url, flush=True)
        await ended.wait()


async def _kubelet(arguments: argparse.Namespace) -> None:
    ended = stop_on_signals()
    async with KubeClient(KubeconfigAccess(arguments.kubeconfig)) as client:
        timing = Timing(backoff=arguments.backoff, relist=arguments.relist)
        kubelet = Kubelet(client, arguments.cri_endpoint, arguments.node_name, arguments.root, timing)
        starting = asyncio.create_task(kubelet.start())
        try:
            await ended.wait()
        finally:
            starting.cancel()
            with suppress(asyncio.CancelledError):
                await starting
            await kubelet.stop()


async def _runtime(arguments: argparse.Namespace) -> None:
    ended = stop_on_signals()
    runtime = ProcessRuntime(arguments.root, arguments.socket)
    await runtime.start()
    try:
        await ended.wait()
    finally:
        await runtime.stop()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"python -m {MODULE}")
    programs = parser.add_subparsers(required=True)
    api = programs.add_parser("api")
    api.set_defaults(run=_api)
    api.add_argument("--kubeconfig-out", type=Path, required=True)
    api.add_argument("--late", action="store_true")
    kubelet = programs.add_parser("kubelet")
    kubelet.set_defaults(run=_kubelet)
    for flag in ("--kubeconfig", "--cri-endpoint", "--node-name"):
        kubelet.add_argument(flag, required=True)
    kubelet.add_argument("--root", type=Path, required=True)
    kubelet.add_argument("--backoff", type=float, default=Timing().backoff)
    kubelet.add_argument("--relist", type=float, default=Timing().relist)
    runtime = programs.add_parser("runtime")
    runtime.set_defaults(run=_runtime)
    runtime.add_argument("--root", type=Path, required=True)
    runtime.add_argument("--socket", type=Path, required=True)
    return parser


if __name__ == "__main__":
    given = _parser().parse_args()
    asyncio.run(given.run(given))
