"""Events on a run's workload and policy, so that `kubectl describe deployment` shows the run."""

from datetime import datetime
from enum import StrEnum

from crrd.core.rollout.run import Run
from crrd.kube.events import Event

COMPONENT = "crrd-recreate"


class WorkloadEvent(StrEnum):
    """Reasons of the events."""

    RECREATING = "ContainersRecreating"
    RECREATED = "ContainersRecreated"
    FAILED = "ContainersRecreateFailed"
    INCOMPLETE = "ContainersRecreateIncomplete"
    TIMED_OUT = "ContainersRecreateTimedOut"
    INTERRUPTED = "ContainersRecreateInterrupted"
    STOPPED = "ContainersRecreateStopped"  # By an error, for example a right that was lost


_WARNINGS = (WorkloadEvent.FAILED, WorkloadEvent.INCOMPLETE, WorkloadEvent.TIMED_OUT, WorkloadEvent.STOPPED)


def workload_event(run: Run, reason: WorkloadEvent, message: str, now: datetime) -> Event | None:
    """Return an event on the run's target, or None if the target is not an object, but a label selector.

    `now` is the API server's time, because the local clock may be wrong.
    """
    target = run.target
    if not target.uid:
        return None
    kind = {"apiVersion": target.api_version, "kind": target.kind}
    involved = {**kind, "namespace": run.namespace, "name": target.name, "uid": target.uid}
    warning = reason in _WARNINGS
    return Event(involved, reason.value, f"run {run.name}: {message}", warning, COMPONENT, run.name, now)
