"""Fills dist with a release: `make release VERSION=0.1.0 IMAGE=registry.example/crrd`. docs/release.md lists the files.

Everything is built from the last commit, never from changed files beside it, and with the commit's time. So two runs
give the same bytes, but for the image, where the base's tag may have moved.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.tools.archives import PLATFORMS, PYTHONS, install, krew_manifest, sbom, sha256, tar, unpack, vex

ROOT = Path(__file__).parents[2]
SUMS, PROVENANCE = "SHA256SUMS", "provenance.json"
_UV = str(Path(sys.executable).with_name("uv"))


@dataclass(frozen=True)
class Release:
    """What is released, and as what."""

    version: str
    image: str
    """Repository of the image, without a tag."""
    url: str
    """The folder that the files can be downloaded from."""
    builder: str
    """URI of who builds it, for the provenance."""
    base_image: str = ""
    """The base of the image; "" for the Dockerfile's own."""
    source: str = ""
    """The address of the repository, for the chart; "" if it has none."""
    machines: Sequence[str] = ()
    """Machine types of the image, as in PLATFORMS; empty for the builder's own."""
    platforms: Mapping[tuple[str, str], str] = field(default_factory=lambda: PLATFORMS)
    pythons: Sequence[str] = PYTHONS


def run(*command: str, cwd: Path | None = None, **environment: str) -> str:
    """Run a program; returns what it prints. Raises CalledProcessError."""
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=cwd, env=os.environ | environment)
    return done.stdout.strip()


def export(commit: str, target: Path) -> None:
    """The files of a commit."""
    packed = target / "source.tar"
    run("git", "archive", "--output", str(packed), commit, cwd=ROOT)
    run("tar", "-xf", packed.name, cwd=target)
    packed.unlink()


def wheels(source: Path, dist: Path, epoch: int) -> Path:
    """Build the wheels of crrd, its forecast and its local node; returns the first."""
    build = (_UV, "build", "--quiet", "--wheel", "--out-dir", str(dist))
    locked = ("--build-constraints", str(source / "locks" / "build.txt"), "--require-hashes")
    for folder in (source, source / "forecast", source / "localnode"):
        run(*build, *locked, str(folder), SOURCE_DATE_EPOCH=str(epoch))
    (dist / ".gitignore").unlink(missing_ok=True)
    (wheel,) = dist.glob("crrd-*.whl")
    return wheel


def manifests(source: Path, dist: Path, image: str) -> None:
    """install.yaml and what takes it away, install-OVERLAY.yaml for each overlay, monitoring and integrations."""
    for each in (source / "manifests" / "uninstall.sh", *(source / "manifests" / "integrations").iterdir()):
        shutil.copy(each, dist)
    overlays = [f"overlays/{each.name}" for each in (source / "manifests" / "overlays").iterdir()]
    for folder in ("default", "monitoring", *overlays):
        name = Path(folder).name
        if name.startswith("monitoring"):
            text = run("kubectl", "kustomize", str(source / "manifests" / folder))
            (dist / f"{name}.yaml").write_text(f"{text}\n", encoding="utf-8")
        else:
            run("make", "-s", "install-manifests", f"IMAGE={image}", f"VARIANT={folder}", cwd=source)
            shutil.move(
                source / "install.yaml", dist / ("install.yaml" if name == "default" else f"install-{name}.yaml")
            )


def chart(source: Path, dist: Path, release: Release, epoch: int) -> None:
    """The chart's archive, with the released image as its default."""
    folder = source / "manifests" / "chart"
    schema = folder / "values.schema.json"
    values: dict[str, Any] = json.loads(schema.read_text(encoding="utf-8"))
    values["properties"]["image"]["properties"]["repository"]["default"] = release.image
    schema.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
    about = folder / "Chart.yaml"
    known = yaml.safe_load(about.read_text(encoding="utf-8"))
    known |= {"version": release.version, "appVersion": release.version}
    if release.source:
        known |= {"home": release.source, "sources": [release.source]}
    images = [{"name": "crrd", "image": f"{release.image}:{release.version}"}]
    known["annotations"]["artifacthub.io/images"] = yaml.safe_dump(images, sort_keys=False)
    about.write_text(yaml.safe_dump(known, sort_keys=False), encoding="utf-8")
    run(sys.executable, "-B", str(folder / "generate.py"))
    (folder / "generate.py").unlink()
    (folder / ".helmignore").unlink()
    tar(dist / f"crrd-{release.version}.tgz", folder, epoch, inside="crrd")


def plugins(source: Path, dist: Path, release: Release, wheel: Path, epoch: int) -> None:
    """An archive of `kubectl recreate` for each platform, and the krew manifest of all."""
    krew = source / "manifests" / "krew"
    archives = {}
    for (system, machine), platform in release.platforms.items():
        with tempfile.TemporaryDirectory() as made:
            folder = Path(made, "plugin")
            folder.mkdir()
            shutil.copy(krew / "kubectl-recreate", folder)
            shutil.copy(source / "LICENSE", folder)
            install(source / "locks" / "cli.txt", wheel, folder / "lib", platform, release.pythons)
            archive = dist / f"kubectl-recreate-{release.version}-{system}-{machine}.tar.gz"
            tar(archive, folder, epoch)
            archives[system, machine] = archive
    text = krew_manifest(krew / "recreate.yaml", release.version, archives, release.url)
    (dist / "recreate.yaml").write_text(text, encoding="utf-8")


def check_wheels(source: Path, machines: Iterable[str]) -> None:
    """Raise CalledProcessError if the index has not all wheels of the locks for images of these machine types.

    Otherwise the build would compile it, with a compiler that its base does not have.
    """
    (python,) = re.findall(r"(?m)^ARG BASE_IMAGE=python:(3\.\d+)", (source / "Dockerfile").read_text(encoding="utf-8"))
    for machine in machines:
        for lock in ("image", "build"):
            with tempfile.TemporaryDirectory() as target:
                unpack(source / "locks" / f"{lock}.txt", Path(target), PLATFORMS["linux", machine], python)


def image(source: Path, dist: Path, release: Release, epoch: int) -> str:
    """Build the image with buildah, as an OCI layout in an archive; returns why it was skipped, or "".

    CRRD_BUILD_FLAGS: further flags of `buildah build`, for example mounts of certificates.
    """
    if shutil.which("buildah") is None:
        return "buildah is not installed"
    base = release.base_image or re.findall(r"(?m)^ARG BASE_IMAGE=(.*)", (source / "Dockerfile").read_text())[0]
    try:
        run("buildah", "pull", "--quiet", "--policy", "missing", base)
    except subprocess.CalledProcessError:
        return f"buildah cannot pull {base}"
    name = f"{release.image}:{release.version}"
    flags = os.environ.get("CRRD_BUILD_FLAGS", "").split()
    flags += ["--build-arg", f"BASE_IMAGE={base}", "--build-arg", f"SOURCE_DATE_EPOCH={epoch}"]
    flags += ["--manifest" if release.machines else "--tag", name]
    forget = ("buildah", "manifest", "rm", name)  # of an earlier run, to which the build would add
    subprocess.run(forget, capture_output=True, check=False)
    # One after the other, because the index has them in the order in which they end.
    for machine in release.machines or [""]:
        platform = ("--platform", f"linux/{machine}") if machine else ()
        run("buildah", "build", "--quiet", "--timestamp", str(epoch), *flags, *platform, str(source))
    push = ("buildah", "manifest", "push", "--all") if release.machines else ("buildah", "push")
    with tempfile.TemporaryDirectory() as layout:
        run(*push, "--quiet", name, f"oci:{layout}:{release.version}")
        tar(dist / f"crrd-{release.version}-image.oci.tar", Path(layout), epoch)
    return ""


def provenance(source: Path, dist: Path, release: Release, commit: str) -> dict[str, Any]:
    """An in-toto statement with SLSA's predicate: which files, of which commit and locks, by whom."""
    files = sorted(each for each in dist.iterdir() if each.name not in (SUMS, PROVENANCE))
    locks = sorted((source / "locks").iterdir())
    materials: list[dict[str, Any]] = [{"name": "source", "digest": {"gitCommit": commit}}]
    materials += [{"name": f"locks/{each.name}", "digest": {"sha256": sha256(each)}} for each in locks]
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": each.name, "digest": {"sha256": sha256(each)}} for each in files],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": "https://crrd.example/docs/release.md",
                "externalParameters": {
                    "version": release.version,
                    "image": release.image,
                    "url": release.url,
                    "baseImage": release.base_image,
                },
                "resolvedDependencies": materials,
            },
            "runDetails": {"builder": {"id": release.builder}},
        },
    }


def build(release: Release, dist: Path, commit: str = "HEAD", *, with_image: bool = True) -> str:
    """Build a release of a commit into an empty folder; returns why there is no image, or "".

    Raises:
        SystemExit: the commit is of another version.
        CalledProcessError: a step failed; its program has said why.
    """
    commit = run("git", "rev-parse", f"{commit}^{{commit}}", cwd=ROOT)
    epoch = int(run("git", "show", "--no-patch", "--format=%ct", commit, cwd=ROOT))
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder)
        export(commit, source)
        code = (source / "daemon" / "crrd" / "__init__.py").read_text(encoding="utf-8")
        if f'"{release.version}"' not in code:
            raise SystemExit(f"release: daemon/crrd/__init__.py names another version than {release.version}")
        check_wheels(source, release.machines)
        wheel = wheels(source, dist, epoch)
        manifests(source, dist, f"{release.image}:{release.version}")
        for lock, name in (("image", "crrd"), ("cli", "kubectl-recreate")):
            text = sbom(source / "locks" / f"{lock}.txt", name, release.version, source)
            (dist / f"{name}.cdx.json").write_text(text, encoding="utf-8")
        text = vex(source / ".vex" / "crrd.openvex.json", release.image, release.version)
        (dist / "crrd.openvex.json").write_text(text, encoding="utf-8")
        plugins(source, dist, release, wheel, epoch)
        skipped = image(source, dist, release, epoch) if with_image else "not asked for"
        chart(source, dist, release, epoch)
        statement = provenance(source, dist, release, commit)
    (dist / PROVENANCE).write_text(json.dumps(statement, indent=1) + "\n", encoding="utf-8")
    sums = [f"{sha256(each)}  {each.name}\n" for each in sorted(dist.iterdir())]
    (dist / SUMS).write_text("".join(sums), encoding="utf-8")
    return skipped


def main() -> int:
    """Read the flags and build."""
    parser = argparse.ArgumentParser(description="Fills dist with a release of the last commit.")
    parser.add_argument("version")
    parser.add_argument("image", help="repository of the image, without a tag")
    parser.add_argument("--url", help="the folder that the files can be downloaded from")
    parser.add_argument("--builder", default="https://crrd.example/by-hand", help="URI of who builds it")
    parser.add_argument("--source", default="", help="address of the repository, for the chart")
    parser.add_argument("--base-image", default="", help="base of the image, best with its digest")
    machines = {machine for system, machine in PLATFORMS if system == "linux"}
    many = "machine type of the image; can be repeated"
    parser.add_argument("--machine", action="append", default=[], choices=sorted(machines), help=many)
    parser.add_argument("--image-needed", action="store_true", help="fail where no image can be built")
    args = parser.parse_args()
    url = args.url or f"https://example.com/crrd/releases/v{args.version}"
    dist = ROOT / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    dist.mkdir()
    skipped = build(
        Release(args.version, args.image, url, args.builder, args.base_image, args.source, machines=args.machine), dist
    )
    print((dist / SUMS).read_text(encoding="utf-8"), end="")
    if skipped:
        print(f"release: NO IMAGE was built, because {skipped}", file=sys.stderr)
    return 1 if skipped and args.image_needed else 0


if __name__ == "__main__":
    sys.exit(main())
