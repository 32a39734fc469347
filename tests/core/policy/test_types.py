"""Policies are read as they stand, and what is wrong with one is said in a sentence."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from crrd.core.config.references import Kind, Reference, Use
from crrd.core.policy.course import make_run
from crrd.core.policy.decide import decide
from crrd.core.policy.observed import Observed
from crrd.core.policy.triggers import TRIGGERS
from crrd.core.policy.types import (
    BadRevision,
    Budget,
    ConfigChange,
    OnFailure,
    Policy,
    PolicyStatus,
    Revision,
    RunRecord,
    Schedule,
    TargetRef,
    UsedObject,
    Window,
)
from crrd.core.policy.v1alpha1 import read_policy, write_status
from crrd.core.rollout.run import Amount, Target

CRON_FORMS = (
    "must have five fields (minute, hour, day of the month, month, weekday) or be one of @hourly, @daily, @midnight, "
    "@weekly, @monthly, @yearly, @annually"
)
META = {
    "namespace": "shop",
    "name": "web",
    "uid": "u1",
    "resourceVersion": "7",
    "generation": 2,
    "creationTimestamp": "2026-01-01T00:00:00Z",
}
TARGET = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}
FULL = {
    "targetRef": TARGET,
    "containers": ["app"],
    "triggers": {
        "configChange": {"settle": "1m", "secrets": True},
        "schedule": {"cron": "0 4 * * 0", "timeZone": "Europe/Berlin", "startingDeadline": "10m"},
        "maxAge": "72h",
    },
    "window": {"cron": "0 2 * * *", "duration": "1h"},
    "budget": {"maxUnavailable": "10%", "minReady": "10s", "maxPerNode": 1, "minInterval": "10m"},
    "suspend": True,
}


def spec(**changes: Any) -> Policy:
    return read_policy({"metadata": META, "spec": {"targetRef": TARGET, "triggers": {"configChange": {}}, **changes}})


def test_all_fields() -> None:
    assert read_policy({"metadata": META, "spec": FULL}) == Policy(
        "shop",
        "web",
        "u1",
        "7",
        2,
        "2026-01-01T00:00:00Z",
        Budget(Amount(10, percent=True), 10, 1, 600),
        TargetRef("apps/v1", "Deployment", "web"),
        containers=("app",),
        config=ConfigChange(60, secrets=True),
        schedule=Schedule("0 4 * * 0", "Europe/Berlin", 600),
        max_age=72 * 3600,
        window=Window(Schedule("0 2 * * *", "UTC"), 3600),
        suspended=True,
    )


def test_a_policy_that_is_being_deleted_does_nothing() -> None:
    policy = read_policy({"metadata": {**META, "deletionTimestamp": "2026-01-02T00:00:00Z"}, "spec": FULL})
    assert (policy.deleting, policy.is_off, policy.error) == (True, True, "")
    assert not spec().is_off


def test_a_container_that_is_named_twice_counts_once() -> None:
    """Else each request of the schedule would name it twice, and admission would deny it."""
    assert spec(containers=["app", "side", "app"]).containers == ("app", "side")


def test_the_defaults() -> None:
    plain = spec()
    assert (plain.config, plain.budget, plain.window) == (ConfigChange(10), Budget(Amount(1), None, 0, 0), None)
    assert (plain.key, plain.error) == ("shop/web", "")
    assert [spec(budget={"maxUnavailable": each}).budget.max_unavailable for each in (3, 3.0)] == [Amount(3)] * 2
    assert spec(targetRef=None, selector={"matchLabels": {"app": "web"}}).selector == "app=web"


def test_what_follows_a_failed_run() -> None:
    assert spec().on_failure is OnFailure.HALT
    assert [spec(onFailure=each.value).on_failure for each in OnFailure] == [*OnFailure]


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"onFailure": "Explode"}, "spec.onFailure must be Halt, Restore or Undo, not 'Explode'"),
        ({"targetRef": None}, "spec must have either targetRef or a selector that is not empty"),
        ({"selector": {"matchLabels": {"a": "b"}}}, "spec must have either targetRef or a selector that is not empty"),
        ({"targetRef": {"kind": "Deployment"}}, "spec.targetRef.apiVersion must be a string that is not empty"),
        ({"triggers": {}}, f"spec.triggers must have {' or '.join(sorted(TRIGGERS))}"),
        *(
            (
                {"targetRef": {"apiVersion": "v1", "kind": kind, "name": "web"}},
                "spec.targetRef.kind must name a kind with spec.selector, such as Deployment of apps/v1",
            )
            for kind in ("Secret", "ConfigMap", "Pod")
        ),
        ({"targetRef": {"apiVersion": "v1", "kind": "ReplicationController", "name": "web"}}, ""),
        ({"triggers": {"maxAge": "599s"}}, "spec.triggers.maxAge must be a time like 30s, 5m or 72h, at least 10m"),
        (
            {"triggers": {"configChange": {"settle": "soon"}}},
            "spec.triggers.configChange.settle must be a time like 30s, 5m or 72h",
        ),
        (
            {"budget": {"steps": [1, "x"]}},
            "spec.budget.steps must be a list of a number of at least 1, or a percentage from 1% to 100%",
        ),
        (
            {"budget": {"stepPause": "1m", "confirmSteps": True}},
            "spec.budget must not have both stepPause and confirmSteps",
        ),
        (
            {"budget": {"minReady": "30"}},
            "spec.budget.minReady must be a time like 30s, 5m or 72h",
        ),
        (
            {"triggers": {"schedule": {"cron": "0 4"}}},
            f"spec.triggers.schedule must be valid: cron '0 4' {CRON_FORMS}",
        ),
        *(
            (
                {"window": {"cron": cron, "duration": "1h"}},
                f"spec.window must be valid: cron {cron!r} {CRON_FORMS}",
            )
            for cron in ("@every 1h", "@dayly", "@reboot", "CRON_TZ=UTC 0 4 * * *", "@daily 0 4 * *x @")
        ),
        (
            {"triggers": {"schedule": {"cron": "0 25 * * *"}}},
            "spec.triggers.schedule must be valid: cron '0 25 * * *': bad hour",
        ),
        (
            {"triggers": {"schedule": {"cron": "0 0 */3 2 5#5"}}},
            "spec.triggers.schedule must be valid: cron '0 0 */3 2 5#5' matches no time",
        ),
        *(
            (
                {"triggers": {"schedule": {"cron": f"{minute}{'9' * 5000} * * * *"}}},
                f"spec.triggers.schedule must be valid: cron '{minute:9<60}': a number is too large",
            )
            for minute in ("", "*/", "0-")
        ),
        (
            {"window": {"cron": "0 2 * * *", "duration": "1h", "timeZone": "Mars/Base"}},
            "spec.window must be valid: time zone 'Mars/Base' not found",
        ),
        (
            {"window": {"cron": "0 2 * * *"}},
            "spec.window.duration must be a time like 30s, 5m or 72h, at least 1m",
        ),
        (
            {"triggers": {"maxAge": "10m"}, "budget": {"minReady": "600s"}},
            "spec.triggers.maxAge must be longer than spec.budget.minReady",
        ),
        (
            {"budget": {"maxUnavailable": "0"}},
            "spec.budget.maxUnavailable must be a number of at least 1, or a percentage from 1% to 100%",
        ),
    ],
)
def test_what_is_wrong(changes: dict[str, Any], error: str) -> None:
    assert spec(**changes).error == error


@pytest.mark.parametrize(
    ("allowed", "steps"),
    [("web-1/2", 2), ("web-2/2", 0), ("web-1/x", 0), ("web-1/", 0), ("web-1", 0), ("", 0), (f"web-1/{'9' * 5000}", 0)],
)
def test_how_many_steps_the_owner_allows(allowed: str, steps: int) -> None:
    assert replace(spec(), allowed=allowed).allowed_steps("web-1") == steps


def test_a_scheduled_time_is_skipped_after_an_hour() -> None:
    assert spec(triggers={"schedule": {"cron": "@daily"}}).schedule == Schedule("@daily", "UTC", 3600)


def test_secrets_count_where_that_is_asked_for() -> None:
    secret, config = (Reference(kind, "x", Use.ENV_FROM) for kind in (Kind.SECRET, Kind.CONFIG_MAP))
    assert [ConfigChange(10).counts(each) for each in (secret, config)] == [False, True]
    assert ConfigChange(10, secrets=True).counts(secret)


def test_ignored_objects_do_not_count() -> None:
    change = spec(triggers={"configChange": {"secrets": True, "ignore": ["ca-bundle"]}}).config
    assert change is not None
    names = ("ca-bundle", "web")
    assert [change.counts(Reference(Kind.CONFIG_MAP, name, Use.VOLUME)) for name in names] == [False, True]
    assert not change.counts(Reference(Kind.SECRET, "ca-bundle", Use.ENV))


@pytest.mark.parametrize(
    "status",
    [
        PolicyStatus(),
        PolicyStatus(
            (
                UsedObject(
                    "app", Kind.CONFIG_MAP, "web", "h2", "2026-01-01T01:00:00Z", "h1", "2026-01-01T01:00:00Z", ("a",)
                ),
                UsedObject("app", Kind.SECRET, "tls", "h", "2026-01-01T00:00:00Z"),
            ),
            RunRecord(
                "web-1",
                "configChange",
                ("app",),
                "t1",
                "t2",
                3,
                "why",
                ("ConfigMap web",),
                "t3",
                failed=True,
                message="it did",
            ),
            "0 4 * * 0 UTC",
            "2026-01-01T04:00:00Z",
            "2026-01-08T04:00:00Z: the policy was suspended",
        ),
        PolicyStatus(run=RunRecord("web-1", "maxAge", ("app",), "t1", "t2", 3)),
        PolicyStatus(
            run=RunRecord("web-1", "configChange", ("app",), "t1", "t2", 3, hashes=("", "h"), left=("web-0",))
        ),
    ],
)
def test_a_status_is_read_as_it_was_written(status: PolicyStatus) -> None:
    found = read_policy({"metadata": META, "spec": FULL, "status": write_status(status)})
    assert found.status == status


def test_a_status_that_cannot_be_read_is_empty() -> None:
    junk = {"config": [7, {"kind": "Pod"}], "run": 7, "conditions": [7]}
    assert read_policy({"metadata": META, "spec": FULL, "status": junk}).status == PolicyStatus()


def test_a_run_of_a_trigger_that_is_unknown_counts_as_absent() -> None:
    """A newer manager has started it."""
    run = RunRecord("web-1", "newer", ("app",), "t1", "t2", 3)
    known = replace(run, trigger="templateImage")
    written = write_status(PolicyStatus(run=run, tried=(run, known)))
    assert read_policy({"metadata": META, "spec": FULL, "status": written}).status == PolicyStatus(tried=(known,))


@pytest.mark.parametrize("kind", [[], {}, None, 7, "Pod"])
def test_a_status_that_is_wrong_raises_nothing(kind: object) -> None:
    status = {"config": [{"container": "app", "kind": kind, "name": "cfg"}], "conditions": [{"type": kind}]}
    policy = read_policy({"metadata": META, "spec": FULL, "status": status})
    assert policy.status.config == ()
    assert decide(policy, Observed(), datetime(2026, 1, 2, tzinfo=UTC)).conditions


@pytest.mark.parametrize(("steps", "found"), [("1,3", (1, 3)), ("", ()), (f"x,1,{'9' * 5000},²", (1,))])
def test_of_the_steps_of_a_run_only_numbers_are_read(steps: str, found: tuple[int, ...]) -> None:
    record = RunRecord(
        "web-1", "configChange", ("app",), "2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z", 3, steps=steps
    )
    assert make_run(spec(), record, Target("deployment.apps/web")).options.steps == found


def test_what_is_kept_and_what_is_bad_is_written_and_read() -> None:
    bad = BadRevision(Kind.CONFIG_MAP, "cfg", "b", "2026-01-01T00:00:00Z", "web-1", "7", ("LOG",), restored=True)
    status = PolicyStatus(revisions=(Revision("cfg", "a", "b", "a", "crrd-cfg-1"),), bad=(bad,))
    written = write_status(status)
    assert "tried" in written["revisions"][0]
    assert read_policy({"status": {**written, "bad": [*written["bad"], {"kind": "Pod"}]}}).status == status
    assert spec(after=["proxy", "cache", "proxy"]).after == ("proxy", "cache")
