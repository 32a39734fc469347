"""The composition root of the node daemon: builds all parts in one place, runs them in one TaskGroup, and drains."""

import asyncio
import os
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, Protocol

import structlog
from aiohttp import web

from crrd import __version__
from crrd.cri.runtime import NodeRuntime
from crrd.kube.access.config import find_access
from crrd.kube.client import KubeClient
from crrd.kube.discovery import warn_of_old_server
from crrd.kube.events import FLUSH_SECONDS, KubeEventSink
from crrd.kube.kubelet_version import KubeletVersions
from crrd.kube.reflector import Reflector
from crrd.kube.writer import RequestWriter
from crrd.lib.distributions import find
from crrd.lib.health import Health, StatusServer
from crrd.lib.heartbeat import Heartbeat
from crrd.lib.log import LogFormat, configure, toggle_debug_on_signal
from crrd.lib.memory import freeze_objects, give_back, small_tls_buffers
from crrd.lib.metrics import metrics_route, new_registry
from crrd.lib.signals import stop_on_signals
from crrd.lib.supervise import Loop, supervise
from crrd.node.controller import NodeController
from crrd.node.hooks import HookRunner
from crrd.node.kubelet_health import KubeletProbe
from crrd.node.metrics import NodeMetrics, NodeState, WatchState
from crrd.node.pods import Pods
from crrd.node.watches import PodWatches, find_pod, request_source
from crrd.ports import Edges

log = structlog.get_logger(__name__)

TIDY_SECONDS = 3.0
"""Delay between the last request and freeing memory, because events are written and connections used until then."""
FORECAST = ("crrd.node", "forecast")  # Entry point of what makes a `Forecaster`, in crrd-forecast


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """The configuration of `crrd node`."""

    node_name: str
    kubeconfig: str  # Path; "" for ~/.kube/config, or in-cluster credentials if it does not exist
    cri_endpoints: tuple[str, ...]  # Sockets from the command line; empty for discovery
    bind_address: str
    log_format: LogFormat
    log_level: str
    spec_dir: str = ""  # Folder for the specs of started containers; "" to store none and to make no periodic forecast
    serve_forecast: bool = False  # Whether clients that reach the bind address may list the node's containers
    kubelet_healthz_port: int = 0  # Port of kubelet's /healthz on loopback; 0 to stop containers without checking it
    pod_uid: str = ""  # UID of the daemon's own pod, or ""


def run_node(config: NodeConfig) -> int:
    """Run the node daemon until SIGTERM or Ctrl-C. Return the exit code. ConfigurationError if retrying cannot help."""
    configure(config.log_format, config.log_level, node=config.node_name)
    small_tls_buffers()
    return asyncio.run(NodeDaemon(config).run())


class Forecaster(Protocol):
    """What crrd-forecast adds to the daemon. It takes a client, a runtime, the node's name, and a folder or None."""

    heartbeat: Heartbeat
    differing: int | None  # Containers whose hash differs from the one that kubelet computes; None while unknown

    async def run(self, active: asyncio.Event, idle: asyncio.Event) -> NoReturn:
        """Count them and keep the specs of new containers, at the start and periodically, while requests are `idle`."""

    async def page(self, request: web.Request) -> web.StreamResponse:
        """Answer `/forecast`."""


async def _tidy(pods: Pods, heartbeat: Heartbeat) -> NoReturn:
    """After the start and after every busy time, free the memory that it took."""
    while True:
        heartbeat.until(pods.none_live, "waiting for all requests to end")
        await pods.none_live.wait()
        await asyncio.sleep(TIDY_SECONDS)
        if pods.none_live.is_set():
            give_back()
        heartbeat.until(pods.any_live, "waiting for a request")
        await pods.any_live.wait()


class NodeDaemon:
    """One run of `crrd node`."""

    def __init__(self, config: NodeConfig) -> None:
        self._config = config
        self._health = Health()
        self._registry = new_registry()
        self._metrics = NodeMetrics(self._registry)
        self._runtime: NodeRuntime | None = None
        self._client: KubeClient | None = None
        self._forecast: Forecaster | None = None

    async def run(self) -> int:
        """Serve until a signal arrives, then drain."""
        config = self._config
        if config.spec_dir or config.serve_forecast:
            find(*FORECAST)
        stop = stop_on_signals()
        toggle_debug_on_signal()
        log.info("starting", version=__version__)
        access = find_access(config.kubeconfig, os.environ)
        pages = [*self._health.routes(), metrics_route(self._registry)]
        if config.serve_forecast:
            pages.append(web.get("/forecast", self._forecast_page))
        server = StatusServer(config.bind_address, pages)
        address = await server.start()
        log.info("serving health", address=address)
        try:
            client = KubeClient(access, on_call=self._metrics.api_call)
            asking = asyncio.create_task(warn_of_old_server(client))
            try:
                await self.serve(NodeRuntime(on_call=self._metrics.cri_call), client, stop)
            finally:
                asking.cancel()
        finally:
            await server.stop()
        log.info("stopped")
        return 0

    async def serve(self, runtime: NodeRuntime, client: KubeClient, stop: asyncio.Event) -> None:
        """Run all loops until a signal arrives, then drain and close both clients."""
        config = self._config
        self._runtime, self._client = runtime, client
        events = KubeEventSink(client, config.node_name, on_drop=self._metrics.event_dropped)
        versions = KubeletVersions(client)
        asked = partial(versions.minor, config.node_name), partial(versions.ready, config.node_name)
        edges = Edges(
            runtime=runtime,
            hooks=HookRunner(runtime),
            writer=RequestWriter(client),
            find_pod=partial(find_pod, client),
            kubelet=KubeletProbe(config.kubelet_healthz_port, *asked),
            events=events,
            recorder=self._metrics,
        )
        controller = NodeController(config.node_name, edges, config.pod_uid)
        pods = controller.pods
        requests = request_source(client, config.node_name, pods, self._metrics.watch_restarted)
        pod_watches = PodWatches(client, config.node_name, pods, self._metrics.watch_restarted)
        self._show(controller, requests, pod_watches)
        memory = Heartbeat()

        async def poll_runtime() -> None:
            await runtime.discover(config.cri_endpoints)
            for name, version in runtime.versions:
                self._metrics.runtime_found(name, version)
            await controller.poll_runtime()

        pods_signs = controller.pods_heartbeat, pod_watches
        controller.sources = [
            requests.loop("requests"),
            Loop("pods", lambda: controller.watch_pods(pod_watches.run), pods_signs, lambda: pod_watches.last_error),
            Loop("runtime", poll_runtime, (controller.runtime_heartbeat,), runtime.check),
        ]
        loops = [
            *controller.loops,
            Loop("events", events.run, (events.heartbeat,)),
            Loop("sandboxes", controller.sweep.run, (controller.sweep.heartbeat,)),
            Loop("memory", lambda: _tidy(pods, memory), (memory,)),
        ]
        if config.spec_dir:
            forecast = self._forecaster(runtime, client)
            self._metrics.show_differing(lambda: forecast.differing)

            async def look() -> None:
                await runtime.found.wait()
                await forecast.run(pods.any_live, pods.none_live)

            loops.append(Loop("forecast", look, (forecast.heartbeat,)))
        try:
            async with supervise(loops, self._health):
                freeze_objects()
                await stop.wait()
                log.info("draining", stops=controller.executor.working)
                await controller.drain()
                await events.flush(FLUSH_SECONDS)
        finally:
            await controller.close()
            await client.close()
            await runtime.close()

    def _show(self, controller: NodeController, *watches: Reflector[Any] | PodWatches) -> None:
        """Add the daemon's current state to the metrics.

        A watch of requests that has heard nothing yet shows when it began, so that an alert sees that it is silent.
        """
        pods, began = controller.pods, time.monotonic()
        state = NodeState(
            live=lambda: [(each.request, each.first_seen) for pod_record in pods for each in pod_record.live.values()],
            queue=controller.queue.state,
            watches=lambda: [
                WatchState(
                    one.plural, one.last_list_time, one.last_activity or (began if isinstance(one, Reflector) else None)
                )
                for one in watches
            ],
        )
        self._metrics.show(state)

    async def _forecast_page(self, request: web.Request) -> web.StreamResponse:
        """Answer `crrd forecast --all-nodes`."""
        if self._runtime is None or self._client is None or not self._runtime.found.is_set():
            return web.Response(status=503, text="no runtime has answered yet\n")
        return await self._forecaster(self._runtime, self._client).page(request)

    def _forecaster(self, runtime: NodeRuntime, client: KubeClient) -> Forecaster:
        """Return the only forecaster, which is created at the first use."""
        if self._forecast is None:
            folder = Path(self._config.spec_dir) if self._config.spec_dir else None
            made: Forecaster = find(*FORECAST).load()(client, runtime, self._config.node_name, folder)
            self._forecast = made
        return self._forecast
