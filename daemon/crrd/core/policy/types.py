"""A ContainerRecreatePolicy and its status as values. `v1alpha1` reads them from JSON."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any
from zoneinfo import ZoneInfo

from crrd.core.api.types import POLICY_GROUP
from crrd.core.config.parts import Part, PartChange, read_change
from crrd.core.config.references import Kind, Reference
from crrd.core.config.uses import Unreached
from crrd.core.judge.metrics import Metric
from crrd.core.policy.cron import CRON_NAMES, last_time, next_time, spelled
from crrd.core.rollout.run import Amount
from crrd.lib.jsonfields import decimal

KIND = "ContainerRecreatePolicy"
API_VERSION = f"{POLICY_GROUP}/v1alpha1"
ANNOTATION_CONTINUE = "crrd.dev/continue"
"""On a policy, `RUN/NUMBER`: the run may continue after its first NUMBER steps."""


class ConfigAction(StrEnum):
    """What is done to containers whose configuration has changed."""

    RESTART = "Restart"
    RELOAD_OR_RESTART = "ReloadOrRestart"


class OnFailure(StrEnum):
    """What a policy does after a run has failed."""

    HALT = "Halt"
    RESTORE = "Restore"  # Of data
    UNDO = "Undo"  # Of images


@dataclass(frozen=True, slots=True)
class TargetRef:
    """The workload that owns the policy's pods."""

    api_version: str
    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """The trigger configChange: recreate after a change of configuration."""

    settle: int  # A change counts after this many seconds without a further one
    secrets: bool = False  # Whether Secrets count, too
    ignore: tuple[str, ...] = ()  # Names of ConfigMaps and Secrets that do not count
    allow_pod_restart: bool = False  # Whether whole pods are restarted for changes that init containers use
    action: ConfigAction = ConfigAction.RESTART

    def counts(self, used: Reference | Unreached | Part) -> bool:
        """Whether a change of this object counts."""
        return (self.secrets or used.kind != Kind.SECRET) and used.name not in self.ignore


@dataclass(frozen=True, slots=True)
class Schedule:
    """A cron expression, and its time zone (see `cron`)."""

    cron: str
    zone: str
    deadline: int | None = None  # Seconds after one of its times within which a run must start; None for any

    def __str__(self) -> str:
        return f"{self.cron} {self.zone}"

    def next_after(self, moment: datetime) -> datetime:
        """Return the first time after `moment`. It exists, because `read_schedule` rejects expressions without any."""
        return next_time(self._cron, ZoneInfo(self.zone), moment)

    def latest(self, after: datetime, until: datetime) -> datetime | None:
        """Return the last time that is later than `after` and not later than `until`, None for none."""
        found = last_time(self._cron, ZoneInfo(self.zone), until)
        return found if found > after else None

    @property
    def _cron(self) -> str:
        return spelled(CRON_NAMES.get(self.cron, self.cron))


@dataclass(frozen=True, slots=True)
class Window:
    """The times at which runs may start pods."""

    opens: Schedule
    duration: int  # Seconds


@dataclass(frozen=True, slots=True)
class Budget:
    """How many pods at once, and how often. Durations are whole seconds."""

    max_unavailable: Amount
    min_ready: int | None  # None: the workload's minReadySeconds
    max_per_node: int  # 0 for no limit
    min_interval: int  # Least time between the starts of two runs
    steps: tuple[Amount, ...] = ()  # As in `parts.sizes`
    step_pause: int | None = 0  # As `Options.step_pause`


@dataclass(frozen=True, slots=True)
class Judge:
    """How restarted pods are judged after each step."""

    seconds: int  # As `Options.judge`
    max_restarts: int = 0
    failure_limit: int = 3
    metrics: tuple[Metric, ...] = ()


@dataclass(frozen=True, slots=True)
class UsedObject:
    """The policy's record of the data of one object that one container uses."""

    container: Annotated[str, "Name of the container."]
    kind: Annotated[Kind, "ConfigMap or Secret."]
    name: Annotated[str, "Name of the object."]
    hash: Annotated[
        str, "Hash of the data that the container uses. The hash of a Secret is salted and slow to compute."
    ]
    since: Annotated[str, "When the data got this hash. A container that started later has it."]
    done: Annotated[
        str,
        "Hash of the last data that all containers have started with, or have reloaded. Empty if that is unknown, also "
        "while containers reload.",
    ] = ""
    left: Annotated[str, "Time of the first change after the data in done. Empty if the data has not changed."] = ""
    """Also if the data is the same again now. A container that started later may have the data from in between."""
    keys: Annotated[
        tuple[str, ...],
        "The keys that the container uses. Empty or * for all, data.* for all but those of binaryData, and !KEY for "
        "one that does not count.",
    ] = ()
    immutable: Annotated[str, "The object's UID if it is immutable. Kubelet keeps its data."] = ""
    nodes: Annotated[
        tuple[str, ...], "Nodes that may keep the data of an immutable object that was replaced or deleted."
    ] = ()
    kept: Annotated[str, "Hash of the data that these nodes keep. Empty if it is unknown."] = ""
    replaced: Annotated[str, "When that object was replaced or deleted. Older pods have its data."] = ""
    lacking: Annotated[
        tuple[str, ...],
        "Pods that a run for a reload has left. Containers of all others have the data in hash. Empty for none.",
    ] = ()

    @property
    def part(self) -> Part:
        """The part of the object that the container uses."""
        return Part(self.kind, self.name, self.keys)

    @property
    def is_kept(self) -> bool:
        """Whether nodes keep other data than the object has now. Then a restart there would not bring its data."""
        return bool(self.nodes) and self.kept != self.hash

    @property
    def key(self) -> tuple[str, Part]:
        """What the record is about: the container, and the part that it uses."""
        return self.container, self.part


@dataclass(frozen=True, slots=True)
class Revision:
    """The policy's record of the whole data of one ConfigMap, if it can be restored."""

    name: Annotated[str, "Name of the ConfigMap."]
    hash: Annotated[str, "SHA-256 of its data and binaryData."]
    tried: Annotated[str, "The hash at the start of the last run for it. Empty before."] = ""
    kept: Annotated[str, "The hash of its last good data, which is kept. Empty if no data is kept."] = ""
    revision: Annotated[str, "Name of the ControllerRevision that has this data."] = ""


@dataclass(frozen=True, slots=True)
class BadRevision:
    """Data of one part of a ConfigMap with which a run has failed. No container is restarted with it."""

    kind: Annotated[Kind, "ConfigMap."]
    name: Annotated[str, "Name of the object."]
    hash: Annotated[str, "Hash of the data, as in config."]
    since: Annotated[str, "When the object got this data."]
    run: Annotated[str, "Name of the run that failed."]
    version: Annotated[
        str, "The object's resourceVersion. It is written back only as long as it has this one, so once at most."
    ]
    keys: Annotated[tuple[str, ...], "The keys that the containers use, as in config."] = ()
    restored: Annotated[bool, "Whether the kept data was written back."] = False

    @property
    def part(self) -> Part:
        """The part of the object that has this data."""
        return Part(self.kind, self.name, self.keys)


@dataclass(frozen=True, slots=True)
class RunRecord:
    """The active or last run of a policy."""

    name: Annotated[str, "Name of the run."]
    trigger: Annotated[str, "Its name in spec.triggers."]
    containers: Annotated[tuple[str, ...], "Names of the containers."]
    since: Annotated[str, "Containers that started after this time are not recreated."]
    started: Annotated[str, "When the run was started."]
    generation: Annotated[int, "The policy's generation at the start of the run."]
    reason: Annotated[str, "Why the run was started."] = ""
    objects: Annotated[
        tuple[str, ...],
        "Changes: object, its used keys (none for all), and until when a container can have started without it. Only "
        "containers that use one of these are recreated. Empty for all containers.",
    ] = ()
    image: Annotated[str, "The image that the container gets. Empty for a restart."] = ""
    before: Annotated[tuple[str, ...], "The other images that the container had at the start of the run."] = ()
    template: Annotated[str, "Digest of the rest of the workload's template at the start of the run."] = ""
    finished: Annotated[str, "When the run ended. Empty for a run in progress."] = ""
    failed: Annotated[bool, "Whether the run failed."] = False
    message: Annotated[str, "How the run ended."] = ""
    steps: Annotated[str, "After each of these numbers of pods, a step of the run is over: 1,2,10. Empty for one."] = ""
    halted: Annotated[bool, "Whether the judgement of a step was no."] = False
    pods: Annotated[bool, "Whether whole pods are restarted, because the containers are init containers."] = False
    back: Annotated[bool, "Whether containers get the last good data back, because a run has failed."] = False
    reload: Annotated[bool, "Whether containers reload their files instead of being restarted."] = False
    hashes: Annotated[
        tuple[str, ...],
        "The hash of the data that the run brings, for each of objects. Of a run that is over: empty for data that had "
        "changed again.",
    ] = ()
    undoes: Annotated[str, "Name of the failed run whose pods get the image back that they had."] = ""
    left: Annotated[
        tuple[str, ...],
        "Of a run that is over: pods that it could not restart, for example because a container had not started.",
    ] = ()

    @property
    def gives(self) -> tuple[tuple[str, ...], str, str]:
        """The containers, the image that they get, and the template that has it. Runs with the same do the same."""
        return self.containers, self.image, self.template

    @property
    def changes(self) -> tuple[PartChange, ...]:
        """The changes in `objects`. A malformed one is left out."""
        return tuple(filter(None, map(read_change, self.objects)))


@dataclass(frozen=True, slots=True)
class PolicyStatus:
    """The stored state of a policy, without its conditions. It survives a restart of the manager."""

    config: tuple[UsedObject, ...] = ()
    run: RunRecord | None = None
    schedule: str = ""  # The schedule that `scheduled` belongs to, "" for none or while the policy is suspended
    scheduled: str = ""
    """RFC 3339: the newest time of the schedule for which a run has started, or when a new schedule was first seen."""
    skipped: str = ""  # The newest time of the schedule that was skipped, and why; "" after a later run
    tried: tuple[RunRecord, ...] = ()
    """The last run for an image of each container that has ended by itself, and after it the one that has undone it."""
    failed: tuple[RunRecord, ...] = ()
    """Runs before the last one that have failed with data that is still there. The oldest first."""
    left: tuple[RunRecord, ...] = ()  # Runs without an image that may have left pods, until these are tried again
    revisions: tuple[Revision, ...] = ()  # Of the ConfigMaps, if the policy restores them
    bad: tuple[BadRevision, ...] = ()  # The oldest first

    @property
    def undone(self) -> RunRecord | None:
        """The failed run that the last run undoes, None if that is no run back."""
        return next((each for each in self.tried if self.run is not None and each.name == self.run.undoes), None)

    def is_bad(self, record: UsedObject) -> bool:
        """Whether a run has failed with the present data of a part."""
        return any((each.part, each.hash) == (record.part, record.hash) for each in self.bad)


@dataclass(frozen=True, slots=True)
class Policy:
    """One ContainerRecreatePolicy."""

    namespace: str
    name: str
    uid: str
    resource_version: str
    generation: int
    created: str  # creationTimestamp, RFC 3339
    budget: Budget
    target: TargetRef | None = None
    selector: str = ""  # A label selector for pods, if there is no target
    containers: tuple[str, ...] = ()  # Empty: those that use the changed object, or all
    config: ConfigChange | None = None
    schedule: Schedule | None = None
    max_age: int | None = None  # Seconds
    template_image: bool = False  # Whether pods get the images of the template of their held workload
    pull_resources: str = ""  # As `Options.pull_resources`
    patch: bool = False  # As `Options.patch`
    window: Window | None = None
    judge: Judge | None = None
    on_failure: OnFailure = OnFailure.HALT
    after: tuple[str, ...] = ()  # Names of policies of the namespace whose runs for the same object come first
    suspended: bool = False
    deleting: bool = False  # A finalizer may keep it for long
    allowed: str = ""  # The step after which a run may continue, as in ANNOTATION_CONTINUE
    status: PolicyStatus = PolicyStatus()
    conditions: tuple[Mapping[str, Any], ...] = field(default=(), compare=False)  # As in the status
    error: str = ""  # What is wrong with the spec, "" for nothing; an invalid policy has no effect

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"

    @property
    def counted(self) -> list[UsedObject]:
        """The records of objects whose changes count."""
        config = self.config
        return [] if config is None else [each for each in self.status.config if config.counts(each.part)]

    def with_status(self, status: PolicyStatus) -> "Policy":
        """Return the policy with another status."""
        return replace(self, status=status)

    def allowed_steps(self, run: str) -> int:
        """Return how many steps of a run its owner has allowed to end."""
        name, _, number = self.allowed.rpartition("/")
        return (decimal(number) or 0) if name == run else 0

    @property
    def is_off(self) -> bool:
        """Whether it does nothing, whatever there is to do."""
        return self.suspended or self.deleting or bool(self.error)

    @property
    def undoes(self) -> bool:
        """Whether pods get the image back that they had, after a run with an image has failed."""
        return self.on_failure is OnFailure.UNDO and self.template_image

    @property
    def reloads(self) -> bool:
        """Whether containers that can reload are not restarted for a change of configuration."""
        return self.config is not None and self.config.action is ConfigAction.RELOAD_OR_RESTART

    @property
    def settle(self) -> int:
        """A change of configuration counts after this many seconds without a further one."""
        return 0 if self.config is None else self.config.settle
