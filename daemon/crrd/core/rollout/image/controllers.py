"""How the controller of each kind of workload is held, and what must follow so that it replaces no pod."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from crrd.core.rollout.image.facts import ImageRun
from crrd.core.rollout.image.names import image_operations
from crrd.core.rollout.image.reasons import AdoptionProblem, AdoptionWait
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
from crrd.lib.jsonfields import decimal
from crrd.lib.jsonpatch import Operation

SPEC, ROLLING = "/spec/template/spec", "/spec/updateStrategy/rollingUpdate"
PAUSED, STRATEGY = "/spec/paused", "/spec/updateStrategy/type"
_GENERATION = "/metadata/generation"


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


def controller_of(facts: ImageRun) -> "Controller":
    """Return the steps for the workload of a run."""
    return _Deployment(facts) if facts.template.kind == "Deployment" else _Set(facts)


def mixed_revisions(revisions: Iterable[Revision], members: Iterable[Member]) -> str:
    """Return why pods cannot get the label of one revision: theirs differ in more than the image; "" if not."""
    rests = {each.label: each.content.rest for each in revisions}
    labels = ((each.pod.name, label_of(each)) for each in members if each.counts)
    found = {rests[label]: name for name, label in labels if label in rests}
    names = " and ".join(sorted(found.values())[:2])
    return AdoptionProblem.MIXED_REVISIONS.say(pods=names) if len(found) > 1 else ""


@dataclass(frozen=True)
class Controller(ABC):
    """The steps for one workload."""

    facts: ImageRun

    @property
    def template(self) -> Template:
        """The workload's template."""
        return self.facts.template

    @property
    def image(self) -> str:
        """The image of the template in the end."""
        return self.facts.change.template_image

    @abstractmethod
    def before_hold(self) -> Adoption | None:
        """Return what comes before the hold, or why there must be none; None if nothing does."""

    @abstractmethod
    def hold(self) -> Write:
        """Return the write that holds the controller and gives the template the image."""

    @abstractmethod
    def follow(self) -> Adoption | None:
        """Return the next step until records and template agree, and the controller has seen it; None then."""

    @abstractmethod
    def release(self) -> Write:
        """Return the write after which the controller goes on as before."""

    def trial(self) -> tuple[Write, ...]:
        """Return writes of records that can be tried before the run begins."""
        return ()

    def let_go(self, *operations: Operation) -> Write:
        """Return the write that takes the run's labels from the workload."""
        held = [LABEL_HELD] * bool(self.template.held)
        return self.write(*operations, *(jsonpatch.remove(label_path(key)) for key in (LABEL_ADOPTING, *held)))

    def write(self, *operations: Operation) -> Write:
        """Patch the workload, whatever its status."""
        plural, name, uid = f"{self.template.kind.lower()}s", self.template.name, self.template.uid
        return Write(plural, name, uid, (jsonpatch.test("/metadata/uid", uid), *operations))

    def is_target(self, content: Content) -> bool:
        """Whether a template is the workload's with the image."""
        return (content.rest, content.image) == (self.template.content.rest, self.image)

    def _hold(self, value: str, *operations: Operation) -> Write:
        """`value`: see LABEL_HELD."""
        labels = {LABEL_ADOPTING: self.facts.run.name} | ({LABEL_HELD: value} if value else {})
        content = self.template.content
        return self.write(
            jsonpatch.test(_GENERATION, self.template.generation),  # all of the spec is as it was decided on
            *image_operations(f"{SPEC}{content.path}", self.facts.container, content.image, self.image),
            *operations,
            *([] if self.template.has_labels else [jsonpatch.add("/metadata/labels", {})]),
            *(jsonpatch.add(label_path(key), text) for key, text in labels.items()),
        )


class _Deployment(Controller):
    """A Deployment takes the ReplicaSet whose template equals its own for the newest one. So both templates change."""

    def before_hold(self) -> Adoption | None:
        """See Controller."""
        if found := self._several() or self._twins():
            return found
        return Adoption(problem=AdoptionProblem.PAUSED.say(target=self.facts.target)) if self.template.paused else None

    def hold(self) -> Write:
        """See Controller."""
        return self._hold("paused", jsonpatch.add(PAUSED, value=True))

    def follow(self) -> Adoption | None:
        """See Controller."""
        target, template, follows = self.facts.target, self.template, self.facts.change.follow
        active = self.facts.state.active
        if several := self._several():
            return several
        same_rest = bool(active) and active[0].content.rest == template.content.rest
        agrees = same_rest and template.content.image == self.image
        if (agrees or not follows) and (twins := self._twins()):
            return twins
        if not template.observed and not follows:
            return Adoption(wait=AdoptionWait.TEMPLATE_SEEN.say(target=target))
        if not active:
            return Adoption(wait=AdoptionWait.REPLICA_SET.say(target=target)) if template.replicas else None
        own = active[0]
        if not follows and not same_rest:
            values = {"name": own.name, "release": self.facts.release_command}
            return Adoption(problem=AdoptionProblem.OTHER_REPLICA_SET.say(target=target, **values))
        if own.content.image != self.image:
            if own.content.shape != template.content.shape:
                return Adoption(problem=AdoptionProblem.OTHER_SHAPE.say(target=target, name=own.name))
            return Adoption((self._give(own),))
        if agrees and template.replicas and template.updated != template.replicas:
            return Adoption(wait=AdoptionWait.REPLICA_SET_SEEN.say(target=target))
        return None

    def release(self) -> Write:
        """See Controller."""
        return self.let_go(jsonpatch.remove(PAUSED))

    def trial(self) -> tuple[Write, ...]:
        """See Controller."""
        return tuple(self._give(each) for each in self.facts.state.active if each.content.image != self.image)

    def _several(self) -> Adoption | None:
        """Return the problem of a Deployment with several ReplicaSets, None if it has one at most."""
        target, count = self.facts.target, len(self.facts.state.active)
        return Adoption(problem=AdoptionProblem.SEVERAL.say(target=target, count=count)) if count > 1 else None

    def _twins(self) -> Adoption | None:
        """Return the step that deletes ReplicaSets without pods that have the template with the image.

        The controller would take the older one for the newest, and scale it up.
        """
        active = self.facts.state.active
        twins = [each for each in self.facts.state.own_revisions if self.is_target(each.content) and each not in active]
        writes = tuple(Write("replicasets", each.name, each.uid, version=each.version) for each in twins)
        return Adoption(writes) if writes else None

    def _give(self, found: Revision) -> Write:
        """Return the write that gives a ReplicaSet the image. Its pods are not touched, and new ones get the image."""
        path, before = f"{SPEC}{found.content.path}", found.content.image
        operations = image_operations(path, self.facts.container, before, self.image)
        return Write("replicasets", found.name, found.uid, (jsonpatch.test("/metadata/uid", found.uid), *operations))


class _Set(Controller):
    """A StatefulSet or DaemonSet takes pods with the label of the newest revision for updated ones."""

    def before_hold(self) -> Adoption | None:
        """See Controller. All pods get the label of one revision, so theirs must differ in the image alone."""
        revisions, there = self.facts.state.own_revisions, self.facts.members
        rests = {each.label: each.content.rest for each in revisions}
        if unknown := next((each.pod.name for each in there if label_of(each) not in rests), ""):
            return Adoption(wait=AdoptionWait.REVISION_OF_POD.say(pod=unknown))
        why = mixed_revisions(revisions, there)
        return Adoption(problem=AdoptionProblem.NOT_ADOPTED.say(target=self.facts.target, why=why)) if why else None

    def hold(self) -> Write:
        """See Controller. With OnDelete the controller deletes no pods anyway."""
        strategy, partition = self.template.strategy, self.template.partition
        if strategy == ON_DELETE:
            return self._hold("")
        if self.template.kind == "DaemonSet":
            return self._hold(strategy, jsonpatch.add(STRATEGY, ON_DELETE))
        if partition is None:
            return self._hold("0", jsonpatch.add(ROLLING, {"partition": HOLDING_PARTITION}))
        return self._hold(str(partition), jsonpatch.add(f"{ROLLING}/partition", HOLDING_PARTITION))

    def follow(self) -> Adoption | None:
        """See Controller."""
        template, newest = self.template, self._newest()
        if newest is None:
            return Adoption(wait=AdoptionWait.REVISION_MADE.say(target=self.facts.target))
        by_label = {each.label: each for each in self.facts.state.own_revisions}
        writes, labels = [], set[str]()
        for member in sorted(self.facts.members, key=lambda each: (-each.ordinal, each.pod.name)):
            label, before = label_of(member), by_label.get(label_of(member))
            after = self._next_revision(member, before, newest)
            if isinstance(after, Adoption):
                return after
            labels.add(after.label)
            if after.label != label:
                writes.append(set_label(self.facts, member, label, after.label))
        if writes:
            return Adoption(tuple(writes))
        complete = not self.facts.change.follow or (labels <= {newest.label} and self.is_target(newest.content))
        if complete and template.updated != template.replicas:
            # it watches its pods and itself separately, so order does not help
            return Adoption(wait=AdoptionWait.LABELS_SEEN.say(target=self.facts.target))
        return None

    def release(self) -> Write:
        """See Controller."""
        return self.let_go(*self._restored())

    def _restored(self) -> Iterator[Operation]:
        held = self.template.held
        if held and self.template.kind == "DaemonSet":
            yield jsonpatch.add(STRATEGY, held)
        elif (partition := decimal(held)) is not None:
            yield jsonpatch.add(f"{ROLLING}/partition", partition)

    def _newest(self) -> Revision | None:
        """Return the newest revision. If this run has changed the template: None until it has one."""
        own = self.facts.state.own_revisions
        if self.facts.change.follow:
            return next(iter(own), Revision("", "", "", "", Content()))
        name = self.template.update_revision if self.template.kind == "StatefulSet" else None
        found = next((each for each in own if name in (None, each.name)), None)
        known = self.template.observed and found is not None and found.label
        return found if known and found is not None and found.content.image == self.image else None

    def _next_revision(self, member: Member, before: Revision | None, newest: Revision) -> Revision | Adoption:
        """Return the revision that a pod is of with its present images, or why that is not known.

        A pod of a workload that this run holds is of the newest one.
        """
        name, image = member.pod.name, self.image
        if not self.facts.change.follow:
            if before is newest or (before is not None and before.content.rest == newest.content.rest):
                return newest
            release = self.facts.release_command
            return Adoption(problem=AdoptionProblem.OTHER_REVISION.say(pod=name, release=release))
        if before is None:
            return Adoption(wait=AdoptionWait.REVISION_OF_POD.say(pod=name))
        after = self._fitting(member, before)
        if after is None and before is newest and before.content.image != image:
            return Adoption(problem=AdoptionProblem.REVISION_GONE.say(target=self.facts.target, wanted=image))
        return after or before

    def _fitting(self, member: Member, before: Revision) -> Revision | None:
        """Return the revision that a pod has with its present images, None if there is none.

        Only images that differ from those of its earlier revision are compared, because a webhook may have changed
        others when the pod was created.
        """
        there, had, own = member.pod.containers, set(before.content.images), self.facts.container
        revisions = self.facts.state.own_revisions
        names = [pair for each in revisions for pair in each.content.images]
        for each in revisions:
            other = [(name, image) for name, image in each.content.images if (name, image) not in had and name != own]
            fits = all(
                name in there and there[name].image_among((image, *(it for key, it in names if key == name))) == image
                for name, image in other
            )
            if fits and (each.content.shape, each.content.image) == (before.content.shape, self.image):
                return each
        return None


def set_label(facts: ImageRun, member: Member, before: str, after: str) -> Write:
    """Return the write that gives a pod which has the image the label of its revision."""
    path, image = label_path(LABEL_REVISION), member.pod.path_of(facts.container)
    tests = (
        jsonpatch.test("/metadata/uid", member.pod.uid),
        jsonpatch.test(path, before),
        jsonpatch.test(f"{image}/image", member.pod.containers[facts.container].image),
    )
    return Write("pods", member.pod.name, member.pod.uid, (*tests, jsonpatch.replace(path, after)))


def label_of(member: Member) -> str:
    """Return the label that says of which revision a pod is."""
    return member.labels.get(LABEL_REVISION, "")


def label_path(key: str) -> str:
    """Return the JSON pointer to a label."""
    return jsonpatch.pointer("metadata", "labels", key)
