"""A model of the controllers of Deployments, StatefulSets and DaemonSets, as far as the adoption of pods concerns them.

Each controller has caches of its own that lag behind, and acts on them as the real one does: it compares templates, or
the revision labels of pods, and never looks at the images of pods. Objects are JSON, and the run's JSON patches are
applied to them. Every pod that the controller replaces, and every ReplicaSet that it makes, is a rollout.
"""

import copy
from dataclasses import dataclass, field
from typing import Any

import jsonpatch

from crrd.core.rollout.adoption import Adoption, Write, next_adoption
from crrd.core.rollout.image_change import ImageChange
from crrd.core.rollout.image_state import ImageState
from crrd.core.rollout.run import Options, Run, Target
from crrd.core.rollout.state import World, read_member
from crrd.core.rollout.template import read_content, read_revision, read_template
from crrd.core.rollout.workload import read_workload

Json = dict[str, Any]
OLD, NEW = "proxy:1", "proxy:2"
REVISION = "controller-revision-hash"


def pod_template(image: str, **labels: str) -> Json:
    """Return a template whose second container is `proxy`."""
    containers = [{"name": "app", "image": "app:1"}, {"name": "proxy", "image": image}]
    return {"metadata": {"labels": {"app": "web", **labels}}, "spec": {"containers": containers}}


def image_of(pod: Json) -> str:
    """Return the image of the container `proxy`."""
    return str(pod["spec"]["containers"][1]["image"])


def without_hash(template: Json) -> Json:
    """Return a template as a Deployment's controller compares it."""
    found = copy.deepcopy(template)
    found["metadata"]["labels"].pop("pod-template-hash", None)
    return found


@dataclass
class Model:
    """One workload, its controller, and a run whose pods have the image already."""

    kind: str
    replicas: int = 3
    objects: dict[str, Json] = field(default_factory=dict)  # By plural and name: `pods/web-0`
    cached: dict[str, Json] = field(default_factory=dict)  # What the controller knows, by the same keys
    known: dict[str, Json] = field(default_factory=dict)  # What the run knows
    rollouts: list[str] = field(default_factory=list)  # What the controller has replaced or made
    version: int = 0
    made: int = 0

    def __post_init__(self) -> None:
        strategy: Json = {}
        if self.kind != "Deployment":
            rolling = {"partition": 0} if self.kind == "StatefulSet" else {"maxUnavailable": 1}
            strategy = {"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": rolling}}
        spec = {"replicas": self.replicas, "selector": {"matchLabels": {"app": "web"}}, "template": pod_template(OLD)}
        self.put(
            self.own, {"metadata": {"name": "web", "uid": "uid-web", "generation": 1}, "spec": {**spec, **strategy}}
        )
        self.see()
        self.controller()
        self.see()
        for pod in self.pods():
            pod["spec"]["containers"][1]["image"] = NEW
        self.rollouts.clear()
        self.look()

    # The cluster

    @property
    def own(self) -> str:
        return f"{self.kind.lower()}s/web"

    @property
    def workload(self) -> Json:
        return self.objects[self.own]

    def put(self, key: str, obj: Json) -> None:
        self.version += 1
        self.objects[key] = obj
        obj["metadata"]["resourceVersion"] = str(self.version)

    def of(self, plural: str, where: dict[str, Json] | None = None) -> list[Json]:
        known = self.objects if where is None else where
        return [known[key] for key in sorted(known) if key.partition("/")[0] == plural]

    def pods(self, where: dict[str, Json] | None = None) -> list[Json]:
        return self.of("pods", where)

    def uids(self) -> set[str]:
        return {pod["metadata"]["uid"] for pod in self.pods()}

    def add_pod(self, name: str, template: Json, owner: Json, **labels: str) -> None:
        self.made += 1
        meta = {"name": name, "uid": f"uid-{self.made}", "labels": {**template["metadata"]["labels"], **labels}}
        meta["ownerReferences"] = [{**owner, "controller": True}]
        conditions = [{"type": "Ready", "status": "True"}]
        self.put(
            f"pods/{name}",
            {"metadata": meta, "spec": copy.deepcopy(template["spec"]), "status": {"conditions": conditions}},
        )

    def lose(self, pod: int) -> None:
        """A pod is evicted."""
        if pods := self.pods():
            del self.objects[f"pods/{pods[pod % len(pods)]['metadata']['name']}"]

    def scale(self, replicas: int) -> None:
        self.workload["spec"]["replicas"] = replicas
        self.changed()

    def edit(self) -> None:
        """A user changes something else in the template."""
        self.workload["spec"]["template"]["spec"]["containers"][0]["image"] = "app:9"
        self.changed()

    def revert(self) -> None:
        """A GitOps controller puts the old image back."""
        self.workload["spec"]["template"]["spec"]["containers"][1]["image"] = OLD
        self.changed()

    def changed(self) -> None:
        self.workload["metadata"]["generation"] += 1
        self.put(self.own, self.workload)

    # The controller

    def see(self, plural: str = "") -> None:
        """Its caches catch up: all of them, or that of one kind."""
        kept = {key: obj for key, obj in self.cached.items() if plural and key.partition("/")[0] != plural}
        fresh = {key: obj for key, obj in self.objects.items() if plural in ("", key.partition("/")[0])}
        self.cached = {**kept, **copy.deepcopy(fresh)}

    def controller(self) -> None:
        seen = self.cached.get(self.own)
        if seen is not None and self.own in self.objects:
            (self._deployment if self.kind == "Deployment" else self._set)(seen)

    def _status(self, seen: Json, **status: Any) -> None:
        self.workload["status"] = {"observedGeneration": seen["metadata"]["generation"], **status}
        self.put(self.own, self.workload)

    def _deployment(self, seen: Json) -> None:
        known = [each for each in self.of("replicasets", self.cached) if self.key(each) in self.objects]
        wanted = without_hash(seen["spec"]["template"])
        same = [each for each in known if without_hash(each["spec"]["template"]) == wanted]
        newest = min(same, key=lambda each: int(each["number"]), default=None)
        active = [each for each in known if each["spec"]["replicas"]]
        if seen["spec"].get("paused"):
            for each in active[:1]:
                self._fill(each, seen["spec"]["replicas"])
        elif newest is None:
            self.rollouts.append("ReplicaSet")
            name = f"web-{len(self.of('replicasets'))}"
            owner = {"kind": "Deployment", "name": "web", "uid": "uid-web"}
            template = copy.deepcopy(seen["spec"]["template"])
            template["metadata"]["labels"]["pod-template-hash"] = name
            meta = {"name": name, "uid": f"uid-{name}", "labels": {"app": "web"}, "generation": 1}
            meta["ownerReferences"] = [{**owner, "controller": True}]
            number = len(self.of("replicasets")) + 1
            made = {"metadata": meta, "spec": {"replicas": 0, "template": template}, "number": number}
            self.put(self.key(made), made)
            for each in active:
                self._fill(each, 0)
            self._fill(made, seen["spec"]["replicas"])
            newest = made
        else:
            for each in (each for each in active if each is not newest):
                self._fill(each, 0)
            self._fill(newest, seen["spec"]["replicas"])
        total = sum(1 for _ in self.pods())
        updated = 0 if newest is None else sum(1 for each in self.pods() if self._belongs(each, newest))
        self._status(seen, replicas=total, updatedReplicas=updated)

    @staticmethod
    def key(replica_set: Json) -> str:
        return f"replicasets/{replica_set['metadata']['name']}"

    @staticmethod
    def _belongs(pod: Json, replica_set: Json) -> bool:
        owner: str = pod["metadata"]["ownerReferences"][0]["uid"]
        return bool(owner == replica_set["metadata"]["uid"])

    def _fill(self, replica_set: Json, count: int) -> None:
        """The controller of ReplicaSets, which always sees the newest template of one."""
        real = self.objects[self.key(replica_set)]
        real["spec"]["replicas"] = count
        own = [each for each in self.pods() if self._belongs(each, real)]
        for each in own[count:]:
            del self.objects[f"pods/{each['metadata']['name']}"]
        owner = {"kind": "ReplicaSet", "name": real["metadata"]["name"], "uid": real["metadata"]["uid"]}
        for _ in range(count - len(own)):
            self.add_pod(f"{real['metadata']['name']}-{self.made:03}", real["spec"]["template"], owner)

    def _set(self, seen: Json) -> None:
        kind, spec = self.kind, seen["spec"]
        revisions = self.of("controllerrevisions")
        same = [each for each in revisions if each["data"]["spec"]["template"] == spec["template"]]
        newest = same[-1] if same else None
        number = max((each["revision"] for each in revisions), default=0) + 1
        if newest is None:
            name = f"web-{number}"
            owner = {"kind": kind, "name": "web", "uid": "uid-web", "controller": True}
            labels = {"app": "web", REVISION: f"hash-{number}"}
            meta = {"name": name, "uid": f"uid-{name}", "labels": labels, "ownerReferences": [owner]}
            data = {"spec": {"template": copy.deepcopy(spec["template"])}}
            newest = {"metadata": meta, "revision": number, "data": data}
        elif newest["revision"] != number - 1:
            newest["revision"] = number
        self.put(f"controllerrevisions/{newest['metadata']['name']}", newest)
        label = newest["metadata"]["name" if kind == "StatefulSet" else "labels"]
        label = label if isinstance(label, str) else label[REVISION]
        owner = {"kind": kind, "name": "web", "uid": "uid-web"}
        partition = spec["updateStrategy"].get("rollingUpdate", {}).get("partition", 0)
        earlier = self.workload.get("status", {}).get("currentRevision", label)
        before = next((each for each in revisions if each["metadata"]["name"] == earlier), newest)
        for number in range(spec["replicas"]):
            name = f"web-{number}"
            pod = self.objects.get(f"pods/{name}")
            rolls = spec["updateStrategy"]["type"] == "RollingUpdate" and number >= partition
            if pod is not None and rolls and pod["metadata"]["labels"][REVISION] != label:
                self.rollouts.append(name)
                pod = None
            if pod is None:
                old = kind == "StatefulSet" and number < partition
                template, its = (before["data"]["spec"]["template"], earlier) if old else (spec["template"], label)
                self.add_pod(name, template, owner, **{REVISION: its})
        for extra in [each for each in self.pods() if int(each["metadata"]["name"][4:]) >= spec["replicas"]]:
            del self.objects[f"pods/{extra['metadata']['name']}"]
        updated = sum(1 for each in self.pods() if each["metadata"]["labels"][REVISION] == label)
        count = len(self.pods())
        current = label if updated == count else earlier
        names = {"updateRevision": label, "currentRevision": current} if kind == "StatefulSet" else {}
        status = {"replicas": count, "updatedReplicas": updated, **names}
        if kind == "DaemonSet":
            scheduled = {f"{which}NumberScheduled": count for which in ("desired", "current")}
            status = {**scheduled, "updatedNumberScheduled": updated}
        self._status(seen, **status)

    # The run

    @property
    def run(self) -> Run:
        rest = read_content(pod_template(OLD), "proxy").rest
        target = Target(f"{self.kind.lower()}.apps/web", "apps/v1", self.kind, "web", "uid-web")
        change = ImageChange(NEW, (OLD,), adopt=True, template=rest)
        return Run("default", "run", target, Options(("proxy",), image=change), "2026-01-01T12:00:00Z")

    def look(self) -> None:
        """The run's watches catch up."""
        self.known = copy.deepcopy(self.objects)

    def world(self) -> World:
        kind = {"apiVersion": "apps/v1", "kind": self.kind}
        workload = {**self.known[self.own], **kind}
        found = [*self.of("replicasets", self.known), *self.of("controllerrevisions", self.known)]
        revisions = []
        for each in found:
            meta = {
                **each["metadata"],
                "annotations": {"deployment.kubernetes.io/revision": str(each.get("number", ""))},
            }
            revisions.append(read_revision({**each, "metadata": meta}, "proxy"))
        state = ImageState((), read_template(workload, "proxy"), tuple(revisions))
        members = tuple(map(read_member, self.pods(self.known)))
        return World(members, workload=read_workload(workload), image=state)

    @property
    def wanted(self) -> str:
        """The image that the run sets."""
        return NEW

    def step(self) -> Adoption:
        """The next step of the run, by what it knows: pods with another image get it first."""
        for pod in self.pods(self.known):
            real = self.objects.get(f"pods/{pod['metadata']['name']}")
            if real is not None and image_of(pod) != self.wanted and real["metadata"]["uid"] == pod["metadata"]["uid"]:
                real["spec"]["containers"][1]["image"] = self.wanted
                return Adoption(wait="a pod gets the image")
        adoption = self.next_step()
        for write in adoption.writes:
            self.write(write)
        return adoption

    def next_step(self) -> Adoption:
        return next_adoption(self.world(), self.run)

    def write(self, write: Write) -> None:
        """The API server: a patch whose tests fail changes nothing, and neither does one of another object."""
        key = f"{write.plural}/{write.name}"
        obj = self.objects.get(key)
        if obj is None:
            return
        if not write.operations:
            if (obj["metadata"]["uid"], obj["metadata"]["resourceVersion"]) == (write.uid, write.version):
                del self.objects[key]
            return
        try:
            changed = jsonpatch.apply_patch(copy.deepcopy(obj), list(write.operations))
        except (jsonpatch.JsonPatchException, jsonpatch.JsonPointerException):
            return
        if "generation" in obj["metadata"] and changed["spec"] != obj["spec"]:
            changed["metadata"]["generation"] += 1
        self.put(key, changed)

    def settle(self) -> Adoption:
        """Everything catches up, until nothing is left to do."""
        adoption = Adoption()
        for _ in range(40):
            self.see()
            self.controller()
            self.look()
            adoption = self.step()
            if adoption.done or adoption.problem:
                return adoption
        return adoption
