"""The messages of a status: a reason with its sentence. The message of a wait changes only at certain times (STEPS)."""

from collections.abc import Sequence
from dataclasses import dataclass

from crrd.core.api.pod import PodContainer, PodMeta
from crrd.core.api.reasons import Reason
from crrd.core.recreate.observation import Ending, Instance
from crrd.kubelet.waiting import ORDINARY

STEPS = (2, 10, 30, 60, 120, 300, 600, 1800, 3600, 4 * 3600, 24 * 3600)
"""Seconds of a wait at which its message is written."""
LATER_STEPS = (5, *STEPS[1:])  # First message after 5 s, because a healthy container can take that long
BACK_OFF_RESET_SECONDS = 600.0
"""Time after which kubelet's restart back-off starts again (twice its maximum, pkg/kubelet/kuberuntime)."""


@dataclass(frozen=True, slots=True)
class Message:
    """A reason and its sentence; falsy if there is no message."""

    reason: Reason = Reason.NONE
    text: str = ""

    def __bool__(self) -> bool:
        return bool(self.reason)

    @classmethod
    def of(cls, reason: Reason, **values: object) -> "Message":
        """Return a reason with its sentence from the table of reasons."""
        return cls(reason, reason.say(**values))


NO_MESSAGE = Message()


def pod_over(pod: PodMeta) -> Message:
    """Return why kubelet starts nothing in a pod any more, because it is being deleted or has ended."""
    if pod.deleting:
        return Message.of(Reason.POD_DELETING)
    return Message.of(Reason.POD_ENDED, phase=pod.phase) if pod.ended else NO_MESSAGE


def waited(since: float, now: float, steps: Sequence[int] = STEPS) -> tuple[int, float | None]:
    """Return the last of the steps (seconds, in order) that a wait has reached, or 0, and when it reaches the next."""
    reached = max((step for step in steps if now >= since + step), default=0)
    return reached, next((since + step for step in steps if now < since + step), None)


def held_back(status: PodContainer) -> str:
    """Return kubelet's message about what the container waits for, or "" if every start has that wait."""
    if status.waiting_reason in ORDINARY:
        return ""
    return f"{status.waiting_reason}: {status.waiting_message}".removesuffix(": ")


def kubelet_message(status: PodContainer) -> Message:
    """Return what kubelet says that the container waits for."""
    details = held_back(status)
    return Message.of(Reason.HELD_BACK, details=details) if details else NO_MESSAGE


def not_ready(status: PodContainer, newest: Instance, running_since: float, now: float) -> tuple[Message, float | None]:
    """Step 10: return the message about an instance that is not ready, and the time of the next one."""
    seconds, more_at = waited(running_since, now, LATER_STEPS)
    if not seconds:
        return NO_MESSAGE, more_at
    if status.container_id != newest.pin.container_id or not status.running:
        why = "kubelet has not reported it yet"
    else:
        why = f"its {'readiness' if status.started else 'startup'} probe has not succeeded yet"
    return Message.of(Reason.NOT_READY, seconds=seconds, why=why), more_at


def not_started_again(ending: Ending | None, last: Instance | None, now: float) -> tuple[Message, float | None]:
    """Step 10: return the message about a container that kubelet has not started again, and the time of the next one.

    Kubelet (1.36) reports its back-off only when that ends. So the message has the time since the end, and says if the
    ended instance was itself a restart less than ten minutes before.
    """
    if ending is None:
        return NO_MESSAGE, None
    seconds, more_at = waited(ending.at, now, LATER_STEPS)
    if not seconds:
        return NO_MESSAGE, more_at
    before = ""
    if last is not None and last.restart_count > 0:
        lived = ending.wall - last.created_at / 1e9
        if 0 <= lived < BACK_OFF_RESET_SECONDS:
            back_off = "kubelet's restart back-off (at least 10s)"
            before = f"; the previous instance ran for only {lived:.0f}s, so {back_off} may apply"
    return Message.of(Reason.NOT_STARTED_AGAIN, seconds=seconds, before=before), more_at
