"""How soon a policy is looked at again after each kind of obstacle, as the docs promise it."""

import re
from pathlib import Path

import pytest

from crrd.core.policy.observed import Observed, Stopped
from crrd.core.policy.reasons import PolicyReason
from crrd.core.rollout.image.following import TemplateImages
from crrd.lib.backoff import FAILED, REFUSED
from crrd.manager.policies.obstacles import Obstacle, obstacle_of

DOCS = Path(__file__).parents[2] / "docs/operations.md"
PROMISES = {
    "The API server or a webhook cannot be reached": FAILED,
    "The API server refuses a call": REFUSED,
    "A right, or a field in the CRD of policies, is missing": Obstacle.RIGHT.value,
    "The kind of a policy's target does not exist": Obstacle.TARGET.value,
    "The dry run of a policy's run with an image is refused": Obstacle.REFUSAL.value,
}


def test_the_docs_promise_what_the_tables_have() -> None:
    """A pause with its jitter, and two seconds for the call."""
    rows = re.findall(r"^\| ([^|]+?) \|.*\| (\d+) s[^|]*\|$", DOCS.read_text(), re.MULTILINE)
    promised = {what: float(seconds) for what, seconds in rows}
    for what, backoff in PROMISES.items():
        longest = backoff.maximum * (1 + backoff.jitter)
        assert longest <= promised[what] <= longest + 3.0, what


@pytest.mark.parametrize(
    ("found", "obstacle"),
    [
        (Observed(), None),
        (Observed(stopped=Stopped(PolicyReason.UNREADABLE, "may not list configmaps")), Obstacle.RIGHT),
        (Observed(dropped=("status.config",)), Obstacle.RIGHT),
        (Observed(stopped=Stopped(PolicyReason.TARGET, "no such kind")), Obstacle.TARGET),
        (Observed(template=TemplateImages()), None),
        (Observed(template=TemplateImages(problem="may not patch pods", lacks_right=True)), Obstacle.RIGHT),
        (Observed(template=TemplateImages(refused=("exceeded quota",))), Obstacle.REFUSAL),
        (Observed(template=TemplateImages(problem="not held")), Obstacle.TEMPLATE),
        (Observed(template=TemplateImages(wait="not observed yet")), Obstacle.TEMPLATE),
    ],
)
def test_what_a_look_finds(found: Observed, obstacle: Obstacle | None) -> None:
    assert obstacle_of(found, is_watched=False) is obstacle


def test_a_target_that_is_watched_for_needs_no_look() -> None:
    assert (
        obstacle_of(Observed(stopped=Stopped(PolicyReason.TARGET, "deployment.apps/web not found")), is_watched=True)
        is None
    )


@pytest.mark.parametrize("obstacle", Obstacle)
def test_looks_become_rare(obstacle: Obstacle) -> None:
    delays = [obstacle.value.delay(number) for number in range(1, 30)]
    assert min(delays) >= 2.0
    assert sum(delays[:10]) >= 60.0
