"""The local node as a whole: its parts come up together and go together."""

import asyncio
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from crrd.kube.access.config import KubeconfigAccess
from crrd.kube.client import KubeClient
from crrd.kube.resources import NODES
from crrd_localnode.apiserver import ApiServer
from crrd_localnode.node import LocalNode
from tests.support.faulty_node import RuntimeProcess


async def test_its_kubeconfig_leads_to_its_api_server() -> None:
    async with LocalNode(node_name="here") as node, KubeClient(KubeconfigAccess(str(node.kubeconfig))) as client:
        assert [entry["metadata"]["name"] for entry in (await client.list_all(NODES, dict)).items] == ["here"]


async def test_a_temporary_root_goes_with_the_node_and_a_given_one_stays(tmp_path: Path) -> None:
    async with LocalNode() as node:
        assert node.root.is_dir()
    assert not node.root.exists()
    async with LocalNode(tmp_path / "n") as node:
        assert node.root == tmp_path / "n"
    assert node.kubeconfig.exists()


async def test_a_node_that_cannot_start_takes_down_what_had_started() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        node = LocalNode(api=ApiServer(port=taken.getsockname()[1]))
        with pytest.raises(OSError, match="address already in use"):
            await node.__aenter__()
    assert not node.root.exists()
    with pytest.raises(RuntimeError, match="was not started"):
        _ = node.client


async def test_a_foreign_runtime_is_waited_for(tmp_path: Path) -> None:
    runtime = RuntimeProcess(tmp_path / "runtime", tmp_path / "cri.sock")
    node = LocalNode(tmp_path / "n", cri_endpoint=runtime.endpoint)
    starting = asyncio.create_task(node.start())
    try:
        await runtime.start()
        await asyncio.wait_for(starting, 30)
    finally:
        await node.stop()
        await runtime.stop()
        await runtime.stop()  # again is no harm


async def test_a_node_restarted_on_the_same_root_takes_up_its_name(tmp_path: Path) -> None:
    api = ApiServer()
    async with LocalNode(tmp_path / "n", api=api) as node:
        await node.stop_kubelet()
        await node.start_kubelet()
        assert len((await node.client.list_all(NODES, dict)).items) == 1


def test_it_imports_no_parser_generator() -> None:
    """jsonschema compiles a grammar at import where its extra `format` is installed: 1.5 s for every process."""
    code = "import sys, crrd_localnode.node; print(*sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60).stdout
    assert "jsonschema" in out.split()
    assert "lark" not in out.split(), "another package of the test environment brings jsonschema's extra in"
