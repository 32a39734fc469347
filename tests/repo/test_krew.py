"""The krew plugin: what its manifest names is there, and the program runs out of any folder."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from crrd import __version__

ROOT = Path(__file__).parents[2]
KREW = ROOT / "manifests" / "krew"


def test_the_manifest() -> None:
    plugin = yaml.safe_load((KREW / "recreate.yaml").read_text(encoding="utf-8"))
    assert (plugin["kind"], plugin["metadata"]["name"]) == ("Plugin", "recreate")
    assert plugin["spec"]["version"] == f"v{__version__}"
    assert len(plugin["spec"]["shortDescription"]) <= 50
    for platform in plugin["spec"]["platforms"]:
        assert re.fullmatch(r"[0-9a-f]{64}", platform["sha256"])
        assert platform["bin"] in [each["from"] for each in platform["files"]]
        assert (KREW / platform["bin"]).is_file()


def test_the_program_runs_out_of_its_folder(tmp_path: Path) -> None:
    program = tmp_path / "kubectl-recreate"
    program.write_bytes((KREW / "kubectl-recreate").read_bytes())
    program.chmod(0o755)
    (tmp_path / "lib").symlink_to(ROOT / "daemon")
    link = tmp_path / "bin"
    link.mkdir()
    (link / "kubectl-recreate").symlink_to(program)  # as krew links what it installs
    (tmp_path / "yaml.py").write_text("raise SystemExit('out of the current folder')")
    script = tmp_path / "plugin"
    script.write_text('#!/bin/sh\necho "PYTHONPATH=$PYTHONPATH" >&2\nexit 1\n')
    script.chmod(0o755)
    user = {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": str(script)}}
    config = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:9"}}],
        "users": [{"name": "u", "user": user}],
    }
    (tmp_path / "config").write_text(json.dumps(config))
    environment = {**os.environ, "PYTHON": sys.executable, "PYTHONPATH": "mine"}
    command = [str(link / "kubectl-recreate"), "status", "--kubeconfig", "config"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=tmp_path)
    why = "the kubeconfig config: exec: process returned 1. PYTHONPATH=mine\n"
    assert (ended.returncode, ended.stderr) == (1, f"kubectl recreate: cannot reach the API server: {why}")


@pytest.mark.parametrize(
    ("python", "why"),
    [("old", "Python 3.9 is too old: install"), ("nowhere/python3", "nowhere/python3 not found: install")],
)
def test_a_python_that_does_not_fit(tmp_path: Path, python: str, why: str) -> None:
    """The program of -c is the last that an old Python runs: it says what to do, instead of a traceback."""
    old = tmp_path / "old"
    change = "import sys; sys.version_info = (3, 9, 6)"
    old.write_text(f'#!/bin/sh\nprogram=$2\nshift 2\nexec {sys.executable} -c "{change}\n$program" "$@"\n')
    old.chmod(0o755)
    environment = {**os.environ, "PYTHON": f"./{python}"}
    ended = subprocess.run(
        [KREW / "kubectl-recreate"], capture_output=True, text=True, check=False, env=environment, cwd=tmp_path
    )
    assert (ended.returncode, ended.stdout) == (2, "")
    assert (
        ended.stderr
        == f"kubectl recreate: {'' if python == 'old' else './'}{why} Python 3.11 or newer, or set PYTHON to its path\n"
    )
