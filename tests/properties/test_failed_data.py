"""Two policies over two objects: data with which a run has failed reaches no further pod, and good data arrives.

`web` has two containers, each with its own object, and `api` has one container that uses both.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

from hypothesis import given, settings
from hypothesis import strategies as st

from crrd.core.config.parts import Part
from crrd.core.config.references import Kind, Reference, Use
from crrd.core.policy.course import ended
from crrd.core.policy.decide import decide
from crrd.core.policy.failures import lasting
from crrd.core.policy.observed import Data, Observed, Running, UseKey, used_parts
from crrd.core.policy.outcome import Outcome
from crrd.core.policy.types import ConfigChange, Judge, Policy, RunRecord
from crrd.core.policy.v1alpha1 import read_policy, write_status
from crrd.core.rollout.phases import End
from crrd.manager.policies.look import Memory
from crrd.manager.policies.peers import Peers
from tests.properties.test_policies import POLICY, at

EXAMPLES = 40
USES = {name: Reference(Kind.CONFIG_MAP, name, Use.ENV_FROM) for name in ("cfg", "other")}
PARTS = {name: Part(Kind.CONFIG_MAP, name, ("data.*",)) for name in USES}
SHAPES: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "web": {"app": ("cfg",), "side": ("other",)},
    "api": {"app": ("cfg", "other")},
}
NAMES = tuple(SHAPES)
Steps = list[tuple[str, int]]


@dataclass(slots=True)
class Box:
    """A container of a pod."""

    edits: dict[str, int]  # By object: the edit that it has read
    started: int
    broken: bool = False  # By something else than its data


@dataclass(slots=True)
class Failure:
    """A run has failed with an edit."""

    edit: int
    pods: set[str]  # Those that had read it by then
    policy: str
    together: dict[str, int]  # By object: all edits that the run has brought
    overruled: set[str] = field(default_factory=set)  # Policies that were edited since


class TwoPolicies:
    """The policies and their pods. Its clock goes on by itself only while a run restarts pods."""

    def __init__(self, settles: tuple[int, int], gap: int, *, halts: bool) -> None:
        self.now, self.newest, self.made, self.halts, self.breaks = 1, 0, 2, halts, False
        self.objects = dict.fromkeys(USES, (0, 0))  # The edit, and when it was written
        self.history: list[tuple[str, int]] = []
        self.bad: set[int] = set()
        self.blamed: set[int] = set()  # Edits with which a run has failed because of something else
        self.removed = set[str]()  # Containers that the templates do not have any more
        self.pods = {name: {f"{name}-{number}": self._boxes(name) for number in range(2)} for name in NAMES}
        own: dict[str, Any] = {"judge": Judge(5) if halts else None}
        own["budget"] = replace(POLICY.budget, min_interval=gap)
        self.policies = {
            name: replace(POLICY, name=name, uid=name, config=ConfigChange(settle), **own)
            for name, settle in zip(NAMES, settles, strict=True)
        }
        self.active: dict[str, Any] = {}
        self.memories: dict[str, Memory] = {}
        self.failures: list[Failure] = []
        self.log: list[str] = []
        runs = SimpleNamespace(active=lambda key: self.active.get(key.split("/")[1]))
        watches = SimpleNamespace(version=lambda _, __, name: str(self.objects[name][0]))
        self.peers = Peers(self.memories, cast("Any", runs), cast("Any", watches), lambda _: None)

    def say(self, what: str) -> None:
        self.log.append(f"{self.now} {what}")

    def story(self, what: str) -> str:
        return "\n".join([f"{self.now} {what}", *self.log])

    def _boxes(self, policy: str) -> dict[str, Box]:
        return {name: self._read(uses) for name, uses in SHAPES[policy].items() if name not in self.removed}

    def _read(self, uses: Iterable[str]) -> Box:
        return Box({name: self.objects[name][0] for name in uses}, self.now)

    def ready(self, box: Box) -> bool:
        return not box.broken and not self.bad.intersection(box.edits.values())

    # The manager.

    def look(self, name: str) -> None:
        """One look at a policy, and the next step of its run."""
        policy, shape = self.policies[name], SHAPES[name]
        running = tuple(
            Running(pod, each, at(box.started), tuple(USES[use] for use in shape[each]), ready=self.ready(box))
            for pod, boxes in self.pods[name].items()
            for each, box in boxes.items()
        )
        data: dict[UseKey, Data] = {}
        for key in {*used_parts(running), *(each.key for each in lasting(policy, running))}:
            edit, written = self.objects[key[1].name]
            data[key] = Data(str(edit), at(written), "uid", at(0), version=str(edit))
        memory = self.memories.setdefault(policy.key, Memory())
        memory.seen = cast("Any", {key: (each.version,) for key, each in data.items()})
        others = [each for each in self.policies.values() if each.name != name]
        found = Observed(running, data, peers=self.peers.of(others))
        decision = decide(policy, found, at(self.now))
        self.peers.claim(policy, found, decision.claims, others)
        assert read_policy({"status": write_status(decision.status)}).status == decision.status
        self.policies[name] = replace(policy, status=decision.status, conditions=decision.conditions)
        run, active = decision.run, self.active.get(name)
        if run is None or (active is not None and active.of != (run.name, policy.generation)):
            self.active.pop(name, None)
        if run is not None:
            of = (run.name, policy.generation)
            self.active.setdefault(name, SimpleNamespace(of=of, past_first_step=False))
            self._carry_on(name, run)

    def _carry_on(self, name: str, run: RunRecord) -> None:
        """Restart the next pod of a run, or end it."""
        parts = {each.part for each in run.changes}
        todo: dict[str, list[str]] = {}
        for pod, boxes in self.pods[name].items():
            for each, box in boxes.items():
                concerned = not parts or any(PARTS[use] in parts for use in SHAPES[name][each])
                old = at(box.started).strftime("%Y-%m-%dT%H:%M:%SZ") <= run.since
                if each in run.containers and concerned and old:
                    todo.setdefault(pod, []).append(each)
        if not todo:
            self._end(name, run)
            return
        pod = min(todo, key=lambda pod: all(self.ready(self.pods[name][pod][each]) for each in todo[pod]))
        self.now += 1
        restarted = [self._restart(name, pod, each) for each in todo[pod]]
        if all(map(self.ready, restarted)):
            self.active[name].past_first_step = True
            return
        together = {use: self.objects[use][0] for use in USES if PARTS[use] in parts}
        there = [(pod, box) for pods in self.pods.values() for pod, found in pods.items() for box in found.values()]
        for use, edit in ((use, edit) for box in restarted for use, edit in box.edits.items() if PARTS[use] in parts):
            assert edit == self.objects[use][0]
            self.blamed |= {edit} if any(box.broken for box in restarted) else set()
            had = {pod for pod, box in there if edit in box.edits.values()}
            self.failures.append(Failure(edit, had, name, together))
        self._end(name, run, End.HALTED if self.halts else End.FAILED)

    def _restart(self, name: str, pod: str, container: str) -> Box:
        before, uses = self.pods[name][pod][container], SHAPES[name][container]
        box = self.pods[name][pod][container] = self._read(uses)
        what = f"{name} restarts {pod}/{container} with {box.edits}"
        changed = max(self.objects[use][1] for use in uses)
        has_it = before.edits == box.edits and before.started > changed + 11 and self.ready(before)
        assert not has_it, self.story(f"{what}, and it has them already")
        for each in self.failures:
            further = each.edit in box.edits.values() and pod not in each.pods and name not in each.overruled
            corrected = any(self.objects[use][0] != edit for use, edit in each.together.items())
            one_more_try = max(box.edits.values()) > each.edit or (corrected and name == each.policy)
            assert not further or one_more_try, self.story(f"{what}, and a run has failed with {each.edit}")
        box.broken = self.breaks
        self.say(what)
        return box

    def _end(self, name: str, run: RunRecord, end: End = End.DONE) -> None:
        policy = self.policies[name]
        status = ended(policy, run, Outcome(end), message="m", now=at(self.now))
        self.policies[name] = replace(policy, status=status)
        self.active.pop(name, None)
        self.say(f"{name}: {run.name} ends: {end}")

    # What happens.

    def step(self, what: str, number: int) -> None:
        name, other = NAMES[number % 2], tuple(USES)[number % 2]
        self.say(f"{what} {number}")
        match what:
            case "good" | "bad":
                self.edit(other, good=what == "good")
            case "look":
                self.look(name)
            case "both":
                for each in NAMES:
                    self.look(each)
            case "wait":
                self.now += number
            case "leader":
                self.memories.clear()
                self.active.clear()
            case "owner" | "settle":
                self._owner(name, None if what == "owner" else ConfigChange(2 + number))
            case "crash" | "new":
                self._starts(name, number // 2 % 2, new=what == "new")
            case "back":
                self._back(other)
            case "scale" | "remove":
                self._scale(name, gone=what == "scale" and bool(self.pods[name]), removes=what == "remove")
            case "breaks":
                self.breaks = bool(number % 2)

    def edit(self, name: str, *, good: bool) -> None:
        """Write data that nobody has written before."""
        self.now += self.objects[name][1] == self.now
        self.newest += 1
        self.objects[name] = (self.newest, self.now)
        self.history.append((name, self.newest))
        self.bad |= set() if good else {self.newest}

    def _back(self, name: str) -> None:
        """Write earlier data."""
        earlier = [edit for of, edit in self.history if of == name and edit != self.objects[name][0]] or [0]
        self.now += 1
        self.objects[name] = (earlier[-1], self.now)
        self.failures = [each for each in self.failures if each.edit != earlier[-1]]

    def _owner(self, name: str, config: ConfigChange | None) -> None:
        """Edit a policy."""
        policy: Policy = self.policies[name]
        self.policies[name] = replace(policy, generation=policy.generation + 1, config=config or policy.config)
        for each in self.failures:
            each.overruled.add(name)

    def _starts(self, name: str, which: int, *, new: bool) -> None:
        """A pod crashes, or another one takes its place."""
        for pod in sorted(self.pods[name])[which : which + 1]:
            if new:
                del self.pods[name][pod]
                self.made += 1
            self.pods[name][f"{name}-{self.made - 1}" if new else pod] = self._boxes(name)

    def _scale(self, name: str, *, gone: bool, removes: bool) -> None:
        """All pods of a policy are gone, or new. The template of web `removes` a container, or has it again.

        That counts as a repair of its pods, unless a judgement was no.
        """
        self.now += 1
        if removes and not self.halts:
            self.failures = [each for each in self.failures if each.policy != "web"]
        self.removed ^= {"side"} if removes else set()
        new = (f"{name}-{self.made + number}" for number in range(0 if gone else 2))
        self.pods[name] = {each: self._boxes(name) for each in new}
        self.made += 2

    def finish(self) -> None:
        for _ in range(60):
            self.now += 7
            self.step("both", 0)


_BIT, _FEW = st.integers(0, 1), st.integers(0, 3)
STEPS = st.lists(
    st.one_of(
        *(
            st.tuples(st.just(name), _BIT)
            for name in ("good", "bad", "look", "both", "both", "leader", "owner", "back")
        ),
        *(st.tuples(st.just(name), _FEW) for name in ("crash", "new", "breaks", "scale", "remove")),
        st.tuples(st.just("wait"), st.integers(1, 12)),
        st.tuples(st.just("settle"), st.integers(0, 9)),
    ),
    max_size=40,
)
SETTLES = st.sampled_from([(5, 5), (3, 9), (9, 3)])


def played(steps: Steps, settles: tuple[int, int], gap: int, *, halts: bool) -> TwoPolicies:
    world = TwoPolicies(settles, gap, halts=halts)
    world.now = 10
    world.step("both", 0)
    for what, number in steps:
        world.step(what, number)
    return world


@settings(max_examples=EXAMPLES)
@given(STEPS, SETTLES, st.sampled_from([0, 30]), st.booleans())
def test_it_reaches_no_further_pod(steps: Steps, settles: tuple[int, int], gap: int, halts: bool) -> None:
    played(steps, settles, gap, halts=halts).finish()


@settings(max_examples=EXAMPLES)
@given(STEPS, SETTLES, st.sampled_from([0, 30]), st.booleans(), st.sampled_from([*USES]))
def test_good_data_reaches_all(steps: Steps, settles: tuple[int, int], gap: int, halts: bool, corrected: str) -> None:
    """In the end, somebody corrects what is bad, and one object in any case."""
    world = played(steps, settles, gap, halts=halts)
    world.breaks = False
    for name in USES:
        world.now += 3
        if name == corrected or world.objects[name][0] in world.bad | world.blamed:
            world.edit(name, good=True)
    world.finish()
    for name, pods in world.pods.items():
        policy = world.policies[name]
        why = next(str(each["message"]) for each in policy.conditions if each["type"] == "Ready")
        for pod, boxes in pods.items():
            for box in boxes.values():
                newest = {use: world.objects[use][0] for use in box.edits}
                assert box.edits == newest, world.story(f"{pod} has {box.edits}: {why}")
                assert world.ready(box)
        assert "waiting for policy" not in why, world.story(why)
        assert policy.status.failed == (), world.story("a failure is still in the status")
