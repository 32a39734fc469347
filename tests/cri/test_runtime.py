"""One or several runtimes behind the port: whose is a pod, and which ID is meant."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import grpc
import pytest

from cri_stubs import api_pb2
from crrd.core.api.types import Pin
from crrd.core.recreate.observation import Instance
from crrd.cri import discovery
from crrd.cri import runtime as module
from crrd.cri.client import CALL_SECONDS, CriClient
from crrd.cri.readiness import FRESH_SECONDS
from crrd.cri.runtime import Connection, NodeRuntime, connect
from crrd.kubelet.runtime_status import ContainerState
from crrd.lib.backoff import Backoff
from crrd.lib.errors import RuntimeCallError, RuntimeUnavailableError
from crrd.ports import Runtime
from tests.support.scripted_cri import ScriptedRuntime, labels, serving

PATIENCE = 20.0

Start = Callable[..., Coroutine[Any, Any, NodeRuntime]]


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    """Serve scripted runtimes and connect to them."""
    async with AsyncExitStack() as stack:

        async def run(*servers: ScriptedRuntime) -> NodeRuntime:
            connections = []
            for number, server in enumerate(servers):
                endpoint = await stack.enter_async_context(serving(server, tmp_path / f"{number}.sock"))
                connections.append(Connection(CriClient(endpoint), server.name, server.version))
            node = NodeRuntime(connections)
            stack.push_async_callback(node.close)
            return node

        yield run


async def test_discovery_asks_each_socket_what_it_is(tmp_path: Path) -> None:
    calls: list[str] = []
    server = ScriptedRuntime(name="containerd", version="2.1.0")
    server.add("a1")
    async with serving(server, tmp_path / "s") as endpoint:
        node = NodeRuntime(on_call=lambda method, _code, _seconds: calls.append(method))
        assert not node.found.is_set()
        await node.discover([endpoint])

        assert node.found.is_set()
        assert node.names == {"containerd"}
        assert node.versions == (("containerd", "2.1.0"),)
        (found,) = await node.instances("uid-1")
        assert (found.id, found.runtime) == ("a1", "containerd")
        assert calls == ["ListContainers"]
        await node.close()


async def test_what_was_found_is_not_looked_for_again(tmp_path: Path) -> None:
    server = ScriptedRuntime(name="containerd")
    server.add("a1")
    async with serving(server, tmp_path / "s") as endpoint:
        node: Runtime = await connect([endpoint])
        asked = len(server.asked)

        await node.discover([endpoint])  # type: ignore[attr-defined]  # the port has no discovery

        assert len(server.asked) == asked
        assert [found.id for found in await node.instances("uid-1")] == ["a1"]
        await node.close()  # type: ignore[attr-defined]  # the port has no close


async def test_until_a_runtime_is_found_none_answers_and_discovery_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery, "BACKOFF", Backoff(initial=0.01, factor=1.0, maximum=0.01, jitter=0.0))
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))  # and nobody listens: a runtime that is down
    node = NodeRuntime()
    gone = Instance("a1", "containerd", "app", "shop", "web-0", "uid-1", ContainerState.RUNNING, 0)
    calls: tuple[Callable[[], Awaitable[object]], ...] = (
        lambda: node.instances("uid-1"),
        lambda: node.find(gone.pin),
        lambda: node.stop(gone, 2),
        lambda: node.execute(gone, ("true",), 2),
        node.containers,
    )

    assert await node.check() == "no container runtime has answered yet"
    looking = asyncio.create_task(node.discover([str(path)]))
    async with asyncio.timeout(PATIENCE):
        while (said := await node.check()) == "no container runtime has answered yet":
            await asyncio.sleep(0.01)
    assert str(path) in said
    assert "Connection refused" in said
    for call in calls:
        with pytest.raises(RuntimeUnavailableError) as caught:
            await call()
        assert str(caught.value) == said
    assert node.names == frozenset()
    assert not node.found.is_set()

    path.unlink()
    async with serving(ScriptedRuntime(name="containerd"), path):
        await asyncio.wait_for(looking, PATIENCE)
        await asyncio.wait_for(node.found.wait(), PATIENCE)
        assert await node.check() == ""
        assert await node.instances("uid-1") == ()
    assert "cannot be reached" in await node.check()
    await node.close()


async def test_the_instances_of_one_pod_only(start: Start) -> None:
    server = ScriptedRuntime(ignore_filters=True)
    server.add("a1", "uid-1")
    server.add("b1", "uid-2")
    node = await start(server)

    assert [found.id for found in await node.instances("uid-1")] == ["a1"]
    assert await node.instances("uid-3") == ()


@pytest.mark.parametrize("uid", ["", " ", "\ud800", "x" * 10_000, "a\nb", "a=b"])
async def test_what_cannot_be_a_uid_is_not_asked_for(start: Start, uid: str) -> None:
    server = ScriptedRuntime()
    server.add("a1", "")
    node = await start(server)

    assert await node.instances(uid) == ()
    assert server.asked == []


async def test_find_takes_the_exact_id_only(start: Start) -> None:
    server = ScriptedRuntime(name="containerd")
    server.add("abcdef", "uid-9")
    node = await start(server)

    found = await node.find(Pin("containerd://abcdef"))

    assert found is not None
    assert (found.id, found.pod_uid) == ("abcdef", "uid-9")
    assert await node.find(Pin("containerd://abc")) is None
    assert len(server.asked) == 2


@pytest.mark.parametrize(
    "container_id", ["", "abcdef", "docker://abcdef", "containerd://", "containerd://\ud800", "x://"]
)
async def test_find_of_what_cannot_be_here_asks_nobody(start: Start, container_id: str) -> None:
    server = ScriptedRuntime(name="containerd")
    server.add("abcdef")
    node = await start(server)

    assert await node.find(Pin(container_id)) is None
    assert server.asked == []


async def test_stop_and_a_stop_of_what_is_gone(start: Start) -> None:
    server = ScriptedRuntime()
    status = server.add("a1")
    node = await start(server)
    (listed,) = await node.instances("uid-1")

    await node.stop(listed, 7)
    assert status.state == api_pb2.CONTAINER_EXITED
    server.containers.clear()
    await node.stop(listed, 7)

    assert [request.timeout for request in server.requests("StopContainer")] == [7, 7]


async def test_other_errors_of_a_stop_are_raised(start: Start) -> None:
    server = ScriptedRuntime(fail={"StopContainer": (grpc.StatusCode.INTERNAL, "wedged")})
    server.add("a1")
    node = await start(server)
    (listed,) = await node.instances("uid-1")

    with pytest.raises(RuntimeCallError, match="wedged"):
        await node.stop(listed, 7)
    with pytest.raises(RuntimeCallError, match="no runtime 'docker'"):
        await node.stop(replace(listed, runtime="docker"), 7)


async def test_execute_gives_the_result(start: Start) -> None:
    server = ScriptedRuntime(executed=api_pb2.ExecSyncResponse(exit_code=1, stderr=b"no"))
    server.add("a1")
    node = await start(server)
    (listed,) = await node.instances("uid-1")

    result = await node.execute(listed, ("false",), 5)

    assert (result.exit_code, result.stderr) == (1, b"no")


async def test_a_pods_runtime_is_searched_once(start: Start) -> None:
    one, other = ScriptedRuntime(name="containerd"), ScriptedRuntime(name="cri-o")
    other.add("b1", "uid-2")
    node = await start(one, other)

    for _ in range(3):
        (found,) = await node.instances("uid-2")
        assert found.runtime == "cri-o"

    assert node.names == {"containerd", "cri-o"}
    assert (len(one.asked), len(other.asked)) == (1, 3)


async def test_a_pod_that_its_runtime_forgot_is_searched_again(start: Start) -> None:
    one, other = ScriptedRuntime(), ScriptedRuntime()
    one.add("a1", "uid-1")
    node = await start(one, other)
    assert len(await node.instances("uid-1")) == 1

    other.containers, one.containers = one.containers, []

    assert [found.id for found in await node.instances("uid-1")] == ["a1"]
    assert await node.instances("uid-7") == ()


@pytest.mark.parametrize("first", ["containerd", "cri-o"])
async def test_what_another_runtime_has_left_of_a_pod_hides_nothing_that_runs(start: Start, first: str) -> None:
    """A static pod keeps its UID when kubelet gets another runtime; the old one still lists what has ended."""
    left, runs = ScriptedRuntime(name="cri-o"), ScriptedRuntime(name="containerd")
    left.add("a1", "uid-1", created_at=10).state = api_pb2.CONTAINER_EXITED
    runs.add("b1", "uid-1", created_at=20)
    node = await start(*((left, runs) if first == "cri-o" else (runs, left)))

    for _ in range(2):
        assert [found.id for found in await node.instances("uid-1")] == ["b1"]


async def test_what_another_runtime_has_left_of_a_pod_is_no_answer_while_one_is_away(start: Start) -> None:
    left, away = ScriptedRuntime(name="cri-o"), ScriptedRuntime(name="containerd")
    left.add("a1", "uid-1", created_at=10).state = api_pb2.CONTAINER_EXITED
    away.fail = {"ListContainers": (grpc.StatusCode.INTERNAL, "broken")}
    node = await start(left, away)

    with pytest.raises(RuntimeCallError, match="broken"):
        await node.instances("uid-1")
    away.fail = {}
    away.add("b1", "uid-1", created_at=20)
    assert [found.id for found in await node.instances("uid-1")] == ["b1"]


async def test_a_pod_that_is_down_is_known_though_another_runtime_is_away(start: Start) -> None:
    home, away = ScriptedRuntime(name="containerd"), ScriptedRuntime(name="cri-o")
    status = home.add("a1")
    node = await start(home, away)
    assert len(await node.instances("uid-1")) == 1
    status.state = api_pb2.CONTAINER_EXITED
    away.fail = {"ListContainers": (grpc.StatusCode.INTERNAL, "broken")}

    assert [found.id for found in await node.instances("uid-1")] == ["a1"]


async def test_what_is_remembered_is_bounded(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REMEMBERED_PODS", 2)
    one, other = ScriptedRuntime(), ScriptedRuntime()
    for uid in ("uid-1", "uid-2", "uid-3"):
        one.add(f"of-{uid}", uid)
    node = await start(one, other)
    for uid in ("uid-1", "uid-2", "uid-3"):
        assert len(await node.instances(uid)) == 1
    other.asked.clear()

    assert len(await node.instances("uid-3")) == 1
    assert other.asked == []
    assert len(await node.instances("uid-1")) == 1
    assert len(other.asked) == 1


async def test_one_silent_runtime_hides_no_pod_of_the_other(start: Start) -> None:
    silent = ScriptedRuntime(fail={"ListContainers": (grpc.StatusCode.UNAVAILABLE, "starting")})
    sound = ScriptedRuntime()
    sound.add("b1", "uid-2")
    node = await start(silent, sound)

    assert [found.id for found in await node.instances("uid-2")] == ["b1"]
    with pytest.raises(RuntimeUnavailableError):
        await node.instances("uid-1")


async def test_two_runtimes_of_one_name_are_told_apart_by_their_containers(start: Start) -> None:
    one, other = ScriptedRuntime(name="containerd"), ScriptedRuntime(name="containerd")
    other.add("b1", "uid-2")
    node = await start(one, other)
    found = await node.find(Pin("containerd://b1"))
    assert found is not None

    await node.stop(found, 2)
    assert len(one.requests("StopContainer")) == 1
    (again,) = await node.instances("uid-2")
    await node.stop(again, 2)

    assert again.state is ContainerState.EXITED
    assert len(one.requests("StopContainer")) == 1  # by then the pod's runtime was known
    one.fail["StopContainer"] = (grpc.StatusCode.UNAVAILABLE, "down")
    with pytest.raises(RuntimeUnavailableError):  # it may be the one that is down which has it
        await node.stop(replace(found, id="zzz", pod_uid="uid-3"), 2)


async def test_the_image_of_a_pod_is_asked_of_its_own_runtime_alone(start: Start) -> None:
    other, home = ScriptedRuntime(name="cri-o"), ScriptedRuntime(name="containerd")
    home.images.add("app:2")
    home.add("b1", "uid-2")
    node = await start(other, home)

    assert await node.has_image("uid-2", "app:2"), "also before its containers were listed"
    assert not await node.has_image("uid-2", "app:3")
    assert other.requests("ImageStatus") == []


@pytest.mark.parametrize(("has_it", "answer"), [((True, False), True), ((False, True), True), ((False, False), False)])
async def test_a_pod_without_containers_may_get_an_image_that_any_runtime_has(
    start: Start, has_it: tuple[bool, bool], *, answer: bool
) -> None:
    """Nothing runs in it that a pull would keep down, and a pull pod brings the image to kubelet's runtime only."""
    servers = [ScriptedRuntime(images={"app:2"} if each else set()) for each in has_it]
    node = await start(*servers)

    assert await node.has_image("uid-1", "app:2") is answer


@pytest.mark.parametrize(
    ("conditions", "found"),
    [
        ({"NetworkReady": (False, "NetworkPluginNotReady", "no\nCNI")}, {"NetworkReady": "no CNI"}),
        ({"NetworkReady": (False, "NetworkPluginNotReady", "")}, {"NetworkReady": "NetworkPluginNotReady"}),
        ({"RuntimeReady": (False, "", "it starts")}, {"RuntimeReady": "it starts"}),
        ({"DiskReady": (False, "", "full")}, {}),
        ({}, {}),
    ],
)
async def test_the_conditions_are_those_of_the_runtime_of_the_pod(
    start: Start, conditions: dict[str, tuple[bool, str, str]], found: dict[str, str]
) -> None:
    """Kubelet uses one of them. The others may have no network."""
    other, home = ScriptedRuntime(name="cri-o"), ScriptedRuntime(name="containerd")
    other.add("a1")
    home.add("b1", "uid-2")
    home.conditions |= conditions
    node = await start(other, home)
    assert await node.false_conditions("uid-2") == found
    assert await node.false_conditions("uid-1") == {}


async def test_a_condition_that_a_runtime_does_not_report_is_not_true(start: Start) -> None:
    server = ScriptedRuntime(conditions={"RuntimeReady": (True, "", "")})
    node = await start(server)
    assert await node.false_conditions("uid-1") == {"NetworkReady": "the runtime does not report it"}
    server.fail["Status"] = grpc.StatusCode.INTERNAL, "broken"
    await asyncio.sleep(FRESH_SECONDS)
    assert await node.false_conditions("uid-1") == {}


@pytest.mark.parametrize("uid", ["", "x y"])
async def test_the_runtime_of_no_pod_is_not_asked(start: Start, uid: str) -> None:
    servers = [ScriptedRuntime(name=name, conditions={}) for name in ("cri-o", "containerd")]
    node = await start(*servers)
    assert await node.false_conditions(uid) == {}
    assert [server.asked for server in servers] == [[], []]


async def test_no_conditions_are_known_of_runtimes_that_do_not_answer() -> None:
    assert await NodeRuntime().false_conditions("uid-1") == {}


class Hanging:
    """A client whose runtime answers with its containers, or not at all."""

    def __init__(self, *containers: api_pb2.Container, hangs: bool = False) -> None:
        self.containers, self.hangs = containers, hangs

    async def list_containers(self, *, pod_uid: str = "") -> Sequence[api_pb2.Container]:
        if self.hangs:
            await asyncio.sleep(CALL_SECONDS)
            raise RuntimeCallError("no answer in time")
        return self.containers

    async def status(self) -> api_pb2.StatusResponse:
        raise AssertionError

    async def close(self) -> None:
        """Nothing is open."""


def listed(state: "api_pb2.ContainerState.ValueType" = api_pb2.CONTAINER_RUNNING) -> api_pb2.Container:
    return api_pb2.Container(id="a1", state=state, labels=labels("uid-1", "app"))


def of_clients(*clients: Hanging) -> NodeRuntime:
    return NodeRuntime([Connection(cast("CriClient", each), f"runtime-{at}") for at, each in enumerate(clients)])


@pytest.mark.virtual_time
async def test_a_runtime_that_hangs_hides_no_pod_of_the_other() -> None:
    node = of_clients(Hanging(hangs=True), Hanging(listed()))
    async with asyncio.timeout(CALL_SECONDS / 2):
        assert [found.id for found in await node.instances("uid-1")] == ["a1"]
    with pytest.raises(RuntimeCallError, match="no answer"):
        await node.instances("uid-2")  # it may run there
    await node.close()


@pytest.mark.virtual_time
async def test_a_pod_that_is_down_is_known_though_another_runtime_hangs() -> None:
    home, other = Hanging(listed()), Hanging()
    node = of_clients(home, other)
    assert len(await node.instances("uid-1")) == 1
    home.containers, other.hangs = (listed(api_pb2.CONTAINER_EXITED),), True
    async with asyncio.timeout(CALL_SECONDS / 2):
        assert [found.state for found in await node.instances("uid-1")] == [ContainerState.EXITED]
    await node.close()


async def test_an_id_is_found_though_another_runtime_of_that_name_is_away(start: Start) -> None:
    away, home = ScriptedRuntime(name="containerd"), ScriptedRuntime(name="containerd")
    away.fail["ListContainers"] = (grpc.StatusCode.UNAVAILABLE, "starting")
    home.add("b1", "uid-2")
    node = await start(away, home)

    found = await node.find(Pin("containerd://b1"))
    assert found is not None
    assert found.pod_uid == "uid-2"
    with pytest.raises(RuntimeUnavailableError):  # the one that is away may have it
        await node.find(Pin("containerd://c1"))


def with_sandbox(server: ScriptedRuntime, uid: str = "uid-1", name: str = "s1") -> ScriptedRuntime:
    """Give the runtime a sandbox of a pod, as kubelet makes it."""
    config = api_pb2.PodSandboxConfig(
        metadata=api_pb2.PodSandboxMetadata(name="web-0", uid=uid, namespace="shop"),
        labels={key: value for key, value in labels(uid, "").items() if "container" not in key},
    )
    config.linux.cgroup_parent = "/kubepods/pod1"
    server.sandboxes[name] = config
    return server


@pytest.mark.parametrize("ignores", [False, True])
async def test_a_second_sandbox_is_made_found_and_removed(start: Start, ignores: bool) -> None:
    server = with_sandbox(with_sandbox(ScriptedRuntime(ignore_filters=ignores), "uid-2", "s2"))
    node = await start(server)
    (first,) = await node.sandboxes("uid-1")
    assert (first.id, first.request_uid) == ("s1", "")
    assert await node.made_sandboxes() == ()
    await node.run_sandbox(first, "r1")
    assert server.sandboxes["sandbox-1"].linux.cgroup_parent == "/kubepods/pod1"
    assert [each.request_uid for each in await node.sandboxes("uid-1")] == ["", "r1"]
    (made,) = await node.made_sandboxes()
    await node.remove_sandbox(made)
    assert sorted(server.sandboxes) == ["s1", "s2"]
    await node.remove_sandbox(made)  # one that is gone counts as removed


async def test_the_sandbox_of_a_pod_is_made_in_its_own_runtime(start: Start) -> None:
    servers = [ScriptedRuntime(name="containerd"), with_sandbox(ScriptedRuntime(name="containerd"))]
    servers[1].add("a1")
    node = await start(*servers)
    await node.instances("uid-1")
    (first,) = await node.sandboxes("uid-1")
    await node.run_sandbox(first, "r1")
    assert [len(server.requests("RunPodSandbox")) for server in servers] == [0, 1]
    assert len(servers[0].requests("ListPodSandbox")) == 0


async def test_a_silent_runtime_hides_no_sandbox_of_the_other(start: Start) -> None:
    silent, home = ScriptedRuntime(name="containerd"), with_sandbox(ScriptedRuntime(name="cri-o"))
    home.add("a1")
    silent.fail = dict.fromkeys(("ListContainers", "ListPodSandbox"), (grpc.StatusCode.UNAVAILABLE, "away"))
    node = await start(silent, home)
    assert [each.id for each in await node.sandboxes("uid-1")] == ["s1"]


async def test_errors_of_sandboxes_are_raised(start: Start) -> None:
    server = with_sandbox(ScriptedRuntime())
    node = await start(server)
    (first,) = await node.sandboxes("uid-1")
    server.fail = dict.fromkeys(("RunPodSandbox", "RemovePodSandbox"), (grpc.StatusCode.INTERNAL, "disk full"))
    for call in (node.run_sandbox(first, "r1"), node.remove_sandbox(first)):
        with pytest.raises(RuntimeCallError, match="disk full"):
            await call
    assert await node.sandboxes("no/uid") == ()


async def test_nothing_comes_between_the_decision_and_the_second_sandbox(start: Start) -> None:
    """The cgroup is looked up with the list, once. One that is removed meanwhile is listed all the same."""
    server = with_sandbox(with_sandbox(ScriptedRuntime()), name="s0")
    server.fail = {"PodSandboxStatus": (grpc.StatusCode.NOT_FOUND, "no such sandbox")}
    node = await start(server)
    assert len(await node.sandboxes("uid-1")) == 2
    server.fail = {}
    first, *_ = await node.sandboxes("uid-1")
    await node.sandboxes("uid-1")
    asked = len(server.asked)
    await node.run_sandbox(first, "r1")
    assert [method for method, _ in server.asked[asked:]] == ["RunPodSandbox"]
    assert len(server.requests("PodSandboxStatus")) == 4
    server.fail = {"PodSandboxStatus": (grpc.StatusCode.INTERNAL, "disk full")}
    with_sandbox(server, name="s3")
    with pytest.raises(RuntimeCallError, match="disk full"):
        await node.sandboxes("uid-1")
