"""What a seed makes happen in a round: a list of steps, each with its time.

A step names its pods and containers by numbers, because pods' names are not known before. So a seed repeats the plan,
but not the moment at which a fault meets a request.
"""

import random
from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

from tests.soak_cluster.record import Kind, Part


class Action(StrEnum):
    """What users do."""

    REQUEST = "request"  # For one or two containers of a pod
    TWICE = "two requests"  # For the same container, at once
    DELETE = "deletion"  # Of a request that has not ended
    RUN = "run"
    IMAGE = "run with an image"
    EDIT = "edit"  # Of the ConfigMap that a policy watches
    CRASH = "crash"  # A container exits by itself
    FAULT = "fault"


PER_MINUTE = {
    Action.REQUEST: 3.0,
    Action.TWICE: 0.4,
    Action.DELETE: 0.3,
    Action.RUN: 0.4,
    Action.IMAGE: 0.15,
    Action.EDIT: 0.4,
    Action.CRASH: 0.3,
}
FAULT_PAUSE = (8.0, 30.0)  # Seconds between two faults, after which a second one may follow at once
POSSIBLE = {
    Kind.KILL: tuple(Part),
    Kind.FREEZE: (Part.NODE, Part.MANAGER, Part.KUBELET, Part.RUNTIME, Part.API, Part.ETCD),
    Kind.LOGS: (Part.NODE,),
    Kind.CLOCK: (Part.NODE, Part.MANAGER),
}
_SECONDS = {Kind.KILL: (0.2, 15.0), Kind.FREEZE: (1.0, 25.0), Kind.LOGS: (5.0, 40.0), Kind.CLOCK: (10.0, 40.0)}
_STEPS = (-3600, -120, -15, 15, 120, 3600)


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that happens, `at` seconds after the begin of the round."""

    at: float
    action: Action
    number: int = 0  # Selects pod and container, or what else there is to select
    kind: Kind = Kind.KILL
    part: Part = Part.NODE
    seconds: float = 0.0  # How long a fault lasts
    clock: int = 0  # Seconds of a clock step


def plan(seed: int, number: int, seconds: float, kinds: Collection[Kind], parts: Collection[Part]) -> list[Step]:
    """Return the steps of a round, in their order."""
    chance = random.Random(f"{seed}/{number}")
    steps = []
    for action, rate in PER_MINUTE.items():
        at = chance.expovariate(rate / 60)
        while at < seconds:
            steps.append(Step(at, action, chance.getrandbits(32)))
            at += chance.expovariate(rate / 60)
    choices = [(kind, part) for kind in Kind if kind in kinds for part in POSSIBLE[kind] if part in parts]
    at = chance.uniform(*FAULT_PAUSE)
    while choices and at < seconds - max(FAULT_PAUSE):
        kind, part = chance.choice(choices)
        lasts = chance.uniform(*_SECONDS[kind])
        clock = chance.choice(_STEPS)
        steps.append(Step(at, Action.FAULT, chance.getrandbits(32), kind, part, lasts, clock))
        together = chance.random() < 0.2
        at += 1.0 if together else lasts + chance.uniform(*FAULT_PAUSE)
    return sorted(steps, key=lambda step: step.at)
