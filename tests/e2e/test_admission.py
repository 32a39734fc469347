"""What users meet at admission on a real API server: the readiness gate in all namespaces, a node without a daemon."""

import json
import subprocess
from collections.abc import Iterator

import pytest

from crrd.core.api.types import LABEL_POD_NAME, LABEL_READINESS_GATE, READINESS_GATE
from tests.support.cluster import Cluster
from tests.support.real_nodes import installed, kubectl, machines, roll_out
from tests.support.recreates import pod_spec
from tests.tools.cluster.cluster import RealCluster as Machines

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(900),
    pytest.mark.skipif(machines() is None, reason="needs a cluster of python -m tests.tools.cluster"),
]
PLAIN, LEFT_OUT = "admission-plain", "admission-left-out"


@pytest.fixture(scope="module")
def everywhere() -> Iterator[Machines]:
    """A cluster whose pods get the gate in all namespaces, and two namespaces, one of which is left out."""
    found = machines()
    assert found is not None
    with installed(found, "overlays/gate-all-namespaces"):
        roll_out(found)
        for name in (PLAIN, LEFT_OUT):
            kubectl(found, "create", "namespace", name)
        kubectl(found, "label", "namespace", LEFT_OUT, f"{LABEL_READINESS_GATE}=disabled")
        try:
            yield found
        finally:
            kubectl(found, "delete", "namespace", PLAIN, LEFT_OUT)


def apply(found: Machines, namespace: str, body: object) -> str:
    """Create an object, and return the warnings that kubectl prints."""
    command = ["kubectl", "--kubeconfig", str(found.plan.kubeconfig), "create", "-n", namespace, "-f", "-"]
    ended = subprocess.run(command, input=json.dumps(body), capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stderr


async def test_a_pod_gets_the_gate_where_nobody_is_against_it(cluster: Cluster, everywhere: Machines) -> None:
    for namespace, gates in ((PLAIN, [READINESS_GATE]), (LEFT_OUT, [])):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}, "spec": pod_spec(cluster, "app")}
        assert apply(everywhere, namespace, pod) == ""
        kubectl(everywhere, "wait", "-n", namespace, "pod/web", "--for=condition=Ready", "--timeout=120s")
        made = json.loads(kubectl(everywhere, "get", "-n", namespace, "pod/web", "-o", "json"))
        assert [each["conditionType"] for each in made["spec"].get("readinessGates", ())] == gates


async def test_a_node_whose_daemon_is_gone_is_told_at_once(cluster: Cluster, everywhere: Machines) -> None:
    spec = {"podName": "web", "containers": [{"name": "app"}]}
    body = {"apiVersion": "apps.kruise.io/v1alpha1", "kind": "ContainerRecreateRequest", "spec": spec}
    assert apply(everywhere, PLAIN, {**body, "metadata": {"name": "served"}}) == ""
    words = ("get", "crr", "-n", PLAIN, "-o", "name")
    for selector in (f"--selector={LABEL_POD_NAME}=web", "--field-selector=spec.podName=web"):
        assert kubectl(everywhere, *words, selector) == "containerrecreaterequest.apps.kruise.io/served\n"
    assert kubectl(everywhere, *words, "--field-selector=spec.podName=db") == ""
    nowhere = {"spec": {"template": {"spec": {"nodeSelector": {"no": "where"}}}}}
    kubectl(everywhere, "patch", "-n", "crrd-node", "daemonset/crrd-node", "-p", json.dumps(nowhere))
    kubectl(everywhere, "wait", "-n", "crrd-node", "pod", "-l", "app=crrd-node", "--for=delete", "--timeout=120s")
    warned = apply(everywhere, PLAIN, {**body, "metadata": {"name": "late"}})
    node = everywhere.nodes[0].name
    assert warned == f"Warning: no node daemon is ready on node {node}: the request fails if none answers within 60s\n"
