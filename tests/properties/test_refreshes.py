"""Files of pods are new when their containers are restarted, whatever happens between the annotation and the restart.

The model has kubelet, which reads a file again 0.7 s after a new annotation, edits, refused patches, and processes that
die and so forget which pods they have annotated. Its time is in tenths of a second.
"""

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from crrd.core.config.objects import ConfigObject
from crrd.core.config.references import Kind, Reference, Use
from crrd.core.rollout.restart import FileActions, FileRefresh, Files
from crrd.core.rollout.run import Amount
from crrd.core.rollout.state import Member, World
from tests.support.rollouts import members, planned, run

CHANGED = datetime(2026, 1, 1, 11, 30, tzinfo=UTC)
FILE = Reference(Kind.CONFIG_MAP, "web", Use.SUB_PATH)
RUN = run("app", objects=("ConfigMap web () 2026-01-01T11:45:00Z",), max_unavailable=Amount(2))
SYNC = 7
ENOUGH = 3  # Refreshes of a pod after which an older file is accepted, because its data changes all the time


@dataclass
class Model:
    """Two pods that wait for their restart."""

    now: int = 0
    edits: list[int] = field(default_factory=lambda: [0])
    """Times of all edits."""
    refused: bool = False  # Whether the API server refuses patches of pods
    pods: dict[str, Member] = field(
        default_factory=lambda: {each.pod.uid: replace(each, config={"app": (FILE,)}) for each in members(2)}
    )
    synced: dict[str, int] = field(default_factory=dict)  # By pod: when kubelet reads the file
    refreshes: dict[str, tuple[int, FileRefresh]] = field(default_factory=dict)
    """By pod: what this process knows of its last refresh, and since when."""

    def has_new_file(self, uid: str) -> bool:
        """Whether the file is read now, and there was no edit since."""
        return self.edits[-1] <= self.synced.get(uid, -1) <= self.now

    def carry_out(self) -> None:
        """One round of a process: the plan's annotations and restarts."""
        at = CHANGED + timedelta(seconds=len(self.edits))
        config = {FILE.object: ConfigObject(frozenset({"LOG"}), at, {"LOG": at})}
        known = {uid: replace(each, age=(self.now - since) / 10) for uid, (since, each) in self.refreshes.items()}
        plan = planned(World(tuple(self.pods.values()), config=config, extra=Files(known)), RUN)
        for row, token in plan.actions.due if isinstance(plan.actions, FileActions) else ():
            before = known[row.uid].count if row.uid in known else 0
            made = FileRefresh(token, 0.0, before + 1, "forbidden" if self.refused else "")
            self.refreshes[row.uid] = self.now, made
            if not self.refused and self.pods[row.uid].refresh_token != token:
                self.pods[row.uid] = replace(self.pods[row.uid], refresh_token=token)
                self.synced[row.uid] = self.now + SYNC
        for row in plan.create:
            last = known[row.uid]
            assert self.has_new_file(row.uid) or last.problem or last.count >= ENOUGH
            del self.pods[row.uid]


STEPS = st.one_of(
    st.tuples(st.just("edit"), st.just(0)),
    st.tuples(st.just("wait"), st.integers(1, 25)),
    st.tuples(st.just("round"), st.just(0)),
    st.tuples(st.just("round"), st.just(0)),
    st.tuples(st.just("die"), st.just(0)),
    st.tuples(st.just("refuse"), st.integers(0, 1)),
)


@given(st.lists(STEPS, max_size=30))
@settings(max_examples=200, deadline=None)
def test_files_are_new_at_the_restart_and_no_pod_waits_for_ever(steps: list[tuple[str, int]]) -> None:
    model = Model()
    for step, number in steps:
        match step:
            case "edit":
                model.now += 1
                model.edits.append(model.now)
            case "wait":
                model.now += number
            case "round":
                model.carry_out()
            case "die":
                model.refreshes.clear()
            case "refuse":
                model.refused = bool(number)
    for _ in range(4):
        model.carry_out()
        model.now += 20
    assert not model.pods, "after the last edit, one refresh is enough"
