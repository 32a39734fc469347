"""What a large cluster and many strangers cost the manager: `python -m tests.bench.size`.

Against an API server with 10 000 pods of 12 KB and 1 000 requests: the manager's peak memory, the longest stall of its
loop, the time from a change of leader to its first decision, and what becomes of the events of 1 000 requests that end
at once. Then 5 000 TLS connections that say nothing are opened to its webhook, and it is asked as an API server asks.
Fails if a leader needs more than 85 MiB before that.
"""

import argparse
import asyncio
import json
import os
import resource
import select
import socket
import ssl
import sys
import tempfile
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp

from crrd.manager.certificates.pki import CERTIFICATE, KEY, Certificates, to_data
from crrd_localnode.daemons import Daemon
from tests.bench.admission import ASKED, WARM_UP, summary
from tests.bench.watched_manager import OUTPUT
from tests.support.webhook import new_certificates, trusting

RATE, SECONDS = 100.0, 10.0
MOST_MIB = 85.0


class Manager(Daemon):
    """A manager whose loop is watched for stalls."""

    PROGRAM = (sys.executable, "-m", "tests.bench.watched_manager")

    def __init__(self, name: str, folder: Path, kubeconfig: Path) -> None:
        flags = ("--identity", name, "--webhook-address", "127.0.0.1:0", "--drain-seconds", "0")
        files = ("--tls-cert-file", str(folder / "tls.crt"), "--tls-key-file", str(folder / "tls.key"))
        super().__init__("manager", folder / f"{name}.log", kubeconfig, *flags, *files)
        self._folder = folder

    def memory(self) -> tuple[float, float]:
        """Resident now and at most, MiB."""
        lines = Path(f"/proc/{self.pid}/status").read_text(encoding="ascii").splitlines()
        found = dict(line.split(":", 1) for line in lines if line.startswith(("VmRSS", "VmHWM")))
        return int(found["VmRSS"].split()[0]) / 1024, int(found["VmHWM"].split()[0]) / 1024

    def scheduled(self) -> tuple[float, float]:
        """For how many seconds it has used a core so far, and has waited for one (other work on this machine)."""
        used, waited, _ = Path(f"/proc/{self.pid}/schedstat").read_text(encoding="ascii").split()
        return int(used) / 1e9, int(waited) / 1e9

    def stalls(self) -> list[tuple[float, float]]:
        """Once it has ended."""
        found: list[tuple[float, float]] = json.loads((self._folder / f"{self.pid}.json").read_text(encoding="utf-8"))
        return found


class ApiProcess:
    """The API server's process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.led: list[tuple[str, float]] = []
        """Who came to lead, and when ("" for nobody)."""

    async def read(self, wanted: str) -> dict[str, Any]:
        """The next thing that it tells of this kind."""
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            found: dict[str, Any] = json.loads(line)
            if "leader" in found:
                self.led.append((found["leader"], found["at"]))
            if wanted in found:
                return found
        raise RuntimeError("the API server has ended")

    async def do(self, command: str, answer: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\n".encode())
        return await self.read(answer)

    async def until_written(self, count: int, key: str = "written", seconds: float = 120.0) -> list[float]:
        """When the manager wrote, once it has written so often, or nothing more comes."""
        ends = time.time() + seconds
        while True:
            found: list[float] = (await self.do("told", "written"))[key]
            if len(found) >= count or time.time() > ends:
                return found
            await asyncio.sleep(0.2)


@asynccontextmanager
async def cluster(folder: Path, *flags: str) -> AsyncIterator[ApiProcess]:
    command = ("-m", "tests.bench.big_cluster", "--kubeconfig-out", str(folder / "kubeconfig"), *flags)
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, stdin=pipe, stdout=pipe, limit=2**24
    )  # fmt: skip
    try:
        yield ApiProcess(process)
    finally:
        process.kill()
        await process.wait()


def strangers(address: str, authority: str, count: int) -> None:
    """Open TLS connections and say nothing, in a process of its own until its input ends; always new ones in the end.

    Tells on one line when there are so many, and at the end on another how many came in all, and are still open.
    """
    host, _, port = address.rpartition(":")
    context = ssl.create_default_context(cadata=authority)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    os.nice(10)  # strangers have machines of their own: who is measured comes first on this one
    kept: deque[ssl.SSLSocket] = deque()
    opened = refused = 0
    while not select.select([sys.stdin], [], [], 0)[0]:
        try:
            made = socket.create_connection((host, int(port)), timeout=30)
            kept.append(context.wrap_socket(made, server_hostname=host))
            opened += 1
        except OSError:
            refused += 1
        if opened + refused == count:
            print(json.dumps({"opened": opened}), flush=True)
        if len(kept) > count:
            kept.popleft().close()
    print(json.dumps({"opened": opened, "refused": refused, "alive": sum(map(_is_open, kept))}), flush=True)


def _is_open(connection: ssl.SSLSocket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1) != b""
    except ssl.SSLWantReadError:
        return True
    except OSError:
        return False


async def ask(url: str, tls: ssl.SSLContext) -> tuple[list[float], int]:
    """Calls at a fixed rate: the seconds that each took which was let in, and how many were not."""
    took: list[float] = []
    connector = aiohttp.TCPConnector(ssl=tls, limit=0)
    async with aiohttp.ClientSession(connector=connector, headers={"Content-Type": "application/json"}) as session:

        async def call(path: str, body: bytes) -> None:
            began = time.perf_counter()
            async with session.post(url + path, data=body) as response:
                if json.loads(await response.read())["response"]["allowed"]:
                    took.append(time.perf_counter() - began)

        for _ in range(WARM_UP):  # as an API server that has asked before
            await call(*ASKED)
        took.clear()
        tasks, began = [], time.perf_counter()
        for number in range(int(RATE * SECONDS)):
            await asyncio.sleep(max(0.0, began + number / RATE - time.perf_counter()))
            tasks.append(asyncio.create_task(call(*ASKED)))
        await asyncio.gather(*tasks, return_exceptions=True)
    return took, len(tasks) - len(took)


async def run(pods: int, requests: int, connections: int) -> float:
    """Measure and print. Return the peak memory of the leaders without strangers, in MiB."""
    with tempfile.TemporaryDirectory(prefix="crrd-bench-") as name:
        folder = Path(name)
        os.environ[OUTPUT] = name
        certificates = new_certificates()
        data = to_data(certificates)
        (folder / "tls.crt").write_bytes(data[CERTIFICATE])
        (folder / "tls.key").write_bytes(data[KEY])
        async with cluster(folder, "--pods", str(pods), "--requests", str(requests)) as api:
            ready = await api.read("pods")
            print(f"size: an API server with {pods} pods of {ready['bytes']} bytes and {requests} requests", flush=True)
            return await _measure(api, folder, certificates, requests, connections)


async def _measure(api: ApiProcess, folder: Path, certificates: Certificates, requests: int, connections: int) -> float:
    kubeconfig = folder / "kubeconfig"
    await api.do("create recreating", "created")
    first, second = (Manager(each, folder, kubeconfig) for each in ("first", "second"))
    async with first:
        written = await api.until_written(2 * requests)
        _tell_decisions("first leader", api.led, written)
        peak = _tell_memory("first leader", first)
        async with second:
            print(f"  standby: resident {second.memory()[0]:.1f} MiB", flush=True)
            await first.stop()
            _tell_stalls("first leader", first)
            await api.do("complete", "completed")
            while api.led[-1][0] != "second":  # it may have been told of already
                await api.read("leader")
            written = await api.until_written(2 * requests)
            _tell_decisions("second leader", api.led, written)
            _tell_memory("second leader", second)
            await api.do("create unanswered", "created")
            events = await api.until_written(2 * requests, "events", 150)
            began = (await api.until_written(2 * requests))[0]
            print(f"  {requests} requests that end at once: {len(events)} of {2 * requests} events written, ", end="")
            print(f"the last after {max(events) - began:.1f} s", flush=True)
            peak = max(peak, _tell_memory("second leader, then", second))
            await _strangers(second, certificates, connections)
        _tell_stalls("second leader", second)
    return peak


async def _strangers(manager: Manager, certificates: Certificates, connections: int) -> None:
    address, authority = manager.admission_address, certificates.bundle.decode()
    pipe = asyncio.subprocess.PIPE
    command = ("-m", "tests.bench.size", "--strangers", address, "--connections", str(connections))
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, stdin=pipe, stdout=pipe, env={**os.environ, "AUTHORITY": authority}
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        tls, before = trusting(certificates), manager.scheduled()
        during = await ask(f"https://{address}", tls)
        await process.stdout.readline()
        after = await ask(f"https://{address}", tls)
        used, waited = (now - then for now, then in zip(manager.scheduled(), before, strict=True))
        process.stdin.close()
        told = json.loads(await process.stdout.readline())
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    print(f"  {connections} idle TLS connections, and more and more ({told['opened']} in the end, ", end="")
    print(f"{told['refused']} refused; {told['alive']} of the last {connections} still open):")
    for when, (took, failed) in (("while the first come", during), ("after these", after)):
        print(f"    admission {when}, {RATE:.0f}/s: {summary(took)}; {failed} failed", flush=True)
    print(f"    meanwhile the manager used a core for {used:.1f} s, and waited {waited:.1f} s for one", flush=True)
    _tell_memory("  under them", manager)


def _tell_decisions(who: str, led: list[tuple[str, float]], written: list[float]) -> None:
    began = led[-1][1]
    left = led[-2][1] if len(led) > 1 else began
    print(f"  {who}: first decision {written[0] - began:.2f} s after it led, {written[0] - left:.2f} s after", end="")
    print(f" the one before had left; {len(written)} writes, the last after {written[-1] - began:.1f} s", flush=True)


def _tell_memory(who: str, manager: Manager) -> float:
    now, most = manager.memory()
    print(f"  {who}: resident {now:.1f} MiB, {most:.1f} at most", flush=True)
    return most


def _tell_stalls(who: str, manager: Manager) -> None:
    told = ", ".join(f"{late:.0f} ({used:.0f})" for late, used in manager.stalls()[:4])
    print(f"  {who}: longest stalls of its loop, ms (of which it used the processor): {told or 'none'}", flush=True)


def main() -> int:
    """Run the bench."""
    parser = argparse.ArgumentParser(description=(__doc__ or "-").splitlines()[0])
    parser.add_argument("--pods", type=int, default=10_000)
    parser.add_argument("--requests", type=int, default=1_000)
    parser.add_argument("--connections", type=int, default=5_000)
    parser.add_argument("--strangers", metavar="ADDRESS", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.strangers:
        strangers(args.strangers, os.environ["AUTHORITY"], args.connections)
        return 0
    return int(asyncio.run(run(args.pods, args.requests, args.connections)) > MOST_MIB)


if __name__ == "__main__":
    sys.exit(main())
