"""The schema of a ContainerRecreatePolicy: the table of its fields (`fields`).

It drives the reader (`v1alpha1`), and `manifests/base/generate.py`, which writes the CRD and the table in
docs/policy.md. The records in its status have the fields of their dataclasses.
"""

from collections.abc import Iterator
from functools import partial
from typing import Annotated, get_args, get_origin, get_type_hints

from crrd.core.api.fields import Field, SetBy, Type
from crrd.core.config.references import Kind
from crrd.core.judge.metrics import fields as metric_fields
from crrd.core.policy.types import BadRevision, ConfigAction, OnFailure, Revision, RunRecord, UsedObject

_OF_PYTHON = {
    str: Type.STRING,
    Kind: Type.STRING,
    int: Type.INT64,
    bool: Type.BOOLEAN,
    tuple[str, ...]: Type.STRINGS,
}


def _record(path: str, kind: type, description: str) -> Iterator[Field]:
    """Yield the rows of an object of the status, and of its fields."""
    yield Field(Type.LIST if path.endswith("[]") else Type.OBJECT, path, description, SetBy.STATUS)
    for name, hint in get_type_hints(kind, include_extras=True).items():
        python, about = get_args(hint) if get_origin(hint) is Annotated else (hint, "")
        yield Field(_OF_PYTHON[python], f"{path}.{name}", about, SetBy.STATUS)


_object, _string, _boolean, _duration = (
    partial(Field, type_) for type_ in (Type.OBJECT, Type.STRING, Type.BOOLEAN, Type.DURATION)
)
_strings = partial(Field, Type.STRINGS, high=64)
_TARGET, _TRIGGERS, _WINDOW, _BUDGET = "spec.targetRef", "spec.triggers", "spec.window", "spec.budget"
_JUDGE = "spec.judge"
_CHANGE, _SCHEDULE = f"{_TRIGGERS}.configChange", f"{_TRIGGERS}.schedule"
_PULL = f"{_TRIGGERS}.templateImage.pullResources"
_PULLED = {
    "cpu": "For example 50m, at most 1. The default is that of the manager, 10m.",
    "memory": "For example 64Mi, at most 1Gi. The default is that of the manager, 32Mi.",
    "ephemeral-storage": "For example 16Mi, at most 1Gi. By default, it is not set.",
}
_ZONE = "A name of the IANA time zone database, for example Europe/Berlin."
_zone = partial(_string, description=_ZONE, low=1, high=64, default="UTC")
_cron = partial(Field, Type.CRON, required=True)
_TABLE = (
    _object("spec", "Which containers are recreated, when, and how many at once.", required=True),
    _object(_TARGET, "The workload, in the policy's namespace: any kind with spec.selector."),
    _string(f"{_TARGET}.apiVersion", "For example apps/v1.", required=True, low=1, high=253),
    _string(f"{_TARGET}.kind", "For example Deployment.", required=True, low=1, high=63),
    _string(f"{_TARGET}.name", "Name of the workload.", required=True, low=1, high=253),
    Field(Type.SELECTOR, "spec.selector", "Label selector of the pods, instead of a workload."),
    _strings(
        "spec.containers", "Only these containers are recreated. By default, all that a trigger concerns.", high_each=63
    ),
    _object(_TRIGGERS, "When containers are recreated. At least one is required.", required=True, low=1),
    _object(_CHANGE, "Recreate containers after the data of a ConfigMap that they use has changed."),
    _duration(f"{_CHANGE}.settle", "How long to wait for more changes before a run starts.", default="10s"),
    _boolean(
        f"{_CHANGE}.secrets",
        "Whether changed Secrets count, too. The manager then needs the right to read them.",
        default=False,
    ),
    _strings(
        f"{_CHANGE}.ignore",
        "Names of ConfigMaps and Secrets whose changes do not count, for example a bundle of CAs in every namespace.",
        high_each=253,
    ),
    _boolean(
        f"{_CHANGE}.allowPodRestart",
        "Whether whole pods are restarted in place for a change that an init container uses, because it runs again "
        "only then. A change that only other containers use restarts these alone.",
        default=False,
    ),
    _string(
        f"{_CHANGE}.action",
        "What is done to containers. With ReloadOrRestart, those that can reload do, as their pod declares it, and all "
        "others are restarted.",
        default=ConfigAction.RESTART,
    ),
    _object(_SCHEDULE, "Recreate containers at fixed times. After an edit or a suspension, only later times count."),
    _cron(
        f"{_SCHEDULE}.cron",
        "Cron expression with five fields (minute, hour, day of the month, month and weekday), or a name of it such as "
        "@daily.",
    ),
    _zone(f"{_SCHEDULE}.timeZone"),
    _duration(
        f"{_SCHEDULE}.startingDeadline",
        "A scheduled time is skipped if no run could start within this time, for example because no manager was "
        "running. While a run waits for the window or for minInterval, the time does not count.",
        low=60,
        default="1h",
    ),
    _duration(
        f"{_TRIGGERS}.maxAge",
        "Recreate a container that has run for this time, for example 72h. kubelet delays the restarts of a container "
        "that ends more often than every ten minutes.",
        low=600,
    ),
    _object(
        f"{_TRIGGERS}.templateImage",
        "Give pods the images of their workload's template in place, while the workload is held: a paused Deployment, "
        "or a set with OnDelete or a partition. The manager then needs the right to change images.",
    ),
    _object(_PULL, "What the pods that pull an image request, and may use. A LimitRange may need other values."),
    *(Field(Type.QUANTITY, f"{_PULL}.{name}", description) for name, description in _PULLED.items()),
    _object(
        _WINDOW,
        "When containers may be recreated. A run that does not finish continues in the next window. Without a window, "
        "containers may be recreated at any time.",
    ),
    _cron(f"{_WINDOW}.cron", "Cron expression of the times at which the window opens."),
    _zone(f"{_WINDOW}.timeZone"),
    _duration(f"{_WINDOW}.duration", "How long the window stays open.", required=True, low=60),
    _object(
        _BUDGET,
        "How many pods may be unready, and how often runs may start. PodDisruptionBudgets are always respected.",
    ),
    Field(Type.AMOUNT, f"{_BUDGET}.maxUnavailable", "Maximum unready pods, a number or a percentage.", default=1),
    _duration(
        f"{_BUDGET}.minReady",
        "How long a recreated pod must be ready before the next pod is recreated. The default is the workload's "
        "minReadySeconds.",
    ),
    Field(Type.INT32, f"{_BUDGET}.maxPerNode", "Maximum unready pods per node. 0 means no limit.", default=0),
    Field(
        Type.AMOUNTS,
        f"{_BUDGET}.steps",
        "Parts of the pods, all counted from the start, for example [1, 10%, 50%]. A step begins once the pods of the "
        "one before are done and judged. Percentages are rounded up, and all pods that are left are the last step.",
        high=16,
    ),
    _duration(f"{_BUDGET}.stepPause", "How long a run waits after each step."),
    _boolean(
        f"{_BUDGET}.confirmSteps",
        "Whether a run waits after each step until the owner allows the next one by the annotation crrd.dev/continue.",
        default=False,
    ),
    _duration(f"{_BUDGET}.minInterval", "Time between the starts of two runs.", default="0s"),
    _string(
        "spec.onFailure",
        description="What happens after a run has failed. Halt restarts no further pod. Restore writes back the last "
        "good data of a changed ConfigMap, too. Undo gives pods the image back that they had before a run with an "
        "image.",
        default=OnFailure.HALT,
    ),
    _object(
        _JUDGE,
        "How the pods of a step are judged after it. If the answer is no, the run halts: no further pod is restarted.",
    ),
    _duration(
        f"{_JUDGE}.for",
        "How long each restarted pod must stay ready.",
        required=True,
        low=1,
    ),
    Field(Type.INT32, f"{_JUDGE}.maxRestarts", "How many more restarts of a pod are allowed.", default=0),
    Field(
        Type.INT32,
        f"{_JUDGE}.failureLimit",
        "How many times in a row metrics may be unknown (no data, NaN, an error). After that, the answer is no.",
        default=3,
    ),
    Field(Type.LIST, f"{_JUDGE}.metrics[]", "What must hold besides.", high=16),
    *metric_fields(f"{_JUDGE}.metrics[]"),
    _strings(
        "spec.after",
        "Names of policies of the namespace that come first: a run for a changed object waits until they have brought "
        "the change to their pods.",
        high_each=253,
    ),
    _boolean("spec.suspend", "Start no further restarts. Requests in progress finish.", default=False),
    _object("status", "Written by the manager.", SetBy.STATUS),
    Field(
        Type.INT64,
        "status.observedGeneration",
        "The generation of the spec that the status is about. -1 until the manager has seen the policy.",
        SetBy.STATUS,
        low=-1,
    ),
    _string(
        "status.lastScheduleTime",
        "The latest scheduled time for which a run has started, or when a new schedule was first seen.",
        SetBy.STATUS,
    ),
    _string(
        "status.schedule", "The schedule that lastScheduleTime belongs to. Empty during a suspension.", SetBy.STATUS
    ),
    _string("status.lastSkipped", "The latest scheduled time that was skipped, and why.", SetBy.STATUS),
    Field(
        Type.CONDITIONS,
        "status.conditions",
        "Ready shows what the policy does or waits for. ConfigReadable shows whether the manager can read the "
        "configuration. Effective shows what in the spec can have no effect on the pods. Restorable shows whether the "
        "last good data of all ConfigMaps is kept.",
        SetBy.STATUS,
    ),
    *_record(
        "status.config[]", UsedObject, "ConfigMaps and Secrets that the containers use, and when they last changed."
    ),
    *_record("status.run", RunRecord, "The last run, or the one in progress."),
    *_record(
        "status.tried[]",
        RunRecord,
        "The last run for an image of each container, if it has ended by itself, and the one that has undone it.",
    ),
    *_record("status.failed[]", RunRecord, "Runs before the last one that have failed with data that is still there."),
    *_record(
        "status.left[]", RunRecord, "Runs that may have left pods, until these are tried again after ten minutes."
    ),
    *_record("status.revisions[]", Revision, "The data of ConfigMaps, if onFailure is Restore."),
    *_record("status.bad[]", BadRevision, "Data with which runs have failed, if onFailure is Restore."),
)
FIELDS = {field.path: field for field in _TABLE}
