"""The readers of JSON that anybody may have written."""

from types import MappingProxyType
from typing import Any

import pytest

from crrd.lib.jsonfields import INT64_MAX, condition, decimal, mapping

READY = {"type": "Ready", "status": "True"}
SCHEDULED = {"type": "PodScheduled", "status": "True"}


@pytest.mark.parametrize(
    ("obj", "found"),
    [
        ({"status": {"conditions": [SCHEDULED, READY]}}, READY),
        ({"status": {"conditions": [READY, {**READY, "status": "False"}]}}, READY),  # the first of two
        ({"status": {"conditions": [None, "Ready", 3, [], READY]}}, READY),
        ({"status": {"conditions": [SCHEDULED]}}, {}),
        ({"status": {"conditions": [{"type": ["Ready"]}, {"status": "True"}]}}, {}),
        ({"status": {"conditions": []}}, {}),
        ({"status": {"conditions": {"type": "Ready"}}}, {}),
        ({"status": {"conditions": "Ready"}}, {}),
        ({"status": {"conditions": None}}, {}),
        ({"status": {}}, {}),
        ({"status": []}, {}),
        ({"status": None}, {}),
        ({"conditions": [READY]}, {}),
        ({}, {}),
        ("Ready", {}),
        (None, {}),
    ],
)
def test_a_condition_is_found_by_its_type_whatever_else_the_object_holds(obj: object, found: dict[str, Any]) -> None:
    assert condition(obj, "Ready") == found


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ({"a": 1}, {"a": 1}),
        (MappingProxyType({"a": 1}), {"a": 1}),
        ({}, {}),
        (None, {}),
        ([("a", 1)], {}),
        ("a", {}),
        (0, {}),
    ],
)
def test_only_a_json_object_is_read_as_one(value: object, found: dict[str, Any]) -> None:
    assert mapping(value) == found


@pytest.mark.parametrize(
    ("given", "found"),
    [
        *(("0", 0), ("12", 12), ("007", 7), (str(INT64_MAX), INT64_MAX)),
        *((odd, None) for odd in ("", "-1", "+1", "1.5", " 1", "1_0", "٣", "²", "x", str(INT64_MAX + 1), "9" * 5000)),
    ],
)
def test_only_digits_are_a_number(given: str, found: int | None) -> None:
    assert decimal(given) == found


def test_a_number_may_have_another_limit() -> None:
    assert (decimal("100", 100), decimal("101", 100)) == (100, None)
