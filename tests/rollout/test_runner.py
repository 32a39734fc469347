"""A run of many pods, in virtual time: many starts from one plan, side by side, and never more than the budget."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any, cast

import pytest

from crrd.core.api.time import rfc3339
from crrd.core.rollout.change import ImageChange
from crrd.core.rollout.limits import Times
from crrd.core.rollout.parts import Part, PartState
from crrd.core.rollout.phases import GOES_ON, End, Stage
from crrd.core.rollout.plan import Plan
from crrd.core.rollout.progress import ANNOTATION_PROGRESS, Progress, read_progress
from crrd.core.rollout.rows import tally
from crrd.core.rollout.run import Amount, Run
from crrd.kube.client import KubeClient
from crrd.kube.lanes import PLACES
from crrd.kube.resources import PODS, REQUESTS, Resource
from crrd.lib.errors import ApiRefusedError, ApiUnavailableError, GoneError
from crrd.lib.supervise import cancel
from crrd.rollout.cluster import Cluster
from crrd.rollout.kinds import make_cluster, make_writer
from crrd.rollout.remedies import FLAGS
from crrd.rollout.runner import Runner
from crrd.rollout.text import TextLines
from tests.support.run_cluster import NAMESPACE, WEB, RunCluster

pytestmark = pytest.mark.virtual_time

TENTH, ALL = Amount(10, percent=True), Amount(100, percent=True)


def once(api: RunCluster) -> bool:
    """Whether each pod was restarted, and none twice."""
    return {*api.restarts} == {name for name in api.objects["pods"] if name.startswith("web")} and {
        *api.restarts.values()
    } == {1}


REFUSED = "web-0000 has become unready again"


async def until(holds: Callable[[], bool]) -> None:
    """Wait until this holds."""
    while not holds():
        await asyncio.sleep(0.001)


@asynccontextmanager
async def runner_of(api: RunCluster, run: Run, times: Times | None = None) -> AsyncIterator[Runner]:
    """Yield what carries out a run, or one turn of it."""
    client, display = cast("KubeClient", api), TextLines()
    async with make_cluster(client, NAMESPACE, WEB, run.options) as cluster:
        writer = make_writer(client, cluster, run, display, api.clock)
        parts = client, cluster, api.clock, display, writer
        yield Runner(*parts, times=times or Times(), remedies=FLAGS, yes=times is None)


async def finished(api: RunCluster, run: Run, times: Times | None = None) -> Plan:
    """Carry out a run, or one turn of it, and record its end."""
    async with runner_of(api, run, times) as runner:
        plan = await runner.run(run)
        assert await runner.finish(run, plan, 5.0) == ""
    return plan


def recorded(api: RunCluster) -> dict[str, Progress]:
    """Return the progress that is recorded on each request."""
    objects = api.objects[REQUESTS.plural].items()
    found = ((name, each["metadata"]["annotations"].get(ANNOTATION_PROGRESS, "")) for name, each in objects)
    return {name: progress for name, text in found if (progress := read_progress(text)) is not None}


@pytest.mark.parametrize("times", [Times(), Times(patience=60.0)])
@pytest.mark.parametrize(
    ("end", "was_refused", "kept"),
    [
        *((end, True, End.HALTED) for end in (End.HALTED, End.RIVAL, End.FAILED, End.TIMED_OUT, End.INTERRUPTED)),
        (End.ABORTED, True, End.ABORTED),
        (End.HALTED, False, End.HALTED),
        (End.INTERRUPTED, False, End.INTERRUPTED),  # the pods that were known may have been those of an outage
    ],
)
async def test_a_no_that_is_recorded_stays_whatever_ends_a_process(
    end: End, kept: End, times: Times, *, was_refused: bool
) -> None:
    """Only an abort ends the run, too."""
    api = RunCluster(1)
    run = api.run_of()
    plan = await finished(api, run)
    refused = replace(plan, end=end, part=Part(state=PartState.REFUSED, refusal=REFUSED, was_refused=was_refused))
    async with runner_of(api, run, times) as runner:
        await runner.finish(run, refused, 5.0)
    (noted,) = recorded(api).values()
    assert (noted.end, noted.waits) == (kept, REFUSED)


@pytest.mark.parametrize("pods", [50, 200])
async def test_the_number_of_plans_does_not_grow_with_the_number_of_pods(pods: int) -> None:
    api = RunCluster(pods)
    plan = await api.carry_out(api.run_of(max_unavailable=ALL))
    assert (plan.end, once(api), len(api.created)) == (End.DONE, True, pods)
    assert len(api.plans) <= 100


async def test_a_run_is_as_fast_as_its_budget_and_never_over_it() -> None:
    """Ten times a tenth of the pods, two seconds each."""
    api, loop = RunCluster(200), asyncio.get_running_loop()
    run, began = api.run_of(max_unavailable=TENTH), loop.time()
    plan = await api.carry_out(run)
    assert (plan.end, once(api), api.most_away) == (End.DONE, True, 20)
    assert loop.time() - began <= 1.5 * 20
    assert len(api.plans) < 200, "fewer than starts"


async def test_a_run_that_began_in_the_future_goes_on_at_once() -> None:
    """The clock of the API server was set back since then, or somebody has changed the annotation."""
    api, loop = RunCluster(1), asyncio.get_running_loop()
    run, began = api.run_of(), loop.time()
    plan = await api.carry_out(replace(run, started=rfc3339(api.clock.now() + timedelta(days=1))))
    assert (plan.end, once(api)) == (End.DONE, True)
    assert loop.time() - began < 10


async def test_creations_that_hang_delay_no_other() -> None:
    api = RunCluster(60)
    api.slow = {f"web-{number:04}": 9.0 for number in range(2 * PLACES)}
    running = asyncio.create_task(api.carry_out(api.run_of(max_unavailable=Amount(20))))
    await asyncio.sleep(9.0)
    assert len(api.restarts) >= 24, "eight at once, for at least six seconds"
    assert (await running).end is End.DONE
    assert (once(api), api.most_away) == (True, 20)


async def test_runs_of_one_process_count_each_other_before_a_request_exists() -> None:
    api = RunCluster(4)
    api.slow = dict.fromkeys(api.objects["pods"], 0.5)
    run, peers = api.run_of(), list[Cluster]()
    later = replace(run, name="other", target=replace(run.target, words="others", selector="app in (web)"))
    first, second = await asyncio.gather(*(api.carry_out(each, peers=peers) for each in (run, later)))
    assert (first.end, once(api), api.most_away) == (End.DONE, True, 1)
    assert second.end is End.RIVAL
    assert second.message == "run nightly on pods app=web started first: wait for it, or abort it"
    assert peers == []


async def test_a_failure_stops_the_starts_that_are_still_to_come() -> None:
    api = RunCluster(50)
    api.slow = dict.fromkeys(api.objects["pods"], 0.24)
    api.fails = {"web-0000"}
    plan = await api.carry_out(api.run_of(max_unavailable=ALL))
    assert plan.end is End.FAILED
    assert len(api.created) <= 3 * PLACES, "it fails half a second after its creation"
    assert {row.pod for row in plan.rows if row.stage is Stage.FAILED} == {"web-0000"}
    assert api.requests().keys() == {*api.created}


async def test_what_is_refused_to_all_is_not_asked_for_all() -> None:
    api = RunCluster(50)
    asked: list[str] = []

    def quota(pod: str) -> Exception:
        asked.append(pod)
        return ApiRefusedError("exceeded quota: requests", status=403)

    api.refuse = quota
    plan = await api.carry_out(api.run_of(max_unavailable=ALL))
    assert plan.end is End.FAILED
    assert 1 <= len(asked) <= PLACES
    assert {row.wait.why for row in plan.rows if row.stage is Stage.FAILED} == {"exceeded quota: requests"}


@pytest.mark.parametrize("most", [Amount(1), ALL])
async def test_a_policys_run_goes_on_within_fifty_seconds_after_a_quota_is_raised(most: Amount) -> None:
    """A user's run fails. Nobody would resume that of a policy."""
    api, loop = RunCluster(20), asyncio.get_running_loop()
    asked, raised = list[float](), loop.time() + 100.0

    def quota(_: str) -> Exception | None:
        asked.append(loop.time())
        return ApiRefusedError("exceeded quota: requests", status=403) if loop.time() < raised else None

    api.refuse = quota
    plan = await api.carry_out(api.run_of(max_unavailable=most, policy="policy-uid"))
    assert (plan.end, once(api)) == (End.DONE, True)
    assert min(at for at in asked if at >= raised) <= raised + 50.0
    assert sum(at < raised for at in asked) <= 4 + PLACES, "it is tried less and less often, and not for each pod"
    shown = {each.wait.why for each in api.plans if each.wait.why}
    assert shown == {"cannot create the ContainerRecreateRequest, retrying: exceeded quota: requests"}


async def test_containers_that_are_removed_from_running_pods_are_no_failures() -> None:
    """Right before the request of web-0001, which goes on with what is left, and during those of the next two pods."""
    api = RunCluster(4)
    pod = api.pod("web-0001", "node-1")
    (status,) = pod["status"]["containerStatuses"]
    spec = {**pod["spec"], "containers": [{"name": "side"}, {"name": "app"}]}
    both = {**pod["status"], "containerStatuses": [{**status, "name": "side"}, status]}
    api.put(PODS, {**pod, "spec": spec, "status": both})

    def refuse(name: str) -> Exception | None:
        if name != "web-0001" or len(api.objects["pods"][name]["spec"]["containers"]) == 1:
            return None
        api.put(PODS, pod)
        return ApiRefusedError('"side" is not a container of the pod', status=422)

    api.refuse, api.down = refuse, {"node-2", "node-3"}
    running = asyncio.create_task(api.carry_out(api.run_of(containers=("side", "app"), max_unavailable=ALL)))
    await asyncio.sleep(10)
    for name in ("web-0002", "web-0003"):
        state = {"name": "app", "phase": "Failed", "reason": "ContainerNotFound", "message": "no such container"}
        done = {"completionTime": rfc3339(api.clock.now()), "containerRecreateStates": [state]}
        api.report(api.requests()[name]["metadata"]["name"], phase="Completed", **done)
        there = api.objects["pods"][name]
        await asyncio.sleep(1 if name == "web-0002" else 0)  # the watch of the pods is behind
        api.put(PODS, {**there, "spec": {**there["spec"], "containers": [{"name": "other"}]}})
    plan = await running
    assert {row.pod: row.stage for row in plan.rows} == {
        **dict.fromkeys(("web-0000", "web-0001"), Stage.DONE),
        **dict.fromkeys(("web-0002", "web-0003"), Stage.SKIPPED),
    }
    assert (plan.end, api.restarts) == (End.DONE, {"web-0000": 1, "web-0001": 1})


async def test_those_in_order_start_one_after_the_other() -> None:
    """Also if the creation for one of them takes long."""
    api = RunCluster(12)
    aim = api.stateful_set(12)
    api.slow = {"web-0010": 5.0, "web-0004": 1.0}
    run = api.run_of(aim, max_unavailable=Amount(4))
    plan = await api.carry_out(run, aim)
    assert (plan.end, once(api), api.most_away) == (End.DONE, True, 4)
    assert api.created == sorted(api.created, reverse=True)


async def test_one_that_is_refused_is_the_last_of_those_in_order() -> None:
    api = RunCluster(12)
    aim = api.stateful_set(12)
    api.refuse = lambda pod: ApiRefusedError("not this one", status=403) if pod == "web-0009" else None
    plan = await api.carry_out(api.run_of(aim, max_unavailable=ALL), aim)
    assert (plan.end, api.created) == (End.FAILED, ["web-0011", "web-0010"])


@pytest.mark.parametrize("in_order", [False, True])
async def test_killed_after_any_creation_and_continued(*, in_order: bool) -> None:
    for moment in range(12):
        api = RunCluster(12)
        aim = api.stateful_set(12 if in_order else 0)
        run = api.run_of(aim, max_unavailable=Amount(4))
        killed = asyncio.create_task(api.carry_out(run, aim))
        await until(lambda moment=moment, api=api: len(api.created) > moment)  # type: ignore[misc]
        await cancel([killed])
        plan = await api.carry_out(run, aim)
        assert (plan.end, once(api), len(api.created)) == (End.DONE, True, 12)
        assert api.most_away <= 4


async def test_responses_that_are_lost_cost_no_budget_and_no_second_restart() -> None:
    api = RunCluster(40)
    api.lost = {f"web-{number:04}" for number in range(0, 40, 2)}
    plan = await api.carry_out(api.run_of(max_unavailable=Amount(8)))
    assert (plan.end, once(api), len(api.created)) == (End.DONE, True, 40)
    assert api.most_away == 8


async def test_creations_that_fail_for_a_while_are_tried_again_less_and_less_often() -> None:
    api, loop = RunCluster(8), asyncio.get_running_loop()
    tried: list[str] = []
    until_then = loop.time() + 60

    def down(pod: str) -> Exception | None:
        tried.append(pod)
        return ApiUnavailableError("a webhook does not answer") if loop.time() < until_then else None

    api.refuse = down
    plan = await api.carry_out(api.run_of(max_unavailable=Amount(4)))
    assert (plan.end, once(api)) == (End.DONE, True)
    assert api.most_away <= 4
    assert len(tried) <= 8 + 4 * 12
    why = "cannot create the ContainerRecreateRequest, retrying: a webhook does not answer"
    assert why in {plan.wait.why for plan in api.plans}


async def test_a_pod_that_was_restarted_unseen_gets_no_request() -> None:
    """Its request has ended and was deleted, and the watch of pods has yet to show the new container."""
    api = RunCluster(2)
    run = api.run_of(max_unavailable=ALL)
    running = asyncio.create_task(api.carry_out(run))
    await asyncio.sleep(0.5)  # everything is listed, and a run begins in the second after its start
    pod = RunCluster(1).pod("web-0000", "node-0", instance=1)
    started = {"running": {"startedAt": rfc3339(api.clock.now() + timedelta(seconds=1))}}
    pod["status"]["containerStatuses"][0]["state"] = started
    api.objects["pods"]["web-0000"] = {**pod, "metadata": {**pod["metadata"], "resourceVersion": "9999"}}
    plan = await running
    assert (plan.end, api.created) == (End.DONE, ["web-0001"])


async def test_a_run_that_gets_nowhere_ends_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("crrd.core.rollout.limits.PATIENCE_SECONDS", 30.0)
    api, loop = RunCluster(2), asyncio.get_running_loop()
    api.pod("web-0000", "node-0", ready=False, labels={"app": "web"})
    api.put(PODS, {**api.objects["pods"]["web-0000"], "spec": {"nodeName": "node-0", "containers": [{"name": "side"}]}})
    began = loop.time()
    plan = await api.carry_out(api.run_of(pod_timeout=0))
    assert (plan.end, plan.wait.why) == (End.TIMED_OUT, "1 pod is unready, the limit is 1: web-0000")
    assert 30 <= loop.time() - began < 40


class Draining(RunCluster):
    """Each pod is unready for 100 s before its node says that the image is there. Nothing replaces a container."""

    def __init__(self) -> None:
        super().__init__(1, spec={"containers": [{"name": "app", "image": "i:1"}]})
        self.patched = 0.0

    async def _serve(self, name: str, pod: str) -> None:
        await asyncio.sleep(100)
        state = {"name": "app", "phase": "Pending", "reason": "ImagePresent"}
        self.report(name, phase="Recreating", containerRecreateStates=[state])

    async def json_patch(
        self, _resource: object, _namespace: str, name: str, operations: object
    ) -> Mapping[str, object]:
        self.patched = asyncio.get_running_loop().time()
        pod = self.objects["pods"][name]
        return {**pod, "spec": {**pod["spec"], "containers": [{"name": "app", "image": "i:2"}]}}


@pytest.mark.parametrize(("patience", "most"), [(60.0, 1000.0), (1000.0, 60.0)])
async def test_a_turn_does_not_end_while_an_unready_pod_waits_for_its_image(patience: float, most: float) -> None:
    """It would wait behind all other runs."""
    api, loop = Draining(), asyncio.get_running_loop()
    run, began = api.run_of(image=ImageChange("i:2", ("i:1",), pulls=False)), loop.time()
    plan = await api.carry_out(run, times=Times(patience=patience, most=most))
    assert (plan.end is End.YIELDED, api.patched - began >= 100, loop.time() - began < 170) == (True, True, True)


async def test_a_turn_ends_although_its_run_makes_progress() -> None:
    api, loop = RunCluster(100), asyncio.get_running_loop()
    run, began = api.run_of(), loop.time()
    plan = await api.carry_out(run, times=Times(patience=1000.0, most=60.0))
    done = tally(plan.rows)[Stage.DONE]
    assert (plan.end is End.YIELDED, 0 < done < 100, 60 <= loop.time() - began < 70) == (True, True, True)


class Following(RunCluster):
    """Each pod is unready for 20 to 48 s, until its container has the image."""

    def __init__(self) -> None:
        super().__init__(60, spec={"containers": [{"name": "app", "image": "i:1"}]})

    def image(self, pod: str, image: str) -> None:
        found = self.objects["pods"][pod]
        self.put(PODS, {**found, "spec": {**found["spec"], "containers": [{"name": "app", "image": image}]}})

    async def _serve(self, name: str, pod: str) -> None:
        self.away.add(pod)
        await asyncio.sleep(20 + int(pod[-4:]) % 5 * 7)
        state = {"name": "app", "phase": "Pending", "reason": "ImagePresent"}
        self.report(name, phase="Recreating", containerRecreateStates=[state])

    async def json_patch(
        self, _resource: object, _namespace: str, name: str, operations: object
    ) -> Mapping[str, object]:
        (request,) = [
            found for found in self.objects[REQUESTS.plural] if self.requests()[name]["metadata"]["name"] == found
        ]
        self.pod(name, self.objects["pods"][name]["spec"]["nodeName"], instance=1)
        self.image(name, "i:2")
        done = {"name": "app", "phase": "Succeeded"}
        self.report(
            request, phase="Completed", completionTime=rfc3339(self.clock.now()), containerRecreateStates=[done]
        )
        self.away.discard(name)
        return self.objects["pods"][name]


async def test_a_turn_of_a_run_with_an_image_ends_once_its_pods_are_ready() -> None:
    """Some pod is unready all the time before that."""
    api, loop = Following(), asyncio.get_running_loop()
    image = ImageChange("i:2", ("i:1",), pulls=False)
    run, began = api.run_of(image=image, max_unavailable=Amount(4)), loop.time()
    plan = await api.carry_out(run, times=Times(patience=60.0, most=120.0))
    assert (plan.end, api.away) == (End.YIELDED, set())
    assert 120 <= loop.time() - began < 120 + 60
    assert 0 < tally(plan.rows)[Stage.DONE] < 60


async def test_the_end_is_recorded_on_another_request_if_one_was_just_deleted() -> None:
    """The run would count as stopped, and hold back the next one."""

    class Deleting(RunCluster):
        """The TTL of the request on which the end is recorded is over at that moment. The watch has yet to say so."""

        gone = ""

        async def merge_patch(
            self, resource: Resource, namespace: str, name: str, body: Mapping[str, Any], *, subresource: str = ""
        ) -> Mapping[str, Any]:
            ends = json.loads(body["metadata"]["annotations"][ANNOTATION_PROGRESS]).get("end")
            if ends and not self.gone:
                self.gone = name
                raise GoneError("it was deleted", status=404)
            return await super().merge_patch(resource, namespace, name, body, subresource=subresource)

    api = Deleting(2)
    await finished(api, api.run_of())
    ends = {name for name, each in recorded(api).items() if each.end is End.DONE}
    assert (len(recorded(api)), ends) == (2, recorded(api).keys() - {api.gone})


@pytest.mark.parametrize(
    ("times", "options", "waits"),
    [
        (Times(patience=60.0, most=5.0), {}, "its next turn"),
        (Times(5.0, 60.0), {}, "the window of its policy"),
        (
            Times(patience=60.0),
            {"steps": (1,), "step_pause": None},
            "step 1 of 2 is done, 3 left; the condition Ready of its policy has the command to continue",
        ),
    ],
)
async def test_the_end_of_a_turn_is_recorded_as_no_end_of_the_run(
    times: Times, options: dict[str, Any], waits: str
) -> None:
    """Whatever ends it. The manager goes on with the run later."""
    api = RunCluster(4)
    plan = await finished(api, api.run_of(policy="policy-uid", **options), times)
    assert plan.end in GOES_ON
    (last,) = [each for each in recorded(api).values() if each.end is not None]
    assert last.end is End.YIELDED
    assert last.waits.startswith(waits)


async def test_whoever_waits_is_told_what_is_tried_again(capsys: pytest.CaptureFixture[str]) -> None:
    class Failing(RunCluster):
        """The first record of the end fails."""

        failed = False

        async def merge_patch(
            self, resource: Resource, namespace: str, name: str, body: Mapping[str, Any], *, subresource: str = ""
        ) -> Mapping[str, Any]:
            if '"end"' in body["metadata"]["annotations"][ANNOTATION_PROGRESS] and not self.failed:
                self.failed = True
                raise ApiUnavailableError("no answer")
            return await super().merge_patch(resource, namespace, name, body, subresource=subresource)

    api = Failing(1)
    await finished(api, api.run_of())
    assert "recording the end of the run, retrying: no answer" in capsys.readouterr().out
    assert [each.end for each in recorded(api).values()] == [End.DONE]
