"""What kubectl warns of when a ContainerRecreatePolicy is applied, because the object alone shows it."""

from typing import Any

import pytest

from crrd.core.policy import types
from crrd.core.policy.v1alpha1 import read_policy
from tests.support.manifests import needs_kubectl, rendered
from tests.support.policies import Rules, Who, Write

pytestmark = needs_kubectl
Json = dict[str, Any]
USER = Who("jane")
NO_TARGET, NO_TEMPLATE, SHORT_WINDOW, LONG_INTERVAL = (
    "spec.targetRef is not",
    "spec.triggers.templateImage needs",
    "spec.budget.minReady is",
    "spec.budget.minInterval is",
)
FOLLOW: Json = {"templateImage": {}}
NIGHT = {"cron": "0 2 * * *", "duration": "1h"}


def target(kind: str, api_version: str) -> Json:
    return {"targetRef": {"apiVersion": api_version, "kind": kind, "name": "web"}}


HINTS: list[tuple[Json, str]] = [
    ({}, ""),
    (target("StatefulSet", "apps.kruise.io/v1beta1"), ""),
    (target("Rollout", "argoproj.io/v1alpha1"), ""),
    (target("ReplicationController", "v1"), ""),
    (target("Job", "batch/v1"), ""),
    ({"targetRef": None, "selector": {"matchLabels": {"app": "web"}}}, ""),
    (target("deployment", "apps/v1"), NO_TARGET),
    (target("Deployment", "v1"), NO_TARGET),
    (target("Service", "v1"), NO_TARGET),
    (target("Pod", "v1"), NO_TARGET),
    (target("CronJob", "batch/v1"), NO_TARGET),
    ({"triggers": FOLLOW}, ""),
    ({"triggers": FOLLOW, **target("DaemonSet", "apps/v1")}, ""),
    ({"triggers": FOLLOW, **target("StatefulSet", "apps.kruise.io/v1beta1")}, NO_TEMPLATE),
    ({"triggers": FOLLOW, **target("ReplicaSet", "apps/v1")}, NO_TEMPLATE),
    ({"window": NIGHT}, ""),
    ({"window": NIGHT, "budget": {"minReady": "59m59s"}}, ""),
    ({"window": NIGHT, "budget": {"minReady": "60m"}}, SHORT_WINDOW),
    ({"triggers": {"maxAge": "72h"}}, ""),
    ({"triggers": {"maxAge": "72h"}, "budget": {"minInterval": "72h"}}, ""),
    ({"triggers": {"maxAge": "72h"}, "budget": {"minInterval": "72h1s"}}, LONG_INTERVAL),
]


def policy(spec: Json) -> Json:
    """A policy with these fields, None for one that it lacks."""
    plain = {**target("Deployment", "apps/v1"), "triggers": {"configChange": {}}, **spec}
    head: Json = {"apiVersion": types.API_VERSION, "kind": types.KIND, "metadata": {"name": "web"}}
    return {**head, "spec": {key: value for key, value in plain.items() if value is not None}}


@pytest.mark.parametrize(("spec", "warning"), HINTS, ids=str)
def test_what_can_be_seen_at_once_is_a_warning_and_no_denial(spec: Json, warning: str) -> None:
    obj = policy(spec)
    assert warning or not read_policy(obj).error, "the manager does not look for a target of a kind that owns no pods"
    rules = Rules(rendered("default"))
    for old in (None, obj):
        write = Write(old, obj, group="crrd.dev", resource="containerrecreatepolicies")
        assert [each[: len(warning)] for each in rules.warnings(USER, write)] == [warning] * bool(warning)
        assert rules.refused(USER, write) == ""
