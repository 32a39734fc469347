"""One container of the local runtime: its record on disk, its lifecycle, and its CRI status.

Its directory contains `container.json` (its config, written once), `shim.json` (its shim, written before the shim may
run) and the shim's own files. A restarted runtime reads its state from these files, see `Container.load`.
"""

import asyncio
import contextlib
import json
import os
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import json_format

from cri_stubs import api_pb2
from crrd_localnode.containers import exec as exec_
from crrd_localnode.containers import launch
from crrd_localnode.containers.images import Image
from crrd_localnode.containers.rpc import CallError, wrong_state
from crrd_localnode.containers.shim import KILL, STOP, Ended, Running, Spec, identity, write_json
from crrd_localnode.containers.shim_process import ShimProcess, StartingShim

LOST_EXIT_CODE = 255  # Exit code if the shim ended without recording one, as containerd reports it


@dataclass(eq=False)
class Container:
    """A container in one of the states CREATED, RUNNING and EXITED."""

    directory: Path
    sandbox_id: str
    config: api_pb2.ContainerConfig
    image_id: str
    created_at: int  # Nanoseconds since the epoch, like all times here
    log_path: str  # Absolute path, or ""
    started_at: int = 0
    exited: asyncio.Event = field(default_factory=asyncio.Event)
    _shim: ShimProcess | None = None
    _starting: bool = False
    _stop_sent: bool = False
    _ended: Ended | None = None
    _execs: set[int] = field(default_factory=set)  # Process groups of running commands

    @property
    def id(self) -> str:
        """The container's ID in the CRI."""
        return self.directory.name

    def save(self) -> None:
        """Create the container's directory, and write its record."""
        (self.directory / "rootfs").mkdir(parents=True)
        record = {
            "sandbox_id": self.sandbox_id, "config": json_format.MessageToDict(self.config), "image_id": self.image_id,
            "created_at": self.created_at, "log_path": self.log_path,
        }  # fmt: skip
        write_json(str(self.directory / "container.json"), record)

    @classmethod
    def load(cls, directory: Path) -> "Container":
        """Load a container that an earlier runtime process has created. If it is running, it is watched from now on."""
        record = json.loads((directory / "container.json").read_text())
        config = json_format.ParseDict(record["config"], api_pb2.ContainerConfig())
        image_id = record.get("image_id", "")  # missing in records of earlier versions, whose containers are removed
        fields = record["created_at"], record["log_path"]
        container = cls(directory, record["sandbox_id"], config, image_id, *fields)
        known = _read(directory / "shim.json")
        if known is None:
            return container
        container.started_at = known["started_at"]
        shim = ShimProcess.find(known["pid"], known["identity"])
        if shim is None:
            container._note_end()
        else:
            container._watch(shim)
        return container

    @property
    def state(self) -> api_pb2.ContainerState.ValueType:
        """The container's state."""
        if self._ended is not None:
            return api_pb2.CONTAINER_EXITED
        return api_pb2.CONTAINER_CREATED if self._shim is None else api_pb2.CONTAINER_RUNNING

    async def start(self, *, hostname: str, namespaced: bool) -> None:
        """Start the container's process.

        CallError if it was started before, its config is invalid, or its process cannot start (it is EXITED then).
        """
        if self._starting or self.state != api_pb2.CONTAINER_CREATED:
            raise self._wrong_state(" and cannot be started")
        spec = launch.spec_of(self.config, self.directory / "rootfs", self.log_path, hostname, namespaced=namespaced)
        self._starting = True
        write_json(str(self.directory / "spec.json"), spec)
        starting = StartingShim(self.directory)
        self.started_at = time.time_ns()
        known = {"pid": starting.process.pid, "identity": starting.known_as, "started_at": self.started_at}
        write_json(str(self.directory / "shim.json"), known)
        self._watch(starting.process)
        error = await starting.run()
        if error:
            await self.exited.wait()
            raise CallError(grpc.StatusCode.UNKNOWN, f"container {self.id} cannot be started: {error}")

    async def stop(self, seconds: float) -> None:
        """Send the stop signal, once in the container's life, and kill it after `seconds`.

        Returns when the container has ended, and at once if it is not running. A cancelled call does not take the
        signal back, and does not kill the container.
        """
        if self.state != api_pb2.CONTAINER_RUNNING or self._shim is None:
            return
        if seconds > 0:
            if not self._stop_sent:
                self._stop_sent = True
                self._shim.send(STOP)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self.exited.wait()
                return
        self._shim.send(KILL)
        await self.exited.wait()

    async def execute(self, command: list[str], seconds: float | None) -> api_pb2.ExecSyncResponse:
        """Run a command, which is killed with the container. CallError if it cannot be run, or on a timeout."""
        running = self._running()
        spec: Spec | None = _read(self.directory / "spec.json")
        if running is None or spec is None:
            raise self._wrong_state(": no command can be run in it")
        try:
            argv = launch.exec_argv(spec, running["pid"], command)
            cwd = None if spec["namespaced"] else spec["cwd"]
            return await exec_.run(argv, env=spec["env"], cwd=cwd, seconds=seconds, groups=self._execs)
        except TimeoutError as error:
            message = f"the command did not end within {seconds:g} s and was killed"
            raise CallError(grpc.StatusCode.DEADLINE_EXCEEDED, message) from error
        except OSError as error:
            raise CallError(grpc.StatusCode.UNKNOWN, f"the command cannot be run: {error}") from error

    def let_go(self) -> None:
        """Stop watching. A running container continues, and a later runtime process finds it."""
        if self._shim is not None:
            self._shim.let_go()

    def _outline(self) -> dict[str, Any]:
        """Return the fields that list entry and status have in common."""
        config = self.config
        return {
            "id": self.id, "metadata": config.metadata, "labels": config.labels, "annotations": config.annotations,
            "state": self.state, "created_at": self.created_at, "image_id": self.image_id,
        }  # fmt: skip

    def summary(self) -> api_pb2.Container:
        """Return the container's entry in a list."""
        outline = self._outline()
        return api_pb2.Container(
            pod_sandbox_id=self.sandbox_id, image=self.config.image, image_ref=self.image_id, **outline
        )

    def status(self, image: Image | None) -> api_pb2.ContainerStatus:
        """Return the container's status. `image` is None if it was removed."""
        # Kubelet creates containers by an image's ID. As containerd, the status has the names of that image instead.
        name = image.name if image and image.tagged else self.config.image.image
        ended: Any = self._ended or {}
        return api_pb2.ContainerStatus(
            started_at=self.started_at,
            image=api_pb2.ImageSpec(image=name),
            image_ref=image.digest_name if image else self.image_id,
            mounts=self.config.mounts,
            log_path=self.log_path,
            stop_signal=self.config.stop_signal or api_pb2.SIGTERM,
            **self._outline(),
            **ended,
        )

    def _running(self) -> Running | None:
        """The container's process, or None if it is not running."""
        running: Running | None = _read(self.directory / "process.json")
        return running if self.state == api_pb2.CONTAINER_RUNNING else None

    def details(self) -> dict[str, str]:
        """Return the verbose info of the status: the PIDs of the container's process and of its shim."""
        running = self._running()
        shim = self._shim.pid if self._shim and self.state == api_pb2.CONTAINER_RUNNING else 0
        return {"info": json.dumps({"pid": running["pid"] if running else 0, "shimPid": shim})}

    def _wrong_state(self, consequence: str) -> CallError:
        return wrong_state(f"container {self.id} is in state {api_pb2.ContainerState.Name(self.state)}{consequence}")

    def _watch(self, shim: ShimProcess) -> None:
        self._shim = shim
        shim.on_exit(self._on_exit)

    def _on_exit(self) -> None:
        self._note_end()
        for group in self._execs:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)

    def _note_end(self) -> None:
        """The shim has ended: read the container's result, or set it if the shim died before writing it."""
        self._ended = _read(self.directory / "exit.json")
        if self._ended is None:
            running: Running | None = _read(self.directory / "process.json")
            if running and identity(running["pid"]) == running["identity"]:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(running["pid"], signal.SIGKILL)
            self._ended = {
                "exit_code": LOST_EXIT_CODE,
                "finished_at": time.time_ns(),
                "reason": "Unknown",
                "message": "the process that watched the container has died",
            }
            write_json(str(self.directory / "exit.json"), self._ended)
        self.exited.set()


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return None
