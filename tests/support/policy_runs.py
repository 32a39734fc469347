"""The runs of policies, with an API server of the test."""

from collections.abc import Callable

from crrd.kube.client import KubeClient
from crrd.kube.clock import ServerClock
from crrd.kube.events import KubeEventSink
from crrd.manager.policies.runs import PolicyRuns
from crrd.manager.policies.statuses import Policies
from crrd.rollout.daemons import NodeDaemons


def policy_runs(
    client: KubeClient, clock: ServerClock, policies: Policies | None = None, **observers: Callable[..., None]
) -> PolicyRuns:
    """Return what carries out runs. `observers` are those of PolicyRuns; the others do nothing."""
    names = "on_run", "on_refresh", "wake_at", "on_stop"
    silent: dict[str, Callable[..., None]] = dict.fromkeys(names, lambda *_: None)
    known = policies or Policies(client, lambda *_: None)
    sink = KubeEventSink(client, "manager-1", "crrd-manager")
    return PolicyRuns(client, sink, clock, known, NodeDaemons(lambda: None), **{**silent, **observers})
