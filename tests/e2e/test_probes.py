"""Which probes a container gets that is started again, before its startupProbe has succeeded."""

import asyncio

import pytest

from crrd.kube.resources import NODES
from crrd.kubelet.restart_rules import has_early_liveness_bug
from crrd.kubelet.version import reported_version
from tests.support.cluster import Cluster, Json, container, foreign, states
from tests.support.command import explained

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(foreign() is None, reason="needs a real kubelet"),
]
DEFECT = "kubernetes#141155"
SCRIPT = """trap 'echo term >> /shared/log; sleep 4; exit 0' TERM
sleep 6; touch /tmp/up; echo up >> /shared/log
while :; do sleep 0.1; done"""


def probe(name: str, code: int) -> Json:
    """A probe that notes its name if the container is not up, and has this exit code then."""
    command = f"test -e /tmp/up || {{ echo {name} >> /shared/early; exit {code}; }}"
    return {"exec": {"command": ["/bin/sh", "-c", command]}, "periodSeconds": 1, "failureThreshold": 100}


def probes() -> Json:
    codes = {"startupProbe": 1, "livenessProbe": 1, "readinessProbe": 0}
    return {name: probe(name, code) for name, code in codes.items()}


async def early(cluster: Cluster) -> set[str]:
    """The probes of the second instance that ran before its startupProbe had succeeded."""
    await cluster.wait_words("web", "log", "up", "term", "up")
    return {*cluster.read("web", "early").split()} - {"startupProbe"}


async def stopping(cluster: Cluster) -> None:
    """Wait until the first instance has got SIGTERM. What its probes have noted is forgotten."""
    async with asyncio.timeout(60):
        while "term" not in cluster.read("web", "log").split():
            await asyncio.sleep(0.05)
    (cluster.shared("web") / "early").unlink()


@pytest.mark.usefixtures("node_daemon")
async def test_explain_warns_where_probes_run_before_the_startup_probe_has_succeeded(cluster: Cluster) -> None:
    pod = await cluster.run_pod("web", [container("app", SCRIPT, **probes())], grace=20)
    assert set(cluster.read("web", "early").split()) == {"startupProbe"}
    name = (await cluster.recreate(pod, ["app"]))["metadata"]["name"]
    await stopping(cluster)
    warned = DEFECT in await explained(cluster, name)
    request = await cluster.wait_completed(name)
    completed_early = cluster.read("web", "log").split() == ["up", "term"]
    found = await early(cluster)
    print(f"warned: {warned}, early probes: {found or 'none'}, completed early: {completed_early}")
    assert states(request) == {"app": "Succeeded"}
    assert warned or not (found or completed_early)


async def test_only_kubelets_with_the_defect_probe_early_after_a_change_of_the_image(cluster: Cluster) -> None:
    image = cluster.need_second_image()
    await cluster.run_pod("web", [container("app", SCRIPT, **probes())], grace=20)
    await cluster.set_image("web", "app", image)
    await stopping(cluster)
    found = await early(cluster)
    version = reported_version(await cluster.client.get(NODES, "", cluster.node_name))
    print(f"kubelet {version}, early probes: {found or 'none'}")
    assert has_early_liveness_bug(version) or not found
