"""The local node as tests need it: quicker than a real one, with parts that fail when they are asked to."""

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
    """The runtime of plain processes in a process of its own, so that it can die while its containers run on."""

    def __init__(self, root: Path, socket: Path) -> None:
        """Start nothing yet; the arguments are `ProcessRuntime`'s."""
        self.endpoint = f"unix://{socket}"
        self._socket = socket
        self._command = [sys.executable, "-m", programs.MODULE, "runtime"]
        self._command += ["--root", str(root), "--socket", str(socket)]
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


class FaultyNode(LocalNode):
    """The local node with an API server that fails when it is asked to, and maybe a runtime that can be killed."""

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
        """As for the local node; besides:

        Args:
            runtime_process: run the runtime in a process of its own; see `kill_runtime`.
            timing: what differs from the kubelet's own `Timing`.
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
        """Kill the runtime's process; its containers run on."""
        assert self._process is not None
        await self._process.kill()

    async def start_runtime(self) -> None:
        """Start the runtime again after `kill_runtime`."""
        assert self._process is not None
        await self._process.start()
