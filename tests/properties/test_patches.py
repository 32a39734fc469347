"""A run by patches while everything happens in between: no second restart, no other image, no budget overdrawn.

The pods are JSON objects, and each write is the JSON patch that a run sends. The processes that carry the run out see
the pods of an earlier moment, and are killed after any write. What is checked is the model's own record.
"""

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from crrd.core.api.time import parse_time
from crrd.core.api.types import ANNOTATION_ABORTED
from crrd.core.rollout.parts import Allowed
from crrd.core.rollout.patch.operations import give_back, proceed, record_of, restart
from crrd.core.rollout.patched import patched_requests
from crrd.core.rollout.phases import End, Stage
from crrd.core.rollout.plan import Plan, make_plan
from crrd.core.rollout.requests import RunRequest, longest_lived
from crrd.core.rollout.rows import Row, failed_requests, tally
from crrd.core.rollout.run import Amount, Run
from crrd.core.rollout.standing import RowMemo
from crrd.core.rollout.state import Budget, Member, World
from tests.support.rollouts import BEFORE, START, Phases, budget, run, workload
from tests.support.spelled import CONTAINERS, SpelledPods, Stored, digest_of, image_of, status_of

Test = TypeVar("Test", bound=Callable[..., None])
PODS, STEP = 3, timedelta(seconds=5)
EXAMPLES = int(os.environ.get("PATCH_EXAMPLES", "120"))


@dataclass
class Process:
    """What one process of the run knows. See `crrd.rollout.watched`."""

    pods: dict[str, Stored] = field(default_factory=dict)
    budgets: tuple[Budget, ...] = ()
    counted: tuple[str, ...] = ()  # The healthy pods when the budget's status was written
    patched: dict[str, RunRequest] = field(default_factory=dict)
    aborted: set[str] = field(default_factory=set)
    refused: dict[str, str] = field(default_factory=dict)
    retried: frozenset[str] = frozenset()
    memo: RowMemo = field(default_factory=RowMemo)
    phases: Phases = field(default_factory=Phases)

    def world(self, desired: int, *, in_order: bool) -> World:
        members = tuple(sorted((each.member for each in self.pods.values()), key=lambda each: each.pod.name))
        found = patched_requests(each.patched for each in members)
        known = self.patched | found
        self.patched = known
        requests = tuple(each if uid in self.pods else each.without_pod() for uid, each in known.items())
        self.aborted |= {name for each in requests for name in each.ended_runs}
        kind = workload(desired, in_order=in_order)
        known_runs = {"aborted": frozenset(self.aborted), "refused": dict(self.refused), "retried": self.retried}
        return World(members, requests, kind, self.budgets, **known_runs)  # type: ignore[arg-type]


@dataclass(kw_only=True)
class Model(SpelledPods):
    """The truth, and the processes of the run."""

    run: Run
    guard: int | None = None  # minAvailable of a PodDisruptionBudget
    in_order: bool = False
    spelled: Counter[tuple[str, str]] = field(default_factory=Counter)  # How often by the run, by pod and container
    retried: Counter[str] = field(default_factory=Counter)  # By pod (UID)
    desired: int = PODS
    aborted_on: str = ""
    processes: list[Process] = field(default_factory=lambda: [Process(), Process()])

    def __post_init__(self) -> None:
        for _ in range(PODS):
            self.add(BEFORE)
        for each in self.processes:
            self.look(each)

    # The processes of the run

    def look(self, process: Process) -> None:
        """All its watches catch up."""
        healthy = tuple(uid for uid, each in self.pods.items() if each.member.ready)
        process.pods, process.counted = dict(self.pods), healthy
        process.budgets = () if self.guard is None else (budget(max(0, len(healthy) - self.guard)),)

    def plan(self, process: Process) -> Plan:
        world = process.world(self.desired, in_order=self.in_order)
        plain = make_plan(world, self.run, self.now, allowed=Allowed(1))
        found = make_plan(world, self.run, self.now, allowed=Allowed(1), memo=process.memo)
        assert found == plain, "what is remembered of the last plan changes nothing"
        return found

    def step(self, which: int, *, dies: bool = False) -> Plan:
        """One round of a process. It may be killed after a write, before it has the response."""
        process = self.processes[which]
        found = self.plan(process)
        process.phases.saw(found)
        if found.end is not None and not found.wait_before_end.why:
            self.give_back(process)
            return found
        for uid, each in list(process.pods.items()):
            if each.member.patched is None or each.member.patched.run.name != self.run.name:
                continue
            back, forward = give_back(each.member, self.now), proceed(each.member, self.now)
            if not (back or forward):
                continue
            made = self.patch(uid, back or forward)
            if made is not None and not back:
                self._check_spelling(uid, made)
            if dies:
                return self.dies(which, found)
            self._learn(process, uid, made)
        for row in found.create:
            made = self._restart(process, row)
            if dies:
                return self.dies(which, found)
            before, now = row.member, self._learn(process, row.uid, made)
            if made is None and now == before:
                process.refused[row.uid] = "the patch was refused"
            if made is None:
                break
        return found

    def give_back(self, process: Process) -> None:
        """What a process does at last."""
        for uid, each in list(process.pods.items()):
            if operations := give_back(each.member, self.now):
                self._learn(process, uid, self.patch(uid, operations))

    def dies(self, which: int, found: Plan) -> Plan:
        """It is killed, and another one resumes the run."""
        self.processes[which] = Process()
        self.look(self.processes[which])
        return found

    def _learn(self, process: Process, uid: str, made: Stored | None) -> Member | None:
        """What a process knows of a pod after a write, or after it was refused and the pod is read again."""
        there = made or self.pods.get(uid)
        if there is None:
            process.pods.pop(uid, None)
            return None
        process.pods[uid] = there
        return there.member

    def _restart(self, process: Process, row: Row) -> Stored | None:
        assert row.member is not None
        body = self.run.request(row.pod, row.uid, row.containers, row.failed)
        operations = restart(row.member, body, self.time)
        if (made := self.patch(row.uid, operations)) is not None:
            self._within_budget(process, row.uid)
            self._check_spelling(row.uid, made)
        return made

    def _check_spelling(self, uid: str, made: Stored) -> None:
        """A patch of the run has spelled images anew."""
        record = record_of(made.member)
        assert record is not None
        names = [each.name for each in record.containers if each.given]
        for name, before in self.changed.items():
            image, running = image_of(made.obj, name), self.runs[uid, name]
            if name not in names:
                assert image == running, "it is restarted without a record"
                continue
            assert digest_of(before) == digest_of(running), "it takes the image of somebody else back"
            self.spelled[uid, name] += 1
            assert self.spelled[uid, name] <= 1 + self.retried[uid], "a container is restarted twice"
            assert image != running, "the spelling is the same"
            assert image.endswith(f"@{digest_of(running)}"), "it gets another image than the one that runs"

    def _within_budget(self, process: Process, uid: str) -> None:
        """As far as the process could know: a budget's status may be older than that of the pods."""
        known = process.pods
        if not known[uid].member.ready:
            return
        counting = [each for each in known.values() if each.member.counts]
        up = [each for each in counting if each.member.ready and not each.due and each.member.pod.uid != uid]
        total = max(self.desired, len(counting))
        assert total - len(up) <= self.run.options.max_unavailable.of(total), "more are unready than may be"
        if self.guard is not None:
            away = {other for other, each in known.items() if each.due and each.member.ready} | {uid}
            healthy = sum(1 for other in process.counted if other not in away)
            assert healthy >= self.guard, "the disruption budget is overdrawn"

    def retries(self, which: int) -> None:
        """Another process begins, which restarts again what has failed."""
        process = self.processes[which] = Process()
        self.look(process)
        rows = self.plan(process).rows
        process.retried = failed_requests(rows)
        for each in {row.uid for row in rows if row.request and row.request.request.uid in process.retried}:
            self.retried[each] += 1

    def aborts(self) -> None:
        """A user aborts the run, which is recorded on a pod."""
        process = Process()
        self.look(process)
        own = process.world(self.desired, in_order=self.in_order).requests_of(self.run)
        if own and not self.aborted_on:
            self.aborted_on = uid = longest_lived(own).request.pod_uid
            meta = self.pods[uid].obj["metadata"]
            marked = {**meta, "annotations": {**meta["annotations"], ANNOTATION_ABORTED: self.time}}
            self.store({**self.pods[uid].obj, "metadata": marked})

    def replaces(self, which: int) -> None:
        """A pod is deleted, by a rollout or an eviction, and another one takes its place."""
        self._remove(which)
        self.add(self.time)

    def _remove(self, which: int) -> None:
        del self.pods[list(self.pods)[which % len(self.pods)]]

    def scales(self, which: int) -> None:
        if which % 2 or len(self.pods) < 3:
            self.desired += 1
            self.add(self.time)
        else:
            self.desired -= 1
            self._remove(which)

    def late(self, _: int) -> None:
        """So late that what is under way has failed."""
        self.now += timedelta(seconds=self.run.options.pod_timeout)

    def settle(self) -> Plan:
        """Everything goes well from now on, until the run has ended."""
        process = self.processes[0] = Process()
        self.desired = max(self.desired, PODS)
        while len(self.pods) < self.desired:
            self.add(self.time)
        for uid in [uid for uid, each in self.pods.items() if each.member.pod.deleting]:
            del self.pods[uid]
            self.add(self.time)
        for _ in range(100):
            self.look(process)
            found = self.step(0)
            if found.end is not None and not found.wait_before_end.why:
                break
            self.now += STEP
            self.kubelet_catches_up()
        else:
            raise AssertionError(f"it does not end: {[(row.pod, row.stage, row.wait.why) for row in found.rows]}")
        self.kubelet_catches_up()  # no process is there any more
        return found

    def check_end(self, found: Plan) -> None:
        """What must hold after the end."""
        for uid, pod in self.pods.items():
            for name in CONTAINERS:
                assert (uid, image_of(pod.obj, name)) not in self.lost, "it is left with an image that is not there"
        if found.end is End.ABORTED:
            assert self.aborted_on
            return
        assert self.aborted_on not in self.pods, "the abort is ignored"
        counts = tally(found.rows)
        if counts[Stage.FAILED] < self.run.options.max_failures:
            assert not counts[Stage.WAITING] + counts[Stage.REQUESTED] + counts[Stage.RECREATING]
        assert found.end is (End.FAILED if counts[Stage.FAILED] else End.DONE), found.message
        for row in found.rows if found.end is End.DONE else ():
            if row.uid in self.pods and not (row.stage is Stage.SKIPPED and row.wait.why):
                states = [status_of(self.pods[row.uid].obj, name)["state"] for name in self.run.options.containers]
                times = [parse_time(each["running"]["startedAt"]) for each in states]
                assert all(at is not None and at > START for at in times), "it was not restarted"


MOVES: dict[str, Callable[[Model, int], object]] = {
    "step": lambda model, which: model.step(which % 2),
    "killed": lambda model, which: model.step(which % 2, dies=True),
    "look": lambda model, which: model.look(model.processes[which % 2]),
    "kubelet": Model.kubelet,
    "crash": Model.crashes,
    "collect": Model.collects,
    "edit": Model.edits,
    "annotate": Model.annotates,
    "replace": Model.replaces,
    "scale": Model.scales,
    "deleted": Model.is_deleted,
    "late": Model.late,
    "retry": lambda model, which: model.retries(which % 2),
    "abort": lambda model, _: model.aborts(),
}
OFTEN = ("step", "kubelet") * 5 + ("look", "collect") * 2


def run_of(**options: Any) -> Run:
    return run(**{"patch": True, "max_failures": 99, **options})


def happen(model: Model, move: str, which: int) -> None:
    """One thing that happens."""
    model.now += timedelta(seconds=1)
    MOVES[move](model, which)


@pytest.mark.parametrize("most", [1, 2, PODS])
def test_the_process_may_die_after_every_write(most: int) -> None:
    for moment in range(PODS + 1):
        model = Model(run=run_of(max_unavailable=Amount(most)))
        for at in range(PODS):
            happen(model, "killed" if at == moment else "step", 0)
        found = model.settle()
        model.check_end(found)
        assert {row.stage for row in found.rows} == {Stage.DONE}
        assert model.spelled == {(f"uid-{number}", "app"): 1 for number in range(1, PODS + 1)}


def _example(*moves: tuple[str, int], most: int = 1, **options: Any) -> Callable[[Test], Test]:
    plain = {"containers": ("app",), "most": Amount(most), "guard": None, "in_order": False, "min_ready": 0}
    return example(**{**plain, "failures": 99, "ordered": False, "moves": list(moves), **options})


@settings(max_examples=EXAMPLES, deadline=None)
@_example(("step", 0), ("late", 0), ("step", 0))  # kubelet is slow
@_example(("step", 0), ("collect", 0), ("kubelet", 0), ("kubelet", 0), ("abort", 0))
@_example(  # the other process has seen none of it, and kubelet has not started the container with its image yet
    *(("annotate", 0), ("look", 0), ("look", 1), ("collect", 0), ("step", 0), ("kubelet", 0), ("kubelet", 0)),
    *(("look", 0), ("step", 0), ("step", 1)),
    most=3,
)
@_example(
    ("step", 0),
    ("kubelet", 0),
    ("kubelet", 0),
    ("look", 0),
    ("late", 0),
    ("step", 0),
    containers=CONTAINERS,
    ordered=True,
)
@_example(("edit", 3), ("look", 0), ("step", 0))
@given(
    containers=st.sampled_from([("app",), CONTAINERS]),
    most=st.sampled_from([Amount(1), Amount(2), Amount(100, percent=True)]),
    guard=st.sampled_from([None, 1, 2]),
    in_order=st.booleans(),
    min_ready=st.sampled_from([0, 7]),
    failures=st.sampled_from([1, 99]),
    ordered=st.booleans(),
    moves=st.lists(st.tuples(st.sampled_from((*OFTEN, *MOVES)), st.integers(0, 17)), max_size=60),
)
def test_any_interleaving(
    *,
    containers: tuple[str, ...],
    most: Amount,
    guard: int | None,
    min_ready: int,
    failures: int,
    moves: list[tuple[str, int]],
    ordered: bool,
    in_order: bool,
) -> None:
    of = run_of(
        containers=containers, ordered=ordered, max_unavailable=most, max_failures=failures, min_ready=min_ready
    )
    model = Model(run=of, guard=guard, in_order=in_order)
    for move, which in moves:
        happen(model, move, which)
    model.check_end(model.settle())
