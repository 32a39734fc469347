"""A model of the controllers of Deployments, StatefulSets and DaemonSets, as far as the adoption of pods concerns them.

Each controller has caches of its own that lag behind, and acts on them as the real one does: it compares templates, or
the revision labels of pods, and never looks at the images of pods. Objects are JSON. Every pod that the controller
replaces, and every ReplicaSet that it makes, is a rollout.
"""

import copy
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]
REVISION = "controller-revision-hash"


def without_hash(template: Json) -> Json:
    """Return a template as a Deployment's controller compares it."""
    found = copy.deepcopy(template)
    found["metadata"]["labels"].pop("pod-template-hash", None)
    return found


def key_of(replica_set: Json) -> str:
    """Return the key of a ReplicaSet."""
    return f"replicasets/{replica_set['metadata']['name']}"


@dataclass
class Controllers:
    """The controller of one workload, and those of its ReplicaSets."""

    kind: str
    objects: MutableMapping[str, Json] = field(default_factory=dict)  # By plural and name: `pods/web-0`
    cached: dict[str, Json] = field(default_factory=dict)  # What the controller knows, by the same keys
    rollouts: list[str] = field(default_factory=list)  # What the controller has replaced or made
    version: int = 0
    made: int = 0

    @property
    def own(self) -> str:
        return f"{self.kind.lower()}s/web"

    @property
    def workload(self) -> Json:
        return self.objects[self.own]

    def put(self, key: str, obj: Json) -> None:
        """Store an object."""
        self.version += 1
        obj["metadata"]["resourceVersion"] = str(self.version)
        self.objects[key] = obj

    def of(self, plural: str, where: MutableMapping[str, Json] | None = None) -> list[Json]:
        known = self.objects if where is None else where
        return [known[key] for key in sorted(known) if key.partition("/")[0] == plural]

    def pods(self, where: MutableMapping[str, Json] | None = None) -> list[Json]:
        """Return the pods of the workload."""
        return self.of("pods", where)

    def add_pod(self, name: str, template: Json, owner: Json, **labels: str) -> None:
        """Create a pod of the template, which is ready at once."""
        self.made += 1
        meta = {"name": name, "uid": f"uid-{self.made}", "labels": {**template["metadata"]["labels"], **labels}}
        meta["ownerReferences"] = [{"apiVersion": "apps/v1", **owner, "controller": True}]
        status = {"conditions": [{"type": "Ready", "status": "True"}]}
        self.put(f"pods/{name}", {"metadata": meta, "spec": copy.deepcopy(template["spec"]), "status": status})

    def see(self, plural: str = "") -> None:
        """Its caches catch up: all of them, or that of one kind."""
        kept = {key: obj for key, obj in self.cached.items() if plural and key.partition("/")[0] != plural}
        keys = [key for key in self.objects if plural in ("", key.partition("/")[0])]
        self.cached = {**kept, **copy.deepcopy({key: self.objects[key] for key in keys})}

    def controller(self) -> None:
        """One round of the controller, by what it knows."""
        seen = self.cached.get(self.own)
        if seen is not None and self.own in self.objects:
            (self._deployment if self.kind == "Deployment" else self._set)(seen)

    def _status(self, seen: Json, **status: Any) -> None:
        own = self.workload
        new = {"observedGeneration": seen["metadata"]["generation"], **status}
        if own.get("status") != new:
            own["status"] = new
            self.put(self.own, own)

    def _deployment(self, seen: Json) -> None:
        known = [each for each in self.of("replicasets", self.cached) if key_of(each) in self.objects]
        wanted = without_hash(seen["spec"]["template"])
        same = [each for each in known if without_hash(each["spec"]["template"]) == wanted]
        newest = min(same, key=_number, default=None)
        active = [each for each in known if each["spec"]["replicas"]]
        if seen["spec"].get("paused"):
            for each in active[:1]:
                self._fill(each, seen["spec"]["replicas"])
        else:
            others = [each for each in active if each is not newest]
            if newest is None:
                newest = self._replica_set(seen)
            else:
                self.rollouts += [each["metadata"]["name"] for each in others]
            for each in others:
                self._fill(each, 0)
            self._fill(newest, seen["spec"]["replicas"])
        pods = self.pods()
        updated = 0 if newest is None else sum(1 for each in pods if _belongs(each, newest))
        self._status(seen, replicas=len(pods), updatedReplicas=updated)

    def _replica_set(self, seen: Json) -> Json:
        """Make the ReplicaSet of a new template, without pods."""
        self.rollouts.append("ReplicaSet")
        count = len(self.of("replicasets"))
        name = f"web-{count}"
        owner = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "uid-web", "controller": True}
        template = copy.deepcopy(seen["spec"]["template"])
        template["metadata"]["labels"]["pod-template-hash"] = name
        meta = {"name": name, "uid": f"uid-{name}", "labels": {"app": "web"}, "generation": 1}
        meta |= {"ownerReferences": [owner], "annotations": {"deployment.kubernetes.io/revision": str(count + 1)}}
        made = {"metadata": meta, "spec": {"replicas": 0, "template": template}}
        self.put(key_of(made), made)
        return made

    def _fill(self, replica_set: Json, count: int) -> None:
        """The controller of ReplicaSets, which always sees the newest template of one."""
        real = self.objects[key_of(replica_set)]
        if real["spec"]["replicas"] != count:
            real["spec"]["replicas"] = count
            self.put(key_of(real), real)
        own = [each for each in self.pods() if _belongs(each, real)]
        for each in own[count:]:
            del self.objects[f"pods/{each['metadata']['name']}"]
        owner = {"kind": "ReplicaSet", "name": real["metadata"]["name"], "uid": real["metadata"]["uid"]}
        for _ in range(count - len(own)):
            self.add_pod(f"{real['metadata']['name']}-{self.made:03}", real["spec"]["template"], owner)

    def _revision(self, spec: Json) -> Json:
        """Return the ControllerRevision of the template, which is the newest one from now on."""
        revisions = self.of("controllerrevisions")
        same = [each for each in revisions if each["data"]["spec"]["template"] == spec["template"]]
        newest = same[-1] if same else None
        number = max((each["revision"] for each in revisions), default=0) + 1
        if newest is None:
            name = f"web-{number}"
            owner = {"kind": self.kind, "name": "web", "uid": "uid-web", "controller": True}
            labels = {"app": "web", REVISION: f"hash-{number}"}
            meta = {"name": name, "uid": f"uid-{name}", "labels": labels, "ownerReferences": [owner]}
            data = {"spec": {"template": copy.deepcopy(spec["template"])}}
            newest = {"metadata": meta, "revision": number, "data": data}
        elif newest["revision"] != number - 1:
            newest["revision"] = number
        else:
            return newest
        self.put(f"controllerrevisions/{newest['metadata']['name']}", newest)
        return newest

    def _revision_label(self, pod: Json) -> str:
        """Return the label of a pod as the controller knows it. It has another watch for pods than for workloads."""
        known = self.cached.get(f"pods/{pod['metadata']['name']}", pod)
        same = known["metadata"]["uid"] == pod["metadata"]["uid"]
        return str((known if same else pod)["metadata"]["labels"][REVISION])

    def _set(self, seen: Json) -> None:
        kind, spec, before_round = self.kind, seen["spec"], self.of("controllerrevisions")
        newest = self._revision(spec)
        meta = newest["metadata"]
        label = meta["name"] if kind == "StatefulSet" else meta["labels"][REVISION]
        owner = {"kind": kind, "name": "web", "uid": "uid-web"}
        partition = spec["updateStrategy"].get("rollingUpdate", {}).get("partition", 0)
        earlier = self.workload.get("status", {}).get("currentRevision", label)
        before = next((each for each in before_round if each["metadata"]["name"] == earlier), newest)
        for number in range(spec["replicas"]):
            name = f"web-{number}"
            pod = self.objects.get(f"pods/{name}")
            rolls = spec["updateStrategy"]["type"] == "RollingUpdate" and number >= partition
            if pod is not None and rolls and self._revision_label(pod) != label:
                self.rollouts.append(name)
                del self.objects[f"pods/{name}"]
                pod = None
            if pod is None:
                old = kind == "StatefulSet" and number < partition
                template, its = (before["data"]["spec"]["template"], earlier) if old else (spec["template"], label)
                self.add_pod(name, template, owner, **{REVISION: its})
        for extra in [each for each in self.pods() if int(each["metadata"]["name"][4:]) >= spec["replicas"]]:
            del self.objects[f"pods/{extra['metadata']['name']}"]
        pods = self.pods()
        updated, count = sum(1 for each in pods if self._revision_label(each) == label), len(pods)
        current = label if updated == count else earlier
        if kind == "DaemonSet":
            scheduled = {f"{which}NumberScheduled": count for which in ("desired", "current")}
            self._status(seen, **scheduled, updatedNumberScheduled=updated)
        else:
            names = {"updateRevision": label, "currentRevision": current}
            self._status(seen, replicas=count, updatedReplicas=updated, **names)


def _number(replica_set: Json) -> int:
    return int(replica_set["metadata"]["annotations"]["deployment.kubernetes.io/revision"])


def _belongs(pod: Json, replica_set: Json) -> bool:
    return bool(pod["metadata"]["ownerReferences"][0]["uid"] == replica_set["metadata"]["uid"])
