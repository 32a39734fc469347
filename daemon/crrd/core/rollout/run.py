"""A run: what it recreates and how. It is kept only on the requests that it made, so any process can go on with it.

A request's name follows from the run's name and the pod's UID, so it cannot be created twice.
"""

import hashlib
import json
import re
from dataclasses import asdict, dataclass, replace
from typing import Any

from crrd.core.api.types import API_VERSION, KIND
from crrd.core.config.objects import START_MARGIN

LABEL_RUN = "crr.apps.kruise.io/run"
ANNOTATION_TARGET = "crr.apps.kruise.io/run-target"
ANNOTATION_REASON = "crr.apps.kruise.io/run-reason"
ANNOTATION_RUN = "crr.apps.kruise.io/run-options"  # The whole run, as JSON
ANNOTATION_ABORTED = "crr.apps.kruise.io/run-aborted"
"""On any request of a run (RFC 3339): nothing more is begun for it."""
ANNOTATION_PROGRESS = "crr.apps.kruise.io/run-progress"  # How far the run was when its process wrote last, as JSON
KEPT_SECONDS = 86_400
"""TTL of a run's requests: for `status`, and for whoever resumes it the next morning. A pod whose request is gone is
still known as done, by when its containers were started."""
RUN_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?")  # A label's value that leaves room in an object's name


@dataclass(frozen=True, slots=True)
class Amount:
    """A number of pods, or a share of them in per cent."""

    number: int
    percent: bool = False

    def of(self, total: int) -> int:
        """The number of pods, rounded down, at least one: with none, nothing would ever be done."""
        return max(1, self.number * total // 100 if self.percent else self.number)

    def __str__(self) -> str:
        return f"{self.number}%" if self.percent else str(self.number)


def read_amount(given: str) -> Amount:
    """An amount as people write it: `2` or `20%`. Raises ValueError with what it has to be."""
    digits = given.removesuffix("%")
    if not (digits.isascii() and digits.isdigit()) or int(digits) < 1 or (given.endswith("%") and int(digits) > 100):
        raise ValueError("a number of at least 1, or a percentage from 1% to 100%")
    return Amount(int(digits), given.endswith("%"))


@dataclass(frozen=True, slots=True)
class Target:
    """The pods that a run is about: those that a workload owns, one pod, or those that a label selector selects."""

    words: str  # As messages name it: `deployment.apps/web`, `pod/web-1`, `pods app=web`
    api_version: str = ""  # With `kind`, `name` and `uid` a workload's, "" for pods themselves
    kind: str = ""
    name: str = ""
    uid: str = ""
    selector: str = ""  # A query for the pods; "" where the workload has it

    @property
    def identity(self) -> tuple[str, ...]:
        """What tells it from other targets: the API group, kind, name and selector."""
        return self.api_version.rpartition("/")[0], self.kind, self.name, self.selector


@dataclass(frozen=True, slots=True)
class Options:
    """How a run goes on; seconds are whole."""

    containers: tuple[str, ...]  # Empty with `stale`, for all that can be recreated
    max_unavailable: Amount = Amount(1)
    max_per_node: int = 0  # 0 for no limit; the same for the next one
    max_per_zone: int = 0
    min_ready: int = 0  # For how long a pod has to be ready to count as back
    first: int = 0  # After so many pods somebody is asked whether to go on; 0 for never
    ordered: bool = False
    unready_grace: int | None = None
    pod_timeout: int = 600
    max_failures: int = 1  # With so many failed pods nothing more is begun
    force: bool = False  # Go on while the workload is being rolled out
    allow_pod_restart: bool = False
    """Recreate a container though its restartPolicyRules may have kubelet restart all containers of the pod."""
    stale: bool = False  # Recreate only containers that use configuration which has changed since they started
    stale_margin: int = START_MARGIN
    """With `stale`: seconds that a change may take until a container that starts has it."""
    preflight: bool = False
    """Begin no pod that uses a ConfigMap, a Secret or a key that is gone; a run with `stale` does so, too."""
    since: str = ""  # RFC 3339: containers started after that are left alone; "" for the run's start
    reason: str = ""

    @property
    def reads_config(self) -> bool:
        """Whether the run has to look at what the pods use of ConfigMaps and Secrets."""
        return self.stale or self.preflight

    @property
    def what(self) -> str:
        """The containers, in words."""
        return ", ".join(self.containers) or "stale containers"


@dataclass(frozen=True, slots=True)
class Run:
    """One run."""

    namespace: str
    name: str
    target: Target
    options: Options
    started: str  # RFC 3339, the API server's clock
    revision: int = 0  # How often its options were changed since

    def changed(self, **options: Any) -> "Run":
        """The run with other options."""
        found = replace(self.options, **options)
        return self if found == self.options else replace(self, options=found, revision=self.revision + 1)

    def describe(self, pods: int) -> str:
        """What it does to so many pods, in words."""
        reason = f" ({self.options.reason})" if self.options.reason else ""
        most = f"{pods} pod{'s' * (pods != 1)}, at most {self.options.max_unavailable} unready"
        return f"{self.options.what} of {self.target.words}, {most}{reason}"

    def request_name(self, pod_uid: str) -> str:
        """The name of this run's request for a pod."""
        return f"{self.name}-{hashlib.sha256(pod_uid.encode()).hexdigest()[:10]}"

    def request(self, pod_name: str, pod_uid: str, containers: tuple[str, ...]) -> dict[str, Any]:
        """The request for a pod, in its Kubernetes shape; the rest is admission's to fill in."""
        strategy: dict[str, Any] = {"failurePolicy": "Fail", "orderedRecreate": self.options.ordered}
        if self.options.allow_pod_restart:
            strategy["allowPodRestart"] = True
        if self.options.unready_grace is not None:
            strategy["unreadyGracePeriodSeconds"] = self.options.unready_grace
        meta: dict[str, Any] = {"name": self.request_name(pod_uid), "namespace": self.namespace}
        meta |= {"labels": {LABEL_RUN: self.name}, "annotations": self.annotations()}
        spec = {
            "podName": pod_name,
            "containers": [{"name": name} for name in containers],
            "strategy": strategy,
            "activeDeadlineSeconds": self.options.pod_timeout,
            "ttlSecondsAfterFinished": KEPT_SECONDS,
        }
        return {"apiVersion": API_VERSION, "kind": KIND, "metadata": meta, "spec": spec}

    def annotations(self) -> dict[str, str]:
        """What each of its requests says of it."""
        reason = {ANNOTATION_REASON: self.options.reason} if self.options.reason else {}
        return {ANNOTATION_TARGET: self.target.words, ANNOTATION_RUN: self.to_json(), **reason}

    def to_json(self) -> str:
        """The run as JSON; the same run always gives the same text."""
        options = {**asdict(self.options), "max_unavailable": str(self.options.max_unavailable)}
        shape: dict[str, Any] = {"started": self.started, "target": asdict(self.target), "options": options}
        if self.revision:
            shape["revision"] = self.revision
        return json.dumps(shape, sort_keys=True, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run was when the process that carries it out wrote last."""

    at: str  # RFC 3339, the API server's clock
    by: str  # Host and process ID: `laptop/4711`
    state: str  # As `RunStatus.state`
    done: int
    total: int  # Pods that are not left out
    waits: str = ""  # What it waited for then

    def annotation(self) -> dict[str, str]:
        """As a request carries it."""
        return {ANNOTATION_PROGRESS: json.dumps(asdict(self), separators=(",", ":"))}
