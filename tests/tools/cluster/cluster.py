"""A whole cluster: starts it, finds it again in its folder, and ends it."""

import asyncio
import shutil
import subprocess
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from crrd.kube.access.config import KubeconfigAccess
from crrd.kube.client import KubeClient
from crrd.kube.resources import NODES, Resource
from crrd.lib.errors import ApiRefusedError, ApiUnavailableError, ConfigurationError, GoneError
from tests.support.images import BUSYBOX_IMAGE, BUSYBOX_IMAGE_2, write_archive
from tests.tools.cluster.control_plane import ControlPlane
from tests.tools.cluster.machine import Machine, wait
from tests.tools.cluster.node import Node
from tests.tools.cluster.plan import Plan

_ARCHIVE = "images.tar"
_READY_SECONDS = 180
_DEFAULT_ACCOUNT = (Resource("serviceaccounts"), "default", "default")


class RealCluster:
    """The machines of a plan."""

    def __init__(self, plan: Plan, tell: Callable[[str], None] = lambda _: None) -> None:
        self.plan = plan
        self.control_plane = ControlPlane(plan)
        self.nodes = tuple(Node(plan, number) for number in range(1, plan.nodes + 1))
        self._tell = tell

    @classmethod
    def find(cls, folder: Path) -> "RealCluster":
        """Return the cluster of a folder. Raises ConfigurationError."""
        return cls(Plan.load(folder.resolve()))

    def node(self, name: str) -> Node:
        """Return a node by its name."""
        return self.nodes[self.plan.names.index(name)]

    def start(self, archives: Sequence[Path] = ()) -> None:
        """Start everything, and return when all nodes are Ready. Raises ConfigurationError."""
        self.plan.save()
        self._tell("making machines and their network")
        self._connect()
        self.control_plane.prepare()
        self._tell("starting etcd and the API server")
        self.control_plane.start_etcd()
        self.control_plane.start_api_server()
        self._tell("starting the runtimes, and importing images")
        images = self.plan.folder / _ARCHIVE
        write_archive(images, Path(shutil.which("busybox") or "/bin/busybox"))
        for node in self.nodes:
            node.prepare()
            node.start_runtime()
        for node in self.nodes:
            node.wait_runtime(self._tell)
            for archive in (images, *archives):
                node.load(archive)
            wait(f"the images on {node.name}", node.has_images, _READY_SECONDS, self._tell)
        self.control_plane.wait_certificate(self._tell)
        self.control_plane.write_kubeconfigs()
        asyncio.run(self._until("the API server", self._api_answers))
        self._tell("starting controllers and kubelets")
        self.control_plane.start_controllers()
        for node in self.nodes:
            node.start_kubelet()
        asyncio.run(self._until("all nodes to be Ready", self._nodes_ready))
        self._write_help_files()

    def _connect(self) -> None:
        """Start the machines, and connect each with the bridge of this machine."""
        plan, bridge = self.plan, self.plan.bridge
        _ip("link", "add", bridge, "type", "bridge")
        _ip("address", "add", f"{plan.address(1)}/24", "dev", bridge)
        _ip("link", "set", bridge, "up")
        places: list[tuple[Machine, str]] = [(self.control_plane, plan.api_address)]
        places += [(node, node.address) for node in self.nodes]
        for index, (machine, address) in enumerate(places):
            machine.start()
            link = f"{bridge}-{index}"
            _ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", str(machine.pid))
            _ip("link", "set", link, "master", bridge, "up")
            machine.run("ip", "address", "add", f"{address}/24", "dev", "eth0")
            machine.run("ip", "link", "set", "eth0", "up")
            machine.run("ip", "route", "add", "default", "via", plan.address(1))
        self.control_plane.run("ip", "address", "add", f"{plan.service_address}/32", "dev", "eth0")
        # Everybody reaches the API server as a Service, and the pods of all other nodes.
        routes = [(f"{plan.service_address}/32", plan.api_address)]
        routes += [(plan.pod_network(node.number), node.address) for node in self.nodes]
        for target, via in routes:
            _ip("route", "add", target, "via", via)
            for machine, address in places:
                if address != via:
                    machine.run("ip", "route", "add", target, "via", via)

    async def _until(self, what: str, missing: Callable[[KubeClient], Awaitable[str]]) -> None:
        """Wait until nothing is missing any more. Raises ConfigurationError at a timeout, with what still is."""
        async with KubeClient(KubeconfigAccess(str(self.plan.kubeconfig))) as client:
            last = ""
            for second in range(_READY_SECONDS):
                self.control_plane.need("kube-apiserver")
                try:
                    last = await missing(client)
                    if not last:
                        return
                except (ApiUnavailableError, ApiRefusedError, GoneError) as error:
                    last = str(error)
                if second and second % 10 == 0:
                    self._tell(f"waiting for {what} ({second}s): {last}")
                await asyncio.sleep(1)
        raise ConfigurationError(f"timed out waiting for {what}: {last} (logs in {self.plan.folder})")

    async def _api_answers(self, client: KubeClient) -> str:
        await client.list_all(NODES, dict)
        return ""

    async def _nodes_ready(self, client: KubeClient) -> str:
        """Return which nodes are not Ready, with the last line of their kubelet's log."""
        await client.get(*_DEFAULT_ACCOUNT)  # without it, no pod is admitted
        found = {node["metadata"]["name"]: node for node in (await client.list_all(NODES, dict)).items}
        late = [node for node in self.nodes if not _ready(found.get(node.name, {}))]
        for node in late:
            node.need("kubelet")
        return "; ".join(f"{node.name}: {node.last_line('kubelet')}" for node in late)

    def _write_help_files(self) -> None:
        """Write the variables of the tests, and for each node a command that runs others in its network."""
        plan, first = self.plan, self.nodes[0]
        variables = {
            "CRRD_TEST_CLUSTER": plan.folder,
            "CRRD_TEST_KUBECONFIG": plan.kubeconfig,
            "CRRD_TEST_CRI_ENDPOINT": first.endpoint,
            "CRRD_TEST_NODE": first.name,
            "CRRD_TEST_IMAGE": BUSYBOX_IMAGE,
            "CRRD_TEST_IMAGE_2": BUSYBOX_IMAGE_2,
            "CRRD_TEST_IMAGE_ARCHIVE": plan.folder / _ARCHIVE,
        }
        (plan.folder / "env").write_text("".join(f"{name}={value}\n" for name, value in variables.items()))
        for node in self.nodes:
            script = node.folder / "enter"
            script.write_text(f'#!/bin/sh\nexec {" ".join(node.enter("net"))} "$@"\n')
            script.chmod(0o755)

    def end(self) -> None:
        """End everything that was started, by its ID, and take the network away."""
        with ExitStack() as left:
            left.callback(_remove_links, self.plan.bridge)
            left.callback(self.control_plane.stop)
            with ThreadPoolExecutor(len(self.nodes)) as pool:
                list(pool.map(Node.stop, self.nodes))


def _ready(node: Mapping[str, Any]) -> bool:
    conditions = (node.get("status") or {}).get("conditions") or ()
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _remove_links(bridge: str) -> None:
    """Delete the bridge and its links. The kernel would delete those a moment after their machine has ended."""
    for name in (bridge, *(each.name for each in Path("/sys/class/net").glob(f"{bridge}-*"))):
        with suppress(ConfigurationError):  # it is gone already
            _ip("link", "delete", name)


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], check=False, capture_output=True, text=True)
    if done.returncode:
        raise ConfigurationError(f"ip {' '.join(words)}: {done.stderr.strip()}")
