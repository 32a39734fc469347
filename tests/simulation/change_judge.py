"""Checks what a bad change may cost, from what really happened: docs/policy.md, "Steps and a judgement", and after it.

- A run has restarted no more pods than its step has, until the step before was done, judged well, and paused.
- Once a judgement of no, or another failure of a run, is recorded, no container is restarted for the same edit of the
  data, until a person says so, and no run of another policy begins with it. With `onFailure: Restore`, that holds also
  if the same data is written again.
- Data is written back only over data with which a run has failed, it is what the object had when all containers worked
  with it, and the write is bound to a version of the object. A run that brings the kept data once more, and fails, does
  not change what is kept: there is nothing better to go back to.

A pod that comes or crashes by itself reads new data whatever a run does, so it does not count here.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil, inf
from typing import TYPE_CHECKING, Any

from crrd.core.api.types import LABEL_POD_UID
from crrd.core.config.objects import whole_data, whole_hash
from crrd.core.rollout.run import LABEL_RUN
from tests.simulation.configmaps import Version
from tests.simulation.store import Object

if TYPE_CHECKING:
    from tests.simulation.changes import Changing
    from tests.simulation.containers import Container
    from tests.simulation.daemon import Life
    from tests.simulation.pod import Pod
    from tests.simulation.schedule import PolicyShape
    from tests.simulation.world import SimulatedWorld

ROUNDING = 2.5  # Seconds: times in statuses have whole ones, and the server's clock is known as precisely
JUST_READY = 1.0  # Seconds for which a run may take a pod for unready, as it was when the run decided
LATE = 5.0  # Seconds after which a manager knows what has changed
MOST_PODS = 12
BLIND = 60.0  # The same after a fault of the API


def _limits(steps: tuple[int | str, ...], pods: int) -> tuple[int, ...]:
    """Return after how many of so many pods each step is over, without the last one."""
    asked = [ceil(int(each[:-1]) * pods / 100) if isinstance(each, str) else each for each in steps]
    counts: list[int] = []
    for each in asked:
        if max(counts, default=0) < each < pods:
            counts.append(each)
    return tuple(counts)


@dataclass(slots=True)
class Place:
    """A pod for which a run has created a request."""

    at: float
    attempt: int  # Of its container then
    foreign: int = 0  # Restarts since, by others' requests
    stopped: bool = False
    done: bool = False  # Whether it was ready after that
    starts: list[float] = field(default_factory=list)  # Of its container since


@dataclass(slots=True)
class RunFacts:
    """A run of a policy."""

    name: str
    shape: "PolicyShape"
    edit: int  # Which edit it brings
    limits: tuple[int, ...]  # Pods after which each step is over, without the last one
    back: bool
    over: int = 0  # Steps that were over when a later one began
    allowed: int = 0  # Steps that the owner has allowed to end
    began: float = 0.0
    ended_at: float = inf
    refused_at: float = inf  # When its failure was recorded
    overruled: bool = False
    places: dict[str, Place] = field(default_factory=dict)  # By UID of the pod


class ChangeJudge:
    """Sees what runs do, and reports violations."""

    def __init__(self, world: "SimulatedWorld", changes: "Changing") -> None:
        self._world, self._changes = world, changes
        self.runs: dict[str, RunFacts] = {}
        self._bad: dict[
            str, set[str]
        ] = {}  # Policy -> versions of data with which a run has failed, as its status says
        self._passed: dict[str, set[str]] = {}  # Policy -> all data with which its containers worked, as texts
        self._refused: dict[str, set[str]] = {}  # Policy -> data with which a run has failed
        self._gone: dict[str, float] = {}  # UID of a pod -> when an open request for it was deleted
        self._ready: dict[str, float] = {}  # UID -> since when a pod is ready
        self._was_ready: dict[str, list[tuple[float, float]]] = {}  # UID -> for which times it was ready before

    @property
    def _now(self) -> float:
        return self._world.loop.time()

    # What happens.

    def policy_changed(self, new: Object) -> None:
        """A policy was written."""
        name, status = new["metadata"]["name"], new.get("status", {})
        shape = next((each for each in self._changes.policies if each.name == name), None)
        if shape is None:
            return
        self._bad[name] = {each["version"] for each in status.get("bad") or ()}
        record = status.get("run") or {}
        if not record:
            return
        run = self.runs.get(record["name"])
        if run is None:
            limits = tuple(map(int, filter(None, (record.get("steps") or "").split(","))))
            if limits not in ((), *(_limits(shape.steps, pods) for pods in range(1, MOST_PODS + 1))):
                self._world.broken(f"{record['name']} has the steps {limits}, and {shape.steps} were asked for")
            edit = self._changes.last_settled(record["since"], shape.settle)
            run = RunFacts(record["name"], shape, edit, limits, bool(record.get("back")), began=self._now)
            self.runs[run.name] = run
        if record.get("finished"):
            run.ended_at = min(run.ended_at, self._now)
        if record.get("finished") and not record.get("failed"):
            run.refused_at = inf  # its pods were repaired, or its changes were taken back
        if record.get("failed") and run.refused_at == inf:
            self._world.say("judge", f"{run.name} has failed with edit {run.edit}: {record.get('message')}")
            run.refused_at, run.overruled = self._now, False
            versions = [each for each in self._changes.config.versions if each.edit == run.edit]
            self._refused.setdefault(name, set()).update(each.whole for each in versions)
            kept = {each.get("kept") for each in status.get("revisions") or ()}  # it may be written back as before
            brought = {each.whole for each in versions if whole_hash(whole_data({"data": each.data})) not in kept}
            self._passed.get(name, set()).difference_update(brought)

    def allowed(self, what: str) -> None:
        """The owner allows steps of a run."""
        name, _, number = what.rpartition("/")
        if name in self.runs:
            self.runs[name].allowed = int(number)

    def overruled(self, name: str) -> None:
        """A person continues a run in spite of its failure."""
        run = self.runs[name]
        run.overruled, run.over = True, min(run.over + 1, len(run.limits))
        run.allowed = max(run.allowed, run.over)

    def pod_changed(self, old: Object | None, new: Object | None) -> None:
        """A pod was written."""
        uid = (new or old or {})["metadata"]["uid"]
        conditions = new.get("status", {}).get("conditions", ()) if new is not None else ()
        ready = any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
        if ready:
            self._ready.setdefault(uid, self._now)
            for place in [each.places[uid] for each in self.runs.values() if uid in each.places]:
                place.done = place.done or bool(place.starts)
        elif (since := self._ready.pop(uid, None)) is not None:
            self._was_ready.setdefault(uid, []).append((since, self._now))

    def request_gone(self, old: Object) -> None:
        """A request was deleted. A run does that with those of the run before, when it begins with their pods."""
        if old.get("status", {}).get("phase") != "Completed":
            self._gone[old["metadata"]["labels"].get(LABEL_POD_UID, "")] = self._now

    def is_down(self, uid: str) -> bool:
        """Whether a pod is not ready in truth, or has just become ready, or a run takes it over from another one."""
        if self._now < self._gone.get(uid, -inf) + JUST_READY:
            return True
        pod = self._world.kubelet.pods.get(uid)
        newest = [] if pod is None else [self._world.kubelet.newest(pod, shape.name) for shape in pod.shape.containers]
        runs = bool(newest) and all(one is not None and one.state == "running" for one in newest)
        return not runs or self._now < self._ready.get(uid, self._now) + JUST_READY

    def started(self, pod: "Pod", container: "Container") -> None:
        """An instance has started."""
        for run in self.runs.values():
            if (place := run.places.get(pod.uid)) is not None and container.name == run.shape.container:
                place.starts.append(self._now)

    # Restarts.

    def begins(self, request: Object, pod: Object) -> None:
        """A request of a run is created."""
        name, uid = request["metadata"].get("labels", {}).get(LABEL_RUN, ""), pod["metadata"]["uid"]
        run, writer = self.runs.get(name), self._world.api.writer
        if run is None:
            self._world.broken(f"a request for {pod['metadata']['name']}, and no policy has the run {name}")
            return
        others = (each for each in self.runs.values() if each is not run and uid in each.places)
        for each in others:
            each.places[uid].foreign += each.shape.container == run.shape.container
        if writer is not None and not writer.dead:  # one that was killed has sent it before
            self._is_wanted(run, pod["metadata"]["name"], writer)
            self._is_in_order(run, pod["metadata"]["name"])
            if uid not in run.places:
                self._step(run, pod["metadata"]["name"])
        elif uid not in run.places:
            self._too_early(run, self._places(run), self._others(run))  # it may begin the next step
        known = self._world.kubelet.pods.get(uid)
        attempt = known.attempts.get(run.shape.container, 0) if known is not None else 0
        run.places.setdefault(uid, Place(self._now, attempt))

    def _is_wanted(self, run: RunFacts, pod: str, writer: "Life") -> None:
        """Check that no run has failed with the data that a pod would get now."""
        config, policy = self._changes.config.now, run.shape.name
        older = writer is not self._world.manager and not writer.shops  # a leader that is being replaced
        grace = LATE if older else 0.0
        for each in self.runs.values():
            own = each.shape.name == policy and self._now > each.refused_at + grace
            refused = (own or run.began > each.refused_at + LATE) and not each.overruled
            if refused and each.edit == config.edit and not (run.overruled or run.back):
                self._world.broken(f"{run.name} restarts {pod}, and {each.name} has failed with the same edit")
        versions = {each.version: each for each in self._changes.config.versions}
        bad = {self._used(versions[each]) for each in self._bad.get(policy, ()) if each in versions}
        if self._used(config) in bad and self._known(config.at) and not run.overruled:
            self._world.broken(f"{run.name} restarts {pod}, and the data is again that with which a run has failed")

    def _is_in_order(self, run: RunFacts, pod: str) -> None:
        """Check that the policies that come first have brought this edit, or at least done their first step with it."""
        if run.back or run.overruled:
            return
        others = [each for each in self._changes.policies if each is not run.shape]
        for shape in others:
            theirs = [each for each in self.runs.values() if each.shape is shape and each.edit == run.edit]
            what = f"{run.name} restarts {pod}"
            if shape.name in run.shape.after and self._known(self._changes.config.now.at):
                if any(each.refused_at < self._now and not each.overruled for each in theirs):
                    self._world.broken(f"{what}, and {shape.name}, which comes first, has failed with this edit")
                elif run.edit == self._changes.config.now.edit and (wrong := self._changes.wrong(shape, LATE)):
                    self._world.broken(f"{what}, and {shape.name}, which comes first, is not done: {wrong[0]}")
            earlier = [
                each for each in theirs if not run.places and each.began < run.began and each.ended_at > run.began
            ]
            for each in earlier:
                own = self._places(each)
                first = own[: each.limits[0]] if each.limits else own if each.shape.judge else own[:1]
                if self._others(each) >= (each.limits[0] if each.limits else 1):
                    continue  # pods that have started by themselves may count for it
                well = [self._well_since(each, uid, each.shape.judge) < inf for uid in first]
                if each.ended_at > self._now and not (first and all(well)) and not each.over:
                    self._world.broken(f"{what}, and {each.name}, which has begun before, has not done its first step")

    def _used(self, version: Version) -> str:
        return self._changes.config.used(version.data)

    def _known(self, since: float) -> bool:
        """Whether a manager must know what has happened at a time."""
        seconds = LATE if self._world.could_write(self._now - BLIND, self._now) else inf
        return self._now > since + seconds and self._now > self._world.manager.born + LATE

    def _places(self, run: RunFacts) -> list[str]:
        """Return the pods of a run that count for its steps, in the order in which it has begun with them.

        One that was deleted counts if it was ready before. One whose request somebody has deleted is forgotten.
        """
        asked = {
            each["metadata"]["labels"].get(LABEL_POD_UID)
            for each in self._world.shop.requests()
            if each["metadata"]["labels"].get(LABEL_RUN) == run.name
        }
        return [uid for uid, place in run.places.items() if uid in asked and (uid in self._names or place.done)]

    @property
    def _names(self) -> dict[str, str]:
        """The names of the pods that are there, by UID."""
        return {each["metadata"]["uid"]: each["metadata"]["name"] for each in self._world.shop.pods()}

    def _others(self, run: RunFacts) -> int:
        """Return how many other pods may have the data of a run, which can count for its steps, too."""
        versions = [each for each in self._changes.config.versions if each.edit == run.edit]
        brought, found = {self._used(each) for each in versions}, 0
        for uid in self._names.keys() - {*self._places(run)}:
            known = self._world.kubelet.pods.get(uid)
            newest = self._world.kubelet.newest(known, run.shape.container) if known is not None else None
            if newest is not None:  # one that has read an old file counts as having the data, see docs/policy.md
                found += self._changes.has.get(newest.id) in brought or (newest.started or 0.0) > versions[0].at
        return found

    def _step(self, run: RunFacts, pod: str) -> None:
        """A run begins with a pod: check that the steps before are over, and that nothing is known against this one."""
        places, names = self._places(run), self._names
        before = run.limits[run.over - 1] if run.over else 0
        for uid in places[before:] if run.shape.judge and not (run.back or run.overruled) else ():
            if uid in names and self._restarts(run, uid) > run.shape.max_restarts:
                self._world.broken(f"{run.name} begins {pod}, and {names[uid]} of the same step has restarted")
        wrong = [self._too_early(run, places, others) for others in range(self._others(run) + 1)]
        if all(wrong):
            self._world.broken(f"{run.name} begins {pod} after {len(places)} pods, and {wrong[0]}")

    def _too_early(self, run: RunFacts, places: list[str], others: int) -> str:
        """Return why a run must not begin with another pod yet, if so many others count for its steps."""
        number = sum(1 for each in run.limits if each <= len(places) + others)
        if number <= run.over:
            return ""
        names, shape = self._names, run.shape
        before = run.limits[run.over - 1] if run.over else 0  # those of the steps that were over when this one began
        own = [uid for uid in places[before : max(0, run.limits[number - 1] - others)] if uid in names]
        rest = shape.judge + (shape.pause or 0)
        since = [self._well_since(run, uid, rest) for uid in own]
        for uid, at in zip(own, since, strict=True):
            if at == inf:
                return f"{names[uid]} was not well for {shape.judge} s and {shape.pause or 0} s"
        if shape.judge and shape.metric and own:
            asked = [each for each in self._changes.metrics.asked.get(shape.name, ()) if names[own[-1]] in each.pods]
            if not any(each.good and each.at >= max(since) + shape.judge - ROUNDING for each in asked):
                return f"the metric does not hold: {asked[-1:]}"
        if shape.confirms and own and run.allowed < number:
            return "its owner has not allowed it"
        run.over = number
        return ""

    def _well_since(self, run: RunFacts, uid: str, seconds: float) -> float:
        """Return when a pod began to be ready for so long after its restart, inf if it never did."""
        place, most = run.places[uid], 1 + run.shape.max_restarts + run.places[uid].foreign
        times: list[tuple[float, float]] = [*self._was_ready.get(uid, ()), (self._ready.get(uid, inf), self._now)]
        for start, end in times:
            restarts = [at for at in place.starts if at <= start]
            within = not run.shape.judge or len(restarts) <= most
            if (restarts or place.stopped) and end - start >= seconds - ROUNDING and within:
                return start
        return inf

    def _restarts(self, run: RunFacts, uid: str) -> int:
        """Return how often a pod's container has restarted by itself, so long ago that a manager knows it."""
        place = run.places[uid]
        return sum(1 for at in place.starts if self._known(at)) - 1 - place.foreign

    def stops(self, pod: "Pod", container: "Container") -> None:
        """The node daemon stops a container."""
        found = [
            run
            for each in self._world.shop.requests()
            if each["metadata"]["labels"].get(LABEL_POD_UID) == pod.uid
            and each.get("status", {}).get("phase") != "Completed"
            and container.name in [one["name"] for one in each["spec"]["containers"]]
            and (run := self.runs.get(each["metadata"]["labels"].get(LABEL_RUN, ""))) is not None
        ]
        for run in found:
            run.places[pod.uid].stopped = True
            stopped = [uid for uid in self._places(run) if run.places[uid].stopped and uid in self._names]
            if run.over < len(run.limits) and len(stopped) > run.limits[run.over]:
                self._world.broken(f"{run.name} has stopped {len(stopped)} pods in step {run.over + 1}")

    def gave(self, shape: "PolicyShape", uid: str, edit: int, until: float) -> bool:
        """Whether a run of a policy for this edit has stopped a pod's container before a time."""
        of_edit = (each.places.get(uid) for each in self.runs.values() if each.shape is shape and each.edit == edit)
        return any(place is not None and place.stopped and place.at <= until for place in of_edit)

    # Data that is written back.

    def note_passed(self) -> None:
        """Remember the present data of the ConfigMap, if all containers of a policy work with it."""
        changes = self._changes
        for shape in changes.policies if changes.config.versions else ():
            policy = self._world.store.get("containerrecreatepolicies", f"shop/{shape.name}")
            run = (policy or {}).get("status", {}).get("run") or {}
            if not shape.restores or (run and (run.get("failed") or not run.get("finished"))):
                continue
            if self._all_have(shape, changes.config.used(changes.config.now.data)):
                self._passed.setdefault(shape.name, set()).add(changes.config.now.whole)

    def _all_have(self, shape: "PolicyShape", used: str) -> bool:
        pods = self._world.shop.pods()
        for pod in pods:
            statuses = pod.get("status", {}).get("containerStatuses", ())
            one: Mapping[str, Any] = next((each for each in statuses if each["name"] == shape.container), {})
            if not one.get("ready") or self._changes.has.get(one["containerID"].partition("://")[2]) != used:
                return False
        return bool(pods)

    def restores(self, old: Object, new: Object, patch: Mapping[str, Any]) -> None:
        """The manager writes the ConfigMap. Its guard held."""
        before, after = (json.dumps(each["data"], sort_keys=True) for each in (old, new))
        self._world.say("manager", f"writes back {after} over {before}")
        names = [each.name for each in self._changes.policies if each.restores]
        if not patch.get("metadata", {}).get("resourceVersion"):
            self._world.broken("data is written back, and the write is bound to no version")
        elif not any(before in self._refused.get(name, ()) for name in names):
            self._world.broken(f"data is written back over {before}, with which no run has failed")
        elif not any(after in self._passed.get(name, ()) for name in names):
            self._world.broken(f"{after} is written back, with which containers did not all work")
