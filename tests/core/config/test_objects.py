"""When the data of ConfigMaps and Secrets changed, and whether a container could start with them."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from crrd.core.api.pod import PodContainer
from crrd.core.config.objects import Change, ConfigObject, changes, data_hash, missing, read_object
from crrd.core.config.references import Kind, Reference, Use

CREATED, EDITED, LATER = (f"2026-01-01T{hour}:00:00Z" for hour in ("10", "11", "12"))
ALL = Reference(Kind.CONFIG_MAP, "web", Use.ENV_FROM)
FILES = Reference(Kind.CONFIG_MAP, "web", Use.VOLUME)


def key(name: str, *, optional: bool = False) -> Reference:
    names = frozenset({name})
    return Reference(Kind.CONFIG_MAP, "web", Use.ENV, names, frozenset() if optional else names, optional)


def files(*names: str) -> Reference:
    return replace(FILES, keys=frozenset(names), required=frozenset(names))


WITHOUT_B = replace(ALL, without=frozenset("b"))


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
            (web(entry(EDITED, binaryData="c"), binaryData={"c": ""}), files("c"), EDITED),
            (web(entry(EDITED, stringData="ab")), key("a"), EDITED),
            (web(entry(EDITED, data="a"), entry("soon", data="ab")), key("a"), EDITED),
        ],
    )
    def test_is_when_its_owner_last_wrote(self, obj: dict[str, Any], reference: Reference, expected: str) -> None:
        assert read_object(obj).changed_at(reference) == at(expected)

    def test_a_key_that_was_taken_away_or_has_no_owner_counts_from_the_last_change(self) -> None:
        obj = read_object(web(entry(EDITED, data="a")))
        assert obj.changed_at(key("gone", optional=True)) == at(EDITED)
        assert obj.changed_at(key("b")) == at(EDITED)

    def test_a_reference_without_keys_never_changes(self) -> None:
        none = Reference(Kind.CONFIG_MAP, "web", Use.SUB_PATH, frozenset())
        assert read_object(web(entry(EDITED, data="a"))).changed_at(none) is None

    def test_a_write_of_binary_data_alone_changes_no_variable(self) -> None:
        obj = read_object(web(entry(EDITED, data="a"), entry(LATER, binaryData="logo"), binaryData={"logo": ""}))
        assert obj.changed_at(ALL) == at(EDITED)
        assert obj.changed_at(FILES) == at(LATER)

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

    def test_objects_of_which_the_node_keeps_older_data_have_not_changed(self) -> None:
        container, known = (
            PodContainer("app", started_at=CREATED),
            {ALL.object: read_object(web(entry(LATER, data="a")))},
        )
        assert changes((ALL,), container, known)
        assert changes((ALL,), container, known, {ALL.object}) == ()


@pytest.mark.parametrize(
    ("reference", "found", "expected"),
    [
        (key("a"), read_object(web()), ""),
        (key("c"), read_object(web()), "ConfigMap web has no key c"),
        (key("c", optional=True), read_object(web()), ""),
        (key("c"), None, "ConfigMap web not found"),
        (key("c", optional=True), None, ""),
        (ALL, read_object(web()), ""),
        (files("c"), read_object(web(binaryData={"c": ""})), ""),
        (
            key("c"),
            read_object(web(binaryData={"c": ""})),
            "ConfigMap web has no key c in data, and a variable cannot have binary data",
        ),
        (key("c"), read_object(web(stringData={"c": "3"})), "ConfigMap web has no key c"),
    ],
)
def test_what_kubelet_could_not_start_without(reference: Reference, found: ConfigObject | None, expected: str) -> None:
    assert missing(reference, found) == expected


ENV, CONFIG_MAP_GO, SECRET_GO = (
    "pkg/kubelet/kubelet_pods.go",
    "pkg/volume/configmap/configmap.go",
    "pkg/volume/secret/secret.go",
)


class TestHash:
    @pytest.mark.parametrize(
        ("rule", "source", "reference", "changed", "expected"),
        [
            ("a variable has its key", ENV, key("a"), {"data": {"a": "3", "b": "2"}}, True),
            ("other keys do not count", ENV, key("a"), {"data": {"a": "1", "b": "3"}}, False),
            ("a key may be removed", ENV, key("a", optional=True), {"data": {"b": "2"}}, True),
            ("envFrom has all keys", ENV, ALL, {"data": {"a": "1", "b": "3"}}, True),
            ("a new key is a new variable", ENV, ALL, {"data": {"a": "1", "b": "2", "c": "3"}}, True),
            ("replaced variables do not count", ENV, WITHOUT_B, {"data": {"a": "1", "b": "3"}}, False),
            ("variables have no binary data", ENV, ALL, {"binaryData": {"logo": "AA=="}}, False),
            ("nor has a variable from a key", ENV, key("a"), {"data": {"b": "2", "a": "1"}, "binaryData": {}}, False),
            ("a volume has binary data", CONFIG_MAP_GO, FILES, {"binaryData": {"logo": "AA=="}}, True),
            ("so may an item", CONFIG_MAP_GO, files("logo"), {"binaryData": {"logo": "AA=="}}, True),
            ("an item has its key", SECRET_GO, files("a"), {"data": {"a": "1", "b": "3"}}, False),
            ("stringData is write-only", SECRET_GO, FILES, {"stringData": {"a": "3"}}, False),
            ("labels are no data", CONFIG_MAP_GO, FILES, {"metadata": {"labels": {"a": "b"}}}, False),
            ("immutable is no data", CONFIG_MAP_GO, FILES, {"immutable": True}, False),
            ("type is no data", SECRET_GO, FILES, {"type": "Opaque"}, False),
        ],
    )
    def test_changes_with_what_kubelet_gives(
        self, rule: str, source: str, reference: Reference, changed: dict[str, Any], *, expected: bool
    ) -> None:
        differs = data_hash(web(), [reference]) != data_hash(web(**changed), [reference])
        assert differs is expected, f"{rule} ({source})"

    def test_metadata_and_order_do_not_count(self) -> None:
        turned = web(entry(LATER, data="ab"), data={"b": "2", "a": "1"})
        assert data_hash(web(), [ALL]) == data_hash(turned, [ALL])
        assert len(data_hash(web(), [ALL])) == 64

    def test_binary_data_is_other_data(self) -> None:
        assert data_hash(web(), [files("a")]) != data_hash(web(data={}, binaryData={"a": "1"}), [files("a")])

    @pytest.mark.parametrize("reference", [ALL, FILES, key("c", optional=True), replace(files("c"), optional=True)])
    def test_an_optional_object_that_does_not_exist_gives_what_an_empty_one_gives(self, reference: Reference) -> None:
        absent = data_hash({}, [reference])
        assert absent == data_hash(web(data=None), [reference]) == data_hash(web(data={}), [reference])
        assert absent != data_hash(web(data={"c": "3"}), [reference])

    def test_another_release_finds_the_same(self) -> None:
        """Policies keep hashes in their status. If a release had others, all containers would count as outdated."""
        found = data_hash({"data": {"b": "2", "a": "1"}}, [files("a"), files("b")])
        assert found == "695248622ee5d4f37fa06edfa2cdb02a9e7d60c32488b4a3519db0e8ea90392e"

    def test_all_uses_of_a_container_count_together(self) -> None:
        uses, before = [key("a"), files("logo")], data_hash(web(), [key("a"), files("logo")])
        assert before == data_hash(web(data={"a": "1", "b": "3"}, binaryData={"c": "AA=="}), uses)
        assert before != data_hash(web(binaryData={"logo": "AA=="}), uses)
