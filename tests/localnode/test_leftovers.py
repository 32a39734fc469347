"""However a demo is ended, nothing is left: at once where it could know of it, by the next one where it could not."""

import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from crrd_localnode import leftovers
from crrd_localnode.node import LocalNode
from tests.support.signals import ignoring

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """For temporary folders; short, for sockets lie in them."""
    with tempfile.TemporaryDirectory(prefix="left-") as found:
        monkeypatch.setenv("TMPDIR", found)
        monkeypatch.setattr(tempfile, "tempdir", None)
        yield Path(found)


def alive(folder: Path) -> list[str]:
    """Processes that have something of the folder in their command line or environment, but for this one."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0") + (entry / "environ").read_bytes().split(b"\0")
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        below = os.fsencode(folder) + b"/"
        if state != "Z" and int(entry.name) != os.getpid() and any(below in word for word in words):
            found.append(entry.name)
    return found


def inside(folder: Path) -> set[Path]:
    """What lies there."""
    return set(folder.iterdir())


@pytest.fixture
async def demo(folder: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """`crrd demo --keep`, up to where it waits."""
    with ignoring():
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-u", "-m", "crrd", "demo", "--keep"),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={**os.environ, "TMPDIR": str(folder)},
            start_new_session=True,
        )
    assert process.stdout is not None
    said = []
    async for line in process.stdout:
        said.append(line.decode())
        if "CONTAINER_RUNTIME_ENDPOINT" in said[-1]:
            break
    else:
        pytest.fail(f"it ended: {said}")
    yield process
    if process.returncode is None:
        process.kill()
        await process.wait()
    await leftovers.clear()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
async def test_a_demo_that_is_told_to_end_leaves_nothing(
    demo: asyncio.subprocess.Process, folder: Path, number: signal.Signals
) -> None:
    assert alive(folder)
    demo.send_signal(number)
    await asyncio.sleep(0)
    demo.send_signal(number)  # impatience changes nothing
    assert await demo.wait() == 0, "it was kept until somebody ends it"
    assert (alive(folder), inside(folder)) == ([], set())


async def test_what_a_killed_demo_leaves_the_next_one_clears(demo: asyncio.subprocess.Process, folder: Path) -> None:
    async with LocalNode() as living:
        demo.kill()
        await demo.wait()
        (left,) = inside(folder) - {living.root}
        assert alive(left)
        assert await leftovers.clear() == [left]
        assert living.root.is_dir()
    async with asyncio.timeout(60):
        while alive(folder):  # its daemons end in good order
            await asyncio.sleep(0.1)
    assert inside(folder) == set()


async def test_a_folder_can_be_taken_once(folder: Path) -> None:
    held = leftovers.hold(folder)
    with pytest.raises(BlockingIOError):
        leftovers.hold(folder)
    os.close(held)
    os.close(leftovers.hold(folder))
