"""Writes how far a run is on its requests, so that `status` tells one that goes on from one whose process has gone."""

import os
import socket
import time
from contextlib import suppress

from crrd.core.api.time import rfc3339
from crrd.core.rollout.overview import LIVE_SECONDS, RUNNING, WAITING
from crrd.core.rollout.plan import Plan
from crrd.core.rollout.run import Progress, Run
from crrd.core.rollout.standing import progress
from crrd.kube.client import KubeClient
from crrd.kube.clock import ServerClock
from crrd.kube.resources import REQUESTS
from crrd.lib.errors import ApiRefusedError, ApiUnavailableError
from crrd.rollout.cluster import Cluster

_PAUSE_SECONDS = LIVE_SECONDS / 4
_CHARACTERS = 500  # Of what is waited for


class Reporter:
    """What one process writes."""

    def __init__(self, client: KubeClient, cluster: Cluster, clock: ServerClock) -> None:
        self._client, self._cluster, self._clock = client, cluster, clock
        self._by = f"{socket.gethostname()}/{os.getpid()}"
        self._state, self._next = "", 0.0

    def annotation(self, plan: Plan, state: str = "") -> dict[str, str]:
        """How far the run is, for a request that is created now."""
        state = state or (WAITING if plan.waiting else RUNNING)
        self._state, self._next = state, time.monotonic() + _PAUSE_SECONDS
        done, total = progress(plan.rows)
        waits = "; ".join(plan.waits)[:_CHARACTERS]
        return Progress(rfc3339(self._clock.now()), self._by, state, done, total, waits).annotation()

    async def write(self, run: Run, plan: Plan, state: str = "") -> None:
        """Write it on the newest request, where that is due; `state` says how the process ends."""
        state = state or (WAITING if plan.waiting else RUNNING)
        if state == self._state and time.monotonic() < self._next:
            return
        own = [each for each in self._cluster.world().requests if each.annotations.run.name == run.name]
        if not own:
            return
        name = max(own, key=lambda each: each.age).request.name
        body = {"metadata": {"annotations": self.annotation(plan, state)}}
        with suppress(ApiRefusedError, ApiUnavailableError):  # the requests themselves are what counts
            self._cluster.written(await self._client.merge_patch(REQUESTS, run.namespace, name, body))


def is_gone(by: str) -> bool:
    """Whether it is for certain that the process of a run has ended: it ran on this host."""
    host, _, number = by.rpartition("/")
    if host != socket.gethostname() or not number.isdigit():
        return False
    try:
        os.kill(int(number), 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        pass
    return False
