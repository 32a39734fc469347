"""Policies over interleavings of edits, restarts, leader changes, and pods that come and go.

No container is restarted without a change that it could not have seen, none keeps old data for ever. The world is a
model in whole seconds: one ConfigMap, containers that read it when they start (late by less than `settle`, as kubelet
may), and a manager that looks when it leads, restarts one container a look, and forgets all but the status.
"""

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from crrd.core.config.parts import Part
from crrd.core.config.references import Kind, Reference, Use
from crrd.core.policy.course import ended
from crrd.core.policy.decide import decide
from crrd.core.policy.observed import Data, Observed, Running
from crrd.core.policy.outcome import Outcome
from crrd.core.policy.types import ConfigChange, Policy, TargetRef
from crrd.core.rollout.phases import End
from tests.support.worlds import BUDGET

SETTLE = 5
START = datetime(2026, 1, 1, tzinfo=UTC)
USE = Reference(Kind.CONFIG_MAP, "cfg", Use.ENV_FROM)
KEY = ("app", Part(Kind.CONFIG_MAP, "cfg", ("data.*",)))
POLICY = Policy(
    "shop", "web", "u", "1", 1, "2026-01-01T00:00:00Z", BUDGET, TargetRef("apps/v1", "Deployment", "web"),
    config=ConfigChange(SETTLE),
)  # fmt: skip


@dataclass
class Container:
    """One that runs: which data it has, and when it started."""

    value: int
    started: int


class PolicyModel:
    """The model. `edits` are all values that the ConfigMap has had, with the second from which on."""

    def __init__(self) -> None:
        self.now = 10
        self.edits = [(0, 0)]
        self.noted: int | None = 0
        """When its writer last wrote, be it data or not (managedFields); None after a key was removed."""
        self.pods = {"web-0": Container(0, 1), "web-1": Container(0, 2)}
        self.policy = POLICY
        self.restarts = 0
        self.made = 2

    @property
    def value(self) -> int:
        return self.edits[-1][1]

    def read(self, delay: int) -> Container:
        """A container that starts now and sees the data of `delay` seconds ago."""
        observed = [value for since, value in self.edits if since <= self.now - delay]
        return Container(observed[-1] if observed else 0, self.now)

    def edit(self, value: int) -> None:
        if self.policy.status.config[0].hash == str(value):
            self.look()  # what is changed and taken back while nobody looks is not known
        if value != self.value:
            self.now += self.edits[-1][0] == self.now  # the second edit of one second counts from the next look
            self.edits.append((self.now, value))
            self.noted = self.now

    def look(self) -> bool:
        """One look of whoever leads; returns whether something is left to do."""
        running = tuple(Running(name, "app", at(each.started), (USE,)) for name, each in self.pods.items())
        data = {KEY: Data(str(self.value), None if self.noted is None else at(self.noted))}
        decision = decide(self.policy, Observed(running, data), at(self.now))
        self.policy = replace(self.policy, status=decision.status)
        if (run := decision.run) is None:
            return decision.wake_at is not None
        since = datetime.fromisoformat(run.since)
        for name, each in self.pods.items():
            if at(each.started) <= since:
                last_change = self.edits[-1][0]
                assert len(self.edits) > 1, "nothing has ever changed"
                assert each.value != self.value or each.started <= last_change + SETTLE, "it has the new data"
                self.now += 2
                self.pods[name] = self.read(0)
                self.restarts += 1
                return True
        self.policy = replace(
            self.policy, status=ended(self.policy, run, Outcome(End.DONE), message="", now=at(self.now))
        )
        return True


def at(seconds: int) -> datetime:
    return START + timedelta(seconds=seconds)


STEPS = st.one_of(
    st.tuples(st.just("edit"), st.integers(0, 2)),
    st.tuples(st.just("remove"), st.integers(0, 2)),
    st.tuples(st.just("label"), st.just(0)),
    st.tuples(st.just("wait"), st.integers(1, 12)),
    st.tuples(st.just("look"), st.just(0)),
    st.tuples(st.just("look"), st.just(0)),
    st.tuples(st.just("crash"), st.integers(0, SETTLE - 1)),
    st.tuples(st.just("pod"), st.integers(0, SETTLE - 1)),
    st.tuples(st.just("delete"), st.just(0)),
)


def play(steps: list[tuple[str, int]]) -> PolicyModel:
    """The world after these steps, with a first look before them."""
    world = PolicyModel()
    world.look()
    for step, number in steps:
        match step:
            case "edit":
                world.edit(number)
            case "remove" if number != world.value:
                world.edit(number)
                world.noted = None
                world.look()
            case "label":
                world.look()  # else the time of an edit before it is too late, which is known, and told
                world.noted = world.now
            case "wait":
                world.now += number
            case "look":
                world.look()
            case "crash" if world.pods:
                world.pods[min(world.pods)] = world.read(number)
            case "pod":
                world.pods[f"web-{world.made}"] = world.read(number)
                world.made += 1
            case "delete" if world.pods:
                del world.pods[max(world.pods)]
    return world


@given(st.lists(STEPS, max_size=30))
@settings(max_examples=400, deadline=None)
def test_no_restart_without_a_change_and_no_old_data_for_ever(steps: list[tuple[str, int]]) -> None:
    world = play(steps)
    for _ in range(200):
        world.now += SETTLE + 1
        if not world.look():
            break
    else:
        raise AssertionError("it never comes to rest")
    assert {each.value for each in world.pods.values()} <= {world.value}
    before = world.restarts
    for _ in range(5):
        world.now += 3600
        world.look()
    assert world.restarts == before, "once it has come to rest, nothing is restarted"


@given(st.lists(STEPS.filter(lambda step: step[0] not in ("edit", "remove")), max_size=30))
@settings(max_examples=100, deadline=None)
def test_without_an_edit_nothing_is_restarted(steps: list[tuple[str, int]]) -> None:
    assert play(steps).restarts == 0
