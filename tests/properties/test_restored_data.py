"""`onFailure: Restore` over interleavings of edits, other writers, failing data, and managers killed after any write.

Only kept data is written back, never before the status says that the other data is bad, never over data of another
writer, and once at most for bad data. No container is restarted with it, however often somebody writes it again.
"""

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from hypothesis import example, given, settings
from hypothesis import strategies as st

from crrd.core.api.time import parse_time
from crrd.core.config.parts import Part
from crrd.core.config.references import Kind, Reference, Use
from crrd.core.policy.course import ended
from crrd.core.policy.decide import Decision, decide
from crrd.core.policy.observed import Data, Look, Observed, Running, Stored
from crrd.core.policy.outcome import Outcome
from crrd.core.policy.revisions import MOVES, State, config_maps, state_of
from crrd.core.policy.types import ConfigChange, OnFailure, Policy, RunRecord, TargetRef
from crrd.core.rollout.phases import End
from tests.support.worlds import BUDGET

SETTLE, PODS, BAD_FROM = 5, 3, 7
"""Containers do not become ready with a value of BAD_FROM or more."""
START = datetime(2026, 1, 1, tzinfo=UTC)
USE = Reference(Kind.CONFIG_MAP, "cfg", Use.ENV_FROM)
KEY = ("app", Part(Kind.CONFIG_MAP, "cfg", ("data.*",)))
POLICY = Policy(
    "shop", "web", "u", "1", 1, "2026-01-01T00:00:00Z", BUDGET, TargetRef("apps/v1", "Deployment", "web"),
    config=ConfigChange(SETTLE), on_failure=OnFailure.RESTORE,
)  # fmt: skip


class KilledError(Exception):
    """The manager is gone."""


@dataclass
class RestoreModel:
    """The API server's objects, and what has happened to them."""

    now: int = 10
    value: int = 0
    version: int = 1
    changed: int = 0
    deleted: bool = False
    policy: Policy = POLICY
    pods: dict[str, tuple[int, int]] = field(default_factory=lambda: dict.fromkeys(map(str, range(PODS)), (0, 1)))
    """Value and start of each container."""
    stored: dict[str, tuple[str, int]] = field(default_factory=dict)
    kept: set[int] = field(default_factory=set)
    restores: list[tuple[int, int]] = field(default_factory=list)  # From which value to which
    restarts: list[int] = field(default_factory=list)  # The value that each restart has brought
    state: State = State.UNKNOWN
    writes: int = 0
    killed_after: int = 0  # The manager is killed after this write, 0 for never

    def at(self, seconds: int) -> datetime:
        return START + timedelta(seconds=seconds)

    def write(self, value: int) -> None:
        """Somebody writes the ConfigMap, with the same data perhaps, or creates it again."""
        self.version += 1
        if value != self.value or self.deleted:
            self.now += 1
            self.value, self.changed, self.deleted = value, self.now, False

    def crash(self, pod: str) -> None:
        if not self.deleted:  # else it does not start
            self.pods[pod] = self.value, self.now

    @property
    def found(self) -> Observed:
        running = tuple(
            Running(name, "app", self.at(started), (USE,), ready=value < BAD_FROM)
            for name, (value, started) in self.pods.items()
        )
        text = str(self.value)
        data = {KEY: Data(text, self.at(self.changed), "uid", whole=text, version=str(self.version))}
        stored = tuple(Stored(name, "cfg", text) for name, (text, _) in self.stored.items())
        if self.deleted:
            return Observed(running, {KEY: Data("", None)}, missing=("ConfigMap cfg not found",), stored=stored)
        return Observed(running, data, stored=stored)

    def wrote(self) -> None:
        """The manager has written something."""
        self.writes += 1
        if self.writes == self.killed_after:
            raise KilledError

    def look(self) -> bool:
        """One look of whoever leads. Return whether something is left to do."""
        before, found = self.policy.status, self.found
        decision = decide(self.policy, found, self.at(self.now))
        self._note_move(decision, found)
        if decision.status != before:
            self.policy = replace(self.policy, status=decision.status)
            self.wrote()
        done = self._act(decision)
        if decision.run is not None:
            self._restart(decision.run)
        return done or decision.run is not None or decision.status != before or decision.wake_at is not None

    def _note_move(self, decision: Decision, found: Observed) -> None:
        look = Look(replace(self.policy, status=decision.status), found, self.at(self.now))
        run = decision.status.run
        failed = run if run is not None and run.failed else None
        state = next((state_of(each.facts(failed)) for each in config_maps(look)), State.UNKNOWN)
        assert state is self.state or (self.state, state) in MOVES, f"{self.state} to {state}"
        self.state = state

    def _act(self, decision: Decision) -> bool:
        for each in decision.data.keep:
            assert each.hash == str(self.value)
            assert {value for value, _ in self.pods.values()} == {self.value}, "not all containers have it"
            self.stored[each.revision] = each.hash, self.value
            self.kept.add(self.value)
            self.wrote()
        for restore in decision.data.restore:
            entries = [one for one in self.policy.status.bad if one.version == restore.version]
            assert entries, "the status does not say it"
            if restore.version == str(self.version):  # else the API server refuses it
                text, value = self.stored[restore.revision]
                assert text == restore.kept
                assert value in self.kept
                assert restore.hash == str(self.value) == entries[0].hash, "over data of another writer"
                self.restores.append((self.value, value))
                self.write(value)
                self.wrote()
        for name in decision.data.forget:
            assert self.stored[name][0] not in [each.kept for each in self.policy.status.revisions]
            del self.stored[name]
            self.wrote()
        return bool(decision.data.keep or decision.data.restore or decision.data.forget)

    def _restart(self, run: RunRecord) -> None:
        """Restart the next container of the run, or end it."""
        (change,) = run.changes
        for name, (_, started) in self.pods.items():
            if change.misses(KEY[1], self.at(started)):
                assert str(self.value) not in [each.hash for each in self.policy.status.bad], "it is known as bad"
                self.restarts.append(self.value)
                self.now += 2
                self.crash(name)
                if self.value >= BAD_FROM:
                    self._end(run, End.FAILED)
                return
        self._end(run, End.DONE)

    def _end(self, run: RunRecord, end: End) -> None:
        status = ended(self.policy, run, Outcome(end), message="", now=self.at(self.now))
        self.policy = replace(self.policy, status=status)
        self.wrote()

    def rest(self) -> None:
        """Let all managers do what they can."""
        for _ in range(200):
            self.now += 1
            if not self.led_look():
                return
        raise AssertionError("it never comes to rest")

    def led_look(self) -> bool:
        """A look, by the next manager if this one is killed in it."""
        try:
            return self.look()
        except KilledError:
            self.killed_after = 0
            return True


STEPS = st.one_of(
    st.tuples(st.just("write"), st.integers(0, 9)),
    st.tuples(st.just("again"), st.just(0)),
    st.tuples(st.just("label"), st.just(0)),
    st.tuples(st.just("delete"), st.just(0)),
    st.tuples(st.just("crash"), st.integers(0, PODS - 1)),
    st.tuples(st.just("look"), st.integers(1, 12)),
    st.tuples(st.just("wait"), st.integers(1, 12)),
    st.tuples(st.just("rest"), st.just(0)),
    st.tuples(st.just("kill"), st.integers(1, 3)),
)


def play(steps: list[tuple[str, int]]) -> RestoreModel:
    world = RestoreModel()
    world.rest()
    for step, number in steps:
        match step:
            case "write":
                world.write(number)
                world.led_look()  # what is changed and taken back while nobody looks is not known
            case "again" if world.policy.status.bad:
                world.write(int(world.policy.status.bad[-1].hash))
                world.led_look()
            case "label":
                world.write(world.value)
            case "delete":
                world.deleted = True
                world.led_look()
            case "crash":
                world.crash(str(number))
            case "look":
                for _ in range(number):
                    world.now += 1
                    world.led_look()
            case "wait":
                world.now += number
            case "rest":
                world.rest()
            case "kill":
                world.killed_after = world.writes + number
    return world


@given(st.lists(STEPS, max_size=20))
@example([("write", 8), ("rest", 0), ("again", 0), ("rest", 0), ("write", 3), ("rest", 0)])
@example([("write", 8), ("look", 9), ("label", 0), ("rest", 0)])
@example([("delete", 0), ("write", 8), ("rest", 0)])
@settings(max_examples=120, deadline=None)
def test_only_kept_data_is_written_back_and_bad_data_restarts_nothing(steps: list[tuple[str, int]]) -> None:
    world = play(steps)
    world.rest()
    bad = [each.hash for each in world.policy.status.bad]
    assert {value for _, value in world.restores} <= world.kept, "it was never good"
    assert all(value < BAD_FROM for value in world.kept)
    assert len(world.restores) == len({value for value, _ in world.restores}), "twice for the same data"
    assert len(world.stored) <= 1
    assert all(each.kept for each in world.policy.status.revisions), "the status still names the data that is kept"
    if world.value < BAD_FROM and str(world.value) not in bad and not world.deleted:
        assert {value for value, _ in world.pods.values()} == {world.value}, "no container keeps other data"
        assert world.state is State.KEPT
    before = len(world.restarts), len(world.restores)
    for _ in range(5):
        world.now += 3600
        world.look()
    assert (len(world.restarts), len(world.restores)) == before, "it has come to rest"


@given(st.integers(0, 6), st.integers(BAD_FROM, 9), st.integers(1, 8))
@settings(max_examples=20, deadline=None)
def test_data_that_is_written_again_restarts_nothing(good: int, bad: int, times: int) -> None:
    world = play([("write", good), ("rest", 0), ("write", bad), ("rest", 0)])
    assert (world.value, world.restores, world.state) == (good, [(bad, good)], State.KEPT)
    assert world.restarts.count(bad) == 1, "one pod at most"
    before = len(world.restarts)
    for _ in range(times):
        world.write(bad)
        world.rest()
        assert world.state is State.BAD
    assert len(world.restarts) == before
    assert world.restores == [(bad, good)]
    world.write((good + 1) % 7)
    world.rest()
    assert world.state is State.KEPT
    assert {value for value, _ in world.pods.values()} == {(good + 1) % 7}


def test_a_manager_that_is_killed_after_any_write_changes_nothing_about_the_end() -> None:
    steps = [("write", 3), ("rest", 0), ("write", 8), ("rest", 0)]
    calm = play(steps)
    assert (calm.value, calm.restores) == (3, [(8, 3)])
    for number in range(1, calm.writes + 1):
        world = RestoreModel(killed_after=number)
        world.rest()
        for value in (3, 8):
            world.write(value)
            world.rest()
        assert (world.value, world.restores, world.state) == (3, [(8, 3)], State.KEPT), number
        assert sorted(value for value, _ in world.pods.values()) == [3] * PODS
        assert len(world.stored) == 1
        assert [(each.hash, each.restored) for each in world.policy.status.bad] == [("8", True)]


def test_data_with_which_the_object_is_created_again_is_restored_like_that_of_an_edit() -> None:
    world = play([("write", 3), ("rest", 0), ("delete", 0), ("look", 3), ("write", 8), ("rest", 0)])
    assert (world.value, world.restores, world.state) == (3, [(8, 3)], State.KEPT)


def test_only_containers_with_the_bad_data_are_restarted_on_the_way_back() -> None:
    world = play([("write", 3), ("rest", 0)])
    starts = {name: started for name, (_, started) in world.pods.items()}
    world.write(8)
    world.rest()
    run = world.policy.status.run
    assert run is not None
    assert (run.back, run.failed) == (True, False)
    moved = [name for name, (_, started) in world.pods.items() if started != starts[name]]
    assert moved == ["0"]
    assert (parse_time(run.since) or START) > START
