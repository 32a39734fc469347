"""The local API server's store: its invariant, its history, what watchers see through a selector."""

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from crrd_localnode.api.errors import ApiError
from crrd_localnode.api.store import ADDED, DELETED, MODIFIED, Changed, Event, Store, Stored
from tests.support.faulty_api import FaultyStore

KEY = "/things"


def obj(name: str, **labels: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "ns", "labels": labels}}


def is_red(candidate: dict[str, Any]) -> bool:
    return bool(candidate["metadata"]["labels"].get("colour") == "red")


def test_versions_count_over_all_keys() -> None:
    store = Store()
    one = store.put(KEY, None, obj("a"))
    two = store.put("/others", None, obj("a"))
    assert (one.revision, two.revision, store.revision) == (1, 2, 2)
    assert one.obj["metadata"]["resourceVersion"] == "1"
    gone = store.delete(KEY, one)
    assert gone.obj["metadata"]["resourceVersion"] == "3"
    assert store.get(KEY, ("ns", "a")) is None
    assert [stored.name for _, stored in store.everything()] == [("ns", "a")]


def test_a_write_based_on_the_past_is_refused() -> None:
    store = Store()
    old = store.put(KEY, None, obj("a"))
    with pytest.raises(Changed):
        store.put(KEY, None, obj("a"))
    store.put(KEY, old, obj("a", colour="red"))
    with pytest.raises(Changed):
        store.put(KEY, old, obj("a"))
    with pytest.raises(Changed):
        store.delete(KEY, old)
    assert store.revision == 2


def test_text_and_lines_are_made_once() -> None:
    store = Store()
    stored = store.put(KEY, None, obj("a"))
    (event,) = store.since(KEY, 0)
    assert stored.text is stored.text
    assert event.line(ADDED) is event.line(ADDED)
    assert event.line(ADDED).startswith(b'{"type":"ADDED","object":{"metadata":')
    with pytest.raises(ValueError, match="an event of nothing"):
        Event(KEY, 1, None, None).object(DELETED)


@pytest.mark.parametrize(
    ("before", "after", "seen"),
    [
        (None, {"colour": "red"}, ADDED), (None, {}, None), ({}, {"colour": "red"}, ADDED), ({}, {}, None),
        ({"colour": "red"}, {"colour": "red", "n": "1"}, MODIFIED), ({"colour": "red"}, {}, DELETED),
        ({"colour": "red"}, None, DELETED), ({}, None, None),
    ],
)  # fmt: skip
def test_events_through_a_selector(
    before: dict[str, str] | None, after: dict[str, str] | None, seen: str | None
) -> None:
    old = None if before is None else Stored(obj("a", **before), 1)
    new = None if after is None else Stored(obj("a", **after), 2)
    event = Event(KEY, 2, old, new)
    assert event.seen_through(is_red) == seen
    assert event.seen_through(None) == (DELETED if new is None else ADDED if old is None else MODIFIED)


def test_subscribers_hear_of_their_key_until_they_leave() -> None:
    store = Store()
    heard: list[tuple[str, int]] = []
    leave = store.subscribe(KEY, lambda event: heard.append(("key", event.revision)))
    store.subscribe(None, lambda event: heard.append(("all", event.revision)))
    store.put(KEY, None, obj("a"))
    store.put("/others", None, obj("a"))
    leave()
    store.put(KEY, None, obj("b"))
    assert heard == [("key", 1), ("all", 1), ("all", 2), ("all", 3)]


class Histories(RuleBasedStateMachine):
    """A watcher that begins anywhere in the kept history ends where a list of now ends."""

    def __init__(self) -> None:
        super().__init__()
        self.store = FaultyStore()
        self.store.kept = 5
        self.past: dict[int, dict[str, int]] = {0: {}}

    def _remember(self) -> None:
        self.past[self.store.revision] = self._now()

    def _now(self) -> dict[str, int]:
        return {name: stored.revision for (_, name), stored in self.store.objects(KEY).items()}

    @rule(name=st.sampled_from("abc"))
    def put(self, name: str) -> None:
        self.store.put(KEY, self.store.get(KEY, ("ns", name)), obj(name))
        self._remember()

    @rule()
    def put_elsewhere(self) -> None:
        self.store.put("/others", self.store.get("/others", ("ns", "x")), obj("x"))
        self._remember()

    @precondition(lambda self: self.store.objects(KEY))
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.store.objects(KEY))))
        stored = self.store.get(KEY, name)
        assert stored is not None
        self.store.delete(KEY, stored)
        self._remember()

    @rule()
    def compact(self) -> None:
        self.store.compact()

    @invariant()
    def the_kept_history_leads_to_now(self) -> None:
        floor = self.store.floor(KEY)
        for revision, state in self.past.items():
            if revision < floor:
                with pytest.raises(ApiError) as refused:
                    self.store.since(KEY, revision)
                assert refused.value.code == 410
                continue
            then = self.store.at(KEY, revision)
            assert {name: stored.revision for (_, name), stored in then.items()} == state
            replayed = dict(state)
            for event in self.store.since(KEY, revision):
                if event.new is not None:
                    replayed[event.new.name[1]] = event.new.revision
                elif event.old is not None:
                    del replayed[event.old.name[1]]
            assert replayed == self._now()


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
