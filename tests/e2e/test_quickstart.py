"""`docs/quickstart.md`: its commands work as they stand there, on a cluster of `python -m tests.tools.cluster`.

What the page does with docker and kind, the test does on the cluster's nodes: it imports an archive with the images.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from crrd.kube.resources import POLICIES, REQUESTS
from tests.support.pages import run
from tests.support.real_nodes import kubectl, load_crrd, machines, missing, namespace
from tests.tools.cluster.cluster import RealCluster as Machines

NAMESPACE = "quickstart"
pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(missing(1)), reason=missing(1)),
]


@pytest.fixture
def cluster() -> Iterator[Machines]:
    """The cluster, without anything of crrd, and with the images of the page on its nodes."""
    found = machines()
    assert found is not None
    load_crrd(found)
    kubectl(found, "delete", "crd", "--ignore-not-found", REQUESTS.full_name, POLICIES.full_name)  # of other tests
    with namespace(found, NAMESPACE):
        yield found


def restarts(cluster: Machines) -> list[tuple[int, int]]:
    """The restarts of `app` and of `side` of each pod."""
    listed = json.loads(kubectl(cluster, "-n", NAMESPACE, "get", "pods", "-l", "app=web", "-o", "json"))["items"]
    counts = ({each["name"]: each["restartCount"] for each in pod["status"]["containerStatuses"]} for pod in listed)
    return [(each["app"], each["side"]) for each in counts]


def test_with_nothing_installed(cluster: Machines, tmp_path: Path) -> None:
    out = run("quickstart.md", "Any cluster with nothing installed", tmp_path, cluster.plan.kubeconfig, NAMESPACE)
    assert "restarts by patches: crrd is not installed" in out
    assert "done: 3 of 3 pods recreated" in out
    assert restarts(cluster) == [(1, 0)] * 3


def test_an_edit_goes_live_and_nothing_stays(cluster: Machines, tmp_path: Path) -> None:
    where = tmp_path, cluster.plan.kubeconfig, NAMESPACE
    run("quickstart.md", "kind, minikube or k3d", *where)
    try:
        out = run("quickstart.md", "An edit goes live", *where)
        assert out.count("hello again\n") == 3
        assert "3/3" in out
        assert restarts(cluster) == [(1, 0)] * 3
    finally:
        run("quickstart.md", "Remove it all", *where)
    kubectl(cluster, "wait", "--for=delete", "namespace/crrd-node", "namespace/crrd-system", "--timeout=120s")
    left = kubectl(cluster, "get", "namespaces,crds,clusterroles,daemonsets,deployments", "-A", "-o", "name")
    assert [each for each in left.splitlines() if "crrd" in each or "containerrecreate" in each] == []
