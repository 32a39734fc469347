"""What only one request of a pod needs to know: if that call fails or hangs, the pod's other work goes on."""

import asyncio
import gc
import weakref
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from crrd.core.api.pod import Pod
from crrd.core.api.reasons import Reason
from crrd.core.api.types import FailurePolicy, Request, RequestedContainer, RequestPhase, StatePhase, Strategy
from crrd.core.recreate.observation import Hook, HookKind, Instance
from crrd.lib.errors import ApiUnavailableError, RuntimeUnavailableError
from crrd.node.lookups import RUNTIME_RETRY, Answer, Key, Lookup, Lookups
from tests.support.standins import MemoryNode
from tests.support.worlds import pin, request

pytestmark = pytest.mark.virtual_time

HOOK = Hook(HookKind.EXEC, command=("true",))
NEW = "app:2"
FAULTS: dict[str, Exception | float] = {"fails": RuntimeUnavailableError("no image service"), "hangs": 10.0}


class Timed(MemoryNode):
    """Records when stops are sent. The pod's containers can get another image."""

    image = "app:1"
    own_policy = False

    def __init__(self, *names: str, hook: Hook | None = HOOK) -> None:
        super().__init__(*names, hook=hook)
        self.sent: list[float] = []

    async def stop(self, instance: Instance, seconds: float) -> None:
        self.sent.append(self.now())
        await super().stop(instance, seconds)

    def view(self) -> Pod:
        shown = super().view()
        own = self.policy if self.own_policy else None
        changed = {
            name: replace(each, image=self.image, own_restart_policy=own) for name, each in shown.containers.items()
        }
        return replace(shown, containers=changed)

    @staticmethod
    def now() -> float:
        return asyncio.get_running_loop().time()


def for_image(uid: str = "r2") -> Request:
    return request(uid=uid, containers=(RequestedContainer("app", pin("old"), NEW),))


def of_removed(uid: str = "r2") -> Request:
    """A request whose instance was removed since admission, as after a crash."""
    return request(uid=uid, containers=(RequestedContainer("app", pin("removed")),))


@pytest.mark.parametrize("fault", ["fails", "hangs"])
@pytest.mark.parametrize(("call", "second"), [("has_image", for_image()), ("find", of_removed())])
@pytest.mark.parametrize("comes", [1.0, 4.9], ids=["early in the hook", "late in the hook"])
async def test_the_stop_follows_the_hook_of_a_deleted_request(
    fault: str, call: str, second: Request, comes: float
) -> None:
    node = Timed()
    async with node:
        node.faults, node.hook_seconds, node.images = {call: FAULTS[fault]}, 5.0, {NEW}
        node.post(request(strategy=Strategy(grace_seconds=20)))
        await node.until(lambda: bool(node.hooks_run))
        began = node.now()
        await asyncio.sleep(comes)
        node.post(second)
        node.delete("r1")
        await asyncio.sleep(30)
        (sent,) = node.sent
        assert sent - began < 5.3
        assert node.hooks_run == ["old"]


@pytest.mark.parametrize("fault", ["fails", "hangs"])
async def test_a_lookup_that_does_not_work_is_told_and_retried(fault: str) -> None:
    node = Timed()
    async with node:
        node.faults, node.images = {"has_image": FAULTS[fault]}, {NEW}
        node.post(for_image())
        await node.until(lambda: node.status("r2").reason is Reason.RUNTIME_UNAVAILABLE, 3)
        assert node.status("r2").phase is RequestPhase.PENDING
        node.faults = {}
        await node.until(lambda: node.status("r2").state("app").reason is Reason.IMAGE_PRESENT, 17)


async def test_a_slow_answer_counts() -> None:
    class Slow(Timed):
        async def has_image(self, pod_uid: str, image: str) -> bool:
            await asyncio.sleep(8)
            return await super().has_image(pod_uid, image)

    node = Slow()
    async with node:
        node.images = {NEW}
        node.post(for_image())
        await node.until(lambda: node.status("r2").state("app").reason is Reason.IMAGE_PRESENT, 10)


async def test_an_answer_may_come_any_moment_until_it_is_late() -> None:
    lookup = Lookup(late_at=10.0)
    assert [lookup.trouble(now) for now in (9.9, 10.0)] == ["", "it has not answered within 2s"]
    lookup.error = "no such file"
    assert lookup.trouble(9.9) == "no such file"


async def test_an_answer_is_not_kept_for_later() -> None:
    """The image goes while the pod waits for its unready grace period."""
    node = Timed()
    async with node:
        node.gate, node.images = True, {NEW}
        node.post(replace(for_image(), strategy=Strategy(unready_grace_seconds=30), unready_acquired=True))
        await asyncio.sleep(10)
        node.images = set()
        assert (await node.completed("r2")).states[0].reason is Reason.IMAGE_MISSING


async def test_a_pod_that_has_the_image_needs_no_answer() -> None:
    node = Timed()
    async with node:
        node.faults, node.image = {"has_image": 10.0}, NEW
        node.known["old"] = replace(node.known["old"], image="app:1")
        node.post(for_image())
        await asyncio.sleep(2)
        node.known["old"] = replace(node.known["old"], image=NEW)  # as if kubelet had replaced it
        assert (await node.completed("r2")).states[0].phase is StatePhase.SUCCEEDED


async def test_a_container_whose_instance_is_not_found_out_lets_the_others_go_on() -> None:
    node = Timed("a", "b", hook=None)
    async with node:
        node.faults = {"find": 10.0}
        wanted = (RequestedContainer("a", pin("old-a")), RequestedContainer("b", pin("removed")))
        node.post(request(uid="r1", containers=wanted))
        await node.until(lambda: len(node.sent) == 1, 1)
        told = lambda: node.status().state("b").reason is Reason.RUNTIME_UNAVAILABLE  # noqa: E731
        await node.until(told, 3)
        node.faults = {}
        assert [each.phase for each in (await node.completed()).states] == [StatePhase.SUCCEEDED] * 2


@pytest.mark.parametrize("own_policy", [True, False])
async def test_a_version_of_kubelet_that_does_not_come_delays_only_what_depends_on_it(own_policy: bool) -> None:
    """The API server hangs: the Node cannot be read, which only a container's own restartPolicy or an image needs."""
    node = Timed()
    async with node:
        node.faults, node.hook_seconds, node.images = {}, 5.0, {NEW}
        node.post(request(strategy=Strategy(grace_seconds=20)))
        await node.until(lambda: bool(node.hooks_run))
        began, node.faults, node.own_policy = node.now(), {"minor": 12.0}, own_policy
        node.controller.pods.pod_changed(node.view())
        await asyncio.sleep(4.9)
        node.post(for_image())
        node.delete("r1")
        await asyncio.sleep(30)
        (sent,) = node.sent
        assert sent - began < 5.3
        node.faults = {}


async def test_the_stop_follows_although_one_look_never_returns() -> None:
    """Its hook has used up the grace period, so that the stop is due within seconds."""

    class Lost(Timed):
        lose = False

        async def instances(self, pod_uid: str, *, urgent: bool = False) -> tuple[Instance, ...]:
            if self.lose and bool(self.hooks_run):
                self.lose = False
                await asyncio.sleep(10)
            return await super().instances(pod_uid, urgent=urgent)

    node = Lost()
    async with node:
        node.hook_seconds = 19.9
        node.post(request(strategy=Strategy(grace_seconds=20)))
        await node.until(lambda: bool(node.hooks_run))
        node.delete("r1")
        await asyncio.sleep(19)
        node.lose = True
        await asyncio.sleep(20)
        assert len(node.sent) == 1


async def test_an_answer_from_before_a_request_is_not_its_own() -> None:
    """The call for an earlier request hangs, and the image is pulled meanwhile."""

    class Slow(Timed):
        asked = 0

        async def has_image(self, pod_uid: str, image: str) -> bool:
            self.asked += 1
            there = image in self.images
            await asyncio.sleep(9 if self.asked == 1 else 0)
            return there

    node = Slow(hook=None)
    async with node:
        node.post(for_image("r1"))
        await asyncio.sleep(3)
        node.images = {NEW}
        node.post(for_image("r2"))
        await asyncio.sleep(1)
        node.delete("r1")
        await node.until(lambda: node.status("r2").state("app").reason is Reason.IMAGE_PRESENT, 10)


@pytest.mark.parametrize("call", ["find", "instances"])
async def test_what_no_request_needs_any_more_causes_no_rounds(call: str) -> None:
    """What is left is a request that is invalid, and whose end cannot be written."""
    node = Timed(hook=None)
    async with node:
        rounds, one = list[str](), node.controller.reconciler._round

        async def counted(pod_key: str) -> tuple[float | None, bool]:
            rounds.append(pod_key)
            return await one(pod_key)

        node.controller.reconciler._round = counted  # type: ignore[method-assign]
        node.runtime_down = call == "instances"
        node.faults = {"find": RuntimeUnavailableError("away")}
        node.post(of_removed("r1"))
        await asyncio.sleep(10)
        node.write_errors = [ApiUnavailableError("away")] * 1000
        node.post(replace(request(uid="r2"), error="spec.x is wrong"))
        node.delete("r1")
        rounds.clear()
        await asyncio.sleep(20)
        assert len(rounds) < 100
        node.write_errors = []
        await node.completed("r2")


@pytest.mark.parametrize("policy", [FailurePolicy.IGNORE, FailurePolicy.FAIL])
async def test_an_unknown_instance_delays_later_containers_only_if_it_decides_about_them(policy: FailurePolicy) -> None:
    node = Timed("a", "b", hook=None)
    async with node:
        node.faults = {"find": RuntimeUnavailableError("away")}
        wanted = (RequestedContainer("a", pin("removed")), RequestedContainer("b", pin("old-b")))
        node.post(request(uid="r1", containers=wanted, strategy=Strategy(failure_policy=policy)))
        await asyncio.sleep(30)
        assert len(node.sent) == (1 if policy is FailurePolicy.IGNORE else 0)
        node.faults = {}
        assert [each.phase for each in (await node.completed()).states] == [StatePhase.SUCCEEDED] * 2


async def test_nothing_is_left_of_lookups() -> None:
    node = Timed()
    async with node:
        node.faults = {"has_image": 10.0}
        node.post(for_image())
        await asyncio.sleep(2)
        node.delete("r2")
        await asyncio.sleep(90)
        assert not list(node.controller.pods)


class Calls:
    """The calls for one pod, which are answered when the test says so."""

    def __init__(self) -> None:
        self.woken: list[str] = []
        self.lookups = Lookups(self.woken.append)
        self.known: dict[Key, Lookup] = {}
        self.tasks: list[weakref.ref[Any]] = []
        self.may_end = asyncio.Event()
        self.error: Exception | None = None

    async def make(self, *wanted: Key, since: float = 0.0) -> None:
        await self.lookups.make("default/web", self.known, dict.fromkeys(wanted, self._ask), since=since)

    async def _ask(self) -> Answer:
        self.tasks.append(weakref.ref(asyncio.current_task() or self))
        await self.may_end.wait()
        if self.error:
            raise self.error
        return True

    @property
    def under_way(self) -> int:
        return sum(task is not None and not task.done() for task in (each() for each in self.tasks))


async def test_a_round_does_not_wait_for_a_call_that_hangs() -> None:
    calls, began = Calls(), Timed.now()
    await calls.make(NEW)
    assert Timed.now() - began < 0.5
    assert calls.woken == []
    calls.may_end.set()
    await asyncio.sleep(0.1)
    assert calls.woken == ["default/web"]


async def test_a_call_that_is_not_wanted_any_more_is_cancelled() -> None:
    calls = Calls()
    await calls.make(NEW, None)
    await calls.make(None)
    await asyncio.sleep(0)
    assert (list(calls.known), calls.under_way) == ([None], 1)
    await calls.lookups.close()
    assert calls.under_way == 0


async def test_a_call_from_the_moment_in_which_its_request_came_is_its_own() -> None:
    calls, came = Calls(), Timed.now()
    await calls.make(NEW)
    await calls.make(NEW, since=came)
    assert (calls.under_way, len(calls.tasks)) == (1, 1)


async def test_a_call_that_failed_is_made_again_when_it_is_due() -> None:
    calls = Calls()
    calls.may_end.set()
    calls.error = RuntimeUnavailableError("away")
    await calls.make(NEW)
    due = calls.known[NEW].next_change
    assert RUNTIME_RETRY.initial <= due - Timed.now() <= RUNTIME_RETRY.initial * (1 + RUNTIME_RETRY.jitter)
    for moment, made in ((due - 0.1, 1), (due, 2)):
        await asyncio.sleep(moment - Timed.now())
        await calls.make(NEW)
        assert len(calls.tasks) == made
    assert calls.known[NEW].next_change > due


async def test_a_call_that_is_late_is_told_so_in_time() -> None:
    calls, began = Calls(), Timed.now()
    await calls.make(NEW)
    assert calls.known[NEW].next_change == began + 2
    await calls.lookups.close()


@pytest.mark.parametrize(("error", "logged"), [(RuntimeUnavailableError("away"), []), (ValueError("bug"), ["error"])])
async def test_only_a_bug_is_logged_in_full(error: Exception, logged: list[str]) -> None:
    calls = Calls()
    calls.error = error
    calls.may_end.set()
    with capture_logs() as logs:
        await calls.make(NEW)
    assert calls.known[NEW].error == str(error)
    assert [line["log_level"] for line in logs] == logged


async def test_nothing_is_kept_of_a_call_that_was_answered() -> None:
    calls = Calls()
    calls.may_end.set()
    await calls.make(NEW)
    await asyncio.sleep(0)
    calls.known.clear()
    gc.collect()
    assert [each() for each in calls.tasks] == [None]
