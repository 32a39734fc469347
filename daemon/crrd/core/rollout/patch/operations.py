"""The JSON patches that restart containers of a pod, and give them their images back.

A patch is one write: what makes kubelet restart, and the record of it. Its tests bind it to the instances that were
decided on, by container ID and restart count, and to the image that each of them has.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from crrd.core.api.images import ANNOTATION_PATCHED, is_tag_of, read_image_name
from crrd.core.api.pod import ContainerKind, PodContainer
from crrd.core.api.time import parse_time
from crrd.core.api.types import RecreateState, StatePhase
from crrd.core.rollout.patched import PatchedContainer, PatchRecord, is_due, read_record
from crrd.core.rollout.run import LABEL_RUN
from crrd.core.rollout.spelling import next_spelling
from crrd.core.rollout.state import Member
from crrd.lib import jsonpatch
from crrd.lib.jsonpatch import Operation, pointer

_OF_REQUEST = "request"  # In place of a run's name: by this label, pods with a record are found
_OF_A_RUN = "crr.apps.kruise.io/run-"  # Annotations with which a run records its state


def record_of(member: Member) -> PatchRecord | None:
    """Return what a pod records about its last restart by a patch."""
    return read_record((member.annotations or {}).get(ANNOTATION_PATCHED, ""))


def spelling_of(member: Member, container: PodContainer) -> str:
    """Return the next spelling for a container of the pod, "" if there is none."""
    record = record_of(member)
    return next_spelling(container, record.used_by_now().get(container.name, ()) if record is not None else ())


def runs_other_image(member: Member, container: PodContainer) -> bool:
    """Whether a container may run another image than its spec has, because somebody has changed that since its start.

    Kubelet replaces it soon, and another spelling of the image that still runs would take the change back. When the
    last instance of one that crashes has started is not known. What managedFields say is the time of a manager's last
    write of anything. So if kubelet knows the present spec, and the instance has its image, nothing was changed.
    """
    changed, began = member.image_changes.get(container.name), parse_time(container.started_at)
    if changed is None or (began is not None and changed <= began):
        return False
    name = read_image_name(container.image)
    is_of = name.is_of(container.image_id)
    if member.pod.spec_observed and (is_of or is_tag_of(name, container.image_shown)):
        return False
    record = record_of(member)
    if record is None:
        return True
    asked = next((each for each in record.containers if each.name == container.name), None)
    kept = asked is not None and (asked.before, asked.container_id) == (container.image, container.container_id)
    is_last = container.image in record.used_by_now().get(container.name, ())[-1:]
    return not kept and not (is_last and is_of is not False)


def restart(member: Member, request: Mapping[str, Any], now: str) -> tuple[Operation, ...]:
    """Return the patch that restarts containers of a pod, each of which has a spelling.

    `request` is the request (JSON) that it replaces, `now` the API server's time (RFC 3339). If it restarts them in
    order, this is the patch for the first one (`proceed` has those of the others). What an earlier run has recorded on
    the pod is replaced.
    """
    meta, annotations = request["metadata"], request["metadata"]["annotations"]
    pod, operations = member.pod, [jsonpatch.test("/metadata/uid", member.pod.uid)]
    restarted, in_order = list[PatchedContainer](), request["spec"]["strategy"]["orderedRecreate"]
    names = [each["name"] for each in request["spec"]["containers"]]
    for name in names:
        found = pod.containers[name]
        given = spelling_of(member, found) if not (in_order and restarted) else ""
        asked = PatchedContainer(name, found.container_id, found.restart_count, found.image_id, found.image, given)
        restarted.append(asked)
        operations += _respell(member, asked) if given else ()
    back, used = _leave(member, names)
    operations += back
    record = PatchRecord(meta["name"], now, tuple(restarted), used)
    there = member.annotations or {}
    earlier = [key for key in there if key.startswith(_OF_A_RUN) and key not in annotations]
    operations += [jsonpatch.remove(pointer("metadata", "annotations", key)) for key in earlier]
    after = {**annotations, ANNOTATION_PATCHED: record.to_json()}
    return (*operations, *_label(member, meta["labels"][LABEL_RUN]), *_annotate(member, after))


def restart_for(member: Member, name: str, uid: str, containers: Iterable[str], now: str) -> tuple[Operation, ...]:
    """Return the patch that restarts containers of a pod for a request that is an object. Each has a spelling.

    `name` and `uid` are those of the request. What it has restarted before stays in the record. What a run has recorded
    on the pod is replaced, so that nobody takes this restart for one of the run.
    """
    before, restarted, names = record_of(member), list[PatchedContainer](), tuple(containers)
    for each in names:
        found = member.pod.containers[each]
        parts = found.container_id, found.restart_count, found.image_id, found.image, spelling_of(member, found)
        restarted.append(PatchedContainer(each, *parts))
    operations = [jsonpatch.test("/metadata/uid", member.pod.uid)]
    if before is not None and before.uid == uid:
        record = replace(before, containers=(*before.containers, *restarted))
    else:
        back, used = _leave(member, names)
        operations += back
        record = PatchRecord(name, now, tuple(restarted), used, uid)
    for asked in restarted:
        operations += _respell(member, asked)
    gone = [key for key in member.annotations or {} if key.startswith(_OF_A_RUN)]
    operations += [jsonpatch.remove(pointer("metadata", "annotations", key)) for key in gone]
    return (*operations, *_label(member, _OF_REQUEST), *_annotate(member, {ANNOTATION_PATCHED: record.to_json()}))


def next_container(member: Member, now: datetime) -> str:
    """Return the container that is restarted next, because the ones before it are ready again; "" for none."""
    asked = member.patched.at(now) if member.patched is not None else None
    if asked is None or not asked.next_seconds:
        return ""
    return next((each.name for each in asked.request.status.states if each.phase is StatePhase.PENDING), "")


def proceed(member: Member, now: datetime) -> tuple[Operation, ...]:
    """Return the patch that restarts the next container; () if none is due, or it has no spelling any more."""
    record, name = record_of(member), next_container(member, now)
    if record is None or not name:
        return ()
    found = member.pod.containers[name]
    asked = next(each for each in record.containers if each.name == name)
    given = spelling_of(member, found)
    if not given or found.image != asked.before:
        return ()  # with another image, kubelet replaces it, which counts as its restart
    after = record.proceeding(name, found.image, given)
    asked = next(each for each in after.containers if each.name == name)
    changes = {ANNOTATION_PATCHED: after.to_json()}
    return (jsonpatch.test("/metadata/uid", member.pod.uid), *_respell(member, asked), *_annotate(member, changes))


def foreign_image(before: Member, made: Member, operations: Iterable[Operation]) -> str:
    """Return a container of a patched pod and its image if that is not as the patch has it, "" if all are.

    A webhook may also change a container that the patch leaves alone, and kubelet would restart that one, too.
    """
    given = {each["path"]: each["value"] for each in operations if each["op"] == "replace"}
    for name, each in before.pod.containers.items():
        if each.kind is ContainerKind.EPHEMERAL:
            continue
        image = made.pod.containers[name].image if name in made.pod.containers else each.image
        if image != given.get(f"{before.pod.path_of(name)}/image", each.image):
            return f"{name} to {image}"
    return ""


def _leave(member: Member, names: Iterable[str]) -> tuple[list[Operation], Mapping[str, tuple[str, ...]]]:
    """Return what a patch that replaces the pod's record must do first, and the spellings that were used before it.

    `names` are the containers that it restarts. Others that kubelet has not started with their last spelling get their
    images back, because nobody would know that they need it. Names of an image that was replaced are forgotten.
    """
    before, there = record_of(member), member.pod.containers
    if before is None:
        return [], {}
    left = [each for each in before.containers if each.name not in {*names} and is_due(each, member.pod)]
    before = before.given_back(
        {each.name: RecreateState(each.name, message="another restart follows") for each in left}
    )
    used = before.used_by_now().items()
    images = {name: each.image for name, each in there.items()} | {each.name: each.before for each in left}
    return [*_take_back(member, left)], {name: known for name, known in used if known[-1:] == (images.get(name),)}


def _respell(member: Member, asked: PatchedContainer) -> Iterable[Operation]:
    yield from _tests(member, asked, asked.before)
    yield jsonpatch.replace(f"{member.pod.path_of(asked.name)}/image", asked.given)


def _tests(member: Member, asked: PatchedContainer, image: str) -> Iterable[Operation]:
    """Yield the tests for the instance of a container, and for its image."""
    status, spec = member.pod.containers[asked.name].status_path, member.pod.path_of(asked.name)
    yield jsonpatch.test(f"{status}/name", asked.name)
    yield jsonpatch.test(f"{status}/containerID", asked.container_id)
    yield jsonpatch.test(f"{status}/restartCount", asked.restart_count)
    yield jsonpatch.test(f"{spec}/name", asked.name)
    yield jsonpatch.test(f"{spec}/image", image)


def _label(member: Member, run: str) -> Iterable[Operation]:
    if not member.labels:
        yield jsonpatch.test("/metadata/labels", None)
        yield jsonpatch.add("/metadata/labels", {LABEL_RUN: run})
    else:
        yield jsonpatch.add(pointer("metadata", "labels", LABEL_RUN), run)


def _annotate(member: Member, after: Mapping[str, str]) -> Iterable[Operation]:
    """Yield the changes of the pod's annotations, bound to those that it has."""
    if member.annotations is None:
        yield jsonpatch.test("/metadata/annotations", None)
        yield jsonpatch.add("/metadata/annotations", dict(after))
        return
    there = member.annotations  # null is a key that is not there
    yield from (jsonpatch.test(pointer("metadata", "annotations", key), there.get(key)) for key in after)
    yield from (jsonpatch.add(pointer("metadata", "annotations", key), value) for key, value in after.items())


def give_back(member: Member, now: datetime) -> tuple[Operation, ...]:
    """Return the patch that gives containers their images back whose restart has failed; () if none is due.

    Kubelet cannot start them, or has not begun until the deadline, and nobody would be there if it cannot start them
    later. It knows the earlier spelling, because an instance has run with it.
    """
    if member.patched is None:
        return ()
    states = member.patched.at(now).request.status.states
    return give_images_back(member, {each.name: each for each in states if each.phase is StatePhase.FAILED})


def give_images_back(member: Member, failed: Mapping[str, RecreateState]) -> tuple[Operation, ...]:
    """Return the patch that gives these containers, by name, their images back; () if none is due."""
    record = record_of(member)
    if record is None:
        return ()
    back = [each for each in record.containers if each.name in failed and is_due(each, member.pod)]
    if not back:
        return ()
    record = record.given_back({each.name: failed[each.name] for each in back})
    test, changes = jsonpatch.test("/metadata/uid", member.pod.uid), {ANNOTATION_PATCHED: record.to_json()}
    return (test, *_take_back(member, back), *_annotate(member, changes))


def _take_back(member: Member, containers: Iterable[PatchedContainer]) -> Iterable[Operation]:
    for each in containers:
        yield from _tests(member, each, each.given)
        yield jsonpatch.replace(f"{member.pod.path_of(each.name)}/image", each.before)
