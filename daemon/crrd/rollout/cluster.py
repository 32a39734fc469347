"""Watches the objects that a run needs, one watch for each kind, and keeps them as values for `core.rollout`."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Self, TypeVar

from crrd.core.config.kept import kept_of_pods
from crrd.core.rollout.plan import Plan
from crrd.core.rollout.requests import RunRequest, read_run_request
from crrd.core.rollout.run import LABEL_RUN, FileRefresh, Options
from crrd.core.rollout.state import ZONE, Member, ProbeFailure, World, read_budget, read_member
from crrd.core.rollout.waits import read_probe_failure
from crrd.core.rollout.workload import read_workload
from crrd.kube.client import KubeClient
from crrd.kube.informer import Informer, Objects, Values, Version, versioned
from crrd.kube.reflector import Reflector, Selection
from crrd.kube.resources import BUDGETS, EVENTS, NODES, PODS, REQUESTS, Resource, Where
from crrd.lib.backoff import retry_delay
from crrd.lib.errors import ApiRefusedError, ApiUnavailableError, GoneError
from crrd.lib.jsonfields import mapping, text
from crrd.lib.looptime import loop_time
from crrd.rollout.config import ConfigObjects
from crrd.rollout.daemons import NodeDaemons, daemon_informer, may_list_daemons
from crrd.rollout.image_objects import ImageObjects
from crrd.rollout.nodes import Nodes
from crrd.rollout.owners import Owners
from crrd.rollout.target import Aim

T = TypeVar("T")
Json = Mapping[str, Any]
_LEARN_SECONDS = 1.0  # Interval of looking for what no watch reports. Until then, what is unknown uses up budgets
PAUSE_PER_POD = 0.0001
"""Seconds between two plans, for each pod. Plans then take about a third of one core, however many pods there are."""
_PROBES_SECONDS = 10.0  # Interval of reading kubelet's events on failed probes while a recreated pod is not ready


class Cluster:
    """The pods of a target, and all other objects that limit a run on them. `async with` keeps it up to date."""

    def __init__(
        self, client: KubeClient, namespace: str, aim: Aim, options: Options, daemons: NodeDaemons | None = None
    ) -> None:
        """`options` decide whether nodes and configuration are read, which needs additional rights.

        `daemons` are node daemons that the caller watches; without them, this class watches them itself.
        """
        self._client, self._namespace, self._aim = client, namespace, aim
        self.changed = asyncio.Event()  # Set after every change; the reader clears it
        self.retried: frozenset[str] = frozenset()  # As `World.retried`, set once by the user of this class
        self.starting: dict[str, str] = {}  # As `World.starting`, kept by the user of this class
        notify = self.changed.set
        read = partial(read_member, with_config=options.reads_config or bool(options.objects))
        self._pods = Values(read, notify, group=lambda found: found.value.pod.name)
        self._parse_request = versioned(read_run_request)
        self._requests = Objects[Version[RunRequest | None]](self._request_changed, listed=notify)
        self._budgets = Values(read_budget, notify)
        self._labelled_nodes = Values(_zone, notify)
        self._nodes = Nodes(client, notify)
        # The items of a list do not contain their kind.
        named = {"apiVersion": aim.target.api_version, "kind": aim.target.kind}
        self._workloads = Values(lambda obj: read_workload({**obj, **named}), notify)
        self._zones = bool(options.max_per_zone)
        config = ConfigObjects(client, namespace, strict=options.stale)
        self._config, self._stale = config if options.reads_config else None, options.stale
        self._watched_daemons = daemons
        self._daemons = daemons or NodeDaemons(notify)
        self._aborted: set[str] = set()
        self._labels: dict[str, Mapping[str, str]] = {}  # By UID: labels of pods with a request that are not watched
        self._owners = Owners(client, namespace, aim)
        self._probes: dict[tuple[str, str], ProbeFailure] = {}
        self._probes_read_at = float("-inf")  # Monotonic
        self._refused: dict[str, str] = {}
        self._refreshes: dict[str, tuple[float, FileRefresh]] = {}  # By UID, with the loop's time
        self._learn_at, self._failures, self._trouble = 0.0, 0, ""  # The loop's time, and why it failed the last times
        self.images: ImageObjects | None = None  # If the run sets an image
        if options.image is not None:
            self.images = ImageObjects(client, namespace, aim, options.containers[0], notify)
        self._reflectors: list[Reflector[Any]] = []
        self._tasks: list[asyncio.Task[Any]] = []

    async def __aenter__(self) -> Self:
        """Start the watches, and return when everything is listed. Raises ConfigurationError if a right is missing."""
        try:
            if self._watched_daemons is None and await may_list_daemons(self._client):
                self._begin(daemon_informer(self._client, self._daemons, strict=True))
            selection = Selection(REQUESTS, self._parse_request, self._namespace, LABEL_RUN)
            self._begin(Informer(self._client, selection, self._requests, strict=True))
            self._watch(self._pods, PODS, labels=self._aim.pods_query, fields=self._aim.pods_fields)
            self._watch(self._budgets, BUDGETS)
            if self._aim.resource is not None:
                self._watch(self._workloads, self._aim.resource, fields=f"metadata.name={self._aim.target.name}")
            for informer in self.images.informers() if self.images is not None else ():
                self._begin(informer)
            if self._zones:
                self._watch(self._labelled_nodes, NODES, namespace="")
            await self._all_listed()
            await self.learn()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def refresh(self) -> str:
        """Read what no watch reports. Return why the known state may be out of date, or ""."""
        self._raise_error()
        if problem := next((each.last_error for each in self._reflectors if each.last_error), ""):
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
        loop_now, config = loop_time(), self._config.known if self._config is not None else {}
        users = (each.user for each in self._pods.values()) if self._stale else ()
        return World(
            members=tuple(sorted(filter(self._belongs, self._pods.values()), key=lambda each: each.pod.name)),
            requests=tuple(each.value for each in self._requests if each.value is not None),
            labels=self._labels | {each.pod.uid: each.labels for each in self._pods.values()},
            workload=next((each for each in self._workloads.values() if each.uid == self._aim.target.uid), None),
            budgets=tuple(self._budgets.values()),
            zones={name: zone for name, zone in self._labelled_nodes.values() if zone},
            daemons=self._daemons.by_node,
            down=self._nodes.down,
            aborted=frozenset(self._aborted),
            refused=dict(self._refused),
            retried=self.retried,
            starting=dict(self.starting),
            kubelets=dict(self._nodes.kubelets),
            probes=self._probes,
            config=dict(config),
            kept=kept_of_pods(users, config),
            refreshes={uid: replace(each, age=loop_now - at) for uid, (at, each) in self._refreshes.items()},
            image=self.images.state() if self.images is not None else None,
        )

    def written(self, obj: Json) -> None:
        """Record a request that the API server has just returned to this process."""
        self._requests.put(self._parse_request(obj))

    def refused(self, pod_uid: str, message: str) -> None:
        """Record that the API server rejected the run's request for a pod."""
        self._refused[pod_uid] = message
        self.changed.set()

    def refreshed(self, pod_uid: str, token: str, problem: str = "") -> None:
        """Record that a pod has the annotation for which kubelet refreshes its files, or why it could not be set."""
        _, before = self._refreshes.get(pod_uid, (0.0, FileRefresh("", 0.0, 0)))
        made = FileRefresh(token, 0.0, before.count + 1, problem)
        self._refreshes[pod_uid] = loop_time(), made

    def pod_written(self, obj: Json) -> None:
        """Record a pod that the API server has just returned to this process."""
        self._pods.put(self._pods.parse(obj))

    async def look_again(self, name: str) -> Member | None:
        """Read one pod, because the watch may lag, and the version of its kubelet, which may have changed.

        Return the pod, or None if there is none.
        """
        uid, member = "", None
        with suppress(GoneError):
            found = self._pods.parse(await self._client.get(PODS, self._namespace, name))
            self._pods.put(found)
            uid, member = found.uid, found.value
            await self._nodes.look_again(found.value)
            if self._config is not None:
                await self._config.learn([found.value], max_age=0.0)
        for known in [each for each in self._pods.of(name) if each.uid != uid]:
            self._pods.delete(known)
        return member

    def is_as_in(self, world: World, member: Member | None) -> bool:
        """Whether a pod, its node and its configuration are as in this world, in which the pod is `member`."""
        if member is None or member not in [each.value for each in self._pods.of(member.pod.name)]:
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
        members = tuple(filter(self._belongs, self._pods.values()))
        await self._nodes.learn(members, self._daemons.by_node)
        if self._config is not None:
            await self._config.learn(members)
        watched = {each.pod.uid for each in self._pods.values()}
        for found in [each.value for each in self._requests]:
            if found is None or found.request.completed:
                continue
            uid = found.request.pod_uid
            if uid and uid not in watched and uid not in self._labels:
                pod = await self._get(PODS, found.request.pod_name, uid)  # a deleted pod spends no budget
                self._labels[uid] = read_member(pod, with_config=False).labels if pod is not None else {}

    async def learn_probes(self, plan: Plan) -> bool:
        """Read the events of failed probes if a pod of the plan waits for a probe. Return whether they were read.

        They are read every few seconds at most. Without the right to list events, none are known.
        """
        due = loop_time() >= self._probes_read_at + _PROBES_SECONDS
        if not due or not any(row.wait.topic for row in plan.rows):
            return False
        self._probes_read_at = loop_time()
        with suppress(ApiRefusedError, ApiUnavailableError):
            where = Where(namespace=self._namespace, field_selector="reason=Unhealthy")
            listing = await self._client.list_all(EVENTS, read_probe_failure, **where)
            self._probes = dict(sorted(filter(None, listing.items), key=lambda found: found[1].at))
        return True

    async def _get(self, resource: Resource, name: str, uid: str) -> Json | None:
        """Return an object, or None if it was deleted or replaced by another one with its name."""
        with suppress(GoneError):
            found = await self._client.get(resource, self._namespace, name)
            return found if text(mapping(found.get("metadata")).get("uid")) == uid else None
        return None

    def _belongs(self, member: Member) -> bool:
        """Whether a pod belongs to the target. If the target is a workload, owner references decide."""
        return self._owners.lead_to_target(member.owner)

    def _request_changed(self, _: object, after: Version[RunRequest | None] | None) -> None:
        """Note aborted runs. A run stays aborted even after the request with the annotation was deleted."""
        if after is not None and after.value is not None and after.value.aborted:
            self._aborted.add(after.value.run.name)
        self.changed.set()

    def _watch(
        self, known: Values[T], resource: Resource, *, labels: str = "", fields: str = "", namespace: str | None = None
    ) -> None:
        where = self._namespace if namespace is None else namespace
        selection = Selection(resource, known.parse, where, labels, fields)
        self._begin(Informer(self._client, selection, known, strict=True))

    def _begin(self, reflector: Reflector[Any]) -> None:
        self._reflectors.append(reflector)
        self._tasks.append(asyncio.create_task(reflector.run()))

    async def _all_listed(self) -> None:
        while not all(each.listed for each in self._reflectors):
            self.changed.clear()
            waiting = asyncio.ensure_future(self.changed.wait())
            try:
                await asyncio.wait([waiting, *self._tasks], return_when=asyncio.FIRST_COMPLETED)
            finally:
                waiting.cancel()
            self._raise_error()

    def _raise_error(self) -> None:
        """Raise the error that has ended a watch."""
        for task in self._tasks:
            if task.done() and not task.cancelled():
                task.result()


def _zone(node: Json) -> tuple[str, str]:
    meta = mapping(node.get("metadata"))
    return text(meta.get("name")), text(mapping(meta.get("labels")).get(ZONE))
