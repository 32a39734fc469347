"""A request that is kept on its pod: what a run by patches records there, read as a request.

Where no node daemon serves requests, a run restarts a container by a patch of its pod (`patch`), and the same patch
records the run there. Nothing else is created. The pod's status says what has become of it: another container ID.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import Any

from crrd.core.api.images import ANNOTATION_PATCHED, RECORD_VERSION
from crrd.core.api.pod import Pod, PodContainer, parse_pod, pod_containers
from crrd.core.api.reason_table import ReasonTable
from crrd.core.api.reasons import Reason
from crrd.core.api.time import parse_time
from crrd.core.api.types import (
    ACTIVE,
    LABEL_ACTIVE,
    LABEL_NODE_NAME,
    LABEL_POD_UID,
    RecreateState,
    RequestPhase,
    StatePhase,
    Status,
    Strategy,
)
from crrd.core.api.v1alpha1 import read_reason, status_to_json
from crrd.core.recreate.messages import pod_over
from crrd.core.recreate.settle import fail_rest
from crrd.core.rollout.requests import RunRequest, read_run_request
from crrd.core.rollout.spelling import is_same_image
from crrd.lib.jsonfields import items, mapping, number, text

OWN_PREFIX = "crr.apps.kruise.io/"
_CHARACTERS = 300  # Most characters of kubelet's message, because annotations have a limit of size
START_SECONDS = 30
"""From the end of a grace period to the next start, at most. A patch that is taken back in between restarts twice."""
CANNOT_START = (
    "ErrImageNeverPull",
    "ErrImagePull",
    "ImageInspectError",
    "ImagePullBackOff",
    "InvalidImageName",
    "RegistryUnavailable",
    "SignatureValidationFailed",
)
"""Why kubelet cannot start a container with its image (pkg/kubelet/images/types.go, cri-api's pkg/errors)."""


def most_seconds(pod: Pod, containers: int = 1, *, ordered: bool = False) -> int:
    """Return after how many seconds kubelet has started so many containers again, at the latest.

    It stops those of one patch one after the other (`SyncPod` in pkg/kubelet/kuberuntime), and starts none before that.
    `ordered`: each of them has a patch of its own.
    """
    return Strategy().grace(pod.grace_seconds) * containers + START_SECONDS * (containers if ordered else 1)


class PatchFailure(ReasonTable):
    """Why a restart by a patch has failed."""

    NOT_FOUND = "ContainerNotFound", "the container was removed from the pod"
    TAKEN_BACK = "ImageTakenBack", "somebody has given it the image {image} back before kubelet restarted it"
    FOREIGN = "ForeignImage", "somebody has given it the image {image} meanwhile"
    CANNOT_START = "CannotStart", "kubelet cannot start it with the image {image} ({why}), so it gets {before} back"
    OTHER_IMAGE = "OtherImage", "it runs another image than before: {now} in place of {then}"


@dataclass(frozen=True, slots=True)
class PatchedContainer:
    """One container of a restart by a patch."""

    name: str
    container_id: str  # Of the instance that was meant, with the runtime's name in front
    restart_count: int
    image_id: str  # Of that instance, as kubelet reported it
    before: str  # The image in the spec before its patch
    given: str = ""  # The image in the spec after its patch: another spelling; "" if it comes after the ones before it
    failure: str = ""  # Why it has failed, if it got its image back because of that
    reason: str = ""  # The reason of that failure (`Reason`), "" for none


@dataclass(frozen=True, slots=True)
class PatchRecord:
    """The last restart of a pod's containers by a patch."""

    request: str  # As the name of a request (`Run.request_name`)
    created: str  # RFC 3339, the API server's clock
    containers: tuple[PatchedContainer, ...]
    used: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By container: the spellings that it had before this restart, the last one at the end."""
    uid: str = ""  # Of the request, if it is an object, which the manager carries out; "" for one of a run

    def to_json(self) -> str:
        """Return the text of the annotation."""
        shape = {"version": RECORD_VERSION, **asdict(self)}
        if not self.uid:
            del shape["uid"]
        return json.dumps(shape, sort_keys=True, separators=(",", ":"))

    def proceeding(self, name: str, before: str, given: str) -> "PatchRecord":
        """Return the record with the patch of the next container."""
        found = (replace(each, before=before, given=given) if each.name == name else each for each in self.containers)
        return replace(self, containers=tuple(found))

    def given_back(self, failed: Mapping[str, RecreateState]) -> "PatchRecord":
        """Return the record after these containers, by name, have got their images back because they have failed."""
        marked = (
            replace(each, failure=failed[each.name].message, reason=failed[each.name].reason.value)
            if each.name in failed
            else each
            for each in self.containers
        )
        return replace(self, containers=tuple(marked))

    def used_by_now(self) -> Mapping[str, tuple[str, ...]]:
        """Return `used` for the next restart."""
        found = {**self.used}
        for each in (each for each in self.containers if each.given):
            earlier = (spelled for spelled in found.get(each.name, ()) if spelled not in (each.before, each.given))
            last = (each.given, each.before) if each.failure else (each.before, each.given)
            found[each.name] = (*earlier, *last)
        return found


def read_record(annotation: str) -> PatchRecord | None:
    """Parse the annotation. Return None if there is none, it is invalid, or of a later version."""
    if not annotation:
        return None
    try:
        shape = mapping(json.loads(annotation))
        containers = tuple(PatchedContainer(**mapping(each)) for each in items(shape.get("containers")))
    except (ValueError, TypeError, RecursionError):
        return None
    used = {name: tuple(map(text, items(spelled))) for name, spelled in mapping(shape.get("used")).items()}
    request, created, uid = (text(shape.get(key)) for key in ("request", "created", "uid"))
    record = PatchRecord(request, created, containers, used, uid)
    sound = all(isinstance(value, str) for each in containers for value in _values(each))
    known = 0 < number(shape.get("version")) <= RECORD_VERSION
    return record if known and sound and containers and record.request else None


def _texts(found: object) -> dict[str, str]:
    return {key: value for key, value in mapping(found).items() if isinstance(value, str)}


def _values(each: PatchedContainer) -> Iterator[object]:
    yield from (each.name, each.container_id, each.image_id, each.before, each.given, each.failure, each.reason)
    yield "" if type(each.restart_count) is int else None


def read_patched(obj: Mapping[str, Any], pod: Pod | None = None) -> RunRequest | None:
    """Return the last restart by a patch that a pod records, as a request of its run; None if it records none.

    One for a request that is an object is not returned, because that is the request.
    """
    meta = mapping(obj.get("metadata"))
    annotations = mapping(meta.get("annotations"))
    record = read_record(text(annotations.get(ANNOTATION_PATCHED)))
    if record is None or record.uid:
        return None
    pod = pod or parse_pod(obj)
    status = status_of(record, pod)
    labels = {**mapping(meta.get("labels")), LABEL_POD_UID: pod.uid, LABEL_NODE_NAME: pod.node_name}
    labels |= {LABEL_ACTIVE: ACTIVE} if not status.completion_time else {}
    found = read_run_request(
        {
            "metadata": {
                "namespace": pod.namespace,
                "name": record.request,
                "uid": f"{pod.uid}/{record.request}",
                "resourceVersion": meta.get("resourceVersion"),
                "creationTimestamp": record.created,
                "labels": labels,
                "annotations": annotations,
            },
            "spec": {
                "podName": pod.name,
                "containers": [
                    {
                        "name": each.name,
                        "statusContext": {"containerID": each.container_id, "restartCount": each.restart_count},
                    }
                    for each in record.containers
                ],
            },
            "status": status_to_json(status),
        }
    )
    if found is None or not found.run.options.patch:
        return None
    of_this_pod = found.first_name == found.run.request_name(pod.uid)  # not of one that was restored from a copy
    return replace(found, on_pod=True, next_seconds=_next_seconds(status, pod)) if of_this_pod else None


def _next_seconds(status: Status, pod: Pod) -> int:
    """Return `RunRequest.next_seconds`."""
    begun = [each for each in status.states if each.phase is not StatePhase.PENDING]
    there = pod.containers  # the record may name others, because anybody can write annotations
    back = all(each.phase.final and each.name in there and there[each.name].ready for each in begun)
    return most_seconds(pod) if back and len(begun) < len(status.states) else 0


def status_of(record: PatchRecord, pod: Pod) -> Status:
    """Return what has become of a restart by a patch, as the status of a request. It ends with its pod."""
    states = tuple(state_of(each, pod.containers.get(each.name)) for each in record.containers)
    if failed := next((each.name for each in states if each.phase is StatePhase.FAILED), ""):
        why = Reason.EARLIER_FAILURE
        message = why.say(what="not restarted", name=failed)
        states = tuple(
            RecreateState(each.name, StatePhase.FAILED, message, reason=why)
            if each.phase is StatePhase.PENDING
            else each
            for each in states
        )
    if over := pod_over(pod):
        states = fail_rest(states, over, over)
    if not all(each.phase.final for each in states):
        return Status(RequestPhase.RECREATING, states)
    started = [pod.containers[each.name].started_at for each in states if each.name in pod.containers]
    return Status(RequestPhase.COMPLETED, states, completion_time=max((record.created, *started)))


def state_of(asked: PatchedContainer, now: PodContainer | None) -> RecreateState:
    """Return what has become of a container (None: it was removed from the pod)."""
    if asked.failure:
        return _failed(asked, asked.failure, read_reason(asked.reason))
    if now is None:
        return _failed(asked, PatchFailure.NOT_FOUND.say(), Reason.CONTAINER_NOT_FOUND)
    if now.container_id and now.container_id != asked.container_id:
        if asked.given and now.image == asked.given and not is_same_image(asked.image_id, now.image_id):
            return _failed(asked, PatchFailure.OTHER_IMAGE.say(now=now.image_id, then=asked.image_id))
        return RecreateState(asked.name, StatePhase.SUCCEEDED)
    if not asked.given:
        return RecreateState(asked.name)
    if now.image == asked.before:
        return _failed(asked, PatchFailure.TAKEN_BACK.say(image=asked.before))
    if now.image != asked.given:
        return _failed(asked, PatchFailure.FOREIGN.say(image=now.image))
    if now.waiting_reason in CANNOT_START:
        why = ": ".join(filter(None, (now.waiting_reason, now.waiting_message)))[:_CHARACTERS]
        return _failed(asked, PatchFailure.CANNOT_START.say(image=asked.given, why=why, before=asked.before))
    return RecreateState(asked.name, StatePhase.RECREATING)


def is_due(asked: PatchedContainer, pod: Pod) -> bool:
    """Whether kubelet has yet to start a container of the pod with the spelling that it was given."""
    now = pod.containers.get(asked.name)
    if now is None or not asked.given or asked.failure or pod_over(pod):
        return False
    return now.image == asked.given and now.container_id == asked.container_id


def due_for_request(obj: Mapping[str, Any], pod: Pod) -> tuple[str, ...]:
    """Return the containers that the manager restarts by a patch for a request, and that kubelet has yet to start.

    One that it cannot start with this name is down until it gets its image back, and nobody needs to wait for it.
    """
    record = read_record(text(mapping(mapping(obj.get("metadata")).get("annotations")).get(ANNOTATION_PATCHED)))
    if record is None or not record.uid:
        return ()
    due = (each for each in record.containers if is_due(each, pod))
    return tuple(each.name for each in due if pod.containers[each.name].waiting_reason not in CANNOT_START)


def _failed(asked: PatchedContainer, message: str, reason: Reason = Reason.NONE) -> RecreateState:
    return RecreateState(asked.name, StatePhase.FAILED, message, reason=reason)


def own_annotations(obj: Mapping[str, Any]) -> Mapping[str, str] | None:
    """Return the annotations of a pod that are crrd's; None if the pod has no annotations at all."""
    there = mapping(obj.get("metadata")).get("annotations")
    if there is None:
        return None
    return {key: value for key, value in _texts(there).items() if key.startswith(OWN_PREFIX)}


def image_changes(obj: Mapping[str, Any]) -> dict[str, datetime]:
    """Return when the images of containers were changed in a pod's spec, by its managedFields.

    A manager's time is that of its last change of any field, so the change may have been earlier. The manager that has
    created the pod owns its images, too. Empty if the spec has not changed since the pod's creation, or the API server
    is older than 1.33 and does not say so.
    """
    meta, found = mapping(obj.get("metadata")), dict[str, datetime]()
    created = parse_time(text(meta.get("creationTimestamp")))
    if number(meta.get("generation")) <= 1:
        return found
    for entry in map(mapping, items(meta.get("managedFields"))):
        owned, at = mapping(mapping(entry.get("fieldsV1")).get("f:spec")), parse_time(text(entry.get("time")))
        if at is not None and created is not None and at <= created:
            continue
        there = {**mapping(owned.get("f:containers")), **mapping(owned.get("f:initContainers"))}
        for name, _, _ in pod_containers(mapping(obj.get("spec"))):
            if at is not None and "f:image" in mapping(there.get(f'k:{{"name":"{name}"}}')):
                found[name] = max(at, found.get(name, at))
    return found


def patched_requests(requests: Iterable[RunRequest | None]) -> dict[str, RunRequest]:
    """Return requests that are kept on pods, by their pod (UID)."""
    return {each.request.pod_uid: each for each in requests if each is not None}
