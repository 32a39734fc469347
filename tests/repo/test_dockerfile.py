"""What can be checked of the image without an engine: its stages, its locks, and that what its steps install runs."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
from fnmatch import fnmatch
from pathlib import Path
from zipfile import ZipFile

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from crrd import __version__
from tests.support.manifests import needs_kubectl, rendered

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


def stage(last: bool) -> list[tuple[str, str]]:
    begins = max(i for i, (name, _) in enumerate(instructions()) if name == "FROM")
    return instructions()[begins:] if last else instructions()[:begins]


def test_the_last_stage_only_takes_over_what_is_installed_and_is_not_root() -> None:
    (run,) = [rest for name, rest in stage(last=True) if name == "RUN"]
    assert run.startswith("pip uninstall")
    assert [rest for name, rest in stage(last=True) if name == "COPY"] == ["--from=build /install /usr/local"]
    user = next(rest for name, rest in stage(last=True) if name == "USER")
    assert user.split(":")[0].isdigit()
    assert user.split(":")[0] != "0"
    assert ("ENTRYPOINT", '["crrd"]') in stage(last=True)


def test_whatever_comes_from_the_index_is_pinned_by_hash() -> None:
    for name, rest in instructions():
        for command in rest.split("&&") if name == "RUN" else ():
            if "pip install" in command or "pip wheel" in command:
                assert ("--require-hashes" in command) != ("--no-index" in command), command


@pytest.mark.parametrize("lock", ["image", "build"])
def test_the_locks_are_of_what_the_project_needs(lock: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    wanted = project["project"]["dependencies"] if lock == "image" else project["build-system"]["requires"]
    text = (ROOT / "locks" / f"{lock}.txt").read_text(encoding="utf-8").replace("\\\n", "")
    entries = [line for line in text.splitlines() if line and not line.startswith("#")]
    pinned = {}
    for entry in entries:
        version, *hashes = entry.partition(" --hash=")[0], *re.findall(r"--hash=sha256:[0-9a-f]{64}", entry)
        assert hashes, entry
        found = Requirement(version)
        (exactly,) = found.specifier
        assert exactly.operator == "=="
        pinned[canonicalize_name(found.name)] = exactly.version
    for each in map(Requirement, wanted):
        assert pinned[canonicalize_name(each.name)] in each.specifier, "run: make lock"


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
    assert {
        "pyproject.toml",
        "locks/image.txt",
        "daemon/crrd/node/daemon.py",
        "daemon/crrd/cli/main.py",
        "forecast/crrd_forecast/node.py",
        "cri_stubs/api_pb2.py",
    } <= files
    assert not [file for file in files if "localnode" in file or "crd.yaml" in file or "__pycache__" in file]


CLEAN = {key: value for key, value in os.environ.items() if not key.startswith(("COVERAGE_", "PYTHON"))}


def built(source: Path, target: Path) -> Path:
    """The wheel of a tree."""
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*build, "--wheel-dir", str(target), str(source)], check=True, env=CLEAN, timeout=200)
    (wheel,) = target.glob("crrd*.whl")
    return wheel


@pytest.fixture(scope="module")
def product(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The product's wheel."""
    return built(ROOT, tmp_path_factory.mktemp("product"))


@pytest.mark.timeout(300)
def test_the_wheels_of_product_forecast_and_local_node(product: Path, tmp_path: Path) -> None:
    with ZipFile(built(ROOT / "localnode", tmp_path / "localnode")) as wheel:
        assert wheel.read("crrd_localnode/crd.yaml") == (ROOT / "manifests" / "base" / "crd.yaml").read_bytes()
        assert "crrd_localnode/apiserver.py" in wheel.namelist()
    with ZipFile(built(ROOT / "forecast", tmp_path / "forecast")) as wheel:
        names = wheel.namelist()
    assert "crrd_forecast/hash/container_hash.py" in names
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"crrd_forecast"}
    with ZipFile(product) as wheel:
        names = wheel.namelist()
    assert {"crrd/node/daemon.py", "cri_stubs/api_pb2.py"} <= set(names)
    assert {name.partition("/")[0] for name in names} == {"crrd", "cri_stubs", f"crrd-{__version__}.dist-info"}


@pytest.mark.timeout(300)
def test_the_product_and_python_daemon_can_be_installed_together(product: Path, tmp_path: Path) -> None:
    """python-daemon's package is called `daemon`, as ours once was."""
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    for what in (str(product), "python-daemon"):
        subprocess.run([*install, "--target", str(tmp_path / "both"), what], check=True, env=CLEAN, timeout=200)
    code = "import daemon, crrd.cli.main; print(daemon.DaemonContext.__name__, daemon.__file__, crrd.__file__)"
    environment = CLEAN | {"PYTHONPATH": str(tmp_path / "both")}
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=environment)
    name, *files = run.stdout.split()
    assert name == "DaemonContext"
    assert all(file.startswith(str(tmp_path / "both")) for file in files)


@pytest.mark.timeout(500)
def test_what_the_image_gets_is_small_and_runs(tmp_path: Path) -> None:
    for file in copied():
        (tmp_path / "src" / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / file, tmp_path / "src" / file)
    build, last = tmp_path / "build", tmp_path / "last"
    venv.create(build, with_pip=True)
    venv.create(last)
    settings = {"PATH": f"{build}/bin:/usr/bin:/bin", "SOURCE_DATE_EPOCH": "1767225600"}
    for name, rest in stage(last=False):
        if name == "RUN":
            command = re.sub(r"(?<= )/(?=install|wheels)", f"{tmp_path}/", rest)
            subprocess.run(command, shell=True, check=True, env=CLEAN | settings, cwd=tmp_path / "src", timeout=300)
    sizes = [file.lstat().st_size for file in (tmp_path / "install").rglob("*") if file.is_file()]
    assert sum(sizes) <= 60 * 10**6
    names = [name for wheel in (tmp_path / "wheels").iterdir() for name in ZipFile(wheel).namelist()]
    assert not [name for name in names if "localnode" in name or "crd.yaml" in name]
    shutil.copytree(tmp_path / "install", last, dirs_exist_ok=True)
    python = str(last / "bin" / "python")

    def crrd(*words: str) -> subprocess.CompletedProcess[str]:
        command = [python, str(last / "bin" / "crrd"), *words]
        return subprocess.run(command, check=False, capture_output=True, text=True, env=as_in_image, cwd=tmp_path)

    (variables,) = [rest for name, rest in stage(last=True) if name == "ENV"]
    as_in_image = CLEAN | dict(each.split("=") for each in variables.split())
    assert crrd("--version").stdout.strip() == f"crrd {__version__}"
    modules = "crrd.node.daemon, crrd.manager.daemon, yaml"
    subprocess.run([python, "-c", f"import {modules}"], check=True, env=as_in_image, cwd=tmp_path)
    compiled = {file.name.partition(".")[0] for file in (tmp_path / "install").rglob("asyncio/**/*.opt-2.pyc")}
    assert {"base_events", "sslproto"} <= compiled
    for command in ("node", "manager", "forecast"):
        assert "--kubeconfig" in crrd(command, "--help").stdout
    demo = crrd("demo")
    assert demo.returncode == 2
    assert demo.stdout == ""
    (line,) = demo.stderr.splitlines()
    assert line == "crrd demo: crrd-localnode is not installed: run pip install crrd-localnode"


@needs_kubectl
def test_a_release_is_one_file(tmp_path: Path) -> None:
    for name in ("Makefile", "manifests"):
        (tmp_path / name).symlink_to(ROOT / name)

    def made(*words: str) -> subprocess.CompletedProcess[str]:
        command = ["make", "install-manifests", *words]
        return subprocess.run(command, check=False, capture_output=True, text=True, cwd=tmp_path)

    for variant in ("default", "overlays/k3s", "overlays/beside-openkruise"):
        assert made("IMAGE=registry.example:5000/team/crrd:9", f"VARIANT={variant}").returncode == 0
        objects = list(yaml.safe_load_all((tmp_path / "install.yaml").read_text(encoding="utf-8")))
        assert [each["metadata"]["name"] for each in objects] == [
            each["metadata"]["name"] for each in rendered(variant)
        ]
        workloads = [each for each in objects if each["kind"] in ("DaemonSet", "Deployment")]
        images = {one["spec"]["template"]["spec"]["containers"][0]["image"] for one in workloads}
        assert images == {"registry.example:5000/team/crrd:9"}
    without = made()
    assert without.returncode == 2
    assert without.stderr.startswith("say which image: make install-manifests IMAGE=")
    assert made("IMAGE=x", "VARIANT=base").returncode == 2
    assert not (tmp_path / "install.yaml").exists()
