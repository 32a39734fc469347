"""The seam for admission: what may change or refuse a write before it is stored, by being in one of the two lists.

As in Kubernetes, everything that mutates runs first, one after the other, then the object is completed and checked
against its kind, and then everything that validates sees the object as it would be stored.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum

from crrd_localnode.api.kinds import Kind
from crrd_localnode.api.objects import Object


@dataclass(frozen=True, slots=True)
class User:
    """Who makes a request, as far as the server could find out."""

    name: str
    groups: tuple[str, ...] = ()


ANONYMOUS = User("system:anonymous", ("system:unauthenticated",))


class Operation(StrEnum):
    """What a write does, in the words of AdmissionReview."""

    CREATE = "CREATE"
    UPDATE = "UPDATE"
    DELETE = "DELETE"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionRequest:
    """One write that wants to be admitted. The objects are not to be changed; who mutates returns another one."""

    operation: Operation
    kind: Kind
    subresource: str = ""
    namespace: str
    name: str  # "" on create with generateName
    old: Object | None  # None on create
    new: Object | None  # None on delete
    user: User
    dry_run: bool = False


# Returns the object to go on with, None for the one it was given; raises ApiError to refuse.
Mutating = Callable[[AdmissionRequest], Awaitable[Object | None]]
Validating = Callable[[AdmissionRequest], Awaitable[None]]  # Raises ApiError to refuse


@dataclass(slots=True)
class Admission:
    """What takes part in admission, in order."""

    mutating: list[Mutating] = field(default_factory=list)
    validating: list[Validating] = field(default_factory=list)

    async def mutate(self, request: AdmissionRequest) -> Object | None:
        """The object after all that mutates. Raises ApiError."""
        new = request.new
        for hook in self.mutating:
            new = await hook(replace(request, new=new)) or new
        return new

    async def validate(self, request: AdmissionRequest) -> None:
        """Raises ApiError if anyone objects."""
        for hook in self.validating:
            await hook(request)
