"""What a container's processes use, from /proc: there is no cgroup to ask."""

import os
from pathlib import Path

_PROC = Path("/proc")
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def usage_of(pid: int) -> tuple[int, int]:
    """Nanoseconds of CPU and resident bytes of a process and its descendants that live; 0 where it has ended.

    What has ended counts in whoever waited for it.
    """
    fields = {each.name: found for each in _PROC.glob("[0-9]*") if (found := _stat(each))}
    below: dict[str, list[str]] = {}
    for name, found in fields.items():
        below.setdefault(found[1], []).append(name)
    ticks = pages = 0
    waiting = [str(pid)] if str(pid) in fields else []
    while waiting:
        name = waiting.pop()
        found = fields[name]
        ticks += sum(map(int, found[11:15]))  # utime, stime, cutime, cstime of proc(5), which counts from 1, pid first
        pages += int(found[21])
        waiting += below.get(name, [])
    return ticks * 1_000_000_000 // _TICKS, pages * _PAGE


def _stat(process: Path) -> list[str]:
    """The fields of its `stat` from the state on; none of one that has just ended."""
    try:
        return (process / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
