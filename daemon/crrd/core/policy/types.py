"""A ContainerRecreatePolicy and its status as values, read from JSON. Invalid input raises no exception."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from crrd.core.api.time import parse_duration
from crrd.core.api.types import POLICY_GROUP
from crrd.core.config.references import Kind, Reference
from crrd.core.rollout.labels import read_selector
from crrd.core.rollout.run import Amount, read_amount
from crrd.lib.jsonfields import Reader, items, mapping, text

KIND = "ContainerRecreatePolicy"
API_VERSION = f"{POLICY_GROUP}/v1alpha1"
DEFAULT_SETTLE = 10
ONE = Amount(1)
LEAST_MAX_AGE = 60  # Seconds; a container that restarts more often would hardly ever be ready


@dataclass(frozen=True, slots=True)
class TargetRef:
    """The workload that owns the policy's pods."""

    api_version: str
    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """The trigger configChange: recreate after a change of configuration."""

    settle: int = DEFAULT_SETTLE  # A change counts after this many seconds without a further one
    secrets: bool = False  # Whether Secrets count, too

    def includes(self, reference: Reference) -> bool:
        """Whether a change of this object counts."""
        return self.secrets or reference.kind is not Kind.SECRET


@dataclass(frozen=True, slots=True)
class Schedule:
    """A cron expression of five fields, and its time zone. Daylight saving time is handled as in Debian's cron."""

    cron: str
    zone: str = "UTC"

    def __str__(self) -> str:
        return f"{self.cron} {self.zone}"

    def next_after(self, moment: datetime) -> datetime:
        """Return the first time after `moment`. It exists, because `read_policy` rejects expressions without any."""
        return next(CronSim(self.cron, moment.astimezone(ZoneInfo(self.zone)))).astimezone(UTC)

    def latest(self, after: datetime, until: datetime) -> datetime | None:
        """Return the last time that is later than `after` and not later than `until`, None for none."""
        beyond = (until.replace(microsecond=0) + timedelta(seconds=1)).astimezone(ZoneInfo(self.zone))
        found = next(CronSim(self.cron, beyond, reverse=True)).astimezone(UTC)
        return found if found > after else None


@dataclass(frozen=True, slots=True)
class Window:
    """The times at which runs may start pods."""

    opens: Schedule
    duration: int  # Seconds


@dataclass(frozen=True, slots=True)
class Budget:
    """How many pods at once, and how often. Durations are whole seconds."""

    max_unavailable: Amount = ONE
    min_ready: int = 0
    max_per_node: int = 0  # 0 for no limit
    min_interval: int = 0  # Least time between the starts of two runs


@dataclass(frozen=True, slots=True)
class UsedObject:
    """The policy's record of the data of one object that one container uses."""

    container: str
    kind: Kind
    name: str
    hash: str
    since: str  # RFC 3339: when the data got this hash. A container that started later has it.
    done: str = ""
    """The hash of the data that all containers have; "" if they differ, as a run has started and not succeeded yet."""
    left: str = ""
    """RFC 3339: when the data changed from `done`, even if it is the same again now. A container that started later may
    have the data from in between."""
    keys: tuple[str, ...] = ()  # The keys that the container uses, () for all. The hash of other keys says nothing


@dataclass(frozen=True, slots=True)
class RunRecord:
    """The active or last run of a policy."""

    name: str
    trigger: str  # configChange, schedule or maxAge
    containers: tuple[str, ...]
    since: str  # RFC 3339: containers that started later are left alone
    started: str
    generation: int  # The policy's generation at the start of the run
    reason: str = ""
    objects: tuple[str, ...] = ()  # Containers that use none of these are left alone; () for all containers
    finished: str = ""  # "" while the run is active
    failed: bool = False
    message: str = ""


@dataclass(frozen=True, slots=True)
class PolicyStatus:
    """The stored state of a policy, without its conditions. It survives a restart of the manager."""

    config: tuple[UsedObject, ...] = ()
    run: RunRecord | None = None
    schedule: str = ""  # The schedule that `scheduled` belongs to, "" for none
    scheduled: str = ""
    """RFC 3339: the newest time of the schedule for which a run has started, or when a new schedule was first seen."""


@dataclass(frozen=True, slots=True)
class Policy:
    """One ContainerRecreatePolicy."""

    namespace: str
    name: str
    uid: str
    resource_version: str
    generation: int
    created: str  # creationTimestamp, RFC 3339
    target: TargetRef | None = None
    selector: str = ""  # A label selector for pods, if there is no target
    containers: tuple[str, ...] = ()  # Empty: those that use the changed object, or all
    config: ConfigChange | None = None
    schedule: Schedule | None = None
    max_age: int | None = None  # Seconds
    window: Window | None = None
    budget: Budget = Budget()
    suspended: bool = False
    status: PolicyStatus = PolicyStatus()
    conditions: tuple[Mapping[str, Any], ...] = field(default=(), compare=False)  # As in the status
    error: str = ""  # What is wrong with the spec, "" for nothing; an invalid policy has no effect

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"

    @property
    def settle(self) -> int:
        """A change of configuration counts after this many seconds without a further one."""
        return 0 if self.config is None else self.config.settle


def read_policy(obj: Mapping[str, Any]) -> Policy:
    """Parse a policy from its JSON."""
    meta, spec, status = (mapping(obj.get(key)) for key in ("metadata", "spec", "status"))
    reader = Reader()
    triggers = reader.mapping(spec.get("triggers"), "spec.triggers")
    target = reader.mapping(spec.get("targetRef"), "spec.targetRef")
    ref = TargetRef(*(reader.text(target.get(key), f"spec.targetRef.{key}") for key in ("apiVersion", "kind", "name")))
    selector = read_selector(spec.get("selector"))
    query = selector.query if selector is not None else ""
    if bool(target) == bool(query):
        reader.reject("spec", "must have either targetRef or a selector that is not empty")
    if target and not (ref.api_version and ref.kind and ref.name):
        reader.reject("spec.targetRef", "must have apiVersion, kind and name")
    config, max_age = triggers.get("configChange"), triggers.get("maxAge")
    if config is None and max_age is None and triggers.get("schedule") is None:
        reader.reject("spec.triggers", "must have configChange, schedule or maxAge")
    names = (reader.text(each, "spec.containers") for each in reader.items(spec.get("containers"), "spec.containers"))
    namespace, name, uid, version = _texts(meta, "namespace", "name", "uid", "resourceVersion")
    return Policy(
        namespace,
        name,
        uid,
        version,
        generation=Reader().integer(meta.get("generation"), "") or 0,
        created=text(meta.get("creationTimestamp")),
        target=ref if target else None,
        selector=query,
        containers=tuple(filter(None, names)),
        config=None if config is None else _config_change(reader, config),
        schedule=_schedule(reader, triggers.get("schedule"), "spec.triggers.schedule"),
        max_age=_duration(reader, max_age, "spec.triggers.maxAge", LEAST_MAX_AGE, LEAST_MAX_AGE) if max_age else None,
        window=_window(reader, spec.get("window")),
        budget=_budget(reader, reader.mapping(spec.get("budget"), "spec.budget")),
        suspended=reader.flag(spec.get("suspend"), "spec.suspend"),
        status=_status(status),
        conditions=tuple(map(mapping, items(status.get("conditions")))),
        error=reader.error,
    )


def _duration(reader: Reader, value: object, path: str, default: int, least: int = 0) -> int:
    if value is None:
        return default
    seconds = parse_duration(text(value))
    if seconds is None or seconds < least:
        reader.reject(path, f"must be a time like 30s, 5m or 72h, at least {least}s")
        return default
    return seconds


def _config_change(reader: Reader, value: object) -> ConfigChange:
    path = "spec.triggers.configChange"
    shape = reader.mapping(value, path)
    settle = _duration(reader, shape.get("settle"), f"{path}.settle", DEFAULT_SETTLE)
    return ConfigChange(settle, reader.flag(shape.get("secrets"), f"{path}.secrets"))


def _schedule(reader: Reader, value: object, path: str) -> Schedule | None:
    if value is None:
        return None
    shape = reader.mapping(value, path)
    cron, zone = reader.text(shape.get("cron"), f"{path}.cron"), reader.text(shape.get("timeZone"), f"{path}.timeZone")
    if wrong := _wrong_schedule(cron, zone or "UTC"):
        reader.reject(path, f"must be valid: {wrong}")
        return None
    return Schedule(cron, zone or "UTC")


def _wrong_schedule(cron: str, zone: str) -> str:
    """Return what is wrong with a schedule, "" for nothing."""
    try:
        ZoneInfo(zone)
    except (KeyError, ValueError, OSError):
        return f"time zone {zone!r} not found"
    if len(cron.split()) != 5:
        return f"cron {cron!r} must have 5 fields: minute, hour, day, month, weekday"
    try:
        for reverse in (False, True):
            next(CronSim(cron, datetime(2026, 1, 1, tzinfo=UTC), reverse=reverse))
    except CronSimError as error:
        return f"cron {cron!r}: {str(error).lower()}"
    except StopIteration:
        return f"cron {cron!r} matches no time"
    return ""


def _window(reader: Reader, value: object) -> Window | None:
    opens = _schedule(reader, value, "spec.window")
    duration = _duration(reader, mapping(value).get("duration"), "spec.window.duration", 0, least=60)
    if opens is None:
        return None
    if not duration:
        reader.reject("spec.window", "must have a duration")
    return Window(opens, duration)


def _budget(reader: Reader, shape: Mapping[str, Any]) -> Budget:
    given = shape.get("maxUnavailable")
    try:
        most = ONE if given is None else read_amount(str(given))
    except ValueError as error:
        reader.reject("spec.budget.maxUnavailable", f"must be {error}")
        most = ONE
    return Budget(
        most,
        _duration(reader, shape.get("minReady"), "spec.budget.minReady", 0),
        reader.integer(shape.get("maxPerNode"), "spec.budget.maxPerNode") or 0,
        _duration(reader, shape.get("minInterval"), "spec.budget.minInterval", 0),
    )


def _texts(obj: Mapping[str, Any], *keys: str) -> list[str]:
    return [text(obj.get(key)) for key in keys]


def _status(status: Mapping[str, Any]) -> PolicyStatus:
    used = [each for each in map(mapping, items(status.get("config"))) if text(each.get("kind")) in {*Kind}]
    config = tuple(
        UsedObject(
            kind=Kind(each["kind"]),
            keys=tuple(map(text, items(each.get("keys")))),
            **{key: text(each.get(key)) for key in ("container", "name", "hash", "since", "done", "left")},
        )
        for each in used
    )
    run = mapping(status.get("run"))
    texts = ("name", "trigger", "since", "started", "reason", "finished", "message")
    record = RunRecord(
        **{key: text(run.get(key)) for key in texts},
        containers=tuple(map(text, items(run.get("containers")))),
        objects=tuple(map(text, items(run.get("objects")))),
        generation=Reader().integer(run.get("generation"), "") or 0,
        failed=run.get("failed") is True,
    )
    return PolicyStatus(config, record if record.name else None, *_texts(status, "schedule", "lastScheduleTime"))


def write_status(status: PolicyStatus) -> dict[str, Any]:
    """Return the status without conditions as JSON for a merge patch: null clears empty fields."""
    used, run = map(asdict, status.config), status.run
    config = [
        {key: value for key, value in each.items() if value or key not in ("done", "left", "keys")} for each in used
    ]
    record = run and {**asdict(run), "finished": run.finished or None, "message": run.message or None}
    schedule, scheduled = status.schedule or None, status.scheduled or None
    return {"config": config or None, "run": record, "schedule": schedule, "lastScheduleTime": scheduled}
