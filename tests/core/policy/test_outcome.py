"""What the end of a run means for its policy."""

import pytest

from crrd.core.policy.outcome import Outcome, outcome_of
from crrd.core.rollout.phases import End, Stage
from crrd.core.rollout.plan import Plan
from crrd.core.rollout.rows import Row
from crrd.core.rollout.waits import Skip


def row(pod: str, stage: Stage = Stage.DONE, skip: Skip | None = None) -> Row:
    return Row(pod, pod, Stage.SKIPPED if skip is not None else stage, skip=skip)


DONE, FAILED, AWAY = row("done"), row("failed", Stage.FAILED), row("away", Stage.PUT_OFF)
UNSERVED, WAITS = row("unserved", skip=Skip.NO_DAEMON), row("waits", skip=Skip.NOT_STARTED)


@pytest.mark.parametrize(
    ("end", "rows", "expected"),
    [
        (End.DONE, [DONE], Outcome(End.DONE)),
        (End.DONE, [DONE, row("other", skip=Skip.NO_CONTAINER)], Outcome(End.DONE)),
        (End.DONE, [DONE, row("new", skip=Skip.NEW)], Outcome(End.DONE)),
        (End.DONE, [DONE, WAITS], Outcome(End.LEFT_OUT, left=("waits",))),
        (End.DONE, [DONE, UNSERVED, WAITS], Outcome(End.LEFT_OUT, away=("unserved",), left=("waits",))),
        (End.LEFT_OUT, [DONE, WAITS], Outcome(End.LEFT_OUT, left=("waits",))),
        (End.PUT_OFF, [DONE, AWAY], Outcome(End.PUT_OFF, away=("away",))),
        (End.PUT_OFF, [DONE, AWAY, WAITS], Outcome(End.PUT_OFF, away=("away",), left=("waits",))),
        (End.FAILED, [FAILED, UNSERVED], Outcome(End.FAILED, away=("unserved",))),
        (End.FAILED, [DONE, UNSERVED], Outcome(End.FAILED, away=("unserved",))),
        (End.HALTED, [DONE], Outcome(End.HALTED)),
    ],
)
def test_what_a_run_has_come_to(end: End, rows: list[Row], expected: Outcome) -> None:
    assert outcome_of(Plan(tuple(rows), end=end), gives_image=False) == expected


@pytest.mark.parametrize(
    ("rows", "expected"),
    [([DONE, UNSERVED], End.LEFT_OUT), ([FAILED, UNSERVED], End.FAILED), ([DONE, WAITS], End.FAILED)],
)
def test_a_template_that_cannot_follow_without_node_daemons_is_no_failure(rows: list[Row], expected: End) -> None:
    assert outcome_of(Plan(tuple(rows), end=End.FAILED), gives_image=True).end is expected
