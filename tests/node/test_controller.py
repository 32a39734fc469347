"""Cache, queue, reconciler and executor together, on a node in memory and in virtual time."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import cycle, pairwise
from typing import Any

import pytest
from structlog.testing import capture_logs

from crrd.core.api.pod import Pod, PodContainer
from crrd.core.api.reasons import EventReason, Reason
from crrd.core.api.types import (
    Pin,
    RecreateState,
    Request,
    RequestedContainer,
    RequestPhase,
    StartTimes,
    StatePhase,
    Status,
    Strategy,
)
from crrd.core.recreate.actions import Action, Decision, EmitEvent, RunHook, StopContainer, WriteStatus
from crrd.core.recreate.invariants import Rule
from crrd.core.recreate.observation import (
    LATE_STOP_SECONDS,
    Hook,
    HookKind,
    HookResult,
    Instance,
    Observation,
    WorkKind,
)
from crrd.kubelet.restart_rules import RestartPolicy
from crrd.kubelet.runtime_status import ContainerState
from crrd.lib.errors import (
    ApiRefusedError,
    ApiUnavailableError,
    ConflictError,
    CrrdError,
    RuntimeCallError,
    RuntimeUnavailableError,
)
from crrd.node.controller import FLUSH_SECONDS
from crrd.node.execute import Executor
from crrd.node.pods import Pods
from crrd.node.records import RequestRecord
from crrd.node.slots import STOPS_AT_ONCE
from crrd.ports import Recorder
from tests.support.standins import MemoryNode, OneRecorder
from tests.support.worlds import instance, killed, pin, pod, recreating, request

pytestmark = pytest.mark.virtual_time

HOOK = Hook(HookKind.EXEC, command=("true",))


async def test_a_plain_request_costs_two_writes() -> None:
    async with MemoryNode() as node:
        node.post(request())
        status = await node.completed()
        assert [state.phase for state in status.states] == [StatePhase.SUCCEEDED]
        assert node.stops == [("old", 30)]
        assert node.writes == 2
        reasons = [event.reason for event in node.emitted]
        assert reasons == [EventReason.RECREATING, EventReason.RECREATED]


async def test_a_static_pod_has_another_uid_on_its_node() -> None:
    async with MemoryNode() as node:
        node.static_uid = "0f1e2d"
        node.known["old"] = replace(node.known["old"], pod_uid=node.static_uid)
        node.post(request())
        status = await node.completed()
        assert [state.phase for state in status.states] == [StatePhase.SUCCEEDED]
        assert node.stops == [("old", 30)]
        assert len(node.known) == 2


async def test_containers_may_be_named_as_log_lines_are() -> None:
    names = ["event", "request", "pod", "message", "level", "exc-info"]
    async with MemoryNode(*names) as node:
        with capture_logs() as logs:
            node.post(request(*names))
            await node.completed()
        moves = [line for line in logs if line["event"] == "container state" and line["phase"] == "Succeeded"]
        assert [line["container"] for line in moves] == names
        assert {(line["request"], line["request_uid"], line["pod"]) for line in moves} == {
            (node.requests["r1"].key, "r1", "default/web")
        }
        assert [line["event"] for line in logs][-1] == "request completed"


async def test_a_hook_costs_one_more_and_its_time_is_taken_off() -> None:
    async with MemoryNode(hook=HOOK) as node:
        node.hook_seconds = 1.5
        node.post(request())
        await node.completed()
        assert node.hooks_run == ["old"]
        assert node.stops == [("old", 28.5)]
        assert node.writes == 3


@pytest.mark.parametrize("asked", ["runtime", "kubelet"])
async def test_a_stop_for_a_request_that_is_gone_may_end_while_somebody_is_asked(asked: str) -> None:
    class Slow(MemoryNode):
        seconds = 0.002

        async def instances(self, pod_uid: str, *, urgent: bool = False) -> tuple[Instance, ...]:
            found = await super().instances(pod_uid, urgent=urgent)
            await asyncio.sleep(self.seconds if asked == "runtime" else 0.002)
            return found

        async def silent_since(self) -> float | None:
            await asyncio.sleep(self.seconds if asked == "kubelet" else 0.002)
            return await super().silent_since()

    node = Slow()
    async with node:
        node.stop_seconds = 3.0
        node.kubelet_seconds = 1e6
        node.post(request())
        await node.until(lambda: bool(node.stops))
        node.delete("r1")
        node.seconds = 5.0
        node.post(request(uid="r2", strategy=Strategy(grace_seconds=0)))
        await asyncio.sleep(30)
        assert node.stops == [("old", 30)]


@pytest.mark.parametrize("turns", range(8))
async def test_a_stop_that_ends_in_any_turn_of_the_loop_after_a_look_is_not_sent_again(turns: int) -> None:
    class Late(MemoryNode):
        ended: asyncio.Event
        last_look = False
        sent = 0

        async def stop(self, instance: Instance, seconds: float) -> None:
            self.sent += 1
            await self.ended.wait()
            await super().stop(instance, seconds)

        async def silent_since(self) -> float | None:
            if self.last_look:
                self._in(turns)
            return await super().silent_since()

        def _in(self, turns: int) -> None:
            if turns:
                asyncio.get_running_loop().call_soon(self._in, turns - 1)
            else:
                self.ended.set()

    node = Late()
    async with node:
        node.ended = asyncio.Event()
        node.stop_seconds = node.list_seconds = 0.0
        node.kubelet_seconds = 1e6
        node.post(request())
        await node.until(lambda: node.sent == 1)
        node.delete("r1")
        node.last_look = True
        node.post(request(uid="r2"))
        await asyncio.sleep(30)
        assert node.sent == 1


async def test_that_a_hook_has_ended_is_told_while_the_runtime_hangs() -> None:
    async with MemoryNode(hook=HOOK) as node:
        node.hook_seconds = 1.5
        node.post(request())
        await node.until(lambda: bool(node.hooks_run))
        node.list_seconds = 3600.0
        await asyncio.sleep(6.0)
        assert node.status().state("app").is_killed
        assert node.status().message == "waiting for the container runtime: it has not answered within 2s"
        assert node.stops == []


@pytest.mark.parametrize("fails", [False, True])
async def test_that_a_stop_was_sent_is_persisted_while_the_runtime_hangs(*, fails: bool) -> None:
    async with MemoryNode() as node:
        node.stop_seconds = 1.0 if fails else 3600.0
        node.stop_errors = [RuntimeCallError("shim is stuck")] if fails else []
        node.post(request(strategy=Strategy(force=True)))
        await node.until(lambda: bool(node.stops) and not node.stop_errors)
        await asyncio.sleep(0.5)
        node.list_seconds = 3600.0
        await asyncio.sleep(6.0)
        assert node.requests["r1"].start_times["app"].stop


@pytest.mark.parametrize("sent", [False, True])
async def test_a_slow_runtime_is_given_its_time_once_a_stop_is_persisted_or_cannot_be(*, sent: bool) -> None:
    async with MemoryNode() as node:
        node.lose_annotations = not sent
        node.stop_errors = [RuntimeCallError("shim is stuck")] * 4
        node.post(request())
        await node.until(lambda: len(node.stop_errors) < 4)
        node.list_seconds = 5.0
        assert (await node.completed()).states[0].phase is StatePhase.SUCCEEDED


async def test_a_slow_runtime_is_given_its_time_while_no_hooks_end_is_to_be_told() -> None:
    async with MemoryNode() as node:
        node.list_seconds = 5.0
        node.post(request())
        assert (await node.completed()).states[0].phase is StatePhase.SUCCEEDED


async def test_a_list_from_before_the_pod_was_known_is_made_anew() -> None:
    class Late(MemoryNode):
        async def _watch_pods(self) -> None:
            await asyncio.sleep(0.5)
            self.known["old"] = replace(self.known["old"], state=ContainerState.EXITED)
            await super()._watch_pods()

    async with Late() as node:
        node.post(request())
        await asyncio.sleep(3)
        assert node.status().state("app").phase is StatePhase.RECREATING
        assert node.stops == []


async def test_the_log_says_each_step_once() -> None:
    async with MemoryNode(hook=HOOK) as node:
        with capture_logs() as logs:
            node.post(request())
            await node.completed()
            await asyncio.sleep(5)
    assert [(line["event"], line["log_level"]) for line in logs if line["log_level"] != "debug"] == [
        ("preStop hook started", "info"),
        ("container state", "info"),
        ("request state", "info"),
        ("preStop hook ended", "info"),
        ("stopping container", "info"),
        ("container stopped", "info"),
        ("container state", "info"),
        ("request completed", "info"),
    ]
    work = [line for line in logs if "hook" in line["event"] or "stop" in line["event"]]
    assert [(line["container"], line["container_id"]) for line in work] == [("app", "old")] * 4


async def test_a_pin_that_is_taken_is_no_trouble() -> None:
    async with MemoryNode() as node:
        with capture_logs() as logs:
            node.post(request(strategy=Strategy(force=True)))
            await node.completed()
    assert [line["event"] for line in logs if line["log_level"] == "warning"] == []


@pytest.mark.parametrize("after", [4, 12], ids=["hook", "stop"])
async def test_an_annotation_that_somebody_spoils_ends_nothing(after: int) -> None:
    async with MemoryNode(hook=HOOK) as node:
        node.hook_seconds, node.stop_seconds = 10.0, 5.0
        node.post(request())
        await asyncio.sleep(after)
        now = node.requests["r1"]
        error = "the annotation crr.apps.kruise.io/pinned-containers must be a JSON object of containers"
        node.post(replace(now, resource_version="1000", pinned={}, start_times={}, error=error, spoilt=True))
        assert (await node.completed()).states[0].phase is StatePhase.SUCCEEDED
        assert (len(node.hooks_run), len(node.stops)) == (1, 1)


async def test_a_spoilt_annotation_that_is_not_the_nodes_is_no_reason_to_write() -> None:
    async with MemoryNode() as node:
        node.stop_seconds = 20.0
        node.post(request(strategy=Strategy(force=True)))
        await asyncio.sleep(4)
        before = node.writes
        now = node.requests["r1"]
        node.post(replace(now, resource_version="1000", error="the annotation unready-acquired is odd", spoilt=True))
        await asyncio.sleep(10)
        assert node.writes <= before + 1
        assert (await node.completed()).states[0].phase is StatePhase.SUCCEEDED


async def test_an_annotation_that_was_never_readable_is_malformed() -> None:
    async with MemoryNode() as node:
        node.post(request(error="the annotation is odd", spoilt=True))
        assert (await node.completed()).states[0].phase is StatePhase.FAILED
        node.post(replace(node.requests["r1"], resource_version="1000"))
        await asyncio.sleep(60)
        assert node.stops == []


async def test_pins_that_somebody_removes_are_remembered() -> None:
    async with MemoryNode("app", "side") as node:
        node.known["old-app"] = replace(node.known["old-app"], state=ContainerState.EXITED)
        node.post(request("app", "side", strategy=Strategy(force=True, ordered=True)))
        await asyncio.sleep(3)
        assert node.status().state("app").phase is StatePhase.RECREATING
        assert set(node.requests["r1"].pinned) == {"app", "side"}
        node.requests["r1"] = replace(node.requests["r1"], pinned={}, resource_version="1000")
        node.controller.pods.requests.put(node.requests["r1"])
        await asyncio.sleep(3)
        assert set(node.requests["r1"].pinned) == {"app", "side"}, "and written again"
        node._create("app", "app-new")
        node.controller.pods.pod_changed(node.view())
        status = await node.completed()
        assert {state.phase for state in status.states} == {StatePhase.SUCCEEDED}
        assert node.stops == [("old-side", 30)]


@pytest.mark.parametrize("force", [False, True])
async def test_pinning_keeps_within_three_writes(force: bool) -> None:
    async with MemoryNode() as node:
        plain = request(strategy=Strategy(force=force))
        contextless = tuple(replace(container, context=None) for container in plain.containers)
        node.post(plain if force else replace(plain, containers=contextless))
        status = await node.completed()
        assert status.states[0].phase is StatePhase.SUCCEEDED
        assert node.requests["r1"].pinned == {"app": pin("old")}
        assert node.writes == 3


async def test_each_further_container_costs_two_more_at_most() -> None:
    async with MemoryNode("a", "b", "c") as node:
        node.post(request("a", "b", "c"))
        status = await node.completed()
        assert {state.phase for state in status.states} == {StatePhase.SUCCEEDED}
        assert [container for container, _ in node.stops] == ["old-a", "old-b", "old-c"]
        assert node.writes <= 7


async def test_two_requests_in_turn_and_one_recreation() -> None:
    async with MemoryNode() as node:
        node.post(request())
        node.post(request(uid="r2", created="2099-01-01T00:00:01Z"))
        await node.until(lambda: node.status("r2").phase is RequestPhase.PENDING)
        assert (await node.completed("r2")).states[0].phase is StatePhase.SUCCEEDED
        assert len(node.stops) == 1


async def test_deleted_during_its_stop_the_next_one_runs() -> None:
    async with MemoryNode() as node:
        node.post(request())
        node.post(request(uid="r2", created="2099-01-01T00:00:01Z"))
        await node.until(lambda: bool(node.stops))
        node.delete("r1")
        assert (await node.completed("r2")).states[0].phase is StatePhase.SUCCEEDED
        assert len(node.stops) == 1


async def test_a_request_that_is_deleted_while_the_runtime_is_asked_stops_nothing() -> None:
    class Slow(MemoryNode):
        looks = 0

        async def instances(self, pod_uid: str, *, urgent: bool = False) -> tuple[Instance, ...]:
            found = await super().instances(pod_uid, urgent=urgent)
            self.looks += 1
            await asyncio.sleep(0.5)
            if "r1" in self.requests:
                self.delete("r1")
            await asyncio.sleep(0.5)
            return found

    node = Slow()
    async with node:
        node.post(request())
        await node.until(lambda: bool(node.looks))
        await asyncio.sleep(60)
        assert not node.stops
        assert not node.writes
        assert not node.emitted


@pytest.mark.parametrize(
    "end", ["deleted", "deadline", "label", "unknown phase", "deadline, then label", "deadline, then deleted"]
)
async def test_whoever_ends_a_request_during_its_hook_the_stop_follows(end: str) -> None:
    async with MemoryNode(hook=HOOK) as node:
        node.hook_seconds = 5.0
        node.post(request())
        await node.until(lambda: bool(node.hooks_run))
        now = node.requests["r1"]
        if end == "deleted":
            node.delete("r1")
        elif end == "label":
            node.post(replace(now, active=False))
        elif end.startswith("deadline"):
            failed = replace(now.status, phase=RequestPhase.COMPLETED, completion_time="2026-01-01T00:02:00Z")
            node.post(replace(now, status=failed))
            await asyncio.sleep(1)  # a round sees it
            if end.endswith("label"):
                node.post(replace(node.requests["r1"], active=False))
            elif end.endswith("deleted"):
                node.delete("r1")
        else:
            node.post(replace(now, error="status.phase must be one of Pending, Recreating, Completed"))
        await asyncio.sleep(10)
        assert [container_id for container_id, _ in node.stops] == ["old"]
        assert node.hooks_run == ["old"]


async def test_the_stop_of_a_request_that_has_ended_is_bounded_by_the_grace_period() -> None:
    async with MemoryNode(hook=HOOK) as node:
        node.post(request(strategy=Strategy(grace_seconds=20)))
        await node.until(lambda: bool(node.hooks_run))
        node.kubelet_silent = 1.0
        node.delete("r1")
        await asyncio.sleep(30)
        node.kubelet_silent = None
        await asyncio.sleep(600)
        assert node.stops == []
        assert not list(node.controller.pods), "nothing is kept"


async def test_a_stop_that_fails_is_tried_again_though_the_request_has_gone() -> None:
    async with MemoryNode(hook=HOOK) as node:
        node.stop_errors = [RuntimeCallError("shim is stuck")]
        node.post(request())
        await node.until(lambda: bool(node.hooks_run))
        node.delete("r1")
        await asyncio.sleep(10)
        assert len(node.stops) == 2


async def test_a_pod_that_is_being_deleted_is_left_to_kubelet_when_its_request_has_gone() -> None:
    async with MemoryNode(hook=HOOK) as node:
        node.post(request())
        await node.until(lambda: bool(node.hooks_run))
        node.deleting = True
        node.delete("r1")
        await asyncio.sleep(10)
        assert node.stops == []


async def test_deleted_during_its_hook_the_hook_is_not_run_again() -> None:
    async with MemoryNode(hook=HOOK) as node:
        node.post(request())
        await node.until(lambda: bool(node.hooks_run))
        node.delete("r1")
        await asyncio.sleep(10)
        node.post(request(uid="r2"))
        assert (await node.completed("r2")).states[0].phase is StatePhase.SUCCEEDED
        assert node.hooks_run == ["old"]


async def test_a_request_that_loses_its_label_during_its_hook_does_not_run_it_again() -> None:
    async with MemoryNode(hook=HOOK) as node:
        node.post(request(strategy=Strategy(grace_seconds=5)))
        await node.until(lambda: bool(node.hooks_run))
        node.controller.pods.requests.delete(replace(node.requests["r1"], resource_version="50"))
        await asyncio.sleep(40)
        node.post(replace(node.requests["r1"], resource_version="51"))
        assert (await node.completed()).states[0].phase is StatePhase.SUCCEEDED
        assert node.hooks_run == ["old"]


async def test_the_runtime_is_polled_only_while_it_is_awaited() -> None:
    async with MemoryNode() as node:
        node.kubelet_seconds = 3.0
        node.post(request())
        assert (await node.completed()).states[0].phase is StatePhase.SUCCEEDED
        assert node.controller.pods.none_live.is_set()


async def test_an_awaited_runtime_is_looked_at_regularly() -> None:
    async with MemoryNode() as node:
        node.kubelet_seconds = 3600.0
        node.post(request())
        await node.until(lambda: bool(node.stops))
        await asyncio.sleep(200)  # what is told of the wait is told ever more rarely
        before = node.looks
        await asyncio.sleep(10)
        assert 19 <= node.looks - before <= 22


async def test_a_runtime_that_nothing_is_awaited_of_is_left_alone() -> None:
    async with MemoryNode() as node:
        node.post(request(strategy=Strategy(min_started_seconds=100)))
        await node.until(lambda: len(node.known) == 2)
        await asyncio.sleep(10)
        before = node.looks
        await asyncio.sleep(60)
        assert node.looks == before
        assert (await node.completed()).states[0].phase is StatePhase.SUCCEEDED


async def test_the_pods_are_listed_once_per_active_time() -> None:
    async with MemoryNode() as node:
        node.post(request())
        await node.completed()
        await asyncio.sleep(1)
        assert node.controller.pods.known_since("default/web") is None
        node.post(request(uid="r2", resource_version="50"))
        await node.completed("r2")
        assert node.lists == 2


async def test_conflicts_are_decided_anew() -> None:
    async with MemoryNode() as node:
        node.write_errors = [ConflictError("modified"), ConflictError("modified")]
        with capture_logs() as logs:
            node.post(request())
            assert (await node.completed()).states[0].phase is StatePhase.SUCCEEDED
        assert [line["log_level"] for line in logs if line["event"] == "request write failed"] == ["debug", "debug"]
        assert len(node.stops) == 1


async def test_the_api_server_is_away_during_the_stop() -> None:
    async with MemoryNode() as node:
        node.write_errors = [ApiUnavailableError("away", retry_after=3.0), *[ApiUnavailableError("away")] * 6]
        node.post(request())
        assert (await node.completed()).states[0].phase is StatePhase.SUCCEEDED
        assert len(node.stops) == 1


async def test_a_stop_after_a_hook_waits_for_the_api_server() -> None:
    async with MemoryNode(hook=HOOK) as node:
        node.post(request())
        await node.until(lambda: node.status().phase is RequestPhase.RECREATING)
        node.write_errors = [ApiUnavailableError("away")] * 4
        await node.until(lambda: not node.write_errors)
        assert node.stops == []
        await node.completed()
        assert node.hooks_run == ["old"]


async def test_and_goes_on_without_it_once_the_grace_period_is_over() -> None:
    async with MemoryNode(hook=HOOK) as node:
        node.hook_seconds = 5.0
        node.post(request())
        await node.until(lambda: bool(node.hooks_run))
        began = asyncio.get_running_loop().time()
        node.write_errors = [ApiUnavailableError("away")] * 1000
        await node.until(lambda: bool(node.stops))
        assert asyncio.get_running_loop().time() - began <= 30 + LATE_STOP_SECONDS + 1
        node.write_errors.clear()
        await node.completed()
        assert len(node.hooks_run) == 1


async def test_a_network_that_is_not_ready_holds_the_stop_back() -> None:
    async with MemoryNode() as node:
        node.network_problem = "cni plugin not initialized"
        node.post(request())
        await node.until(lambda: node.status().states[:1] != () and node.status().states[0].message != "")
        await asyncio.sleep(60)
        assert node.stops == []
        assert node.status().states[0].reason is Reason.RUNTIME_NOT_READY
        node.network_problem = ""
        await node.completed()
        assert [container for container, _ in node.stops] == ["old"]


async def test_a_refused_write_is_tried_again() -> None:
    async with MemoryNode() as node:
        node.write_errors = [ApiRefusedError("forbidden", status=403)]
        node.post(request())
        await node.completed()


@pytest.mark.parametrize(
    ("error", "said", "log_lines"),
    [
        (RuntimeCallError("shim is stuck"), "last error: shim is stuck", {"container stop failed"}),
        (ValueError("bug"), "last error: internal error: ValueError('bug')", {"container stop failed", "stop crashed"}),
    ],
)
async def test_stops_that_err_are_retried_for_two_minutes(error: Exception, said: str, log_lines: set[str]) -> None:
    async with MemoryNode() as node:
        node.stop_errors = [error] * 99
        node.post(request())
        started = asyncio.get_running_loop().time()
        with capture_logs() as logs:
            status = await node.completed()
        assert asyncio.get_running_loop().time() - started >= 120
        assert status.states[0].reason is Reason.STOP_FAILED
        assert f"StopContainer failed {len(node.stops)} times" in status.states[0].message
        assert said in status.states[0].message
        assert {line["event"] for line in logs if line["log_level"] in ("warning", "error")} == log_lines


@pytest.mark.parametrize(("minor", "phase"), [(35, StatePhase.SUCCEEDED), (36, StatePhase.FAILED)])
async def test_kubelets_version_decides_whether_a_stop_restarts_the_whole_pod(minor: int, phase: StatePhase) -> None:
    rules = ({"action": "RestartAllContainers", "exitCodes": {"operator": "NotIn", "values": [0]}},)

    class Ruled(MemoryNode):
        def view(self) -> Pod:
            plain = super().view()
            return replace(
                plain, containers={name: replace(one, restart_rules=rules) for name, one in plain.containers.items()}
            )

    async with Ruled() as node:
        node.kubelet_minor = minor
        node.post(request())
        assert (await node.completed()).states[0].phase is phase
        assert bool(node.stops) is (phase is StatePhase.SUCCEEDED)


@pytest.mark.parametrize("failures", [0, 1])
async def test_what_kubelet_restarts_with_a_container_is_told_whichever_stop_did_it(failures: int) -> None:
    """The first stop may have ended the container although the runtime reports an error."""
    rules = ({"action": "RestartAllContainers", "exitCodes": {"operator": "NotIn", "values": [0]}},)

    class Ruled(MemoryNode):
        def view(self) -> Pod:
            plain = super().view()
            containers = dict(plain.containers)
            containers["app"] = replace(containers["app"], restart_rules=rules)
            return replace(plain, containers=containers)

        async def stop(self, instance: Instance, seconds: float) -> None:
            if not self.stops:
                self._create_next("side")
                self.report()
            await super().stop(instance, seconds)

    async with Ruled("app", "side") as node:
        node.stop_errors = [RuntimeCallError("shim is stuck")] * failures
        containers = (RequestedContainer("app", pin("old-app")),)
        node.post(request(containers=containers, strategy=Strategy(allow_pod_restart=True)))
        state = (await node.completed()).state("app")
        assert state.reason is Reason.POD_RESTARTED
        assert state.message == "kubelet also restarted other containers of the pod: side"
        assert len(node.stops) == 1 + failures


async def test_a_hook_that_breaks_is_a_hook_that_failed() -> None:
    class Broken(MemoryNode):
        async def run(self, action: RunHook) -> HookResult:
            await super().run(action)
            raise ValueError("bug")

    received: list[HookResult] = []

    class Listener(OneRecorder):
        def hook_ended(self, hook: Hook, result: HookResult) -> None:
            received.append(result)

    async with Broken(hook=HOOK, recorder=Listener()) as node:
        node.post(request())
        with capture_logs():
            assert (await node.completed()).states[0].phase is StatePhase.SUCCEEDED
        assert [result.error for result in received] == ["internal error: ValueError('bug')"]
        assert received[0].seconds == pytest.approx(2.0)
        assert node.stops == [("old", 28)]


@pytest.mark.parametrize("hook", [None, HOOK])
async def test_what_was_begun_for_a_request_that_is_gone_is_forgotten_in_time(hook: Hook | None) -> None:
    async with MemoryNode(hook=hook) as node:
        node.post(request())
        await node.until(lambda: bool(node.hooks_run or node.stops))
        node.delete("r1")
        await asyncio.sleep(0.5)
        assert node.works
        await asyncio.sleep(120)
        assert node.works == {}


async def test_a_hook_that_was_kept_for_a_request_is_forgotten_when_that_one_goes_before_a_round() -> None:
    async with MemoryNode(hook=HOOK) as node:
        node.post(request())
        await node.until(lambda: any(work.hook_result for work in node.works.values()))
        node.post(request(uid="r2", name="r2"))  # waits for its turn behind the hook of r1
        node.delete("r1")
        node.delete("r2")
        await asyncio.sleep(600)
        assert node.works == {}


async def test_what_was_done_for_a_request_that_has_ended_is_forgotten_at_once() -> None:
    async with MemoryNode(hook=HOOK) as node:
        node.post(request())
        await node.completed()
        await asyncio.sleep(0.1)
        assert node.works == {}


async def test_a_hook_whose_stop_fails_counts_until_its_grace_period_ends() -> None:
    async with MemoryNode(hook=HOOK) as node:
        node.stop_errors = [RuntimeCallError("shim is stuck")] * 1000
        node.post(request(strategy=Strategy(grace_seconds=600)))
        await node.until(lambda: bool(node.stops))
        node.delete("r1")
        await asyncio.sleep(500)
        assert node.works.keys() == {("r1", "old")}
        await asyncio.sleep(200)
        assert node.works == {}


async def test_of_a_pod_whose_request_is_gone_nothing_is_awaited() -> None:
    async with MemoryNode() as node:
        node.kubelet_seconds = 1e6
        node.post(request())
        await node.until(lambda: node.controller.pods.peek("default/web").runtime.awaited)
        await asyncio.sleep(60)
        node.delete("r1")
        await asyncio.sleep(1)
        assert not node.controller.pods.peek("default/web").runtime.awaited


async def test_however_many_requests_end_a_hook_is_kept_by_one_timer() -> None:
    async with MemoryNode(hook=HOOK) as node:
        node.hook_seconds = 5.0
        node.post(request(strategy=Strategy(grace_seconds=604_800)))
        await node.until(lambda: bool(node.hooks_run))
        node.delete("r1")
        await asyncio.sleep(10)
        node.kubelet_silent = 1.0
        for number in range(50):
            node.post(request(uid=f"next-{number}"))
            await asyncio.sleep(0.1)
            node.delete(f"next-{number}")
            await asyncio.sleep(0.1)
        assert node.works.keys() == node.expiries == {("r1", "old")}
        waiting = asyncio.get_running_loop()._scheduled  # type: ignore[attr-defined]
        assert sum(not timer.cancelled() for timer in waiting) < 10
        await asyncio.sleep(604_800)
        assert node.works.keys() == node.expiries == set()


@pytest.mark.parametrize("taken", [True, False], ids=["as written", "in part"])
async def test_of_a_completed_request_that_leaves_before_its_last_write_is_answered_nothing_is_kept(
    *, taken: bool
) -> None:
    async with MemoryNode() as node:
        node.answer_seconds, node.lose_messages = 0.5, not taken
        node.post(request())
        await node.completed()
        node.delete("r1")
        assert node.works != {}
        await asyncio.sleep(1)
        assert (node.works == {}) is taken
        assert (node.expiries == set()) is taken


async def test_of_a_request_that_leaves_before_another_write_is_answered_the_stop_is_remembered() -> None:
    async with MemoryNode() as node:
        node.stop_seconds, node.kubelet_seconds, node.answer_seconds = 0.1, 3600.0, 1.0
        node.post(request())
        await node.until(lambda: node.known["old"].state is ContainerState.EXITED)
        assert node.controller.pods.peek("default/web").requests["r1"].writing
        node.delete("r1")
        await asyncio.sleep(3)
        assert node.works.keys() == {("r1", "old")}


async def test_forgetting_a_hook_of_a_request_that_is_gone_leaves_the_next_requests_stop() -> None:
    async with MemoryNode(hook=HOOK) as node:
        node.stop_seconds = 3600.0
        node.post(request(strategy=Strategy(grace_seconds=5)))
        await node.until(lambda: bool(node.hooks_run))
        node.kubelet_silent = 1.0  # until it is too late for the stop of r1
        node.delete("r1")
        await asyncio.sleep(11)
        node.kubelet_silent = None
        node.post(request(uid="r2", strategy=Strategy(grace_seconds=600)))
        await node.until(lambda: bool(node.stops))
        assert len(node.works) == 2
        await asyncio.sleep(200)
        assert [uid for uid, _ in node.works] == ["r2"]
        assert len(node.stops) == 1


async def test_a_runtime_that_errs_for_twenty_seconds_is_survived() -> None:
    async with MemoryNode() as node:
        node.stop_errors = [RuntimeCallError("shim is stuck")] * 6
        node.post(request())
        assert (await node.completed()).states[0].phase is StatePhase.SUCCEEDED


class Flapping(MemoryNode):
    """Its runtime answers the looks as it is told, over and over: with an error, or well for ""."""

    def __init__(self, *answers: str, **options: Any) -> None:
        super().__init__(**options)
        self.answers = cycle(answers)

    async def instances(self, pod_uid: str, *, urgent: bool = False) -> tuple[Instance, ...]:
        if error := next(self.answers):
            raise RuntimeUnavailableError(error)
        return await super().instances(pod_uid, urgent=urgent)


@pytest.mark.parametrize(
    "answers", [("refused", "closed"), ("refused", ""), ("", "refused"), tuple(f"trace {n}" for n in range(10_000))]
)
async def test_a_runtime_that_never_says_the_same_twice_causes_no_flood_of_writes(answers: tuple[str, ...]) -> None:
    async with Flapping(*answers) as node:
        node.kubelet_seconds = 1e6
        node.post(request())
        await asyncio.sleep(20)
        writes, looks = node.writes, node.looks
        await asyncio.sleep(60)
        assert node.writes - writes <= 30
        assert node.looks - looks <= 30


async def test_a_runtime_that_errs_now_and_then_is_asked_again_soon() -> None:
    async with Flapping(*("",) * 200, "refused") as node:
        node.kubelet_seconds = 1e6
        node.post(request())
        await asyncio.sleep(3600)
        assert node.controller.pods.peek("default/web").runtime.retry.failures <= 2


async def test_what_failed_for_one_request_does_not_count_for_the_next() -> None:
    async with MemoryNode() as node:
        node.stop_errors = [RuntimeCallError("shim is stuck")] * 6
        node.post(request())
        await node.until(lambda: len(node.stops) == 5)
        node.delete("r1")
        await asyncio.sleep(3600)
        node.stop_errors = []
        node.post(request(uid="r2"))
        assert (await node.completed("r2")).states[0].phase is StatePhase.SUCCEEDED
        assert node.stops[-1] == ("old", 30)


async def test_nothing_is_remembered_of_what_has_ended() -> None:
    async with MemoryNode(hook=HOOK) as node:
        for number in range(20):
            newest = max(node.known.values(), key=lambda known: known.created_at)
            plain = request(uid=f"r{number}", resource_version=str(100 + 20 * number))
            meant = tuple(replace(container, context=newest.pin) for container in plain.containers)
            node.post(replace(plain, containers=meant))
            assert (await node.completed(f"r{number}")).states[0].phase is StatePhase.SUCCEEDED
            node.delete(f"r{number}")
        await asyncio.sleep(120)
        executor = node.controller.executor
        assert list(node.controller.pods) == []
        assert list(node.controller.pods.requests) == []
        for memory in (executor._tasks, executor._awaited, executor.writes._tasks):
            assert len(memory) == 0


def note(node: MemoryNode, req: Request) -> RequestRecord:
    """Let the node know a request without a round that decides about it."""
    record = RequestRecord(req, 0.0)
    node.controller.pods.ensure(req.pod_key).requests[req.uid] = record
    return record


def _busy(node: MemoryNode) -> Callable[[], None]:
    """All slots for stops are taken; returns what gives one back."""
    executor = node.controller.executor
    while executor.slots.may_stop("default/web"):
        executor.slots.take("default/other")
    return executor.slots.release


async def test_no_more_stops_than_slots_at_once_and_each_pod_in_its_turn() -> None:
    async with MemoryNode() as node:
        woken: list[str] = []
        node.stop_seconds = 3600.0
        cache = Pods(lambda _: None, asyncio.get_running_loop().time)
        executor = Executor(node.controller.executor._edges, cache, woken.append, "")
        for number in range(STOPS_AT_ONCE):
            name = f"c{number}"
            node.known[name] = instance(name)
            assert executor.slots.may_stop(name)
            asked = request(uid=f"r-{name}", pod_name=name)
            cache.requests.put(asked)
            executor.carry_out([StopContainer(asked, node.known[name], 5.0, 0.0)])
            executor.slots.end_round(f"default/{name}", wanted=False)
        for waits in ("default/a", "default/b", "default/c", "default/a", "default/d"):
            assert not executor.slots.may_stop(waits)
            executor.slots.end_round(waits, wanted=True)
        executor.slots.end_round("default/c", wanted=False)
        await asyncio.sleep(1.9)
        assert woken == []
        await asyncio.sleep(0.2)  # what takes long gives its slot back, once
        assert woken == ["default/a", "default/b", "default/d"]
        assert executor.slots._free == STOPS_AT_ONCE - 3
        executor.slots.take("default/a")
        executor.slots.end_round("default/b", wanted=False)
        assert executor.slots._free == STOPS_AT_ONCE - 2
        executor.slots.end_round("default/d", wanted=False)
        assert executor.slots._free == STOPS_AT_ONCE - 1
        assert not executor.slots._held
        await asyncio.sleep(4000)
        assert executor.slots._free == STOPS_AT_ONCE - 1


async def test_a_slot_that_its_pod_does_not_use_goes_to_the_next() -> None:
    async with MemoryNode() as node:
        executor, give_back = node.controller.executor, _busy(node)
        for waits in ("default/a", "default/b"):
            executor.slots.end_round(waits, wanted=True)
        give_back()
        assert (executor.slots.may_stop("default/a"), executor.slots.may_stop("default/b")) == (True, False)
        executor.slots.end_round("default/a", wanted=False)
        assert (executor.slots.may_stop("default/a"), executor.slots.may_stop("default/b")) == (False, True)


async def test_a_stop_that_waits_for_a_slot_is_not_told_as_sent() -> None:
    async with MemoryNode() as node:
        give_back = _busy(node)
        node.post(request())
        await asyncio.sleep(10)
        assert (node.stops, node.emitted) == ([], [])
        assert node.status().states == (RecreateState("app"),)
        give_back()
        assert (await node.completed()).states[0].phase is StatePhase.SUCCEEDED
        assert node.stops == [("old", 30)]


@pytest.mark.parametrize("meanwhile", ["deleted", "pod deleted", "kubelet silent", "drained"])
async def test_while_a_stop_waits_for_a_slot_all_may_change(meanwhile: str) -> None:
    async with MemoryNode() as node:
        give_back = _busy(node)
        node.post(request())
        await asyncio.sleep(1)
        match meanwhile:
            case "deleted":
                node.delete("r1")
            case "pod deleted":
                node.controller.pods.pod_changed(replace(node.view(), deleting=True))
            case "kubelet silent":
                node.kubelet_silent = asyncio.get_running_loop().time()
            case "drained":
                await node.controller.drain()
        give_back()
        await asyncio.sleep(10)
        assert node.stops == []
        assert node.controller.executor.slots.may_stop("default/web")
        assert node.controller.executor.slots._free == 1


async def test_of_two_requests_stops_the_second_is_not_sent_once_the_first_has_ended() -> None:
    async with MemoryNode() as node:
        node.stop_seconds, node.kubelet_seconds = 20.0, 1e6
        node.post(request())
        await node.until(lambda: bool(node.stops))
        await asyncio.sleep(3)
        give_back = _busy(node)
        node.delete("r1")
        node.post(request(uid="r2", strategy=Strategy(grace_seconds=5)))
        await asyncio.sleep(25)
        give_back()
        await asyncio.sleep(25)
        assert len(node.stops) == 1
        assert not node.status("r2").states[0].is_killed


async def test_of_several_writes_that_wait_the_first_is_waited_for() -> None:
    async with MemoryNode() as node:
        now = asyncio.get_running_loop().time
        began = now()
        for uid, seconds in (("r1", 5.0), ("r2", 1.0), ("r3", 9.0)):
            note(node, request(uid=uid)).status_retry.next_try = began + seconds
        await node.controller.executor.writes.wait()
        assert now() - began == pytest.approx(1.0)


class RefusesPins(MemoryNode):
    """Annotations cannot be written."""

    async def pin(self, request: Request, pins: Mapping[str, Pin], start_times: Mapping[str, StartTimes]) -> Request:
        raise ApiRefusedError("metadata.annotations: Too long (422)", status=422)


async def test_a_refused_annotation_holds_no_stop_after_a_hook_back() -> None:
    async with RefusesPins(hook=HOOK) as node:
        node.hook_seconds = 5.0
        node.post(request())
        assert (await node.completed()).states[0].phase is StatePhase.SUCCEEDED
        assert node.stops == [("old", 25)]


async def test_a_refused_pin_is_told() -> None:
    async with RefusesPins() as node:
        node.post(request(strategy=Strategy(force=True)))
        await asyncio.sleep(5)
        (state,) = node.status().states
        assert state.phase is StatePhase.PENDING
        assert state.message.endswith("in the request's annotations: metadata.annotations: Too long (422)")
        assert node.stops == []
        node.delete("r1")
        await asyncio.sleep(5)
        assert node.controller.pods.peek("default/web").requests == {}


async def test_that_a_pin_met_a_newer_version_is_not_told() -> None:
    received: list[str] = []
    conflicts = [ConflictError("the object has been modified (409)")] * 4

    class Newer(MemoryNode):
        async def pin(
            self, request: Request, pins: Mapping[str, Pin], start_times: Mapping[str, StartTimes]
        ) -> Request:
            if conflicts:
                raise conflicts.pop()
            return await super().pin(request, pins, start_times)

        async def write_status(self, request: Request, status: Status) -> Request:
            received.extend(state.message for state in status.states)
            return await super().write_status(request, status)

    async with Newer() as node:
        node.post(request(strategy=Strategy(force=True)))
        assert (await node.completed()).states[0].phase is StatePhase.SUCCEEDED
        assert not conflicts
        assert not any("409" in message for message in received)


async def test_a_pin_that_is_refused_in_other_words_each_time_causes_no_flood() -> None:
    tried: list[int] = []

    class Refuses(MemoryNode):
        async def pin(
            self, request: Request, pins: Mapping[str, Pin], start_times: Mapping[str, StartTimes]
        ) -> Request:
            tried.append(len(tried))
            raise ApiRefusedError(f"webhook: read tcp 10.0.0.1:{40000 + len(tried)}: reset (500)", status=500)

    async with Refuses() as node:
        node.post(request(strategy=Strategy(force=True)))
        await asyncio.sleep(120)
        assert len(tried) < 15
        assert node.writes < 15


async def test_a_status_that_another_daemon_replaces_is_put_back_more_and_more_rarely() -> None:
    """As where two run on one node for a while, and know different things."""
    at: dict[Status, list[float]] = {}

    class Fought(MemoryNode):
        async def write_status(self, request: Request, status: Status) -> Request:
            written = await super().write_status(request, status)
            asyncio.get_running_loop().call_later(0.01, self.replaced, written)
            at.setdefault(status, []).append(asyncio.get_running_loop().time())
            return written

        def replaced(self, written: Request) -> None:
            if not written.completed:
                version = str(int(written.resource_version) + 1)
                status = replace(written.status, message="what the other one knows")
                self.post(replace(written, status=status, resource_version=version))

    async with Fought(hook=HOOK) as node:
        node.hook_seconds = node.stop_seconds = 20.0
        node.post(request(strategy=Strategy(grace_seconds=60)))
        await asyncio.sleep(39)
        assert 2 < node.writes < 30
        fought = [times for times in at.values() if len(times) > 2]
        assert len(fought) > 1
        assert all(times[2] - times[1] < 1 for times in fought)  # soon at first, whatever was fought about before
        assert (await node.completed()).states[0].phase is StatePhase.SUCCEEDED  # another status need not wait
        assert len(node.stops) == 1


@pytest.mark.parametrize("waits", [True, False])
async def test_a_hook_is_not_run_again_after_a_stop_that_failed(*, waits: bool) -> None:
    async with MemoryNode(hook=HOOK) as node:
        node.hook_seconds = 3.0
        node.stop_errors = [RuntimeCallError("no")]
        node.post(request(strategy=Strategy(grace_seconds=3 if waits else 30)))
        await node.until(lambda: bool(node.hooks_run))
        if waits:
            node.post(request(uid="r2"))
        await node.until(lambda: bool(node.stops))
        await asyncio.sleep(1.1)
        node.delete("r1")
        if not waits:
            node.post(request(uid="r2"))
        await node.completed("r2")
        assert node.hooks_run == ["old"]
        await asyncio.sleep(100)
        assert node.works == {}


@pytest.mark.parametrize("trouble", ["error", "slow"])
async def test_drain_sends_the_stop_after_a_hook_although_a_look_fails(trouble: str) -> None:
    made = Flapping("", hook=HOOK)
    async with made as node:
        node.hook_seconds = 5.0
        node.post(request())
        await node.until(lambda: bool(node.hooks_run))
        await asyncio.sleep(4)
        if trouble == "slow":
            node.list_seconds = 2.5
        else:
            made.answers = cycle(("once", *("",) * 100))
        await node.controller.drain()
        assert node.stops == [("old", 25)]
        assert node.status().states[0].is_killed


async def test_drain_waits_so_long_for_a_runtime_that_is_away_and_no_longer() -> None:
    async with MemoryNode(hook=HOOK) as node:
        node.hook_seconds = 5.0
        node.post(request())
        await node.until(lambda: bool(node.hooks_run))
        node.runtime_down = True
        began = asyncio.get_running_loop().time()
        await node.controller.drain()
        assert asyncio.get_running_loop().time() - began == pytest.approx(5 + FLUSH_SECONDS, abs=0.5)


async def test_a_hook_that_was_waited_for_is_not_run_again() -> None:
    async with MemoryNode(hook=HOOK) as node:
        node.hook_seconds = 32.0  # what the runtime takes to end it, too
        node.post(request(strategy=Strategy(grace_seconds=30)))
        await node.until(lambda: bool(node.hooks_run))
        await asyncio.sleep(10)
        node.delete("r1")
        node.post(request(uid="r2", strategy=Strategy(grace_seconds=60)))
        await node.completed("r2")
        assert node.hooks_run == ["old"]
        await asyncio.sleep(60)
        assert node.works == {}


async def test_a_wait_for_kubelet_counts_from_the_end_of_one_that_nobody_saw_run() -> None:
    async with MemoryNode() as node:
        node.kubelet_seconds = 1e6
        node.post(request())
        await node.until(lambda: node.known["old"].state is ContainerState.EXITED)
        await asyncio.sleep(12)
        assert "for 10s" in node.status().states[0].message
        node._create("app", "new")  # it ends before anybody looks
        node.known["new"] = replace(node.known["new"], state=ContainerState.EXITED, restart_count=1)
        node.controller.pods.pod_changed(node.view())
        await asyncio.sleep(1)
        assert node.status().states[0].message == ""


async def test_the_next_try_of_a_write_that_falls_due_during_a_look_is_woken_for() -> None:
    async with MemoryNode() as node:
        node.list_seconds, node.stop_seconds = 1.0, 3600.0
        node.post(request())
        await asyncio.sleep(60)
        node.write_errors = [ApiUnavailableError("no")] * 3
        node.post(request(uid="r2", created="2099-01-01T00:00:01Z"))
        await node.until(lambda: node.status("r2").phase is RequestPhase.PENDING, seconds=10)


async def test_failures_of_writes_are_forgotten_once_one_succeeds() -> None:
    async with MemoryNode() as node:
        node.kubelet_seconds = 1e6
        node.write_errors = [ApiUnavailableError("away")] * 3
        node.post(request())
        await node.until(lambda: node.status().phase is RequestPhase.RECREATING)
        assert node.controller.pods.peek("default/web").requests["r1"].status_retry.failures == 0


class Wire(MemoryNode):
    """Notes in which order calls are sent; to the runtime they are by a task of their own, as by gRPC."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[str] = []

    async def stop(self, instance: Instance, seconds: float) -> None:
        async def send() -> None:
            self.sent.append("StopContainer")

        await asyncio.create_task(send())
        await super().stop(instance, seconds)

    async def write_status(self, request: Request, status: Status) -> Request:
        self.sent.append("status")
        return await super().write_status(request, status)


async def test_a_stop_is_sent_before_the_status_that_says_so() -> None:
    node = Wire()
    async with node:
        node.post(request())
        await node.completed()
        assert node.sent == ["StopContainer", "status", "status"]


async def test_a_shorter_grace_does_not_wait_for_a_deleted_requests_stop() -> None:
    async with MemoryNode() as node:
        node.stop_seconds = 3600.0
        node.post(request(strategy=Strategy(grace_seconds=3600)))
        await node.until(lambda: bool(node.stops))
        node.delete("r1")
        node.stop_seconds = 2.0
        node.post(request(uid="r2", strategy=Strategy(grace_seconds=0)))
        await node.until(lambda: len(node.stops) == 2)
        assert node.stops == [("old", 3600), ("old", 2)]
        assert (await node.completed("r2")).states[0].phase is StatePhase.SUCCEEDED


async def test_a_kubelet_that_does_not_answer_holds_the_stop_back() -> None:
    async with MemoryNode() as node:
        node.kubelet_silent = asyncio.get_running_loop().time()
        node.post(request())
        await asyncio.sleep(30)
        assert node.stops == []
        assert node.status().state("app").reason is Reason.KUBELET_SILENT
        assert node.writes < 6
        node.kubelet_silent = None
        assert (await node.completed()).states[0].phase is StatePhase.SUCCEEDED


async def test_a_runtime_that_is_down_is_told_within_two_seconds() -> None:
    async with MemoryNode() as node:
        node.runtime_down = True
        node.post(request())
        await asyncio.sleep(2)
        assert node.status().phase is RequestPhase.PENDING
        assert node.status().message == "waiting for the container runtime: the runtime is away"
        await asyncio.sleep(600)
        assert node.writes == 1
        assert 100 < node.looks < 150
        node.runtime_down = False
        assert (await node.completed()).states[0].phase is StatePhase.SUCCEEDED


async def test_a_crd_that_prunes_is_killed_is_served_with_few_writes() -> None:
    with capture_logs() as logs:
        async with MemoryNode(hook=HOOK) as node:
            node.prune_is_killed = True
            node.post(request())
            assert (await node.completed()).states[0].phase is StatePhase.SUCCEEDED
            assert node.hooks_run == ["old"]
            assert node.stops == [("old", 28)]
            assert node.writes <= 6
    assert [line["log_level"] for line in logs if line["event"] == "CRD too old, field isKilled missing"] == ["warning"]


async def test_a_crd_that_prunes_is_killed_is_warned_of_once() -> None:
    async with MemoryNode() as node:
        node.prune_is_killed = True
        both = [request(), request(uid="r2")]
        node.requests = {each.uid: each for each in both}
        for each in both:
            note(node, each)
        with capture_logs() as logs:
            node.controller.executor.carry_out([WriteStatus(each, recreating(killed())) for each in both])
            await asyncio.sleep(1)
        assert node.writes == 2
    assert [line["log_level"] for line in logs if line["event"] == "CRD too old, field isKilled missing"] == ["warning"]


async def test_an_event_is_sent_once_while_its_request_is_live() -> None:
    async with MemoryNode() as node:
        events = [EmitEvent(each, EventReason.RECREATING, "told") for each in (request(), request(uid="gone"))]
        note(node, events[0].request)
        for _ in range(2):
            node.controller.executor.carry_out(events)
        assert node.emitted == [*events, events[1]]


async def test_a_request_that_is_gone_by_the_answer_to_a_write_is_dropped() -> None:
    async with MemoryNode() as node:
        node.kubelet_seconds = 1e6
        node.post(request())
        await node.until(lambda: bool(node.stops))
        await asyncio.sleep(1)
        del node.requests["r1"]  # and the watch does not tell
        node.controller.pods.pod_changed(pod(PodContainer("app", waiting_reason="CrashLoopBackOff")))
        await asyncio.sleep(60)
        assert not node.controller.pods.peek("default/web").present


async def test_the_time_that_an_api_server_asks_for_is_given_to_a_write() -> None:
    async with MemoryNode() as node:
        node.write_errors = [ApiUnavailableError("busy", retry_after=20.0)]
        node.post(request())
        await asyncio.sleep(19)
        assert node.writes == 1
        await node.completed()


async def test_the_time_that_an_api_server_asks_for_is_given_whoever_touches_the_request() -> None:
    async with MemoryNode() as node:
        node.write_errors = [ApiUnavailableError("busy", retry_after=20.0)]
        node.post(request())
        for _ in range(19):
            await asyncio.sleep(1)
            now = node.requests["r1"]
            node.post(replace(now, resource_version=str(int(now.resource_version) + 1)))
        assert node.writes == 1
        await node.completed()


async def test_a_newer_version_need_not_wait_for_the_conflict_of_an_older_one() -> None:
    async with MemoryNode() as node:
        node.write_errors = [ConflictError("modified")] * 6
        node.post(request())
        await node.until(lambda: not node.write_errors)
        tried = node.writes
        await asyncio.sleep(1)
        assert node.writes == tried, "the pause has grown"
        node.post(replace(node.requests["r1"], resource_version="1000"))
        await asyncio.sleep(0.1)
        assert node.writes > tried


async def test_a_write_that_fails_once_is_soon_tried_again() -> None:
    async with MemoryNode() as node:
        node.write_errors = [ApiUnavailableError("away")]
        with capture_logs() as logs:
            node.stop_seconds = 3600.0
            node.post(request())
            await asyncio.sleep(2.35)
        assert node.writes == 3, "the pins, once more, and the status"
        assert [line["log_level"] for line in logs if line["event"] == "request write failed"] == ["warning"]


async def test_writes_that_fail_are_tried_ever_more_rarely() -> None:
    tried: list[float] = []

    class Refusing(MemoryNode):
        async def _write(self, request: Request, **changes: Any) -> Request:
            if "status" in changes:
                tried.append(asyncio.get_running_loop().time())
            raise ApiUnavailableError("away")

    async with Refusing() as node:
        node.stop_seconds = 3600.0
        node.post(request())
        await node.until(lambda: len(tried) == 11)
    waits = [after - before for before, after in pairwise(tried)]
    for wait, least in zip(waits, (0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0, 30.0), strict=True):
        assert least <= wait <= least * 1.2 + 0.02


class Choosy(MemoryNode):
    """Its API server has trouble with some requests."""

    def __init__(self, **troubles: list[Exception]) -> None:
        super().__init__()
        self.troubles = troubles

    async def _write(self, request: Request, **changes: Any) -> Request:
        await asyncio.sleep(self.write_seconds)
        if errors := self.troubles.get(request.uid):
            raise errors.pop(0)
        return await super()._write(request, **changes)


async def test_a_write_does_not_wait_for_another_request_of_the_pod() -> None:
    async with Choosy(r1=[ApiUnavailableError("away")], r2=[ApiUnavailableError("busy", retry_after=20.0)]) as node:
        node.stop_seconds = 3600.0
        node.post(request())
        node.post(request(uid="r2", created="2099-01-01T00:00:01Z"))
        await asyncio.sleep(4)
        assert node.status("r1").phase is RequestPhase.RECREATING
        assert node.status("r2").phase is RequestPhase.EMPTY


async def test_a_malformed_request_that_cannot_be_ended_holds_no_other_back() -> None:
    async with Choosy(bad=[ApiUnavailableError("away")] * 99) as node:
        node.post(request(uid="bad", created="2025-01-01T00:00:00Z", error="spec.podName must be a string"))
        node.post(request())
        assert (await node.completed()).states[0].phase is StatePhase.SUCCEEDED


async def test_what_is_under_way_is_known_by_its_kind() -> None:
    async with MemoryNode(hook=HOOK) as node:
        node.stop_seconds = 5.0
        node.post(request())
        seen = set()
        while not node.requests["r1"].completed:
            seen |= {work.under_way for work in node.works.values()}
            await asyncio.sleep(0.1)
        assert {WorkKind.HOOK, WorkKind.STOP} <= seen


async def test_a_write_without_effect_is_braked() -> None:
    async with MemoryNode() as node:
        node.lose_messages = True
        node.gate = True
        node.post(request(strategy=Strategy(unready_grace_seconds=5)))
        await asyncio.sleep(60)
        assert node.writes < 12


async def test_what_is_told_of_a_write_is_what_the_api_server_has_kept() -> None:
    received: list[str] = []

    class Listener(OneRecorder):
        def written(self, before: Request, after: Request) -> None:
            received.append(after.status.message)

    async with MemoryNode(recorder=Listener()) as node:
        node.lose_messages = True
        node.gate = True
        node.post(request(strategy=Strategy(unready_grace_seconds=5)))
        await asyncio.sleep(1)
        assert set(received) == {""}


async def test_a_pin_without_effect_is_braked() -> None:
    async with MemoryNode() as node:
        node.lose_annotations = True
        node.post(request(strategy=Strategy(force=True)))
        await asyncio.sleep(60)
        assert node.writes < 12
        assert node.stops == []
        node.lose_annotations = False
        assert (await node.completed()).states[0].phase is StatePhase.SUCCEEDED


@pytest.mark.parametrize("error", [ValueError("garbage"), ApiUnavailableError("busy", retry_after=86400.0)])
async def test_whatever_a_write_fails_of_it_is_braked_and_tried_again(error: Exception) -> None:
    async with MemoryNode() as node:
        node.write_errors = [error] * 7
        node.post(request())
        with capture_logs() as logs:
            status = await node.completed()
        assert status.states[0].phase is StatePhase.SUCCEEDED
        assert node.writes <= 10
        foreseen = isinstance(error, ApiUnavailableError)
        traces = [line["exc_info"] for line in logs if line["event"] == "request write failed"]
        assert traces == [None if foreseen else error] * 7


async def test_an_answer_about_something_else_is_braked() -> None:
    async with MemoryNode() as node:
        node.foreign_answers = 5
        node.post(request())
        assert (await node.completed()).states[0].phase is StatePhase.SUCCEEDED
        assert node.writes <= 8


async def test_a_watch_that_loses_the_pod_ends_nothing() -> None:
    async with MemoryNode() as node:
        node.kubelet_seconds = 20.0
        node.post(request())
        await node.until(lambda: bool(node.stops))
        node.controller.pods.pods_listed([], "3")
        await asyncio.sleep(5)
        assert node.asked >= 1
        assert (await node.completed()).states[0].phase is StatePhase.SUCCEEDED


async def test_a_watch_that_still_has_the_pod_before_this_one_ends_nothing() -> None:
    async with MemoryNode() as node:
        node.earlier_pod = True
        node.known["earlier"] = replace(node.known["old"], id="earlier", pod_uid="uid-of-earlier")
        node.post(request())
        assert (await node.completed()).states[0].phase is StatePhase.SUCCEEDED
        assert node.asked >= 1
        assert node.stops == [("old", 30)]


async def test_a_pod_that_the_api_server_has_lost_ends_the_request() -> None:
    async with MemoryNode() as node:
        node.kubelet_seconds = 3600.0
        node.post(request())
        await node.until(lambda: bool(node.stops))
        node.pod_lost = node.api_away = True
        node.controller.pods.pods_listed([], "99")
        await asyncio.sleep(30)
        assert not node.requests["r1"].completed
        node.api_away = False
        assert (await node.completed()).reason is Reason.POD_GONE


class Overtaken(MemoryNode):
    """Its API server's answer about a pod is of when it was asked; what a watch tells meanwhile comes first."""

    listed: list[Pod] | None = None

    async def _watch_pods(self) -> None:
        if self.listed is None:
            await super()._watch_pods()
        self.controller.pods.pods_listed(self.listed or (), "12")
        await asyncio.Event().wait()

    async def find_pod(self) -> Pod | None:
        found = await super().find_pod()
        await asyncio.sleep(0.3)
        return found


@pytest.mark.parametrize("earlier", [False, True])
@pytest.mark.parametrize("went", [False, True])
async def test_an_answer_that_a_watch_has_overtaken_takes_nothing_back(*, earlier: bool, went: bool) -> None:
    node = Overtaken()
    async with node:
        node.earlier_pod = earlier
        if not earlier:
            node.listed = []
        node.post(request())
        await node.until(lambda: bool(node.asked))
        node.controller.pods.pod_changed(node.view())
        if went:
            node.pod_lost = True
            node.controller.pods.pod_deleted(node.view())
            assert (await node.completed()).reason is Reason.POD_GONE
        else:
            node.controller.pods.pod_changed(replace(node.view(), deleting=True))
            assert (await node.completed()).reason is Reason.POD_DELETING
        assert node.stops == []


async def test_an_answer_that_comes_after_its_request_has_gone_is_not_kept() -> None:
    async with MemoryNode() as node:
        node.kubelet_seconds = 3600.0
        node.post(request())
        await node.until(lambda: bool(node.stops))
        node.controller.pods.pods_listed([], "3")
        while not node.asked:
            await asyncio.sleep(0.001)
        node.delete("r1")
        await asyncio.sleep(1)
        assert node.controller.pods.peek("default/web").state.pod is None


@pytest.mark.parametrize("whole", [True, False], ids=["the node's list", "the pod's own"])
async def test_a_pod_that_is_missing_from_a_list_that_comes_late_is_asked_for(whole: bool) -> None:
    class Late(MemoryNode):
        async def _watch_pods(self) -> None:
            await asyncio.sleep(5)
            cache = self.controller.pods
            if whole:
                cache.pods_listed([], "12")
            else:
                cache.pod_listed("default/web", None)
            await asyncio.Event().wait()

    async with Late() as node:
        node.pod_lost = True
        node.post(request())
        assert (await node.completed()).reason is Reason.POD_GONE


async def test_a_pod_that_gets_the_name_while_the_runtime_is_asked() -> None:
    class Replaced(MemoryNode):
        async def instances(self, pod_uid: str, *, urgent: bool = False) -> tuple[Instance, ...]:
            found = await super().instances(pod_uid, urgent=urgent)
            if pod_uid == "uid-of-earlier":
                await asyncio.sleep(0.03)
                self.controller.pods.pod_deleted(replace(self.view(), uid="uid-of-earlier"))
                self.controller.pods.pod_changed(self.view())
            return found

    node = Replaced()
    node.earlier_pod = True
    dead = replace(node.known["old"], id="dead", pod_uid="uid-of-earlier", state=ContainerState.EXITED, created_at=0)
    node.known["dead"] = dead
    async with node:
        node.post(request())
        assert (await node.completed()).states[0].phase is StatePhase.SUCCEEDED


@pytest.mark.parametrize(("in_one_round", "stops"), [(False, 0), (True, 1)])
async def test_a_stop_begins_before_the_end_of_its_round_is_written_and_not_after(
    in_one_round: bool, stops: int
) -> None:
    """Nothing is begun for a request whose end is being written."""
    async with MemoryNode() as node:
        node.write_seconds = 1.0
        executor, req = node.controller.executor, request()
        node.requests["r1"] = req
        note(node, req)
        end, stop = WriteStatus(req, Status(RequestPhase.COMPLETED)), StopContainer(req, node.known["old"], 5.0, 0.0)
        rounds: list[list[Action]] = [[end, stop]] if in_one_round else [[end], [stop]]
        for actions in rounds:
            executor.carry_out(actions)
        await asyncio.sleep(2)
        assert len(node.stops) == stops


async def test_requests_that_come_and_go_while_the_api_server_is_asked() -> None:
    class Slow(MemoryNode):
        asking = False

        async def find_pod(self) -> Pod | None:
            self.asking = True
            await asyncio.sleep(1.0)
            return await super().find_pod()

    node = Slow()
    node.earlier_pod = True
    node.list_seconds = 0.5
    async with node:
        with capture_logs() as logs:
            node.post(request())
            await asyncio.sleep(0.2)
            node.delete("r1")
            node.post(request(uid="r2"))
            await node.until(lambda: node.asking)
            node.delete("r2")
            await asyncio.sleep(120)
        assert [entry["event"] for entry in logs if entry["log_level"] == "warning"] == []
        assert list(node.controller.pods) == []


async def test_leaving_the_selection_and_coming_back() -> None:
    async with MemoryNode() as node:
        node.post(request(uid="r0", created="2025-01-01T00:00:00Z", strategy=Strategy(min_started_seconds=60)))
        node.post(request())
        await node.until(lambda: node.status().phase is RequestPhase.PENDING)
        current = node.requests["r1"]
        node.controller.pods.requests.delete(replace(current, resource_version="50"))
        node.post(replace(current, resource_version="51"))
        assert (await node.completed()).states[0].phase is StatePhase.SUCCEEDED


@pytest.mark.parametrize("seconds", [0.0, 5.0])
async def test_a_pin_that_was_copied_from_another_request_holds_nothing_up(seconds: float) -> None:
    async with MemoryNode(hook=HOOK if seconds else None) as node:
        node.hook_seconds, node.stop_seconds = seconds, 5.0
        node.post(
            request(pinned={"app": pin("an-earlier-one")}, start_times={"app": StartTimes(stop="2026-01-02T03:04:05Z")})
        )
        assert (await node.completed()).states[0].phase is StatePhase.SUCCEEDED
        assert node.stops == [("old", 30 - seconds)]
        assert node.writes < 8


async def test_a_pin_that_is_changed_while_the_request_is_away_holds_nothing_up() -> None:
    async with MemoryNode(hook=HOOK) as node:
        node.hook_seconds = 20.0
        node.post(request(strategy=Strategy(force=True)))
        await node.until(lambda: bool(node.hooks_run))
        left = replace(node.requests["r1"], resource_version="50")
        node.controller.pods.requests.delete(left)
        await asyncio.sleep(1)
        node.post(replace(left, resource_version="51", pinned={"app": pin("an-earlier-one")}, start_times={}))
        assert (await node.completed()).states[0].phase is StatePhase.SUCCEEDED
        assert node.hooks_run == [stopped for stopped, _ in node.stops] == ["old"]
        assert node.writes < 10


async def test_times_of_another_instance_shorten_no_grace_period() -> None:
    async with MemoryNode(hook=HOOK) as node:
        node.kubelet_silent = 1.0
        node.post(request(strategy=Strategy(force=True, grace_seconds=60)))
        await node.until(lambda: bool(node.requests["r1"].pinned))
        current = node.requests["r1"]
        version = str(int(current.resource_version) + 1)
        other, start_times = {"app": pin("an-earlier-one")}, {"app": StartTimes(stop="2026-01-02T03:04:05Z")}
        node.post(replace(current, resource_version=version, pinned=other, start_times=start_times))
        await asyncio.sleep(5)
        node.kubelet_silent = None
        await node.completed()
        assert node.hooks_run == ["old"]
        assert node.stops == [("old", 58)]


async def test_who_changes_a_pin_changes_nothing() -> None:
    async with MemoryNode(hook=HOOK) as node:
        node.post(request(strategy=Strategy(force=True, min_started_seconds=3600)))
        await node.until(lambda: len(node.known) == 2)
        current = node.requests["r1"]
        version = str(int(current.resource_version) + 1)
        node.post(replace(current, resource_version=version, pinned={"app": node.known["app-1"].pin}, start_times={}))
        await asyncio.sleep(60)
        assert [stopped for stopped, _ in node.stops] == ["old"]
        assert node.requests["r1"].pinned == current.pinned


class PinsOnce(MemoryNode):
    """Its API server takes one write of the annotation and refuses all others."""

    refused = 0

    async def pin(self, request: Request, pins: Mapping[str, Pin], start_times: Mapping[str, StartTimes]) -> Request:
        if request.pinned:
            self.refused += 1
            raise ApiRefusedError("the annotation is not yours")
        return await super().pin(request, pins, start_times)


async def test_the_answer_to_a_status_changes_no_pin() -> None:
    node = PinsOnce()
    async with node:
        node.post(request(strategy=Strategy(force=True, min_started_seconds=3600)))
        await node.until(lambda: len(node.known) == 2)
        node.kubelet_seconds = 1e6
        current, writes = node.requests["r1"], node.writes
        version = str(int(current.resource_version) + 1)
        node.post(replace(current, resource_version=version, pinned={"app": node.known["app-1"].pin}))
        node.known["app-1"] = replace(node.known["app-1"], state=ContainerState.EXITED)
        await asyncio.sleep(60)
        assert node.refused > 0
        assert node.writes > writes
        (known,) = [each.request for each in node.controller.pods.peek("default/web").live.values()]
        assert known.pinned == {"app": pin("old")}
        assert node.stops == [("old", 30)]


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("pins", [(), ("app",)], ids=["no pin", "another pin"])
async def test_what_was_stopped_for_a_request_that_comes_back_without_its_pin_stays_known(
    pins: tuple[str, ...], *, fails: bool
) -> None:
    async with MemoryNode() as node:
        node.stop_errors = [RuntimeCallError("shim is stuck")] if fails else []
        node.post(request(strategy=Strategy(force=True)))
        await node.until(lambda: bool(node.stops))
        left = replace(node.requests["r1"], resource_version="50")
        node.controller.pods.requests.delete(left)
        await asyncio.sleep(30)
        node.known["old"] = replace(node.known["old"], state=ContainerState.EXITED)
        node._create("app", "new")
        node.controller.pods.pod_changed(node.view())
        pinned = dict.fromkeys(pins, node.known["new"].pin)
        node.post(replace(left, resource_version="51", pinned=pinned, status=Status()))
        status = await node.completed()
        assert [stopped for stopped, _ in node.stops] == ["old"]
        assert status.states[0].phase is StatePhase.SUCCEEDED


async def test_the_runtime_restarts_during_the_stop() -> None:
    async with MemoryNode() as node:
        node.stop_errors = [RuntimeUnavailableError("connection lost")]
        node.post(request())
        await node.until(lambda: bool(node.stops))
        node.runtime_down = True
        await asyncio.sleep(60)
        node.runtime_down = False
        assert (await node.completed()).states[0].phase is StatePhase.SUCCEEDED


@pytest.mark.parametrize("bug", [ValueError("bug"), CrrdError("bug")])
async def test_a_bug_in_a_watch_ends_its_loop_and_says_so(bug: Exception) -> None:
    async def broken() -> None:
        raise bug

    async with MemoryNode() as node:
        node.post(request())
        with pytest.raises(type(bug), match="bug"):
            await node.controller.watch_pods(broken)


async def test_an_end_does_not_wait_for_a_stop() -> None:
    async with MemoryNode() as node:
        node.stop_seconds = 3600.0
        node.post(request())
        await node.until(lambda: bool(node.stops))
        ended = asyncio.get_running_loop().time()
        await node.controller.close()
        assert asyncio.get_running_loop().time() < ended + 1
        await asyncio.sleep(7200)
        assert node.known["old"].state is ContainerState.RUNNING, "it was cancelled"


async def test_a_bug_in_an_edge_becomes_the_attempts_error() -> None:
    async with MemoryNode() as node:
        node.stop_errors = [ValueError("bug")]
        node.post(request())
        assert (await node.completed()).states[0].phase is StatePhase.SUCCEEDED
        assert len(node.stops) == 2


async def test_on_failure_that_exits_0_fails_as_soon_as_it_is_seen() -> None:
    async with MemoryNode(policy=RestartPolicy.ON_FAILURE, exit_code=0) as node:
        node.post(request())
        assert "exited with code 0" in (await node.completed()).states[0].message


async def test_the_stop_after_a_hook_follows_though_another_container_has_failed() -> None:
    async with MemoryNode("a", "b", policy=RestartPolicy.ON_FAILURE, exit_code=1) as node:
        node.known["old-b"] = replace(node.known["old-b"], hook=HOOK)
        node.hook_seconds = 20.0
        node.post(request("a", "b", strategy=Strategy(min_started_seconds=10)))
        await node.until(lambda: bool(node.hooks_run) and any(each.restart_count for each in node.known.values()))
        node.exit_code = 0
        new = next(each for each in node.known.values() if each.restart_count)
        node.known[new.id] = replace(new, state=ContainerState.EXITED)
        node.controller.pods.pod_changed(node.view())
        await node.until(lambda: node.status().state("a").phase is StatePhase.FAILED)
        assert node.status().phase is RequestPhase.RECREATING
        assert node.status().state("b").phase is StatePhase.RECREATING
        await node.completed()
        assert node.stops == [("old-a", 30), ("old-b", 10)]
        assert node.status().state("b").message == 'stopped waiting: container "a" failed and failurePolicy is Fail'


@pytest.mark.parametrize("a", [killed("a"), RecreateState("a", StatePhase.FAILED, "left down", is_killed=True)])
async def test_a_hook_that_an_earlier_life_began_has_its_stop_though_another_container_failed(a: RecreateState) -> None:
    async with MemoryNode("a", "b", hook=HOOK, policy=RestartPolicy.ON_FAILURE, exit_code=0) as node:
        node.known["old-a"] = replace(node.known["old-a"], state=ContainerState.EXITED)
        status = recreating(a, RecreateState("b", StatePhase.RECREATING))
        start_times = {"b": StartTimes(hook="2026-01-02T03:04:05Z")}
        node.post(request("a", "b", status=status, pinned={"b": pin("old-b")}, start_times=start_times))
        await node.completed()
        await asyncio.sleep(120)
        assert [stopped for stopped, _ in node.stops] == ["old-b"]


@pytest.mark.parametrize("after", [0.0, 1.0])
@pytest.mark.parametrize("state", [ContainerState.RUNNING, ContainerState.UNKNOWN])
async def test_the_stop_after_a_hook_is_tried_again_though_another_container_has_failed(
    after: float, state: ContainerState
) -> None:
    class Errs(MemoryNode):
        async def stop(self, instance: Instance, seconds: float) -> None:
            if instance.name == "b" and len(tried) < 2:
                tried.append(instance.id)
                self.known["old-b"] = replace(self.known["old-b"], state=state)
                await asyncio.sleep(after)
                raise RuntimeUnavailableError("the runtime is restarting")
            await super().stop(instance, seconds)

    tried: list[str] = []
    async with Errs("a", "b", hook=HOOK, policy=RestartPolicy.ON_FAILURE, exit_code=0) as node:
        node.known["old-a"] = replace(node.known["old-a"], hook=None)
        node.hook_seconds = 10.0
        node.post(request("a", "b"))
        await node.completed()
        await asyncio.sleep(300)
        assert node.hooks_run == ["old-b"]
        assert [stopped for stopped, _ in node.stops] == ["old-a", "old-b"]


async def test_the_reason_of_a_request_is_that_of_the_container_that_failed_first() -> None:
    async with MemoryNode("a", "b", hook=HOOK) as node:
        node.post(request("a", "b", "c"))
        status = await node.completed()
        assert status.reason is Reason.CONTAINER_NOT_FOUND
        assert [state.message for state in status.states if state.name != "c"] == [
            'stopped waiting: container "c" failed and failurePolicy is Fail',
            'skipped: container "c" failed and failurePolicy is Fail',
        ]


async def test_a_failure_that_only_the_request_tells_of_ends_the_others() -> None:
    async with MemoryNode("a", "b") as node:
        earlier = RecreateState("a", StatePhase.FAILED, "skipped", reason=Reason.EARLIER_FAILURE)
        node.post(request("a", "b", status=recreating(earlier)))
        status = await node.completed()
        assert status.state("b").message == 'skipped: container "a" failed and failurePolicy is Fail'
        assert node.stops == []


async def test_what_is_to_be_said_is_said_while_the_pod_cannot_be_asked_for() -> None:
    async with MemoryNode() as node:
        node.earlier_pod = node.api_away = True
        node.post(request())
        node.post(request(uid="r2", created="2099-01-01T00:00:01Z"))
        node.post(request(uid="bad", error="spec.containers must name at least one container"))
        await asyncio.sleep(5)
        assert node.status().message == "waiting for pod default/web to appear on node node-a"
        assert node.status("r2").phase is RequestPhase.PENDING
        assert node.status("bad").phase is RequestPhase.COMPLETED


class Busy(MemoryNode):
    """Its API server refuses every question about a pod for now, and says when to come again."""

    busy = False

    async def find_pod(self) -> Pod | None:
        if self.busy:
            self.asked += 1
            raise ApiUnavailableError("too many requests (429)", retry_after=30.0)
        return await super().find_pod()


async def test_an_api_server_that_says_when_to_ask_again_is_not_asked_before() -> None:
    node = Busy()
    async with node:
        node.kubelet_seconds = 1e6
        node.post(request())
        await node.until(lambda: node.known["old"].state is ContainerState.EXITED)
        node.busy = True
        with capture_logs() as logs:
            node.controller.pods.pod_deleted(node.view())
            await asyncio.sleep(100)
        assert node.asked == 4
        assert [entry["log_level"] for entry in logs if entry["event"] == "pod lookup failed"] == ["warning"] + 3 * [
            "debug"
        ]
        node.busy, node.pod_lost = False, True
        assert (await node.completed()).reason is Reason.POD_GONE


async def test_questions_that_were_not_answered_are_forgotten_once_the_watch_has_told() -> None:
    async with MemoryNode() as node:
        node.earlier_pod = node.api_away = True
        node.kubelet_seconds = 1e6
        node.post(request())
        await asyncio.sleep(5)
        node.controller.pods.pod_changed(node.view())
        await node.until(lambda: bool(node.stops))
        await asyncio.sleep(5)
        looks = node.looks
        await asyncio.sleep(100)
        assert node.looks - looks < 210


async def test_a_successor_that_ends_before_it_is_ready_is_seen_without_kubelet() -> None:
    async with Unready() as node:
        node.post(request())
        await node.until(lambda: len(node.known) == 2)
        await asyncio.sleep(3)
        assert node.status().state("app").message == ""
        node.known["app-1"] = replace(node.known["app-1"], state=ContainerState.EXITED)
        looks = node.looks
        await asyncio.sleep(20)
        assert node.status().state("app").reason is Reason.NOT_STARTED_AGAIN
        assert looks < node.looks < looks + 60


class Unready(MemoryNode):
    """Its new containers are never ready."""

    def view(self) -> Pod:
        seen = super().view()
        containers = {
            name: replace(found, ready=found.ready and found.container_id.endswith("old"))
            for name, found in seen.containers.items()
        }
        return replace(seen, containers=containers)


class Withheld(Recorder):
    """Notes the rules that decisions broke."""

    def __init__(self) -> None:
        self.rules: set[Rule] = set()

    def withheld(self, rule: Rule) -> None:
        self.rules.add(rule)


async def test_a_wrong_decision_starts_nothing_and_its_request_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted bug: the container that the request does not name is stopped."""

    def wrong(observation: Observation) -> Decision:
        (meant,) = (each for each in observation.pod.instances if each.name == "b")
        return Decision((StopContainer(observation.requests[0].request, meant, 30.0, 0.0),))

    recorder = Withheld()
    async with MemoryNode("a", "b", recorder=recorder) as node:
        with monkeypatch.context() as planted, capture_logs() as logs:
            planted.setattr("crrd.node.reconcile.decide", wrong)
            node.post(replace(request("a"), containers=(RequestedContainer("a", pin("old-a")),)))
            await node.until(lambda: node.status().reason is Reason.DECISION_WITHHELD)
        assert recorder.rules == {Rule.TARGET}
        line = next(each for each in logs if each["event"] == "decision withheld")
        assert (line["log_level"], line["rule"], line["container"]) == ("error", "not_the_target", "b")
        assert node.stops == []
        assert (await node.completed()).states[0].phase is StatePhase.SUCCEEDED
        assert [stopped for stopped, _ in node.stops] == ["old-a"]


class Counting(OneRecorder):
    """Counts the containers that were stopped."""

    stopped = 0

    def stop_ended(self, seconds: float) -> None:
        self.stopped += 1


async def test_one_container_that_two_requests_stop_was_stopped_once() -> None:
    recorder = Counting()
    async with MemoryNode(recorder=recorder) as node:
        node.stop_seconds = 30.0
        node.post(request(strategy=Strategy(grace_seconds=60)))
        await node.until(lambda: bool(node.stops))
        node.delete("r1")
        node.post(request(uid="r2", strategy=Strategy(grace_seconds=2)))
        await node.until(lambda: len(node.stops) == 2)
        await node.completed("r2")
        await asyncio.sleep(60)
        assert recorder.stopped == 1


async def test_a_successor_that_is_created_in_a_pod_that_ends_is_not_awaited() -> None:
    async with MemoryNode() as node:
        node.kubelet_seconds = 1e6
        node.post(request())
        await node.until(lambda: node.known["old"].state is ContainerState.EXITED)
        node.known["new"] = instance("new", created_at=2, restart_count=1, state=ContainerState.CREATED)
        await asyncio.sleep(10)
        node.controller.pods.pod_changed(replace(node.view(), phase="Failed"))
        assert (await node.completed()).states[0].reason is Reason.POD_ENDED


async def test_nothing_runs_on_once_the_last_request_has_ended() -> None:
    async with MemoryNode() as node:
        before = {task.get_name() for task in asyncio.all_tasks()}
        node.post(request())
        await node.completed()
        await asyncio.sleep(3600)
        assert {task.get_name() for task in asyncio.all_tasks()} == before
        controller = node.controller
        for heartbeat in (controller.pods_heartbeat, controller.runtime_heartbeat):
            assert heartbeat.check() == ""


async def test_a_write_that_fails_after_its_request_has_gone_is_not_tried_again() -> None:
    async with MemoryNode() as node:
        node.write_seconds = 1.0
        node.write_errors = [ApiUnavailableError("away")]
        node.post(request())
        await node.until(lambda: node.controller.executor.writes.pending == 1)
        node.delete("r1")
        await node.until(lambda: not node.write_errors)
        await node.until(lambda: not node.controller.queue.depth)
        assert node.controller.executor.writes.pending == 0
        assert node.controller.pods.peek("default/web").present == 0
        await node.controller.drain()


async def test_a_write_that_was_carried_out_though_its_answer_was_lost_holds_no_drain_up() -> None:
    async with MemoryNode() as node:
        node.lost_answers = 1
        node.post(request())
        await node.until(lambda: bool(node.stops) and not node.lost_answers)
        await node.until(lambda: node.controller.executor.writes.pending == 0)
        assert node.status().phase is RequestPhase.RECREATING
        await node.controller.drain()
        assert len(node.stops) == 1


async def test_min_started_seconds_are_the_daemons_own() -> None:
    async with MemoryNode() as node:
        node.post(request(strategy=Strategy(min_started_seconds=30)))
        started = asyncio.get_running_loop().time()
        assert (await node.completed()).states[0].phase is StatePhase.SUCCEEDED
        assert asyncio.get_running_loop().time() - started >= 30


async def test_a_wait_for_kubelet_counts_from_the_last_end() -> None:
    async with MemoryNode() as node:
        node.post(request(strategy=Strategy(min_started_seconds=100)))
        await node.until(lambda: "app-1" in node.known)
        await asyncio.sleep(20)
        node.known["app-1"] = replace(node.known["app-1"], state=ContainerState.EXITED)
        node.controller.pods.pod_changed(node.view())
        await asyncio.sleep(7)
        assert node.status().states[0].message == "kubelet has not restarted the container for 5s"


async def test_a_container_id_of_another_pod() -> None:
    async with MemoryNode() as node:
        node.known["foreign"] = replace(node.known["old"], id="foreign", pod_name="db", pod_uid="uid-of-db")
        plain = request()
        foreign = tuple(replace(container, context=pin("foreign")) for container in plain.containers)
        node.post(replace(plain, containers=foreign))
        assert "belongs to pod default/db" in (await node.completed()).states[0].message
        assert node.stops == []


@pytest.mark.parametrize(
    ("context", "asked"), [(pin("old"), []), (pin("collected"), ["collected"]), (Pin("elsewhere://collected", 0), [])]
)
async def test_only_container_ids_that_the_pod_has_not_are_looked_up_and_each_once(
    context: Pin, asked: list[str]
) -> None:
    found: list[str] = []

    class Asked(MemoryNode):
        async def find(self, pin: Pin) -> Instance | None:
            found.append(pin.bare_id)
            return await super().find(pin)

    async with Asked() as node:
        plain = request(strategy=Strategy(min_started_seconds=60))
        node.post(replace(plain, containers=tuple(replace(each, context=context) for each in plain.containers)))
        await node.completed()
        assert node.looks > 1
    assert found == asked


async def test_a_thousand_malformed_requests_do_no_harm() -> None:
    async with MemoryNode() as node:
        for number in range(1000):
            node.post(request(uid=f"bad{number}", pod_name=f"p{number % 7}", error="spec.podName must be a string"))
        node.post(request())
        assert (await node.completed()).states[0].phase is StatePhase.SUCCEEDED
        await node.until(lambda: all(known.completed for known in node.requests.values()))
        assert len(node.stops) == 1


async def test_a_pod_that_is_not_here() -> None:
    async with MemoryNode() as node:
        node.post(request(pod_name="nowhere", pod_uid=""))
        await node.until(lambda: "waiting for pod default/nowhere" in node.status().message)
        assert (await node.completed()).message == "the pod no longer exists"


async def test_a_pod_that_was_replaced_before_the_daemon_looked() -> None:
    async with MemoryNode() as node:
        node.post(request(pod_uid=""))
        assert (await node.completed()).states[0].phase is StatePhase.SUCCEEDED


async def test_drain_starts_nothing_more_and_writes_what_became_of_the_rest() -> None:
    async with MemoryNode("a", "b") as node:
        node.stop_seconds = 5.0
        node.post(request("a", "b"))
        await node.until(lambda: bool(node.stops))
        await node.controller.drain()
        assert [container for container, _ in node.stops] == ["old-a"]
        assert node.known["old-a"].state is ContainerState.EXITED
        assert node.status().state("a").is_killed
        assert node.status().phase is RequestPhase.RECREATING


async def test_drain_looks_at_every_pod_once_more() -> None:
    async with MemoryNode() as node:
        node.kubelet_seconds = 1e6
        node.post(request())
        await node.until(lambda: bool(node.stops))
        await asyncio.sleep(2.5)
        before = node.looks
        await node.controller.drain()
        assert node.looks == before + 1


async def test_drain_lets_the_stop_after_a_hook_end() -> None:
    async with MemoryNode(hook=HOOK) as node:
        node.stop_seconds = 8.0
        node.post(request())
        await node.until(lambda: bool(node.hooks_run))
        await node.controller.drain()
        assert node.known["old"].state is ContainerState.EXITED
        assert node.status().state("app").is_killed


async def test_drain_does_not_wait_for_the_stop_of_its_own_container() -> None:
    async with MemoryNode(own_pod="uid-of-web") as node:
        node.stop_seconds = 3600.0
        node.post(request())
        await node.until(lambda: bool(node.stops))
        async with asyncio.timeout(1):
            await node.controller.drain()


async def test_drain_does_not_wait_for_an_api_server_that_is_away() -> None:
    async with MemoryNode() as node:
        node.write_errors = [ApiUnavailableError("away")] * 99
        node.post(request())
        await node.until(lambda: bool(node.stops))
        started = asyncio.get_running_loop().time()
        await node.controller.drain()
        assert 10 <= asyncio.get_running_loop().time() - started < 11


async def test_the_unready_grace_counts_from_when_the_mark_is_seen() -> None:
    async with MemoryNode() as node:
        node.gate = True
        node.post(request(strategy=Strategy(unready_grace_seconds=5)))
        await node.until(lambda: node.status().message == "waiting for the manager to make the pod unready")
        await asyncio.sleep(100)
        marked = replace(node.requests["r1"], unready_acquired=True, resource_version="50")
        node.post(marked)
        seen = asyncio.get_running_loop().time()
        await node.until(lambda: bool(node.stops))
        assert 5 <= asyncio.get_running_loop().time() - seen < 6
        await node.completed()


async def test_a_pod_deleted_under_a_waiting_request_ends_it() -> None:
    async with MemoryNode() as node:
        node.gate = True
        node.post(request(strategy=Strategy(unready_grace_seconds=5)))
        await asyncio.sleep(20)
        node.controller.pods.pod_changed(pod(readiness_gate=True, deleting=True))
        assert (await node.completed()).message == "the pod is being deleted"
        assert node.stops == []


async def test_a_request_that_comes_first_while_another_is_looked_at_is_checked_as_well() -> None:
    async with MemoryNode() as node:
        node.known["foreign"] = replace(node.known["old"], id="foreign", pod_name="db", pod_uid="uid-of-db")
        plain = request()
        foreign = tuple(replace(container, context=pin("foreign")) for container in plain.containers)
        node.post(request(uid="later", created="2099-01-01T00:00:01Z"))
        await asyncio.sleep(0.001)  # the pods are known, the runtime is being asked
        node.post(replace(plain, containers=foreign))
        assert "belongs to pod default/db" in (await node.completed()).states[0].message
