"""What a watch tells and what this process has written, in whatever order the two come."""

from typing import Any

import pytest

from crrd.kube.informer import Objects, Values, Version


@pytest.fixture
def changes() -> list[int]:
    return []


@pytest.fixture
def known(changes: list[int]) -> Values[str]:
    return Values(lambda obj: str(obj["value"]), lambda: changes.append(1))


def obj(uid: str, version: int, value: str) -> dict[str, Any]:
    return {"metadata": {"uid": uid, "resourceVersion": str(version)}, "value": value}


def test_the_newest_version_stays(known: Values[str], changes: list[int]) -> None:
    known.put(known.parse(obj("a", 2, "new")))
    known.put(known.parse(obj("a", 1, "old")))
    assert (list(known.values()), len(changes)) == (["new"], 1)
    known.put(known.parse(obj("a", 3, "new")))
    assert len(changes) == 1, "nothing that is read is different"


def test_a_list_drops_what_it_would_have(known: Values[str]) -> None:
    known.put(known.parse(obj("written", 7, "written")))
    known.put(known.parse(obj("gone", 3, "gone")))
    known.replace((known.parse(obj("a", 2, "a")),), "5")
    assert sorted(known.values()) == ["a", "written"], "what was written after the list stays"


def test_what_has_gone_does_not_come_back_by_a_late_answer(known: Values[str], changes: list[int]) -> None:
    known.put(known.parse(obj("a", 1, "a")))
    known.delete(known.parse(obj("a", 4, "a")))
    known.put(known.parse(obj("a", 3, "a")))
    assert list(known.values()) == []
    known.put(known.parse(obj("a", 5, "again")))
    assert list(known.values()) == ["again"], "it had left the selection only"
    known.delete(Version("unknown", "9", "x"))
    assert len(changes) == 3


def test_groups_follow_their_objects() -> None:
    changes: list[tuple[str, str]] = []

    def changed(before: Version[str] | None, after: Version[str] | None) -> None:
        changes.append((before.value if before else "", after.value if after else ""))

    objects = Objects[Version[str]](
        changed, group=lambda each: each.value[:1], wanted=lambda each: each.value != "done"
    )
    for uid, version, value in (("a", "1", "x1"), ("b", "2", "x2"), ("a", "3", "y1"), ("c", "4", "done")):
        objects.put(Version(uid, version, value))
    assert {group: [each.uid for each in objects.of(group)] for group in objects.groups} == {"x": ["b"], "y": ["a"]}
    objects.put(Version("b", "5", "done"))
    objects.put(Version("b", "4", "x2"))
    objects.delete(Version("a", "6", "y1"))
    assert (list(objects.groups), list(objects.of("x"))) == ([], [])
    assert changes == [("", "x1"), ("", "x2"), ("x1", "y1"), ("x2", ""), ("y1", "")]


def test_a_late_version_that_is_not_wanted_deletes_nothing() -> None:
    known = Objects[Version[str]](lambda *_: None, wanted=lambda each: each.value != "done")
    known.put(Version("a", "5", "open again"))
    known.put(Version("a", "4", "done"))
    assert [each.value for each in known] == ["open again"]
    known.put(Version("a", "6", "done"))
    assert list(known) == []


def test_the_owner_decides_what_of_an_older_version_is_kept() -> None:
    def merge(before: Version[str], new: Version[str], own: bool) -> Version[str]:
        return new if own else Version(new.uid, new.resource_version, before.value)

    known = Objects[Version[str]](lambda *_: None, merge=merge)
    known.put(Version("a", "1", "first"))
    known.put(Version("a", "2", "of another client"))
    assert [(each.resource_version, each.value) for each in known] == [("2", "first")]
    known.put(Version("a", "3", "ours"), own=True)
    assert [each.value for each in known] == ["ours"]
