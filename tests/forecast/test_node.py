"""What a node's report holds; and when the node daemon looks: at the start, after busy times, now and then."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from cri_stubs import api_pb2
from crrd.cri.runtime import NodeRuntime
from crrd.kube.client import KubeClient
from crrd.kubelet.labels import (
    ANNOTATION_HASH,
    LABEL_CONTAINER_NAME,
    LABEL_POD_NAME,
    LABEL_POD_NAMESPACE,
    LABEL_POD_UID,
)
from crrd.lib.errors import RuntimeUnavailableError
from crrd_forecast.hash.container_hash import container_hash
from crrd_forecast.node import (
    LEAST_SECONDS,
    LOOK_LIMIT_SECONDS,
    LOOK_SECONDS,
    NodeForecast,
    node_report,
    pods_of_node,
)
from crrd_forecast.report import Report
from crrd_forecast.spec_store import SpecStore
from tests.support.scripted_api import FixedAccess, listing, scripted_api

pytestmark = pytest.mark.virtual_time

Json = dict[str, Any]
SPEC: Json = {"name": "app", "image": "nginx:1.25"}
HASH = f"{container_hash(SPEC, '1.31'):x}"


def listed(
    container_id: str, pod: str = "web", state: api_pb2.ContainerState.ValueType = api_pb2.CONTAINER_RUNNING
) -> api_pb2.Container:
    labels = {
        LABEL_POD_NAMESPACE: "shop",
        LABEL_POD_NAME: pod,
        LABEL_POD_UID: f"uid-{pod}",
        LABEL_CONTAINER_NAME: "app",
    }
    return api_pb2.Container(id=container_id, state=state, labels=labels, annotations={ANNOTATION_HASH: HASH})


def pod(container_id: str, name: str = "web", state: str = "running", kind: str = "container") -> Json:
    """A pod with one container, in this state by its status."""
    status = {"name": "app", "containerID": container_id and f"containerd://{container_id}", "state": {state: {}}}
    return {
        "metadata": {"namespace": "shop", "name": name, "uid": f"uid-{name}"},
        "spec": {f"{kind}s": [SPEC]},
        "status": {f"{kind}Statuses": [status]},
    }


class Runtime(NodeRuntime):
    """Lists what it is told to, one list after the other."""

    def __init__(self, *lists: list[api_pb2.Container]) -> None:
        super().__init__()
        self.lists = list(lists)

    async def containers(self) -> list[api_pb2.Container]:
        return self.lists.pop(0) if len(self.lists) > 1 else self.lists[0]


async def reported(runtime: Runtime, pods: list[Json], node: str = "node-a", store: SpecStore | None = None) -> Report:
    async def each() -> AsyncIterator[Json]:
        for found in pods:
            yield found

    return await node_report(runtime, each(), from_version="1.31", to_version="1.32", node=node, store=store)


EXITED = api_pb2.CONTAINER_EXITED
NOT_LISTED = "it runs according to the API server, but the container runtime does not list it: check --cri-endpoint"
NOT_READ = "the pods that were read do not include this container"
SAME = "the hash stays the same"
INIT = "kubelet does not compare the hash of an init container"


@pytest.mark.parametrize(
    ("lists", "pods", "outcomes"),
    [
        pytest.param([[listed("c1")]], [pod("c1")], [("keep", SAME)], id="on both sides"),
        pytest.param([[listed("c1")]], [pod("c0")], [("keep", SAME)], id="restarted, and the API lags"),
        pytest.param([[listed("c1", state=EXITED)]], [pod("c1")], [], id="ended, and the API lags"),
        pytest.param([[], [listed("c1")]], [pod("c1")], [], id="started between the two lists"),
        pytest.param([[]], [pod("c1")], [("unknown", NOT_LISTED)], id="in another runtime"),
        pytest.param([[]], [pod("c1", kind="initContainer")], [("keep", INIT)], id="elsewhere, never compared"),
        pytest.param([[]], [pod("c1", state="terminated")], [], id="has ended"),
        pytest.param([[]], [pod("")], [], id="without an ID"),
        pytest.param([[listed("c1")]], [pod("c2", "y")], [("unknown", NOT_READ), ("unknown", NOT_LISTED)], id="no pod"),
    ],
)
async def test_what_runs_by_only_one_word_is_unknown(
    lists: list[list[api_pb2.Container]], pods: list[Json], outcomes: list[tuple[str, str]]
) -> None:
    report = await reported(Runtime(*lists), pods)
    assert [(each.outcome.value, each.reason) for each in report.containers] == outcomes
    assert (report.failed, report.notes) == (False, ())


async def test_pods_of_other_nodes_in_a_file_are_no_finding() -> None:
    report = await reported(Runtime([listed("c1")]), [pod("c1"), pod("c2", "elsewhere")], node="")
    assert [(each.pod, each.outcome.value) for each in report.containers] == [("web", "keep")]


NO_PODS = "the API server lists no pods on node node-a: check --node-name"
NO_CONTAINERS = "the container runtime has no container that kubelet started: check --cri-endpoint"


@pytest.mark.parametrize(
    ("running", "pods", "node", "failed", "note"),
    [
        ([], [pod("c1")], "", True, NO_CONTAINERS),
        ([], [], "node-a", True, NO_PODS),
        ([listed("c1")], [], "node-a", False, NO_PODS),
    ],
)
async def test_where_nothing_was_compared_nothing_is_said_to_be_kept(
    running: list[api_pb2.Container], pods: list[Json], node: str, failed: bool, note: str
) -> None:
    report = await reported(Runtime(running), pods, node)
    assert (report.failed, report.notes) == (failed, (note,))


async def test_kept_specs_that_cannot_be_read_are_left_and_told(tmp_path: Path) -> None:
    store = SpecStore(tmp_path)
    store.put("c1", SPEC)
    (tmp_path / "c2.json").write_text('{"format": 2}')
    runtime = Runtime([listed("c1"), listed("c2", "y"), listed("c3", "z")])
    report = await reported(runtime, [pod("c1"), pod("c2", "y"), pod("c3", "z")], store=store)
    assert [each.changes for each in report.containers] == [(), None, None]
    assert report.notes == ("1 of the stored specs cannot be read",)
    assert (tmp_path / "c2.json").exists()


async def test_the_nodes_pods_come_from_the_api_servers_cache() -> None:
    """The newest ones, and pages, would make API servers before 1.34 read every pod of the cluster from etcd."""
    async with scripted_api() as api, KubeClient(FixedAccess(api.url)) as client:
        api.then(listing("7", pod("c1"), pod("c2")))
        assert [each async for each in pods_of_node(client, "node-a")] == [pod("c1"), pod("c2")]
        (asked,) = api.seen
        assert dict(asked.query) == {"fieldSelector": "spec.nodeName=node-a", "resourceVersion": "0"}


class Looks(NodeForecast):
    """Notes when it looks; may fail or hang."""

    def __init__(self) -> None:
        super().__init__(cast("KubeClient", None), cast("Any", None), "node-a")
        self.at: list[float] = []
        self.errors: list[Exception] = []
        self.hangs = False

    async def look(self) -> None:
        self.at.append(round(asyncio.get_running_loop().time() - self.began))
        if self.hangs:
            await asyncio.Event().wait()
        if self.errors:
            raise self.errors.pop(0)
        self.differing = 3

    began = 0.0


class Times:
    """The board's two events."""

    def __init__(self) -> None:
        self.active, self.idle = asyncio.Event(), asyncio.Event()
        self.idle.set()

    def busy(self, busy: bool) -> None:
        (self.active.set if busy else self.active.clear)()
        (self.idle.clear if busy else self.idle.set)()


@asynccontextmanager
async def running(looks: Looks) -> AsyncIterator[Times]:
    times = Times()
    looks.began = asyncio.get_running_loop().time()

    async def run() -> None:
        await looks.run(times.active, times.idle)

    task = asyncio.create_task(run())
    try:
        yield times
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_an_idle_daemon_looks_four_times_a_day() -> None:
    looks = Looks()
    async with running(looks):
        await asyncio.sleep(24 * 3600)
        assert looks.at == [0, LOOK_SECONDS, 2 * LOOK_SECONDS, 3 * LOOK_SECONDS]
        assert looks.heartbeat.check() == ""
        assert looks.differing == 3


async def test_after_a_busy_time_it_looks_but_not_all_the_time() -> None:
    looks = Looks()
    async with running(looks) as times:
        await asyncio.sleep(60)
        for _ in range(10):
            times.busy(True)
            await asyncio.sleep(5)
            times.busy(False)
            await asyncio.sleep(5)
        times.busy(True)
        await asyncio.sleep(2 * LEAST_SECONDS)
        assert looks.at == [0]
        times.busy(False)
        await asyncio.sleep(1)
        assert looks.at == [0, 60 + 100 + 2 * LEAST_SECONDS]


async def test_what_fails_is_tried_again_soon_and_told_as_unknown() -> None:
    looks = Looks()
    looks.errors = [RuntimeUnavailableError("away"), RuntimeUnavailableError("away"), ValueError("bug")]
    async with running(looks):
        await asyncio.sleep(2.5 * LEAST_SECONDS)
        assert looks.at == [0, LEAST_SECONDS, 2 * LEAST_SECONDS]
        assert looks.differing is None
        await asyncio.sleep(LEAST_SECONDS)
        assert looks.differing == 3


async def test_a_look_that_hangs_is_given_up() -> None:
    looks = Looks()
    looks.hangs = True
    async with running(looks):
        await asyncio.sleep(LOOK_LIMIT_SECONDS + LEAST_SECONDS + 1)
        assert looks.at == [0, LOOK_LIMIT_SECONDS + LEAST_SECONDS]
        assert looks.heartbeat.check() == ""
