"""The local runtime over its real socket: commands in containers, mounts, logs."""

import asyncio
import os
import re
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest

from cri_stubs import api_pb2 as pb
from crrd_localnode.containers import cri_log
from tests.support import programs
from tests.support.local_runtime import NOBODY, Client, connected, content, gone, refused, serving, until


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Client]:
    async with serving(tmp_path) as client:
        yield client


@asynccontextmanager
async def without_mount_namespaces(directory: Path) -> AsyncIterator[Client]:
    """A client of a runtime whose process may not mount, root or not."""
    command = [
        *("setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"),
        *(sys.executable, "-m", f"{programs.NAME}.runtime"),
        *("--root", str(directory / "root"), "--socket", str(directory / "cri.sock")),
    ]
    process = await asyncio.create_subprocess_exec(*(command if os.geteuid() == 0 else command[3:]))
    try:
        async with connected(directory / "cri.sock") as client:
            yield client
    finally:
        process.terminate()
        assert await process.wait() == 0


async def test_a_command_runs_to_its_end(client: Client) -> None:
    container = await client.run(await client.sandbox(), env={"COLOUR": "red", "PATH": "/usr/bin:/bin"})
    answer = await client.execute(container, "sh", "-c", "echo $COLOUR; echo oops >&2; pwd; exit 7", seconds=30)
    assert (answer.exit_code, answer.stdout, answer.stderr) == (7, b"red\n/\n", b"oops\n")
    answer = await client.execute(container, "sh", "-c", "kill -TERM $$")
    assert answer.exit_code == 143
    answer = await client.execute(container, "/bin/sh", "-c", "no-such-program")
    assert answer.exit_code == 127


async def test_a_command_that_takes_too_long_is_killed_with_its_children(client: Client, tmp_path: Path) -> None:
    container = await client.run(await client.sandbox())
    script = f"sleep 1000 & echo $! > {tmp_path}/child; echo $$ > {tmp_path}/self; wait"
    async with refused(grpc.StatusCode.DEADLINE_EXCEEDED, "1 s"):
        await client.execute(container, "sh", "-c", script, seconds=1)
    for name in ("child", "self"):
        await gone(int((tmp_path / name).read_text()))
    assert (await client.status(container)).state == pb.CONTAINER_RUNNING


async def test_a_command_whose_child_keeps_the_output_open_counts_as_running(client: Client, tmp_path: Path) -> None:
    container = await client.run(await client.sandbox())
    async with refused(grpc.StatusCode.DEADLINE_EXCEEDED):
        await client.execute(container, "sh", "-c", f"sleep 1000 & echo $! > {tmp_path}/child", seconds=1)
    await gone(int((tmp_path / "child").read_text()))


async def test_a_command_is_killed_when_the_caller_goes(client: Client, tmp_path: Path) -> None:
    container = await client.run(await client.sandbox())
    request = pb.ExecSyncRequest(
        container_id=container, cmd=["sh", "-c", f"echo $$ > {tmp_path}/self; exec sleep 1000"], timeout=3600
    )
    call = client.runtime.ExecSync(request)
    pid = int(await content(tmp_path / "self", "\n"))
    call.cancel()
    await gone(pid)


async def test_a_command_dies_with_its_container(client: Client, tmp_path: Path) -> None:
    container = await client.run(await client.sandbox())
    running = asyncio.ensure_future(
        client.execute(container, "sh", "-c", f"touch {tmp_path}/up; exec sleep 1000", seconds=3600)
    )
    await until((tmp_path / "up").exists)
    await client.stop(container, 0)
    assert (await running).exit_code == 137


async def test_commands_need_a_running_container_and_a_program(client: Client) -> None:
    container = await client.create(await client.sandbox())
    async with refused(grpc.StatusCode.FAILED_PRECONDITION, "CREATED"):
        await client.execute(container, "true")
    await client.start(container)
    async with refused(grpc.StatusCode.UNKNOWN, "no-such-program"):
        await client.execute(container, "no-such-program")
    async with refused(grpc.StatusCode.UNKNOWN, "/etc/passwd"):
        await client.execute(container, "/etc/passwd")
    async with refused(grpc.StatusCode.INVALID_ARGUMENT, "empty"):
        await client.execute(container)
    await client.stop(container, 0)
    async with refused(grpc.StatusCode.FAILED_PRECONDITION, "EXITED"):
        await client.execute(container, "true")
    async with refused(grpc.StatusCode.NOT_FOUND):
        await client.execute(NOBODY, "true")


def volume(tmp_path: Path, name: str) -> str:
    (tmp_path / name).mkdir()
    return str(tmp_path / name)


async def test_mounts_are_where_the_pod_wants_them(client: Client, tmp_path: Path) -> None:
    probe = await client.run(await client.sandbox("probe"), "exec sleep 1000", env={})
    if (await client.execute(probe, "sh", "-c", "echo ${CRRD_ROOT:-none}")).stdout != b"none\n":
        pytest.skip("mount namespaces cannot be had here")
    data, config = volume(tmp_path, "data"), volume(tmp_path, "config")
    (tmp_path / "config" / "colour").write_text("red")
    (tmp_path / "hosts").write_text("of the pod")
    mounts = [
        pb.Mount(container_path="/crrd-data/nested/config", host_path=config, readonly=True),
        pb.Mount(container_path="/crrd-data", host_path=data),
        pb.Mount(container_path="/etc/hosts", host_path=str(tmp_path / "hosts")),
        pb.Mount(container_path="/etc/crrd-colour", host_path=str(tmp_path / "config" / "colour")),
    ]
    script = "echo written > /crrd-data/x; exec sleep 1000"
    container = await client.run(await client.sandbox(), script, mounts=mounts)
    assert await content(tmp_path / "data" / "x", "\n") == "written\n"
    seen = await client.execute(
        container, "sh", "-c", "cat /crrd-data/x /crrd-data/nested/config/colour /etc/hosts /etc/crrd-colour; "
        "test -e /etc/passwd && touch /crrd-data/nested/config/y",
    )  # fmt: skip
    assert seen.stdout == b"written\nredof the podred"
    assert b"Read-only" in seen.stderr
    await client.execute(container, "sh", "-c", "echo mine > /crrd-own")
    # The node itself has got none of it.
    assert not any(path.exists() for path in map(Path, ("/crrd-data", "/etc/crrd-colour", "/crrd-own")))
    assert "of the pod" not in await content(Path("/etc/hosts"))
    assert [one.container_path for one in (await client.status(container)).mounts] == [
        one.container_path for one in mounts
    ]


@pytest.mark.skipif(shutil.which("setpriv") is None and os.geteuid() == 0, reason="needs setpriv of util-linux")
async def test_without_namespaces_mounts_are_links_below_crrd_root(tmp_path: Path) -> None:
    data = volume(tmp_path, "data")
    async with without_mount_namespaces(tmp_path) as client:
        sandbox = await client.sandbox()
        part = tmp_path / "data" / "part"
        part.write_text("kept")
        mounts = [
            pb.Mount(container_path="/crrd/data", host_path=data),
            pb.Mount(container_path="/crrd/part", host_path=str(part)),
        ]
        script = 'echo written > "$CRRD_ROOT/crrd/data/x"; pwd > crrd/data/cwd; exec sleep 1000'
        container = await client.run(sandbox, script, mounts=mounts)
        assert await content(tmp_path / "data" / "x", "\n") == "written\n"
        seen = await client.execute(container, "sh", "-c", 'cat "$CRRD_ROOT/crrd/data/x"; cat crrd/data/cwd')
        root = tmp_path / "root" / "containers" / container / "rootfs"
        assert seen.stdout.decode() == f"written\n{root}\n"
        late = await client.create(sandbox, name="late", mounts=mounts)
        part.unlink()
        assert (await client.execute(container, "sh", "-c", 'cat "$CRRD_ROOT/crrd/part"')).stdout == b"kept"
        async with refused(grpc.StatusCode.UNKNOWN, "No such file or directory"):
            await client.start(late)
        part.touch()
        nested = [*mounts, pb.Mount(container_path="/crrd/data/below", host_path=str(tmp_path))]
        async with refused(grpc.StatusCode.UNKNOWN, "below another mount"):
            await client.start(await client.create(sandbox, name="nested", mounts=nested))
        async with refused(grpc.StatusCode.UNKNOWN, "no-such-program"):
            await client.execute(container, "no-such-program")


async def test_output_is_logged_in_the_cri_format(client: Client, tmp_path: Path) -> None:
    sandbox = await client.sandbox(logs=str(tmp_path / "logs"))
    script = "echo out; echo err >&2; head -c 20000 /dev/zero | tr '\\0' x; echo; printf unfinished"
    container = await client.run(sandbox, script, log="app/0.log")
    await client.exited(container)
    lines = (tmp_path / "logs" / "app" / "0.log").read_text().splitlines()
    found = [re.fullmatch(r"(\S+) (stdout|stderr) ([FP]) (.*)", line) for line in lines]
    said: dict[str, list[tuple[str, str]]] = {"stdout": [], "stderr": []}
    for match in found:
        assert match is not None
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z", match[1])
        said[match[2]].append((match[3], match[4]))
    assert said["stderr"] == [("F", "err")]
    limit = cri_log.MAX_LINE
    assert said["stdout"] == [("F", "out"), ("P", "x" * limit), ("F", "x" * (20000 - limit)), ("F", "unfinished")]


async def test_a_log_that_cannot_be_opened_fails_the_start(client: Client, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    container = await client.create(await client.sandbox(logs=str(tmp_path / "file")), log="app.log")
    async with refused(grpc.StatusCode.UNKNOWN, "log cannot be opened"):
        await client.start(container)
    assert (await client.status(container)).reason == "StartError"


def test_timestamps_have_all_digits() -> None:
    assert cri_log.timestamp(1_700_000_000_000_000_042) == "2023-11-14T22:13:20.000000042Z"
