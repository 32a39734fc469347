"""A cluster of `python -m tests.tools.cluster`, whose nodes tests can break, with crrd installed from its manifests."""

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc

from cri_stubs import api_pb2, api_pb2_grpc
from tests.support.images import write_busybox
from tests.support.manifests import MANIFESTS
from tests.tools.cluster.cluster import RealCluster as Machines
from tests.tools.cluster.image import NAME, write_crrd_image
from tests.tools.cluster.node import Node

VARIABLE = "CRRD_TEST_CLUSTER"
"""The folder of the cluster."""


def machines() -> Machines | None:
    """Return the cluster that the variable names, or None."""
    folder = os.environ.get(VARIABLE)
    return Machines.find(Path(folder)) if folder else None


def kubectl(found: Machines, *words: str, kubeconfig: Path | None = None) -> str:
    """Run kubectl and return its output. Raises CalledProcessError."""
    command = ["kubectl", "--kubeconfig", str(kubeconfig or found.plan.kubeconfig), *words]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def load_crrd(found: Machines) -> None:
    """Import an image of this checkout on all nodes."""
    with tempfile.TemporaryDirectory() as temporary:
        archive = Path(temporary) / "crrd.tar"
        write_crrd_image(archive)
        for node in found.nodes:
            node.load(archive)


@contextmanager
def installed(found: Machines, folder: str = "default") -> Iterator[Machines]:
    """Install this checkout as pods, with an image of it, from a folder of manifests, and uninstall it in the end."""
    load_crrd(found)
    kubectl(found, "apply", "-k", str(MANIFESTS / folder))
    try:
        if folder == "default":
            kubectl(found, "-n", "crrd-node", "set", "env", "daemonset/crrd-node", "CRRD_SERVE_FORECAST=true")
            roll_out(found)
        wait_for_manager(found)
        yield found
    finally:
        words = ["sh", str(MANIFESTS / "uninstall.sh"), "-k", str(MANIFESTS / folder)]
        environment = {**os.environ, "KUBECONFIG": str(found.plan.kubeconfig)}
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL, env=environment)
        namespaces = ("namespace/crrd-system", "namespace/crrd-node")  # the next module installs it again
        kubectl(found, "wait", "--for=delete", *namespaces, "--timeout=240s")


@contextmanager
def namespace(found: Machines, name: str) -> Iterator[str]:
    """Have the image of the docs' examples on all nodes, and a namespace that is gone in the end."""
    with tempfile.TemporaryDirectory() as temporary:
        archive = Path(temporary) / "busybox.tar"
        write_busybox(archive, f"{NAME.rpartition('/')[0]}/busybox:1.36")
        for node in found.nodes:
            node.load(archive)
    kubectl(found, "create", "namespace", name)
    try:
        yield name
    finally:
        kubectl(found, "delete", "namespace", name)


def roll_out(found: Machines) -> None:
    """Wait until all daemons and managers are ready."""
    kubectl(found, "-n", "crrd-node", "rollout", "status", "daemonset/crrd-node", "--timeout=180s")
    wait_for_manager(found)


def wait_for_manager(found: Machines) -> None:
    """Wait until all managers are ready."""
    kubectl(found, "-n", "crrd-system", "rollout", "status", "deployment/crrd-manager", "--timeout=180s")


def kill_managers(found: Machines) -> None:
    """Send SIGKILL to all managers, which kubelet starts again."""
    of_managers = api_pb2.ContainerFilter(
        state=api_pb2.ContainerStateValue(state=api_pb2.CONTAINER_RUNNING),
        label_selector={"io.kubernetes.pod.namespace": "crrd-system"},
    )
    for node in found.nodes:
        with grpc.insecure_channel(node.endpoint) as channel:
            stub = api_pb2_grpc.RuntimeServiceStub(channel)
            for each in stub.ListContainers(api_pb2.ListContainersRequest(filter=of_managers), timeout=20).containers:
                asked = api_pb2.ContainerStatusRequest(container_id=each.id, verbose=True)
                info = json.loads(stub.ContainerStatus(asked, timeout=20).info["info"])
                node.run("kill", "-9", str(info["pid"]))


@contextmanager
def broken(node: Node, *parts: str) -> Iterator[None]:
    """Kill these parts of a node, kubelet or containerd, and start them again in the end. Their containers run on."""
    for part in parts:
        node.kill(part)
    try:
        yield
    finally:
        if not node.runs("containerd"):
            node.start_runtime()
            node.wait_runtime()  # kubelet ends if it starts earlier
        if not node.runs("kubelet"):
            node.start_kubelet()


def missing(count: int = 3) -> str:
    """Return why there are not so many nodes to test with, or ""."""
    found = machines()
    if found is None:
        return f"needs a cluster of python -m tests.tools.cluster ({VARIABLE})"
    if shutil.which("kubectl") is None:
        return "needs kubectl"
    return "" if len(found.nodes) >= count else f"needs {count} nodes"
