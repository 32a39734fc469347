"""Checks, before a run with an image begins, what would make it fail or end in a rollout of new pods.

Nothing is written here. Each refusal says why, and what to do instead.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from crrd.core.rollout.adoption import ADOPTED_BY, held_by_user, mixed_revisions
from crrd.core.rollout.following import records_of, template_images
from crrd.core.rollout.image_change import ImageChange, is_mutable
from crrd.core.rollout.image_state import ImageState
from crrd.core.rollout.image_steps import never_adopted
from crrd.core.rollout.plan import make_plan
from crrd.core.rollout.run import Run, Target
from crrd.core.rollout.settling import with_min_ready
from crrd.core.rollout.standing import Stage, make_rows
from crrd.core.rollout.state import World
from crrd.core.rollout.template import Template
from crrd.core.rollout.workload import read_owner
from crrd.kube.access import missing_rights
from crrd.kube.errors import ResourceMissingError
from crrd.lib.errors import ConfigurationError
from crrd.lib.jsonfields import items, mapping, text
from crrd.rollout.cluster import Cluster
from crrd.rollout.image_trial import try_adoption, try_pods
from crrd.rollout.session import Session
from crrd.rollout.target import Aim

Json = Mapping[str, Any]
ROLE = "crrd-recreate-image"
FOLLOW_ROLE = "crrd-recreate-from-template"  # It has no right on workloads
_KRUISE = "apps.kruise.io"
_GITOPS = {
    "argocd.argoproj.io/": "Argo CD",
    "argocd": "Argo CD",
    "kustomize.toolkit.fluxcd.io/": "Flux",
    "helm.toolkit.fluxcd.io/": "Flux",
    "meta.helm.sh/": "Helm",
    "helm": "Helm",
}
"""Beginnings of labels, annotations or field managers -> the program that writes the workload."""


async def complete_image(session: Session, aim: Aim, cluster: Cluster, run: Run) -> Run:
    """Return the run with all that it must know of the image. Raises ConfigurationError if it must not begin."""
    change, world = run.options.image, cluster.world()
    if change is None:
        return run
    _check_target(session, aim, world, run)
    adopts = change.follow or session.command.template == "adopt"
    await check_rights(session, run.target, replace(change, adopt=adopts))
    workload = await session.client.get(aim.resource, run.namespace, aim.target.name) if aim.resource else {}
    template = world.image.template if world.image is not None else None
    in_template = template if template is not None and template.content.image else None
    _check_undone(run, change, _before(world, run, in_template))
    change = replace(change, adopt=change.follow or _wants_adoption(session, aim, in_template, workload))
    if change.adopt and in_template is not None and cluster.images is not None:
        await cluster.images.read_revisions()
        world = cluster.world()
        if change.follow:
            _check_following(run, world)
        else:
            _check_adoption(run, in_template, world, workload)
    if in_template is not None:
        change = replace(change, template=in_template.content.rest, had=in_template.content.image)
    run = with_min_ready(world, _with(run, replace(change, before=_before(world, run, in_template))))
    run = await _tried(session, cluster, run)
    if change.adopt:
        _check_all_pods(session, run, in_template, cluster.world())
        await try_adoption(session.client, cluster.world(), run)
        if not change.follow and (by_git := _by_git(aim, workload)):
            session.display.print_line(f"{by_git}; --image-from-template takes it from there")
    if run.options.min_ready != session.command.options.min_ready and not session.command.dry_run:
        why = f"container {run.options.containers[0]} has no readiness probe, so each pod must be ready for"
        session.display.print_line(f"{why} {run.options.min_ready}s before the run continues (--min-ready)")
    return run


def _with(run: Run, change: ImageChange) -> Run:
    return replace(run, options=replace(run.options, image=change))


def _before(world: World, run: Run, template: Template | None) -> tuple[str, ...]:
    """Return the container's images now: in pods, in the template, and in what new pods are made of, if that is known.

    The template may have another image than what new pods are made of, for example while the workload is held.
    """
    name, change = run.options.containers[0], run.options.image
    there = {each.pod.containers[name].image for each in world.members if each.counts and name in each.pod.containers}
    there |= {template.content.image} if template is not None else set()
    there |= {each.content.image for each in records_of(world.image or ImageState(), world.members)}
    return tuple(sorted(there - {change.image if change is not None else "", ""}))


def _check_undone(run: Run, change: ImageChange, images: tuple[str, ...]) -> None:
    """Raise ConfigurationError if an undo would replace an image that the run to undo has not set."""
    later = ", ".join(sorted({*images} - {*change.before}))
    if change.undoes and later:
        why = f"{run.target.words} has {later} by now, which run {change.undoes} has not set"
        raise ConfigurationError(f"{why}; to set another image, use --image")


def _check_target(session: Session, aim: Aim, world: World, run: Run) -> None:
    command, target, change = session.command, aim.target, run.options.image
    if change is not None and is_mutable(change.image) and not command.allow_mutable_tag:
        why = f"{change.image} has no fixed tag, so two nodes may pull two images, and it cannot be undone"
        raise ConfigurationError(f"{why}: use a tag or a digest, or --allow-mutable-tag")
    if target.api_version.startswith(f"{_KRUISE}/"):
        raise ConfigurationError(f"{target.words} updates images in place itself: set the image in its template")
    if target.kind in ("Job", "CronJob"):
        raise ConfigurationError(f"the template of {target.words} cannot be changed: use pod/NAME or -l SELECTOR")
    static = next((each.pod.name for each in world.members if each.pod.static_uid), "")
    if static:
        raise ConfigurationError(f"pod {static} is a static pod: change the image in its file on the node")


async def check_rights(session: Session, target: Target, change: ImageChange) -> None:
    """Raise ConfigurationError if the user lacks a right that a run with an image needs."""
    wanted = ["patch pods", *(["create,delete pods"] if change.pulls else [])]
    if change.adopt and target.kind in ADOPTED_BY:
        wanted += [] if change.follow else [f"patch {target.kind.lower()}s.apps"]
        by_labels = target.kind != "Deployment"
        wanted.append("list controllerrevisions.apps" if by_labels else "patch,delete replicasets.apps")
    missing: tuple[str, ...] = ()
    with suppress(ResourceMissingError):  # the local API server has no access reviews, and no rights
        missing = await missing_rights(session.client, wanted, session.namespace)
    if missing:
        rights, role = ", ".join(missing), FOLLOW_ROLE if change.follow else ROLE
        raise ConfigurationError(f"you may not {rights} in namespace {session.namespace}; bind the ClusterRole {role}")


def _wants_adoption(session: Session, aim: Aim, template: Template | None, workload: Json) -> bool:
    """Return whether the template gets the image. Raises ConfigurationError if the user must decide."""
    given, target = session.command.template, aim.target.words
    name = session.command.options.containers[0]
    if template is None:
        if given == "adopt":
            raise ConfigurationError(
                f"the template of {target} has no container {name!r} to change: use --template keep"
            )
        return False
    if template.kind not in ADOPTED_BY:
        if given == "adopt":
            kinds = ", ".join(ADOPTED_BY)
            raise ConfigurationError(f"only {kinds} can adopt pods with another image: use --template keep")
        return False
    if given:
        return given == "adopt"
    by_git = _by_git(aim, workload)
    raise ConfigurationError(
        f"container {name!r} is in the template of {target}. Use --template adopt to change the template in the end "
        f"(no pod is replaced), or --template keep to leave it (new pods get {template.content.image})"
        + (f". {by_git}" if by_git else "")
    )


def _by_git(aim: Aim, workload: Json) -> str:
    """Return what the user must do beside the run if another program writes the workload, or ""."""
    managers = ", ".join(sorted(set(_managers(workload))))
    also = f"{managers} manages {aim.target.words}: set the image there, too, or it puts the old one back by a rollout"
    return also if managers else ""


def _managers(workload: Json) -> Iterator[str]:
    """Yield the programs that write the workload from other sources, and would set its image back."""
    meta = mapping(workload.get("metadata"))
    names = [*mapping(meta.get("labels")), *mapping(meta.get("annotations"))]
    names += [text(mapping(each).get("manager")) for each in items(meta.get("managedFields"))]
    for name in names:
        yield from {program for begin, program in _GITOPS.items() if name[: len(begin)] == begin}


def _check_adoption(run: Run, template: Template, world: World, workload: Json) -> None:
    target, change, state = run.target.words, run.options.image, world.image or ImageState()
    keep = "use --template keep, or"
    if owner := read_owner(workload):
        raise ConfigurationError(
            f"{target} is owned by {owner.kind} {owner.name}, which would set its image back: change it there"
        )
    if template.holder:
        return  # an earlier run has begun to adopt, and this one continues
    if template.paused:
        raise ConfigurationError(f"{target} is paused: {keep} resume it first (kubectl rollout resume {target})")
    if change is None or template.content.image == change.image:
        if why := held_by_user(run, template):
            raise ConfigurationError(why)
        return
    if why := mixed_revisions(state.own_revisions, world.members):
        raise ConfigurationError(f"the template of {target} cannot be adopted: {why}: {keep} finish its rollout")
    if template.kind == "Deployment":
        if len(state.active) > 1:
            raise ConfigurationError(f"the rollout of {target} is not finished: {keep} wait until it is")
        odd = next((each for each in state.active if each.content.rest != template.content.rest), None)
        if odd is not None:
            raise ConfigurationError(f"the template of {target} differs from ReplicaSet {odd.name}: {keep} wait")


def _check_following(run: Run, world: World) -> None:
    found = template_images(run.target.words, world.image or ImageState(), world.members)
    if why := found.problem or found.wait:
        raise ConfigurationError(why)


def _check_all_pods(session: Session, run: Run, template: Template | None, world: World) -> None:
    """Refuse an adoption that would fail after the last pod. One that has begun says itself how to release its hold."""
    rows, follows = make_rows(world, run, session.clock.now()), session.command.follows_template
    if template is not None and not template.holder and (why := never_adopted(run, rows)):
        raise ConfigurationError(f"{why}: fix this first{'' if follows else ', or use --template keep'}")


async def _tried(session: Session, cluster: Cluster, run: Run) -> Run:
    """Return the run after each of its writes for a pod was tried as a dry run (`image_trial`)."""
    plan = make_plan(cluster.world(), run, session.clock.now(), confirmed=True)
    row = next((each for each in plan.rows if each.stage in (Stage.WAITING, Stage.PUT_OFF)), None)
    change = run.options.image
    if row is None or row.member is None or change is None:
        return run
    return await try_pods(session.client, cluster.world(), run, [each for each in plan.rows if each.stage is row.stage])


def undone(run: Run) -> ImageChange:
    """Return the change back of a run. Raises ConfigurationError if it has none."""
    change = run.options.image
    if change is None:
        raise ConfigurationError(f"run {run.name} has restarted containers: only a run with --image can be undone")
    if len(change.before) != 1:
        had = ", ".join(change.before) or "no other image"
        raise ConfigurationError(f"the pods of run {run.name} had {had} before: set one with --image")
    return replace(change, image=change.before[0], before=(change.image,), undoes=run.name, given="")
