"""Policies and their runs, with an API server of the test."""

from collections.abc import Callable
from typing import cast

from crrd.kube.client import KubeClient
from crrd.kube.clock import ServerClock
from crrd.kube.events import KubeEventSink
from crrd.manager.policies.controller import PolicyController
from crrd.manager.policies.run_task import Shared
from crrd.manager.policies.runs import PolicyRuns
from crrd.manager.policies.statuses import Policies
from crrd.rollout.daemons import NodeDaemons
from tests.support.laned_api import LanedApi
from tests.support.virtual_time import LoopClock


def policy_runs(
    client: KubeClient,
    clock: ServerClock,
    policies: Policies | None = None,
    *,
    on_refresh: Callable[..., None] = lambda *_: None,
    wake_at: Callable[[str, float], None] = lambda *_: None,
) -> PolicyRuns:
    """Return what carries out runs. Its other observers do nothing."""
    known = policies or Policies(client, lambda *_: None)
    parts = client, _sink(client), clock, known, NodeDaemons(lambda: None)
    shared = Shared(*parts, on_run=lambda *_: None, on_refresh=on_refresh, wake_at=wake_at)
    return PolicyRuns(shared, on_stop=lambda _: None)


def policy_controller(api: LanedApi, *, patch: bool = False) -> PolicyController:
    """Return a controller in virtual time."""
    client = cast("KubeClient", api)
    return PolicyController(client, _sink(client), LoopClock(), account="a:b", on_run=lambda *_: None, patch=patch)


def _sink(client: KubeClient) -> KubeEventSink:
    return KubeEventSink(client, "manager-1", "crrd-manager")
