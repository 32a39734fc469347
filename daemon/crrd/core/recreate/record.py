"""What a request itself says of the work that was begun for it: all that a restarted daemon knows (step 12).

Its annotation has when a hook or a stop began, its status (isKilled) that a hook has ended.
"""

from crrd.core.api.types import Begun, Pin, Request
from crrd.core.recreate.observation import Work, WorkKind

HASTE_SECONDS = 10.0
"""For how long a stop that is still to be persisted makes looks at the runtime short."""


def begun_with(request: Request, name: str, pin: Pin | None) -> Begun:
    """What the annotation says was begun with this instance; Begun() where it speaks of another one."""
    pinned = request.pinned.get(name)
    same = pin is not None and pinned is not None and pinned.bare_id == pin.bare_id
    return request.begun.get(name, Begun()) if same else Begun()


def hook_end_told(request: Request, name: str, pin: Pin | None) -> bool:
    """Whether the request says that the instance's hook has ended: by isKilled, or by its pin if a CRD prunes that."""
    return request.status.state(name).is_killed or bool(begun_with(request, name, pin).stop)


def hook_end_untold(request: Request, work: Work) -> bool:
    """Whether the request does not say yet that this hook of it has ended, as it has to once it did."""
    said = request.status.state(work.name).phase.final or hook_end_told(request, work.name, work.pin)
    return not said and (work.under_way is WorkKind.HOOK or work.hook_began is not None)


def stop_untold(request: Request, work: Work, now: float) -> bool:
    """Whether a stop was sent a short while ago that goes on, or failed, and is still to be persisted."""
    if work.stop_sent is None or work.stopped or now >= work.stop_sent + HASTE_SECONDS:
        return False
    return not begun_with(request, work.name, work.pin).stop
