"""What runs of policies have left is found and ended, whatever has happened to policy, manager and API server."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, cast

import pytest

from crrd.core.api.types import ANNOTATION_STOPPED, LABEL_POD_UID
from crrd.core.policy.course import make_run
from crrd.core.policy.types import RunRecord
from crrd.core.policy.v1alpha1 import read_policy
from crrd.core.rollout.image.pull import LABEL_PULL, LABEL_PULL_POLICY
from crrd.core.rollout.phases import End, RunPhase
from crrd.core.rollout.progress import LIVE_SECONDS, Progress
from crrd.core.rollout.run import Target
from crrd.kube.client import KubeClient
from crrd.kube.resources import PODS, REQUESTS
from crrd.lib.supervise import cancel
from crrd.manager.policies.leftovers import LATE_SECONDS, CarriedOn, Leftovers
from crrd.rollout.process import this_process
from tests.support.laned_api import LanedApi
from tests.support.virtual_time import LoopClock

pytestmark = pytest.mark.virtual_time
AT = "2026-01-01T00:00:00Z"
TARGET = Target("deployment.apps/web", "apps/v1", "Deployment", "web", "uid-1")
RECORD = RunRecord("web-1", "templateImage", ("app",), AT, AT, 1, image="i:2", before=("i:1",), template="t")
POLICY = read_policy(
    {"metadata": {"namespace": "n", "name": "p", "uid": "p"}, "spec": {"triggers": {"templateImage": {}}}}
)


class Namespace:
    """A pod that waits for its image, its request, and the pull pod of its node."""

    def __init__(self) -> None:
        self.api, self.clock, self.carried_on, self.undecided, self.listed = (
            LanedApi(),
            LoopClock(),
            set[str](),
            False,
            True,
        )
        spec = {"containers": [{"name": "app", "image": "i:1"}]}
        self.api.put(PODS, {"metadata": {"name": "web-1", "namespace": "n", "uid": "u1"}, "spec": spec})
        carried_on = lambda _: CarriedOn(self.carried_on, self.undecided)  # noqa: E731
        self.left = Leftovers(cast("KubeClient", self.api), self.clock, carried_on, lambda: self.listed)

    def pull_pod(self, name: str = "pull", command: str = "/crrd-pulls-only-the-image") -> None:
        labels = {LABEL_PULL: RECORD.name, LABEL_PULL_POLICY: "p"}
        spec = {"containers": [{"name": "pull", "command": [command]}]}
        self.api.put(PODS, {"metadata": {"name": name, "namespace": "n", "uid": name, "labels": labels}, "spec": spec})

    def request(self, annotations: Mapping[str, str] | None = None, *, policy: str = "p") -> None:
        run = make_run(replace(POLICY, uid=policy), RECORD, TARGET)
        made = run.request("web-1", "u1", ("app",))
        made["metadata"] |= {"name": "r", "namespace": "n", "resourceVersion": "1"}
        made["metadata"]["annotations"] |= annotations or {}
        made["metadata"]["labels"][LABEL_POD_UID] = "u1"  # as admission does
        self.api.put(REQUESTS, made)

    @property
    def pods(self) -> set[str]:
        return {*self.api.objects[PODS.plural]} - {"web-1"}

    @property
    def is_open(self) -> bool:
        found: Any = self.api.objects[REQUESTS.plural]["r"]
        return ANNOTATION_STOPPED not in found["metadata"]["annotations"]

    @asynccontextmanager
    async def cleaned(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.left.run())
        yield
        await cancel([task])


@pytest.fixture
def found() -> Namespace:
    made = Namespace()
    made.pull_pod()
    made.request()
    return made


async def test_each_leader_ends_what_earlier_ones_have_left(found: Namespace) -> None:
    """The policy is gone, so nothing else leads to its namespace."""
    found.pull_pod("other", command="sh")
    async with found.cleaned():
        await asyncio.sleep(1)
        assert (found.pods, found.is_open) == ({"other"}, False), "somebody has given the other pod its labels"


async def test_a_pull_pod_alone_is_found(found: Namespace) -> None:
    found.api.remove(REQUESTS, "r")
    async with found.cleaned():
        await asyncio.sleep(1)
        assert found.pods == set()


async def test_what_is_carried_on_stays_until_its_run_is_stopped(found: Namespace) -> None:
    found.carried_on = {RECORD.name}
    async with found.cleaned():
        await asyncio.sleep(600)
        assert (found.pods, found.is_open) == ({"pull"}, True)
        found.carried_on = set()
        found.left.wake(POLICY)
        await asyncio.sleep(1)
        assert (found.pods, found.is_open) == (set(), False)


async def test_nothing_ends_before_it_is_known_what_is_carried_on(found: Namespace) -> None:
    found.listed = False
    async with found.cleaned():
        await asyncio.sleep(60)
        assert found.is_open
        found.listed = True
        await asyncio.sleep(2)
        assert not found.is_open


async def test_what_a_policy_may_still_want_is_looked_at_again(found: Namespace) -> None:
    """Its looks fail for a while, and then it wants another run. Nothing else wakes the namespace."""
    found.carried_on, found.undecided = {RECORD.name}, True
    async with found.cleaned():
        await asyncio.sleep(600)
        assert (found.pods, found.is_open) == ({"pull"}, True)
        found.carried_on, found.undecided = set(), False
        await asyncio.sleep(LATE_SECONDS + 1)
        assert (found.pods, found.is_open) == (set(), False)


async def test_a_run_that_begins_meanwhile_keeps_its_pull_pods(found: Namespace) -> None:
    found.api.seconds = lambda verb, *_: 5.0 if verb == "list" else 0.01
    async with found.cleaned():
        await asyncio.sleep(12)
        found.carried_on = {RECORD.name}
        await asyncio.sleep(60)
        assert found.pods == {"pull"}


@pytest.mark.parametrize("fails", ["list containerrecreaterequests", "list pods", "patch containerrecreaterequests"])
async def test_a_look_that_fails_is_repeated_until_it_succeeds(found: Namespace, fails: str) -> None:
    found.api.forbidden = {fails}
    async with found.cleaned():
        await asyncio.sleep(3600)
        assert found.pods == {"pull"}
        found.api.forbidden = set()
        await asyncio.sleep(60)
        assert (found.pods, found.is_open) == (set(), False)


async def test_requests_end_also_without_the_right_to_delete_pull_pods(found: Namespace) -> None:
    found.api.forbidden = {"delete pods"}
    async with found.cleaned():
        await asyncio.sleep(1)
        assert (found.pods, found.is_open) == ({"pull"}, False)
        found.api.forbidden = set()
        await asyncio.sleep(60)
        assert found.pods == set()


async def test_a_write_that_arrives_late_is_found() -> None:
    """The task of the run was cancelled while it waited for the response."""
    found = Namespace()
    async with found.cleaned():
        found.left.wake(None, POLICY)
        await asyncio.sleep(LATE_SECONDS - 1)
        found.pull_pod()
        found.request()
        await asyncio.sleep(2)
        assert (found.pods, found.is_open) == (set(), False)


def progress(clock: LoopClock, by: str, end: End | None = None) -> dict[str, str]:
    at = clock.now().isoformat(timespec="seconds").replace("+00:00", "Z")
    return Progress(at, by, RunPhase.RESTARTING, 0, 1, end=end).annotation()


async def test_a_run_that_a_user_has_resumed_is_carried_on_by_that_process() -> None:
    found = Namespace()
    found.pull_pod()
    found.request(progress(found.clock, "laptop/4711"))
    found.api.forbidden = {"delete pods"}
    async with found.cleaned():
        await asyncio.sleep(LIVE_SECONDS - 5)
        assert (found.pods, found.is_open) == ({"pull"}, True)
        found.api.forbidden = set()
        await asyncio.sleep(2 * LIVE_SECONDS)
        assert (found.pods, found.is_open) == (set(), False), "that process was killed"


@pytest.mark.parametrize("end", [None, End.INTERRUPTED])
async def test_a_run_whose_process_has_stopped_is_ended_at_once(end: End | None) -> None:
    """This process has stopped it, or another one wrote so."""
    found = Namespace()
    found.request(progress(found.clock, "laptop/4711" if end else this_process(), end))
    async with found.cleaned():
        await asyncio.sleep(1)
        assert not found.is_open


async def test_runs_of_users_and_of_policies_without_an_image_are_not_asked_about() -> None:
    found = Namespace()
    found.request(policy="")
    async with found.cleaned():
        await asyncio.sleep(60)
        found.left.wake(read_policy({"metadata": {"namespace": "n"}, "spec": {"triggers": {"maxAge": "72h"}}}))
        await asyncio.sleep(60)
        assert found.is_open
        assert [name for _, verb, _, name in found.api.calls if verb == "list"] == ["/"] * 3
