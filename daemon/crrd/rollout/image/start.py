"""Checks, before a run with an image begins, what would make it fail or end in a rollout of new pods.

Nothing is written here. Each refusal says why, and what to do instead.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from crrd.core.rollout.change import ImageChange, TemplateMode
from crrd.core.rollout.image.adoption import ADOPTED_BY, held_by_user
from crrd.core.rollout.image.controllers import mixed_revisions
from crrd.core.rollout.image.facts import ImageRun
from crrd.core.rollout.image.following import not_held, records_of, template_images
from crrd.core.rollout.image.names import is_mutable
from crrd.core.rollout.image.steps import never_adopted
from crrd.core.rollout.kinds import kind_of
from crrd.core.rollout.overview import is_unfinished
from crrd.core.rollout.phases import Stage
from crrd.core.rollout.plan import make_plan
from crrd.core.rollout.requests import longest_lived
from crrd.core.rollout.run import Run, Target
from crrd.core.rollout.standing import make_rows
from crrd.core.rollout.workload import read_owner
from crrd.kube.errors import ResourceMissingError
from crrd.kube.rights import missing_rights
from crrd.lib.errors import ConfigurationError, GoneError
from crrd.lib.jsonfields import items, mapping, text
from crrd.rollout.cluster import Cluster
from crrd.rollout.image.leftovers import stop_requests
from crrd.rollout.image.objects import ImageObjects
from crrd.rollout.image.trial import try_adoption, try_pods
from crrd.rollout.session import Session
from crrd.rollout.target import Aim

Json = Mapping[str, Any]
ROLE = "crrd-recreate-image"
FOLLOW_ROLE = "crrd-recreate-from-template"  # It has no right on workloads
_KRUISE = "apps.kruise.io"
_ANY_OF = ("update pods", "update-images pods.crr.apps.kruise.io")
"""Rights of which the policy crrd-admission asks for one, for requests with an image."""
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
    command, facts = session.command, ImageRun.of(cluster.world(), run)
    _check_target(session, aim, facts)
    change = facts.change
    await check_rights(session, run.target, change)
    workload = await session.client.get(aim.resource, run.namespace, aim.target.name) if aim.resource else {}
    _check_undone(facts)
    if not change.follow:
        adopts = _wants_adoption(session, aim, facts, workload)
        change = replace(change, mode=TemplateMode.ADOPT if adopts else TemplateMode.KEEP)
    if change.adopt and facts.template.content.image and isinstance(cluster.kind_objects, ImageObjects):
        await cluster.kind_objects.read_revisions()
        facts = ImageRun.of(cluster.world(), run).with_change(change)
        if change.follow:
            _check_following(facts)
        else:
            _check_adoption(facts, workload)
    content = facts.template.content
    if content.image:
        change = replace(change, template=content.rest, had=content.image)
    # A webhook may decide which image the pods get. What the run goes back to is known only then.
    facts = _with_before(await _tried(session, _with_before(facts.with_change(change))))
    run = facts.with_min_ready()
    facts = ImageRun.of(cluster.world(), run)
    if command.undo_on_failure:
        check_undo(run)
    if change.adopt:
        _check_all_pods(session, facts)
        await try_adoption(session.client, facts)
        if not change.follow and (by_git := _by_git(aim, workload)):
            session.display.print_line(f"{by_git}; --image-from-template takes it from there")
    if run.options.min_ready != command.options.min_ready and not command.dry_run:
        why = f"container {facts.container} has no readiness probe, so each pod must be ready for"
        session.display.print_line(f"{why} {run.options.min_ready}s before the run continues (--min-ready)")
    if change.undoes and not command.dry_run:
        await _end_undone(session, run, cluster)
    return run


async def _end_undone(session: Session, run: Run, cluster: Cluster) -> None:
    """Abort the run that this one undoes, if it is not over: no process goes on with it.

    Requests of pods that do not have the image end.
    """
    undone = [each for each in cluster.world().requests if run.undoes(each.run)]
    if not undone or not is_unfinished(undone, session.clock.now()):
        return
    kept = longest_lived(undone)
    for each in undone:
        if each is kept or not each.request.completed:
            with suppress(GoneError):
                cluster.written(await session.record_abort(each))
    await stop_requests(session.client, undone, set())


def _with_before(facts: ImageRun) -> ImageRun:
    """Return the run with the other images that the container has now."""
    of_pods = {facts.image_of(each) for each in facts.examples} - {facts.image, ""}
    before = of_pods | _of_templates(facts)
    several = next(iter(of_pods)) if len(before) > 1 and len(of_pods) == 1 else ""
    return facts.with_change(replace(facts.change, before=tuple(sorted(before)), of_pods=several))


def _of_templates(facts: ImageRun) -> set[str]:
    """Return the container's other images in the template, and in what new pods are made of, if that is known.

    These may differ, for example while the workload is held.
    """
    there = {each.content.image for each in records_of(facts.state, facts.world.members)}
    return {*there, facts.template.content.image} - {facts.image, ""}


def _check_undone(facts: ImageRun) -> None:
    """Raise ConfigurationError if an undo would replace an image that the run to undo has not set."""
    of_pods = {facts.image_of(each) for each in facts.examples if facts.is_foreign(each)}
    later = ", ".join(sorted((of_pods | _of_templates(facts)) - {*facts.change.before}))
    if facts.change.undoes and later:
        why = f"{facts.target} has {later} by now, which run {facts.change.undoes} has not set"
        raise ConfigurationError(f"{why}; to set another image, use --image")


def _check_target(session: Session, aim: Aim, facts: ImageRun) -> None:
    target = aim.target
    if is_mutable(facts.image) and not session.command.allow_mutable_tag:
        why = f"{facts.image} has no fixed tag, so two nodes may pull two images, and it cannot be undone"
        raise ConfigurationError(f"{why}: use a tag or a digest, or --allow-mutable-tag")
    if target.api_version.startswith(f"{_KRUISE}/"):
        raise ConfigurationError(f"{target.words} updates images in place itself: set the image in its template")
    if target.kind in ("Job", "CronJob"):
        raise ConfigurationError(f"the template of {target.words} cannot be changed: use pod/NAME or -l SELECTOR")
    static = next((each.pod.name for each in facts.world.members if each.pod.static_uid), "")
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
        missing = await missing_rights(session.client, (*wanted, *_ANY_OF), session.namespace)
    satisfied = _ANY_OF[1:] if set(_ANY_OF) <= set(missing) else _ANY_OF
    missing = tuple(each for each in missing if each not in satisfied)
    if missing:
        rights, role = ", ".join(missing), FOLLOW_ROLE if change.follow else ROLE
        raise ConfigurationError(f"you may not {rights} in namespace {session.namespace}; bind the ClusterRole {role}")


def _wants_adoption(session: Session, aim: Aim, facts: ImageRun, workload: Json) -> bool:
    """Return whether the template gets the image. Raises ConfigurationError if the user must decide."""
    given, target, name, template = session.command.template, aim.target.words, facts.container, facts.template
    if not template.content.image:
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
        yield from {program for begin, program in _GITOPS.items() if name.startswith(begin)}


def _check_adoption(facts: ImageRun, workload: Json) -> None:
    target, template, state = facts.target, facts.template, facts.state
    keep = "use --template keep, or"
    if owner := read_owner(workload):
        raise ConfigurationError(
            f"{target} is owned by {owner.kind} {owner.name}, which would set its image back: change it there"
        )
    if template.holder:
        return  # an earlier run has begun to adopt, and this one continues
    if template.paused:
        raise ConfigurationError(f"{target} is paused: {keep} resume it first (kubectl rollout resume {target})")
    if template.content.image == facts.change.template_image:
        if why := held_by_user(facts):
            raise ConfigurationError(why)
        return
    if why := mixed_revisions(state.own_revisions, facts.world.members):
        raise ConfigurationError(f"the template of {target} cannot be adopted: {why}: {keep} finish its rollout")
    if template.kind == "Deployment":
        if len(state.active) > 1:
            raise ConfigurationError(f"the rollout of {target} is not finished: {keep} wait until it is")
        odd = next((each for each in state.active if each.content.rest != template.content.rest), None)
        if odd is not None:
            raise ConfigurationError(f"the template of {target} differs from ReplicaSet {odd.name}: {keep} wait")


def _check_following(facts: ImageRun) -> None:
    found = template_images(facts.target, facts.state, facts.world.members)
    if why := found.problem or found.wait or not_held(facts):
        raise ConfigurationError(why)


def _check_all_pods(session: Session, facts: ImageRun) -> None:
    """Refuse an adoption that would fail after the last pod. One that has begun says itself how to release its hold."""
    if not facts.template.content.image or facts.template.holder:
        return
    rows, follows = make_rows(kind_of(facts.world, facts.run), session.clock.now()), session.command.follows_template
    if why := never_adopted(facts, rows):
        raise ConfigurationError(f"{why}: fix this first{'' if follows else ', or use --template keep'}")


async def _tried(session: Session, facts: ImageRun) -> ImageRun:
    """Return the run after each of its writes for a pod was tried as a dry run (`trial`)."""
    plan = make_plan(facts.world, facts.run, session.clock.now())
    row = next((each for each in plan.rows if each.stage in (Stage.WAITING, Stage.PUT_OFF)), None)
    if row is None or row.member is None:
        return facts
    return await try_pods(session.client, facts, [each for each in plan.rows if each.stage is row.stage])


def check_undo(run: Run) -> None:
    """Raise ConfigurationError if --undo-on-failure cannot be carried out for a run."""
    change = run.options.image
    if change is None:
        raise ConfigurationError("--undo-on-failure needs a run with --image: a restart cannot be undone")
    if change.before and not change.image_back:
        images = ", ".join(change.before)
        why = f"needs one image to go back to, but {run.target.words} had {images} before this run"
        raise ConfigurationError(f"--undo-on-failure {why}: leave it out, or give all pods one of them first (--image)")


def undone(run: Run) -> ImageChange:
    """Return the change back of a run. Raises ConfigurationError if it has none."""
    change = run.options.image
    if change is None:
        raise ConfigurationError(f"run {run.name} has restarted containers: only a run with --image can be undone")
    had = change.image_back
    if not had:
        images = ", ".join(change.before) or "no other image"
        raise ConfigurationError(f"the pods of run {run.name} had {images} before: set one with --image")
    others = [each for each in change.before if each != had]
    given = tuple(sorted({change.image, change.template_image, *others} - {had}))
    back = replace(change, image=had, before=given, undoes=run.name, given="", of_pods="")
    return replace(back, of_template=others[0] if change.adopt and others else "")
