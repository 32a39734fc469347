"""The states of container instances, and which instance of a container is the current one."""

from collections.abc import Iterable
from enum import StrEnum
from typing import Protocol, TypeVar


class ContainerState(StrEnum):
    """The states of a container in the CRI."""

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
    """Return the current instance of a container: the newest by creation time, as in kubelet."""
    own = (each for each in instances if each.name == name)
    return max(own, key=lambda each: (each.created_at, each.restart_count), default=None)
