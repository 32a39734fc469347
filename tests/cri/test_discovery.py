"""Finding the runtime's socket: what is at a path, which of several counts, and what the user is told."""

import asyncio
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NoReturn

import grpc
import pytest
import structlog
from aiohttp import web
from structlog.testing import LogCapture
from structlog.typing import EventDict, WrappedLogger

from crrd.cri import discovery as module
from crrd.cri.discovery import KNOWN_SOCKETS, ProbeOutcome, candidates, discover, parse, probe
from crrd.lib.backoff import Backoff
from crrd.lib.errors import ConfigurationError
from tests.support.scripted_cri import ScriptedRuntime, serving

PATIENCE = 20.0


class Told(LogCapture):
    """What was logged, and whether it was said that a runtime is down."""

    def __init__(self) -> None:
        super().__init__()
        self.down = asyncio.Event()

    def __call__(self, logger: WrappedLogger, method_name: str, event_dict: EventDict) -> NoReturn:
        if event_dict["event"] == "container runtime down":
            self.down.set()
        super().__call__(logger, method_name, event_dict)

    @property
    def events(self) -> list[str]:
        return [str(entry["event"]) for entry in self.entries]


@pytest.fixture(autouse=True)
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    """Capture the log; and no long waits between two looks."""
    capture = Told()
    monkeypatch.setattr(module, "log", structlog.wrap_logger(structlog.PrintLogger(), processors=[capture]))
    monkeypatch.setattr(module, "BACKOFF", Backoff(initial=0.01, factor=1, maximum=0.01, jitter=0))
    return capture


@pytest.fixture
def root() -> Iterator[Path]:
    """A node's file system; short, for the address of a unix socket has 107 bytes only."""
    folder = Path(tempfile.mkdtemp(prefix="crrd-"))
    yield folder
    shutil.rmtree(folder)


def known(root: Path, number: int = 0) -> Path:
    path = root / KNOWN_SOCKETS[number].lstrip("/")
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def abandoned(path: Path) -> Path:
    """A socket that a daemon left behind."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
    return path


@asynccontextmanager
async def answering(path: Path, answer: bytes | None) -> AsyncIterator[None]:
    """A server that says the same to everyone; None for one that keeps silent."""
    over = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        if answer is None:
            await over.wait()
        else:
            writer.write(answer)
        writer.close()

    server = await asyncio.start_unix_server(serve, path)
    async with server:
        yield
        over.set()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("unix:///run/a.sock", "unix:///run/a.sock"),
        ("/run/a.sock", "unix:///run/a.sock"),
        ("unix:/run/a.sock", "unix:///run/a.sock"),
        (" /run/a b.sock\n", "unix:///run/a b.sock"),
    ],
)
def test_endpoints_that_are_understood(value: str, expected: str) -> None:
    assert parse(value) == expected


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("tcp://127.0.0.1:1234", "only unix sockets"),
        ("http://localhost", "only unix sockets"),
        ("npipe:////./pipe/x", "only unix sockets"),
        ("run/a.sock", "absolute path"),
        ("unix://run/a.sock", "absolute path"),
        ("", "absolute path"),
        ("/run/\0", "absolute path"),
    ],
)
def test_endpoints_that_are_refused(value: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        parse(value)


async def test_a_cri_runtime_says_its_name(root: Path) -> None:
    async with serving(ScriptedRuntime(name="containerd", version="2.1"), root / "s") as endpoint:
        found = await probe(endpoint)

    assert (found.outcome, found.runtime, found.version) == (ProbeOutcome.OK, "containerd", "2.1")


async def test_missing(root: Path) -> None:
    (root / "file").touch()

    assert (await probe(f"unix://{root}/none")).outcome is ProbeOutcome.MISSING
    assert (await probe(f"unix://{root}/file/none")).outcome is ProbeOutcome.MISSING


async def test_a_file_is_no_runtime(root: Path) -> None:
    (root / "file").touch()

    found = await probe(f"unix://{root}/file")

    assert (found.outcome, found.reason) == (ProbeOutcome.NOT_CRI, "it is not a socket")


async def test_a_path_too_long_for_a_socket(root: Path) -> None:
    folder = root / ("x" * 120)
    folder.mkdir()
    abandoned(root / "s").rename(folder / "s")

    found = await probe(f"unix://{folder}/s")

    assert found.outcome is ProbeOutcome.NOT_CRI
    assert "107 bytes" in found.reason


async def test_a_socket_that_nobody_listens_on_is_down(root: Path) -> None:
    found = await probe(f"unix://{abandoned(root / 's')}")

    assert (found.outcome, found.reason) == (ProbeOutcome.DOWN, "Connection refused")


def test_a_socket_that_is_not_ours_to_use(root: Path) -> None:
    """In a process of its own, which gives up root's rights: root may use every socket."""
    root.chmod(0o755)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(root / "s"))
        listener.listen()
        (root / "s").chmod(0)
        program = (
            "import asyncio, os, sys\n"
            "from crrd.cri.discovery import discover, probe\n"
            "os.geteuid() == 0 and os.setuid(65534)\n"
            "async def main():\n"
            "    print((await probe(sys.argv[1])).outcome.name)\n"
            "    try:\n"
            "        await discover([sys.argv[1]])\n"
            "    except Exception as error:\n"
            "        print(type(error).__name__, error, flush=True)\n"
            "asyncio.run(main())\n"
            "os._exit(0)\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", program, f"unix://{root}/s"], check=True, capture_output=True, text=True
        )

    outcome, message = done.stdout.splitlines()
    assert outcome == "PERMISSION"
    user = 65534 if os.geteuid() == 0 else os.geteuid()
    assert message == (
        f"ConfigurationError no usable container runtime: unix://{root}/s: not allowed to connect as user {user}. "
        "To do: run crrd as root, and give it access to the socket's folder (chmod +x). If it has both, a security "
        "module denies it (SELinux, AppArmor): see seLinuxOptions of the pod, and the node's audit log"
    )


@pytest.mark.parametrize(
    "answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"SSH-2.0-OpenSSH_9.2\r\n", b"hi", b"\0\0\0\4\0\0\0\0\1"]
)
async def test_who_answers_in_another_tongue_is_no_runtime(root: Path, answer: bytes) -> None:
    async with answering(root / "s", answer):
        found = await probe(f"unix://{root}/s")

    assert (found.outcome, found.reason) == (ProbeOutcome.NOT_CRI, "it does not speak gRPC")


async def test_a_real_http_server_is_no_runtime(root: Path) -> None:
    runner = web.AppRunner(web.Application())
    await runner.setup()
    await web.UnixSite(runner, root / "s").start()

    found = await probe(f"unix://{root}/s")
    await runner.cleanup()

    assert found.outcome is ProbeOutcome.NOT_CRI


async def test_grpc_without_cri_is_no_runtime(root: Path) -> None:
    async with serving(ScriptedRuntime(methods=set()), root / "s") as endpoint:
        found = await probe(endpoint)

    assert found.outcome is ProbeOutcome.NOT_CRI
    assert "not CRI v1" in found.reason


async def test_a_runtime_without_a_name_is_none(root: Path) -> None:
    async with serving(ScriptedRuntime(name=""), root / "s") as endpoint:
        assert (await probe(endpoint)).outcome is ProbeOutcome.NOT_CRI


async def test_who_hangs_up_is_down(root: Path) -> None:
    async with answering(root / "s", b""):
        assert (await probe(f"unix://{root}/s")).outcome is ProbeOutcome.DOWN


async def test_who_keeps_silent_is_down(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PROBE_SECONDS", 0.1)

    async with answering(root / "s", None):
        found = await probe(f"unix://{root}/s")

    assert found.outcome is ProbeOutcome.DOWN
    assert "did not answer within 0.1 s" in found.reason


@pytest.mark.parametrize("code", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL])
async def test_a_runtime_that_is_not_ready_is_down(root: Path, code: grpc.StatusCode) -> None:
    async with serving(ScriptedRuntime(fail={"Version": (code, "not initialized yet")}), root / "s") as endpoint:
        found = await probe(endpoint)

    assert found.outcome is ProbeOutcome.DOWN
    assert "not initialized yet" in found.reason


def test_the_known_sockets_lie_below_the_root() -> None:
    assert candidates()[0] == "unix:///run/containerd/containerd.sock"
    assert candidates(Path("/host"))[1] == "unix:///host/run/crio/crio.sock"
    assert len(set(candidates())) == len(KNOWN_SOCKETS)


async def test_the_runtimes_among_the_known_sockets_are_found(root: Path, told: Told) -> None:
    """A stale socket and one whose CRI is switched off do not keep the others from being used."""
    abandoned(known(root, 6))
    async with (
        serving(ScriptedRuntime(methods=set()), known(root, 0)),
        serving(ScriptedRuntime(name="cri-o"), known(root, 1)),
        serving(ScriptedRuntime(name="docker"), known(root, 2)),
    ):
        found = await discover(root=root)

    assert [each.runtime for each in found] == ["cri-o", "docker"]
    assert told.events == ["CRI endpoint ignored", "CRI endpoint ignored"]


async def test_one_socket_under_two_names_is_one(root: Path) -> None:
    known(root, 4).symlink_to(known(root, 3))
    async with serving(ScriptedRuntime(name="containerd"), known(root, 3)):
        found = await discover(root=root)
        given = await discover([str(known(root, 4)), f"unix://{known(root, 3)}"])

    assert len(found) == 1
    assert len(given) == 1


async def test_no_socket_at_all(root: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        await discover(root=root)

    message = str(caught.value)
    assert f"{root}/run/containerd/containerd.sock" in message
    assert "--cri-endpoint" in message
    assert "\n" not in message


async def test_only_unusable_sockets(root: Path) -> None:
    known(root, 0).touch()

    with pytest.raises(ConfigurationError, match=r"it is not a socket\. To do: set --cri-endpoint"):
        await discover(root=root)


async def test_an_explicit_endpoint_that_is_missing(root: Path) -> None:
    async with serving(ScriptedRuntime(), root / "s") as endpoint:
        with pytest.raises(ConfigurationError, match=r"none: socket not found\. To do: set the path"):
            await discover([endpoint, f"{root}/none"])


@pytest.mark.parametrize("explicit", [True, False])
async def test_a_socket_that_does_not_exist_yet_is_waited_for(root: Path, told: Told, explicit: bool) -> None:
    """A runtime that restarts removes its socket."""
    path, troubles = known(root), list[str]()
    looking = discover([str(path)] if explicit else [], root, troubles.append, wait_for_socket=True)
    search = asyncio.create_task(looking)
    async with asyncio.timeout(PATIENCE):
        while not troubles:
            await asyncio.sleep(0.01)
        async with serving(ScriptedRuntime(name="containerd"), path):
            assert [each.runtime for each in await search] == ["containerd"]
    assert str(path) in troubles[0]
    assert told.entries[0]["log_level"] == "warning"


async def test_a_folder_that_may_not_be_entered_is_named(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for root without capabilities, where the folder has mode 0600."""
    folder = root / "run"
    folder.mkdir(exist_ok=True)
    folder.chmod(0o600)
    real = os.access
    monkeypatch.setattr(os, "access", lambda path, *args, **kw: path != folder and real(path, *args, **kw))

    def refuse(_: str) -> str:
        raise PermissionError

    monkeypatch.setattr(module, "_unfit", refuse)
    found = await probe(f"unix://{folder}/s")
    folder.chmod(0o755)
    assert found.outcome is ProbeOutcome.PERMISSION
    assert found.reason == f"user {os.geteuid()} has no access to {folder} (mode 0600)"


async def test_an_explicit_endpoint_that_is_no_runtime(root: Path) -> None:
    async with answering(root / "s", b"HTTP/1.1 400 Bad Request\r\n\r\n"):
        with pytest.raises(ConfigurationError, match="does not speak gRPC"):
            await discover([f"{root}/s"])


@pytest.mark.parametrize("explicit", [True, False])
async def test_a_runtime_that_is_down_is_waited_for(root: Path, told: Told, explicit: bool) -> None:
    path = abandoned(known(root))
    search = asyncio.create_task(discover([str(path)] if explicit else [], root))
    await asyncio.wait_for(told.down.wait(), PATIENCE)
    assert told.entries[0]["log_level"] == "warning"
    assert told.entries[0]["reason"] == "Connection refused"

    path.unlink()
    async with serving(ScriptedRuntime(name="containerd"), root / "new"):
        (root / "new").rename(path)  # at once, so that the search does not find it missing for long
        found = await asyncio.wait_for(search, PATIENCE)

    assert [each.runtime for each in found] == ["containerd"]


async def test_all_explicit_endpoints_are_waited_for(root: Path, told: Told) -> None:
    async with serving(ScriptedRuntime(name="containerd"), root / "one") as one:
        other = abandoned(root / "other")
        search = asyncio.create_task(discover([one, str(other)]))
        await asyncio.wait_for(told.down.wait(), PATIENCE)
        async with serving(ScriptedRuntime(name="cri-o"), root / "new"):
            (root / "new").rename(other)
            found = await asyncio.wait_for(search, PATIENCE)

    assert [each.runtime for each in found] == ["containerd", "cri-o"]


async def test_who_answers_and_hangs_up_without_listening_is_no_runtime(tmp_path: Path) -> None:
    path = tmp_path / "rude.sock"

    def rude(listener: socket.socket) -> None:
        for _ in range(40):
            connection, _peer = listener.accept()
            with connection:
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        serving = asyncio.ensure_future(asyncio.to_thread(rude, listener))
        outcomes = {(await probe(f"unix://{path}")).outcome for _ in range(40)}
        await serving
    assert outcomes == {ProbeOutcome.NOT_CRI}
