"""Watches the objects that a run needs, one watch for each kind, and keeps them as values for `core.rollout`."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cache, partial
from typing import Any, Self, TypeVar

from crrd.core.config.kept import kept_of_pods
from crrd.core.rollout.requests import RunRequest, read_run_request
from crrd.core.rollout.run import LABEL_RUN, Options
from crrd.core.rollout.state import ZONE, Member, World, read_budget, read_member
from crrd.core.rollout.workload import read_workload
from crrd.kube.client import KubeClient
from crrd.kube.informer import Informer, Objects, Values, Version, versioned
from crrd.kube.reflector import Selection
from crrd.kube.resources import BUDGETS, NODES, PODS, REQUESTS, Resource
from crrd.lib.backoff import retry_delay
from crrd.lib.errors import ApiUnavailableError, GoneError
from crrd.lib.jsonfields import mapping, text
from crrd.lib.looptime import loop_time
from crrd.rollout.config import ConfigObjects
from crrd.rollout.daemons import NodeDaemons, daemon_informer, may_list_daemons
from crrd.rollout.kind import KindObjects
from crrd.rollout.nodes import Nodes
from crrd.rollout.owners import Owners
from crrd.rollout.probes import Probes
from crrd.rollout.target import Aim
from crrd.rollout.watches import RunWatches

T = TypeVar("T")
Json = Mapping[str, Any]
_LEARN_SECONDS = 1.0  # Interval of looking for what no watch reports. Until then, what is unknown uses up budgets
PAUSE_PER_POD = 0.00007
"""Seconds between two plans, for each pod. Plans then take about a third of one core, however many pods there are."""


class Cluster:
    """The pods of a target, and all other objects that limit a run on them. `async with` keeps it up to date."""

    def __init__(
        self,
        client: KubeClient,
        namespace: str,
        aim: Aim,
        options: Options,
        daemons: NodeDaemons | None = None,
        *,
        own: Callable[[Callable[[], None]], KindObjects],
        peers: "list[Cluster] | None" = None,
    ) -> None:
        """`options` decide whether nodes and configuration are read, which needs additional rights.

        Without `daemons`, this class watches them itself. `peers` has all entered clusters, for the process's runs.
        `own` makes the objects of the run's kind; it gets a function to call after every change.
        """
        self._client, self.namespace, self._aim = client, namespace, aim
        self.changed = asyncio.Event()  # Set after every change; the reader clears it
        self.retried: frozenset[str] = frozenset()  # As `World.retried`, set once by the user of this class
        self.claims: dict[str, tuple[Member, RunRequest]] = {}  # By UID: pods whose request is being created
        self._peers, self._seen = [] if peers is None else peers, 0  # And how often a peer's start has mattered here
        notify = self.changed.set
        read = partial(read_member, with_config=options.reads_config or bool(options.objects))
        self._pods = Values(read, notify, group=lambda found: found.value.pod.name)
        self._parse_request = versioned(read_run_request)
        self._requests = Objects[Version[RunRequest | None]](self._request_changed, listed=notify)
        self._budgets = Values(read_budget, notify)
        self._labelled_nodes = Values(_zone, notify)
        self._nodes = Nodes(client, notify, for_image=options.image is not None)
        named = {"apiVersion": aim.target.api_version, "kind": aim.target.kind}  # the items of a list do not have it
        self._workloads = Values(lambda obj: read_workload({**obj, **named}), notify)
        self._zones = bool(options.max_per_zone)
        config = ConfigObjects(client, namespace, strict=options.stale)
        self._config, self._stale = config if options.reads_config else None, options.stale
        self._watched_daemons = daemons
        self._daemons = daemons or NodeDaemons(notify)
        self._aborted: set[str] = set()
        self._labels: dict[str, Mapping[str, str]] = {}  # By UID: labels of pods with a request that are not watched
        self._owners = Owners(client, namespace, aim)
        self.probes = Probes(client, namespace)
        self._refused: dict[str, str] = {}
        self._learn_at, self._failures, self._trouble = 0.0, 0, ""  # The loop's time, and why it failed the last times
        self.own = own(notify)
        self._watches = RunWatches(self.changed)

    async def __aenter__(self) -> Self:
        """Start the watches, and return when everything is listed. Raises ConfigurationError if a right is missing."""
        self._peers.append(self)
        try:
            if self._watched_daemons is None and await may_list_daemons(self._client):
                self._watches.begin(daemon_informer(self._client, self._daemons, strict=True))
            selection = Selection(REQUESTS, self._parse_request, self.namespace, LABEL_RUN)
            self._watches.begin(Informer(self._client, selection, self._requests, strict=True))
            self._watch(self._pods, PODS, labels=self._aim.pods_query, fields=self._aim.pods_fields)
            self._watch(self._budgets, BUDGETS)
            if self._aim.resource is not None:
                self._watch(self._workloads, self._aim.resource, fields=f"metadata.name={self._aim.target.name}")
            for informer in self.own.informers():
                self._watches.begin(informer)
            if self._zones:
                self._watch(self._labelled_nodes, NODES, namespace="")
            await self._watches.all_listed()
            await self.learn()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self._peers.remove(self)
        await self._watches.end()

    async def refresh(self) -> str:
        """Read what no watch reports. Return why the known state may be out of date, or ""."""
        if problem := self._watches.problem():
            return problem
        if loop_time() >= self._learn_at:
            try:
                await self.learn()
                self._failures, self._trouble, seconds = 0, "", _LEARN_SECONDS
            except ApiUnavailableError as error:
                self._failures, self._trouble = self._failures + 1, str(error)
                seconds = retry_delay(error, self._failures)
            self._learn_at = loop_time() + seconds
        return self._trouble

    def world(self) -> World:
        """Return the known state."""
        config = self._config.known if self._config is not None else {}
        users = (each.user for each in self._pods.values()) if self._stale else ()
        of_peers = [each for peer in self._others() for each in peer.claims.values()]
        return World(
            members=tuple(sorted(self._own_pods(), key=lambda each: each.pod.name)),
            requests=(
                *(each.value for each in self._requests if each.value is not None),
                *(request for _, request in of_peers),
            ),
            labels=self._labels
            | {each.pod.uid: each.labels for each in (*self._pods.values(), *(each for each, _ in of_peers))},
            workload=next((each for each in self._workloads.values() if each.uid == self._aim.target.uid), None),
            budgets=tuple(self._budgets.values()),
            zones={name: zone for name, zone in self._labelled_nodes.values() if zone},
            daemons=self._daemons.by_node,
            down=self._nodes.down,
            aborted=frozenset(self._aborted),
            refused=dict(self._refused),
            retried=self.retried,
            starting=self.starting,
            seen=self._seen,
            kubelets=dict(self._nodes.kubelets),
            probes=self.probes.known,
            config=dict(config),
            kept=kept_of_pods(users, config),
            extra=self.own.state(),
        )

    @property
    def starting(self) -> dict[str, str]:
        """As `World.starting`."""
        return {uid: request.request.name for uid, (_, request) in self.claims.items()}

    def claim(self, member: Member, request: RunRequest) -> None:
        """Record that the request for a pod is being created. The other runs of this process count it at once."""
        self.claims[member.pod.uid] = member, request
        for peer in self._others():
            peer.see_claim(member)

    def see_claim(self, member: Member) -> None:
        """Record that another run starts this pod. If that matters here, older plans start no more pods."""
        selected = (each.selector for each in self._budgets.values())
        if self._pods.get(member.pod.uid) or any(each and each.matches(member.labels) for each in selected):
            self._seen += 1
            self.changed.set()

    def written(self, obj: Json) -> None:
        """Record a request that the API server has just returned to this process."""
        for each in (self, *self._others()):
            each.put(obj)

    def put(self, request: Json) -> None:
        """Record a version of a request."""
        self._requests.put(self._parse_request(request))

    def _others(self) -> "Iterator[Cluster]":
        return (each for each in self._peers if each is not self and each.namespace == self.namespace)

    def refused(self, pod_uid: str, message: str) -> None:
        """Record that the API server rejected the run's request for a pod."""
        self._refused[pod_uid] = message
        self.changed.set()

    def pod_written(self, obj: Json) -> None:
        """Record a pod that the API server has just returned to this process."""
        self._pods.put(self._pods.parse(obj))

    async def look_again(self, name: str, uid: str) -> Member | None:
        """Read one pod, because the watch may lag, and the version of its kubelet, which may have changed.

        Return the pod, or None if it is gone. Another pod may have its name by now, which is recorded.
        """
        there = ""
        with suppress(GoneError):
            found = self._pods.parse(await self._client.get(PODS, self.namespace, name))
            self._pods.put(found)
            there = found.uid
            await self._nodes.look_again(found.value)
            if self._config is not None:
                await self._config.learn([found.value], max_age=0.0)
        for known in [each for each in self._pods.of(name) if each.uid != there]:
            self._pods.delete(known)
        return found.value if there == uid else None

    def is_as_in(self, world: World, member: Member | None) -> bool:
        """Whether a pod, its node and its configuration are as in this world, in which the pod is `member`."""
        if member is None or self._seen != world.seen:
            return False
        if member not in [each.value for each in self._pods.of(member.pod.name)]:
            return False
        node = member.pod.node_name
        same_daemon = (self._daemons.by_node or {}).get(node) == (world.daemons or {}).get(node)
        if not same_daemon or not self._nodes.is_as_in(world, node):
            return False
        known = self._config.known if self._config is not None else {}
        used = [use.object for uses in member.config.values() for use in uses]
        return all(known.get(each) == world.config.get(each) for each in used)

    async def wait(self, seconds: float) -> None:
        """Return after a change, but after `seconds` at the latest.

        With many pods, this waits a moment first, because a plan takes long, and the next changes can share one.
        """
        pause = min(seconds, PAUSE_PER_POD * sum(1 for _ in self._pods))
        await asyncio.sleep(pause)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds - pause):
                await self.changed.wait()

    async def learn(self) -> None:
        """Read the objects that no watch reports, each one once: owners, nodes, and pods of other targets.

        Raises ConfigurationError, ApiUnavailableError.
        """
        await self._owners.learn([member.owner for member in self._pods.values()])
        members = self._own_pods()
        await self._nodes.learn(members, self._daemons.by_node)
        if self._config is not None:
            await self._config.learn(members)
        watched = {each.pod.uid for each in self._pods.values()}
        for found in [each.value for each in self._requests]:
            if found is None or found.request.completed:
                continue
            uid = found.request.pod_uid
            if uid and uid not in watched and uid not in self._labels:
                self._labels[uid] = await _labels(self._client, self.namespace, found.request.pod_name, uid)

    def _own_pods(self) -> list[Member]:
        """Return the pods of the target. If the target is a workload, owner references decide."""
        belongs = cache(self._owners.lead_to_target)
        return [each for each in self._pods.values() if belongs(each.owner)]

    def _request_changed(self, _: object, after: Version[RunRequest | None] | None) -> None:
        """Note aborted runs. A run stays aborted even after the request with the annotation was deleted.

        The requests of an undo end the run that it undoes, too, in case that run's own requests are missed or deleted.
        """
        if after is not None and after.value is not None:
            self._aborted |= after.value.ended_runs
        self.changed.set()

    def _watch(
        self, known: Values[T], resource: Resource, *, labels: str = "", fields: str = "", namespace: str | None = None
    ) -> None:
        where = self.namespace if namespace is None else namespace
        selection = Selection(resource, known.parse, where, labels, fields)
        self._watches.begin(Informer(self._client, selection, known, strict=True))


async def _labels(client: KubeClient, namespace: str, name: str, uid: str) -> Mapping[str, str]:
    """Return the labels of a pod. If it was deleted or replaced by another one, it spends no budget, and has none."""
    with suppress(GoneError):
        found = read_member(await client.get(PODS, namespace, name), with_config=False)
        return found.labels if found.pod.uid == uid else {}
    return {}


def _zone(node: Json) -> tuple[str, str]:
    meta = mapping(node.get("metadata"))
    return text(meta.get("name")), text(mapping(meta.get("labels")).get(ZONE))
