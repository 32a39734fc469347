"""The checks of what runs: manager, node daemons, what they reach, and clocks."""

from datetime import datetime

from crrd.core.api.reasons import Reason
from crrd.core.doctor.admission import webhooks_of
from crrd.core.doctor.facts import Facts, LeaseSeen, PodSeen, Unread
from crrd.core.doctor.findings import Finding, State, Topic
from crrd.core.doctor.making import Make, names_of, unread, with_names

SKEW_SECONDS = 10.0  # By how much clocks may differ: whole seconds in headers, and calls that take a while
NODE_LEASE_SECONDS = 60.0  # Kubelet renews its Lease every 10 s, and a node whose Lease is 40 s old is no longer Ready


def _shown(pod: PodSeen) -> str:
    return f"{pod.key} on {pod.node or 'no node'}" + (f" ({pod.why})" if pod.why else "")


def check_manager(new: Make, facts: Facts) -> list[Finding]:
    """Whether the manager is ready and has a leader."""
    if isinstance(facts.managers, Unread):
        return unread(new, facts.managers)
    if not facts.managers:
        return [new(State.OK, Topic.OTHER_MANAGER) if webhooks_of(facts)[1] else new(State.PROBLEM, Topic.NO_MANAGER)]
    down = [_shown(each) for each in facts.managers if not each.ready]
    if len(down) == len(facts.managers):
        return [new(State.PROBLEM, Topic.MANAGER_DOWN, names_of(down))]
    found = with_names(new, [(State.WARNING, Topic.MANAGER_DEGRADED, down)])
    if not isinstance(facts.leader, Unread) and not _is_held(facts.leader, facts.now):
        found.append(new(State.PROBLEM, Topic.NO_LEADER))
    return found or [new(State.OK, Topic.MANAGER, {"count": len(facts.managers)})]


def _is_held(lease: LeaseSeen | None, now: datetime) -> bool:
    if lease is None or not lease.holder or lease.renewed is None:
        return False
    return (now - lease.renewed).total_seconds() <= lease.seconds + SKEW_SECONDS


def check_daemons(new: Make, facts: Facts) -> list[Finding]:
    """Whether each node has a ready daemon, and all have one version."""
    if isinstance(facts.daemons, Unread):
        return unread(new, facts.daemons)
    if not facts.daemons:
        return [new(State.PROBLEM, Topic.NO_DAEMONS)]
    nodes = () if isinstance(facts.nodes, Unread) else facts.nodes
    managers = () if isinstance(facts.managers, Unread) else facts.managers
    served = {each.node for each in facts.daemons}
    away = {each.name for each in nodes if not each.ready}
    versions = {each.version for each in (*facts.daemons, *managers)}
    found = [
        (
            State.PROBLEM,
            Topic.DAEMONS_DOWN,
            [_shown(each) for each in facts.daemons if not each.ready and each.node not in away],
        ),
        (
            State.WARNING,
            Topic.NODES_WITHOUT,
            [each.name for each in nodes if each.linux and each.ready and each.name not in served],
        ),
        (State.WARNING, Topic.NODES_NOT_READY, away),
        (State.WARNING, Topic.VERSIONS_DIFFER, versions if len(versions) > 1 else ()),
    ]
    all_well = {"count": len(facts.daemons), "version": "".join(versions)}
    return with_names(new, found) or [new(State.OK, Topic.DAEMONS, all_well)]


def check_runtime(new: Make, facts: Facts) -> list[Finding]:
    """Whether daemons reach the runtime and kubelet."""
    if isinstance(facts.daemons, Unread) or isinstance(facts.waiting, Unread):
        return unread(new, facts.daemons, facts.waiting)
    found = [
        (State.PROBLEM, topic, {node for node, reasons in facts.waiting if reason.value in reasons})
        for reason, topic in (
            (Reason.RUNTIME_UNAVAILABLE, Topic.RUNTIME_UNAVAILABLE),
            (Reason.KUBELET_SILENT, Topic.KUBELET_SILENT),
        )
    ]
    ready = sum(each.ready for each in facts.daemons)
    well = new(State.OK, Topic.RUNTIME, {"count": ready}) if ready else new(State.NOT_CHECKED, Topic.NO_READY_DAEMON)
    return with_names(new, found) or [well]


def check_clocks(new: Make, facts: Facts) -> list[Finding]:
    """Whether this machine and the nodes have the API server's time."""
    found = []
    ahead = (facts.here - facts.now).total_seconds()
    if abs(ahead) > SKEW_SECONDS:
        found.append(new(State.WARNING, Topic.CLOCK_HERE, {"seconds": abs(ahead), "way": _way(ahead)}))
    if isinstance(facts.node_leases, Unread) or isinstance(facts.nodes, Unread):
        return found or unread(new, facts.node_leases, facts.nodes)
    ready = {each.name for each in facts.nodes if each.ready}
    wrong = []
    for lease in facts.node_leases:
        by = (lease.renewed - facts.now).total_seconds() if lease.renewed is not None else 0.0
        if lease.name in ready and not -NODE_LEASE_SECONDS <= by <= SKEW_SECONDS:
            wrong.append(f"{lease.name} ({abs(by):.0f}s {_way(by)})")
    found += with_names(new, [(State.WARNING, Topic.CLOCKS_OF_NODES, wrong)])
    return found or [new(State.OK, Topic.CLOCKS)]


def _way(seconds: float) -> str:
    return "ahead" if seconds > 0 else "behind"
