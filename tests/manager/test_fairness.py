"""The trouble of one team delays no other team: many calls that hang, and thousands of routine reads."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, cast

import pytest

from crrd.core.api.time import rfc3339
from crrd.core.api.types import API_VERSION, KIND, LABEL_READINESS_GATE, READINESS_GATE
from crrd.core.lifecycle.steps import Steps, next_steps
from crrd.core.policy.pace import TURN_SECONDS
from crrd.core.policy.types import Policy, PolicyStatus, RunRecord
from crrd.core.policy.v1alpha1 import read_policy, write_status
from crrd.core.rollout.phases import End
from crrd.core.rollout.plan import Plan
from crrd.core.rollout.run import Target
from crrd.kube.client import KubeClient
from crrd.kube.lanes import FEW_PLACES
from crrd.kube.resources import CONFIG_MAPS, NAMESPACES, PODS, POLICIES, REQUESTS
from crrd.lib.health import Health
from crrd.lib.supervise import cancel
from crrd.manager.lifecycle import MANY, LifecycleController
from crrd.manager.pod_reads import PATIENCE_SECONDS
from crrd.manager.policies.look import CHANGES, TargetObserver
from crrd.manager.policies.run_task import PARALLEL_RUNS, RunTask
from crrd.manager.policies.statuses import Policies
from crrd.rollout.target import Aim
from tests.support.laned_api import LanedApi
from tests.support.lifecycle_cluster import Events
from tests.support.policy_runs import policy_controller, policy_runs
from tests.support.virtual_time import LoopClock

pytestmark = [pytest.mark.virtual_time, pytest.mark.usefixtures("unmeasured")]

OTHERS = [f"team-{number}" for number in range(6)]
EARLY = "2025-01-01T00:00:00Z"


class GatedPods:
    """Pods with the readiness gate and their requests, each in the namespace of its team."""

    def __init__(self, api: LanedApi) -> None:
        self.api, self.clock = api, LoopClock()

    def pod(self, team: str, name: str) -> None:
        """A pod that is ready."""
        meta = {"namespace": team, "name": name, "uid": f"pod-{name}", "resourceVersion": "1"}
        spec = {"containers": [{"name": "app"}], "readinessGates": [{"conditionType": READINESS_GATE}]}
        ready = {"type": READINESS_GATE, "status": "True"}
        self.api.put(PODS, {"metadata": meta, "spec": spec, "status": {"phase": "Running", "conditions": [ready]}})

    def request(self, team: str, name: str, phase: str = "Recreating", *, grace: int | None = 600, **spec: Any) -> None:
        """A request for the pod of its name, which the node serves."""
        labels = {f"crr.apps.kruise.io/{key}": value for key, value in (("node-name", "n1"), ("active", "true"))}
        meta = {
            "namespace": team,
            "name": name,
            "uid": name,
            "resourceVersion": "1",
            "creationTimestamp": rfc3339(self.clock.now()),
            "labels": labels,
        }
        strategy = {} if grace is None else {"unreadyGracePeriodSeconds": grace}
        spec = {"podName": name, "containers": [{"name": "app"}], "strategy": strategy, **spec}
        head = {"apiVersion": API_VERSION, "kind": KIND, "metadata": meta}
        self.api.put(REQUESTS, {**head, "spec": spec, "status": {"phase": phase}})

    def unready(self, name: str) -> bool:
        """Whether the pod was made unready, and its request says so."""
        conditions = self.api.objects["pods"][name]["status"]["conditions"]
        metadata = self.api.objects[REQUESTS.plural][name]["metadata"]
        marked = "crr.apps.kruise.io/unready-acquired" in metadata.get("annotations", {})
        return marked and [each["status"] for each in conditions if each["type"] == READINESS_GATE] == ["False"]

    def active(self, name: str) -> bool:
        """Whether the request still has the label active."""
        return bool(self.api.objects[REQUESTS.plural][name]["metadata"]["labels"].get("crr.apps.kruise.io/active"))

    def phase(self, name: str) -> str:
        """The request's phase."""
        return str(self.api.objects[REQUESTS.plural][name]["status"]["phase"])


@asynccontextmanager
async def managed(api: LanedApi, *teams: str) -> AsyncIterator[GatedPods]:
    cluster = GatedPods(api)
    controller = LifecycleController(cast("KubeClient", api), Events(), cluster.clock)
    for team in (*(teams or ("noisy",)), *OTHERS):
        labels = {LABEL_READINESS_GATE: "enabled"}
        api.put(NAMESPACES, {"metadata": {"name": team, "uid": team, "resourceVersion": "1", "labels": labels}})
    task = asyncio.create_task(controller.run(Health()))
    await asyncio.sleep(5)
    try:
        yield cluster
    finally:
        await cancel([task])


def in_the_noisy_namespace(verb: str, kind: str, namespace: str, _: str) -> float:
    """Writes of one team's requests hang, in its webhook."""
    return 10.0 if (verb, kind, namespace) == ("patch", REQUESTS.plural, "noisy") else 0.01


@pytest.mark.parametrize("number", [60, 600])
async def test_requests_whose_writes_hang_delay_no_other_team(number: int) -> None:
    """Others are unready, lose their label and end at their deadline within five seconds."""
    async with managed(LanedApi(in_the_noisy_namespace)) as cluster:
        for each in range(number):
            cluster.pod("noisy", f"noisy-{each}")
            cluster.request("noisy", f"noisy-{each}")
        await asyncio.sleep(30)
        for team in OTHERS:
            for name in ("first", "done", "late"):
                cluster.pod(team, f"{team}-{name}")
            cluster.request(team, f"{team}-first")
            cluster.request(team, f"{team}-done", "Completed")
            cluster.request(team, f"{team}-late", grace=None, activeDeadlineSeconds=20)
        await asyncio.sleep(5)
        assert [team for team in OTHERS if not cluster.unready(f"{team}-first")] == []
        assert [team for team in OTHERS if cluster.active(f"{team}-done")] == []
        await asyncio.sleep(20)
        assert [team for team in OTHERS if cluster.phase(f"{team}-late") != "Completed"] == []
        assert not any(cluster.unready(f"noisy-{each}") for each in range(number)), "theirs hang all the time"


@pytest.mark.parametrize("hanging", [("patch",), ("get", "patch")])
@pytest.mark.parametrize("number", [1, 12])
async def test_fifty_namespaces_that_begin_to_hang_delay_no_other(hanging: tuple[str, ...], number: int) -> None:
    """All requests reach their deadlines in the same second. Those of other teams end within five."""
    noisy = [f"noisy-{each}" for each in range(50)]
    api = LanedApi(lambda verb, _, team, __: 10.0 if team in noisy and verb in hanging else 0.01)
    before = GatedPods(api)
    for team in (*noisy, *OTHERS):
        for each in range(number):
            before.pod(team, f"{team}-{each}")
            before.request(team, f"{team}-{each}", grace=None, activeDeadlineSeconds=20)
    async with managed(api, *noisy) as cluster:  # which waits for 5 s
        await asyncio.sleep(15 + 5)
        late = [f"{team}-{each}" for team in OTHERS for each in range(number)]
        assert [name for name in late if cluster.phase(name) != "Completed"] == []


async def test_what_is_due_goes_before_thousands_of_routine_reads() -> None:
    """2 000 requests are under way, and a read takes 0.15 s. One more ends five seconds after its deadline at most."""
    api = LanedApi(lambda verb, *_: 0.15 if verb == "get" else 0.01)
    async with managed(api) as cluster:
        for number in range(2000):
            team = f"batch-{number % 20}"
            cluster.pod(team, f"web-{number}")
            cluster.request(team, f"web-{number}", grace=None, activeDeadlineSeconds=3600)
        await asyncio.sleep(PATIENCE_SECONDS + 1)
        cluster.request("batch-0", "late", grace=None, activeDeadlineSeconds=6)
        await asyncio.sleep(6 + 5)
        assert cluster.phase("late") == "Completed"
        api.calls.clear()
        await asyncio.sleep(60)
        reads = [name for _, verb, _, name in api.calls if verb == "get"]
        assert len(reads) <= 60 * FEW_PLACES / 0.15 + FEW_PLACES, "routine reads are bounded"
        assert len(set(reads)) == len(reads), "and spread"


async def test_events_of_a_pod_with_hundreds_of_requests_cost_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fifty events a second. A round decides on all requests, but rounds are rare, and others get a turn meanwhile."""
    loop, decided, in_a_row, most, number = asyncio.get_running_loop(), 0, 0, 0, 300

    def next_turn() -> None:
        nonlocal in_a_row
        in_a_row = 0

    def counted(*given: Any, **options: Any) -> Steps:
        nonlocal decided, in_a_row, most
        if not in_a_row:
            loop.call_soon(next_turn)
        decided, in_a_row = decided + 1, in_a_row + 1
        most = max(most, in_a_row)
        return next_steps(*given, **options)

    monkeypatch.setattr("crrd.manager.lifecycle.lc.next_steps", counted)
    async with managed(LanedApi()) as cluster:
        for each in range(number):
            cluster.request("noisy", f"web-{each}", grace=None, podName="web")
        await asyncio.sleep(15)
        decided = 0
        for each in range(200):
            cluster.request("noisy", f"web-{each}", grace=None, podName="web")
            await asyncio.sleep(0.02)
        assert number < decided <= 90 * number
        assert most <= MANY
        cluster.request("noisy", "late", grace=None, podName="web", activeDeadlineSeconds=3)
        await asyncio.sleep(3 + 2)
        assert cluster.phase("late") == "Completed"


async def test_looks_that_hang_do_not_delay_an_edit_of_another_team() -> None:
    """Forty policies wait 12 s for each look, which fails. An edit is looked at within a second."""

    def seconds(verb: str, kind: str, namespace: str, _: str) -> float:
        return 12.0 if (verb, kind, namespace) == ("list", "pods", "noisy") else 0.01

    api, loop = LanedApi(seconds), asyncio.get_running_loop()
    spec = {"selector": {"matchLabels": {"app": "none"}}, "triggers": {"configChange": {"settle": "3s"}}}
    for number in range(41):
        team = "noisy" if number else "quiet"
        meta = {"namespace": team, "name": f"p-{number}", "uid": f"p-{number}", "resourceVersion": "1"}
        api.put(POLICIES, {"metadata": {**meta, "generation": 1}, "spec": spec})
    controller = policy_controller(api)
    task = asyncio.create_task(controller.run(Health()))
    await asyncio.sleep(60)
    for number in range(10):
        edited = loop.time()
        meta = {"namespace": "quiet", "name": f"cfg-{number}", "uid": f"cfg-{number}", "resourceVersion": "7"}
        api.put(CONFIG_MAPS, {"metadata": meta})
        await asyncio.sleep(13)
        looks = [at for at, verb, kind, where in api.calls if (verb, kind, where) == ("list", "pods", "quiet/")]
        assert min(at - edited for at in looks if at >= edited) <= 1.0
    assert controller.states() == {"Idle": 1, "LookFailing": 40}
    (ready,) = api.objects[POLICIES.plural]["p-1"]["status"]["conditions"]
    assert (ready["type"], ready["status"], ready["reason"]) == ("Ready", "False", "LookFailing")
    assert "starts nothing: list pods: no answer in time: " in ready["message"]
    await cancel([task])


async def test_a_policy_whose_looks_crash_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else its status would show for ever what was true before."""

    async def crash(*_: object) -> None:
        raise ValueError("too many digits")

    monkeypatch.setattr(TargetObserver, "look", crash)
    api = LanedApi(lambda *_: 0.01)
    meta = {"namespace": "shop", "name": "web", "uid": "u", "resourceVersion": "1", "generation": 1}
    api.put(POLICIES, {"metadata": meta, "spec": {"selector": {"matchLabels": {"app": "web"}}, "triggers": {}}})
    task = asyncio.create_task(policy_controller(api).run(Health()))
    await asyncio.sleep(120)
    (ready,) = api.objects[POLICIES.plural]["web"]["status"]["conditions"]
    assert (ready["type"], ready["reason"]) == ("Ready", "LookFailing")
    assert "ValueError('too many digits')" in ready["message"]
    await cancel([task])


async def test_an_object_that_changes_all_the_time_costs_few_calls() -> None:
    """Ten changes a second of a ConfigMap that twenty policies watch. In the end, all have the newest data."""
    api, number = LanedApi(), 20

    def change(version: int) -> None:
        meta = {"namespace": "team", "name": "cfg", "uid": "cfg", "resourceVersion": str(version)}
        api.put(CONFIG_MAPS, {"metadata": meta, "data": {"K": str(version)}})

    def recorded() -> set[str]:
        found = (policy.get("status", {}) for policy in api.objects[POLICIES.plural].values())
        return {str(sorted(record.items())) for status in found for record in status.get("config", ())}

    change(2)
    used = {"name": "app", "envFrom": [{"configMapRef": {"name": "cfg"}}]}
    meta = {"namespace": "team", "name": "web", "uid": "web", "resourceVersion": "1", "labels": {"app": "web"}}
    runs = {"name": "app", "containerID": "containerd://web", "ready": True, "state": {"running": {"startedAt": EARLY}}}
    status = {"phase": "Running", "containerStatuses": [runs], "conditions": [{"type": "Ready", "status": "True"}]}
    pod = {"metadata": {**meta, "creationTimestamp": EARLY}, "spec": {"containers": [used], "nodeName": "n1"}}
    api.put(PODS, {**pod, "status": status})
    spec = {"selector": {"matchLabels": {"app": "web"}}, "triggers": {"configChange": {"settle": "1h"}}}
    for each in range(number):
        meta = {"namespace": "team", "name": f"p-{each}", "uid": f"p-{each}", "resourceVersion": "1"}
        api.put(POLICIES, {"metadata": {**meta, "generation": 1}, "spec": spec})
    controller = policy_controller(api)
    task = asyncio.create_task(controller.run(Health()))
    await asyncio.sleep(60)
    for seconds, most in ((10, 40.0), (60, 12.0)):
        api.calls.clear()
        for version in range(10 * seconds):
            await asyncio.sleep(0.1)
            change(1000 * seconds + version)
        assert len(api.calls) / seconds <= most, "calls a second"
    api.calls.clear()
    await asyncio.sleep(CHANGES.maximum + 1.0)
    read = [name for _, verb, kind, name in api.calls if (verb, kind) == ("get", CONFIG_MAPS.plural)]
    assert read == ["team/cfg"] * number, "each has read the newest data, once"
    assert len(recorded()) == 1, "and has recorded the same"
    await cancel([task])


REFUSED = ("patch containerrecreaterequests", "get pods", "patch pods", "list pods", "patch containerrecreatepolicies")


@pytest.mark.parametrize("call", REFUSED)
async def test_calls_that_are_refused_become_rare(call: str) -> None:
    """Each kind of call that the controllers make for an object: at most four a minute for each object."""
    api = LanedApi()
    async with managed(api) as cluster:
        policies = policy_controller(api)
        task = asyncio.create_task(policies.run(Health()))
        await asyncio.sleep(5)
        api.forbidden.add(call)
        for number in range(20):
            team = OTHERS[number % len(OTHERS)]
            cluster.pod(team, f"web-{number}")
            cluster.request(team, f"web-{number}")
            cluster.request(team, f"gone-{number}")
            meta = {"namespace": team, "name": f"p-{number}", "uid": f"p-{number}", "resourceVersion": "1"}
            spec = {"selector": {"matchLabels": {"app": "none"}}, "triggers": {"configChange": {"settle": "3s"}}}
            api.put(POLICIES, {"metadata": {**meta, "generation": 1}, "spec": spec})
        await asyncio.sleep(300)
        api.calls.clear()
        await asyncio.sleep(60)
        made = [name for _, verb, kind, name in api.calls if f"{verb} {kind}" == call]
        assert made, "they are still tried"
        assert len(made) <= max(20, len(set(made))) * 4
        await cancel([task])


async def test_runs_whose_objects_cannot_be_listed_let_another_one_run() -> None:
    """As many as there are turns. An aggregated API server may be down."""
    hangs = ("list", "poddisruptionbudgets", "noisy")
    api, loop = LanedApi(lambda *call: 10.0 if call[:3] == hangs else 0.01), asyncio.get_running_loop()
    runs = policy_runs(cast("KubeClient", api), LoopClock())
    began = loop.time()
    for number in range(PARALLEL_RUNS + 1):
        meta = {"namespace": "noisy" if number < PARALLEL_RUNS else "quiet", "name": f"p-{number}"}
        policy = read_policy({"metadata": {**meta, "uid": f"p-{number}", "resourceVersion": "1"}})
        record = RunRecord(f"run-{number}", "maxAge", ("app",), "2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z", 1)
        runs.follow(policy, record, Aim(Target("pods a=b", selector="a=b")), None)
    await asyncio.sleep(TURN_SECONDS + 5)
    lists = [at for at, verb, kind, where in api.calls if (verb, kind, where) == ("list", hangs[1], "quiet/")]
    assert min(lists) - began <= TURN_SECONDS + 1
    runs.stop_all()


async def test_the_end_of_a_run_that_cannot_be_written_is_tried_again_rarely() -> None:
    api = LanedApi()
    api.forbidden.add(f"patch {POLICIES.plural}")
    clock, client = LoopClock(), cast("KubeClient", api)
    policies = Policies(client, lambda *_: None)
    record = RunRecord("run", "maxAge", ("app",), "2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z", 1)
    status = write_status(PolicyStatus(run=record))
    api.put(
        POLICIES, {"metadata": {"namespace": "n", "name": "p", "uid": "p", "resourceVersion": "1"}, "status": status}
    )
    policy = read_policy(api.objects[POLICIES.plural]["p"])
    policies.objects.put(policy)
    runs = policy_runs(client, clock, policies)
    aim = Aim(Target("pods a=b", selector="a=b"))
    task = RunTask(runs._shared, policy, record, aim, None)
    ending = asyncio.create_task(task._end(Plan((), end=End.DONE)))
    await asyncio.sleep(300)
    tried = len(api.calls)
    assert tried <= 15
    api.forbidden.clear()
    await asyncio.wait_for(ending, 80)
    assert len(api.calls) == tried + 1


@pytest.mark.parametrize("edit", [{"spec": {"suspend": True}}, {"spec": {"budget": {"maxUnavailable": 0}}}, None])
async def test_a_suspended_invalid_or_deleted_policy_stops_its_run_at_once(edit: dict[str, Any] | None) -> None:
    """A look may take minutes, and the write of a status may be refused."""
    controller = policy_controller(LanedApi(lambda *_: 10.0))
    known, spec = controller._policies.objects, {"selector": {"matchLabels": {"a": "b"}}, "triggers": {"maxAge": "72h"}}
    meta = {"namespace": "n", "name": "p", "uid": "p", "generation": 1, "resourceVersion": "1"}
    policy = read_policy({"metadata": meta, "spec": spec})
    known.put(policy)
    record = RunRecord("run", "maxAge", ("app",), "2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z", 1)
    controller._runs.follow(policy, record, Aim(Target("pods a=b", selector="a=b")), None)
    (run,) = (task for task in asyncio.all_tasks() if task.get_name() == "run run")
    if edit is None:
        known.delete(policy)
    else:
        newer = {**meta, "generation": 2, "resourceVersion": "2"}
        known.put(read_policy({"metadata": newer, "spec": {**spec, **edit["spec"]}}))
    await asyncio.wait([run], timeout=1)
    assert run.cancelled()
    await controller.queue.close()


def with_old_pod(api: LanedApi) -> Policy:
    """A policy with `maxAge`, and a pod that is too old."""
    runs = {"name": "app", "containerID": "containerd://web", "ready": True, "state": {"running": {"startedAt": EARLY}}}
    status = {"phase": "Running", "containerStatuses": [runs], "conditions": [{"type": "Ready", "status": "True"}]}
    meta = {"namespace": "n", "name": "web", "uid": "web", "resourceVersion": "1", "labels": {"a": "b"}}
    pod = {"metadata": {**meta, "creationTimestamp": EARLY}, "spec": {"containers": [{"name": "app"}]}}
    api.put(PODS, {**pod, "status": status})
    own = {"namespace": "n", "name": "p", "uid": "p", "generation": 1, "resourceVersion": "1"}
    spec = {"selector": {"matchLabels": {"a": "b"}}, "triggers": {"maxAge": "72h"}}
    api.put(POLICIES, {"metadata": own, "spec": spec})
    return read_policy(api.objects[POLICIES.plural]["p"])


@pytest.mark.parametrize("slow", [("list", "pods"), ("patch", POLICIES.plural)])
async def test_a_policy_that_is_deleted_during_a_look_begins_no_run(
    slow: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever the look waits for at that moment."""
    api = LanedApi(lambda verb, kind, *_: 5.0 if (verb, kind) == slow else 0.01)
    policy = with_old_pod(api)
    controller = policy_controller(api)
    controller._policies.objects.put(policy)
    await asyncio.sleep(2)
    assert controller.queue.pending("n/p"), "the look is in progress"
    controller._policies.objects.delete(replace(policy, resource_version="9"))
    await asyncio.sleep(10)
    assert "KeyError" not in capsys.readouterr().out
    assert controller._runs.active("n/p") is None
    assert not controller.queue.pending("n/p"), "nothing is left to do"
    await controller.queue.close()


async def test_one_that_is_suspended_during_a_look_that_changes_no_status_does_not_go_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    slow = set[str]()
    api = LanedApi(lambda verb, kind, *_: 5.0 if f"{verb} {kind}" in slow else 0.01)
    policy = with_old_pod(api)
    controller = policy_controller(api)
    controller._policies.objects.put(policy)
    await asyncio.sleep(20)
    slow.add("list pods")
    controller.queue.wake("n/p")
    await asyncio.sleep(2)
    assert controller.queue.pending("n/p"), "the look is in progress"
    known = controller._policies.get("n/p")
    assert known is not None
    edited = replace(known, suspended=True, generation=2, resource_version=f"{known.resource_version}0")
    controller._policies.objects.put(edited)
    await asyncio.sleep(10)
    assert capsys.readouterr().out.count("policy run started") == 1
    await controller.queue.close()
