"""Admission: two lists of plugins that can change or reject a write before it is stored.

As in Kubernetes, all mutating plugins run first, one after the other. Then the object is completed and checked against
its kind. Then all validating plugins see the object as it would be stored.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum

from crrd_localnode.api.kinds import Kind
from crrd_localnode.api.objects import Object


@dataclass(frozen=True, slots=True)
class User:
    """The user of a request, as far as the server knows."""

    name: str
    groups: tuple[str, ...] = ()


ANONYMOUS = User("system:anonymous", ("system:unauthenticated",))


class Operation(StrEnum):
    """The operation of a write, with AdmissionReview's names."""

    CREATE = "CREATE"
    UPDATE = "UPDATE"
    DELETE = "DELETE"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionRequest:
    """A write to be admitted. The objects must not be changed. A mutating plugin returns a new one."""

    operation: Operation
    kind: Kind
    subresource: str = ""
    namespace: str
    name: str  # "" on create with generateName
    old: Object | None  # None on create
    new: Object | None  # None on delete
    user: User
    dry_run: bool = False
    warnings: list[str] = field(default_factory=list, compare=False)  # For the client; plugins add theirs


# Returns the new object, or None to keep the given one. Raises ApiError to reject the write.
Mutating = Callable[[AdmissionRequest], Awaitable[Object | None]]
Validating = Callable[[AdmissionRequest], Awaitable[None]]  # Raises ApiError to reject the write


@dataclass(slots=True)
class Admission:
    """The admission plugins, in order."""

    mutating: list[Mutating] = field(default_factory=list)
    validating: list[Validating] = field(default_factory=list)

    async def mutate(self, request: AdmissionRequest) -> Object | None:
        """Return the object after all mutating plugins. Raises ApiError."""
        new = request.new
        for hook in self.mutating:
            new = await hook(replace(request, new=new)) or new
        return new

    async def validate(self, request: AdmissionRequest) -> None:
        """Run all validating plugins. Raises ApiError if one rejects the write."""
        for hook in self.validating:
            await hook(request)
