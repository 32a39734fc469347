"""Events on the workload, so that `kubectl describe deployment` shows a run. Left out if the right is missing."""

import time
from contextlib import suppress
from datetime import datetime
from enum import StrEnum

from crrd.core.api.time import rfc3339
from crrd.core.rollout.run import Run
from crrd.kube.client import KubeClient
from crrd.kube.resources import EVENTS
from crrd.lib.errors import ApiRefusedError, ApiUnavailableError

COMPONENT = "crrd-recreate"
_MESSAGE_CHARACTERS = 1024


class WorkloadEvent(StrEnum):
    """Reasons of the events."""

    RECREATING = "ContainersRecreating"
    RECREATED = "ContainersRecreated"
    FAILED = "ContainersRecreateFailed"
    TIMED_OUT = "ContainersRecreateTimedOut"
    INTERRUPTED = "ContainersRecreateInterrupted"


async def create_event(client: KubeClient, now: datetime, run: Run, reason: WorkloadEvent, message: str) -> None:
    """Create an event on the run's workload. Does nothing if the target is not a workload.

    `now` is the API server's time, because the local clock may be wrong.
    """
    target = run.target
    if not target.uid:
        return
    kind = {"apiVersion": target.api_version, "kind": target.kind}
    times = dict.fromkeys(("firstTimestamp", "lastTimestamp"), rfc3339(now))
    body = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"namespace": run.namespace, "name": f"{target.name[:200]}.{time.time_ns():x}"},
        "involvedObject": {**kind, "namespace": run.namespace, "name": target.name, "uid": target.uid},
        "type": "Warning" if reason in (WorkloadEvent.FAILED, WorkloadEvent.TIMED_OUT) else "Normal",
        "reason": reason.value,
        "message": message[:_MESSAGE_CHARACTERS],
        "count": 1,
        **times,
        "source": {"component": COMPONENT},
        "reportingComponent": COMPONENT,
        "reportingInstance": run.name,
    }
    with suppress(ApiRefusedError, ApiUnavailableError):  # events are optional: the requests have all state
        await client.create(EVENTS, run.namespace, body)
