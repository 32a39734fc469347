"""The local runtime over its real socket: how containers are stopped, and what ends with them."""

import asyncio
import re
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cri_stubs import api_pb2 as pb
from crrd_localnode.containers.container import Container
from tests.support.local_runtime import NOBODY, Client, alive, content, serving, until
from tests.support.signals import ignoring


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Client]:
    async with serving(tmp_path) as client:
        yield client


async def test_a_stop_sends_term_and_returns_when_the_container_has_ended(client: Client, tmp_path: Path) -> None:
    script = f"trap 'echo term >> {tmp_path}/said; exit 7' TERM; touch {tmp_path}/up; while :; do sleep 0.05; done"
    container = await client.run(await client.sandbox(), script)
    await until((tmp_path / "up").exists)
    await client.stop(container, 60)
    assert (await client.status(container)).exit_code == 7
    assert (tmp_path / "said").read_text() == "term\n"


async def test_a_container_that_ignores_term_is_killed_after_the_timeout(client: Client, tmp_path: Path) -> None:
    script = f"trap 'echo term >> {tmp_path}/said' TERM; touch {tmp_path}/up; while :; do sleep 0.05; done"
    container = await client.run(await client.sandbox(), script)
    await until((tmp_path / "up").exists)
    await client.stop(container, 1)
    assert (await client.status(container)).exit_code == 137
    assert (tmp_path / "said").read_text() == "term\n"


async def test_a_timeout_of_zero_kills_at_once(client: Client, tmp_path: Path) -> None:
    script = f"trap 'echo term >> {tmp_path}/said' TERM; touch {tmp_path}/up; while :; do sleep 0.05; done"
    container = await client.run(await client.sandbox(), script)
    await until((tmp_path / "up").exists)
    await client.stop(container, 0)
    assert (await client.status(container)).exit_code == 137
    assert not (tmp_path / "said").exists()


async def test_several_stops_at_a_time_all_return_and_send_one_term(client: Client, tmp_path: Path) -> None:
    script = f"trap 'echo term >> {tmp_path}/said' TERM; touch {tmp_path}/up; while :; do sleep 0.05; done"
    container = await client.run(await client.sandbox(), script)
    await until((tmp_path / "up").exists)
    await asyncio.gather(client.stop(container, 60), client.stop(container, 60), client.stop(container, 1))
    assert (await client.status(container)).exit_code == 137
    assert (tmp_path / "said").read_text() == "term\n"


async def test_stopping_what_does_not_run_is_no_error(client: Client) -> None:
    sandbox = await client.sandbox()
    created = await client.create(sandbox)
    await client.stop(created, 0)
    assert (await client.status(created)).state == pb.CONTAINER_CREATED
    exited = await client.run(sandbox, "exit 0", name="other")
    await client.exited(exited)
    await client.stop(exited, 0)
    assert (await client.status(exited)).exit_code == 0
    await client.stop(NOBODY, 0)
    await client.remove(exited)
    await client.stop(exited, 0)


async def test_everything_that_a_container_started_ends_with_it(client: Client, tmp_path: Path) -> None:
    # One child in the container's process group, one that made a session of its own.
    script = (
        f"sleep 1000 & echo $! > {tmp_path}/child; setsid sh -c 'echo $$ > {tmp_path}/runaway; exec sleep 1000' & wait"
    )
    container = await client.run(await client.sandbox(), script)
    pids = [int(await content(tmp_path / name, "\n")) for name in ("child", "runaway")]
    assert all(alive(pid) for pid in pids)
    pid, _ = await client.pids(container)
    await client.execute(container, "sh", "-c", f"kill -KILL {pid}")
    await client.exited(container)
    assert not any(alive(pid) for pid in pids)


async def test_a_container_begins_with_no_signal_blocked_or_ignored(client: Client, tmp_path: Path) -> None:
    sandbox = await client.sandbox(logs=str(tmp_path))
    with ignoring(signal.SIGHUP, signal.SIGQUIT):  # as a node that nohup has started
        await client.run(sandbox, "exec grep Sig /proc/self/status", log="app.log")
    said = await content(tmp_path / "app.log", "SigCgt")
    # 32 and 33 belong to the C library, which neither sets nor resets them for others.
    own = 1 << 31 | 1 << 32
    for name in ("SigBlk", "SigIgn"):
        [mask] = re.findall(rf"{name}:\t(\w+)\n", said)
        assert int(mask, 16) & ~own == 0


async def test_a_container_that_ends_while_its_start_is_reported_has_started(tmp_path: Path) -> None:
    config = pb.ContainerConfig(command=["true"])
    container = Container(tmp_path / "short", sandbox_id="", config=config, image_id="", created_at=1, log_path="")
    container.save()
    start = asyncio.ensure_future(container.start(hostname="", namespaced=False))
    while not start.done():
        await asyncio.sleep(0)
        time.sleep(0.1)  # noqa: ASYNC251 - a loop that is this busy learns of the start and of the end in one go
    await start
    assert container.status(None).exit_code == 0
