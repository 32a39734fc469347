"""Finds the shortest schedule that breaks the same invariant: delta debugging over the events of a failed one."""

import re
from collections.abc import Sequence
from dataclasses import replace

from tests.simulation.schedule import Event, Schedule
from tests.simulation.world import Outcome, run


def sort_of(broken: str) -> str:
    """Return the violation without names and numbers. Two runs with the same result count as the same defect."""
    return re.sub(r"\W*\b[a-z]?\d[\w.]*|r\d/\w|\[.*|\{.*|\".*", "", broken.partition(":")[0]).strip()


def shrink(plan: Schedule, outcome: Outcome) -> tuple[Schedule, Outcome]:
    """Return the shortest schedule found that breaks the same as `plan`, and its outcome."""
    wanted = sort_of(outcome.broken)
    best = [plan, outcome]

    def fails(events: Sequence[Event]) -> bool:
        tried = replace(plan, events=tuple(events))
        found = run(tried)
        if found.broken and sort_of(found.broken) == wanted:
            best[:] = [tried, found]
            return True
        return False

    events = list(plan.events)
    size = max(1, len(events) // 2)
    while True:
        start, removed = 0, False
        while start < len(events):
            rest = events[:start] + events[start + size :]
            if fails(rest):
                events, removed = rest, True
            else:
                start += size
        if size == 1 and not removed:
            break
        size = max(1, size // 2)
    shortest, how = best
    assert isinstance(shortest, Schedule)
    assert isinstance(how, Outcome)
    return shortest, how


def story(plan: Schedule, *, shortest: bool) -> tuple[str, bool]:
    """Return a run as text, and whether it passed. A failed one can be shrunk first (`shortest`)."""
    outcome = run(plan)
    if outcome.broken and shortest:
        plan, outcome = shrink(plan, outcome)
    head = outcome.broken or "all is well"
    world = [f"  {pod}" for pod in plan.setup.pods]
    events = [f"  {event}" for event in plan.events]
    told = [f"seed {plan.seed}: {head}", "the world:", *world, "what happens:", *events, "the story:", *outcome.story]
    return "\n".join(told), not outcome.broken
