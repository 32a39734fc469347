"""What to do, where it depends on the cluster. Other remedies stand in the table of `findings`."""

from crrd.core.api.time import format_duration
from crrd.core.api.types import FINALIZER, NODE_DAEMONS
from crrd.core.explain.facts import DaemonFacts, Facts
from crrd.core.explain.findings import MANAGER_PODS, Topic, optional

_DAEMON_PODS = f"kubectl get pods -A -l {NODE_DAEMONS} -o wide --field-selector spec.nodeName="


def check_manager(facts: Facts) -> tuple[str, ...]:
    """Return how to check the manager. If crrd's did not admit the request, OpenKruise's may be the one that runs."""
    if facts.admitted:
        return (f"check that the manager is running: {MANAGER_PODS}",)
    others = "OpenKruise's (kubectl get pods -n kruise-system)"
    return (f"check that crrd's manager is running ({MANAGER_PODS}), or {others}",)


def remove_finalizers(facts: Facts) -> tuple[str, ...]:
    """Return that other controllers keep the request from being deleted, if they do."""
    others = [each for each in facts.request.finalizers if each != FINALIZER]
    return (f"other controllers must remove their finalizers: {', '.join(others)}",) if others else ()


def find_server(facts: Facts) -> tuple[str, ...]:
    """Return where to look for the daemon of the request's node, or for the manager if that serves the request."""
    if facts.manager:
        return check_manager(facts)
    node, name = facts.node, facts.node_name
    if node is not None and not node.exists:
        return (Topic.NO_NODE.say(node=name),)
    steps = []
    if node is not None and not node.ready:
        since = facts.seconds_since(node.since)
        steps.append(f"node {name} is not ready" + optional(" (for {})", since and format_duration(since)))
    if not facts.by_daemon:
        steps.append(f"check the node daemon on node {name}, or the manager if there are no node daemons: crrd doctor")
    elif facts.daemons is None:
        steps.append(f"check that the DaemonSet's pod is running on node {name}: {_DAEMON_PODS}{name}")
    elif not facts.daemons:
        why = f"kubectl describe daemonset -A -l {NODE_DAEMONS}"
        steps.append(f"the DaemonSet has no pod on node {name}; to see why: {why}")
    else:
        steps += map(_check_daemon, facts.daemons)
    return tuple(steps)


def _check_daemon(daemon: DaemonFacts) -> str:
    namespace, _, name = daemon.key.partition("/")
    ready = "ready" if daemon.ready else "not ready"
    return f"the daemon's pod {daemon.key} is {daemon.phase}, {ready}: kubectl -n {namespace} logs {name}"
