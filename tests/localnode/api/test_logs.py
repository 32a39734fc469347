"""`kubectl logs` on the local node: from the runtime's file through kubelet and the API server."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from tests.support.cluster import Cluster, container, container_id, local_cluster, restarted

SAYS = "echo begun; echo 'to stderr' >&2; trap 'echo told to end; exit 0' TERM; while :; do sleep 0.05; done"


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with local_cluster(tmp_path, backoff=0.05) as found:
        yield found


async def logs(cluster: Cluster, pod: str, **query: str) -> tuple[int, str]:
    url = f"{cluster.local.api.url}/api/v1/namespaces/{cluster.namespace}/pods/{pod}/log"
    async with aiohttp.ClientSession() as session, session.get(url, params=query) as answer:
        return answer.status, await answer.text()


async def kubectl(cluster: Cluster, *words: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *("kubectl", "--kubeconfig", str(cluster.kubeconfig), "-n", cluster.namespace, *words),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, _ = await process.communicate()
    return out.decode()


async def test_what_was_printed(cluster: Cluster) -> None:
    pod = await cluster.run_pod("web", [container("app", SAYS), container("side")])
    async with asyncio.timeout(30):
        while "begun" not in (found := await logs(cluster, "web", container="app"))[1]:
            await asyncio.sleep(0.05)
    assert sorted(found[1].splitlines()) == ["begun", "to stderr"]
    assert len((await logs(cluster, "web", container="app", tailLines="1"))[1].splitlines()) == 1
    assert (await logs(cluster, "web", container="app", tailLines="²"))[0] == 200, "as without it"
    for line in (await logs(cluster, "web", container="app", timestamps="true"))[1].splitlines():
        assert line.partition(" ")[0].endswith("Z")
    assert sorted((await kubectl(cluster, "logs", "web", "-c", "app")).splitlines()) == ["begun", "to stderr"]

    following = asyncio.create_task(logs(cluster, "web", container="app", follow="true"))
    await cluster.stop(container_id(pod, "app"), 5)
    await cluster.wait_pod("web", restarted("app"), "restarted")
    assert "told to end" in (await following)[1].splitlines()  # its shell may say that the sleep was ended, too
    assert "told to end" in (await logs(cluster, "web", container="app", previous="true"))[1]
    assert "told to end" not in (await logs(cluster, "web", container="app"))[1]


async def test_what_cannot_be_had(cluster: Cluster) -> None:
    await cluster.run_pod("web", [container("app"), container("side")])

    async def refused(pod: str, **query: str) -> tuple[int, str]:
        status, text = await logs(cluster, pod, **query)
        assert '"kind":"Status"' in text
        return status, text

    assert (await refused("nope"))[0] == 404
    status, text = await refused("web")
    assert (status, "a container name must be specified for pod web, choose one of: [app side]" in text) == (400, True)
    assert "container nope is not valid for pod web" in (await refused("web", container="nope"))[1]
    status, text = await refused("web", container="app", previous="true")
    assert (status, 'previous terminated container \\"app\\" in pod \\"web\\" not found' in text) == (400, True)
    await cluster.local.stop_kubelet()
    status, text = await refused("web", container="app")
    assert (status, "does not answer" in text) == (500, True)
    await cluster.local.start_kubelet()
