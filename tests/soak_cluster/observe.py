"""Watches API server, runtime, files and audit log, and passes on to the `Collector` what they show.

A watch is resumed from its last version. If the API server does not have that version any more, everything is listed
again, and what happened in between is missing: `Observer.gaps` counts this.
"""

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc

from cri_stubs import api_pb2 as pb
from crrd.core.api.types import PLURAL
from crrd.kube.client import KubeClient
from crrd.kube.resources import PODS, POLICIES, REQUESTS, Resource
from crrd.lib.errors import ApiRefusedError, ApiUnavailableError, ExpiredError
from tests.soak_cluster.collect import Collector
from tests.soak_cluster.record import Instance
from tests.support.cluster import Cluster

See = Callable[[str, Mapping[str, Any] | None, float], None]
POLL_SECONDS = 3.0
PAUSE_SECONDS = 0.3  # After a failed call
CALL_SECONDS = 10.0
TERMINATION_LOG = "/dev/termination-log"
"""Where kubelet mounts a file for each container. The name of the file differs for each instance, and both the
container and the runtime know it."""


class Observer:
    """All watches. `run` ends only when it is cancelled."""

    def __init__(self, cluster: Cluster, collector: Collector, folder: Path, audit_log: Path | None) -> None:
        self._cluster = cluster
        self._collector = collector
        self._folder = folder  # Of the containers' files
        self._audit_log = audit_log
        self._read: dict[Path, int] = {}  # File -> bytes read so far
        self._news = asyncio.Event()  # Something has changed in the runtime
        self._keys: dict[str, str] = {}
        self.gaps = 0
        if audit_log is not None:
            collector.audited = set()
            self._read[audit_log] = audit_log.stat().st_size

    async def run(self) -> None:
        """Watch everything."""
        collector = self._collector
        sees: tuple[tuple[Resource, See], ...] = (
            (REQUESTS, collector.request), (PODS, collector.pod), (POLICIES, collector.policy)
        )  # fmt: skip
        async with asyncio.TaskGroup() as group:
            for resource, see in sees:
                group.create_task(self._follow(self._cluster.client, resource, see))
            group.create_task(self._follow_runtime())
            group.create_task(self._events())

    # The API server

    async def _follow(self, client: KubeClient, resource: Resource, see: See) -> None:
        known: set[str] = set()
        version, namespace = "", self._cluster.namespace
        while True:
            try:
                if not version:
                    listing = await client.list_all(resource, dict, namespace=namespace)
                    now, version = time.time(), listing.resource_version
                    found = {each["metadata"]["uid"]: each for each in listing.items}
                    for uid in known | found.keys():
                        see(uid, found.get(uid), now)
                    known = set(found)
                async with client.watch(resource, version, namespace=namespace) as events:
                    async for event in events:
                        version = event.object["metadata"]["resourceVersion"]
                        if event.kind == "BOOKMARK":
                            continue
                        uid = event.object["metadata"]["uid"]
                        deleted = event.kind == "DELETED"
                        known = known - {uid} if deleted else known | {uid}
                        see(uid, None if deleted else event.object, time.time())
            except ExpiredError:
                self.gaps += 1
                version = ""
            except (ApiUnavailableError, ApiRefusedError):
                await asyncio.sleep(PAUSE_SECONDS)

    # The runtime

    async def _events(self) -> None:
        """Have the runtime looked at after each of its events. Some runtimes do not send any."""
        while True:
            with suppress(grpc.aio.AioRpcError):
                async for event in self._cluster.cri.GetContainerEvents(pb.GetEventsRequest()):
                    stopped = event.container_event_type == pb.CONTAINER_STOPPED_EVENT
                    if stopped and event.container_id in self._collector.running:
                        self._collector.absent([event.container_id], event.created_at / 1e9)
                    self._news.set()
            await asyncio.sleep(PAUSE_SECONDS)

    async def _follow_runtime(self) -> None:
        while True:
            with suppress(grpc.aio.AioRpcError):
                await self.look()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), POLL_SECONDS)
            self._news.clear()

    async def look(self) -> None:
        """Read all containers of the namespace from the runtime."""
        where = {"io.kubernetes.pod.namespace": self._cluster.namespace}
        request = pb.ListContainersRequest(filter=pb.ContainerFilter(label_selector=where))
        before, now = self._collector.running, time.time()
        listed = (await self._cluster.cri.ListContainers(request, timeout=CALL_SECONDS)).containers
        for each in listed:
            if each.id not in self._keys or (each.state == pb.CONTAINER_EXITED and each.id in before):
                await self._look_at(each)
        self._collector.absent(before - {each.id for each in listed}, now)

    async def _look_at(self, container: pb.Container) -> None:
        request = pb.ContainerStatusRequest(container_id=container.id)
        status = (await self._cluster.cri.ContainerStatus(request, timeout=CALL_SECONDS)).status
        logs = [mount.host_path for mount in status.mounts if mount.container_path == TERMINATION_LOG]
        if not status.started_at or not logs:
            return  # not started yet
        self._keys[container.id] = key = Path(logs[0]).name
        instance = Instance(
            container.id,
            container.labels["io.kubernetes.pod.uid"],
            container.labels["io.kubernetes.container.name"],
            status.started_at / 1e9,
            status.finished_at / 1e9 if status.state == pb.CONTAINER_EXITED else None,
            container.pod_sandbox_id,
        )
        self._collector.seen(instance, key)

    # Files

    def read_files(self) -> None:
        """Read what the containers have written, and which requests the audit log has, since the last time."""
        boot = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
        for file in self._folder.glob("*.log"):
            for line in self._new_lines(file):
                self._collector.line(line, boot)
        if self._audit_log is not None and self._collector.audited is not None:
            self._collector.audited |= {
                name for line in self._new_lines(self._audit_log) for name in self._created(line)
            }

    def _new_lines(self, file: Path) -> list[str]:
        with file.open("rb") as opened:
            opened.seek(self._read.get(file, 0))
            whole, newline, _ = opened.read().rpartition(b"\n")
        self._read[file] = self._read.get(file, 0) + len(whole + newline)
        return whole.decode(errors="replace").splitlines()

    def _created(self, line: str) -> list[str]:
        """Return the name of the request that this line of the audit log says was created."""
        if PLURAL not in line or '"create"' not in line:
            return []
        event = json.loads(line)
        about, stored = event.get("objectRef") or {}, (event.get("responseStatus") or {}).get("code") == 201
        ours = about.get("resource") == PLURAL and about.get("namespace") == self._cluster.namespace
        dry = "dryRun" in event.get("requestURI", "")
        return [about["name"]] if ours and stored and not dry and event["verb"] == "create" and "name" in about else []
