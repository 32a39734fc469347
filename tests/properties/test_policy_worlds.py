"""Policies over everything that happens to them at once, with the manager's own controller in virtual time.

Edits of several objects, deletions and re-creations (immutable ones, too), workloads whose labels overlap, two policies
for the same pods, nodes that go and come, pods that come, go and crash, suspensions, missed times of a schedule,
leaders that change, connections that break, and a namespace whose calls hang. No container is restarted without a
change that it could see, none twice for one change, none keeps old data without a condition that says so, no more are
unavailable than the budget allows, whichever run took them down, and a namespace that hangs delays no other.

POLICY_WORLDS=2000 plays so many worlds.
"""

import os
from collections.abc import Awaitable, Callable

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.simulation.clock import virtual_time
from tests.support.policy_world import NODE_NAMES, NOISY, OBJECTS, QUIET, Pod, PolicyWorld

WORLDS = int(os.environ.get("POLICY_WORLDS", "8"))
QUIET_SECONDS = 100.0
"""After which everything is live: settle, and some seconds for each pod and each of the two policies."""


def may_change(world: PolicyWorld, name: str) -> bool:
    """What is changed and changed again while no manager looks is not known, and Limits says so."""
    return world.configs[name].seen and world.knows(name)


def edit(world: PolicyWorld, name: str, value: int) -> None:
    if may_change(world, name) and not world.configs[name].immutable:
        world.write(name, str(value))


def delete_object(world: PolicyWorld, name: str, _: int) -> None:
    if may_change(world, name):
        world.write(name, None)


def freeze(world: PolicyWorld, name: str, value: int) -> None:
    config = world.configs[name]
    if may_change(world, name):
        world.write(name, config.value if config.immutable else str(value), immutable=True)


def replace(world: PolicyWorld, name: str, value: int) -> None:
    if may_change(world, name):
        world.write(name, str(value), immutable=value > 0, again=True)


def create(world: PolicyWorld, kind: str, which: int) -> None:
    if len(world.pods) < 7:
        world.create(kind, NODE_NAMES[which % 2])


def present(world: PolicyWorld, kind: str) -> list[Pod]:
    found = (pod for pod in world.pods.values() if pod.name.startswith(kind) and not pod.deleting)
    return sorted(found, key=lambda pod: pod.name)


def roll_out(world: PolicyWorld, kind: str, which: int) -> None:
    if old := present(world, kind):
        pod = old[which % len(old)]
        world.create(kind, pod.node)
        world.delete(pod)


def delete(world: PolicyWorld, kind: str, which: int) -> None:
    if old := present(world, kind):
        world.delete(old[which % len(old)])


async def scale_down_and_up(world: PolicyWorld, kind: str, _: int) -> None:
    nodes = [pod.node for pod in present(world, kind)]
    for pod in present(world, kind):
        world.delete(pod)
    await world.go_on(4)
    for node in nodes:
        world.create(kind, node)


def crash(world: PolicyWorld, kind: str, which: int) -> None:
    if there := present(world, kind):
        world.crash(there[which % len(there)])


def node(world: PolicyWorld, _: str, which: int) -> None:
    world.toggle(NODE_NAMES[which % 2])


def suspend(world: PolicyWorld, *_: object) -> None:
    world.suspend(suspended=not world.suspended)


async def change_leader(world: PolicyWorld, _: str, seconds: int) -> None:
    await world.die()
    await world.go_on(seconds)
    world.lead()


async def lose_leader(world: PolicyWorld, *_: object) -> None:
    await world.die()


def hang(world: PolicyWorld, *_: object) -> None:
    world.api.hanging ^= {NOISY}


async def break_connections(world: PolicyWorld, kind: str, which: int) -> None:
    """A pod is replaced meanwhile, and then the manager must list again."""
    world.blind = True
    world.api.end_watches(expired=True)
    world.api.hanging.add(QUIET)
    roll_out(world, kind, which)
    await world.go_on(5)
    world.api.hanging.discard(QUIET)
    await world.go_on(10)


async def wait(world: PolicyWorld, _: str, seconds: int) -> None:
    await world.go_on(seconds)


Action = Callable[[PolicyWorld, str, int], Awaitable[None] | None]
OF_OBJECTS: list[Action] = [edit, edit, delete_object, freeze, replace, replace]
OF_PODS: list[Action] = [create, roll_out, roll_out, delete, crash, scale_down_and_up, break_connections]
OTHERS: list[Action] = [node, node, suspend, change_leader, lose_leader, hang, wait]
NUMBER = st.integers(0, 20)
STEPS = st.one_of(
    st.tuples(st.sampled_from(OF_OBJECTS), st.sampled_from(OBJECTS), st.integers(0, 2)),
    st.tuples(st.sampled_from(OF_PODS), st.sampled_from(["web", "web", "canary"]), NUMBER),
    st.tuples(st.sampled_from(OTHERS), st.just(""), NUMBER),
    st.tuples(st.just(wait), st.just(""), st.integers(60, 800)),
)
Step = tuple[Action, str, int]


async def take(world: PolicyWorld, step: Step) -> None:
    action, what, number = step
    if (going_on := action(world, what, number)) is not None:
        await going_on
    await world.go_on(1.5)


async def play(steps: list[Step]) -> PolicyWorld:
    """The world after these steps, and after everything went well for a while."""
    world = PolicyWorld()
    await world.prepare()
    for step in steps:
        await take(world, step)
    if world.suspended:
        world.suspend(suspended=False)
    for name in tuple(world.down):
        world.toggle(name)
    if not world.led:
        world.lead()
    await world.go_on(2)
    for name, config in world.configs.items():
        if config.value is None:
            world.write(name, "9")
    world.api.hanging.add(NOISY)
    await world.go_on(QUIET_SECONDS)
    world.judge_end()
    await world.go_on(310)  # once more than the manager looks without a change
    world.judge_end()
    await world.die()
    return world


@given(st.lists(STEPS, max_size=14))
@example([(edit, "a", 1)])  # two policies start a run in the same moment
@settings(max_examples=WORLDS, suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_policies_keep_their_promises(steps: list[Step]) -> None:
    with virtual_time() as loop:
        world = loop.run_until_complete(play(steps))
    assert world.faults == []
