"""The krew plugin: what its manifest names is there, and the program runs out of any folder."""

import os
import re
import subprocess
import sys
from pathlib import Path

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
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | {"PYTHON": sys.executable}
    command = [str(link / "kubectl-recreate"), "deployment/web", "-A"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=tmp_path)
    assert (ended.returncode, ended.stderr) == (
        2,
        "kubectl recreate: --all-namespaces is not supported: a run covers one namespace (use -n NAMESPACE)\n",
    )
