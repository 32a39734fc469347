"""The pods' folders on the node for volumes, logs and termination messages, and the mounts of volumes.

Kubelet's own layout, below a configurable root folder. Only emptyDir and hostPath volumes are supported: a local node
has no storage, and mounts no ConfigMaps and Secrets.
"""

import shutil
from pathlib import Path

from cri_stubs import api_pb2
from crrd_localnode.pods.spec import Json, uid

_PROPAGATION = {
    "HostToContainer": api_pb2.PROPAGATION_HOST_TO_CONTAINER,
    "Bidirectional": api_pb2.PROPAGATION_BIDIRECTIONAL,
}


class VolumeError(Exception):
    """A volume of the pod cannot be used. The message names it."""


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

    def empty_dir(self, pod_uid: str, volume: str) -> Path:
        """The folder of an emptyDir volume."""
        return self.pod(pod_uid) / "volumes" / "kubernetes.io~empty-dir" / volume

    def prepare(self, pod: Json) -> None:
        """Create the pod's folders and volumes, if they do not exist. Raises VolumeError."""
        self.logs(pod).mkdir(parents=True, exist_ok=True)
        self.pod(uid(pod)).mkdir(parents=True, exist_ok=True)
        for volume in pod["spec"].get("volumes") or []:
            self._source(pod, volume)

    def _source(self, pod: Json, volume: Json) -> Path:
        """Return the folder or file of the host for a volume."""
        name = volume["name"]
        if "emptyDir" in volume or set(volume) == {"name"}:
            folder = self.empty_dir(uid(pod), name)
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(0o777)  # like kubelet's emptyDir: any user of any container may write
            return folder
        if "hostPath" in volume:
            return _host_path(name, volume["hostPath"])
        kind = ", ".join(sorted(set(volume) - {"name"}))
        raise VolumeError(f'volume "{name}" is of a kind that a local node does not have: {kind}')

    def mounts(self, pod: Json, spec: Json, attempt: int) -> list[api_pb2.Mount]:
        """Return the mounts of one container, including the file of the termination message. Raises VolumeError."""
        volumes = {volume["name"]: volume for volume in pod["spec"].get("volumes") or []}
        found = []
        for mount in spec.get("volumeMounts") or []:
            volume = volumes.get(mount["name"])
            if volume is None:
                raise VolumeError(f'the pod has no volume "{mount["name"]}"')
            source = self._source(pod, volume)
            if mount.get("subPath"):
                source = _inside(source, mount["subPath"])
            propagation = _PROPAGATION.get(mount.get("mountPropagation", ""), api_pb2.PROPAGATION_PRIVATE)
            path, host, readonly = mount["mountPath"], str(source), bool(mount.get("readOnly"))
            bound = api_pb2.Mount(container_path=path, host_path=host, readonly=readonly, propagation=propagation)
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


def _inside(source: Path, part: str) -> Path:
    """Return a subPath of a volume, created if missing. VolumeError if it is outside of the volume."""
    target = (source / part).resolve()
    if not target.is_relative_to(source.resolve()):
        raise VolumeError(f'subPath "{part}" leads out of its volume')
    if not target.exists():
        target.mkdir(parents=True)
    return target


def _host_path(name: str, given: Json) -> Path:
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
    return path
