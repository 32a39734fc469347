"""Reflectors by key: a few objects are watched one by one, many with one watch of all of them, as the owner decides."""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, NoReturn, TypeVar

from crrd.kube.reflector import Reflector
from crrd.kube.store import older
from crrd.lib.health import loop_check

R = TypeVar("R", bound=Reflector[Any])

EVERY = ""  # The key of the watch that has all objects


@dataclass(frozen=True, slots=True)
class _Running(Generic[R]):
    """A reflector that runs."""

    reflector: R
    task: asyncio.Task[NoReturn]
    began_with: str  # What its first list was not to be older than


class WatchSet(Generic[R]):
    """The reflectors that run now, made by their keys. The constructor starts nothing."""

    def __init__(self, make: Callable[[str], R], list_version: str = "") -> None:
        self._make = make
        self._running: dict[str, _Running[R]] = {}
        self._list_version = list_version
        """What no list may be older than, "" for the newest: what was watched before must not go back in time."""
        self._last_list_time: float | None = None
        self._last_activity: float | None = None

    @property
    def keys(self) -> set[str]:
        """What is watched."""
        return set(self._running)

    def get(self, key: str) -> R | None:
        """The reflector of a key, None where it is not watched."""
        running = self._running.get(key)
        return None if running is None else running.reflector

    def begin(self, keys: Iterable[str], group: asyncio.TaskGroup) -> None:
        """Start the watches of these keys; their lists are not older than what ended watches have told."""
        for key in sorted(keys):
            reflector = self._make(key)
            reflector.list_version = self._list_version
            task = group.create_task(reflector.run(), name=f"watch {reflector.plural}")
            self._running[key] = _Running(reflector, task, self._list_version)

    def cancel(self, keys: Iterable[str]) -> list[asyncio.Task[NoReturn]]:
        """Cancel the watches of these keys; returns their tasks, for an owner that waits until they have ended."""
        # What outlives a watch is remembered at once: the owner's wait for the task may be cut short.
        self._last_list_time, self._last_activity = self.last_list_time, self.last_activity
        ended = [self._running.pop(key) for key in sorted(keys)]
        for running in ended:
            running.task.cancel()
            version = running.reflector.list_version
            if not version or (not self._list_version and running.began_with):
                self._list_version = ""  # a version was lost: only the newest list is sure to be new enough
            elif not self._list_version or older(self._list_version, version):
                self._list_version = version
        return [running.task for running in ended]

    def check(self) -> str:
        """For health pages: what of it has ended or hangs."""
        checks = (loop_check(each.task, each.reflector.heartbeat) for each in self._running.values())
        return next(filter(None, (check() for check in checks)), "")

    @property
    def listed(self) -> bool:
        """Whether each of them has a whole list."""
        return all(each.reflector.listed for each in self._running.values())

    @property
    def last_error(self) -> str:
        """Why one of them has no connection now, "" for nothing."""
        return next(filter(None, (each.reflector.last_error for each in self._running.values())), "")

    @property
    def last_list_time(self) -> float | None:
        """Monotonic time of the last list of any of them, None before."""
        return _latest(self._last_list_time, *(each.reflector.last_list_time for each in self._running.values()))

    @property
    def last_activity(self) -> float | None:
        """Monotonic time at which the API server last said anything to one of them, None before."""
        return _latest(self._last_activity, *(each.reflector.last_activity for each in self._running.values()))


def _latest(*times: float | None) -> float | None:
    return max((time for time in times if time is not None), default=None)
