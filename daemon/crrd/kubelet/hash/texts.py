"""Remembers what parts of containers were written as: probes, mounts and limits are the same over and over."""

from collections.abc import Callable
from typing import Any

_MOST_KEPT = 4096  # Texts that are kept, of some hundred bytes each; then it begins anew
_NEVER_ALIKE = frozenset({"EnvVar"})  # Structs that are seldom found twice: to remember them costs more than it saves


class Texts:
    """Texts by part."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str, int], str] = {}

    def __call__(self, part: Any, struct: str, minor: int, write: Callable[[], str]) -> str:
        """What `write` returns, or returned for such a part before. Raises as `write` does, each time."""
        if type(part) is not dict or struct in _NEVER_ALIKE:
            return write()
        key = (repr(part), struct, minor)
        text = self._kept.get(key)
        if text is None:
            text = write()
            if len(self._kept) >= _MOST_KEPT:
                self._kept.clear()
            self._kept[key] = text
        return text
