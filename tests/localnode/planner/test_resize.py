"""Which changes of resources cost a restart: kubelet's `computePodResizeAction`, rule by rule."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from crrd.kubelet.runtime_status import ContainerState
from crrd_localnode.planner.resize import resize_of
from crrd_localnode.planner.values import ContainerStatus

Json = dict[str, Any]

RESTART, IN_PLACE = "RestartContainer", "NotRequired"


def sized(cpu: str = "1", memory: str = "1Gi", **requests: str) -> Json:
    return {"limits": {"cpu": cpu, "memory": memory}, "requests": {"cpu": cpu, "memory": memory} | requests}


def policies(*pairs: tuple[str, str]) -> list[Json]:
    return [{"resourceName": name, "restartPolicy": policy} for name, policy in pairs]


def annotated(name: str, value: str) -> Json:
    return {"metadata": {"annotations": {f"kubernetes.io/{name}": value}}}


def pending(status: str) -> Json:
    return {"status": {"conditions": [{"type": "PodReady"}, {"type": "PodResizePending", "status": status}]}}


def limit(name: str, value: str) -> Json:
    return {"limits": {name: value}}


BY_CPU = policies(("cpu", RESTART), ("memory", IN_PLACE))
BY_MEMORY = policies(("cpu", IN_PLACE), ("memory", RESTART))
BY_BOTH = policies(("cpu", RESTART), ("memory", RESTART))
BY_NONE = policies(("cpu", IN_PLACE), ("memory", IN_PLACE))
REQUESTED = {"requests": {"memory": "1Gi"}}


@dataclass(frozen=True)
class Case:
    """What a container was given, and what it is to have now: `sized()` where nothing is said."""

    policy: list[Json]
    given: Json | None
    expected: bool | str
    """Whether it is restarted, or a part of why that is not known."""
    wanted: Json = field(default_factory=sized)
    minor: int = 36
    pod: Json = field(default_factory=dict)
    of_pod: Json | None = None
    given_to_pod: Json | None = None


CASES = {
    "nothing has changed": Case(BY_BOTH, sized(), expected=False),
    "nothing has changed but the words": Case(BY_BOTH, sized("1000m", "1024Mi"), expected=False),
    "no resources at all": Case(BY_BOTH, {}, expected=False, wanted={}),
    "less than a thousandth of a CPU": Case(BY_BOTH, sized("0.9999"), expected=False),
    "CPU": Case(BY_CPU, sized("2"), expected=True),
    "CPU's request alone": Case(BY_CPU, sized(cpu="1") | {"requests": {"cpu": "5m", "memory": "1Gi"}}, expected=True),
    "memory": Case(BY_MEMORY, sized(memory="2Gi"), expected=True),
    "memory's request alone": Case(BY_MEMORY, sized() | {"requests": {"cpu": "1", "memory": "1Mi"}}, expected=True),
    "CPU, and memory alone wants a restart": Case(BY_MEMORY, sized("2"), expected=False),
    "memory, and CPU alone wants a restart": Case(BY_CPU, sized(memory="2Gi"), expected=False),
    "both, and one wants a restart": Case(BY_CPU, sized("2", "2Gi"), expected=True),
    "both, and none wants a restart": Case(BY_NONE, sized("2", "2Gi"), expected=False),
    "no policy": Case([], sized("2", "2Gi"), expected=False),
    "of two policies the first counts": Case([*BY_NONE, *BY_BOTH], sized("2", "2Gi"), expected=False),
    "a policy for something else": Case(policies(("disk", RESTART)), sized("2", "2Gi"), expected=False),
    "limits where there were none": Case(BY_BOTH, {}, expected=True),
    "before it was on by default": Case(BY_CPU, sized("2"), expected=False, minor=32),
    "since it is": Case(BY_CPU, sized("2"), expected=True, minor=33),
    "a static pod": Case(BY_CPU, sized("2"), expected=False, minor=35, pod=annotated("config.source", "file")),
    "a mirror pod": Case(BY_CPU, sized("2"), expected=False, minor=35, pod=annotated("config.mirror", "0123")),
    "a static pod since they count": Case(BY_CPU, sized("2"), expected=True, pod=annotated("config.source", "file")),
    "a pod that is not static": Case(
        BY_CPU, sized("2"), expected=True, minor=35, pod=annotated("config.source", "api")
    ),
    "what it was given is not known": Case(BY_CPU, None, "what resources kubelet gave it is not known"),
    "that does not matter without a policy": Case(BY_NONE, None, expected=False),
    "that does not matter before 1.33": Case(BY_CPU, None, expected=False, minor=32),
    "a quantity that is none": Case(BY_CPU, sized("much"), "cannot be compared: 'much'"),
    "a change that is not admitted": Case(BY_CPU, sized("2"), "kubelet has not admitted it", pod=pending("True")),
    "no change that is not admitted": Case(BY_CPU, sized(), expected=False, pod=pending("True")),
    "a change that was admitted": Case(BY_CPU, sized("2"), expected=True, pod=pending("False")),
    "the pod's limit": Case(
        BY_MEMORY,
        REQUESTED,
        expected=True,
        wanted=REQUESTED,
        of_pod=limit("memory", "2Gi"),
        given_to_pod=limit("memory", "1Gi"),
    ),
    "the pod's limit is as it was": Case(
        BY_MEMORY,
        REQUESTED,
        expected=False,
        wanted=REQUESTED,
        of_pod=limit("memory", "1Gi"),
        given_to_pod=limit("memory", "1Gi"),
    ),
    "the pod's limit, and the container has its own": Case(
        BY_MEMORY, sized(), expected=False, of_pod=limit("memory", "4Gi"), given_to_pod=limit("memory", "2Gi")
    ),
    "the pod's limit of what needs no restart": Case(
        BY_MEMORY, REQUESTED, expected=False, wanted=REQUESTED, of_pod=limit("cpu", "4")
    ),
    "what the pod was given is not known": Case(
        BY_MEMORY,
        REQUESTED,
        "what resources kubelet gave its pod is not known",
        wanted=REQUESTED,
        of_pod=limit("memory", "1Gi"),
    ),
    "the pod's limit before it counted": Case(
        BY_MEMORY,
        REQUESTED,
        expected=False,
        wanted=REQUESTED,
        minor=35,
        of_pod=limit("memory", "2Gi"),
        given_to_pod=limit("memory", "1Gi"),
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_whether_a_change_costs_a_restart(case: Case) -> None:
    container = {"name": "app", "image": "web:1", "resizePolicy": case.policy, "resources": case.wanted}
    pod = {"spec": {"containers": [container], "resources": case.of_pod}, **case.pod}
    current = ContainerStatus("c1", "app", ContainerState.RUNNING, resources=case.given)
    resize = resize_of(pod, container, current, case.given_to_pod, case.minor)
    if isinstance(case.expected, str):
        assert case.expected in resize.unknown
        assert not resize.restart
    else:
        assert (resize.restart, resize.unknown) == (case.expected, "")
