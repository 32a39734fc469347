"""A local API server: the part of Kubernetes' API that this project, its tests and `kubectl` need, on loopback.

It follows the real server where clients can tell the difference: resourceVersions, conflicts, watches and their
expiry, status subresources, finalizers and graceful deletion, custom resources with their schema. There is no etcd
(see `api.store`), no controllers but the few that a CRD and a namespace need, no RBAC, and no server-side apply.
"""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from aiohttp import web

from crrd_localnode.api import resources
from crrd_localnode.api.admission import Admission
from crrd_localnode.api.controllers import Controllers
from crrd_localnode.api.crds import POLICIES, REQUESTS, load_crd
from crrd_localnode.api.deletion import Deletion
from crrd_localnode.api.front import Front, make_request
from crrd_localnode.api.handlers import Handlers
from crrd_localnode.api.kinds import Registry
from crrd_localnode.api.store import Store
from crrd_localnode.api.watching import Watches
from crrd_localnode.api.webhooks import Webhooks
from crrd_localnode.api.writes import Writes


class ApiServer:
    """One API server; `start` and `stop`, or `async with`. `admission` is for those who take part in admission."""

    STORE = Store
    FRONT = Front

    def __init__(self, port: int = 0) -> None:
        """`port` of 127.0.0.1 is listened on; 0 is any free one, which stays the same when started again."""
        self.port = port
        self.crds = [load_crd(REQUESTS), load_crd(POLICIES)]  # What is made sure of at the start
        self.store = self.STORE()
        self.registry = Registry(resources.BUILTIN)
        self.admission = Admission()
        self._webhooks = Webhooks(self.store)
        self.admission.mutating.append(self._webhooks.mutate)
        self.watches = Watches(self.store, self.now)
        writes = Writes(self.store, self.admission, self.now)
        deletion = Deletion(writes, self.registry)
        self._controllers = Controllers(self.store, self.registry, writes, deletion)
        handlers = Handlers(writes, deletion)
        self.front = self.FRONT(registry=self.registry, handlers=handlers, watches=self.watches, clock=self.now)
        self._runner: web.ServerRunner | None = None

    def now(self) -> datetime:
        """The present time, for the objects' timestamps and the Date header."""
        return datetime.now(UTC)

    # Life

    async def start(self) -> None:
        """Make sure of the CRDs and the namespaces that are always there, and listen."""
        await self._controllers.lay_ground(self.crds)
        server = web.Server(self.front.handle, request_factory=make_request, handler_cancellation=True)
        self._runner = web.ServerRunner(server, shutdown_timeout=1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port).start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """End the watches, close the connections, and stop listening. The objects stay."""
        self.watches.end_all()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
        await self._webhooks.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def url(self) -> str:
        """Where clients reach the server."""
        return f"http://127.0.0.1:{self.port}"

    def kubeconfig(self, path: Path) -> Path:
        """Write a kubeconfig file for this server; returns its path. The server must have been started."""
        context = {"cluster": "local", "user": "local", "namespace": "default"}
        config = {
            "apiVersion": "v1", "kind": "Config", "users": [{"name": "local", "user": {}}],
            "clusters": [{"name": "local", "cluster": {"server": self.url}}],
            "contexts": [{"name": "local", "context": context}], "current-context": "local",
        }  # fmt: skip
        path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")  # JSON is YAML
        return path
