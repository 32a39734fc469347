"""What a demo leaves that was killed with SIGKILL: its daemons, its containers and its folder; the next one ends them.

A node holds a lock on its folder as long as its process lives; the kernel gives it back however that ends. Nodes that
run, and folders of other users, are left alone.
"""

import asyncio
import os
import shutil
import signal
import tempfile
from contextlib import suppress
from pathlib import Path

from crrd_localnode.runtime import ProcessRuntime, lock

PREFIX = "crrd-"  # Of the names of local nodes' temporary folders
_LOCK = "node.lock"


def hold(folder: Path) -> int:
    """Take a node's folder for this process as `lock` does."""
    return lock(folder / _LOCK)


async def clear() -> list[Path]:
    """End all that nodes of this user have left; returns their folders."""
    return [folder for folder in await asyncio.to_thread(_folders) if await _end(folder)]


def _folders() -> list[Path]:
    """Temporary folders of this user's nodes, whether they run or not."""
    found = []
    for folder in sorted(Path(tempfile.gettempdir()).glob(f"{PREFIX}*")):
        with suppress(OSError):  # it is going just now
            if folder.stat().st_uid == os.getuid() and (folder / _LOCK).is_file():
                found.append(folder)
    return found


async def _end(folder: Path) -> bool:
    """Take a node's folder over, and end what runs there; False where the node lives."""
    try:
        held = hold(folder)
    except OSError:
        return False
    try:
        for pid in await asyncio.to_thread(_daemons, folder):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        runtime = ProcessRuntime(folder / "runtime", folder / "cri.sock")
        with suppress(OSError):  # it was killed before it had a runtime
            await runtime.start()
            await runtime.stop()
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
    finally:
        os.close(held)
    return True


def _daemons(folder: Path) -> list[int]:
    """Processes that were started with this node's kubeconfig."""
    wanted = os.fsencode(folder / "kubeconfig")
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            if wanted in (entry / "cmdline").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found
