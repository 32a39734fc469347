"""All sandboxes and containers of the local runtime: lookup, lists, and loading them after a restart.

The runtime's root directory contains `sandboxes/<id>.json` and `containers/<id>/`. A sandbox is only a record, because
pods are not isolated.
"""

import json
import secrets
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import grpc
from google.protobuf import json_format

from cri_stubs import api_pb2
from crrd_localnode.containers.container import Container
from crrd_localnode.containers.images import ImageService
from crrd_localnode.containers.launch import mounts_of
from crrd_localnode.containers.rpc import CallError, invalid, not_found, wrong_state
from crrd_localnode.containers.shim import write_json


@dataclass(slots=True)
class Sandbox:
    """A pod sandbox. It is ready until it is stopped."""

    id: str
    config: api_pb2.PodSandboxConfig
    created_at: int  # Nanoseconds since the epoch
    handler: str = ""
    ready: bool = True

    @classmethod
    def load(cls, file: Path) -> "Sandbox":
        """Load the sandbox from its record."""
        record = json.loads(file.read_text())
        config = json_format.ParseDict(record["config"], api_pb2.PodSandboxConfig())
        return cls(file.stem, config, record["created_at"], record["handler"], record["ready"])

    @property
    def state(self) -> api_pb2.PodSandboxState.ValueType:
        """Whether containers can be created in it, as CRI state."""
        return api_pb2.SANDBOX_READY if self.ready else api_pb2.SANDBOX_NOTREADY

    def summary(self) -> api_pb2.PodSandbox:
        """Return the sandbox's entry in a list."""
        return api_pb2.PodSandbox(
            id=self.id, metadata=self.config.metadata, state=self.state, created_at=self.created_at,
            labels=self.config.labels, annotations=self.config.annotations, runtime_handler=self.handler,
        )  # fmt: skip


class Registry:
    """The runtime's objects by ID. IDs have 64 hexadecimal digits, as in containerd."""

    def __init__(self, root: Path, images: ImageService) -> None:
        self.images = images
        self.sandboxes: dict[str, Sandbox] = {}
        self.containers: dict[str, Container] = {}
        self._sandbox_directory = root / "sandboxes"
        self._container_directory = root / "containers"
        self._last_time = 0

    def load(self) -> None:
        """Load the objects of an earlier runtime process. Needs a running event loop."""
        self.images.load()
        self._sandbox_directory.mkdir(parents=True, exist_ok=True)
        self._container_directory.mkdir(parents=True, exist_ok=True)
        for file in self._sandbox_directory.glob("*.json"):
            self.sandboxes[file.stem] = Sandbox.load(file)
        for directory in self._container_directory.iterdir():
            if (directory / "container.json").exists():
                self.containers[directory.name] = Container.load(directory)
            else:
                # The runtime died before it wrote the record, so no client knows of this container.
                shutil.rmtree(directory)

    def sandbox(self, sandbox_id: str) -> Sandbox:
        """Return the sandbox. CallError NOT_FOUND if it does not exist."""
        if sandbox_id not in self.sandboxes:
            raise not_found("pod sandbox", sandbox_id)
        return self.sandboxes[sandbox_id]

    def container(self, container_id: str) -> Container:
        """Return the container. CallError NOT_FOUND if it does not exist."""
        if container_id not in self.containers:
            raise not_found("container", container_id)
        return self.containers[container_id]

    def containers_of(self, sandbox_id: str) -> list[Container]:
        """Return the containers of a sandbox, the oldest first."""
        own = [container for container in self.containers.values() if container.sandbox_id == sandbox_id]
        return sorted(own, key=lambda container: container.created_at)

    def add_sandbox(self, config: api_pb2.PodSandboxConfig, handler: str) -> Sandbox:
        """Create a sandbox. CallError if the config has no name, or if one of the same name and attempt exists."""
        if not config.metadata.name:
            raise invalid("the sandbox config has no metadata.name")
        for other in self.sandboxes.values():
            if other.config.metadata == config.metadata:
                raise _taken(f"pod sandbox {config.metadata.namespace}/{config.metadata.name}", other.id)
        sandbox = Sandbox(secrets.token_hex(32), config, self._now(), handler)
        self.save_sandbox(sandbox)
        self.sandboxes[sandbox.id] = sandbox
        return sandbox

    def save_sandbox(self, sandbox: Sandbox) -> None:
        """Write the sandbox's record."""
        record = {"created_at": sandbox.created_at, "handler": sandbox.handler, "ready": sandbox.ready}
        config = json_format.MessageToDict(sandbox.config)
        write_json(str(self._sandbox_directory / f"{sandbox.id}.json"), {**record, "config": config})

    def forget_sandbox(self, sandbox_id: str) -> None:
        """Remove a sandbox that has no containers any more."""
        (self._sandbox_directory / f"{sandbox_id}.json").unlink(missing_ok=True)
        self.sandboxes.pop(sandbox_id, None)

    def add_container(self, sandbox_id: str, config: api_pb2.ContainerConfig) -> Container:
        """Create a container. CallError if the sandbox or config is not valid, or the image was not pulled."""
        sandbox = self.sandbox(sandbox_id)
        if not sandbox.ready:
            raise wrong_state(f"pod sandbox {sandbox_id} is stopped")
        if not config.metadata.name:
            raise invalid("the container config has no metadata.name")
        image = self.images.find(config.image.image)
        if image is None:
            raise not_found("image", config.image.image)
        for mount in mounts_of(config):
            if not Path(mount["host_path"]).exists():
                raise invalid(f"mount path {mount['host_path']!r} does not exist")
        for other in self.containers_of(sandbox_id):
            if other.config.metadata == config.metadata:
                raise _taken(f"container {config.metadata.name} attempt {config.metadata.attempt}", other.id)
        folder = sandbox.config.log_directory
        log_path = str(Path(folder) / config.log_path) if folder and config.log_path else ""
        directory = self._container_directory / secrets.token_hex(32)
        container = Container(directory, sandbox_id, config, image.id, self._now(), log_path)
        container.save()
        self.containers[container.id] = container
        return container

    def forget_container(self, container: Container) -> None:
        """Remove a stopped container with its directory."""
        self.containers.pop(container.id, None)
        shutil.rmtree(container.directory, ignore_errors=True)

    def list_sandboxes(self, wanted: api_pb2.PodSandboxFilter) -> list[api_pb2.PodSandbox]:
        """Return the sandboxes that match the filter, the oldest first."""
        found = [sandbox for sandbox in self.sandboxes.values() if _passes(sandbox, wanted)]
        return [sandbox.summary() for sandbox in sorted(found, key=lambda sandbox: sandbox.created_at)]

    def list_containers(self, wanted: api_pb2.ContainerFilter) -> list[api_pb2.Container]:
        """Return the containers that match the filter, the oldest first."""
        found = [
            container
            for container in self.containers.values()
            if _passes(container, wanted) and wanted.pod_sandbox_id in ("", container.sandbox_id)
        ]
        return [container.summary() for container in sorted(found, key=lambda container: container.created_at)]

    def _now(self) -> int:
        """Return the time, always later than the last one, so that creation times are different."""
        self._last_time = max(time.time_ns(), self._last_time + 1)
        return self._last_time


def _passes(thing: Sandbox | Container, wanted: api_pb2.PodSandboxFilter | api_pb2.ContainerFilter) -> bool:
    """Whether ID, state and labels match the filter of a list."""
    labels: Mapping[str, str] = thing.config.labels
    return (
        wanted.id in ("", thing.id)
        and (not wanted.HasField("state") or thing.state == wanted.state.state)
        and all(labels.get(key) == value for key, value in wanted.label_selector.items())
    )


def _taken(what: str, by: str) -> CallError:
    return CallError(grpc.StatusCode.ALREADY_EXISTS, f"{what} exists already: {by}")
