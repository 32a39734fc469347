"""Reads which images the template of a held workload has, and its pods lack (`core.rollout.image.following`)."""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from crrd.core.rollout.change import ImageChange, TemplateMode
from crrd.core.rollout.image.adoption import ADOPTED_BY
from crrd.core.rollout.image.following import TemplateChange, TemplateImages, template_images
from crrd.core.rollout.image.state import ImageState
from crrd.core.rollout.image.template import read_revision, read_template
from crrd.core.rollout.run import Options
from crrd.core.rollout.state import Member, read_member
from crrd.kube.client import KubeClient
from crrd.kube.resources import PODS
from crrd.lib.errors import ConfigurationError
from crrd.rollout.image.objects import list_revisions
from crrd.rollout.owners import Owners
from crrd.rollout.session import Session
from crrd.rollout.target import Aim

Json = Mapping[str, Any]
_GROUP = "apps"  # OpenKruise's kinds have the same names
_LOOKS, _PAUSE_SECONDS = 10, 1.0
"""How often to look whether the controller has seen a template that was just changed, and the time in between."""


@dataclass(frozen=True, slots=True)
class Held:
    """A workload and its revisions as JSON and values, and the pods that it owns."""

    aim: Aim
    workload: Json
    revisions: tuple[Json, ...]
    members: tuple[Member, ...]

    def images(
        self, given: Collection[tuple[str, str]] = (), failed: Collection[tuple[str, str]] = ()
    ) -> TemplateImages:
        """Return how the template's images differ from those of the pods. `given` and `failed`: as there."""
        found = template_images(self.aim.target.words, self.state(""), self.members, given, failed)
        return replace(found, changes=tuple(map(self._with_rest, found.changes)))

    def state(self, container: str) -> ImageState:
        """Return what is known for a run that gives this container an image."""
        if not self.workload:
            return ImageState()
        kind = {"apiVersion": self.aim.target.api_version, "kind": self.aim.target.kind}
        revisions = tuple(read_revision(each, container) for each in self.revisions)
        return ImageState((), read_template({**self.workload, **kind}, container), revisions, container)

    def _with_rest(self, change: TemplateChange) -> TemplateChange:
        return replace(change, rest=self.state(change.container).template.content.rest)


async def read_held(client: KubeClient, namespace: str, aim: Aim, members: Sequence[Member]) -> Held:
    """Read what is needed to follow the template of a workload with these pods. Raises the errors of `find_target`."""
    if aim.resource is None or aim.resource.group != _GROUP or aim.target.kind not in ADOPTED_BY:
        return Held(aim, {}, (), ())
    workload = await client.get(aim.resource, namespace, aim.target.name)
    return Held(aim, workload, await list_revisions(client, namespace, aim, dict), tuple(members))


async def find_template_images(client: KubeClient, namespace: str, aim: Aim) -> TemplateImages:
    """Return how the template's images differ from those of the pods. Raises the errors of `find_target`."""
    parse = partial(read_member, with_config=False)
    pods = (await client.list_all(PODS, parse, namespace=namespace, label_selector=aim.pods_query)).items
    owners = Owners(client, namespace, aim)
    await owners.learn([pod.owner for pod in pods])
    own = [pod for pod in pods if owners.lead_to_target(pod.owner)]
    return (await read_held(client, namespace, aim, own)).images()


async def following(session: Session, aim: Aim) -> Session | None:
    """Return the session with the image to set, if it is that of the template. None if all pods have it, and say so.

    Raises ConfigurationError if pods in place cannot follow the template.
    """
    command = session.command
    if not command.follows_template:
        return session
    for look in range(_LOOKS):
        await asyncio.sleep(_PAUSE_SECONDS * (look > 0))
        found = await find_template_images(session.client, session.namespace, aim)
        if not found.wait:
            break
    changes = _choose(aim, found, command.options)
    if not changes:
        of = f" of container {command.options.containers[0]!r}" if command.options.containers else ""
        why = f"the pods of {aim.target.words} have the image{of} that its template has"
        session.display.print_line(f"nothing to do: {why}")
        return None
    (container, image), *_ = changes
    change = replace(command.options.image or ImageChange(""), image=image, mode=TemplateMode.FOLLOW)
    options = replace(command.options, containers=(container,), image=change)
    return replace(session, command=replace(command, options=options))


def _choose(aim: Aim, found: TemplateImages, options: Options) -> list[tuple[str, str]]:
    """Return the container and its image, empty if there is none."""
    target = aim.target.words
    if found.wait or found.problem:
        raise ConfigurationError(found.problem or f"{found.wait}; try again in a moment")
    changes = [each for each in found.changes if each.container in (options.containers or (each.container,))]
    if len(changes) > 1:
        names = " and ".join(each.container for each in changes)
        raise ConfigurationError(
            f"the template of {target} has other images for {names}: use -c NAME for one at a time"
        )
    return [(each.container, each.image) for each in changes]
