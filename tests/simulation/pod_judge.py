"""Checks what the daemon does for a whole pod: when it makes a second sandbox, and what has come of it."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from crrd.core.api.types import WHOLE_POD
from crrd.cri.convert import LABEL_REQUEST_UID
from crrd.kubelet.labels import LABEL_POD_UID
from crrd.kubelet.restart_rules import RESTART_ALL, RESTART_ALL_SINCE
from tests.simulation.conduct import MOVED, NOTICED
from tests.simulation.containers import Container
from tests.simulation.facts import Act, Known
from tests.simulation.pace import Pace
from tests.simulation.sandboxes import Sandbox, is_second
from tests.simulation.schedule import RUNTIME
from tests.simulation.verdicts import STOP_PATIENCE

if TYPE_CHECKING:
    from tests.simulation.channel import Call
    from tests.simulation.daemon import Life
    from tests.simulation.pod import Pod
    from tests.simulation.world import SimulatedWorld


class PodJudge(Pace):
    """Checks requests for a whole pod."""

    def __init__(self, world: "SimulatedWorld") -> None:
        super().__init__(world)
        self._runs: dict[str, list[Act]] = {}  # UID of a request -> its calls of RunPodSandbox
        self._made: Counter[str] = Counter()  # UID of a request -> number of second sandboxes
        self._kubelet_hooks: set[str] = set()  # Instances whose hook kubelet has run

    def _hooked(self, container: Container) -> frozenset[str]:
        raise NotImplementedError

    # Calls.

    def restarts_pod(self, call: "Call") -> None:
        """The daemon calls RunPodSandbox."""
        config, life = call.message.config, call.life
        meta, uid = config.metadata, config.labels.get(LABEL_REQUEST_UID, "")
        self._world.say("daemon", f"RunPodSandbox of {meta.name}, number {meta.attempt}, for {uid}")
        known, pod = self.known.get(uid), self._world.kubelet.pods.get(meta.uid)
        if not is_second(config) or known is None or pod is None:
            self.broken(f"RunPodSandbox of {meta.name} for {uid!r}, which is no second sandbox of a pod: {config}")
            return
        for wrong, why in self._faults_of(known, pod, life, meta.attempt):
            if wrong:
                self.broken(f"RunPodSandbox of {meta.name} for {known.name}, {why}")
        if uid not in self._runs:
            self._is_unready(known)
        self._runs.setdefault(uid, []).append(Act(self._now, life, frozenset({uid})))

    def _faults_of(self, known: Known, pod: "Pod", life: "Life", attempt: int) -> Iterator[tuple[bool, str]]:
        """Yield what may be wrong with a second sandbox, and whether it is."""
        yield not known.whole, "which is not for the whole pod"
        yield known.uid not in life.live_requests(), "which is not live"
        uids = (pod.uid, *self._world.mirrors.get(pod.runtime_uid, ()))
        yield known.pod_name != pod.name or (known.labelled and known.pod_uid not in uids), "which is for another pod"
        pinned = [each for each in map(self._world.sandboxes.all.get, known.pins.get(WHOLE_POD, ())) if each]
        yield not known.unpinned and [each.attempt + 1 for each in pinned[-1:]] != [attempt], "whose pin is another"
        yield any(each.policy != "Always" for each in pod.shape.containers), "and the pod would end"
        yield any(each.hook == "httpGet" for each in pod.shape.containers), "and kubelet skips an httpGet hook"
        yield pod.shape.host, "and its pod is on the host's network"
        yield self._restarts_twice(pod), "and a rule restarts the pod in addition"
        yield life.knows_deleting(pod.key, pod.uid), "and the pod is being deleted"
        yield life.knows_restarting(pod.uid), "and kubelet is about to restart all containers"
        yield any(each.outcome is None for each in self._acts_in(pod, life)), "and a hook or stop is under way"
        others = [act for acts in self._runs.values() for act in acts if act.life is life and act.outcome is None]
        same = [act for act in others if any(self.known[uid].pod_uid == known.pod_uid for uid in act.owners)]
        yield bool(same), "while another one is being made"
        looked = max(life.sandbox_looks.get((pod.shape.runtime, uid), -1.0) for uid in (pod.runtime_uid, ""))
        yield looked < life.came.get(known.uid, 0.0), "and the sandboxes were not listed since it came"
        kubelet = self._world.kubelet
        silent = looked - kubelet.down_since if kubelet.down and life.knows_kubelet else 0.0
        away = silent > NOTICED and not (kubelet.refuses and silent > MOVED)
        yield away and known.uid not in self._runs, f"and kubelet does not answer since {silent:.0f} s"
        yield (
            self._world.cri.is_told(life) and known.uid not in self._runs,
            "and the runtime says that its network is not ready",
        )
        path = f"/{known.name}"
        ends = (
            each.endswith(path) and not reply.future.done() and b'"phase":"Completed"' in body.replace(b" ", b"")
            for each, (reply, body) in life.writes.items()
        )
        yield any(ends), "while the write that completes it is under way"

    def _restarts_twice(self, pod: "Pod", *, careful: bool = False) -> bool:
        """Whether a rule of a container may restart all of them."""
        since = careful or self._world.setup.kubelet >= RESTART_ALL_SINCE
        return since and any(each.action == RESTART_ALL for each in pod.shape.containers)

    def _acts_in(self, pod: "Pod", life: "Life") -> list[Act]:
        """Return the hooks and stops of a life in a pod."""
        found = []
        for acts in (self._hooks, self._stops):
            for container_id, made in acts.items():
                if self._world.containers.all[container_id].pod_uid == pod.runtime_uid:
                    found += [act for act in made if act.life is life]
        return found

    def pod_restart_answered(self, call: "Call", outcome: str | None) -> None:
        """RunPodSandbox has returned: gRPC's code, "" for success, None if it was given up."""
        for act in reversed(self._runs.get(call.message.config.labels.get(LABEL_REQUEST_UID, ""), [])):
            if act.life is call.life and act.outcome is None:
                act.ended, act.outcome = self._now, "CANCELLED" if outcome is None else outcome
                return

    def sandboxes_listed(self, call: "Call") -> None:
        """The response of ListPodSandbox has arrived."""
        key = call.runtime, call.message.filter.label_selector.get(LABEL_POD_UID, "")
        call.life.sandbox_looks[key] = max(call.began, call.life.sandbox_looks.get(key, call.began))

    # The truth in the runtime.

    def sandbox_made(self, made: Sandbox) -> None:
        """The daemon's sandbox is there: kubelet restarts the pod."""
        known = self.known[made.request_uid]
        self._made[known.uid] += 1
        lost = known.restored or known.unpinned
        if self._made[known.uid] > 1 and not (lost or known.away):  # then the sweep has removed the first one
            self.broken(f"{known.name} restarts its pod a second time")
        others = self._world.sandboxes.of(made.pod_uid)
        if any(each.attempt > made.attempt for each in others):
            self.broken(f"{known.name} restarts its pod, which kubelet has restarted before")
        meant = [] if known.forced else [known.context(name) for name in known.names]
        containers = (self._world.containers.present.get(each) for each in meant if each is not None)
        homes = [self._world.sandboxes.present.get(each.sandbox) for each in containers if each is not None]
        first = min((each.attempt for each in homes if each is not None), default=made.attempt - 1)
        if first != made.attempt - 1 and not lost:
            self.broken(f"{known.name} restarts sandbox {made.attempt - 1} of its pod, and it means {first}")

    def sandbox_removed(self, sandbox: Sandbox) -> None:
        """The daemon removes a sandbox."""
        if not sandbox.request_uid:
            self.broken(f"sandbox {sandbox.id} is removed, which is kubelet's")
        for container in self._world.sandboxes.containers_in(sandbox):
            if container.state == "running":
                self.broken(f"sandbox {sandbox.id} is removed, and {container.id} runs in it")
        if self._active(sandbox.request_uid) is not None:
            self.broken(f"sandbox {sandbox.id} is removed, and its request is live")

    def kubelet_hook(self, pod: "Pod", container: Container, *, runs: bool) -> None:
        """Kubelet runs a hook, because it restarts the whole pod."""
        seconds = [each.request_uid for each in self._world.sandboxes.of(pod.runtime_uid) if each.request_uid]
        if not runs and seconds:
            self.broken(f"kubelet skips the hook of {container.id}, because the newest sandbox has no IP")
        for act in self._hooks.get(container.id, ()):
            late = not act.owners & self._hooked(container)  # its stop has been given up
            forgotten = late or act.life.dead or any(self.known[uid].restored for uid in act.owners)
            if seconds and not forgotten and act.outcome in (None, ""):
                self.broken(f"kubelet runs the hook of {container.id}, which the daemon has run")
        self._kubelet_hooks.add(container.id)

    def _hook_of_kubelet(self, container: Container) -> None:
        """The daemon runs a hook: kubelet must not have run it. A new daemon or kubelet does not know."""
        made = self._world.sandboxes.history(container.pod_uid)
        known = all(not act.life.dead for each in made for act in self._runs.get(each.request_uid, ()))
        killing = self._world.kubelet.pods[container.pod_uid].killing is not None
        went_down = any(each.request_uid and each.made <= self._world.kubelet.down_since for each in made)
        if container.id in self._kubelet_hooks and killing and known and not went_down:
            self.broken(f"the hook of {container.id} is run, and kubelet has run it, because it restarts the pod")

    # The result.

    def _recreated(self, known: Known, name: str) -> bool:
        """See Verdicts. For a whole pod, an instance in a later sandbox of kubelet was ready."""
        if not known.whole:
            return super()._recreated(known, name)
        pods = [pod for pod in self._world.kubelet.pods.values() if pod.name == known.pod_name]
        firsts = [each for each in map(self._world.sandboxes.all.get, known.pins.get(WHOLE_POD, ())[-1:]) if each]
        for pod in pods:
            for one in self._world.containers.history(pod.runtime_uid, name):
                home = self._world.sandboxes.all.get(one.sandbox)
                later = home is not None and any(
                    home.attempt > each.attempt or home.pod_uid != each.pod_uid for each in firsts
                )
                if later and self._was_ready(known, one):
                    return True
        return False

    def _excuses(self, known: Known, name: str) -> Iterator[bool]:
        """See Verdicts. What excuses one container excuses the request for a whole pod."""
        if not known.whole:
            yield from super()._excuses(known, name)
            return
        for each in known.names:
            yield from super()._excuses(known, each)
        pod = self._pod(known)
        if pod is None:
            return
        yield any(each.policy != "Always" or each.hook == "httpGet" for each in pod.shape.containers)
        yield pod.shape.host or self._restarts_twice(pod, careful=not self._world.knows_kubelet)
        yield pod.shape.runtime != RUNTIME
        runs = self._runs.get(known.uid, [])
        yield any(act.outcome for act in runs) and self._now - runs[0].at >= STOP_PATIENCE

    def look_at_pods(self) -> None:
        """The end: each pod has one sandbox, in which its containers run."""
        for pod in self._world.kubelet.pods.values():
            own = self._world.sandboxes.of(pod.runtime_uid)
            left = [each for each in own if each.ready and each.request_uid]
            if left:
                self.broken(f"sandbox {left[0].id} of {pod.name} is left")
            if not (pod.removed or pod.ended or pod.deleting) and sum(each.ready for each in own) != 1:
                self.broken(f"{pod.name} has {sum(each.ready for each in own)} sandboxes in the end")


def pins_of_pod(sandbox: Sandbox) -> Mapping[str, Mapping[str, object]]:
    """Return pins that another client writes for a whole pod."""
    return {WHOLE_POD: {"containerID": f"{sandbox.runtime}://{sandbox.id}", "restartCount": sandbox.attempt}}
