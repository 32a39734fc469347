"""Reflectors by key. The owner decides whether to watch objects one by one, or with one watch for all of them."""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, NoReturn, TypeVar

from crrd.kube.reflector import Reflector
from crrd.kube.store import older
from crrd.lib.health import loop_check

R = TypeVar("R", bound=Reflector[Any])

ALL_OBJECTS = ""  # The key of the watch for all objects


@dataclass(frozen=True, slots=True)
class _Running(Generic[R]):
    """A running reflector."""

    reflector: R
    task: asyncio.Task[NoReturn]
    first_list_version: str  # Its `list_version` at the start: its first list is not older than this


class WatchSet(Generic[R]):
    """The running reflectors, by key. The constructor starts nothing."""

    def __init__(self, make: Callable[[str], R], list_version: str = "") -> None:
        self._make = make
        self._running: dict[str, _Running[R]] = {}
        self._list_version = list_version
        """No list may be older than this version ("": lists are the newest), so that objects never go back in time."""
        self._last_list_time: float | None = None
        self._last_activity: float | None = None

    @property
    def keys(self) -> set[str]:
        """The keys that are watched."""
        return set(self._running)

    def get(self, key: str) -> R | None:
        """Return the reflector of a key, None if the key is not watched."""
        running = self._running.get(key)
        return None if running is None else running.reflector

    def begin(self, keys: Iterable[str], group: asyncio.TaskGroup) -> None:
        """Start watches for these keys. Their lists are not older than what ended watches have seen."""
        for key in sorted(keys):
            reflector = self._make(key)
            reflector.list_version = self._list_version
            task = group.create_task(reflector.run(), name=f"watch {reflector.plural}")
            self._running[key] = _Running(reflector, task, self._list_version)

    def cancel(self, keys: Iterable[str]) -> list[asyncio.Task[NoReturn]]:
        """Cancel the watches of these keys, and return their tasks, so that the caller can wait for their end."""
        # Save what outlives a watch now, because the caller's wait for the tasks may be cancelled.
        self._last_list_time, self._last_activity = self.last_list_time, self.last_activity
        ended = [self._running.pop(key) for key in sorted(keys)]
        for running in ended:
            running.task.cancel()
            version = running.reflector.list_version
            if not version or (not self._list_version and running.first_list_version):
                self._list_version = ""  # the reflector has dropped its version: only the newest list is new enough
            elif not self._list_version or older(self._list_version, version):
                self._list_version = version
        return [running.task for running in ended]

    def check(self) -> str:
        """For health pages: return which watch has ended or hangs, "" for none."""
        checks = (loop_check(each.task, each.reflector.heartbeat) for each in self._running.values())
        return next(filter(None, (check() for check in checks)), "")

    @property
    def listed(self) -> bool:
        """Whether every reflector has a whole list."""
        return all(each.reflector.listed for each in self._running.values())

    @property
    def last_error(self) -> str:
        """Why one of the reflectors has no connection now, "" if all have one."""
        return next(filter(None, (each.reflector.last_error for each in self._running.values())), "")

    @property
    def last_list_time(self) -> float | None:
        """Monotonic time of the last list of any reflector, None before the first."""
        return _latest(self._last_list_time, *(each.reflector.last_list_time for each in self._running.values()))

    @property
    def last_activity(self) -> float | None:
        """Monotonic time of the API server's last response or event for any reflector, None before the first."""
        return _latest(self._last_activity, *(each.reflector.last_activity for each in self._running.values()))


def _latest(*times: float | None) -> float | None:
    return max((time for time in times if time is not None), default=None)
