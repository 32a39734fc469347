"""A use of a ConfigMap or Secret by a container, as a value. `uses` finds them in a pod, by kubelet's rules."""

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """The kinds of objects that hold configuration."""

    CONFIG_MAP = "ConfigMap"
    SECRET = "Secret"  # noqa: S105 - a kind of object


ObjectName = tuple[Kind, str]
"""Kind and name of an object."""


class Use(StrEnum):
    """How a container uses an object."""

    ENV = "env"
    ENV_FROM = "envFrom"
    VOLUME = "volume"  # Projected volumes included
    SUB_PATH = "subPath"  # kubelet never updates such a file in a running container

    @property
    def mounted(self) -> bool:
        """Whether the container mounts the object as a volume, or as a part of one."""
        return self in (Use.VOLUME, Use.SUB_PATH)


@dataclass(frozen=True, slots=True)
class Reference:
    """One use of one object."""

    kind: Kind
    name: str
    use: Use
    keys: frozenset[str] | None = None  # The keys that are used, None for all
    required: frozenset[str] = frozenset()  # Keys without which kubelet does not start the container
    optional: bool = False  # Whether kubelet starts the container without the object
    without: frozenset[str] = frozenset()
    """If `keys` is None: keys that do not count, because `env` or a later source of the volume replaces them."""

    @property
    def object(self) -> ObjectName:
        """The object's kind and name."""
        return self.kind, self.name

    @property
    def fields(self) -> tuple[str, ...]:
        """The object's fields that kubelet reads: variables cannot have binary data."""
        return ("data", "binaryData") if self.use.mounted else ("data",)

    def uses(self, key: str) -> bool:
        """Whether the container gets the value of this key, if the object has it."""
        return key not in self.without if self.keys is None else key in self.keys

    def __str__(self) -> str:
        """For messages: `ConfigMap web-cfg (env)`."""
        return f"{self.kind} {self.name} ({self.use})"
