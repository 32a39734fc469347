"""What the log does where nobody can read it, and what it leaves out."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from crrd.lib.log import configure
from crrd.node import execute

PROGRAM = """
import pytest

from crrd.lib.log import configure
import structlog

configure({log_format!r}, "info", node="worker-1")
log = structlog.get_logger("test")
for number in range(3):
    log.info("a line", number=number, text="x" * 5000, nothing=None)
    log.debug("not asked for")
try:
    raise KeyError("bug")
except KeyError as error:
    log.error("broke", exc_info=error)
print("went on")
"""


def run(log_format: str, stderr: int) -> subprocess.CompletedProcess[str]:
    """Log a few lines in a process of its own."""
    program = PROGRAM.format(log_format=log_format)
    return subprocess.run(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=stderr, text=True, check=False, timeout=60
    )


def test_a_log_that_nobody_reads_stops_nothing() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = run("json", writer)
    finally:
        os.close(writer)
    assert (done.stdout, done.returncode) == ("went on\n", 0)


def test_a_full_disk_stops_nothing() -> None:
    with Path("/dev/full").open("wb") as full:
        done = run("console", full.fileno())
    assert "went on" in done.stdout


def test_lines_are_short_and_say_only_what_there_is() -> None:
    done = run("json", subprocess.PIPE)
    lines = done.stderr.splitlines()
    assert len(lines) == 4
    assert '"number": 2' in lines[2]
    assert all('"node": "worker-1"' in line for line in lines)
    assert "(5000 characters)" in lines[0]
    assert "nothing" not in done.stderr
    assert "not asked for" not in done.stderr
    assert "KeyError: 'bug'" in lines[3]


STALLED = """
import os, sys, time
from crrd.lib import log as module
import structlog

module.EXIT_SECONDS = 0.2
module.configure("json", "info")
log = structlog.get_logger("test")
for number in range(4000):
    log.info("a line", number=number, text="x" * 1000)
print("dropped", module.dropped_lines(), flush=True)
if sys.stdin.readline():
    log.info("once more")
"""


def test_a_reader_that_stalls_stops_nothing_and_what_is_dropped_is_counted_and_told() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", STALLED],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    dropped = int(process.stdout.readline().split()[1])  # although nobody has read a line
    assert 2000 < dropped < 4000
    process.stdin.write("go on\n")
    process.stdin.flush()
    _, err = process.communicate(timeout=60)
    lines = err.splitlines()
    assert process.returncode == 0
    kept = [line for line in lines if '"a line"' in line]
    assert [json.loads(line)["number"] for line in kept] == list(range(len(kept))), "whole, and in their order"
    assert dropped + len(kept) == 4000
    assert '"once more"' in lines[-1]


OTHERS = """
import logging, sys, warnings
from crrd.lib import log as module

module.EXIT_SECONDS = 0.2
module.configure("json", "info")
for number in range(200):
    text = f"Task exception was never retrieved {number} " + "x" * 1000
    warnings.warn(text) if sys.argv[1] == "warnings" else logging.getLogger("asyncio").error(text)
print("went on", flush=True)
"""


@pytest.mark.parametrize("by", ["logging", "warnings"])
def test_what_libraries_log_is_not_waited_for_either(by: str) -> None:
    """asyncio and aiohttp log and warn by themselves, aiohttp whenever a client's request cannot be handled."""
    reader, writer = os.pipe()
    try:
        done = subprocess.run(
            [sys.executable, "-c", OTHERS, by],
            stdout=subprocess.PIPE,
            stderr=writer,
            text=True,
            check=False,
            timeout=20,
        )
        assert (done.stdout, done.returncode) == ("went on\n", 0)
        assert b"Task exception was never retrieved 0 " in os.read(reader, 4096)
    finally:
        os.close(writer)
        os.close(reader)


def test_the_last_lines_come_out_at_the_end() -> None:
    done = run("json", subprocess.PIPE)
    assert "broke" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("_", ["once", "again"])
def test_a_command_in_this_process_leaves_the_log_to_the_next_test(_: str, capsys: pytest.CaptureFixture[str]) -> None:
    execute.log.info("a line of this test")
    assert "a line of this test" in capsys.readouterr().out
    configure("json", "info")
    execute.log.info("a line for machines")  # with a cache, it keeps this configuration
    assert not capsys.readouterr().out
