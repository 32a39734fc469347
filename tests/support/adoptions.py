"""A workload with its controller (`controllers`), and the adoption of its pods by a run."""

import copy
from dataclasses import dataclass, field

import jsonpatch

from crrd.core.rollout.change import ImageChange, TemplateMode
from crrd.core.rollout.image.adoption import next_adoption
from crrd.core.rollout.image.controllers import Adoption, Write
from crrd.core.rollout.image.facts import ImageRun
from crrd.core.rollout.image.invariant import replaces_pods
from crrd.core.rollout.image.state import ImageState
from crrd.core.rollout.image.template import read_content, read_revision, read_template
from crrd.core.rollout.run import Options, Run, Target
from crrd.core.rollout.state import World, read_member
from crrd.core.rollout.workload import read_workload
from tests.support.controllers import Controllers, Json

OLD, NEW = "proxy:1", "proxy:2"


def pod_template(image: str, **labels: str) -> Json:
    """Return a template whose second container is `proxy`."""
    containers = [{"name": "app", "image": "app:1"}, {"name": "proxy", "image": image}]
    return {"metadata": {"labels": {"app": "web", **labels}}, "spec": {"containers": containers}}


def image_of(pod: Json) -> str:
    """Return the image of the container `proxy`."""
    return str(pod["spec"]["containers"][1]["image"])


@dataclass
class Model(Controllers):
    """One workload, its controller, and a run whose pods have the image already."""

    replicas: int = 3
    known: dict[str, Json] = field(default_factory=dict)  # What the run knows

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

    def uids(self) -> set[str]:
        return {pod["metadata"]["uid"] for pod in self.pods()}

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

    # The run

    @property
    def run(self) -> Run:
        rest = read_content(pod_template(OLD), "proxy").rest
        target = Target(f"{self.kind.lower()}.apps/web", "apps/v1", self.kind, "web", "uid-web")
        change = ImageChange(NEW, (OLD,), mode=TemplateMode.ADOPT, template=rest)
        return Run("default", "run", target, Options(("proxy",), image=change), "2026-01-01T12:00:00Z")

    def look(self) -> None:
        """The run's watches catch up."""
        self.known = copy.deepcopy(dict(self.objects))

    def world(self) -> World:
        kind = {"apiVersion": "apps/v1", "kind": self.kind}
        workload = {**self.known[self.own], **kind}
        found = [*self.of("replicasets", self.known), *self.of("controllerrevisions", self.known)]
        revisions = tuple(read_revision(each, "proxy") for each in found)
        state = ImageState((), read_template(workload, "proxy"), revisions)
        members = tuple(map(read_member, self.pods(self.known)))
        return World(members, workload=read_workload(workload), extra=state)

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
        adoption, facts = self.next_step(), ImageRun.of(self.world(), self.run)
        for write in adoption.writes:
            assert not replaces_pods(facts, write), write
            self.write(write)
        return adoption

    def next_step(self) -> Adoption:
        return next_adoption(ImageRun.of(self.world(), self.run))

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
