"""Which requests of a pod a round has to look at, so that a round does not cost more with each request that waits."""

from collections.abc import Iterable
from heapq import heappop, heappush
from itertools import islice
from math import inf

LOOKS = 100  # Requests that one round looks at because they have changed; other pods get their turn between two rounds

Place = tuple[bool, str, str]  # See `serving_order`


class Agenda:
    """The requests of one pod, by UID: the order of those that can be served, and those to look at, now or later."""

    def __init__(self) -> None:
        self._places: dict[str, Place] = {}
        self._queue: list[tuple[Place, str]] = []  # A heap of the places, also of earlier ones, which do not count
        self._first = ""  # The first of them when it was looked at last
        self._changed: dict[str, None] = {}  # In the order in which they changed
        self._later: list[tuple[float, str]] = []  # A heap: monotonic time, UID

    def change(self, uid: str, place: Place | None) -> None:
        """Record a change of a request, and its place. None: it cannot be served."""
        if place is None:
            self._places.pop(uid, None)
        elif place != self._places.get(uid):
            self._places[uid] = place
            heappush(self._queue, (place, uid))
        self.add(uid)

    def add(self, uid: str) -> None:
        """Have the next round look at a request."""
        self._changed[uid] = None

    def add_later(self, uid: str, at: float) -> None:
        """Have a round look at a request at this time (monotonic), for what it does not do before."""
        heappush(self._later, (at, uid))

    def due(self, now: float) -> list[str]:
        """Return the requests to look at now: the first to serve, the one that was the first before, the changed."""
        while self._queue and self._places.get(self._queue[0][1]) != self._queue[0][0]:
            heappop(self._queue)
        before, self._first = self._first, self._queue[0][1] if self._queue else ""
        if before not in ("", self._first):
            self.add(before)
        while self._later and self._later[0][0] <= now:
            self.add(heappop(self._later)[1])
        first = [self._first] if self._first else []
        return first + list(islice(self._changed, LOOKS))

    def done(self, uids: Iterable[str]) -> None:
        """Record that these were looked at, and that all that was possible was done for them."""
        for uid in uids:
            self._changed.pop(uid, None)

    @property
    def next_at(self) -> float | None:
        """When the next round is needed, None if only a change can need one."""
        if self._changed:
            return -inf
        return self._later[0][0] if self._later else None
