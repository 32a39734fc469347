"""What of the live table is left on a narrow terminal."""

import io

import pytest
from rich.console import Console

from crrd.core.api.types import RecreateState, RequestPhase, StatePhase
from crrd.core.rollout.phases import Stage
from crrd.core.rollout.run import Amount
from crrd.core.rollout.state import World
from crrd.rollout.table import _ORDER, Terminal
from tests.support.rollouts import asked, container, member, planned, recreated, run, succeeded

STATES = (RecreateState("app", StatePhase.RECREATING, "CrashLoopBackOff"),)


def test_each_stage_has_one_place_among_the_rows() -> None:
    assert sorted(_ORDER) == sorted(Stage)


@pytest.mark.parametrize(
    ("columns", "lines"),
    [
        (
            40,
            [
                "pod           phase       s    waits for",
                "web…b8-bbx7k  done",
                "web…b8-bcx7k  recreating  0    CrashLoo…",
                "web…b8-bdx7k  waiting          2 pods a…",
            ],
        ),
        (
            60,
            [
                "pod                  node        phase       s    waits for",
                "web-6c7f9d5b8-bbx7k  local-node  done",
                "web-6c7f9d5b8-bcx7k  local-node  recreating  0    CrashLoop…",
                "web-6c7f9d5b8-bdx7k  local-node  waiting          2 pods ar…",
            ],
        ),
        (
            80,
            [
                "pod                  node        new           phase       s    waits for",
                "web-6c7f9d5b8-bbx7k  local-node  app-2         done",
                "web-6c7f9d5b8-bcx7k  local-node                recreating  0    CrashLoopBackOff",
                "web-6c7f9d5b8-bdx7k  local-node                waiting          2 pods are unre…",
            ],
        ),
        (
            100,
            [
                "pod                  node        old           new           phase       s    waits for",
                "web-6c7f9d5b8-bbx7k  local-node  app-1         app-2         done",
                "web-6c7f9d5b8-bcx7k  local-node  app-1                       recreating  0    CrashLoopBackOff",
                "web-6c7f9d5b8-bdx7k  local-node                              waiting          2 pods are unready or…",
            ],
        ),
    ],
)
def test_what_fits(columns: int, lines: list[str]) -> None:
    of = run(max_unavailable=Amount(2))
    first, second, third = (member(f"web-6c7f9d5b8-b{letter}x7k", node="local-node") for letter in "bcd")
    under_way = asked(of, second, RequestPhase.RECREATING, states=STATES)
    down = member("down", container(running=False), ready=False)
    world = World((recreated(first), second, third, down), (succeeded(of, first), under_way))
    shown = Terminal()
    shown._console = Console(width=columns, height=3, file=io.StringIO())
    shown.show(planned(world, of))
    with shown._console.capture() as printed:
        shown._console.print(shown._picture(planned(world, of)))
    assert [line.rstrip() for line in printed.get().splitlines()[: len(lines)]] == lines


@pytest.mark.parametrize(
    ("columns", "rows"),
    [
        (35, ["pod           phase       waits for", "our…eb-bbx7k  waiting"]),
        (
            80,
            ["pod                                       node", "our-long-comp…ployment-for-the-web-bbx7k  local-node"],
        ),
        (200, ["pod", "our-long-company-name-and-its-even-longer-deployment-for-the-web-bbx7k  local-node"]),
    ],
)
def test_names_have_the_width_that_there_is(columns: int, rows: list[str]) -> None:
    name = "our-long-company-name-and-its-even-longer-deployment-for-the-web"
    of = run()
    shown = Terminal()
    shown._console = Console(width=columns, height=3, file=io.StringIO())
    members = tuple(member(f"{name}-b{letter}x7k", node="local-node") for letter in "bcd")
    with shown._console.capture() as printed:
        shown._console.print(shown._picture(planned(World(members, (asked(of, members[2]),)), of)))
    lines = printed.get().splitlines()
    assert all(line.startswith(row) for line, row in zip(lines, rows, strict=False))
    assert len({line.split()[0] for line in lines[1:4]}) == 3, "they can be told from each other"
