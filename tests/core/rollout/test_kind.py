"""A kind of run that the planner does not know: it says what it needs, and nothing else changes."""

from datetime import datetime

from crrd.core.api.pod import PodContainer
from crrd.core.api.types import RequestPhase
from crrd.core.rollout.kind import NO_ACTIONS, Choice, Kind, LastStep, Prepared
from crrd.core.rollout.phases import End, RunPhase, Stage
from crrd.core.rollout.plan import plan_of
from crrd.core.rollout.requests import RunRequest
from crrd.core.rollout.rows import Row
from crrd.core.rollout.state import Member, World
from crrd.core.rollout.waits import NO_WAIT, Skip
from tests.support.rollouts import NOW, asked, chosen, members, recreated, run, stages, succeeded


class OnlyTheFirst(Kind):
    """Does something to one pod, and has nothing but what each kind must bring."""

    def skip(self, member: Member, container: PodContainer, failed: RunRequest | None) -> Skip | None:
        """See Kind."""
        return None if member.pod.name == "web-0" else Skip.FRESH

    def prepare(self, rows: tuple[Row, ...], choice: Choice, now: datetime) -> Prepared:
        """See Kind."""
        return Prepared(tuple(choice.chosen))


class WithAnEnd(OnlyTheFirst):
    """Has a step after the last pod, and an obstacle."""

    why, waits = "", "almost"

    @property
    def obstacle(self) -> str:
        """See Kind."""
        return self.why

    def last_step(self, rows: tuple[Row, ...], end: End | None) -> LastStep | None:
        """See Kind."""
        return LastStep(RunPhase.RELEASING, wait=self.waits) if end is End.DONE else None


def test_a_kind_that_brings_the_least_is_planned_to_its_end() -> None:
    of, pods = run(), members(2)
    first = plan_of(OnlyTheFirst(World(pods), of), NOW)
    assert (chosen(first), first.actions, first.phase) == (["web-0"], NO_ACTIONS, RunPhase.RESTARTING)
    assert stages(first)["web-1"] == Stage.SKIPPED
    under_way = plan_of(OnlyTheFirst(World(pods, (asked(of, pods[0], RequestPhase.RECREATING),)), of), NOW)
    assert (stages(under_way)["web-0"], under_way.end) == (Stage.RECREATING, None)
    kind = OnlyTheFirst(World((recreated(pods[0]), pods[1]), (succeeded(of, pods[0]),)), of)
    done = plan_of(kind, NOW)
    assert (done.end, done.wait_before_end, done.actions, kind.report(), kind.planned_writes()) == (
        End.DONE,
        NO_WAIT,
        NO_ACTIONS,
        "",
        (),
    )
    assert not kind.leaves_objects, "its requests finish by themselves"
    assert (kind.shown(), kind.completed(), kind.holder, kind.rescues) == ((kind.world, of), of, "", False)


def test_what_a_kind_adds_is_part_of_the_plan() -> None:
    of, pods = run(), members(1)
    kind = WithAnEnd(World((recreated(pods[0]),), (succeeded(of, pods[0]),)), of)
    last = plan_of(kind, NOW)
    assert (last.end, last.phase, last.wait.why) == (None, RunPhase.RELEASING, "almost")
    kind.waits = ""
    assert (plan_of(kind, NOW).phase, plan_of(kind, NOW).wait) == (RunPhase.RELEASING, NO_WAIT)
    kind.why = "somebody else has changed it"
    assert (plan_of(kind, NOW).end, plan_of(kind, NOW).message) == (End.FAILED, "somebody else has changed it")
