"""Builds container images, so that the tests need no registry and no network.

An image is a docker-archive: a tar of layers, a config and `manifest.json`, as `ctr images import` expects. There are
two: a pause image for sandboxes and a busybox image with a shell, both with the system's static busybox.
"""

import hashlib
import io
import json
import shutil
import subprocess
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PAUSE_IMAGE = "localhost/pause:1"
BUSYBOX_IMAGE = "localhost/busybox:1"
BUSYBOX_IMAGE_2 = "localhost/busybox:2"  # The same files with another name and ID, for in-place image updates


def _directory(name: str, mode: int = 0o755) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type = tarfile.DIRTYPE
    info.mode = mode
    return info


def busybox_layer(busybox: Path) -> bytes:
    """One layer: `/bin/busybox`, a link for each of its applets, the usual folders, `/etc/passwd`."""
    names = subprocess.run([busybox, "--list"], check=True, capture_output=True, text=True).stdout.split()
    content = busybox.read_bytes()
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as tar:
        for folder, mode in (("bin", 0o755), ("dev", 0o755), ("etc", 0o755), ("proc", 0o755), ("sys", 0o755)):
            tar.addfile(_directory(folder, mode))
        tar.addfile(_directory("tmp", 0o1777))
        program = tarfile.TarInfo("bin/busybox")
        program.mode = 0o755
        program.size = len(content)
        tar.addfile(program, io.BytesIO(content))
        for name in sorted(set(names) - {"busybox"}):
            link = tarfile.TarInfo(f"bin/{name}")
            link.type = tarfile.SYMTYPE
            link.linkname = "busybox"
            tar.addfile(link)
        users = b"root:x:0:0:root:/:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n"
        passwd = tarfile.TarInfo("etc/passwd")
        passwd.size = len(users)
        tar.addfile(passwd, io.BytesIO(users))
    return raw.getvalue()


def _config(layer: bytes, run: Mapping[str, Any]) -> bytes:
    return json.dumps(
        {
            "architecture": _architecture(),
            "os": "linux",
            "config": run,
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
        },
        sort_keys=True,
    ).encode()


def _architecture() -> str:
    """Return the machine's name in image configs."""
    machine = subprocess.run(["/bin/uname", "-m"], check=True, capture_output=True, text=True).stdout.strip()
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine)


def write_archive(target: Path, busybox: Path) -> None:
    """Write the archive of all images that the tests use."""
    images = (
        (PAUSE_IMAGE, ["/bin/sleep", "2147483647"], "pause"),
        (BUSYBOX_IMAGE, ["/bin/sh"], "1"),
        (BUSYBOX_IMAGE_2, ["/bin/sh"], "2"),
    )
    runs = {name: {"Env": ["PATH=/bin", f"REVISION={revision}"], "Cmd": command} for name, command, revision in images}
    write_images(target, busybox_layer(busybox), runs)


def write_busybox(target: Path, *names: str) -> None:
    """Write an archive of the busybox image by other names, for example that of a manifest in the docs."""
    layer = busybox_layer(Path(shutil.which("busybox") or "/bin/busybox"))
    write_images(target, layer, {name: {"Env": ["PATH=/bin"], "Cmd": ["/bin/sh"]} for name in names})


def write_images(target: Path, layer: bytes, images: Mapping[str, Mapping[str, Any]]) -> None:
    """Write an archive of images with the same files: a name and how a container of it is run (`config` of OCI)."""
    layer_name = f"{hashlib.sha256(layer).hexdigest()}/layer.tar"
    files = {layer_name: layer}
    manifest = []
    for name, run in images.items():
        config = _config(layer, run)
        config_name = f"{hashlib.sha256(config).hexdigest()}.json"
        files[config_name] = config
        manifest.append({"Config": config_name, "RepoTags": [name], "Layers": [layer_name]})
    files["manifest.json"] = json.dumps(manifest).encode()
    with tarfile.open(target, "w") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
