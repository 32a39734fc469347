"""One container of the local runtime: its record on disk, its life, and what the CRI says about it.

Its directory holds `container.json` (what it is, written once), `shim.json` (who runs it, written before the shim gets
its word) and the shim's own files. From these alone a restarted runtime knows its state, see `Container.load`.
"""

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import json_format

from cri_stubs import api_pb2
from crrd_localnode.containers import exec as exec_
from crrd_localnode.containers import launch
from crrd_localnode.containers.images import image_id, no_usage
from crrd_localnode.containers.rpc import CallError, wrong_state
from crrd_localnode.containers.shim import KILL, STOP, Ended, Running, Spec, identity, write_json
from crrd_localnode.containers.shim_process import ShimProcess, StartingShim

_PROC = Path("/proc")
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
LOST_EXIT_CODE = 255  # Exit code of a container whose shim ended without a word, as containerd reports it

Changed = Callable[["Container", api_pb2.ContainerEventType.ValueType], None]


@dataclass(eq=False)
class Container:
    """A container in one of the states CREATED, RUNNING and EXITED."""

    directory: Path
    changed: Changed
    sandbox_id: str
    config: api_pb2.ContainerConfig
    created_at: int  # Nanoseconds since the epoch, as all times here
    log_path: str  # Absolute, "" for none
    started_at: int = 0
    exited: asyncio.Event = field(default_factory=asyncio.Event)
    _shim: ShimProcess | None = None
    _starting: bool = False
    _announced: bool = False
    _stop_sent: bool = False
    _ended: Ended | None = None
    _execs: set[int] = field(default_factory=set)  # The process groups of commands that run

    @property
    def id(self) -> str:
        """What the CRI calls it by."""
        return self.directory.name

    def save(self) -> None:
        """Write what the container is into its directory, which is made."""
        (self.directory / "rootfs").mkdir(parents=True)
        record = {"sandbox_id": self.sandbox_id, "created_at": self.created_at, "log_path": self.log_path}
        config = json_format.MessageToDict(self.config)
        write_json(str(self.directory / "container.json"), {**record, "config": config})

    @classmethod
    def load(cls, directory: Path, changed: Changed) -> "Container":
        """The container as an earlier life of the runtime left it; one that still runs is watched from now on."""
        record = json.loads((directory / "container.json").read_text())
        config = json_format.ParseDict(record["config"], api_pb2.ContainerConfig())
        container = cls(directory, changed, record["sandbox_id"], config, record["created_at"], record["log_path"])
        known = _read(directory / "shim.json")
        if known is None:
            return container
        container.started_at = known["started_at"]
        container._announced = True
        shim = ShimProcess.find(known["pid"], known["identity"])
        if shim is None:
            container._note_end()
        else:
            container._watch(shim)
        return container

    @property
    def state(self) -> api_pb2.ContainerState.ValueType:
        """Where in its life the container is."""
        if self._ended is not None:
            return api_pb2.CONTAINER_EXITED
        return api_pb2.CONTAINER_CREATED if self._shim is None else api_pb2.CONTAINER_RUNNING

    async def start(self, *, hostname: str, namespaced: bool) -> None:
        """Run the container's process.

        CallError: it was started before, its config makes no sense, or (it is EXITED then) its process cannot start.
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
        self.changed(self, api_pb2.CONTAINER_STARTED_EVENT)
        self._announced = True
        if self.exited.is_set():
            self.changed(self, api_pb2.CONTAINER_STOPPED_EVENT)

    async def stop(self, seconds: float) -> None:
        """Send the stop signal, once in the container's life, and kill what still runs after `seconds`.

        Returns when the container has ended; at once for one that does not run. A caller that goes away does not
        take the signal back, and nothing is killed on its behalf.
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
        """Run a command, which dies with the container; CallError where it cannot, or after so many seconds."""
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
        """Stop watching; a running container goes on by itself, for a later life of the runtime to find."""
        if self._shim is not None:
            self._shim.let_go()

    def _attributes(self) -> dict[str, Any]:
        """What every description says of it."""
        config = self.config
        return {
            "id": self.id, "metadata": config.metadata, "labels": config.labels, "annotations": config.annotations
        }  # fmt: skip

    def _outline(self) -> dict[str, Any]:
        """What a list and the whole description have in common."""
        image = image_id(self.config.image.image)
        state = {"state": self.state, "created_at": self.created_at, "image_ref": image, "image_id": image}
        return {**self._attributes(), **state}

    def summary(self) -> api_pb2.Container:
        """What a list says of the container."""
        return api_pb2.Container(pod_sandbox_id=self.sandbox_id, image=self.config.image, **self._outline())

    def status(self) -> api_pb2.ContainerStatus:
        """The whole description."""
        # Kubelet creates containers by an image's ID; real runtimes answer with a name of that image.
        image = api_pb2.ImageSpec(image=self.config.image.user_specified_image or self.config.image.image)
        ended: Any = self._ended or {}
        return api_pb2.ContainerStatus(
            started_at=self.started_at,
            image=image,
            mounts=self.config.mounts,
            log_path=self.log_path,
            stop_signal=self.config.stop_signal or api_pb2.SIGTERM,
            **self._outline(),
            **ended,
        )

    def _running(self) -> Running | None:
        """The container's process; None where it does not run."""
        running: Running | None = _read(self.directory / "process.json")
        return running if self.state == api_pb2.CONTAINER_RUNNING else None

    def details(self) -> dict[str, str]:
        """The free-form part of the description: the numbers of the container's process and of its shim."""
        running = self._running()
        shim = self._shim.pid if self._shim and self.state == api_pb2.CONTAINER_RUNNING else 0
        return {"info": json.dumps({"pid": running["pid"] if running else 0, "shimPid": shim})}

    def stats(self) -> api_pb2.ContainerStats:
        """What its processes use now; nothing of one that does not run. Reads files."""
        running, now = self._running(), time.time_ns()
        nanoseconds, memory_bytes = _usage_of(running["pid"]) if running else (0, 0)
        cpu, memory = api_pb2.UInt64Value(value=nanoseconds), api_pb2.UInt64Value(value=memory_bytes)
        return api_pb2.ContainerStats(
            attributes=api_pb2.ContainerAttributes(**self._attributes()),
            cpu=api_pb2.CpuUsage(timestamp=now, usage_core_nano_seconds=cpu),
            memory=api_pb2.MemoryUsage(timestamp=now, working_set_bytes=memory, rss_bytes=memory),
            writable_layer=no_usage(self.directory / "rootfs"),
        )

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
        # A process can end before its start has been told; nobody shall hear of the end first.
        if self._announced:
            self.changed(self, api_pb2.CONTAINER_STOPPED_EVENT)

    def _note_end(self) -> None:
        """The shim is no more: read how the container ended, or settle it where the shim died before it could."""
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


def _usage_of(pid: int) -> tuple[int, int]:
    """CPU nanoseconds and resident bytes of a process and all below it; what has ended counts in its parent.

    From /proc: there is no cgroup to ask.
    """
    fields = {each.name: found for each in _PROC.glob("[0-9]*") if (found := _stat(each))}
    below: dict[str, list[str]] = {}
    for name, found in fields.items():
        below.setdefault(found[1], []).append(name)
    ticks = pages = 0
    waiting = [str(pid)] if str(pid) in fields else []
    while waiting:
        name = waiting.pop()
        found = fields[name]
        ticks += sum(map(int, found[11:15]))  # utime, stime, cutime, cstime of proc(5), which counts from 1, pid first
        pages += int(found[21])
        waiting += below.get(name, [])
    return ticks * 1_000_000_000 // _TICKS, pages * _PAGE


def _stat(process: Path) -> list[str]:
    """The fields of its `stat` from the state on; none of one that has just ended."""
    try:
        return (process / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
