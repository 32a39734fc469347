"""The cluster as a run sees it: the objects that it watches, and the pods that the process is just starting."""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Self

from crrd.core.rollout.requests import RunRequest
from crrd.core.rollout.state import Member, World
from crrd.lib.backoff import retry_delay
from crrd.lib.errors import ApiUnavailableError
from crrd.lib.looptime import loop_time
from crrd.rollout.watched import Watched

Json = Mapping[str, Any]
_LEARN_SECONDS = 1.0  # Interval of looking for what no watch reports. Until then, what is unknown uses up budgets
PAUSE_PER_POD = 0.00007
"""Seconds between two plans, for each pod. Plans then take about a third of one core, however many pods there are."""


class Cluster:
    """The pods of a target, and all other objects that limit a run on them. `async with` keeps it up to date."""

    def __init__(self, watched: Watched, peers: "list[Cluster] | None" = None) -> None:
        """`peers` has all entered clusters, for the process's runs."""
        self._watched, self.namespace = watched, watched.namespace
        self.changed = watched.changed  # Set after every change; the reader clears it
        self.kind_objects, self.probes = watched.kind_objects, watched.probes
        self.retried: frozenset[str] = frozenset()  # As `World.retried`, set once by the user of this class
        self.claims: dict[str, tuple[Member, RunRequest]] = {}  # By UID: pods whose request is being created
        self._peers, self._peer_starts = [] if peers is None else peers, 0  # See `World.peer_starts`
        self._refused: dict[str, str] = {}
        self._learn_at, self._failures, self._trouble = 0.0, 0, ""  # The loop's time, and why it failed the last times

    async def __aenter__(self) -> Self:
        """Start the watches, and return when everything is listed. Raises ConfigurationError if a right is missing."""
        self._peers.append(self)
        try:
            await self._watched.begin()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self._peers.remove(self)
        await self._watched.end()

    async def refresh(self) -> str:
        """Read what no watch reports. Return why the known state may be out of date, or ""."""
        if problem := self._watched.problem():
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

    async def learn(self) -> None:
        """Read the objects that no watch reports. Raises ConfigurationError, ApiUnavailableError."""
        await self._watched.learn()

    def world(self) -> World:
        """Return the known state, with what the other runs of this process are just starting."""
        known, claimed = self._watched.world(), [each for peer in self._others() for each in peer.claims.values()]
        return replace(
            known,
            requests=(*known.requests, *(request for _, request in claimed)),
            labels={**known.labels} | {member.pod.uid: member.labels for member, _ in claimed},
            refused=dict(self._refused),
            retried=self.retried,
            starting=self.starting,
            peer_starts=self._peer_starts,
        )

    @property
    def starting(self) -> dict[str, str]:
        """As `World.starting`."""
        return {uid: request.request.name for uid, (_, request) in self.claims.items()}

    def claim(self, member: Member, request: RunRequest) -> None:
        """Record that the request for a pod is being created. The other runs of this process count it at once."""
        self.claims[member.pod.uid] = member, request
        for peer in self._others():
            peer.note_peer_start(member)

    def note_peer_start(self, member: Member) -> None:
        """Record that another run starts this pod. If that matters here, older plans start no more pods."""
        if self._watched.concerns(member):
            self._peer_starts += 1
            self.changed.set()

    def written(self, obj: Json) -> None:
        """Record the object of a request that the API server has just returned to this process."""
        for each in (self, *self._others()):
            each.put(obj)

    def put(self, obj: Json) -> None:
        """Record a version of a request, or of the pod on which it is kept."""
        self._watched.put(obj)

    def _others(self) -> "Iterator[Cluster]":
        return (each for each in self._peers if each is not self and each.namespace == self.namespace)

    def refused(self, pod_uid: str, message: str) -> None:
        """Record that the API server rejected the run's request for a pod."""
        self._refused[pod_uid] = message
        self.changed.set()

    def pod_written(self, obj: Json) -> None:
        """Record a pod that the API server has just returned to this process."""
        self._watched.put_pod(obj)

    async def look_again(self, name: str, uid: str) -> Member | None:
        """Read one pod, because the watch may lag, and the version of its kubelet, which may have changed.

        Return the pod, or None if it is gone. Another pod may have its name by now, which is recorded.
        """
        return await self._watched.look_again(name, uid)

    def is_as_in(self, world: World, member: Member | None) -> bool:
        """Whether a pod, its node and its configuration are as in this world, in which the pod is `member`."""
        return member is not None and self._peer_starts == world.peer_starts and self._watched.is_as_in(world, member)

    async def wait(self, seconds: float) -> None:
        """Return after a change, but after `seconds` at the latest.

        With many pods, this waits a moment first, because a plan takes long, and the next changes can share one.
        """
        pause = min(seconds, PAUSE_PER_POD * sum(1 for _ in self._watched.pods))
        await asyncio.sleep(pause)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds - pause):
                await self.changed.wait()
