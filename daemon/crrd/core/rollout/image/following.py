"""Pods in place get the image that the template of a held workload has already, and its records follow.

The workload itself is never written, so this fits where a GitOps controller owns it. A paused Deployment, a StatefulSet
with a partition or OnDelete, and a DaemonSet with OnDelete are held: their controllers replace no pod. The pods get the
image first. Then the records follow: the template of the Deployment's ReplicaSet, or the label that says which revision
a pod of a StatefulSet or DaemonSet has. So nothing is rolled out when the workload is released.

A run back (`ImageChange.undoes`) lets the records follow the pods, too, and the template keeps the image.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from crrd.core.rollout.image.adoption import ADOPTED_BY
from crrd.core.rollout.image.facts import ImageRun
from crrd.core.rollout.image.reasons import AdoptionProblem, AdoptionWait
from crrd.core.rollout.image.state import ImageState
from crrd.core.rollout.image.template import LABEL_REVISION, Revision, Template
from crrd.core.rollout.state import Member

_HOW = {
    "Deployment": "pause it (kubectl rollout pause) before its template changes",
    "StatefulSet": "set spec.updateStrategy.rollingUpdate.partition to its number of replicas, or use OnDelete",
    "DaemonSet": "set spec.updateStrategy.type to OnDelete",
}
"""How a workload is held, by its kind."""


@dataclass(frozen=True, slots=True)
class TemplateChange:
    """A container that is to get the image of its workload's template."""

    container: str
    image: str  # The template's
    before: tuple[str, ...] = ()  # The other images that the container has in pods, and that new pods get
    lacking: tuple[tuple[str, str], ...] = ()  # Name and node of each pod with one of them
    rest: str = ""  # As `template.Content.rest`
    behind: bool = True  # Whether what new pods are made of lacks it, too


@dataclass(frozen=True, slots=True)
class TemplateImages:
    """How the images of a template differ from those of the pods."""

    changes: tuple[TemplateChange, ...] = ()
    wait: str = ""  # What must be known first
    problem: str = ""  # Why pods in place cannot follow the template, and what to do
    refused: tuple[str, ...] = ()  # Why single containers must not get their image, and what to do
    lacks_right: bool = False  # Whether a missing right is the problem


def template_images(
    target: str,
    state: ImageState,
    members: Iterable[Member],
    given: Collection[tuple[str, str]] = (),
    failed: Collection[tuple[str, str]] = (),
) -> TemplateImages:
    """Return which images the pods of a held workload lack. `target` is its name in messages.

    `given` are containers and the images that earlier runs have given to pods, and nobody else. Of them, `failed` are
    those of runs that have failed.
    """
    template, there = state.template, [each for each in members if each.counts]
    if template.kind not in ADOPTED_BY:
        return TemplateImages(problem=AdoptionProblem.WRONG_KIND.say(kinds=", ".join(ADOPTED_BY)))
    if not template.observed or state.revisions is None:
        return TemplateImages(wait=AdoptionWait.NOT_OBSERVED.say(target=target))
    if not template.is_suspended:
        return TemplateImages(problem=AdoptionProblem.NOT_HELD.say(target=target, how=_HOW[template.kind]))
    own = state.own_revisions
    records = records_of(state, there)
    if template.kind == "Deployment":
        if len(records) > 1:
            why = AdoptionProblem.SEVERAL.say(target=target, count=len(records))
            return TemplateImages(problem=f"{why}; resume it (kubectl rollout resume), and wait for its rollout")
    else:
        newest = next(iter(own), None)
        if newest is None or (newest.content.rest, newest.content.image) != (
            template.content.rest,
            template.content.image,
        ):
            return TemplateImages(wait=AdoptionWait.NO_REVISION.say(target=target))
        known = {each.label for each in records}
        if unknown := next((each.pod.name for each in there if each.labels.get(LABEL_REVISION, "") not in known), ""):
            return TemplateImages(wait=AdoptionWait.REVISION_UNKNOWN.say(pod=unknown))
    odd = next((each for each in records if each.content.shape != template.content.shape), None)
    if odd is not None:
        return TemplateImages(problem=AdoptionProblem.IN_MORE_THAN_IMAGES.say(target=target, name=odd.name))
    return TemplateImages(tuple(_changes(template, records, there, given, failed)))


def records_of(state: ImageState, members: Iterable[Member]) -> list[Revision]:
    """Return the revisions of which these pods are. While the workload is held, new pods are made of them."""
    if state.template.kind == "Deployment":
        return state.active
    labels = {each.labels.get(LABEL_REVISION, "") for each in members if each.counts}
    return [each for each in state.own_revisions if each.label in labels]


def _changes(
    template: Template,
    records: list[Revision],
    members: list[Member],
    given: Collection[tuple[str, str]],
    failed: Collection[tuple[str, str]],
) -> Iterator[TemplateChange]:
    """Yield the containers whose image a record lacks, or only some of the pods have, or which were `given` another.

    A pod whose image is a pinned tag of the template has it, unless a record has the same digest, or it was `given`.
    A container whose pods all have another image than their record is left alone otherwise, because a webhook or a user
    may have set it. If only the record lacks the image, a run writes it: the label of a pod once it has all images.
    """
    recorded, complete = [], True
    for name, image in template.content.images:
        pods = [each.pod for each in members if name in each.pod.containers]
        of_new_pods = {other for each in records for known, other in each.content.images if known == name}
        names = (image, *sorted(of_new_pods | {other for known, other in given if known == name}))
        found = {pod.name: pod.containers[name].image_among(names) for pod in pods}
        lacking = tuple((pod.name, pod.node_name) for pod in pods if found[pod.name] != image)
        others = {*found.values()} - {image}
        behind = any((name, image) not in each.content.images for each in records)
        if behind and not lacking and (name, image) in failed:
            yield TemplateChange(name, image, tuple(sorted(of_new_pods - {image})))
        elif behind and not lacking:
            recorded.append(TemplateChange(name, image))
        elif behind or 0 < len(lacking) < len(pods) or any((name, other) in given for other in others):
            complete = False
            before = tuple(sorted((others | of_new_pods) - {image}))
            yield TemplateChange(name, image, before, lacking, behind=behind)
    if template.kind == "Deployment" or complete:
        yield from recorded


def planned_writes(facts: ImageRun) -> tuple[str, ...]:
    """Return sentences about what a run writes after the last pod, for a preview."""
    if not facts.change.follow or not facts.template.uid:
        return ()
    image, unchanged = facts.change.template_image, f"; {facts.target} itself is not changed"
    if facts.template.kind != "Deployment":
        return (f"the pods get the label {LABEL_REVISION} of the revision with {image}{unchanged}",)
    return tuple(f"ReplicaSet {each.name} gets {image} in its template{unchanged}" for each in facts.state.active)


def not_held(facts: ImageRun) -> str:
    """Return why the controller would replace a pod that a run back gives its image from before; "" if it would not.

    A partition holds only the pods below it. The others follow the template, which keeps the image.
    """
    template = facts.template
    if template.kind != "StatefulSet" or not facts.change.undoes:
        return ""
    found = next((each for each in facts.members if template.rolls_out(each.ordinal)), None)
    if found is None:
        return ""
    return AdoptionProblem.BEYOND_PARTITION.say(target=facts.target, pod=found.pod.name, how=_HOW[template.kind])


def released_meanwhile(facts: ImageRun) -> str:
    """Return why a run must not go on, because somebody has changed or released the workload; "" if not."""
    change, template, image = facts.change, facts.template, facts.template.content.image
    if template.content.rest != change.template:
        return AdoptionProblem.TEMPLATE_CHANGED.say(target=facts.target, held="")
    if image not in ((change.image, *change.before) if change.undoes else (change.image,)):
        return AdoptionProblem.IMAGE_SET.say(target=facts.target, found=image, held="")
    is_over = template.observed and template.updated == template.replicas
    if not template.is_suspended and not is_over:
        return AdoptionProblem.RELEASED.say(target=facts.target)
    return not_held(facts)
