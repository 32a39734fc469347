"""Bad images on a real cluster: a run, or a policy, gives them to one pod, finds out, and gives the old one back."""

import asyncio
import shutil
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import aiohttp
import pytest
import yaml

from tests.e2e.test_bad_changes import HTTP, conditions, give_policy, served, until_policy
from tests.support import prometheus
from tests.support.cluster import Cluster, Json, restart_count
from tests.support.images import busybox_layer, write_images
from tests.support.real_nodes import kill_managers, machines
from tests.support.recreates import (
    DEPLOYMENTS,
    Record,
    create_workload,
    give_template,
    grant,
    image_of,
    recorded,
    recreate,
    wait_ready,
)
from tests.tools.cluster.cluster import RealCluster as Machines

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(900),
    pytest.mark.skipif(machines() is None, reason="needs a cluster of python -m tests.tools.cluster"),
]
IMAGES = {mode: f"localhost/judged:{mode}" for mode in ("good", "bad", "silent", "crashes")}
SERVER = f"""trap 'exit 0' TERM
mkdir -p /www/cgi-bin
answer=$([ "$MODE" = bad ] && echo '500 Internal Server Error' || echo '200 OK')
cat > /www/cgi-bin/app <<END
#!/bin/sh
echo >> /tmp/${{answer%% *}}
printf 'HTTP/1.0 $answer\\r\\n\\r\\n'
END
chmod +x /www/cgi-bin/app
count() {{ cat /tmp/$1 2> /dev/null | wc -l; }}
[ "$MODE" = silent ] || httpd -p {HTTP} -h /www
[ "$MODE" != crashes ] || {{ sleep 4 & wait $!; exit 1; }}
while :; do
  for code in 200 500; do echo "http_requests_total{{code=\\"$code\\"}} $(count $code)"; done > /www/new
  mv /www/new /www/metrics
  sleep 0.5 & wait $!
done"""
QUERY = """
sum(rate(http_requests_total{code="500",instance=~"{{pods}}"}[5s]))
/ sum(rate(http_requests_total{instance=~"{{pods}}"}[5s]))"""
REPLICAS = 10


def load_images(nodes: Machines, folder: Path) -> None:
    """Bring the images, which have the same program, to all nodes."""
    busybox = shutil.which("busybox")
    assert busybox is not None
    runs = {name: {"Env": ["PATH=/bin", f"MODE={mode}"], "Cmd": ["/bin/sh"]} for mode, name in IMAGES.items()}
    archive = folder / "images.tar"
    write_images(archive, busybox_layer(Path(busybox)), runs)
    for node in nodes.nodes:
        node.load(archive)


async def running(cluster: Cluster, nodes: Machines, folder: Path) -> list[Json]:
    """Run the Deployment "web" with the good image, and return its pods."""
    await asyncio.to_thread(load_images, nodes, folder)
    spec = served(cluster, SERVER)
    spec["containers"][0]["image"] = IMAGES["good"]
    await create_workload(cluster, "Deployment", "web", REPLICAS, spec)
    return await wait_ready(cluster, "web", REPLICAS)


async def given(cluster: Cluster, image: str, *flags: str) -> str:
    """Give pods an image in steps, and return the output of the run, which must fail."""
    judged = ("--template", "adopt", "--steps", "1", "--undo-on-failure", *flags)
    ended = await recreate(cluster, "deployment/web", "-c", "app", "--image", image, *judged)
    assert ended.code == 1, ended
    return ended.out


async def undone(cluster: Cluster, before: list[Json], record: Record, image: str) -> str:
    """Assert that one pod had the image, and that everything is as before. Return its name."""
    (bad,) = {pod for pod, had in record.images if had == image}
    after = await wait_ready(cluster, "web", REPLICAS)
    assert [pod["metadata"]["uid"] for pod in after] == [pod["metadata"]["uid"] for pod in before]
    assert {image_of(pod) for pod in after} == {IMAGES["good"]}
    counts = {pod["metadata"]["name"]: restart_count(pod, "app") for pod in after}
    assert counts == dict.fromkeys(counts, 0) | {bad: 2}
    deployment = await cluster.client.get(DEPLOYMENTS, cluster.namespace, "web")
    assert image_of(deployment["spec"]["template"]) == IMAGES["good"]
    assert not deployment["spec"].get("paused")
    return bad


@asynccontextmanager
async def traffic(addresses: Mapping[str, str]) -> AsyncIterator[Mapping[str, set[int]]]:
    """Send requests to all pods, and yield what each has answered."""
    answers: dict[str, set[int]] = defaultdict(set)

    async def send(session: aiohttp.ClientSession, pod: str) -> None:
        while True:
            with suppress(aiohttp.ClientError):
                async with session.get(f"http://{addresses[pod]}/cgi-bin/app") as answer:
                    answers[pod].add(answer.status)
            await asyncio.sleep(0.5)

    async with aiohttp.ClientSession() as session:
        tasks = [asyncio.create_task(send(session, pod)) for pod in addresses]
        try:
            yield answers
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.skipif(bool(prometheus.missing()), reason=prometheus.missing())
async def test_an_image_of_which_only_prometheus_knows(cluster: Cluster, nodes: Machines, tmp_path: Path) -> None:
    """It starts, is ready and answers 500."""
    before = await running(cluster, nodes, tmp_path)
    addresses = {pod["metadata"]["name"]: f"{pod['status']['podIP']}:{HTTP}" for pod in before}
    metrics = tmp_path / "metrics.yaml"
    async with (
        traffic(addresses) as answers,
        prometheus.Prometheus(tmp_path / "prometheus", {"web": addresses}) as server,
        recorded(cluster, "web") as record,
    ):
        metrics.write_text(yaml.safe_dump([{"prometheus": {"address": server.url, "query": QUERY, "max": 0.05}}]))
        await server.until("count(rate(http_requests_total[5s]))", lambda value: value == 2 * REPLICAS)
        out = await given(cluster, IMAGES["bad"], "--judge", "20s", "--metrics", str(metrics))
    assert "the judgement of step 1 of 2 is no: " in out
    bad = await undone(cluster, before, record, IMAGES["bad"])
    assert {pod for pod, codes in answers.items() if 500 in codes} == {bad}


async def test_an_image_that_is_never_ready(cluster: Cluster, nodes: Machines, tmp_path: Path) -> None:
    before = await running(cluster, nodes, tmp_path)
    async with recorded(cluster, "web") as record:
        out = await given(cluster, IMAGES["silent"], "--judge", "10s", "--pod-timeout", "30s")
    bad = await undone(cluster, before, record, IMAGES["silent"])
    assert f"the judgement of step 1 of 2 is no: {bad} is not ready 30s after its restart" in out


@pytest.mark.parametrize("killed", ["", "run", "halted", "undo"])
async def test_a_policy_gives_the_old_image_back(
    cluster: Cluster, nodes: Machines, tmp_path: Path, killed: str
) -> None:
    """Managers are killed at one moment, if it has a name."""
    before = await running(cluster, nodes, tmp_path)
    await grant(cluster, "crrd-update-images")
    await give_template(cluster, IMAGES["good"])
    await give_policy(cluster, triggers={"templateImage": {}}, onFailure="Undo")
    moments: dict[str, Callable[[Json], bool]] = {
        "run": lambda found: bool(found["status"].get("run")),
        "halted": lambda found: bool(found["status"].get("tried")),
        "undo": lambda found: bool(found["status"].get("run", {}).get("undoes")),
    }
    began = time.monotonic()
    async with recorded(cluster, "web") as record:
        await give_template(cluster, IMAGES["crashes"])
        if killed:
            await until_policy(cluster, moments[killed], killed)
            await asyncio.to_thread(kill_managers, nodes)
        await until_policy(cluster, lambda found: moments["undo"](found) and is_failed(found), "undone")
        print(f"managers killed: {killed or 'never'}: undone after {time.monotonic() - began:.0f} s")
        await asyncio.sleep(20)  # nothing more happens
    after = await wait_ready(cluster, "web", REPLICAS)
    assert len({pod for pod, image in record.images if image == IMAGES["crashes"]}) == 1
    assert {image_of(pod) for pod in after} == {IMAGES["good"]}
    await give_template(cluster, IMAGES["good"], paused=False)
    await until_policy(cluster, lambda found: not is_failed(found), "over")
    after = await wait_ready(cluster, "web", REPLICAS)
    assert [pod["metadata"]["uid"] for pod in after] == [pod["metadata"]["uid"] for pod in before]


def is_failed(policy: Json) -> bool:
    """Whether no run is in progress, and one that has failed stops the policy."""
    return bool(conditions(policy)["Ready"]["reason"] == "RunFailed")
