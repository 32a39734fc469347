"""The table of fields is the only one: the CRD, the contract and admission all say what it says."""

from collections.abc import Iterator
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest
import yaml

from crrd.core.admission.rules import Denied
from crrd.core.admission.update import put_back
from crrd.core.api.schema import FIELDS, Field, SetBy, Type
from crrd.core.api.v1alpha1 import parse_request
from crrd.lib.jsonfields import value_at, with_values
from tests.support.admission import USER, new_pod, new_request, reviewed
from tests.tools import schema_tables

CRD = Path(__file__).parents[3] / "manifests" / "base" / "crd.yaml"
TYPES: dict[Type, dict[str, str]] = {
    Type.OBJECT: {"type": "object"},
    Type.LIST: {"type": "array"},
    Type.STRING: {"type": "string"},
    Type.TIME: {"type": "string", "format": "date-time"},
    Type.BOOLEAN: {"type": "boolean"},
    Type.INT32: {"type": "integer", "format": "int32"},
    Type.INT64: {"type": "integer", "format": "int64"},
}
ELSEWHERE = ("properties", "items", "required")
"""Keys of a schema that say which fields there are; the rest of them is about one field."""

Json = dict[str, Any]


def crd_fields() -> dict[str, Json]:
    """The schema of each field in the CRD, by the path that the table has for it."""
    version = yaml.safe_load(CRD.read_text(encoding="utf-8"))["spec"]["versions"][0]
    top = version["schema"]["openAPIV3Schema"]["properties"]
    return dict(_fields({name: top[name] for name in ("spec", "status")}, ""))


def _fields(properties: Json, parent: str) -> Iterator[tuple[str, Json]]:
    for name, schema in properties.items():
        path = f"{parent}{name}{'[]' if schema['type'] == 'array' else ''}"
        yield path, schema
        yield from _fields(schema.get("items", schema).get("properties", {}), f"{path}.")


IN_CRD = crd_fields()


def in_crd(field: Field) -> Json:
    """What the CRD has to say of a field by itself."""
    wanted: Json = {**TYPES[field.type], "description": field.description}
    unit = {Type.STRING: "Length", Type.LIST: "Items"}.get(field.type, "")
    if field.type in (Type.INT32, Type.INT64):
        wanted["minimum"] = field.low
    elif field.low:
        wanted[f"min{unit}"] = field.low
    if field.high:
        wanted[f"max{unit}"] = field.high
    if isinstance(field.default, StrEnum) and field.set_by is SetBy.USER:
        wanted["enum"] = [str(member) for member in type(field.default)]  # a status is not refused for its phase
    return wanted


def test_the_crd_has_the_fields_of_the_table() -> None:
    assert sorted(IN_CRD) == sorted(FIELDS)


@pytest.mark.parametrize("field", FIELDS.values(), ids=lambda field: field.path)
def test_the_crd_says_of_each_field_what_the_table_says(field: Field) -> None:
    schema = IN_CRD[field.path]
    assert {
        key: value for key, value in schema.items() if key not in ELSEWHERE and not key.startswith("x-kubernetes-")
    } == in_crd(field)
    inner = schema.get("items", schema)
    required = [each.name for each in FIELDS.values() if each.parent == field.path and each.required]
    assert inner.get("required", []) == required


def test_the_contract_has_the_table() -> None:
    page = schema_tables.CONTRACT.read_text(encoding="utf-8")
    assert schema_tables.written_in(page) == page, "run python -m tests.tools.schema_tables"
    assert all(f"`{field.path.partition('.')[2]}`" in page for field in FIELDS.values())


OTHER_DEFAULTS: list[tuple[str, Any]] = [
    ("spec.strategy.failurePolicy", "Ignore"),
    ("spec.strategy.orderedRecreate", True),
    ("spec.strategy.minStartedSeconds", 7),
    ("spec.strategy.unreadyGracePeriodSeconds", 3),
    ("spec.activeDeadlineSeconds", 600),
    ("spec.ttlSecondsAfterFinished", 3600),
]


@pytest.fixture(params=OTHER_DEFAULTS, ids=lambda param: param[0])
def other_default(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[str, Any]:
    """Another default in the table."""
    path, value = request.param
    field = FIELDS[path]
    default = type(field.default)(value) if isinstance(field.default, StrEnum) else value
    monkeypatch.setitem(FIELDS, path, replace(field, default=default))
    return path, value


@pytest.mark.parametrize("given", [{}, {"strategy": {}}, {"strategy": {"failurePolicy": ""}}])
def test_a_default_that_was_changed_is_filled_in_and_may_be_left_out(
    other_default: tuple[str, Any], given: Json
) -> None:
    path, value = other_default
    file, pod = new_request(**given), new_pod()
    created = reviewed(file, pod, USER)
    assert not isinstance(created, Denied)
    assert value_at(created, path) == value
    assert reviewed(created, pod, USER) == created
    for applied in (file, {**created, "spec": {**created["spec"], **file["spec"]}}):
        assert put_back(created, applied) == created


def test_a_default_that_was_changed_holds_without_admission(other_default: tuple[str, Any]) -> None:
    path, value = other_default
    assert parse_request(new_request()) == parse_request(with_values(new_request(), {path: value}))


def test_another_value_than_the_default_may_not_be_left_out(other_default: tuple[str, Any]) -> None:
    path, value = other_default
    other = {"Ignore": "Fail", True: False}.get(value, 42)
    created = reviewed(with_values(new_request(), {path: other}), new_pod(), USER)
    assert not isinstance(created, Denied)
    assert put_back(created, new_request())["spec"] != created["spec"]
