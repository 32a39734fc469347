"""How many files the daemons may have open, and for how many connections that leaves room."""

import resource
import subprocess
import sys

import pytest

from crrd.lib.descriptors import raise_limit, room_for_connections

START = """
import resource, sys
from crrd.cli.main import main

resource.setrlimit(resource.RLIMIT_NOFILE, (100, 200))
try:
    main(sys.argv[1:])
except SystemExit as ended:
    print(ended.code, *resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.parametrize("command", [("node",), ("manager", "--tls-cert-file", "tls.crt")])
def test_daemons_may_open_as_many_files_as_the_system_allows(command: tuple[str, ...]) -> None:
    command = (sys.executable, "-c", START, *command)
    out = subprocess.run(command, check=True, capture_output=True, text=True, env={}).stdout
    assert out.split() == ["2", "200", "200"], "its configuration is not complete: it ends at once"


def test_a_platform_that_refuses_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise ValueError("current limit exceeds maximum limit")

    monkeypatch.setattr(resource, "setrlimit", refuse)
    raise_limit()


@pytest.mark.parametrize(
    ("soft", "room"), [(1024, 768), (1280, 1024), (4096, 1024), (resource.RLIM_INFINITY, 1024), (256, 16), (20, 16)]
)
def test_connections_leave_descriptors_for_all_else(soft: int, room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, resource.RLIM_INFINITY))
    assert room_for_connections(1024) == room
