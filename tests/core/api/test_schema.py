"""Admission and the reader do what the table of fields says. tests/repo/test_fields.py compares CRD and docs."""

from dataclasses import replace
from enum import StrEnum
from typing import Any

import pytest

from crrd.core.admission.rules import Denied
from crrd.core.admission.update import put_back
from crrd.core.api.schema import FIELDS
from crrd.core.api.v1alpha1 import parse_request
from crrd.lib.jsonfields import value_at, with_values
from tests.support.admission import USER, new_pod, new_request, reviewed

Json = dict[str, Any]

PATH = "spec.strategy.minStartedSeconds"
OTHER_DEFAULTS: list[tuple[str, Any]] = [
    ("spec.strategy.failurePolicy", "Ignore"),
    ("spec.strategy.orderedRecreate", True),
    (PATH, 7),
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


@pytest.mark.parametrize("given", [0, 5])
def test_a_number_that_is_given_is_not_the_default(monkeypatch: pytest.MonkeyPatch, given: int) -> None:
    monkeypatch.setitem(FIELDS, PATH, replace(FIELDS[PATH], default=7))
    assert parse_request(with_values(new_request(), {PATH: given})).strategy.min_started_seconds == given


def test_another_value_than_the_default_may_not_be_left_out(other_default: tuple[str, Any]) -> None:
    path, value = other_default
    other = {"Ignore": "Fail", True: False}.get(value, 42)
    created = reviewed(with_values(new_request(), {path: other}), new_pod(), USER)
    assert not isinstance(created, Denied)
    assert put_back(created, new_request())["spec"] != created["spec"]
