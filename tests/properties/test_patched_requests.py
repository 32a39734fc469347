"""Requests that the manager carries out by patches, while everything happens in between.

No container is restarted twice for one request, none gets another image than the one that runs, and each request ends.
The manager sees pods and requests of an earlier moment, and is killed after any write. What is checked is the model's
own record.
"""

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TypeVar

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from crrd.core.api.phases import check_move
from crrd.core.api.time import parse_time
from crrd.core.api.types import (
    FINALIZER,
    FailurePolicy,
    Pin,
    Request,
    RequestedContainer,
    RequestPhase,
    StatePhase,
    Strategy,
)
from crrd.core.lifecycle import steps as lc
from crrd.core.patching.steps import PatchPod, Turn, next_step
from crrd.core.patching.view import Seen, View
from crrd.core.recreate.decide import serving_order
from crrd.core.rollout.patch.kind import unfit
from crrd.core.rollout.patch.operations import give_back, restart
from crrd.core.rollout.patched import is_due
from tests.support.rollouts import BEFORE, run
from tests.support.spelled import CONTAINERS, SpelledPods, Stored, digest_of, image_of, status_of

Test = TypeVar("Test", bound=Callable[..., None])
EXAMPLES = int(os.environ.get("PATCH_EXAMPLES", "150"))
UID, DEADLINE = "uid-1", 600
STRATEGIES = (
    Strategy(),
    Strategy(ordered=True),
    Strategy(FailurePolicy.IGNORE),
    Strategy(FailurePolicy.IGNORE, ordered=True, min_started_seconds=4),
)


@dataclass
class Manager:
    """What a manager knows: the pod and the requests, maybe of an earlier moment."""

    pod: Stored | None = None
    requests: dict[str, Request] = field(default_factory=dict)
    seen: dict[str, Seen] = field(default_factory=dict)


@dataclass(kw_only=True)
class Model(SpelledPods):
    """One pod, its requests, and two managers of which each may think that it is the leader."""

    requests: dict[str, Request] = field(default_factory=dict)
    managers: list[Manager] = field(default_factory=lambda: [Manager(), Manager()])
    spelled: Counter[tuple[str, str]] = field(default_factory=Counter)  # By request (UID) and container
    versions: int = 1

    def __post_init__(self) -> None:
        self.add(BEFORE)
        for each in range(2):
            self.looks(each)

    @property
    def seconds(self) -> float:
        return self.now.timestamp()

    def asks(self, which: int) -> None:
        """A user creates a request. Admission records the instances."""
        if len(self.requests) == 3:
            return
        names = (CONTAINERS, ("app",), ("log",))[which % 3]
        pod = self.pods[UID].member.pod
        pins = {name: Pin(pod.containers[name].container_id, pod.containers[name].restart_count) for name in names}
        containers = tuple(RequestedContainer(name, pin) for name, pin in pins.items())
        uid = f"r{len(self.requests)}"
        self.put(
            Request(
                *("default", uid, uid, "", self.time, "web-1", UID, "node-a", containers),
                strategy=STRATEGIES[which % len(STRATEGIES)],
                deadline_seconds=DEADLINE,
            )
        )

    def put(self, request: Request) -> Request:
        self.versions += 1
        found = self.requests[request.uid] = replace(request, resource_version=str(self.versions))
        return found

    # The managers

    def looks(self, which: int) -> None:
        """All that a manager knows catches up."""
        known = self.managers[which % 2]
        known.pod, known.requests = self.pods.get(UID), dict(self.requests)

    def is_killed(self, which: int) -> None:
        self.managers[which % 2] = Manager()
        self.looks(which)

    def writes(self, which: int) -> bool:
        """A manager carries out the next step of the first request that needs one. Return whether there was one."""
        known = self.managers[which % 2]
        live = sorted((each for each in known.requests.values() if each.live), key=serving_order)
        for request in list(known.requests.values()):
            if known.pod is not None and self._writes(known, request, first=request in live[:1]):
                return True
        return False

    def _writes(self, known: Manager, request: Request, *, first: bool) -> bool:
        assert known.pod is not None
        seen = known.seen[request.uid] = known.seen.get(request.uid, Seen()).after(
            request, known.pod.member, self.seconds
        )
        left = (self._deadline(request) - self.now).total_seconds()
        facts = {"first": first, "deadline": "600s", "left": left}
        view = View(request, known.pod.member, seen, now=self.seconds, utc=self.now, **facts)  # type: ignore[arg-type]
        step = next_step(view)
        match step.action:
            case None:
                return self._lifecycle(known, request, held=step.held, over=left <= 0)
            case PatchPod() as patch:
                made = self.patch(UID, patch.operations)
                if made is not None and not patch.back:
                    self._check_spelling(request, made, view.next_names)
                known.pod = made or self.pods.get(UID)
                return made is not None
            case lc.Progress(status=status) | lc.Complete(status=status):
                if isinstance(step.action, lc.Complete) and step.turn is Turn.DONE:
                    assert not self._due(request), "it ends before kubelet has started its container"
                return self._write(known, replace(request, status=status))
            case lc.AddFinalizer():
                return self._write(known, replace(request, finalizers=(FINALIZER,)))
        raise AssertionError(step)

    def _write(self, known: Manager, after: Request) -> bool:
        """A write that is bound to the version of the request, after which that is known, or the newest one."""
        now = self.requests.get(after.uid)
        stale = now is None or now.resource_version != after.resource_version
        if now is not None and not stale:
            if now.status != after.status:
                check_move(now.status, after.status)
            now = self.put(after)
        if now is None:
            known.requests.pop(after.uid, None)
        else:
            known.requests[after.uid] = now
        return not stale

    def _lifecycle(self, known: Manager, request: Request, *, held: bool, over: bool) -> bool:
        """What `lifecycle.steps` does for requests that end."""
        if request.live and over:
            states = tuple(
                each if each.phase.final else replace(each, phase=StatePhase.FAILED)
                for each in (request.status.state(asked.name) for asked in request.containers)
            )
            ended = replace(request.status, phase=RequestPhase.COMPLETED, states=states, completion_time=self.time)
            return self._write(known, replace(request, status=ended))
        if request.live or held or not request.has_finalizer:
            return False
        assert not self._due(request) or known.pod != self.pods.get(UID), (
            "it goes before kubelet has started its container"
        )
        done = self._write(known, replace(request, finalizers=()))
        if done and request.deleting:
            del self.requests[request.uid], known.requests[request.uid]
        return done

    def _deadline(self, request: Request) -> datetime:
        created = parse_time(request.created)
        assert created is not None
        return created + timedelta(seconds=DEADLINE)

    def _due(self, request: Request) -> list[str]:
        if UID not in self.pods:
            return []
        view = View(request, self.pods[UID].member, Seen(), now=0.0, utc=self.now)
        return [name for name, each in view.entries.items() if is_due(each, self.pods[UID].member.pod)]

    def _check_spelling(self, request: Request, made: Stored, names: tuple[str, ...]) -> None:
        assert set(self.changed) >= set(names)
        for name in self.changed.keys() - set(names):
            assert image_of(made.obj, name) == self.runs[UID, name], "it is restarted without a record"
        for name, before in ((each, self.changed[each]) for each in names):
            running = self.runs[UID, name]
            assert digest_of(before) == digest_of(running), "it takes the image of somebody else back"
            image = image_of(made.obj, name)
            assert image != running, "the spelling is the same"
            assert image.endswith(f"@{digest_of(running)}"), "it gets another image than the one that runs"
            meant = next(each.context for each in request.containers if each.name == name)
            assert meant is not None
            assert status_of(made.obj, name)["containerID"] == meant.container_id, "another instance is restarted"
            self.spelled[request.uid, name] += 1
            assert self.spelled[request.uid, name] == 1, "a container is restarted twice"

    # Others

    def is_deleted_by_a_user(self, which: int) -> None:
        uids = list(self.requests)
        if uids:
            request = self.requests[uids[which % len(uids)]]
            if request.has_finalizer:
                self.put(replace(request, deleting=True))
            else:
                del self.requests[request.uid]

    def runs_by_a_user(self, which: int) -> None:
        """`kubectl recreate --via patch` restarts a container of the pod."""
        member, of = self.pods[UID].member, run(patch=True, name=f"run-{which}")
        if member.due or (member.patched is not None and not member.patched.at(self.now).request.completed):
            return  # it waits for that
        name = CONTAINERS[which % 2]
        if member.pod.containers[name].running and unfit(member, member.pod.containers[name], None) is None:
            self.patch(UID, restart(member, of.request("web-1", UID, (name,)), self.time))

    def late(self, _: int) -> None:
        self.now += timedelta(seconds=DEADLINE)

    def settle(self) -> None:
        """Everything goes well from now on."""
        self.managers = [Manager(), Manager()]
        for _ in range(60):
            self.now += timedelta(seconds=20)
            self.patch(UID, give_back(self.pods[UID].member, self.now))  # of the user's run
            self.looks(0)
            while self.writes(0):
                self.looks(0)
            self.kubelet_catches_up()

    def check_end(self) -> None:
        for each in self.requests.values():
            assert each.completed or each.deleting
            assert not each.has_finalizer
            assert not self._due(each)
            for state in each.status.states:
                patched = self.spelled[each.uid, state.name]
                assert state.phase.final, state
                assert patched <= 1
        for name in CONTAINERS:
            assert status_of(self.pods[UID].obj, name)["ready"], "a container stays down"


MOVES: dict[str, Callable[[Model, int], object]] = {
    "ask": Model.asks,
    "write": Model.writes,
    "look": Model.looks,
    "kill": Model.is_killed,
    "kubelet": Model.kubelet,
    "crash": Model.crashes,
    "collect": Model.collects,
    "edit": Model.edits,
    "annotate": Model.annotates,
    "delete": Model.is_deleted_by_a_user,
    "run": Model.runs_by_a_user,
    "late": Model.late,
}
OFTEN = ("write", "kubelet", "look") * 4 + ("ask", "kill") * 2


def happen(model: Model, move: str, which: int) -> None:
    model.now += timedelta(seconds=1)
    MOVES[move](model, which)


@pytest.mark.parametrize("which", range(12))
def test_the_manager_may_die_after_every_write(which: int) -> None:
    for moment in range(14):
        model = Model()
        model.asks(which)
        for at in range(14):
            model.looks(0)
            model.writes(0)
            if at == moment:
                model.is_killed(0)
            model.now += timedelta(seconds=2)
            if at % 3 == 2:
                model.kubelet(0)
                model.kubelet(1)
        model.settle()
        model.check_end()
        (request,) = model.requests.values()
        assert {each.phase for each in request.status.states} == {StatePhase.SUCCEEDED}
        assert set(model.spelled.values()) == {1}
        assert len(model.spelled) == len(request.containers)


@settings(max_examples=EXAMPLES, deadline=None)
@example([("ask", 0), ("look", 0), ("look", 1), ("write", 0), ("write", 1), ("write", 0), ("write", 0), ("write", 1)])
@example([("ask", 0), ("look", 0), *[("write", 0)] * 4, ("collect", 0), ("kubelet", 0), ("kubelet", 0), ("delete", 0)])
@example([("ask", 1), ("look", 0), *[("write", 0)] * 4, ("late", 0), ("look", 0), ("write", 0), ("kill", 0)])
@example([("run", 0), ("ask", 0), ("look", 0), *[("write", 0)] * 4, ("kubelet", 0), ("look", 0), ("write", 0)])
@given(st.lists(st.tuples(st.sampled_from((*OFTEN, *MOVES)), st.integers(0, 11)), max_size=70))
def test_any_interleaving(moves: list[tuple[str, int]]) -> None:
    model = Model()
    for move, which in moves:
        happen(model, move, which)
    model.settle()
    model.check_end()
