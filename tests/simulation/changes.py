"""A ConfigMap that containers of the shop use, the policies that bring its changes, and who else writes it.

An instance has the data that kubelet gave it: variables and `subPath` as of its creation, files as of its start, as far
as kubelet had refreshed them. Its program behaves accordingly. `change_judge` says what must not happen.
"""

import copy
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from crrd.core.api.time import parse_time
from crrd.core.api.types import PLURAL, POLICY_PLURAL
from crrd.core.policy.types import ANNOTATION_CONTINUE
from tests.simulation.change_judge import ChangeJudge
from tests.simulation.configmaps import CONFIG, KEY, ConfigMap
from tests.simulation.metrics import FEW, MANY, Metrics, query_of
from tests.simulation.network import Sent
from tests.simulation.runs import Process
from tests.simulation.schedule import SHOP, PolicyShape
from tests.simulation.store import Change, Object, key_of

if TYPE_CHECKING:
    from tests.simulation.containers import Container
    from tests.simulation.daemon import Manager
    from tests.simulation.pod import Pod
    from tests.simulation.world import SimulatedWorld

FIRST = "good-0"
STARTED = 12.0  # Seconds until the policies are created
SEEN = 0.3  # Seconds until kubelet sees a changed pod
MOUNTS = 0.5  # Seconds from the creation of a container to the refresh that the same sync of its pod has begun
CRASH = 0.05  # Seconds after which a program with the worst data ends
QUIET = 30.0  # Seconds for which nothing must happen any more in the end
PATIENCE = 3600.0  # Seconds for runs in steps, and for kubelet's back-off
RESUME_SECONDS = 200
RESTART_SECONDS = 120.0
_FIRST_POD = re.compile(r"restart pod (\S+) first")  # What a person must do about a StatefulSet with unready pods
_CONFIRM = re.compile(rf"{re.escape(ANNOTATION_CONTINUE)}=(\S+)")


class Changing:
    """The ConfigMap and the policies of the schedule, if it has some."""

    def __init__(self, world: "SimulatedWorld") -> None:
        self._world = world
        self.shape = world.setup.changes
        self.config = ConfigMap(world, keyed=self.shape is None or self.shape.keyed)
        self.metrics = Metrics(world)
        self.judge = ChangeJudge(world, self)
        self.has: dict[str, str] = {}  # Container ID -> what its program has read
        self._files: dict[str, Mapping[str, str]] = {}  # UID of a pod -> the data of its volume
        self._late: dict[str, float] = {}  # UID of a pod -> until when a refresh is late, because kubelet was down
        self._wanted: Mapping[str, str] | None = None  # What git has, while a GitOps controller works
        self._gitops = 0  # Number of the GitOps controller that works
        self._races: list[Mapping[str, str]] = []
        self._traps: list[list[Any]] = []  # How many writes are left, when, and for how long no manager runs
        self._processes = 0
        self._replaced: dict[str, float] = {}  # Pod -> when a person has deleted it last
        self._still_since: float | None = None

    @property
    def policies(self) -> tuple[PolicyShape, ...]:
        """Their shapes."""
        return self.shape.policies if self.shape is not None else ()

    # Objects.

    def add_uses(self, spec: dict[str, Any]) -> None:
        """Let the containers of a pod's spec use the ConfigMap."""
        if self.shape is None:
            return
        items = [{"key": KEY, "path": KEY}] if self.shape.keyed else None
        for each in spec["containers"]:
            how = self.shape.uses.get(each["name"])
            if how == "env" and items:
                source = {"configMapKeyRef": {"name": CONFIG, "key": KEY}}
                each["env"] = [{"name": "MODE", "valueFrom": source}]
            elif how == "env":
                each["envFrom"] = [{"configMapRef": {"name": CONFIG}}]
            elif how:
                volume: dict[str, Any] = {"name": CONFIG, "items": items} if items else {"name": CONFIG}
                spec["volumes"] = [{"name": "conf", "configMap": volume}]
                part = {"subPath": KEY} if how == "subPath" else {}
                each["volumeMounts"] = [{"name": "conf", "mountPath": "/conf", **part}]

    def open(self) -> None:
        """Create them."""
        if self.shape is None:
            return
        self.config.open({KEY: FIRST, "note": "0"})
        self._world.loop.call_later(STARTED, self._create)

    def _create(self) -> None:
        """Create the policies, once the pods are ready."""
        for each in self.policies:
            budget: dict[str, Any] = {"maxUnavailable": self._world.setup.shop.max_unavailable}  # type: ignore[union-attr]
            budget |= {"steps": list(each.steps)} if each.steps else {}
            budget |= {"stepPause": f"{each.pause}s"} if each.pause is not None else {}
            budget |= {"confirmSteps": True} if each.confirms else {}
            spec: dict[str, Any] = {
                "targetRef": {"apiVersion": "apps/v1", "kind": self._world.setup.shop.kind, "name": "web"},  # type: ignore[union-attr]
                "triggers": {"configChange": {"settle": f"{each.settle}s"}},
                "containers": [each.container],
                "budget": budget,
                "onFailure": "Restore" if each.restores else "Halt",
                "after": list(each.after),
            }
            if each.judge:
                metrics = [{"prometheus": query_of(each.name, each.metric)}] if each.metric else []
                limits = {"maxRestarts": each.max_restarts, "failureLimit": each.failure_limit}
                spec["judge"] = {"for": f"{each.judge}s", **limits, "metrics": metrics}
            meta = {"namespace": SHOP, "name": each.name, "uid": f"uid-{each.name}", "generation": 1}
            self._world.store.create(POLICY_PLURAL, {"metadata": meta, "spec": spec})

    def changed(self, kind: str, change: Change) -> None:
        """An object of the shop has changed."""
        if self.shape is None:
            return
        if kind == "configmaps" and change.new is not None:
            self.config.changed(change.new)
        if kind == POLICY_PLURAL and change.new is not None:
            self.judge.policy_changed(change.new)
        if kind == "pods":
            self.judge.pod_changed(change.old, change.new)
        if kind == PLURAL and change.new is None and change.old is not None:
            self.judge.request_gone(change.old)
        self.judge.note_passed()

    def keep(self, body: Object, namespace: str) -> Object:
        """Create a ControllerRevision of the manager."""
        meta = {**body["metadata"], "namespace": namespace, "uid": f"uid-{body['metadata']['name']}"}
        return self._world.store.create("controllerrevisions", {**body, "metadata": meta})

    def policy(self, name: str) -> Object:
        """Return a policy."""
        found = self._world.store.get(POLICY_PLURAL, f"{SHOP}/{name}")
        assert found is not None
        return found

    # What containers have.

    def mount(self, pod: "Pod") -> None:
        """Kubelet sets up the volumes of a new pod, and refreshes them from time to time."""
        if self.shape is None or pod.removed:
            return
        if not self._world.kubelet.asleep:
            self._refresh(pod.uid)
        self._world.loop.call_later(self.shape.period, self.mount, pod)

    def annotated(self, uid: str) -> None:
        """Annotations of a pod have changed: kubelet syncs it, and refreshes its files."""
        if self.shape is not None:
            self._world.loop.call_later(SEEN, self._sees, uid)

    def _sees(self, uid: str) -> None:
        assert self.shape is not None
        if self._world.kubelet.asleep:
            self._late[uid] = self._world.loop.time() + 1.0 + 2 * self.shape.refresh
            self._world.loop.call_later(1.0, self._sees, uid)
            return
        self._world.loop.call_later(self.shape.refresh, self._refresh, uid)

    def _refresh(self, uid: str) -> None:
        assert self.shape is not None
        self._files[uid] = self.config.at(self._world.loop.time() - self.shape.lag)

    def created(self, pod: "Pod", made: "Container") -> None:
        """Kubelet has created a container."""
        if self.shape is None or pod.namespace != SHOP:
            return
        how = self.shape.uses.get(made.name)
        if how == "env":
            self.has[made.id] = self.config.used(self.config.at(self._world.loop.time() - self.shape.lag))
        elif how == "subPath":
            self.has[made.id] = self.config.used(self._files[pod.uid])
        self._world.loop.call_later(MOUNTS, self._refresh, pod.uid)

    def started(self, pod: "Pod", made: "Container") -> None:
        """A container has started: its program reads its data."""
        if self.shape is None or pod.namespace != SHOP or made.name not in self.shape.uses:
            return
        if self.shape.uses[made.name] == "file":
            self.has[made.id] = self.config.used(self._files[pod.uid])
        self._world.say("node", f"{pod.name}/{made.name} {made.id} has read {self.has[made.id]}")
        self.judge.started(pod, made)
        mode = _mode(self.has[made.id])
        if mode in ("crash", "late"):
            seconds = CRASH if mode == "crash" else self.shape.falls
            self._world.loop.call_later(seconds, self._world.containers.end, made, 1)

    def may_be_ready(self, container: "Container") -> bool:
        """Whether a program's readiness probe can succeed."""
        return _mode(self.has.get(container.id, "")) != "unready"

    def errors(self, name: str, policy: str) -> float | None:
        """Return the metric of a pod's container, as it was last scraped; None if it was not there then."""
        shape = next(each for each in self.policies if each.name == policy)
        assert self.shape is not None
        pod = next((each for each in reversed(self._world.kubelet.pods.values()) if each.name == name), None)
        if pod is None:
            return None
        at = self._world.loop.time() - self.shape.scrape
        past = [one for one in self._world.containers.history(pod.runtime_uid, shape.container) if one.started]
        seen = [one for one in past if (one.started or 0.0) <= at and (one.ended is None or one.ended > at)]
        return (MANY if _mode(self.has[seen[-1].id]) == "metric" else FEW) if seen else None

    # For the judge of everything.

    def judges(self, container: "Container") -> bool:
        """Judge a stop of a container of these pods. Return whether it is one."""
        pod = self._world.kubelet.pods[container.pod_uid]
        if self.shape is None or pod.namespace != SHOP:
            return False
        self.judge.stops(pod, container)
        return True

    def begins(self, request: Object, pod: Object) -> None:
        """A request for a pod is created."""
        if self.shape is not None:
            self.judge.begins(request, pod)

    # The manager's calls.

    def written(self, old: Object, new: Object, patch: Mapping[str, Any]) -> dict[str, Any]:
        """The manager writes the ConfigMap: check it, and return what is stored."""
        self.judge.restores(old, new, patch)
        return self.config.owned(old, new, "crrd")

    def race(self) -> None:
        """The manager is about to write the ConfigMap. Somebody may be faster."""
        if self._races:
            self._edit(self._races.pop(0), "another")

    def trapped(self, manager: "Manager", sent: Sent, when: str) -> bool:
        """Whether a manager is killed at this call, before it is carried out, or before it is answered."""
        if manager.dead or sent.method == "GET" or sent.path.endswith(("/events", "reviews")):
            return False
        for trap in [each for each in self._traps if each[1] == when]:
            trap[0] -= 1
            if trap[0] == 0:
                self._traps.remove(trap)
                self._world.say("fault", f"the manager is killed {when} its {sent.method} {sent.path}")
                self._world.faults["change_kill"] += 1
                manager.end()
                self._world.loop.call_later(trap[2], self._world.lead)
                return True
        return False

    # Other people and programs.

    def happen(self, kind: str, about: Mapping[str, Any]) -> bool:
        """Carry out an event of the schedule. Return whether it had an effect."""
        return getattr(self, f"_do_{kind}")(about) is not False

    def _edit(self, data: Mapping[str, str], writer: str) -> bool:
        if self._wanted is not None:
            self._wanted = data
        return self.config.write(data, writer)

    def _do_edit(self, about: Mapping[str, Any]) -> bool:
        """A person writes the ConfigMap, and commits it to git."""
        return self._edit({**self.config.now.data, **about["data"]}, "user")

    def _do_back(self, about: Mapping[str, Any]) -> bool:
        """A person takes the last edits back."""
        versions = self.config.versions
        return self._edit(versions[-min(len(versions), 1 + about["edits"])].data, "user")

    def _do_race(self, about: Mapping[str, Any]) -> None:
        """Somebody edits at the moment of the manager's next write."""
        self._races.append({**self.config.now.data, **about["data"]})

    def _do_gitops(self, about: Mapping[str, Any]) -> None:
        """A GitOps controller writes what git has, for a while."""
        self._gitops += 1
        self._wanted = self.config.now.data
        self._world.loop.call_later(about["every"], self._sync, self._gitops, about["every"])
        self._world.loop.call_later(about["seconds"], self._end_gitops, self._gitops)

    def _sync(self, number: int, every: float) -> None:
        if number == self._gitops and self._wanted is not None:
            self.config.write(self._wanted, "gitops")
            self._world.loop.call_later(every, self._sync, number, every)

    def _end_gitops(self, number: int) -> None:
        if number == self._gitops:
            self._wanted = None

    def _do_metrics(self, about: Mapping[str, Any]) -> None:
        self.metrics.fail(about["mode"], about["seconds"])

    def _do_kill(self, about: Mapping[str, Any]) -> bool:
        """A manager is killed at one of its next writes. That counts once it has happened."""
        self._traps.append([about["nth"], about["when"], about["seconds"]])
        return False

    def _do_die(self, about: Mapping[str, Any]) -> bool:
        """A manager is killed now."""
        if self._world.manager.dead:
            return False
        self._world.manager.end()
        self._world.loop.call_later(about["seconds"], self._world.lead)
        return True

    def _do_double(self, about: Mapping[str, Any]) -> bool:
        """Another leader begins while the old one still works."""
        before = self._world.manager
        if before.dead:
            return False
        self._world.lead(beside=True)
        self._world.loop.call_later(about["seconds"], before.end)
        return True

    def _do_skew(self, about: Mapping[str, Any]) -> None:
        self._world.manager.skew += about["by"]

    def _do_evict(self, about: Mapping[str, Any]) -> bool:
        """Kubelet evicts a pod, whose controller deletes it later."""
        pods = [each for each in self._world.kubelet.pods.values() if each.namespace == SHOP and not each.deleting]
        if not pods:
            return False
        pod = pods[about["pod"] % len(pods)]
        self._world.kubelet.evict(pod)
        self._world.loop.call_later(about["seconds"], self._delete, pod)
        return True

    def _delete(self, pod: "Pod") -> None:
        obj = self._world.store.get("pods", pod.key)
        if obj is not None and obj["metadata"]["uid"] == pod.uid:
            self._world.store.remove("pods", pod.key)

    def _do_confirm(self, _: Mapping[str, Any] | None = None) -> bool:
        """The owners do what the conditions of their policies say."""
        done = False
        for each in self._world.store.all(POLICY_PLURAL):
            asked = _CONFIRM.search(_condition(each, "Ready").get("message", ""))
            if asked and each["metadata"].get("annotations", {}).get(ANNOTATION_CONTINUE) != asked[1]:
                note = {"metadata": {"annotations": {ANNOTATION_CONTINUE: asked[1]}}}
                self._world.say("user", f"allows {asked[1]}")
                self.judge.allowed(asked[1])
                self._world.store.patch(POLICY_PLURAL, key_of(each), note)
                done = True
        return done

    def _do_resume(self, _: Mapping[str, Any]) -> bool:
        """A person continues a run in spite of its failure."""
        for each in self._world.store.all(POLICY_PLURAL):
            run = each.get("status", {}).get("run") or {}
            if run.get("failed"):
                words = ["resume", run["name"], "--yes", "--retry-failed", "--timeout", f"{RESUME_SECONDS}s"]
                self._processes += 1
                self._world.say("user", f"kubectl recreate {' '.join(words)}")
                self.judge.overruled(run["name"])
                self._continue(Process(self._world, self._processes, words))
                return True
        return False

    def _continue(self, process: Process) -> None:
        process.run().add_done_callback(lambda task: self._resumed(process, task))

    def _resumed(self, process: Process, task: Any) -> None:
        if not process.dead:
            process.dead = True
            self._world.api.forget(process)
            if task.cancelled() or task.exception() is not None:
                self._world.broken(f"the run did not foresee this: {task.exception()!r}")

    # The end.

    @property
    def patience(self) -> float:
        """How much longer than in other schedules it may take."""
        return PATIENCE if self.shape is not None else 0.0

    @property
    def finished(self) -> bool:
        """Whether nothing is left to be done, and nothing has happened for a while. All faults are over."""
        if self.shape is None:
            return True
        self._traps.clear()
        self._races.clear()
        self._do_confirm()
        self._follow_advice()
        now = self._world.loop.time()
        if self._unfinished():
            self._still_since = None
        elif self._still_since is None:
            self._still_since = now
        return self._still_since is not None and now - self._still_since >= QUIET

    def _follow_advice(self) -> None:
        """Replace the pods that the owners must restart themselves, by the conditions of their policies.

        A run also cannot go on if a container of another policy, which waits for it, has bad data in the same pod.
        """
        for each in self._world.store.all(POLICY_PLURAL):
            ready = _condition(each, "Ready")
            told = _FIRST_POD.search(ready.get("message", ""))
            blocked = len(self.policies) > 1 and ready.get("reason") == "RunBlocked"
            for pod in [pod for pod in self._world.shop.pods() if not is_ready(pod)]:
                if blocked or (told and told[1] == pod["metadata"]["name"]):
                    self._replace(pod)

    def _replace(self, pod: Object) -> None:
        """A person deletes a pod, and gives the next one some time."""
        name, now = pod["metadata"]["name"], self._world.loop.time()
        if now > self._replaced.get(name, 0.0) + RESTART_SECONDS:
            self._replaced[name] = now
            self._world.say("user", f"kubectl delete pod {name}")
            self._world.store.remove("pods", key_of(pod))

    def _unfinished(self) -> list[str]:
        """Return what is not as it should be in the end."""
        found = []
        for shape in self.policies:
            policy = self.policy(shape.name)
            ready, run = _condition(policy, "Ready"), policy.get("status", {}).get("run") or {}
            stops = ready.get("status") == "False" and ready.get("reason") in ("RunFailed", "BadRevision")
            held = bool(ready.get("reason") == "WaitingForPolicy" and ready.get("message"))
            bad = _mode(self.config.now.data[KEY]) != "good"
            if run and not run.get("finished") and (bad or held) and ready.get("message"):
                continue  # pods that have started by themselves with bad data can hold a run, and so can another policy
            if run and not run.get("finished"):
                found.append(f"{shape.name}: run {run['name']} has not ended ({ready.get('message')})")
            elif not (stops or held) and (wrong := self.wrong(shape)):
                found.append(f"{shape.name}: {', '.join(wrong)} ({ready.get('reason')}: {ready.get('message')})")
            elif not (stops or held) and (ready.get("status") != "True" or ready.get("reason") != "Idle"):
                found.append(f"{shape.name}: {ready.get('reason')}: {ready.get('message')}")
            if stops and not self._explains(policy, shape):
                found.append(f"{shape.name}: {ready.get('message')}, and nothing says why no data is restored")
        if held_by_none := [each for each in found if "WaitingForPolicy" in each]:
            found += held_by_none
        return found

    def _explains(self, policy: Object, shape: PolicyShape) -> bool:
        """Whether a policy that restores data has done so, or says why not."""
        run, now = self.judge.runs[policy["status"]["run"]["name"]], self.config.now
        before = [each.data for each in self.config.versions if each.edit < now.edit]
        excused = not shape.restores or run.edit != now.edit or now.data in before  # somebody has taken it back
        reason = _condition(policy, "Ready").get("reason")
        return excused or reason == "BadRevision" or _condition(policy, "Restorable")["status"] == "False"

    def wrong(self, shape: PolicyShape, age: float = 0.0) -> list[str]:
        """Return the pods that do not have the present data. With an age, only those that run for so long.

        An instance that no run for this data has started can have read a file that kubelet had not refreshed yet.
        """
        wanted, found = self.config.used(self.config.now.data), []
        for pod in self._world.shop.pods():
            known = self._world.kubelet.pods.get(pod["metadata"]["uid"])
            newest = self._world.kubelet.newest(known, shape.container) if known is not None else None
            young = newest is None or newest.started is None or newest.started > self._world.loop.time() - age
            if age and (young or newest is None or newest.state != "running"):
                continue
            has = self.has.get(newest.id) if newest is not None else None
            if newest is None or (has != wanted and not self._may_be_old(shape, newest)):
                found.append(f"{pod['metadata']['name']} has {has} instead of {wanted}")
        return found

    def _may_be_old(self, shape: PolicyShape, container: "Container") -> bool:
        assert self.shape is not None
        started, edit, uid = container.started or 0.0, self.config.now.edit, container.pod_uid
        gave = self.judge.gave(shape, uid, edit, started) and started > self._late.get(uid, 0.0)
        return self.shape.uses[shape.container] != "env" and not gave

    def unfinished(self) -> None:
        """The time limit has passed."""
        for each in self._unfinished() if self.shape is not None else ():
            self._world.broken(f"it does not end: {each}")

    def last_settled(self, since: str, settle: int) -> int:
        """Return the edit that a run brings whose changes had settled at `since`."""
        limit = parse_time(since)
        assert limit is not None
        moment = limit.timestamp() - settle - (self._world.loop.true_wall() - self._world.loop.time())
        return next((each.edit for each in reversed(self.config.versions) if int(each.at) <= moment + 0.5), 0)


def _mode(value: str) -> str:
    """Return how a program behaves that has read this."""
    return value.partition("-")[0]


def is_ready(pod: Object) -> bool:
    """Whether its condition Ready is true."""
    return any(each["type"] == "Ready" and each["status"] == "True" for each in pod["status"].get("conditions", ()))


def _condition(policy: Object, kind: str) -> Mapping[str, Any]:
    conditions = policy.get("status", {}).get("conditions", ())
    return copy.copy(next((each for each in conditions if each["type"] == kind), {}))
