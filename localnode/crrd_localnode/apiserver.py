"""A local API server on loopback: the part of Kubernetes' API that this project, its tests and `kubectl` need.

It follows the real server wherever clients can notice: resourceVersions, conflicts, watches and their expiry,
status subresources, finalizers and graceful deletion, custom resources with their schema. It has no etcd (see
`api.store`), no RBAC, no server-side apply, and only the controllers that a CRD and a namespace need.
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
    """One API server; `start` and `stop` it, or use `async with`. Admission plugins are added to `admission`."""

    STORE = Store
    FRONT = Front

    def __init__(self, port: int = 0) -> None:
        """It listens on this port of 127.0.0.1; 0 picks a free port, which is kept when the server is started again."""
        self.port = port
        self.crds = [load_crd(REQUESTS), load_crd(POLICIES)]  # CRDs that `start` creates if they are missing
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
        """Return the current time, for timestamps of objects and the Date header."""
        return datetime.now(UTC)

    # Life

    async def start(self) -> None:
        """Create missing CRDs and the default namespaces, and listen."""
        await self._controllers.create_defaults(self.crds)
        server = web.Server(self.front.handle, request_factory=make_request, handler_cancellation=True)
        self._runner = web.ServerRunner(server, shutdown_timeout=1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port).start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """End the watches, close the connections, and stop listening. The objects are kept."""
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
        """The server's URL."""
        return f"http://127.0.0.1:{self.port}"

    def kubeconfig(self, path: Path) -> Path:
        """Write a kubeconfig file for this server and return its path. The server must have been started."""
        context = {"cluster": "local", "user": "local", "namespace": "default"}
        config = {
            "apiVersion": "v1", "kind": "Config", "users": [{"name": "local", "user": {}}],
            "clusters": [{"name": "local", "cluster": {"server": self.url}}],
            "contexts": [{"name": "local", "context": context}], "current-context": "local",
        }  # fmt: skip
        path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")  # JSON is YAML
        return path
