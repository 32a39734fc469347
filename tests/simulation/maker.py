"""Makes the schedule of a seed: a world, requests in it, and faults near what they do."""

from random import Random
from typing import Any

from tests.simulation.schedule import LONG_GRACE, ContainerShape, Event, PodShape, Schedule, Setup


def schedule(seed: int) -> Schedule:
    """The schedule of a seed."""
    return _Maker(seed).make()


class _Maker:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.events: list[Event] = []
        self.interesting: list[float] = []
        """Moments around which faults are worth having."""

    def make(self) -> Schedule:
        random = self.random
        pods = tuple(self.pod(f"web-{number}") for number in range(random.choice((1, 1, 1, 2, 3))))
        setup = Setup(
            pods=pods,
            gone_in_stream=random.random() < 0.5,
            shows_back_off_late=random.random() < 0.6,
            unknown_has_stopped=random.random() < 0.5,
            relist=random.choice((0.3, 1.0, 1.0)),
            latency=random.choice((0.001, 0.004, 0.02)),
            single_watches=random.choice((0, 1, 8, 8)),
            flaps=self.seed % 4 == 1,
            stops_at_once=(1, 128, 128)[self.seed % 3],
        )
        for number in range(random.choice((1, 2, 2, 3))):
            self.request(f"r{number}", random.choice(pods[:2]))
        for _ in range(random.choice((0, 1, 2, 2, 3, 4, 6, 8))):
            self.fault(pods)
        self.events.sort(key=lambda event: (event.at, event.kind))
        return Schedule(self.seed, setup, tuple(self.events))

    def log(self, low: float, high: float) -> float:
        """A number whose order of magnitude is equally likely."""
        return round(float(low * (high / low) ** self.random.random()), 3)

    def moment(self) -> float:
        """A time near something interesting."""
        near = self.random.choice(self.interesting or [0.0])
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
            containers.append(
                ContainerShape(
                    name=letter,
                    policy="Always" if sidecar else policy,
                    sidecar=sidecar,
                    hook=hook,
                    hook_seconds=self.hook_seconds(hook),
                    hook_code=random.choice((0, 0, 0, 1)),
                    term_seconds=random.choice((None, 0.05, 0.05, 1.0, self.log(0.01, 15.0))),
                    term_code=random.choice((0, 143, 143)),
                    start_seconds=random.choice((0.1, 0.3, self.log(0.1, 8.0))),
                    ready_seconds=random.choice((0.0, 0.0, 1.0, self.log(0.1, 8.0))),
                )
            )
        return PodShape(
            name=name,
            policy=policy,
            containers=tuple(containers),
            grace=random.choice((0, 1, 3, 10, 30, None)),
            gate=random.random() < 0.4,
            static=random.random() < 0.1,
        )

    def hook_seconds(self, hook: str) -> float:
        if hook == "sleep":
            return float(self.random.choice((1, 3, 12)))
        return self.log(0.05, 20.0) if hook else 0.0

    def request(
        self,
        name: str,
        pod: PodShape,
        *,
        at: float | None = None,
        grace: int | None = None,
        least: int | None = None,
        whole: bool = False,
    ) -> None:
        random = self.random
        names = [container.name for container in pod.containers]
        random.shuffle(names)
        if at is None:
            at = round(random.choice((10.0, 10.0, self.log(1.0, 60.0), random.uniform(5.0, 40.0))), 3)
        chosen = names if whole else names[: random.randint(1, len(names))]
        strategy: dict[str, Any] = {}
        if random.random() < 0.3:
            strategy["failurePolicy"] = "Ignore"
        if random.random() < 0.3:
            strategy["orderedRecreate"] = True
        if random.random() < 0.3:
            strategy["forceRecreate"] = True
        if random.random() < 0.3:
            strategy["terminationGracePeriodSeconds"] = random.choice((0, 1, 5, 40))
        if grace is not None:
            strategy["terminationGracePeriodSeconds"] = grace
        if random.random() < 0.2:
            strategy["unreadyGracePeriodSeconds"] = random.choice((0, 1, 5))
        if random.random() < 0.25:
            strategy["minStartedSeconds"] = random.choice((1, 4, 20))
        if least is not None:
            strategy["minStartedSeconds"] = least
        self.add(
            "create",
            at,
            request=name,
            pod=pod.name,
            containers=chosen,
            strategy=strategy,
            context=random.choices(("admission", "none", "bare", "foreign"), (24, 6, 3, 1))[0],
            deadline=random.choice((None, None, None, None, 3, 15, 3600)),
        )

    def fault(self, pods: tuple[PodShape, ...]) -> None:
        kind = self.random.choices(list(_FAULTS), [weight for weight, _ in _FAULTS.values()])[0]
        _FAULTS[kind][1](self, kind, pods)

    # What the faults need to be told.

    def replace(self, _: str, pods: tuple[PodShape, ...]) -> None:
        """A pod goes, one of its name comes, and somebody asks for that one."""
        pod, at = self.random.choice(pods), self.moment()
        self.add("delete_pod", at, pod=pod.name, force=self.random.random() < 0.5, successor=True)
        later = self.log(1.0, 60.0)
        self.request(f"r{len(self.requests())}", pod, at=round(at + later, 3))
        if self.random.random() < 0.7:
            self.add("stale", round(at + self.random.random() * later, 3), seconds=self.log(5.0, 90.0), back=0.0)

    def slow_details(self, _: str, pods: tuple[PodShape, ...]) -> None:
        """All of a pod's containers, each of which the runtime has to be asked about, and the runtime is slow."""
        pod, at = max(pods, key=lambda pod: len(pod.containers)), self.moment()
        self.request(f"r{len(self.requests())}", pod, at=at, least=self.random.choice((1, 4)), whole=True)
        about = {"method": self.random.choice(("ListContainers", "all")), "delay": self.log(0.5, 5.0)}
        self.add("cri_slow", round(at + self.log(0.1, 5.0), 3), seconds=self.log(10.0, 90.0), **about)

    def give_up_long(self, _: str, pods: tuple[PodShape, ...]) -> None:
        """A request with a long grace period is deleted; the next one has a short one."""
        pod, at, name = self.random.choice(pods), self.moment(), f"r{len(self.requests())}"
        self.request(name, pod, at=at, grace=LONG_GRACE)
        self.add("delete", round(at + self.log(0.01, 30.0), 3), request=name)
        self.request(f"r{len(self.requests())}", pod, at=round(at + self.log(0.01, 60.0), 3), grace=5)

    def of_request(self, kind: str, _: Any) -> None:
        about = {"seconds": self.log(0.05, 30.0)} if kind == "relabel" else {}
        self.add(kind, request=self.random.choice([event.about["request"] for event in self.requests()]), **about)

    def requests(self) -> list[Event]:
        return [event for event in self.events if event.kind == "create"]

    def of_container(self, kind: str, pods: tuple[PodShape, ...]) -> None:
        pod = self.random.choice(pods)
        about: dict[str, Any] = {"pod": pod.name, "container": self.random.choice(pod.containers).name}
        if kind == "crash":
            about["code"] = self.random.choice((0, 1, 137))
        if kind == "hold":
            about["seconds"] = self.log(0.5, 30.0)
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
        if kind == "cri_slow":
            about["delay"] = self.log(0.05, 12.0)
        self.add(kind, **about)

    def kill(self, kind: str, _: Any) -> None:
        """At a time, or armed: at one of the next calls, before it is carried out or before it is answered."""
        call = self.random.choice(("", "", "", "PATCH", "PATCH", "StopContainer", "ExecSync", "ListContainers", "GET"))
        away = self.random.choice((0.1, 1.0, self.log(0.1, 60.0)))
        when = self.random.choice(("before", "after"))
        self.add(kind, call=call, when=when if call else "", seconds=away, nth=self.random.choice((1, 1, 2, 3)))

    def step(self, kind: str, _: Any) -> None:
        if self.random.random() < 0.5:
            self.of_request("touch", None)
        self.add(kind, by=self.random.choice((-3600.0, -30.0, -1.5, 1.5, 30.0, 3600.0, 10 * 86400.0)))


_FAULTS: dict[str, tuple[float, Any]] = {
    "delete": (3, _Maker.of_request),
    "relabel": (2, _Maker.of_request),
    "unpin": (2, _Maker.of_request),
    "touch": (2, _Maker.of_request),
    "crash": (4, _Maker.of_container),
    "update": (2, _Maker.of_container),
    "hold": (1, _Maker.of_container),
    "delete_pod": (3, _Maker.of_pod),
    "evict": (1.5, _Maker.of_pod),
    "collect": (1, _Maker.sudden),
    "replace": (2, _Maker.replace),
    "give_up_long": (1.5, _Maker.give_up_long),
    "slow_details": (1.5, _Maker.slow_details),
    "kubelet_down": (2, _Maker.lasting),
    "kubelet_mute": (2, _Maker.lasting),
    "api_status": (4, _Maker.of_api),
    "api_hang": (3, _Maker.of_api),
    "api_cut": (2, _Maker.of_api),
    "api_refused": (2, _Maker.of_api),
    "api_lost": (3, _Maker.of_api),
    "api_slow": (2, _Maker.of_api),
    "api_foreign": (3, _Maker.of_api),
    "api_torn": (2, _Maker.of_api),
    "conflict": (2, _Maker.conflict),
    "stale": (4, _Maker.stale),
    "expire": (3, _Maker.sudden),
    "drop_watches": (2, _Maker.sudden),
    "half_open": (2, _Maker.lasting),
    "prune": (1, _Maker.lasting),
    "credentials": (1, _Maker.lasting),
    "cri_error": (4, _Maker.of_runtime),
    "cri_hang": (3, _Maker.of_runtime),
    "cri_slow": (3, _Maker.of_runtime),
    "cri_lost": (2, _Maker.of_runtime),
    "cri_down": (3, _Maker.lasting),
    "kill": (9, _Maker.kill),
    "term": (2, _Maker.lasting),
    "step": (3, _Maker.step),
}
"""Kind -> how often, and who makes it."""
