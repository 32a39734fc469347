"""The rounds of a soak: start everything, carry out the plan, wait for quiet, judge."""

import asyncio
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import yaml

from crrd.core.api.types import LABEL_READINESS_GATE
from crrd.kube.resources import CONFIG_MAPS, NAMESPACES, POLICIES
from crrd.lib.errors import ApiRefusedError, ApiUnavailableError, ConflictError
from crrd_localnode.workload import RESOURCES
from tests.soak_cluster.collect import Collector
from tests.soak_cluster.daemons import clock_library, running_daemons
from tests.soak_cluster.faults import Faults
from tests.soak_cluster.judge import judge
from tests.soak_cluster.observe import Observer
from tests.soak_cluster.plan import Action, Step, plan
from tests.soak_cluster.processes import Process
from tests.soak_cluster.record import Kind, Part, Record
from tests.soak_cluster.report import Tally
from tests.soak_cluster.users import Users
from tests.soak_cluster.workloads import (
    APP,
    KINDS,
    MOST_UNREADY,
    config_map,
    policy,
    workload,
)
from tests.support.cluster import CRDS, Cluster, Json
from tests.support.recreates import wait_ready

QUIET_SECONDS = 420.0  # Longest quiet time: the longest deadline, a new leader's delay, and a run's timeout
SHORT_QUIET_SECONDS = 15.0  # After Ctrl-C
PROGRESS_SECONDS = 30.0
MANIFESTS = Path(__file__).parents[2] / "manifests" / "base"
FIRST_VALUE = "v0"


class Soak:
    """A soak on one cluster."""

    def __init__(
        self,
        cluster: Cluster,
        folder: Path,
        processes: Mapping[Part, Sequence[Process]],
        audit_log: Path | None,
        tell: Callable[[str], None],
    ) -> None:
        self._cluster = cluster
        self._folder = folder
        self._files = folder / "files"
        self._processes = processes
        self._tell = tell
        self.tally = Tally()
        self._collector = Collector(MOST_UNREADY, frozenset({APP}), APP)
        self._observer = Observer(cluster, self._collector, self._files, audit_log)
        self._users = Users(cluster, self._collector, self._files, folder / "runs.log")

    @property
    def gaps(self) -> int:
        """How often a watch could not be resumed."""
        return self._observer.gaps

    def lines(self) -> Iterator[str]:
        """Yield the lines of the table at the end."""
        yield from self.tally.lines()
        for name, count in sorted(self._users.done.items()):
            yield f"| {name} | {count}, and {self._users.refused[name]} that were not possible or failed |"

    async def run(
        self, seed: int, seconds: float, round_seconds: float, kinds: Collection[Kind], stop: asyncio.Event
    ) -> None:
        """Run rounds for this time, or until `stop` is set."""
        self._files.mkdir(exist_ok=True)
        self._files.chmod(0o777)
        self._collector.next_round(time.time())
        await self._apply_crds()
        async with running_daemons(self._cluster, self._folder) as daemons, asyncio.TaskGroup() as group:
            faults = Faults(daemons, self._processes, self._users.runs, self._folder / "logs", self._collector)
            possible, parts = faults.possible()
            if Kind.CLOCK in kinds and not clock_library():
                self._tell("libfaketime is not installed: no clock steps (apt-get install libfaketime)")
            works = [self._observer.run(), faults.watch_over(), self._progress()]
            works += [each.watch_over(self._collector) for each in daemons]
            tasks = [group.create_task(each) for each in works]
            try:
                await self._begin()
                began = time.monotonic()
                while not stop.is_set() and time.monotonic() - began < seconds:
                    steps = plan(seed, self.tally.rounds + 1, round_seconds, set(kinds) & possible, parts)
                    await self._round(steps, round_seconds, faults, stop)
            finally:
                for each in tasks:
                    each.cancel()

    async def _apply_crds(self) -> None:
        for name in ("crd.yaml", "policies-crd.yaml"):
            crd = yaml.safe_load(MANIFESTS.joinpath(name).read_text(encoding="utf-8"))
            try:
                await self._cluster.client.create(CRDS, "", crd)
            except ConflictError:  # an older one would drop new fields
                await self._cluster.client.merge_patch(CRDS, "", crd["metadata"]["name"], {"spec": crd["spec"]})

    async def _begin(self) -> None:
        """Create the workloads, and wait until they run."""
        client, namespace = self._cluster.client, self._cluster.namespace
        labels = {"metadata": {"labels": {LABEL_READINESS_GATE: "enabled"}}}  # the manager makes its pods ready
        await client.merge_patch(NAMESPACES, "", namespace, labels)
        await client.create(CONFIG_MAPS, namespace, config_map(FIRST_VALUE))
        self._collector.edits.append((time.time(), FIRST_VALUE))
        for name, (kind, replicas) in KINDS.items():
            body: Json = workload(name, self._cluster.node_name, self._cluster.image, str(self._files))
            await client.create(RESOURCES[kind], namespace, body)
            await wait_ready(self._cluster, name, replicas)
        await client.create(POLICIES, namespace, policy())

    # Rounds

    async def _round(self, steps: Sequence[Step], seconds: float, faults: Faults, stop: asyncio.Event) -> None:
        self._collector.next_round(time.time())
        began = time.monotonic()
        working: set[asyncio.Task[object]] = set()
        for step in steps:
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), max(0.0, began + step.at - time.monotonic()))
            if stop.is_set():
                break
            act = faults.apply(step) if step.action is Action.FAULT else self._users.act(step)
            working.add(asyncio.create_task(act))
        with suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), max(0.0, began + seconds - time.monotonic()))
        quiet = time.time()
        limit = SHORT_QUIET_SECONDS if stop.is_set() else QUIET_SECONDS
        try:
            async with asyncio.timeout(limit):
                await asyncio.gather(*working)
                while not self._is_quiet(await self._look(quiet)):
                    await asyncio.sleep(2)
                    if stop.is_set() and limit > SHORT_QUIET_SECONDS:
                        break
        except TimeoutError:
            await asyncio.gather(*working, return_exceptions=True)
        await self._judge(quiet, settled=not stop.is_set())

    async def _look(self, quiet: float, *, settled: bool = True) -> Record:
        """Read everything that can be read now."""
        with suppress(ApiUnavailableError, ApiRefusedError):
            await self._users.note_data()
        self._observer.read_files()
        return self._collector.record(quiet, time.time(), settled=settled)

    def _is_quiet(self, record: Record) -> bool:
        """Whether all requests have ended, also their TTL, and nothing is left to wait for."""
        waits = any(
            each.over is None or (each.ttl and each.ttl < QUIET_SECONDS and not each.gone) for each in record.requests
        )
        return (
            not waits
            and not judge(record)
            and all(each.unready_since(record.ended) is None for each in record.pods if each.deleting is None)
        )

    async def _judge(self, quiet: float, *, settled: bool) -> None:
        record = await self._look(quiet, settled=settled)
        broken = judge(record)
        self.tally.add(record, broken)
        for each in broken:
            self._tell(f"broken: {each.promise}: {each.sentence}")
        self._tell(
            f"round {self.tally.rounds} has ended: {len(record.requests)} requests, {len(record.faults)} faults, "
            f"{len(broken)} broken"
        )

    async def _progress(self) -> None:
        while True:
            await asyncio.sleep(PROGRESS_SECONDS)
            found = self._collector
            open_requests = sum(1 for each in found.requests.values() if each.over is None)
            self._tell(
                f"round {self.tally.rounds + 1}: {len(found.requests)} requests, {open_requests} open, "
                f"{len(found.faults)} faults, {len(self.tally.broken)} broken"
            )
