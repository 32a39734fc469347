"""What pull pods request, and which LimitRanges refuse it."""

from typing import Any

import pytest

from crrd.core.rollout.change import ImageChange
from crrd.core.rollout.image.pull import pull_pod
from crrd.core.rollout.image.resources import (
    PULL_RESOURCES,
    read_resources,
    refused_by,
    resources_of,
)
from tests.support.rollouts import run

LIKE: dict[str, Any] = {"spec": {"containers": [{"name": "app"}]}}


def requested(given: str = "") -> dict[str, Any]:
    made = pull_pod(run("app", image=ImageChange("i:2"), pull_resources=given), "node-a", "i:2", LIKE)
    found: dict[str, Any] = made["spec"]["containers"][0]["resources"]
    return found


@pytest.mark.parametrize(
    ("given", "resources"),
    [
        ("", {"cpu": "10m", "memory": "32Mi"}),
        ("cpu=50m", {"cpu": "50m", "memory": "32Mi"}),
        ("memory=64Mi,ephemeral-storage=16Mi", {"cpu": "10m", "memory": "64Mi", "ephemeral-storage": "16Mi"}),
        ("cpu=50m,memory=64Mi,cpu=1", {"cpu": "1", "memory": "64Mi"}),
        ("example.com/gpu=1,,x", {"cpu": "10m", "memory": "32Mi"}),
    ],
)
def test_what_a_pull_pod_requests_is_its_limit(given: str, resources: dict[str, str]) -> None:
    """So no LimitRange can find their ratio too large. What somebody wrote on a request adds no other resource."""
    assert requested(given) == {"limits": resources, "requests": resources}


@pytest.mark.parametrize("given", ["", PULL_RESOURCES, "cpu=1", "memory=1G,cpu=50m", "ephemeral-storage=1Gi"])
def test_resources_as_a_user_gives_them(given: str) -> None:
    assert read_resources(given) == given
    assert resources_of(given).items() >= {tuple(each.split("=")) for each in given.split(",") if given}


@pytest.mark.parametrize(
    "given",
    ["cpu", "cpu=", "cpu=0", "cpu=0.5", "cpu=-1", "cpu=1,", "cpu=1,cpu=2", "gpu=1", "cpu=1 ", "memory=1Ti", "1"],
)
def test_what_is_no_list_of_resources(given: str) -> None:
    with pytest.raises(ValueError, match="quantities of cpu, memory, ephemeral-storage, for example cpu=50m,memory"):
        read_resources(given)


def limit_range(name: str, *limits: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"limits": [*limits]}}


def of(type_: str = "Container", **bounds: dict[str, str]) -> dict[str, Any]:
    return {"type": type_, **bounds}


@pytest.mark.parametrize(
    ("limits", "refuses"),
    [
        ([of(min={"cpu": "50m"})], True),
        ([of(min={"cpu": "0.05"})], True),
        ([of(min={"cpu": "10m", "memory": "32Mi"}, max={"cpu": "10m", "memory": "32Mi"})], False),
        ([of(min={"cpu": "10000u", "memory": "33554432"})], False),
        ([of(min={"memory": "33554433"})], True),
        ([of(min={"memory": "32M"}, max={"memory": "34M"})], False),
        ([of(max={"memory": "16Mi"})], True),
        ([of("Pod", min={"cpu": "1"})], True),
        ([of("Pod", max={"cpu": "9m"})], True),
        ([of(), of("Pod", max={"cpu": "9m"})], True),
        ([of("PersistentVolumeClaim", min={"memory": "1Ei"})], False),
        ([of(min={"ephemeral-storage": "1Gi"})], False),
        ([of(maxLimitRequestRatio={"cpu": "1"})], False),
        ([of(min={"cpu": "1e3"}, max={"cpu": "?"})], False),
        ([of(min={"cpu": "1x"}), None, {"type": "Container", "min": "x"}], False),
        ([], False),
    ],
)
def test_the_limit_ranges_that_refuse_a_pull_pod(limits: list[Any], refuses: bool) -> None:
    """What it does not request gets the default of the LimitRange. A quantity in an unusual form bounds nothing."""
    found = [limit_range("first"), limit_range("second", *limits), {}]
    assert refused_by("", found) == (("second",) if refuses else ())


def test_other_resources_meet_other_bounds() -> None:
    found = [limit_range("a", of(min={"cpu": "50m"})), limit_range("b", of(max={"ephemeral-storage": "1Gi"}))]
    assert refused_by("", found) == ("a",)
    assert refused_by("cpu=50m", found) == ()
    assert refused_by("cpu=20m,ephemeral-storage=2Gi", found) == ("a", "b")
    assert refused_by("cpu=x", found) == ()
