"""A process of the cluster is killed, and started again as it was."""

import os
import signal
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest

from crrd.lib.errors import ConfigurationError
from tests.soak_cluster.processes import PlainProcess, found_in
from tests.soak_cluster.record import Part


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a program named etcd, which only sleeps."""
    program = tmp_path / "etcd"
    program.symlink_to("/bin/sleep")
    return tmp_path


def begin(pid: int) -> Path:
    """Return what the kernel shows of a process once its program has begun. Popen may return a moment before that."""
    place = Path(f"/proc/{pid}")
    while not place.joinpath("environ").read_bytes():  # the last that is set, after the arguments
        assert place.joinpath("stat").read_text().rpartition(")")[2].split()[0] != "Z", "it has ended"
    return place


def test_a_process_is_killed_and_started_as_it_was(folder: Path) -> None:
    log, file = folder / "etcd.log", folder / "etcd.pid"
    with log.open("wb") as output:
        child = subprocess.Popen(
            [folder / "etcd", "60"], cwd=folder, env={"WORD": "here"}, stdout=output, stderr=subprocess.STDOUT
        )
    file.write_text(str(child.pid))
    with ExitStack() as left:
        left.callback(child.wait)
        left.callback(child.kill)
        begin(child.pid)
        ((part, (process,)),) = found_in([folder]).items()
        assert isinstance(process, PlainProcess)
        assert (part, process.name, process.runs) == (Part.ETCD, "etcd", True)
        process.start()
        assert process.pid == child.pid, "it runs already"
        child.poll()
        process.send(signal.SIGKILL)
        assert not process.runs, "it has ended, although its parent has not noticed yet"
        assert child.wait() == -signal.SIGKILL
        assert not process.runs
        process.start()
        left.callback(process.send, signal.SIGKILL)
        again = begin(process.pid)
        assert (process.runs, int(file.read_text())) == (True, process.pid)
        assert again.joinpath("cmdline").read_bytes() == f"{folder / 'etcd'}\0".encode() + b"60\0"
        assert again.joinpath("environ").read_bytes() == b"WORD=here\0"
        assert (again.joinpath("cwd").readlink(), again.joinpath("fd/1").readlink()) == (folder, log)
        process.send(signal.SIGKILL)
        assert not process.runs
        process.send(signal.SIGKILL)  # to a process that has ended, this does nothing


def test_a_file_without_a_process_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "kubelet.pid"
    for content in ("", "words", "4194303"):
        file.write_text(content)
        with pytest.raises(ConfigurationError, match=r"kubelet\.pid does not name a running process"):
            PlainProcess(file)
    assert found_in([tmp_path]) == {}
    file.write_text(str(os.getpid()))
    assert found_in([tmp_path]) == {}, "another program"
