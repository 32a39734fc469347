"""A workload whose pods get another image by a run, its played controllers, and what happens to them.

The controllers' caches lag behind. The pods are on the node with the daemon. `runs` has the run itself, `promises` of
which are checked here, with what really happens:

- No container is stopped whose image is not on its node.
- No more pods are unavailable than the run and a PodDisruptionBudget allow.
- No controller replaces a pod.
"""

import copy
from collections.abc import Iterator, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any

import jsonpatch

from crrd.core.admission.rules import Denied
from crrd.core.api.pod import parse_meta
from crrd.core.api.types import API_VERSION, KIND, LABEL_READINESS_GATE, NODE_DAEMONS, PLURAL, READINESS_GATE
from crrd.core.policy.stored import LABEL_KEPT
from crrd.core.rollout.image.pull import LABEL_PULL
from crrd.core.rollout.image.template import LABEL_ADOPTING
from tests.simulation.answers import status
from tests.simulation.images import APP, OLD, OTHER, with_digest, without_digest
from tests.simulation.runs import Runs
from tests.simulation.schedule import NODE, SHOP
from tests.simulation.store import Change, Object, key_of
from tests.support.admission import reviewed
from tests.support.controllers import Controllers, Json

if TYPE_CHECKING:
    from tests.simulation.containers import Container
    from tests.simulation.pod import Pod
    from tests.simulation.world import SimulatedWorld

KINDS = ("deployments", "statefulsets", "daemonsets", "replicasets", "controllerrevisions", "pods")
LATE = 5.0  # Seconds after which a run must know that a pod is not ready
YOUNG = 15.0  # Longest time in seconds until a new pod is ready, if nothing fails
BACK_OFF = 50.0  # Longest time in seconds until a container that crashes some times runs again
BLIND = 60.0  # Seconds after a fault of the API in which it may not know


class _Objects(MutableMapping[str, Json]):
    """The shop's objects in the store, as its controllers read and write them."""

    def __init__(self, world: "SimulatedWorld") -> None:
        self._world = world

    def __getitem__(self, key: str) -> Json:
        plural, _, name = key.partition("/")
        obj = self._world.store.get(plural, f"{SHOP}/{name}")
        if obj is None or _is_foreign(obj):
            raise KeyError(key)
        return copy.deepcopy(dict(obj))

    def __setitem__(self, key: str, obj: Json) -> None:
        plural, store = key.partition("/")[0], self._world.store
        obj["metadata"]["namespace"] = SHOP
        old = store.get(plural, key_of(obj))
        if old is None:
            store.create(plural, obj)
            return
        obj["metadata"]["resourceVersion"] = old["metadata"]["resourceVersion"]
        if "generation" in obj["metadata"] and obj["spec"] != old["spec"]:
            obj["metadata"]["generation"] += 1
        store.update(plural, obj)

    def __delitem__(self, key: str) -> None:
        plural, _, name = key.partition("/")
        self._world.store.remove(plural, f"{SHOP}/{name}")

    def __iter__(self) -> Iterator[str]:
        for plural in KINDS:
            for obj in self._world.store.all(plural):
                if obj["metadata"].get("namespace") == SHOP and not _is_foreign(obj):
                    yield f"{plural}/{obj['metadata']['name']}"

    def __len__(self) -> int:
        return sum(1 for _ in self)


class _Played(Controllers):
    """The controllers. Their pods are on the node."""

    rewrites = False  # See the schedule
    gated = False  # Whether pods begin with the condition of the readiness gate, because no manager writes it

    def add_pod(self, name: str, template: Json, owner: Json, **labels: str) -> None:
        """Create a pod that kubelet starts."""
        self.made += 1
        meta = {"name": name, "uid": f"w{self.made}", "labels": {**template["metadata"]["labels"], **labels}}
        meta["ownerReferences"] = [{"apiVersion": "apps/v1", **owner, "controller": True}]
        spec = {**copy.deepcopy(template["spec"]), "nodeName": NODE}
        conditions = [{"type": READINESS_GATE, "status": "True"}] if self.gated else []
        obj = {"metadata": meta, "spec": spec, "status": {"phase": "Pending", "conditions": conditions}}
        self.put(f"pods/{name}", rewritten(obj) if self.rewrites else obj)


class Shop(Runs):
    """The workload of the schedule, if it has one."""

    def __init__(self, world: "SimulatedWorld") -> None:
        super().__init__(world)
        self.played = _Played(world.setup.shop.kind if world.setup.shop else "", _Objects(world))
        self._due: set[str] = set()
        self._turn = 0
        self._blocked_until = 0.0  # The caches do not catch up before
        self._made = 0
        self._broken_by_users: set[str] = set()  # UIDs of pods whose image another client has changed
        self._born: dict[str, float] = {}  # UID -> when a pod was created
        self._crashed: dict[str, float] = {}  # UID -> when a container of it has ended by itself
        self._unready: dict[str, float] = {}  # UID -> since when a pod is not ready
        self._asked_by: dict[str, object] = {}  # UID of a pod -> the process that has made the last request for it
        self._disturbed: dict[str, str] = {}  # UID -> name of a pod that the run has patched, and that is not ready yet

    def open(self) -> None:
        """Create the workload."""
        if (shop := self.shop) is None:
            return
        self.played.rewrites, self.played.gated = shop.rewrites, shop.gate and not shop.labelled
        labels = {LABEL_READINESS_GATE: "enabled"} if shop.labelled else {}
        self._world.store.create("namespaces", {"metadata": {"name": SHOP, "uid": SHOP, "labels": labels}})
        containers = [{"name": "app", "image": APP}, {"name": "proxy", "image": OLD}]
        pod_spec: Json = {"restartPolicy": "Always", "containers": containers}
        if shop.gate:
            pod_spec["readinessGates"] = [{"conditionType": READINESS_GATE}]
        self._world.changes.add_uses(pod_spec)
        template = {"metadata": {"labels": {"app": "web"}}, "spec": pod_spec}
        spec = {"replicas": shop.replicas, "selector": {"matchLabels": {"app": "web"}}, "template": template}
        if shop.kind != "Deployment":
            rolling = {"partition": 0} if shop.kind == "StatefulSet" else {"maxUnavailable": 1}
            spec["updateStrategy"] = {"type": "RollingUpdate", "rollingUpdate": rolling}
        ready = {"conditions": [{"type": "Ready", "status": "True"}]}
        labels = dict(each.split("=") for each in NODE_DAEMONS.split(","))
        daemon = {"namespace": "crrd", "name": "crrd-node", "uid": "d1", "labels": labels}
        self._world.store.create("pods", {"metadata": daemon, "spec": {"nodeName": NODE}, "status": ready})
        if shop.budget:
            meta = {"namespace": SHOP, "name": "web", "uid": "b1", "generation": 1}
            wants = {"selector": {"matchLabels": {"app": "web"}}, "maxUnavailable": 1}
            self._world.store.create("poddisruptionbudgets", {"metadata": meta, "spec": wants})
        meta = {"name": "web", "uid": "uid-web", "generation": 1}
        self.played.put(self.played.own, {"metadata": meta, "spec": spec})
        self._world.changes.open()

    # The controllers, and kubelet's view.

    def changed(self, kind: str, change: Change) -> None:
        """An object of the shop has changed."""
        old, new = change.old, change.new
        if kind == "pods":
            self._pod_changed(old, new)
        if kind in KINDS and kind not in self._due:
            self._due.add(kind)
            lags = self.shop.lags if self.shop is not None else ()
            self._turn += 1
            now = self._world.loop.time()
            at = max(now + lags[self._turn % len(lags)], self._blocked_until)
            self._world.loop.call_at(at, self._catch_up, kind)

    def _catch_up(self, kind: str) -> None:
        """The caches of one kind catch up, and the controllers act."""
        self._due.discard(kind)
        self.played.see(kind)
        self.played.controller()
        self._allow()

    def _allow(self) -> None:
        """The controller of PodDisruptionBudgets."""
        budget = self._world.store.get("poddisruptionbudgets", f"{SHOP}/web")
        if budget is not None:
            ready = sum(1 for each in self.pods() if is_ready(each))
            wanted = self.played.workload["spec"]["replicas"]
            new = {"disruptionsAllowed": max(0, ready - max(0, wanted - 1)), "observedGeneration": 1}
            self._world.store.update("poddisruptionbudgets", {**budget, "status": new})

    def _pod_changed(self, old: Object | None, new: Object | None) -> None:
        some, kubelet = new or old, self._world.kubelet
        assert some is not None
        if _is_pull(some):
            if old is None:
                self._world.images.take(some)
            elif new is None:
                self._world.images.leave(some)
            return
        uid = some["metadata"]["uid"]
        if new is None:
            self._unready.pop(uid, None)
            self._disturbed.pop(uid, None)
            if uid in kubelet.pods:
                kubelet.delete(kubelet.pods[uid])
            return
        if old is None:
            self._born[uid] = self._unready[uid] = self._world.loop.time()
            self._world.loop.call_later(0.02, kubelet.take, new)
            return
        if new["spec"] != old["spec"]:
            self._spec_changed(old, new)
        if new["metadata"].get("annotations") != old["metadata"].get("annotations"):
            self._world.changes.annotated(uid)
        if new["spec"] != old["spec"] or _gate_of(new) != _gate_of(old):
            self._world.loop.call_later(0.3, kubelet.see, new)
        if is_ready(new):
            self._unready.pop(uid, None)
            pod = kubelet.pods.get(uid)
            if pod is not None and self._runs_its_image(pod, image_of(new)):
                self._disturbed.pop(uid, None)
        else:
            self._unready.setdefault(uid, self._world.loop.time())

    def _runs_its_image(self, pod: "Pod", image: str) -> bool:
        found = self._world.containers.of(pod.runtime_uid, "proxy")
        return bool(found) and found[-1].state == "running" and found[-1].image == image

    # What is checked.

    def _spec_changed(self, old: Object, new: Object) -> None:
        """The image of a pod has changed."""
        uid, name = new["metadata"]["uid"], new["metadata"]["name"]
        if not self.by_run:
            self._broken_by_users.add(uid)
            return
        self._broken_by_users.discard(uid)
        self._world.say("run", f"gives {name} {image_of(new)}")
        if is_ready(old):
            self._disturbed[uid] = name
        shop = self.shop
        if shop is not None and shop.gate and shop.grace is not None and _gate_of(old) != ["False"]:
            self._world.broken(f"{name} gets {image_of(new)}, and it was not made unready before")
        if shop is not None and len(self._disturbed) > self._most(shop):
            self._world.broken(f"the run has taken down too many pods: {sorted(self._disturbed.values())}")

    @staticmethod
    def _most(shop: Any) -> int:
        return min(shop.max_unavailable, 1) if shop.budget else int(shop.max_unavailable)

    def _check_begin(self, pod: Object) -> None:
        """A request of the run for a pod is created."""
        shop, now, own = self.shop, self._world.loop.time(), pod["metadata"]["uid"]
        self._asked_by[own] = self.process
        if shop is None or not is_ready(pod) or not self._world.could_write(now - BLIND, now):
            return
        names = {each["metadata"]["uid"]: each["metadata"]["name"] for each in self.pods()}
        away = {uid for uid, since in self._unready.items() if uid in names and now - since > LATE}
        away |= {uid for uid in names if uid in self._disturbed}
        open_requests = [each for each in self.requests() if each.get("status", {}).get("phase") != "Completed"]
        away |= {uid for each in open_requests for uid, name in names.items() if name == each["spec"]["podName"]}
        is_down = self._world.setup.changes is not None and self._world.changes.judge.is_down(own)
        if not is_down and len(away - {own}) + 1 > self._most(shop):
            others = sorted(names[uid] for uid in away - {own})
            self._world.broken(f"the run begins {pod['metadata']['name']} while {others} are unavailable")

    def replaces(self, pod: "Pod", container: "Container", image: str) -> None:
        """Kubelet is about to stop a container, because the image of the pod has changed."""
        if pod.uid not in self._broken_by_users and not self._world.images.has(image):
            self._world.broken(f"{pod.name}/{container.name} is stopped, and {image} is not on its node")

    # The API server's side of the run's calls.

    def create_request(self, body: Object, *, dry_run: bool) -> tuple[int, Object]:
        """Admission, as the manager does it."""
        pod = self._world.store.get("pods", f"{SHOP}/{body['spec']['podName']}")
        asked = {"apiVersion": API_VERSION, "kind": KIND, **body}
        found = reviewed(asked, None if pod is None else dict(pod), "ann", self._world.setup.kubelet)
        if isinstance(found, Denied):
            return 422, status(422, "Invalid", found.message, body["metadata"]["name"])
        assert pod is not None
        self._made += 1
        made = {**found, "metadata": {**found["metadata"], "namespace": SHOP, "uid": f"q{self._made}"}}
        if dry_run:
            return 201, made
        self._check_begin(pod)
        self._world.changes.begins(made, pod)
        return 201, self._world.store.create(PLURAL, made)

    def create_pull_pod(self, body: Object, *, dry_run: bool) -> tuple[int, Object]:
        """Create a pull pod."""
        self._made += 1
        made = {**body, "metadata": {**body["metadata"], "uid": f"l{self._made}"}, "status": {"phase": "Pending"}}
        if self.shop is not None and self.shop.rewrites:
            made = rewritten(made)
        return 201, made if dry_run else self._world.store.create("pods", made)

    def json_patch(self, kind: str, obj: Object, operations: list[Any], *, dry_run: bool) -> tuple[int, Object]:
        """Apply a JSON patch, if its tests hold."""
        name = obj["metadata"]["name"]
        try:
            new = jsonpatch.apply_patch(copy.deepcopy(dict(obj)), operations)
        except (jsonpatch.JsonPatchException, jsonpatch.JsonPointerException) as error:
            return 422, status(422, "Invalid", f"the server rejected our request: {error}", name)
        if kind == "pods" and self.shop is not None and self.shop.rewrites:
            new = rewritten(new)
        if "generation" in new["metadata"] and new["spec"] != obj["spec"]:
            new["metadata"]["generation"] += 1
        return 200, new if dry_run else self._world.store.update(kind, new)

    # Other people and programs.

    def happen(self, kind: str, about: Mapping[str, Any]) -> bool:
        """Carry out an event of the schedule. Return whether it had an effect."""
        if self._world.store.get(self.played.own.partition("/")[0], f"{SHOP}/web") is None:
            return False
        return bool(getattr(self, f"_do_{kind}")(about))

    def _do_scale(self, about: Mapping[str, Any]) -> bool:
        own = self.played.workload
        own["spec"]["replicas"] = about["replicas"]
        self.played.put(self.played.own, own)
        return True

    def _do_lose(self, about: Mapping[str, Any]) -> bool:
        """A pod is evicted, or its node is drained."""
        if pods := self.pods():
            self._world.store.remove("pods", key_of(pods[about["pod"] % len(pods)]))
        return bool(pods)

    def _do_crash(self, about: Mapping[str, Any]) -> bool:
        pods = [pod for pod in self._world.kubelet.pods.values() if pod.images and not pod.removed]
        if pods:
            pod = pods[about["pod"] % len(pods)]
            self._crashed[pod.uid] = self._world.loop.time()
            self._world.kubelet.crash(pod, about["container"], 1)
        return bool(pods)

    def _do_edit_pod(self, about: Mapping[str, Any]) -> bool:
        """Somebody gives a pod a third image."""
        pods = self.pods()
        if pods:
            pod = copy.deepcopy(dict(pods[about["pod"] % len(pods)]))
            pod["spec"]["containers"][1]["image"] = OTHER
            self.meddled("edit_pod")
            self._world.store.update("pods", pod)
        return bool(pods)

    def _do_rollout(self, about: Mapping[str, Any]) -> bool:
        """A user changes something else in the template."""
        own = self.played.workload
        own["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 7
        self.meddled("rollout")
        self.played.put(self.played.own, own)
        return True

    def _do_revert(self, _: Mapping[str, Any]) -> bool:
        """A GitOps controller puts the old image back, if the template has another one."""
        own = self.played.workload
        entry = own["spec"]["template"]["spec"]["containers"][1]
        if entry["image"] == OLD:
            return False
        entry["image"] = OLD
        self.meddled("revert")
        self.played.put(self.played.own, own)
        return True

    def _do_note(self, about: Mapping[str, Any]) -> bool:
        """Another writer changes annotations of everything."""
        note = {"metadata": {"annotations": {"note": str(self._world.loop.time())}}}
        for plural in (*KINDS, PLURAL):
            for obj in self._world.store.all(plural):
                if obj["metadata"].get("namespace") == SHOP:
                    self._world.store.patch(plural, key_of(obj), note)
        return True

    def _do_unask(self, about: Mapping[str, Any]) -> bool:
        """Somebody deletes a request of the run."""
        found = self.requests()
        if not found:
            return False
        chosen = found[about["pod"] % len(found)]
        self._world.store.delete(PLURAL, key_of(chosen))
        for uid, name in [*self._disturbed.items()]:
            if name == chosen["spec"]["podName"] and self.process is not self._asked_by[uid]:
                del self._disturbed[uid]  # another process cannot see that kubelet has yet to replace the container
        return True

    def _do_lag(self, about: Mapping[str, Any]) -> bool:
        """The controllers' caches do not catch up for a while."""
        self._blocked_until = self._world.loop.time() + about["seconds"]
        return True

    def _do_registry(self, about: Mapping[str, Any]) -> bool:
        """The registry refuses pulls, or does not answer."""
        images = self._world.images
        if about["hangs"]:
            images.hangs_until = self._world.loop.time() + about["seconds"]
        else:
            images.down = True
            self._world.loop.call_later(about["seconds"], setattr, images, "down", False)
        return True

    def _do_collect(self, _: Mapping[str, Any]) -> bool:
        self._world.kubelet.collect()
        return True

    # For `runs`.

    def pods(self) -> list[Object]:
        """Return the workload's pods."""
        found = (obj for obj in self._world.store.all("pods") if obj["metadata"].get("namespace") == SHOP)
        return [obj for obj in found if not _is_pull(obj)]

    def requests(self) -> list[Object]:
        """Return the run's requests."""
        return [obj for obj in self._world.store.all(PLURAL) if obj["metadata"].get("namespace") == SHOP]

    def pull_pods(self) -> list[Object]:
        """Return the pull pods that are left."""
        found = (obj for obj in self._world.store.all("pods") if obj["metadata"].get("namespace") == SHOP)
        return [obj for obj in found if _is_pull(obj)]

    def is_held(self) -> bool:
        """Whether a run holds the workload's controller."""
        own = self.played.workload
        rolling = own["spec"].get("updateStrategy", {}).get("rollingUpdate", {})
        odd = own["spec"].get("paused") or own["spec"].get("updateStrategy", {}).get("type") == "OnDelete"
        return bool(odd or rolling.get("partition") or LABEL_ADOPTING in own["metadata"].get("labels", {}))

    def template_image(self) -> str:
        """Return the image in the template."""
        return without_digest(image_of(self.played.workload["spec"]["template"]))

    def wrong_pods(self, wanted: str) -> list[str]:
        """Return the pods that do not have this image. With a kept template, the newest ones have the old one."""
        late = self._world.loop.time() - (LATE if self.shop is not None and not self.shop.adopt else 0.0)
        there = [each for each in self.pods() if self._born[each["metadata"]["uid"]] <= late]
        images = {each["metadata"]["name"]: image_of(each) for each in there}
        return [f"{name} has {image}" for name, image in images.items() if without_digest(image) != wanted]

    def gated(self) -> list[str]:
        """Return the pods whose gate needs the manager's condition. After an outage it takes a while to try again."""
        if self.shop is None or not self.shop.labelled:
            return []
        pods = [each for each in map(parse_meta, self.pods()) if not (each.deleting or each.ended)]
        return [each.name for each in pods if each.readiness_gate and not each.readiness.status]

    def running_wrong(self) -> list[str]:
        """Return the pods that are not ready, or whose container has another image than the spec."""
        kubelet = self._world.kubelet.pods
        return [
            each["metadata"]["name"]
            for each in self.pods()
            if self._world.loop.time() - self._born[each["metadata"]["uid"]] > YOUNG
            if self._world.loop.time() - self._crashed.get(each["metadata"]["uid"], 0.0) > BACK_OFF
            if not is_ready(each)
            or each["metadata"]["uid"] not in kubelet
            or not self._runs_its_image(kubelet[each["metadata"]["uid"]], image_of(each))
        ]


def image_of(pod: Mapping[str, Any]) -> str:
    """Return the image of the container `proxy`, of a pod or a template."""
    return str(pod["spec"]["containers"][1]["image"])


def rewritten(pod: Json) -> Json:
    """Return a pod as the webhook stores it."""
    containers = [{**each, "image": with_digest(each["image"])} for each in pod["spec"]["containers"]]
    return {**pod, "spec": {**pod["spec"], "containers": containers}}


def is_ready(pod: Object) -> bool:
    """Whether its condition Ready is true."""
    conditions = pod.get("status", {}).get("conditions", ())
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _gate_of(pod: Object) -> list[str]:
    conditions = pod.get("status", {}).get("conditions", ())
    return [each["status"] for each in conditions if each["type"] == READINESS_GATE]


def _is_pull(obj: Object) -> bool:
    return LABEL_PULL in obj["metadata"].get("labels", {})


def _is_foreign(obj: Object) -> bool:
    """Whether the workload's controllers have nothing to do with an object."""
    return _is_pull(obj) or LABEL_KEPT in obj["metadata"].get("labels", {})
