"""What `crrd forecast` says of containers on a real runtime: each outcome, for the test's own pod."""

import json
from typing import Any

import pytest

from crrd.kube.resources import NODES
from crrd.kubelet.version import reported_version
from crrd_forecast.hash.version import parse_minor
from tests.support.cluster import Cluster, container
from tests.support.command import crrd

pytestmark = [pytest.mark.containerd, pytest.mark.cluster]

Row = dict[str, Any]
KEPT = {"app": "keep", "proxy": "keep"}
EXPECTED = {
    True: {"1.35": KEPT, "1.30": {"app": "restart", "proxy": "keep"}},
    False: {"1.35": {"app": "restart", "proxy": "restart"}, "1.30": KEPT},
}
"""Whether the node's kubelet is newer than 1.30, and to which version. 1.30 does not compare the hashes of sidecars."""


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
    node = await cluster.client.get(NODES, "", cluster.node_name)
    expected = EXPECTED[parse_minor(reported_version(node)) > 30]
    for version in ("1.35", "1.30"):
        code, rows = await forecast(cluster, "--to", version, *api)
        outcomes = {name: row["outcome"] for name, row in rows.items()}
        assert outcomes == expected[version]
        assert rows["proxy"]["kind"] == "sidecar"
        assert code == 3 or "restart" not in outcomes.values()
    other = {**pod, "metadata": {"uid": "another"}}
    file = json.dumps({"kind": "List", "items": [other]})
    code, unknown = await forecast(cluster, "--to", "1.35", "--from", "1.36", "--pods", "-", stdin=file)
    assert {name: row["outcome"] for name, row in unknown.items()} == {"app": "unknown", "proxy": "unknown"}
    assert code == 4
