"""The images of one pod: which of its containers have another name of their image because of a restart by a patch."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from crrd.core.api.pod import Pod, PodContainer, parse_pod
from crrd.core.api.reason_table import ReasonTable
from crrd.core.api.time import format_duration, parse_time
from crrd.core.api.types import Request, StatePhase
from crrd.core.rollout.patched import read_patched
from crrd.core.rollout.requests import RunRequest

_NAMED = "its image is named {image} in place of {before}"
_STATUS = "to see the run: kubectl recreate status {run} -n {namespace}"
_HARMLESS = (
    "no action is needed: no controller of Kubernetes compares these names, and new pods get the one in the template",
    'an operator that compares images as strings may replace the pod: see "What others see" in docs/lean.md',
)


class PodTopic(ReasonTable):
    """What a restart by a patch has done to a container."""

    # fmt: off
    OTHER_NAME = ("OtherName",
        f"run {{run}} restarted it by a patch {{since}} ago; since then {_NAMED}, which is the same image", *_HARMLESS)
    OTHER_NAME_BEFORE = ("OtherNameBefore",
        f"since an earlier restart by a patch, {_NAMED}, which is the same image", *_HARMLESS)
    RESTARTING = ("Restarting",
        f"run {{run}} restarts it by a patch; for {{since}}, {_NAMED}, and kubelet has not started it yet", _STATUS)
    FAILED = "Failed", "run {run} could not restart it by a patch {since} ago: {message}", _STATUS
    # fmt: on


_TOPICS = {
    StatePhase.SUCCEEDED: PodTopic.OTHER_NAME,
    StatePhase.RECREATING: PodTopic.RESTARTING,
    StatePhase.FAILED: PodTopic.FAILED,
}


@dataclass(frozen=True, slots=True)
class PodFinding:
    """What holds for one container."""

    container: str
    topic: PodTopic
    message: str
    advice: tuple[str, ...]
    image: str
    before: str  # The image by the name that it had before restarts by a patch
    run: str  # The run that has restarted it last; "" if that is not known
    since: float | None  # For how many seconds; None if unknown


@dataclass(frozen=True, slots=True)
class PodExplanation:
    """What restarts by patches have done to a pod, and which requests are about to do something to it."""

    pod: Pod
    findings: tuple[PodFinding, ...]
    notes: tuple[str, ...] = ()


def explain_pod(obj: Mapping[str, Any], requests: Iterable[Request], now: datetime, unread: str = "") -> PodExplanation:
    """Return what holds for a pod, given as JSON.

    `requests` are those of its namespace, or `unread` says why they could not be read. `now` is the API server's time.
    """
    pod = parse_pod(obj)
    asked = read_patched(obj, pod)
    asked = asked.at(now) if asked is not None else None
    findings = filter(None, (_find(pod, each, asked, now) for each in pod.containers.values()))
    live = sorted(f"{each.namespace}/{each.name}" for each in requests if each.pod_uid == pod.uid and each.live)
    notes = [f"request {key} of this pod is not completed: crrd explain {key}" for key in live]
    notes += [f"cannot read the requests of this pod: {unread}"] if unread else []
    return PodExplanation(pod, tuple(findings), tuple(notes))


def _find(pod: Pod, container: PodContainer, asked: RunRequest | None, now: datetime) -> PodFinding | None:
    states = asked.request.status.states if asked is not None else ()
    state = next((each for each in states if each.name == container.name), None)
    if asked is None or state is None:
        run, since, topic, message = "", None, PodTopic.OTHER_NAME_BEFORE, ""
    else:
        created = parse_time(asked.request.created) or now
        run, since = asked.run.name, max(0.0, (now - created).total_seconds())
        topic, message = _TOPICS.get(state.phase, PodTopic.OTHER_NAME_BEFORE), state.message
    if container.plain_image == container.image and topic is not PodTopic.FAILED:
        return None
    image, before, ago = container.image, container.plain_image, format_duration(since or 0.0)
    values = {"image": image, "before": before, "run": run, "since": ago, "message": message}
    said = topic.say(**values), topic.advise(**values, namespace=pod.namespace)
    return PodFinding(container.name, topic, *said, image, before, run, since)
