"""Policies over several objects and workloads: edits, deletions and re-creations in any order.

As in test_policies, but each container has the data of the objects that it uses itself, all objects are optional, and
the workloads of one selector use one container name. An object may be immutable. Then kubelet (there is one node) keeps
what it has read until no pod uses the object any more.
"""

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from crrd.core.config.kept import ObjectUses, UserPod
from crrd.core.config.parts import Part, read_change
from crrd.core.config.references import Kind, Reference, Use
from crrd.core.policy.decide import decide
from crrd.core.policy.observed import Data, Observed, Running
from crrd.core.policy.problems import PolicyReason
from crrd.core.policy.runs import ended
from crrd.core.policy.types import ConfigChange, Policy

SETTLE = 5
START = datetime(2026, 1, 1, tzinfo=UTC)
NAMES = ("a", "b")
USES = {name: Reference(Kind.CONFIG_MAP, name, Use.ENV_FROM, optional=True) for name in NAMES}
WORKLOADS = {"web": ("a",), "api": ("b",), "both": ("a", "b")}
POLICY = Policy("shop", "web", "u", "1", 1, "2026-01-01T00:00:00Z", selector="app", config=ConfigChange(SETTLE))


def at(seconds: int) -> datetime:
    return START + timedelta(seconds=seconds)


@dataclass
class Object:
    """One ConfigMap: its values (None: deleted), each with the second from which on."""

    history: list[tuple[int, str | None]] = field(default_factory=lambda: [(0, "0")])
    uid: int = 0
    created: int = 0
    immutable: bool = False

    @property
    def value(self) -> str | None:
        return self.history[-1][1]

    @property
    def changed(self) -> int:
        return self.history[-1][0]

    def data(self) -> Data:
        if self.value is None:
            return Data("none", None)
        return Data(self.value, at(self.changed), str(self.uid), at(self.created), self.immutable)


@dataclass
class Pod:
    """A pod with one container."""

    uses: tuple[str, ...]
    created: int
    started: int
    values: dict[str, str | None]


class World:
    """The model, with one node."""

    def __init__(self) -> None:
        self.now = 10
        self.objects = {name: Object() for name in NAMES}
        self.kept: dict[str, str | None] = {}
        """What kubelet keeps of immutable objects."""
        self.pods: dict[str, Pod] = {}
        self.uses = ObjectUses()
        self.policy, self.restarts, self.reason = POLICY, 0, ""
        for name in WORKLOADS:
            self.create(name)

    def read(self, uses: tuple[str, ...]) -> dict[str, str | None]:
        found = {}
        for name in uses:
            obj = self.objects[name]
            found[name] = self.kept.get(name, obj.value)
            if obj.immutable and obj.value is not None:
                self.kept.setdefault(name, obj.value)
        return found

    def create(self, workload: str) -> None:
        uses = WORKLOADS[workload]
        name = f"{workload}-{len(self.pods)}-{self.now}"
        self.pods[name] = Pod(uses, self.now, self.now, self.read(uses))
        self.uses.change(name, None, self.user(name))

    def user(self, name: str) -> UserPod:
        pod = self.pods[name]
        return UserPod(
            "node", frozenset((Kind.CONFIG_MAP, each) for each in pod.uses), at(pod.created), at(pod.created)
        )

    def delete(self) -> None:
        self.uses.change(max(self.pods), self.user(max(self.pods)), None)
        del self.pods[max(self.pods)]
        for name in NAMES:
            if not any(name in pod.uses for pod in self.pods.values()):
                self.kept.pop(name, None)

    def change(self, name: str, value: str | None, *, immutable: bool = False) -> None:
        obj = self.objects[name]
        if obj.value == value and obj.immutable == immutable:
            return
        self.look()  # what is changed and reverted while nobody looks is not known
        self.now += 1
        if value is not None and (obj.immutable or obj.value is None):
            obj.uid, obj.created = obj.uid + 1, self.now  # it was deleted and created again
        if obj.value != value:
            obj.history.append((self.now, value))
        obj.immutable = immutable and value is not None
        if obj.immutable and any(name in pod.uses for pod in self.pods.values()):
            self.kept.setdefault(name, value)  # its watch ends with this version
        self.look()

    def observed(self) -> Observed:
        pods = self.pods.items()
        running = tuple(
            Running(name, "app", at(pod.started), tuple(USES[each] for each in pod.uses)) for name, pod in pods
        )
        used = {each for pod in self.pods.values() for each in pod.uses}
        data = {("app", Part(Kind.CONFIG_MAP, name, ("data.*",))): self.objects[name].data() for name in sorted(used)}
        uses = {(Kind.CONFIG_MAP, name): self.uses.of((Kind.CONFIG_MAP, name)) for name in used}
        return Observed(running, data, uses, names=frozenset({"app"} if running else ()))

    def look(self) -> bool:
        """One look of whoever leads; returns whether something is left to do."""
        before, decision = self.policy.status.run, decide(self.policy, self.observed(), at(self.now))
        self.policy = replace(self.policy, status=decision.status, conditions=decision.conditions)
        self.reason = str(decision.conditions[0]["reason"])
        if (run := decision.run) is None:
            return decision.wake_at is not None
        if before is None or before.name != run.name:
            used = {name for pod in self.pods.values() for name in pod.uses} - self.kept.keys()
            changed = [self.objects[name].changed for name in used if len(self.objects[name].history) > 1]
            assert all(each + SETTLE <= self.now for each in changed), "it does not wait for the last change"
        changes = [change for change in map(read_change, run.objects) if change is not None]
        for pod in self.pods.values():
            parts = [Part(Kind.CONFIG_MAP, name, ("data.*",)) for name in pod.uses]
            if any(change.misses(part, at(pod.started)) for change in changes for part in parts):
                could_see = [self.objects[name].changed for name in pod.uses if len(self.objects[name].history) > 1]
                assert any(pod.started <= changed + SETTLE for changed in could_see), "nothing that it uses has changed"
                self.now += 2
                pod.started, pod.values = self.now, self.read(pod.uses)
                self.restarts += 1
                return True
        self.policy = replace(self.policy, status=ended(self.policy, run, failed=False, message="", now=at(self.now)))
        return True


STEPS = st.one_of(
    st.tuples(st.just("edit"), st.sampled_from(NAMES), st.integers(0, 2)),
    st.tuples(st.just("edit"), st.sampled_from(NAMES), st.integers(0, 2)),
    st.tuples(st.just("delete object"), st.sampled_from(NAMES), st.just(0)),
    st.tuples(st.just("wait"), st.just(""), st.integers(1, 12)),
    st.tuples(st.just("look"), st.just(""), st.just(0)),
    st.tuples(st.just("create"), st.sampled_from(sorted(WORKLOADS)), st.just(0)),
    st.tuples(st.just("delete"), st.just(""), st.just(0)),
)
FREEZE = st.tuples(st.just("freeze"), st.sampled_from(NAMES), st.integers(0, 2))


def play(steps: list[tuple[str, str, int]]) -> World:
    world = World()
    world.look()
    for step, name, number in steps:
        match step:
            case "edit":
                world.change(name, str(number))
            case "freeze":
                world.change(name, str(number), immutable=True)
            case "delete object":
                world.change(name, None)
            case "wait":
                world.now += number
            case "look":
                world.look()
            case "create":
                world.now += 1
                world.create(name)
            case "delete" if world.pods:
                world.delete()
    for _ in range(200):
        world.now += SETTLE + 1
        if not world.look():
            return world
    raise AssertionError("it never comes to rest")


@given(st.lists(STEPS, max_size=25))
@settings(max_examples=300, deadline=None)
def test_each_container_ends_with_the_data_that_it_uses(steps: list[tuple[str, str, int]]) -> None:
    world = play(steps)
    for pod in world.pods.values():
        assert pod.values == {name: world.objects[name].value for name in pod.uses}
    before = world.restarts
    for _ in range(5):
        world.now += 3600
        world.look()
    assert world.restarts == before, "once it has come to rest, nothing is restarted"


@given(st.lists(st.one_of(STEPS, FREEZE), max_size=25))
@settings(max_examples=300, deadline=None)
def test_old_data_that_kubelet_keeps_is_shown(steps: list[tuple[str, str, int]]) -> None:
    world = play(steps)
    stale = [pod for pod in world.pods.values() if pod.values != {each: world.objects[each].value for each in pod.uses}]
    if stale:
        assert world.reason == PolicyReason.IMMUTABLE
