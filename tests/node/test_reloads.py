"""A request whose containers reload, and a daemon that is killed at any moment of it. No container is ever stopped."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from crrd.core.api.reasons import Reason
from crrd.core.api.types import Action, Request, StartTimes, StatePhase, Status, Strategy
from crrd.core.recreate.actions import RunReload
from crrd.core.recreate.declared import Reload
from crrd.core.recreate.observation import HookResult
from crrd.kubelet.runtime_status import ContainerState
from crrd.lib.errors import ApiUnavailableError
from tests.support.standins import MemoryNode, OneRecorder
from tests.support.worlds import request

pytestmark = pytest.mark.virtual_time

HUP = '{"signal": "HUP"}'
RELOAD = Strategy(action=Action.RELOAD)


class ReloadingNode(MemoryNode):
    """A pod with one container that declares how it reloads."""

    def __init__(self, *names: str, **options: Any) -> None:
        super().__init__(*names, **options)
        self.declared = dict.fromkeys(names or ("app",), HUP)

    def assert_reloaded(self, status: Status, times: int = 1) -> None:
        """The container has reloaded, and is the same instance as before."""
        assert [(state.phase, state.is_killed) for state in status.states] == [(StatePhase.SUCCEEDED, False)]
        assert self.reloads == [("old", "signal")] * times
        self.assert_untouched()

    def assert_untouched(self) -> None:
        """Nothing was stopped."""
        assert (self.stops, self.hooks_run) == ([], [])
        assert {each.state for each in self.known.values()} == {ContainerState.RUNNING}


def asked(uid: str = "r1", **changes: Any) -> Request:
    return request(uid=uid, **{"strategy": RELOAD, **changes})


async def test_a_container_reloads() -> None:
    async with ReloadingNode() as node:
        node.post(asked())
        status = await node.completed()
        node.assert_reloaded(status)
        assert status.message == "1 of 1 containers reloaded"
        assert status.state("app").message == "reloaded in 1.0s: reread 2 files"
        assert node.requests["r1"].start_times["app"].reload
        assert [each.reason.value for each in node.emitted] == ["ContainerReloading", "ContainerReloaded"]


@pytest.mark.parametrize("moment", [tenth / 10 for tenth in range(30)])
async def test_a_daemon_killed_at_any_moment(moment: float) -> None:
    """It reloads once, unless the daemon died while the reload ran or before its end was recorded."""
    async with ReloadingNode() as node:
        node.post(asked())
        await asyncio.sleep(moment)
        running = any(work.under_way is not None or work.reload_result is not None for work in node.works.values())
        recorded = bool(node.requests["r1"].start_times.get("app", StartTimes()).reload)
        await node.kill()
        again = running and not recorded and not node.requests["r1"].completed
        node.assert_reloaded(await node.completed(), times=2 if again else 1)


async def test_it_waits_until_kubelet_has_refreshed_the_files() -> None:
    async with ReloadingNode() as node:
        node.refreshed = True
        node.refresh = "t0"
        node.post(asked(refresh="t1"))
        await asyncio.sleep(20)
        assert node.status().state("app").reason is Reason.REFRESHING
        node.refresh = "t1"
        node.report()
        changed = asyncio.get_running_loop().time()
        node.assert_reloaded(await node.completed())
        assert asyncio.get_running_loop().time() == pytest.approx(changed + 3, abs=0.5)


async def test_other_changes_of_the_pod_do_not_make_it_wait_again() -> None:
    async with ReloadingNode() as node:
        node.refreshed = True
        node.refresh = "t1"
        node.post(asked(refresh="t1"))
        for gate in (True, False) * 10:
            await asyncio.sleep(0.5)
            node.gate = gate
            node.report()
        assert node.reloads
        node.assert_reloaded(await node.completed())


async def test_without_an_annotation_it_waits_for_kubelets_own_sync() -> None:
    async with ReloadingNode() as node:
        node.refreshed = True
        node.post(asked())
        await asyncio.sleep(99)
        assert node.reloads == []
        node.assert_reloaded(await node.completed())


async def test_a_reload_that_fails_fails_the_request() -> None:
    counted: list[tuple[str, str]] = []

    class Listener(OneRecorder):
        def reload_ended(self, reload: Reload, result: HookResult) -> None:
            counted.append((reload.kind, result.error))

    async with ReloadingNode(recorder=Listener()) as node:
        node.reload_error = "exec ended with exit code 1: unknown directive"
        node.post(asked())
        status = await node.completed()
        state = status.state("app")
        assert (state.phase, state.reason) == (StatePhase.FAILED, Reason.RELOAD_FAILED)
        assert state.message.endswith("exec ended with exit code 1: unknown directive")
        assert len(node.reloads) == 1
        assert counted == [("signal", node.reload_error)]
        node.assert_untouched()


async def test_a_reload_that_breaks_is_a_reload_that_failed() -> None:
    class Broken(ReloadingNode):
        async def reload(self, action: RunReload) -> HookResult:
            await super().reload(action)
            raise ValueError("bug")

    received: list[HookResult] = []

    class Listener(OneRecorder):
        def reload_ended(self, _: Reload, result: HookResult) -> None:
            received.append(result)

    async with Broken(recorder=Listener()) as node:
        node.post(asked())
        with capture_logs():
            assert (await node.completed()).state("app").reason is Reason.RELOAD_FAILED
        assert received == [HookResult(1.0, "internal error: ValueError('bug')")]
        node.assert_untouched()


async def test_a_container_that_gets_unready_is_awaited() -> None:
    async with ReloadingNode() as node:
        node.unready = {"app"}
        node.report()
        node.post(asked())
        await asyncio.sleep(30)
        assert node.status().state("app").reason is Reason.NOT_READY
        node.unready = set()
        node.report()
        node.assert_reloaded(await node.completed())


async def test_a_command_that_was_set_later_does_not_run() -> None:
    """Whoever may change the annotations of a pod gets no command to run with it."""
    async with ReloadingNode() as node:
        node.recorded = {"app": HUP}
        node.declared = {"app": '{"exec": ["sh", "-c", "steal"]}'}
        node.post(asked())
        status = await node.completed()
        assert status.state("app").reason is Reason.RELOAD_CHANGED
        assert node.reloads == []
        node.assert_untouched()


async def test_a_restart_that_follows_waits_for_the_reload_that_runs() -> None:
    async with ReloadingNode() as node:
        node.reload_seconds = 5.0
        node.post(asked())
        await node.until(lambda: bool(node.reloads))
        node.delete("r1")
        node.post(request(uid="r2"))
        await asyncio.sleep(3)
        assert node.stops == []
        await node.completed("r2")
        assert [bare_id for bare_id, _ in node.stops] == ["old"]


@pytest.mark.parametrize(("limit", "waits"), [(5, False), (60, True)])
async def test_a_stop_shortens_another_at_once_unless_a_reload_may_last_longer(limit: int, *, waits: bool) -> None:
    """The requests of both have gone."""
    async with ReloadingNode() as node:
        node.reload_seconds, node.stop_seconds = 100.0, 100.0
        node.declared = {"app": f'{{"signal": "HUP", "timeoutSeconds": {limit}}}'}
        node.post(asked())
        await node.until(lambda: bool(node.reloads))
        node.delete("r1")
        node.post(request(uid="r2", strategy=Strategy(grace_seconds=20)))
        await node.until(lambda: len(node.stops) == 1)
        node.delete("r2")
        node.post(request(uid="r3", strategy=Strategy(grace_seconds=3)))
        came = asyncio.get_running_loop().time()
        await node.until(lambda: len(node.stops) == 2)
        assert asyncio.get_running_loop().time() - came == pytest.approx(3 if waits else 0, abs=0.2)


async def test_a_request_that_comes_back_does_not_reload_again() -> None:
    async with ReloadingNode() as node:
        node.reload_seconds = 5.0
        node.post(asked())
        await node.until(lambda: bool(node.reloads))
        posted = node.requests["r1"]
        node.controller.pods.requests.put(replace(posted, active=False, resource_version="50"))
        await asyncio.sleep(10)
        node.requests["r1"] = replace(node.requests["r1"], resource_version="60")
        node.controller.pods.requests.put(node.requests["r1"])
        node.assert_reloaded(await node.completed())


async def test_a_daemon_that_shuts_down_waits_for_it_and_records_it() -> None:
    async with ReloadingNode() as node:
        node.reload_seconds = 20.0
        node.post(asked())
        await node.until(lambda: bool(node.reloads))
        await node.controller.drain()
        assert node.requests["r1"].start_times["app"].reload
        node.assert_untouched()


async def test_none_begins_while_the_daemon_shuts_down() -> None:
    async with ReloadingNode() as node:
        node.controller.executor.draining = True
        node.post(asked())
        await asyncio.sleep(30)
        assert node.reloads == []
        node.assert_untouched()


async def test_its_record_is_written_again() -> None:
    async with ReloadingNode() as node:
        node.write_errors = [ApiUnavailableError("away") for _ in range(3)]
        node.post(asked())
        node.assert_reloaded(await node.completed())


async def test_two_containers_reload_one_after_the_other() -> None:
    async with ReloadingNode("app", "side") as node:
        node.post(replace(request("app", "side"), strategy=RELOAD))
        status = await node.completed()
        assert [state.phase for state in status.states] == [StatePhase.SUCCEEDED] * 2
        assert [bare_id for bare_id, _ in node.reloads] == ["old-app", "old-side"]
        node.assert_untouched()


async def test_an_instance_that_ended_meanwhile_is_not_reloaded() -> None:
    async with ReloadingNode() as node:
        node.refreshed = True
        node.post(asked())
        await asyncio.sleep(5)
        node.known["old"] = replace(node.known["old"], state=ContainerState.EXITED)
        node._create_next("app")
        node.report()
        status = await node.completed()
        assert status.state("app").reason is Reason.ENDED_BEFORE_RELOAD
        assert node.reloads == []


async def test_the_unready_grace_period_comes_before() -> None:
    async with ReloadingNode() as node:
        node.gate = True
        node.post(asked(strategy=replace(RELOAD, unready_grace_seconds=5)))
        await asyncio.sleep(30)
        assert node.reloads == []
        node.post(replace(node.requests["r1"], unready_acquired=True, resource_version="50"))
        marked = asyncio.get_running_loop().time()
        await node.until(lambda: bool(node.reloads))
        assert asyncio.get_running_loop().time() >= marked + 5
        node.assert_reloaded(await node.completed())
