"""Schedules for policies that bring changes of a ConfigMap (`changes`): good ones and bad ones, and what interferes."""

from dataclasses import replace
from typing import Any

from tests.simulation.configmaps import KEY
from tests.simulation.maker import FAULTS, Maker
from tests.simulation.metrics import MODES
from tests.simulation.schedule import Changes, ContainerShape, PolicyShape, Schedule, Shop
from tests.simulation.shop_plots import COMMON

BEGIN = 20.0  # When the first edit may come
_BAD = ("crash", "crash", "late", "late", "unready", "metric")
_WEIGHTS = {
    "change_edit": 8,
    "change_kill": 10,
    "change_die": 6,
    "change_back": 2,
    "change_race": 2,
    "change_gitops": 3,
    "change_metrics": 4,
    "change_double": 2,
    "change_skew": 1,
    "change_evict": 1,
    "change_confirm": 2,
    "change_resume": 2,
    "shop_crash": 4,
    "shop_lose": 3,
    "shop_scale": 2,
    "shop_lag": 1,
    "shop_note": 2,
    "shop_unask": 2,
}


def changes(seed: int) -> Schedule:
    """Return the schedule of a seed."""
    maker = Maker(seed)
    random = maker.random
    shape, shop = _changes(maker), _shop(maker)
    edits = _Edits(maker)
    maker.add("change_edit", BEGIN, data=edits.next())
    length = 30.0 + sum(20.0 + 1.5 * each.judge + (each.pause or 0) * len(each.steps) for each in shape.policies)
    for _ in range(random.choice((1, 2, 3, 4, 6, 8))):
        _add(maker, random.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0], edits, length)
    for _ in range(random.choice((0, 0, 0, 1, 2, 3))):
        weights = [FAULTS[kind][0] for kind in COMMON]
        kind = random.choices(COMMON, weights)[0]
        FAULTS[kind][1](maker, kind, ())
    if random.random() < 0.7:  # in the end a person writes good data
        last = max(event.end for event in maker.events)
        maker.add("change_edit", round(last + maker.log(0.1, 60.0), 3), data=edits.good())
    return maker.made(replace(maker.setup(()), shop=shop, changes=shape, policies=True, stops_at_once=128))


class _Edits:
    """Data that nobody has written before."""

    def __init__(self, maker: Maker) -> None:
        self._maker, self._made = maker, 0

    def good(self) -> dict[str, str]:
        self._made += 1
        return {KEY: f"good-{self._made}"}

    def next(self) -> dict[str, str]:
        """Return good data or bad."""
        random = self._maker.random
        self._made += 1
        if random.random() < 0.1:
            return {"note": str(self._made)}
        mode = random.choice(_BAD) if random.random() < 0.6 else "good"
        return {KEY: f"{mode}-{self._made}"}


def _changes(maker: Maker) -> Changes:
    random = maker.random
    uses = {"proxy": random.choice(("env", "file", "subPath"))}
    first = _policy(maker, "first", "proxy", ())
    policies: tuple[PolicyShape, ...] = (first,)
    if random.random() < 0.3:
        uses["app"] = random.choice(("env", "file", "subPath"))
        policies += (_policy(maker, "second", "app", ("first",) if random.random() < 0.7 else ()),)
    return Changes(
        policies,
        uses,
        keyed="subPath" in uses.values() or random.random() < 0.7,
        falls=random.choice((1.0, 4.0, maker.log(0.5, 20.0))),
        lag=random.choice((0.02, 0.1, 0.5)),
        refresh=random.choice((0.1, 0.5, 1.2)),
        period=random.uniform(60.0, 90.0),
        scrape=random.choice((0.1, 1.0, 4.0)),
    )


def _policy(maker: Maker, name: str, container: str, after: tuple[str, ...]) -> PolicyShape:
    random = maker.random
    steps = random.choice(((1,), (1,), (1, 3), (2, 4), (1, 2, 3), (1, "50%"), ("30%",), (3,), ()))
    confirms = bool(steps) and random.random() < 0.2
    judge = random.choice((0, 6, 10, 15, 15, 20))
    return PolicyShape(
        name,
        container,
        steps,
        pause=random.choice((0, 3, 10, 30)) if steps and not confirms else None,
        confirms=confirms,
        judge=judge,
        max_restarts=random.choice((0, 0, 0, 1)),
        failure_limit=random.choice((0, 1, 3)),
        metric=random.choice(("", "vector", "vector", "baseline")) if judge >= 10 else "",
        restores=random.random() < 0.5,
        after=after,
        settle=random.choice((2, 3, 3, 8)),
    )


def _shop(maker: Maker) -> Shop:
    random = maker.random
    gate = random.random() < 0.3
    containers = tuple(
        ContainerShape(
            name,
            "Always",
            term_seconds=random.choice((None, 0.05, 1.0)),
            start_seconds=random.choice((0.1, 0.3, maker.log(0.1, 2.0))),
            ready_seconds=random.choice((0.0, 1.0, maker.log(0.1, 5.0))),
        )
        for name in ("app", "proxy")
    )
    return Shop(
        random.choice(("Deployment", "StatefulSet", "DaemonSet")),
        random.choice((3, 4, 5, 6, 8)),
        containers,
        max_unavailable=random.choice((1, 1, 2, 3)),
        budget=random.random() < 0.2,
        gate=gate,
        labelled=random.random() < 0.7,
        lags=tuple(random.choice((0.02, 0.1, 0.5)) for _ in range(3)),
    )


def _add(maker: Maker, kind: str, edits: _Edits, length: float) -> None:
    random = maker.random
    at = round(BEGIN + random.choice((random.random() * length, maker.log(0.1, length))), 3)
    about: dict[str, Any] = {"pod": random.randrange(8)} if kind.startswith("shop_") or kind == "change_evict" else {}
    if kind in ("change_edit", "change_race"):
        about["data"] = edits.next()
    if kind == "change_back":
        about["edits"] = random.choice((1, 1, 2))
    if kind == "change_kill":
        about = {"nth": random.choice((1, 1, 2, 3, random.randint(1, 20))), "when": random.choice(("before", "after"))}
    if kind in ("change_kill", "change_die", "change_double", "shop_lag"):
        about["seconds"] = maker.log(0.1, 60.0 if kind == "change_die" else 30.0)
    if kind == "change_gitops":
        about |= {"every": maker.log(0.5, 30.0), "seconds": maker.log(5.0, 2 * length)}
    if kind == "change_metrics":
        about |= {"mode": random.choice(MODES), "seconds": maker.log(1.0, 90.0)}
    if kind == "change_skew":
        about["by"] = random.choice((-3600.0, -5.0, 5.0, 3600.0))
    if kind == "change_evict":
        about["seconds"] = maker.log(1.0, 30.0)
    if kind == "shop_scale":
        about = {"replicas": random.randint(1, 8)}
    if kind == "shop_crash":
        about["container"] = random.choice(("app", "proxy", "proxy"))
    maker.add(kind, at, **about)
