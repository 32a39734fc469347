"""Tries the writes of a run with an image as dry runs, before the run begins. Nothing is written.

Each refusal says why, and what to do instead.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from crrd.core.api.images import is_rewritten
from crrd.core.api.pod import SIDECAR_SETS
from crrd.core.api.v1alpha1 import parse_request
from crrd.core.rollout.image.adoption import trial_writes
from crrd.core.rollout.image.facts import ImageRun
from crrd.core.rollout.image.pull import PULL_CONTAINER, lacking, read_pull_pod
from crrd.core.rollout.image.steps import patch_of
from crrd.core.rollout.image.template import read_content
from crrd.core.rollout.rows import Row
from crrd.kube.client import KubeClient
from crrd.kube.resources import PODS, REQUESTS, Resource
from crrd.lib.errors import ApiRefusedError, ConfigurationError, ConflictError
from crrd.lib.jsonfields import items, mapping, mapping_at, text
from crrd.rollout.image.pulls import create_pull_pod

Json = Mapping[str, Any]


async def try_pods(client: KubeClient, facts: ImageRun, rows: Sequence[Row]) -> ImageRun:
    """Return the run after each of its writes for the first of these pods was tried.

    If a webhook changes the image of the pod, for example to one with a digest, the run uses that image. Raises
    ConfigurationError if the run must not begin.
    """
    if not rows:
        return facts
    row, run, change = rows[0], facts.run, facts.change
    like = await client.get(PODS, run.namespace, row.pod)
    _check_injected(facts, like)
    try:
        body = run.request(row.pod, row.uid, row.containers, row.failed)
        _check_request(await client.create(REQUESTS, run.namespace, body, dry_run=True))
        patched = await client.json_patch(PODS, run.namespace, row.pod, patch_of(facts, row), dry_run=True)
        image = _image_in(patched, facts.container) or change.image
        if image == _image_in(like, facts.container) and not is_rewritten(image, change.image):
            raise ConfigurationError(f"a webhook sets {image} back in pod {row.pod}, so it cannot get {change.image}")
        if change.follow and image != change.image:
            why = f"a webhook sets {image} in the pods of {facts.target} instead of {change.image}"
            raise ConfigurationError(f"{why}, which its template has: write {image} in the template")
        if image != change.image:
            change = replace(change, image=image, given=change.image)
            facts = facts.with_change(change)
    except ApiRefusedError as error:
        raise ConfigurationError(
            f"the API server rejects the image for pod {row.pod}, nothing was changed: {error}"
        ) from error
    if change.pulls:
        await _try_pull(client, facts, row.node, like, rows)
    return facts


async def _try_pull(client: KubeClient, facts: ImageRun, node: str, like: Json, rows: Sequence[Row]) -> None:
    try:
        made = await create_pull_pod(client, facts.run, node, facts.image, like, dry_run=True)
    except ConflictError:  # this run has been here before
        return
    except ApiRefusedError as error:
        why = f"the API server rejects the pod that would pull {facts.image}, nothing was changed: {error}"
        raise ConfigurationError(why) from error
    _check_pulled(facts, made, rows)


async def try_adoption(client: KubeClient, facts: ImageRun) -> None:
    """Try the writes to the workload. What is refused in the end would leave its controller held.

    Raises ConfigurationError if the run must not begin.
    """
    template, follows = facts.template, facts.change.follow
    if not template.uid:
        return
    known = {each.uid: each.content.rest for each in facts.state.revisions or ()} | {
        template.uid: template.content.rest
    }
    instead = "" if follows else ": use --template keep"
    for write in trial_writes(facts):
        what, resource = f"{write.plural} {write.name}", Resource(write.plural, "apps")
        try:
            made = await client.json_patch(resource, facts.run.namespace, write.name, write.operations, dry_run=True)
        except ApiRefusedError as error:
            why = f"the API server rejects the image for {what}, nothing was changed: {error}"
            raise ConfigurationError(why) from error
        found = read_content(mapping_at(made, "spec.template"), facts.container)
        if found.image != facts.change.template_image:
            raise ConfigurationError(f"the API server gives {what} the image {found.image} instead{instead}")
        if found.rest != known[write.uid]:  # it would not be the template that the run has begun with
            raise ConfigurationError(f"a webhook changes more than the image in the template of {what}{instead}")


def _check_request(made: Json) -> None:
    request = parse_request(made)
    if not request.for_image or not request.active:
        raise ConfigurationError(
            "the installed CRD or manager does not know images of requests, so nothing was changed: upgrade crrd "
            "(beside OpenKruise, whose CRD has no such field, images cannot be set)"
        )


def _check_injected(facts: ImageRun, pod: Json) -> None:
    """Refuse a container that a SidecarSet of OpenKruise has injected."""
    names = mapping_at(pod, "metadata.annotations")
    injected = any(key.startswith(SIDECAR_SETS) for key in names)
    if injected and not facts.template.content.image:
        why = f"container {facts.container!r} may be injected by a SidecarSet"
        raise ConfigurationError(f"{why}: set the image in the SidecarSet")


def _check_pulled(facts: ImageRun, pod: Json, rows: Iterable[Row]) -> None:
    """Refuse a pull pod that would pull another image than the pods get, or otherwise than kubelet does for them."""
    follows, image = facts.change.follow, facts.image
    if (found := _image_in(pod, PULL_CONTAINER)) != image:
        why = f"a webhook sets {found} in new pods instead of {image}, but not in pods that exist"
        instead = "write that image in the template" if follows else "use that image, or --pull never"
        raise ConfigurationError(f"{why}: {instead}")
    for row in rows:
        odd = lacking(read_pull_pod(pod), row.member, facts.container) if row.member is not None else ""
        if odd:
            why = (
                f"pod {row.pod} differs in {odd} from the pod that would pull {image}, so kubelet may not pull it there"
            )
            way_out = "its service account may have changed since: use an ordinary rollout, or a command for each pod"
            raise ConfigurationError(f"{why}; {way_out}{'' if follows else ', or --pull never'}")


def _image_in(pod: Json, container: str) -> str:
    spec = mapping(pod.get("spec"))
    entries = (mapping(each) for kind in ("containers", "initContainers") for each in items(spec.get(kind)))
    return next((text(each.get("image")) for each in entries if each.get("name") == container), "")
