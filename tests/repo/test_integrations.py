"""manifests/integrations: what Argo CD shows of crrd's objects and offers for them, and what k9s runs."""

import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from lupa.lua51 import LuaError

from crrd.cli.main import build_parser, module_of
from crrd.core.api.types import API_VERSION, KIND, RecreateState, RequestPhase, StatePhase, Status
from crrd.core.api.v1alpha1 import status_to_json
from crrd.core.policy.reasons import PolicyReason
from crrd_localnode.api.crds import POLICIES, REQUESTS, load_crd
from crrd_localnode.api.schema import Schema
from tests.support import argo

ROOT = Path(__file__).parents[2]
K9S = ROOT / "manifests" / "integrations" / "k9s.yaml"
Json = dict[str, Any]
TARGET = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}
DONE, FAILED = StatePhase.SUCCEEDED, StatePhase.FAILED


def request(phase: RequestPhase, *states: StatePhase, message: str = "", **spec: Any) -> Json:
    names = [f"c{at}" for at in range(max(1, len(states)))]
    made = tuple(RecreateState(name, each, f"{name} says why") for name, each in zip(names, states, strict=False))
    status = status_to_json(Status(phase, made, message))
    spec = {"podName": "web-0", "containers": [{"name": name, "statusContext": {}} for name in names], **spec}
    meta = {"name": "r", "namespace": "shop", "uid": "u", "generation": 1}
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": meta, "spec": spec, "status": status}


@pytest.mark.parametrize(
    ("found", "status", "message"),
    [
        (request(RequestPhase.EMPTY), "Progressing", "waiting for crrd"),
        (request(RequestPhase.PENDING, message="waits"), "Progressing", "waits"),
        (request(RequestPhase.RECREATING, DONE, StatePhase.RECREATING), "Progressing", "waiting for crrd"),
        (request(RequestPhase.RECREATING, DONE, FAILED), "Progressing", "waiting for crrd"),
        (request(RequestPhase.COMPLETED, DONE, DONE), "Healthy", "all containers were restarted"),
        (request(RequestPhase.COMPLETED, DONE, FAILED), "Degraded", "c1: c1 says why"),
        (request(RequestPhase.COMPLETED, FAILED, FAILED), "Degraded", "c0: c0 says why; c1: c1 says why"),
        (request(RequestPhase.COMPLETED, message="pod not found"), "Degraded", "pod not found"),
        (request(RequestPhase.COMPLETED), "Degraded", "no container was restarted"),
    ],
)
def test_argo_cd_shows_how_a_request_is(found: Json, status: str, message: str) -> None:
    assert argo.health(found) == {"status": status, "message": message}


RECORDED: dict[str, Json] = json.loads((ROOT / "tests" / "repo" / "data" / "cluster-objects.json").read_text())
"""Objects of crrd on a Kubernetes 1.36 with containerd 2.1, without fields that the scripts do not need."""


@pytest.mark.parametrize(
    ("name", "status", "words", "offered"),
    [
        ("succeeded", "Healthy", "all containers were restarted", {"retry": False}),
        ("recreating", "Progressing", "waiting for crrd", {"retry": False}),
        ("failed", "Degraded", "app: activeDeadlineSeconds (12s) has passed", {"retry": True}),
        ("suspended", "Suspended", "Suspended: spec.suspend is true", {"suspend": False, "resume": True}),
        ("unreadable", "Degraded", "ConfigNotReadable: the manager may not read", {"suspend": True, "resume": False}),
    ],
)
def test_what_a_cluster_has_is_shown(name: str, status: str, words: str, offered: dict[str, bool]) -> None:
    found = argo.health(RECORDED[name])
    assert (found["status"], found["message"][: len(words)]) == (status, words)
    assert argo.actions(RECORDED[name]) == offered


def test_what_a_cluster_has_is_acted_on() -> None:
    made = created(argo.act(RECORDED["failed"], "retry"))["spec"]
    assert [each["name"] for each in made["containers"]] == ["app", "never"]
    assert made["strategy"]["failurePolicy"] == "Ignore"
    assert created(argo.act(RECORDED["pod"], "restart-containers"))["spec"]["podName"] == made["podName"]
    before = RECORDED["suspended"]
    assert argo.act(before, "resume") == {**before, "spec": {**before["spec"], "suspend": False}}


def test_a_request_that_openkruise_has_ended_at_its_deadline() -> None:
    """Its containers keep their phase, and the cause is that of the request."""
    why = "recreating has exceeded the activeDeadlineSeconds"
    found = request(RequestPhase.COMPLETED, DONE, StatePhase.RECREATING, message=why)
    del found["status"]["containerRecreateStates"][1]["message"]
    assert argo.health(found) == {"status": "Degraded", "message": f"c1: {why}"}
    assert argo.actions(found) == {"retry": True}
    assert created(argo.act(found, "retry"))["spec"]["containers"] == [{"name": "c1"}]


def test_argo_cd_waits_for_a_request_that_nobody_has_seen() -> None:
    found = request(RequestPhase.EMPTY)
    del found["status"]
    assert argo.health(found)["status"] == "Progressing"


def policy(*conditions: Json, generation: int = 3, **spec: Any) -> Json:
    return {
        "apiVersion": "crrd.dev/v1alpha1",
        "kind": "ContainerRecreatePolicy",
        "metadata": {"name": "web", "namespace": "shop", "generation": generation},
        "spec": {"targetRef": TARGET, "triggers": {"configChange": {}}, **spec},
        "status": {"conditions": list(conditions)},
    }


def ready(reason: PolicyReason, holds: bool) -> Json:
    status = "True" if holds else "False"
    return {"type": "Ready", "status": status, "reason": reason.value, "message": "m", "observedGeneration": 3}


WORKS = {PolicyReason.RUNNING, PolicyReason.SETTLING, PolicyReason.CONTROLLER}


@pytest.mark.parametrize(
    "reason", [each for each in PolicyReason if each.ready is not None], ids=lambda each: each.value
)
def test_argo_cd_shows_what_a_policy_does(reason: PolicyReason) -> None:
    effective = {"type": "Effective", "status": "False", "reason": "NoPods", "observedGeneration": 3}
    found = argo.health(policy(effective, ready(reason, bool(reason.ready))))
    status = "Suspended" if reason is PolicyReason.SUSPENDED else "Degraded"
    if reason.ready:
        status = "Progressing" if reason in WORKS else "Healthy"
    assert found == {"status": status, "message": f"{reason.value}: m"}


@pytest.mark.parametrize(
    "found", [policy(), policy(ready(PolicyReason.IDLE, True), generation=4)], ids=["new", "edited"]
)
def test_argo_cd_waits_for_the_manager_to_see_a_policy(found: Json) -> None:
    assert argo.health(found) == {"status": "Progressing", "message": "waiting for the manager of crrd"}
    if not found["status"]["conditions"]:
        del found["status"]
        assert argo.health(found)["status"] == "Progressing"


def test_a_policy_is_suspended_and_resumed() -> None:
    found = policy()
    assert argo.actions(found) == {"suspend": True, "resume": False}
    suspended = argo.act(found, "suspend")
    assert suspended == {**found, "spec": {**found["spec"], "suspend": True}}
    assert argo.actions(suspended) == {"suspend": False, "resume": True}
    assert argo.act(suspended, "resume")["spec"]["suspend"] is False


def created(answer: Any) -> Json:
    """The one object that an action creates, as the API server stores it. Fails if the CRD refuses or prunes it."""
    ((operation, made),) = [(each["operation"], each["resource"]) for each in answer]
    assert operation == "create"
    schema = Schema(load_crd(REQUESTS)["spec"]["versions"][0]["schema"]["openAPIV3Schema"])
    stored, pruned = schema.complete(made)
    if made["spec"].get("wholePod"):  # admission names the containers before the schema is checked
        stored["spec"]["containers"] = [{"name": "c0"}]
    assert (pruned, schema.check(stored, None)) == ([], [])
    assert re.fullmatch(r"[a-z0-9][a-z0-9.-]*", made["metadata"]["name"])
    (owner,) = made["metadata"]["ownerReferences"]
    assert owner["uid"]
    return dict(made)


def test_a_request_is_tried_again_for_the_containers_that_failed() -> None:
    strategy = {"orderedRecreate": True, "minStartedSeconds": 5}
    found = request(RequestPhase.COMPLETED, DONE, FAILED, strategy=strategy, activeDeadlineSeconds=60)
    assert argo.actions(found) == {"retry": True}
    made = created(argo.act(found, "retry"))
    assert (made["apiVersion"], made["kind"]) == (API_VERSION, KIND)
    assert made["metadata"]["namespace"] == "shop"
    assert re.fullmatch(r"r-20\d{12}", made["metadata"]["name"])
    expected = {"podName": "web-0", "containers": [{"name": "c1"}], "strategy": strategy, "activeDeadlineSeconds": 60}
    assert made["spec"] == expected


def test_a_whole_pod_is_tried_again_without_names_of_containers() -> None:
    found = request(RequestPhase.COMPLETED, DONE, FAILED, wholePod=True, strategy={})
    assert created(argo.act(found, "retry"))["spec"] == {"podName": "web-0", "wholePod": True}


@pytest.mark.parametrize(
    "found",
    [
        request(RequestPhase.EMPTY),
        request(RequestPhase.RECREATING, DONE, FAILED),
        request(RequestPhase.COMPLETED, DONE),
        request(RequestPhase.COMPLETED, FAILED, containers=[{"name": "c0", "image": "i:2"}]),
    ],
    ids=["new", "in progress", "succeeded", "of an image"],
)
def test_other_requests_are_not_tried_again(found: Json) -> None:
    assert argo.actions(found) == {"retry": False}


def test_the_containers_of_a_pod_are_restarted() -> None:
    pod: Json = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "web-0", "namespace": "shop", "uid": "u"},
        "spec": {"initContainers": [{"name": "init"}], "containers": [{"name": "app"}, {"name": "proxy"}]},
        "status": {"phase": "Running"},
    }
    assert argo.actions(pod) == {"restart-containers": True}
    made = created(argo.act(pod, "restart-containers"))
    assert made["spec"] == {"podName": "web-0", "containers": [{"name": "app"}, {"name": "proxy"}]}
    for status in ({"phase": "Succeeded"}, {}):
        assert argo.actions({**pod, "status": status}) == {"restart-containers": False}


def test_each_kind_has_health_and_actions_and_discovered_actions_are_defined() -> None:
    specs = [load_crd(file)["spec"] for file in (REQUESTS, POLICIES)]
    kinds = [f"{spec['group']}_{spec['names']['kind']}" for spec in specs]
    health = {f"{argo.PREFIX}.health.{kind}" for kind in kinds}
    assert argo.SCRIPTS.keys() == health | {f"{argo.PREFIX}.actions.{kind}" for kind in [*kinds, "Pod"]}


@pytest.mark.parametrize(
    "word", ["string.format('x')", "('x'):upper()", "math.floor(1.5)", "os.time()", "io.write('x')"]
)
def test_the_scripts_run_with_no_more_than_argo_cd_has(word: str) -> None:
    with pytest.raises(LuaError):
        argo.run(f"return {word}", {})
    assert argo.run('return require("os").time()', {}) > 1_600_000_000


PLUGINS: dict[str, Json] = yaml.safe_load(K9S.read_text(encoding="utf-8"))["plugins"]
EVERYWHERE = {"NAMESPACE": "shop", "CONTEXT": "prod", "KUBECONFIG": "/home/me/my clusters.yaml"}
IN_SCOPE: dict[str, dict[str, str]] = {
    "containers": {"POD": "web-0", "NAME": "app", "RESOURCE_NAME": "containers"},
    "pods": {"NAME": "web-0", "RESOURCE_NAME": "pods"},
    **{each: {"NAME": "web", "RESOURCE_NAME": each} for each in ("deployments", "statefulsets", "daemonsets")},
    **{load_crd(file)["spec"]["names"]["plural"]: {"NAME": "web"} for file in (REQUESTS, POLICIES)},
}
"""Variables that k9s sets in the view of a kind, beside those of EVERYWHERE."""
TYPES: dict[str, type] = {"shortCut": str, "description": str, "scopes": list, "command": str, "args": list}
TYPES |= {"confirm": bool, "dangerous": bool, "background": bool}


def commands() -> Iterator[tuple[str, list[str]]]:
    """Each plugin in each view, with the words of what it runs."""
    for name, plugin in PLUGINS.items():
        for scope in plugin["scopes"]:
            known = EVERYWHERE | IN_SCOPE[scope]
            words = [re.sub(r"\$(\w+)", lambda found: known[found[1]], each) for each in plugin["args"]]  # noqa: B023
            flag, script = words
            assert (plugin["command"], flag) == ("sh", "-c")
            subprocess.run(["sh", "-n", "-c", script], check=True)
            yield name, shlex.split(re.split(r"; | 2>&1 \| ", script)[0])


def test_k9s_reads_the_plugins() -> None:
    """By its JSON schema; two plugins of one view with one key are an error."""
    keys = [(plugin["shortCut"], scope) for plugin in PLUGINS.values() for scope in plugin["scopes"]]
    assert len(keys) == len(set(keys))
    for plugin in PLUGINS.values():
        assert {"shortCut", "description", "scopes", "command"} <= plugin.keys() <= TYPES.keys()
        assert all(isinstance(value, TYPES[key]) for key, value in plugin.items())
        assert re.fullmatch(r"Shift-[A-Z]", plugin["shortCut"])


@pytest.mark.parametrize(("name", "words"), [*commands()], ids=str)
def test_k9s_runs_commands_that_there_are(name: str, words: list[str]) -> None:
    kubeconfig, *words = words
    assert kubeconfig == f"KUBECONFIG={EVERYWHERE['KUBECONFIG']}"  # k9s does not pass on its flag --kubeconfig
    assert words[words.index("--context") + 1] == "prod"
    assert "shop" in words or words[2].startswith("shop/")
    if words[:2] == ["kubectl", "patch"]:
        spec = yaml.safe_load(words[words.index("-p") + 1])["spec"]
        schema = Schema(load_crd(POLICIES)["spec"]["versions"][0]["schema"]["openAPIV3Schema"])
        stored, pruned = schema.complete({"spec": {**policy()["spec"], **spec}})
        assert (pruned, schema.check(stored, None)) == ([], [])
        return
    command = words[1]
    arranged = getattr(module_of(command), "arranged", list)
    _, unknown = build_parser(command).parse_known_args([command, *arranged(words[2:])])
    assert unknown == []
    changes = "recreate" in words and not {"status", "--dry-run"} & {*words}
    assert PLUGINS[name].get("confirm", False) == PLUGINS[name].get("dangerous", False) == changes
