"""Forecasts for the containers of this node, from the runtime, the API server and the stored specs.

`crrd forecast` calls this once. The node daemon, if configured, does so periodically for a metric and to store specs,
and at requests of its page `/forecast`.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import structlog
from aiohttp import web

from cri_stubs import api_pb2
from crrd.cri.runtime import NodeRuntime
from crrd.kube.client import KubeClient
from crrd.kube.resources import NODES, PODS
from crrd.kubelet import labels
from crrd.kubelet.version import reported_version
from crrd.lib.errors import ApiRefusedError, ApiUnavailableError, CrrdError, RuntimeCallError, RuntimeUnavailableError
from crrd.lib.heartbeat import Heartbeat
from crrd.lib.memory import give_back
from crrd_forecast.hash.container_hash import ERAS, hash_of
from crrd_forecast.hash.version import NEWEST_MINOR, parse_minor
from crrd_forecast.inputs import Join, running_by_status
from crrd_forecast.render import shape
from crrd_forecast.report import Forecast, ForecastInput, Report, is_compared, make_report, parse_stored
from crrd_forecast.spec_store import SpecStore

LOOK_SECONDS = 6 * 3600.0  # Interval of the daemon's periodic checks; long, so that an idle daemon costs little
LEAST_SECONDS = 600.0  # Least time between two checks, so that many requests do not make the daemon list pods often
LOOK_LIMIT_SECONDS = 300.0  # Time limit for one check
PAGE_AGE_SECONDS = 15.0  # The page `/forecast` reuses a report up to this age, so that pods are not listed too often
_LOOK_MARGIN_SECONDS = 60.0  # Time by which a check may be late before the loop counts as hanging

log = structlog.get_logger(__name__)


def running_containers(containers: Iterable[api_pb2.Container]) -> list[ForecastInput]:
    """Return a runtime's running containers, by kubelet's labels and annotations."""
    return [
        ForecastInput(
            id=container.id,
            namespace=container.labels.get(labels.LABEL_POD_NAMESPACE, ""),
            pod=container.labels.get(labels.LABEL_POD_NAME, ""),
            uid=container.labels.get(labels.LABEL_POD_UID, ""),
            name=container.labels.get(labels.LABEL_CONTAINER_NAME, "") or container.metadata.name,
            stored_hash=container.annotations.get(labels.ANNOTATION_HASH),
            created_at=container.created_at,
        )
        for container in containers
        if container.state == api_pb2.CONTAINER_RUNNING
    ]


async def pods_of_node(client: KubeClient, node: str) -> AsyncIterator[Mapping[str, Any]]:
    """Yield the pods of a node one by one. Raises the errors of `KubeClient.list_pages`.

    Uses one page with resourceVersion 0, because the API server's cache finds pods by node (see `crrd.node.watches`).
    """
    selector = f"spec.nodeName={node}"
    async for page in client.list_pages(PODS, field_selector=selector, resource_version="0", limit=0):
        for pod in page.items:
            yield pod


async def kubelet_version(client: KubeClient, node: str) -> str:
    """Return the kubelet version in the node's status.nodeInfo, or "". Raises GoneError if the node does not exist."""
    return reported_version(await client.get(NODES, "", node))


async def node_report(
    source: NodeRuntime,
    pods: AsyncIterator[Mapping[str, Any]],
    *,
    from_version: str,
    to_version: str,
    node: str,
    store: SpecStore | None = None,
) -> Report:
    """Return the forecast for all running containers of this node. With a store, it includes changes since their start.

    With `node` (its name), `pods` are exactly its pods, and the runtime must have each container that runs according to
    their statuses. Without it, `pods` may include pods of other nodes.

    Raises ValueError for an invalid version, and the errors of the runtime and of `pods`.
    """
    listed = await source.containers()
    join = Join(running_containers(listed))
    known = {container.id for container in listed}
    report = make_report((), from_version, to_version, node=node)
    found: list[Forecast] = []
    missing: list[ForecastInput] = []
    count = unreadable = 0

    def judge(running: list[ForecastInput]) -> None:
        nonlocal unreadable
        if store is not None:
            running = [replace(each, started_with=store.get(each.id)) for each in running]
            unreadable += sum(each.started_with is None and each.id in store for each in running)
        found.extend(make_report(running, from_version, to_version).containers)

    async for pod in pods:  # judged one by one, because all specs of a full node would take the most memory
        count += 1
        joined = join.pod(pod)
        judge(joined)
        if node:
            here = {each.name for each in joined}
            missing += (each for each in running_by_status(pod) if each.name not in here and each.id not in known)
    if missing:  # or they were started after the runtime's list
        known = {container.id for container in await source.containers()}
    judge([*join.rest(), *(each for each in missing if each.id not in known)])
    notes = list(report.notes)
    if unreadable:
        notes.append(f"{unreadable} of the stored specs cannot be read")
    if node and not count:
        notes.append(f"the API server lists no pods on node {node}: check --node-name")
    if not node and not found:
        notes.append("the container runtime has no container that kubelet started: check --cri-endpoint")
    found.sort(key=lambda f: (f.namespace, f.pod, f.name, f.id))
    nothing = not found and not (node and count)  # nothing was compared, so there is no forecast
    return replace(report, containers=tuple(found), notes=tuple(notes), failed=nothing)


class NodeForecast:
    """The daemon's part: `run` checks periodically, `page` answers requests. Without a folder it stores no specs."""

    def __init__(self, client: KubeClient, source: NodeRuntime, node: str, folder: Path | None = None) -> None:
        self._client = client
        self._source = source
        self._node = node
        self._store = SpecStore(folder) if folder is not None else None
        self._lock = asyncio.Lock()  # One forecast at a time: a slow one delays only other readers of the page
        self._answers: dict[tuple[str, str], tuple[float, Report]] = {}
        # For the metric: running containers whose stored hash differs from the one that the running kubelet's version
        # computes. None while unknown.
        self.differing: int | None = None
        self.heartbeat = Heartbeat()
        self._last_error = ""

    async def run(self, active: asyncio.Event, idle: asyncio.Event) -> NoReturn:
        """Check at the start, after each busy time, and periodically. Never check while requests are `active`."""
        while True:
            self.heartbeat.until(idle, "waiting for all requests to end")
            await idle.wait()
            self.heartbeat.within(LOOK_LIMIT_SECONDS + _LOOK_MARGIN_SECONDS, "looking")
            known = await self._look_safely()
            give_back()
            self.heartbeat.within(LEAST_SECONDS + _LOOK_MARGIN_SECONDS, "waiting after a forecast")
            await asyncio.sleep(LEAST_SECONDS)
            if not known:
                continue
            self.heartbeat.within(LOOK_SECONDS + _LOOK_MARGIN_SECONDS, "waiting for the next forecast")
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS - LEAST_SECONDS):
                    await active.wait()

    async def _look_safely(self) -> bool:
        """Check once, and return whether it succeeded. A repeated error is logged once. No other work depends on it."""
        try:
            async with asyncio.timeout(LOOK_LIMIT_SECONDS):
                await self.look()
        except (CrrdError, OSError) as error:
            self.differing = None
            if str(error) != self._last_error:
                self._last_error = str(error)
                log.warning("forecast failed", reason=self._last_error or "no answer in time")
        except Exception:
            self.differing = None
            log.exception("forecast crashed")
        else:
            self._last_error = ""
            return True
        return False

    async def look(self) -> None:
        """Count the containers that differ, and store the specs of new ones. Raises the errors of `node_report`."""
        join = Join(running_containers(await self._source.containers()))
        hashes, ids = [], set()
        async for pod in pods_of_node(self._client, self._node):
            for each in join.pod(pod):
                found = stored_hash(each)
                hashes.append(found)
                ids.add(each.id)
                if found.minor is not None:  # its hash shows that it still has the spec that it was started with
                    await self._keep(each)
                await asyncio.sleep(0)  # hashing takes a while, so let other work run first
        if self._store is not None:
            await asyncio.to_thread(self._store.keep_only, ids | {each.id for each in join.rest()})
        self.differing = differing(hashes)

    async def _keep(self, container: ForecastInput) -> None:
        """Store the spec of a container, unless it is stored already."""
        store = self._store
        if store is None or container.spec is None or await asyncio.to_thread(store.get, container.id) is not None:
            return
        try:
            await asyncio.to_thread(store.put, container.id, container.spec)
        except (OSError, ValueError) as error:
            log.warning("container spec not stored", container=container.id, reason=str(error))

    async def page(self, request: web.Request) -> web.Response:
        """Answer `/forecast?to=1.31&from=v1.30.2` with JSON. Without `from`, the daemon reads its Node."""
        try:
            report = await self._report(request.query.get("to", ""), request.query.get("from", ""))
        except ValueError as error:
            return web.Response(status=400, text=f"{error}\n")
        except (ApiUnavailableError, ApiRefusedError, RuntimeUnavailableError, RuntimeCallError) as error:
            return web.Response(status=503, text=f"{error}\n")
        return web.json_response(shape(report))

    async def _report(self, to: str, today: str) -> Report:
        parse_minor(to)
        if today:
            parse_minor(today)
        async with self._lock:
            now = time.monotonic()
            self._answers = {key: kept for key, kept in self._answers.items() if now - kept[0] < PAGE_AGE_SECONDS}
            if (to, today) in self._answers:
                return self._answers[to, today][1]
            if len(self._answers) >= 4:
                raise RuntimeUnavailableError("too many different forecasts at once: try again in a few seconds")
            pods = pods_of_node(self._client, self._node)
            running = today or await kubelet_version(self._client, self._node)
            # no store: changes can contain secrets, and this page is served on the network
            report = await node_report(self._source, pods, from_version=running, to_version=to, node=self._node)
            self._answers[to, today] = (time.monotonic(), report)
            return report


# The periodic check does not read the Node. The running kubelet started the newest container, and each era of kubelet
# hashes in its own way. So the stored hash of that container shows the kubelet's era.
_LAST = (*(era.since - 1 for era in ERAS[1:]), NEWEST_MINOR)  # Last minor version of each era
HASHERS = tuple(  # One minor version for each way to hash, the newest first
    minor
    for era, last in reversed(list(zip(ERAS, _LAST, strict=True)))
    for minor in (range(last, era.since - 1, -1) if era.absent_counts else (last,))
)


@dataclass(frozen=True, slots=True)
class StoredHash:
    """The hash stored on a container, and the versions that compute it."""

    created_at: int  # Nanoseconds since the epoch by the runtime's clock, used for ordering only
    minor: int | None  # The newest version that hashes the current spec to the stored hash, or None
    counts: bool  # Whether kubelet compares it, and there is a hash and a spec to compare


def stored_hash(container: ForecastInput) -> StoredHash:
    """Try each way to hash until one results in the stored hash."""
    stored, spec = parse_stored(container.stored_hash), container.spec
    if stored is None or spec is None:
        return StoredHash(container.created_at, None, counts=False)
    minor = next((each for each in HASHERS if hash_of(spec, each).value == stored), None)
    return StoredHash(container.created_at, minor, is_compared(container.kind, minor or NEWEST_MINOR))


def running_minor(hashes: Iterable[StoredHash]) -> int | None:
    """Return a minor version of the running kubelet's era: that of the newest container whose hash shows one."""
    newest = max((each for each in hashes if each.minor is not None), key=lambda each: each.created_at, default=None)
    return newest.minor if newest is not None else None


def differing(hashes: Iterable[StoredHash]) -> int | None:
    """Return how many hashes the running kubelet would compute differently, or None if its version is unknown."""
    found = list(hashes)
    running = running_minor(found)
    return None if running is None else sum(each.counts and each.minor != running for each in found)
