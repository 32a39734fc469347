"""Look at one pod and carry out what is decided about it: observe, decide, execute. Ends there."""

import asyncio
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from daemon.core.api.pod import Pod
from daemon.core.api.types import Pin, Request
from daemon.core.recreate.checks import target_of
from daemon.core.recreate.decide import QUIET, decide, turn_order
from daemon.core.recreate.observation import Instance, Observation
from daemon.kube.cache import NodeCache
from daemon.kubelet.restart_rules import RestartPolicy
from daemon.kubelet.runtime_status import ContainerState, newest
from daemon.lib.errors import RuntimeCallError
from daemon.node.execute import Executor, PodWork
from daemon.ports import Recorder, Runtime


class Reconciler:
    """Handles one pod's key at a time for the queue.

    Args:
        node_name: this node.
        watch_runtime: called with (pod key, pod UID, wanted) after each round: whether a change of the pod's
            containers in the runtime is awaited.
    """

    def __init__(
        self,
        *,
        node_name: str,
        cache: NodeCache,
        runtime: Runtime,
        executor: Executor,
        recorder: Recorder,
        watch_runtime: Callable[[str, str, bool], None],
    ) -> None:
        self._node_name = node_name
        self._cache = cache
        self._runtime = runtime
        self._executor = executor
        self._recorder = recorder
        self._watch_runtime = watch_runtime
        self._seen: dict[str, Request] = {}
        self._foreign: dict[str, Instance | None] = {}
        self.draining = False

    async def handle(self, pod_key: str) -> float | None:
        """One round for a pod; returns when to look again.

        Raises:
            RuntimeUnavailableError: the runtime is away; the queue tries again.
        """
        requests = self._cache.requests(pod_key)
        self._note(pod_key, requests)
        live = [request for request in requests if request.live]
        if not live:
            self._watch_runtime(pod_key, "", False)
            return None
        now = asyncio.get_running_loop().time
        if all(request.error for request in live):
            decision = decide(requests, self._blind(), now())
        else:
            observation = await self._observe(pod_key, live)
            # The cache may have moved on while the runtime was asked: decide on what it says now.
            requests = self._cache.requests(pod_key)
            decision = decide(requests, observation, now())
        pod = self._cache.pod(pod_key)
        self._watch_runtime(pod_key, pod.runtime_uid if pod else "", decision.watch_runtime)
        self._executor.carry_out(requests, decision.actions)
        wakes = (decision.wake_at, self._executor.wake_for_write(requests))
        return min((at for at in wakes if at is not None), default=None)

    def _note(self, pod_key: str, requests: Sequence[Request]) -> None:
        """Tell the recorder which requests came and which went.

        The watch may bring the end of a request before the write that ended it is answered: what that write did is
        told first.
        """
        known = {request.uid: request for request in requests}
        for uid, request in list(self._seen.items()):
            ended = request.pod_key == pod_key and (uid not in known or not known[uid].live)
            if ended and not self._executor.writes(uid):
                del self._seen[uid]
                self._executor.forget(uid)
                self._recorder.forgotten(known.get(uid, request))
        for uid, request in known.items():
            if request.live and uid not in self._seen:
                self._seen[uid] = request
                self._recorder.seen(request)
        if not self._seen:
            self._foreign.clear()

    def _blind(self) -> Observation:
        """An observation of nothing, for requests that cannot be served anyway."""
        return Observation(self._node_name, self._runtime.names, utc=_utc())

    async def _observe(self, pod_key: str, live: Sequence[Request]) -> Observation:
        """All that `decide` wants to know about one pod."""
        pod = self._cache.pod(pod_key)
        uid = pod.runtime_uid if pod else next((request.pod_uid for request in live if request.pod_uid), "")
        if pod is None and not self._cache.pods_known.is_set():
            # The first request after a quiet time: the pods are being listed. Ask the runtime meanwhile.
            instances, _ = await asyncio.gather(self._instances(uid), self._pods_known())
            pod = self._cache.pod(pod_key)
            if pod is not None and pod.runtime_uid != uid:
                instances = await self._instances(pod.runtime_uid)
        else:
            instances = await self._instances(uid)
        sound = sorted((request for request in live if not request.error), key=turn_order)
        current = sound[0] if sound else None
        if current is not None:
            self._recorder.turn(current)
        foreign: dict[str, Instance | None] = {}
        if current is not None and pod is not None:
            foreign = await self._find_foreign(current, instances)
            instances = await self._details(current, pod, instances)
        work = self._executor.work(pod_key)
        self._note_successors(current, instances, work)
        return Observation(
            node_name=self._node_name,
            runtime_names=self._runtime.names,
            instances=instances,
            foreign=foreign,
            pod=self._cache.pod(pod_key),
            pod_gone=self._cache.pod_gone(pod_key),
            busy=dict(work.busy),
            hooks=dict(work.hooks),
            stops=dict(work.stops),
            sent=dict(work.sent),
            first_seen=self._cache.first_seen,
            unready_seen=self._cache.unready_seen,
            pods_since=self._cache.pods_since,
            utc=_utc(),
            draining=self.draining,
        )

    async def _instances(self, pod_uid: str) -> tuple[Instance, ...]:
        """The pod's container instances; none while its UID is not known."""
        return await self._runtime.instances(pod_uid) if pod_uid else ()

    async def _pods_known(self) -> None:
        """Wait for the list of the node's pods, but not for long: a wait is worth telling."""
        try:
            async with asyncio.timeout(QUIET):
                await self._cache.pods_known.wait()
        except TimeoutError:
            return

    async def _find_foreign(self, request: Request, instances: Sequence[Instance]) -> dict[str, Instance | None]:
        """Look up container IDs of the request that are not among the pod's: another pod's, or collected ones.

        An answer is kept while requests are active: an ID never changes its pod.
        """
        own = {instance.id for instance in instances}
        pins: list[Pin] = [container.context for container in request.containers if container.context]
        wanted = [
            pin
            for pin in (*pins, *request.pinned.values())
            if pin.bare_id not in own and pin.runtime in self._runtime.names
        ]
        for pin in wanted:
            if pin.bare_id not in self._foreign:
                self._foreign[pin.bare_id] = await self._runtime.find(pin)
        return {pin.bare_id: self._foreign[pin.bare_id] for pin in wanted}

    async def _details(self, request: Request, pod: Pod, instances: tuple[Instance, ...]) -> tuple[Instance, ...]:
        """Fill in exit codes and running times where the decision hangs on them (one more RPC each)."""
        detailed: dict[str, Instance] = {}
        for container in request.containers:
            status = pod.containers.get(container.name)
            current = newest(instances, container.name)
            if status is None or current is None or request.status.state(container.name).phase.final:
                continue
            exited = current.state is ContainerState.EXITED and status.restart_policy is RestartPolicy.ON_FAILURE
            target = target_of(request, container)
            timed = (
                current.state is ContainerState.RUNNING
                and request.strategy.min_started_seconds > 0
                and target is not None
                and target.bare_id != current.id
            )
            if exited or timed:
                try:
                    detailed[current.id] = await self._runtime.detail(current)
                except RuntimeCallError as error:
                    if not error.not_found:
                        raise
        return tuple(detailed.get(instance.id, instance) for instance in instances)

    def _note_successors(self, request: Request | None, instances: Sequence[Instance], work: PodWork) -> None:
        """Tell the recorder which awaited instances the runtime has by now."""
        if request is None:
            return
        for container in request.containers:
            current = newest(instances, container.name)
            target = target_of(request, container)
            if current and target and current.id != target.bare_id and target.bare_id in work.sent:
                self._recorder.successor_seen(request, container.name)


def _utc() -> str:
    """The node's wall clock as Kubernetes writes times."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
