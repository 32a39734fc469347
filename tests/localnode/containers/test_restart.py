"""The local runtime as a program: killed, started again, and ended in order."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from cri_stubs import api_pb2 as pb
from crrd_localnode.containers.shim_process import python_command, python_environment
from crrd_localnode.runtime import ProcessRuntime
from tests.support import programs
from tests.support.local_runtime import Client, alive, connected, content, eventually, gone

LOST = 255


class Program:
    """The runtime as a program in one directory, over several lives."""

    def __init__(self, directory: Path) -> None:
        self.socket = directory / "cri.sock"
        self._root = directory / "root"
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", f"{programs.NAME}.runtime"),
            *("--root", str(self._root), "--socket", str(self.socket)),
        )

    async def end(self, how: signal.Signals) -> int:
        """Its exit code."""
        assert self._process is not None
        self._process.send_signal(how)
        return await self._process.wait()

    @asynccontextmanager
    async def life(self, how: signal.Signals) -> AsyncIterator[Client]:
        """A life that ends in this way."""
        await self.start()
        try:
            async with connected(self.socket) as client:
                yield client
        finally:
            code = await self.end(how)
        assert code == (0 if how == signal.SIGTERM else -how)


@pytest.fixture
def program(tmp_path: Path) -> Program:
    return Program(tmp_path)


async def test_a_runtime_that_was_killed_finds_everything_again(program: Program, tmp_path: Path) -> None:
    async with program.life(signal.SIGKILL) as client:
        sandbox = await client.sandbox(labels={"tier": "front"}, logs=str(tmp_path))
        stopped = await client.sandbox("old")
        await client.runtime.StopPodSandbox(pb.StopPodSandboxRequest(pod_sandbox_id=stopped))
        script = f"trap 'echo bye; exit 9' TERM; while :; do cat {tmp_path}/say 2>/dev/null; sleep 0.05; done"
        running = await client.run(sandbox, script, log="app.log", env={"COLOUR": "red"})
        created = await client.create(sandbox, name="waiting")
        ended = await client.run(sandbox, "exit 4", name="ended")
        await client.exited(ended)
        await client.pull("shop/web:1")
        before = [await client.status(one) for one in (running, created, ended)]
        pids = await client.pids(running)
        pods = (await client.runtime.ListPodSandbox(pb.ListPodSandboxRequest())).items
    assert alive(pids[0])
    (tmp_path / "say").write_text("still here\n")
    await content(tmp_path / "app.log", "stdout F still here")

    async with program.life(signal.SIGTERM) as client:
        assert [await client.status(one) for one in (running, created, ended)] == before
        assert (await client.runtime.ListPodSandbox(pb.ListPodSandboxRequest())).items == pods
        assert await client.pids(running) == pids
        asked = pb.ImageStatusRequest(image=pb.ImageSpec(image="shop/web:1"))
        assert (await client.images.ImageStatus(asked)).HasField("image")
        assert (await client.execute(running, "sh", "-c", "echo $COLOUR")).stdout == b"red\n"
        await client.start(created)
        await client.stop(running, 60)
        assert (await client.status(running)).exit_code == 9
        assert "stdout F bye" in (tmp_path / "app.log").read_text()


async def test_an_end_while_nobody_was_there_is_known_afterwards(program: Program, tmp_path: Path) -> None:
    async with program.life(signal.SIGKILL) as client:
        script = f"while ! test -e {tmp_path}/go; do sleep 0.02; done; exit 6"
        container = await client.run(await client.sandbox(), script)
        _, shim = await client.pids(container)
    (tmp_path / "go").touch()
    await gone(shim)
    async with program.life(signal.SIGTERM) as client:
        status = await client.status(container)
        assert (status.state, status.exit_code, status.reason) == (pb.CONTAINER_EXITED, 6, "Error")
        assert status.started_at < status.finished_at


async def test_the_end_of_an_adopted_container_is_noticed_as_it_happens(program: Program, tmp_path: Path) -> None:
    async with program.life(signal.SIGKILL) as client:
        sandbox = await client.sandbox()
        container = await client.run(sandbox, f"while ! test -e {tmp_path}/go; do sleep 0.02; done; exit 6")
    async with program.life(signal.SIGTERM) as client:
        (tmp_path / "go").touch()
        assert (await client.exited(container)).exit_code == 6


async def test_sigterm_ends_the_runtime_with_its_containers(program: Program) -> None:
    async with program.life(signal.SIGTERM) as client:
        pid, shim = await client.pids(await client.run(await client.sandbox()))
    assert not alive(pid)
    assert not alive(shim)
    assert not program.socket.exists()


async def test_a_killed_shim_takes_its_container_along(program: Program) -> None:
    async with program.life(signal.SIGTERM) as client:
        container = await client.run(await client.sandbox())
        pid, shim = await client.pids(container)
        os.kill(shim, signal.SIGKILL)
        status = await client.exited(container)
        assert (status.exit_code, status.reason) == (LOST, "Unknown")
        await gone(pid)
        await client.stop(container, 5)


async def test_a_shim_that_died_unseen_is_noticed_at_the_next_start(program: Program) -> None:
    async with program.life(signal.SIGKILL) as client:
        container = await client.run(await client.sandbox())
        pid, shim = await client.pids(container)
    os.kill(shim, signal.SIGKILL)
    await gone(shim)
    async with program.life(signal.SIGTERM) as client:
        status = await client.status(container)
        assert (status.state, status.exit_code, status.reason) == (pb.CONTAINER_EXITED, LOST, "Unknown")
        await gone(pid)


async def test_a_process_with_the_number_of_an_old_shim_is_left_alone(program: Program, tmp_path: Path) -> None:
    async with program.life(signal.SIGKILL) as client:
        container = await client.run(await client.sandbox())
        pid, shim = await client.pids(container)
    record = tmp_path / "root" / "containers" / container / "shim.json"
    text = record.read_text()
    # As if the number had gone to somebody else: to this very process.
    record.write_text(text.replace(f'"pid": {shim}', f'"pid": {os.getpid()}'))
    async with program.life(signal.SIGTERM) as client:
        assert (await client.status(container)).state == pb.CONTAINER_EXITED
    await gone(pid)


async def test_two_processes_may_write_the_same_file(tmp_path: Path) -> None:
    program = (
        "import sys; from crrd_localnode.containers.shim import write_json\n"
        "for number in range(2000): write_json(sys.argv[1], number)"
    )
    path = tmp_path / "exit.json"
    writers = [
        await asyncio.create_subprocess_exec(*(sys.executable, "-c", program, str(path)), env=python_environment())
        for _ in range(2)
    ]
    assert [await writer.wait() for writer in writers] == [0, 0]
    assert json.loads(path.read_text()) == 1999


async def test_a_killed_runtime_and_a_start_cut_short_leave_no_second_process(program: Program, tmp_path: Path) -> None:
    async with program.life(signal.SIGKILL) as client:
        sandbox = await client.sandbox()
        containers = [
            await client.create(sandbox, f"echo $$ >> {tmp_path}/pids-{number}; exec sleep 1000", name=f"app-{number}")
            for number in range(8)
        ]
        starts = [asyncio.ensure_future(client.start(container)) for container in containers]
        await asyncio.wait(starts, return_when=asyncio.FIRST_COMPLETED)
    await asyncio.gather(*starts, return_exceptions=True)
    async with program.life(signal.SIGTERM) as client:
        for container in containers:
            if (await client.status(container)).state == pb.CONTAINER_CREATED:
                await client.start(container)

        async def settled() -> bool:
            """Each container has ended, or its process has said so."""
            for number, container in enumerate(containers):
                state = (await client.status(container)).state
                if state == pb.CONTAINER_RUNNING and not (tmp_path / f"pids-{number}").exists():
                    return False
            return True

        await eventually(settled)
        files = [file for file in (tmp_path / f"pids-{number}" for number in range(8)) if file.exists()]
        counts = [len(file.read_text().splitlines()) for file in files]
        assert counts
        assert set(counts) == {1}


async def test_a_shim_whose_runtime_died_before_it_could_note_it_runs_nothing(tmp_path: Path) -> None:
    spec = {"argv": ["touch", str(tmp_path / "ran")], "env": {}, "cwd": "/", "log_path": "", "mounts": []}
    (tmp_path / "rootfs").mkdir()
    (tmp_path / "spec.json").write_text(json.dumps({**spec, "namespaced": False, "stop_signal": signal.SIGTERM}))
    for word, runs in ((b"", False), (b"!", True)):
        shim = await asyncio.create_subprocess_exec(
            *python_command("crrd_localnode.containers.shim", str(tmp_path)),
            env=python_environment(),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
        )
        await shim.communicate(word)
        assert shim.returncode == 0
        assert ((tmp_path / "ran").exists(), (tmp_path / "exit.json").exists()) == (runs, runs)


async def test_one_root_serves_one_runtime_at_a_time(tmp_path: Path) -> None:
    first = ProcessRuntime(tmp_path / "root", tmp_path / "first.sock")
    await first.start()
    try:
        with pytest.raises(OSError, match="in use by another runtime"):
            await ProcessRuntime(tmp_path / "root", tmp_path / "second.sock").start()
    finally:
        await first.stop()


async def test_a_socket_path_that_linux_cannot_take_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="longer than 107 bytes"):
        await ProcessRuntime(tmp_path / "root", tmp_path / ("s" * 120)).start()
