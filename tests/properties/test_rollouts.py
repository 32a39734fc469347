"""A run on a workload where everything happens between any two steps: no budget is overdrawn, no pod restarted twice.

The world is a model: pods that run containers, a node daemon that carries requests out, watches that lag behind, and
runners that die at any moment. What is checked is the model's own record, not what the planner says of itself.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from crrd.core.api.reasons import Reason
from crrd.core.api.time import rfc3339
from crrd.core.api.types import RequestPhase
from crrd.core.rollout.parts import Allowed
from crrd.core.rollout.phases import End, Stage
from crrd.core.rollout.plan import Plan, make_plan
from crrd.core.rollout.requests import RunRequest
from crrd.core.rollout.rows import Row, failed_requests, tally
from crrd.core.rollout.run import Amount, Options, Run, Target
from crrd.core.rollout.standing import RowMemo
from crrd.core.rollout.state import Budget, Member, NodeDaemon, World
from tests.support.rollouts import (
    START,
    WEB,
    Phases,
    asked,
    budget,
    container,
    failed,
    member,
    recreated,
    succeeded,
    workload,
)

PODS = 5
NODES = ("node-a", "node-b", "node-c")
UNITS = timedelta(seconds=5)
OTHER = Run("default", "other", Target("deployment.apps/api"), Options(("app",)), rfc3339(START))
NEIGHBOURS = (member("api-0"), member("api-1"))
"""Pods of another workload, at which another run is at work, under the same PodDisruptionBudget."""


@dataclass
class Model:
    """The truth, and what a runner knows of it."""

    run: Run
    guard: int | None
    """minAvailable of a PodDisruptionBudget, besides all of the neighbours."""
    in_order: bool
    now: datetime = START + timedelta(seconds=1)
    """A run begins a second after its start: kubelet's times are whole seconds."""
    pods: dict[str, Member] = field(default_factory=dict)
    requests: dict[str, RunRequest] = field(default_factory=dict)
    begun: dict[str, int] = field(default_factory=dict)
    """By pod UID: how often a request of the run has stopped its container."""
    ours: set[str] = field(default_factory=set)
    """Pods that are down because of the run."""
    order: list[str] = field(default_factory=list)
    known: World | None = None
    """What the runner's watches show; None before it has listed."""
    counted: tuple[Member, ...] = ()
    """The pods as they were when the budget's status was written that the runner knows."""
    memo: RowMemo = field(default_factory=RowMemo)
    phases: Phases = field(default_factory=Phases)
    confirmed: int = 0
    made: int = 0
    desired: int = PODS
    hidden: set[str] = field(default_factory=set)
    """Requests from which somebody has taken the label of the run."""
    refused: dict[str, str] = field(default_factory=dict)
    retried: frozenset[str] = frozenset()
    """Failed requests (UID) that the runner retries."""
    asked_again: dict[str, str] = field(default_factory=dict)
    """UID of a failed request that a runner has to retry -> UID of its pod."""
    elsewhere: dict[str, RunRequest] = field(default_factory=dict)
    """The other run's requests, by pod UID, while they are under way."""
    down: set[str] = field(default_factory=set)
    """Neighbours whose container was stopped."""
    nodes: dict[str, NodeDaemon] = field(default_factory=lambda: {name: NodeDaemon(name, ready=True) for name in NODES})
    cut_off: set[str] = field(default_factory=set)
    """Pods whose container was stopped before their node went down: kubelet starts it when the node is back."""

    def __post_init__(self) -> None:
        for number in range(PODS):
            self._add(f"web-{number}")

    def _add(self, name: str) -> None:
        self.made += 1
        pod = member(
            name,
            node=NODES[self.made % len(NODES)],
            created=rfc3339(self.now) if self.made > PODS else "2026-01-01T11:00:00Z",
        )
        pod = replace(pod, pod=replace(pod.pod, uid=f"uid-{self.made}"), ready=self.made <= PODS)
        self.pods[pod.pod.uid] = pod

    # What the runner sees and does

    def budgets(self) -> tuple[Budget, ...]:
        if self.guard is None:
            return ()
        healthy = sum(1 for pod in self.pods.values() if pod.ready) - len(self.down)
        return (budget(max(0, healthy - self.guard)),)

    def look(self) -> None:
        """All watches catch up."""
        kind = workload(self.desired, in_order=self.in_order)
        shown = tuple(each for name, each in self.requests.items() if name not in self.hidden)
        shown += tuple(self.elsewhere.values())
        self.counted = tuple(self.pods.values())
        self.known = World(self.counted, shown, kind, self.budgets(), refused=dict(self.refused))
        self.known = replace(self.known, retried=self.retried, daemons=dict(self.nodes))

    def plan(self) -> Plan:
        if self.known is None:
            self.look()
        assert self.known is not None
        plain = make_plan(self.known, self.run, self.now, allowed=Allowed(self.confirmed))
        found = make_plan(self.known, self.run, self.now, allowed=Allowed(self.confirmed), memo=self.memo)
        assert found == plain, "what is remembered of the last plan changes nothing"
        return found

    def step(self, *, dies: bool = False) -> Plan:
        """One round of the runner, which starts a plan's pods. It may die between a creation and its note of it."""
        found = self.plan()
        self.phases.saw(found)
        for row in found.create:
            if not self._is_as_known(row):
                break
            name = self.run.request_name(row.uid, row.failed)
            self._within_budget(row.uid)
            if name not in self.requests and row.uid in self.pods:
                made = asked(self.run, self.pods[row.uid]).request
                made = replace(made, name=name, uid=f"{name} of {self.now}", created=rfc3339(self.now))
                self.requests[name] = RunRequest(made, self.run)
                self.order.append(row.pod)
            if dies:
                self.dies()
                break
            if name in self.hidden:
                self.refused[row.uid] = "there is such a request, and it is of no run"
                self.look()
                break
            if name in self.requests:
                assert self.known is not None
                self.known = replace(self.known, requests=(*self.known.requests, self.requests[name]))
            else:
                self.look()  # admission says that there is no such pod: it is asked for
                break
        return found

    def dies(self) -> None:
        """The runner is killed; another process begins."""
        self.known, self.refused, self.retried, self.memo = None, {}, frozenset(), RowMemo()

    def retries(self) -> None:
        """Another process begins, which retries what has failed."""
        self.dies()
        rows = self.plan().rows
        self.retried = failed_requests(rows)
        found = (row.request.request for row in rows if row.request)
        self.asked_again |= {each.uid: each.pod_uid for each in found if each.uid in self.retried}
        self.look()

    def _is_as_known(self, row: Row) -> bool:
        """The runner asks for the pod before it creates a request: its watches may lag. Then it makes another plan."""
        assert self.known is not None
        others = tuple(each for each in self.known.members if each.pod.name != row.pod)
        there = tuple(each for each in self.pods.values() if each.pod.name == row.pod)
        self.known = replace(self.known, members=(*others, *there))
        return there == (row.member,)

    def _within_budget(self, uid: str) -> None:
        """As far as the runner could know: what has just died elsewhere, its watches have yet to tell."""
        assert self.known is not None
        observed = {pod.pod.uid: pod for pod in self.known.members}
        busy = {each.request.pod_uid for each in self.known.requests if not each.request.completed} | {uid}
        if not observed[uid].ready:
            return
        counting = [pod for pod in observed.values() if not pod.pod.deleting]
        assert self.known.workload is not None
        total = max(self.known.workload.desired, len(counting))
        up = sum(1 for pod in counting if pod.ready and pod.pod.uid not in busy)
        assert total - up <= self.run.options.max_unavailable.of(total), "more are unready than may be"
        if self.guard is not None:
            away = len(busy & {pod.pod.uid for pod in NEIGHBOURS})
            healthy = sum(1 for pod in self.counted if pod.ready and pod.pod.uid not in busy)
            assert healthy - away >= self.guard, "the disruption budget is overdrawn"

    # What the node does

    def _open(self, which: int) -> RunRequest | None:
        there = [each for each in self.requests.values() if not each.request.completed]
        return there[which % len(there)] if there else None

    def node_begins(self, which: int) -> None:
        found = self._open(which)
        if found is None or found.request.status.phase is RequestPhase.RECREATING or not self._is_up(found):
            return
        uid = found.request.pod_uid
        if uid not in self.pods:
            self._end(found, failed(self.run, _ghost(found), Reason.POD_GONE))
            return
        self.begun[uid] = self.begun.get(uid, 0) + 1
        self.pods[uid] = replace(self.pods[uid], ready=False)
        self.ours.add(uid)
        self._end(found, asked(self.run, self.pods[uid], RequestPhase.RECREATING))

    def _is_up(self, found: RunRequest) -> bool:
        return self.nodes[found.request.node_name].ready

    def node_toggles(self, which: int) -> None:
        """A node goes down with its kubelet and its daemon, or comes back."""
        name = NODES[which % len(NODES)]
        up = not self.nodes[name].ready
        self.nodes[name] = NodeDaemon(name, up, self.now)
        for uid, pod in self.pods.items():
            if pod.pod.node_name == name:
                self.pods[uid] = replace(pod, ready=up, ready_since=self.now)
        if up:
            for uid in self.cut_off & self.pods.keys():
                if self.pods[uid].pod.node_name == name:
                    self.crash(uid)
                    self.cut_off.remove(uid)

    def nobody_answers(self, which: int) -> None:
        """The manager ends a request that its node has not answered, or has not finished in time."""
        found = self._open(which)
        if found is None or found.request.pod_uid not in self.pods:
            return
        started = found.request.status.phase is RequestPhase.RECREATING
        if started and self._is_up(found):
            return
        if started:
            self.cut_off.add(found.request.pod_uid)
        reason = Reason.DEADLINE if started else Reason.NO_ANSWER
        self._end(found, failed(self.run, self.pods[found.request.pod_uid], reason))

    def node_ends(self, which: int, *, well: bool) -> None:
        found = self._open(which)
        if found is None or found.request.status.phase is not RequestPhase.RECREATING or not self._is_up(found):
            return
        uid = found.request.pod_uid
        if uid not in self.pods:
            self._end(found, failed(self.run, _ghost(found), Reason.POD_GONE))
            return
        before = self.pods[uid]
        self._end(found, succeeded(self.run, before) if well else failed(self.run, before, Reason.DEADLINE))
        after = recreated(before, ready=well)
        there = {name: replace(each, started_at=rfc3339(self.now)) for name, each in after.pod.containers.items()}
        self.pods[uid] = replace(after, pod=replace(after.pod, containers=there), ready_since=self.now)

    def _end(self, found: RunRequest, after: RunRequest) -> None:
        """The status of a request is now that of the other one."""
        self.requests[found.request.name] = replace(found, request=replace(found.request, status=after.request.status))

    def neighbour_moves_on(self, which: int) -> None:
        """A pod of the other workload is asked for, stopped, or back."""
        pod = NEIGHBOURS[which % len(NEIGHBOURS)]
        uid = pod.pod.uid
        if uid not in self.elsewhere:
            self.elsewhere[uid] = asked(OTHER, pod)
        elif uid not in self.down:
            self.elsewhere[uid] = asked(OTHER, pod, RequestPhase.RECREATING)
            self.down.add(uid)
        else:
            del self.elsewhere[uid]
            self.down.remove(uid)

    # What else happens

    def pod_dies(self, which: int) -> None:
        """It is deleted, and another one takes its place."""
        uid = sorted(self.pods)[which % len(self.pods)]
        name = self.pods.pop(uid).pod.name
        self._add(name)

    def scales(self, which: int) -> None:
        """Up, or down, which takes a pod that may be at work."""
        if which % 2 or len(self.pods) < 3:
            self.desired += 1
            self._add(f"web-{self.made}")
        else:
            self.desired -= 1
            self.pods.pop(sorted(self.pods)[which % len(self.pods)])

    def user_edits(self, which: int) -> None:
        """Somebody takes the run's label from a request."""
        if self.requests:
            self.hidden.add(sorted(self.requests)[which % len(self.requests)])

    def pod_toggles(self, which: int) -> None:
        uid = sorted(self.pods)[which % len(self.pods)]
        self.pods[uid] = replace(self.pods[uid], ready=not self.pods[uid].ready, ready_since=self.now)

    def crashes(self, which: int) -> None:
        """Kubelet has started its container anew, without anybody's asking."""
        self.crash(sorted(self.pods)[which % len(self.pods)])

    def crash(self, uid: str) -> None:
        there = {"app": container(container_id=f"containerd://crash-{self.now}", started_at=rfc3339(self.now))}
        self.pods[uid] = replace(self.pods[uid], pod=replace(self.pods[uid].pod, containers=there))

    def user_deletes(self, which: int) -> None:
        """A request that has ended well, as its TTL does, or one that has not begun.

        One that has failed is left: to delete it is to ask for another try.
        """
        there = [
            each for each in self.requests.values() if each.succeeded or each.request.status.phase is RequestPhase.EMPTY
        ]
        if there:
            gone = there[which % len(there)]
            older = [each for each in self.requests.values() if each.request.pod_uid == gone.request.pod_uid]
            for each in older if gone.succeeded else [gone]:  # a TTL ends after those of the requests before
                self.requests.pop(each.request.name)
                self.hidden.discard(each.request.name)

    def settle(self) -> Plan:
        """Everything goes well from now on, until the run has ended; there are pods enough for the budgets."""
        self.elsewhere.clear()
        self.down.clear()
        self.desired = max(self.desired, PODS)
        for which, name in enumerate(NODES):
            if not self.nodes[name].ready:
                self.node_toggles(which)
        while len(self.pods) < self.desired:
            self._add(f"web-{self.made}")
        for _ in range(200):
            self.look()
            found = self.step()
            if _asks(found):
                self.confirmed = 1
            elif found.end is not None:
                return found
            self.now += UNITS
            for which in range(len(self.requests)):
                self.node_begins(which)
            for which in range(len(self.requests)):
                self.node_ends(which, well=True)
            self.pods = {uid: replace(pod, ready=True) for uid, pod in self.pods.items()}
        raise AssertionError(f"it does not end: {[(row.pod, row.stage, row.wait.why) for row in found.rows]}")

    def check(self) -> None:
        """What has to hold at every moment."""
        retries = Counter(self.asked_again.values())
        assert all(times <= 1 + retries[uid] for uid, times in self.begun.items()), "a pod was restarted twice"


def _ghost(found: RunRequest) -> Member:
    """A pod that is no more."""
    request = found.request
    pod = member(request.pod_name)
    return replace(pod, pod=replace(pod.pod, uid=request.pod_uid))


def run_of(**options: object) -> Run:
    given = Options(("app",), **options)  # type: ignore[arg-type]
    return Run("default", "run", WEB, given, rfc3339(START))


@pytest.mark.parametrize("in_order", [False, True])
@pytest.mark.parametrize("most", [1, 2, 5])
def test_the_runner_may_die_at_every_step(most: int, *, in_order: bool) -> None:
    for moment in range(PODS + 1):
        model = Model(run_of(max_unavailable=Amount(most)), None, in_order)
        for at in range(PODS):
            model.step(dies=at == moment)
            model.now += UNITS
            model.node_begins(at)
            model.check()
        found = model.settle()
        assert {row.stage for row in found.rows} == {Stage.DONE}
        assert model.begun == {f"uid-{number}": 1 for number in range(1, PODS + 1)}
        if in_order:
            assert model.order == sorted(model.order, reverse=True)


def test_a_pod_whose_request_was_hidden_and_deleted_is_restarted_once() -> None:
    """The runner decides by a look from before the restart, in which the request is no longer the run's."""
    model = Model(run_of(), None, in_order=False)
    model.step()
    model.user_edits(0)
    model.look()
    model.node_begins(0)
    model.node_ends(0, well=True)
    model.user_deletes(0)
    assert not model.requests
    model.step()
    model.node_begins(0)
    model.check()
    model.settle()
    model.check()


def test_a_node_that_is_down_holds_back_no_other_pod() -> None:
    model = Model(run_of(max_unavailable=Amount(3)), None, in_order=False)
    model.node_toggles(1)
    lost = {uid for uid, pod in model.pods.items() if pod.pod.node_name == NODES[1]}
    for _ in range(4 * PODS):
        model.look()
        if (found := model.step()).end is not None:
            break
        model.now += UNITS
        model.node_begins(0)
        model.node_ends(0, well=True)
    assert found.end is End.PUT_OFF
    assert model.begun.keys() == model.pods.keys() - lost
    model.settle()
    assert model.begun == dict.fromkeys(model.pods, 1)


def test_a_pod_that_is_ready_again_but_not_for_long_enough_is_no_free_restart() -> None:
    model = Model(run_of(max_unavailable=Amount(1), min_ready=7, max_failures=99), None, in_order=False)
    for what, which in [*FAILS, (12, 2), (12, 2)]:
        happen(model, what, which)
    assert model.settle().end is End.FAILED


def _asks(found: Plan) -> bool:
    """Whether the first part is over. If one of its pods has failed, the user goes on with `--yes`."""
    return found.end is End.PAUSED or (found.end is End.FAILED and "first part" in found.message)


def happen(model: Model, what: int, which: int) -> None:
    """One thing that happens."""
    others: list[Callable[[int], object]] = [
        model.node_begins,
        lambda which: model.node_ends(which, well=True),
        lambda which: model.node_ends(which, well=False),
        model.pod_dies,
        model.pod_toggles,
        model.crashes,
        model.scales,
        model.user_edits,
        model.neighbour_moves_on,
        model.node_toggles,
        model.nobody_answers,
    ]
    match what:
        case 0 | 1 | 2 | 3:
            model.step(dies=what == 3)
        case 4 | 5:
            model.look()
        case 6:
            model.now += UNITS
            model.user_deletes(which)
        case 7:
            model.now += UNITS
            model.dies()
        case 19:
            model.now += UNITS
            model.retries()
        case _:
            others[what - 8](which)


FAILS = [(0, 0), (8, 0), (10, 0)]  # The first pod fails


@settings(max_examples=400, deadline=None)
@example(  # a pod whose node has not answered is put off while another one is asked for, whose request is hidden
    most=Amount(100, percent=True),
    guard=None,
    min_ready=0,
    first=0,
    script=[(15, 3), (18, 0), (18, 0)],
    in_order=False,
    fails=True,
)
@given(
    most=st.sampled_from([Amount(1), Amount(2), Amount(40, percent=True), Amount(100, percent=True)]),
    guard=st.sampled_from([None, 3, 4]),
    in_order=st.booleans(),
    min_ready=st.sampled_from([0, 7]),
    first=st.sampled_from([0, 1, 2]),
    fails=st.booleans(),
    script=st.lists(st.tuples(st.integers(0, 19), st.integers(0, PODS - 1)), max_size=80),
)
def test_any_interleaving(
    most: Amount,
    guard: int | None,
    min_ready: int,
    first: int,
    script: list[tuple[int, int]],
    *,
    in_order: bool,
    fails: bool,
) -> None:
    model = Model(run_of(max_unavailable=most, min_ready=min_ready, first=first, max_failures=99), guard, in_order)
    for what, which in [*FAILS * fails, *script]:
        happen(model, what, which)
        model.check()
    found = model.settle()
    model.check()
    assert found.end is (End.FAILED if tally(found.rows)[Stage.FAILED] else End.DONE)
    assert not {row.stage for row in found.rows} & {Stage.WAITING, Stage.REQUESTED, Stage.RECREATING, Stage.SETTLING}
    model.retries()
    found = model.settle()
    model.check()
    assert {row.uid for row in found.rows if row.stage is Stage.FAILED} <= model.refused.keys(), "it is not retried"
