"""Archives of a release whose bytes depend on nothing but what is in them."""

import gzip
import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import yaml

PYTHONS = ("3.11", "3.12", "3.13", "3.14")
"""What an archive of `kubectl recreate` runs with: extension modules of all of them lie side by side."""
PLATFORMS = {
    ("linux", "amd64"): "x86_64-manylinux_2_28",
    ("linux", "arm64"): "aarch64-manylinux_2_28",
    ("darwin", "amd64"): "x86_64-apple-darwin",
    ("darwin", "arm64"): "aarch64-apple-darwin",
}
"""Operating system and machine, as Go and krew name them: what uv calls it."""
_BIN = Path(sys.executable).parent
_SBOM_TOOL = "cyclonedx-bom>=7.5,<8"
_OF_THE_INSTALLER = {"INSTALLER", "RECORD", "REQUESTED"}
"""Files of a .dist-info folder that are about one installation of it."""


def sha256(file: Path) -> str:
    """The checksum of a file, in hexadecimal."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def tar(target: Path, folder: Path, epoch: int, *, inside: str = "") -> None:
    """Pack a folder, below the folder `inside` of the archive: sorted, with one time, and without owners.

    `epoch`: the time of all files, seconds since 1970. An archive named .gz or .tgz is compressed.
    """

    def without_owner(info: tarfile.TarInfo) -> tarfile.TarInfo:
        info.mtime, info.uid, info.gid, info.uname, info.gname = epoch, 0, 0, "", ""
        info.mode = 0o755 if info.isdir() or info.mode & 0o100 else 0o644
        return info

    with target.open("wb") as raw:
        out = gzip.GzipFile("", "wb", 6, raw, mtime=epoch) if target.suffix in (".gz", ".tgz") else raw
        with out, tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as archive:
            for file in sorted(folder.rglob("*")):
                name = Path(inside, file.relative_to(folder))
                archive.add(file, str(name), recursive=False, filter=without_owner)


def unpack(lock: Path, target: Path, platform: str, python: str) -> None:
    """Put the wheels that a lock names into a folder, for a platform by uv's name.

    Raises CalledProcessError if the index has no wheel for it, or none with a hash of the lock.
    """
    command = [str(_BIN / "uv"), "pip", "install", "--quiet", "--target", str(target), "--python-platform", platform]
    command += ["--python-version", python, "--only-binary", ":all:", "--no-deps", "--require-hashes"]
    subprocess.run([*command, "--requirements", str(lock)], check=True)


def install(lock: Path, wheel: Path, target: Path, platform: str, pythons: Iterable[str]) -> None:
    """Put what a lock names, and a wheel of our own, into a folder that these Pythons can import from."""
    for python in pythons:
        one = target.with_name(f"{target.name}-{python}")
        unpack(lock, one, platform, python)
        shutil.copytree(one, target, dirs_exist_ok=True)
        shutil.rmtree(one)
    with ZipFile(wheel) as archive:
        archive.extractall(target)
    shutil.rmtree(target / "bin", ignore_errors=True)
    (target / ".lock").unlink(missing_ok=True)
    for file in target.glob("*.dist-info/*"):
        if file.name in _OF_THE_INSTALLER:
            file.unlink()


def krew_manifest(template: Path, version: str, archives: Mapping[tuple[str, str], Path], url: str) -> str:
    """The krew manifest with the address and the checksum of each archive.

    `archives`: by operating system and machine. `url`: the folder that they can be downloaded from.
    """
    plugin: dict[str, Any] = yaml.safe_load(template.read_text(encoding="utf-8"))
    (model,) = plugin["spec"]["platforms"]
    plugin["spec"]["version"] = f"v{version}"
    plugin["spec"]["platforms"] = [
        {
            **model,
            "selector": {"matchLabels": {"os": system, "arch": machine}},
            "uri": f"{url}/{archive.name}",
            "sha256": sha256(archive),
        }
        for (system, machine), archive in archives.items()
    ]
    return yaml.safe_dump(plugin, sort_keys=False, width=120)


def sbom(lock: Path, name: str, version: str, source: Path) -> str:
    """The bill of materials of what a lock names, in CycloneDX's JSON.

    The tool runs in an environment of its own: what it needs makes each import of jsonschema three times as slow.
    """
    command = [str(_BIN / "uv"), "tool", "run", "--quiet", "--from", _SBOM_TOOL, "cyclonedx-py", "requirements"]
    command += ["--output-reproducible", "--no-validate"]
    command += ["--pyproject", str(source / "pyproject.toml"), str(lock)]
    made = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    bom: dict[str, Any] = json.loads(made)
    bom["metadata"]["component"].update(name=name, version=version)
    return json.dumps(bom, indent=1) + "\n"


def vex(statements: Path, image: str, version: str) -> str:
    """The OpenVEX document of a release: the statements of the repository, about this image and version of it."""
    document: dict[str, Any] = json.loads(statements.read_text(encoding="utf-8"))
    document["@id"] = f"{document['@id']}/{version}"
    for product in (each for statement in document["statements"] for each in statement["products"]):
        product["@id"] = f"{product['@id']}?repository_url={image}&tag={version}"
    return json.dumps(document, indent=1) + "\n"
