"""The pods' folders on the node for volumes, logs and termination messages, and the mounts of volumes.

Kubelet's own layout, below a configurable root folder. A local node has no storage: it supports emptyDir, hostPath, and
the volumes whose files kubelet writes. `mounter` sets them up.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path

from cri_stubs import api_pb2
from crrd_localnode.pods import spec as podspec
from crrd_localnode.pods.atomic_writer import VolumeError
from crrd_localnode.pods.spec import Json, uid

WRITTEN = frozenset({"configMap", "secret", "downwardAPI", "projected"})  # Volumes whose files kubelet writes
_PLUGINS = {
    "emptyDir": "empty-dir", "configMap": "configmap", "secret": "secret", "downwardAPI": "downward-api",
    "projected": "projected",
}  # fmt: skip

_PROPAGATION = {
    "HostToContainer": api_pb2.PROPAGATION_HOST_TO_CONTAINER,
    "Bidirectional": api_pb2.PROPAGATION_BIDIRECTIONAL,
}


class PodFolders:
    """The folders of one node's pods below `root`."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def pod(self, pod_uid: str) -> Path:
        """The folder of everything that is removed with the pod, except its logs."""
        return self._root / "pods" / pod_uid

    def logs(self, pod: Json) -> Path:
        """The sandbox's log directory: `<namespace>_<name>_<uid>`, as under /var/log/pods."""
        metadata = pod["metadata"]
        return self._root / "logs" / f"{metadata['namespace']}_{metadata['name']}_{metadata['uid']}"

    def logs_of(self, namespace: str, name: str) -> Path | None:
        """The log directory of the pod that has this name now, or None."""
        found = (self._root / "logs").glob(f"{namespace}_{name}_*")
        return max(found, key=lambda folder: folder.stat().st_mtime, default=None)

    def volume(self, pod: Json, volume: Json) -> Path:
        """The folder or file of a volume on the node. Raises VolumeError if a local node has no such volumes."""
        if "hostPath" in volume:
            return Path(volume["hostPath"]["path"])
        for field in volume.keys() & _PLUGINS.keys():
            return self.pod(uid(pod)) / "volumes" / f"kubernetes.io~{_PLUGINS[field]}" / str(volume["name"])
        kind = ", ".join(sorted(volume.keys() - {"name"}))
        raise VolumeError(f"a local node has no volumes of kind {kind}")

    def mounts(self, pod: Json, spec: Json, attempt: int, variables: Mapping[str, str]) -> list[api_pb2.Mount]:
        """Return the mounts of one container, including the file of the termination message. Raises VolumeError."""
        volumes = {volume["name"]: volume for volume in podspec.volumes(pod)}
        found = []
        for mount in spec.get("volumeMounts") or []:
            volume = volumes.get(mount["name"])
            if volume is None:
                raise VolumeError(f'cannot find volume "{mount["name"]}" to mount into container "{spec["name"]}"')
            source = self.volume(pod, volume)
            if part := _sub_path(mount, variables):
                source = _inside(source, part, f'for volumeMount "{mount["name"]}" of container "{spec["name"]}"')
            bound = api_pb2.Mount(
                container_path=mount["mountPath"] if mount["mountPath"].startswith("/") else f"/{mount['mountPath']}",
                host_path=str(source),
                readonly=bool(mount.get("readOnly")) or bool(WRITTEN & volume.keys()),
                propagation=_PROPAGATION.get(mount.get("mountPropagation", ""), api_pb2.PROPAGATION_PRIVATE),
            )
            found.append(bound)
        message = self.pod(uid(pod)) / "containers" / spec["name"] / f"termination-{attempt}"
        message.parent.mkdir(parents=True, exist_ok=True)
        message.touch()
        message.chmod(0o666)  # any user may write the termination message
        found.append(api_pb2.Mount(container_path=spec["terminationMessagePath"], host_path=str(message)))
        return found

    def next_log(self, pod: Json, name: str) -> int:
        """Return the number after that of the container's newest log, or 0: kubelet's `calcRestartCountByLogDir`."""
        return max(log_numbers(self.logs(pod) / name), default=-1) + 1

    def remove(self, pod: Json) -> None:
        """Remove the pod's folders and logs."""
        shutil.rmtree(self.pod(uid(pod)), ignore_errors=True)
        shutil.rmtree(self.logs(pod), ignore_errors=True)


def log_numbers(folder: Path) -> list[int]:
    """Return the numbers of a container's log files, the oldest first."""
    return sorted(int(file.stem) for file in folder.glob("*.log") if file.stem.isdigit()) if folder.is_dir() else []


def _sub_path(mount: Json, variables: Mapping[str, str]) -> str:
    """Return the path that is mounted instead of the whole volume, or "". Raises VolumeError."""
    try:
        part = str(mount.get("subPath") or podspec.expand(mount.get("subPathExpr") or "", variables, strict=True))
    except LookupError as error:
        raise VolumeError(str(error.args[0])) from error
    if part.startswith("/"):
        raise VolumeError(f"error SubPath `{part}` must not be an absolute path")
    if ".." in part.split("/"):
        raise VolumeError(f"unable to provision SubPath `{part}`: must not contain '..'")
    return part


def _inside(source: Path, part: str, where: str) -> Path:
    """Return a part of a volume without links, as it is now. A folder is made if it is missing. Raises VolumeError."""
    target = (source / part).resolve()
    if not target.is_relative_to(source.resolve()):
        raise VolumeError(f"failed to prepare subPath {where}")
    try:
        if not target.exists():
            target.mkdir(parents=True)
    except OSError as error:
        raise VolumeError(f"failed to create subPath directory {where}") from error
    return target


def host_path(name: str, given: Json) -> None:
    """Make the file or folder of a hostPath volume if its type says so. Raises VolumeError if it is of another type."""
    path, kind = Path(given["path"]), given.get("type", "")
    if kind == "DirectoryOrCreate":
        path.mkdir(parents=True, exist_ok=True)
    elif kind == "FileOrCreate" and not path.exists():
        path.touch()
    elif kind == "" and not path.exists():
        # Without a type, nothing is checked. A missing directory is created for the bind mount, as Docker once did.
        path.mkdir(parents=True)
    fits = {"Directory": path.is_dir, "File": path.is_file}.get(kind.removesuffix("OrCreate"), path.exists)
    if not fits():
        raise VolumeError(f'volume "{name}": hostPath {path} is not a {kind}')
