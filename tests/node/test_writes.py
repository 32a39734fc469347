"""Which writes still wait for their turn, and what a drain waits for: tables of what an observer outside sees late."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from crrd.core.api.types import Request, RequestPhase, Status
from crrd.core.recreate.actions import WriteStatus
from crrd.core.recreate.observation import HookResult, Work
from crrd.kube.lanes import wanted
from crrd.node.pods import Pods
from crrd.node.writes import RequestWrites
from crrd.ports import Edges
from tests.support.standins import MemoryNode
from tests.support.worlds import pin, request

pytestmark = pytest.mark.virtual_time

FIRST, SECOND = (Status(RequestPhase.RECREATING, message=each) for each in ("", "later"))
DONE, FAILED = (Status(RequestPhase.COMPLETED, message=each) for each in ("", "it broke"))


class HeldWriter:
    """Writes wait for their turn for ever."""

    def __init__(self) -> None:
        self.is_wanted: Callable[[], bool] | None = None

    async def write_status(self, request: Request, status: Status) -> Request:
        assert self.is_wanted is None, "one at a time"
        self.is_wanted = wanted.get()
        await asyncio.Event().wait()
        raise AssertionError


@pytest.mark.parametrize(
    ("running", "decided", "still_wanted"),
    [
        (FIRST, (), True),
        (FIRST, (SECOND,), True),
        (FIRST, (DONE,), False),
        (FIRST, (DONE, SECOND), False),
        (DONE, (), True),
        (DONE, (FAILED,), True),
        (DONE, (FIRST,), True),
    ],
)
async def test_progress_is_of_no_use_once_the_request_can_be_completed(
    running: Status, decided: tuple[Status, ...], still_wanted: bool
) -> None:
    pods, writer, req = Pods(lambda _: None, lambda: 1.0), HeldWriter(), request()
    pods.requests.put(req)
    writes = RequestWrites(cast("Edges", SimpleNamespace(writer=writer)), pods, lambda _: None)
    writes.start(WriteStatus(req, running))
    await asyncio.sleep(0.1)
    for each in decided:
        writes.start(WriteStatus(req, each))
    assert writer.is_wanted is not None
    assert writer.is_wanted() is still_wanted
    await writes.close()


HOOKED = Work("app", pin("old"), hook_began=1.0, hook_until=31.0, hook_result=HookResult(1.0))


@pytest.mark.parametrize(
    ("error", "work", "outstanding"),
    [
        ("runtime away", HOOKED, True),
        ("", HOOKED, False),  # its stop follows in the same round
        ("runtime away", replace(HOOKED, stop_sent=3.0), False),
        ("runtime away", replace(HOOKED, hook_result=None), False),  # the hook is still running, which is waited for
        ("runtime away", None, False),
    ],
)
async def test_a_drain_waits_for_the_stop_after_a_hook_if_the_runtime_fails(
    error: str, work: Work | None, outstanding: bool
) -> None:
    async with MemoryNode() as node:
        pods, req = node.controller.pods, request(name="held", uid="held")
        pods.requests.put(req)
        record = pods.ensure(req.pod_key)
        record.runtime.error = error
        if work is not None:
            record.requests["held"].works["old"] = work
            record.worked["held"] = record.requests["held"]
        assert node.controller.reconciler.stops_outstanding is outstanding
        record.worked.clear()
