"""The end of a run with an image: the workload's template gets the image, and no pod is replaced.

A Deployment's controller compares templates, and those of StatefulSets and DaemonSets read a label of pods. So the
controller is held first (paused, a high partition, or OnDelete) in the same write that changes the template. Then the
ReplicaSet's template, or the labels of the pods follow, and the controller is released. The order of these writes
matters: any other order rolls out new pods.

`next_adoption` keeps no state. The label LABEL_ADOPTING on the workload says that a run holds it, so a run that was
killed after any write continues.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from crrd.core.rollout.image.facts import ImageRun
from crrd.core.rollout.image.names import image_operations
from crrd.core.rollout.image.template import (
    HOLDING_PARTITION,
    LABEL_ADOPTING,
    LABEL_HELD,
    LABEL_REVISION,
    ON_DELETE,
    Content,
    Revision,
    Template,
)
from crrd.core.rollout.phases import RunPhase
from crrd.core.rollout.state import Member
from crrd.lib import jsonpatch
from crrd.lib.jsonpatch import Operation

_PAUSED = "paused"
_SPEC, _ROLLING = "/spec/template/spec", "/spec/updateStrategy/rollingUpdate"
_GENERATION = "/metadata/generation"
ADOPTED_BY = ("Deployment", "StatefulSet", "DaemonSet")
"""Kinds of workloads (apps/v1) whose controllers can adopt pods."""


@dataclass(frozen=True, slots=True)
class Write:
    """One write of an adoption. All of them are bound to what they were decided on."""

    plural: str  # Of group apps, or "pods"
    name: str
    uid: str
    operations: tuple[Operation, ...] = ()  # A JSON patch; none to delete the object
    version: str = ""  # resourceVersion of an object that is deleted


@dataclass(frozen=True, slots=True)
class Adoption:
    """The next step of an adoption."""

    writes: tuple[Write, ...] = ()
    wait: str = ""  # What it waits for
    problem: str = ""  # Why it cannot go on, and what to do
    done: bool = False
    phase: RunPhase = RunPhase.ADOPTING


def next_adoption(facts: ImageRun) -> Adoption:
    """Return the next step. All of the workload's pods have the image, or will get it from this run."""
    state, template = facts.state, facts.template
    if not template.uid:
        return Adoption(wait=f"waiting for {facts.target}")
    if problem := changed_by_others(facts):
        return Adoption(problem=problem)
    has_image = template.content.image == facts.image
    if has_image and template.let_go:  # its label would count if the user held the workload later
        return Adoption((Steps(facts).release(),), phase=RunPhase.RELEASING)
    if has_image and not template.holder:
        if not template.observed:  # what its status says of a rollout is from before the release
            wait = f"waiting until the controller has seen the release of {facts.target}"
            return Adoption(wait=wait, phase=RunPhase.RELEASING)
        if kept := held_by_user(facts):
            return Adoption(problem=kept)
        wait = (facts.world.workload.rolling if facts.world.workload is not None else "") or facts.starting
        return Adoption(wait=wait, done=not wait, phase=RunPhase.RELEASING)
    if facts.is_aborted and not has_image:  # the hold writes both, so this is not what the run has held
        why = f"the template of {facts.target} has {template.content.image}, not {facts.image}"
        return Adoption(problem=f"{why}; {release_command(facts)}")
    if state.revisions is None:
        return Adoption(wait=f"reading the revisions of {facts.target}")
    if state.released:
        return Adoption(problem=f"the image of {facts.target} was set back to {template.content.image} meanwhile")
    obstacle, is_deployment = hindered(facts), template.kind == "Deployment"
    goes_on = facts.is_aborted or (obstacle is not None and template.holder and obstacle.wait)
    if obstacle is not None and not (is_deployment and goes_on):
        return obstacle  # a Deployment that is released replaces no pod in any case
    return (_Deployment(facts) if is_deployment else _Labels(facts)).next(has_image=has_image)


def trial_writes(facts: ImageRun) -> tuple[Write, ...]:
    """Return writes of the adoption that the API server can check by a dry run before the run begins."""
    template = facts.template
    if not template.uid or facts.image == template.content.image:
        return ()
    if template.kind != "Deployment":
        tried = _Labels(facts).next(has_image=False).writes
    else:
        steps = _Deployment(facts)
        begun = (steps.next(has_image=False), *map(steps.follow, facts.state.active))
        tried = tuple(write for each in begun for write in each.writes if write.operations)
    # What is only tried may meet a workload that was scaled since it was read.
    return tuple(replace(each, operations=tuple(filter(_is_timeless, each.operations))) for each in tried)


def _is_timeless(operation: Operation) -> bool:
    return bool(operation["path"] != _GENERATION)


def changed_by_others(facts: ImageRun) -> str:
    """Return why a run must not go on, because somebody else has changed the workload's template; "" if not."""
    change, template, target = facts.change, facts.template, facts.target
    content = template.content
    if not change.template:
        return ""
    held = f", and its controller is held ({LABEL_ADOPTING}: {release_command(facts)})" * bool(template.holder)
    if content.rest != change.template:
        return f"the template of {target} was changed meanwhile{held}"
    if change.is_foreign_template(content.image) or (change.adopt and held and content.image != change.image):
        return f"the image of {target} was set to {content.image} meanwhile{held}"
    return ""


def held_by_user(facts: ImageRun) -> str:
    """Return why pods whose template has the image are replaced once its user releases the workload; "" if not."""
    template = facts.template
    if template.holder or not template.is_suspended or template.updated == template.replicas:
        return ""
    why = f"{facts.target} is held, and not all of its pods have its revision"
    return f"{why}, so its controller replaces them later: use --image-from-template"


def release_command(facts: ImageRun) -> str:
    """Return how to have the controller roll out the template as it is, with new pods."""
    target, where, template = facts.target, f"-n {facts.run.namespace}", facts.template
    if template.kind == "Deployment":
        return f"to roll it out with new pods: kubectl rollout resume {target} {where}"
    if not template.held:
        return f"to let it go: kubectl label {target} {where} {LABEL_ADOPTING}-"
    field = "type" if template.kind == "DaemonSet" else "rollingUpdate.partition"
    return f"to roll it out with new pods, set its spec.updateStrategy.{field} back to {template.held}"


def hindered(facts: ImageRun) -> Adoption | None:
    """Return what to wait for, or why there is no adoption, if a pod does not run the image; None if all do."""
    template, target, image = facts.template, facts.target, facts.image
    there, name, workload = facts.members, facts.container, facts.world.workload
    odd = [each for each in there if facts.image_of(each) != image]
    if not there and workload is not None and workload.desired and not template.holder:
        return Adoption(wait=f"waiting for a pod of {target}")  # so that one has shown that the image works
    if facts.starting:
        return Adoption(wait=facts.starting)
    tried = there or template.holder or facts.change.follow
    if not tried and not any(each.succeeded for each in facts.world.requests_of(facts.run)):
        why = f"no pod of {target} has run {image}"
        return Adoption(problem=f"{why}, so its template was not changed: without pods, change the template itself")
    if odd:
        named = f"pod {odd[0].pod.name} has {facts.image_of(odd[0]) or 'no such container'}"
        if template.holder:
            return Adoption(problem=f"{named}, and its controller is held; {release_command(facts)}")
        if facts.change.follow:
            return Adoption(problem=f"{target} does not follow its template yet, because {named}")
        return Adoption(problem=f"the template of {target} was not changed, because {named}")
    unready = next((each for each in there if not each.ready and not each.pod.containers[name].ready), None)
    if unready is not None and not template.holder:  # an earlier run may have given it an image that does not work
        return Adoption(wait=f"container {name} of pod {unready.pod.name} has {image}, but is not ready")
    return None


def mixed_revisions(revisions: Iterable[Revision], members: Iterable[Member]) -> str:
    """Return why pods cannot get the label of one revision: theirs differ in more than the image; "" if not."""
    rests = {each.label: each.content.rest for each in revisions}
    labels = ((each.pod.name, each.labels.get(LABEL_REVISION, "")) for each in members if each.counts)
    found = {rests[label]: name for name, label in labels if label in rests}
    names = " and ".join(sorted(found.values())[:2])
    return f"pods {names} have revisions that differ in more than the image" if len(found) > 1 else ""


@dataclass(frozen=True)
class Steps:
    """The steps that all kinds share: the controller is held together with the change, and released at the end."""

    facts: ImageRun

    @property
    def template(self) -> Template:
        """The workload's template."""
        return self.facts.template

    def hold(self, value: str, *operations: Operation) -> Write:
        """Give the template the image, and hold the controller. `value`: see LABEL_HELD."""
        labels = {LABEL_ADOPTING: self.facts.run.name} | ({LABEL_HELD: value} if value else {})
        content, name = self.template.content, self.facts.container
        return self.write(
            jsonpatch.test(_GENERATION, self.template.generation),  # all of the spec is as it was decided on
            *image_operations(f"{_SPEC}{content.path}", name, content.image, self.facts.image),
            *operations,
            *([] if self.template.has_labels else [jsonpatch.add("/metadata/labels", {})]),
            *(jsonpatch.add(_label_path(key), text) for key, text in labels.items()),
        )

    def release(self, *operations: Operation) -> Write:
        """Have the controller go on as before."""
        held = [LABEL_HELD] * bool(self.template.held)
        labels = (jsonpatch.remove(_label_path(key)) for key in (LABEL_ADOPTING, *held))
        return self.write(*operations, *labels)

    def write(self, *operations: Operation) -> Write:
        """Patch the workload, whatever its status."""
        plural, name, uid = f"{self.template.kind.lower()}s", self.template.name, self.template.uid
        return Write(plural, name, uid, (jsonpatch.test("/metadata/uid", uid), *operations))

    def is_target(self, content: Content) -> bool:
        """Whether a template is the workload's with the image."""
        return (content.rest, content.image) == (self.template.content.rest, self.facts.image)


class _Deployment(Steps):
    """A Deployment takes the ReplicaSet whose template equals its own for the newest one. So both templates change."""

    def next(self, *, has_image: bool) -> Adoption:
        template, target = self.template, self.facts.target
        active = self.facts.state.active
        if len(active) > 1:
            return Adoption(problem=f"the rollout of {target} is not finished: it has {len(active)} active ReplicaSets")
        twins = [each for each in self.facts.state.own_revisions if self.is_target(each.content) and each not in active]
        if twins:
            # The controller would take the older one for the newest, and scale it up.
            return Adoption(tuple(Write("replicasets", each.name, each.uid, version=each.version) for each in twins))
        if not has_image:
            if template.paused:
                return Adoption(problem=f"{target} is paused: resume it first, and wait for its rollout")
            return Adoption((self.hold(_PAUSED, jsonpatch.add("/spec/paused", value=True)),))
        if not template.observed:
            return Adoption(wait=f"waiting until the controller has seen the new template of {target}")
        if template.replicas and not active:
            return Adoption(wait=f"waiting for the ReplicaSet of {target}")
        if stale := [each for each in active if not self.is_target(each.content)]:
            return self.follow(stale[0])
        if template.replicas and template.updated != template.replicas:
            why = f"waiting until the controller of {target} has seen the new template of its ReplicaSet"
            return Adoption(wait=why)
        return Adoption((self.release(jsonpatch.remove("/spec/paused")),), phase=RunPhase.RELEASING)

    def follow(self, found: Revision) -> Adoption:
        content = found.content
        if content.rest != self.template.content.rest:
            why = f"the template of ReplicaSet {found.name} differs from that of {self.facts.target} in more"
            return Adoption(problem=f"{why} than the image; {release_command(self.facts)}")
        return follow_template(self.facts, found)


class _Labels(Steps):
    """A StatefulSet or DaemonSet takes pods with the label of the newest revision for updated ones."""

    def next(self, *, has_image: bool) -> Adoption:
        template, target = self.template, self.facts.target
        if not has_image:
            return self._before_hold() or Adoption((self._hold(),))
        newest = self._newest()
        if not template.observed or newest is None or not newest.label:
            return Adoption(wait=f"waiting until the controller of {target} has made a revision of the new template")
        by_label = {each.label: each for each in self.facts.state.own_revisions}
        writes = []
        for member in sorted(self.facts.members, key=lambda each: (-each.ordinal, each.pod.name)):
            label = member.labels.get(LABEL_REVISION, "")
            if label == newest.label:
                continue
            before = by_label.get(label)
            if before is None or before.content.rest != newest.content.rest:
                why = f"the revision of pod {member.pod.name} differs from the new one in more than the image"
                return Adoption(problem=f"{why}; {release_command(self.facts)}")
            writes.append(set_label(self.facts, member, label, newest.label))
        if writes:
            return Adoption(tuple(writes))
        if template.updated != template.replicas:  # it watches its pods and itself separately, so order does not help
            return Adoption(wait=f"waiting until the controller of {target} has seen the labels of its pods")
        return Adoption((self.release(*self._restore()),), phase=RunPhase.RELEASING)

    def _before_hold(self) -> Adoption | None:
        """Return why the controller must not be held, None if it may be."""
        known, there = {each.label for each in self.facts.state.own_revisions}, self.facts.members
        if unknown := next((each.pod.name for each in there if each.labels.get(LABEL_REVISION, "") not in known), ""):
            return Adoption(wait=f"reading the revision of pod {unknown}")
        why, target = mixed_revisions(self.facts.state.own_revisions, there), self.facts.target
        return Adoption(problem=f"the template of {target} was not changed, because {why}") if why else None

    def _newest(self) -> Revision | None:
        """The revision of the workload's present template."""
        name = self.template.update_revision if self.template.kind == "StatefulSet" else None
        found = next((each for each in self.facts.state.own_revisions if name in (None, each.name)), None)
        return found if found is not None and found.content.image == self.facts.image else None

    def _hold(self) -> Write:
        """Return the write that changes the template. With OnDelete the controller deletes no pods anyway."""
        strategy, partition = self.template.strategy, self.template.partition
        if strategy == ON_DELETE:
            return self.hold("")
        if self.template.kind == "DaemonSet":
            return self.hold(strategy, jsonpatch.add("/spec/updateStrategy/type", ON_DELETE))
        if partition is None:
            return self.hold("0", jsonpatch.add(_ROLLING, {"partition": HOLDING_PARTITION}))
        return self.hold(str(partition), jsonpatch.add(f"{_ROLLING}/partition", HOLDING_PARTITION))

    def _restore(self) -> Iterator[Operation]:
        held = self.template.held
        if held and self.template.kind == "DaemonSet":
            yield jsonpatch.add("/spec/updateStrategy/type", held)
        elif held.isdecimal():
            yield jsonpatch.add(f"{_ROLLING}/partition", int(held))


def follow_template(facts: ImageRun, found: Revision) -> Adoption:
    """Give a ReplicaSet the image. Its pods are not touched, and new ones get the image."""
    path = f"{_SPEC}{found.content.path}"
    operations = image_operations(path, facts.container, found.content.image, facts.image)
    write = Write("replicasets", found.name, found.uid, (jsonpatch.test("/metadata/uid", found.uid), *operations))
    return Adoption((write,))


def set_label(facts: ImageRun, member: Member, before: str, after: str) -> Write:
    """Give a pod that has the image the label of its revision."""
    path, image = _label_path(LABEL_REVISION), member.pod.path_of(facts.container)
    tests = (
        jsonpatch.test("/metadata/uid", member.pod.uid),
        jsonpatch.test(path, before),
        jsonpatch.test(f"{image}/image", facts.image),
    )
    return Write("pods", member.pod.name, member.pod.uid, (*tests, jsonpatch.replace(path, after)))


def _label_path(key: str) -> str:
    return jsonpatch.pointer("metadata", "labels", key)
