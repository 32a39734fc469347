"""The CRI client against a server on a real unix socket: answers, errors, deadlines, restarts, events."""

import asyncio
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest

from cri_stubs import api_pb2
from crrd.cri import client as client_module
from crrd.cri.client import CALL_SECONDS, MAX_EXEC_BYTES, OUTPUT_BYTES, CriClient
from crrd.lib.errors import ConfigurationError, RuntimeCallError, RuntimeUnavailableError
from tests.support.scripted_cri import ScriptedRuntime, serving

PATIENCE = 20.0


@pytest.fixture
def runtime() -> ScriptedRuntime:
    return ScriptedRuntime()


@pytest.fixture
async def client(runtime: ScriptedRuntime, tmp_path: Path) -> AsyncIterator[CriClient]:
    async with serving(runtime, tmp_path / "cri.sock") as endpoint:
        client = CriClient(endpoint)
        yield client
        await client.close()


async def test_version_tells_the_name_and_the_version(client: CriClient) -> None:
    version = await client.version()

    assert (version.runtime_name, version.runtime_version) == ("scripted", "1.0")


async def test_a_list_is_filtered_by_pod_and_has_labels_and_annotations(
    client: CriClient, runtime: ScriptedRuntime
) -> None:
    runtime.add("a1", "uid-1", annotations={"io.kubernetes.container.restartCount": "3"})
    runtime.add("b1", "uid-2")

    (container,) = await client.list_containers(pod_uid="uid-1")

    assert container.id == "a1"
    assert container.labels["io.kubernetes.pod.uid"] == "uid-1"
    assert container.annotations["io.kubernetes.container.restartCount"] == "3"


async def test_a_list_by_id_asks_for_that_id(client: CriClient, runtime: ScriptedRuntime) -> None:
    runtime.add("a1")
    runtime.add("b1")

    assert [container.id for container in await client.list_containers(container_id="b1")] == ["b1"]


async def test_every_call_has_a_deadline(client: CriClient, runtime: ScriptedRuntime) -> None:
    runtime.add("a1")

    await client.version()
    await client.list_containers(pod_uid="uid-1")
    await client.stop_container("a1", 30)
    await client.exec_sync("a1", ["true"], 5)

    limits = [CALL_SECONDS, CALL_SECONDS, 150.0, 7.0]
    assert len(runtime.deadlines) == len(limits)
    for left, limit in zip(runtime.deadlines, limits, strict=True):
        assert limit / 2 < left < limit * 1.1  # gRPC sends deadlines rounded up


@pytest.mark.parametrize(
    ("seconds", "sent"), [(30, 30), (2.0000001, 2), (2.1, 3), (0, 0), (-1, 0), (9.3e18, 2**31 - 1)]
)
async def test_stop_rounds_up_and_stays_within_what_a_runtime_can_count(
    client: CriClient, runtime: ScriptedRuntime, seconds: float, sent: int
) -> None:
    runtime.add("a1")

    await client.stop_container("a1", seconds)

    (request,) = runtime.requests("StopContainer")
    assert (request.container_id, request.timeout) == ("a1", sent)


async def test_exec_never_goes_without_a_timeout(client: CriClient, runtime: ScriptedRuntime) -> None:
    runtime.executed = api_pb2.ExecSyncResponse(exit_code=3, stdout=b"out", stderr=b"err")

    result = await client.exec_sync("a1", ("sh", "-c", "exit 3"), 0.0)

    (request,) = runtime.requests("ExecSync")
    assert (list(request.cmd), request.timeout) == (["sh", "-c", "exit 3"], 1)
    assert (result.exit_code, result.stdout, result.stderr) == (3, b"out", b"err")


async def test_output_is_cut(client: CriClient, runtime: ScriptedRuntime) -> None:
    runtime.executed = api_pb2.ExecSyncResponse(stdout=b"o" * 2_000_000, stderr=b"e" * 2_000_000)

    result = await client.exec_sync("a1", ["yes"], 5)

    assert (result.stdout, result.stderr) == (b"o" * OUTPUT_BYTES, b"e" * OUTPUT_BYTES)


async def test_an_answer_as_big_as_kubelet_reads_is_read(client: CriClient, runtime: ScriptedRuntime) -> None:
    for number in range(8000):
        runtime.add(f"c{number}", annotations={"note": "x" * 1000})

    assert len(await client.list_containers(pod_uid="uid-1")) == 8000


async def test_what_a_command_says_may_be_smaller(client: CriClient, runtime: ScriptedRuntime) -> None:
    runtime.executed = api_pb2.ExecSyncResponse(stdout=b"o" * MAX_EXEC_BYTES)

    with pytest.raises(RuntimeCallError) as caught:
        await client.exec_sync("a1", ["yes"], 5)

    assert caught.value.code == "RESOURCE_EXHAUSTED"


async def test_an_answer_that_the_runtime_itself_cannot_send_is_an_error(
    client: CriClient, runtime: ScriptedRuntime
) -> None:
    runtime.fail["ExecSync"] = (grpc.StatusCode.RESOURCE_EXHAUSTED, "trying to send message larger than max")

    for _ in range(2):  # and the first makes room for the next
        with pytest.raises(RuntimeCallError, match="ExecSync failed: trying to send") as caught:
            await client.exec_sync("a1", ["yes"], 5)
        assert caught.value.code == "RESOURCE_EXHAUSTED"


async def test_an_answer_of_a_command_that_is_no_message_is_an_error(
    client: CriClient, runtime: ScriptedRuntime
) -> None:
    runtime.raw["ExecSync"] = b"\xff\xff\xff"

    with pytest.raises(RuntimeCallError) as caught:
        await client.exec_sync("a1", ["yes"], 5)

    assert caught.value.code == "INTERNAL"


@asynccontextmanager
async def weighing(path: Path, endpoint: str, weigh: Callable[[int], None]) -> AsyncIterator[str]:
    """A way to the endpoint that tells how many bytes go to the client, as they go."""
    pumps: set[asyncio.Task[None]] = set()

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, told: Callable[[int], None]) -> None:
        try:
            while data := await reader.read(2**16):
                writer.write(data)
                await writer.drain()
                told(len(data))
        except OSError:
            return
        finally:
            writer.close()

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far, back = await asyncio.open_unix_connection(endpoint.removeprefix("unix://"))
        for way in (pump(reader, back, lambda _: None), pump(far, writer, weigh)):
            pumps.add(asyncio.create_task(way))

    server = await asyncio.start_unix_server(connect, path)
    try:
        yield f"unix://{path}"
    finally:
        server.close()
        for task in pumps:
            task.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


async def test_of_many_large_answers_one_is_taken_in_at_a_time(
    runtime: ScriptedRuntime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has come and is not decoded yet is the client's memory."""
    size, many = MAX_EXEC_BYTES - 2**16, 12
    taken_in = peak = 0
    cut = client_module._cut_result

    def weigh(count: int) -> None:
        nonlocal taken_in, peak
        taken_in += count
        peak = max(peak, taken_in)

    def decode(data: bytes) -> object:
        weigh(-len(data))
        return cut(data)

    monkeypatch.setattr(client_module, "_cut_result", decode)
    runtime.executed = api_pb2.ExecSyncResponse(stdout=b"o" * size)
    async with serving(runtime, tmp_path / "s") as direct, weighing(tmp_path / "w", direct, weigh) as endpoint:
        client = CriClient(endpoint)
        results = await asyncio.gather(*(client.exec_sync("a1", ["yes"], 60) for _ in range(many)))
        await client.close()

    assert [result.stdout for result in results] == [b"o" * OUTPUT_BYTES] * many
    assert size < peak < 2 * size  # the rest is what flow control lets through unread


async def test_an_answer_that_is_too_large_is_not_taken_in(runtime: ScriptedRuntime, tmp_path: Path) -> None:
    taken_in = 0

    def weigh(count: int) -> None:
        nonlocal taken_in
        taken_in += count

    runtime.executed = api_pb2.ExecSyncResponse(stdout=b"o" * (3 * MAX_EXEC_BYTES))
    async with serving(runtime, tmp_path / "s") as direct, weighing(tmp_path / "w", direct, weigh) as endpoint:
        client = CriClient(endpoint)
        with pytest.raises(RuntimeCallError, match="larger than max"):
            await client.exec_sync("a1", ["yes"], 60)
        await client.close()

    assert taken_in < MAX_EXEC_BYTES


async def test_one_whose_headers_come_early_holds_up_no_other_for_long(
    client: CriClient, runtime: ScriptedRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server may send them before it has its answer."""
    monkeypatch.setattr(client_module, "EXEC_RESPONSE_SECONDS", 0.05)
    runtime.headers_first = True
    runtime.hang.add("ExecSync")
    long = asyncio.create_task(client.exec_sync("a1", ["sleep", "60"], 60))
    async with asyncio.timeout(PATIENCE):
        while not client._exec_response_lock.locked():
            await asyncio.sleep(0.01)
        runtime.hang.clear()
        assert (await client.exec_sync("a1", ["true"], 5)).exit_code == 0
    assert not long.done()
    long.cancel()
    await asyncio.wait((long,))


async def test_commands_that_take_long_keep_no_other_from_running(client: CriClient, runtime: ScriptedRuntime) -> None:
    runtime.hang.add("ExecSync")
    long = [asyncio.create_task(client.exec_sync("a1", ["sleep", "60"], 60)) for _ in range(4)]
    async with asyncio.timeout(PATIENCE):
        while len(runtime.asked) < len(long):
            await asyncio.sleep(0.01)
    runtime.hang.clear()

    assert (await client.exec_sync("a1", ["true"], 5)).exit_code == 0

    for task in long:
        task.cancel()
    await asyncio.wait(long)


@pytest.mark.parametrize(
    ("code", "details"),
    [
        (grpc.StatusCode.NOT_FOUND, "container a1: not found"),
        (grpc.StatusCode.UNKNOWN, "Error response from crrd: No such container: a1"),
    ],
)
async def test_an_unknown_container_is_told_apart(
    client: CriClient, runtime: ScriptedRuntime, code: grpc.StatusCode, details: str
) -> None:
    runtime.fail["StopContainer"] = (code, details)

    with pytest.raises(RuntimeCallError) as caught:
        await client.stop_container("a1", 2)

    assert caught.value.not_found
    assert isinstance(caught.value.__cause__, grpc.aio.AioRpcError)


async def test_other_errors_keep_code_and_words_in_one_line(client: CriClient, runtime: ScriptedRuntime) -> None:
    runtime.fail["StopContainer"] = (grpc.StatusCode.FAILED_PRECONDITION, "the shim\nis \x07 wedged " + "!" * 5000)

    with pytest.raises(RuntimeCallError, match="StopContainer failed: the shim is wedged !") as caught:
        await client.stop_container("a1", 2)

    assert (caught.value.code, caught.value.not_found) == ("FAILED_PRECONDITION", False)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1200


@pytest.mark.parametrize("code", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED])
async def test_a_runtime_that_gives_up_a_call_is_unavailable(
    client: CriClient, runtime: ScriptedRuntime, code: grpc.StatusCode
) -> None:
    runtime.fail["ListContainers"] = (code, "server is not initialized yet")

    with pytest.raises(RuntimeUnavailableError, match="server is not initialized yet"):
        await client.list_containers(pod_uid="uid-1")


async def test_version_unimplemented_is_a_matter_of_configuration(tmp_path: Path) -> None:
    async with serving(ScriptedRuntime(methods={"ListContainers"}), tmp_path / "s") as endpoint:
        client = CriClient(endpoint)
        with pytest.raises(ConfigurationError, match="does not serve CRI v1"):
            await client.version()
        with pytest.raises(RuntimeCallError) as caught:
            await client.stop_container("a1", 30)
        await client.close()

    assert caught.value.code == "UNIMPLEMENTED"


async def test_a_deadline_that_passes_is_an_answer_of_its_own(client: CriClient, runtime: ScriptedRuntime) -> None:
    runtime.hang.add("Version")

    with pytest.raises(RuntimeCallError) as caught:
        await client.version(0.2)

    assert caught.value.code == "DEADLINE_EXCEEDED"


async def test_an_answer_that_is_no_message_is_an_error(client: CriClient, runtime: ScriptedRuntime) -> None:
    runtime.raw["ListContainers"] = b"\xff\xff\xff"

    with pytest.raises(RuntimeCallError) as caught:
        await client.list_containers(pod_uid="uid-1")

    assert caught.value.code == "INTERNAL"


async def test_text_that_protobuf_cannot_carry_is_refused_before_it_is_sent(
    client: CriClient, runtime: ScriptedRuntime
) -> None:
    with pytest.raises(RuntimeCallError) as caught:
        await client.exec_sync("a1", ["\ud800"], 5)

    assert caught.value.code == "INVALID_ARGUMENT"
    assert runtime.asked == []


async def test_nobody_there_is_unavailable(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "abandoned.sock"))
    for path, words in (("none.sock", "No such file or directory"), ("abandoned.sock", "Connection refused")):
        client = CriClient(f"unix://{tmp_path}/{path}")

        with pytest.raises(RuntimeUnavailableError) as caught:
            await client.list_containers(pod_uid="uid-1")

        assert str(caught.value) == (
            f"the container runtime at unix://{tmp_path}/{path} cannot be reached (ListContainers): {words}"
        )
        await client.close()


async def test_a_path_with_odd_characters_is_reached(tmp_path: Path) -> None:
    path = tmp_path / "a b%20ü"
    server = ScriptedRuntime()
    async with serving(server, tmp_path / "s"):
        (tmp_path / "s").rename(path)
        client = CriClient(f"unix://{path}")

        assert (await client.version()).runtime_name == "scripted"

        await client.close()


async def test_calls_go_on_after_the_runtime_restarted(tmp_path: Path) -> None:
    path = tmp_path / "cri.sock"
    first, second = ScriptedRuntime(version="1"), ScriptedRuntime(version="2")
    async with serving(first, path) as endpoint:
        client = CriClient(endpoint)
        assert (await client.version()).runtime_version == "1"
    with pytest.raises(RuntimeUnavailableError):
        await client.version()
    async with serving(second, path), asyncio.timeout(PATIENCE):
        while True:
            try:
                version = await client.version()
                break
            except RuntimeUnavailableError:
                await asyncio.sleep(0.01)
        assert version.runtime_version == "2"
        await client.close()


async def test_a_call_under_way_when_the_runtime_dies_is_unavailable(tmp_path: Path) -> None:
    runtime = ScriptedRuntime(hang={"StopContainer"})
    async with serving(runtime, tmp_path / "cri.sock") as endpoint:
        client = CriClient(endpoint)
        stop = asyncio.create_task(client.stop_container("a1", 30))
        await asyncio.wait_for(runtime.arrived.wait(), PATIENCE)
    with pytest.raises(RuntimeUnavailableError):
        await asyncio.wait_for(stop, PATIENCE)
    await client.close()


async def test_a_cancelled_call_is_cancelled_at_the_runtime_too(client: CriClient, runtime: ScriptedRuntime) -> None:
    runtime.hang.add("ExecSync")
    call = asyncio.create_task(client.exec_sync("a1", ["sleep", "60"], 60))
    await asyncio.wait_for(runtime.arrived.wait(), PATIENCE)

    call.cancel()

    with pytest.raises(asyncio.CancelledError):
        await call
    await asyncio.wait_for(runtime.cancelled.wait(), PATIENCE)


async def test_closing_ends_calls_under_way_and_later_ones(runtime: ScriptedRuntime, tmp_path: Path) -> None:
    runtime.hang.add("StopContainer")
    async with serving(runtime, tmp_path / "cri.sock") as endpoint:
        client = CriClient(endpoint)
        stop = asyncio.create_task(client.stop_container("a1", 30))
        await asyncio.wait_for(runtime.arrived.wait(), PATIENCE)

        await client.close()

        with pytest.raises(RuntimeUnavailableError, match="was closed"):
            await asyncio.wait_for(stop, PATIENCE)
        with pytest.raises(RuntimeUnavailableError, match="was closed"):
            await client.version()


async def test_every_call_is_told_to_the_callback(runtime: ScriptedRuntime, tmp_path: Path) -> None:
    calls: list[tuple[str, str, float]] = []
    runtime.fail["StopContainer"] = (grpc.StatusCode.NOT_FOUND, "no")
    runtime.hang.add("ExecSync")
    async with serving(runtime, tmp_path / "cri.sock") as endpoint:
        client = CriClient(endpoint, on_call=lambda method, code, seconds: calls.append((method, code, seconds)))
        await client.version()
        with pytest.raises(RuntimeCallError):
            await client.stop_container("a1", 30)
        call = asyncio.create_task(client.exec_sync("a1", ["x"], 5))
        await asyncio.wait_for(runtime.arrived.wait(), PATIENCE)
        call.cancel()
        await asyncio.wait([call])
        await client.close()

    assert [(method, code) for method, code, _ in calls] == [
        ("Version", "OK"),
        ("StopContainer", "NOT_FOUND"),
        ("ExecSync", "CANCELLED"),
    ]
    assert all(seconds >= 0 for _, _, seconds in calls)


async def test_many_calls_share_the_connection(client: CriClient, runtime: ScriptedRuntime) -> None:
    for number in range(110):
        runtime.add(f"c{number}", f"uid-{number}")

    lists = await asyncio.gather(*(client.list_containers(pod_uid=f"uid-{number}") for number in range(110)))

    assert [[container.id for container in found] for found in lists] == [[f"c{number}"] for number in range(110)]


def test_the_edge_is_light() -> None:
    """Every node pays for what is imported here; the architecture bounds it (its section on memory)."""
    program = (
        "import sys; import crrd.cri.runtime, crrd.node.hooks; "
        "print([name for name in ('kubernetes', 'requests', 'oauthlib', 'pydantic') if name in sys.modules])"
    )

    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)

    assert done.stdout.strip() == "[]"
