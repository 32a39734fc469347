"""A run in steps with a judgement, while pods crash, fall, come and go, metrics change their mind, and processes die.

What is checked here is tracked beside the planner, from what has happened to the pods.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from crrd.core.api.time import rfc3339
from crrd.core.api.types import Pin, RequestPhase
from crrd.core.rollout.parts import Allowed, PartState
from crrd.core.rollout.phases import End, RunPhase
from crrd.core.rollout.plan import Plan, make_plan
from crrd.core.rollout.progress import Progress
from crrd.core.rollout.requests import RunRequest
from crrd.core.rollout.rows import count_done
from crrd.core.rollout.run import Amount, Run
from crrd.core.rollout.standing import RowMemo
from crrd.core.rollout.state import Measured, Member, World
from tests.support.rollouts import NOW, Phases, asked, member, run, succeeded, workload

PODS, STEPS, JUDGE = 6, (1, 3), 5
SECOND = timedelta(seconds=1)


@dataclass
class Model:
    """The cluster, a process of the run, and what is true of the pods."""

    run: Run
    now: datetime = NOW
    pods: dict[str, Member] = field(default_factory=dict)
    requests: dict[str, RunRequest] = field(default_factory=dict)  # By pod (UID)
    done_at: dict[str, datetime] = field(default_factory=dict)
    """When a restarted pod has become ready the last time, by UID."""
    crashed: set[str] = field(default_factory=set)  # Since their restart
    measured: Measured | None = None
    memo: RowMemo = field(default_factory=RowMemo)
    phases: Phases = field(default_factory=Phases)
    halted: bool = False  # A process has recorded it
    number: int = 0  # Of steps that were over in the last plan
    made: int = 0
    down: bool = False  # Whether one of the two nodes is
    confirmed: int = 0  # Steps that the user has allowed to end

    def __post_init__(self) -> None:
        for _ in range(PODS):
            self._add()

    def _add(self) -> None:
        node = f"node-{self.made % 2}"
        pod = member(
            f"web-{self.made}", node=node, created="2026-01-01T11:00:00Z" if self.made < PODS else rfc3339(self.now)
        )
        self.pods[pod.pod.uid] = pod
        self.made += 1

    def plan(self) -> Plan:
        parts = tuple(self.pods.values()), tuple(self.requests.values()), workload(PODS)
        world = World(*parts, measured=self.measured, down=frozenset({"node-1"} if self.down else ()))
        plain = make_plan(world, self.run, self.now, allowed=Allowed(self.confirmed))
        assert make_plan(world, self.run, self.now, allowed=Allowed(self.confirmed), memo=self.memo) == plain
        return plain

    def step(self) -> None:
        """One round of the process, which records its progress with the requests that it creates, or beside them."""
        found = self.plan()
        self.phases.saw(found)
        part = found.part
        if part.number > self.number:
            self._was_earned(part.number)
        self.number = max(self.number, part.number)
        if part.state is PartState.JUDGING and self.run.options.metrics_digest and self.measured is None:
            assert found.end is None
        if found.create:
            assert not self.halted, "a judgement of no is followed by no restart"
        for row in found.create:
            request = asked(self.run, self.pods[row.uid]).request
            there = self.pods[row.uid].pod.containers["app"]
            pins = tuple(
                replace(each, context=Pin(there.container_id, there.restart_count)) for each in request.containers
            )
            request = replace(request, created=rfc3339(self.now), containers=pins)
            self.requests[row.uid] = RunRequest(request, self.run)
        started = [uid for uid in self.requests if uid in self.pods]
        limit = (*STEPS, PODS)[min(part.number, len(STEPS))] if part.number < len(STEPS) else self.made
        assert len(started) <= limit, "never more pods than the step have it by our doing"
        if found.end is End.HALTED:
            self.halted = True
        if self.requests:
            phase = RunPhase.OVER if found.end is not None and found.end.over else found.phase
            counts = count_done(found.rows)
            noted = Progress(
                rfc3339(self.now), "host/1", phase, *counts, part.refusal, end=found.end, steps=part.number
            )
            newest = max(self.requests, key=lambda uid: self.requests[uid].lifetime)
            self.requests[newest] = replace(self.requests[newest], progress=noted)

    def _was_earned(self, number: int) -> None:
        """The steps that are over by now have been judged with yes."""
        limits = (*STEPS, PODS)
        own = sorted(self.requests.values(), key=lambda each: each.age)
        uids = [each.request.pod_uid for each in own]
        before = limits[self.number - 1] if self.number else 0
        for uid in uids[before : limits[min(number, len(limits)) - 1]]:
            if uid not in self.pods:
                continue
            assert uid not in self.crashed, "it has restarted since"
            assert self.pods[uid].ready
            assert self.now >= self.done_at[uid] + JUDGE * SECOND, "it has not been ready for long enough"
        if self.run.options.metrics_digest:
            assert self.measured is not None
            assert self.measured.holds, "the metrics have not said yes"

    # What happens

    def passes(self, which: int) -> None:
        self.now += (which % 4) * SECOND

    def dies(self, _: int) -> None:
        """The process is killed, and another one continues."""
        self.memo, self.measured, self.phases = RowMemo(), None, Phases()

    def node_ends(self, which: int) -> None:
        open_ones = [uid for uid, each in self.requests.items() if not each.request.completed and uid in self.pods]
        there = [uid for uid in open_ones if not (self.down and self.pods[uid].pod.node_name == "node-1")]
        if not there:
            return
        uid = there[which % len(there)]
        before, well = self.pods[uid], which % 3 != 0
        old = before.pod.containers["app"]
        new = replace(old, container_id=f"{old.container_id}x", restart_count=old.restart_count + 1)
        new = replace(new, started_at=rfc3339(self.now))
        pod = replace(before.pod, containers={"app": new})
        self.pods[uid] = replace(before, pod=pod, ready=well, ready_since=self.now)
        self.done_at[uid] = self.now
        status = succeeded(self.run, before, completion_time=rfc3339(self.now)).request.status
        found = self.requests[uid]
        self.requests[uid] = replace(found, request=replace(found.request, status=status))

    def _restarted(self, which: int) -> str | None:
        there = [uid for uid in self.done_at if uid in self.pods and not self.pods[uid].pod.ended]
        return there[which % len(there)] if there else None

    def crashes(self, which: int) -> None:
        """Kubelet has started the container again, and the pod is ready at once, or unready."""
        uid = self._restarted(which)
        if uid is None:
            return
        pod = self.pods[uid]
        old = pod.pod.containers["app"]
        new = replace(old, restart_count=old.restart_count + 1, container_id=f"{old.container_id}c")
        new = replace(new, started_at=rfc3339(self.now))
        pod = replace(pod, pod=replace(pod.pod, containers={"app": new}), ready=which % 2 == 0, ready_since=self.now)
        self.pods[uid] = pod
        self.crashed.add(uid)
        self.done_at[uid] = self.now

    def toggles(self, which: int) -> None:
        uid = self._restarted(which)
        if uid is not None:
            self.pods[uid] = replace(self.pods[uid], ready=not self.pods[uid].ready, ready_since=self.now)
            self.done_at[uid] = self.now

    def node_goes_or_comes(self, _: int) -> None:
        """Its pods become unready, and ready again. Those that have ended stay so."""
        self.down = not self.down
        for uid, pod in self.pods.items():
            if pod.pod.node_name == "node-1" and not pod.pod.ended:
                self.pods[uid] = replace(pod, ready=not self.down, ready_since=self.now)
                if uid in self.done_at:
                    self.done_at[uid] = self.now

    def evicted(self, which: int) -> None:
        uid = self._restarted(which)
        if uid is not None:
            pod = self.pods[uid]
            self.pods[uid] = replace(pod, pod=replace(pod.pod, phase="Failed"), ready=False, disrupted=True)

    def allows(self, _: int) -> None:
        """The user allows the next step, early or late, as by an annotation."""
        self.confirmed = max(self.confirmed, self.plan().part.number + 1)

    def deleted(self, which: int) -> None:
        uid = sorted(self.pods)[which % len(self.pods)]
        del self.pods[uid]
        self._add()

    def measures(self, which: int) -> None:
        """The metrics are asked while the judgement goes on, and say yes, no or nothing."""
        if self.plan().part.state is PartState.JUDGING and self.run.options.metrics_digest:
            holds = (True, True, True, False, None)[which % 5]
            before = self.measured.unknown if self.measured is not None else 0
            self.measured = Measured(self.now, holds, "0.5", before + 1 if holds is None else 0)


HAPPENINGS: Mapping[str, Callable[[Model, int], None]] = {
    "step": lambda model, _: model.step(),
    "passes": Model.passes,
    "dies": Model.dies,
    "node_ends": Model.node_ends,
    "crashes": Model.crashes,
    "toggles": Model.toggles,
    "deleted": Model.deleted,
    "node_goes_or_comes": Model.node_goes_or_comes,
    "evicted": Model.evicted,
    "allows": Model.allows,
    "measures": Model.measures,
}
_often = ["step"] * 6 + ["node_ends"] * 5 + ["passes"] * 5 + ["measures"] * 2 + ["node_goes_or_comes"] * 2
_often += ["dies", "crashes", "toggles", "deleted", "evicted", "allows"]
_schedules = st.lists(st.tuples(st.sampled_from(_often), st.integers(0, 30)), min_size=10, max_size=80)


@given(_schedules, st.booleans(), st.sampled_from([0, None]))
def test_no_pod_beyond_the_step_without_a_judgement_of_yes(
    schedule: list[tuple[str, int]], metrics: bool, pause: int | None
) -> None:
    digest = "digest" if metrics else ""
    model = Model(run(steps=STEPS, step_pause=pause, judge=JUDGE, max_unavailable=Amount(PODS), metrics_digest=digest))
    for what, which in schedule:
        HAPPENINGS[what](model, which)
        model.step()


@given(_schedules)
def test_a_run_whose_pods_behave_from_now_on_ends(schedule: list[tuple[str, int]]) -> None:
    """Halted if a judgement was no, else done."""
    model = Model(run(steps=STEPS, step_pause=2, judge=JUDGE, max_unavailable=Amount(PODS)))
    for what, which in schedule:
        HAPPENINGS[what](model, which)
    if model.down:
        model.node_goes_or_comes(0)
    for uid in [uid for uid, pod in model.pods.items() if pod.pod.ended]:
        model.deleted(sorted(model.pods).index(uid))
    for _ in range(60):
        model.step()
        for uid, pod in model.pods.items():
            if not pod.ready:
                model.pods[uid] = replace(pod, ready=True, ready_since=model.now)
                model.done_at[uid] = model.now
        for which in range(PODS):
            model.node_ends(3 * which + 1)
        model.now += SECOND
    found = model.plan()
    assert found.end in (End.DONE, End.HALTED), found
    asks = [each for each in model.requests.values() if each.request.status.phase is not RequestPhase.COMPLETED]
    assert not [each for each in asks if each.request.pod_uid in model.pods]
