"""Reads which images the template of a held workload has, and its pods lack (`core.rollout.following`)."""

import asyncio
from dataclasses import replace
from functools import partial

from crrd.core.rollout.following import TemplateImages, template_images
from crrd.core.rollout.image_change import ImageChange
from crrd.core.rollout.image_state import ImageState
from crrd.core.rollout.run import Options
from crrd.core.rollout.state import read_member
from crrd.core.rollout.template import read_template
from crrd.kube.client import KubeClient
from crrd.kube.resources import PODS
from crrd.lib.errors import ConfigurationError
from crrd.rollout.image_objects import list_revisions
from crrd.rollout.owners import Owners
from crrd.rollout.session import Session
from crrd.rollout.target import Aim

_GROUP = "apps"  # OpenKruise's kinds have the same names
_LOOKS, _PAUSE_SECONDS = 10, 1.0
"""How often to look whether the controller has seen a template that was just changed, and the time in between."""


async def find_template_images(client: KubeClient, namespace: str, aim: Aim) -> TemplateImages:
    """Return how the template's images differ from those of the pods. Raises the errors of `find_target`."""
    if aim.resource is None or aim.resource.group != _GROUP:
        return template_images(aim.target.words, ImageState(), ())
    workload = await client.get(aim.resource, namespace, aim.target.name)
    kind = {"apiVersion": aim.target.api_version, "kind": aim.target.kind}
    revisions = await list_revisions(client, namespace, aim, "")
    parse = partial(read_member, with_config=False)
    pods = (await client.list_all(PODS, parse, namespace=namespace, label_selector=aim.pods_query)).items
    owners = Owners(client, namespace, aim)
    await owners.learn([pod.owner for pod in pods])
    state = ImageState((), read_template({**workload, **kind}, ""), revisions)
    return template_images(aim.target.words, state, [pod for pod in pods if owners.lead_to_target(pod.owner)])


async def following(session: Session, aim: Aim) -> Session:
    """Return the session with the image to set, if it is that of the template.

    Raises ConfigurationError if there is none, or pods in place cannot follow the template.
    """
    command = session.command
    if not command.follows_template:
        return session
    for look in range(_LOOKS):
        await asyncio.sleep(_PAUSE_SECONDS * (look > 0))
        found = await find_template_images(session.client, session.namespace, aim)
        if not found.wait:
            break
    container, image = _choose(aim, found, command.options)
    change = replace(command.options.image or ImageChange(""), image=image, follow=True)
    options = replace(command.options, containers=(container,), image=change)
    return replace(session, command=replace(command, options=options))


def _choose(aim: Aim, found: TemplateImages, options: Options) -> tuple[str, str]:
    """Return the container and its image."""
    target = aim.target.words
    if found.wait or found.problem:
        raise ConfigurationError(found.problem or f"{found.wait}; try again in a moment")
    changes = [each for each in found.changes if each[0] in (options.containers or (each[0],))]
    if not changes:
        of = f" of container {options.containers[0]!r}" if options.containers else ""
        raise ConfigurationError(f"nothing to do: the pods of {target} have the image{of} that its template has")
    if len(changes) > 1:
        names = " and ".join(name for name, _ in changes)
        raise ConfigurationError(
            f"the template of {target} has other images for {names}: use -c NAME for one at a time"
        )
    return changes[0]
