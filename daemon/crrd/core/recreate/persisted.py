"""What a request itself says: which instances it means, and what was begun with them (all a restarted daemon knows).

Its annotation has when a hook or a stop began, its status (isKilled) that a hook has ended (step 12).
"""

from crrd.core.api.types import Begun, Pin, Request, RequestedContainer
from crrd.core.recreate.observation import Work, WorkKind

HASTE_SECONDS = 10.0
"""For how long a stop that is still to be persisted makes looks at the runtime short."""


def target_of(request: Request, container: RequestedContainer) -> Pin | None:
    """Which instance has to go, as the request says; None where it must be pinned first (steps 4 and 5)."""
    pin = request.pinned.get(container.name)
    if request.strategy.force:
        return pin
    return container.context or pin


def begun_with(request: Request, name: str, pin: Pin | None) -> Begun:
    """What the annotation says was begun with this instance; Begun() where it speaks of another one."""
    pinned = request.pinned.get(name)
    same = pin is not None and pinned is not None and pinned.bare_id == pin.bare_id
    return request.begun.get(name, Begun()) if same else Begun()


def hook_end_untold(request: Request, work: Work) -> bool:
    """Whether the request does not say yet that this hook of it has ended, as it has to once it did.

    It says so by isKilled, or by its annotation if a CRD prunes that.
    """
    state = request.status.state(work.name)
    said = state.phase.final or state.is_killed or begun_with(request, work.name, work.pin).stop
    return not said and (work.under_way is WorkKind.HOOK or work.hook_began is not None)


def stop_untold(request: Request, work: Work, now: float) -> bool:
    """Whether a stop was sent a short while ago that goes on, or failed, and is still to be persisted."""
    if work.stop_sent is None or work.stopped or now >= work.stop_sent + HASTE_SECONDS:
        return False
    return not begun_with(request, work.name, work.pin).stop
