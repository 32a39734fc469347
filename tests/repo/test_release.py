"""A release: two runs give the same bytes, and its sums, wheels, manifests, chart and kubectl plugin work."""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

from crrd import __version__
from tests.support.manifests import needs_kubectl, one
from tests.tools import release as tool
from tests.tools.archives import PLATFORMS, krew_manifest, sha256, tar

ROOT = Path(__file__).parents[2]
RELEASE = tool.Release(
    version=__version__,
    image="registry.example:5000/team/crrd",
    url="https://downloads.example/v1",
    builder="https://builder.example/1",
    platforms={("linux", "amd64"): PLATFORMS["linux", "amd64"]},
    pythons=(f"{sys.version_info.major}.{sys.version_info.minor}",),
    source="https://code.example/team/crrd",
)
IMAGE = f"{RELEASE.image}:{__version__}"
Json = dict[str, Any]
needs_git = pytest.mark.skipif(not (ROOT / ".git").exists(), reason="a release is made of a commit")


@needs_git
@needs_kubectl
@pytest.mark.timeout(300)
def test_two_runs_give_the_same_bytes_and_they_work(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for dist, mask in ((first, 0o022), (second, 0o077)):
        dist.mkdir()
        before = os.umask(mask)
        try:
            assert tool.build(RELEASE, dist, with_image=False) == "not asked for"
        finally:
            os.umask(before)
    sums = (first / tool.SUMS).read_text()
    assert sums == (second / tool.SUMS).read_text()
    subprocess.run(["sha256sum", "--check", "--quiet", tool.SUMS], check=True, cwd=first)
    names = {each.name for each in first.iterdir()}
    assert {line.split()[1] for line in sums.splitlines()} == names - {tool.SUMS}
    overlays = {each.name for each in (ROOT / "manifests" / "overlays").iterdir()}
    plugin = f"kubectl-recreate-{__version__}-linux-amd64.tar.gz"
    assert names == {
        *(f"{each}.yaml" if each.startswith("monitoring") else f"install-{each}.yaml" for each in overlays),
        *(f"{each}-{__version__}-py3-none-any.whl" for each in ("crrd", "crrd_forecast", "crrd_localnode")),
        *(
            "install.yaml",
            "uninstall.sh",
            "argocd-cm.yaml",
            "k9s.yaml",
            "monitoring.yaml",
            "recreate.yaml",
            "crrd.cdx.json",
            "crrd.openvex.json",
            "kubectl-recreate.cdx.json",
        ),
        *(f"crrd-{__version__}.tgz", plugin, tool.PROVENANCE, tool.SUMS),
    }
    for name in (name for name in names if name.startswith("install")):
        assert set(re.findall(r"image: (.*)", (first / name).read_text())) == {IMAGE}
    the_provenance_names_all_files(first)
    the_bill_of_materials_is_of_the_lock(first / "crrd.cdx.json", "image")
    the_bill_of_materials_is_of_the_lock(first / "kubectl-recreate.cdx.json", "cli")
    the_vex_is_about_the_image(first / "crrd.openvex.json")
    the_plugin_runs(first / plugin, tmp_path / "plugin")
    the_chart_installs_the_image(first / f"crrd-{__version__}.tgz")


def the_provenance_names_all_files(dist: Path) -> None:
    statement = json.loads((dist / tool.PROVENANCE).read_text())
    found = {each["name"]: each["digest"]["sha256"] for each in statement["subject"]}
    assert found == {
        each.name: sha256(each) for each in dist.iterdir() if each.name not in (tool.SUMS, tool.PROVENANCE)
    }
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    source, *locks = statement["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert source["digest"] == {"gitCommit": head.strip()}
    assert [each["name"] for each in locks] == ["locks/build.txt", "locks/cli.txt", "locks/image.txt"]
    assert statement["predicate"]["runDetails"]["builder"] == {"id": RELEASE.builder}


def pinned(lock: str) -> dict[str, str]:
    """Name and version of what a lock names."""
    lines = (ROOT / "locks" / f"{lock}.txt").read_text().splitlines()
    found = [Requirement(line.rstrip(" \\")) for line in lines if line[:1].isalpha()]
    return {each.name: str(each.specifier).removeprefix("==") for each in found}


def the_bill_of_materials_is_of_the_lock(file: Path, lock: str) -> None:
    bom = json.loads(file.read_text())
    assert bom["bomFormat"] == "CycloneDX"
    assert bom["metadata"]["component"]["version"] == __version__
    assert {each["name"]: each["version"] for each in bom["components"]} == pinned(lock)
    assert all(each["externalReferences"][0]["hashes"] for each in bom["components"])


def the_vex_is_about_the_image(file: Path) -> None:
    vex = json.loads(file.read_text())
    assert vex["@id"].endswith(f"/{__version__}")
    products = {product["@id"] for statement in vex["statements"] for product in statement["products"]}
    assert products == {f"pkg:oci/crrd?repository_url={RELEASE.image}&tag={__version__}"}


def the_plugin_runs(archive: Path, folder: Path) -> None:
    """With nothing but Python: what `kubectl recreate` imports is in the archive."""
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    assert {each.name for each in folder.iterdir()} == {"kubectl-recreate", "lib", "LICENSE"}
    bare = folder / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)
    environment = {"PATH": os.environ["PATH"], "PYTHON": str(bare), "HOME": str(folder)}
    command = [str(folder / "kubectl-recreate"), "deployment/web", "-c", "app", "--dry-run"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=folder)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("kubectl recreate: not in a cluster")


def the_chart_installs_the_image(archive: Path) -> None:
    helm = pytest.importorskip("helm_python", reason="helm-python-sdk has no wheel for this machine")
    with helm.Chart.load(archive) as chart:
        texts = chart.render({}, name="crrd")
        about = chart.metadata
        assert (chart.version, about["appVersion"]) == (__version__, __version__)
    objects = [found for name, text in texts.items() if name.endswith(".yaml") for found in yaml.safe_load_all(text)]
    manager = one([each for each in objects if each], "Deployment", "crrd-manager")
    assert manager["spec"]["template"]["spec"]["containers"][0]["image"] == IMAGE
    assert (about["home"], about["sources"]) == (RELEASE.source, [RELEASE.source])
    assert yaml.safe_load(about["annotations"]["artifacthub.io/images"]) == [{"name": "crrd", "image": IMAGE}]
    with tarfile.open(archive) as packed:
        readme = packed.extractfile("crrd/README.md")
        assert readme is not None
        assert json.dumps(RELEASE.image) in readme.read().decode()
        assert not [name for name in packed.getnames() if name.endswith(".py")]


@needs_git
def test_another_version_than_the_codes_is_refused(tmp_path: Path) -> None:
    release = tool.Release("9.9.9", "registry.example/crrd", "https://downloads.example", "https://builder.example")
    with pytest.raises(SystemExit, match=r"names another version than 9\.9\.9"):
        tool.build(release, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_without_an_engine_or_a_base_the_image_is_skipped_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert tool.image(ROOT, tmp_path, RELEASE, 0) == "buildah is not installed"
    engine = tmp_path / "buildah"
    engine.write_text("#!/bin/sh\nexit 1\n")
    engine.chmod(0o755)
    assert re.fullmatch(r"buildah cannot pull python:3\.\d+-slim\S*", tool.image(ROOT, tmp_path, RELEASE, 0))


@pytest.mark.parametrize("machine", ["amd64", "arm64"])
def test_each_wheel_of_the_image_exists_for_its_machine_types(machine: str) -> None:
    tool.check_wheels(ROOT, [machine])


def test_a_missing_wheel_is_noticed(tmp_path: Path) -> None:
    """A lock with the hashes of one file of each package only, which is not that of this machine type."""
    shutil.copyfile(ROOT / "Dockerfile", tmp_path / "Dockerfile")
    (tmp_path / "locks").mkdir()
    lines = (ROOT / "locks" / "image.txt").read_text().replace("\\\n", "").splitlines()
    (entry,) = [line for line in lines if line.startswith("grpcio==")]
    hashes = re.findall(r"--hash=\S+", entry)
    (tmp_path / "locks" / "image.txt").write_text(f"{entry.partition(' --hash')[0]} {hashes[0]}\n")
    shutil.copyfile(ROOT / "locks" / "build.txt", tmp_path / "locks" / "build.txt")
    with pytest.raises(subprocess.CalledProcessError):
        tool.check_wheels(tmp_path, ["amd64", "arm64"])


def test_nothing_of_the_image_is_of_the_builders_machine_type() -> None:
    """Neither stage is bound to a platform, and no step names one."""
    words = r"x86_64|amd64|aarch64|arm64|--platform|BUILDPLATFORM|TARGETARCH"
    assert re.findall(words, (ROOT / "Dockerfile").read_text(encoding="utf-8")) == []


@pytest.mark.skipif(shutil.which("buildah") is None, reason="needs buildah")
def test_an_image_of_two_machine_types_is_one_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a Dockerfile that runs nothing, because this machine may not run programs of the other type."""
    storage = tmp_path / "storage.conf"
    graph, state = tmp_path / "graph", tmp_path / "run"
    storage.write_text(f'[storage]\ndriver = "vfs"\ngraphroot = "{graph}"\nrunroot = "{state}"\n')
    monkeypatch.setenv("CONTAINERS_STORAGE_CONF", str(storage))
    source = tmp_path / "source"
    source.mkdir()
    (source / "file").write_text("x")
    (source / "Dockerfile").write_text("FROM scratch\nCOPY file /file\n")
    base = "localhost/crrd-test-base:1"
    subprocess.run(["buildah", "build", "--quiet", "--tag", base, str(source)], check=True, capture_output=True)
    release = replace(RELEASE, image="localhost/crrd-test", machines=("amd64", "arm64"), base_image=base)
    digests = set()
    for dist in (tmp_path / "first", tmp_path / "second"):
        dist.mkdir()
        assert tool.image(source, dist, release, 1767225600) == ""
        with tarfile.open(dist / f"crrd-{__version__}-image.oci.tar") as layout:
            index = json.loads(member(layout, "index.json"))
            (digest,) = [each["digest"] for each in index["manifests"]]
            images = json.loads(member(layout, f"blobs/{digest.replace(':', '/')}"))["manifests"]
        assert [each["platform"]["architecture"] for each in images] == ["amd64", "arm64"]
        digests.add(digest)
    assert len(digests) == 1


def member(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(name)
    assert file is not None
    return file.read()


def test_an_archive_keeps_nothing_of_who_made_it(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    (folder / "b").mkdir(parents=True)
    for name, mode in (("b/program", 0o700), ("a", 0o600)):
        (folder / name).write_text(name)
        (folder / name).chmod(mode)
    tar(tmp_path / "it.tgz", folder, 7, inside="top")
    with tarfile.open(tmp_path / "it.tgz") as packed:
        found = [(each.name, each.mode, each.mtime, each.uid, each.uname) for each in packed.getmembers()]
    assert found == [
        ("top/a", 0o644, 7, 0, ""),
        ("top/b", 0o755, 7, 0, ""),
        ("top/b/program", 0o755, 7, 0, ""),
    ]


def test_the_krew_manifest_names_each_archive(tmp_path: Path) -> None:
    archives = {}
    for system, machine in PLATFORMS:
        archives[system, machine] = tmp_path / f"{system}-{machine}.tar.gz"
        archives[system, machine].write_text(machine)
    text = krew_manifest(ROOT / "manifests" / "krew" / "recreate.yaml", "1.2.3", archives, "https://downloads.example")
    spec = yaml.safe_load(text)["spec"]
    assert spec["version"] == "v1.2.3"
    assert {each["uri"]: each["sha256"] for each in spec["platforms"]} == {
        f"https://downloads.example/{each.name}": sha256(each) for each in archives.values()
    }
    found = [tuple(each["selector"]["matchLabels"].values()) for each in spec["platforms"]]
    assert found == list(PLATFORMS)


def test_the_plugins_lock_has_the_versions_of_the_images() -> None:
    image, cli = pinned("image"), pinned("cli")
    assert {name for name in image.keys() & cli.keys() if image[name] != cli[name]} == set(), "run: make lock"
    assert {"aiohttp", "rich"} <= cli.keys()


def test_make_says_what_is_missing() -> None:
    make = shutil.which("make")
    assert make is not None
    command = [make, "--silent", "--assume-old", ".venv/.ready", "release", "VERSION=1.0.0"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert ended.stderr.startswith("say what to release: make release VERSION=")
