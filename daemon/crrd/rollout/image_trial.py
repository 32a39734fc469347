"""Tries the writes of a run with an image as dry runs, before the run begins. Nothing is written.

Each refusal says why, and what to do instead.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from crrd.core.api.v1alpha1 import parse_request
from crrd.core.rollout.adoption import trial_writes
from crrd.core.rollout.following import record_writes
from crrd.core.rollout.image_steps import lacking, patch_of
from crrd.core.rollout.pull import PULL_CONTAINER, pull_pod, read_pull_pod
from crrd.core.rollout.run import Run
from crrd.core.rollout.standing import Row
from crrd.core.rollout.state import World
from crrd.core.rollout.template import read_content
from crrd.kube.client import KubeClient
from crrd.kube.resources import PODS, REQUESTS, Resource
from crrd.lib.errors import ApiRefusedError, ConfigurationError, ConflictError
from crrd.lib.jsonfields import items, mapping, mapping_at, text

Json = Mapping[str, Any]
_SIDECAR_SETS = "kruise.io/sidecarset"


async def try_pods(client: KubeClient, world: World, run: Run, rows: Sequence[Row]) -> Run:
    """Return the run after each of its writes for the first of these pods was tried.

    `world` has what is known of the template. If a webhook changes the image of the pod, for example to one with a
    digest, the run uses that image. Raises ConfigurationError if the run must not begin.
    """
    change, row = run.options.image, next(iter(rows), None)
    if change is None or row is None:
        return run
    like = await client.get(PODS, run.namespace, row.pod)
    _check_injected(run, like, world)
    try:
        made = await client.create(REQUESTS, run.namespace, _request(run, row), dry_run=True)
        _check_request(made)
        patched = await client.json_patch(PODS, run.namespace, row.pod, patch_of(row, run), dry_run=True)
        image = _image_in(patched, run.options.containers[0])
        if change.follow and image not in ("", change.image):
            why = f"a webhook sets {image} in the pods of {run.target.words} instead of {change.image}"
            raise ConfigurationError(f"{why}, which its template has: write {image} in the template")
        if image not in ("", change.image):
            change = replace(change, image=image, given=change.image)
            run = replace(run, options=replace(run.options, image=change))
        if change.pulls:
            body = pull_pod(run, row.node, change.image, like)
            with suppress(ConflictError):  # this run has been here before
                made = await client.create(PODS, run.namespace, body, dry_run=True)
                _check_pulled(run, made, change.image, rows)
    except ApiRefusedError as error:
        raise ConfigurationError(
            f"the API server rejects the image for pod {row.pod}, nothing was changed: {error}"
        ) from error
    return run


async def try_adoption(client: KubeClient, world: World, run: Run) -> None:
    """Try the writes to the workload. What is refused in the end would leave its controller held.

    Raises ConfigurationError if the run must not begin.
    """
    change, name = run.options.image, run.options.containers[0]
    state = world.image
    if change is None or state is None or state.template is None:
        return
    known = {each.uid: each.content.rest for each in state.revisions or ()}
    known[state.template.uid] = state.template.content.rest
    instead = "" if change.follow else ": use --template keep"
    for write in (record_writes if change.follow else trial_writes)(world, run):
        what, resource = f"{write.plural} {write.name}", Resource(write.plural, "apps")
        try:
            made = await client.json_patch(resource, run.namespace, write.name, write.operations, dry_run=True)
        except ApiRefusedError as error:
            why = f"the API server rejects the image for {what}, nothing was changed: {error}"
            raise ConfigurationError(why) from error
        found = read_content(mapping_at(made, "spec.template"), name)
        if found.image != change.image:
            raise ConfigurationError(f"the API server gives {what} the image {found.image} instead{instead}")
        if found.rest != known[write.uid]:  # it would not be the template that the run has begun with
            raise ConfigurationError(f"a webhook changes more than the image in the template of {what}{instead}")


def _request(run: Run, row: Row) -> dict[str, Any]:
    return run.request(row.pod, row.uid, row.containers, row.failed)


def _check_request(made: Json) -> None:
    request = parse_request(made)
    if not request.for_image or not request.active:
        raise ConfigurationError(
            "the installed CRD or manager does not know images of requests, so nothing was changed: upgrade crrd "
            "(beside OpenKruise, whose CRD has no such field, images cannot be set)"
        )


def _check_injected(run: Run, pod: Json, world: World) -> None:
    """Refuse a container that a SidecarSet of OpenKruise has injected."""
    template = world.image.template if world.image is not None else None
    injected = template is None or not template.content.image
    names = mapping_at(pod, "metadata.annotations")
    if injected and any(key[: len(_SIDECAR_SETS)] == _SIDECAR_SETS for key in names):
        name = run.options.containers[0]
        raise ConfigurationError(f"container {name!r} may be injected by a SidecarSet: set the image in the SidecarSet")


def _check_pulled(run: Run, pod: Json, image: str, rows: Iterable[Row]) -> None:
    """Refuse a pull pod that would pull another image than the pods get, or otherwise than kubelet does for them."""
    follows = run.options.image is not None and run.options.image.follow
    if (found := _image_in(pod, PULL_CONTAINER)) != image:
        why = f"a webhook sets {found} in new pods instead of {image}, but not in pods that exist"
        instead = "write that image in the template" if follows else "use that image, or --pull never"
        raise ConfigurationError(f"{why}: {instead}")
    for row in rows:
        odd = lacking(read_pull_pod(pod), row.member, run.options.containers[0]) if row.member is not None else ""
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
