"""The node daemons, from their pods: a node without a ready one cannot restart containers."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from crrd.core.api.time import parse_time
from crrd.lib.jsonfields import condition, mapping, text


@dataclass(frozen=True, slots=True)
class NodeDaemon:
    """The node daemon of a node, from its pod."""

    node: str
    ready: bool
    since: datetime | None = None  # Time of the last change of `ready`, None if unknown


def read_node_daemon(obj: Mapping[str, Any]) -> NodeDaemon:
    """A pod of the node daemon. One that is being deleted is not ready."""
    ready, deleting = condition(obj, "Ready"), "deletionTimestamp" in mapping(obj.get("metadata"))
    node, since = text(mapping(obj.get("spec")).get("nodeName")), parse_time(text(ready.get("lastTransitionTime")))
    return NodeDaemon(node, ready.get("status") == "True" and not deleting, since)
