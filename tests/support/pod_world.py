"""A small world in which some requests are for the whole pod: the runtime has sandboxes, and kubelet restarts the pod.

See `tests.support.simulation`. The rules of step 16 are asserted at the moment at which they could be broken.
"""

from collections import Counter
from dataclasses import replace

from crrd.core.api.types import WHOLE_POD, StatePhase, Strategy
from crrd.core.recreate.actions import RestartPod, RunHook
from crrd.core.recreate.decide import in_serving_order
from crrd.core.recreate.observation import Instance, Observation, Sandbox, StopAttempt, Work, WorkKind
from crrd.kubelet.runtime_status import ContainerState
from tests.support.simulation import NAMES, SmallWorld
from tests.support.worlds import POD_UID, RUNTIME

GRACE = 30.0  # Kubelet stops a container within this time


class PodWorld(SmallWorld):
    """The pod of SmallWorld with sandboxes. Requests with `True` are for the whole pod."""

    def __init__(self, asked: list[tuple[Strategy, bool]], *, hooks: bool, contexts: bool) -> None:
        self.sandboxes: dict[str, Sandbox] = {}
        self.killing: set[str] | None = None  # Instances that kubelet stops, because it restarts the pod
        self.killing_since = 0.0
        self.restarts = 0  # By kubelet, of the whole pod
        self.lost = 0  # Sandboxes that died by themselves
        self.seconds: Counter[str] = Counter()  # UID of a request -> number of second sandboxes
        self.excused = False  # Whether daemon or kubelet was killed, which may not know then that a hook has run
        self._add(0)
        super().__init__([strategy for strategy, _ in asked], hooks=hooks, contexts=contexts)
        for number, (_, whole) in enumerate(asked):
            self.requests[f"r{number}"] = replace(self.requests[f"r{number}"], whole_pod=whole)

    def _add(self, attempt: int, request_uid: str = "") -> None:
        made = Sandbox(f"s{attempt}", RUNTIME, "default", "web", POD_UID, True, attempt, attempt, request_uid)
        self.sandboxes[made.id] = made

    @property
    def latest(self) -> Sandbox:
        """The sandbox with the highest number."""
        return max(self.sandboxes.values(), key=lambda each: each.attempt)

    @property
    def changed(self) -> bool:
        """Kubelet's PodSandboxChanged."""
        ready = [each for each in self.sandboxes.values() if each.ready]
        return len(ready) != 1 or not self.latest.ready or bool(self.latest.request_uid)

    def running(self) -> list[Instance]:
        """The instances that run."""
        return [each for each in self.instances.values() if each.state is ContainerState.RUNNING]

    # Kubelet.

    def kubelet_creates(self, name: str) -> None:
        """See SmallWorld. A container is created in the latest sandbox."""
        super().kubelet_creates(name)
        newest = self.newest(name)
        self.instances[newest.id] = replace(newest, sandbox=self.latest.id)

    def kubelet_restarts(self, name: str) -> None:
        """See SmallWorld. Kubelet looks at the sandbox first."""
        if self.killing is None and not self.changed:
            super().kubelet_restarts(name)

    def kubelet_looks(self) -> None:
        """Kubelet runs the hooks of all containers if the sandbox has changed. What it stops then is in `killing`."""
        if self.killing is not None or not self.changed:
            return
        self.killing, self.killing_since = {each.id for each in self.running()}, self.now
        if self.hook is not None:
            for container_id in self.killing:
                assert self.excused or container_id not in self.life.busy, "kubelet runs a hook beside the daemon"
                self._hook_runs(container_id)
        self.kubelet_stops(0)

    def _hook_runs(self, container_id: str) -> None:
        self.hook_runs[container_id] = self.hook_runs.get(container_id, 0) + 1
        assert self.excused or self.hook_runs[container_id] == 1, "a hook runs twice"

    def kubelet_stops(self, which: int) -> None:
        """One of the containers ends. After the last one, kubelet makes a new sandbox and starts all."""
        if self.killing is None:
            return
        self.killing &= {each.id for each in self.running()}
        late = self.now >= self.killing_since + GRACE
        for container_id in sorted(self.killing) if late else sorted(self.killing)[which:][:1]:
            self.instances[container_id] = replace(self.instances[container_id], state=ContainerState.EXITED)
            self.codes[container_id] = 137
            self.killing.discard(container_id)
        if self.killing:
            return
        self.killing = None
        self.restarts += 1
        self.sandboxes = {each.id: replace(each, ready=False) for each in self.sandboxes.values()}
        self._add(self.latest.attempt + 1)
        for name in NAMES:
            self.kubelet_creates(name)

    def kubelet_dies(self) -> None:
        """kill -9 of kubelet: it begins anew."""
        self.excused = self.excused or self.killing is not None
        self.killing = None

    def kubelet_collects(self) -> None:
        """Garbage collection: the last instance of each container stays, and sandboxes with containers do."""
        for name in NAMES:
            dead = [each for each in self.instances.values() if each.name == name and each.id not in self.life.busy]
            for each in sorted(dead, key=lambda each: each.created_at)[:-2]:
                if each.state is ContainerState.EXITED:
                    del self.instances[each.id]
        used = {each.sandbox for each in self.instances.values()} | {self.latest.id}
        self.sandboxes = {each.id: each for each in self.sandboxes.values() if each.ready or each.id in used}

    def sandbox_dies(self) -> None:
        """The process of kubelet's sandbox dies, and with it all containers."""
        if self.killing is not None or self.changed:
            return
        self.lost += 1
        self.sandboxes[self.latest.id] = replace(self.latest, ready=False)
        for each in self.running():
            self.crashes(each.name)

    def sweeps(self) -> None:
        """The daemon removes second sandboxes of requests that are not live."""
        live = {uid for uid, request in self.requests.items() if request.live}
        self.sandboxes = {
            each.id: each for each in self.sandboxes.values() if not each.ready or each.request_uid in ("", *live)
        }

    # The daemon.

    def observe(self) -> Observation:
        """See SmallWorld. Sandboxes are listed if a request for the whole pod is current or was."""
        seen = super().observe()
        current = in_serving_order(seen.requests)[:1]
        works = (work.name == WHOLE_POD for each in seen.requests for work in each.works.values())
        concerned = any(each.request.whole_pod for each in current) or any(works)
        listed = tuple(self.sandboxes.values()) if concerned else ()
        return replace(seen, pod=replace(seen.pod, sandboxes=listed))

    def carry_out_other(self, action: RestartPod) -> None:
        """The runtime gets RunPodSandbox."""
        request = action.request
        assert request.live
        assert request.pinned[WHOLE_POD] == action.target.pin, "not the sandbox that was recorded"
        assert not self.life.busy, "work on a container is under way"
        work = Work(WHOLE_POD, action.target.pin, WorkKind.SANDBOX, stop_sent=self.now, pod_uid=POD_UID)
        known = self.life.works.get((request.uid, action.target.id))
        attempts = 0 if known is None or known.last_stop is None else known.last_stop.count
        last = StopAttempt(attempts, self.now, "no answer") if attempts else None
        self.life.works[request.uid, action.target.id] = replace(work, last_stop=last)

    def begin_hook(self, action: RunHook) -> None:
        """See SmallWorld. Kubelet must not have run it."""
        super().begin_hook(action)
        assert self.excused or self.hook_runs[action.instance.id] == 1, "a hook runs twice"

    def make(self, uid: str) -> str:
        """The runtime makes a second sandbox. Return its error, "" for none."""
        key = next(key for key in self.life.works if key[0] == uid and self.life.works[key].name == WHOLE_POD)
        attempt = self.life.works[key].pin.restart_count + 1
        if any(each.attempt == attempt for each in self.sandboxes.values()):
            return "the name is reserved"
        assert all(each.attempt < attempt for each in self.sandboxes.values()), "kubelet has restarted the pod before"
        self.seconds[uid] += 1
        assert self.seconds[uid] == 1, "a second restart"
        self._add(attempt, uid)
        return ""

    def ends(self, container_id: str, *, code: int = 137) -> None:
        """See SmallWorld. For a second sandbox, the code says whether the runtime refuses it or its answer is lost."""
        if container_id in self.instances:
            super().ends(container_id, code=code)
            return
        uid = self.life.busy[container_id]
        error = "refused" if code == 1 else self.make(uid) or ("the answer is lost" if code == 2 else "")
        work = self.life.works[uid, container_id]
        count = 1 if work.last_stop is None else work.last_stop.count + 1
        self.life.works[uid, container_id] = replace(
            work, under_way=None, last_stop=StopAttempt(count, self.now, error)
        )

    def dies(self, *, made: bool = False) -> None:
        """See SmallWorld. A second sandbox may still be made."""
        for uid, container_id in list(self.life.works):
            work = self.life.works[uid, container_id]
            if work.under_way is WorkKind.SANDBOX:
                if made:
                    self.make(uid)
                del self.life.works[uid, container_id]
        self.excused = True
        super().dies()

    # The end.

    def turn(self) -> None:
        """See SmallWorld: what happens besides the daemon's action."""
        self.kubelet_looks()
        self.kubelet_stops(0)
        self.sweeps()

    def check_success(self) -> None:
        """The pod has one sandbox, in which all containers run. A request that has succeeded has restarted the pod."""
        for _ in range(9):
            self.turn()
            for name in NAMES:
                self.kubelet_restarts(name)
        assert [each.id for each in self.sandboxes.values() if each.ready] == [self.latest.id]
        assert {each.name for each in self.running()} == set(NAMES)
        for request in self.requests.values():
            assert {state.phase for state in request.status.states} == {StatePhase.SUCCEEDED}, request.status
            if request.whole_pod:
                first = request.pinned[WHOLE_POD].restart_count
                homes = [self.sandboxes[self.newest(name).sandbox] for name in NAMES]
                assert all(each.attempt > first for each in homes), "succeeded without a restart"
