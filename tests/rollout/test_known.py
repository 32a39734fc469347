"""What a watch tells and what this process has written, in whatever order the two come."""

from typing import Any

import pytest

from crrd.kube.resources import REQUESTS
from crrd.rollout.known import Known, Version


@pytest.fixture
def changes() -> list[int]:
    return []


@pytest.fixture
def known(changes: list[int]) -> Known[str]:
    return Known(lambda obj: str(obj["value"]), lambda: changes.append(1))


def obj(uid: str, version: int, value: str) -> dict[str, Any]:
    return {"metadata": {"uid": uid, "resourceVersion": str(version)}, "value": value}


def test_the_newest_version_stays(known: Known[str], changes: list[int]) -> None:
    known.put(known.parse(obj("a", 2, "new")))
    known.put(known.parse(obj("a", 1, "old")))
    assert (list(known), len(changes)) == (["new"], 1)
    known.put(known.parse(obj("a", 3, "new")))
    assert len(changes) == 1, "nothing that is read is different"


def test_a_list_drops_what_it_would_have(known: Known[str]) -> None:
    with_command = known.handler()
    known.put(known.parse(obj("written", 7, "written")))
    known.put(known.parse(obj("gone", 3, "gone")))
    with_command.listed((known.parse(obj("a", 2, "a")),), "5")
    assert sorted(known) == ["a", "written"], "what was written after the list stays"


def test_what_has_gone_does_not_come_back_by_a_late_answer(known: Known[str], changes: list[int]) -> None:
    with_command = known.handler()
    with_command.changed(known.parse(obj("a", 1, "a")))
    with_command.deleted(known.parse(obj("a", 4, "a")))
    known.put(known.parse(obj("a", 3, "a")))
    assert list(known) == []
    known.put(known.parse(obj("a", 5, "again")))
    assert list(known) == ["again"], "it had left the selection only"
    with_command.deleted(Version("unknown", "9", "x"))
    assert len(changes) == 3


def test_what_is_known_to_be_gone(known: Known[str]) -> None:
    for uid in ("a", "b"):
        known.put(known.parse(obj(uid, 1, uid)))
    known.forget(lambda value: value == "a")
    assert list(known) == ["b"]


def test_a_selection_names_all_of_it(known: Known[str]) -> None:
    found = known.selection(REQUESTS, "shop", labels="a=b", fields="metadata.name=c")
    assert (found.resource, found.namespace, found.label_selector, found.field_selector) == (
        REQUESTS,
        "shop",
        "a=b",
        "metadata.name=c",
    )
