"""Starts one container of a pod: back-off, image, create, start, postStart. Reports why a start failed.

The reasons are kubelet's own, because they appear in the pod's status.
Source: `startContainer` and `doBackOff` in pkg/kubelet/kuberuntime, pkg/kubelet/images in Kubernetes.
"""

import time
from dataclasses import dataclass, field

from cri_stubs import api_pb2
from crrd.lib.errors import RuntimeCallError
from crrd_localnode.pods import spec as podspec
from crrd_localnode.pods.atomic_writer import VolumeError
from crrd_localnode.pods.configs import container_config, sandbox_config
from crrd_localnode.pods.environment import ConfigError, environment, read_config
from crrd_localnode.pods.handlers import Handlers
from crrd_localnode.pods.kuberuntime import KubeRuntime, RuntimePod
from crrd_localnode.pods.mounter import Mounter
from crrd_localnode.pods.recorder import Recorder
from crrd_localnode.pods.spec import Json
from crrd_localnode.pods.status import Waiting
from crrd_localnode.reference import InvalidReferenceError, parse_reference

POST_START_SECONDS = 120.0
CONTAINER_INITIAL_SECONDS = 10.0
MAXIMUM_SECONDS = 300.0


class BackOff:
    """A growing delay per key, doubling from `initial` to `maximum`. Reset after twice the maximum without failure.

    In seconds of the caller's clock. Source: k8s.io/client-go/util/flowcontrol/backoff.go.
    """

    def __init__(self, initial: float = CONTAINER_INITIAL_SECONDS, maximum: float = MAXIMUM_SECONDS) -> None:
        self._initial = min(initial, maximum)
        self._maximum = maximum
        self._entries: dict[str, tuple[float, float]] = {}  # The delay of each key, and when it was last increased

    def delay(self, key: str) -> float:
        """Return the key's current delay in seconds, or 0 if it has not failed."""
        return self._entries.get(key, (0.0, 0.0))[0]

    def remaining(self, key: str, failed_at: float, now: float) -> float:
        """Return the remaining delay in seconds after a failure at `failed_at`, or 0 if it is over."""
        return 0.0 if self._is_new(key, failed_at) else max(0.0, failed_at + self.delay(key) - now)

    def advance(self, key: str, failed_at: float, now: float) -> None:
        """Record that the next attempt starts now, so that the delay after it is longer."""
        new = self._is_new(key, failed_at)
        self._entries[key] = (self._initial if new else min(self.delay(key) * 2, self._maximum), now)

    def forget(self, prefix: str) -> None:
        """Remove the keys with this prefix, because their pod is gone."""
        for key in [key for key in self._entries if key.startswith(prefix)]:
            del self._entries[key]

    def _is_new(self, key: str, failed_at: float) -> bool:
        return key not in self._entries or failed_at - self._entries[key][1] > 2 * self._maximum


def go_duration(seconds: float) -> str:
    """Format whole seconds or milliseconds like Go: "10s", "1m20s", "500ms"."""
    if 0 < seconds < 1:
        return f"{round(seconds * 1000)}ms"
    hours, rest = divmod(seconds, 3600)
    minutes, rest = divmod(rest, 60)
    text = f"{rest:.3f}".rstrip("0").rstrip(".") + "s"
    if hours:
        return f"{hours:.0f}h{minutes:.0f}m{text}"
    return f"{minutes:.0f}m{text}" if minutes else text


class StartError(Exception):
    """The container was not started. Has the reason for its waiting state, and the time of the next attempt."""

    def __init__(self, reason: str, message: str, *, retry_after: float) -> None:
        super().__init__(message)
        self.waiting = Waiting(reason, message)
        self.retry_after = retry_after  # Seconds


@dataclass(frozen=True, slots=True)
class Sandboxed:
    """The place of a container's start: its pod in the API and in the runtime, and the ready sandbox."""

    pod: Json
    view: RuntimePod
    sandbox_id: str
    sandbox_attempt: int


@dataclass(slots=True)
class Starter:
    """Starts sandboxes and containers on one node, and keeps the back-offs of all pods."""

    volumes: Mounter
    runtime: KubeRuntime
    handlers: Handlers
    recorder: Recorder
    node_name: str
    backoff: BackOff
    retry_seconds: float  # Delay after a failure without its own back-off (kubelet: 10 s)
    _pull_backoff: BackOff = field(default_factory=BackOff)
    _pull_errors: dict[str, tuple[float, str]] = field(default_factory=dict)

    def forget(self, pod: Json) -> None:
        """Remove the back-offs of a pod that is gone."""
        self.backoff.forget(podspec.uid(pod))
        self._pull_backoff.forget(podspec.uid(pod))
        self.volumes.forget(pod)

    async def start_sandbox(self, pod: Json, attempt: int) -> str:
        """Run a new sandbox with this attempt number. Return its ID. Raises the runtime's errors."""
        self.volumes.folders.logs(pod).mkdir(parents=True, exist_ok=True)
        return await self.runtime.run_sandbox(self._sandbox_config(pod, attempt))

    def _sandbox_config(self, pod: Json, attempt: int) -> api_pb2.PodSandboxConfig:
        logs = str(self.volumes.folders.logs(pod))
        return sandbox_config(pod, node_name=self.node_name, log_directory=logs, attempt=attempt)

    async def start(self, place: Sandboxed, spec: Json, container_hash: str) -> None:
        """Start a new instance of the container. Raises StartError, RuntimeUnavailableError."""
        self._check_backoff(place, spec, container_hash)
        image_id = await self._image(place.pod, spec)
        current = place.view.newest(spec["name"])
        attempt = current.restart_count + 1 if current else self.volumes.folders.next_log(place.pod, spec["name"])
        try:
            objects = await read_config(self.volumes.objects, place.pod["metadata"]["namespace"], spec)
            variables = environment(place.pod, spec, objects)
            config = container_config(
                place.pod,
                spec,
                image_id=image_id,
                restart_count=attempt,
                container_hash=container_hash,
                mounts=self.volumes.folders.mounts(place.pod, spec, attempt, variables),
                variables=variables,
            )
        except (ConfigError, VolumeError) as error:
            raise self._error("CreateContainerConfigError", str(error)) from error
        (self.volumes.folders.logs(place.pod) / spec["name"]).mkdir(parents=True, exist_ok=True)
        try:
            sandbox = self._sandbox_config(place.pod, place.sandbox_attempt)
            container_id = await self.runtime.create(place.sandbox_id, config, sandbox)
        except RuntimeCallError as error:
            raise self._error("CreateContainerError", str(error)) from error
        # The sync that starts a container makes kubelet refresh the volumes at the same time. Here the parts of volumes
        # (subPath) are always replaced in the worst moment: then they no longer exist (kubernetes#68211).
        parts = {each["name"] for each in spec.get("volumeMounts") or [] if {"subPath", "subPathExpr"} & each.keys()}
        await self.volumes.refresh(place.pod, parts)
        try:
            await self.runtime.start(container_id)
        except RuntimeCallError as error:
            raise self._error("RunContainerError", str(error)) from error
        await self._post_start(spec, container_id)

    def _error(self, reason: str, message: str) -> StartError:
        return StartError(reason, message, retry_after=self.retry_seconds)

    def _check_backoff(self, place: Sandboxed, spec: Json, container_hash: str) -> None:
        exited = next((found for found in place.view.instances(spec["name"]) if found.exited), None)
        if exited is None:
            return
        metadata = place.pod["metadata"]
        key = f"{metadata['uid']}/{spec['name']}/{container_hash}"
        failed_at, now = exited.finished_at / 1e9, time.time()
        remaining = self.backoff.remaining(key, failed_at, now)
        if remaining > 0:
            delay = go_duration(self.backoff.delay(key))
            named = f"{metadata['name']}_{metadata['namespace']}({metadata['uid']})"
            message = f"back-off {delay} restarting failed container={spec['name']} pod={named}"
            raise StartError("CrashLoopBackOff", message, retry_after=remaining)
        self.backoff.advance(key, failed_at, now)

    async def _image(self, pod: Json, spec: Json) -> str:
        """Return the ID of the container's image. Pull the image if needed."""
        image, policy = str(spec["image"]), spec["imagePullPolicy"]

        def tell(reason: str, message: str, kind: str = "Warning") -> None:
            self.recorder.warn(pod, reason, message, spec["name"], kind=kind)

        try:
            reference = parse_reference(image)
        except InvalidReferenceError as error:
            why = f'Failed to apply default image tag "{image}": couldn\'t parse image name "{image}": {error}'
            tell("InspectFailed", why)
            raise self._error("InvalidImageName", why) from error
        wanted = image if reference.digest or image.endswith(f":{reference.tag}") else f"{image}:{reference.tag}"
        present, repositories = await self.runtime.image(wanted)
        # Since 1.35, kubelet pulls an image again under a name of another repository (KEP-2535). An ID is such a name.
        # Kubelet keeps records of its own pulls; here each image with a digest counts as pulled.
        usable = present and (not repositories or reference.repository in repositories)
        if usable and policy != "Always":
            return present
        if policy == "Never":
            why = f'Container image "{image}" is not present with pull policy of Never'
            tell("ErrImageNeverPull", why)
            raise self._error("ErrImageNeverPull", why)
        key = f"{podspec.uid(pod)}/{image}"
        failed_at, before = self._pull_errors.get(key, (0.0, ""))
        remaining = self._pull_backoff.remaining(key, failed_at, time.time())
        if remaining > 0:
            message = f'Back-off pulling image "{image}": ErrImagePull: {before}'
            tell("BackOff", f'Back-off pulling image "{image}"', "Normal")
            tell("Failed", "Error: ImagePullBackOff")
            raise StartError("ImagePullBackOff", message, retry_after=remaining)
        tell("Pulling", f'Pulling image "{image}"', "Normal")
        try:
            pulled = await self.runtime.pull(wanted)
        except RuntimeCallError as error:
            tell("Failed", f'Failed to pull image "{image}": {error}')
            tell("Failed", "Error: ErrImagePull")
            now = time.time()
            self._pull_backoff.advance(key, now, now)
            self._pull_errors[key] = (now, str(error))
            # Check again before the back-off is over, because then kubelet reports ImagePullBackOff.
            raise StartError("ErrImagePull", str(error), retry_after=self._pull_backoff.delay(key) / 2) from error
        tell("Pulled", f'Successfully pulled image "{image}"', "Normal")
        return pulled

    async def _post_start(self, spec: Json, container_id: str) -> None:
        """Run the postStart hook. If it fails, kill the container."""
        handler = (spec.get("lifecycle") or {}).get("postStart")
        if not handler:
            return
        outcome = await self.handlers.run(handler, spec, container_id, POST_START_SECONDS)
        if not outcome.succeeded:
            await self.runtime.stop(container_id, 0)
            raise self._error("PostStartHookError", outcome.message)
