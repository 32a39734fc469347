"""A whole node on one machine: API server, container runtime and kubelet, put together for the demo and the tests.

Ends where the node daemon begins: what it gives is what a cluster gives one, a kubeconfig, a CRI endpoint and the
node's name. Loopback and Unix sockets only.
"""

import asyncio
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from daemon.kube.client import KubeClient
from daemon.kube.config import Access
from daemon.localnode.apiserver import ApiServer
from daemon.localnode.kubelet import RELIST_SECONDS, RETRY_SECONDS, Kubelet
from daemon.localnode.pods import backoff
from daemon.localnode.runtime import ProcessRuntime

_END_SECONDS = 10.0


class LocalAccess:
    """Access to a local API server: plain HTTP, nobody to be."""

    def __init__(self, url: str) -> None:
        self._access = Access(url)

    @property
    def description(self) -> str:
        """For messages."""
        return "no credentials"

    async def current(self) -> Access:
        """Always the same."""
        return self._access

    async def renew(self, refused: Access) -> Access:
        """Always the same."""
        return self._access


class RuntimeProcess:
    """The runtime of plain processes in a process of its own, so that it can die while its containers run on."""

    def __init__(self, root: Path, socket: Path) -> None:
        """Start nothing yet; the arguments are `ProcessRuntime`'s."""
        self.endpoint = f"unix://{socket}"
        self._socket = socket
        self._command = [sys.executable, "-m", "daemon.localnode.runtime", "--root", str(root), "--socket", str(socket)]
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start the process; it serves a moment later, and clients have to wait for that anyway."""
        self._process = await asyncio.create_subprocess_exec(
            *self._command, stdin=asyncio.subprocess.DEVNULL, start_new_session=True
        )

    async def kill(self) -> None:
        """SIGKILL: its containers run on and wait for the next start."""
        await self._end(signal.SIGKILL)

    async def stop(self) -> None:
        """SIGTERM: it ends together with its containers."""
        await self._end(signal.SIGTERM)

    async def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None or process.returncode is not None:
            return
        process.send_signal(number)
        try:
            await asyncio.wait_for(process.wait(), _END_SECONDS)
        except TimeoutError:
            process.kill()
            await process.wait()


class LocalNode:
    """API server, runtime and kubelet. The constructor starts nothing; `async with` (or `start`, `stop`) does."""

    def __init__(
        self,
        root: Path | None = None,
        *,
        node_name: str = "local-node",
        cri_endpoint: str = "",
        runtime_process: bool = False,
        backoff_seconds: float = backoff.CONTAINER_INITIAL_SECONDS,
        backoff_maximum_seconds: float = backoff.MAXIMUM_SECONDS,
        retry_seconds: float = RETRY_SECONDS,
        relist_seconds: float = RELIST_SECONDS,
        api: ApiServer | None = None,
    ) -> None:
        """Put the parts together.

        Args:
            root: Directory for everything that the node keeps; None for a temporary one that goes with the node.
                A short path: a Unix socket lies in it.
            node_name: The node's name in the API.
            cri_endpoint: A CRI runtime to use, `unix:///...`; "" for one of plain processes of its own.
            runtime_process: Run that one in a process of its own; see `kill_runtime`.
            backoff_seconds: See `Kubelet`, as for the next three.
            backoff_maximum_seconds: See there.
            retry_seconds: See there.
            relist_seconds: See there.
            api: The API server; None for a new one.
        """
        self.node_name = node_name
        self.api = api or ApiServer()
        self._temporary = root is None
        self.root = (root or Path(tempfile.mkdtemp(prefix="crrd-"))).absolute()
        self.kubeconfig = self.root / "kubeconfig"
        self.runtime: ProcessRuntime | RuntimeProcess | None = None
        if cri_endpoint:
            self.cri_endpoint = cri_endpoint
        else:
            folder, socket = self.root / "runtime", self.root / "cri.sock"
            self.runtime = RuntimeProcess(folder, socket) if runtime_process else ProcessRuntime(folder, socket)
            self.cri_endpoint = self.runtime.endpoint
        self._make_kubelet: Callable[[KubeClient], Kubelet] = lambda client: Kubelet(
            client,
            self.cri_endpoint,
            node_name,
            self.root / "kubelet",
            backoff_seconds=backoff_seconds,
            backoff_maximum_seconds=backoff_maximum_seconds,
            retry_seconds=retry_seconds,
            relist_seconds=relist_seconds,
        )
        self._client: KubeClient | None = None
        self._kubelet: Kubelet | None = None

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    @property
    def client(self) -> KubeClient:
        """A client of the node's API server, closed with the node.

        Raises:
            RuntimeError: the node was not started.
        """
        if self._client is None:
            raise RuntimeError("the local node was not started")
        return self._client

    async def start(self) -> None:
        """Start everything; returns once the node stands in the API as ready."""
        self.root.mkdir(parents=True, exist_ok=True)
        await self.api.start()
        self.api.kubeconfig(self.kubeconfig)
        self._client = KubeClient(LocalAccess(self.api.url))
        if self.runtime is not None:
            await self.runtime.start()
        await self.start_kubelet()

    async def stop(self) -> None:
        """Stop everything. A runtime of its own takes its containers with it, a foreign one keeps them."""
        await self.stop_kubelet()
        if self.runtime is not None:
            await self.runtime.stop()
        if self._client is not None:
            await self._client.close()
        await self.api.stop()
        if self._temporary:
            await asyncio.to_thread(shutil.rmtree, self.root, ignore_errors=True)

    async def start_kubelet(self) -> None:
        """Start a kubelet, which knows nothing of an earlier one but what that left in the runtime and the API."""
        self._kubelet = self._make_kubelet(self.client)
        await self._kubelet.start()

    async def stop_kubelet(self) -> None:
        """Stop the kubelet; the pods run on."""
        kubelet, self._kubelet = self._kubelet, None
        if kubelet is not None:
            await kubelet.stop()

    async def kill_runtime(self) -> None:
        """Kill the runtime's process; its containers run on.

        Raises:
            RuntimeError: the runtime is not a process of this node's.
        """
        if not isinstance(self.runtime, RuntimeProcess):
            raise RuntimeError("only a runtime in a process of its own can be killed")  # noqa: TRY004 - no argument's type
        await self.runtime.kill()

    async def start_runtime(self) -> None:
        """Start the runtime again after `kill_runtime`."""
        if self.runtime is not None:
            await self.runtime.start()
