"""What every command has in common: how it ends when its output cannot be written, or where it cannot run."""

import io
import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from crrd.cli.main import COMMANDS, DAEMONS, main
from crrd.lib.errors import OutputError
from crrd.lib.output import Output

ROOT = Path(__file__).parents[2]


@contextmanager
def stdout(kind: str) -> Iterator[int]:
    """A file descriptor that takes nothing."""
    if kind == "full":
        fd = os.open("/dev/full", os.O_WRONLY)
    else:
        reader, fd = os.pipe()
        os.close(reader)
    try:
        yield fd
    finally:
        os.close(fd)


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("words", [("--version",), ("node", "--help"), ("completion", "bash")])
@pytest.mark.parametrize(
    ("kind", "code", "said"),
    [
        ("pipe", 141, ""),
        ("full", 2, "crrd {}: stdout: No space left on device\n"),
        ("closed", 2, "crrd {}: stdout: Bad file descriptor\n"),
    ],
)
def test_output_that_cannot_be_written(
    words: tuple[str, ...], kind: str, code: int, said: str, unbuffered: str
) -> None:
    command = [sys.executable, "-m", "crrd", *words]
    if kind == "closed":
        command = ["sh", "-c", 'exec "$@" >&-', "sh", *command]
    with stdout(kind) as fd:
        environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
        ended = subprocess.run(command, stdout=fd, stderr=subprocess.PIPE, text=True, env=environment, check=False)
    assert (ended.returncode, ended.stderr) == (code, said.format(words[0]))


def test_errors_that_nobody_reads() -> None:
    with stdout("pipe") as fd:
        command = [sys.executable, "-m", "crrd", "recreate", "-A"]
        assert subprocess.run(command, stdout=fd, stderr=fd, check=False).returncode == 2


def test_what_the_encoding_lacks_is_escaped(tmp_path: Path) -> None:
    for encoding, written in (("utf-8", "ü…\\udcff"), ("latin-1", "ü\\u2026\\udcff"), ("ascii", "\\xfc\\u2026\\udcff")):
        file = tmp_path / encoding
        with file.open("w", encoding=encoding) as stream:
            Output(stream).write("ü…\udcff")
        assert file.read_text(encoding=encoding) == written


def test_after_an_error_nothing_is_written_any_more() -> None:
    class Full(io.StringIO):
        def flush(self) -> None:
            raise OSError(28, "No space left on device")

    output = Output(Full())
    output.write("kept")
    with pytest.raises(OutputError, match=r"^stdout: No space left on device$"):
        output.flush()
    with pytest.raises(OutputError, match=r"^stdout: No space left on device$"):
        output.write("lost")
    output.flush()
    assert output.getvalue() == "kept"


def test_unknown_words_are_named_with_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    for words, said in (
        (["recreate", "status", "-w", "a", "b"], "crrd recreate: unknown arguments: b; `crrd recreate status --help`"),
        (["recreate", "status", "-w", "a", "--forced"], "crrd recreate: unknown arguments: --forced; "),
        (
            ["explain", "shop/a", "-o", "json", "shop/b"],
            "crrd explain: unknown arguments: shop/b; `crrd explain ",
        ),
    ):
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert (ended.value.code, capsys.readouterr().err.splitlines()[-1].startswith(said)) == (2, True)


@pytest.mark.parametrize("daemon", DAEMONS)
def test_a_daemon_that_still_imports_ends_at_sigterm(daemon: str) -> None:
    # As process 1 of a container, it would otherwise go on until SIGKILL, at the end of the pod's grace period.
    early = "import os, signal, crrd.cli.main as m; "
    sent = "m.build_parser = lambda *_, **__: os.kill(os.getpid(), signal.SIGTERM); "
    ended = subprocess.run([sys.executable, "-c", f"{early}{sent}m.main(['{daemon}'])"], check=False)
    assert ended.returncode == 0


@pytest.fixture
def alone(tmp_path: Path) -> dict[str, str]:
    """The environment of a Python that has crrd and what it depends on, but none of its other distributions."""
    packages = Path(sysconfig.get_path("purelib"))
    for each in packages.iterdir():
        if not each.name.startswith(("crrd_forecast", "crrd_localnode")):
            (tmp_path / each.name).symlink_to(each)
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT / "daemon", ROOT, tmp_path)))}


@pytest.mark.parametrize(
    ("words", "package"),
    [
        (["demo"], "crrd-localnode"),
        (["forecast", "--to", "1.31"], "crrd-forecast"),
        (["node", "--spec-dir", "/x"], "crrd-forecast"),
        (["node", "--serve-forecast"], "crrd-forecast"),
    ],
)
def test_what_another_distribution_has(words: list[str], package: str, alone: dict[str, str]) -> None:
    environment = {**alone, "NODE_NAME": "a", "KUBECONFIG": "/nonexistent"}
    command = [sys.executable, "-S", "-m", "crrd", *words]
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    said = f"crrd {words[0]}: {package} is not installed: run pip install {package}\n"
    assert (ended.returncode, ended.stdout, ended.stderr) == (2, "", said)
    assert subprocess.run([*command[:4], "--help"], capture_output=True, env=environment, check=False).returncode == 0


WINDOWS = """
import importlib.abc
import sys

class Posix(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name in ("fcntl", "grp", "pty", "pwd", "resource", "termios", "tty", "uvloop"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

for name in ("fcntl", "grp", "pwd", "resource", "termios"):
    sys.modules.pop(name, None)
sys.meta_path.insert(0, Posix())
sys.platform = "win32"
from crrd.cli import main
words = sys.argv[1:]
main.kubectl_complete_recreate() if words[0] == "complete" else main.main(words)
"""
"""A process that finds itself on Windows, without the modules that only POSIX has."""


@pytest.mark.parametrize("command", [*COMMANDS, "complete"])
def test_windows_is_refused_in_one_sentence(command: str) -> None:
    """Signals that do not exist there, and `os.kill(pid, 0)`, which ends that process, are not reached."""
    ended = subprocess.run([sys.executable, "-c", WINDOWS, command], capture_output=True, text=True, check=False)
    name = "kubectl recreate" if command == "complete" else f"crrd {command}"
    why = "crrd runs on Linux and macOS; on Windows, use it in the Windows Subsystem for Linux (WSL)"
    assert (ended.returncode, ended.stdout, ended.stderr) == (2, "", f"{name}: {why}\n")


@pytest.mark.parametrize("flag", ["--help", "--version"])
def test_help_works_on_windows(flag: str) -> None:
    ended = subprocess.run([sys.executable, "-c", WINDOWS, flag], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "crrd" in ended.stdout
