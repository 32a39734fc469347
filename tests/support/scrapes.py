"""What the daemons show when Prometheus scrapes them, for tests of their metrics."""

import time
from dataclasses import replace
from typing import Any

from crrd.lib.workqueue import QueueState
from crrd.manager.metrics import ManagerMetrics
from crrd.node.metrics import NodeState, WatchState


def node_state(**changes: Any) -> NodeState:
    """Return the state of a node daemon that has nothing to do."""
    now = time.monotonic()
    idle = NodeState(
        live=list, queue=lambda: QueueState("node", 0, 0.0), watches=lambda: [WatchState("pods", now, now)]
    )
    return replace(idle, **changes)


def show_manager(metrics: ManagerMetrics, **changes: Any) -> None:
    """Show the state of a leader that has nothing to do, and no certificate yet."""
    idle = {
        "leading": lambda: True,
        "not_after": lambda: None,
        "connections": int,
        "policies": dict,
        "wrong_ca_bundles": int,
        "queues": lambda: [QueueState("policies", 0, 0.0)],
    }
    metrics.watch(**{**idle, **changes})
