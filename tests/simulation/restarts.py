"""The part of kubelet that restarts a whole pod, because its sandbox has changed.

The rules are those of kubelet's PodSandboxChanged, killPodWithSyncResult and computePodActions: more than one ready
sandbox, or a newest one that is not ready or has no network, makes it stop all containers (preStop hooks at once,
sidecars after all others) and then all sandboxes. It removes the init containers, makes the sandbox with the next
number, and starts again with the first init container.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from tests.simulation.containers import Container
from tests.simulation.pod import Pod
from tests.simulation.sandboxes import Sandbox
from tests.simulation.schedule import ContainerShape

if TYPE_CHECKING:
    from tests.simulation.kubelet import SimulatedKubelet
    from tests.simulation.world import SimulatedWorld

LEAST_GRACE = 2.0
INIT_BACK_OFF = 10.0
COLLECTED_SECONDS = 60.0  # Kubelet's garbage collection of sandboxes and containers runs once a minute
RESERVED_SECONDS = 1.0  # Until the next attempt, after the runtime has refused a sandbox


class PodRestarts:
    """Sandboxes and init containers of all pods of the node, as kubelet handles them."""

    def __init__(self, world: "SimulatedWorld", kubelet: "SimulatedKubelet") -> None:
        self._world = world
        self._kubelet = kubelet

    def current(self, pod: Pod) -> Sandbox | None:
        """Return the newest sandbox of a pod, whoever made it. Kubelet starts containers in it."""
        return max(self._world.sandboxes.of(pod.runtime_uid), key=lambda each: each.created_ns, default=None)

    def sync(self, pod: Pod) -> bool:
        """Sync the sandbox and the init containers of a pod. Return whether its other containers have to wait."""
        if pod.ended:
            if not self._running(pod):
                self.stop_all(pod)
            return False
        if pod.killing is None and self._changed(pod):
            if running := self._running(pod):
                self._kill(pod, running)
            else:
                self._renew(pod)
        waits = pod.killing is not None or self._changed(pod)
        return waits or not all(self._has_run(pod, shape) for shape in pod.shape.inits)

    def stop_all(self, pod: Pod) -> None:
        """Stop the sandboxes of a pod."""
        for sandbox in self._world.sandboxes.of(pod.runtime_uid):
            self._world.sandboxes.stop(sandbox)

    def remove_all(self, pod: Pod) -> None:
        """Stop and remove the sandboxes of a pod that has gone."""
        self.stop_all(pod)
        for sandbox in self._world.sandboxes.of(pod.runtime_uid):
            self._world.sandboxes.collect(sandbox)

    def collect(self, pod: Pod) -> None:
        """Remove sandboxes that are not ready and have no containers, except the newest."""
        newest = self.current(pod)
        for sandbox in self._world.sandboxes.of(pod.runtime_uid):
            if not sandbox.ready and sandbox is not newest and not self._world.sandboxes.containers_in(sandbox):
                self._world.sandboxes.collect(sandbox)

    def _changed(self, pod: Pod) -> bool:
        ready, newest = sum(each.ready for each in self._world.sandboxes.of(pod.runtime_uid)), self.current(pod)
        if newest is None or ready != 1 or not newest.ready:
            return True
        return not (newest.has_network or pod.shape.host)

    def _running(self, pod: Pod) -> list[Container]:
        names = [shape.name for shape in (*pod.shape.inits, *pod.shape.containers)]
        found = (one for name in names for one in self._world.containers.of(pod.runtime_uid, name))
        return [one for one in found if one.state == "running"]

    # Stopping.

    def _kill(self, pod: Pod, running: list[Container]) -> None:
        """Stop all containers. What comes then is in `killed`."""
        self._world.say("kubelet", f"restarts {pod.name}: {len(running)} containers run")
        kill = pod.killing = _Kill(self, pod, running)
        for one in running:
            self._hook(pod, one, partial(kill.hooked, one))

    def goes_on(self, pod: Pod, kill: "_Kill") -> bool:
        """Whether kubelet is still at it. What it has sent goes on, and its next sync begins anew."""
        if pod.killing is not kill:
            return False
        if self._kubelet.asleep or pod.removed or pod.deleting or pod.ended:
            pod.killing = None
            return False
        return True

    def stop(self, pod: Pod, container: Container, since: float, ended: Callable[[], None]) -> None:
        """Stop a container with what is left of its grace period."""
        grace = self._kubelet.grace(pod) - (self.now - since)
        self._world.containers.stop(container, max(LEAST_GRACE, grace), ended)

    def killed(self, pod: Pod) -> None:
        """All containers have ended."""
        pod.killing = None
        self._kubelet.renew_ip(pod)
        self._renew(pod)
        self._kubelet.look(pod)

    @property
    def now(self) -> float:
        """The time of the loop."""
        return self._world.loop.time()

    def _hook(self, pod: Pod, container: Container, then: Callable[[], None]) -> None:
        """Run a preStop hook within the grace period. Kubelet runs none without a grace period."""
        grace, newest = self._kubelet.grace(pod), self.current(pod)
        if not container.shape.hook or grace <= 0:
            then()
            return
        has_ip = newest is not None and newest.has_network
        self._world.judge.kubelet_hook(pod, container, runs=has_ip or container.shape.hook != "httpGet")
        self._world.say("kubelet", f"hook of {container.id} runs")
        done = [False]

        def end() -> None:
            if not done[0]:
                done[0] = True
                then()

        container.on_end.append(end)
        self._world.loop.call_later(min(container.shape.hook_seconds, grace), end)

    # Starting.

    def _renew(self, pod: Pod) -> None:
        """Stop all sandboxes, remove the init containers, and make the next sandbox."""
        newest = self.current(pod)
        attempt = 0 if newest is None else newest.attempt + 1
        if not self._world.sandboxes.is_free(pod.runtime_uid, attempt):
            self._world.say("kubelet", f"cannot make sandbox {attempt} of {pod.name}: its name is reserved")
            self._kubelet.look(pod, seconds=RESERVED_SECONDS)
            return
        self.stop_all(pod)
        for shape in pod.shape.inits:
            for container in self._world.containers.of(pod.runtime_uid, shape.name):
                self._world.containers.collect(container)
        made = self._world.sandboxes.create(pod, attempt)
        pod.restarting = None if pod.restarting is None else False
        if newest is None:
            return
        self._world.say("kubelet", f"makes sandbox {made.id} of {pod.name}, number {attempt}")
        pod.failures_left = {shape.name: shape.failures for shape in pod.shape.inits}
        self._world.loop.call_later(COLLECTED_SECONDS, self.collect, pod)

    def _has_run(self, pod: Pod, shape: ContainerShape) -> bool:
        """Whether an init container has ended with success in the present sandbox. Otherwise start what is due."""
        now, newest = self._world.loop.time(), self._kubelet.newest(pod, shape.name)
        if newest is not None and not newest.shown_ended:
            return False
        if newest is not None and newest.exit_code == 0:
            return True
        if newest is not None and newest.ended is not None:
            seconds = INIT_BACK_OFF * 2 ** min(4, shape.failures - pod.failures_left.get(shape.name, 0) - 1)
            if now < newest.ended + seconds:
                pod.waiting[shape.name] = ("CrashLoopBackOff", f"back-off {seconds:.0f}s restarting failed container")
                self._kubelet.look(pod, seconds=newest.ended + seconds - now + 0.001)
                return False
        made = self._kubelet.create(pod, shape)
        self._world.loop.call_later(shape.start_seconds, self._run, pod, made)
        return False

    def _run(self, pod: Pod, made: Container) -> None:
        """An init container starts, and ends after its time."""
        if self._kubelet.asleep:
            self._world.loop.call_later(1.0, self._run, pod, made)
            return
        home = self._world.sandboxes.present.get(made.sandbox)
        if pod.deleting or pod.ended or home is None or not home.ready:
            self._world.containers.abandon(made, 1)
            return
        left = pod.failures_left.get(made.name, 0)
        pod.failures_left[made.name] = max(0, left - 1)
        self._world.containers.start(made)
        self._world.loop.call_later(made.shape.runs, self._world.containers.end, made, int(left > 0))


class _Kill:
    """Kubelet stops all containers of a pod: sidecars after all others."""

    def __init__(self, restarts: PodRestarts, pod: Pod, running: list[Container]) -> None:
        self._restarts = restarts
        self._pod = pod
        self._since = restarts.now
        self._first = {one.id for one in running if not one.shape.sidecar}
        self._left = {one.id for one in running}
        self._waiting: list[Container] = []  # Sidecars whose hooks have ended

    def hooked(self, one: Container) -> None:
        """A hook has ended, or there is none."""
        if not self._restarts.goes_on(self._pod, self):
            return
        if one.shape.sidecar and self._first:
            self._waiting.append(one)
        else:
            self._restarts.stop(self._pod, one, self._since, partial(self._ended, one))

    def _ended(self, one: Container) -> None:
        self._left.discard(one.id)
        self._first.discard(one.id)
        if not self._restarts.goes_on(self._pod, self):
            return
        if not self._first:
            waiting, self._waiting = self._waiting, []
            for each in waiting:
                self.hooked(each)
        if not self._left:
            self._restarts.killed(self._pod)
