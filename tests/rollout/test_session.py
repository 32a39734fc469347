"""A run that is begun, resumed and looked at, in the process of the test."""

import asyncio
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from crrd.cli.main import main
from crrd.cli.recreate import requested
from crrd.core.api.reasons import Reason
from crrd.core.api.time import rfc3339
from crrd.core.rollout.requests import read_run_request
from crrd.core.rollout.run import LABEL_RUN, Amount, Options
from crrd.kube.resources import CONFIG_MAPS, EVENTS, PODS, REQUESTS
from crrd.lib.errors import ConfigurationError
from crrd.lib.formats import read_format
from crrd.rollout.jsonlines import JsonLines
from crrd.rollout.target import split_targets
from crrd_localnode.api.admission import AdmissionRequest, User
from crrd_localnode.api.errors import Cause, forbidden, invalid
from tests.support.played_cluster import NAMESPACE, PlayedCluster, played
from tests.support.sessions import command, parsed, recreated


async def options(cluster: PlayedCluster) -> list[Options]:
    """Those that each request of the only run has, the oldest first."""
    marks = [read_run_request(request) for request in await cluster.requests()]
    return [mark.run.options for mark in marks if mark is not None]


LIMITS: list[tuple[tuple[str, ...], dict[str, Any]]] = [
    (("--max-unavailable", "3"), {"max_unavailable": Amount(3)}),
    (("--max-per-node", "0"), {"max_per_node": 0}),
    (("--max-per-zone", "2"), {"max_per_zone": 2}),
    (("--min-ready", "30s"), {"min_ready": 30}),
    (("--ordered",), {"ordered": True}),
    (("--unready-grace", "0"), {"unready_grace": 0}),
    (("--pod-timeout", "1m"), {"pod_timeout": 60}),
    (("--max-failures", "4"), {"max_failures": 4}),
    (("--force",), {"force": True}),
    (("--allow-pod-restart",), {"allow_pod_restart": True}),
    (("--preflight",), {"preflight": True}),
    (("--reason", "log level"), {"reason": "log level"}),
    (("--pull-resources", "cpu=1,memory=64Mi"), {"pull_resources": "cpu=1,memory=64Mi"}),
    ((), {}),
]


@pytest.mark.parametrize(("words", "changes"), LIMITS)
def test_every_limit_can_be_given_anew(words: tuple[str, ...], changes: dict[str, Any]) -> None:
    assert command("resume", "nightly", *words).changed_options == changes


def test_the_command_that_is_printed_keeps_what_no_request_records() -> None:
    words = ("--max-unavailable", "20%", "--min-ready", "30s", "--timeout", "60s", "--yes", "-o", "json")
    assert command("resume", "nightly", "-n", "shop", *words, "--retry-failed").resume_flags == (
        *("--timeout", "60s", "--yes", "--retry-failed"),
        *("-o", "json"),
    )
    assert command("deployment/web", "-c", "app", "--partition", "1", "--run", "mine").resume_flags == ()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("resume", "a", "--since", "2h"), "unknown arguments: --since 2h; `crrd recreate resume --help` lists "),
        (("resume", "a", "--partition", "2"), "unknown arguments: --partition 2; "),
        (("resume", "a", "--run", "b"), "unknown arguments: --run b; "),
        (("resume", "a", "--stale"), "unknown arguments: --stale; "),
        (("resume", "a", "-c", "app"), "unknown arguments: -c app; "),
        (("status", "a", "--max-unavailable", "2"), "unknown arguments: --max-unavailable 2; "),
        (("abort", "a", "--yes"), "unknown arguments: --yes; `crrd recreate abort --help` lists "),
        (("abort", "a", "-l", "app=web"), "unknown arguments: -l app=web; "),
        (("status", "-l", "app=web"), "unknown arguments: -l; `crrd recreate status --help` lists "),
        (("deployment/a", "-c", "app", "-w"), "unknown arguments: -w; `crrd recreate --help` lists "),
        (("deployment/a", "-c", "app", "--max-un", "2"), "unknown arguments: --max-un; "),
        (
            ("deployment/a", "pod/b", "-c", "app", "--run", "c"),
            "--run can be used with only one TYPE/NAME, because each TYPE/NAME gets its own run",
        ),
        (("status", "-w"), "--watch needs the name of one run"),
        (("deployment/a", "-c", "app", "--retry-failed"), "--retry-failed needs resume RUN or --run NAME"),
    ],
)
def test_a_flag_that_would_change_nothing_is_refused(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["recreate", *words])
    err = capsys.readouterr().err
    assert (ended.value.code, err.startswith(f"crrd recreate: {said}"), len(err.splitlines())) == (2, True, 1), err


@pytest.mark.parametrize(
    ("words", "targets"),
    [
        (("deployment/web", "-c", "app"), ("deployment/web",)),
        (("-c", "app", "deployment/web"), ("deployment/web",)),
        (("deployment", "web", "-c", "app", "api"), ("deployment", "web", "api")),
        (("deployment/web", "status", "-c", "app"), ("deployment/web", "status")),
        (("deployment/status", "-c", "resume"), ("deployment/status",)),
        (("-c", "resume", "pod/a"), ("pod/a",)),
        (("-n", "status", "pod/a", "-c", "app"), ("pod/a",)),
        (("--reason", "abort", "pod/a", "-c", "app"), ("pod/a",)),
    ],
)
def test_a_target_is_no_verb_and_may_be_anywhere(words: tuple[str, ...], targets: tuple[str, ...]) -> None:
    args = parsed(*words)
    assert (args.verb, requested(args).targets) == ("", targets)


@pytest.mark.parametrize(
    "words",
    [
        ("status", "web", "-w", "-n", "shop"),
        ("status", "-w", "web", "-n", "shop"),
        ("-n", "shop", "status", "-w", "web"),
        ("-n=shop", "-w", "status", "web"),
    ],
)
def test_a_verb_may_come_after_flags(words: tuple[str, ...]) -> None:
    args = parsed(*words)
    assert (args.verb, args.run_name, args.watch, args.namespace) == ("status", "web", True, "shop")


async def test_limits_that_are_given_on_resume_hold_for_the_run(cluster: PlayedCluster) -> None:
    await cluster.workload("Deployment", "web", 4, "app")
    assert await recreated(cluster, "deployment/web", "-c", "app", "--run", "nightly", "--partition", "1") == 0
    cluster.goes_on.clear()
    resumed = asyncio.create_task(recreated(cluster, "resume", "nightly", "--yes", "--max-unavailable", "3"))
    async with asyncio.timeout(10):
        while len(cluster.stops) < 4:  # three at once, and none of them is ready
            await asyncio.sleep(0.01)
    cluster.goes_on.set()
    assert await resumed == 0
    assert {each.max_unavailable for each in await options(cluster)} == {Amount(3)}


async def test_another_process_changes_the_limits_of_one_that_runs(
    cluster: PlayedCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    await cluster.workload("Deployment", "web", 3, "app")
    cluster.goes_on.clear()
    running = asyncio.create_task(recreated(cluster, "deployment/web", "-c", "app", "--run", "nightly"))
    async with asyncio.timeout(10):
        while not cluster.stops:
            await asyncio.sleep(0.01)
        other = asyncio.create_task(recreated(cluster, "resume", "nightly", "--max-unavailable", "3"))
        while len(cluster.stops) < 3:
            await asyncio.sleep(0.01)
        other.cancel()
        await asyncio.gather(other, return_exceptions=True)
    cluster.goes_on.set()
    assert await running == 0
    said = "another process has changed the options of this run; using the new options\n"
    assert capsys.readouterr().out.count(said) == 1


async def test_a_run_that_may_go_on_after_a_failure_has_failed(
    cluster: PlayedCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = await cluster.workload("Deployment", "web", 2, "app")
    cluster.fails[first] = ("StillRuns", "it still runs")
    assert await recreated(cluster, "deployment/web", "-c", "app", "--run", "nightly", "--max-failures", "2") == 1
    assert cluster.stops == [(second, "app")]
    again = "crrd recreate resume nightly -n default --retry-failed"
    assert f"failed: 1 of 2 pods recreated, 1 failed; after fixing the cause, to continue: {again} (after " in (
        capsys.readouterr().out
    )
    assert await recreated(cluster, "status", "nightly") == 0
    assert "\nfailed (Over): 1 of 2 pods recreated, 1 failed; " in capsys.readouterr().out


async def test_a_failure_is_explained_in_json_too(cluster: PlayedCluster, capsys: pytest.CaptureFixture[str]) -> None:
    (pod,) = await cluster.workload("Deployment", "web", 1, "app")
    cluster.fails[pod] = ("StillRuns", "it still runs")
    assert await recreated(cluster, "deployment/web", "-c", "app", display=JsonLines(cluster.api.now)) == 1
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    (message,) = [line for line in lines if line["event"] == "message"]
    assert (message["message"], message["details"]) == (f"{pod} failed: app: it still runs", ["explained"])
    assert lines[-1]["event"] == "end"


async def test_pods_that_failed_are_restarted_again_on_demand(
    cluster: PlayedCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = await cluster.workload("Deployment", "web", 2, "app")
    cluster.fails[first] = ("StillRuns", "it still runs")
    assert await recreated(cluster, "deployment/web", "-c", "app", "--run", "nightly") == 1
    again = "after fixing the cause, to continue: crrd recreate resume nightly -n default --retry-failed (after "
    assert again in capsys.readouterr().out
    cluster.fails.clear()
    assert await recreated(cluster, "resume", "nightly", "--retry-failed", "--dry-run") == 0
    assert capsys.readouterr().out == f"batch 1: {first} (node-a)\nbatch 2: {second} (node-a)\n"
    assert cluster.stops == []
    assert await recreated(cluster, "resume", "nightly") == 1, "a run that has failed goes no further by itself"
    assert await recreated(cluster, "resume", "nightly", "--retry-failed") == 0
    assert cluster.stops == [(first, "app"), (second, "app")]


async def not_ready_in_time(cluster: PlayedCluster, name: str) -> None:
    """Begin a run that restarts a pod, which does not get ready; its request ends by its deadline."""
    cluster.goes_on.clear()
    running = asyncio.create_task(recreated(cluster, "deployment/web", "-c", "app", "--run", name))
    async with asyncio.timeout(10):
        while not cluster.stops:
            await asyncio.sleep(0.01)
        (request,) = await cluster.requests()
        state = {"name": "app", "phase": "Failed", "reason": Reason.DEADLINE.value, "message": "it has passed"}
        status = {"phase": "Completed", "completionTime": request["metadata"]["creationTimestamp"]}
        body = {"status": {**status, "containerRecreateStates": [state]}}
        await cluster.client.merge_patch(REQUESTS, NAMESPACE, request["metadata"]["name"], body, subresource="status")
        assert await running == 1
    await cluster.end()
    cluster.goes_on.set()


async def test_a_pod_that_was_restarted_and_never_got_ready_is_restarted_again(
    cluster: PlayedCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = await cluster.workload("Deployment", "web", 2, "app")
    await not_ready_in_time(cluster, "nightly")
    (before,) = await cluster.requests()
    assert await recreated(cluster, "resume", "nightly", "--retry-failed", "--dry-run=server") == 0
    assert capsys.readouterr().out.endswith(f"batch 1: {first} (node-a)\nbatch 2: {second} (node-a)\n")
    assert await recreated(cluster, "resume", "nightly", "--retry-failed") == 0
    assert cluster.stops == [(first, "app"), (first, "app"), (second, "app")]
    assert before["metadata"]["uid"] in {each["metadata"]["uid"] for each in await cluster.requests()}, "it is kept"


async def test_a_pod_that_failed_after_the_first_part_is_restarted_again(cluster: PlayedCluster) -> None:
    first, second, third = await cluster.workload("Deployment", "web", 3, "app")
    assert await recreated(cluster, "deployment/web", "-c", "app", "--run", "nightly", "--partition", "1") == 0
    cluster.fails[second] = ("StillRuns", "it still runs")
    assert await recreated(cluster, "resume", "nightly", "--yes") == 1
    cluster.fails.clear()
    assert await recreated(cluster, "resume", "nightly", "--retry-failed") == 0
    assert cluster.stops == [(pod, "app") for pod in (first, second, third)]


async def events(cluster: PlayedCluster) -> dict[str, str]:
    """The message of each event, by reason."""
    listing = await cluster.client.list_all(EVENTS, dict, namespace=NAMESPACE)
    return {each["reason"]: f"{each['type']}: {each['message']}" for each in listing.items}


async def test_a_deadline_is_a_failure(cluster: PlayedCluster) -> None:
    (pod,) = await cluster.workload("Deployment", "web", 1, "app")
    cluster.fails[pod] = (Reason.DEADLINE, "activeDeadlineSeconds (600s) has passed")
    assert await recreated(cluster, "deployment/web", "-c", "app") == 1


async def test_a_time_out_and_an_interrupt_are_events_too(cluster: PlayedCluster) -> None:
    await cluster.workload("Deployment", "web", 2, "app")
    await cluster.budget("strict", {"app": "web"}, 0)
    words = ("deployment/web", "-c", "app", "--run", "nightly")
    assert await recreated(cluster, *words, "--timeout", "1s") == 3
    asks = "PodDisruptionBudget strict allows no disruption now (kubectl describe pdb strict -n default)"
    said = f"run nightly: 0 of 2 pods recreated; last waited for: {asks}; no pod was restarted"
    assert (await events(cluster))["ContainersRecreateTimedOut"] == f"Warning: {said}"
    running = asyncio.create_task(recreated(cluster, *words, "--run", "weekly"))
    async with asyncio.timeout(20):
        while "run weekly" not in (await events(cluster))["ContainersRecreating"]:
            await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    said = "Normal: run weekly: 0 of 2 pods recreated; no pod was restarted"
    assert (await events(cluster))["ContainersRecreateInterrupted"] == said


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize(("verb", "resource"), [("create", REQUESTS.plural), ("get", "pods")])
async def test_a_right_that_is_lost_in_the_middle_ends_the_run_with_a_way_to_go_on(
    tmp_path: Path, verb: str, resource: str, status: int
) -> None:
    async with played(tmp_path, tokens={"r": User("ann")}) as cluster:
        cluster.api.kubeconfig(cluster.kubeconfig, token="r")
        await cluster.workload("Deployment", "web", 2, "app")
        await cluster.workload("Deployment", "api", 1, "app")
        cluster.goes_on.clear()
        running = asyncio.create_task(cluster.recreate("deploy/web", "deploy/api", "-c", "app", "-o", "json"))
        async with asyncio.timeout(60):
            while not cluster.stops:
                await asyncio.sleep(0.01)
        lost = verb, resource, "ann"
        cluster.api.fail_next(10**6, status=status, match=lambda call: (call.verb, call.resource, call.user) == lost)
        cluster.goes_on.set()
        code, out, err = await running
        cluster.api.clear_faults()
        *_, end, rest = [json.loads(line) for line in out.splitlines()]
        (name,) = {each["metadata"]["labels"][LABEL_RUN] for each in await cluster.requests()}
        assert (code, end["event"], end["outcome"], end["pods"]["done"]) == (2, "end", "stopped", 1)
        cause, again = end["message"].split("; after fixing the cause, to continue: ")
        assert cause.startswith("1 of 2 pods recreated; ")
        assert err.removeprefix("crrd recreate: ").strip() in cause
        assert again == f"crrd recreate resume {name} -n default -o json"
        assert rest["message"] == "not started: deployment.apps/api"
        event = (await events(cluster))["ContainersRecreateStopped"]
        assert event.startswith(f"Warning: run {name}: 1 of 2 pods recreated; ")
        assert (await cluster.recreate("resume", name)).code == 0
        assert len(cluster.stops) == 2


async def test_a_quota_is_no_missing_right(cluster: PlayedCluster, capsys: pytest.CaptureFixture[str]) -> None:
    """Quotas, policy engines and a namespace that is being deleted answer with 403, too."""

    async def quota(asked: AdmissionRequest) -> None:
        if asked.kind.plural == REQUESTS.plural and asked.new is not None and asked.new["spec"]["podName"] == second:
            raise forbidden(asked.kind.group, asked.kind.plural, asked.name, "exceeded quota: requests")

    first, second = await cluster.workload("Deployment", "web", 2, "app")
    cluster.api.admission.validating.append(quota)
    assert await recreated(cluster, "deployment/web", "-c", "app", "--run", "nightly") == 1
    assert cluster.stops == [(first, "app")]
    out = capsys.readouterr().out
    assert "exceeded quota: requests" in out
    again = "after fixing the cause, to continue: crrd recreate resume nightly -n default --retry-failed (after "
    assert f"\nfailed: 1 of 2 pods recreated, 1 failed; {again}" in out
    assert "exceeded quota: requests" in (await events(cluster))["ContainersRecreateFailed"]


async def test_a_blocked_dry_run_shows_its_batches_and_what_blocks(
    cluster: PlayedCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = await cluster.workload("Deployment", "web", 2, "app")
    await cluster.budget("strict", {"app": "web"}, 0)
    assert await recreated(cluster, "deployment/web", "-c", "app", "--dry-run") == 0
    assert capsys.readouterr().out.splitlines() == [
        "then waits: PodDisruptionBudget strict allows no disruption now (kubectl describe pdb strict -n default)",
        f"batch 1: {first} (node-a)",
        f"batch 2: {second} (node-a)",
    ]


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        ((), ""),
        (("--dry-run",), "client"),
        (("--dry-run=client",), "client"),
        (("--dry-run=server",), "server"),
        (("--dry-run=none",), ""),
        (("--dry-run", "--dry-run=none"), ""),
        (("--dry-run=none", "--dry-run"), "client"),
        (("--dry-run=true",), "client"),
        (("--dry-run=false",), ""),
        (("--dry-run", "-c", "app"), "client"),
    ],
)
def test_dry_runs_as_kubectl_has_them(words: tuple[str, ...], asked: str) -> None:
    found = command(*words, "deployment/web", "-c", "app")
    assert (found.dry_run, found.targets) == (asked, ("deployment/web",))


async def test_a_run_that_is_done_does_not_block_the_next_one(
    cluster: PlayedCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """It has skipped a pod whose node had no daemon for a moment."""
    labels = {"app.kubernetes.io/name": "crrd", "app.kubernetes.io/component": "node"}
    await cluster.pod("crrd-node-1", labels)
    await cluster.pod("web-1", {"app": "web"})
    await cluster.pod("web-2", {"app": "web"}, node="node-z")
    words = ("-l", "app=web", "-c", "app")
    assert await recreated(cluster, *words, "--run", "nightly") == 0
    await cluster.pod("crrd-node-2", labels, node="node-z")
    capsys.readouterr()
    for shown in ("status",), ("status", "nightly"):
        assert await recreated(cluster, *shown) == 0
        assert "done" in capsys.readouterr().out
    assert await recreated(cluster, *words, "--since", "2h") == 0
    assert cluster.stops == [("web-1", "app"), ("web-2", "app")]


async def test_a_run_on_stale_containers_does_not_block_the_next_one(tmp_path: Path) -> None:
    ahead = timedelta(0)
    async with played(tmp_path, clock=lambda: datetime.now(UTC) + ahead) as cluster:
        body = {"metadata": {"name": "web"}, "data": {"LOG": "info"}}
        await cluster.client.create(CONFIG_MAPS, NAMESPACE, body)
        first, second = await cluster.workload(
            "Deployment", "web", 2, "app", envFrom=[{"configMapRef": {"name": "web"}}]
        )
        ahead += timedelta(minutes=1)
        fresh = await cluster.client.get(PODS, NAMESPACE, second)
        await cluster.run(dict(fresh), started=rfc3339(cluster.api.now()))
        ahead += timedelta(minutes=1)
        assert (await cluster.recreate("deployment/web", "--stale")).code == 0
        ahead += timedelta(minutes=1)
        await cluster.client.merge_patch(CONFIG_MAPS, NAMESPACE, "web", {"data": {"LOG": "debug"}})
        ahead += timedelta(minutes=1)
        assert (await cluster.recreate("deployment/web", "--stale")).code == 0
        assert sorted(cluster.stops) == sorted([(first, "app"), (first, "app"), (second, "app")])


async def test_several_targets_go_one_after_the_other(
    cluster: PlayedCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    web = await cluster.workload("Deployment", "web", 2, "app")
    api = await cluster.workload("Deployment", "api", 1, "app")
    flags = ("-c", "app", "--dry-run")
    assert await recreated(cluster, "deploy", "api", "web", *flags) == 0
    dry = [f"batch 1: {api[0]} (node-a)", f"batch 1: {web[0]} (node-a)", f"batch 2: {web[1]} (node-a)"]
    shown = capsys.readouterr().out.splitlines()
    assert shown == ["deployment.apps/api:", dry[0], "deployment.apps/web:", *dry[1:]]
    several_names = "deploy/api", "deploy/web", "deploy/api", "deployments.apps/web", "deployment/api"
    assert await recreated(cluster, *several_names, "-c", "app") == 0
    assert cluster.stops == [(pod, "app") for pod in (*api, *web)]
    out = capsys.readouterr().out
    assert "done: 1 of 1 pods recreated" in out
    assert "done: 2 of 2 pods recreated" in out


async def test_what_cannot_be_of_several_targets_is_told_before_any_begins(cluster: PlayedCluster) -> None:
    await cluster.workload("Deployment", "web", 1, "app")
    await cluster.workload("Deployment", "api", 1, "side")
    for words, said in (
        (("deploy/web", "deploy/nope"), 'deployment.apps "nope" not found in namespace "default"'),
        (("deploy/web", "deploy/api"), "deployment.apps/api has no container 'app'; it has side"),
        (("deploy/web", "pod/nope"), 'pod "nope" not found in namespace "default"'),
        (("deploy/web", "api"), "'api' is not a workload or pod"),
    ):
        with pytest.raises(ConfigurationError) as error:
            await recreated(cluster, *words, "-c", "app")
        assert str(error.value).startswith(said)
    assert cluster.stops == []


async def test_a_target_that_fails_is_the_last(cluster: PlayedCluster, capsys: pytest.CaptureFixture[str]) -> None:
    (first,) = await cluster.workload("Deployment", "web", 1, "app")
    await cluster.workload("Deployment", "api", 1, "app")
    await cluster.workload("Deployment", "db", 1, "app")
    cluster.fails[first] = ("StillRuns", "it still runs")
    assert await recreated(cluster, "deploy/web", "deploy/api", "deploy/db", "-c", "app") == 1
    assert cluster.stops == []
    assert capsys.readouterr().out.splitlines()[-1] == "not started: deployment.apps/api, deployment.apps/db"


async def test_a_target_whose_rest_has_to_be_confirmed_is_the_last(
    cluster: PlayedCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    first, _ = await cluster.workload("Deployment", "web", 2, "app")
    await cluster.workload("Deployment", "api", 2, "app")
    words = ("deploy/web", "deploy/api", "-c", "app", "--partition", "1")
    assert await recreated(cluster, *words) == 0
    assert cluster.stops == [(first, "app")]
    assert capsys.readouterr().out.splitlines()[-1] == "not started: deployment.apps/api"


async def test_a_target_with_nothing_to_do_has_a_name_of_its_own(
    cluster: PlayedCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    body = {"metadata": {"name": "web"}, "data": {"LOG": "info"}}
    await cluster.client.create(CONFIG_MAPS, NAMESPACE, body)
    await cluster.workload("Deployment", "web", 1, "app", envFrom=[{"configMapRef": {"name": "web"}}])
    await cluster.workload("Deployment", "api", 1, "app")
    words = ("deploy/web", "deploy/api", "--stale", "-o", "json")
    assert await recreated(cluster, *words, display=JsonLines(cluster.api.now)) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    begun, ended = ([line["run"] for line in lines if line["event"] == event] for event in ("begin", "end"))
    assert begun == ended
    assert [name.rpartition("-")[0] for name in ended] == ["web", "api"]


@pytest.mark.parametrize("dry_run", [(), ("--dry-run",)])
async def test_what_a_restart_in_place_does_not_bring_is_shown(
    cluster: PlayedCluster, capsys: pytest.CaptureFixture[str], dry_run: tuple[str, ...]
) -> None:
    csi = {"driver": "secrets-store.csi.k8s.io", "volumeAttributes": {"secretProviderClass": "vault"}}
    mounts = [{"name": "vault", "mountPath": "/vault"}]
    containers, volumes = [{"name": "app", "image": "i", "volumeMounts": mounts}], [{"name": "vault", "csi": csi}]
    spec = {"containers": containers, "volumes": volumes, "nodeName": "node-a"}
    await cluster.run(dict(await cluster.client.create(PODS, NAMESPACE, {"metadata": {"name": "web"}, "spec": spec})))
    assert await recreated(cluster, "pod/web", "--stale", *dry_run) == 0
    out = capsys.readouterr().out
    assert out.count("not covered by --stale: SecretProviderClass vault of container app: the CSI driver") == 1


async def test_a_dry_run_by_the_server_asks_admission(
    cluster: PlayedCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = await cluster.workload("Deployment", "web", 2, "app")
    words = ("deployment/web", "-c", "app", "--dry-run=server")
    assert await recreated(cluster, *words) == 0
    batches = f"batch 1: {first} (node-a)\nbatch 2: {second} (node-a)\n"
    assert capsys.readouterr().out == batches

    async def refuse(asked: AdmissionRequest) -> None:
        if asked.new is not None and dict(asked.new).get("spec", {}).get("podName") == second:
            assert asked.dry_run
            raise invalid(asked.kind.group, asked.kind.kind, asked.name, [Cause("spec", "not on a Friday")])

    cluster.api.admission.validating.append(refuse)
    assert await recreated(cluster, *words) == 1
    out = capsys.readouterr().out
    assert out.startswith(f"{batches}{second}: the API server would reject the request: create ")
    assert out.endswith("not on a Friday (422)\n")
    assert await cluster.requests() == []


async def previewed(cluster: PlayedCluster, capsys: pytest.CaptureFixture[str], *words: str, form: str = "json") -> str:
    """What a dry run prints for programs."""
    capsys.readouterr()
    several = len(split_targets(command(*words, "--dry-run").targets)) > 1
    display = JsonLines(cluster.api.now, shape=read_format(form), dry_run=True, of_several=several)
    assert await recreated(cluster, *words, "--dry-run", display=display) == 0
    return capsys.readouterr().out


async def test_a_dry_run_is_one_document(cluster: PlayedCluster, capsys: pytest.CaptureFixture[str]) -> None:
    (web,) = await cluster.workload("Deployment", "web", 1, "app")
    (api,) = await cluster.workload("Deployment", "api", 1, "app")
    await cluster.workload("Deployment", "zero", 0, "app")
    found = json.loads(await previewed(cluster, capsys, "deployment/web", "-c", "app"))
    assert (found["target"], found["batches"][0][0]["pod"], found["notes"]) == ("deployment.apps/web", web, [])
    several = "deployment", "web", "zero", "api", "-c", "app"
    for form in ("json", "yaml"):
        each = yaml.safe_load(await previewed(cluster, capsys, *several, form=form))
        assert [one["target"] for one in each] == ["deployment.apps/web", "deployment.apps/zero", "deployment.apps/api"]
        assert [[row["pod"] for batch in one["batches"] for row in batch] for one in each] == [[web], [], [api]]
    assert await previewed(cluster, capsys, *several, form="jsonpath={[*].target}") == (
        "deployment.apps/web deployment.apps/zero deployment.apps/api\n"
    )


@pytest.mark.parametrize("words", [("deployment/web", "--stale"), ("--stale",), ("deployment/zero", "-c", "app")])
async def test_a_dry_run_that_finds_nothing_is_a_document_too(
    cluster: PlayedCluster, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    await cluster.workload("Deployment", "web", 1, "app")
    await cluster.workload("Deployment", "zero", 0, "app")
    assert json.loads(await previewed(cluster, capsys, *words))["batches"] == []
    assert await previewed(cluster, capsys, *words, form="jsonpath={.batches[*][*].pod}") == ""


async def test_the_formats_for_programs(cluster: PlayedCluster, capsys: pytest.CaptureFixture[str]) -> None:
    """As with kubectl. Names are those of objects, and of runs where there is no object."""
    first, second = await cluster.workload("Deployment", "web", 2)
    words = ("deployment/web", "-c", "app", "--max-unavailable", "2")

    async def printed(given: str, *words: str) -> str:
        capsys.readouterr()
        display = JsonLines(cluster.api.now, shape=read_format(given), dry_run="--dry-run" in words)
        assert await recreated(cluster, *words, display=display) == 0
        return capsys.readouterr().out

    assert set((await printed("name", *words, "--dry-run")).splitlines()) == {f"pod/{first}", f"pod/{second}"}
    names = (await printed("name", *words)).splitlines()
    requests = {f"{REQUESTS.full_name}/{each['metadata']['name']}" for each in await cluster.requests()}
    assert (len(names), set(names)) == (2, requests), "each once"
    (run,) = (await printed("name", "status")).splitlines()
    assert set((await printed("name", "status", run)).splitlines()) == requests
    assert yaml.safe_load(await printed("yaml", "status", run))["run"] == run
    assert await printed("jsonpath={[*].state}", "status") == "done\n"
    events = list(yaml.safe_load_all(await printed("yaml", *words)))
    assert [events[0]["event"], events[-1]["event"]] == ["begin", "end"]
    outcome = "jsonpath={.outcome}"
    assert await printed(outcome, *words) == "done\n"
