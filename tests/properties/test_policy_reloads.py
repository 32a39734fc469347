"""`action: ReloadOrRestart` over interleavings of edits, crashes, nodes that go and come, failures and other leaders.

Nothing shows on a pod that it has reloaded, so this is about what the status remembers. At rest, each container has the
present data, and none is restarted that can reload, while the policy lets it. The world is a model as in
`test_policies`: the manager has one pod reload a look. It forgets all but the status and the requests of its runs, and
these can go, too.
"""

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from hypothesis import example, given, settings
from hypothesis import strategies as st

from crrd.core.config.parts import Part
from crrd.core.config.references import Kind, Reference, Use
from crrd.core.policy.course import ended
from crrd.core.policy.decide import decide
from crrd.core.policy.observed import Data, Observed, Running
from crrd.core.policy.outcome import Outcome
from crrd.core.policy.types import ConfigAction, ConfigChange, Policy, RunRecord, TargetRef
from crrd.core.policy.v1alpha1 import read_policy, write_status
from crrd.core.rollout.phases import End
from tests.support.worlds import BUDGET

SETTLE = 5
START = datetime(2026, 1, 1, tzinfo=UTC)
USE = Reference(Kind.CONFIG_MAP, "cfg", Use.VOLUME)
KEY = ("app", Part(Kind.CONFIG_MAP, "cfg"))
RELOADS = ConfigChange(SETTLE, action=ConfigAction.RELOAD_OR_RESTART)
POLICY = Policy(
    "shop", "web", "u", "1", 1, "2026-01-01T00:00:00Z", BUDGET, TargetRef("apps/v1", "Deployment", "web"),
    config=RELOADS,
)  # fmt: skip
NODES = ("a", "b")


@dataclass
class Pod:
    """One that runs: which data its program has, when it started, and whether it declares a reload."""

    value: int
    started: int
    node: str
    declares: bool = True


class Model:
    """The model. `edits` are all values that the ConfigMap has had, with the second from which on."""

    def __init__(self) -> None:
        self.now = 10
        self.edits = [(0, 0)]
        self.pods = {"web-0": Pod(0, 1, "a"), "web-1": Pod(0, 2, "b")}
        self.made = 2
        self.policy = POLICY
        self.down = set[str]()
        self.done: dict[str, set[str]] = {}  # By run: the pods whose request has succeeded
        self.fails = False  # Whether the next reload fails
        self.acted = 0
        self.restarts = 0

    @property
    def value(self) -> int:
        return self.edits[-1][1]

    def read(self, delay: int) -> int:
        """What a container gets that starts now, and whose kubelet knows the data of `delay` seconds ago."""
        return [value for since, value in self.edits if since <= self.now - delay or not since][-1]

    def edit(self, value: int) -> None:
        if self.policy.status.config[0].hash != str(self.value):
            self.look()  # what is changed and taken back while nobody looks is not known
        if value != self.value:
            self.now += self.edits[-1][0] == self.now
            self.edits.append((self.now, value))

    def set_action(self, action: ConfigAction) -> None:
        changed = replace(RELOADS, action=action)
        self.policy = replace(self.policy, config=changed, generation=self.policy.generation + 1)

    def look(self, *, dies: bool = False) -> bool:
        """One look of the leader, who may die after the status is written. Return whether something is left to do."""
        running = tuple(
            Running(
                name, "app", at(each.started), (USE,), True, 1.0, each.node, undeclared="" if each.declares else "x"
            )
            for name, each in self.pods.items()
        )
        found = Observed(running, {KEY: Data(str(self.value), at(self.edits[-1][0]))})
        found = replace(found, down=dict.fromkeys(self.down, "down"))
        last = self.policy.status.run
        if last is not None and last.reload and last.failed:
            found = replace(found, reloaded={last.name: frozenset(self.done.get(last.name, ()))})
        decision = decide(self.policy, found, at(self.now))
        stored = read_policy({"status": write_status(decision.status)}).status
        self.policy = replace(self.policy, status=stored)
        if decision.run is None:
            return decision.wake_at is not None
        if not dies:
            self.carry_on(decision.run, decision.run_only)
        return True

    def carry_on(self, run: RunRecord, only: frozenset[str]) -> None:
        done, left = self.done.setdefault(run.name, set()), list[str]()
        for name, each in self.pods.items():
            held = at(each.started)
            if (
                name in done
                or (only and name not in only)
                or not any(change.misses(KEY[1], held) for change in run.changes)
            ):
                continue
            if each.node in self.down or (run.reload and not each.declares):
                left.append(name)
                continue
            self.now += 2
            if self.fails:
                self.fails = False
                self.end(run, failed=True)
                return
            if run.reload:
                each.value = self.value
            else:
                each.value, each.started = self.value, self.now
                self.restarts += 1
            done.add(name)
            self.acted += 1
            return
        self.end(run, left=left)

    def end(self, run: RunRecord, *, failed: bool = False, left: list[str] | None = None) -> None:
        how = End.FAILED if failed else End.PUT_OFF if left else End.DONE
        status = ended(self.policy, run, Outcome(how, tuple(left or ())), message="", now=at(self.now))
        self.policy = replace(self.policy, status=status)


def at(seconds: int) -> datetime:
    return START + timedelta(seconds=seconds)


STEPS = st.one_of(
    st.tuples(st.just("edit"), st.integers(0, 2)),
    st.tuples(st.just("edit"), st.integers(0, 2)),
    st.tuples(st.just("wait"), st.integers(1, 12)),
    *[st.tuples(st.just("look"), st.just(0))] * 3,
    st.tuples(st.just("crash"), st.integers(0, SETTLE - 1)),
    st.tuples(st.just("pod"), st.integers(0, SETTLE - 1)),
    st.tuples(st.just("delete"), st.just(0)),
    st.tuples(st.just("node"), st.integers(0, 1)),
    st.tuples(st.just("fail"), st.just(0)),
    st.tuples(st.just("die"), st.just(0)),
    st.tuples(st.just("forget"), st.just(0)),
)
OTHERS = st.tuples(st.sampled_from(["action", "declare"]), st.integers(0, 1))


def happen(world: Model, step: str, number: int) -> None:
    """Something happens to pods or nodes."""
    names = sorted(world.pods)
    match step:
        case "crash" if names:
            first = world.pods[names[0]]
            first.value, first.started = world.read(number), world.now
        case "pod":
            world.pods[f"web-{world.made}"] = Pod(world.read(number), world.now, NODES[number % 2])
            world.made += 1
        case "delete" if names:
            del world.pods[names[-1]]
        case "declare" if names:
            world.pods[names[-1]].declares = bool(number)
        case "node":
            world.down ^= {NODES[number]}


def play(steps: list[tuple[str, int]]) -> Model:
    """The world after these steps, with a first look before them."""
    world = Model()
    world.look()
    for step, number in steps:
        match step:
            case "edit":
                world.edit(number)
            case "wait":
                world.now += number
            case "look":
                world.look()
            case "die":
                world.look(dies=True)
            case "fail":
                world.fails = True
            case "forget":
                world.done.clear()
            case "action":
                world.set_action([*ConfigAction][number])
            case _:
                happen(world, step, number)
    return world


def rest(world: Model) -> None:
    """All goes well, and the owner has looked at a run that has failed."""
    world.down.clear()
    world.fails = False
    assert world.policy.config is not None
    world.set_action(world.policy.config.action)
    for _ in range(200):
        world.now += SETTLE + 1
        if not world.look():
            return
    raise AssertionError("it never comes to rest")


def check(world: Model) -> None:
    rest(world)
    assert {each.value for each in world.pods.values()} <= {world.value}
    before = world.acted
    for _ in range(5):
        world.now += 3600
        world.look()
    assert world.acted == before, "once it has come to rest, nothing is done"


CHANGED = [("edit", 1), ("wait", 6), ("look", 0)]  # One of two pods has reloaded


@given(st.lists(STEPS, max_size=30))
@example([*CHANGED, ("edit", 0)])  # taken back, and one has the data from in between
@example(
    [("node", 1), *CHANGED, *[("look", 0)] * 3, ("edit", 2), ("look", 0), ("delete", 0)]
)  # changed again, after a pod was left
@example([*CHANGED, ("fail", 0), ("look", 0), ("edit", 0)])
@settings(max_examples=120, deadline=None)
def test_all_have_the_present_data_and_none_is_restarted(steps: list[tuple[str, int]]) -> None:
    world = play(steps)
    check(world)
    assert not world.restarts


@given(st.lists(st.one_of(STEPS, OTHERS), max_size=30))
@example([*CHANGED, ("action", 0), ("edit", 0)])
@example([("node", 1), *CHANGED, *[("look", 0)] * 3, ("declare", 0)])  # what was left cannot reload any more
@settings(max_examples=120, deadline=None)
def test_all_have_the_present_data_whoever_can_reload(steps: list[tuple[str, int]]) -> None:
    check(play(steps))


@given(st.lists(STEPS.filter(lambda step: step[0] != "edit"), max_size=30))
@settings(max_examples=40, deadline=None)
def test_without_an_edit_nothing_is_done(steps: list[tuple[str, int]]) -> None:
    world = play(steps)
    rest(world)
    assert world.acted == 0


@given(st.integers(1, 5), st.lists(st.sampled_from(["look", "wait"]), max_size=10))
@settings(max_examples=20, deadline=None)
def test_while_a_node_is_down_no_pod_reloads_twice_for_a_change(value: int, steps: list[str]) -> None:
    world = play([("node", 1), ("edit", value), ("look", 0), ("wait", 6), *[("look", 0)] * 4])
    assert world.acted == 1
    for step in steps:
        world.done.clear()
        world.now += 3600 if step == "wait" else 0
        world.look()
    assert world.acted == 1
    world.done.clear()
    world.down.clear()
    for _ in range(4):
        world.look()
    assert world.acted == 2, "only the pod that was left"
