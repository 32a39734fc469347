"""The objects that a run needs, with one watch for each kind, kept as values for `core.rollout`."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache, partial
from typing import Any, TypeVar

from crrd.core.config.kept import kept_of_pods
from crrd.core.rollout.patched import patched_requests, read_patched
from crrd.core.rollout.requests import RunRequest, read_run_request
from crrd.core.rollout.run import LABEL_RUN, Options
from crrd.core.rollout.state import ZONE, Member, World, read_budget, read_member
from crrd.core.rollout.workload import read_workload
from crrd.kube.client import KubeClient
from crrd.kube.informer import Informer, Objects, Values, Version, versioned
from crrd.kube.reflector import Selection
from crrd.kube.resources import BUDGETS, NODES, PODS, REQUESTS, Resource
from crrd.lib.errors import GoneError
from crrd.lib.jsonfields import mapping, text
from crrd.rollout.config import ConfigObjects
from crrd.rollout.daemons import NodeDaemons, daemon_informer, may_list_daemons
from crrd.rollout.kept import may_list_requests
from crrd.rollout.kind import KindObjects
from crrd.rollout.nodes import Nodes
from crrd.rollout.owners import Owners
from crrd.rollout.probes import Probes
from crrd.rollout.target import Aim
from crrd.rollout.watches import RunWatches

T = TypeVar("T")
Json = Mapping[str, Any]


class Watched:
    """The known objects of one run. `changed` is set after every change, and cleared by its reader."""

    def __init__(
        self,
        client: KubeClient,
        namespace: str,
        aim: Aim,
        options: Options,
        daemons: NodeDaemons | None,
        *,
        make_objects: Callable[[Callable[[], None]], KindObjects],
    ) -> None:
        """`options` decide whether nodes and configuration are read, which needs additional rights.

        Without `daemons`, this class watches them itself. `make_objects` makes those of the run's kind; it gets a
        function to call after every change. The constructor starts nothing.
        """
        self._client, self.namespace, self._aim = client, namespace, aim
        self.changed = asyncio.Event()
        notify = self.changed.set
        with_config = options.reads_config or bool(options.objects)
        read = partial(read_member, with_config=with_config, with_init=options.whole_pod)
        self.pods = Values(read, notify, group=lambda found: found.value.pod.name)
        self._parse_request = versioned(read_run_request)
        self._requests = Objects[Version[RunRequest | None]](self._request_changed, listed=notify)
        self._budgets = Values(read_budget, notify)
        self._labelled_nodes = Values(_zone, notify) if options.max_per_zone else None
        self._nodes = Nodes(client, notify, for_image=options.image is not None or options.patch)
        named = {"apiVersion": aim.target.api_version, "kind": aim.target.kind}  # the items of a list do not have it
        self._workloads = Values(lambda obj: read_workload({**obj, **named}), notify)
        config = ConfigObjects(client, namespace, strict=options.stale)
        self._config, self._stale = config if options.reads_config else None, options.stale
        self._watched_daemons = daemons
        self._daemons = daemons if daemons and not options.patch else NodeDaemons(notify)
        self._on_pods = Values(read_patched, notify) if options.patch else None  # Requests that are kept on pods
        self._patched: dict[str, RunRequest] = {}  # By pod (UID): the last one that was seen, also of deleted pods
        self._aborted: set[str] = set()
        self._labels: dict[str, Mapping[str, str]] = {}  # By UID: labels of pods with a request that are not watched
        self._owners = Owners(client, namespace, aim)
        self.probes = Probes(client, namespace)
        self.kind_objects = make_objects(notify)
        self._watches = RunWatches(self.changed)

    async def begin(self) -> None:
        """Start the watches, and return when everything is listed. Raises ConfigurationError if a right is missing."""
        if self._on_pods is not None:
            self._watch(self._on_pods, PODS, labels=LABEL_RUN)
        elif self._watched_daemons is None and await may_list_daemons(self._client):
            self._watches.begin(daemon_informer(self._client, self._daemons, strict=True))
        if self._on_pods is None or await may_list_requests(self._client, self.namespace):
            selection = Selection(REQUESTS, self._parse_request, self.namespace, LABEL_RUN)
            self._watches.begin(Informer(self._client, selection, self._requests, strict=True))
        self._watch(self.pods, PODS, labels=self._aim.pods_query, fields=self._aim.pods_fields)
        self._watch(self._budgets, BUDGETS)
        if self._aim.resource is not None:
            self._watch(self._workloads, self._aim.resource, fields=f"metadata.name={self._aim.target.name}")
        for informer in self.kind_objects.informers():
            self._watches.begin(informer)
        if self._labelled_nodes is not None:
            self._watch(self._labelled_nodes, NODES, namespace="")
        await self._watches.all_listed()
        await self.learn()

    async def end(self) -> None:
        """End the watches."""
        await self._watches.end()

    def problem(self) -> str:
        """Return why a watch may be out of date, or "". Raises the error that has ended one."""
        return self._watches.problem()

    def world(self) -> World:
        """Return what is known."""
        config = self._config.known if self._config is not None else {}
        users = (each.user for each in self.pods.values()) if self._stale else ()
        zones = () if self._labelled_nodes is None else self._labelled_nodes.values()
        requests = self._all_requests()
        return World(
            members=tuple(sorted(self.own_pods(), key=lambda each: each.pod.name)),
            requests=requests,
            labels=self._labels | {each.pod.uid: each.labels for each in self.pods.values()},
            workload=next((each for each in self._workloads.values() if each.uid == self._aim.target.uid), None),
            budgets=tuple(self._budgets.values()),
            zones={name: zone for name, zone in zones if zone},
            daemons=self._daemons.by_node,
            down=self._nodes.down,
            ready_since=dict(self._nodes.ready_since),
            aborted=frozenset(self._aborted),
            kubelets=dict(self._nodes.kubelets),
            probes=self.probes.known,
            config=dict(config),
            kept=kept_of_pods(users, config),
            extra=self.kind_objects.state(),
        )

    def concerns(self, member: Member) -> bool:
        """Whether a start of this pod, by any run, can use up a budget here."""
        selected = (each.selector for each in self._budgets.values())
        return bool(self.pods.get(member.pod.uid)) or any(each and each.matches(member.labels) for each in selected)

    def put(self, obj: Json) -> None:
        """Record a version of a request, or of a pod on which one is kept."""
        if obj.get("kind") != "Pod":
            self._requests.put(self._parse_request(obj))
            return
        if self._on_pods is not None:
            self._on_pods.put(self._on_pods.parse(obj))
        if self.pods.get(text(mapping(obj.get("metadata")).get("uid"))) is not None:
            self.put_pod(obj)

    def _all_requests(self) -> tuple[RunRequest, ...]:
        """Return all known requests. One that was kept on a pod which is gone has ended with it."""
        members = {each.pod.uid: each for each in self.pods.values()}
        on_pods = self._on_pods.values() if self._on_pods is not None else ()
        found = patched_requests((*on_pods, *(each.patched for each in members.values())))
        known = {
            uid: each for uid, each in self._patched.items() if uid not in members or not _is_past(each, members[uid])
        }
        self._patched = known | found
        self._aborted.update(*(each.ended_runs for each in self._patched.values()))
        there = members.keys() | found.keys()
        kept = (each if uid in there else each.without_pod() for uid, each in self._patched.items())
        return (*(each.value for each in self._requests if each.value is not None), *kept)

    def put_pod(self, obj: Json) -> None:
        """Record a version of a pod."""
        self.pods.put(self.pods.parse(obj))

    async def look_again(self, name: str, uid: str) -> Member | None:
        """See Cluster."""
        there, found = "", None
        with suppress(GoneError):
            found = self.pods.parse(await self._client.get(PODS, self.namespace, name))
            self.pods.put(found)
            there = found.uid
            await self._nodes.look_again(found.value)
            if self._config is not None:
                await self._config.learn([found.value], max_age=0.0)
        for known in [each for each in self.pods.of(name) if each.uid != there]:
            self.pods.delete(known)
        return found.value if found is not None and there == uid else None

    def is_as_in(self, world: World, member: Member) -> bool:
        """Whether a pod, its node and its configuration are as in this world, in which the pod is `member`."""
        if member not in [each.value for each in self.pods.of(member.pod.name)]:
            return False
        node = member.pod.node_name
        same_daemon = (self._daemons.by_node or {}).get(node) == (world.daemons or {}).get(node)
        if not same_daemon or not self._nodes.is_as_in(world, node):
            return False
        known = self._config.known if self._config is not None else {}
        used = [use.object for uses in member.config.values() for use in uses]
        return all(known.get(each) == world.config.get(each) for each in used)

    async def learn(self) -> None:
        """Read the objects that no watch reports, each one once: owners, nodes, and pods of other targets.

        Raises ConfigurationError, ApiUnavailableError.
        """
        await self._owners.learn([member.owner for member in self.pods.values()])
        members = self.own_pods()
        await self._nodes.learn(members, self._daemons.by_node)
        if self._config is not None:
            await self._config.learn(members)
        watched = {each.pod.uid for each in self.pods.values()}
        for found in self._all_requests():
            if found.request.completed:
                continue
            uid = found.request.pod_uid
            if uid and uid not in watched and uid not in self._labels:
                self._labels[uid] = await _labels(self._client, self.namespace, found.request.pod_name, uid)

    def own_pods(self) -> list[Member]:
        """Return the pods of the target. If the target is a workload, owner references decide."""
        belongs = cache(self._owners.lead_to_target)
        return [each for each in self.pods.values() if belongs(each.owner)]

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


def _is_past(asked: RunRequest, member: Member) -> bool:
    """Whether a container of a request that was kept on a pod has restarted, so that its record is of no use."""
    there, meant = member.pod.containers, asked.request.containers
    return any(
        each.name in there and each.context is not None and there[each.name].container_id != each.context.container_id
        for each in meant
    )


async def _labels(client: KubeClient, namespace: str, name: str, uid: str) -> Mapping[str, str]:
    """Return the labels of a pod. If it was deleted or replaced by another one, it spends no budget, and has none."""
    with suppress(GoneError):
        found = read_member(await client.get(PODS, namespace, name), with_config=False)
        return found.labels if found.pod.uid == uid else {}
    return {}


def _zone(node: Json) -> tuple[str, str]:
    meta = mapping(node.get("metadata"))
    return text(meta.get("name")), text(mapping(meta.get("labels")).get(ZONE))
