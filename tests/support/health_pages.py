"""The page /healthz as kubelet reads it, in virtual time and without a socket."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from aiohttp import web

from crrd.lib.health import Health

Page = tuple[int, dict[str, str]]  # The HTTP status, and the error of each failed check by name
_PROBE_SECONDS = 20.0


async def page(health: Health, path: str = "/healthz") -> Page:
    """Return the current page."""
    (route,) = (route for route in health.routes() if isinstance(route, web.RouteDef) and route.path == path)
    handler = cast("Callable[[Any], Any]", route.handler)
    answer: web.Response = await handler(None)
    assert answer.text is not None
    failed = (line.removeprefix("[-]").split(" failed: ", 1) for line in answer.text.splitlines() if line[:3] == "[-]")
    return answer.status, dict(failed)


@dataclass
class Watched:
    """A daemon that kubelet probes every 20 s."""

    health: Health

    async def pass_by(self, seconds: float) -> Page:
        """Let time pass. Return the first page with a failed check, or else the last page."""
        loop = asyncio.get_running_loop()
        ends = loop.time() + seconds
        while True:
            await asyncio.sleep(min(_PROBE_SECONDS, ends - loop.time()))
            last = await page(self.health)
            if last[1] or loop.time() >= ends:
                return last

    async def red(self, name: str, within: float) -> str:
        """Wait until only the check of this name fails. Return its error."""
        status, failed = await self.pass_by(within)
        assert failed, f"{name} stayed green for {within:.0f} s"
        assert (status, list(failed)) == (503, [name])
        return failed[name]


def end(name: str) -> None:
    """End the task of this name, like a bug."""
    (task,) = (task for task in asyncio.all_tasks() if task.get_name() == name)
    task.cancel()
