"""Which probes a container gets that kubelet starts again after a stop by crrd, before it has started up."""

import asyncio

import pytest

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


@pytest.mark.usefixtures("node_daemon")
async def test_explain_warns_where_probes_run_before_the_startup_probe_has_succeeded(cluster: Cluster) -> None:
    probes = {
        name: probe(name, code) for name, code in (("startupProbe", 1), ("livenessProbe", 1), ("readinessProbe", 0))
    }
    pod = await cluster.run_pod("web", [container("app", SCRIPT, **probes)], grace=20)
    assert set(cluster.read("web", "early").split()) == {"startupProbe"}
    name = (await cluster.recreate(pod, ["app"]))["metadata"]["name"]
    async with asyncio.timeout(60):
        while "term" not in cluster.read("web", "log").split():
            await asyncio.sleep(0.05)
    warned = DEFECT in await explained(cluster, name)
    (cluster.shared("web") / "early").unlink()
    request = await cluster.wait_completed(name)
    completed_early = cluster.read("web", "log").split() == ["up", "term"]
    await cluster.wait_words("web", "log", "up", "term", "up")
    early = {*cluster.read("web", "early").split()} - {"startupProbe"}
    print(
        f"warned: {warned}, probes before the startupProbe had succeeded: {early or 'none'}, "
        f"completed before: {completed_early}"
    )
    assert states(request) == {"app": "Succeeded"}
    assert warned or not (early or completed_early)
