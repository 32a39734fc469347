"""What kubelet's versions do with containers that have ended."""

import pytest

from crrd.kubelet.restart_rules import has_early_liveness_bug, has_startup_probe_bug


@pytest.mark.parametrize(
    ("version", "forgets"),
    [
        ("v1.34.9", False),
        ("v1.35.0", True),
        ("1.35.0-rc.1", True),
        ("v1.35.3", True),
        ("v1.35.3+k3s1", True),
        ("v1.35.2-gke.1000", True),
        ("v1.35.4", False),
        ("v1.35.10", False),
        ("v1.35.30", False),
        ("v1.36.0", False),
        ("v11.35.0", False),
        ("v1.35", False),
        ("", False),
    ],
)
def test_versions_that_forget_a_sidecars_startup(version: str, *, forgets: bool) -> None:
    assert has_startup_probe_bug(version) is forgets


@pytest.mark.parametrize(
    ("version", "early"),
    [
        ("v1.34.9", False),
        ("v1.35.0", True),
        ("v1.35.12", True),
        ("1.36.2", True),
        ("v1.37.0+k3s1", True),
        ("v1.38.0-alpha.1", False),
        ("v11.36.2", False),
        ("v1.36", False),
        ("", False),
    ],
)
def test_versions_that_check_liveness_before_the_startup_probe(version: str, *, early: bool) -> None:
    assert has_early_liveness_bug(version) is early
