"""Which requests a round looks at."""

from math import inf

from crrd.node.agenda import LOOKS, Agenda

FIRST, SECOND = (True, "2026-01-01T00:00:00Z", "a"), (True, "2026-01-01T00:00:01Z", "b")


def looked_at(agenda: Agenda, now: float = 0.0) -> list[str]:
    """Look at all that is due."""
    due = agenda.due(now)
    agenda.done(due)
    return due


def next_at(agenda: Agenda) -> float | None:
    return agenda.next_at


def test_the_first_to_serve_is_always_looked_at() -> None:
    agenda = Agenda()
    agenda.change("b", SECOND)
    assert "b" in looked_at(agenda)
    agenda.change("a", FIRST)
    assert set(looked_at(agenda)) >= {"a", "b"}
    assert looked_at(agenda) == ["a"]
    agenda.change("a", None)
    assert set(looked_at(agenda)) >= {"a", "b"}
    assert looked_at(agenda) == ["b"]


def test_a_place_that_has_changed_counts_once() -> None:
    agenda = Agenda()
    for place in (FIRST, (True, "2027-01-01T00:00:00Z", "a"), None, FIRST, SECOND):
        agenda.change("a", place)
    agenda.change("c", (True, "2026-01-01T00:00:00Z", "c"))
    looked_at(agenda)
    assert looked_at(agenda) == ["c"]


def test_the_others_are_looked_at_after_a_change_or_at_their_time() -> None:
    agenda = Agenda()
    assert next_at(agenda) is None
    agenda.add_later("x", 20.0)
    agenda.add_later("y", 10.0)
    looked_at(agenda)
    assert next_at(agenda) == 10.0
    assert looked_at(agenda, 9.9) == []
    assert looked_at(agenda, 10.0) == ["y"]
    agenda.add("z")
    assert next_at(agenda) == -inf
    assert looked_at(agenda, 20.0) == ["z", "x"]
    assert next_at(agenda) is None


def test_many_changes_are_looked_at_in_the_order_in_which_they_came() -> None:
    agenda, names = Agenda(), [f"{number:03}" for number in range(LOOKS + 1)]
    for name in names:
        agenda.add(name)
    assert looked_at(agenda)[:2] == names[:2]
    agenda.add(names[0])
    assert looked_at(agenda) == [names[-1], names[0]]
