"""Writes the status of one pod to the API after every change, and retries while the API server is unavailable.

Separate from the pod's worker, like kubelet's status manager, so that containers are managed meanwhile. Other code
computes the status. This module tracks the newest version of the pod's object, and writes to it.
"""

import asyncio
from collections.abc import Callable
from typing import NoReturn

import structlog

from crrd.kube.client import KubeClient
from crrd.kube.resources import PODS
from crrd.lib.errors import ApiRefusedError, ApiUnavailableError, ConflictError, GoneError
from crrd_localnode.pods import spec as podspec
from crrd_localnode.pods.spec import Json

_log = structlog.get_logger()

AWAY_SECONDS = 1.0  # Delay after the API server could not be reached


class Reporter:
    """Keeps the newest version of one pod's object, and keeps its status in the API up to date."""

    def __init__(
        self, client: KubeClient, pod: Json, status: Callable[[Json], Json | None], gone: Callable[[], None]
    ) -> None:
        """`status` returns the status for a version of the pod (None for none yet). `gone`: the object was deleted."""
        self.pod = pod
        self._uid = podspec.uid(pod)
        self._client = client
        self._status = status
        self._gone = gone
        self._due = asyncio.Event()
        self._writing = asyncio.Lock()

    def take(self, pod: Json) -> bool:
        """Keep this version if it is newer. The watch may report versions older than our own last write."""
        newer = _version(pod) > _version(self.pod)
        if newer:
            self.pod = pod
        return newer

    def due(self) -> None:
        """Request a write, because the status may have changed."""
        self._due.set()

    async def run(self) -> NoReturn:
        """Write the status whenever it is due, until cancelled."""
        while True:
            await self._due.wait()
            self._due.clear()
            try:
                await self.write()
            except (ApiUnavailableError, ApiRefusedError) as error:
                _log.warning("status_not_written", pod=podspec.key(self.pod), error=str(error))
                await asyncio.sleep(AWAY_SECONDS)
                self._due.set()

    async def write(self) -> None:
        """Write the status if it differs from the API's. Raises ApiUnavailableError, ApiRefusedError.

        The patch is bound to the version it was made from, so that other clients' conditions are not lost.
        """
        async with self._writing:
            while await self._try():
                pass

    async def _try(self) -> bool:
        """Try once. Return whether another attempt is needed, with a newer version of the object."""
        status = self._status(self.pod)
        if status is None:
            return False
        old = self.pod.get("status") or {}
        changed = {name: value for name, value in status.items() if old.get(name) != value}
        if not changed:
            return False
        metadata = self.pod["metadata"]
        bound = {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}
        address = (PODS, metadata["namespace"], metadata["name"])
        try:
            body = {"metadata": bound, "status": changed}
            self.take(dict(await self._client.merge_patch(*address, body, subresource="status")))
        except ConflictError:
            return await self._renew()
        except GoneError:
            self._gone()
        return False

    async def _renew(self) -> bool:
        """Read the object again. Return whether it is still the same pod."""
        metadata = self.pod["metadata"]
        try:
            newer = dict(await self._client.get(PODS, metadata["namespace"], metadata["name"]))
        except GoneError:
            newer = {}
        if newer and podspec.uid(newer) == self._uid:
            return self.take(newer)
        self._gone()
        return False


def _version(pod: Json) -> int:
    """Return the object's resourceVersion as a number. Kubernetes guarantees since 1.35 that they can be compared."""
    return int(pod["metadata"]["resourceVersion"])
