"""crrd's own daemons during the soak: a node daemon and two managers, started from this clone.

Their logs are on a small file system that a fault can fill. Where libfaketime is installed, a fault can step their
clocks.
"""

import asyncio
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import islice
from pathlib import Path

import yaml
from yarl import URL

from crrd.kube.resources import NAMESPACES, WEBHOOKS
from crrd.lib.errors import ConfigurationError, ConflictError, GoneError
from crrd_localnode.daemons import Daemon, webhook_configuration
from tests.soak_cluster.collect import Collector
from tests.soak_cluster.record import Part
from tests.support.cluster import Cluster
from tests.support.ports import free_ports

LOG_DISK = "32m"
_LIBRARIES = (
    "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1",
    "/usr/lib/aarch64-linux-gnu/faketime/libfaketimeMT.so.1",
)


def clock_library() -> str:
    """Return the path of libfaketime, or "" if it is not installed."""
    return next((each for each in _LIBRARIES if Path(each).exists()), "")


class CrrdDaemon(Daemon):
    """A daemon of crrd that the soak kills and starts. It must not end otherwise."""

    def __init__(self, part: Part, folder: Path, name: str, kubeconfig: Path, *flags: str) -> None:
        self.part = part
        self._clock = folder.parent / f"{name}.clock"
        self.step_clock(0)
        faked: tuple[str, ...] = ()
        if library := clock_library():
            faked = ("env", f"LD_PRELOAD={library}", f"FAKETIME_TIMESTAMP_FILE={self._clock}")
            faked += ("FAKETIME_CACHE_DURATION=1", "DONT_FAKE_MONOTONIC=1")
        # in a session of its own, because Ctrl-C is for the soak
        self.PROGRAM = ("setsid", *faked, sys.executable, "-m", "crrd")  # type: ignore[assignment]
        super().__init__(part.value.split()[0], folder / f"{name}.log", kubeconfig, *flags)
        self.wanted = False  # Whether it should run now

    def step_clock(self, seconds: int) -> None:
        """Have its clock differ by these seconds from the machine's."""
        self._clock.write_text(f"{seconds:+d}")

    async def start(self) -> None:
        self.wanted = True
        await super().start()

    def send(self, number: signal.Signals) -> None:
        """Send it a signal, if it runs. SIGKILL ends it on purpose."""
        self.wanted = self.wanted and number is not signal.SIGKILL
        with suppress(ProcessLookupError):
            if self._process is not None and self._process.returncode is None:
                self._process.send_signal(number)

    async def watch_over(self, collector: Collector) -> None:
        """Start it again whenever it has ended by itself, and record that."""
        while True:
            process = self._process
            if process is not None and process.returncode is not None and self.wanted:
                lines = self.log_file.read_text(errors="replace").strip().splitlines()
                collector.exit(self.part, process.returncode, lines[-1][-300:] if lines else "", time.time())
                await self.start()
            await asyncio.sleep(0.5)

    async def end(self) -> None:
        """End it for good."""
        self.wanted = False
        self.send(signal.SIGCONT)
        await self.stop()


@asynccontextmanager
async def running_daemons(cluster: Cluster, folder: Path) -> AsyncIterator[list[CrrdDaemon]]:
    """Run a node daemon and two managers. The API server calls the first manager's webhook."""
    logs = folder / "logs"
    logs.mkdir()
    await _command("mount", "-t", "tmpfs", "-o", f"size={LOG_DISK}", "crrd-soak-logs", str(logs))
    host = own_address(cluster.kubeconfig)
    port, other = islice(free_ports(), 2)
    where = ("--node-name", cluster.node_name, "--cri-endpoint", cluster.cri_endpoint)
    daemons = [CrrdDaemon(Part.NODE, logs, "node", cluster.kubeconfig, *where)]
    for name, address in (("manager-1", port), ("manager-2", other)):
        flags = ("--webhook-address", f"{host}:{address}", "--certificate-name", host, "--identity", name)
        daemons.append(CrrdDaemon(Part.MANAGER, logs, name, cluster.kubeconfig, *flags, "--drain-seconds", "0"))
    client = cluster.client
    await client.create(WEBHOOKS, "", webhook_configuration(f"{host}:{port}"))
    try:
        with suppress(ConflictError):
            await client.create(NAMESPACES, "", {"metadata": {"name": "crrd-system"}})
        for each in daemons:
            await each.start()
        for each in daemons:
            await each.wait_ready()
        yield daemons
    finally:
        await asyncio.gather(*(each.end() for each in daemons))
        for file in logs.iterdir():
            folder.joinpath(file.name).write_bytes(file.read_bytes())
        await _command("umount", str(logs))
        with suppress(GoneError):
            await client.delete(WEBHOOKS, "", "crrd")


async def _command(*words: str) -> None:
    process = await asyncio.create_subprocess_exec(*words)
    if await process.wait():
        raise ConfigurationError(f"{' '.join(words)} failed with exit code {process.returncode}")


def own_address(kubeconfig: Path) -> str:
    """Return the address at which the API server can reach this machine."""
    (cluster, *_) = yaml.safe_load(kubeconfig.read_text())["clusters"]
    server = URL(cluster["cluster"]["server"])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((server.host or "127.0.0.1", server.port or 443))  # sends nothing
        return str(probe.getsockname()[0])
