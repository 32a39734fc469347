"""What users do during a round: requests, runs, edits, deletions. Also containers that crash."""

import asyncio
import secrets
import sys
import time
from collections import Counter
from pathlib import Path

from crrd.kube.resources import CONFIG_MAPS, REQUESTS
from crrd.lib.errors import ApiRefusedError, ApiUnavailableError
from tests.soak_cluster.collect import Collector
from tests.soak_cluster.plan import Action, Step
from tests.soak_cluster.record import Pod
from tests.soak_cluster.workloads import APP, CONFIG, KINDS, MOST_UNREADY, SIDE, crash_file, request
from tests.support.cluster import Cluster

TRIES = 3  # How often a run that has not ended well is continued
RUN_FLAGS = ("--pod-timeout", "2m", "--timeout", "4m")


class Users:
    """Carries out the steps of users, one after the other or side by side, and counts them."""

    def __init__(self, cluster: Cluster, collector: Collector, files: Path, log: Path) -> None:
        self._cluster = cluster
        self._collector = collector
        self._files = files  # The containers' folder
        self._log = log  # For the output of runs
        self.runs: dict[str, asyncio.subprocess.Process] = {}  # Workload -> the process of its run
        self._images = dict.fromkeys(KINDS, 1)
        self._working: set[str] = set()
        self.done: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()  # Steps that were not possible, for example because no API server ran

    async def act(self, step: Step) -> None:
        """Carry out a step."""
        try:
            possible = await self._act(step)
        except (ApiUnavailableError, ApiRefusedError):
            possible = False
        (self.done if possible else self.refused)[step.action] += 1

    async def _act(self, step: Step) -> bool:
        pods = sorted(
            (each for each in self._collector.pods.values() if each.deleting is None), key=lambda each: each.name
        )
        if not pods:
            return False
        pod, more = pods[step.number % len(pods)], step.number // 64
        match step.action:
            case Action.REQUEST:
                containers = ([APP], [SIDE], [APP, SIDE], [SIDE, APP])[more % 4]
                await self._request(pod, containers, more // 4)
            case Action.TWICE:
                both = (self._request(pod, [APP], more), self._request(pod, [APP, SIDE], more // 4))
                await asyncio.gather(*both)
            case Action.DELETE:
                return await self._delete(step.number)
            case Action.CRASH:
                self._files.joinpath(crash_file(pod.uid, (APP, SIDE)[more % 2])).touch()
            case Action.EDIT:
                await self.edit(f"v{step.number:08x}")
            case Action.RUN | Action.IMAGE:
                return await self._run(step)
            case Action.FAULT:
                raise AssertionError("faults are not for users")
        return True

    async def _request(self, pod: Pod, containers: list[str], number: int) -> None:
        await self._cluster.client.create(REQUESTS, self._cluster.namespace, request(pod.name, containers, number))

    async def _delete(self, number: int) -> bool:
        names = sorted(each.name for each in self._collector.requests.values() if each.over is None and not each.run)
        if not names:
            return False
        self._collector.deleted.add(name := names[number % len(names)])
        await self._cluster.client.delete(REQUESTS, self._cluster.namespace, name)
        return True

    async def edit(self, value: str) -> None:
        """Change the ConfigMap. It counts even if the answer was lost: see `note_data`."""
        await self._cluster.client.merge_patch(CONFIG_MAPS, self._cluster.namespace, CONFIG, {"data": {"value": value}})
        self._collector.edits.append((time.time(), value))

    async def note_data(self) -> None:
        """Record the ConfigMap's data if the answer to its last edit was lost."""
        stored = (await self._cluster.client.get(CONFIG_MAPS, self._cluster.namespace, CONFIG))["data"]["value"]
        if not self._collector.edits or self._collector.edits[-1][1] != stored:
            self._collector.edits.append((time.time(), stored))

    # Runs

    async def _run(self, step: Step) -> bool:
        """Carry out a run to its end. If its process dies or fails, continue it, and at last abort it."""
        name = sorted(KINDS)[step.number % len(KINDS)]
        if name in self._working or (step.action is Action.IMAGE and not self._cluster.second_image):
            return False
        self._working.add(name)
        try:
            run = f"{name}-{secrets.token_hex(3)}"
            more: tuple[str, ...] = ("-c", (APP, SIDE, f"{APP},{SIDE}")[step.number // 64 % 3])
            if step.action is Action.IMAGE:
                self._images[name] = 3 - self._images[name]
                image = (self._cluster.image, self._cluster.second_image)[self._images[name] - 1]
                more = ("-c", SIDE, "--image", image, "--template", "adopt", "--allow-mutable-tag")
            target = f"{KINDS[name][0].lower()}/{name}"
            budget = ("--max-unavailable", str(MOST_UNREADY[name]))
            code = await self._recreate(name, target, *more, *budget, "--run", run, *RUN_FLAGS)
            for _ in range(TRIES):
                if code in (0, 2):
                    break
                code = await self._recreate(name, "resume", run, "--retry-failed", "--timeout", "2m")
            if code == 0:
                return True
            await self._recreate(name, "abort", run)
            return False
        finally:
            self._working.discard(name)

    async def _recreate(self, workload: str, *words: str) -> int:
        where = ("-n", self._cluster.namespace, "--kubeconfig", str(self._cluster.kubeconfig))
        with self._log.open("ab") as log:
            log.write(f"{time.time():.1f} recreate {' '.join(words)}\n".encode())
            log.flush()
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "crrd", "recreate", *words, *where,
                stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        self.runs[workload] = process
        try:
            return await process.wait()
        finally:
            del self.runs[workload]
            if process.returncode is None:
                process.kill()
                await process.wait()
