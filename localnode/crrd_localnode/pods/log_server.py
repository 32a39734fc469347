"""The part of kubelet's HTTP server that `kubectl logs` uses through the API server; on loopback only.

It reads the runtime's log files. Their lines start with time and stream, which clients get only on request.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

from aiohttp import web

from crrd_localnode.pods.volumes import PodFolders, log_numbers

_POLL_SECONDS = 0.2


class LogServer:
    """Serves `/containerLogs/NAMESPACE/POD/CONTAINER` of the pods that have folders."""

    def __init__(self, folders: PodFolders) -> None:
        self._folders = folders
        self._runner: web.AppRunner | None = None

    async def start(self) -> int:
        """Listen, and return the port."""
        app = web.Application()
        app.router.add_get("/containerLogs/{namespace}/{pod}/{container}", self._serve)
        self._runner = web.AppRunner(app, shutdown_timeout=1, handler_cancellation=True)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        port: int = self._runner.addresses[0][1]
        return port

    async def stop(self) -> None:
        """Stop listening."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        pod, container = request.match_info["pod"], request.match_info["container"]
        previous = request.query.get("previous") == "true"
        file = await asyncio.to_thread(self._file, request.match_info["namespace"], pod, container, previous=previous)
        if file is None:
            what = "previous terminated container" if previous else "container"
            return web.Response(status=400, text=f'{what} "{container}" in pod "{pod}" not found')
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await response.prepare(request)
        async for lines in _lines(file, request.query):
            await response.write(lines)
        return response

    def _file(self, namespace: str, pod: str, container: str, *, previous: bool) -> Path | None:
        """Return the log of the container's current or previous instance."""
        folder = self._folders.logs_of(namespace, pod)
        numbers = log_numbers(folder / container) if folder else []
        wanted = numbers[:-1] if previous else numbers
        return folder / container / f"{wanted[-1]}.log" if folder and wanted else None


async def _lines(file: Path, query: Mapping[str, str]) -> AsyncIterator[bytes]:
    """Yield the output in chunks: all of it or the last lines. With `follow`, until the next instance starts."""
    tail, timestamps = query.get("tailLines", ""), query.get("timestamps") == "true"
    at = 0
    while True:
        raw = await asyncio.to_thread(_from, file, at)
        complete = raw[: raw.rfind(b"\n") + 1]
        lines = complete.split(b"\n")[:-1]
        if at == 0 and tail.isdecimal():
            lines = lines[max(0, len(lines) - int(tail)) :]
        at += len(complete)
        if lines:
            yield b"".join(_printed(line, timestamps=timestamps) for line in lines)
        newer = await asyncio.to_thread(file.with_name(f"{int(file.stem) + 1}.log").exists)
        if query.get("follow") != "true" or newer:
            return
        await asyncio.sleep(_POLL_SECONDS)


def _from(file: Path, at: int) -> bytes:
    with file.open("rb") as log:
        log.seek(at)
        return log.read()


def _printed(line: bytes, *, timestamps: bool) -> bytes:
    """Return a line of the log as it was printed. A part of a split line (tag P) has no newline."""
    at, _, tag, text = line.split(b" ", 3)
    return (at + b" " if timestamps else b"") + text + (b"" if tag == b"P" else b"\n")
