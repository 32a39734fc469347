"""Makes the schedule of a seed: a world, requests, and faults close to the requests."""

from dataclasses import replace
from random import Random
from typing import Any

from crrd.kubelet.restart_rules import RESTART_ALL, RULES_SINCE
from tests.simulation.plots import plot
from tests.simulation.schedule import (
    LONG_GRACE,
    OTHER_RUNTIME,
    RUNTIME,
    ContainerShape,
    Event,
    PodShape,
    Schedule,
    Setup,
)

DAY = 24 * 3600
QUARTER = 900
CROWDED = 1000  # One in this many schedules has 30 pods and 200 requests


def schedule(seed: int) -> Schedule:
    """Return the schedule of a seed."""
    maker = Maker(seed)
    if seed % 8 == 3:
        return plot(maker)
    return maker.crowd() if seed % CROWDED == CROWDED - 1 else maker.minute()


def day(seed: int) -> Schedule:
    """Return a day on one node: a quarter of an hour with requests and faults, a quiet one, and so on."""
    return Maker(seed).day()


class Maker:
    """Makes the parts of a schedule at random, from its seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.other = seed % 5 >= 2
        """Whether the node differs from the simplest one: behaviour of the runtime, kubelet and containers."""
        self.kubelet = self.random.choice((34, 35, 36, 36, 36)) if self.other else 36
        self.events: list[Event] = []
        self.interesting: list[float] = []  # Times around which faults are useful
        self.begin = 0  # Second at which the current part of the schedule begins
        self.earlier = 0  # Number of events of earlier parts

    def minute(self) -> Schedule:
        """Return a schedule with a few requests."""
        random = self.random
        pods = self.pods(random.choice((1, 1, 1, 2, 3)))
        setup = self.setup(pods)
        self.part(pods, pods[:2], random.choice((1, 2, 2, 3)))
        return self.made(setup)

    def day(self) -> Schedule:
        """Return a schedule that repeats this for a day."""
        pods = self.pods(self.random.choice((1, 1, 1, 2, 3)))
        pods = tuple(replace(pod, static=False) for pod in pods)  # a static pod would not come back after an eviction
        setup = self.setup(pods)
        for self.begin in range(0, DAY, 2 * QUARTER):
            for pod in pods if self.begin else ():  # evicted pods come back
                self.add("delete_pod", self.begin - QUARTER / 3, pod=pod.name, force=False, successor=True)
            self.part(pods, pods[:2], self.random.randint(2, 8))
        return self.made(setup)

    def crowd(self) -> Schedule:
        """Return a schedule for a full node in which everything is restarted."""
        pods = self.pods(30)
        setup = replace(self.setup(pods), stops_at_once=self.random.choice((1, 3, 8)))
        self.part(pods, pods, 200)
        for event in self.requests()[::5]:  # delete some that wait for a slot
            self.add("delete", round(event.at + self.log(0.1, 20.0), 3), request=event.about["request"])
        return self.made(setup)

    def part(self, pods: tuple[PodShape, ...], wanted: tuple[PodShape, ...], requests: int) -> None:
        """Add some requests, and faults close to them."""
        random = self.random
        self.earlier = len(self.events)
        self.interesting.clear()
        for _ in range(requests):
            self.request(random.choice(wanted))
        for _ in range(random.choice((0, 1, 2, 2, 3, 4, 6, 8))):
            self.fault(pods)

    def made(self, setup: Setup) -> Schedule:
        self.events.sort(key=lambda event: (event.at, event.kind))
        return Schedule(self.seed, setup, tuple(self.events))

    def pods(self, number: int) -> tuple[PodShape, ...]:
        return tuple(self.pod(f"web-{each}") for each in range(number))

    def setup(self, pods: tuple[PodShape, ...]) -> Setup:
        """Return the properties of the node."""
        random = self.random
        return Setup(
            pods=pods,
            gone_in_stream=random.random() < 0.5,
            shows_back_off_late=random.random() < 0.6,
            unknown_has_stopped=random.random() < 0.5,
            relist=random.choice((0.3, 1.0, 1.0)),
            latency=random.choice((0.001, 0.004, 0.02)),
            single_watches=random.choice((0, 1, 8, 8)),
            flaps=self.seed % 4 == 1,
            stops_at_once=(1, 128, 128)[self.seed % 3],
            kubelet=self.kubelet,
            node_known=not self.other or random.random() < 0.8,
            list_lag=random.choice((0.0, 0.0, 0.2, 1.5)) if self.other else 0.0,
            ignores_filters=self.other and random.random() < 0.2,
            late_ip=random.choice((0.0, 0.3, self.log(0.5, 10.0))) if self.other else 0.0,
            in_pieces=self.other and random.random() < 0.5,
        )

    def log(self, low: float, high: float) -> float:
        """Return a random number, with a log-uniform distribution."""
        return round(float(low * (high / low) ** self.random.random()), 3)

    def moment(self) -> float:
        """Return a time close to an interesting one."""
        near = self.random.choice(self.interesting or [float(self.begin)])
        return round(max(0.0, near + self.random.choice((1, 1, 1, -0.2)) * self.log(0.005, 40.0)), 3)

    def add(self, kind: str, at: float | None = None, **about: Any) -> None:
        at = self.moment() if at is None else at
        self.events.append(Event(at, kind, about))
        self.interesting.append(at)

    def pod(self, name: str) -> PodShape:
        random = self.random
        policy = random.choices(("Always", "OnFailure", "Never"), (16, 3, 1))[0]
        containers = []
        for letter in "abcdef"[: random.choice((1, 1, 2, 3, 3, 6))]:
            hook = random.choice(("", "", "exec", "exec", "httpGet", "sleep"))
            sidecar = random.random() < 0.1
            own, action, successors = self.own_rules(sidecar) if self.other else ("", "", "")
            containers.append(
                ContainerShape(
                    name=letter,
                    policy="Always" if sidecar else own if own and self.kubelet >= RULES_SINCE else policy,
                    sidecar=sidecar,
                    hook=hook,
                    hook_seconds=self.hook_seconds(hook),
                    hook_code=random.choice((0, 0, 0, 1)),
                    term_seconds=random.choice((None, 0.05, 0.05, 1.0, self.log(0.01, 15.0))),
                    term_code=random.choice((0, 143, 143)),
                    start_seconds=random.choice((0.1, 0.3, self.log(0.1, 8.0))),
                    ready_seconds=random.choice((0.0, 0.0, 1.0, self.log(0.1, 8.0))),
                    own=own,
                    action=action,
                    successors=successors,
                )
            )
        return PodShape(
            name=name,
            policy=policy,
            containers=tuple(containers),
            grace=random.choice((0, 1, 3, 10, 30, None)),
            gate=random.random() < 0.4,
            static=random.random() < 0.1,
            runtime=OTHER_RUNTIME if self.other and random.random() < 0.15 else RUNTIME,
        )

    def own_rules(self, sidecar: bool) -> tuple[str, str, str]:
        """Return a container's own restartPolicy, its rule's action, and how its successors become ready."""
        random = self.random
        action = random.choices(("", "Restart", RESTART_ALL), (16, 1, 2))[0]
        own = random.choices(("", "Always", "OnFailure", "Never"), (12, 3, 2, 1))[0]
        if action and not own:  # the API server requires one with rules
            own = "Always"
        return "" if sidecar else own, action, random.choices(("", "never", "flaps"), (16, 1, 2))[0]

    def hook_seconds(self, hook: str) -> float:
        if hook == "sleep":
            return float(self.random.choice((1, 3, 12)))
        return self.log(0.05, 20.0) if hook else 0.0

    def request(self, pod: PodShape, *, at: float | None = None, whole: bool = False, **strategy: Any) -> str:
        """Add a request, at a random time if none is given, with these fields of its strategy. Return its name."""
        random = self.random
        name = f"r{sum(event.kind == 'create' for event in self.events)}"
        names = [container.name for container in pod.containers]
        random.shuffle(names)
        if at is None:
            at = self.begin + round(random.choice((10.0, 10.0, self.log(1.0, 60.0), random.uniform(5.0, 40.0))), 3)
        chosen = names if whole else names[: random.randint(1, len(names))]
        strategy = self.strategy(pod) | strategy
        deadlines: tuple[int | None, ...] = (None, None, None, None, 3, 15, 3600)
        if any(container.successors == "never" for container in pod.containers):
            deadlines = (3, 15, 90)
        self.add(
            "create",
            at,
            request=name,
            pod=pod.name,
            containers=chosen,
            strategy=strategy,
            context=random.choices(("admission", "none", "bare", "foreign"), (24, 6, 3, 1))[0],
            deadline=random.choice(deadlines),
        )
        return name

    def strategy(self, pod: PodShape) -> dict[str, Any]:
        """Return a random strategy."""
        random, strategy = self.random, dict[str, Any]()
        if random.random() < 0.3:
            strategy["failurePolicy"] = "Ignore"
        if random.random() < 0.3:
            strategy["orderedRecreate"] = True
        if random.random() < 0.3:
            strategy["forceRecreate"] = True
        if random.random() < 0.3:
            strategy["terminationGracePeriodSeconds"] = random.choice((0, 1, 5, 40))
        if random.random() < 0.2:
            strategy["unreadyGracePeriodSeconds"] = random.choice((0, 1, 5))
        if random.random() < 0.25:
            strategy["minStartedSeconds"] = random.choice((1, 4, 20))
        if any(container.action == RESTART_ALL for container in pod.containers) and random.random() < 0.5:
            strategy["allowPodRestart"] = True
        return strategy

    def fault(self, pods: tuple[PodShape, ...]) -> None:
        kind = self.random.choices(list(FAULTS), [weight for weight, _ in FAULTS.values()])[0]
        FAULTS[kind][1](self, kind, pods)

    # Faults with their parameters.

    def succeed(self, _: str, pods: tuple[PodShape, ...]) -> None:
        """A pod is deleted, another one gets its name, and a request is created for that one."""
        pod, at = self.random.choice(pods), self.moment()
        self.add("delete_pod", at, pod=pod.name, force=self.random.random() < 0.5, successor=True)
        later = self.log(1.0, 60.0)
        self.request(pod, at=round(at + later, 3))
        if self.random.random() < 0.7:
            self.add("stale", round(at + self.random.random() * later, 3), seconds=self.log(5.0, 90.0), back=0.0)

    def slow_details(self, _: str, pods: tuple[PodShape, ...]) -> None:
        """A request for all containers of a pod, each of which needs a call, and the runtime is slow."""
        pod, at = max(pods, key=lambda pod: len(pod.containers)), self.moment()
        self.request(pod, at=at, whole=True, minStartedSeconds=self.random.choice((1, 4)))
        about = {"method": self.random.choice(("ListContainers", "all")), "delay": self.log(0.5, 5.0)}
        self.add("cri_slow", round(at + self.log(0.1, 5.0), 3), seconds=self.log(10.0, 90.0), **about)

    def give_up_long(self, _: str, pods: tuple[PodShape, ...]) -> None:
        """A request with a long grace period is deleted, and the next one has a short one."""
        pod, at = self.random.choice(pods), self.moment()
        name = self.request(pod, at=at, terminationGracePeriodSeconds=LONG_GRACE)
        self.add("delete", round(at + self.log(0.01, 30.0), 3), request=name)
        self.request(pod, at=round(at + self.log(0.01, 60.0), 3), terminationGracePeriodSeconds=5)

    def stop_fails(self, _: str, pods: tuple[PodShape, ...]) -> None:
        """Stops fail for longer than they are retried."""
        pod, at = self.random.choice(pods), self.moment()
        self.request(pod, at=at)
        self.add("cri_error", round(max(0.0, at - 1.0), 3), method="StopContainer", code="UNKNOWN", seconds=400.0)

    def meddle(self, _: str, pods: tuple[PodShape, ...]) -> None:
        """Another client writes or removes the pins of a request that waits for its new instance."""
        pod, at = self.random.choice(pods), self.moment()
        name = self.request(pod, at=at, minStartedSeconds=self.random.choice((4, 20)), forceRecreate=True)
        then = round(at + self.log(0.02, 10.0), 3)
        self.add(self.random.choice(("repin", "unpin")), then, request=name)
        if self.random.random() < 0.5:
            container = self.random.choice(self.events[-2].about["containers"])
            self.add("crash", round(then + self.log(0.01, 2.0), 3), pod=pod.name, container=container, code=1)

    def late_looks(self, _: str, pods: tuple[PodShape, ...]) -> None:
        """The runtime's list is older than its response while containers are stopped."""
        at = self.moment()
        self.request(self.random.choice(pods), at=at, whole=True)
        about = {"method": "ListContainers", "delay": self.log(0.1, 3.0), "seconds": self.log(5.0, 60.0)}
        self.add("cri_late", round(at + self.log(0.01, 1.0), 3), **about)

    def of_request(self, kind: str, _: Any) -> None:
        about = {"seconds": self.log(0.05, 30.0)} if kind == "relabel" else {}
        self.add(kind, request=self.random.choice([event.about["request"] for event in self.requests()]), **about)

    def requests(self) -> list[Event]:
        """Return the requests of this part."""
        return [event for event in self.events[self.earlier :] if event.kind == "create"]

    def of_container(self, kind: str, pods: tuple[PodShape, ...]) -> None:
        pod = self.random.choice(pods)
        about: dict[str, Any] = {"pod": pod.name, "container": self.random.choice(pod.containers).name}
        if kind == "crash":
            about["code"] = self.random.choice((0, 1, 137))
        if kind in ("hold", "unstartable"):
            about["seconds"] = self.log(0.5, 30.0)
        if kind == "hold":
            about["reason"] = self.random.choice(("ErrImagePull", "CreateContainerError", "CreateContainerConfigError"))
        self.add(kind, **about)

    def of_pod(self, kind: str, pods: tuple[PodShape, ...]) -> None:
        about: dict[str, Any] = {"pod": self.random.choice(pods).name}
        if kind == "delete_pod":
            about |= {"force": self.random.random() < 0.2, "successor": self.random.random() < 0.6}
        self.add(kind, **about)

    def lasting(self, kind: str, _: Any) -> None:
        about = {"refuses": self.random.random() < 0.5} if kind == "kubelet_down" else {}
        self.add(kind, seconds=self.log(0.05, 90.0), **about)

    def sudden(self, kind: str, _: Any) -> None:
        self.add(kind)

    def of_api(self, kind: str, _: Any) -> None:
        random = self.random
        about: dict[str, Any] = {
            "calls": random.choice(("all", "write", "write", "read", "watch", "events")),
            "seconds": self.log(0.05, 60.0),
        }
        if kind == "api_status":
            about["code"] = random.choice((429, 429, 500, 502, 503, 503, 504, 401, 403))
            about["retry_after"] = random.choice((None, None, 1, 30, 86400))
        if kind == "api_foreign":
            about["body"] = random.choice(("html", "status", "list", "empty", "null"))
        if kind == "api_slow":
            about["delay"] = self.log(0.1, 40.0)
        if kind in ("api_lost", "api_torn", "api_cut", "api_foreign") and random.random() < 0.5:
            about["times"] = random.choice((1, 2, 3))
        self.add(kind, **about)

    def restore(self, kind: str, _: Any) -> None:
        self.add(kind, back=self.log(0.1, 60.0))

    def conflict(self, kind: str, _: Any) -> None:
        self.add(kind, times=self.random.choice((1, 2, 10)), seconds=self.log(0.5, 60.0))

    def stale(self, kind: str, _: Any) -> None:
        at, seconds = self.moment(), self.log(0.5, 90.0)
        back = self.random.choice((0.0, 0.0, self.log(0.5, 60.0)))
        self.add(kind, at, seconds=seconds, back=back, open_too=back == 0.0 and self.random.random() < 0.3)
        if self.random.random() < 0.8:
            at = round(at + self.random.random() * seconds, 3)
            self.add(self.random.choice(("expire", "drop_watches")), at)

    def of_runtime(self, kind: str, _: Any) -> None:
        random = self.random
        about: dict[str, Any] = {
            "method": random.choice(
                ("ListContainers", "ListContainers", "StopContainer", "StopContainer", "ExecSync", "all")
            ),
            "seconds": self.log(0.05, 60.0),
        }
        if kind == "cri_error":
            about["code"] = random.choice(("UNKNOWN", "UNKNOWN", "INTERNAL", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED"))
        if kind in ("cri_error", "cri_lost"):
            about["times"] = random.choice((None, 1, 2, 6))
        if kind in ("cri_slow", "cri_late"):
            about["delay"] = self.log(0.05, 12.0)
        self.add(kind, **about)

    def kill(self, kind: str, _: Any) -> None:
        """Kill at a time, or at one of the next calls, before it is carried out or before it is answered."""
        call = self.random.choice(("", "", "", "PATCH", "PATCH", "StopContainer", "ExecSync", "ListContainers", "GET"))
        away = self.random.choice((0.1, 1.0, self.log(0.1, 60.0)))
        when = self.random.choice(("before", "after"))
        self.add(kind, call=call, when=when if call else "", seconds=away, nth=self.random.choice((1, 1, 2, 3)))

    def step(self, kind: str, _: Any) -> None:
        if self.random.random() < 0.5:
            self.of_request("touch", None)
        self.add(kind, by=self.random.choice((-3600.0, -30.0, -1.5, 1.5, 30.0, 3600.0, 10 * 86400.0)))


FAULTS: dict[str, tuple[float, Any]] = {
    "delete": (3, Maker.of_request),
    "relabel": (2, Maker.of_request),
    "unpin": (2, Maker.of_request),
    "touch": (2, Maker.of_request),
    "meddle": (3, Maker.meddle),
    "crash": (4, Maker.of_container),
    "update": (2, Maker.of_container),
    "hold": (1, Maker.of_container),
    "unstartable": (1, Maker.of_container),
    "unknown": (1, Maker.of_container),
    "sandbox": (1, Maker.of_pod),
    "reboot": (1, Maker.lasting),
    "delete_pod": (3, Maker.of_pod),
    "evict": (1.5, Maker.of_pod),
    "collect": (1, Maker.sudden),
    "replace": (2, Maker.succeed),
    "give_up_long": (1.5, Maker.give_up_long),
    "late_looks": (1.5, Maker.late_looks),
    "slow_details": (1.5, Maker.slow_details),
    "kubelet_down": (2, Maker.lasting),
    "kubelet_mute": (2, Maker.lasting),
    "api_status": (4, Maker.of_api),
    "api_hang": (3, Maker.of_api),
    "api_cut": (2, Maker.of_api),
    "api_refused": (2, Maker.of_api),
    "api_lost": (3, Maker.of_api),
    "api_slow": (2, Maker.of_api),
    "api_foreign": (3, Maker.of_api),
    "api_torn": (2, Maker.of_api),
    "conflict": (2, Maker.conflict),
    "stale": (4, Maker.stale),
    "restore": (1, Maker.restore),
    "expire": (3, Maker.sudden),
    "drop_watches": (2, Maker.sudden),
    "half_open": (2, Maker.lasting),
    "prune": (1, Maker.lasting),
    "credentials": (1, Maker.lasting),
    "cri_error": (4, Maker.of_runtime),
    "stop_fails": (1, Maker.stop_fails),
    "cri_hang": (3, Maker.of_runtime),
    "cri_slow": (3, Maker.of_runtime),
    "cri_late": (3, Maker.of_runtime),
    "cri_lost": (2, Maker.of_runtime),
    "cri_down": (3, Maker.lasting),
    "network_down": (2, Maker.lasting),
    "leader": (2, Maker.lasting),
    "kill": (9, Maker.kill),
    "double": (2, Maker.lasting),
    "term": (2, Maker.lasting),
    "step": (3, Maker.step),
}
"""Kind -> its weight, and the method that makes it."""
