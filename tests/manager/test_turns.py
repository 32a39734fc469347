"""How the runs of policies share a few places: by namespace, by progress, and not after their window."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, cast

import pytest

from crrd.core.policy.pace import CHECK_SECONDS, MOST_SECONDS, TURN_SECONDS
from crrd.core.policy.types import RunRecord
from crrd.core.policy.v1alpha1 import read_policy
from crrd.core.rollout.limits import Times
from crrd.core.rollout.phases import End, Stage
from crrd.core.rollout.plan import Plan
from crrd.core.rollout.rows import Row
from crrd.core.rollout.run import Run, Target
from crrd.core.rollout.state import World
from crrd.core.rollout.waits import Wait
from crrd.kube.client import KubeClient
from crrd.manager.policies.run_task import PARALLEL_RUNS
from crrd.manager.policies.turns import AGED_SECONDS, Turns
from crrd.rollout.display import RunDisplay
from crrd.rollout.refresher import FileObjects
from crrd.rollout.target import Aim
from tests.support.laned_api import LanedApi
from tests.support.policy_runs import policy_runs
from tests.support.virtual_time import LoopClock

pytestmark = pytest.mark.virtual_time


class Queue:
    """Places, and the order in which they are taken."""

    def __init__(self, places: int) -> None:
        self.turns, self.order = Turns(places), list[str]()

    async def turn(self, name: str, seconds: float, *, idle: bool = False) -> None:
        """Have a place for so long. The namespace is the part of the name before the first dash."""
        async with self.turns.take(name.partition("-")[0], idle=idle):
            self.order.append(name)
            await asyncio.sleep(seconds)


async def test_who_has_waited_in_vain_comes_after_all_others() -> None:
    queue = Queue(2)
    async with asyncio.TaskGroup() as group:
        for number in range(30):
            group.create_task(queue.turn(f"idle-{number}", CHECK_SECONDS, idle=True))
        await asyncio.sleep(1)
        given_up = group.create_task(queue.turn("idle-given-up", 1))
        group.create_task(queue.turn("idle-new", 1))
        await asyncio.sleep(0)
        given_up.cancel()
    assert queue.order.index("idle-new") == 2, "the next free place is its own"
    assert "idle-given-up" not in queue.order
    assert not queue.turns.full
    assert not queue.turns.wanted


async def test_the_next_place_is_for_the_namespace_that_has_the_fewest() -> None:
    queue = Queue(4)
    async with asyncio.TaskGroup() as group:
        for number in range(40):
            group.create_task(queue.turn(f"many-{number}", MOST_SECONDS))
        await asyncio.sleep(1)
        group.create_task(queue.turn("few-0", 1))
        assert queue.turns.wanted
    assert queue.order.index("few-0") == 4


async def test_who_has_waited_in_vain_does_not_wait_for_ever() -> None:
    queue = Queue(1)
    async with asyncio.TaskGroup() as group:
        group.create_task(queue.turn("team-0", 10))
        group.create_task(queue.turn("team-idle", 1, idle=True))
        for number in range(1, 20):  # one more comes before each place is free
            group.create_task(queue.turn(f"team-{number}", 10))
            await asyncio.sleep(9)
    assert queue.order.index("team-idle") == AGED_SECONDS // 10


Turn = tuple[Stage, End | None, float]
"""The stage of the only pod, how the run ends, and after how many seconds without an end."""


class Played:
    """Runs whose turns are known in advance, and PolicyRuns that carry them out."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, script: Callable[[str], Iterator[Turn]]) -> None:
        self.began: dict[str, list[float]] = {}
        self.displays: dict[str, list[RunDisplay]] = {}
        self.refreshed: list[str] = []
        self.listed = 0
        self.clock, client = LoopClock(), cast("KubeClient", LanedApi())
        played = self

        class Runner:
            """Takes the place of a run's own loop."""

            def __init__(self, *parts: Any, times: Times, **_: Any) -> None:
                self.display, self.most = parts[3], min(times.timeout or times.most, times.most)

            async def run(self, run: Run) -> Plan:
                """The next turn of the script, no longer than it may be."""
                played.began.setdefault(run.name, []).append(asyncio.get_running_loop().time())
                played.displays.setdefault(run.name, []).append(self.display)
                stage, end, seconds = next(played.scripts.setdefault(run.name, script(run.name)))
                await asyncio.sleep(min(seconds, self.most + 0.1))  # the next plan ends it
                return Plan((Row("web-0", "u", stage),), end=end or End.YIELDED)

            async def finish(self, *_: object) -> str:
                """Nothing is left."""
                return ""

        class Listed:
            """Takes the place of a run's watches."""

            def __init__(self, *_: Any, **__: Any) -> None:
                self.kind_objects, self.changed = FileObjects(lambda: None), asyncio.Event()

            async def __aenter__(self) -> None:
                played.listed += 1

            async def __aexit__(self, *_: object) -> None: ...

            def world(self) -> World:
                """Nothing is known."""
                return World(())

        self.scripts: dict[str, Iterator[Turn]] = {}
        monkeypatch.setattr("crrd.manager.policies.run_task.Runner", Runner)
        monkeypatch.setattr("crrd.manager.policies.run_task.make_cluster", Listed)
        refreshed = self.refreshed.append
        self.runs = policy_runs(client, self.clock, on_refresh=lambda _, problem, __: refreshed(problem))

    def follow(self, namespace: str, name: str, *, uid: str = "", until: datetime | None = None) -> None:
        """Begin a run, or go on with it."""
        policy = read_policy({"metadata": {"namespace": namespace, "name": name, "uid": name}})
        record = RunRecord(name, "maxAge", ("app",), "2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z", 1)
        target = Target("deployment.apps/web", "apps/v1", "Deployment", "web", uid)
        self.runs.follow(policy, record, Aim(target), until)


def moving(_: str) -> Iterator[Turn]:
    """A run that makes progress all the time."""
    while True:
        yield Stage.RECREATING, None, 10_000.0
        yield Stage.WAITING, None, 10_000.0


def stuck(_: str) -> Iterator[Turn]:
    """A run that gets nowhere."""
    while True:
        yield Stage.WAITING, None, CHECK_SECONDS


async def test_runs_that_make_progress_let_another_team_run_after_two_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(monkeypatch, moving)
    for number in range(100):
        played.follow("many", f"run-{number}")
    await asyncio.sleep(10)
    played.follow("few", "urgent")
    await asyncio.sleep(MOST_SECONDS)
    assert "urgent" in played.began
    played.runs.stop_all()


async def test_a_run_that_nobody_waits_for_keeps_its_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    """The progress of a run and how long it has had none outlive a turn."""
    played = Played(monkeypatch, stuck)
    played.follow("team", "run")
    await asyncio.sleep(600)
    assert played.listed == 1
    assert 590 < played.runs.idle_for("team/run") <= 600
    for number in range(PARALLEL_RUNS):
        played.follow("many", f"run-{number}")
    await asyncio.sleep(60)
    assert played.listed - PARALLEL_RUNS >= 2
    played.runs.stop_all()
    assert played.runs.idle_for("team/run") == 0


async def test_a_target_that_was_created_again_is_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(monkeypatch, stuck)
    played.follow("team", "run", uid="first")
    await asyncio.sleep(1)
    played.follow("team", "run", uid="first")
    await asyncio.sleep(1)
    assert played.listed == 1
    played.follow("team", "run", uid="second")
    await asyncio.sleep(1)
    assert played.listed == 2
    played.runs.stop_all()


@pytest.mark.parametrize("end", [None, End.RIVAL])
async def test_no_run_begins_or_waits_after_its_window(monkeypatch: pytest.MonkeyPatch, end: End | None) -> None:
    played = Played(monkeypatch, lambda name: iter([(Stage.WAITING, end if name == "run" else None, 5.0)] * 1000))
    for number in range(PARALLEL_RUNS):
        played.follow("many", f"run-{number}", until=played.clock.now() + timedelta(hours=1))
    until = played.clock.now() + timedelta(seconds=TURN_SECONDS * 2)
    played.follow("team", "run", until=until)
    await asyncio.sleep(TURN_SECONDS * 3)
    assert played.began["run"]
    assert played.runs.progress("team/run") == "", "it is not active"
    late = played.clock.now() - timedelta(seconds=1)
    before = len(played.began["run"])
    played.follow("team", "run", until=late)
    await asyncio.sleep(10)
    assert len(played.began["run"]) == before
    played.runs.stop_all()


async def test_a_run_goes_on_if_its_window_closes_later_than_it_seemed(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(monkeypatch, lambda _: iter([(Stage.WAITING, None, 5.0)] * 1000))
    begin = played.clock.now()
    played.follow("team", "run", until=begin + timedelta(seconds=30))
    await asyncio.sleep(20)
    played.follow("team", "run", until=begin + timedelta(seconds=300))
    await asyncio.sleep(180)
    assert played.listed == 1
    assert played.runs.active("team/run") is not None
    await asyncio.sleep(200)
    assert played.runs.active("team/run") is None
    played.runs.stop_all()


async def test_what_a_run_shows_outlives_its_turns_and_has_no_durations(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(monkeypatch, stuck)
    played.follow("team", "run")
    await asyncio.sleep(20)
    first, *later = played.displays["run"]
    first.files_refreshed("pods is forbidden", lacks_right=True)
    later[-1].files_refreshed("", lacks_right=False)
    assert played.refreshed == ["pods is forbidden"], "a pod refreshed later does not make up for one that is not"
    wait = Wait("app is not ready for 35s: no answer", "kubectl logs web-0", "app is not ready: no answer")
    plan = Plan((Row("web-0", "u", Stage.SETTLING, wait),))
    first.show(plan)
    assert played.runs.progress("team/run") == (
        "0 of 1 pods recreated, 1 in progress: web-0 app is not ready: no answer (kubectl logs web-0)"
    )
    first.show(replace(plan, wait=Wait("1 pod is unready")))
    assert played.runs.progress("team/run").endswith(": 1 pod is unready")
    played.runs.stop_all()


async def test_a_run_that_waits_for_its_next_turn_says_so_with_its_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that waits for something else goes on to say that."""
    ends = {"run-1": End.PAUSED}

    def script(name: str) -> Iterator[Turn]:
        while True:
            yield Stage.DONE, ends.get(name), 10_000.0
            yield Stage.RECREATING, ends.get(name), 10_000.0

    played = Played(monkeypatch, script)
    for number in range(PARALLEL_RUNS):
        played.follow("team", f"run-{number}")
    await asyncio.sleep(1)
    for name in ("run-0", "run-1"):
        played.displays[name][-1].show(Plan((Row("web-0", "u", Stage.RECREATING),)))
    for number in range(PARALLEL_RUNS):
        played.follow("other", f"run-{PARALLEL_RUNS + number}")
    await asyncio.sleep(MOST_SECONDS + 10)
    waits = f"waiting for its turn: {PARALLEL_RUNS} runs of other policies are in progress"
    assert played.runs.progress("team/run-0") == f"1 of 1 pods recreated: {waits}"
    assert "crrd.dev/continue" in played.runs.progress("team/run-1")
    played.runs.stop_all()
