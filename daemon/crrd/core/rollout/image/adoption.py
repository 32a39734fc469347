"""The end of a run with an image: the workload's template gets the image, or has it already, and no pod is replaced.

A Deployment's controller compares templates, and those of StatefulSets and DaemonSets read a label of pods. So the
controller is held first (paused, a high partition, or OnDelete) in the same write that changes the template. Then the
records follow: the ReplicaSet's template, or the labels of the pods. Then the controller is released. A run from a
template (`following`) does only the second: somebody else holds the workload, and writes its template.

`next_adoption` keeps no state. The label LABEL_ADOPTING on the workload says that a run holds it, so a run that was
killed after any write continues. The steps of each kind of workload are in `controllers`. The order of the writes
matters: `invariant` checks each of them.
"""

from dataclasses import replace

from crrd.core.rollout.image.controllers import Adoption, Write, controller_of
from crrd.core.rollout.image.facts import ImageRun
from crrd.core.rollout.image.reasons import AdoptionProblem, AdoptionWait
from crrd.core.rollout.image.template import LABEL_ADOPTING
from crrd.core.rollout.phases import RunPhase
from crrd.lib.jsonpatch import Operation

_TIMED = "/metadata/generation"
ADOPTED_BY = ("Deployment", "StatefulSet", "DaemonSet")
"""Kinds of workloads (apps/v1) whose controllers can adopt pods."""


def next_adoption(facts: ImageRun) -> Adoption:
    """Return the next step. All of the workload's pods have the image, or will get it from this run."""
    template, follows = facts.template, facts.change.follow
    if not template.uid:
        return Adoption(wait=AdoptionWait.WORKLOAD.say(target=facts.target))
    if not follows and (found := _around_the_hold(facts)) is not None:
        return found
    if facts.state.revisions is None:
        return Adoption(wait=AdoptionWait.REVISIONS.say(target=facts.target))
    if facts.state.released:
        return Adoption(problem=AdoptionProblem.SET_BACK.say(target=facts.target, found=template.content.image))
    obstacle, is_deployment = hindered(facts), template.kind == "Deployment"
    goes_on = facts.is_aborted or (obstacle is not None and template.holder and obstacle.wait)
    if obstacle is not None and (follows or not (is_deployment and goes_on)):
        return obstacle  # a Deployment that is released replaces no pod in any case
    controller = controller_of(facts)
    if not follows and template.content.image != facts.change.template_image:
        return controller.before_hold() or Adoption((controller.hold(),))
    if (step := controller.follow()) is not None:
        return step
    return Adoption(done=True) if follows else Adoption((controller.release(),), phase=RunPhase.RELEASING)


def _around_the_hold(facts: ImageRun) -> Adoption | None:
    """Return the step if the workload does not have to be held any more, or must not be; None if the run goes on."""
    template, releasing = facts.template, RunPhase.RELEASING
    image = facts.change.template_image
    has_image = template.content.image == image
    if template.left_by and (has_image or (facts.is_aborted and facts.has_left_label)):
        # its label would count if the user held the workload later
        return Adoption((controller_of(facts).let_go(),), phase=releasing)
    if problem := changed_by_others(facts):
        return Adoption(problem=problem)
    if has_image and not template.holder:
        if not template.observed:  # what its status says of a rollout is from before the release
            return Adoption(wait=AdoptionWait.RELEASE_SEEN.say(target=facts.target), phase=releasing)
        if kept := held_by_user(facts):
            return Adoption(problem=kept)
        wait = (facts.world.workload.rolling if facts.world.workload is not None else "") or facts.starting
        return Adoption(wait=wait, done=not wait, phase=releasing)
    if facts.is_aborted and not has_image:  # the hold writes both, so this is not what the run has held
        values = {"found": template.content.image, "wanted": image, "release": facts.release_command}
        return Adoption(problem=AdoptionProblem.OTHER_IMAGE.say(target=facts.target, **values))
    return None


def trial_writes(facts: ImageRun) -> tuple[Write, ...]:
    """Return writes of the end that the API server can check by a dry run before the run begins."""
    template, follows = facts.template, facts.change.follow
    if not template.uid or (facts.change.template_image == template.content.image and not follows):
        return ()
    controller = controller_of(facts)
    # ReplicaSets that are deleted before the hold do not change what the hold writes.
    tried = (*(() if follows else (controller.hold(),)), *controller.trial())
    # What is only tried may meet a workload that was scaled since it was read.
    return tuple(replace(each, operations=tuple(filter(_is_timeless, each.operations))) for each in tried)


def _is_timeless(operation: Operation) -> bool:
    return bool(operation["path"] != _TIMED)


def changed_by_others(facts: ImageRun) -> str:
    """Return why a run must not go on, because somebody else has changed the workload's template; "" if not."""
    change, template, content = facts.change, facts.template, facts.template.content
    if not change.template:
        return ""
    held = f", and its controller is held ({LABEL_ADOPTING}: {facts.release_command})" * bool(template.holder)
    if content.rest != change.template:
        return AdoptionProblem.TEMPLATE_CHANGED.say(target=facts.target, held=held)
    if change.is_foreign_template(content.image) or (change.adopt and held and content.image != change.template_image):
        return AdoptionProblem.IMAGE_SET.say(target=facts.target, found=content.image, held=held)
    return ""


def held_by_user(facts: ImageRun) -> str:
    """Return why pods whose template has the image are replaced once its user releases the workload; "" if not."""
    template = facts.template
    if template.holder or not template.is_suspended or template.updated == template.replicas:
        return ""
    return AdoptionProblem.HELD_BY_USER.say(target=facts.target)


def hindered(facts: ImageRun) -> Adoption | None:
    """Return what to wait for, or why there is no adoption, if a pod does not run the image; None if all do."""
    template, there, workload = facts.template, facts.members, facts.world.workload
    odd = next((each for each in there if facts.image_of(each) != facts.image), None)
    if not there and workload is not None and workload.desired and not template.holder:  # one must show that it works
        return Adoption(wait=AdoptionWait.FIRST_POD.say(target=facts.target))
    if facts.starting:
        return Adoption(wait=facts.starting)
    tried = there or template.holder or facts.change.follow
    if not tried and not any(each.succeeded for each in facts.world.requests_of(facts.run)):
        return Adoption(problem=AdoptionProblem.NEVER_RAN.say(target=facts.target, image=facts.image))
    if odd is not None:
        named = f"pod {odd.pod.name} has {facts.image_of(odd) or 'no such container'}"
        following = AdoptionProblem.ODD_WHILE_FOLLOWING if facts.change.follow else AdoptionProblem.ODD_POD
        reason = AdoptionProblem.ODD_WHILE_HELD if template.holder else following
        return Adoption(problem=reason.say(target=facts.target, odd=named, release=facts.release_command))
    containers = ((each, each.pod.containers[facts.container]) for each in there)
    unready = next((each.pod.name for each, container in containers if not each.ready and not container.ready), None)
    if unready is not None and not template.holder:  # an earlier run may have given it an image that does not work
        return Adoption(wait=AdoptionWait.UNREADY.say(container=facts.container, image=facts.image, pod=unready))
    return None
