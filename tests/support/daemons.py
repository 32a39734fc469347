"""crrd's daemons as processes that tests can kill and restart, and whose logs they can read."""

import json
import signal
from pathlib import Path
from typing import Any

from crrd_localnode.daemons import Daemon, manager_daemon
from crrd_localnode.node import LocalNode
from tests.support.cluster import Cluster


class NodeDaemon(Daemon):
    """`crrd node` on a cluster's node. It can also be ended without `async with`."""

    def __init__(self, cluster: Cluster, log_file: Path, *flags: str, kubeconfig: Path | None = None) -> None:
        where = ("--node-name", cluster.node_name, "--cri-endpoint", cluster.cri_endpoint)
        super().__init__("node", log_file, kubeconfig or cluster.kubeconfig, *where, "--log-level", "debug", *flags)
        self._earlier: list[dict[str, Any]] = []

    @property
    def log(self) -> list[dict[str, Any]]:
        """Return the JSON lines of all runs so far."""
        lines = self.log_file.read_text(errors="replace").splitlines() if self.log_file.exists() else []
        return self._earlier + [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]

    async def start(self) -> None:
        assert self._process is None or self._process.returncode is not None, "the node daemon is running"
        self._earlier = self.log
        await super().start()

    async def kill(self) -> None:
        """Send SIGKILL, and wait for the process to end."""
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(signal.SIGKILL)
            await self._process.wait()

    async def terminate(self) -> int:
        """Send SIGTERM, and wait for the process to end. Return its exit code."""
        await self.stop()
        assert self._process is not None
        return await self._process.wait()

    async def restart(self) -> None:
        """Send SIGKILL, and start again. Return when it is ready."""
        await self.kill()
        await self.start()
        await self.wait_ready()


def second_manager(node: LocalNode, kubeconfig: Path | None = None) -> Daemon:
    """Return another `crrd manager` for the node, with its own identity."""
    return manager_daemon(node, node.root / "second.log", kubeconfig or node.kubeconfig, "--identity", "second")
