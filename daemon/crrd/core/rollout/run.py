"""A run: what it recreates, and how. It is stored only on its requests, so any process can continue it.

A request's name is computed from the run's name and the pod's UID, so it cannot be created twice. A request that
retries a failed one has its name and a number.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from itertools import pairwise
from math import inf
from types import MappingProxyType
from typing import Annotated, Any

from crrd.core.api.schema import LONGEST, LONGEST_UNREADY
from crrd.core.api.types import ANNOTATION_REFRESH, API_VERSION, KIND, Action
from crrd.core.rollout.change import RESTART, Change, ImageChange
from crrd.lib.jsonfields import INT64_MAX, decimal

LABEL_RUN = "crr.apps.kruise.io/run"
ANNOTATION_TARGET = "crr.apps.kruise.io/run-target"
ANNOTATION_REASON = "crr.apps.kruise.io/run-reason"
ANNOTATION_RUN = "crr.apps.kruise.io/run-options"  # The whole run, as JSON
STORED_VERSION = 1
"""Of the form in which a run is stored. A process does not continue a run in a later form, which it does not know."""
KEPT_SECONDS = 86_400
"""TTL of a run's requests: for `status`, and to resume the run the next morning. A pod whose request was deleted still
counts as done, because its containers started after the run."""
OF_STEPS = ("steps", "step_pause", "judge", "max_restarts", "metrics_digest", "failure_limit")
"""The options about steps and how they are judged."""
_MOST_ATTEMPTS = 10**9 - 1
_MOST_SECONDS = 10**10  # No flag accepts a longer time, and it can be added to each time that `parse_time` returns
_BOUNDS: Mapping[str, tuple[int, float]] = MappingProxyType(
    {
        **dict.fromkeys(("max_per_node", "max_per_zone", "first", "max_restarts", "failure_limit"), (0, inf)),
        "max_failures": (1, inf),
        "min_ready": (0, _MOST_SECONDS),
        "step_pause": (0, LONGEST[0]),
        "judge": (0, LONGEST[0]),
        "unready_grace": (0, LONGEST_UNREADY[0]),
        "pod_timeout": (3, LONGEST[0]),
    }
)
"""The lowest and the highest value of each number among the options."""
RUN_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?")  # Fits in a label, and leaves room in an object's name


@lru_cache(maxsize=32_768)
def _short_hash(uid: str) -> str:
    return hashlib.sha256(uid.encode()).hexdigest()[:10]


@dataclass(frozen=True, slots=True)
class Amount:
    """A number or a percentage of pods."""

    number: int
    percent: bool = False

    def of(self, total: int) -> int:
        """Return the number of pods, rounded down, but at least one, because a run with zero would never progress."""
        return max(1, self.number * total // 100 if self.percent else self.number)

    def __str__(self) -> str:
        return f"{self.number}%" if self.percent else str(self.number)


def attempt_of(request_name: str) -> int:
    """Return from its name which of the requests of a run for one pod it is: 1 for the first."""
    found = decimal(request_name.partition(".")[2], _MOST_ATTEMPTS)
    return 1 if found is None else found


def read_amount(given: str) -> Amount:
    """Parse `2` or `20%`. Raises ValueError with a description of valid values."""
    percent = given.endswith("%")
    number = decimal(given.removesuffix("%"), 100 if percent else INT64_MAX)
    if not number:
        raise ValueError("a number of at least 1, or a percentage from 1% to 100%")
    return Amount(number, percent)


@dataclass(frozen=True, slots=True)
class Target:
    """The pods of a run: those of a workload, one pod, or those that a label selector selects."""

    words: Annotated[str, "Its name in messages: `deployment.apps/web`, `pod/web-1`, `pods app=web`."]
    api_version: Annotated[str, "apiVersion of the workload. Empty for pods, as the next three."] = ""
    kind: Annotated[str, "Its kind."] = ""
    name: Annotated[str, "Its name."] = ""
    uid: Annotated[str, "Its UID."] = ""
    selector: Annotated[str, "A label selector for the pods. Empty if the workload has it."] = ""

    @property
    def identity(self) -> tuple[str, ...]:
        """API group, kind, name and selector, which differ between targets."""
        return self.api_version.rpartition("/")[0], self.kind, self.name, self.selector


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a run. Durations are whole seconds. The descriptions are those of docs/recreate.md."""

    containers: Annotated[
        tuple[str, ...],
        "Names of the containers. Empty with `stale`, `reload`, or `whole_pod` alone: all that can be recreated.",
    ]
    max_unavailable: Annotated[Amount, "How many pods may be unready."] = Amount(1)
    max_per_node: Annotated[int, "How many of them on one node. 0 for no limit."] = 0
    max_per_zone: Annotated[int, "How many of them in one zone. 0 for no limit."] = 0
    min_ready: Annotated[
        int | None, "How long a pod must be ready to count as done. null for minReadySeconds of the workload."
    ] = None
    first: Annotated[int, "After this many pods, the user must confirm the rest. 0 for never."] = 0
    steps: Annotated[
        tuple[int, ...], "After each of these numbers of pods, all counted from the start, a step of the run is over."
    ] = ()
    step_pause: Annotated[
        int | None, "How long the run waits after each step. null until a user allows the next one."
    ] = None
    judge: Annotated[
        int, "How long the pods of a step must stay ready after it, without another restart. 0 for no judgement."
    ] = 0
    max_restarts: Annotated[int, "How many more restarts of a pod the judgement allows."] = 0
    metrics_digest: Annotated[
        str, "Digest of what the judgement asks of Prometheus. Empty for nothing. The addresses are not stored."
    ] = ""
    failure_limit: Annotated[int, "How many times in a row metrics may be unknown until the judgement is no."] = 3
    ordered: Annotated[bool, "Whether the containers of a pod are recreated one after the other."] = False
    unready_grace: Annotated[int | None, "How long a pod is unready before a stop. null for the default."] = None
    pod_timeout: Annotated[int, "Deadline of each request."] = 600
    max_failures: Annotated[int, "After this many failed pods, no more start."] = 1
    force: Annotated[bool, "Whether the run continues while the workload is being rolled out."] = False
    allow_pod_restart: Annotated[
        bool, "Whether containers are recreated even if kubelet may restart all containers of the pod."
    ] = False
    stale: Annotated[bool, "Whether only containers with changed configuration are recreated."] = False
    objects: Annotated[
        tuple[str, ...],
        "Only containers that miss one of these changes are recreated: object, its used keys (none for all), and until "
        "when a container can have started without it. Empty for all.",
    ] = ()
    preflight: Annotated[
        bool, "Whether no pod starts that uses a missing ConfigMap, Secret or key. `stale` includes this."
    ] = False
    since: Annotated[str, "Containers that started later are not recreated. Empty for the start of the run."] = ""
    reason: Annotated[str, "Why the user has started the run."] = ""
    policy: Annotated[str, "UID of the policy that has started the run. Empty for the run of a user."] = ""
    image: Annotated[ImageChange | None, "Another image for the container, which is not restarted then."] = None
    patch: Annotated[bool, "Whether containers are restarted by patches of their pods (docs/lean.md)."] = False
    whole_pod: Annotated[bool, "Whether whole pods are restarted in place, with their init containers."] = False
    reload: Annotated[bool, "Whether containers reload their files instead of being restarted."] = False
    pull_resources: Annotated[
        str, "With an image: what pull pods request, for example `cpu=50m`. Empty for the default."
    ] = ""

    @property
    def has_valid_numbers(self) -> bool:
        """Whether the steps increase, and flags accept the other values. Others may write requests.

        The types of the fields are right (`run_limits.fits`).
        """
        known = all(type(each) is int for each in self.steps)
        if not known or not all(a < b for a, b in pairwise((0, *self.steps))):
            return False
        values = ((getattr(self, name), low, high) for name, (low, high) in _BOUNDS.items())
        return all(value is None or low <= value <= high for value, low, high in values)

    @property
    def reads_config(self) -> bool:
        """Whether the run must read the ConfigMaps and Secrets that the pods use."""
        return self.stale or self.preflight

    @property
    def change(self) -> Change:
        """What the run does to the containers."""
        return self.image or RESTART

    @property
    def what(self) -> str:
        """The containers, for messages."""
        if self.reload:
            return f"reload of {', '.join(self.containers) or 'all containers that declare it'}"
        names, gets = ", ".join(self.containers) or "stale containers", self.change.label
        if self.whole_pod:
            return f"whole pods, {names} with {gets}" if gets else "all containers (whole pods)"
        return f"{names} ({gets})" if gets else names


@dataclass(frozen=True, slots=True)
class Run:
    """One run."""

    namespace: str
    name: str
    target: Target
    options: Options
    started: str  # RFC 3339, the API server's clock
    revision: int = 0  # How often its options have changed
    partition: str = ""  # As it was given, of which `Options.first` is the number
    steps: str = ""  # As they were given, of which `Options.steps` has the numbers
    only: frozenset[str] = frozenset()
    """If it is not empty: names of the pods, because a policy knows that all others have what the run brings. It is not
    stored."""

    @property
    def aim(self) -> tuple[object, ...]:
        """What the run does, to which pods. It never changes, whatever somebody writes on a request.

        It has all options that are not among the LIMITS (`run_limits`).
        """
        own = self.options
        chosen = own.containers, own.stale, own.objects, own.since
        parts = own.first, own.steps, own.step_pause, own.judge, own.max_restarts, own.metrics_digest, own.failure_limit
        return self.target, *chosen, own.image, own.patch, own.whole_pod, own.reload, *parts, own.policy

    def replaces(self, other: "Run") -> bool:
        """Whether this run takes over from another one: it undoes it, or a policy has only one run at a time."""
        policy = self.options.policy
        of_same_policy = bool(policy) and other.options.policy == policy
        earlier = other.started <= self.started and other.name != self.name
        return earlier and (of_same_policy or self.undoes(other))

    def undoes(self, other: "Run") -> bool:
        """Whether this run gives the pods of another one their image back."""
        return self.options.change.undoes == other.name

    def changed(self, **options: Any) -> "Run":
        """Return the run with changed options."""
        found = replace(self.options, **options)
        return self if found == self.options else replace(self, options=found, revision=self.revision + 1)

    @property
    def purpose(self) -> str:
        """What the run does, for a user who has not started it. The names are those that it uses."""
        target, change = self.target, self.options.image
        kind = ".".join(filter(None, (target.kind.lower(), target.api_version.rpartition("/")[0])))
        pods = f"{kind}/{target.name}" if kind else f"pods {target.selector}" if target.selector else "all pods"
        if change is None:
            return f"{'' if self.options.reload else 'restarts '}{self.options.what} of {pods}"
        template = ", and its template, too" if change.adopt and not change.follow else ""
        if change.of_template:
            template = f", and {'new pods' if change.follow else 'its template'} {change.of_template}"
        gives = f"gives container {self.options.containers[0]} of {pods} the image {change.image}{template}"
        return f"{gives}, and restarts the whole pods" if self.options.whole_pod else gives

    def describe(self, pods: int) -> str:
        """Return a sentence about the run, for this number of pods."""
        reason = f" ({self.options.reason})" if self.options.reason else ""
        most = f"{pods} pod{'s' * (pods != 1)}, at most {self.options.max_unavailable} unready"
        steps = f", in steps {self.steps}" if self.steps else ""
        return f"{self.options.what} of {self.target.words}, {most}{steps}{reason}"

    def request_name(self, pod_uid: str, failed: str = "") -> str:
        """Return the name of this run's request for a pod, or of the one after the failed request of this name."""
        attempt = f".{attempt_of(failed) + 1}" if failed else ""
        return f"{self.name}-{_short_hash(pod_uid)}{attempt}"

    def request(self, pod_name: str, pod_uid: str, containers: tuple[str, ...], failed: str = "") -> dict[str, Any]:
        """Return the request for a pod as JSON; admission sets the other fields. `failed` as in `request_name`.

        That for a whole pod, or for a reload, names no containers, so that an API server or a manager which does not
        know the field rejects it, and nobody stops the containers. Admission names them. One for a whole pod names an
        init container that gets an image, which all others reject.
        """
        strategy: dict[str, Any] = {"failurePolicy": "Fail", "orderedRecreate": self.options.ordered}
        if self.options.allow_pod_restart:
            strategy["allowPodRestart"] = True
        if self.options.unready_grace is not None:
            strategy["unreadyGracePeriodSeconds"] = self.options.unready_grace
        meta: dict[str, Any] = {"name": self.request_name(pod_uid, failed), "namespace": self.namespace}
        meta |= {"labels": {LABEL_RUN: self.name}, "annotations": self.annotations()}
        if self.options.reload:
            strategy |= {"action": Action.RELOAD.value, "reloadContainers": list(containers)}
            meta["annotations"][ANNOTATION_REFRESH] = self.refresh_token(failed)
        spec = {
            "podName": pod_name,
            **self._restarted(containers),
            "strategy": strategy,
            "activeDeadlineSeconds": self.options.pod_timeout,
            "ttlSecondsAfterFinished": KEPT_SECONDS,
        }
        return {"apiVersion": API_VERSION, "kind": KIND, "metadata": meta, "spec": spec}

    def _restarted(self, containers: tuple[str, ...]) -> dict[str, Any]:
        if self.options.reload:
            return {}
        fields = self.options.change.fields
        whole = {"wholePod": True} if self.options.whole_pod else {}
        named = {"containers": [{"name": name, **fields} for name in containers]} if fields or not whole else {}
        return {**whole, **named}

    def refresh_token(self, failed: str) -> str:
        """Return the annotation for which kubelet refreshes a pod's files before its reload. See `request_name`."""
        return hashlib.sha256(f"{self.name} {failed}".encode()).hexdigest()[:16]

    def annotations(self) -> dict[str, str]:
        """Return the annotations that store the run on each of its requests."""
        reason = {ANNOTATION_REASON: self.options.reason} if self.options.reason else {}
        return {ANNOTATION_TARGET: self.target.words, ANNOTATION_RUN: self.to_json(), **reason}

    def to_json(self) -> str:
        """Return the run as JSON. Equal runs give equal texts."""
        options = {**asdict(self.options), "max_unavailable": str(self.options.max_unavailable)}
        # Processes of older versions cannot continue a run with an option that they do not know.
        unset = Options(())
        for name in ("policy", "pull_resources", "patch", "whole_pod", "reload", *OF_STEPS):
            if getattr(self.options, name) == getattr(unset, name):
                del options[name]
        del options["image"]
        options |= self.options.change.stored()
        shape: dict[str, Any] = {"version": STORED_VERSION, "started": self.started, "options": options}
        shape["target"] = asdict(self.target)
        shape |= {"revision": self.revision} if self.revision else {}
        shape |= {"partition": self.partition} if self.partition else {}
        shape |= {"steps": self.steps} if self.steps else {}
        return json.dumps(shape, sort_keys=True, separators=(",", ":"))
