"""The kubelet's arithmetic and the shapes that it writes, rule by rule, without a runtime or an API server."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cri_stubs import api_pb2 as pb
from crrd.kubelet.runtime_status import ContainerState
from crrd_localnode.pods import spec as podspec
from crrd_localnode.pods.atomic_writer import VolumeError
from crrd_localnode.pods.configs import container_config, sandbox_config
from crrd_localnode.pods.kuberuntime import RuntimeContainer, RuntimePod, Sandbox
from crrd_localnode.pods.starter import BackOff, go_duration
from crrd_localnode.pods.status import Waiting, pod_status, termination_message
from crrd_localnode.pods.volumes import PodFolders, host_path

Json = dict[str, Any]
SECOND = 1_000_000_000
NOW = 1_700_000_000 * SECOND

CONTAINER = RuntimeContainer(
    id="c1",
    name="app",
    sandbox_id="s1",
    state=ContainerState.RUNNING,
    created_at=1,
    started_at=NOW,
    finished_at=0,
    exit_code=0,
    reason="",
    message="",
    image="web:1",
    image_id="sha256:1",
    hash="1",
    restart_count=0,
    grace_seconds=30,
    pre_stop="",
    ports="",
    log_path="",
    termination_file="",
)
SANDBOX = Sandbox("s1", 0, ready=True, created_at=1, pod_uid="u", pod_name="web", pod_namespace="shop")


class Health:
    def __init__(self, unready: tuple[str, ...] = ()) -> None:
        self.unready = unready

    def started(self, spec: Json, container: RuntimeContainer) -> bool:
        return True

    def ready(self, spec: Json, container: RuntimeContainer) -> bool:
        return container.name not in self.unready

    def failed(self, container_id: str) -> str:
        return ""


DEFAULTS = {"terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File"}
"""What the API server fills in of a container."""


def make_pod(*containers: Json, init: tuple[Json, ...] = (), status: Json | None = None, **spec: Any) -> Json:
    return {
        "metadata": {"name": "web", "namespace": "shop", "uid": "u", "resourceVersion": "1"},
        "spec": {
            "containers": [{**DEFAULTS, **each} for each in containers or [{"name": "app", "image": "web:1"}]],
            "initContainers": [{**DEFAULTS, **each} for each in init],
            **spec,
        },
        "status": status or {},
    }


def exited(code: int, name: str = "app", **fields: Any) -> RuntimeContainer:
    ended: Json = {"finished_at": NOW + SECOND, "exit_code": code, "name": name, "id": f"{name}-{code}", **fields}
    return replace(CONTAINER, state=ContainerState.EXITED, **ended)


def status_of(
    pod: Json,
    *containers: RuntimeContainer,
    waiting: Mapping[str, Waiting] | None = None,
    health: Health | None = None,
    now: int = NOW,
) -> Json:
    return pod_status(
        pod,
        RuntimePod((SANDBOX,), containers),
        waiting=waiting or {},
        health=health or Health(),
        runtime="containerd",
        version="1.36",
        now=now,
    )


# Back-off


def test_the_first_restart_is_at_once_and_the_next_ones_wait_twice_as_long_each() -> None:
    backoff = BackOff(10, 300)
    now, waits = 1000.0, []
    for _ in range(8):
        failed = now
        waits.append(backoff.remaining("app", failed, now))
        now += waits[-1]
        assert backoff.remaining("app", failed, now) == 0
        backoff.advance("app", failed, now)
        now += 1  # it runs for a second and fails again
    assert waits == [0, 10, 20, 40, 80, 160, 300, 300]


def test_a_container_that_ran_for_ten_minutes_begins_anew() -> None:
    backoff = BackOff(10, 300)
    backoff.advance("app", 0, 0)
    backoff.advance("app", 5, 10)
    assert backoff.delay("app") == 20
    assert backoff.remaining("app", 610.5, 611) == 0
    backoff.advance("app", 610.5, 611)
    assert backoff.delay("app") == 10


def test_back_offs_are_forgotten_with_their_pod() -> None:
    backoff = BackOff(10, 300)
    backoff.advance("uid-1/app/h", 0, 0)
    backoff.advance("uid-2/app/h", 0, 0)
    backoff.forget("uid-1/")
    assert (backoff.delay("uid-1/app/h"), backoff.delay("uid-2/app/h")) == (0, 10)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(10, "10s"), (80, "1m20s"), (300, "5m0s"), (0.5, "500ms"), (2.5, "2.5s"), (3661, "1h1m1s"), (0, "0s")],
)
def test_durations_are_written_as_go_does(seconds: float, text: str) -> None:
    assert go_duration(seconds) == text


# The spec's defaults


def test_the_grace_period_is_the_pod_s_until_it_is_deleted_with_another() -> None:
    pod = make_pod()
    assert podspec.grace_seconds(pod) == 30
    pod["spec"]["terminationGracePeriodSeconds"] = 7
    assert podspec.grace_seconds(pod) == 7
    pod["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 3}
    assert podspec.grace_seconds(pod) == 3


# The status


def test_a_container_that_waits_for_its_restart_shows_how_it_ended_as_its_last_state() -> None:
    held = Waiting("CrashLoopBackOff", "back-off 10s")
    app = status_of(make_pod(), exited(3), waiting={"app": held})["containerStatuses"][0]
    assert app["state"] == {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}}
    assert app["lastState"]["terminated"] == {
        "exitCode": 3,
        "reason": "Error",
        "startedAt": "2023-11-14T22:13:20Z",
        "finishedAt": "2023-11-14T22:13:21Z",
        "containerID": "containerd://app-3",
    }


def test_a_reason_to_wait_does_not_hide_a_container_that_runs_or_an_init_container_that_is_done() -> None:
    held = Waiting("CrashLoopBackOff", "")
    pod = make_pod(init=({"name": "init", "image": "i:1"},))
    status = status_of(pod, CONTAINER, exited(0, "init"), waiting={"app": held, "init": held})
    assert list(status["containerStatuses"][0]["state"]) == ["running"]
    assert list(status["initContainerStatuses"][0]["state"]) == ["terminated"]


def test_what_the_runtime_has_forgotten_is_carried_over_from_the_last_status() -> None:
    ended = {"terminated": {"exitCode": 0}}
    old = {
        "containerStatuses": [{"name": "app", "restartCount": 4, "lastState": ended}],
        "initContainerStatuses": [{"name": "init", "restartCount": 0, "state": ended, "ready": True, "lastState": {}}],
    }
    pod = make_pod(init=({"name": "init", "image": "i:1"},), status=old)
    status = status_of(pod)
    app = status["containerStatuses"][0]
    assert (app["restartCount"], app["lastState"]) == (4, ended)
    assert status["initContainerStatuses"] == old["initContainerStatuses"]


def test_a_container_that_is_created_but_not_started_is_waiting() -> None:
    app = status_of(make_pod(), replace(CONTAINER, state=ContainerState.CREATED))["containerStatuses"][0]
    assert app["state"] == {"waiting": {"reason": "ContainerCreating"}}
    assert app["containerID"] == "containerd://c1"


def test_a_condition_keeps_the_time_of_its_last_change() -> None:
    pod = make_pod()
    pod["status"] = status_of(pod, CONTAINER)
    later = status_of(pod, CONTAINER, health=Health(("app",)), now=NOW + 60 * SECOND)
    times = {entry["type"]: entry["lastTransitionTime"] for entry in later["conditions"]}
    assert times["Ready"] == times["ContainersReady"] == "2023-11-14T22:14:20Z"
    assert times["PodScheduled"] == times["Initialized"] == "2023-11-14T22:13:20Z"


APP, OTHER = {"name": "app", "image": "web:1"}, {"name": "other", "image": "web:1"}
SIDECAR = {"name": "side", "image": "web:1", "restartPolicy": "Always"}
INIT = {"name": "init", "image": "web:1"}
OWN_ALWAYS, OWN_NEVER = {**APP, "restartPolicy": "Always"}, {**APP, "restartPolicy": "Never"}
OWN_INIT = {**INIT, "restartPolicy": "OnFailure"}
RULED = {
    **OWN_NEVER,
    "restartPolicyRules": [{"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]}}],
}
HELD = {"app": Waiting("CrashLoopBackOff", "")}


@pytest.mark.parametrize(
    ("pod", "containers", "waiting", "phase"),
    [
        (make_pod(), (), {}, "Pending"),
        (make_pod(), (CONTAINER,), {}, "Running"),
        (make_pod(APP, OTHER), (CONTAINER,), {}, "Pending"),
        (make_pod(APP, OTHER), (CONTAINER, exited(1, "other")), {}, "Running"),
        (make_pod(), (exited(1),), {}, "Running"),
        (make_pod(), (exited(1),), HELD, "Running"),
        (make_pod(restartPolicy="Never"), (exited(1),), {}, "Failed"),
        (make_pod(restartPolicy="Never"), (exited(0),), {}, "Succeeded"),
        (make_pod(APP, OTHER, restartPolicy="Never"), (exited(0), exited(1, "other")), {}, "Failed"),
        (make_pod(restartPolicy="OnFailure"), (exited(0),), {}, "Succeeded"),
        (make_pod(restartPolicy="OnFailure"), (exited(1),), {}, "Running"),
        (make_pod(init=(INIT,)), (), {}, "Pending"),
        (make_pod(init=(INIT,)), (exited(1, "init"),), {}, "Pending"),
        (make_pod(init=(INIT,)), (exited(0, "init"), CONTAINER), {}, "Running"),
        (make_pod(init=(INIT,), restartPolicy="Never"), (exited(1, "init"),), {}, "Failed"),
        (make_pod(init=(SIDECAR,)), (replace(CONTAINER, name="side"),), {}, "Pending"),
        (make_pod(init=(SIDECAR,)), (CONTAINER, replace(CONTAINER, name="side")), {}, "Running"),
        (make_pod(init=(SIDECAR,)), (CONTAINER, exited(1, "side")), {}, "Running"),
        (make_pod(OWN_ALWAYS, restartPolicy="Never"), (exited(1),), {}, "Running"),
        (make_pod(OWN_NEVER), (exited(1),), {}, "Failed"),
        (make_pod(OWN_NEVER, OTHER), (exited(1), exited(0, "other")), {}, "Running"),
        (make_pod(RULED), (exited(42),), {}, "Running"),
        (make_pod(RULED), (exited(41),), {}, "Failed"),
        (make_pod(init=(OWN_INIT,), restartPolicy="Never"), (exited(1, "init"),), {}, "Pending"),
    ],
)
def test_the_phase_follows_from_the_containers(
    pod: Json, containers: tuple[RuntimeContainer, ...], waiting: dict[str, Waiting], phase: str
) -> None:
    assert status_of(pod, *containers, waiting=waiting)["phase"] == phase


@pytest.mark.parametrize(("policy", "code", "phase"), [("Always", 0, "Succeeded"), ("Always", 9, "Failed"),
                                                       ("OnFailure", 9, "Failed")])  # fmt: skip
def test_a_pod_that_is_being_deleted_ends_with_its_containers(policy: str, code: int, phase: str) -> None:
    pod = make_pod(restartPolicy=policy)
    pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert status_of(pod, exited(code))["phase"] == phase


def test_the_last_words_are_the_file_s_else_the_log_s_end_where_the_policy_says_so(tmp_path: Path) -> None:
    file, log = tmp_path / "message", tmp_path / "0.log"
    file.write_text("from the file")
    log.write_text("2026-01-01T00:00:00Z stdout F one\n2026-01-01T00:00:01Z stderr F two\ncut\n")
    container = exited(1, termination_file=str(file), log_path=str(log))
    fall_back = {"terminationMessagePolicy": "FallbackToLogsOnError"}
    assert termination_message(DEFAULTS, container) == "from the file"
    assert termination_message(fall_back, container) == "from the file"
    file.write_text("")
    assert termination_message(DEFAULTS, container) == ""
    assert termination_message(fall_back, container) == "one\ntwo\n"
    assert termination_message(fall_back, replace(container, exit_code=0)) == ""
    log.unlink()
    assert termination_message(fall_back, container) == ""


# Configs


def config_of(pod: Json, spec: Json) -> pb.ContainerConfig:
    return container_config(
        pod,
        {**DEFAULTS, **spec},
        image_id="sha256:1",
        restart_count=2,
        container_hash="ab",
        mounts=[],
        variables={},
    )


def test_the_annotations_are_kubelet_s_own() -> None:
    hook = {"httpGet": {"port": "web", "path": "/<stop>"}}
    spec: Json = {
        "name": "app",
        "image": "web:1",
        "lifecycle": {"preStop": hook},
        "ports": [{"protocol": "TCP", "containerPort": 80, "name": "web"}],
        "terminationMessagePath": "/tmp/last",
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    config = config_of(make_pod(spec, terminationGracePeriodSeconds=0), spec)
    assert dict(config.annotations) == {
        "io.kubernetes.container.hash": "ab",
        "io.kubernetes.container.restartCount": "2",
        "io.kubernetes.container.terminationMessagePath": "/tmp/last",
        "io.kubernetes.container.terminationMessagePolicy": "FallbackToLogsOnError",
        "io.kubernetes.pod.terminationGracePeriod": "0",
        "io.kubernetes.container.preStopHandler": '{"httpGet":{"port":"web","path":"/<stop>"}}',
        "io.kubernetes.container.ports": '[{"name":"web","containerPort":80,"protocol":"TCP"}]',
    }
    assert (config.metadata.attempt, config.log_path) == (2, "app/2.log")
    assert (config.image.image, config.image.user_specified_image) == ("sha256:1", "web:1")


def test_a_container_without_hook_ports_and_grace_has_no_such_annotations() -> None:
    spec = {"name": "app", "image": "web:1"}
    assert set(config_of(make_pod(spec), spec).annotations) == {
        "io.kubernetes.container.hash",
        "io.kubernetes.container.restartCount",
        "io.kubernetes.container.terminationMessagePath",
        "io.kubernetes.container.terminationMessagePolicy",
    }


def test_users_and_groups_come_from_the_container_else_from_the_pod() -> None:
    spec: Json = {"name": "app", "image": "web:1", "securityContext": {"runAsUser": 0}}
    pod = make_pod(spec, securityContext={"runAsUser": 5, "runAsGroup": 6, "fsGroup": 7, "supplementalGroups": [8]})
    context = config_of(pod, spec).linux.security_context
    assert (context.run_as_user.value, context.run_as_group.value) == (0, 6)
    assert list(context.supplemental_groups) == [8, 7]
    assert not config_of(make_pod(), {"name": "app", "image": "web:1"}).linux.security_context.HasField("run_as_user")


def test_a_privileged_container_sees_all_of_proc() -> None:
    spec: Json = {"name": "app", "image": "web:1", "securityContext": {"privileged": True}}
    pod = make_pod(spec)
    context = config_of(pod, spec).linux.security_context
    assert context.privileged
    assert not context.masked_paths
    sandbox = sandbox_config(pod, node_name="n", log_directory="/l", attempt=0)
    assert sandbox.linux.security_context.privileged
    plain = config_of(make_pod(), {"name": "app", "image": "web:1"}).linux.security_context
    assert "/proc/kcore" in plain.masked_paths


@pytest.mark.parametrize(
    ("spec", "pid", "ipc"),
    [
        ({}, pb.CONTAINER, pb.POD),
        ({"shareProcessNamespace": True}, pb.POD, pb.POD),
        ({"hostPID": True, "hostIPC": True}, pb.NODE, pb.NODE),
    ],
)
def test_namespaces_are_the_pod_s_but_for_the_network(
    spec: Json, pid: pb.NamespaceMode.ValueType, ipc: pb.NamespaceMode.ValueType
) -> None:
    config = sandbox_config(make_pod(**spec), node_name="n", log_directory="/l", attempt=1)
    options = config.linux.security_context.namespace_options
    assert (options.network, options.pid, options.ipc) == (pb.NODE, pid, ipc)
    assert config.hostname == ""
    assert config.metadata.attempt == 1


# Volumes


def test_host_paths_are_made_where_their_type_says_so(tmp_path: Path) -> None:
    for name, kind in (("folder", "DirectoryOrCreate"), ("file", "FileOrCreate"), ("any", ""), ("file", "File")):
        host_path("v", {"path": str(tmp_path / name), "type": kind})
    host_path("v", {"path": str(tmp_path / "folder"), "type": "Directory"})
    assert (tmp_path / "folder").is_dir()
    assert (tmp_path / "file").is_file()
    assert (tmp_path / "any").is_dir()


@pytest.mark.parametrize("kind", ["Directory", "File"])
def test_a_host_path_that_is_not_there_is_refused(tmp_path: Path, kind: str) -> None:
    with pytest.raises(VolumeError, match=f'volume "v": hostPath .* is not a {kind}'):
        host_path("v", {"path": str(tmp_path / "none"), "type": kind})


def test_mounts_carry_what_the_spec_says_of_them(tmp_path: Path) -> None:
    folders = PodFolders(tmp_path / "root")
    mount = {"name": "v", "mountPath": "/v", "readOnly": True, "mountPropagation": "HostToContainer"}
    pod = make_pod({"name": "app", "image": "i", "volumeMounts": [mount]}, volumes=[{"name": "v"}])
    found, message = folders.mounts(pod, pod["spec"]["containers"][0], 3, {})
    assert (found.container_path, found.readonly, found.propagation) == ("/v", True, pb.PROPAGATION_HOST_TO_CONTAINER)
    assert found.host_path == str(folders.volume(pod, {"name": "v", "emptyDir": {}}))
    assert message.container_path == "/dev/termination-log"
    assert Path(message.host_path).read_text() == ""


@pytest.mark.parametrize(
    ("mount", "words"),
    [
        ({"name": "w", "mountPath": "/w"}, 'cannot find volume "w" to mount into container "app"'),
        ({"name": "v", "mountPath": "/v", "subPath": "../.."}, "must not contain '..'"),
        ({"name": "v", "mountPath": "/v", "subPath": "/x"}, "must not be an absolute path"),
        ({"name": "v", "mountPath": "/v", "subPathExpr": "$(UP)/x"}, "must not contain '..'"),
        ({"name": "v", "mountPath": "/v", "subPathExpr": "$(ROOT)x"}, "must not be an absolute path"),
        ({"name": "v", "mountPath": "/v", "subPathExpr": "$(NONE)"}, 'missing value for "NONE"'),
        ({"name": "v", "mountPath": "/v", "subPath": "out"}, 'failed to prepare subPath for volumeMount "v"'),
        ({"name": "v", "mountPath": "/v", "subPath": "file/x"}, "failed to create subPath directory for volumeMount"),
    ],
)
def test_a_mount_that_cannot_be_is_refused(tmp_path: Path, mount: Json, words: str) -> None:
    pod = make_pod({"name": "app", "image": "i", "volumeMounts": [mount]}, volumes=[{"name": "v", "emptyDir": {}}])
    folders = PodFolders(tmp_path)
    folder = folders.volume(pod, pod["spec"]["volumes"][0])
    folder.mkdir(parents=True)
    (folder / "out").symlink_to(tmp_path)
    (folder / "file").touch()
    with pytest.raises(VolumeError, match=re.escape(words)):
        folders.mounts(pod, pod["spec"]["containers"][0], 0, {"UP": "..", "ROOT": "/"})


def test_a_part_of_a_volume_may_be_named_by_variables(tmp_path: Path) -> None:
    mount = {"name": "v", "mountPath": "relative", "subPathExpr": "$(POD)/logs"}
    pod = make_pod({"name": "app", "image": "i", "volumeMounts": [mount]}, volumes=[{"name": "v", "emptyDir": {}}])
    found, _ = PodFolders(tmp_path).mounts(pod, pod["spec"]["containers"][0], 0, {"POD": "web"})
    assert (found.container_path, found.host_path[-9:]) == ("/relative", "/web/logs")
    assert Path(found.host_path).is_dir()


def test_restart_counts_go_on_from_the_logs_where_the_runtime_has_forgotten_the_container(tmp_path: Path) -> None:
    folders, pod = PodFolders(tmp_path), make_pod()
    assert folders.next_log(pod, "app") == 0
    logs = folders.logs(pod) / "app"
    logs.mkdir(parents=True)
    assert folders.next_log(pod, "app") == 0
    for name in ("3.log", "10.log", "other.txt"):
        (logs / name).touch()
    assert folders.next_log(pod, "app") == 11
