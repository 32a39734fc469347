"""Events on a run's workload and policy, so that `kubectl describe deployment` shows the run."""

from datetime import datetime

from crrd.core.rollout.phases import End
from crrd.core.rollout.run import Run
from crrd.kube.events import Event

COMPONENT = "crrd-recreate"
BEGUN = None
"""In place of an end: the run begins."""
_BEGINS = "ContainersRecreating"


def workload_event(run: Run, end: End | None, message: str, now: datetime) -> Event | None:
    """Return the event for an end on the run's target, or for its begin.

    None if this end has no event, or the target is not an object, but a label selector. `now` is the API server's time,
    because the local clock may be wrong.
    """
    target, reason = run.target, end.event if end is not None else _BEGINS
    if not target.uid or not reason:
        return None
    kind = {"apiVersion": target.api_version, "kind": target.kind}
    involved = {**kind, "namespace": run.namespace, "name": target.name, "uid": target.uid}
    return Event(involved, reason, f"run {run.name}: {message}", _warns(end), COMPONENT, run.name, now)


def _warns(end: End | None) -> bool:
    """Whether the event is a warning: all are, but those about a run that begins, is done, or was interrupted."""
    return end not in (BEGUN, End.DONE, End.INTERRUPTED)
