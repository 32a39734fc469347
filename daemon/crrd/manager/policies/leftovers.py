"""Ends what runs of policies have left, and nobody carries on.

Runs with an image leave pull pods, and requests that keep pods unready. Runs by patches leave containers that kubelet
cannot start. It is found from the cluster's objects (requests, pods, policies), not from what this process has seen. So
it does not matter in which order a policy was edited or deleted, and which manager led meanwhile. The end of a run's
task only says when to look. A look that fails is repeated until it succeeds.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple, NoReturn

from crrd.core.policy.types import Policy
from crrd.core.rollout.image.pull import LABEL_PULL_POLICY
from crrd.core.rollout.progress import LIVE_SECONDS
from crrd.core.rollout.requests import read_run_request
from crrd.core.rollout.run import LABEL_RUN
from crrd.kube.client import KubeClient
from crrd.kube.clock import ServerClock
from crrd.kube.resources import PODS, REQUESTS
from crrd.lib.jsonfields import mapping, text
from crrd.lib.looptime import loop_time
from crrd.lib.workqueue import WorkQueue
from crrd.rollout.image.leftovers import release_runs
from crrd.rollout.patch import end_restarts, namespaces_with_restarts

LATE_SECONDS = 15.0
"""When to look once more, because a write of a stopped run may arrive late. Its response was not awaited."""
LOOK_SECONDS = 300.0  # Longest time between two answers while a namespace is cleaned up
_CLUSTER = ""  # The key of the look for namespaces


class CarriedOn(NamedTuple):
    """The runs of a namespace that are carried out, or will be."""

    runs: Collection[str]
    undecided: bool  # Whether some of them may turn out not to be, because a policy has not been looked at yet


class Leftovers:
    """Cleans up namespaces. The constructor starts nothing.

    `carried_on` is asked about a namespace before each step, once `is_listed` says that the policies are known.
    """

    def __init__(
        self,
        client: KubeClient,
        clock: ServerClock,
        carried_on: Callable[[str], CarriedOn],
        is_listed: Callable[[], bool],
    ) -> None:
        self._client, self._clock, self._carried_on, self._is_listed = client, clock, carried_on, is_listed
        self._until: dict[str, float] = {}  # By namespace: the loop's time until which writes may arrive late
        self.queue = WorkQueue(self._handle, "policy-leftovers", round_seconds=LOOK_SECONDS)

    async def run(self) -> NoReturn:
        """Look through the cluster once, because earlier leaders may have left something, and then where woken."""
        self.queue.wake(_CLUSTER)
        await self.queue.run()

    def wake(self, before: Policy | None, after: Policy | None = None) -> None:
        """Look at the namespace of a policy that has changed or was deleted, or of whose run was stopped."""
        for policy in filter(None, (before, after)):
            runs = policy.status.run, *policy.status.tried
            if policy.patch or policy.template_image or any(each is not None and each.image for each in runs):
                self._wake(policy.namespace)

    def _wake(self, namespace: str) -> None:
        self._until[namespace] = loop_time() + LATE_SECONDS
        self.queue.wake(namespace)

    async def _handle(self, namespace: str) -> float | None:
        if namespace == _CLUSTER:
            for each in await self._namespaces():
                self._wake(each)
            return None
        if not self._is_listed():
            return loop_time() + 1.0
        left = False
        for release in (release_runs, end_restarts):
            left |= await release(self._client, namespace, self._runs_of(namespace), self._clock.now())
        late = self._until[namespace]
        if self._carried_on(namespace).undecided:
            return max(late, loop_time() + LATE_SECONDS)
        if left or loop_time() < late:
            return max(late, loop_time() + (LIVE_SECONDS if left else 0.0))
        del self._until[namespace]
        return None

    def _runs_of(self, namespace: str) -> Callable[[], Collection[str]]:
        return lambda: self._carried_on(namespace).runs

    async def _namespaces(self) -> set[str]:
        """Return the namespaces where a policy's run may have left something."""
        requests = await self._client.list_all(REQUESTS, _of_policy, label_selector=LABEL_RUN)
        pods = await self._client.list_all(PODS, _namespace, label_selector=LABEL_PULL_POLICY)
        return {each for each in (*requests.items, *pods.items) if each} | await namespaces_with_restarts(self._client)


def _of_policy(obj: Mapping[str, Any]) -> str:
    """Return the namespace of an open request of a policy's run with an image, "" for any other."""
    found = read_run_request(obj)
    own = found is not None and found.is_open and found.run.options.policy and found.run.options.image is not None
    return _namespace(obj) if own else ""


def _namespace(obj: Mapping[str, Any]) -> str:
    return text(mapping(obj.get("metadata")).get("namespace"))
