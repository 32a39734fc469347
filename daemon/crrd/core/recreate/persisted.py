"""What a request records: its target instances and their start times. A restarted daemon knows nothing else.

Its annotation has when a hook or a stop began, its status (isKilled) that a hook has ended (step 12).
"""

from crrd.core.api.types import Pin, Request, RequestedContainer, StartTimes
from crrd.core.recreate.observation import Work, WorkKind

HASTE_SECONDS = 10.0  # For how long a stop that is still to be persisted makes looks at the runtime short


def target_of(request: Request, container: RequestedContainer) -> Pin | None:
    """Which instance has to go, as the request says; None where it must be pinned first (steps 4 and 5)."""
    pin = request.pinned.get(container.name)
    if request.strategy.force:
        return pin
    return container.context or pin


def start_times_of(request: Request, name: str, pin: Pin | None) -> StartTimes:
    """Start times that the annotation records for this instance; StartTimes() if it records another instance."""
    pinned = request.pinned.get(name)
    same = pin is not None and pinned is not None and pinned.bare_id == pin.bare_id
    return request.start_times.get(name, StartTimes()) if same else StartTimes()


def hook_end_unrecorded(request: Request, work: Work) -> bool:
    """Whether the request does not record the end of this hook yet.

    isKilled records it, or the annotation if the CRD prunes isKilled.
    """
    state = request.status.state(work.name)
    recorded = state.phase.final or state.is_killed or start_times_of(request, work.name, work.pin).stop
    return not recorded and (work.under_way is WorkKind.HOOK or work.hook_began is not None)


def stop_unrecorded(request: Request, work: Work, now: float) -> bool:
    """Whether a stop was sent a short while ago, has not succeeded, and is not persisted yet."""
    if work.stop_sent is None or work.stopped or now >= work.stop_sent + HASTE_SECONDS:
        return False
    return not start_times_of(request, work.name, work.pin).stop
