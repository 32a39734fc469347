"""The local node for tests: faster than a real one, with parts that fail on request."""

import asyncio
import signal
import sys
from dataclasses import replace
from pathlib import Path

from crrd_localnode.kubelet import Timing
from crrd_localnode.node import LocalNode
from tests.support import programs
from tests.support.faulty_api import FaultyApiServer

_END_SECONDS = 10.0


class RuntimeProcess:
    """The runtime of plain processes in its own process, so that it can be killed while its containers run."""

    def __init__(self, root: Path, socket: Path) -> None:
        """The constructor starts nothing. The arguments are those of `ProcessRuntime`."""
        self.endpoint = f"unix://{socket}"
        self._socket = socket
        self._command = [sys.executable, "-m", f"{programs.NAME}.runtime"]
        self._command += ["--root", str(root), "--socket", str(socket)]
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start the process. It serves a moment later, and clients have to wait for that."""
        self._process = await asyncio.create_subprocess_exec(
            *self._command, stdin=asyncio.subprocess.DEVNULL, start_new_session=True
        )

    async def kill(self) -> None:
        """Send SIGKILL. Its containers keep running until the next start."""
        await self._end(signal.SIGKILL)

    async def stop(self) -> None:
        """Send SIGTERM. It ends with its containers."""
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


class FaultyNode(LocalNode):
    """The local node with an API server that fails on request, and optionally a runtime that can be killed."""

    api: FaultyApiServer

    def __init__(
        self,
        root: Path | None = None,
        *,
        node_name: str = "local-node",
        cri_endpoint: str = "",
        api: FaultyApiServer | None = None,
        runtime_process: bool = False,
        **timing: float,
    ) -> None:
        """Like the local node's. In addition:

        Args:
            runtime_process: run the runtime in its own process; see `kill_runtime`.
            timing: changes to the kubelet's `Timing`.
        """
        super().__init__(root, node_name=node_name, cri_endpoint=cri_endpoint, api=api or FaultyApiServer())
        self.timing = replace(Timing(), **timing)
        self._process: RuntimeProcess | None = None
        if runtime_process:
            self._process = RuntimeProcess(self.root / "runtime", self.root / "cri.sock")
            self.runtime = None

    async def start(self) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        if self._process is not None:
            await self._process.start()
        await super().start()

    async def stop(self) -> None:
        await self.stop_kubelet()
        if self._process is not None:
            await self._process.stop()
        await super().stop()

    async def kill_runtime(self) -> None:
        """Kill the runtime's process. Its containers keep running."""
        assert self._process is not None
        await self._process.kill()

    async def start_runtime(self) -> None:
        """Start the runtime again after `kill_runtime`."""
        assert self._process is not None
        await self._process.start()
