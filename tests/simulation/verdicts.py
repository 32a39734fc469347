"""Checks the daemon's writes against the truth: legal transitions, and correct final states."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from crrd.core.api.reasons import Reason, reason_of
from crrd.core.api.types import WHOLE_POD
from crrd.kubelet.restart_rules import RESTART_ALL, RESTART_ALL_SINCE
from tests.simulation.store import Object, states

if TYPE_CHECKING:
    from tests.simulation.containers import Container
    from tests.simulation.daemon import Life
    from tests.simulation.pod import Pod
    from tests.simulation.world import SimulatedWorld

from tests.simulation.facts import Act, Known

STOP_PATIENCE = 110.0  # Least time for which a failing stop is retried: 2 minutes, minus the last back-off
PERSISTED = 6.0  # Seconds within which begun work is recorded, if the API server accepts writes
RESTART_SHOWN_SECONDS = 1.0  # Seconds after which the daemon knows that kubelet restarts all containers of a pod
_ORDER = {"": 0, "Pending": 1, "Recreating": 2, "Completed": 3}
_FINAL = ("Succeeded", "Failed")
_FACTS = {
    Reason.POD_GONE: "gone",
    Reason.POD_REPLACED: "gone",
    Reason.POD_DELETING: "deleting",
    Reason.POD_ENDED: "ended",
}
"""Reason of a failure -> what must have happened to the pod."""


class Verdicts:
    """Checks every write of a status."""

    def __init__(self, world: "SimulatedWorld") -> None:
        self._world = world
        self.known: dict[str, Known] = {}
        self._stops: dict[str, list[Act]] = {}
        self._hooks: dict[str, list[Act]] = {}
        self.pods: dict[str, dict[str, float]] = {}
        """UID of a pod in the API -> what happened to it (deleting, gone, ended) and when."""

    @property
    def _now(self) -> float:
        return self._world.loop.time()

    def broken(self, what: str) -> None:
        self._world.broken(what)

    def _could_tell(self, act: Act, life: "Life", since: float) -> bool:
        """Whether an earlier life had the time, and the API server, to record what it did then.

        It cannot write to a request that is out of its selection.
        """
        until = since + PERSISTED
        in_time = (
            act.life is not life
            and min(act.life.died, self._now) > until
            and self._world.could_write(since - 30.0, until)
        )
        owners = [self.known[uid] for uid in act.owners]
        return in_time and not any(known.restored or known.was_away(since, until) for known in owners)

    # Writes.

    def written(self, life: "Life", old: Object, new: Object, sub: str) -> None:
        """A write of the daemon is about to be carried out."""
        if life.dead:
            return
        known = self.known[old["metadata"]["uid"]]
        was, status = old.get("status", {}), new.get("status", {})
        if sub != "status":
            return
        if was.get("phase") == "Completed" and status != was:
            self.broken(f"{known.name} is Completed, and the daemon writes it again")
        if _ORDER[status.get("phase", "")] < _ORDER[was.get("phase", "")]:
            self.broken(f"{known.name} goes from {was.get('phase')} back to {status.get('phase')}")
        before = {state["name"]: state for state in states(old)}
        after = {state["name"]: state for state in states(new)}
        if before.keys() - after.keys():
            self.broken(f"{known.name}: the states of {sorted(before.keys() - after.keys())} are lost")
        if status.get("phase") == "Completed":
            known.ended = self._now
            if set(known.names) - after.keys() or any(state["phase"] not in _FINAL for state in after.values()):
                self.broken(f"{known.name} is Completed, and not all of its containers are final: {after}")
            if not status.get("completionTime"):
                self.broken(f"{known.name} is Completed without a completionTime")
        self._moves(life, known, before, after)

    def _moves(self, life: "Life", known: Known, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
        """Check the transition of each container."""
        failed = [name for name, state in after.items() if state["phase"] == "Failed"]
        for name, state in after.items():
            phase, past = state["phase"], before.get(name, {}).get("phase", "Pending")
            if (past in _FINAL and phase != past) or (past == "Recreating" and phase == "Pending"):
                self.broken(f"{known.name}/{name} goes from {past} to {phase}")
            if phase == past:
                continue
            if phase == "Succeeded":
                self._succeeded(known, name)
            elif phase == "Failed":
                reason = reason_in(state)
                self._failed(known, name, state.get("message", ""), reason, failed)
                # The stop follows if the daemon took the write for lost, and the hook began after that.
                if reason is Reason.EARLIER_FAILURE and not (self.pods.get(known.pod_uid) or self._world.api.late):
                    self._hook_has_its_stop(life, known, name)

    def _hook_has_its_stop(self, life: "Life", known: Known, name: str) -> None:
        """A container whose hook was run for a request must be stopped even if something else has failed."""
        pod = self._pod(known)
        for one in self._world.containers.history(pod.runtime_uid, name) if pod is not None else ():
            hooks = [act for act in self._hooks.get(one.id, ()) if known.uid in act.owners]
            # a removed annotation removes what an earlier life knew
            told = (act for act in hooks if not known.unpinned and self._could_tell(act, life, act.at))
            if one.state == "running" and (any(act.life is life for act in hooks) or any(told)):
                self.broken(f"{known.name}/{name} is Failed after the hook of {one.id}, which was not stopped")

    def _pod(self, known: Known) -> "Pod | None":
        pods = self._world.kubelet.pods.values()
        of_uid = [pod for pod in pods if known.pod_uid in (pod.uid, *self._world.mirrors.get(pod.runtime_uid, ()))]
        return of_uid[0] if of_uid else None

    def _succeeded(self, known: Known, name: str) -> None:
        targets = known.pins.get(WHOLE_POD, []) if known.whole else known.means(name)
        if not targets:
            self.broken(f"{known.name}/{name} is Succeeded, and nobody has ever said which instance was to go")
        container = self._world.containers.all.get(targets[-1]) if targets else None
        if container is not None and container.state == "running":
            self.broken(f"{known.name}/{name} is Succeeded, and {container.id} runs on")
        pod = self._pod(known)
        own = any(known.uid in act.owners for acts in self._stops.values() for act in acts)
        # What another request's stop has begun, the daemon sees in the pod's status.
        if pod is not None and pod.restarting and (own or self._now - pod.restart_began > RESTART_SHOWN_SECONDS):
            self.broken(f"{known.name}/{name} is Succeeded while kubelet restarts all containers of its pod")
        if not self._recreated(known, name):
            least = known.spec["strategy"].get("minStartedSeconds", 0)
            self.broken(f"{known.name}/{name} is Succeeded, and no other instance was ready (for {least} s)")

    def _recreated(self, known: Known, name: str) -> bool:
        """Whether an instance after the target was ready, for as long as the request requires."""
        pods = [pod for pod in self._world.kubelet.pods.values() if pod.name == known.pod_name]
        if known.labelled:
            pods = [pod for pod in [self._pod(known)] if pod is not None]
        target = known.means(name)[-1:]
        for pod in pods:
            history = self._world.containers.history(pod.runtime_uid, name)
            old = [one for one in history if one.id in target]
            for one in history:
                later = one.id not in target and (not old or one.created_ns > old[0].created_ns)
                if later and self._was_ready(known, one):
                    return True
        return False

    def _was_ready(self, known: Known, one: "Container") -> bool:
        """Whether an instance was ready for as long as the request requires."""
        least = known.spec["strategy"].get("minStartedSeconds", 0)
        until = self._now if one.ended is None else one.ended + self._world.setup.list_lag
        ready = one.ready_seen is not None and one.started is not None
        return ready and until - (one.started or 0.0) >= least - 0.05

    def _failed(self, known: Known, name: str, message: str, reason: Reason, failed: list[str]) -> None:
        """Check that the failure and its reason are true."""
        seen, fact = self.pods.get(known.pod_uid, {}), _FACTS.get(reason, "")
        true = fact in seen or (fact == "deleting" and "gone" in seen)
        if fact and not true and (known.labelled or not self._pods_of_name(known, fact)):
            self.broken(f'{known.name}/{name} is Failed: "{message}", which is not true')
        if reason is Reason.EARLIER_FAILURE:
            if known.ignores_failures or failed == [name]:
                self.broken(f'{known.name}/{name} is Failed: "{message}", which ends nothing')
            return
        if reason is Reason.REST_LEFT_DOWN:
            if not all(self._is_left_down(known, other) for other in message.rpartition(": ")[2].split(", ")):
                self.broken(f'{known.name}/{name} is Failed: "{message}", which is not true')
            return
        if not any(self._excuses(known, name)):
            self.broken(f'{known.name}/{name} is Failed without a reason: "{message}"')

    def _is_left_down(self, known: Known, name: str) -> bool:
        """Whether kubelet does not restart a failed container."""
        pod = self._pod(known)
        if pod is None or not known.spec["strategy"].get("allowPodRestart"):
            return False
        shape = next(one for one in pod.shape.containers if one.name == name)
        newest = self._world.containers.history(pod.runtime_uid, name)[-1]
        return shape.policy == "Never" and newest.state == "exited" and newest.exit_code != 0

    def _pods_of_name(self, known: Known, fact: str) -> bool:
        return any(
            fact in self.pods.get(pod.uid, {})
            for pod in self._world.kubelet.pods.values()
            if pod.name == known.pod_name
        )

    def _excuses(self, known: Known, name: str) -> Iterator[bool]:
        """Yield for each possible cause of failure whether it applies to a container of a request."""
        yield bool(self.pods.get(known.pod_uid))
        yield not known.labelled and any(self._pods_of_name(known, fact) for fact in ("gone", "deleting", "ended"))
        pod = self._pod(known)
        if pod is None:
            return
        shape = next(one for one in pod.shape.containers if one.name == name)
        yield shape.policy == "Never"
        careful = not self._world.knows_kubelet
        yield careful and bool(shape.own) and shape.own != pod.shape.policy
        ruled = shape.action == RESTART_ALL and (careful or self._world.setup.kubelet >= RESTART_ALL_SINCE)
        yield ruled and not known.spec["strategy"].get("allowPodRestart")
        history = self._world.containers.history(pod.runtime_uid, name)
        ended = (one for one in history if one.state == "exited" and one.id not in pod.replaced)
        yield shape.policy == "OnFailure" and any(one.exit_code == 0 for one in ended)
        # removed pins are the only record that survives the daemon's death or the request's leaving the selection
        yield known.unpinned and (bool(known.away) or known.restored or self._world.deaths > 0)
        context = known.context(name)
        yield context is not None and context not in [one.id for one in history]
        stops = [act for one in history for act in self._stops.get(one.id, ()) if known.uid in act.owners]
        yield bool(stops) and any(act.outcome for act in stops) and self._now - stops[0].at >= STOP_PATIENCE


def reason_in(state: Mapping[str, Any]) -> Reason:
    """Return the reason of a container's final state, even if the CRD has pruned it."""
    written = state.get("reason")
    return Reason(written) if written else reason_of(state.get("message", ""), final=True)
