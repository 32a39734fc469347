"""The local API server's view of a CRD's schema, and what the project's own CRD says."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from crrd_localnode.api.crds import field_path, kinds_of, load_crd
from crrd_localnode.api.schema import Schema

CRD = load_crd()
ROOT: dict[str, Any] = CRD["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
KIND, OTHER_VERSION = kinds_of(CRD)


def spec(**fields: Any) -> dict[str, Any]:
    return {"spec": {"podName": "web", "containers": [{"name": "app"}], **fields}}


def causes(obj: dict[str, Any], schema: Schema | None = None) -> list[tuple[str, str, str]]:
    return [(cause.field, cause.reason, cause.message) for cause in (schema or Schema(ROOT)).check(obj, None)]


@pytest.mark.parametrize(
    "obj",
    [
        spec(),
        spec(strategy={}),
        spec(strategy={"failurePolicy": "Ignore", "orderedRecreate": True, "forceRecreate": True,
                       "terminationGracePeriodSeconds": 0, "unreadyGracePeriodSeconds": 5, "minStartedSeconds": 1}),
        spec(activeDeadlineSeconds=3, ttlSecondsAfterFinished=0),
        spec(containers=[{"name": "a", "statusContext": {"containerID": "containerd://x", "restartCount": 0},
                          "preStop": {"exec": {"command": ["x"]}}, "ports": [{"containerPort": 1}]}]),
        {**spec(), "status": {"phase": "Completed", "completionTime": "2026-01-01T00:00:00Z", "message": "",
                              "containerRecreateStates": [{"name": "a", "phase": "Failed", "isKilled": False}],
                              "conditions": [{"type": "PreRecreateGrace", "status": "True"}]}},
    ],
)  # fmt: skip
def test_requests_that_are_good(obj: dict[str, Any]) -> None:
    assert causes(obj) == []
    assert Schema(ROOT).complete(obj) == (obj, [])


@pytest.mark.parametrize(
    ("obj", "field", "reason", "message"),
    [
        ({}, "spec", "FieldValueRequired", "Required value"),
        ({"spec": {"containers": [{"name": "a"}]}}, "spec.podName", "FieldValueRequired", "Required value"),
        (spec(podName=""), "spec.podName", "FieldValueInvalid",
         'Invalid value: "": spec.podName in body should be at least 1 chars long'),
        (spec(podName=7), "spec.podName", "FieldValueTypeInvalid",
         'Invalid value: "integer": spec.podName in body must be of type string: "integer"'),
        (spec(podName="x" * 254), "spec.podName", "FieldValueTooLong", "Too long: may not be more than 253 bytes"),
        (spec(containers=[]), "spec.containers", "FieldValueInvalid",
         "Invalid value: 0: spec.containers in body should have at least 1 items"),
        (spec(containers=[{"name": f"c{n}"} for n in range(257)]), "spec.containers", "FieldValueTooMany",
         "Too many: 257: must have at most 256 items"),
        (spec(containers=[{}]), "spec.containers[0].name", "FieldValueRequired", "Required value"),
        (spec(containers=[{"name": "a"}, {"name": "b"}, {"name": "a"}]), "spec.containers[2]", "FieldValueDuplicate",
         'Duplicate value: {"name":"a"}'),
        (spec(containers=[{"name": "a", "statusContext": {"containerID": "x"}}]),
         "spec.containers[0].statusContext.restartCount", "FieldValueRequired", "Required value"),
        (spec(strategy={"failurePolicy": "fail"}), "spec.strategy.failurePolicy", "FieldValueNotSupported",
         'Unsupported value: "fail": supported values: "Fail", "Ignore"'),
        (spec(strategy={"terminationGracePeriodSeconds": -1}), "spec.strategy.terminationGracePeriodSeconds",
         "FieldValueInvalid", ("Invalid value: -1: spec.strategy.terminationGracePeriodSeconds in body should be "
         "greater than or equal to 0")),
        (spec(strategy={"minStartedSeconds": 2**31}), "spec.strategy.minStartedSeconds", "FieldValueInvalid",
         "Invalid value: 2147483648: spec.strategy.minStartedSeconds in body must be of type int32: 2147483648"),
        (spec(strategy={"orderedRecreate": "yes"}), "spec.strategy.orderedRecreate", "FieldValueTypeInvalid",
         'Invalid value: "string": spec.strategy.orderedRecreate in body must be of type boolean: "string"'),
        (spec(activeDeadlineSeconds=2), "spec.activeDeadlineSeconds", "FieldValueInvalid",
         "Invalid value: 2: spec.activeDeadlineSeconds in body should be greater than or equal to 3"),
        (spec(activeDeadlineSeconds=True), "spec.activeDeadlineSeconds", "FieldValueTypeInvalid",
         'Invalid value: "boolean": spec.activeDeadlineSeconds in body must be of type integer: "boolean"'),
        (spec(activeDeadlineSeconds=2**63), "spec.activeDeadlineSeconds", "FieldValueInvalid",
         f"Invalid value: {2**63}: spec.activeDeadlineSeconds in body must be of type int64: {2**63}"),
        (spec(ttlSecondsAfterFinished=-1), "spec.ttlSecondsAfterFinished", "FieldValueInvalid",
         "Invalid value: -1: spec.ttlSecondsAfterFinished in body should be greater than or equal to 0"),
        ({**spec(), "status": {"completionTime": "2026-01-01"}}, "status.completionTime", "FieldValueTypeInvalid",
         'Invalid value: "2026-01-01": status.completionTime in body must be of type date-time: "2026-01-01"'),
    ],
)  # fmt: skip
def test_requests_that_are_not(obj: dict[str, Any], field: str, reason: str, message: str) -> None:
    assert causes(obj) == [(field, reason, message)]


def test_unchanged_parts_are_not_checked_again_and_the_spec_is_immutable() -> None:
    schema = Schema(ROOT)
    bad = {**spec(podName=""), "status": {"phase": "Pending"}}
    assert schema.check({**bad, "status": {"phase": "Recreating"}}, bad) == []
    changed = schema.check(spec(podName="other"), spec())
    assert [(cause.field, cause.reason) for cause in changed] == [("spec", "FieldValueInvalid")]
    two = spec(containers=[{"name": "a"}, {"name": "b"}])
    assert len(schema.check(spec(containers=[{"name": "b"}, {"name": "a"}]), two)) == 1


def test_nulls_and_unknown_fields_are_dropped() -> None:
    sent = {
        "metadata": {"name": "r", "anything": 1},
        "spec": {"podName": "web", "strategy": None, "containers": [{"name": "a", "x": 1, "preStop": {"y": None}}]},
        "x": 1,
        "status": {"conditions": [{"z": 1}]},
    }
    kept, dropped = Schema(ROOT).complete(sent)
    assert kept == {
        "metadata": {"name": "r", "anything": 1},
        "spec": {"podName": "web", "containers": [{"name": "a", "preStop": {"y": None}}]},
        "status": {"conditions": [{"z": 1}]},
    }
    assert dropped == ["spec.containers[0].x", "x"]


LEAST = {"rule": "duration(self) >= duration('60s')", "message": "must be at least 60s"}
LIKE = {"rule": "self.matches(r'^a+$')", "message": "must be of a"}
EITHER = {"rule": "has(self.a) != has(self.b)", "message": "must have either a or b"}
NEEDS = {"rule": "!has(self.a) || has(self.b)", "message": "a needs b"}
SHORTER = {
    "rule": "!has(self.a) || !has(self.in.b) || duration(self.in.b) < duration(self.a)",
    "message": "a must be longer than b",
}
INNER = {"type": "object", "properties": {"b": {"type": "string"}}}
BOTH = {"a": {"type": "integer"}, "b": {"type": "integer"}}
OTHER = {
    "type": "object",
    "properties": {
        "spec": {
            "type": "object",
            "properties": {
                "size": {"type": "integer", "default": 3, "maximum": 9},
                "count": {"type": "integer", "format": "int32"},
                "ratio": {"type": "number", "minimum": 0, "exclusiveMinimum": True},
                "port": {"x-kubernetes-int-or-string": True},
                "note": {"type": "string", "nullable": True, "enum": ["a"]},
                "name": {"type": "string", "pattern": "^a+$", "not": {"enum": ["aaa"]}},
                "tags": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
                "free": {"type": "object", "additionalProperties": {"type": "integer"}},
                "any": {"type": "object", "additionalProperties": True},
                "least": {"type": "string", "x-kubernetes-validations": [LEAST]},
                "like": {"type": "string", "x-kubernetes-validations": [LIKE]},
                "either": {"type": "object", "properties": BOTH, "x-kubernetes-validations": [EITHER]},
                "span": {"type": "object", "properties": {"a": {"type": "string"}, "in": INNER},
                         "x-kubernetes-validations": [SHORTER]},
                "needs": {"type": "object", "properties": BOTH, "x-kubernetes-validations": [NEEDS]},
                "several": {"type": "array", "items": {"type": "object", "properties": BOTH,
                            "x-kubernetes-validations": [EITHER]}},
                "one": {"oneOf": [{"required": ["x"]}, {"required": ["y"]}], "type": "object",
                        "x-kubernetes-preserve-unknown-fields": True},
            },
        }
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("given", "fields"),
    [
        ({"span": {"a": "1m", "in": {"b": "59s"}}}, []),
        ({"span": {"a": "1m"}}, []),
        ({"span": {"a": "1m", "in": {"b": "60s"}}}, ["spec.span"]),
        ({"port": 1, "ratio": 0.5, "name": "aa", "tags": ["x"], "free": {"a": 1}, "one": {"x": 1}}, []),
        ({"port": "http", "note": None}, []),
        ({"port": 1.5}, ["spec.port"]),
        ({"ratio": 0}, ["spec.ratio"]),
        ({"size": 10}, ["spec.size"]),
        ({"count": 2.0**31 - 1}, []),
        ({"count": 2.0**31}, ["spec.count"]),
        ({"note": "b"}, ["spec.note"]),
        ({"name": "b"}, ["spec.name"]),
        ({"name": "aaa"}, ["spec.name"]),
        ({"name": "aa\n"}, ["spec.name"]),
        ({"least": "1h", "either": {"a": 1}}, []),
        ({"least": "59s"}, ["spec.least"]),
        ({"least": "90"}, ["spec.least"]),
        ({"like": "aa"}, []),
        ({"like": "aa\n"}, ["spec.like"]),
        ({"least": 90}, ["spec.least", "spec.least"]),
        ({"either": {}, "needs": {"b": 1}}, ["spec.either"]),
        ({"needs": {"a": 1}}, ["spec.needs"]),
        ({"several": [{"a": 1}, {"a": 1, "b": 1}]}, ["spec.several[1]"]),
        ({"tags": ["x", "x"]}, ["spec.tags"]),
        ({"free": {"a": "b"}}, ["spec.free.a"]),
        ({"one": {}}, ["spec.one"]),
        ({"size": []}, ["spec.size"]),
    ],
)
def test_other_schemas(given: dict[str, Any], fields: list[str]) -> None:
    assert [field for field, _, _ in causes({"spec": given}, Schema(OTHER))] == fields


def test_defaults_and_maps() -> None:
    schema = Schema(OTHER)
    assert schema.complete({"spec": {"note": None, "size": None}}) == ({"spec": {"note": None, "size": 3}}, [])
    assert schema.complete({"spec": {"size": 4, "free": {"a": 1}, "any": {"b": {}}}})[0]["spec"]["any"] == {"b": {}}
    assert schema.complete({}) == ({}, [])


def _walk(schema: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, inner in schema.get("properties", {}).items():
        yield from _walk(inner, f"{path}.{name}")
    if "items" in schema:
        yield from _walk(schema["items"], f"{path}[]")


def test_the_definition_is_structural_and_explains_every_field() -> None:
    for path, schema in _walk(ROOT, ""):
        assert schema.get("type"), path
        assert path in ("", ".metadata") or path.endswith("[]") or schema.get("description"), path
        if schema["type"] == "array":
            assert "items" in schema, path
        assert set(schema.get("required", ())) <= schema.get("properties", {}).keys(), path


def test_rules_have_bounded_costs() -> None:
    """CEL's estimated cost needs a bound for all that a rule reads."""
    spec_schema = ROOT["properties"]["spec"]
    containers = spec_schema["properties"]["containers"]
    assert containers["x-kubernetes-list-type"] == "map"
    assert containers["x-kubernetes-list-map-keys"] == ["name"]
    for path, schema in _walk(spec_schema, "spec"):
        if schema["type"] == "array":
            assert "maxItems" in schema, path
        if schema["type"] == "string":
            assert "maxLength" in schema or "enum" in schema, path
    assert all(rule["message"] for rule in spec_schema["x-kubernetes-validations"])


def test_columns() -> None:
    obj = {
        "metadata": {"labels": {"crr.apps.kruise.io/node-name": "n1"}, "creationTimestamp": "2020-01-01T00:00:00Z"},
        **spec(),
    }
    assert [column.name for column in KIND.columns] == ["PHASE", "POD", "NODE", "ACTION", "AGE"]
    phase, pod, node, action, age = (column.value(obj, datetime.now(UTC)) for column in KIND.columns)
    assert (phase, pod, node, action) == (None, "web", "n1", None)
    assert age.endswith(("y", "d"))
    assert KIND.columns[4].value({}, datetime.now(UTC)) is None


@pytest.mark.parametrize(
    ("path", "names"),
    [(".a.b", ("a", "b")), ("a", ("a",)), (r".k\.x/y.z", ("k.x/y", "z"))],
)
def test_paths(path: str, names: tuple[str, ...]) -> None:
    assert field_path(path) == names


def test_a_column_of_numbers_and_one_that_leads_nowhere() -> None:
    crd = load_crd()
    columns = [
        {"name": "N", "type": "integer", "jsonPath": ".n", "priority": 1},
        {"name": "ALL", "type": "string", "jsonPath": ".l[4].n"},
    ]
    version = {**crd["spec"]["versions"][0], "additionalPrinterColumns": columns, "subresources": {}}
    version["selectableFields"] = [{"jsonPath": ".spec.podName"}]
    (kind,) = kinds_of(
        {**crd, "spec": {**crd["spec"], "versions": [version, {**version, "served": False, "storage": False}]}}
    )
    obj = {"n": 3, "l": [{"n": 1}, {"n": 2}]}
    assert [column.value(obj, datetime.now(UTC)) for column in kind.columns] == [3, None]
    assert not kind.status
    assert kind.fields == {"spec.podName": ("spec", "podName")}
