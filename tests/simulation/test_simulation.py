"""The whole node daemon in virtual time, against worlds with all kinds of faults."""

import os
import subprocess
import sys
from collections.abc import Callable

import pytest
import structlog

import crrd.node.execute
from tests.simulation.change_plots import changes
from tests.simulation.maker import day, schedule
from tests.simulation.pod_plots import pod_restarts
from tests.simulation.schedule import Event, Schedule
from tests.simulation.shop_plots import image_run
from tests.simulation.shrink import shrink, story
from tests.simulation.world import SimulatedWorld, collect, run

SCHEDULES = 100  # Number of seeds in `make test`, one of them with a full node. `make soak` runs more
IMAGE_RUNS = 6  # The same for runs with an image
POD_RESTARTS = 40  # The same for requests for whole pods
CHANGES = 6  # The same for policies that bring changes of configuration
CHUNK = 50
pytestmark = pytest.mark.usefixtures("unmeasured")


@pytest.mark.parametrize("first", range(0, SCHEDULES, CHUNK))
def test_schedules(first: int) -> None:
    collect()
    tried(schedule, range(first, first + CHUNK))


def tried(plan: Callable[[int], Schedule], seeds: range, kind: str = "") -> None:
    """Run these schedules, and tell the first one that breaks a promise."""
    for seed in seeds:
        made = plan(seed)
        if run(made).broken:
            told, _ = story(made, shortest=True)
            pytest.fail(f"make soak {kind}SEED={seed}\n{told}", pytrace=False)


def test_runs_with_an_image() -> None:
    """`kubectl recreate --image` itself. `make soak KIND=images` runs more."""
    collect()
    tried(image_run, range(IMAGE_RUNS), "KIND=images ")


def test_restarts_of_whole_pods() -> None:
    """Requests for whole pods among the others. `make soak KIND=pods` runs more."""
    collect()
    tried(pod_restarts, range(POD_RESTARTS), "KIND=pods ")


def test_policies_for_changed_configuration() -> None:
    """Good data and bad, steps, judgements and the way back. `make soak KIND=changes` runs more."""
    collect()
    tried(changes, range(CHANGES), "KIND=changes ")


@pytest.mark.parametrize("seed", [81, 219, 506, 3755])
def test_what_once_failed_with_a_whole_pod(seed: int) -> None:
    """Containers were stopped for a request while kubelet stopped the pod, an earlier pod had the same name, or a
    second sandbox was made after the request had ended."""
    assert not run(pod_restarts(seed)).broken


@pytest.mark.parametrize("seed", [309, 2897])
def test_what_once_failed_with_an_image(seed: int) -> None:
    """The only pod was away when the run looked, so the template got an image that does not exist. Or the judge did not
    wait for a manager that could not read the pods for half a minute."""
    assert not run(image_run(seed)).broken


@pytest.mark.parametrize("seed", [2])
def test_a_day_leaves_no_more_than_a_minute(seed: int) -> None:
    """Hundreds of requests: anything that grows with them would be found at the end."""
    outcome = run(day(seed))
    assert not outcome.broken
    assert outcome.objects <= run(schedule(seed)).objects + 10


@pytest.mark.parametrize("seed", [90000688])
def test_what_once_failed(seed: int) -> None:
    """A variable of a loop that waits for the next request kept the last pod's record."""
    assert not run(schedule(seed)).broken


def test_the_log_is_heard_in_a_process_that_has_logged_elsewhere() -> None:
    """The judge needs the log: a request ends during its hook, and its stop follows."""
    structlog.configure(processors=[lambda *_: ""], cache_logger_on_first_use=True)
    crrd.node.execute.log.info("kept")
    assert not run(schedule(1902)).broken


@pytest.mark.parametrize("seed", [3, 40, 171])
def test_a_seed_always_tells_the_same_story(seed: int) -> None:
    """Twice here, and in another process with a different string hash."""
    here = story(schedule(seed), shortest=False)
    assert story(schedule(seed), shortest=False) == here
    code = f"from tests.simulation.__main__ import tell; tell({seed}, shortest=False)"
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    there = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert there.stdout.strip() == here[0].strip()


def test_a_schedule_shrinks_to_what_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    """With an invariant that only two of the events together break."""
    original = SimulatedWorld.happen

    def happen(self: SimulatedWorld, event: Event) -> None:
        original(self, event)
        if self.faults["step"] >= 2:
            self.broken("two steps of the clock")

    monkeypatch.setattr(SimulatedWorld, "happen", happen)
    plan = schedule(1)
    steps = [Event(2.0, "step", {"by": 1.5}), Event(3.0, "step", {"by": 30.0}), Event(4.0, "step", {"by": 1.5})]
    plan = Schedule(1, plan.setup, (*plan.events, *steps))
    shortest, outcome = shrink(plan, run(plan))
    assert outcome.broken == "two steps of the clock"
    assert [event.kind for event in shortest.events] == ["step", "step"]
