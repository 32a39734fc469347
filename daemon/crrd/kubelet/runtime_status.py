"""Which instance of a container is the current one, and the states that one can have."""

from collections.abc import Iterable
from enum import StrEnum
from typing import Protocol, TypeVar


class ContainerState(StrEnum):
    """CRI's states of a container."""

    CREATED = "created"
    RUNNING = "running"
    EXITED = "exited"
    UNKNOWN = "unknown"


class _Instance(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def created_at(self) -> int: ...
    @property
    def restart_count(self) -> int: ...


I = TypeVar("I", bound=_Instance)  # noqa: E741 - an instance


def newest(instances: Iterable[I], name: str) -> I | None:
    """The current instance of a container: the newest by creation, as kubelet takes it."""
    own = (each for each in instances if each.name == name)
    return max(own, key=lambda each: (each.created_at, each.restart_count), default=None)
