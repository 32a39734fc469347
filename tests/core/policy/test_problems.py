"""A policy that can have no effect says what is wrong, and what to do."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from crrd.core.config.references import Kind
from crrd.core.policy.course import is_repaired
from crrd.core.policy.observed import Look, Observed, observe, read_pod
from crrd.core.policy.problems import Problem, problems
from crrd.core.policy.reasons import PolicyReason
from crrd.core.policy.records import make_record
from crrd.core.policy.triggers import MAX_AGE, find_wanted
from crrd.core.policy.types import Policy, PolicyStatus, UsedObject
from crrd.core.policy.v1alpha1 import read_policy
from crrd.core.rollout.waits import Skip

NOW = datetime(2026, 1, 1, 13, tzinfo=UTC)
CONFIG_MAP, SECRET = ({"envFrom": [{f"{kind}Ref": {"name": "web"}}]} for kind in ("configMap", "secret"))
CSI = {"driver": "secrets-store.csi.k8s.io", "volumeAttributes": {"secretProviderClass": "vault"}}


def policy(triggers: dict[str, Any] | None = None, **spec: Any) -> Policy:
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}
    chosen = {"configChange": {}} if triggers is None else triggers
    return read_policy({"spec": {"targetRef": target, "triggers": chosen, **spec}})


def pod(
    container: dict[str, Any], init: dict[str, Any] | None = None, *, ready: str = "2026-01-01T12:10:00Z", **spec: Any
) -> dict[str, Any]:
    status = {
        "phase": "Running",
        "containerStatuses": [{"name": "app", "state": {"running": {"startedAt": "2026-01-01T12:00:00Z"}}}],
        "conditions": [{"type": "Ready", "status": "True" if ready else "False", "lastTransitionTime": ready}],
    }
    inits = [] if init is None else [{"name": "setup", **init}]
    containers = [{"name": "app", **container}]
    return {"metadata": {"name": "web-0"}, "spec": {"containers": containers, "initContainers": inits, **spec},
            "status": status}  # fmt: skip


def found(chosen: Policy, *pods: dict[str, Any]) -> Observed:
    return observe(chosen, [read_pod(each, NOW) for each in pods], {})


def problems_of(chosen: Policy, seen: Observed) -> tuple[Problem, ...]:
    return problems(Look(chosen, seen, NOW))


AGE = {"maxAge": "10m"}
FOLLOW: dict[str, Any] = {"configChange": {}, "templateImage": {}}
RULES = [{"action": "RestartAllContainers", "exitCodes": {"operator": "NotIn", "values": [0]}}]


@pytest.mark.parametrize(
    ("chosen", "seen", "expected", "words"),
    [
        (policy(), pod(CONFIG_MAP), [], ""),
        (
            policy(containers=["ap"]),
            pod(CONFIG_MAP),
            [(PolicyReason.CONTAINER, True)],
            "no pod has a container ap that can be restarted in place: use names in spec.containers that the pods have",
        ),
        (policy(containers=["app", "setup"]), pod(CONFIG_MAP, {}), [(PolicyReason.CONTAINER, False)], "setup"),
        (
            policy(),
            pod(SECRET),
            [(PolicyReason.SECRETS, True)],
            "only Secrets (web), and these do not count: set spec.triggers.configChange.secrets to true",
        ),
        (policy({"configChange": {"secrets": True}}), pod(SECRET), [], ""),
        (policy({"configChange": {}, "maxAge": "72h"}), pod(SECRET), [(PolicyReason.SECRETS, False)], "Secrets"),
        (policy(), pod({}), [(PolicyReason.NO_CONFIG, True)], "use no ConfigMap or Secret in env, envFrom or a volume"),
        (policy(FOLLOW), pod({}), [(PolicyReason.NO_CONFIG, False)], "remove the trigger configChange"),
        (policy(FOLLOW), pod(SECRET), [(PolicyReason.SECRETS, False)], ""),
        (policy(FOLLOW), pod({}, CONFIG_MAP), [(PolicyReason.UNREACHED, False)], ""),
        (
            policy({"configChange": {"ignore": ["web"]}}),
            pod(CONFIG_MAP),
            [(PolicyReason.NO_CONFIG, True)],
            "use no ConfigMap or Secret that is not ignored",
        ),
        (policy(), pod(CONFIG_MAP, CONFIG_MAP), [], ""),
        (
            policy(),
            pod(CONFIG_MAP, {"envFrom": [{"configMapRef": {"name": "setup"}}]}),
            [(PolicyReason.UNREACHED, False)],
            "ConfigMap setup of container setup: only an init container uses it",
        ),
        (policy(), pod({}, CONFIG_MAP), [(PolicyReason.UNREACHED, True)], "replace the pods"),
        (policy(), pod(CONFIG_MAP, SECRET), [], ""),
        (policy({"configChange": {"ignore": ["web"]}}), pod({}, CONFIG_MAP), [(PolicyReason.NO_CONFIG, True)], ""),
        (
            policy(),
            pod({"volumeMounts": [{"name": "v", "mountPath": "/v"}]}, volumes=[{"name": "v", "csi": CSI}]),
            [(PolicyReason.UNREACHED, True)],
            "SecretProviderClass vault of container app: the CSI driver",
        ),
        (
            policy(AGE),
            pod({}),
            [(PolicyReason.AGE, True)],
            "maxAge is 10m, but pods need 10m to become ready after a start: set maxAge to a longer time",
        ),
        (policy(AGE), pod({}, ready="2026-01-01T12:09:59Z"), [], ""),
        (
            policy(AGE, budget={"minReady": "1s"}),
            pod({}, ready="2026-01-01T12:09:59Z"),
            [(PolicyReason.AGE, True)],
            "after a start and minReady is 1s",
        ),
        (policy(AGE, budget={"minReady": "10m"}), pod({}, ready=""), [(PolicyReason.AGE, True)], "need 0s"),
        (policy(AGE), pod({}, ready=""), [], ""),
    ],
)
def test_what_has_no_effect(
    chosen: Policy, seen: dict[str, Any], expected: list[tuple[PolicyReason, bool]], words: str
) -> None:
    every = problems_of(chosen, found(chosen, seen))
    assert [(each.reason, each.blocking) for each in every] == expected
    assert words in "".join(each.message for each in every)


def test_a_group_that_may_be_replaced_is_barred() -> None:
    shown = pod({}, nodeName="a")
    shown["metadata"]["labels"] = {"leaderworkerset.sigs.k8s.io/name": "llm"}
    seen = observe(policy(), [read_pod(shown, NOW)], {"a": "v1.36.2"})
    assert seen.running[0].barred is Skip.RESTARTS_GROUP
    (problem,) = [each for each in problems_of(policy(), seen) if each.reason is PolicyReason.BARRED]
    assert "its LeaderWorkerSet or RoleBasedGroup may replace all pods of the group" in problem.message
    assert problem.blocking


@pytest.mark.parametrize(
    ("kubelet", "rules", "own"),
    [
        ("v1.34.9", None, Skip.NEVER),
        ("v1.36.2", Skip.RESTARTS_POD, None),
        ("", Skip.RESTARTS_POD, Skip.NEVER),
    ],
)
def test_the_version_of_kubelet_decides_what_is_barred(kubelet: str, rules: Skip | None, own: Skip | None) -> None:
    """An unknown one may do what is worse."""
    given: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"restartPolicyRules": RULES}, {}),
        ({"restartPolicy": "Always"}, {"restartPolicy": "Never"}),
    ]
    seen = [
        observe(policy(), [read_pod(pod(container, nodeName="a", **fields), NOW)], {"a": kubelet}).running[0].barred
        for container, fields in given
    ]
    assert seen == [rules, own]


def test_what_a_patch_can_never_restart_is_barred() -> None:
    """Only where the manager patches pods. An image whose ID is not known yet may have another name later."""
    pulled = {"imageID": f"app@sha256:{'0' * 64}", "containerID": "containerd://1"}
    rows: list[tuple[dict[str, Any], dict[str, Any], Skip | None]] = [
        ({"image": "app:1"}, pulled, None),
        ({"image": "app:1"}, {}, None),
        ({"image": "app:1"}, {**pulled, "imageID": f"other@sha256:{'0' * 64}"}, Skip.NO_SPELLING),
        ({"image": "app:1", "restartPolicy": "OnFailure"}, pulled, Skip.NOT_ALWAYS),
    ]
    for container, status, why in rows:
        shown = pod(container, nodeName="a")
        shown["status"]["containerStatuses"][0] |= status
        by_way = [
            observe(replace(policy(), patch=patch), [read_pod(shown, NOW)], {"a": "v1.36.2"}) for patch in (False, True)
        ]
        assert [each.running[0].barred for each in by_way] == [None, why]


def test_the_fastest_pod_shows_how_long_a_restart_takes() -> None:
    """The others may have been unready for other reasons since."""
    pods = (pod({}, ready="2026-01-01T12:30:00Z"), pod({}, ready="2026-01-01T12:00:10Z"))
    assert problems_of(policy(AGE), found(policy(AGE), *pods)) == ()


def test_without_pods_nothing_is_known() -> None:
    gone = {"metadata": {"name": "web-0", "deletionTimestamp": "2026-01-01T12:00:00Z"}, "spec": {"containers": [{}]}}
    named = policy(containers=["ap"])
    assert problems_of(named, found(named)) == problems_of(named, found(named, gone)) == ()


def test_a_selector_without_pods_is_shown() -> None:
    """Pods may come later, as those of a nightly Job. A workload can be scaled to 0, so it is not reported."""
    chosen = policy(targetRef=None, selector={"matchLabels": {"app": "wbe"}})
    (only,) = problems_of(chosen, found(chosen))
    assert (only.reason, only.blocking) == (PolicyReason.NO_PODS, False)
    assert problems_of(chosen, found(chosen, pod(CONFIG_MAP))) == ()


def test_a_target_whose_pods_are_owned_by_others_is_shown() -> None:
    """For example a Service."""
    (only,) = problems_of(policy(), replace(found(policy()), not_owned=2))
    assert (only.reason, only.blocking) == (PolicyReason.NOT_OWNED, True)
    assert "Deployment web owns no pods; 2 pods match its selector" in only.message
    assert problems_of(policy(), replace(found(policy(), pod(CONFIG_MAP)), not_owned=2)) == (), "a canary"


def test_a_long_list_is_cut() -> None:
    sources = [{"secretRef": {"name": f"s{number}"}} for number in range(7)]
    (only,) = problems_of(policy(), found(policy(), pod({"envFrom": sources})))
    assert "(s0, s1, s2, s3, s4 and 2 more)" in only.message


@pytest.mark.parametrize(
    ("spec", "fields", "why"),
    [
        ({}, {"restartPolicy": "Never"}, "container app would not be started again (restartPolicy Never) (web-0)"),
        (
            {"restartPolicyRules": RULES},
            {},
            "container app: stopping it may restart all containers of the pod (restartPolicyRules) (web-0)",
        ),
    ],
)
def test_containers_that_cannot_be_restarted_in_place(spec: dict[str, Any], fields: dict[str, Any], why: str) -> None:
    """They start no run, and the condition names them. Otherwise a run that skips them would look like success."""
    record = UsedObject("app", Kind.CONFIG_MAP, "web", "new", "2026-01-01T12:30:00Z", keys=("data.*",))
    chosen = replace(policy({"configChange": {}, "maxAge": "10m"}), status=PolicyStatus((record,)))
    bad = pod({**CONFIG_MAP, **spec}, ready="2026-01-01T12:00:05Z", **fields)
    good = pod(CONFIG_MAP, ready="2026-01-01T12:00:05Z")
    for pods, runs in (((bad,), 0), ((bad, good), 1)):
        look = Look(chosen, found(chosen, *pods), NOW)
        (only,) = problems(look)
        assert (only.reason, only.blocking) == (PolicyReason.BARRED, not runs)
        assert only.message.startswith(f"{why}, so changes do not reach it: replace these pods")
        wanted = find_wanted(look).runs
        assert [run.trigger for run in wanted] == ["configChange"] * runs
        assert len(find_wanted(replace(look, policy=replace(chosen, config=None))).runs) == runs
        assert not is_repaired(look, make_record(look, MAX_AGE.name, ("app",), NOW)), "the kubelet may be unknown"


def test_what_blocks_comes_first() -> None:
    chosen = policy({"configChange": {}}, containers=["app", "ap"])
    every = problems_of(chosen, found(chosen, pod(SECRET)))
    assert [each.reason for each in every] == [PolicyReason.SECRETS, PolicyReason.CONTAINER]
    assert problems_of(replace(chosen, containers=()), found(chosen, pod(CONFIG_MAP))) == ()


def test_pods_of_nodes_that_are_down() -> None:
    """They count as soon as a restart is due, and start no run."""
    config = UsedObject("app", Kind.CONFIG_MAP, "web", "new", "2026-01-01T12:30:00Z", keys=("data.*",))
    chosen = policy({"configChange": {}, "maxAge": "72h"})
    seen = found(chosen, pod(CONFIG_MAP, ready="2026-01-01T12:00:05Z"))
    down = replace(seen, down={"": "node x is not ready"})
    for record, age, due in ((config, 259_200, 1), (replace(config, done="new"), 259_200, 0), (config, 600, 1)):
        one = replace(chosen, max_age=age, status=PolicyStatus((record,)))
        waiting = problems_of(one, down)
        assert [(each.reason, each.blocking) for each in waiting] == [(PolicyReason.NODES, True)] * due
        assert problems_of(one, seen) == ()
    assert waiting[0].message.startswith("not restarted yet: web-0 (node x is not ready): ")
