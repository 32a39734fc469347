"""Schedules for runs with an image (`shop`): the workload and the run, and what happens meanwhile."""

from dataclasses import replace

from tests.simulation.maker import FAULTS, Maker
from tests.simulation.schedule import ContainerShape, Schedule, Shop

BEGIN = 10.0  # When the run starts
COMMON = (
    *("api_status", "api_hang", "api_cut", "api_refused", "api_lost", "api_slow", "api_foreign", "api_torn"),
    *("conflict", "stale", "expire", "drop_watches", "half_open", "kubelet_down", "kubelet_mute", "credentials"),
    *("cri_error", "cri_hang", "cri_slow", "cri_late", "cri_lost", "cri_down", "leader", "kill", "double", "term"),
    "collect",
)
"""Faults of all schedules that may happen here, too."""
_WEIGHTS = {
    "run_kill": 10,
    "scale": 4,
    "lose": 4,
    "crash": 5,
    "lag": 4,
    "registry": 4,
    "note": 3,
    "collect": 3,
    "unask": 1,
    "abort": 1,
    "edit_pod": 1,
    "rollout": 1,
    "revert": 1,
}


def image_run(seed: int) -> Schedule:
    """Return the schedule of a seed."""
    maker = Maker(seed)
    random = maker.random
    shop = _shop(maker)
    maker.add("shop_run", BEGIN)
    for _ in range(random.choice((1, 2, 2, 3, 4, 6))):
        kind = random.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0]
        _add(maker, kind, shop)
    for _ in range(random.choice((0, 0, 0, 1, 2, 3))):
        weights = [FAULTS[kind][0] for kind in COMMON]
        kind = random.choices(COMMON, weights)[0]
        FAULTS[kind][1](maker, kind, ())
    return maker.made(replace(maker.setup(()), shop=shop, stops_at_once=128))


def _shop(maker: Maker) -> Shop:
    random = maker.random
    kind, replicas = random.choice(("Deployment", "StatefulSet", "DaemonSet")), random.choice((1, 2, 3, 4, 6))
    gate, rewrites = random.random() < 0.5, random.random() < 0.15
    containers = tuple(
        ContainerShape(
            name,
            "Always",
            term_seconds=random.choice((None, 0.05, 1.0)),
            start_seconds=random.choice((0.1, 0.3, maker.log(0.1, 5.0))),
            ready_seconds=random.choice((0.0, 1.0, maker.log(0.1, 5.0))),
        )
        for name in ("app", "proxy")
    )
    return Shop(
        kind,
        replicas,
        containers,
        adopt=random.random() < 0.7,
        max_unavailable=random.choice((1, 1, 2, 3)),
        budget=random.random() < 0.3,
        grace=random.choice((None, 1, 3)) if gate else None,
        gate=gate,
        labelled=random.random() < 0.7,
        min_ready=random.choice((0, 0, 2)),
        partition=random.choice((0, 0, 0, 1)),
        undo=not rewrites and random.random() < 0.2,  # one image from before has two names
        rewrites=rewrites,
        tells_image=random.random() < 0.6,
        pull_seconds=random.choice((0.2, 2.0, maker.log(0.1, 40.0))),
        missing=random.random() < 0.1,
        lags=tuple(random.choice((0.02, 0.1, 0.5, maker.log(0.02, 4.0))) for _ in range(3)),
    )


def _add(maker: Maker, kind: str, shop: Shop) -> None:
    random = maker.random
    at = round(BEGIN + random.random() * maker.log(1.0, 10.0 + 12.0 * shop.replicas), 3)
    about: dict[str, object] = {"pod": random.randrange(8)}
    if kind == "run_kill":
        about = {"nth": random.randint(1, 8), "when": random.choice(("before", "after"))}
        at = round(BEGIN - 1.0 + random.choice((0.0, random.random() * 20.0)), 3)
    if kind in ("run_kill", "lag", "registry"):
        about["seconds"] = maker.log(0.1, 40.0)
    if kind == "scale":
        about = {"replicas": random.randint(1, 6)}
    if kind == "registry":
        about["hangs"] = random.random() < 0.5
    if kind == "crash":
        about["container"] = random.choice(("app", "proxy"))
    maker.add(f"shop_{kind}", at, **about)
