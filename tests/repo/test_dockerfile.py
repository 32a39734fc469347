"""What can be checked of the image without an engine: its stages, and that the wheel alone is enough to run."""

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from daemon import __version__

ROOT = Path(__file__).parents[2]


def instructions() -> list[tuple[str, str]]:
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    lines = [line.strip() for line in text.splitlines()]
    return [(line.split(maxsplit=1)[0].upper(), line.split(maxsplit=1)[1]) for line in lines if line and line[0] != "#"]


def test_two_stages_from_one_base_that_can_be_chosen() -> None:
    stages = [rest for name, rest in instructions() if name == "FROM"]
    assert stages == ["${BASE_IMAGE} AS build", "${BASE_IMAGE}"]
    base = next(rest for name, rest in instructions() if name == "ARG")
    name, _, default = base.partition("=")
    assert name == "BASE_IMAGE"
    assert default.startswith("python:")
    assert default.endswith("-slim")


def test_the_last_stage_installs_wheels_offline_and_is_not_root() -> None:
    last = instructions()[max(i for i, (name, _) in enumerate(instructions()) if name == "FROM") :]
    (install,) = [rest for name, rest in last if name == "RUN"]
    assert "--no-index" in install
    assert "pip uninstall" in install
    user = next(rest for name, rest in last if name == "USER")
    assert user.split(":")[0].isdigit()
    assert user.split(":")[0] != "0"
    assert ("ENTRYPOINT", '["crrd"]') in last


def test_everything_that_is_copied_is_there_and_let_through() -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    for name, rest in instructions():
        if name == "COPY" and not rest.startswith("--from"):
            for source in rest.split()[:-1]:
                assert (ROOT / source).exists()
                assert f"!{source}" in ignored


@pytest.mark.timeout(300)
def test_the_wheel_runs_in_an_empty_environment(tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("COVERAGE_", "PYTHON"))}
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*build, "--wheel-dir", str(wheels), str(ROOT)], check=True, env=clean, timeout=200)
    (wheel,) = wheels.glob("crrd-*.whl")
    environment = tmp_path / "venv"
    venv.create(environment)
    python = environment / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-compile", str(wheel)]
    subprocess.run(pip, check=True, env=clean, timeout=280)
    crrd = str(environment / "bin" / "crrd")
    version = subprocess.run([crrd, "--version"], check=True, capture_output=True, text=True, env=clean, cwd=tmp_path)
    assert version.stdout.strip() == f"crrd {__version__}"
    for command in ("node", "manager"):
        shown = subprocess.run([crrd, command, "--help"], check=True, capture_output=True, text=True, env=clean)
        assert "--kubeconfig" in shown.stdout
    code = "import daemon.node.daemon, daemon.manager.daemon; "
    code += "from daemon.localnode.api.crds import crd_path; print(crd_path())"
    found = subprocess.run(
        [str(python), "-c", code], check=False, capture_output=True, text=True, env=clean, cwd=tmp_path
    )
    assert "daemon/localnode/crd.yaml" in found.stdout or "jsonschema" in found.stderr
