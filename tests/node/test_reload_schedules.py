"""Requests for reloads beside restarts, with faults at random moments from a seed, on a node in virtual time.

The judge: a reload runs at most once for a request, unless the daemon died in it. Only what the pod declared runs, in
an instance that the request means, and not while that is stopped. No container is stopped for it.
"""

import asyncio
import os
from collections import Counter
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from crrd.core.api.types import Action, Request, StatePhase, Strategy
from crrd.core.recreate.actions import RunReload
from crrd.core.recreate.observation import HookResult, Instance
from crrd.kubelet.runtime_status import ContainerState
from crrd.lib.errors import ApiUnavailableError
from tests.support.standins import MemoryNode
from tests.support.worlds import request

pytestmark = [pytest.mark.virtual_time, pytest.mark.usefixtures("unmeasured")]

HUP = '{"signal": "HUP", "timeoutSeconds": 60}'
LATER = '{"exec": ["sh", "-c", "steal"]}'
SCHEDULES = int(os.environ.get("RELOAD_SCHEDULES", "150"))
FAULTS = ("kill", "kill", "lost", "refused", "away", "silent", "delete", "label", "crash", "annotate", "unready")


class Judged(MemoryNode):
    """A node that checks each reload and each stop when it begins."""

    def __init__(self, random: Random) -> None:
        super().__init__("app", "side")
        self.random = random
        self.declared = dict.fromkeys(("app", "side"), HUP)
        self.of_sandbox = self.recorded = dict(self.declared)
        self.refreshed = random.random() < 0.5
        self.refresh = "t0"
        self.runs: Counter[tuple[str, str]] = Counter()  # Request and instance -> reloads that have begun
        self.excused: Counter[tuple[str, str]] = Counter()  # Those in which the daemon died
        self.stopping: set[str] = set()
        self.stopped_for: list[str] = []

    async def reload(self, action: RunReload) -> HookResult:
        uid, target = action.request.uid, action.instance
        assert action.request.reloads
        assert self.of_sandbox[target.name] == self.declared[target.name], "another command than that of the sandbox"
        assert action.reload.signal == "HUP"
        assert self.known[target.id].state is ContainerState.RUNNING
        assert target.id not in self.stopping, "it is being stopped"
        meant = {each.context.bare_id for each in action.request.containers if each.context is not None}
        assert target.id in meant, "an instance that the request does not mean"
        self.runs[uid, target.id] += 1
        assert self.runs[uid, target.id] <= 1 + self.excused[uid, target.id], f"{uid} reloads {target.id} again"
        await asyncio.sleep(self.random.choice((0.1, 1.0, 8.0)))
        return HookResult(1.0, self.random.choice(("", "", "", "exit code 1")))

    async def stop(self, instance: Instance, seconds: float) -> None:
        plain = [each for each in self.requests.values() if not each.reloads]
        assert plain or self.stopped_for, f"{instance.id} is stopped, and no request is for a restart"
        self.stopping.add(instance.id)
        await super().stop(instance, seconds)

    async def kill(self) -> None:
        for (uid, bare_id), work in self.works.items():
            if not (found := self.requests.get(uid)) or not found.reloads:
                continue
            recorded = found.start_times.get(work.name) is not None and found.start_times[work.name].reload
            failed = found.status.state(work.name).phase is StatePhase.FAILED
            if not (recorded or failed):
                self.excused[uid, bare_id] += 1
        await super().kill()

    def newest(self, name: str) -> Instance:
        """The current instance of a container."""
        return max((each for each in self.known.values() if each.name == name), key=lambda each: each.created_at)

    def ask(self, uid: str, *, reloads: bool) -> Request:
        """A request for the instances that run now."""
        names = self.random.choice((("app",), ("app", "side"), ("side", "app")))
        strategy = Strategy(
            action=Action.RELOAD if reloads else Action.UNSET,
            ordered=self.random.random() < 0.3,
            min_started_seconds=self.random.choice((0, 0, 5)),
        )
        made = request(*names, uid=uid, strategy=strategy, refresh=self.random.choice(("t0", "t1")))
        made = replace(made, created=f"2099-01-01T00:00:{len(self.requests):02}Z")
        containers = tuple(replace(each, context=self.newest(each.name).pin) for each in made.containers)
        return replace(made, containers=containers)


async def play(node: Judged) -> None:
    """Create requests, and let things go wrong, for a minute. Then all must end."""
    random, loop = node.random, asyncio.get_running_loop()
    ends = loop.time() + 60.0
    number = 0
    while loop.time() < ends:
        await asyncio.sleep(random.choice((0.02, 0.3, 2.0, 9.0)))
        if number < 4 and random.random() < 0.4:
            reloads = random.random() < 0.75
            if not reloads:
                node.stopped_for.append(f"r{number}")
            node.post(node.ask(f"r{number}", reloads=reloads))
            number += 1
        else:
            await fault(node, random.choice(FAULTS))
    node.runtime_down, node.kubelet_silent, node.unready = False, None, set()
    node.report()


def relabel(node: Judged, uid: str, *, active: bool) -> None:
    """Another client removes the label active of a request, or puts it back."""
    if found := node.requests.get(uid):
        node.post(replace(found, active=active, resource_version=str(int(found.resource_version) + 1)))


def end_instance(node: Judged, name: str) -> None:
    """A container ends, and kubelet restarts it."""
    found = node.newest(name)
    if found.state is ContainerState.RUNNING and found.id not in node.stopping:
        node.known[found.id] = replace(found, state=ContainerState.EXITED)
        node._spawn(node._kubelet(name))


async def fault(node: Judged, kind: str) -> None:
    random, now = node.random, asyncio.get_running_loop().time()
    live = [each.uid for each in node.requests.values() if not each.completed]
    match kind:
        case "kill":
            await node.kill()
        case "lost":
            node.lost_answers = random.choice((1, 2, 3))
        case "refused":
            node.write_errors = [ApiUnavailableError("away") for _ in range(random.choice((1, 3)))]
        case "away":
            node.runtime_down = not node.runtime_down
        case "silent":
            node.kubelet_silent = now if node.kubelet_silent is None else None
        case "delete" if live:
            node.delete(random.choice(live))
        case "label" if live:
            relabel(node, uid := random.choice(live), active=False)
            await asyncio.sleep(random.choice((0.1, 5.0)))
            relabel(node, uid, active=True)
        case "crash":
            end_instance(node, random.choice(("app", "side")))
        case "annotate":
            node.refresh = random.choice(("t0", "t1"))
            node.declared["side"] = random.choice((HUP, LATER))
            node.report()
        case "unready":
            node.unready = set() if node.unready else {"app"}
            node.report()


@pytest.mark.parametrize("seed", range(SCHEDULES))
async def test_a_schedule(seed: int) -> None:
    async with Judged(Random(seed)) as node:
        await play(node)
        await node.until(lambda: all(each.completed for each in node.requests.values()), seconds=900)
        reloads = [each for each in node.requests.values() if each.reloads]
        for each in reloads:
            for state in each.status.states:
                assert not state.is_killed
                done = sum(count for (uid, _), count in node.runs.items() if uid == each.uid)
                assert state.phase is not StatePhase.SUCCEEDED or done, f"{each.uid} has not reloaded, and says so"
        if not node.stopped_for:
            assert node.stops == []


async def test_the_schedules_have_what_they_are_for() -> None:
    """Else the judge would look at nothing."""
    seen: Counter[str] = Counter()
    for seed in range(40):
        async with Judged(Random(seed)) as node:
            await play(node)
            await node.until(lambda: all(each.completed for each in node.requests.values()), seconds=900)
            seen["reloads"] += sum(node.runs.values())
            seen["again"] += sum(count > 1 for count in node.runs.values())
            seen["stops"] += len(node.stops)
            found: list[Any] = [each for each in node.requests.values() if each.reloads]
            seen["failed"] += sum(state.phase is StatePhase.FAILED for each in found for state in each.status.states)
    assert min(seen[kind] for kind in ("reloads", "again", "stops", "failed")) > 0, seen
