"""What happens to a container after its request has succeeded: it may crash, or get its old image back."""

from dataclasses import replace
from typing import Any

import pytest

from crrd.core.rollout.change import ImageChange
from crrd.core.rollout.image.facts import UNPROBED_SECONDS, ImageRun
from crrd.core.rollout.image.state import ImageState
from crrd.core.rollout.phases import End
from crrd.core.rollout.plan import Plan
from crrd.core.rollout.run import Run
from crrd.core.rollout.state import World
from tests.support.rollouts import AFTER, BEFORE, container, member, planned, run, stages, succeeded, why, workload

OLD, NEW = "app:1", "app:2"
OF = run(image=ImageChange(NEW, (OLD,), pulls=False, template="rest"))
COMPLETED, LATER = AFTER, "2026-01-01T12:00:45Z"
NEXT: dict[str, Any] = {"container_id": "containerd://app-2", "restart_count": 1, "started_at": AFTER}


def after(image: str = NEW, **changes: Any) -> Plan:
    """The plan after the request of the first of two pods has succeeded."""
    first = member("web-0", container(image=image, **NEXT | changes))
    request = succeeded(OF, first, completion_time=COMPLETED)
    rest = member("web-1", container(image=OLD))
    return planned(World((first, rest), (request,), workload(2), extra=ImageState(container="app")), OF)


@pytest.mark.parametrize(
    "changes",
    [
        {"restart_count": 2, "started_at": LATER},
        {"restart_count": 2, "started_at": "", "running": False},
        {"restart_count": 5, "started_at": LATER},
    ],
)
def test_a_container_that_ends_again_with_the_image_has_failed(changes: dict[str, Any]) -> None:
    plan = after(**changes)
    assert (plan.end, plan.create) == (End.FAILED, ()), "the other pod does not get the image"
    assert why(plan)["web-0"] == "container app has ended again with the image app:2"


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"restart_count": 4},  # It crashed while it had the old image, and until it was replaced
        {"running": False},  # It ends for the first time
    ],
)
def test_what_was_before_the_success_does_not_count(changes: dict[str, Any]) -> None:
    plan = after(**changes)
    assert (stages(plan)["web-0"], [row.pod for row in plan.create]) == ("done", ["web-1"])


def test_a_pod_that_has_ended_again_and_is_not_ready_fails_again_although_it_is_retried() -> None:
    """It has the image, so it gets no other request."""
    first = member("web-0", container(image=NEW, **NEXT | {"restart_count": 2, "started_at": LATER}), ready=False)
    request = succeeded(OF, first, completion_time=COMPLETED)
    known = World((first,), (request,), workload(1), extra=ImageState(container="app"))
    assert stages(planned(replace(known, retried=frozenset({request.request.uid})), OF)) == {"web-0": "failed"}


def test_a_pod_that_gets_its_old_image_back_has_failed() -> None:
    plan = after(OLD)
    assert (plan.end, why(plan)["web-0"]) == (End.FAILED, "container app was given the image app:1 back")
    known_before = after(OLD, restart_count=0, container_id="containerd://app-1")
    assert (known_before.end, stages(known_before)["web-0"]) == (None, "getting ready")


@pytest.mark.parametrize(
    ("changes", "stage"),
    [
        ({"restart_count": 0}, "done"),
        ({"restart_count": 1}, "done"),  # An instance of the image from before may have run before it got this one
        ({"restart_count": 1, "running": False}, "failed"),
        ({"restart_count": 1, "started_at": LATER}, "failed"),
        ({"restart_count": 0, "running": False}, "done"),  # It ends for the first time
        ({"restart_count": 0, "running": False, "container_id": ""}, "done"),  # It is older than the request's end
        ({"restart_count": 0, "image": OLD}, "done"),
        ({"restart_count": 0, "image": OLD, "running": False}, "failed"),
        ({"restart_count": 0, "image": OLD, "started_at": LATER}, "failed"),
    ],
)
def test_a_container_that_had_never_run(changes: dict[str, Any], stage: str) -> None:
    """Its request has no ID of an instance before."""
    first = member("web-0", container(**{"image": NEW, "started_at": BEFORE, **changes}))
    made = succeeded(OF, first, completion_time=COMPLETED)
    bare = replace(made.request, containers=tuple(replace(each, context=None) for each in made.request.containers))
    known = World((first,), (replace(made, request=bare),), workload(1), extra=ImageState(container="app"))
    assert stages(planned(known, OF)) == {"web-0": stage}


def test_without_a_readiness_probe_a_pod_is_not_done_at_once() -> None:
    """A container that crashes a moment after its start would be taken for done."""

    def least(of: Run = OF, of_workload: int = 0, **changes: Any) -> int | None:
        pods = (member("web-0", container("app", readiness_probe=True)), member("web-1", container("app", **changes)))
        return (
            ImageRun.of(World(pods, workload=workload(2, min_ready=of_workload)), of).with_min_ready().options.min_ready
        )

    assert least() == UNPROBED_SECONDS
    assert least(readiness_probe=True) is None
    assert least(of_workload=5) is None
    assert least(replace(OF, options=replace(OF.options, min_ready=0))) == 0
    going = World((member("web-0", deleting=True),), workload=workload(1))
    assert ImageRun.of(going, OF).with_min_ready().options.min_ready == UNPROBED_SECONDS, "the next pod is like it"
