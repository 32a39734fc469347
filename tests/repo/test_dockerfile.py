"""What can be checked of the image without an engine: its stages, and that the wheel alone is enough to run."""

import os
import shutil
import subprocess
import sys
import venv
from fnmatch import fnmatch
from pathlib import Path
from zipfile import ZipFile

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


def ignored(path: str) -> bool:
    """Whether .dockerignore keeps a file from the engine: the last line that names it, or a folder of it, decides."""
    names = [path, *map(str, Path(path).parents)]
    verdict = False
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        if any(fnmatch(name, line.removeprefix("!")) for name in names):
            verdict = not line.startswith("!")
    return verdict


def copied() -> list[Path]:
    """The files that the COPY steps of the first stage bring, relative to the repository."""
    found = []
    for name, rest in instructions():
        if name == "COPY" and not rest.startswith("--from"):
            for source in rest.split()[:-1]:
                assert (ROOT / source).exists()
                files = (ROOT / source).rglob("*") if (ROOT / source).is_dir() else [ROOT / source]
                let_through = [file.relative_to(ROOT) for file in files if file.is_file()]
                let_through = [file for file in let_through if not ignored(str(file))]
                assert let_through, f"nothing of {source} reaches the engine"
                found += let_through
    return found


def test_the_daemons_are_copied_and_the_local_node_is_not() -> None:
    files = {str(file) for file in copied()}
    assert {"pyproject.toml", "daemon/node/daemon.py", "daemon/cli/demo.py", "cri_stubs/api_pb2.py"} <= files
    assert not [file for file in files if "localnode" in file or "crd.yaml" in file or "__pycache__" in file]


CLEAN = {key: value for key, value in os.environ.items() if not key.startswith(("COVERAGE_", "PYTHON"))}


def built(source: Path, target: Path) -> Path:
    """The wheel of a tree."""
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*build, "--wheel-dir", str(target), str(source)], check=True, env=CLEAN, timeout=200)
    (wheel,) = target.glob("crrd-*.whl")
    return wheel


@pytest.mark.timeout(300)
def test_the_wheel_for_users_has_the_local_node_and_its_definition(tmp_path: Path) -> None:
    with ZipFile(built(ROOT, tmp_path)) as wheel:
        assert wheel.read("daemon/localnode/crd.yaml") == (ROOT / "manifests" / "base" / "crd.yaml").read_bytes()
        names = wheel.namelist()
    assert {"daemon/localnode/apiserver.py", "daemon/node/daemon.py", "cri_stubs/api_pb2.py"} <= set(names)
    assert not [name for name in names if name.startswith(("manifests", "tests"))]


@pytest.mark.timeout(300)
def test_the_wheel_of_the_image_runs_in_an_empty_environment(tmp_path: Path) -> None:
    for file in copied():
        (tmp_path / "src" / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / file, tmp_path / "src" / file)
    wheel = built(tmp_path / "src", tmp_path / "wheels")
    assert not [name for name in ZipFile(wheel).namelist() if "localnode" in name or "crd.yaml" in name]
    environment = tmp_path / "venv"
    venv.create(environment)
    python = environment / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-compile", str(wheel)]
    subprocess.run(pip, check=True, env=CLEAN, timeout=280)

    def crrd(*words: str) -> subprocess.CompletedProcess[str]:
        command = [str(environment / "bin" / "crrd"), *words]
        return subprocess.run(command, check=False, capture_output=True, text=True, env=CLEAN, cwd=tmp_path)

    assert crrd("--version").stdout.strip() == f"crrd {__version__}"
    for command in ("node", "manager"):
        assert "--kubeconfig" in crrd(command, "--help").stdout
        imported = [str(python), "-c", f"import daemon.{command}.daemon"]
        subprocess.run(imported, check=True, env=CLEAN, cwd=tmp_path)
    demo = crrd("demo")
    assert demo.returncode == 2
    assert demo.stdout == ""
    (line,) = demo.stderr.splitlines()
    assert line.startswith("crrd demo: the local node is not here (No module named 'daemon.localnode')")
    assert line.endswith("pip install 'crrd[demo]'")
