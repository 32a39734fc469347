"""crrd's daemons on a local node. Each is a separate process with the same configuration as in a cluster."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Self

import aiohttp

from crrd.core.api.types import GROUP, PLURAL, VERSIONS
from crrd.kube.resources import WEBHOOKS, Resource
from crrd.lib.errors import ConfigurationError, ConflictError
from crrd_localnode.node import LocalNode

READY_SECONDS = 60.0
END_SECONDS = 30.0  # Time limit for a daemon to exit by itself
_CONFIGURATION = "crrd"  # Name of the webhook configuration
_PATH = "mutate-crr"  # Path of its webhook


class Daemon:
    """`crrd node` or `crrd manager` in a process, which logs JSON to a file. An async context manager."""

    PROGRAM = (sys.executable, "-m", "crrd")

    def __init__(self, command: str, log_file: Path, kubeconfig: Path, *flags: str) -> None:
        self.log_file = log_file
        self._name = f"crrd {command}"
        self._command = [*self.PROGRAM, command, "--kubeconfig", str(kubeconfig)]
        self._command += ["--bind-address", "127.0.0.1:0", "--log-format", "json", *flags]
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int:
        """The process' ID, or 0 before it was started."""
        return self._process.pid if self._process else 0

    @property
    def address(self) -> str:
        """The address of health and metrics, or "" until it is logged."""
        return self._address_of("serving health")

    @property
    def admission_address(self) -> str:
        """The address of a manager's admission, or "" until it is logged."""
        return self._address_of("serving admission")

    def _lines(self) -> list[str]:
        return self.log_file.read_text(encoding="utf-8", errors="replace").strip().splitlines()

    def _address_of(self, event: str) -> str:
        """Return the address in the log line with this event."""
        for line in self._lines():
            with suppress(ValueError):
                if (entry := json.loads(line)).get("event") == event:
                    return str(entry["address"])
        return ""

    async def start(self) -> None:
        """Start the process with an empty log."""
        with self.log_file.open("wb") as log:
            null = asyncio.subprocess.DEVNULL
            self._process = await asyncio.create_subprocess_exec(*self._command, stdin=null, stdout=log, stderr=log)

    async def wait_ready(self) -> None:
        """Wait until /readyz succeeds. If the process ends first, raise ConfigurationError with its log's last line."""
        async with asyncio.timeout(READY_SECONDS), aiohttp.ClientSession() as session:
            while True:
                if self._process is not None and self._process.returncode is not None:
                    raise ConfigurationError(f"{self._name} ended: {' '.join(self._lines()[-1:])}")
                if address := self.address:
                    with suppress(aiohttp.ClientError):
                        async with session.get(f"http://{address}/readyz") as answer:
                            if answer.status == 200:
                                return
                await asyncio.sleep(0.05)

    async def stop(self) -> None:
        """Send SIGTERM and wait for the process to exit. Send SIGKILL if it takes too long."""
        process = self._process
        if process is not None and process.returncode is None:
            process.terminate()
            try:
                await asyncio.wait_for(process.wait(), END_SECONDS)
            except TimeoutError:
                process.kill()
                await process.wait()

    async def __aenter__(self) -> Self:
        """Start it, and return when it is ready. Raises the errors of `wait_ready`."""
        try:
            await self.start()
            await self.wait_ready()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()


def node_daemon(node: LocalNode) -> Daemon:
    """Return `crrd node` for a local node."""
    log = node.root / "crrd-node.log"
    return Daemon("node", log, node.kubeconfig, "--node-name", node.node_name, "--cri-endpoint", node.cri_endpoint)


def manager_daemon(node: LocalNode, log_file: Path, kubeconfig: Path, *flags: str, host: str = "127.0.0.1") -> Daemon:
    """Return `crrd manager` for a local node. The API server calls its webhook only after `ask_manager`."""
    admission = ("--webhook-address", f"{host}:0", "--certificate-name", host, "--drain-seconds", "0")
    return Daemon("manager", log_file, kubeconfig, *admission, *flags)


@asynccontextmanager
async def running_manager(
    node: LocalNode, kubeconfig: Path | None = None, host: str = "127.0.0.1"
) -> AsyncIterator[Daemon]:
    """Run `crrd manager` for a local node, with the webhook configuration through which the API server calls it.

    The webhook is called for every update: in a cluster, matchConditions exclude the daemons' own writes, but these are
    CEL, which is not evaluated here. `kubeconfig` is the manager's; None means the node's own. `host` is the address of
    this machine at which the API server calls it.
    """
    await node.client.create(WEBHOOKS, "", webhook_configuration())
    try:
        with suppress(ConflictError):
            await node.client.create(Resource("namespaces"), "", {"metadata": {"name": "crrd-system"}})
        log = node.root / "crrd-manager.log"
        async with manager_daemon(node, log, kubeconfig or node.kubeconfig, host=host) as manager:
            await ask_manager(node, manager)
            yield manager
    finally:
        await node.client.delete(WEBHOOKS, "", _CONFIGURATION)


async def ask_manager(node: LocalNode, manager: Daemon) -> None:
    """Make the API server call this manager, as a Service does in a cluster."""
    (webhook,) = (await node.client.get(WEBHOOKS, "", _CONFIGURATION))["webhooks"]
    url = f"https://{manager.admission_address}/{_PATH}"
    asking = {**webhook, "clientConfig": {**webhook["clientConfig"], "url": url}}
    await node.client.merge_patch(WEBHOOKS, "", _CONFIGURATION, {"webhooks": [asking]})


def webhook_configuration(address: str = "127.0.0.1:1") -> dict[str, Any]:
    """Return the manifests' configuration, with a URL instead of a Service. The manager writes its caBundle.

    The default address is an unused placeholder.
    """
    operations = ["CREATE", "UPDATE"]
    rule = {"apiGroups": [GROUP], "apiVersions": list(VERSIONS), "resources": [PLURAL], "operations": operations}
    webhook = {
        "name": f"{_PATH}.{GROUP}", "clientConfig": {"url": f"https://{address}/{_PATH}"}, "rules": [rule],
        "sideEffects": "None", "admissionReviewVersions": ["v1"], "failurePolicy": "Fail",
    }  # fmt: skip
    return {"metadata": {"name": _CONFIGURATION}, "webhooks": [webhook]}
