"""Which kubelet runs, and what it would hash otherwise, told from what it left on containers."""

from typing import Any

import pytest

from crrd.core.api.pod import ContainerKind
from crrd_forecast.hash.container_hash import container_hash
from crrd_forecast.hash.version import NEWEST_MINOR, OLDEST_MINOR
from crrd_forecast.node import HASHERS, StoredHash, differing, running_minor, stored_hash
from crrd_forecast.report import ForecastInput

SPEC: dict[str, Any] = {
    "name": "app",
    "image": "nginx:1.25",
    "securityContext": {"runAsUser": 1},
    "volumeMounts": [{"name": "data", "mountPath": "/data"}],
}


def started(version: str, at: int = 1, kind: ContainerKind = ContainerKind.REGULAR, **changed: str) -> ForecastInput:
    """A container that a kubelet of this version started, and whose spec may have changed since."""
    value = container_hash(SPEC, version)
    return ForecastInput("shop", "web", "app", "c1", f"{value:x}", SPEC | changed, kind, created_at=at)


@pytest.mark.parametrize(
    ("version", "minor"),
    [("1.36", 36), ("1.31", 36), ("1.30", 30), ("1.16", 30), ("1.15", 15), ("1.13", 13), ("1.8", 8), ("1.7", 7)],
)
def test_the_hash_tells_the_era(version: str, minor: int) -> None:
    assert stored_hash(started(version)) == StoredHash(1, minor, True)


def test_every_version_hashes_as_one_of_those_that_are_tried() -> None:
    ways = {container_hash(SPEC, f"1.{minor}") for minor in HASHERS}
    assert {container_hash(SPEC, f"1.{minor}") for minor in range(OLDEST_MINOR, NEWEST_MINOR + 1)} <= ways


@pytest.mark.parametrize("stored", [None, "", "nonsense", "abc"])
def test_what_tells_nothing(stored: str | None) -> None:
    assert stored_hash(ForecastInput("shop", "web", "app", "c1", stored, SPEC)).minor is None
    assert stored_hash(ForecastInput("shop", "web", "app", "c1", stored, None)) == StoredHash(0, None, False)


def test_the_newest_that_tells_anything_was_started_by_the_running_kubelet() -> None:
    hashes = [
        stored_hash(started("1.30", 1)),
        stored_hash(started("1.31", 2)),
        stored_hash(started("1.30", 3, image="changed")),
    ]
    assert running_minor(hashes) == NEWEST_MINOR
    assert differing(hashes) == 2  # the one of the older kubelet, and the one whose image was changed


def test_after_an_upgrade_the_old_ones_differ() -> None:
    hashes = [stored_hash(started("1.30", at)) for at in range(5)]
    assert differing(hashes) == 0
    assert differing([*hashes, stored_hash(started("1.31", 9))]) == 5


def test_init_containers_do_not_count() -> None:
    assert differing([stored_hash(started("1.31", 9)), stored_hash(started("1.30", kind=ContainerKind.INIT))]) == 0


def test_nothing_is_known_where_nothing_tells() -> None:
    assert differing([]) is None
    assert differing([stored_hash(ForecastInput("shop", "web", "app", "c1", None, SPEC))]) is None
