"""One pod sandbox of the local runtime: a record, because nothing of a pod is isolated here."""

import json
from dataclasses import dataclass
from pathlib import Path

from google.protobuf import json_format

from cri_stubs import api_pb2
from crrd_localnode.containers.shim import write_json

POD_IP = "127.0.0.1"  # The address of every pod: they all live in the node's network


@dataclass(slots=True)
class Sandbox:
    """A sandbox; it is ready until it is stopped."""

    id: str
    config: api_pb2.PodSandboxConfig
    created_at: int  # Nanoseconds since the epoch
    handler: str = ""
    ready: bool = True

    def save(self, directory: Path) -> None:
        """Write the record into the directory of all sandboxes."""
        record = {
            "created_at": self.created_at,
            "handler": self.handler,
            "ready": self.ready,
            "config": json_format.MessageToDict(self.config),
        }
        write_json(str(directory / f"{self.id}.json"), record)

    @classmethod
    def load(cls, file: Path) -> "Sandbox":
        """The sandbox from its record."""
        record = json.loads(file.read_text())
        config = json_format.ParseDict(record["config"], api_pb2.PodSandboxConfig())
        return cls(file.stem, config, record["created_at"], record["handler"], record["ready"])

    @property
    def state(self) -> api_pb2.PodSandboxState.ValueType:
        """Whether containers can be made in it."""
        return api_pb2.SANDBOX_READY if self.ready else api_pb2.SANDBOX_NOTREADY

    def log_path(self, relative: str) -> str:
        """Absolute path of a container's log; "" for none."""
        return str(Path(self.config.log_directory) / relative) if self.config.log_directory and relative else ""

    def summary(self) -> api_pb2.PodSandbox:
        """What a list says of it."""
        return api_pb2.PodSandbox(
            id=self.id,
            metadata=self.config.metadata,
            state=self.state,
            created_at=self.created_at,
            labels=self.config.labels,
            annotations=self.config.annotations,
            runtime_handler=self.handler,
        )

    def status(self) -> api_pb2.PodSandboxStatus:
        """The whole description."""
        return api_pb2.PodSandboxStatus(
            id=self.id,
            metadata=self.config.metadata,
            state=self.state,
            created_at=self.created_at,
            network=api_pb2.PodSandboxNetworkStatus(ip=POD_IP if self.ready else ""),
            linux=api_pb2.LinuxPodSandboxStatus(
                namespaces=api_pb2.Namespace(options=self.config.linux.security_context.namespace_options)
            ),
            labels=self.config.labels,
            annotations=self.config.annotations,
            runtime_handler=self.handler,
        )
