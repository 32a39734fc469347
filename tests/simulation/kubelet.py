"""The parts of kubelet that matter for a recreate: it notices ended containers, restarts them and updates the API.

The rules are kubelet's: PLEG notices changes periodically. A container's back-off begins with its second restart at
10 s, doubles, and is reset after ten minutes. A pod whose containers stay down has ended. A pod that is being deleted
is stopped with its grace period and then removed.
"""

from typing import TYPE_CHECKING, Any

from crrd.core.api.pod import CONDITION_RESTARTING
from crrd.core.api.types import READINESS_GATE
from crrd.kubelet.labels import ANNOTATION_CONFIG_HASH, ANNOTATION_MIRROR
from crrd.kubelet.restart_rules import RESTART_ALL, RESTART_ALL_SINCE, RULES_SINCE
from tests.simulation.containers import KILLED, Container, hook_of
from tests.simulation.pod import Pod, phase_of
from tests.simulation.restarts import PodRestarts
from tests.simulation.schedule import NAMESPACE, NODE, ContainerShape, PodShape

if TYPE_CHECKING:
    from tests.simulation.world import SimulatedWorld

BACK_OFF_FIRST, BACK_OFF_LAST, BACK_OFF_FORGOTTEN = 10.0, 300.0, 600.0
STATUS_SECONDS = 0.05
SHOWN_SECONDS = 0.1  # How long a kubelet that reports its back-off late reports it
DEFAULT_GRACE = 30
START_ERROR = 128
FLAP_SECONDS, FLAPS = 2.0, 30


class SimulatedKubelet:
    """All pods of the node."""

    def __init__(self, world: "SimulatedWorld") -> None:
        self._world = world
        self.restarts = PodRestarts(world, self)
        self.pods: dict[str, Pod] = {}  # By the runtime's UID
        self.down = False
        self.down_since = 0.0
        self.refuses = False  # While it is down: whether it refuses connections, or hangs
        self.mute = False  # It works, but its status updates do not reach the API
        self._made = 0

    def add(self, shape: PodShape) -> Pod:
        """A pod is bound to the node: create it in the API, and its containers."""
        self._made += 1
        uid = f"p{self._made}"
        pod = Pod(shape, uid, f"s{self._made}" if shape.static else uid, f"10.0.0.{self._made}")
        self.pods[pod.runtime_uid] = pod
        self._comes_up(pod)
        self.mirror(pod)
        self._later(self._sync, pod)
        return pod

    def take(self, obj: Any) -> None:
        """A pod of the shop is bound to the node: start the containers of its spec."""
        shop, meta = self._world.setup.shop, obj["metadata"]
        if shop is None or self._world.store.get("pods", f"{meta['namespace']}/{meta['name']}") is None:
            return
        if self.asleep:
            self._later(self.take, obj, seconds=1.0)
            return
        self._made += 1
        images = {each["name"]: each["image"] for each in obj["spec"]["containers"]}
        shape = PodShape(meta["name"], "Always", shop.containers, grace=3, gate=shop.gate)
        pod = Pod(shape, meta["uid"], meta["uid"], f"10.0.0.{self._made}", meta["namespace"], images)
        self.pods[pod.runtime_uid] = pod
        self._world.changes.mount(pod)
        self._later(self._sync, pod)

    def see(self, obj: Any) -> None:
        """The spec of a pod of the shop has changed, or its readiness gate."""
        pod = self.pods.get(obj["metadata"]["uid"])
        if pod is None:
            return
        if self.asleep:
            self._later(self.see, obj, seconds=1.0)
            return
        found = self._world.store.get("pods", pod.key)
        if found is not None and found["metadata"]["uid"] == pod.uid:
            pod.images = {each["name"]: each["image"] for each in found["spec"]["containers"]}
            self._sync(pod)

    def mirror(self, pod: Pod) -> None:
        """Create the pod's object. A static pod's mirror is created again when it is deleted."""
        meta: dict[str, Any] = {"namespace": NAMESPACE, "name": pod.name, "uid": pod.uid}
        if pod.shape.static:
            meta["annotations"] = {ANNOTATION_MIRROR: "x", ANNOTATION_CONFIG_HASH: pod.runtime_uid}
        spec: dict[str, Any] = {
            "nodeName": NODE,
            "restartPolicy": pod.shape.policy,
            "containers": [_spec(one) for one in pod.shape.containers if not one.sidecar],
            "initContainers": [
                _spec(one) for one in (*pod.shape.inits, *pod.shape.containers) if one.init or one.sidecar
            ],
        }
        if pod.shape.host:
            spec["hostNetwork"] = True
        if pod.shape.grace is not None:
            spec["terminationGracePeriodSeconds"] = pod.shape.grace
        if pod.shape.gate:
            spec["readinessGates"] = [{"conditionType": READINESS_GATE}]
        self._world.store.create("pods", {"metadata": meta, "spec": spec, "status": {"phase": "Pending"}})

    def of(self, name: str) -> Pod | None:
        """Return the current pod with this name."""
        return next((pod for pod in reversed(self.pods.values()) if pod.name == name and not pod.removed), None)

    # What happens to it.

    def notice(self, runtime_uid: str) -> None:
        """The runtime has changed: kubelet notices it at its next relist."""
        pod = self.pods.get(runtime_uid)
        if pod is None or pod.noticed:
            return
        pod.noticed = True
        now, relist = self._world.loop.time(), self._world.setup.relist
        self._world.loop.call_at((int(now / relist) + 1) * relist, self._look, pod)

    def _look(self, pod: Pod) -> None:
        pod.noticed = False
        self._sync(pod)

    def wake(self) -> None:
        """Kubelet is back: sync all pods."""
        for pod in list(self.pods.values()):
            self._sync(pod)

    def update(self, pod: Pod, name: str) -> None:
        """The container's image changed: kubelet stops it, and starts the next one without back-off."""
        newest = self.newest(pod, name)
        busy = self.asleep or pod.deleting or pod.ended or pod.killing is not None
        if busy or newest is None or newest.state != "running":
            return
        pod.replaced.add(newest.id)
        self._world.say("kubelet", f"updates {pod.name}/{name} in place")
        self._world.containers.stop(newest, self.grace(pod), lambda: None)

    def crash(self, pod: Pod, name: str, code: int) -> None:
        newest = self.newest(pod, name)
        if newest is not None:
            self._world.containers.end(newest, code)

    def lose_sandbox(self, pod: Pod, *, all_of_them: bool = False) -> None:
        """The pod's sandbox dies with all its containers. The next one has another IP. A reboot ends all sandboxes."""
        if pod.deleting or pod.ended:
            return
        self.renew_ip(pod)
        for shape in pod.shape.containers:
            self.crash(pod, shape.name, KILLED)
        own = [each for each in self._world.sandboxes.of(pod.runtime_uid) if each.ready]
        for sandbox in own if all_of_them else [each for each in own if not each.request_uid]:
            self._world.sandboxes.stop(sandbox)

    def renew_ip(self, pod: Pod) -> None:
        """The pod gets another IP with its next sandbox."""
        self._made += 1
        pod.ip = f"10.0.0.{self._made}"
        self._comes_up(pod)

    def _comes_up(self, pod: Pod) -> None:
        late = self._world.setup.late_ip
        pod.ip_at = self._world.loop.time() + late
        self._later(self._tell, pod, seconds=late)

    def delete(self, pod: Pod) -> None:
        """Its object has a deletionTimestamp now (or is deleted)."""
        pod.deleting = True
        self._later(self._sync, pod)

    def evict(self, pod: Pod) -> None:
        """Evict the pod: it ends as Failed, its containers are removed, and its object stays."""
        if self.asleep or pod.deleting or pod.ended:
            return
        pod.ended, pod.evicted = "Failed", True
        self._world.say("kubelet", f"evicts {pod.name}")
        self._stop_all(pod, 0.0)
        self._tell(pod)
        self._world.loop.call_later(2.0, self._collect, pod, 0)

    def collect(self) -> None:
        """Garbage collection: keep only the last dead instance of each container, and the images of containers."""
        for pod in list(self.pods.values()):
            self._collect(pod, 1)
            self.restarts.collect(pod)
        if not self.asleep:
            self._world.images.collect()

    # Its work.

    @property
    def asleep(self) -> bool:
        """Whether it cannot work, because it is down or the runtime is."""
        return self.down or self._world.cri.down

    def _later(self, step: Any, *arguments: Any, seconds: float = STATUS_SECONDS) -> None:
        self._world.loop.call_later(seconds, step, *arguments)

    def newest(self, pod: Pod, name: str) -> Container | None:
        found = self._world.containers.of(pod.runtime_uid, name)
        return found[-1] if found else None

    @staticmethod
    def grace(pod: Pod) -> float:
        return float(DEFAULT_GRACE if pod.shape.grace is None else pod.shape.grace)

    def _stop_all(self, pod: Pod, seconds: float) -> None:
        for shape in (*pod.shape.inits, *pod.shape.containers):
            newest = self.newest(pod, shape.name)
            if newest is not None and newest.state == "running":
                self._world.containers.stop(newest, seconds, lambda: None)

    def _collect(self, pod: Pod, keep: int) -> None:
        for shape in pod.shape.containers:
            dead = [one for one in self._world.containers.of(pod.runtime_uid, shape.name) if one.state == "exited"]
            for container in dead[: len(dead) - keep]:
                self._world.containers.collect(container)

    def _sync(self, pod: Pod) -> None:
        """Sync a pod once."""
        if self.asleep:
            return
        if pod.removed:
            self.restarts.remove_all(pod)
            return
        if pod.deleting:
            self._end_deleted(pod)
            return
        if self._world.cri.network_down and not (pod.shape.host or pod.ended):
            return
        if self.restarts.sync(pod):
            self._tell(pod)
            return
        if not pod.ended and self._restarts_all(pod):
            self._tell(pod)
            return
        down = [] if pod.ended else [self._sync_container(pod, shape) for shape in pod.shape.containers]
        regular = [stays for shape, stays in zip(pod.shape.containers, down, strict=False) if not shape.sidecar]
        if not pod.ended and regular and all(regular):
            codes = [self._code(pod, shape) for shape in pod.shape.containers if not shape.sidecar]
            pod.ended = "Failed" if any(codes) else "Succeeded"
            self._world.say("kubelet", f"{pod.name} has {pod.ended}")
            self._stop_all(pod, self.grace(pod))
        self._tell(pod)

    def _action(self, pod: Pod, shape: ContainerShape) -> str:
        """Return the action of a container's restartPolicyRules, if it has ended."""
        newest, kubelet = self.newest(pod, shape.name), self._world.setup.kubelet
        if newest is None or not newest.shown_ended or newest.exit_code == 0 or newest.id in pod.replaced:
            return ""
        since = RESTART_ALL_SINCE if shape.action == RESTART_ALL else RULES_SINCE
        return shape.action if kubelet >= since else ""

    def _restarts_all(self, pod: Pod) -> bool:
        """Apply a rule that restarts the whole pod: all containers are killed, and removed when all have ended."""
        if not pod.restarting:
            if not any(self._action(pod, shape) == RESTART_ALL for shape in pod.shape.containers):
                return False
            pod.restarting, pod.restart_began = True, self._world.loop.time()
            self._world.say("kubelet", f"restarts all containers of {pod.name}")
            self._stop_all(pod, 0.0)
        found = [self.newest(pod, shape.name) for shape in pod.shape.containers]
        if any(one is not None and not one.shown_ended for one in found):
            return True
        pod.restarting = False
        self._collect(pod, 0)
        return False

    def _code(self, pod: Pod, shape: ContainerShape) -> int:
        newest = self.newest(pod, shape.name)
        return newest.exit_code if newest is not None else 0

    def _sync_container(self, pod: Pod, shape: ContainerShape) -> bool:
        """Sync one container. Return whether it stays down for good."""
        now = self._world.loop.time()
        newest = self.newest(pod, shape.name)
        if newest is not None and newest.is_unknown and newest.id not in pod.replaced:
            pod.replaced.add(newest.id)  # back-off applies only to containers that have exited
            self._world.containers.stop(newest, self.grace(pod), lambda: None)
        image = pod.images.get(shape.name, "")
        if newest is not None and newest.state == "running" and newest.image != image:
            self._replace(pod, newest, image)
        if newest is not None and not newest.shown_ended:
            return False
        stays = shape.policy == "Never" or (shape.policy == "OnFailure" and newest is not None and not newest.exit_code)
        if newest is not None and stays and not self._action(pod, shape):
            return newest.id not in pod.replaced or self._start(pod, shape)
        until, reason = pod.held.get(shape.name, (0.0, ""))
        if until > now:
            pod.waiting[shape.name] = (reason, "so it is")
            self._at(pod, shape.name, until)
            return False
        another = newest is not None and newest.image != image  # the back-off belongs to one image
        if newest is not None and newest.id not in pod.replaced and newest.ended is not None and not another:
            seconds, made_longer = pod.back_off.get(shape.name, (0.0, 0.0))
            if newest.ended - made_longer > BACK_OFF_FORGOTTEN:
                seconds = 0.0
            until = newest.ended + seconds
            if now < until:
                early = not self._world.setup.shows_back_off_late
                if early or now >= until - SHOWN_SECONDS:
                    said = f"back-off {seconds:.0f}s restarting failed container={shape.name} pod={pod.name}"
                    pod.waiting[shape.name] = ("CrashLoopBackOff", said)
                self._at(pod, shape.name, until if early or now >= until - SHOWN_SECONDS else until - SHOWN_SECONDS)
                return False
            pod.back_off[shape.name] = (min(max(BACK_OFF_FIRST, seconds * 2), BACK_OFF_LAST), now)
        if image and (missing := self._world.images.find(pod.uid, image, lambda: self._sync(pod))):
            pod.waiting[shape.name] = missing
            return False
        self._start(pod, shape)
        return False

    def _replace(self, pod: Pod, container: Container, image: str) -> None:
        """The image of a container in the spec has changed. Kubelet stops it first, and pulls the image then."""
        if container.id in pod.replaced:
            return
        pod.replaced.add(container.id)
        self._world.say("kubelet", f"replaces {pod.name}/{container.name} by one with {image}")
        self._world.shop.replaces(pod, container, image)
        self._world.containers.stop(container, self.grace(pod), lambda: None)

    def _start(self, pod: Pod, shape: ContainerShape) -> bool:
        made = self.create(pod, shape)
        self._later(self._started, pod, made, seconds=shape.start_seconds)
        return False

    def create(self, pod: Pod, shape: ContainerShape) -> Container:
        """Create the next instance of a container, in the pod's newest sandbox."""
        attempt = pod.attempts.get(shape.name, -1) + 1
        pod.attempts[shape.name] = attempt
        pod.waiting.pop(shape.name, None)
        made = self._world.containers.create(pod, shape, attempt)
        self._world.changes.created(pod, made)
        return made

    def look(self, pod: Pod, *, seconds: float = STATUS_SECONDS) -> None:
        """Sync a pod later."""
        self._later(self._sync, pod, seconds=seconds)

    def _started(self, pod: Pod, made: Container) -> None:
        if self.asleep:
            self._later(self._started, pod, made, seconds=1.0)
            return
        home = self._world.sandboxes.present.get(made.sandbox)
        dead = home is None or not home.ready or pod.killing is not None
        if pod.deleting or pod.ended or pod.restarting or dead:
            self._world.containers.abandon(made)
            self._sync(pod)
            return
        if pod.unstartable.get(made.name, 0.0) > self._world.loop.time():
            self._world.containers.abandon(made, START_ERROR)
            return
        self._world.containers.start(made)
        self._world.changes.started(pod, made)
        self._later(self._sync, pod, seconds=made.shape.ready_seconds + STATUS_SECONDS)
        if made.shape.successors == "flaps" and made.attempt:
            for turn in range(1, FLAPS + 1):
                self._later(self._tell, pod, seconds=turn * FLAP_SECONDS)

    def _at(self, pod: Pod, name: str, when: float) -> None:
        """Sync again at that time, once."""
        now = self._world.loop.time()
        if not now < pod.due.get(name, 0.0) <= when:
            pod.due[name] = when
            self._world.loop.call_at(when + 0.001, self._sync, pod)

    def _end_deleted(self, pod: Pod) -> None:
        running = [
            one
            for shape in (*pod.shape.inits, *pod.shape.containers)
            if (one := self.newest(pod, shape.name)) is not None and one.state != "exited"
        ]
        if running:
            if not pod.ended:
                pod.ended = "deleting"
                self._world.say("kubelet", f"stops the containers of {pod.name}, which is being deleted")
                self._stop_all(pod, self.grace(pod))
            self._tell(pod)
            return
        for shape in (*pod.shape.inits, *pod.shape.containers):
            for one in self._world.containers.of(pod.runtime_uid, shape.name):
                self._world.containers.collect(one)
        pod.removed = True
        self.restarts.remove_all(pod)
        obj = self._world.store.get("pods", pod.key)
        if obj is not None and obj["metadata"]["uid"] == pod.uid:
            self._world.store.remove("pods", pod.key)
        self._world.say("kubelet", f"{pod.name} ({pod.uid}) has gone")
        self._world.pod_gone(pod)

    # Its status.

    def _tell(self, pod: Pod) -> None:
        """Update the API, a moment later."""
        self._later(self._write, pod)

    def _write(self, pod: Pod) -> None:
        if self.down or self.mute or pod.removed:
            return
        obj = self._world.store.get("pods", pod.key)
        if obj is None or obj["metadata"]["uid"] != pod.uid:
            return
        status = {**obj["status"], **self._status(pod)}
        if pod.restarting is not None:
            others = [each for each in obj["status"].get("conditions", ()) if each["type"] != CONDITION_RESTARTING]
            status["conditions"] = [*others, {"type": CONDITION_RESTARTING, "status": str(pod.restarting)}]
        if pod.images:
            status["conditions"] = self._conditions(pod, obj, status)
        if status == obj["status"]:
            return
        self._world.say("kubelet", f"tells of {pod.name}: {phase_of(status)}")
        self._world.store.update("pods", {**obj, "status": status})
        for part in (*status["containerStatuses"], *status["initContainerStatuses"]):
            container = self._world.containers.all.get(part.get("containerID", "").partition("://")[2])
            if container is not None and part["ready"] and container.ready_seen is None:
                container.ready_seen = self._world.loop.time()

    def _conditions(self, pod: Pod, obj: Any, status: Any) -> list[Any]:
        """Return the conditions of a pod of the shop."""
        others = [each for each in obj["status"].get("conditions", ()) if each["type"] != "Ready"]
        gates = [each["status"] for each in others if each["type"] == READINESS_GATE]
        ready = all(each["ready"] for each in status["containerStatuses"]) and gates in ([], ["True"])
        condition = {"type": "Ready", "status": str(ready and (bool(gates) or not pod.shape.gate))}
        before: Any = next((each for each in obj["status"].get("conditions", ()) if each["type"] == "Ready"), {})
        if before.get("status") == condition["status"]:
            return [*others, before]
        return [*others, {**condition, "lastTransitionTime": self._world.loop.true_utc()}]

    def _status(self, pod: Pod) -> dict[str, Any]:
        phase = pod.ended if pod.ended in ("Failed", "Succeeded") else "Running"
        shapes = (*pod.shape.inits, *pod.shape.containers)
        parts = [(shape, self._container_status(pod, shape)) for shape in shapes]
        return {
            "phase": phase,
            "podIP": pod.ip if self._world.loop.time() >= pod.ip_at else "",
            "containerStatuses": [part for shape, part in parts if not (shape.sidecar or shape.init)],
            "initContainerStatuses": [part for shape, part in parts if shape.sidecar or shape.init],
        }

    def _container_status(self, pod: Pod, shape: ContainerShape) -> dict[str, Any]:
        newest = self.newest(pod, shape.name)
        part: dict[str, Any] = {
            "name": shape.name,
            "ready": False,
            "restartCount": max(0, pod.attempts.get(shape.name, 0)),
        }
        if newest is None or newest.state == "created":
            previous = self._world.containers.of(pod.runtime_uid, shape.name)[:-1]
            if previous:
                part["containerID"] = f"{pod.shape.runtime}://{previous[-1].id}"
            reason, message = pod.waiting.get(shape.name, ("ContainerCreating", ""))
            part["state"] = {"waiting": {"reason": reason, "message": message}}
            return part
        before = self._world.containers.of(pod.runtime_uid, shape.name)[:-1]
        if before:
            part["lastState"] = {"terminated": {"exitCode": before[-1].exit_code}}
        part["containerID"] = f"{pod.shape.runtime}://{newest.id}"
        # While it replaces a container itself, it reports the previous state.
        replaced = newest.state == "exited" and newest.id in pod.replaced and not pod.ended
        if newest.started is not None and (replaced or not newest.shown_ended):
            at = self._world.loop.utc(newest.started) if pod.images else "2026-01-01T00:00:00Z"
            part["state"] = {"running": {"startedAt": at}}
            part["started"] = True
            part["ready"] = self._is_ready(newest, self._world.loop.time() - newest.started)
        elif shape.name in pod.waiting and pod.ended == "":
            reason, message = pod.waiting[shape.name]
            part["state"] = {"waiting": {"reason": reason, "message": message}}
        else:
            part["state"] = {"terminated": {"exitCode": newest.exit_code, "containerID": part["containerID"]}}
        return part

    def _is_ready(self, container: Container, age: float) -> bool:
        """Whether its probe succeeds, so many seconds after its start."""
        if not self._world.changes.may_be_ready(container):
            return False
        how, turn = container.shape.successors if container.attempt else "", int(age / FLAP_SECONDS)
        if how == "never" or (how == "flaps" and turn % 2 and turn < FLAPS):
            return False
        return age >= container.shape.ready_seconds


def _spec(shape: ContainerShape) -> dict[str, Any]:
    policy = "Always" if shape.sidecar else shape.own
    parts: dict[str, Any] = {"name": shape.name, "restartPolicy": policy, "restartPolicyRules": shape.rules}
    if shape.hook:
        parts["lifecycle"] = {"preStop": hook_of(shape)}
    return {key: value for key, value in parts.items() if value}
