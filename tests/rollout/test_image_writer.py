"""The patches of a run with an image: side by side, as its requests are, in virtual time."""

import asyncio
from typing import Any, cast

import pytest

from crrd.core.rollout.change import ImageChange
from crrd.core.rollout.image.controllers import Adoption, Write
from crrd.core.rollout.image.steps import ImageActions
from crrd.core.rollout.kind import NO_ACTIONS
from crrd.core.rollout.phases import Stage
from crrd.core.rollout.plan import Plan
from crrd.core.rollout.rows import Row
from crrd.core.rollout.state import Member, World
from crrd.kube.client import KubeClient
from crrd.kube.lanes import PLACES
from crrd.lib.errors import ApiRefusedError, ConfigurationError
from crrd.rollout.cluster import Cluster
from crrd.rollout.image.objects import ImageObjects
from crrd.rollout.image.writer import ImageWriter
from crrd.rollout.text import TextLines
from tests.support.rollouts import asked, container, member, run

pytestmark = pytest.mark.virtual_time

RUN = run(image=ImageChange("i:2", ("i:1",)))
NAMES = [f"web-{number:02}" for number in range(60)]


class WriterWorld:
    """The pods, and the API server, which takes 0.2 s for a patch. Stands for the client and the cluster."""

    def __init__(self) -> None:
        self.changed = asyncio.Event()
        self.slow: dict[str, float] = {}  # By pod: the seconds of its patch
        self.error: ApiRefusedError | None = None
        self.asked: list[str] = []
        self.done: list[str] = []
        self.refusals: dict[str, str] = {}
        self.members: dict[str, Member] = {}  # By pod: what a look finds
        self.sent: dict[str, str] = {}
        self.in_flight = self.most_in_flight = 0
        self.writer = ImageWriter(
            cast("KubeClient", self), cast("Cluster", self), cast("ImageObjects", self), RUN, TextLines()
        )

    async def json_patch(self, _resource: object, _namespace: str, name: str, _operations: object) -> Any:
        self.asked.append(name)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        await asyncio.sleep(self.slow.get(name, 0.2))
        self.in_flight -= 1
        if self.error is not None:
            raise self.error
        return {"metadata": {"name": name}, "spec": {"containers": [{"name": "app", "image": "i:2"}]}}

    async def get(self, _resource: object, _namespace: str, name: str) -> Any:
        self.asked.append(f"read {name}")
        await asyncio.Event().wait()

    def world(self) -> World:
        return World(())

    def pod_written(self, obj: Any) -> None:
        self.done.append(obj["metadata"]["name"])

    async def look_again(self, name: str, uid: str) -> Member | None:
        found = self.members.get(name)
        return found if found is not None and found.pod.uid == uid else None

    def refused(self, uid: str, message: str) -> None:
        self.refusals[uid] = message

    async def plan(self) -> None:
        """Have a plan in which all that is not done is due."""
        names = [name for name in NAMES if name not in self.done and f"uid-{name}" not in self.refusals]
        pods = [member(name, container(image="i:1")) for name in names]
        rows = [
            Row(pod.pod.name, pod.pod.uid, Stage.REQUESTED, member=pod, request=asked(RUN, pod), containers=("app",))
            for pod in pods
        ]
        await self.writer.carry_out(RUN, Plan(tuple(rows), actions=ImageActions(patch=tuple(rows))))

    async def plans(self, seconds: float) -> None:
        """Plan anew after each change."""
        async with asyncio.timeout(seconds):
            while len(self.done) < len(NAMES):
                self.changed.clear()
                await self.plan()
                await self.changed.wait()


async def test_as_many_are_in_flight_as_of_other_writes() -> None:
    world = WriterWorld()
    await world.plans(60.0)
    assert (sorted(world.done), sorted(world.asked)) == (NAMES, NAMES)
    assert world.most_in_flight == PLACES


async def test_those_that_hang_delay_no_other() -> None:
    world = WriterWorld()
    world.slow = dict.fromkeys(NAMES[: 2 * PLACES], 30.0)
    with pytest.raises(TimeoutError):
        await world.plans(10.0)
    assert sorted(world.done) == NAMES[2 * PLACES :]
    await world.writer.cancel()


async def test_a_node_whose_pods_have_the_image_by_now_needs_no_pull_pod() -> None:
    world, there = WriterWorld(), member("web-00", container(image="i:2"))
    row = Row("web-00", there.pod.uid, Stage.WAITING, node="node-a", member=there, containers=("app",))
    await world.writer.carry_out(RUN, Plan((row,), actions=ImageActions(pull=("node-a",))))
    await asyncio.sleep(1)
    assert world.asked == []


async def test_a_pull_pod_that_hangs_delays_no_plan() -> None:
    world, there = WriterWorld(), member("web-00", container(image="i:1"))
    row = Row("web-00", there.pod.uid, Stage.WAITING, node="node-a", member=there, containers=("app",))
    for _ in range(2):
        async with asyncio.timeout(1):
            await world.writer.carry_out(RUN, Plan((row,), actions=ImageActions(pull=("node-a",))))
        await asyncio.sleep(1)
    assert len(world.asked) == 1
    await world.writer.cancel()


async def test_what_is_refused_to_all_is_not_asked_for_all() -> None:
    world = WriterWorld()
    world.error = ApiRefusedError("not by hand", status=400)
    await world.plan()
    await asyncio.sleep(60)
    assert len(world.asked) <= PLACES
    assert [*world.refusals.values()] == ["not by hand"] * len(world.asked)
    await world.writer.end()


async def test_a_missing_right_ends_the_run() -> None:
    world = WriterWorld()
    world.error = ApiRefusedError('pods "web" is forbidden: User "me" cannot patch', status=403)
    await world.plan()
    await asyncio.sleep(60)
    with pytest.raises(ConfigurationError, match='User "me" cannot patch'):
        await world.plan()
    assert (len(world.asked) <= PLACES, world.refusals) == (True, {})


async def test_a_plan_without_patches_stops_those_that_wait() -> None:
    world = WriterWorld()
    await world.plan()
    await asyncio.sleep(0.1)
    await world.writer.carry_out(RUN, Plan((), actions=NO_ACTIONS))
    await asyncio.sleep(60)
    assert (len(world.asked), len(world.done)) == (PLACES, PLACES)


async def test_at_the_end_those_under_way_are_awaited_and_no_other_begins() -> None:
    world = WriterWorld()
    await world.plan()
    await asyncio.sleep(0.1)
    await world.writer.end()
    assert (len(world.asked), len(world.done)) == (PLACES, PLACES)
    await asyncio.sleep(60)
    assert len(world.asked) == PLACES


class Refusing:
    """The API server does not accept a write of the adoption. Stands for client, cluster and known objects."""

    def __init__(self, status: int = 422) -> None:
        self.changed, self.status, self.calls = asyncio.Event(), status, list[str]()
        self.writer = ImageWriter(
            cast("KubeClient", self), cast("Cluster", self), cast("ImageObjects", self), RUN, TextLines()
        )

    async def json_patch(self, *_: object) -> Any:
        raise ApiRefusedError("a policy does not allow it", status=self.status)

    async def get(self, *_: object) -> Any:
        self.calls.append("get")
        return {"metadata": {"uid": RUN.target.uid}}

    async def read_revisions(self) -> None:
        self.calls.append("revisions")

    def workload_written(self, _: object) -> None:
        self.calls.append("workload")

    async def look_again(self, *_: object) -> None:
        self.calls.append("look again")

    async def adopt(self, *writes: Write) -> None:
        await self.writer.carry_out(RUN, Plan((), actions=ImageActions(adoption=Adoption(writes))))


@pytest.mark.parametrize(("plural", "looks"), [("deployments", ["get", "workload"]), ("pods", ["look again"])])
async def test_a_policy_that_refuses_the_adoption_is_not_asked_forever(plural: str, looks: list[str]) -> None:
    """It refuses with 422 like a test that fails, but then the object is as it was decided on."""
    api = Refusing()
    write, other = (Write(plural, "web", "u", ({"op": "test", "path": "/a", "value": value},)) for value in "ab")
    await api.adopt(write)
    assert api.calls == [*looks, "revisions", "revisions"], "so that the next plan decides from what is there"
    await api.adopt(other)
    with pytest.raises(ConfigurationError, match=f"cannot change {plural} web: a policy does not allow it"):
        await api.adopt(write)
    with pytest.raises(ConfigurationError, match="does not allow"):
        await Refusing(403).adopt(write)
