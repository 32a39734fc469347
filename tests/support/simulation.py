"""A small world in plain Python: an API server, a runtime, a kubelet, and a daemon that can die between two actions.

The simulated daemon is `decide` with the simplest possible executor. It loses its memory when it dies. Every rule of
the contract that is visible from outside is asserted at the moment at which it could be broken.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from crrd.core.api.phases import check_move
from crrd.core.api.pod import Pod, PodContainer
from crrd.core.api.types import Pin, Request, RequestedContainer, StatePhase, Strategy
from crrd.core.recreate.actions import Action, EmitEvent, PinContainers, RestartPod, RunHook, StopContainer, WriteStatus
from crrd.core.recreate.decide import decide
from crrd.core.recreate.invariants import check
from crrd.core.recreate.observation import (
    Hook,
    HookKind,
    HookResult,
    Instance,
    Observation,
    ObservedNode,
    ObservedPod,
    ObservedRequest,
    StopAttempt,
    Work,
    WorkKind,
)
from crrd.kubelet.restart_rules import RestartPolicy
from crrd.kubelet.runtime_status import ContainerState
from tests.support.worlds import NODE, POD_UID, RUNTIME, instance, pin

NAMES = ("a", "b", "c")


@dataclass
class Life:
    """The memory of one life of the daemon."""

    works: dict[tuple[str, str], Work] = field(default_factory=dict)
    observed: dict[str, float] = field(default_factory=dict)
    unready: dict[str, float] = field(default_factory=dict)
    plan: list[Action] = field(default_factory=list)

    @property
    def busy(self) -> dict[str, str]:
        """Container ID -> UID of the request with a hook or stop in progress."""
        return {container: uid for (uid, container), work in self.works.items() if work.under_way is not None}

    def note(self, uid: str, instance: Instance, **changes: Any) -> None:
        """Record the state of a hook or stop."""
        known = self.works.get((uid, instance.id), Work(instance.name, instance.pin))
        self.works[uid, instance.id] = replace(known, **changes)


class SmallWorld:
    """Two requests, three containers, and everything that may interfere."""

    def __init__(
        self, strategies: list[Strategy], *, hooks: bool, contexts: bool, policy: RestartPolicy = RestartPolicy.ALWAYS
    ) -> None:
        self.now = 0.0
        self.policy = policy
        self.instances: dict[str, Instance] = {}
        self.codes: dict[str, int] = {}  # The exit code of each ended instance
        self.made = 0
        self.hook = Hook(HookKind.EXEC, command=("true",)) if hooks else None
        self.statuses = {name: PodContainer(name, restart_policy=policy) for name in NAMES}
        for name in NAMES:
            self.kubelet_creates(name)
        for name in NAMES:
            self.kubelet_reports(name)
        self.requests: dict[str, Request] = {}
        self.deleted: dict[str, Request] = {}
        for number, strategy in enumerate(strategies):
            self.post(f"r{number}", strategy, contexts=contexts)
        self.life = Life()
        self.hook_runs: dict[str, int] = {}
        self.hook_run: dict[str, tuple[str, Life]] = {}
        """By container ID: the request that ran its hook last, and its life. Without hooks that a death interrupted."""
        self.stopped_by: dict[str, set[str]] = {}
        self.actions = 0

    def post(self, uid: str, strategy: Strategy, *, contexts: bool) -> None:
        """Create a request for all three containers."""
        containers = tuple(RequestedContainer(name, self.newest(name).pin if contexts else None) for name in NAMES)
        self.requests[uid] = Request(
            namespace="default",
            name=uid,
            uid=uid,
            resource_version="1",
            created=f"2099-01-01T00:00:0{len(self.requests)}Z",
            pod_name="web",
            pod_uid=POD_UID,
            node_name=NODE,
            containers=containers,
            strategy=strategy,
            unready_acquired=strategy.unready_grace_seconds is not None,
        )

    def newest(self, name: str) -> Instance:
        """Return the current instance of a container."""
        return max((i for i in self.instances.values() if i.name == name), key=lambda i: i.created_at)

    # Other programs and users.

    def kubelet_creates(self, name: str) -> None:
        """Kubelet starts a container that is not running."""
        self.made += 1
        count = sum(1 for known in self.instances.values() if known.name == name)
        made = instance(f"{name}{self.made}", name, created_at=self.made, restart_count=count)
        self.instances[made.id] = replace(made, hook=self.hook)

    def kubelet_restarts(self, name: str) -> None:
        """Kubelet restarts the container if the newest instance has exited and the restart policy allows it."""
        newest = self.newest(name)
        allowed = self.policy is RestartPolicy.ALWAYS or self.codes.get(newest.id) != 0
        if newest.state is ContainerState.EXITED and allowed:
            self.kubelet_creates(name)

    def kubelet_reports(self, name: str) -> None:
        """Kubelet updates the pod's status."""
        newest = self.newest(name)
        running = newest.state is ContainerState.RUNNING
        status = PodContainer(
            name,
            restart_policy=self.policy,
            container_id=newest.pin.container_id,
            running=running,
            terminated=newest.state is ContainerState.EXITED,
            exit_code=self.codes.get(newest.id),
            ready=running,
        )
        self.statuses[name] = status

    def crashes(self, name: str, code: int = 137) -> None:
        """A container ends by itself, or kubelet stops it (an in-place update)."""
        newest = self.newest(name)
        self.instances[newest.id], self.codes[newest.id] = replace(newest, state=ContainerState.EXITED), code

    def delete(self, uid: str) -> None:
        """A user deletes a request."""
        if uid in self.requests:
            self.deleted[uid] = self.requests.pop(uid)

    # The daemon.

    def dies(self) -> None:
        """kill -9: calls in progress may or may not have an effect in the runtime."""
        for (_, container_id), work in self.life.works.items():
            if work.under_way is not None:
                (self.hook_run if work.under_way is WorkKind.HOOK else self.stopped_by).pop(container_id)
        self.life = Life()

    def hook_known(self, container_id: str) -> bool:
        """Whether the daemon can know of a hook: it ran in this life, or its live request reports it."""
        if container_id not in self.hook_run:
            return False
        uid, life = self.hook_run[container_id]
        request = self.requests.get(uid)
        if request is not None and request.live and request.status.state(self.instances[container_id].name).is_killed:
            return True
        return life is self.life

    def observe(self) -> Observation:
        """Return what the daemon observes now."""
        for uid, request in self.requests.items():
            self.life.observed.setdefault(uid, self.now)
            if request.unready_acquired:
                self.life.unready.setdefault(uid, self.now)
        known: Mapping[str, PodContainer] = dict(self.statuses)
        pod = ObservedPod(
            instances=tuple(self.instances.values()),
            listed_at=self.now,
            pod=Pod("default", "web", POD_UID, containers=known, readiness_gate=True),
            known_since=0.0,
        )
        node = ObservedNode(NODE, frozenset({RUNTIME}), wall=1767229200.0)
        seen = tuple(self.known(uid) for uid in self.requests | self.deleted if uid in self.life.observed)
        return Observation(pod, seen, node, self.now)

    def known(self, uid: str) -> ObservedRequest:
        """Return what the daemon knows of a request that it has seen in this life."""
        return ObservedRequest(
            self.requests.get(uid) or self.deleted[uid],
            self.life.observed[uid],
            self.life.unready.get(uid),
            left=uid in self.deleted,
            works={container_id: work for (of, container_id), work in self.life.works.items() if of == uid},
        )

    def act(self) -> bool:
        """Let the daemon do one step: plan a round, or carry out one action of its planned round."""
        if not self.life.plan:
            observed = self.observe()
            decision = decide(observed)
            assert not check(decision, observed)
            self.life.plan = [action for action in decision.actions if not isinstance(action, EmitEvent)]
            return bool(self.life.plan)
        action = self.life.plan.pop(0)
        self.actions += 1
        match action:
            case WriteStatus():
                self.write(action)
            case PinContainers():
                self.pins(action)
            case RunHook():
                self.begin_hook(action)
            case StopContainer():
                self.begin_stop(action)
            case RestartPod():
                self.carry_out_other(action)
        return True

    def carry_out_other(self, action: RestartPod) -> None:
        """No request here is for the whole pod."""
        raise AssertionError(action)

    def turn(self) -> None:
        """Something else happens in each round of `settle`."""

    def write(self, action: WriteStatus) -> None:
        """The API server stores a status, if the request has not changed since the decision."""
        current = self.requests.get(action.request.uid)
        if current is None or current.resource_version != action.request.resource_version:
            return
        assert not current.completed, "a completed request was written"
        check_move(current.status, action.status)
        version = str(int(current.resource_version) + 1)
        self.requests[current.uid] = replace(current, status=action.status, resource_version=version)

    def pins(self, action: PinContainers) -> None:
        """The API server stores the annotation."""
        current = self.requests.get(action.request.uid)
        if current is not None and current.resource_version == action.request.resource_version:
            for name, old in current.pinned.items():
                assert action.pins[name] == old, "a pin was changed"
            version = str(int(current.resource_version) + 1)
            self.requests[current.uid] = replace(
                current, pinned=dict(action.pins), start_times=dict(action.start_times), resource_version=version
            )

    def check_target(self, action: RunHook | StopContainer) -> None:
        """Check the rules that hold for every action on a container."""
        request = action.request
        assert request.live
        wanted = {container.name: request.target(container) for container in request.containers}
        target: Pin | None = wanted[action.instance.name]
        assert target == pin(action.instance.id, action.instance.restart_count), "not the instance that was meant"
        assert self.policy is not RestartPolicy.NEVER
        assert action.instance.id not in self.life.busy, "two works on one container"
        if request.strategy.ordered:
            for name in NAMES[: NAMES.index(action.instance.name)]:
                recreated = self.statuses[name].ready and wanted[name] != self.newest(name).pin
                lost = self.policy is RestartPolicy.ON_FAILURE and self.codes.get(self.newest(name).id) == 0
                assert recreated or lost or request.status.state(name).phase.final, "not in order"
                # a container in its final state is not waited for, although its hook may still be recorded as in
                # progress
                assert lost or self.newest(name).id not in self.life.busy, "two in flight"

    def begin_hook(self, action: RunHook) -> None:
        """The runtime starts a hook."""
        self.check_target(action)
        container_id = action.instance.id
        assert not self.hook_known(container_id), "a second hook"
        self.hook_runs[container_id] = self.hook_runs.get(container_id, 0) + 1
        self.hook_run[container_id] = (action.request.uid, self.life)
        self.life.note(
            action.request.uid,
            action.instance,
            under_way=WorkKind.HOOK,
            until=self.now + action.seconds,
            hook_began=self.now,
            hook_until=self.now + action.seconds,
            spent_before=action.spent_before,
        )

    def begin_stop(self, action: StopContainer) -> None:
        """The runtime gets a StopContainer."""
        self.check_target(action)
        container_id = action.instance.id
        earlier = self.stopped_by.setdefault(container_id, set())
        assert earlier <= {action.request.uid}, "stopped by two requests"
        earlier.add(action.request.uid)
        if self.hook is not None:
            current = self.requests.get(action.request.uid)
            assert current is None or current.status.state(action.instance.name).is_killed, "stop before it was written"
        self.life.note(
            action.request.uid,
            action.instance,
            under_way=WorkKind.STOP,
            until=self.now + action.seconds,
            stop_sent=self.now,
        )

    def ends(self, container_id: str, *, code: int = 137) -> None:
        """A hook or stop in progress ends."""
        uid, instance = self.life.busy[container_id], self.instances[container_id]
        work = self.life.works[uid, container_id]
        if work.under_way is WorkKind.HOOK:
            self.life.note(uid, instance, under_way=None, until=None, hook_result=HookResult(1.0))
            return
        self.life.note(uid, instance, under_way=None, until=None, last_stop=StopAttempt(1, self.now))
        if instance.state is not ContainerState.EXITED:
            self.instances[container_id] = replace(instance, state=ContainerState.EXITED)
            self.codes[container_id] = code

    def settle_with(self, moment: int, act: Callable[[], None]) -> None:
        """Settle as `settle` does. Once so many actions have been carried out, do this once."""
        done = False

        def once() -> None:
            nonlocal done
            if self.actions >= moment and not done:
                done = True
                act()

        self.settle(before=once)
        assert done

    def settle(self, *, rounds: int = 200, before: Callable[[], None] | None = None) -> None:
        """Let all parts work in turn until nothing changes. Then every request must have ended."""
        for _ in range(rounds):
            if before is not None:
                before()
            self.now += 1.0
            self.act()
            for container_id in list(self.life.busy):
                self.ends(container_id)
            self.turn()
            for name in NAMES:
                self.kubelet_restarts(name)
                self.kubelet_reports(name)
            if not self.life.plan and all(request.completed for request in self.requests.values()):
                self.check_success()
                return
        raise AssertionError(f"requests never ended: {self.requests}")

    def one_exited_0(self) -> bool:
        """Whether a container has ended so that kubelet does not restart it with OnFailure."""
        return 0 in self.codes.values()

    def check_success(self) -> None:
        """Liveness: containers that kubelet restarts were recreated, and another instance runs, whatever happened.

        In this world, only the restart policy excuses a failure.
        """
        for request in self.requests.values():
            for container in request.containers:
                state = request.status.state(container.name)
                if state.phase is not StatePhase.SUCCEEDED:
                    assert self.policy is not RestartPolicy.ALWAYS, state
                    assert self.policy is RestartPolicy.NEVER or self.one_exited_0(), state
                    continue
                target = request.target(container)
                assert target is not None
                assert self.newest(container.name).pin != target, "succeeded, and nothing else was ever started"
