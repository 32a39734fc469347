"""`crrd forecast` as its user meets it, on the local node: each outcome, every node, and input that cannot work."""

import asyncio
import io
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from crrd.cli.main import build_parser
from crrd.cri.runtime import connect
from crrd.kube.resources import PODS
from crrd.lib.errors import ConfigurationError
from crrd_forecast.command import read_pods, run
from crrd_forecast.node import NodeForecast
from crrd_forecast.spec_store import SpecStore
from tests.support.cluster import Cluster, container, local_cluster
from tests.support.command import crrd
from tests.support.daemons import NodeDaemon

Json = dict[str, Any]


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with local_cluster(tmp_path) as found:
        yield found


def on_node(cluster: Cluster) -> tuple[str, ...]:
    kubeconfig = ("--kubeconfig", str(cluster.kubeconfig))
    return ("--node-name", cluster.node_name, "--cri-endpoint", cluster.cri_endpoint, *kubeconfig)


async def run_pod(cluster: Cluster, name: str, *containers: Json) -> Json:
    return await cluster.run_pod(name, containers or [container("app")])


async def test_a_node_whose_containers_are_kept(cluster: Cluster) -> None:
    await run_pod(cluster, "web", container("app"), container("log"))
    code, out, err = await crrd("forecast", "--to", "1.35", *on_node(cluster))
    assert (code, err) == (0, "")
    rows = [line.split() for line in out.splitlines()]
    assert [(row[1], row[2], row[5]) for row in rows[1:-1]] == [("web", "app", "keep"), ("web", "log", "keep")]
    assert out.splitlines()[-1] == f"node {cluster.node_name}: 2 keep, 0 restart, 0 unknown (kubelet v1.36.0 to 1.35)"


async def test_a_version_that_hashes_otherwise_restarts(cluster: Cluster) -> None:
    await run_pod(cluster, "web")
    code, out, _ = await crrd("forecast", "--to", "1.30", "-o", "json", *on_node(cluster))
    assert code == 3
    report = json.loads(out)
    assert (report["totals"], report["from"]) == ({"keep": 0, "restart": 1, "unknown": 0}, "v1.36.0")
    assert report["containers"][0]["reason"] == (
        "kubelet 1.36 hashes only name and image, 1.30 the whole container's JSON"
    )


async def test_pods_from_a_file_leave_the_api_alone(cluster: Cluster, tmp_path: Path) -> None:
    pod = await run_pod(cluster, "web")
    await run_pod(cluster, "other")
    file = tmp_path / "pods.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [{**pod, "kind": "Pod"}]}))
    flags = ("--to", "1.32", "--from", "1.31", "--cri-endpoint", cluster.cri_endpoint, "-o", "json")
    code, out, _ = await crrd("forecast", *flags, "--pods", str(file))
    assert code == 4
    outcomes = {each["pod"]: (each["outcome"], each["reason"]) for each in json.loads(out)["containers"]}
    assert outcomes == {
        "web": ("keep", "the hash stays the same"),
        "other": ("unknown", "the pods that were read do not include this container"),
    }
    code, out, _ = await crrd("forecast", *flags, "--pods", "-", stdin="kind: PodList\nitems:\n- " + json.dumps(pod))
    assert {each["pod"]: each["outcome"] for each in json.loads(out)["containers"]}["web"] == "keep"
    flags = ("--from", "Kubernetes v1.31.2\n", *flags[:2], *flags[4:])  # as `kubelet --version` prints it
    code, out, _ = await crrd("forecast", *flags, "--pods", str(file))
    assert (code, json.loads(out)["from"]) == (4, "v1.31.2")


async def test_every_node_is_asked_and_a_picture_is_drawn(cluster: Cluster, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    await run_pod(cluster, "web")
    picture = tmp_path / "nodes.svg"
    kubeconfig = ("--kubeconfig", str(cluster.kubeconfig))
    code, out, err = await crrd("forecast", "--to", "1.30", "--all-nodes", "--plot", str(picture), *kubeconfig)
    assert code == 4
    assert out == f"node {cluster.node_name}: no report\nno node daemon of crrd runs on this node\n"
    assert err == f"drew {picture}\n"
    assert f"<!-- {cluster.node_name} (no report) -->" in picture.read_text()


async def test_the_daemons_page(cluster: Cluster, tmp_path: Path) -> None:
    await run_pod(cluster, "web")
    async with NodeDaemon(cluster, tmp_path / "daemon.log", "--serve-forecast") as daemon:
        url = f"http://{daemon.address}/forecast"
        async with aiohttp.ClientSession() as session:
            async with session.get(url, params={"to": "1.30"}) as answer:
                report = await answer.json()
            async with session.get(url, params={"to": "1.30", "from": "soon"}) as answer:
                refused = (answer.status, await answer.text())
            async with session.get(url) as answer:
                assert answer.status == 400
        await daemon.kill()
    assert (report["node"], report["from"]) == (cluster.node_name, "v1.36.0")
    assert report["totals"] == {"keep": 0, "restart": 1, "unknown": 0}
    assert refused[0] == 400
    assert "'soon' is not a Kubernetes version" in refused[1]


async def test_nobody_is_served_a_forecast_unasked(cluster: Cluster, node_daemon: NodeDaemon) -> None:
    await run_pod(cluster, "web")
    url = f"http://{node_daemon.address}/forecast"
    async with aiohttp.ClientSession() as session, session.get(url, params={"to": "1.30"}) as answer:
        assert answer.status == 404


async def test_the_daemon_keeps_specs_and_counts_what_differs(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod = await run_pod(cluster, "web", container("app"), container("log"))
    folder = tmp_path / "specs"
    monkeypatch.setenv("CRRD_SPEC_DIR", str(folder))
    daemon = NodeDaemon(cluster, tmp_path / "daemon.log")

    async def differing() -> float:
        async with aiohttp.ClientSession() as session, asyncio.timeout(30):
            while True:
                async with session.get(f"http://{daemon.address}/metrics") as answer:
                    lines = (await answer.text()).splitlines()
                found = [line for line in lines if line.startswith("crrd_kubelet_hash_mismatch_containers ")]
                if found:
                    return float(found[0].split()[1])
                await asyncio.sleep(0.05)

    async with daemon:
        assert await differing() == 0
    monkeypatch.delenv("CRRD_SPEC_DIR")
    assert folder.stat().st_mode & 0o777 == 0o700

    names = {each["name"]: each["containerID"].partition("://")[2] for each in pod["status"]["containerStatuses"]}
    assert {path.stem for path in folder.iterdir()} == {*names.values()}
    kept = SpecStore(folder).get(names["app"])
    assert kept is not None
    SpecStore(folder).put(names["app"], {**kept, "workingDir": "/elsewhere"})
    code, out, _ = await crrd("forecast", "--to", "1.36", "--spec-dir", str(folder), "-o", "json", *on_node(cluster))
    assert code == 0
    changed = {each["container"]: each["changedSinceStart"] for each in json.loads(out)["containers"]}
    assert changed == {
        "app": [{"what": 'workingDir: "/elsewhere" → absent (needs a restart)', "restart": True}],
        "log": [],
    }


async def test_what_the_daemon_sees_start_is_kept(cluster: Cluster, tmp_path: Path) -> None:
    pod = await run_pod(cluster, "web")
    runtime = await connect([cluster.cri_endpoint])
    try:
        looking = NodeForecast(cluster.client, runtime, cluster.node_name, tmp_path / "specs")
        await looking.look()
        (file,) = (tmp_path / "specs").iterdir()
        store, container_id = SpecStore(tmp_path / "specs"), file.stem
        kept = store.get(container_id)
        assert kept is not None
        assert kept["name"] == "app"
        assert container_id in pod["status"]["containerStatuses"][0]["containerID"]
        assert looking.differing == 0
        file.write_text("of another format")
        await looking.look()
        assert store.get(container_id) == kept
        await cluster.stop(container_id)
        await cluster.delete_pod("web", grace=0)
        await cluster.wait_gone(PODS, "web")
        await looking.look()
        assert list((tmp_path / "specs").iterdir()) == []
    finally:
        await runtime.close()


BAD: list[tuple[tuple[str, ...], str]] = [
    (("--to", "soon"), "--to: 'soon' is not a Kubernetes version: use one such as 1.31 or v1.30.2"),
    (("--to", "1.6"), "--to: 1.6 is too old: the oldest supported version is 1.7"),
    (("--to", "1.31", "--from", "2.0"), "--from: '2.0' is not a Kubernetes version: the major version must be"),
    (("--to", "1.31", "--pods", "x"), (
"--pods does not read the API server, so it needs --from (see kubelet "
"--version)"
)),
    (("--to", "1.31", "--pods", "x", "--all-nodes"), "--pods and --all-nodes cannot be used together"),
    (("--to", "1.31", "--spec-dir", "/", "--all-nodes"), "--spec-dir and --all-nodes cannot be used together"),
    (("--to", "1.31", "--from", "1.30", "--pods", "/proc/none"), "--pods /proc/none: No such file or directory"),
    (("--to", "1.31", "--from", "1.30", "--pods", "/bin/sh"), "--pods /bin/sh: the file is not UTF-8 text"),
    (("--to", "1.31", "--spec-dir", "/proc/none"), "--spec-dir /proc/none: No such file or directory"),
    (("--to", "1.31", "--plot", "x.gif"), "--plot x.gif: the file name must end with .png, .svg or .pdf"),
    (("--to", "1.31", "--kubeconfig", "/nonexistent"), "/nonexistent"),
    (("--to", "1.31"), "not in a cluster (KUBERNETES_SERVICE_HOST is not set) and no --kubeconfig"),
]  # fmt: skip


@pytest.mark.parametrize(("flags", "said"), BAD)
async def test_bad_input_is_one_line(flags: tuple[str, ...], said: str) -> None:
    code, out, err = await crrd("forecast", *flags)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert said in err


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "the file contains no pods"),
        ("{", "the file is not JSON or YAML"),
        ("a: [", "the file is not JSON or YAML"),
        ('{"kind": "List", "items": []}', "the file contains no pods: use the output of kubectl get pods -A -o json"),
        ('{"kind": "List", "items": [{"kind": "Node"}]}', "the file contains no pods"),
        ("[1, 2]", "the file contains no pods"),
    ],
)
async def test_a_file_without_pods_is_one_line(content: str, said: str) -> None:
    code, _, err = await crrd("forecast", "--to", "1.31", "--from", "1.30", "--pods", "-", stdin=content)
    assert code == 2
    assert len(err.splitlines()) == 1
    assert said in err


ADDRESS = "0xd8dA6BF26964aF9D7eEd9e03E53415D37aA96045"


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("=", "="),
        ("<<", "<<"),
        ("{<<: a}", {"<<": "a"}),
        ("2024-02-30", "2024-02-30"),
        ("2024-05-01", "2024-05-01"),
        ("2024-05-01 10:00:00Z", "2024-05-01 10:00:00Z"),
        (ADDRESS, ADDRESS),
        ("0b_", "0b_"),
        ("plain", "plain"),
        ('"1"', "1"),
        ("null", None),
        ("~", None),
        ("true", True),
        ("no", False),
        ("18446744073709551615", 2**64 - 1),
        ("-9223372036854775808", -(2**63)),
        ("0x1F", 31),
        ("010", 8),
        ("0.5", 0.5),
        ("1_000", 1000),
    ],
)
def test_plain_words_of_yaml_are_what_kubectl_means(tmp_path: Path, written: str, read: object) -> None:
    file = tmp_path / "pods.yaml"
    file.write_text(f"kind: Pod\nspec:\n  value: {written}\n")
    (found,) = read_pods(str(file))
    assert found == {"kind": "Pod", "spec": {"value": read}}
    assert type(found["spec"]["value"]) is type(read)


class _Stdin(io.BytesIO):
    """Standard input without a writer. It is its own buffer."""

    def read(self, *_: Any) -> bytes:
        with pytest.raises(RuntimeError, match="no running event loop"):
            asyncio.get_running_loop()
        return b"{}"

    @property
    def buffer(self) -> "_Stdin":
        return self


@pytest.mark.parametrize(
    ("stdin", "said"), [(_Stdin(), "the file contains no pods"), (None, "--pods standard input: file not found")]
)
def test_standard_input_is_read_before_the_loop_takes_ctrl_c(
    stdin: _Stdin | None, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", stdin)
    parser = build_parser("forecast")
    with pytest.raises(ConfigurationError, match=said):
        run(parser.parse_args(["forecast", "--to", "1.31", "--from", "1.30", "--pods", "-"]))


async def test_a_node_and_a_runtime_that_are_not_there(cluster: Cluster, tmp_path: Path) -> None:
    kubeconfig = ("--kubeconfig", str(cluster.kubeconfig))
    code, _, err = await crrd("forecast", "--to", "1.31", "--node-name", "nobody", *kubeconfig)
    assert (code, err) == (2, "crrd forecast: node 'nobody' not found: set --node-name\n")
    flags = ("--node-name", cluster.node_name, "--cri-endpoint", f"unix://{tmp_path}/none.sock")
    code, _, err = await crrd("forecast", "--to", "1.31", *flags, *kubeconfig)
    assert code == 2
    assert "no usable container runtime" in err
    assert len(err.splitlines()) == 1
