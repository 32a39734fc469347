"""The composition root of `crrd manager`: every replica serves admission, and the leader runs the controllers."""

import asyncio
import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple, NoReturn

import structlog

from crrd import __version__
from crrd.kube.access.config import find_access
from crrd.kube.client import KubeClient
from crrd.kube.clock import ServerClock
from crrd.kube.discovery import warn_of_old_server
from crrd.kube.events import FLUSH_SECONDS, KubeEventSink
from crrd.kube.leader import LeaderElection
from crrd.lib.controller import Controller
from crrd.lib.health import Health, StatusServer, loop_check
from crrd.lib.log import LogFormat, configure, toggle_debug_on_signal
from crrd.lib.memory import freeze_objects, small_tls_buffers
from crrd.lib.metrics import metrics_route
from crrd.lib.signals import stop_on_signals
from crrd.lib.supervise import Loop, supervise
from crrd.manager.certificates import keeper
from crrd.manager.certificates.guard import CaBundleGuard
from crrd.manager.certificates.pki import service_names
from crrd.manager.certificates.tls import ServingTls
from crrd.manager.gated import GATED_NAMESPACES
from crrd.manager.lifecycle import LifecycleController
from crrd.manager.metrics import ManagerMetrics
from crrd.manager.policies.controller import PolicyController
from crrd.manager.webhook.server import Limits, WebhookServer
from crrd.rollout.daemons import ReadyDaemons, has_daemon

log = structlog.get_logger(__name__)

_ACCOUNT = "crrd-manager"  # The manager's ServiceAccount in the manifests, for the command that grants it a right


@dataclass(frozen=True, slots=True)
class ManagerConfig:
    """The configuration of `crrd manager`."""

    kubeconfig: str
    namespace: str  # Namespace of its Lease, its Secret and its Service
    identity: str  # Its identity in the leader election: the name of its pod
    webhook_address: str
    drain_seconds: float  # Time from turning unready until it stops accepting admission calls
    service: str
    names: tuple[str, ...]  # Further DNS names and IP addresses for the serving certificate
    secret: str
    default_deadline_slack: int  # Seconds added to the default deadline of a request without activeDeadlineSeconds
    webhook_configurations: tuple[str, ...]  # Names of the mutating webhook configurations whose caBundle it writes
    tls_cert_file: str
    tls_key_file: str
    ca_file: str
    client_ca_file: str  # CAs of the client certificates that the webhook requires; "" to accept all callers
    pull_resources: str  # What pull pods request by default, as in `Options.pull_resources`
    deny_without_daemon: bool  # Whether a request for a pod on a node without a ready node daemon is denied
    readiness_gate: str  # Which namespaces have it: a key of GATED_NAMESPACES
    via_patch: bool  # Whether it restarts containers itself, by patches of their pods (docs/lean.md)
    judge_addresses: tuple[str, ...]  # What policies may let it ask for metrics, as in `core.judge.addresses.allowed`
    bind_address: str
    log_format: LogFormat
    log_level: str


class Clients(NamedTuple):
    """One client for each concern. A client has few calls in flight at once, and slow calls must not block others.

    Admission calls and renewals of the lease have deadlines.
    """

    controller: KubeClient  # Also for its events
    election: KubeClient
    admission: KubeClient  # Also for the certificates
    policies: KubeClient


_PATIENT = ("controller", "policies")  # Their rounds are as many as objects, and nobody waits for one call


def run_manager(config: ManagerConfig) -> int:
    """Run the manager until SIGTERM or Ctrl-C. Return the exit code. Raises ConfigurationError."""
    configure(config.log_format, config.log_level)
    small_tls_buffers()
    freeze_objects()
    return asyncio.run(_run(config))


async def _run(config: ManagerConfig) -> int:
    """Build all parts, run them, and drain the webhook."""
    stop = stop_on_signals()
    toggle_debug_on_signal()
    log.info("starting", version=__version__, identity=config.identity)
    health = Health()
    access = find_access(config.kubeconfig, os.environ)
    clock = ServerClock()
    metrics = ManagerMetrics()
    clients = Clients(
        *(
            KubeClient(access, on_call=metrics.api_call, on_date=clock.observe, patient=name in _PATIENT)
            for name in Clients._fields
        )
    )
    server = StatusServer(config.bind_address, [*health.routes(), metrics_route(metrics.registry)])
    log.info("serving health", address=await server.start())
    asking = asyncio.create_task(warn_of_old_server(clients.controller))
    try:
        await _serve(config, clients, clock, health=health, metrics=metrics, stop=stop)
    finally:
        asking.cancel()
        await server.stop()
        for client in clients:
            await client.close()
    log.info("stopped")
    return 0


async def _serve(
    config: ManagerConfig,
    clients: Clients,
    clock: ServerClock,
    *,
    health: Health,
    metrics: ManagerMetrics,
    stop: asyncio.Event,
) -> None:
    """Run all loops until a signal arrives. The other loops keep running while admission drains."""
    tls = ServingTls(clock.now)
    daemons = ReadyDaemons(clients.controller)
    webhook = WebhookServer(
        config.webhook_address,
        tls,
        clients.admission,
        health,
        served=partial(has_daemon, clients.admission) if config.via_patch else None,
        lacking=daemons.lacks,
        deny=config.deny_without_daemon,
        limits=Limits(drain_seconds=config.drain_seconds),
        on_review=metrics.reviewed,
        on_admitted=metrics.admitted,
        on_close=metrics.closed,
    )
    events = KubeEventSink(clients.controller, config.identity, "crrd-manager", on_drop=metrics.event_dropped)
    election = LeaderElection(clients.election, config.namespace, config.identity, now=clock.now)
    controllers: dict[Controller, asyncio.Task[NoReturn]] = {}  # Of this leadership
    shown = health.not_needed_to_serve()

    trust = keeper.CaBundlePublisher(clients.admission, config.webhook_configurations, metrics.ca_bundle_written)
    metrics.watch(
        leading=lambda: election.leading,
        not_after=lambda: tls.not_after,
        connections=lambda: len(webhook.connections),
        policies=lambda: next((each.states() for each in controllers if isinstance(each, PolicyController)), {}),
        wrong_ca_bundles=lambda: trust.wrong,
        queues=lambda: [each.queue.state() for each in controllers],
    )

    async def lead() -> NoReturn:
        """Run new controllers, because what those of an earlier leadership knew is out of date.

        What they cannot read does not make this replica unready: admission does not need it.
        """
        account = f"{config.namespace}:{_ACCOUNT}"
        lifecycle = LifecycleController(
            clients.controller,
            events,
            clock,
            on_action=metrics.acted,
            slack=config.default_deadline_slack,
            account=account if config.via_patch else "",
            gated=GATED_NAMESPACES[config.readiness_gate],
        )
        policies = PolicyController(
            clients.policies,
            events,
            clock,
            account=account,
            on_run=metrics.policy_run_ended,
            pull_resources=config.pull_resources,
            patch=config.via_patch,
            judge_addresses=config.judge_addresses,
        )
        try:
            async with asyncio.TaskGroup() as group:
                for each in (lifecycle, policies):
                    controllers[each] = group.create_task(each.run(shown), name=f"{each.name} controller")
        finally:
            controllers.clear()
        raise AssertionError("controllers run until they are cancelled")

    def check_leader() -> str:
        if election.leading and not controllers:
            return "this manager is the leader, but its controllers are not running"
        ended = (loop_check(task)() for task in controllers.values())
        return next(filter(None, ended), "") or election.check_alive()

    health.live["leader"] = check_leader
    guard = CaBundleGuard(clients.admission, trust)
    certificates = _certificates(config, clients.admission, tls, clock, trust)
    loops = [
        Loop("certificates", certificates.run, (certificates.heartbeat,)),
        *guard.loops,
        Loop("election", lambda: election.run(lead), (election.heartbeat,)),
        Loop("events", events.run, (events.heartbeat,)),
    ]
    if not config.via_patch:
        # Not part of readiness: admission works without it.
        loops.append(Loop("ready daemons", daemons.informer.run, (daemons.informer.heartbeat,)))
    if config.client_ca_file:
        callers = keeper.CallerAuthorities(tls, Path(config.client_ca_file))
        loops.append(Loop("client-ca", callers.run, (callers.heartbeat,)))
    async with supervise(loops, health) as running:
        await webhook.run(stop)
        log.info("draining")
        await running.end("election")  # releases the lease
        await events.flush(FLUSH_SECONDS)


def _certificates(
    config: ManagerConfig, client: KubeClient, tls: ServingTls, clock: ServerClock, trust: keeper.CaBundlePublisher
) -> keeper.SecretCertificates | keeper.MountedCertificates:
    """Return the part that keeps the webhook's certificate valid."""
    if config.tls_cert_file:
        ca_file = Path(config.ca_file) if config.ca_file else None
        return keeper.MountedCertificates(tls, Path(config.tls_cert_file), Path(config.tls_key_file), ca_file, trust)
    names = (*service_names(config.service, config.namespace), *config.names)
    return keeper.SecretCertificates(client, tls, trust, config.namespace, config.secret, names, clock.now)
