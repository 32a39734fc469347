"""Schedules with a plot: situations that random schedules rarely contain, with random times and shapes.

Every eighth seed has one. The judge does not know of them.
"""

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

from tests.simulation.schedule import ContainerShape, PodShape, Schedule

if TYPE_CHECKING:
    from tests.simulation.maker import Maker

FIRST = 10.0  # Seconds after which the first request is created


def plot(maker: "Maker") -> Schedule:
    """Return one of them."""
    return _PLOTS[maker.seed // 8 % len(_PLOTS)](maker)


def _fewest(maker: "Maker", **changes: object) -> PodShape:
    """Return a pod without anything that makes it wait or fail."""
    shape = maker.pod("web-0")
    containers = tuple(replace(each, **changes) for each in map(_plain, shape.containers))  # type: ignore[arg-type]
    return replace(shape, policy="Always", containers=containers, gate=False, static=False)


def _plain(shape: ContainerShape) -> ContainerShape:
    return replace(shape, policy="Always", own="", action="", successors="", sidecar=False)


def _some(maker: "Maker", at: float, low: float, high: float) -> float:
    return round(at + maker.log(low, high), 3)


def slots(maker: "Maker") -> Schedule:
    """One stop at a time for several pods, with slow lists: the pod whose turn it is may have nothing to stop."""
    random: Random = maker.random
    pods = tuple(replace(pod, policy="Always", static=False) for pod in maker.pods(random.choice((3, 4, 5))))
    pods = tuple(replace(pod, containers=tuple(map(_plain, pod.containers))) for pod in pods)
    names = [maker.request(pod, at=_some(maker, FIRST, 0.001, 0.3)) for pod in pods]
    delay = maker.log(0.2, 2.0)
    maker.add("cri_slow", FIRST - 0.5, seconds=60.0, method="ListContainers", delay=delay)
    for name, pod in zip(names, pods, strict=True):
        at = _some(maker, FIRST, delay, 12.0)
        if random.random() < 0.5:
            maker.add("delete", at, request=name)
        else:
            maker.add("crash", at, pod=pod.name, container=random.choice(pod.containers).name, code=1)
    for pod in pods:
        maker.request(pod, at=_some(maker, FIRST + 15.0, 0.01, 30.0))
    return maker.made(replace(maker.setup(pods), stops_at_once=1))


def silence(maker: "Maker") -> Schedule:
    """A request ends during its hook, and kubelet goes down: the following stop waits for kubelet."""
    random = maker.random
    seconds = maker.log(5.0, 20.0)
    pod = replace(_fewest(maker, hook="exec", hook_seconds=seconds), grace=40)
    own_grace: dict[str, Any] = random.choice(({}, {"terminationGracePeriodSeconds": 40}))
    name = maker.request(pod, at=FIRST, **own_grace)
    down = _some(maker, FIRST, 0.1, seconds / 3)
    maker.add("kubelet_down", down, seconds=maker.log(15.0, 60.0), refuses=random.random() < 0.5)
    maker.add("delete", _some(maker, FIRST, 0.1, seconds), request=name)
    if random.random() < 0.5:
        maker.request(pod, at=_some(maker, FIRST, 0.1, 60.0))
    return maker.made(maker.setup((pod,)))


def late_node(maker: "Maker") -> Schedule:
    """A decision that depends on kubelet's version is made before it is known, and writing it takes long."""
    random = maker.random
    maker.other, maker.kubelet = True, random.choice((34, 34, 35, 36))
    older = maker.kubelet == 34
    pod = _fewest(maker, own="Never" if older else "", action="" if older else "RestartAllContainers")
    if not older:
        pod = replace(pod, containers=tuple(replace(each, own="Always") for each in pod.containers))
    maker.request(pod, at=FIRST)
    known = _some(maker, FIRST, 0.05, 4.5)
    maker.add("api_status", 5.0, calls="node", code=random.choice((403, 503)), seconds=round(known - 5.0, 3))
    maker.add("api_slow", FIRST - 1.0, calls="write", delay=maker.log(8.0, 25.0), seconds=maker.log(2.0, 30.0))
    for _ in range(random.choice((2, 3, 4))):
        at = _some(maker, FIRST + 5.1, 0.01, 10.0)  # the Node is read again after 5 s
        if random.random() < 0.5:
            maker.request(pod, at=at)
        else:
            maker.add("crash", at, pod=pod.name, container=random.choice(pod.containers).name, code=1)
    return maker.made(replace(maker.setup((pod,)), node_known=True))


def unheard(maker: "Maker") -> Schedule:
    """A pod is deleted while its watch is disconnected and no manager runs."""
    random = maker.random
    pods = tuple(replace(pod, static=False) for pod in maker.pods(random.choice((1, 2, 3))))
    for pod in pods:
        maker.request(pod, at=_some(maker, FIRST, 0.001, 1.0), minStartedSeconds=20)
    maker.add("leader", FIRST - 1.0, seconds=200.0)
    away = _some(maker, FIRST, 0.5, 10.0)
    maker.add("api_refused", away, calls="watch", seconds=maker.log(1.0, 20.0))
    maker.add("drop_watches", round(away + 0.001, 3))
    gone = _some(maker, away, 0.01, 1.0)
    maker.add("delete_pod", gone, pod=pods[0].name, force=True, successor=random.random() < 0.3)
    maker.add("expire", round(gone + 0.8, 3))
    return maker.made(replace(maker.setup(pods), single_watches=random.choice((0, 0, 1, 8))))


def refusals(maker: "Maker") -> Schedule:
    """Writes fail repeatedly with successes in between, while hooks and stops cause many writes."""
    random = maker.random
    pod = replace(_fewest(maker, hook="exec", hook_seconds=maker.log(2.5, 10.0)), grace=30)
    for _ in range(random.choice((1, 2))):
        maker.request(pod, at=_some(maker, FIRST, 0.001, 10.0), whole=True)
    at = FIRST - 1.0
    for _ in range(random.choice((3, 4, 5))):
        seconds = maker.log(2.0, 15.0)
        maker.add(random.choice(("api_cut", "api_refused", "api_lost")), at, calls="write", seconds=seconds)
        at = _some(maker, at + seconds, 1.0, 8.0)
    return maker.made(maker.setup((pod,)))


def one_team(maker: "Maker") -> Schedule:
    """Calls for the objects of one team hang, which has many. Other teams need something meanwhile."""
    random = maker.random
    policies = random.random() < 0.5
    pods = maker.pods(1)
    maker.request(pods[0], at=FIRST)
    teams = [f"team-{number}" for number in range(random.choice((1, 2, 4)))]
    for team in ("noisy", *teams):
        policy = policies and team != "noisy"
        maker.add("team_join", 1.0, team=team, labelled=random.random() < 0.5, policy=policy)
    seconds = maker.log(20.0, 120.0)
    maker.add("team_hang", FIRST - 1.0, calls=random.choice(("writes", "workloads")), seconds=seconds)
    maker.add("team_crowd", FIRST - 0.5, number=random.choice((3, 20, 60)), policies=policies)
    for _ in range(random.choice((3, 6, 10))):
        at = round(FIRST + random.random() * (seconds - 5.0), 3)
        what = random.choice(("unready", "ended", "late"))
        maker.add("team_ask", at, team=random.choice(teams), what=what, seconds=26.0)  # until it is checked
    for team in teams if policies else ():
        maker.add("team_edit", round(FIRST + random.random() * (seconds - 5.0), 3), team=team, seconds=12.0)
    if random.random() < 0.3:
        maker.add("leader", _some(maker, FIRST, 0.1, seconds), seconds=maker.log(0.5, 20.0))
    return maker.made(replace(maker.setup(pods), policies=policies))


_PLOTS: tuple[Callable[["Maker"], Schedule], ...] = (slots, silence, late_node, unheard, refusals, one_team)
