"""A local API server: the part of Kubernetes' API that this project, its tests and `kubectl` need, on loopback.

It follows the real server where clients can tell the difference: resourceVersions, conflicts, watches and their
expiry, status subresources, finalizers and graceful deletion, custom resources with their schema. There is no etcd
(see `api.store`), no controllers but the few that a CRD and a namespace need, no RBAC, and no server-side apply.

Run it alone with `python -m daemon.localnode.apiserver --help`.
"""

import argparse
import asyncio
import json
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from aiohttp import web

from daemon.localnode.api import resources
from daemon.localnode.api.admission import Admission, AdmissionRequest, Mutating, Operation, User, Validating
from daemon.localnode.api.controllers import Controllers
from daemon.localnode.api.crds import crd_path, load_crd
from daemon.localnode.api.deletion import Deletion
from daemon.localnode.api.errors import ApiError
from daemon.localnode.api.faults import Fault, Faults, Match
from daemon.localnode.api.front import Front, make_request
from daemon.localnode.api.handlers import Handlers
from daemon.localnode.api.kinds import Kind, Registry
from daemon.localnode.api.listing import Cache, Listing
from daemon.localnode.api.routing import Call
from daemon.localnode.api.store import Store
from daemon.localnode.api.watching import Watches
from daemon.localnode.api.webhooks import Webhooks
from daemon.localnode.api.writes import Writes

__all__ = [
    "AdmissionRequest", "ApiError", "ApiServer", "Call", "Kind", "Mutating", "Operation", "User", "Validating",
    "crd_path", "main",
]  # fmt: skip


def _now() -> datetime:
    return datetime.now(UTC)


class ApiServer:
    """One API server. The constructor starts nothing; `start` and `stop` do, and `async with` calls both.

    Use `admission.mutating` and `admission.validating` to take part in admission.
    """

    def __init__(
        self,
        port: int = 0,
        crds: Sequence[Path | Mapping[str, Any]] | None = None,
        *,
        tokens: Mapping[str, User] | None = None,
        bookmark_seconds: float = 60,
        watch_seconds: float = 3600,
        expired_as_event: bool = True,
        history: int = 4096,
        log: Callable[[Call], None] | None = None,
        clock: Callable[[], datetime] = _now,
    ) -> None:
        """Prepare a server.

        Args:
            port: port of 127.0.0.1 to listen on; 0 for any free one, which stays the same when started again.
            crds: CRDs to begin with, as files or objects; None for this project's own.
            tokens: bearer tokens, each with the user it stands for; without any, tokens are not looked at.
            bookmark_seconds: how often watches that ask for bookmarks get one.
            watch_seconds: how long a watch lasts that does not say so itself.
            expired_as_event: a watch from a resourceVersion that is too old is answered with an ERROR event in a 200
                stream, as a server with a watch cache does; otherwise with HTTP 410, as one without does.
            history: events kept for every resource, from which watches can start.
            log: called with every request once its status is known (a watch: when it begins).
            clock: the present time, for the objects' timestamps and the Date header.
        """
        self._port = port
        self._crds = [load_crd(crd) for crd in ([crd_path()] if crds is None else crds)]
        self.store = Store(history)
        self.registry = Registry(resources.BUILTIN)
        self.admission = Admission()
        self._webhooks = Webhooks(self.store)
        self._webhooks.take_part(self.admission)
        self._faults = Faults()
        self._cache = Cache(self.store)
        self._watches = Watches(self.store, self._cache, clock, bookmark_seconds, watch_seconds, expired_as_event)
        writes = Writes(self.store, self.admission, clock)
        deletion = Deletion(writes, self.registry)
        self._controllers = Controllers(self.store, self.registry, writes, deletion)
        self._front = Front(
            registry=self.registry,
            handlers=Handlers(writes, deletion, Listing(self.store, self._cache)),
            watches=self._watches,
            faults=self._faults,
            clock=clock,
            tokens=dict(tokens or {}),
            log=log,
        )
        self._runner: web.ServerRunner | None = None

    # Life

    async def start(self) -> None:
        """Make sure of the CRDs and the namespaces that are always there, and listen."""
        await self._controllers.lay_ground(self._crds)
        server = web.Server(self._front.handle, request_factory=make_request, handler_cancellation=True)
        self._runner = web.ServerRunner(server, shutdown_timeout=1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port)
        await site.start()
        self._port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """End the watches, close the connections, and stop listening. The objects stay."""
        self._faults.resume()
        self._cache.release()
        self._watches.end_all()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
        await self._webhooks.close()

    async def __aenter__(self) -> "ApiServer":
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def port(self) -> int:
        """The port that is listened on, once the server has been started."""
        return self._port

    @property
    def url(self) -> str:
        """Where clients reach the server."""
        return f"http://127.0.0.1:{self._port}"

    def kubeconfig(self, path: Path, *, token: str | None = None) -> Path:
        """Write a kubeconfig file for this server; returns its path. The server must have been started."""
        user = {"token": token} if token else {}
        context = {"cluster": "local", "user": "local", "namespace": "default"}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "local", "cluster": {"server": self.url}}],
            "users": [{"name": "local", "user": user}],
            "contexts": [{"name": "local", "context": context}],
            "current-context": "local",
        }
        path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")  # JSON is YAML
        return path

    # Faults on purpose, and other handles for tests

    def compact(self) -> None:
        """Forget all history: watches and continued lists from before get 410 Expired. Running watches go on."""
        self.store.compact()

    def drop_connections(self) -> None:
        """Abort every open connection, as a crash or a network failure would; new ones are taken as before."""
        if self._runner is not None and self._runner.server is not None:
            for connection in self._runner.server.connections:
                if connection.transport is not None:
                    connection.transport.abort()

    def pause(self) -> None:
        """Stall: connections and requests are taken, nothing is answered, watches are silent.

        A request whose client gives up while the server stalls is not carried out.
        """
        self._faults.pause()
        self._cache.hold()

    def resume(self) -> None:
        """End a stall: what has been waiting is worked on."""
        self._faults.resume()
        self._cache.release()

    def hold_cache(self) -> None:
        """Let the watch cache fall behind: watches are silent and lists with resourceVersion=0 show the past."""
        self._cache.hold()

    def release_cache(self) -> None:
        """Let the watch cache catch up."""
        self._cache.release()

    def end_watches(self) -> None:
        """End all open watches in good order, as the server does after their timeout."""
        self._watches.end_all()

    @property
    def open_watches(self) -> int:
        """How many watches are open."""
        return len(self._watches.open)

    def fail_next(
        self,
        count: int = 1,
        status: int | None = 500,
        retry_after: int | None = None,
        match: Match | None = None,
        *,
        after: bool = False,
    ) -> None:
        """Let the next requests fail.

        Args:
            count: how many requests.
            status: the HTTP status they get; None to cut their connection.
            retry_after: seconds for a Retry-After header.
            match: which requests are meant; all without it.
            after: carry the request out, and lose only its answer.
        """
        self._faults.add(Fault(count, status, retry_after, match, after))

    def clear_faults(self) -> None:
        """Forget what `fail_next` has asked for and has not happened yet."""
        self._faults.clear()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m daemon.localnode.apiserver",
        description="Serves the part of the Kubernetes API that crrd needs, on loopback, without a cluster.",
        epilog="Example: python -m daemon.localnode.apiserver --port 8001 --kubeconfig-out /tmp/kubeconfig, and then, "
        "in another shell: KUBECONFIG=/tmp/kubeconfig kubectl get crr -A",
    )
    parser.add_argument("--port", type=int, default=0, help="port on 127.0.0.1; 0, the default, takes any free one")
    parser.add_argument("--kubeconfig-out", type=Path, metavar="FILE", help="write a kubeconfig file for this server")
    return parser


async def _serve(options: argparse.Namespace) -> None:
    server = ApiServer(port=options.port)
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)
    async with server:
        if options.kubeconfig_out is not None:
            server.kubeconfig(options.kubeconfig_out)
        sys.stdout.write(f"{server.url}\n")
        sys.stdout.flush()
        await ended.wait()


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until SIGINT or SIGTERM; the first line on standard output is the URL."""
    asyncio.run(_serve(_parser().parse_args(arguments)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
