"""What `crrd forecast` says of containers on a real runtime: each outcome, for the test's own pod."""

import json
from typing import Any

import pytest

from tests.support.cluster import Cluster, container
from tests.support.command import crrd

pytestmark = [pytest.mark.containerd, pytest.mark.cluster]

Row = dict[str, Any]


async def forecast(cluster: Cluster, *flags: str, stdin: str = "") -> tuple[int, dict[str, Row]]:
    """Exit code, and the rows of this test's own containers by their names."""
    flags = ("-o", "json", "--cri-endpoint", cluster.cri_endpoint, *flags)
    code, out, _ = await crrd("forecast", *flags, stdin=stdin)
    rows: list[Row] = json.loads(out)["containers"]
    return code, {row["container"]: row for row in rows if row["namespace"] == cluster.namespace}


async def test_each_outcome(cluster: Cluster) -> None:
    sidecar = container("proxy", restartPolicy="Always")
    pod = await cluster.run_pod("web", [container("app")], init_containers=[container("setup", "true"), sidecar])
    api = ("--node-name", cluster.node_name, "--kubeconfig", str(cluster.kubeconfig))
    _, kept = await forecast(cluster, "--to", "1.35", *api)
    assert {name: row["outcome"] for name, row in kept.items()} == {"app": "keep", "proxy": "keep"}
    assert kept["proxy"]["kind"] == "sidecar"
    # kubelet 1.30 did not compare the hashes of sidecars
    code, rebuilt = await forecast(cluster, "--to", "1.30", *api)
    assert {name: row["outcome"] for name, row in rebuilt.items()} == {"app": "restart", "proxy": "keep"}
    assert code == 3
    other = {**pod, "metadata": {"uid": "another"}}
    file = json.dumps({"kind": "List", "items": [other]})
    code, unknown = await forecast(cluster, "--to", "1.35", "--from", "1.36", "--pods", "-", stdin=file)
    assert {name: row["outcome"] for name, row in unknown.items()} == {"app": "unknown", "proxy": "unknown"}
    assert code == 4
