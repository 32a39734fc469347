"""What is printed of a run without a terminal, and what its last line says."""

from dataclasses import replace

import pytest

from crrd.core.rollout.plan import Plan
from crrd.core.rollout.standing import Row, Stage
from crrd.rollout.display import Display
from crrd.rollout.ending import conclude
from tests.support.rollouts import asked, member, run

LOGS = "kubectl logs web-2 -c app -n shop"


def unready(seconds: int, why: str = "HTTP 503") -> Plan:
    """A plan whose only pod waits for its readiness."""
    of, pod = run(), member("web-2")
    head = "app: running as 3fa9, not ready"
    row = Row("web-2", "uid", Stage.RECREATING, f"{head} for {seconds}s: {why}", LOGS, f"{head}: {why}", "node-a", pod)
    return Plan((replace(row, request=asked(of, pod)),))


def test_what_is_waited_for_is_printed_when_it_is_news(capsys: pytest.CaptureFixture[str]) -> None:
    display = Display()
    for plan in (unready(5), unready(6), unready(7, "HTTP 500")):
        display.show(plan)
    first, second = capsys.readouterr().out.splitlines()
    assert first.endswith(f"web-2  node-a  recreating  - app: running as 3fa9, not ready for 5s: HTTP 503 ({LOGS})")
    assert second.endswith(f"recreating  - app: running as 3fa9, not ready for 7s: HTTP 500 ({LOGS})")


def test_a_time_out_says_what_was_waited_for() -> None:
    ending = conclude(unready(45), "crrd recreate resume web", timed_out=True)
    waits = f"web-2 app: running as 3fa9, not ready for 45s: HTTP 503 ({LOGS})"
    assert f"; last waited for: {waits}; to continue: crrd recreate resume web" in ending.message
