"""Requests that end during their hook: the stop that follows, and what it must not do to others."""

import asyncio
import time
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from crrd.core.api.pod import Pod
from crrd.core.api.time import rfc3339
from crrd.core.api.types import RecreateState, Request, RequestPhase, StartTimes, StatePhase, Status, Strategy
from crrd.core.recreate.actions import RunHook
from crrd.core.recreate.observation import Hook, HookKind, HookResult, Instance
from crrd.lib.errors import ApiUnavailableError, RuntimeCallError
from tests.support.standins import MemoryNode
from tests.support.worlds import pin, request

pytestmark = pytest.mark.virtual_time

HOOK = Hook(HookKind.EXEC, command=("true",))
GATED = Strategy(unready_grace_seconds=300)


class Timed(MemoryNode):
    """Notes when hooks end and stops are sent."""

    hook_ended = 0.0

    def __init__(self, hook: Hook = HOOK) -> None:
        super().__init__(hook=hook)
        self.sent: list[tuple[float, float]] = []
        """When a stop was sent, and with which timeout."""
        self.stops_take: list[float] = []

    async def stop(self, instance: Instance, seconds: float) -> None:
        self.sent.append((self.now(), seconds))
        self.stop_seconds = self.stops_take.pop(0) if self.stops_take else self.stop_seconds
        await super().stop(instance, seconds)

    async def run(self, action: RunHook) -> HookResult:
        result = await super().run(action)
        self.hook_ended = self.now()
        return result

    @staticmethod
    def now() -> float:
        return asyncio.get_running_loop().time()

    async def begun(self, first: Request) -> None:
        self.post(first)
        await self.until(lambda: bool(self.hooks_run))


@pytest.mark.parametrize(
    ("grace", "hook", "list_seconds"), [(30, 5, 0.002), (30, 28, 0.6), (4, 2.5, 0.3), (30, 5, 2.5)]
)
async def test_the_stop_follows_at_once(grace: int, hook: float, list_seconds: float) -> None:
    """No watch tells of the pod any more, and the hook's end cannot be recorded any more: nothing waits for these."""
    node = Timed()
    async with node:
        node.hook_seconds, node.list_seconds = hook, list_seconds
        await node.begun(request(strategy=Strategy(grace_seconds=grace)))
        node.delete("r1")
        await asyncio.sleep(grace * 2)
        ((sent, _),) = node.sent
        assert sent - node.hook_ended <= 2 * list_seconds + 0.1


@pytest.mark.parametrize("away", ["deleting", "absent"])
@pytest.mark.parametrize("seconds", [3.0, 4.5], ids=["back before the hook ends", "back after that"])
async def test_the_stop_follows_the_hook_of_a_static_pod_whose_mirror_was_deleted(away: str, seconds: float) -> None:
    node = Timed()
    async with node:
        node.static_uid, node.known = "hash", {}
        node._create("app", "old")
        node.hook_seconds = 5.0
        await node.begun(request(strategy=Strategy(grace_seconds=20)))
        await asyncio.sleep(seconds)
        node.deleting, node.pod_lost = away == "deleting", away == "absent"
        report = node.controller.pods.pod_changed if away == "deleting" else node.controller.pods.pod_deleted
        report(node.view())
        await asyncio.sleep(1.0)
        node.deleting = node.pod_lost = False  # kubelet has created a new mirror pod
        await asyncio.sleep(60)
        assert node.hooks_run == ["old"]
        assert len(node.sent) == 1


async def test_not_beside_a_live_requests_own_stop() -> None:
    """Its timeout would shorten that one's grace period."""
    node = Timed()
    async with node:
        node.stop_errors, node.stops_take = [RuntimeCallError("shim is stuck")], [0.1, 8.0, 8.0]
        await node.begun(request(strategy=Strategy(grace_seconds=10)))
        node.post(request(uid="r2", strategy=Strategy(grace_seconds=600)))
        node.delete("r1")
        await node.completed("r2")
        assert [round(seconds) for _, seconds in node.sent] == [8, 600]


async def test_not_after_a_live_request_has_stopped_the_instance_during_the_hook() -> None:
    node = Timed()
    async with node:
        node.hook_seconds, node.stop_seconds = 8.0, 4.5
        await node.begun(request(strategy=Strategy(grace_seconds=60)))
        node.post(request(uid="r2", strategy=Strategy(grace_seconds=5)))
        node.delete("r1")
        await node.completed("r2")
        assert [round(seconds) for _, seconds in node.sent] == [5]


async def test_a_stop_that_was_given_up_is_given_up() -> None:
    node = Timed()
    async with node:
        node.stop_errors = [RuntimeCallError("shim is stuck")] * 30
        node.post(request(strategy=Strategy(grace_seconds=3600)))
        assert (await node.completed()).states[0].phase is StatePhase.FAILED
        attempts = len(node.sent)
        await asyncio.sleep(1800)
        assert len(node.sent) == attempts
        node.delete("r1")
        await asyncio.sleep(3600)
        assert not list(node.controller.pods), "nothing is kept"


@pytest.mark.parametrize("trouble", ["none", "runtime", "api"])
async def test_a_drain_sends_it_although_a_look_fails(trouble: str) -> None:
    node = Timed()
    async with node:
        node.hook_seconds = 5.0
        await node.begun(request())
        node.delete("r1")
        drain = asyncio.ensure_future(node.controller.drain())
        await asyncio.sleep(4)
        node.runtime_down, node.api_away = trouble == "runtime", trouble == "api"
        await asyncio.sleep(2.5)
        node.runtime_down = node.api_away = False
        await drain
        assert len(node.sent) == 1


@pytest.mark.parametrize("hook", [5.0, 20.5])
@pytest.mark.parametrize("seconds", [0.003, 20.0])
@pytest.mark.parametrize("drained", [False, True])
async def test_an_api_server_that_is_away_until_the_end_of_the_grace_period(
    hook: float, seconds: float, *, drained: bool
) -> None:
    """Nobody says whether the pod is being deleted; a drained application that runs on would be worse."""

    class Away(Timed):
        async def find_pod(self) -> Pod | None:
            await asyncio.sleep(seconds)  # refuses at once, or hangs
            return await super().find_pod()

    node = Away()
    async with node:
        node.hook_seconds, node.api_away = hook, True
        began = node.now()
        await node.begun(request(strategy=Strategy(grace_seconds=20)))
        node.delete("r1")
        if drained:
            await node.controller.drain()
        await asyncio.sleep(60)
        ((sent, _),) = node.sent
        assert began + max(20.0, hook) <= sent <= began + 23 or (drained and sent <= node.hook_ended + 3)


@pytest.mark.parametrize("said_by", ["watch", "answer"])
async def test_a_deletion_that_was_once_known_is_not_forgotten(said_by: str) -> None:
    """No watch tells of the pod any more, and the API server is away until the end of the grace period."""
    node = Timed()
    async with node:
        node.hook_seconds = 5.0
        await node.begun(request(strategy=Strategy(grace_seconds=20)))
        node.deleting = True
        if said_by == "watch":
            node.controller.pods.pod_changed(node.view())
            await node.completed()  # as failed; the hook goes on
        node.delete("r1")
        if said_by == "answer":
            await asyncio.sleep(6)
        node.api_away = True
        await asyncio.sleep(60)
        assert not node.sent, "kubelet runs the hook and stops it itself"
        assert not list(node.controller.pods), "nothing is kept"


async def test_the_deletion_of_a_static_pods_mirror_is_no_deletion() -> None:
    """Kubelet makes a new mirror, and the containers go on."""
    node = Timed()
    async with node:
        node.static_uid, node.known = "hash", {}
        node._create("app", "old")
        node.hook_seconds, node.deleting = 5.0, True
        node.controller.pods.pod_changed(node.view())
        node.deleting = False
        await node.begun(request(strategy=Strategy(grace_seconds=20)))
        node.delete("r1")
        await asyncio.sleep(60)
        assert len(node.sent) == 1


async def test_not_while_kubelet_restarts_all_containers() -> None:
    class Restarting(Timed):
        restarting = False

        def view(self) -> Pod:
            return replace(super().view(), restarting=self.restarting)

    node = Restarting()
    async with node:
        node.hook_seconds = 5.0
        await node.begun(request())
        node.restarting = True
        node.delete("r1")
        await asyncio.sleep(10)
        assert not node.sent
        node.restarting = False
        await asyncio.sleep(10)
        assert len(node.sent) == 1


@pytest.mark.parametrize("how", ["label", "mark"])
async def test_the_unready_grace_period_is_not_waited_for_again(how: str) -> None:
    """The label goes and comes back during the hook, or the mark goes."""
    node = Timed()
    async with node:
        node.gate, node.hook_seconds = True, 5.0
        await node.begun(request(strategy=GATED, unready_acquired=True))
        await asyncio.sleep(1)
        now = node.requests["r1"]
        if how == "label":
            node.post(replace(now, active=False, resource_version="50"))
            await asyncio.sleep(0.1)
            node.post(replace(now, active=True, resource_version="51"))
        else:
            node.post(replace(now, unready_acquired=False, resource_version="50"))
        await asyncio.sleep(10)
        ((sent, _),) = node.sent
        assert sent - node.hook_ended < 1


async def test_nor_by_the_next_daemon() -> None:
    node = Timed()
    async with node:
        node.gate = True
        hook = rfc3339(datetime.fromtimestamp(time.time() - 20, UTC))
        states = (RecreateState("app", StatePhase.RECREATING),)
        made = request(strategy=GATED, unready_acquired=True, status=Status(RequestPhase.RECREATING, states))
        node.post(replace(made, pinned={"app": pin("old")}, start_times={"app": StartTimes(hook=hook)}))
        await asyncio.sleep(15)
        assert len(node.sent) == 1


@pytest.mark.parametrize(("static", "label"), [(True, True), (False, False)])
async def test_of_a_static_pod_and_of_a_pod_without_the_label(static: bool, label: bool) -> None:
    """Its UID in the runtime is not the one that the request has."""
    node = Timed()
    async with node:
        if static:
            node.static_uid = "0f1e2d"
            node.known["old"] = replace(node.known["old"], pod_uid=node.static_uid)
        node.hook_seconds = 5.0
        await node.begun(request(pod_uid="uid-of-web" if label else ""))
        node.delete("r1")
        await asyncio.sleep(10)
        assert len(node.sent) == 1


async def test_after_a_hook_that_took_the_whole_grace_period() -> None:
    node = Timed()
    async with node:
        node.hook_seconds = 30.01
        await node.begun(request(strategy=Strategy(grace_seconds=30)))
        node.delete("r1")
        await asyncio.sleep(60)
        assert [round(seconds) for _, seconds in node.sent] == [2]


async def test_of_a_request_that_has_become_invalid_and_cannot_be_written() -> None:
    node = Timed()
    async with node:
        node.hook_seconds = 5.0
        await node.begun(request())
        node.write_errors += [ApiUnavailableError("away")] * 400
        node.post(replace(node.requests["r1"], error="spec.x must be y", resource_version="20"))
        await asyncio.sleep(20)
        assert len(node.sent) == 1


async def test_start_times_that_are_not_stored_are_written_more_and_more_rarely() -> None:
    """As by a webhook that puts the old value back: the write of the status gets its turn, and so the stop."""
    node = Timed()
    async with node:
        node.hook_seconds = 5.0
        await node.begun(request(strategy=Strategy(force=True)))
        node.lose_annotations = True
        before = node.writes
        await asyncio.sleep(25)
        assert len(node.sent) == 1
        assert node.writes - before < 20
