"""What is printed of a run without a terminal, and what its last line says."""

import json
from dataclasses import replace

import pytest

from crrd.core.rollout.phases import End, Stage
from crrd.core.rollout.plan import Plan
from crrd.core.rollout.preview import make_preview
from crrd.core.rollout.rows import Row
from crrd.core.rollout.state import World
from crrd.core.rollout.waits import Wait
from crrd.rollout import display as shown
from crrd.rollout.carry_out import conclude
from crrd.rollout.jsonlines import JsonLines
from crrd.rollout.text import TextLines
from tests.support.rollouts import NOW, asked, budget, member, members, planned, run

LOGS = "kubectl logs web-2 -c app -n shop"


def unready(seconds: int, why: str = "HTTP 503") -> Plan:
    """A plan whose only pod waits for its readiness."""
    of, pod = run(), member("web-2")
    head = "container app (3fa9) is running, but not ready"
    wait = Wait(f"{head} for {seconds}s: {why}", LOGS, f"{head}: {why}")
    row = Row("web-2", "uid", Stage.RECREATING, wait, "node-a", pod)
    return Plan((replace(row, request=asked(of, pod)),))


def test_what_is_waited_for_is_printed_when_it_is_news(capsys: pytest.CaptureFixture[str]) -> None:
    display = TextLines()
    for plan in (unready(5), unready(6), unready(7, "HTTP 500")):
        display.show(plan)
    first, second = capsys.readouterr().out.splitlines()
    assert first.endswith(
        f"web-2  node-a  recreating  - container app (3fa9) is running, but not ready for 5s: HTTP 503 ({LOGS})"
    )
    assert second.endswith(f"recreating  - container app (3fa9) is running, but not ready for 7s: HTTP 500 ({LOGS})")


def test_a_time_out_says_what_was_waited_for() -> None:
    message = conclude(replace(unready(45), end=End.TIMED_OUT), "crrd recreate resume web")
    waits = f"web-2 container app (3fa9) is running, but not ready for 45s: HTTP 503 ({LOGS})"
    assert f"; last waited for: {waits}; to continue: crrd recreate resume web" in message


def test_a_wait_that_goes_on_is_told_of_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    blocked = planned(World(members(3), budgets=(budget(0),)))
    asks = "PodDisruptionBudget guard allows no disruption now (kubectl describe pdb guard -n default)"
    display, lines = TextLines(), JsonLines(lambda: NOW)
    for each in (display, lines):
        each.show(blocked)
        each.show(blocked)
    first, second = capsys.readouterr().out.splitlines()
    assert first.endswith(f" s  waiting: {asks}")
    assert json.loads(second)["command"] == "kubectl describe pdb guard -n default"
    monkeypatch.setattr(shown, "REMIND_SECONDS", 0.0)
    for each in (display, lines):
        each.show(blocked)
    text, machine = capsys.readouterr().out.splitlines()
    assert text.endswith(f" s  still waiting: web-0 and 2 more pods: {asks}")
    assert json.loads(machine)["message"] == f"web-0 and 2 more pods: {asks}"
    display.show(planned(World(members(1), budgets=(budget(0),))))
    assert capsys.readouterr().out.endswith(f" s  still waiting: web-0: {asks}\n")
    display.show(unready(40))
    assert (
        capsys.readouterr()
        .out.splitlines()[-1]
        .endswith(f"still waiting: web-2 container app (3fa9) is running, but not ready for 40s: HTTP 503 ({LOGS})")
    )
    display.show(planned(World(members(1), (asked(run(), member("web-0")),))))
    said = capsys.readouterr().out.splitlines()[-1]
    assert said.endswith(f"still waiting: web-0 requested (crrd explain default/{run().request_name('uid-web-0')})")


def test_a_dry_run_says_of_each_target_what_concerns_it(capsys: pytest.CaptureFixture[str]) -> None:
    display = JsonLines(lambda: NOW, dry_run=True, of_several=True)
    preview = make_preview(World(members(1)), run(), NOW)
    for target, note in (("db", "nothing to do"), ("web", "by patches"), ("api", "nothing to do")):
        display.about(target)
        display.print_line(note)
        if target == "web":
            display.print_preview(target, preview, {}, of_several=True)
    display.close()
    found = json.loads(capsys.readouterr().out)
    assert [(each["target"], len(each["batches"]), each["notes"]) for each in found] == [
        ("db", 0, ["nothing to do"]),
        ("web", 1, ["by patches"]),
        ("api", 0, ["nothing to do"]),
    ]
