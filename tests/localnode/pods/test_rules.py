"""The local kubelet does what kubelet's rules say, also the newer ones: restart rules, and a container's own policy."""

from cri_stubs import api_pb2 as pb
from tests.support.cluster import (
    WAITING_SCRIPT,
    Cluster,
    Json,
    container,
    container_id,
    container_status,
    pod_ready,
    restart_count,
    restarted,
)


def once(code: int) -> str:
    """Ends with this code the first time and stays the second time."""
    return f"test -e /shared/again && {{ {WAITING_SCRIPT}; }}; touch /shared/again; exit {code}"


def rule(action: str, *codes: int) -> list[Json]:
    return [{"action": action, "exitCodes": {"operator": "In", "values": [*codes]}}]


async def test_a_container_s_own_policy_restarts_it_in_a_pod_that_is_never_restarted(cluster: Cluster) -> None:
    own = container("app", once(1), restartPolicy="Always")
    await cluster.create_pod("web", [own, container("done", "exit 0")], restartPolicy="Never")
    pod = await cluster.wait_pod("web", restarted("app"), "restarted")
    assert pod["status"]["phase"] == "Running"
    assert restart_count(pod, "done") == 0


async def test_a_rule_restarts_a_container_for_its_exit_code_alone(cluster: Cluster) -> None:
    ruled = container("app", once(42), restartPolicy="Never", restartPolicyRules=rule("Restart", 42))
    other = container("other", "exit 1", restartPolicy="Never", restartPolicyRules=rule("Restart", 42))
    await cluster.create_pod("web", [ruled, other])
    pod = await cluster.wait_pod("web", restarted("app"), "restarted")
    assert (pod["status"]["phase"], restart_count(pod, "other")) == ("Running", 0)


async def test_a_rule_that_restarts_all_containers_begins_the_pod_anew_in_its_sandbox(cluster: Cluster) -> None:
    wait = "while ! test -e /shared/go; do sleep 0.05; done"
    ruled = container(
        "app", f"{wait}; {once(42)}", restartPolicy="Never", restartPolicyRules=rule("RestartAllContainers", 42)
    )
    init = container("init", "echo >> /shared/init")
    before = await cluster.run_pod("web", [ruled, container("side")], init_containers=[init])
    sandboxes = await cluster.sandboxes(before)
    (cluster.shared("web") / "go").touch()
    after = await cluster.wait_pod(
        "web", lambda pod: restarted("app")(pod) and restarted("side")(pod) and pod_ready(pod), "all restarted"
    )
    assert cluster.read("web", "init") == "\n\n"
    assert [each.id for each in await cluster.sandboxes(after)] == [each.id for each in sandboxes]
    assert [restart_count(after, name) for name in ("app", "side")] == [1, 1]
    assert len(await cluster.instances(after, "side")) == 1, "the old instance was removed"


async def test_a_new_sandbox_forgets_how_the_init_containers_ended(cluster: Cluster) -> None:
    init = [container("first", "echo first >> /shared/log"), container("second", "echo second >> /shared/log")]
    before = await cluster.run_pod("web", [container("app")], init_containers=init)
    await cluster.cri.StopPodSandbox(pb.StopPodSandboxRequest(pod_sandbox_id=(await cluster.sandboxes(before))[0].id))
    after = await cluster.wait_pod("web", lambda pod: restarted("app")(pod) and pod_ready(pod), "restarted")
    await cluster.wait_words("web", "log", "first", "second", "first", "second")
    assert len(await cluster.instances(after, "first")) == 1


async def test_an_init_container_that_nothing_is_known_of_runs_again_after_the_only_container_ended(
    cluster: Cluster,
) -> None:
    init = container("init", "echo init >> /shared/log")
    before = await cluster.run_pod("web", [container("app")], init_containers=[init])
    await cluster.cri.RemoveContainer(
        pb.RemoveContainerRequest(container_id=(await cluster.instances(before, "init"))[0].id)
    )
    await cluster.stop(container_id(before, "app"))
    after = await cluster.wait_pod("web", lambda pod: restarted("app")(pod) and pod_ready(pod), "restarted")
    await cluster.wait_words("web", "log", "init", "init")
    assert container_status(after, "init")["state"]["terminated"]["exitCode"] == 0


async def test_an_init_container_that_cannot_be_started_holds_back_what_comes_after_it(cluster: Cluster) -> None:
    init = container("init", "true", image="local/absent:1", imagePullPolicy="Never")
    await cluster.create_pod("web", [container("app")], init_containers=[init])
    pod = await cluster.wait_pod(
        "web",
        lambda pod: "ErrImageNeverPull" in str(container_status(pod, "init").get("state")),
        "the init container waits",
    )
    assert container_status(pod, "app")["state"] == {"waiting": {"reason": "PodInitializing"}}
