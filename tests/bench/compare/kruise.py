"""OpenKruise on a cluster of `tests.tools.cluster`, from its sources and binaries, in place of crrd."""

import io
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from crrd.lib.errors import ConfigurationError
from tests.support.images import write_images
from tests.support.real_nodes import kubectl
from tests.tools.cluster.cluster import RealCluster as Machines

SPACE = "kruise-system"
DAEMON, MANAGER = "kruise-daemon", "kruise-manager"
BINARIES = {DAEMON: "/kruise-daemon", MANAGER: "/manager"}
"""And their paths in the image of the release."""


def check(folder: Path) -> None:
    """Raise ConfigurationError if a folder has not what this needs."""
    wanted = [*BINARIES, "config/default/kustomization.yaml"]
    if missing := [name for name in wanted if not (folder / name).exists()]:
        what = "OpenKruise's static binaries and the folder config of its sources"
        raise ConfigurationError(f"{folder} lacks {', '.join(missing)}: it must have {what}")


def _image(folder: Path, name: str) -> bytes:
    """One layer with one program. Its name is that of the process, as `ps` shows it."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as tar:
        tar.add(folder / name, name)
        for writable in ("tmp", "log"):  # the manager has a log of its own
            made = tarfile.TarInfo(writable)
            made.type, made.mode = tarfile.DIRTYPE, 0o1777
            tar.addfile(made)
    return raw.getvalue()


def manifests(folder: Path) -> list[dict[str, Any]]:
    """The objects of its sources, with these images, one manager, and without limits of CPU and memory."""
    built = subprocess.run(
        ["kubectl", "kustomize", str(folder / "config" / "default")], check=True, stdout=subprocess.PIPE
    ).stdout
    found = [each for each in yaml.safe_load_all(built) if each]
    for each in found:
        if each["kind"] not in ("Deployment", "DaemonSet"):
            continue
        pod = each["spec"]["template"]["spec"]
        name = DAEMON if each["kind"] == "DaemonSet" else MANAGER
        for one in pod["containers"]:
            changed = ("--feature-gates", "--v=", "-v=")  # only what is on by default, and a release's log level
            args = [arg for arg in one.get("args", ()) if not arg.startswith(changed)]
            one |= {"image": f"localhost/{name}:1", "imagePullPolicy": "IfNotPresent", "command": [f"/{name}"]}
            one |= {"args": [*args, "-v=2"]}
            one.pop("resources", None)
            one["env"] = [each for each in one.get("env", ()) if each["name"] != "KUBE_CACHE_MUTATION_DETECTOR"]
    return found


@contextmanager
def installed(nodes: Machines, folder: Path) -> Iterator[None]:
    """Install OpenKruise as pods, and remove it in the end."""
    with tempfile.TemporaryDirectory() as temporary:
        for name in BINARIES:
            archive = Path(temporary) / f"{name}.tar"
            write_images(archive, _image(folder, name), {f"localhost/{name}:1": {"Entrypoint": [f"/{name}"]}})
            for node in nodes.nodes:
                node.load(archive)
        file = Path(temporary) / "all.yaml"
        file.write_text(yaml.safe_dump_all(manifests(folder)))
        kubectl(nodes, "apply", "--server-side", "--force-conflicts", "-f", str(file))
        try:
            kubectl(nodes, "-n", SPACE, "rollout", "status", f"daemonset/{DAEMON}", "--timeout=240s")
            kubectl(nodes, "-n", SPACE, "rollout", "status", "deployment/kruise-controller-manager", "--timeout=240s")
            yield
        finally:
            kubectl(nodes, "delete", "--ignore-not-found", "-f", str(file))
