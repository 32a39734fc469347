"""The part of an object that one container uses, and its changes."""

from datetime import UTC, datetime, timedelta

import pytest

from crrd.core.config.objects import data_hash, missing
from crrd.core.config.parts import Part, PartChange, parts_of, read_change
from crrd.core.config.references import Kind, Reference, Use

CM = Kind.CONFIG_MAP
START = datetime(2026, 1, 1, tzinfo=UTC)


def use(how: Use, *keys: str, without: str = "") -> Reference:
    return Reference(CM, "web", how, frozenset(keys) or None, without=frozenset(without))


@pytest.mark.parametrize(
    ("uses", "keys"),
    [
        ([use(Use.ENV, "b"), use(Use.ENV, "a"), use(Use.SUB_PATH, "a")], ("a", "b")),
        ([use(Use.ENV, "a"), use(Use.VOLUME)], ()),
        ([use(Use.ENV_FROM), use(Use.VOLUME)], ()),
        ([use(Use.ENV_FROM)], ("data.*",)),
        ([use(Use.ENV_FROM, without="ab")], ("data.*", "!a", "!b")),
        ([use(Use.ENV_FROM, without="ab"), use(Use.ENV, "b")], ("data.*", "!a", "b")),
        ([use(Use.ENV_FROM, without="ab"), use(Use.ENV_FROM, without="bc")], ("data.*", "!b")),
        ([use(Use.ENV_FROM), use(Use.VOLUME, "logo")], ("data.*", "logo")),
        ([use(Use.VOLUME, without="ab"), use(Use.ENV, "b")], ("*", "!a")),
        ([use(Use.VOLUME, without="a"), use(Use.ENV_FROM)], ()),
    ],
)
def test_all_uses_of_an_object_by_a_container_are_one_part(uses: list[Reference], keys: tuple[str, ...]) -> None:
    part = Part(CM, "web", keys)
    assert parts_of(uses) == {part: tuple(uses)}
    assert parts_of(part.uses) == {part: part.uses}
    obj = {"data": {"a": "1", "b": "2", "c": "3"}, "binaryData": {"logo": "AA=="}}
    for gone in ("", "a", "b", "c"):
        now = {**obj, "data": {key: value for key, value in obj["data"].items() if key != gone}}
        assert data_hash(now, part.uses) == data_hash(now, uses), "as of what a container had that is gone"
    assert not any(missing(use, None) for use in part.uses)


def test_a_use_without_keys_is_no_part() -> None:
    none = Reference(CM, "web", Use.ENV, frozenset(), frozenset("a"))
    assert parts_of([none]) == {}
    assert parts_of([use(Use.ENV, "a"), Reference(Kind.SECRET, "web", Use.VOLUME)]).keys() == {
        Part(CM, "web", ("a",)),
        Part(Kind.SECRET, "web"),
    }


WEB = Part(CM, "web", ("a", "b"))


@pytest.mark.parametrize(
    "change",
    [
        PartChange(WEB, START),
        PartChange(Part(Kind.SECRET, "tls"), START),
        PartChange(WEB, START, START - timedelta(seconds=9)),
    ],
)
def test_a_change_is_written_and_read(change: PartChange) -> None:
    assert read_change(str(change)) == change
    assert str(PartChange(WEB, START)) == "ConfigMap web (a,b) 2026-01-01T00:00:00Z"


@pytest.mark.parametrize(
    "written",
    [
        "",
        "ConfigMap web",
        "Pod web * 2026-01-01T00:00:00Z",
        "Secret web * soon",
        "Secret a * 2026-01-01T00:00:00Z soon",
    ],
)
def test_a_malformed_change_is_none(written: str) -> None:
    assert read_change(written) is None


def test_a_container_misses_a_change_of_its_own_part_if_it_started_too_early() -> None:
    change = PartChange(WEB, START)
    assert change.misses(WEB, START)
    assert not change.misses(WEB, START + timedelta(seconds=1))
    assert not change.misses(Part(CM, "web"), START)
    reverted = PartChange(WEB, START, START - timedelta(seconds=9))
    assert reverted.misses(WEB, START - timedelta(seconds=9))
    assert not reverted.misses(WEB, START - timedelta(seconds=10)), "it never had other data"
