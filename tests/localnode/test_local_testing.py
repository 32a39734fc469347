"""`docs/local-testing.md`: each of its commands works as it stands there, on the local runtime and on containerd."""

import asyncio
import os
import re
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.support.containerd import Containerd
from tests.support.images import BUSYBOX_IMAGE

PAGE = Path(__file__).parents[2] / "docs" / "local-testing.md"
BLOCKS = re.findall(r"^```sh\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
pytestmark = [
    pytest.mark.timeout(400),
    pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not on the PATH"),
]


def script(folder: Path) -> str:
    """All blocks; the lines with crictl only where that is installed."""
    lines = [line for block in BLOCKS for line in block.splitlines()]
    kept = [line for line in lines if "crictl" not in line or shutil.which("crictl")]
    crrd = folder / "crrd"
    crrd.write_text(f'#!/bin/sh\nexec {sys.executable} -m crrd "$@"\n')
    crrd.chmod(0o755)
    return "\n".join(["set -eux", *kept])


@asynccontextmanager
async def demo(folder: str, *flags: str) -> AsyncIterator[dict[str, str]]:
    """`crrd demo --keep`; gives the environment that it prints."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-u", "-m", "crrd", "demo", "--keep", *flags),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "TMPDIR": folder},
    )
    assert process.stdout is not None
    said = []
    try:
        async for line in process.stdout:
            said.append(line.decode())
            if found := re.search(r"export KUBECONFIG=(\S+) CONTAINER_RUNTIME_ENDPOINT=(\S+)", said[-1]):
                yield {"KUBECONFIG": found[1], "CONTAINER_RUNTIME_ENDPOINT": found[2]}
                break
        else:
            pytest.fail(f"it ended: {said}")
    finally:
        if process.returncode is None:
            process.terminate()
        assert await process.wait() == 0


async def run(folder: Path, environment: dict[str, str]) -> str:
    """What the page's commands print."""
    process = await asyncio.create_subprocess_exec(
        *("bash", "-c", script(folder)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, **environment, "PATH": f"{folder}:{os.environ['PATH']}", "HOME": str(folder)},
    )
    out, _ = await process.communicate()
    assert process.returncode == 0, out.decode()
    return out.decode()


def shows_it(out: str) -> None:
    assert "Completed: 1 of 1 containers recreated" in out
    assert "got TERM" in out, "the log of the instance before"
    assert "done: 3 of 3 pods recreated" in out
    assert "ContainersRecreated" in out


def test_the_page_has_commands() -> None:
    words = {line.split()[0] for block in BLOCKS for line in block.splitlines() if line}
    assert {"kubectl", "crictl", "crrd"} <= words


async def test_on_the_local_runtime(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="try-") as folder:
        async with demo(folder) as environment:
            shows_it(await run(tmp_path, environment))


@pytest.mark.containerd
async def test_on_containerd(tmp_path: Path, containerd: Containerd) -> None:
    with tempfile.TemporaryDirectory(prefix="try-") as folder:
        flags = ("--cri-endpoint", containerd.endpoint, "--image", BUSYBOX_IMAGE)
        async with demo(folder, *flags) as environment:
            shows_it(await run(tmp_path, environment))
