"""Which version of an object counts: of watches, of own writes, of lists, and of an API server that was restored."""

from dataclasses import dataclass

import pytest

from crrd.kube.store import VersionedStore


@dataclass(frozen=True)
class Object:
    uid: str
    resource_version: str


class Store(VersionedStore[Object]):
    def lists(self, version: str, *objects: Object) -> None:
        """What every user of a store does with a list."""
        for known in self.absent(objects, version):
            self.drop(known.uid, version)
        for each in objects:
            self.put(each)

    def versions(self) -> dict[str, str]:
        return {each.uid: each.resource_version for each in self}


def test_a_watch_never_goes_back() -> None:
    store = Store()
    assert store.put(Object("a", "10"))
    assert not store.put(Object("a", "9"))
    assert store.versions() == {"a": "10"}


@pytest.mark.parametrize("asked", [True, False])
def test_after_a_restore_to_bumped_versions_a_list_counts(asked: bool) -> None:
    """`etcdutl snapshot restore --bump-revision`: objects have their old versions, the list a far higher one."""
    store = Store()
    store.put(Object("a", "10"))
    store.put(Object("gone", "11"))
    store.drop("gone", "12")
    store.put(Object("new", "13"))
    if asked:
        store.expect_list()
    store.lists("1000000012", Object("a", "8"), Object("gone", "7"))
    assert store.versions() == {"a": "8", "gone": "7"}
    assert store.put(Object("a", "1000000013"))
    assert not store.put(Object("new", "13"))


def test_after_a_restore_to_older_versions_a_list_that_was_asked_for_counts() -> None:
    store = Store()
    store.put(Object("a", "10"))
    store.put(Object("gone", "11"))
    store.drop("gone", "12")
    store.put(Object("new", "13"))
    store.expect_list()
    store.lists("9", Object("a", "8"), Object("gone", "7"))
    assert store.versions() == {"a": "8", "gone": "7"}
    assert store.put(Object("a", "10"))
    assert store.put(Object("new", "11"))


def test_what_is_written_while_a_list_is_under_way_counts_more() -> None:
    store = Store()
    for uid in ("a", "b", "c"):
        store.put(Object(uid, "10"))
    store.expect_list()
    store.put(Object("a", "21"))
    store.put(Object("new", "22"))
    store.drop("c", "23")
    store.lists("20", Object("a", "10"), Object("b", "10"), Object("c", "10"))
    assert store.versions() == {"a": "21", "b": "10", "new": "22"}
    store.lists("19", Object("b", "9"))  # nobody said that it is the newest
    assert store.versions() == {"a": "21", "b": "9", "new": "22"}


def test_a_list_from_a_cache_does_not_take_back_a_write() -> None:
    store = Store()
    store.put(Object("a", "10"))
    store.put(Object("b", "11"))
    store.lists("9", Object("a", "8"))
    assert store.versions() == {"a": "10", "b": "11"}


def test_what_a_list_lacks_is_revived_by_a_later_version_alone() -> None:
    store = Store()
    store.put(Object("a", "10"))
    store.drop("a", "11")
    store.expect_list()
    store.lists("12")
    assert not store.put(Object("a", "10"))
    assert store.put(Object("a", "13"))


def test_versions_that_are_no_numbers_all_count() -> None:
    store = Store()
    store.put(Object("a", "x"))
    store.drop("a", "y")
    assert not store.put(Object("a", "y"))
    assert store.put(Object("a", "z"))
    assert store.versions() == {"a": "z"}
    store.lists("x", Object("a", "w"))
    assert store.versions() == {"a": "w"}
