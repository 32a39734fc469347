"""Sets up the volumes of pods, and writes the newest ConfigMaps, Secrets and pod fields to them when kubelet would.

A volume that cannot be set up holds its pod, and is tried again after a growing delay. Later failures leave the files
as they are. Both are events. Source: pkg/kubelet/volumemanager and pkg/volume/util/operationexecutor in Kubernetes.
"""

import time
from collections.abc import Container

from crrd_localnode.pods import spec as podspec
from crrd_localnode.pods.atomic_writer import VolumeError, write
from crrd_localnode.pods.environment import env_objects
from crrd_localnode.pods.objects import ConfigObjects, Key, NotSyncedError
from crrd_localnode.pods.payloads import files_of, used_objects
from crrd_localnode.pods.recorder import Recorder
from crrd_localnode.pods.spec import Json
from crrd_localnode.pods.volumes import WRITTEN, PodFolders, host_path

FIRST_SECONDS, LONGEST_SECONDS = 0.5, 122.0  # Kubelet's back-off of a volume: pkg/util/goroutinemap/exponentialbackoff


class Mounter:
    """The volumes of one node's pods."""

    def __init__(self, folders: PodFolders, objects: ConfigObjects, recorder: Recorder) -> None:
        self.folders = folders
        self.objects = objects
        self._recorder = recorder
        self._waits: dict[str, tuple[float, float]] = {}  # Of failed volumes: the delay in seconds, and when it is over
        self._mounted: set[str] = set()

    async def mount(self, pod: Json) -> float:
        """Set up what is not set up yet. Return 0 if the pod may start, or the seconds until the next try."""
        namespace, volumes = pod["metadata"]["namespace"], podspec.volumes(pod)
        used = {key for spec in podspec.all_containers(pod) for key in env_objects(spec)}
        used |= {key for volume in volumes for key in used_objects(volume)}
        self.objects.register(podspec.uid(pod), ((kind, namespace, name) for kind, name in used))
        return max([await self._mount(pod, volume) for volume in volumes], default=0.0)

    async def _mount(self, pod: Json, volume: Json) -> float:
        key = f"{podspec.uid(pod)}/{volume['name']}"
        delay, over = self._waits.get(key, (FIRST_SECONDS / 2, 0.0))
        if key in self._mounted or over > time.monotonic():
            return 0.0 if key in self._mounted else over - time.monotonic()
        if await self._set_up(pod, volume):
            self._mounted.add(key)
            return 0.0
        delay = min(delay * 2, LONGEST_SECONDS)
        self._waits[key] = delay, time.monotonic() + delay
        return delay

    async def refresh(self, pod: Json, names: Container[str] | None = None) -> None:
        """Write what has changed to the volumes (with these names) that are set up."""
        for volume in podspec.volumes(pod):
            mounted = f"{podspec.uid(pod)}/{volume['name']}" in self._mounted
            if mounted and WRITTEN & volume.keys() and (names is None or volume["name"] in names):
                await self._set_up(pod, volume)

    async def _set_up(self, pod: Json, volume: Json) -> bool:
        """Set up or refresh a volume. Return whether that worked; if not, there is an event."""
        try:
            await self._write(pod, volume)
        except (VolumeError, NotSyncedError, OSError) as error:
            what = f'MountVolume.SetUp failed for volume "{volume["name"]}"'
            self._recorder.warn(pod, "FailedMount", f"{what} : {error}")
            return False
        return True

    async def _write(self, pod: Json, volume: Json) -> None:
        if "hostPath" in volume:
            host_path(volume["name"], volume["hostPath"])
            return
        folder, namespace = self.folders.volume(pod, volume), pod["metadata"]["namespace"]
        keys: list[Key] = [(kind, namespace, name) for kind, name in used_objects(volume)]
        await self.objects.wait(keys)
        # No await from here on: two writers of one volume would mix their files.
        files = files_of(pod, volume, lambda kind, name: self.objects.get(kind, namespace, name))
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o777)  # like kubelet's emptyDir: any user of any container may write
        if WRITTEN & volume.keys():
            write(folder, files, (pod["spec"].get("securityContext") or {}).get("fsGroup"))

    def forget(self, pod: Json) -> None:
        """Forget a pod that is gone."""
        uid = podspec.uid(pod)
        self.objects.register(uid, ())
        self._recorder.forget(uid)
        self._mounted = {key for key in self._mounted if not key.startswith(uid)}
        self._waits = {key: wait for key, wait in self._waits.items() if not key.startswith(uid)}
