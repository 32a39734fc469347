"""A real program that reloads: Debian's Prometheus. It has the new file, and a long request goes on meanwhile."""

import asyncio
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from crrd.core.api.types import ANNOTATION_RELOAD
from crrd.kube.resources import CONFIG_MAPS
from tests.support.cluster import Cluster, Json, container_id, pod_ready, restart_count
from tests.support.ports import free_ports
from tests.support.recreates import daemons, lines, recreate

PROMETHEUS = shutil.which("prometheus") or ""
pytestmark = [
    pytest.mark.containerd,
    pytest.mark.cluster,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not PROMETHEUS, reason="not installed: prometheus (apt-get install prometheus)"),
]

PORTS = dict(zip(("prom-0", "prom-1"), free_ports(), strict=False))
LIBRARIES = ("/usr", "/lib", "/lib64")
BODY = b"query=up"


def prometheus(pod: str) -> Json:
    """The container: Prometheus with the node's libraries."""
    return {
        "name": "prometheus",
        "command": [
            PROMETHEUS,
            "--config.file=/config/prometheus.yml",
            "--storage.tsdb.path=/tmp/data",
            f"--web.listen-address=127.0.0.1:{PORTS[pod]}",
            "--web.enable-lifecycle",
        ],
        "readinessProbe": {
            "httpGet": {"host": "127.0.0.1", "path": "/-/ready", "port": PORTS[pod]},
            "periodSeconds": 1,
        },
        "volumeMounts": [
            {"name": "config", "mountPath": "/config"},
            *({"name": path[1:], "mountPath": path, "readOnly": True} for path in LIBRARIES),
        ],
    }


async def started(cluster: Cluster, interval: str = "15s") -> list[Json]:
    """Run two pods of it with this interval of scrapes."""
    await cluster.client.create(
        CONFIG_MAPS, cluster.namespace, {"metadata": {"name": "prom"}, "data": config(interval)}
    )
    libraries = [{"name": path[1:], "hostPath": {"path": path}} for path in LIBRARIES]
    for name, port in PORTS.items():
        declaration = f'{{"httpPost": {{"host": "127.0.0.1", "path": "/-/reload", "port": {port}}}}}'
        annotations = {f"{ANNOTATION_RELOAD}prometheus": declaration}
        await cluster.create_pod(
            name,
            [prometheus(name)],
            metadata={"labels": {"app": "prom"}, "annotations": annotations},
            volumes=[{"name": "config", "configMap": {"name": "prom"}}, *libraries],
        )
    return [await cluster.wait_pod(name, pod_ready, "ready") for name in PORTS]


def config(interval: str) -> Json:
    return {"prometheus.yml": f"global:\n  scrape_interval: {interval}\n"}


async def configure(cluster: Cluster, data: Json) -> None:
    await cluster.client.merge_patch(CONFIG_MAPS, cluster.namespace, "prom", {"data": data})


async def interval_of(pod: str) -> str:
    """The interval with which a pod works now."""
    address = f"http://127.0.0.1:{PORTS[pod]}/api/v1/status/config"
    async with aiohttp.ClientSession() as session, session.get(address) as response:
        text = (await response.json())["data"]["yaml"]
    return str(text.split("scrape_interval: ")[1].split()[0])


@asynccontextmanager
async def long_request(pod: str) -> AsyncIterator[asyncio.StreamReader]:
    """A request whose body ends only with the block. Then its response comes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", PORTS[pod])
    head = "POST /api/v1/query HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-www-form-urlencoded\r\n"
    writer.write(f"{head}Content-Length: {len(BODY)}\r\nConnection: close\r\n\r\n".encode() + BODY[:3])
    await writer.drain()
    yield reader
    writer.write(BODY[3:])
    await writer.drain()
    assert (await reader.read()).startswith(b"HTTP/1.1 200 OK")
    writer.close()


def assert_same(before: list[Json], after: list[Json]) -> None:
    """The containers are those from before."""
    for old, new in zip(before, after, strict=True):
        assert container_id(new, "prometheus") == container_id(old, "prometheus")
        assert restart_count(new, "prometheus") == restart_count(old, "prometheus") == 0


async def now(cluster: Cluster) -> list[Json]:
    return [await cluster.pod(name) for name in PORTS]


async def test_a_new_configuration_without_a_restart(cluster: Cluster, tmp_path: Path) -> None:
    before = await started(cluster)
    async with daemons(cluster, tmp_path), long_request("prom-0"), long_request("prom-1"):
        await configure(cluster, config("7s"))
        edited = time.monotonic()
        effects: dict[str, float] = {}

        async def watch(pod: str) -> None:
            while await interval_of(pod) != "7s":
                await asyncio.sleep(0.05)
            effects[pod] = time.monotonic() - edited

        watching = asyncio.gather(*map(watch, PORTS))
        ended = await recreate(cluster, "-l", "app=prom", "--reload", "--max-unavailable", "2", "-o", "json")
        took = time.monotonic() - edited
        assert ended.code == 0, ended.out + ended.err
        await watching
    after = await now(cluster)
    assert_same(before, after)
    assert lines(ended)[-1]["outcome"] == "done"
    shown = ", ".join(f"{pod} {seconds:.1f} s" for pod, seconds in sorted(effects.items()))
    print(f"from the edit of the ConfigMap to its effect: {shown}; the run ended after {took:.1f} s")


async def test_a_bad_configuration_reaches_one_pod_which_keeps_the_old_one(cluster: Cluster, tmp_path: Path) -> None:
    before = await started(cluster)
    async with daemons(cluster, tmp_path):
        await configure(cluster, {"prometheus.yml": "global:\n  scrape_interval: often\n"})
        ended = await recreate(cluster, "-l", "app=prom", "--reload", "--run", "bad")
        assert ended.code == 1, ended.out
        assert "HTTP status 500" in ended.out
        assert "1 failed" in ended.out
        assert [await interval_of(pod) for pod in PORTS] == ["15s", "15s"]
        await configure(cluster, config("9s"))
        ended = await recreate(cluster, "resume", "bad", "--retry-failed")
        assert ended.code == 0, ended.out
        assert [await interval_of(pod) for pod in PORTS] == ["9s", "9s"]
    assert_same(before, await now(cluster))
