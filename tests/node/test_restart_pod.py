"""A request for a whole pod, and a daemon that is killed at any moment of it: kubelet restarts the pod once."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from crrd.core.api.reasons import Reason
from crrd.core.api.types import WHOLE_POD, Request, RequestedContainer, RequestPhase, StatePhase, Status, Strategy
from crrd.core.recreate.observation import Hook, HookKind
from crrd.kubelet.restart_rules import RestartPolicy
from crrd.kubelet.runtime_status import ContainerState
from crrd.lib.errors import RuntimeCallError
from crrd.node.slots import STOPS_AT_ONCE
from crrd.node.sweep import SWEEP_RETRY
from tests.support.standins import MemoryNode, OneRecorder
from tests.support.worlds import pin, request

pytestmark = pytest.mark.virtual_time

OLD = ["old-app", "old-side"]


class PodNode(MemoryNode):
    """A pod with two containers."""

    def __init__(self, **options: Any) -> None:
        super().__init__("app", "side", **options)

    @property
    def seconds(self) -> list[str]:
        """The sandboxes that crrd made and the runtime still has."""
        return [each.id for each in self.sandbox.known.values() if each.request_uid]

    def assert_restarted_once(self, status: Status) -> None:
        """Each hook ran once, each container has a next instance in the newest sandbox, and the request says so."""
        assert [state.phase for state in status.states] == [StatePhase.SUCCEEDED] * 2
        assert (self.sandbox.restarts, sorted(self.sandbox.hooks)) == (1, OLD)
        assert (self.stops, self.hooks_run) == ([], [])
        running = [each for each in self.known.values() if each.state is ContainerState.RUNNING]
        assert {(each.name, each.sandbox) for each in running} == {
            ("app", self.sandbox.newest.id),
            ("side", self.sandbox.newest.id),
        }
        assert [each.id for each in self.sandbox.ready] == [self.sandbox.newest.id]
        assert self.controller.executor.slots._free == STOPS_AT_ONCE


def asked(uid: str = "r1", **changes: Any) -> Request:
    return request("app", "side", uid=uid, **{"whole_pod": True} | changes)


async def test_kubelet_restarts_the_pod_once() -> None:
    async with PodNode() as node:
        node.post(asked())
        status = await node.completed()
        node.assert_restarted_once(status)
        assert node.sandbox.asked == ["r1"]
        assert node.requests["r1"].pinned[WHOLE_POD].bare_id == "sandbox-0"
        assert status.message == "2 of 2 containers recreated; the pod's IP is 127.0.0.1"


class Counting(OneRecorder):
    """Counts the pods that were restarted."""

    restarted = 0

    def pod_restarted(self) -> None:
        self.restarted += 1


async def test_a_restarted_pod_counts_once_however_often_it_was_tried() -> None:
    recorder = Counting()
    async with PodNode(recorder=recorder) as node:
        node.sandbox.errors = [RuntimeCallError("shim is stuck")] * 3
        node.post(asked())
        await node.completed()
    assert recorder.restarted == 1


async def test_the_unready_grace_period_comes_before() -> None:
    async with PodNode() as node:
        node.gate = True
        node.post(asked(strategy=Strategy(unready_grace_seconds=5)))
        await node.until(lambda: node.status().message == "waiting for the manager to make the pod unready")
        await asyncio.sleep(100)
        assert node.sandbox.asked == []
        node.post(replace(node.requests["r1"], unready_acquired=True, resource_version="50"))
        marked = asyncio.get_running_loop().time()
        await node.until(lambda: node.sandbox.asked == ["r1"])
        assert asyncio.get_running_loop().time() >= marked + 5
        node.assert_restarted_once(await node.completed())


@pytest.mark.parametrize("moment", [tenth / 10 for tenth in range(40)])
async def test_a_daemon_killed_at_any_moment(moment: float) -> None:
    async with PodNode() as node:
        node.post(asked())
        await asyncio.sleep(moment)
        await node.kill()
        node.assert_restarted_once(await node.completed())


@pytest.mark.parametrize("pause", [0.03, 0.07, 0.11, 0.29, 0.5])
async def test_a_daemon_killed_again_and_again(pause: float) -> None:
    async with PodNode() as node:
        node.post(asked())
        for _ in range(60):
            await asyncio.sleep(pause)
            await node.kill()
        node.assert_restarted_once(await node.completed())


@pytest.mark.parametrize("killed", [False, True])
async def test_a_lost_answer_is_no_second_restart(killed: bool) -> None:
    async with PodNode() as node:
        node.sandbox.lost_answers = 1
        node.post(asked())
        await node.until(lambda: bool(node.seconds))
        if killed:
            await node.kill()
        node.assert_restarted_once(await node.completed())


async def test_an_error_is_retried() -> None:
    with capture_logs() as logs:
        async with PodNode() as node:
            node.sandbox.errors = [RuntimeCallError("shim is stuck")] * 3
            node.post(asked())
            await node.until(lambda: node.status().state("app").reason is Reason.SANDBOX_RETRIED)
            assert "RunPodSandbox failed" in node.status().state("app").message
            node.assert_restarted_once(await node.completed())
            assert len(node.sandbox.asked) == 4
    assert [line["attempt"] for line in logs if line["event"] == "second sandbox failed"] == [1, 2, 3]
    assert sum(line["event"] == "second sandbox made" for line in logs) == 1


async def test_errors_for_two_minutes_end_it_and_nothing_is_stopped() -> None:
    async with PodNode() as node:
        node.sandbox.errors = [RuntimeCallError("shim is stuck")] * 99
        node.post(asked())
        status = await node.completed()
        assert [state.reason for state in status.states] == [Reason.SANDBOX_FAILED] * 2
        assert "last error: shim is stuck" in status.states[0].message
        assert (node.sandbox.restarts, node.seconds) == (0, [])
        assert all(each.state is ContainerState.RUNNING for each in node.known.values())


async def test_it_waits_for_a_slot_and_gives_it_back() -> None:
    async with PodNode() as node:
        slots = node.controller.executor.slots
        while slots.may_stop("default/other"):
            slots.take("default/other")
        node.post(asked())
        await asyncio.sleep(60)
        assert node.sandbox.asked == []
        slots.release()
        await node.completed()
        assert (node.sandbox.asked, slots._free) == (["r1"], 1)


async def test_nothing_is_made_while_kubelet_is_silent() -> None:
    async with PodNode() as node:
        node.kubelet_silent = asyncio.get_running_loop().time()
        node.post(asked())
        await node.until(lambda: node.status().state("app").reason is Reason.KUBELET_SILENT)
        await asyncio.sleep(60)
        assert node.sandbox.asked == []
        node.kubelet_silent = None
        node.assert_restarted_once(await node.completed())


async def test_a_kubelet_that_goes_down_after_the_second_sandbox_is_awaited() -> None:
    async with PodNode() as node:
        node.sandbox.kubelet_up.clear()
        node.post(asked())
        await node.until(lambda: bool(node.seconds))
        node.kubelet_silent = asyncio.get_running_loop().time()
        await asyncio.sleep(60)
        await node.kill()
        await asyncio.sleep(60)
        assert node.status().phase is RequestPhase.RECREATING
        node.kubelet_silent = None
        node.sandbox.kubelet_up.set()
        node.assert_restarted_once(await node.completed())
        assert node.sandbox.asked == ["r1"]


async def test_a_pod_that_kubelet_has_restarted_meanwhile_is_not_restarted_again() -> None:
    async with PodNode() as node:
        node.sandbox.lose()
        await node.sandbox.sync(0.1)
        node.sandbox.collect()
        node.post(asked())
        node.assert_restarted_once(await node.completed())
        assert node.sandbox.asked == []


async def test_a_sandbox_that_died_is_not_made_again() -> None:
    async with PodNode() as node:
        node.sandbox.lose()
        node.post(asked())
        await node.until(lambda: WHOLE_POD in node.requests["r1"].pinned)
        await node.sandbox.sync(2.0)
        node.assert_restarted_once(await node.completed())
        assert node.sandbox.asked == []


async def test_two_requests_whose_instances_are_the_same_are_one_restart() -> None:
    async with PodNode() as node:
        for uid in ("r1", "r2"):
            node.post(asked(uid))
        for uid in ("r1", "r2"):
            node.assert_restarted_once(await node.completed(uid))
        assert node.sandbox.asked == ["r1"]


async def test_a_forced_request_restarts_the_pod_again() -> None:
    async with PodNode() as node:
        node.post(asked())
        node.post(asked("r2", strategy=Strategy(force=True)))
        for uid in ("r1", "r2"):
            assert [state.phase for state in (await node.completed(uid)).states] == [StatePhase.SUCCEEDED] * 2
        assert (node.sandbox.asked, node.sandbox.restarts) == (["r1", "r2"], 2)
        assert len(node.sandbox.hooks) == len(set(node.sandbox.hooks)) == 4


async def test_a_request_for_a_container_and_one_for_the_pod_wait_for_each_other() -> None:
    async with PodNode() as node:
        node.post(request("app", uid="r1", containers=asked().containers[:1]))
        await node.until(lambda: bool(node.stops))
        node.post(asked("r2", strategy=Strategy(force=True)))
        await node.completed("r1")
        await node.completed("r2")
        assert [container for container, _ in node.stops] == ["old-app"]
        assert (node.sandbox.asked, node.sandbox.restarts) == (["r2"], 1)


async def test_a_request_that_is_deleted_before_makes_nothing() -> None:
    async with PodNode() as node:
        node.gate = True
        node.post(asked(strategy=Strategy(unready_grace_seconds=5)))
        await asyncio.sleep(2)
        node.delete("r1")
        await asyncio.sleep(60)
        assert (node.sandbox.asked, node.sandbox.restarts) == ([], 0)


async def test_a_request_that_is_deleted_afterwards_is_still_one_restart() -> None:
    async with PodNode() as node:
        node.post(asked())
        await node.until(lambda: node.sandbox.restarting)
        node.delete("r1")
        node.post(asked("r2"))
        node.assert_restarted_once(await node.completed("r2"))


async def swept(node: PodNode) -> None:
    """Let the daemon look for second sandboxes, for a while."""
    sweep = asyncio.create_task(node.controller.sweep.run())
    await asyncio.sleep(60)
    assert node.controller.sweep.heartbeat.check() == ""
    sweep.cancel()


@pytest.mark.parametrize("errors", [0, 3])
async def test_a_second_sandbox_of_a_request_that_is_gone_is_removed(errors: int) -> None:
    """Kubelet is away all the time, so the pod is never restarted."""
    async with PodNode() as node:
        node.sandbox.kubelet_up.clear()
        node.sandbox.add(1, "r1")
        node.sandbox.errors = []
        node.runtime_down = bool(errors)
        node.controller.pods.requests.replace((), "1")
        if errors:
            asyncio.get_running_loop().call_later(5, setattr, node, "runtime_down", False)
        await swept(node)
        assert node.sandbox.removed == ["sandbox-1"]
        assert node.sandbox.restarts == 0


async def test_a_runtime_that_is_away_is_logged_once_each_time() -> None:
    async with PodNode() as node:
        node.controller.pods.requests.replace((), "1")
        sweep = asyncio.create_task(node.controller.sweep.run())
        for _ in range(2):
            node.runtime_down = True
            node.controller.pods.sweep_due.set()
            with capture_logs() as logs:
                await asyncio.sleep(10)
                node.runtime_down = False
                await asyncio.sleep(30)
            failed = [line for line in logs if line["event"] == "looking for second sandboxes failed"]
            assert [line["log_level"] for line in failed] == ["warning", *["debug"] * (len(failed) - 1)]
            assert 3 < len(failed) < 6
            assert failed[0]["retry_in"] == pytest.approx(SWEEP_RETRY.initial, rel=SWEEP_RETRY.jitter)
            assert not node.controller.pods.sweep_due.is_set()
        sweep.cancel()


@pytest.mark.parametrize("made", [False, True])
async def test_a_request_that_ends_before_kubelet_has_noticed_leaves_no_second_sandbox(made: bool) -> None:
    async with PodNode() as node:
        node.sandbox.kubelet_up.clear()
        node.sandbox.seconds = 5.0
        sweep = asyncio.create_task(node.controller.sweep.run())
        node.post(asked())
        await node.until(lambda: bool(node.seconds if made else node.sandbox.asked))
        await asyncio.sleep(1.0 if made else 0.0)
        node.delete("r1")  # while the runtime makes it, or later
        await asyncio.sleep(60)
        sweep.cancel()
        assert (node.sandbox.removed, node.sandbox.restarts) == (["sandbox-1"], 0)


@pytest.mark.parametrize("force", [False, True])
async def test_a_request_waits_while_kubelet_restarts_the_pod_for_one_that_has_ended(force: bool) -> None:
    """The sweep has removed the second sandbox of that one. Another one now would run init containers twice."""
    async with PodNode() as node:
        node.sandbox.hook_seconds = 30
        sweep = asyncio.create_task(node.controller.sweep.run())
        node.post(asked())
        await node.until(lambda: node.sandbox.restarting)
        node.delete("r1")
        await asyncio.sleep(5)
        assert node.sandbox.removed == ["sandbox-1"]
        node.post(asked("r2", strategy=Strategy(force=force)))
        await asyncio.sleep(5)
        assert node.sandbox.restarting
        assert node.sandbox.asked == ["r1"]
        assert (await node.completed("r2")).phase is RequestPhase.COMPLETED
        sweep.cancel()


async def test_the_restart_of_a_pod_with_a_long_grace_period_is_remembered() -> None:
    """Otherwise the hook would run a second time, for a request that comes more than a minute later."""
    async with PodNode(hook=Hook(HookKind.EXEC, command=("drain",))) as node:
        node.grace, node.sandbox.hook_seconds = 300, 200
        sweep = asyncio.create_task(node.controller.sweep.run())
        node.post(asked())
        await node.until(lambda: node.sandbox.restarting)
        await asyncio.sleep(5)
        node.delete("r1")
        await asyncio.sleep(100)
        node.post(request("app", "side", uid="r2"))
        await node.completed("r2")
        sweep.cancel()
        assert node.hooks_run == []
        assert node.sandbox.restarts == 1


async def test_a_second_sandbox_whose_answer_was_lost_counts_when_it_is_removed() -> None:
    """Kubelet has seen it. The next request is for a container, and must not run its hook again."""
    async with PodNode(hook=Hook(HookKind.EXEC, command=("drain",))) as node:
        node.sandbox.hook_seconds, node.sandbox.lost_answers = 20, 1
        sweep = asyncio.create_task(node.controller.sweep.run())
        node.post(asked())
        await node.until(lambda: node.sandbox.restarting)
        node.delete("r1")
        await node.until(lambda: bool(node.sandbox.removed))
        node.post(request("app", "side", uid="r2"))
        await node.completed("r2")
        sweep.cancel()
        assert node.hooks_run == []
        assert node.sandbox.restarts == 1


async def test_a_second_sandbox_that_is_needed_or_alone_is_not_removed() -> None:
    """A live request waits for kubelet. Or kubelet may run containers in it, because it is the only one."""
    async with PodNode() as node:
        node.sandbox.kubelet_up.clear()
        node.post(asked())
        await node.until(lambda: bool(node.seconds))
        await asyncio.sleep(10)
        assert not node.controller.pods.sweep_due.is_set()
        node.controller.pods.sweep_due.set()
        await swept(node)
        assert node.sandbox.removed == []
        node.sandbox.known["sandbox-0"] = replace(node.sandbox.known["sandbox-0"], ready=False)
        node.delete("r1")
        await swept(node)
        assert node.sandbox.removed == []


@pytest.mark.parametrize("moment", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("collected", [False, True])
async def test_a_container_is_left_to_kubelet_while_it_restarts_the_pod(moment: float, collected: bool) -> None:
    """Otherwise its preStop hook would run twice. The second sandbox may be removed meanwhile."""
    async with PodNode(hook=Hook(HookKind.EXEC, command=("drain",))) as node:
        node.post(asked())
        await node.until(lambda: bool(node.sandbox.asked))
        node.delete("r1")
        node.post(request("app", "side", uid="r2"))
        await asyncio.sleep(moment)
        await node.until(lambda: node.sandbox.restarting)
        if collected:
            node.sandbox.known.pop(node.sandbox.newest.id)
        node.assert_restarted_once(await node.completed("r2"))


async def test_a_second_sandbox_that_was_removed_is_made_again() -> None:
    """The request was not active for a moment, or somebody has cleaned up, before kubelet noticed the sandbox."""
    async with PodNode() as node:
        node.sandbox.kubelet_up.clear()
        node.post(asked())
        await node.until(lambda: node.status().phase is RequestPhase.RECREATING)
        await node.sandbox.remove(node.sandbox.newest)
        node.sandbox.kubelet_up.set()
        node.assert_restarted_once(await node.completed())


async def test_a_container_is_left_to_kubelet_after_the_deadline_of_the_restart() -> None:
    """The manager has ended the request for the pod, which still has its label."""
    async with PodNode(hook=Hook(HookKind.EXEC, command=("drain",))) as node:
        node.post(asked())
        await node.until(lambda: node.sandbox.restarting)
        node.post(replace(node.requests["r1"], status=Status(RequestPhase.COMPLETED), resource_version="50"))
        node.post(request("app", "side", uid="r2"))
        node.assert_restarted_once(await node.completed("r2"))


async def test_a_stop_that_is_due_after_a_hook_comes_first() -> None:
    """Its request has ended, and the runtime refuses the stop at first. Kubelet would run the hook again."""
    async with PodNode(hook=Hook(HookKind.EXEC, command=("drain",))) as node:
        node.stop_errors = [RuntimeCallError("shim is stuck")] * 3
        node.post(request("app", uid="r1", containers=asked().containers[:1]))
        await node.until(lambda: bool(node.hooks_run))
        node.delete("r1")
        node.post(asked("r2", strategy=Strategy(force=True)))
        await node.completed("r2")
        assert (node.hooks_run, node.sandbox.restarts) == (["old-app"], 1)
        assert "old-app" not in node.sandbox.hooks


async def test_a_restart_that_the_runtime_has_refused_blocks_no_container() -> None:
    async with PodNode() as node:
        node.sandbox.errors = [RuntimeCallError("shim is stuck")]
        node.post(asked())
        await node.until(lambda: node.status().state("app").reason is Reason.SANDBOX_RETRIED)
        node.delete("r1")
        node.post(request("app", "side", uid="r2"))
        await node.completed("r2")
        assert (sorted(container for container, _ in node.stops), node.sandbox.restarts) == (OLD, 0)


async def test_a_pod_that_has_another_uid_now_was_restarted() -> None:
    """A request without the pod's UID is for whatever pod has its name. The recorded sandbox is that of an earlier."""
    async with PodNode() as node:
        node.sandbox.known["sandbox-0"] = replace(node.sandbox.known["sandbox-0"], id="sandbox-new")
        node.known = {key: replace(each, sandbox="sandbox-new") for key, each in node.known.items()}
        containers = tuple(RequestedContainer(name, None) for name in ("app", "side"))
        node.post(asked(pod_uid="", containers=containers, pinned={WHOLE_POD: pin("sandbox-0")}))
        assert [state.phase for state in (await node.completed()).states] == [StatePhase.SUCCEEDED] * 2
        assert node.sandbox.asked == []


async def test_a_pod_that_is_being_deleted_is_left_alone() -> None:
    async with PodNode() as node:
        node.deleting = True
        node.post(asked())
        status = await node.completed()
        assert [state.reason for state in status.states] == [Reason.POD_DELETING] * 2
        assert node.sandbox.asked == []


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("policy", [RestartPolicy.NEVER, RestartPolicy.ON_FAILURE])
async def test_a_pod_that_would_end_is_refused(policy: RestartPolicy, lost: bool) -> None:
    """Also if its sandbox was lost: a container that has completed does not come back."""
    async with PodNode(policy=policy) as node:
        if lost:
            node.sandbox.lose()
        node.post(asked())
        status = await node.completed()
        assert [state.reason for state in status.states] == [Reason.POD_WOULD_END] * 2
        assert (node.sandbox.asked, node.sandbox.restarts) == ([], 0)
