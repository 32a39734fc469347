"""The node daemon as a process of its own, as in a cluster: started, killed, started again, its log kept."""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import aiohttp

_READY_SECONDS = 30.0
_END_SECONDS = 60.0


class NodeDaemon:
    """`crrd node` in a process. Its log goes to a file, JSON, all runs one after the other."""

    def __init__(
        self,
        log: Path,
        *,
        node_name: str,
        kubeconfig: Path,
        cri_endpoint: str,
        flags: tuple[str, ...] = (),
        env: dict[str, str] | None = None,
        module: str = "daemon",
    ) -> None:
        self.log_file = log
        self._command = [sys.executable, "-m", module, "node", "--node-name", node_name]
        self._command += ["--kubeconfig", str(kubeconfig), "--cri-endpoint", cri_endpoint]
        self._command += ["--log-format", "json", "--log-level", "debug", "--bind-address", "127.0.0.1:0", *flags]
        self._environment = {**os.environ, **(env or {})}
        self._process: asyncio.subprocess.Process | None = None
        self._begin = 0

    @property
    def pid(self) -> int:
        """The PID of the running process."""
        assert self._process is not None, "the node daemon is not running"
        return self._process.pid

    @property
    def log(self) -> list[dict[str, Any]]:
        """The lines of all runs so far that are JSON."""
        lines = self.log_file.read_text(errors="replace").splitlines() if self.log_file.exists() else []
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]

    async def start(self, *, ready: bool = True) -> None:
        """Start the process; returns once /readyz says that it serves, unless `ready` is False."""
        assert self._process is None, "the node daemon is running"
        with self.log_file.open("ab") as log:
            self._begin = log.tell()
            self._process = await asyncio.create_subprocess_exec(
                *self._command, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log, env=self._environment
            )
        if ready:
            await self.wait_ready()

    async def address(self) -> str:
        """Where this run serves its health pages, once it does."""
        async with asyncio.timeout(_READY_SECONDS):
            while True:
                for line in self._lines_of_this_run():
                    if line.get("event") == "serving health":
                        return str(line["address"])
                self._check()
                await asyncio.sleep(0.02)

    async def wait_ready(self) -> None:
        """Wait until /readyz says that it serves."""
        address = await self.address()
        async with asyncio.timeout(_READY_SECONDS), aiohttp.ClientSession() as session:
            while True:
                self._check()
                async with session.get(f"http://{address}/readyz") as answer:
                    if answer.status == 200:
                        return
                await asyncio.sleep(0.02)

    def _lines_of_this_run(self) -> list[dict[str, Any]]:
        with self.log_file.open("rb") as log:
            log.seek(self._begin)
            lines = log.read().decode(errors="replace").splitlines()
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]

    def _check(self) -> None:
        if self._process is not None and self._process.returncode is not None:
            raise AssertionError(f"the node daemon ended:\n{self.log_file.read_text()[-4000:]}")

    async def kill(self) -> None:
        """SIGKILL, and wait for its end."""
        await self._end(signal.SIGKILL)

    async def terminate(self) -> int:
        """SIGTERM, and wait for its end; its exit code."""
        return await self._end(signal.SIGTERM)

    async def restart(self) -> None:
        """SIGKILL and start."""
        await self.kill()
        await self.start()

    async def wait(self) -> int:
        """Wait until it ends by itself; its exit code."""
        assert self._process is not None, "the node daemon is not running"
        process, self._process = self._process, None
        return await asyncio.wait_for(process.wait(), _END_SECONDS)

    async def _end(self, number: signal.Signals) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        if process.returncode is None:
            process.send_signal(number)
        try:
            return await asyncio.wait_for(process.wait(), _END_SECONDS)
        except TimeoutError:
            process.kill()
            await process.wait()
            raise
