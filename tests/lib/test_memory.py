"""What the daemons do to be small, seen from the kernel's side."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import grpc.aio, ssl
from crrd.lib.memory import drop_code_pages

def resident():
    return int(open("/proc/self/status").read().split("RssFile:")[1].split()[0])

before = resident()
drop_code_pages()
after = resident()
ssl.create_default_context()
print(before, after, grpc.StatusCode.OK.name)
"""


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="no /proc/self/smaps here")
def test_code_that_is_not_used_now_is_not_resident_and_still_runs() -> None:
    out = subprocess.run([sys.executable, "-c", SCRIPT], check=True, capture_output=True, text=True).stdout
    before, after, name = out.split()
    assert int(after) < int(before) * 0.8
    assert name == "OK"
