"""One look at a runtime for all who wait for one."""

import asyncio
from collections.abc import Sequence
from itertools import pairwise

import pytest

from cri_stubs import api_pb2
from crrd.cri.looks import SLOW_SECONDS, Looks
from crrd.kubelet.labels import LABEL_POD_UID
from crrd.lib.errors import RuntimeCallError, RuntimeUnavailableError

pytestmark = pytest.mark.virtual_time


class Runtime:
    """Has a container for each pod; its ID tells when the answer was made."""

    def __init__(self) -> None:
        self.calls: list[tuple[float, str]] = []
        self.seconds = 0.01
        self.error: Exception | None = None
        self.hangs = 0

    async def list_containers(self, *, pod_uid: str = "") -> Sequence[api_pb2.Container]:
        now = asyncio.get_running_loop().time()
        self.calls.append((now, pod_uid))
        if self.hangs:
            self.hangs -= 1
            await asyncio.sleep(3600)
        await asyncio.sleep(self.seconds)
        if self.error is not None:
            raise self.error
        pods = [pod_uid] if pod_uid else [f"p{number}" for number in range(90)]
        return [api_pb2.Container(id=f"{each}@{now}", labels={LABEL_POD_UID: each}) for each in pods]


async def test_one_who_asks_is_answered_at_once() -> None:
    runtime = Runtime()
    looks = Looks(runtime.list_containers)
    for number in range(5):
        began = asyncio.get_running_loop().time()
        (found,) = await looks.of_pod(f"p{number}")
        assert found.labels[LABEL_POD_UID] == f"p{number}"
        assert asyncio.get_running_loop().time() - began == pytest.approx(0.01)
    assert [pod_uid for _, pod_uid in runtime.calls] == [f"p{number}" for number in range(5)]


async def test_a_burst_is_answered_by_a_few_looks_none_of_which_began_before_the_question() -> None:
    runtime = Runtime()
    looks = Looks(runtime.list_containers)

    async def ask(number: int) -> None:
        await asyncio.sleep(0.004 * number)
        asked = asyncio.get_running_loop().time()
        (found,) = await looks.of_pod(f"p{number}")
        pod_uid, _, at = found.id.partition("@")
        assert (pod_uid, float(at) >= asked) == (f"p{number}", True)

    await asyncio.gather(*(ask(number) for number in range(90)))
    assert len(runtime.calls) < 10
    times = [at for at, _ in runtime.calls]
    assert all(later - earlier >= 0.01 for earlier, later in pairwise(times)), "one at a time"


async def test_the_pause_follows_what_a_look_costs() -> None:
    runtime = Runtime()
    runtime.seconds = 0.1
    looks = Looks(runtime.list_containers)
    for _ in range(3):
        await asyncio.gather(looks.of_pod("p1"), looks.of_pod("p2"))
    times = [at for at, _ in runtime.calls]
    assert [round(later - earlier, 3) for earlier, later in pairwise(times)] == [0.6, 0.6]


async def test_a_stop_does_not_wait_for_the_pause_of_those_who_only_watch() -> None:
    runtime = Runtime()
    runtime.seconds = 0.1
    looks = Looks(runtime.list_containers)

    async def watch(pod_uid: str) -> None:
        for _ in range(3):
            await looks.of_pod(pod_uid)

    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        group.create_task(watch("p1"))
        group.create_task(watch("p2"))
        await asyncio.sleep(0.15)
        for number in range(3, 6):
            await looks.of_pod(f"p{number}", urgent=True)
    times = [round(at, 3) for at, _ in runtime.calls]
    pauses = [round(later - earlier, 3) for earlier, later in pairwise(times)]
    assert pauses[:2] == [0.2, 0.2], "as long as a look took, from its end"


async def test_a_failed_look_fails_for_all_who_waited_for_it_and_for_nobody_else() -> None:
    runtime = Runtime()
    looks = Looks(runtime.list_containers)
    runtime.error = RuntimeCallError("no")
    answers = await asyncio.gather(looks.of_pod("p1"), looks.of_pod("p2"), return_exceptions=True)
    assert [type(answer) for answer in answers] == [RuntimeCallError] * 2
    runtime.error = None
    assert len(await looks.of_pod("p1")) == 1


async def test_a_look_that_hangs_holds_up_the_next_one_for_two_seconds_only() -> None:
    runtime = Runtime()
    runtime.hangs = 1
    looks = Looks(runtime.list_containers)
    first = asyncio.create_task(looks.of_pod("p1"))
    await asyncio.sleep(0.5)
    began = asyncio.get_running_loop().time()
    assert len(await looks.of_pod("p2")) == 1
    assert asyncio.get_running_loop().time() - began <= SLOW_SECONDS
    await looks.close()
    with pytest.raises(RuntimeUnavailableError):
        await first


async def test_nobody_is_asked_for_who_has_given_up() -> None:
    runtime = Runtime()
    looks = Looks(runtime.list_containers)
    first = asyncio.create_task(looks.of_pod("p1"))
    await asyncio.sleep(0.001)
    second = asyncio.create_task(looks.of_pod("p2"))
    await asyncio.sleep(0.001)
    second.cancel()
    await first
    await asyncio.sleep(1)
    assert len(runtime.calls) == 1


async def test_a_pod_that_has_no_containers() -> None:
    looks = Looks(Runtime().list_containers)
    found = await asyncio.gather(looks.of_pod("none"), looks.of_pod("p1"))
    assert [len(each) for each in found] == [0, 1]
