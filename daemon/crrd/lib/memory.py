"""Memory that a daemon need not pay: what libraries load for others, what the allocator keeps, what TLS sets aside.

Measured on Python 3.11, glibc 2.36: rich 3 MiB, aiohttp's default SSL contexts 2 MiB, freed heap after a burst of
30 requests 4 MiB. Nothing here changes what a library does; a platform without these knobs just keeps the memory.
"""

import ctypes
import gc
import mmap
import os
import sys
from asyncio import sslproto
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_M_TRIM_THRESHOLD = -1
_M_ARENA_MAX = -8  # Numbers of glibc's mallopt(3)
_TRIM_THRESHOLD_BYTES = 128 * 1024
_TLS_RECORD_BYTES = 16 * 1024


@contextmanager
def keep_imports_lean() -> Iterator[None]:
    """Import without what the node never uses.

    structlog imports rich, where it is installed, for tracebacks on terminals. aiohttp builds contexts with all of
    the system's certificates when it is imported; the daemon makes its own context, with the cluster's CA.
    """
    sys.modules.setdefault("rich", None)  # type: ignore[arg-type]  # None is how an import is switched off
    paths = {"SSL_CERT_FILE": os.devnull, "SSL_CERT_DIR": os.devnull}
    saved = {name: os.environ.get(name) for name in paths}
    os.environ.update(paths)
    try:
        yield
    finally:
        for name, value in saved.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def tune_allocator() -> None:
    """One arena for all threads, and a fixed threshold above which freed memory goes back at once.

    glibc raises its threshold with the largest block that it has seen: one hook with 16 MiB of output would keep
    a hundred MiB resident. To be called before any thread starts.
    """
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_ARENA_MAX, 1)
        libc.mallopt(_M_TRIM_THRESHOLD, _TRIM_THRESHOLD_BYTES)


def small_tls_buffers() -> None:
    """Have TLS connections read in pieces of 16 KiB, the most that a TLS record has.

    asyncio sets aside 256 KiB for each, filled with zeros, however little comes: more than all else of a connection.
    """
    sslproto.SSLProtocol.max_size = _TLS_RECORD_BYTES


def keep_for_good() -> None:
    """Spare the garbage collector what there is now, which lives as long as the process: its modules, above all.

    A full collection would look at all of it each time, which keeps the manager's loop for 50 ms.
    """
    gc.collect()
    gc.freeze()


def drop_code() -> None:
    """Unmap what of the libraries' code and constants has been read so far: what is used again comes back by itself.

    Only pages that the kernel has in files are dropped: those of mappings that this process cannot write and, as far
    as it ever could (relocations), has not changed.
    """
    with suppress(OSError, AttributeError):
        madvise = ctypes.CDLL(None).madvise
        madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        for first, end in _unchanged_code():
            madvise(first, end - first, mmap.MADV_DONTNEED)


def _unchanged_code() -> Iterator[tuple[int, int]]:
    """Address ranges of read-only mappings of files none of whose pages is a copy of this process."""
    with Path("/proc/self/smaps").open(encoding="ascii", errors="replace") as lines:
        found: tuple[int, int] | None = None
        for line in lines:
            head, *fields = line.split()
            if "-" in head:
                readable_only = len(fields) > 4 and fields[0] in ("r-xp", "r--p") and fields[4].startswith("/")
                first, _, end = head.partition("-")
                found = (int(first, 16), int(end, 16)) if readable_only else None
            elif found is not None and head == "Anonymous:" and fields[0] == "0":
                yield found


def give_back() -> None:
    """Collect garbage, and give freed memory back to the system (some ms; for idle moments)."""
    gc.collect()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
