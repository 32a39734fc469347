"""Reads objects as far as they exist and the user may see them, for `crrd explain` and `crrd doctor`."""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar, Unpack

from crrd.kube.client import KubeClient
from crrd.kube.resources import Resource, Where
from crrd.lib.errors import ApiRefusedError, ApiUnavailableError, GoneError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class BestEffortReader:
    """Calls of a client that do not end the command if they fail."""

    client: KubeClient
    unread: dict[str, ApiRefusedError | ApiUnavailableError] = field(default_factory=dict)
    """What could not be read, with the error."""

    async def attempt(self, what: str, work: Awaitable[T]) -> T | None:
        """Return the result of a call. If the API server refuses it or cannot be reached, note this and return None."""
        try:
            return await work
        except (ApiRefusedError, ApiUnavailableError) as error:
            self.unread[what] = error
            return None

    async def get(self, resource: Resource, namespace: str, name: str) -> Mapping[str, Any] | None:
        """Return an object, or None if it does not exist or `name` is ""."""
        with suppress(GoneError):
            return await self.client.get(resource, namespace, name) if name else None
        return None

    async def list(
        self, resource: Resource, parse: Callable[[Mapping[str, Any]], T], **where: Unpack[Where]
    ) -> tuple[T, ...]:
        """Return objects, read by `parse`."""
        return (await self.client.list_all(resource, parse, **where)).items
