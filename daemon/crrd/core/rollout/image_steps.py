"""The steps of a run with an image: pull, request, patch of the pod; then what kubelet does, and its outcome.

Each step can be recognized from the cluster's objects alone, so a run that was killed after any write continues:

| step | written by | done if |
|---|---|---|
| pull | the run: a pull pod for each node (`pull`) | its container is past the pull |
| request | the run, within all budgets | it exists |
| unready grace | the manager | the node reports ImagePresent |
| patch | the run: the pod's image | the pod has the image |
| restart | kubelet | the node completes the request: the newest instance has the image, and is ready |
| adoption | the run, once (`adoption`) | the workload's template has the image, and its rollout is complete |

The invariant, checked by the property tests: no pod gets the image before the node has it.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from crrd.core.api.reasons import Reason
from crrd.core.api.time import parse_time
from crrd.core.rollout.adoption import Adoption
from crrd.core.rollout.image_change import ImageChange, image_operations
from crrd.core.rollout.pull import PullPod, PullState
from crrd.core.rollout.run import Run
from crrd.core.rollout.settling import NOT_READY
from crrd.core.rollout.standing import Row, Stage
from crrd.core.rollout.state import Member, World
from crrd.core.rollout.waits import NO_WAIT, Skip, Wait, WaitReason, describe_pod
from crrd.lib import jsonpatch
from crrd.lib.jsonpatch import Operation

LATE = timedelta(seconds=30)
"""How old a request may be when its pod gets the image, without another look at the budgets."""
_AHEAD = 2
"""How many batches of pods the pulls are ahead of those that have started. A batch are the pods that are under way or
chosen."""


@dataclass(frozen=True, slots=True)
class ImageSteps:
    """What to do now for a run with an image, besides new requests."""

    pull: tuple[str, ...] = ()  # Nodes that get a pull pod
    patch: tuple[Row, ...] = ()  # Pods that get the image
    give_up: tuple[Row, ...] = ()  # Pods whose open request ends, because they must not get the image
    drop: tuple[PullPod, ...] = ()  # Pull pods that are not needed any more
    adoption: Adoption | None = None


NO_STEPS = ImageSteps()


@dataclass(frozen=True, slots=True)
class Sorted:
    """The chosen pods of a plan: those that get their request now, and what the others wait for (by UID)."""

    ready: tuple[Row, ...]
    waits: dict[str, Wait]
    steps: ImageSteps


def sort_by_image(
    world: World,
    run: Run,
    rows: Iterable[Row],
    chosen: Collection[Row] = (),
    later: Iterable[str] = (),
    *,
    late: Collection[str],
) -> Sorted:
    """Return what is next for the pods of a run with an image.

    `chosen` are the pods that may start now. `later` are the UIDs of those that start after them, in their order.
    `late` are the UIDs of pods that began, and may not get the image now.
    """
    change, made, pulls = run.options.image, tuple(rows), pulls_of(world, run)
    if change is None:
        return Sorted(tuple(chosen), {}, NO_STEPS)
    ready, waits, first = list[Row](), dict[str, Wait](), None
    for row in chosen:
        if not _is_pulled(row, change, pulls):
            waits[row.uid] = _wait_for_pull(row, pulls.get(row.node), change)
            first = first or row
        elif first is not None and world.workload is not None and world.workload.in_order:
            waits[row.uid] = Wait.of(WaitReason.IN_ORDER, pod=first.pod, why=waits[first.uid].why)
        else:
            ready.append(row)
    by_uid, batch = {row.uid: row for row in made}, len(chosen) + sum(row.stage.under_way for row in made)
    ahead = [*chosen, *(by_uid[uid] for uid in later)][: _AHEAD * max(1, batch)]
    steps = _steps(change, run, made, ahead, pulls)
    over = tuple(row for row in steps.patch if row.uid in late)
    patch = tuple(row for row in steps.patch if row.uid not in late)
    return Sorted(tuple(ready), waits, replace(steps, patch=patch, give_up=(*steps.give_up, *over)))


def _steps(
    change: ImageChange, run: Run, rows: tuple[Row, ...], ahead: list[Row], pulls: dict[str, PullPod]
) -> ImageSteps:
    begun = [row for row in rows if row.stage.under_way and _is_present(row, run) and _lacks_image(row, change)]
    starts = {row.node for row in rows if _may_start(row) and not has_image(row, change)}
    needed = starts | {row.node for row in rows if row.stage.under_way}  # preStop runs before the image is used
    off = {row.node for row in rows if row.stage is Stage.PUT_OFF}  # A pull there is late because the node is down
    nodes = dict.fromkeys(row.node for row in (*begun, *ahead) if row.node) if change.pulls else {}
    return ImageSteps(
        pull=tuple(node for node in nodes if node not in pulls),
        patch=tuple(row for row in begun if _is_pulled(row, change, pulls)),
        give_up=given_up(rows),
        drop=tuple(
            each
            for each in pulls.values()
            if (_is_over(each) and each.node not in needed) or (each.state is not PullState.PULLED and each.node in off)
        ),
    )


def patch_of(row: Row, run: Run) -> tuple[Operation, ...]:
    """Return the JSON patch that gives a pod the image, if it still has the image that was decided on."""
    change, member, name = run.options.image, row.member, run.options.containers[0]
    if change is None or member is None:
        return ()
    image = image_operations(member.pod.path_of(name), name, _image(row), change.image)
    return jsonpatch.test("/metadata/uid", row.uid), *image


def given_up(rows: Iterable[Row]) -> tuple[Row, ...]:
    """Return the failed pods with an open request. It keeps the pod unready, and nothing would end it soon."""
    return tuple(row for row in rows if row.stage is Stage.FAILED and _is_open(row))


def left_behind(run: Run, rows: Iterable[Row]) -> tuple[Row, ...]:
    """Return the pods without the image whose requests end when the run stops.

    Nobody would give them the image, and the requests keep them unready until their deadline.
    """
    change = run.options.image
    if change is None:
        return ()
    return tuple(row for row in rows if row.stage.under_way and _is_open(row) and not has_image(row, change))


def _is_open(row: Row) -> bool:
    """Whether the pod has a request that nobody is about to end."""
    return row.request is not None and not (row.request.request.completed or row.request.request.stopped)


def _is_over(pull: PullPod) -> bool:
    """Whether a pull pod has done its work. One that has failed is kept, because it says why."""
    return pull.state is PullState.PULLED and not pull.deleting


def _is_pulled(row: Row, change: ImageChange, pulls: Mapping[str, PullPod]) -> bool:
    """Whether a pull pod holds the image on the pod's node. Without it, kubelet may have removed the image again."""
    return not change.pulls or (row.node in pulls and _is_over(pulls[row.node]))


def pulls_of(world: World, run: Run) -> dict[str, PullPod]:
    """Return the run's pull pod of each node."""
    known = world.image.pulls if world.image is not None else ()
    return {each.node: each for each in known if each.run == run.name}


def image_rows(world: World, run: Run, rows: Iterable[Row], now: datetime) -> tuple[Row, ...]:
    """Return the rows of a run with an image. Pods that cannot or must not get the image have failed."""
    change = run.options.image
    if change is None:
        return tuple(rows)
    pulls, limit = (pulls_of(world, run) if change.pulls else {}), run.options.pod_timeout
    failures = {node: why for node, each in pulls.items() if (why := each.failure(now, limit)) is not None}
    return tuple(_image_row(world, run, row, pulls, failures) for row in _begun_before(world, run, rows, now))


def _begun_before(world: World, run: Run, rows: Iterable[Row], now: datetime) -> Iterator[Row]:
    """Yield the rows. Pods that have the image are in progress until kubelet has replaced the container.

    If this process gave them the image, and somebody has deleted their request, they are until they are ready. They
    have failed if that takes longer than a request may take.
    """
    name, waited_for = run.options.containers[0], unreplaced(world, run)
    given = world.image.sent if world.image is not None else {}
    limit = timedelta(seconds=run.options.pod_timeout)
    for row in rows:
        stage, member = Stage.RECREATING, row.member
        if row.skip is not Skip.HAS_IMAGE or member is None:
            yield row
            continue
        if (row.uid, name) in waited_for:
            wait = Wait.of(WaitReason.NOT_REPLACED, describe_pod(member), container=name)
        elif row.uid in given and not member.ready:
            wait = Wait(NOT_READY, describe_pod(member))
            if member.ready_since is not None and now >= member.ready_since + limit:
                stage = Stage.FAILED
        else:
            yield row
            continue
        yield replace(row, stage=stage, skip=None, containers=(name,), wait=wait)


def _image_row(world: World, run: Run, row: Row, pulls: Mapping[str, PullPod], failures: Mapping[str, str]) -> Row:
    """Return a row. `failures`: nodes that cannot pull the image, with kubelet's message."""
    change, image, name = run.options.image, _image(row), run.options.containers[0]
    if change is None or row.member is None or not image or not row.member.counts:
        return row
    wait, pull = None, pulls.get(row.node)
    begins = row.stage is Stage.WAITING or (row.stage.under_way and image != change.image)
    if row.uid in world.refused and row.stage.under_way and image != change.image:
        wait = Wait(world.refused[row.uid])
    elif change.is_foreign(image) and (_may_start(row) or row.stage.under_way or row.stage is Stage.DONE):
        values = {"container": name, "image": image}
        wait = Wait.of(WaitReason.FOREIGN_IMAGE, describe_pod(row.member), **values)
    elif begins and row.node in failures:
        values = {"image": change.image, "node": row.node, "message": failures[row.node]}
        wait = Wait.of(WaitReason.PULL_FAILED, **values)
    elif begins and pull is not None and _is_over(pull) and (odd := lacking(pull, row.member, name)):
        wait = Wait.of(WaitReason.PULLED_OTHERWISE, pull=pull.name, image=change.image, fields=odd)
    elif (reason := _failure_after_success(world, row, change, name)) is not None:
        wait = Wait.of(reason, describe_pod(row.member), container=name, image=image)
    if wait is not None:
        return replace(row, stage=Stage.FAILED, wait=wait)
    if row.stage.under_way and _is_present(row, run):  # what the request says ends with the pod's change
        setting = Wait.of(WaitReason.SETTING_IMAGE, container=name, image=change.image)
        return replace(row, wait=setting if image != change.image else NO_WAIT)
    return row


def lacking(pull: PullPod, member: Member, name: str) -> str:
    """Return the fields that make the pull worthless for a pod's container, because kubelet pulls for it otherwise."""
    always = member.pod.containers[name].pulls_image and not pull.always
    keys = sorted(pull.source.keys() | member.pull_source.keys())
    odd = [key for key in keys if pull.source.get(key) != member.pull_source.get(key)]
    return " and ".join([*odd, *["imagePullPolicy"] * always])


def unreplaced(world: World, run: Run) -> set[tuple[str, str]]:
    """Return the containers (pod's UID, name) that kubelet must replace with one of another image, as far as is known.

    A pod that has the image may still run the old one, whatever has become of its request, and of whichever run it is.
    The image that its status names does not say so, because images may have several names.
    """
    change, found, done = run.options.image, set[tuple[str, ...]](), set[tuple[str, ...]]()
    if change is not None and world.image is not None:
        found |= {(uid, run.options.containers[0], change.image, old) for uid, old in world.image.sent.items()}
    for asked in world.requests:
        for each in asked.request.containers:
            if each.image and each.context is not None:
                what = asked.request.pod_uid, each.name, each.image, each.context.container_id
                (done if asked.succeeded else found).add(what)
    due = found - done
    there = ((member.pod.uid, each) for member in world.members if due for each in member.pod.containers.values())
    return {(uid, each.name) for uid, each in there if (uid, each.name, each.image, each.container_id) in due}


def late_pods(run: Run, rows: Iterable[Row], now: datetime) -> tuple[dict[str, Member], dict[str, Member]]:
    """Return the pods (by UID) that serve, and for which the budgets may be used up by now.

    First those whose request is old, then those that became ready since: at their start they used no budget.
    """
    old, risen = dict[str, Member](), dict[str, Member]()
    for row in rows if run.options.image is not None else ():
        if row.member is None or row.request is None or not (row.stage.under_way and row.member.ready):
            continue
        created, since = parse_time(row.request.request.created), row.member.ready_since
        if created is None or not _is_present(row, run):
            continue
        if created <= now - LATE:
            old[row.uid] = row.member
        elif since is not None and since >= created:  # in whole seconds
            risen[row.uid] = row.member
    return old, risen


def _failure_after_success(world: World, row: Row, change: ImageChange, name: str) -> WaitReason | None:
    """Return why a pod has failed after its request has succeeded, None if it has not.

    Only an end of the instance that has succeeded counts: with the image from before, the container may have crashed.
    """
    if row.request is None or row.member is None or not row.request.succeeded:
        return None
    if row.request.request.uid in world.retried and row.stage not in (Stage.SETTLING, Stage.DONE):
        return None
    request, container = row.request.request, row.member.pod.containers[name]
    pin = next((each.context for each in request.containers if each.context is not None), None)
    restarts = container.restart_count - pin.restart_count if pin is not None else 0
    if restarts < 1:
        return None  # the pod as it is known here is older
    if container.image != change.image:
        return WaitReason.SET_BACK
    started, completed = parse_time(container.started_at), parse_time(request.status.completion_time)
    ended = not container.running or (started is not None and completed is not None and started > completed)
    return WaitReason.ENDED_AGAIN if restarts > 1 and ended else None


def _wait_for_pull(row: Row, pull: PullPod | None, change: ImageChange) -> Wait:
    message = f": {pull.message}" if pull is not None and pull.message else ""
    namespace = row.member.pod.namespace if row.member is not None else ""
    command = f"kubectl describe pod {pull.name} -n {namespace}" if pull is not None else ""
    return Wait.of(WaitReason.PULLING, command, image=change.image, node=row.node, message=message)


def _is_present(row: Row, run: Run) -> bool:
    """Whether the node says that it has the image, and that the unready grace period is over."""
    if row.request is None or row.request.request.stopped:  # the manager is about to end it
        return False
    return row.request.request.status.state(run.options.containers[0]).reason is Reason.IMAGE_PRESENT


def _image(row: Row) -> str:
    if row.member is None or not row.containers:
        return ""
    container = row.member.pod.containers.get(row.containers[0])
    return container.image if container is not None else ""


def never_adopted(run: Run, rows: Iterable[Row]) -> str:
    """Return why the workload can never adopt its pods, because one of them cannot get the image; "" if all can.

    A pod whose container has not started yet gets it later.
    """
    odd = (row for row in rows if row.skip is not None and not row.skip.normal and row.skip is not Skip.NOT_RUNNING)
    found = next(odd, None)
    why = f"{run.target.words} cannot adopt its pods, because pod"
    return f"{why} {found.pod} cannot get the image ({found.wait.why})" if found is not None else ""


def has_image(row: Row, change: ImageChange) -> bool:
    """Whether the pod's spec has the image."""
    return _image(row) == change.image


def _lacks_image(row: Row, change: ImageChange) -> bool:
    """Whether the container has another image. It may have been removed from the pod."""
    return _image(row) not in ("", change.image)


def _may_start(row: Row) -> bool:
    return row.stage in (Stage.WAITING, Stage.PUT_OFF)
