"""Forecasts of this node's containers, from the runtime, the API server and the specs that were kept.

`crrd forecast` asks once. The node daemon, if configured, asks now and then for a metric and to keep specs, and
whenever its page `/forecast` is opened.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import structlog
from aiohttp import web

from cri_stubs import api_pb2
from crrd.cri.runtime import NodeRuntime
from crrd.forecast.inputs import Join, running_by_status
from crrd.forecast.render import shape
from crrd.forecast.report import Forecast, ForecastInput, Report, make_report
from crrd.forecast.spec_store import SpecStore
from crrd.forecast.started_by import differing, stored_hash
from crrd.kube.client import KubeClient
from crrd.kube.resources import NODES, PODS
from crrd.kubelet.labels import (
    ANNOTATION_HASH,
    LABEL_CONTAINER_NAME,
    LABEL_POD_NAME,
    LABEL_POD_NAMESPACE,
    LABEL_POD_UID,
)
from crrd.kubelet.version import parse_minor, reported_version
from crrd.lib.errors import ApiRefusedError, ApiUnavailableError, CrrdError, RuntimeCallError, RuntimeUnavailableError
from crrd.lib.heartbeat import Heartbeat
from crrd.lib.memory import give_back

LOOK_SECONDS = 6 * 3600.0  # Between two looks of the daemon that nothing has caused: an idle daemon is to be quiet
LEAST_SECONDS = 600.0
"""Between any two looks: a node on which requests come all the time is not to list its pods all the time."""
LOOK_LIMIT_SECONDS = 300.0  # For how long a look may take
PAGE_AGE_SECONDS = 15.0
"""How old an answer of the page `/forecast` may be: nobody can make the daemon list more often than this."""
_LOOK_MARGIN_SECONDS = 60.0  # By how much a look may be later than it said before the loop counts as hanging

log = structlog.get_logger(__name__)


def running_containers(containers: Iterable[api_pb2.Container]) -> list[ForecastInput]:
    """Those of a runtime's containers that run, as kubelet left word of itself on them."""
    return [
        ForecastInput(
            id=container.id,
            namespace=container.labels.get(LABEL_POD_NAMESPACE, ""),
            pod=container.labels.get(LABEL_POD_NAME, ""),
            uid=container.labels.get(LABEL_POD_UID, ""),
            name=container.labels.get(LABEL_CONTAINER_NAME, "") or container.metadata.name,
            stored_hash=container.annotations.get(ANNOTATION_HASH),
            created_at=container.created_at,
        )
        for container in containers
        if container.state == api_pb2.CONTAINER_RUNNING
    ]


async def pods_of_node(client: KubeClient, node: str) -> AsyncIterator[Mapping[str, Any]]:
    """The pods bound to a node, one by one. Raises as `KubeClient.list_pages` does.

    One page of version 0: the API server's cache finds pods by node (see `crrd.node.watches`).
    """
    selector = f"spec.nodeName={node}"
    async for page in client.list_pages(PODS, field_selector=selector, resource_version="0", limit=0):
        for pod in page.items:
            yield pod


async def kubelet_version(client: KubeClient, node: str) -> str:
    """The version that the node's kubelet reports in status.nodeInfo; "" for none. Raises GoneError for no node."""
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
    """The forecast for all containers that run on this node; with a store, also what changed since their start.

    Args:
        source: The node's runtime.
        pods: All pods of the node; without `node` also others.
        from_version: The running kubelet's.
        to_version: The one to come.
        node: Its name; with a name, what runs by the pods' statuses has to be in the runtime.
        store: Specs that were kept.

    Raises ValueError for a bad version, and what the runtime and the source of the pods raise.
    """
    listed = await source.containers()
    join = Join(running_containers(listed))
    known = {container.id for container in listed}
    report = make_report((), from_version, to_version, node=node)
    found: list[Forecast] = []
    missing: list[ForecastInput] = []
    count = unreadable = 0
    async for pod in pods:  # judged at once: whole specs of a full node would be the largest thing in memory
        count += 1
        joined = _recall(join.pod(pod), store)
        unreadable += _unreadable(joined, store)
        found += make_report(joined, from_version, to_version).containers
        if node:
            here = {each.name for each in joined}
            missing += (each for each in running_by_status(pod) if each.name not in here and each.id not in known)
    if missing:  # or started after the runtime was asked
        known = {container.id for container in await source.containers()}
    rest = _recall([*join.rest(), *(each for each in missing if each.id not in known)], store)
    unreadable += _unreadable(rest, store)
    found += make_report(rest, from_version, to_version).containers
    notes = list(report.notes)
    if unreadable:
        notes.append(f"{unreadable} of the stored specs cannot be read")
    if node and not count:
        notes.append(f"the API server lists no pods on node {node}: check --node-name")
    if not node and not found:
        notes.append("the container runtime has no container that kubelet started: check --cri-endpoint")
    found.sort(key=lambda f: (f.namespace, f.pod, f.name, f.id))
    nothing = not found and not (node and count)  # was compared: that nothing differs says nothing then
    return replace(report, containers=tuple(found), notes=tuple(notes), failed=nothing)


def _recall(containers: list[ForecastInput], store: SpecStore | None) -> list[ForecastInput]:
    """The same, each with the spec that it was started with where one was kept."""
    if store is None:
        return containers
    kept = ((each, store.get(each.id)) for each in containers)
    return [replace(each, started_with=spec) for each, spec in kept]


def _unreadable(recalled: list[ForecastInput], store: SpecStore | None) -> int:
    """How many of these have a spec that was kept, and could not be read."""
    return sum(store is not None and each.started_with is None and each.id in store for each in recalled)


class NodeForecast:
    """The daemon's part: `run` looks now and then, `page` answers requests. Without a folder it keeps no specs."""

    def __init__(self, client: KubeClient, source: NodeRuntime, node: str, folder: Path | None = None) -> None:
        self._client = client
        self._source = source
        self._node = node
        self._store = SpecStore(folder) if folder is not None else None
        self._lock = asyncio.Lock()
        self._answers: dict[tuple[str, str], tuple[float, Report]] = {}
        self.differing: int | None = None
        """Running containers whose stored hash is not the one that the running kubelet's version computes; None while
        that is not known. For the metric."""
        self.heartbeat = Heartbeat()
        self._last_error = ""

    async def run(self, active: asyncio.Event, idle: asyncio.Event) -> NoReturn:
        """Look at the start, after each busy time, and now and then; never while requests are `active`."""
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
        """Compare once, and return whether it succeeded. The same error is logged once. Nothing else depends on it."""
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
        """Count the containers that differ now, and keep the specs of those that are new. Raises as `node_report`."""
        join = Join(running_containers(await self._source.containers()))
        hashes, ids = [], set()
        async for pod in pods_of_node(self._client, self._node):
            for each in join.pod(pod):
                found = stored_hash(each)
                hashes.append(found)
                ids.add(each.id)
                if found.minor is not None:  # it still has the spec that it was started with: its hash says so
                    await self._keep(each)
                await asyncio.sleep(0)  # hashing takes a while: requests go first
        if self._store is not None:
            await asyncio.to_thread(self._store.keep_only, ids | {each.id for each in join.rest()})
        self.differing = differing(hashes)

    async def _keep(self, container: ForecastInput) -> None:
        """Keep the spec of a container, unless it is kept already."""
        store = self._store
        if store is None or container.spec is None or await asyncio.to_thread(store.get, container.id) is not None:
            return
        try:
            await asyncio.to_thread(store.put, container.id, container.spec)
        except (OSError, ValueError) as error:
            log.warning("container spec not stored", container=container.id, reason=str(error))

    async def page(self, request: web.Request) -> web.Response:
        """`/forecast?to=1.31&from=v1.30.2` as JSON; without `from` the daemon asks for its Node."""
        to, today = request.query.get("to", ""), request.query.get("from", "")
        try:
            report = await self._report(to, today)
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
            report = await node_report(
                self._source,
                pods_of_node(self._client, self._node),
                from_version=today or await kubelet_version(self._client, self._node),
                to_version=to,
                node=self._node,  # and no store: what has changed can be a secret, and this page is for the network
            )
            self._answers[to, today] = (time.monotonic(), report)
            return report
