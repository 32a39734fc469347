"""The local API server."""

import argparse
import asyncio
from pathlib import Path

from aiohttp import web

from crrd.lib.signals import stop_on_signals
from crrd_localnode.api.admission import User
from crrd_localnode.api.front import Front
from crrd_localnode.api.routing import Route
from crrd_localnode.apiserver import ApiServer
from tests.bench.latency import pass_time


class LateFront(Front):
    """Responds with the latency of a real API server."""

    async def serve(self, request: web.BaseRequest, route: Route, user: User) -> web.StreamResponse:
        await pass_time(request.method)
        return await super().serve(request, route, user)


class LateApiServer(ApiServer):
    FRONT = LateFront


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kubeconfig-out", type=Path, required=True)
    parser.add_argument("--late", action="store_true")
    arguments = parser.parse_args()
    ended = stop_on_signals()
    async with (LateApiServer if arguments.late else ApiServer)() as server:
        server.kubeconfig(arguments.kubeconfig_out)
        print(server.url, flush=True)
        await ended.wait()


if __name__ == "__main__":
    asyncio.run(main())
