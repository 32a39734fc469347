"""Telling a process from a later one that got the same number."""

from contextlib import suppress
from functools import cache


@cache
def _boot() -> str:
    with open("/proc/sys/kernel/random/boot_id") as file:  # noqa: PTH123 - pathlib is slow to load, see shim
        return file.read().strip()


def identity(pid: int) -> str | None:
    """What no other process shares: the machine's boot and the process' start time; None if there is no process."""
    with suppress(FileNotFoundError, ProcessLookupError), open(f"/proc/{pid}/stat") as file:  # noqa: PTH123 - as above
        # The program's name, in parentheses, may itself hold spaces and parentheses; field 22 is the start time.
        return f"{_boot()}:{file.read().rpartition(')')[2].split()[19]}"
    return None
