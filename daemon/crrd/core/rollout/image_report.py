"""The last line of a run with an image: which pods have the image, and which one new pods get."""

from crrd.core.rollout.adoption import release_command
from crrd.core.rollout.image_change import ImageChange, image_ids
from crrd.core.rollout.image_steps import unreplaced
from crrd.core.rollout.run import Run
from crrd.core.rollout.state import World


def image_report(world: World, run: Run) -> str:
    """Return a sentence about pods and template, "" for a run without an image."""
    change, name = run.options.image, run.options.containers[:1]
    if change is None:
        return ""
    pods = [each for each in world.members if each.counts and set(name) & each.pod.containers.keys()]
    missing = unreplaced(world, run)
    having = [
        each
        for each in pods
        if each.pod.containers[name[0]].image == change.image and (each.pod.uid, name[0]) not in missing
    ]
    report = f"{len(having)} of {len(pods)} pods have {change.image}"
    ids = {each.pod.name: each.pod.containers[name[0]].image_id for each in having}
    return "; ".join(filter(None, (report, _of_template(world, run, change), image_ids(ids, change.image))))


def _of_template(world: World, run: Run, change: ImageChange) -> str:
    template = world.image.template if world.image is not None else None
    image = template.content.image if template is not None else ""
    if not image:
        return ""
    if image != change.image and change.follow:
        return f"the template still has {image}: set the image in its source, too, before the workload is released"
    if image != change.image:
        return f"the template still has {image}, so a new pod gets {image}"
    if template is not None and template.holder:
        held = f"its controller is still held by run {template.holder}"
        found = any(each.run.name == template.holder for each in world.requests)
        how = "resume or abort that run" if found else "give the same command again"  # it has no request to find it by
        return f"so has the template, but {held}: {how}, or {release_command(run, template)}"
    return "so has the template"
