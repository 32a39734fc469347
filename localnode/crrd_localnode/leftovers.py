"""Cleans up after demos that were killed with SIGKILL: ends their daemons and containers, and removes their folders.

A node holds a lock on its folder while its process lives, and the kernel releases it however the process ends. Running
nodes and folders of other users are left alone.
"""

import asyncio
import os
import shutil
import signal
import tempfile
from contextlib import suppress
from pathlib import Path

from crrd_localnode.runtime import ProcessRuntime, lock

PREFIX = "crrd-"  # Prefix of local nodes' temporary folders
_LOCK = "node.lock"


def hold(folder: Path) -> int:
    """Lock a node's folder for this process, see `lock`."""
    return lock(folder / _LOCK)


async def clear() -> list[Path]:
    """Clean up after this user's nodes, and return their folders."""
    return [folder for folder in await asyncio.to_thread(_folders) if await _end(folder)]


def _folders() -> list[Path]:
    """Return the temporary folders of this user's nodes, running or not."""
    found = []
    for folder in sorted(Path(tempfile.gettempdir()).glob(f"{PREFIX}*")):
        with suppress(OSError):  # it was just removed
            if folder.stat().st_uid == os.getuid() and (folder / _LOCK).is_file():
                found.append(folder)
    return found


async def _end(folder: Path) -> bool:
    """Lock a node's folder, and end what runs there. Return False if the node is running."""
    try:
        held = hold(folder)
    except OSError:
        return False
    try:
        for pid in await asyncio.to_thread(_daemons, folder):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        runtime = ProcessRuntime(folder / "runtime", folder / "cri.sock")
        with suppress(OSError):  # it was killed before its runtime started
            await runtime.start()
            await runtime.stop()
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
    finally:
        os.close(held)
    return True


def _daemons(folder: Path) -> list[int]:
    """Return the processes that were started with this node's kubeconfig."""
    wanted = os.fsencode(folder / "kubeconfig")
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            if wanted in (entry / "cmdline").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found
