"""Reads kubelet's events on failed probes, for the pods that a run waits for."""

from collections.abc import Mapping
from contextlib import suppress

from crrd.core.rollout.plan import Plan
from crrd.core.rollout.state import ProbeFailure
from crrd.core.rollout.waits import read_probe_failure
from crrd.kube.client import KubeClient
from crrd.kube.resources import EVENTS
from crrd.lib.errors import ApiRefusedError, ApiUnavailableError
from crrd.lib.looptime import loop_time

_SECONDS = 10.0  # Interval of reading the events while a recreated pod is not ready


class Probes:
    """The last failures of probes in a namespace. The constructor reads nothing."""

    def __init__(self, client: KubeClient, namespace: str) -> None:
        self._client, self._namespace = client, namespace
        self.known: Mapping[tuple[str, str], ProbeFailure] = {}  # As `World.probes`
        self._read_at = float("-inf")  # The loop's time

    async def learn(self, plan: Plan) -> bool:
        """Read the events if a pod of the plan waits for a probe. Return whether they were read.

        They are read every few seconds at most. Without the right to list events, none are known.
        """
        now = loop_time()
        if now < self._read_at + _SECONDS or not any(row.wait.topic for row in plan.rows):
            return False
        self._read_at = now
        with suppress(ApiRefusedError, ApiUnavailableError):
            where = {"namespace": self._namespace, "field_selector": "reason=Unhealthy"}
            listing = await self._client.list_all(EVENTS, read_probe_failure, **where)
            self.known = dict(sorted(filter(None, listing.items), key=lambda found: found[1].at))
        return True
