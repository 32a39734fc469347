"""The table at the end, and the story of a broken promise."""

from dataclasses import replace

from tests.soak_cluster.judge import judge
from tests.soak_cluster.record import Fault, Kind, Part
from tests.soak_cluster.report import Tally
from tests.soak_cluster.test_judge import GOOD, SIDE

FAULT = Fault(95.0, 99.0, Kind.FREEZE, Part.KUBELET)


def test_the_table_counts_rounds_and_faults() -> None:
    tally = Tally()
    for _ in range(2):
        tally.add(replace(GOOD, faults=(FAULT, replace(FAULT, until=101.0))), [])
    assert list(tally.lines()) == [
        "| rounds, and hours | 2, 0.33 |",
        "| requests | 2 |",
        "| their containers: Succeeded, Failed | 2, 0 |",
        "| containers stopped, and crashed | 2, 0 |",
        "| SIGSTOP: kubelet | 4; at most 5 s until the open requests had ended |",
        "| broken promises | 0 |",
    ]


def test_a_broken_promise_has_the_story_of_its_pod() -> None:
    record = replace(GOOD, faults=(FAULT,), instances=(*GOOD.instances, replace(SIDE, ended=103.0)))
    broken, tally = judge(record), Tally()
    tally.add(record, broken)
    tally.add(record, broken)  # seen again in the next round
    ((what, *lines),) = (text.splitlines() for text in tally.broken.values())
    assert what == "each stop belongs to a request: side (b-1) was stopped, and no request meant it"
    assert [line.split("  ")[2] for line in lines] == [
        "SIGSTOP of kubelet for 4.0 s",
        "first is created for app",
        "app (a-1) writes: hook",
        "web-1 is not ready",
        "app (a-1) writes: hooked",
        "first/app isKilled",
        "app (a-1) writes: term",
        "side (b-1) has ended",
        "app (a-1) has ended",
        "app (a-2) is started",
        "app (a-2) writes: start two",
        "first is Completed",
        "first/app is Succeeded",
        "web-1 is ready",
    ]
