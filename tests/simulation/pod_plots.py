"""Schedules with requests for whole pods among the others: those of `maker`, with other pods and more faults.

They are made from the same seeds, so that a schedule of `maker` stays what it is.
"""

from dataclasses import replace
from random import Random
from typing import Any

from crrd.kubelet.restart_rules import RESTART_ALL
from tests.simulation.maker import schedule
from tests.simulation.schedule import LONG_GRACE, RUNTIME, ContainerShape, Event, PodShape, Schedule

_CALLS = ("RunPodSandbox", "RunPodSandbox", "RunPodSandbox", "ListPodSandbox", "PodSandboxStatus", "RemovePodSandbox")
_ERRORS = ("UNKNOWN", "UNKNOWN", "INTERNAL", "DEADLINE_EXCEEDED")


def pod_restarts(seed: int) -> Schedule:
    """Return the schedule of a seed in which some requests are for whole pods."""
    random, plain = Random(f"whole pods of {seed}"), schedule(seed)
    setup = replace(plain.setup, pods=tuple(_pod(random, shape) for shape in plain.setup.pods))
    shapes = {shape.name: shape for shape in setup.pods}
    events = [_event(random, each, shapes) for each in plain.events]
    wholes = [each for each in events if each.about.get("whole")]
    for each in wholes[:3]:
        events += _more(random, each, len(events))
    return Schedule(seed, setup, tuple(sorted(events, key=lambda event: (event.at, event.kind))))


def _log(random: Random, low: float, high: float) -> float:
    return round(float(low * (high / low) ** random.random()), 3)


def _pod(random: Random, shape: PodShape) -> PodShape:
    """Return a pod that can be restarted, most of the time."""
    fit = random.random() < 0.9
    containers = tuple(_fit(each) if fit else each for each in shape.containers)
    inits = tuple(_init(random, f"init-{number}") for number in range(random.choice((0, 1, 1, 2))))
    policy = "Always" if fit else shape.policy
    runtime = RUNTIME if fit else shape.runtime
    shape = replace(shape, policy=policy, containers=containers, runtime=runtime)
    return replace(shape, inits=inits if policy == "Always" else (), host=random.random() < 0.05)


def _fit(shape: ContainerShape) -> ContainerShape:
    hook = "exec" if shape.hook == "httpGet" else shape.hook
    own = "" if shape.own in ("OnFailure", "Never") else shape.own
    action = "" if shape.action == RESTART_ALL else shape.action
    return replace(shape, hook=hook, policy="Always", own=own, action=action)


def _init(random: Random, name: str) -> ContainerShape:
    return ContainerShape(
        name,
        "Always",
        start_seconds=random.choice((0.1, 0.5)),
        runs=_log(random, 0.1, 8.0),
        failures=random.choices((0, 1, 3), (16, 2, 1))[0],
    )


def _event(random: Random, event: Event, shapes: dict[str, PodShape]) -> Event:
    """Return the event, perhaps as a request for the whole pod. It would wait for a stop of an hour."""
    strategy = event.about.get("strategy", {})
    if strategy.get("terminationGracePeriodSeconds") == LONG_GRACE:
        event = replace(event, about={**event.about, "strategy": {**strategy, "terminationGracePeriodSeconds": 40}})
    if event.kind != "create" or random.random() < 0.4:
        return event
    names = [each.name for each in shapes[event.about["pod"]].containers]
    return replace(event, about={**event.about, "containers": names, "whole": True})


def _more(random: Random, event: Event, number: int) -> list[Event]:
    """Return faults and other requests close to a request."""
    pod, name = event.about["pod"], event.about["request"]

    def soon(high: float = 20.0) -> float:
        return round(max(0.0, event.at + random.choice((1, 1, 1, -0.2)) * _log(random, 0.005, high)), 3)

    kind = random.choice(("none", "cri", "cri", "kill", "kill", "sandbox", "kubelet_down", "delete", "collect", "pod"))
    match kind:
        case "cri":
            return [_of_runtime(random, soon())]
        case "kill":
            about: dict[str, Any] = {"call": random.choice((*_CALLS, "PATCH")), "nth": random.choice((1, 1, 2, 3))}
            about |= {"when": random.choice(("before", "after")), "seconds": _log(random, 0.1, 30.0)}
            return [Event(soon(2.0), "kill", about)]
        case "kubelet_down":
            refuses = random.random() < 0.5
            return [Event(soon(), "kubelet_down", {"seconds": _log(random, 0.5, 60.0), "refuses": refuses})]
        case "sandbox":
            return [Event(soon(), "sandbox", {"pod": pod})]
        case "collect":
            return [Event(soon(60.0), "collect", {})]
        case "pod":
            return [Event(soon(), "delete_pod", {"pod": pod, "force": random.random() < 0.2, "successor": True})]
        case "delete":
            again = {**event.about, "request": f"again-{number}", "whole": random.random() < 0.5}
            return [Event(soon(), "delete", {"request": name}), Event(soon(), "create", again)]
    return []


def _of_runtime(random: Random, at: float) -> Event:
    kind = random.choice(("cri_error", "cri_error", "cri_hang", "cri_slow", "cri_late", "cri_lost", "cri_lost"))
    about: dict[str, Any] = {"method": random.choice(_CALLS), "seconds": _log(random, 0.5, 60.0)}
    if kind == "cri_error":
        about["code"] = random.choice(_ERRORS)
    if kind in ("cri_error", "cri_lost"):
        about["times"] = random.choice((None, 1, 2, 6))
    if kind in ("cri_slow", "cri_late"):
        about["delay"] = _log(random, 0.05, 12.0)
    return Event(at, kind, about)
