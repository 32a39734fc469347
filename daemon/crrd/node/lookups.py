"""Calls beside the rounds of a pod: for what only one of its requests needs, and what may be late or fail.

They are about an ID or an image that a request names, or the version of kubelet. A round waits only a moment for the
calls that it starts. An answer that comes later wakes the pod. So a call that hangs or fails delays nothing that does
not need its answer, above all no stop after a hook.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

import structlog

from crrd.core.api.types import Pin
from crrd.core.recreate.observation import Instance
from crrd.lib.backoff import Backoff, Retry
from crrd.lib.errors import CrrdError
from crrd.lib.looptime import loop_time
from crrd.lib.supervise import cancel

WAIT_SECONDS = 0.1  # How long a round waits for the calls that it starts; most are answered within milliseconds
RUNTIME_RETRY = Backoff(initial=0.5, factor=2.0, maximum=5.0, jitter=0.1)
"""Delay between calls to a runtime that does not respond. A pod that is woken meanwhile does not wait."""
FORGIVEN_SECONDS = 30.0  # After this time without a failure, the next one counts as the first
LATE_SECONDS = 2.0  # After this time without an answer, the status says that there is none

Key = Pin | str | None  # What is looked up: an ID, an image, or (None) the version of kubelet
Answer = Instance | bool | int | None

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Lookup:
    """What is known of one such call."""

    retry: Retry = field(default_factory=lambda: Retry(RUNTIME_RETRY, forgiven=FORGIVEN_SECONDS))
    call: asyncio.Task[None] | None = None  # The last one
    answered: bool = False
    answer: Answer = None
    error: str = ""  # Why the last call failed
    late_at: float = 0.0  # When it is shown that the call has not been answered yet

    @property
    def asked_at(self) -> float:
        """When the last call was made."""
        return self.late_at - LATE_SECONDS

    @property
    def under_way(self) -> bool:
        """Whether a call has not returned yet."""
        return self.call is not None and not self.call.done()

    def trouble(self, now: float) -> str:
        """Return why there is no answer, "" if it may come any moment."""
        late = now >= self.late_at
        return self.error or (f"it has not answered within {LATE_SECONDS:.0f}s" if late else "")

    @property
    def next_change(self) -> float:
        """When the next call is due, or when `trouble` changes. It may have passed."""
        return self.late_at if self.under_way else self.retry.next_try

    def take(self) -> Answer:
        """Return the answer. The next round asks again."""
        self.answered = False
        return self.answer


class Lookups:
    """Makes the calls of all pods. `wake` is called with a pod's key when one of its calls has returned late."""

    def __init__(self, wake: Callable[[str], None]) -> None:
        self._wake = wake
        self._calls: set[asyncio.Task[None]] = set()

    async def make(
        self,
        pod_key: str,
        known: dict[Key, Lookup],
        wanted: Mapping[Key, Callable[[], Awaitable[Answer]]],
        *,
        since: float,
    ) -> None:
        """Make those calls that have no answer yet, unless one has just failed. Forget what is not wanted any more.

        Whether an image is there changes. So a call about one that was made before `since`, when the request came, is
        made again.
        """
        old = [key for key, each in known.items() if isinstance(key, str) and each.asked_at < since]
        for key in {*old, *(key for key in known if key not in wanted)}:
            if (call := known.pop(key).call) is not None:
                call.cancel()
        started = list[asyncio.Task[None]]()
        for key, ask in wanted.items():
            lookup = known.setdefault(key, Lookup())
            if not (lookup.answered or lookup.under_way) and loop_time() >= lookup.retry.next_try:
                lookup.late_at = loop_time() + LATE_SECONDS
                lookup.call = asyncio.create_task(_ask(lookup, ask), name=f"lookup for {pod_key}")
                started.append(lookup.call)
        if not started:
            return
        self._calls.update(started)
        try:
            await asyncio.wait(started, timeout=WAIT_SECONDS)
        finally:
            for call in started:
                call.add_done_callback(self._calls.discard)
                if not call.done():
                    call.add_done_callback(lambda _: self._wake(pod_key))

    async def close(self) -> None:
        """Cancel the calls that are under way."""
        await cancel(self._calls)


async def _ask(lookup: Lookup, ask: Callable[[], Awaitable[Answer]]) -> None:
    """Make a call, and record its answer or its error."""
    try:
        lookup.answer = await ask()
    except Exception as error:  # any failure is shown in the status of the request
        lookup.error = str(error)
        lookup.retry.fail(loop_time())
        if not isinstance(error, CrrdError):
            log.exception("lookup crashed")
    else:
        lookup.answered, lookup.error = True, ""
