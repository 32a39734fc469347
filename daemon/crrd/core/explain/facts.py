"""What the API says about one request and what it depends on, read from JSON. Nothing raises for bad input."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from crrd.core.api.pod import STATUSES, Pod, PodContainer
from crrd.core.api.reasons import EventReason
from crrd.core.api.time import parse_time
from crrd.core.api.types import (
    ANNOTATION_REQUESTED_BY,
    ANNOTATION_UNREADY_ACQUIRED,
    CONDITIONS_UNREADY,
    MANAGERS,
    Request,
)
from crrd.core.rollout.run import Run
from crrd.core.rollout.state import ProbeFailure
from crrd.kubelet.version import reported_version
from crrd.lib.jsonfields import condition, condition_is_true, items, mapping, name_of, text, value_at

Json = Mapping[str, Any]
DAEMON_PODS = "the node daemon's pod"  # The key in `unread` for `daemons` and `manager`


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """The request's node."""

    exists: bool = True
    ready: bool = True
    since: datetime | None = None  # Time of the last change of `ready`
    why: str = ""  # Kubelet's reason why the node is not ready; "" if kubelet gave none
    kubelet: str = ""  # The version that kubelet reports, "" for none


@dataclass(frozen=True, slots=True)
class DaemonFacts:
    """A pod of the node daemon on the request's node."""

    key: str  # `namespace/name`
    phase: str
    ready: bool


@dataclass(frozen=True, slots=True)
class Times:
    """Times of the request, by the API server's clock. None: unknown."""

    acquired: datetime | None = None  # The manager made the pod unready for it
    deleted: datetime | None = None  # Its deletionTimestamp
    written: datetime | None = None  # Its status was last written


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that the API says, read at one time. None: it could not be read."""

    request: Request
    now: datetime  # The API server's time
    pod: Pod | None = None
    pod_read: bool = True  # Whether the pod was read, so that `pod` None means that it does not exist
    ready_since: datetime | None = None  # Time since which all of the pod's containers are ready; None if one is not
    ends: Mapping[str, str] = field(default_factory=dict)
    """Why each container of the pod has ended last, in kubelet's word, for example OOMKilled; "" if it did not say."""
    others: tuple[Request, ...] = ()  # Other requests for the same pod, on its node
    node: NodeFacts | None = None
    daemons: tuple[DaemonFacts, ...] | None = None
    manager: str = ""
    """The namespace of the manager if it serves the request by a patch, because the node has no daemon; else ""."""
    events: tuple[tuple[str, str, datetime | None], ...] = ()  # About the request: reason, message, time
    probes: tuple[tuple[tuple[str, str], ProbeFailure] | None, ...] = ()
    """What kubelet's events say about failed probes, by pod (UID) and container, in any order."""
    times: Times = Times()
    run: Run | None = None  # The run of `kubectl recreate` that has created the request
    admitted: bool = True
    """Whether crrd's manager admitted the request. If not, another manager may run, for example OpenKruise's."""
    unread: Mapping[str, str] = field(default_factory=dict)  # What could not be read, and why

    @property
    def own_pod(self) -> Pod | None:
        """The pod, unless it is another one of the same name."""
        return self.pod if self.pod is not None and self.request.pod_uid in ("", self.pod.uid) else None

    @property
    def grace(self) -> int:
        """The grace period in seconds."""
        return self.request.strategy.grace(self.pod.grace_seconds if self.pod is not None else None)

    @property
    def node_name(self) -> str:
        """The request's node, or else the pod's."""
        return self.request.node_name or (self.pod.node_name if self.pod else "")

    @property
    def names(self) -> Mapping[str, str]:
        """What every sentence may name: the request, its pod and node, who serves it, and how to read that log."""
        request, node = self.request, self.node_name
        namespace, _, daemon = (self.daemons[0].key if self.daemons else "").partition("/")
        server, log = f"the daemon on node {node}", f"see the log of the node daemon on node {node}"
        if daemon:
            log = f"kubectl -n {namespace} logs {daemon}"
        elif self.manager:
            server, log = "the manager", f"kubectl -n {self.manager} logs -l {MANAGERS}"
        elif not self.by_daemon:
            server, log = "crrd", f"{log}, or of the manager if there are no node daemons"
        pod = {"namespace": request.namespace, "pod": request.pod_name, "pod_key": request.pod_key}
        return {"request": request.name, "node": node, "server": server, "log": log, **pod}

    @property
    def by_daemon(self) -> bool:
        """Whether a node daemon serves the request. False also if none is known, so that crrd's manager may."""
        unknown = DAEMON_PODS in self.unread or self.daemons is None
        return not self.manager and not (self.admitted and unknown)

    @property
    def no_daemon(self) -> bool:
        """Whether the node certainly has no ready pod of the daemon."""
        return self.daemons is not None and not any(daemon.ready for daemon in self.daemons)

    @property
    def age(self) -> float:
        """Seconds since the request was created."""
        return self.seconds_since(parse_time(self.request.created)) or 0.0

    def seconds_since(self, moment: datetime | None) -> float | None:
        """Return the seconds since a time: 0 if the clock that wrote it is ahead, None if the time is not known."""
        return None if moment is None else max(0.0, (self.now - moment).total_seconds())

    def begun(self, container: str) -> datetime | None:
        """Return the time of the newest event that says that the container is being recreated."""
        begun = [(at, message) for reason, message, at in self.events if reason == EventReason.RECREATING]
        return max((at for at, message in begun if at is not None and container in message.split()), default=None)

    def probe_failure(self, container: PodContainer) -> tuple[float | None, str]:
        """Return how many seconds ago a probe of this instance failed last, and kubelet's message."""
        pod, started = self.pod.uid if self.pod else "", parse_time(container.started_at)
        failures = [failure for whose, failure in filter(None, self.probes) if whose == (pod, container.name)]
        last = max(failures, key=lambda failure: failure.at, default=None)
        if last is None or (started is not None and last.at < started):
            return None, ""
        return self.seconds_since(last.at), last.message


def read_times(obj: Json) -> Times:
    """Return when things happened to a request."""
    acquired = _time(mapping(value_at(obj, "metadata.annotations")).get(ANNOTATION_UNREADY_ACQUIRED))
    for each in map(mapping, items(value_at(obj, "status.conditions"))):
        if each.get("type") in CONDITIONS_UNREADY and each.get("status") == "True":
            acquired = acquired or _time(each.get("lastTransitionTime"))
    fields = map(mapping, items(value_at(obj, "metadata.managedFields")))
    writes = [_time(entry.get("time")) for entry in fields if entry.get("subresource") == "status"]
    written = max(filter(None, writes), default=None)
    return Times(acquired=acquired, deleted=_time(value_at(obj, "metadata.deletionTimestamp")), written=written)


def is_admitted(obj: Json) -> bool:
    """Whether crrd's manager admitted a request. Only its admission records who created the request."""
    return ANNOTATION_REQUESTED_BY in mapping(value_at(obj, "metadata.annotations"))


def others_of(request: Request, requests: Iterable[Request]) -> tuple[Request, ...]:
    """Return the other requests for a pod of this name that the same daemon serves."""
    where = (request.pod_key, request.node_name)
    return tuple(each for each in requests if (each.pod_key, each.node_name) == where and each.uid != request.uid)


def read_node(obj: Json | None) -> NodeFacts:
    """Parse a node (None: it does not exist). Its condition Ready counts."""
    if obj is None:
        return NodeFacts(exists=False, ready=False)
    ready = condition(obj, "Ready")
    status, since = ready.get("status"), _time(ready.get("lastTransitionTime"))
    message = ": ".join(filter(None, (text(ready.get("reason")), text(ready.get("message")))))
    why = (message or "kubelet gives no reason") if status == "False" else ""
    return NodeFacts(ready=status == "True", since=since, why=why, kubelet=reported_version(obj))


def read_ready_since(pod: Json) -> datetime | None:
    """Return since when all containers of a pod are ready, or None if one is not."""
    ready = condition(pod, "ContainersReady")
    return _time(ready.get("lastTransitionTime")) if ready.get("status") == "True" else None


def read_ends(pod: Json) -> dict[str, str]:
    """Return why each container of a pod has ended last, in kubelet's word."""
    ends = {}
    for each in (each for key in STATUSES for each in items(value_at(pod, f"status.{key}"))):
        ended = value_at(each, "state.terminated") or value_at(each, "lastState.terminated")
        ends[text(value_at(each, "name"))] = text(value_at(ended, "reason"))
    return ends


def read_daemon(obj: Json) -> DaemonFacts:
    """Parse a pod of the node daemon."""
    key = f"{text(value_at(obj, 'metadata.namespace'))}/{name_of(obj)}"
    ready = condition_is_true(obj, "Ready")
    return DaemonFacts(key, text(value_at(obj, "status.phase")) or "Pending", ready)


def read_event(obj: Json) -> tuple[str, str, datetime | None]:
    """Return an event's reason, its message, and the API server's time when it was written."""
    return text(obj.get("reason")), text(obj.get("message")), _time(value_at(obj, "metadata.creationTimestamp"))


def _time(value: object) -> datetime | None:
    return parse_time(text(value))
