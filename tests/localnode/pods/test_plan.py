"""What the local kubelet does next: that it asks for kubelet's rules, and with what it asks for them."""

from dataclasses import replace
from typing import Any

import pytest

from crrd.kubelet.runtime_status import ContainerState
from crrd_localnode.pods.kuberuntime import RuntimeContainer, RuntimePod, Sandbox
from crrd_localnode.pods.worker import hash_of, plan_end, plan_pod

Json = dict[str, Any]

APP, OTHER = {"name": "app", "image": "web:1"}, {"name": "other", "image": "web:1"}
INIT = {"name": "init", "image": "i:1"}
SIDECAR = {"name": "side", "image": "s:1", "restartPolicy": "Always"}
VERSION = "v1.36.0"
SANDBOX = Sandbox("s1", 0, ready=True, created_at=1, pod_uid="u", pod_name="web", pod_namespace="shop")
PROBE = {"exec": {"command": ["true"]}}
LOST = replace(SANDBOX, ready=False)


class Probed:
    def __init__(self, *, starting: tuple[str, ...] = (), failed: dict[str, str] | None = None) -> None:
        self._starting = starting
        self._failed = failed or {}

    def started(self, spec: Json, container: RuntimeContainer) -> bool:
        return container.name not in self._starting

    def ready(self, spec: Json, container: RuntimeContainer) -> bool:
        return self.started(spec, container)

    def failed(self, container_id: str) -> str:
        return self._failed.get(container_id, "")


def running(spec: Json, **fields: Any) -> RuntimeContainer:
    given: Json = {
        "id": f"{spec['name']}-1",
        "name": spec["name"],
        "sandbox_id": "s1",
        "state": ContainerState.RUNNING,
        "created_at": 1,
        "started_at": 1,
        "finished_at": 0,
        "exit_code": 0,
        "reason": "",
        "message": "",
        "image": spec["image"],
        "image_id": "",
        "hash": hash_of(spec, VERSION),
        "restart_count": 0,
        "grace_seconds": 30,
        "pre_stop": "",
        "ports": "",
        "log_path": "",
        "termination_file": "",
    }
    return RuntimeContainer(**(given | fields))


def exited(spec: Json, code: int, **fields: Any) -> RuntimeContainer:
    return running(spec, **{"state": ContainerState.EXITED, "exit_code": code, "finished_at": 2} | fields)


def pod(*containers: Json, init: tuple[Json, ...] = (), policy: str = "Always") -> Json:
    return {"spec": {"containers": [*containers], "initContainers": [*init], "restartPolicy": policy}}


def whole(given: Json) -> Json:
    return {"metadata": {"name": "web"}, **given}


VIEW = RuntimePod((SANDBOX,), (running(APP),))


def make(
    given: Json, *containers: RuntimeContainer, sandbox: Sandbox | None = SANDBOX, probed: Probed | None = None
) -> tuple[bool, list[str], bool, list[str]]:
    """Whether the pod is killed, which containers are, whether a sandbox is made, which containers are started."""
    view = RuntimePod((sandbox,) if sandbox else (), containers)
    made = plan_pod(whole(given), view, probed or Probed(), VERSION)
    kill = [each.container.name for each in made.kill if not made.kill_pod]
    return made.kill_pod, kill, made.new_sandbox, list(made.start)


NOTHING: tuple[bool, list[str], bool, list[str]] = (False, [], False, [])


def test_a_new_pod_gets_a_sandbox_and_all_its_containers_at_once() -> None:
    assert make(pod(APP, OTHER), sandbox=None) == (False, [], True, ["app", "other"])


def test_a_new_pod_with_init_containers_begins_with_the_first_of_them() -> None:
    assert make(pod(APP, init=(INIT, SIDECAR)), sandbox=None) == (False, [], True, ["init"])


def test_a_pod_that_lost_its_sandbox_begins_again() -> None:
    assert make(pod(APP, init=(INIT,)), running(APP), exited(INIT, 0), sandbox=LOST) == (True, [], True, ["init"])
    assert make(pod(APP, OTHER, policy="OnFailure"), exited(APP, 0), exited(OTHER, 1), sandbox=LOST) == (
        True,
        [],
        True,
        ["other"],
    )


def test_a_pod_that_lost_its_sandbox_is_not_begun_again_where_nothing_is_restarted() -> None:
    assert make(pod(APP, policy="Never"), running(APP), sandbox=LOST) == (True, [], False, [])
    assert make(pod(APP, policy="OnFailure"), exited(APP, 0), sandbox=LOST) == (True, [], False, [])


def test_a_pod_that_runs_is_left_alone() -> None:
    assert make(pod(APP, OTHER), running(APP), running(OTHER)) == NOTHING


@pytest.mark.parametrize(
    ("policy", "code", "started"),
    [("Always", 0, True), ("Always", 1, True), ("OnFailure", 1, True), ("OnFailure", 0, False), ("Never", 1, False)],
)
def test_an_exited_container_is_restarted_by_the_pod_s_policy(policy: str, code: int, started: bool) -> None:
    made = make(pod(APP, OTHER, policy=policy), exited(APP, code), running(OTHER))
    assert made == (False, [], False, ["app"] if started else [])


def test_a_container_s_own_policy_wins_over_the_pod_s() -> None:
    own = {**APP, "restartPolicy": "Always"}
    assert make(pod(own, OTHER, policy="Never"), exited(own, 0), running(OTHER))[3] == ["app"]
    own = {**APP, "restartPolicy": "Never"}
    assert make(pod(own, OTHER), exited(own, 1), running(OTHER))[3] == []


def test_a_container_that_was_created_and_not_started_is_started_anew() -> None:
    created = running(APP, state=ContainerState.CREATED)
    assert make(pod(APP, policy="Never"), created)[3] == ["app"]


@pytest.mark.parametrize("policy", ["Always", "Never"])
def test_a_container_whose_definition_has_changed_is_replaced_whatever_the_policy(policy: str) -> None:
    new = {**APP, "image": "web:2"}
    assert make(pod(new, OTHER, policy=policy), running(APP), running(OTHER)) == (False, ["app"], False, ["app"])


@pytest.mark.parametrize(("policy", "started"), [("Always", ["app"]), ("Never", [])])
def test_a_container_that_fails_its_probe_is_stopped_and_restarted_by_policy(policy: str, started: list[str]) -> None:
    probed = Probed(failed={"app-1": "liveness"})
    made = make(pod(APP, OTHER, policy=policy), running(APP), running(OTHER), probed=probed)
    assert made == (False, ["app"], False, started)


def test_a_pod_with_nothing_left_to_run_is_killed_with_its_sidecars() -> None:
    assert make(pod(APP, policy="Never"), exited(APP, 0)) == (True, [], False, [])
    done = pod(APP, init=(SIDECAR,), policy="OnFailure")
    assert make(done, exited(APP, 0), running(SIDECAR)) == (True, [], False, [])


def test_a_container_that_never_started_is_stopped_for_that() -> None:
    probed = Probed(failed={"app-1": "startup"})
    assert (
        plan_pod(whole(pod(APP)), VIEW, probed, VERSION).kill[0].message
        == "Container app failed startup probe, will be restarted"
    )


def test_a_container_in_a_state_that_the_runtime_does_not_know_is_stopped_before_it_is_started_anew() -> None:
    lost = running(APP, state=ContainerState.UNKNOWN)
    assert make(pod(APP, OTHER), lost, running(OTHER)) == (False, ["app"], False, ["app"])


def test_a_rule_of_the_container_s_own_restarts_it() -> None:
    rule = {"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}
    ruled = {**APP, "restartPolicy": "Never", "restartPolicyRules": [rule]}
    assert make(pod(ruled, OTHER), exited(ruled, 42), running(OTHER))[3] == ["app"]
    assert make(pod(ruled, OTHER), exited(ruled, 1), running(OTHER))[3] == []


def test_of_two_ready_sandboxes_neither_is_kept() -> None:
    view = RuntimePod((replace(SANDBOX, id="s2", attempt=1, created_at=2), SANDBOX), (running(APP),))
    made = plan_pod(whole(pod(APP)), view, Probed(), VERSION)
    assert (made.kill_pod, made.new_sandbox, made.attempt) == (True, True, 2)


def test_kubelet_s_version_tells_which_rules_hold() -> None:
    own = {**APP, "restartPolicy": "Never"}
    view = RuntimePod((SANDBOX,), (exited(own, 1, hash=hash_of(own, "v1.34.0")), running(OTHER)))
    starts = [plan_pod(whole(pod(own, OTHER)), view, Probed(), version).start for version in ("v1.34.0", VERSION)]
    assert [len(each) for each in starts] == [1, 0]


def test_neither_network_nor_resources_are_compared() -> None:
    sized = {**APP, "resizePolicy": [{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]}
    assert plan_pod(whole(pod(sized)), VIEW, Probed(), VERSION).kill == ()


def test_a_pod_that_is_over_is_killed_with_its_sidecars_last() -> None:
    view = RuntimePod((SANDBOX,), (running(SIDECAR), running(APP)))
    made = plan_end(whole(pod(APP, init=(SIDECAR,))), view, VERSION, "the pod is over")
    assert [(each.container.name, each.stage) for each in made.kill] == [("app", 0), ("side", 1)]


# Init containers and sidecars


def test_init_containers_run_one_after_the_other() -> None:
    second = {"name": "second", "image": "i:1"}
    given = pod(APP, init=(INIT, second))
    assert make(given) == (False, [], False, ["init"])
    assert make(given, running(INIT)) == NOTHING
    assert make(given, exited(INIT, 0)) == (False, [], False, ["second"])
    assert make(given, exited(INIT, 0), exited(second, 0)) == (False, [], False, ["app"])


def test_a_failed_init_container_is_tried_again_unless_nothing_is_restarted() -> None:
    assert make(pod(APP, init=(INIT,)), exited(INIT, 1)) == (False, [], False, ["init"])
    assert make(pod(APP, init=(INIT,), policy="Never"), exited(INIT, 1)) == (True, [], False, [])


def test_an_init_container_is_not_run_again_while_one_of_the_others_runs() -> None:
    assert make(pod(APP, OTHER, init=(INIT,)), exited(APP, 1), running(OTHER)) == (False, [], False, ["app"])


def test_an_init_container_that_nothing_is_known_of_is_run_again_where_none_of_the_others_runs() -> None:
    assert make(pod(APP, init=(INIT,)), exited(APP, 1)) == (False, [], False, ["init"])
    assert make(pod(APP, init=(INIT,)), exited(APP, 1), exited(INIT, 0)) == (False, [], False, ["app"])


def test_an_init_container_of_a_lost_sandbox_is_run_again_in_the_new_one() -> None:
    new = replace(SANDBOX, id="s2")
    before = (exited(INIT, 0), exited(APP, 137))
    assert make(pod(APP, init=(INIT,)), *before, sandbox=new) == (False, [], False, ["init"])


def test_what_follows_a_sidecar_waits_until_it_has_started() -> None:
    given = pod(APP, init=({**SIDECAR, "startupProbe": PROBE}, INIT))
    assert make(given) == (False, [], False, ["side"])
    assert make(given, running(SIDECAR), probed=Probed(starting=("side",))) == NOTHING
    assert make(given, running(SIDECAR)) == (False, [], False, ["init"])


def test_a_sidecar_is_kept_running_beside_the_others() -> None:
    given = pod(APP, init=({**SIDECAR, "livenessProbe": PROBE},), policy="Never")
    assert make(given, running(APP), exited(SIDECAR, 0)) == (False, [], False, ["side"])
    failing = Probed(failed={"side-1": "liveness"})
    assert make(given, running(APP), running(SIDECAR), probed=failing) == (False, ["side"], False, ["side"])
    assert make(given, running(SIDECAR), probed=failing) == (False, ["side"], False, ["side", "app"])


# The hash


@pytest.mark.parametrize(
    ("name", "image", "expected"),
    [
        ("prometheus-node-exporter", "harbor.finupgroup.com/kubernetes/node-exporter:v0.16.0", 3651420697),
    ],
)
def test_the_hash_is_kubelet_s(name: str, image: str, expected: int) -> None:
    assert int(hash_of({"name": name, "image": image, "command": ["counts", "not"]}, VERSION), 16) == expected
