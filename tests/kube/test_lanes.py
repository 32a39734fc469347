"""Who may call the API server next."""

import asyncio
from collections.abc import Callable, Iterable

import pytest

from crrd.kube.lanes import FEW_PLACES, PLACES, SLOW_SECONDS, Lane, Lanes, wanted
from crrd.lib.errors import WithdrawnError
from crrd.lib.supervise import cancel

pytestmark = pytest.mark.virtual_time


class Calls:
    """Calls that last until they are told to end."""

    def __init__(self) -> None:
        self.lanes = Lanes()
        self.began: list[str] = []
        self.under_way = 0
        self.most = 0

    async def call(
        self, name: str, lane: Lane, seconds: float, patience: float | None = None, *, namespace: str = ""
    ) -> None:
        release: Callable[[], None] = await self.lanes.take(lane, patience, namespace)
        self.began.append(name)
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            await asyncio.sleep(seconds)
        finally:
            self.under_way -= 1
            release()
            release()  # once more does nothing


async def test_a_few_at_once() -> None:
    calls = Calls()
    await asyncio.gather(*(calls.call("w", Lane.WRITE, 0.1) for _ in range(40)))
    assert (len(calls.began), calls.most) == (40, PLACES)


async def test_reads_and_writes_take_turns_and_events_go_last() -> None:
    calls = Calls()
    lanes = {"event": Lane.EVENT, "write": Lane.WRITE, "read": Lane.READ}
    busy = [asyncio.create_task(calls.call("busy", Lane.WRITE, 0.1)) for _ in range(PLACES)]
    await asyncio.sleep(0)
    later = [asyncio.create_task(calls.call(name, lane, 0.1)) for name, lane in lanes.items() for _ in range(4)]
    await asyncio.gather(*busy, *later)
    assert calls.began[PLACES:] == ["read", "write"] * 4 + ["event"] * 4


async def test_a_write_that_a_stop_waits_for_does_not_wait_for_hundreds_of_reads() -> None:
    calls, loop = Calls(), asyncio.get_running_loop()
    reads = [asyncio.create_task(calls.call("read", Lane.READ, 0.2)) for _ in range(400)]
    await asyncio.sleep(0.01)
    began = loop.time()
    await calls.call("write", Lane.WRITE, 0.0)
    assert loop.time() - began <= 0.2
    assert calls.began.count("read") < 2 * PLACES
    await asyncio.gather(*reads)


async def test_calls_of_one_namespace_that_hang_keep_another_waiting_for_one_of_them() -> None:
    calls, loop = Calls(), asyncio.get_running_loop()
    hanging = [asyncio.create_task(calls.call("hangs", Lane.WRITE, 10.0, namespace="noisy")) for _ in range(600)]
    await asyncio.sleep(2.0)
    for _ in range(40):
        began = loop.time()
        await calls.call("w", Lane.WRITE, 0.01, namespace="quiet")
        assert loop.time() - began <= SLOW_SECONDS + 0.011
    await asyncio.gather(*hanging)


async def test_calls_of_many_namespaces_that_hang_keep_another_waiting_only_for_the_first_of_each() -> None:
    calls, loop, number = Calls(), asyncio.get_running_loop(), 300

    async def hang(namespace: str) -> None:
        while True:
            await calls.call("hangs", Lane.WRITE, 10.0, namespace=namespace)
            await asyncio.sleep(5.0)

    hanging = [asyncio.create_task(hang(f"noisy-{each}")) for each in range(number)]
    await asyncio.sleep(number / PLACES * SLOW_SECONDS + 1.0)
    for each in range(40):
        began = loop.time()
        await calls.call("w", Lane.WRITE, 0.01, namespace=f"quiet-{each % 3}")
        assert loop.time() - began <= 0.011
        await asyncio.sleep(1.0)
    assert calls.began.count("hangs") >= 2 * number, "they are served, too"
    await cancel(hanging)


NUMBER = 50  # Namespaces that begin to hang at once, with twelve calls each
BUSY = {Lane.READ: PLACES, Lane.WRITE: PLACES, Lane.EVENT: FEW_PLACES, Lane.ROUTINE: FEW_PLACES}


async def hang_in_all(calls: Calls, lanes: Iterable[Lane]) -> list[asyncio.Task[None]]:
    """Begin these calls, which do not end. Return their tasks."""
    each = ((f"noisy-{number}", lane) for lane in lanes for number in range(NUMBER) for _ in range(12))
    made = [asyncio.create_task(calls.call("hangs", lane, 1000.0, namespace=name)) for name, lane in each]
    await asyncio.sleep(0.001)
    return made


@pytest.mark.parametrize("were_fast", [False, True])
@pytest.mark.parametrize("lane", Lane)
async def test_a_namespace_that_begins_to_hang_takes_one_place_while_others_wait(
    lane: Lane, *, were_fast: bool
) -> None:
    """Its last call was fast, or it has had none in this lane."""
    calls, loop, hanging = Calls(), asyncio.get_running_loop(), list[asyncio.Task[None]]()
    if were_fast:
        hanging += [
            asyncio.create_task(calls.call("w", lane, 0.01, namespace=f"noisy-{each % NUMBER}"))
            for each in range(3 * NUMBER)
        ]
        await asyncio.sleep(0.01 * 2.5 * NUMBER / BUSY[lane])
    hanging += await hang_in_all(calls, [lane])
    began = loop.time()
    await calls.call("w", lane, 0.0, namespace="quiet")
    assert loop.time() - began <= (NUMBER / BUSY[lane] + 2) * SLOW_SECONDS
    await cancel(hanging)


async def test_work_of_another_namespace_takes_five_seconds_while_calls_of_all_kinds_begin_to_hang() -> None:
    calls, loop = Calls(), asyncio.get_running_loop()
    hanging = await hang_in_all(calls, Lane)
    began = loop.time()
    for lane in (Lane.READ, Lane.WRITE) * 4:
        await calls.call("w", lane, 0.01, namespace="quiet")
    assert loop.time() - began <= 5.0
    await cancel(hanging)


async def test_a_slow_namespace_stays_one_if_its_place_is_not_used() -> None:
    calls = Calls()
    hanging = [asyncio.create_task(calls.call("hangs", Lane.WRITE, 10.0, namespace="noisy")) for _ in range(PLACES)]
    await asyncio.sleep(SLOW_SECONDS + 0.01)
    token = wanted.set(lambda: False)
    with pytest.raises(WithdrawnError):
        await calls.call("late", Lane.WRITE, 0.1, namespace="noisy")
    wanted.reset(token)
    hanging += [asyncio.create_task(calls.call("hangs", Lane.WRITE, 10.0, namespace="noisy")) for _ in range(PLACES)]
    began = asyncio.get_running_loop().time()
    await calls.call("w", Lane.WRITE, 0.0, namespace="quiet")
    assert asyncio.get_running_loop().time() == began
    await cancel(hanging)


async def test_a_namespace_whose_calls_hung_is_served_again_and_forgotten() -> None:
    calls, loop = Calls(), asyncio.get_running_loop()
    await asyncio.gather(*(calls.call("hangs", Lane.WRITE, 10.0, namespace="noisy") for _ in range(60)))
    others = [asyncio.create_task(calls.call("w", Lane.WRITE, 0.1, namespace="quiet")) for _ in range(200)]
    await asyncio.sleep(0.05)
    began = loop.time()
    await calls.call("w", Lane.WRITE, 0.1, namespace="noisy")
    assert loop.time() - began <= 1.0, "its debt is not older than its last calls"
    await asyncio.gather(*others)
    await calls.call("w", Lane.WRITE, 0.1, namespace="quiet")
    assert len(calls.lanes._queues[Lane.WRITE]._flows) <= 2


async def test_routine_reads_take_few_places_and_no_turn_of_others() -> None:
    calls, loop = Calls(), asyncio.get_running_loop()
    routine = [asyncio.create_task(calls.call("routine", Lane.ROUTINE, 0.15)) for _ in range(100)]
    await asyncio.sleep(0.01)
    assert calls.under_way == FEW_PLACES
    began = loop.time()
    await asyncio.gather(*(calls.call("due", Lane.WRITE, 0.1) for _ in range(PLACES - FEW_PLACES)))
    assert loop.time() - began <= 0.11
    await asyncio.gather(*routine)


async def test_events_never_take_all_places() -> None:
    calls = Calls()
    events = [asyncio.create_task(calls.call("event", Lane.EVENT, 0.2)) for _ in range(20)]
    await asyncio.sleep(0.01)
    assert calls.under_way == FEW_PLACES
    began = asyncio.get_running_loop().time()
    await calls.call("read", Lane.READ, 0.0)
    assert asyncio.get_running_loop().time() == began
    await asyncio.gather(*events)


async def test_slow_calls_hold_up_no_other() -> None:
    calls = Calls()
    hanging = [asyncio.create_task(calls.call("hangs", Lane.WRITE, 30.0)) for _ in range(30)]
    await asyncio.sleep(0.01)
    began = asyncio.get_running_loop().time()
    await calls.call("read", Lane.READ, 0.0)
    assert asyncio.get_running_loop().time() - began <= SLOW_SECONDS
    await asyncio.gather(*hanging)
    await asyncio.gather(*(calls.call("w", Lane.WRITE, 0.1) for _ in range(20)))
    assert calls.began.count("w") == 20


async def test_who_waits_in_vain_or_gives_up_leaves_no_place_taken() -> None:
    calls = Calls()
    busy = [asyncio.create_task(calls.call("busy", Lane.READ, 0.4)) for _ in range(PLACES)]
    await asyncio.sleep(0)
    with pytest.raises(TimeoutError):
        await calls.call("late", Lane.WRITE, 0.0, patience=0.1)
    given_up = asyncio.create_task(calls.call("given up", Lane.WRITE, 0.0))
    await asyncio.sleep(0.01)
    given_up.cancel()
    await asyncio.gather(*busy)
    calls.most = 0
    await asyncio.gather(*(calls.call("w", Lane.WRITE, 0.1) for _ in range(PLACES)))
    assert calls.most == PLACES
    assert "late" not in calls.began
    assert "given up" not in calls.began


async def test_a_place_that_is_granted_to_who_is_cancelled_in_that_moment_is_passed_on() -> None:
    calls = Calls()
    busy = [asyncio.create_task(calls.call("busy", Lane.READ, 0.1)) for _ in range(PLACES)]
    waiting = [asyncio.create_task(calls.call("waits", Lane.READ, 0.1)) for _ in range(PLACES)]
    await asyncio.sleep(0.01)
    busy[0].add_done_callback(lambda _: [task.cancel() for task in waiting] and None)
    await asyncio.gather(*busy, *waiting, return_exceptions=True)
    calls.most = 0
    await asyncio.gather(*(calls.call("w", Lane.WRITE, 0.1) for _ in range(2 * PLACES)))
    assert calls.most == PLACES


async def test_a_call_that_is_not_wanted_when_its_turn_comes_leaves_its_place_to_the_next() -> None:
    calls = Calls()
    busy = [asyncio.create_task(calls.call("busy", Lane.WRITE, 0.1)) for _ in range(PLACES)]
    await asyncio.sleep(0)
    token = wanted.set(lambda: False)
    late = [asyncio.create_task(calls.call("late", Lane.WRITE, 0.1)) for _ in range(PLACES)]
    wanted.reset(token)
    last = [asyncio.create_task(calls.call("last", Lane.WRITE, 0.1)) for _ in range(PLACES)]
    outcomes = await asyncio.gather(*busy, *late, *last, return_exceptions=True)
    assert [isinstance(each, WithdrawnError) for each in outcomes] == [False] * PLACES + [True] * PLACES + [
        False
    ] * PLACES
    assert calls.began == ["busy"] * PLACES + ["last"] * PLACES
    assert asyncio.get_running_loop().time() == pytest.approx(1000.2)
