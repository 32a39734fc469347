"""When the data of ConfigMaps and Secrets changed, and whether a container could start with them."""

from datetime import UTC, datetime
from typing import Any

import pytest

from crrd.core.api.pod import PodContainer
from crrd.core.config.objects import Change, ConfigObject, changes, data_hash, missing, read_object
from crrd.core.config.references import Kind, Reference, Use

CREATED, EDITED, LATER = (f"2026-01-01T{hour}:00:00Z" for hour in ("10", "11", "12"))
ALL = Reference(Kind.CONFIG_MAP, "web", Use.ENV_FROM)


def key(name: str, *, optional: bool = False) -> Reference:
    names = frozenset({name})
    return Reference(Kind.CONFIG_MAP, "web", Use.ENV, names, frozenset() if optional else names, optional)


def at(timestamp: str) -> datetime:
    return datetime.fromisoformat(timestamp).astimezone(UTC)


def entry(time: str, **fields: str | list[str]) -> dict[str, Any]:
    owned: dict[str, Any] = {f"f:{name}": {f"f:{key}": {} for key in names} for name, names in fields.items()}
    return {"manager": "kubectl", "operation": "Update", "time": time, "fieldsType": "FieldsV1", "fieldsV1": owned}


def web(*entries: dict[str, Any], **fields: Any) -> dict[str, Any]:
    meta = {"name": "web", "creationTimestamp": CREATED, "managedFields": list(entries)}
    return {"kind": "ConfigMap", "metadata": meta, "data": {"a": "1", "b": "2"}, **fields}


class TestWhenDataChanged:
    @pytest.mark.parametrize(
        ("obj", "reference", "expected"),
        [
            (web(), ALL, CREATED),
            (web(entry(EDITED, data="ab")), ALL, EDITED),
            (web(entry(EDITED, data="a"), entry(LATER, data="b")), ALL, LATER),
            (web(entry(EDITED, data="a"), entry(LATER, data="b")), key("a"), EDITED),
            (web(entry(EDITED, data="ab"), entry(LATER, metadata=["labels"])), ALL, EDITED),
            (web(entry(EDITED, data="ab"), entry(LATER, data="a")), key("a"), LATER),
            (web(entry(EDITED, binaryData="a"), binaryData={"a": ""}), key("a"), EDITED),
            (web(entry(EDITED, data="a"), entry("soon", data="ab")), key("a"), EDITED),
        ],
    )
    def test_is_when_its_owner_last_wrote(self, obj: dict[str, Any], reference: Reference, expected: str) -> None:
        assert read_object(obj).changed_at(reference) == at(expected)

    def test_a_key_that_was_taken_away_or_has_no_owner_counts_from_the_last_change(self) -> None:
        obj = read_object(web(entry(EDITED, data="a")))
        assert obj.changed_at(key("gone", optional=True)) == at(EDITED)
        assert obj.changed_at(key("b")) == at(EDITED)

    def test_a_reference_without_keys_counts_from_the_last_change(self) -> None:
        none = Reference(Kind.CONFIG_MAP, "web", Use.SUB_PATH, frozenset())
        assert read_object(web(entry(EDITED, data="a"))).changed_at(none) == at(EDITED)

    def test_bad_input_tells_nothing(self) -> None:
        junk = {"metadata": {"managedFields": [7, {"fieldsV1": 7, "time": 7}], "creationTimestamp": 7}, "data": 7}
        assert read_object(junk) == ConfigObject(frozenset())


KNOWN = {ALL.object: read_object(web(entry(EDITED, data="a"), entry(LATER, data="b")))}


class TestStale:
    @pytest.mark.parametrize(
        ("started", "expected"),
        [
            ("2026-01-01T10:30:00Z", [(ALL, LATER), (key("a"), EDITED)]),
            ("2026-01-01T11:00:02Z", [(ALL, LATER), (key("a"), EDITED)]),
            ("2026-01-01T11:00:03Z", [(ALL, LATER)]),
            ("2026-01-01T12:00:03Z", []),
            ("", []),
        ],
    )
    def test_is_what_started_before_a_change(self, started: str, expected: list[tuple[Reference, str]]) -> None:
        container = PodContainer("app", started_at=started)
        found = changes((key("a"), ALL), container, KNOWN)
        assert found == tuple(Change(reference, at(moment)) for reference, moment in expected)

    def test_objects_that_are_gone_or_not_known_have_not_changed(self) -> None:
        container = PodContainer("app", started_at=CREATED)
        assert changes((ALL,), container, {}) == changes((ALL,), container, {ALL.object: None}) == ()


@pytest.mark.parametrize(
    ("reference", "found", "expected"),
    [
        (key("a"), read_object(web()), ""),
        (key("c"), read_object(web()), "ConfigMap web has no key c"),
        (key("c", optional=True), read_object(web()), ""),
        (key("c"), None, "ConfigMap web not found"),
        (key("c", optional=True), None, ""),
        (ALL, read_object(web()), ""),
    ],
)
def test_what_kubelet_could_not_start_without(reference: Reference, found: ConfigObject | None, expected: str) -> None:
    assert missing(reference, found) == expected


class TestHash:
    def test_is_of_the_used_keys_alone(self) -> None:
        before = web()
        edited = web(data={"b": "3", "a": "1"})
        assert data_hash(before, key("a")) == data_hash(edited, key("a"))
        assert data_hash(before, ALL) != data_hash(edited, ALL)
        assert len(data_hash(before, ALL)) == 64

    def test_metadata_and_order_do_not_count(self) -> None:
        turned = web(entry(LATER, data="ab"), data={"b": "2", "a": "1"})
        assert data_hash(web(), ALL) == data_hash(turned, ALL)

    def test_binary_data_is_other_data(self) -> None:
        assert data_hash(web(), key("a")) != data_hash(web(data={}, binaryData={"a": "1"}), key("a"))

    def test_nothing_is_as_good_as_an_empty_map(self) -> None:
        assert data_hash(web(), key("c")) == data_hash(web(data=None), ALL) == data_hash(web(data={}), ALL)
