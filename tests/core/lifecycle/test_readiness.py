"""The condition's shared message list: order, others' entries, and what is no list at all."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crrd.core.api.gate import NO_CONDITION, Readiness, entries, has_gate, readiness_of
from crrd.core.api.pod import PodMeta
from crrd.core.lifecycle.readiness import acquired, readiness_after, released
from crrd.core.lifecycle.steps import ReleaseUnready

OTHER = {"userAgent": "PodUpdater", "key": "x"}


def test_the_message_is_sorted_and_compact() -> None:
    other = Readiness("False", json.dumps([OTHER, {"userAgent": "Aaa", "key": "z"}]))
    assert acquired(other, "ns/b") == Readiness(
        "False",
        '[{"userAgent":"Aaa","key":"z"},{"userAgent":"ContainerRecreateRequest","key":"ns/b"},'
        '{"userAgent":"PodUpdater","key":"x"}]',
    )


def test_acquiring_twice_is_acquiring_once() -> None:
    once = acquired(NO_CONDITION, "ns/a")
    assert acquired(once, "ns/a") == once


@pytest.mark.parametrize("before", [NO_CONDITION, Readiness("False", "of another program"), Readiness("True")])
def test_what_is_released_already_is_not_written_again(before: Readiness) -> None:
    assert readiness_after(ReleaseUnready(PodMeta("ns", "web", "u"), "ns/a"), before) == before


def test_the_last_release_makes_ready() -> None:
    both = acquired(acquired(Readiness("True"), "ns/b"), "ns/a")
    assert both.keys == ("ns/a", "ns/b")
    assert released(both, "ns/b") == acquired(Readiness("True"), "ns/a")
    assert released(released(both, "ns/b"), "ns/a") == Readiness("True")


def test_entries_of_others_keep_the_pod_unready() -> None:
    mixed = acquired(Readiness("False", json.dumps([OTHER])), "ns/a")
    assert released(mixed, "ns/a") == Readiness("False", '[{"userAgent":"PodUpdater","key":"x"}]')


def test_the_entries_of_others_stay_as_they_are_written() -> None:
    other = '{"userAgent":"größer","key":"k"}'
    assert other in acquired(Readiness("False", f"[{other}]"), "ns/a").message


def test_an_entry_counts_only_while_the_pod_is_unready() -> None:
    assert acquired(NO_CONDITION, "ns/a").acquired_by("ns/a")
    assert not Readiness("True", acquired(NO_CONDITION, "ns/a").message).acquired_by("ns/a")


@pytest.mark.parametrize(
    "message", ["", "not JSON", "{}", "3", "null", "[1, null, {}]", '[{"userAgent":1,"key":"a"}]', "[" * 100_000]
)
def test_a_message_that_is_no_list_has_no_entries(message: str) -> None:
    assert entries(message) == []
    assert released(Readiness("False", message), "ns/a") == Readiness("True")
    assert acquired(Readiness("False", message), "ns/a").keys == ("ns/a",)


@given(st.text() | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps))
def test_whatever_the_message_says_a_release_undoes_an_acquisition(message: str) -> None:
    after = released(acquired(Readiness("False", message), "ns/a"), "ns/a")
    assert "ns/a" not in after.keys
    assert after.status == ("False" if entries(message) else "True")


def test_gate_and_condition_are_read_from_the_pod() -> None:
    pod = {
        "spec": {"readinessGates": [{"conditionType": "other"}, {"conditionType": "KruisePodReady"}]},
        "status": {
            "conditions": [
                {"type": "Ready", "status": "True"},
                {"type": "KruisePodReady", "status": "False", "message": "m"},
            ]
        },
    }
    assert has_gate(pod)
    assert readiness_of(pod) == Readiness("False", "m")
    assert not has_gate({})
    assert readiness_of({"status": {"conditions": [None]}}) == NO_CONDITION
