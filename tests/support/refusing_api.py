"""An API server in memory that counts all calls, and fails those of some kinds in a given way."""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from enum import Enum
from functools import partial
from typing import Any

from crrd.core.api.types import LABEL_ACTIVE, LABEL_NODE_NAME, LABEL_POD_UID
from crrd.kube.resources import EVENTS, LEASES, PODS, REQUESTS, Resource
from crrd.lib.errors import ApiRefusedError, ApiUnavailableError, ConflictError
from tests.simulation.store import merged
from tests.support.silent_api import SilentApi

CALL_SECONDS = 15.0  # After which a call that hangs fails, as in `client.Deadlines`
RETRY_AFTER = 3.0


class Fault(Enum):
    """How calls fail."""

    FORBIDDEN = partial(ApiRefusedError, "forbidden", status=403)
    CONFLICT = partial(ConflictError, "the object has been modified", status=409)
    TOO_MANY = partial(ApiUnavailableError, "too many requests (429)", retry_after=RETRY_AFTER)
    UNAVAILABLE = partial(ApiUnavailableError, "failed calling webhook (500)")  # Or nothing listens
    HANG = partial(ApiUnavailableError, "no answer in time")

    @property
    def error(self) -> Exception:
        """The error that a caller gets."""
        make: Callable[[], Exception] = self.value
        return make()


class RefusingApi(SilentApi):
    """`failing` returns how a call fails, by its verb and kind; None if it does not."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()  # By `verb kind`
        self.failing: Callable[[str, str], Fault | None] = lambda *_: None

    def fail(self, call: str, fault: Fault) -> None:
        """Fail calls of this kind from now on."""

        def failing(verb: str, plural: str) -> Fault | None:
            own = {EVENTS.plural: "event", LEASES.plural: "lease"}.get(plural)
            return fault if (own == call if own else verb in VERBS[call]) else None

        self.failing = failing

    def heal(self) -> None:
        """End the fault."""
        self.failing = lambda *_: None

    async def create(self, resource: Resource, namespace: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Also add what admission adds to a request."""
        if resource == REQUESTS:
            pod = self.objects[PODS.plural].get(body["spec"]["podName"], {"metadata": {"uid": ""}})
            labels = {LABEL_ACTIVE: "true", LABEL_NODE_NAME: "n1", LABEL_POD_UID: pod["metadata"]["uid"]}
            name = body["metadata"]["name"]
            body = merged(body, {"metadata": {"uid": name, "labels": labels}})
        return await super().create(resource, namespace, body)

    async def _answer(self, verb: str, resource: Resource) -> None:
        self.calls[f"{verb} {resource.plural}"] += verb != "watch"
        if verb != "watch" and (fault := self.failing(verb, resource.plural)) is not None:
            await asyncio.sleep(CALL_SECONDS if fault is Fault.HANG else 0.01)
            raise fault.error
        await super()._answer(verb, resource)


VERBS: Mapping[str, tuple[str, ...]] = {
    "read": ("list", "get"),
    "watch": ("open",),
    "create": ("create",),
    "patch": ("patch",),
    "delete": ("delete",),
    "event": (),
    "lease": (),
}
"""Kinds of calls with their verbs. Calls for events and for leases have kinds of their own."""
READS = ("read", "watch")
CASES = [(call, fault) for call in VERBS for fault in Fault if call not in READS or fault is not Fault.CONFLICT]
