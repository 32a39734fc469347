"""Converts a ContainerRecreatePolicy from JSON, and its status to JSON. Invalid input raises no exception."""

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any, TypeVar

from crrd.core.api.fields import Section, Type
from crrd.core.config.references import Kind
from crrd.core.judge.metrics import read_metric
from crrd.core.policy.schedule import read_schedule
from crrd.core.policy.schema import FIELDS
from crrd.core.policy.triggers import TRIGGERS
from crrd.core.policy.types import (
    ANNOTATION_CONTINUE,
    BadRevision,
    Budget,
    ConfigAction,
    Judge,
    OnFailure,
    Policy,
    PolicyStatus,
    Revision,
    RunRecord,
    TargetRef,
    UsedObject,
    Window,
)
from crrd.core.rollout.image.resources import QUANTITY, RESOURCES
from crrd.core.rollout.labels import read_selector
from crrd.core.rollout.run import Amount, read_amount
from crrd.lib.jsonfields import Reader, items, mapping, number, text

_Record = TypeVar("_Record", UsedObject, RunRecord, Revision, BadRevision)
_OfObject = TypeVar("_OfObject", UsedObject, BadRevision)
_SELECTING = ("ReplicationController", "Service")
"""The kinds of the core group with spec.selector. The manager looks for no others: an author of policies, who may not
read Secrets, would learn from the status whether a Secret of a name exists."""
_READ: Mapping[Type, Callable[[Section, str], Any]] = {
    Type.STRING: Section.text,
    Type.STRINGS: lambda section, name: tuple(map(text, section.values(name) or ())),  # also those that are ""
    Type.INT64: Section.integer,
    Type.BOOLEAN: Section.flag,
}


def read_policy(obj: Mapping[str, Any], pull_resources: str = "", *, patch: bool = False) -> Policy:
    """Parse a policy from its JSON. What it does not say of `pull_resources` is as given.

    `patch`: whether its runs patch pods, because there are no node daemons.
    """
    reader = Reader()
    meta, status = mapping(obj.get("metadata")), mapping(obj.get("status"))
    spec = Section(FIELDS, reader, obj.get("spec"), "spec")
    triggers, target = spec.section("triggers"), spec.optional_section("targetRef")
    selector = read_selector(spec.raw.get("selector"))
    query = selector.query if selector is not None else ""
    if (target is None) is not bool(query):
        reader.reject("spec", "must have either targetRef or a selector that is not empty")
    if target is not None and target.text("apiVersion") == "v1" and target.text("kind") not in _SELECTING:
        target.reject("must name a kind with spec.selector, such as Deployment of apps/v1", "kind")
    given: dict[str, Any] = {each.attribute: each.read(triggers) for each in TRIGGERS.values()}
    if not any(given.values()):
        triggers.reject(f"must have {' or '.join(sorted(TRIGGERS))}")
    if given["template_image"] and target is None:
        triggers.reject("needs spec.targetRef", "templateImage")
    if given["template_image"] and patch:
        triggers.reject("needs node daemons, and the manager runs without them (--via patch)", "templateImage")
    config = given["config"]
    if config is not None and config.allow_pod_restart and patch:
        triggers.reject(
            "needs node daemons, and the manager runs without them (--via patch)", "configChange.allowPodRestart"
        )
    if config is not None and config.action is ConfigAction.RELOAD_OR_RESTART and patch:
        triggers.reject(
            "must be Restart, because the manager runs without node daemons (--via patch)", "configChange.action"
        )
    budget, max_age = _budget(spec.section("budget")), given["max_age"]
    if max_age is not None and budget.min_ready is not None and max_age <= budget.min_ready:
        triggers.reject("must be longer than spec.budget.minReady", "maxAge")
    window, judge = spec.optional_section("window"), spec.optional_section("judge")
    namespace, name, uid, version = (text(meta.get(key)) for key in ("namespace", "name", "uid", "resourceVersion"))
    return Policy(
        namespace,
        name,
        uid,
        version,
        generation=number(meta.get("generation")),
        created=text(meta.get("creationTimestamp")),
        target=None if target is None else TargetRef(*map(target.text, ("apiVersion", "kind", "name"))),
        selector=query,
        containers=tuple(dict.fromkeys(spec.texts("containers"))),  # a request must not name one twice
        **given,
        pull_resources=_pull_resources(triggers, pull_resources),
        patch=patch,
        window=None if window is None else _window(window),
        budget=budget,
        judge=None if judge is None else _judge(judge),
        on_failure=spec.choice("onFailure", OnFailure),
        after=tuple(dict.fromkeys(spec.texts("after"))),
        suspended=spec.flag("suspend"),
        deleting=bool(meta.get("deletionTimestamp")),
        allowed=text(mapping(meta.get("annotations")).get(ANNOTATION_CONTINUE)),
        status=_status(status),
        conditions=tuple(map(mapping, items(status.get("conditions")))),
        error=reader.error,
    )


def _pull_resources(triggers: Section, by_default: str) -> str:
    """Return the resources of pull pods, as in `Options.pull_resources`. The last value of a resource counts."""
    section, given = triggers.section("templateImage").section("pullResources"), [by_default] if by_default else []
    for name in RESOURCES:
        if (value := section.value(name)) is not None:
            given.append(f"{name}={_shown(value)}")
            if re.fullmatch(QUANTITY, _shown(value)) is None:
                section.reject("must be a quantity like 50m or 64Mi", name)
    return ",".join(given)


def _shown(given: object) -> str:
    """Return the text of a number or a text."""
    return str(int(given) if isinstance(given, float) and given.is_integer() else given)


def _window(section: Section) -> Window | None:
    opens, duration = read_schedule(section), section.integer("duration")
    return None if opens is None else Window(opens, duration)


def _budget(section: Section) -> Budget:
    try:
        most = read_amount(_shown(section.value("maxUnavailable")))
    except ValueError as error:
        section.reject(f"must be {error}", "maxUnavailable")
        most = Amount(0)  # an invalid policy has no effect
    steps: tuple[Amount, ...] = ()
    if (given := section.values("steps")) is not None:
        try:
            steps = tuple(read_amount(_shown(each)) for each in given)
        except ValueError as error:
            section.reject(f"must be a list of {error}", "steps")
    per_node, interval = map(section.integer, ("maxPerNode", "minInterval"))
    confirms = section.flag("confirmSteps")
    if confirms and section.raw.get("stepPause") is not None:
        section.reject("must not have both stepPause and confirmSteps")
    pause = None if confirms else section.integer("stepPause")
    return Budget(most, section.optional_integer("minReady"), per_node, interval, steps, pause)


def _judge(section: Section) -> Judge:
    seconds, restarts, failures = map(section.integer, ("for", "maxRestarts", "failureLimit"))
    return Judge(seconds, restarts, failures, tuple(map(read_metric, section.sections("metrics"))))


def _record(kind: type[_Record], path: str, value: object) -> _Record:
    """Read a record of the status. What is wrong in it counts as absent."""
    section = Section(FIELDS, Reader(), value, path)
    values = {each.name: _READ[each.type](section, each.name) for each in FIELDS.values() if each.parent == path}
    return kind(**values)


def _of_objects(kind: type[_OfObject], name: str, status: Mapping[str, Any]) -> tuple[_OfObject, ...]:
    """Read the records of objects. Those of other kinds are left out."""
    known = (each for each in map(mapping, items(status.get(name))) if text(each.get("kind")) in {*Kind})
    return tuple(replace(_record(kind, f"status.{name}[]", each), kind=Kind(each["kind"])) for each in known)


def _runs(name: str, status: Mapping[str, Any]) -> tuple[RunRecord, ...]:
    """Read records of runs. Those of unknown triggers are left out."""
    found = (_record(RunRecord, f"status.{name}[]", mapping(each)) for each in items(status.get(name)))
    return tuple(each for each in found if each.trigger in TRIGGERS)


def _status(status: Mapping[str, Any]) -> PolicyStatus:
    config = _of_objects(UsedObject, "config", status)
    run = _record(RunRecord, "status.run", mapping(status.get("run")))
    schedule, scheduled, skipped = (text(status.get(key)) for key in ("schedule", "lastScheduleTime", "lastSkipped"))
    tried, failed, left = (_runs(name, status) for name in ("tried", "failed", "left"))
    revisions = tuple(_record(Revision, "status.revisions[]", mapping(each)) for each in items(status.get("revisions")))
    last, bad = run if run.trigger in TRIGGERS else None, _of_objects(BadRevision, "bad", status)
    return PolicyStatus(config, last, schedule, scheduled, skipped, tried, failed, left, revisions, bad)


def write_status(status: PolicyStatus) -> dict[str, Any]:
    """Return the status without conditions as JSON for a merge patch: null clears empty fields."""
    run = status.run
    records = {
        name: [{key: value for key, value in asdict(each).items() if value} for each in getattr(status, name)]
        for name in ("config", "tried", "failed", "left", "revisions", "bad")
    }
    flags, texts = ("back", "reload", "pods", "halted"), ("steps", "image", "template", "finished", "message", "undoes")
    often_empty = (*flags, *texts, "before", "hashes", "left")
    record = run and {**asdict(run), **{key: getattr(run, key) or None for key in often_empty}}
    times = {"schedule": status.schedule, "lastScheduleTime": status.scheduled, "lastSkipped": status.skipped}
    kept = {**records, **times}
    return {"run": record, **{key: value or None for key, value in kept.items()}}
