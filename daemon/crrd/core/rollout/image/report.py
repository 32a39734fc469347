"""The last line of a run with an image: which pods have the image, and which one new pods get."""

from crrd.core.rollout.image.facts import ImageRun
from crrd.core.rollout.image.names import image_ids
from crrd.core.rollout.kind import Kind


def image_report(kind: Kind, facts: ImageRun) -> str:
    """Return a sentence about pods and template."""
    name, image = facts.container, facts.image
    pods = [each for each in facts.members if name in each.pod.containers]
    found = (each for each in pods if facts.image_of(each) == image and facts.has_run(each))
    having = [each for each in found if (each.pod.uid, name) not in kind.unreplaced]
    ids = {each.pod.name: each.pod.containers[name].image_id for each in having}
    report = f"{len(having)} of {len(pods)} pods have {image}"
    return "; ".join(filter(None, (report, _of_template(facts), image_ids(ids, image))))


def _of_template(facts: ImageRun) -> str:
    template, image, wanted = facts.template, facts.template.content.image, facts.change.template_image
    if not image:
        return ""
    if image != wanted and facts.change.follow:
        return f"the template still has {image}: set the image in its source, too, before the workload is released"
    if image != wanted:
        return f"the template still has {image}, so a new pod gets {image}"
    has = "so has the template" if image == facts.image else f"the template has {image}, as before"
    if not template.holder:
        return has
    held = f"its controller is still held by run {template.holder}"
    found = any(each.run.name == template.holder for each in facts.world.requests)
    how = "resume or abort that run" if found else "give the same command again"  # it has no request to find it by
    return f"{has}, but {held}: {how}, or {facts.release_command}"
