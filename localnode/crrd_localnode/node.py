"""A whole node on one machine for the demo and the tests: API server, container runtime and kubelet.

It provides what a cluster provides to the node daemon: a kubeconfig, a CRI endpoint and the node's name. It uses only
loopback and Unix sockets.
"""

import asyncio
import os
import shutil
import tempfile
from pathlib import Path
from typing import Self

from crrd.kube.access.config import KubeconfigAccess
from crrd.kube.client import KubeClient
from crrd_localnode.apiserver import ApiServer
from crrd_localnode.kubelet import Kubelet, Timing
from crrd_localnode.leftovers import PREFIX, hold
from crrd_localnode.runtime import ProcessRuntime


class LocalNode:
    """API server, runtime and kubelet. The constructor starts nothing. Use `async with`, or `start` and `stop`."""

    def __init__(
        self,
        root: Path | None = None,
        *,
        node_name: str = "local-node",
        cri_endpoint: str = "",
        api: ApiServer | None = None,
    ) -> None:
        """Create the parts.

        `root` is the folder for all data (a short path, because it contains a Unix socket); None means a temporary one
        that is removed at the end. `cri_endpoint` is a CRI runtime to use; "" means its own runtime of plain processes.
        """
        self.node_name = node_name
        self.api = api or ApiServer()
        self._temporary = root is None
        self.root = (root or Path(tempfile.mkdtemp(prefix=PREFIX))).absolute()
        self.kubeconfig = self.root / "kubeconfig"
        self.timing = Timing()
        self.runtime = None if cri_endpoint else ProcessRuntime(self.root / "runtime", self.root / "cri.sock")
        self.cri_endpoint = self.runtime.endpoint if self.runtime else cri_endpoint
        self._held = -1
        self._client: KubeClient | None = None
        self._kubelet: Kubelet | None = None

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def client(self) -> KubeClient:
        """A client of the node's API server, closed with the node. RuntimeError before `start`."""
        if self._client is None:
            raise RuntimeError("the local node was not started")
        return self._client

    async def start(self) -> None:
        """Start everything, and return when the Node is ready in the API."""
        self.root.mkdir(parents=True, exist_ok=True)
        self._held = hold(self.root)
        await self.api.start()
        self.api.kubeconfig(self.kubeconfig)
        self._client = KubeClient(KubeconfigAccess(str(self.kubeconfig)))
        if self.runtime is not None:
            await self.runtime.start()
        await self.start_kubelet()

    async def stop(self) -> None:
        """Stop everything. Its own runtime ends its containers, and another runtime keeps them."""
        await self.stop_kubelet()
        if self.runtime is not None:
            await self.runtime.stop()
        if self._client is not None:
            await self._client.close()
        await self.api.stop()
        if self._temporary:
            await asyncio.to_thread(shutil.rmtree, self.root, ignore_errors=True)
        if self._held >= 0:
            os.close(self._held)
            self._held = -1

    async def start_kubelet(self) -> None:
        """Start a kubelet. It knows of an earlier one only what is in the runtime and the API."""
        folder = self.root / "kubelet"
        self._kubelet = Kubelet(self.client, self.cri_endpoint, self.node_name, folder, self.timing)
        await self._kubelet.start()

    async def stop_kubelet(self) -> None:
        """Stop the kubelet. The pods keep running."""
        kubelet, self._kubelet = self._kubelet, None
        if kubelet is not None:
            await kubelet.stop()
