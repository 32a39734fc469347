"""Writes kubelet's events about pods, each text once for a pod: a local node does not count repetitions."""

import asyncio
import time

import structlog

from crrd.kube.client import KubeClient
from crrd.kube.resources import EVENTS
from crrd.lib.errors import CrrdError
from crrd_localnode.pods import spec as podspec
from crrd_localnode.pods.spec import Json
from crrd_localnode.pods.status import timestamp

_log = structlog.get_logger()


class Recorder:
    """Writes in the background. Events that cannot be written are dropped."""

    def __init__(self, client: KubeClient, node_name: str) -> None:
        self._client = client
        self._node_name = node_name
        self._written: set[tuple[str, str]] = set()  # Pod UID, message
        self._tasks: set[asyncio.Task[None]] = set()

    def warn(self, pod: Json, reason: str, message: str, container: str = "", *, kind: str = "Warning") -> None:
        """Write an event about the pod, or one of its containers."""
        if (podspec.uid(pod), message) in self._written:
            return
        self._written.add((podspec.uid(pod), message))
        _log.warning("pod_event", pod=podspec.key(pod), reason=reason, message=message)
        metadata, now = pod["metadata"], timestamp(time.time_ns())
        involved = {field: metadata.get(field, "") for field in ("name", "namespace", "uid", "resourceVersion")}
        involved |= {"fieldPath": f"spec.containers{{{container}}}"} if container else {}
        event: Json = {
            "metadata": {"name": f"{metadata['name']}.{time.time_ns():x}", "namespace": metadata["namespace"]},
            "involvedObject": {"apiVersion": "v1", "kind": "Pod", **involved},
            "type": kind, "reason": reason, "message": message, "count": 1,
            "firstTimestamp": now, "lastTimestamp": now, "source": {"component": "kubelet", "host": self._node_name},
            "reportingComponent": "kubelet", "reportingInstance": self._node_name,
        }  # fmt: skip
        task = asyncio.create_task(self._write(event))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _write(self, event: Json) -> None:
        try:
            await self._client.create(EVENTS, event["metadata"]["namespace"], event)
        except CrrdError as error:
            _log.warning("event_dropped", event=event["metadata"]["name"], error=str(error))

    def forget(self, uid: str) -> None:
        """Forget the events of a pod that is gone."""
        self._written = {key for key in self._written if key[0] != uid}
