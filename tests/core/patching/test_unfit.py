"""What admission says of a request that needs a node daemon: each rule with its sentence."""

from dataclasses import replace
from typing import Any

import pytest

from crrd.core.admission.rules import DenialReason
from crrd.core.api.pod import ContainerKind
from crrd.core.api.types import Request, RequestedContainer, Strategy
from crrd.core.patching.unfit import review
from crrd.core.rollout.state import Member
from crrd.core.rollout.workload import Owner
from crrd.kubelet.restart_rules import RestartPolicy
from tests.support.rollouts import container, member

RUNS = container(image="app:1", image_id=f"docker.io/library/app@sha256:{'0' * 64}")
RULES = ({"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [1]}},)


LEAST = (
    "spec.activeDeadlineSeconds must be at least {}: 30s and the unready grace period until the first stop, the grace "
    "period of each container, and 30s until its next start"
)
TWO = (RequestedContainer("app"), RequestedContainer("log"))


def pod(**container_changes: Any) -> Member:
    found = member("web-0")
    given = replace(RUNS, **container_changes)
    return replace(
        found, pod=replace(found.pod, containers={"app": given, "log": replace(given, name="log")}, grace_seconds=45)
    )


def denial(member: Member, *, minor: int | None = 36, **changes: Any) -> str:
    names = (RequestedContainer("app"),)
    request = Request("default", "r", "u", "1", "", "web-0", "", "", changes.pop("containers", names), **changes)
    found = review(request, member, minor)
    assert found is None or (found.reason, found.code) == (DenialReason.NEEDS_DAEMON, 422)
    return found.message if found is not None else ""


@pytest.mark.parametrize(
    "fits",
    [
        {},
        {"strategy": Strategy(grace_seconds=45, unready_grace_seconds=5, ordered=True, min_started_seconds=9)},
        {"deadline_seconds": 105},
        {"deadline_seconds": 112, "strategy": Strategy(unready_grace_seconds=7, min_started_seconds=9)},
        {"deadline_seconds": 150, "containers": TWO},
        {"deadline_seconds": 189, "containers": TWO, "strategy": Strategy(ordered=True, min_started_seconds=9)},
    ],
)
def test_what_a_patch_can_do(fits: dict[str, Any]) -> None:
    assert denial(pod(), **fits) == ""


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            {"containers": (RequestedContainer("app", image="app:2"),)},
            "spec.containers[0].image must be left out: another image needs a node daemon",
        ),
        (
            {"strategy": Strategy(force=True)},
            (
                "spec.strategy.forceRecreate must be left out: without a node daemon, only the instance that ran when "
                "the request was created is restarted"
            ),
        ),
        (
            {"strategy": Strategy(grace_seconds=44)},
            (
                "spec.strategy.terminationGracePeriodSeconds must be left out: without a node daemon, kubelet uses the "
                "pod's grace period (45s)"
            ),
        ),
        ({"deadline_seconds": 104}, LEAST.format(105)),
        ({"deadline_seconds": 111, "strategy": Strategy(unready_grace_seconds=7)}, LEAST.format(112)),
        ({"deadline_seconds": 149, "containers": TWO}, LEAST.format(150)),
        (
            {"deadline_seconds": 188, "containers": TWO, "strategy": Strategy(ordered=True, min_started_seconds=9)},
            LEAST.format(189),
        ),
    ],
)
def test_what_no_patch_can_do(change: dict[str, Any], sentence: str) -> None:
    assert denial(pod(), **change) == sentence


NAMED = "spec.containers[0].name must name a container that can be restarted without a node daemon: "


def of_kruise(found: Member) -> Member:
    return replace(found, owner=Owner("apps.kruise.io/v1alpha1", "CloneSet", "web", "u"))


def static(found: Member) -> Member:
    return replace(found, pod=replace(found.pod, static_uid="s"))


@pytest.mark.parametrize(
    ("found", "minor", "why"),
    [
        (static(pod()), 36, "it is a static pod, whose containers only the files on its node define"),
        (of_kruise(pod()), 36, "its controller is of OpenKruise, which writes the images of its pods itself"),
        (pod(restart_policy=RestartPolicy.ON_FAILURE), 36, "the restartPolicy of container app is not Always, so"),
        (pod(kind=ContainerKind.SIDECAR), 31, "kubelet on its node is older than 1.32, and would not replace native"),
        (pod(image_id="sha256:abc"), 36, "container app: its image has no other name that the container runtime"),
        (pod(restart_rules=RULES), 36, "container app: stopping it may restart all containers of the pod"),
    ],
)
def test_containers_that_no_patch_can_restart(found: Member, minor: int, why: str) -> None:
    assert denial(found, minor=minor).startswith(NAMED + why)


@pytest.mark.parametrize("minor", [32, None])
def test_a_sidecar_of_a_newer_kubelet(minor: int | None) -> None:
    assert denial(pod(kind=ContainerKind.SIDECAR), minor=minor) == ""


def test_a_restart_of_the_whole_pod_may_be_allowed() -> None:
    assert denial(pod(restart_rules=RULES), strategy=Strategy(allow_pod_restart=True)) == ""
