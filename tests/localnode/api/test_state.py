"""The local API server's life: starting again, and the command of its own."""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import aiohttp

from tests.support import programs
from tests.support.faulty_api import FaultyApiServer
from tests.support.local_api import CRRS, Api, crr


async def test_the_same_server_starts_again_on_its_port_with_what_it_had() -> None:
    server = FaultyApiServer()
    await server.stop()
    async with server, aiohttp.ClientSession() as session:
        made = await Api(server, session).post(CRRS, crr())
        url = server.url
    async with server, aiohttp.ClientSession() as session:
        assert server.url == url
        assert (await Api(server, session).get(CRRS + "/r")).body == made.body


async def test_the_command_serves_until_it_is_told_to_end(tmp_path: Path) -> None:
    config = tmp_path / "config"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", f"{programs.NAME}.api", "--kubeconfig-out", str(config),
        stdout=asyncio.subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
    )  # fmt: skip
    assert process.stdout is not None
    async with asyncio.timeout(30):
        url = (await process.stdout.readline()).decode().strip()
    written = json.loads(config.read_text())
    assert written["clusters"][0]["cluster"] == {"server": url}
    assert written["users"][0]["user"] == {}
    async with aiohttp.ClientSession(url) as session, session.post(CRRS, json=crr()) as reply:
        assert reply.status == 201
    process.send_signal(signal.SIGTERM)
    async with asyncio.timeout(30):
        assert await process.wait() == 0
