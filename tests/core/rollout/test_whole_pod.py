"""Runs that restart whole pods: which pods are skipped, which count as restarted, and what a request says."""

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from crrd.core.api.pod import ContainerKind, PodContainer
from crrd.core.api.reasons import Reason
from crrd.core.api.time import rfc3339
from crrd.core.api.types import ACTIVE, ACTIVE_POD, LABEL_ACTIVE, RecreateState, RequestPhase, StatePhase
from crrd.core.api.v1alpha1 import parse_request
from crrd.core.config.objects import ConfigObject
from crrd.core.config.references import Kind, Reference, Use
from crrd.core.config.uses import OutOfReach, Unreached
from crrd.core.rollout.kinds import kind_of
from crrd.core.rollout.phases import Stage
from crrd.core.rollout.preview import make_preview, out_of_reach
from crrd.core.rollout.requests import read_run_request
from crrd.core.rollout.restart import FileActions, Files
from crrd.core.rollout.run import ANNOTATION_RUN, Run
from crrd.core.rollout.state import Member, NodeDaemon, World, read_member
from crrd.core.rollout.waits import Skip, WaitReason
from crrd.core.rollout.whole_pod import WholePod
from crrd.kubelet.restart_rules import RestartPolicy
from crrd.rollout.maker import was_admitted
from tests.support.rollouts import AFTER, BEFORE, NOW, START, asked, chosen, container, member, planned, run

INIT = container("setup", kind=ContainerKind.INIT, running=False, terminated=True)
SIDE = container("side", kind=ContainerKind.SIDECAR)
POD = (INIT, SIDE, container())
CONFIG = Reference(Kind.CONFIG_MAP, "web", Use.ENV_FROM)
FILE = Reference(Kind.CONFIG_MAP, "web", Use.VOLUME)
CHANGED = {CONFIG.object: ConfigObject(frozenset({"k"}), START + timedelta(seconds=20))}


def whole(**options: Any) -> Run:
    """Return a run that restarts whole pods."""
    return replace(run(), options=replace(run().options, containers=(), whole_pod=True, **options))


def only(pod: Member, of: Run | None = None, **world: Any) -> tuple[Stage, str, tuple[str, ...]]:
    """Return the stage of the only pod, what it waits for, and its containers."""
    (row,) = planned(World((pod,), **world), of or whole()).rows
    return row.stage, row.wait.reason, row.containers


def started(*names: str, pod: tuple[PodContainer, ...] = POD) -> Member:
    """Return a pod of which these containers have started since the run began."""
    return member(
        "web-0", *(replace(each, started_at=AFTER, restart_count=1) if each.name in names else each for each in pod)
    )


def test_all_containers_of_a_pod_restart_together() -> None:
    plan = planned(World((member("web-0", *POD), member("web-1", *POD))), whole())
    assert (chosen(plan), plan.rows[0].containers) == (["web-0"], ("side", "app")), "no init container is named"
    assert isinstance(kind_of(World(()), whole()), WholePod)


RESTART_ALL = ({"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]}},)
IN_THAT_SECOND = replace(container(), started_at=rfc3339(START), restart_count=1)
DEBUGGER = container("debug", kind=ContainerKind.EPHEMERAL, restart_policy=RestartPolicy.NEVER, running=False)
CASES: dict[str, tuple[Member, Skip | None]] = {
    "the run began in the second of the last start": (started(pod=(IN_THAT_SECOND,)), None),
    "each container has started again": (started("setup", "side", "app"), Skip.POD_RECENT),
    "a single container has restarted": (started("app"), None),
    "all but the init container have restarted": (started("side", "app"), None),
    "all of a pod without init containers have": (
        started("app", "side", pod=(SIDE, container())),
        Skip.POD_RECENT,
    ),
    "an ephemeral container never does": (started("app", pod=(container(), DEBUGGER)), Skip.POD_RECENT),
    "an ephemeral container may end": (member("web-0", container(), DEBUGGER), None),
    "another runtime": (member("web-0", SIDE, container(container_id="other://1")), Skip.OTHER_RUNTIME),
    "one crashes": (member("web-0", INIT, container(running=False, started_at="", waiting_reason="Crash")), None),
    "one has never started": (member("web-0", INIT, container(container_id="", running=False)), Skip.NOT_STARTED),
    "one of two has never started": (
        member("web-0", container("a"), container(container_id="", running=False)),
        Skip.NOT_STARTED,
    ),
    "one may end": (member("web-0", container(restart_policy=RestartPolicy.ON_FAILURE)), Skip.POD_WOULD_END),
    "one of two may end": (
        member("web-0", SIDE, container(restart_policy=RestartPolicy.NEVER)),
        Skip.POD_WOULD_END,
    ),
    "an init container ends by nature": (
        member("web-0", replace(INIT, own_restart_policy=RestartPolicy.ON_FAILURE), SIDE),
        None,
    ),
    "an init container that fails ends the pod": (
        member("web-0", replace(INIT, own_restart_policy=RestartPolicy.NEVER), SIDE),
        Skip.POD_WOULD_END,
    ),
    "the pod has Never, and its containers Always": (
        member("web-0", container(restart_policy=RestartPolicy.NEVER, own_restart_policy=RestartPolicy.ALWAYS)),
        Skip.POD_WOULD_END,
    ),
    "the rules of an init container restart it once more": (
        member("web-0", replace(INIT, container_id="", restart_rules=RESTART_ALL), SIDE),
        Skip.RESTARTS_TWICE,
    ),
    "it was restarted by the rules of an init container": (
        started("setup", "side", pod=(replace(INIT, restart_rules=RESTART_ALL), SIDE)),
        Skip.POD_RECENT,
    ),
    "a hook needs the pod's IP": (member("web-0", container(), replace(SIDE, hook_needs_ip=True)), Skip.HOOK_NEEDS_IP),
    "one that is done may end, too": (
        started("app", pod=(container(restart_policy=RestartPolicy.ON_FAILURE),)),
        Skip.POD_RECENT,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_pod_is_skipped_or_restarted_as_a_whole(case: str) -> None:
    pod, skip = CASES[case]
    stage, reason, names = only(pod)
    assert (stage, skip or reason) == (Stage.WAITING if skip is None else Stage.SKIPPED, reason)
    assert names == (tuple(pod.pod.recreatable) if skip is None else ())


@pytest.mark.parametrize(
    ("cause", "sentence"),
    [
        (container("b", restart_policy=RestartPolicy.NEVER), "of container b or of its pod is not Always"),
        (replace(INIT, restart_rules=RESTART_ALL), "restartPolicyRules of container setup may restart the whole pod a"),
    ],
)
def test_the_skip_names_the_container_that_is_its_cause(cause: PodContainer, sentence: str) -> None:
    (row,) = planned(World((member("web-0", container("a"), cause),)), whole()).rows
    assert sentence in row.wait.why


def test_pods_of_groups_and_on_the_hosts_network_are_skipped() -> None:
    pod = member("web-0", *POD)
    on_host, grouped = (
        replace(pod, pod=replace(pod.pod, host_network=host, group=group))
        for host, group in ((True, ""), (False, "LWS"))
    )
    assert only(on_host)[1] == Skip.HOST_NETWORK
    assert only(grouped)[1] == Skip.RESTARTS_GROUP
    assert only(grouped, whole(allow_pod_restart=True))[0] is Stage.WAITING


def request_of(of: Run, pod: Member, *phases: StatePhase) -> Any:
    """Return the run's request for a pod, whose containers have these phases."""
    names = tuple(pod.pod.recreatable)
    states = tuple(map(RecreateState, names, phases))
    named = asked(replace(of, options=replace(of.options, containers=names)), pod, states=states)
    final = all(each.final for each in phases)
    phase = RequestPhase.COMPLETED if final else RequestPhase.RECREATING
    status = replace(named.request.status, phase=phase, completion_time=AFTER if final else "")
    return replace(named, run=of, request=replace(named.request, status=status, whole_pod=True))


DONE, BUSY, FAILED = StatePhase.SUCCEEDED, StatePhase.RECREATING, StatePhase.FAILED


def back(*names: str) -> Member:
    pod = started("setup", *names)
    new = {
        name: replace(each, container_id=f"containerd://{name}-2") if name in names else each
        for name, each in pod.pod.containers.items()
    }
    return replace(pod, pod=replace(pod.pod, containers=new))


@pytest.mark.parametrize(
    ("pod", "phases", "stage"),
    [
        (back("side", "app"), (DONE, DONE), Stage.DONE),
        (back("side"), (DONE, BUSY), Stage.RECREATING),
        (back("side"), (DONE, DONE), Stage.SETTLING),  # the pod's status in the API is older
        (replace(back("side", "app"), ready=False), (DONE, DONE), Stage.SETTLING),
        (back("side"), (DONE, FAILED), Stage.FAILED),
    ],
)
def test_a_pod_is_done_once_all_containers_are_back(pod: Member, phases: tuple[StatePhase, ...], stage: Stage) -> None:
    assert only(pod, requests=(request_of(whole(), pod, *phases),))[0] is stage


@pytest.mark.parametrize("side", [DONE, FAILED])
def test_a_failed_pod_that_is_retried_restarts_as_a_whole(side: StatePhase) -> None:
    pod = back("side", "app")
    failed = request_of(whole(), pod, side, FAILED)
    stage, _, names = only(pod, requests=(failed,), retried=frozenset({failed.request.uid}))
    assert (stage, names) == (Stage.WAITING, ("side", "app"))


def test_a_pod_whose_node_was_down_is_done_if_it_has_restarted() -> None:
    pod = back("side", "app")
    lost = request_of(whole(), pod, FAILED, FAILED)
    reason = replace(lost.request.status, reason=Reason.NO_ANSWER)
    lost = replace(lost, request=replace(lost.request, status=reason))
    daemon = {"node-a": NodeDaemon("node-a", ready=True, since=NOW)}
    assert only(pod, requests=(lost,), daemons=daemon)[:2] == (Stage.SKIPPED, Skip.POD_RECENT)
    assert only(back("app"), requests=(lost,), daemons=daemon)[0] is Stage.WAITING, "a part of it was restarted"


# What a request says


def test_the_request_names_no_container_so_that_no_older_version_stops_them() -> None:
    body = whole().request("web-1", "uid-1", ("side", "app"))
    assert (body["spec"]["wholePod"], "containers" in body["spec"]) == (True, False)
    assert read_run_request(body) is not None
    pruned = {**body, "spec": {key: value for key, value in body["spec"].items() if key != "wholePod"}}
    pruned["metadata"] = {**body["metadata"], "uid": "uid-of-request"}
    assert parse_request(pruned).error == "spec.containers must name at least one container"


@pytest.mark.parametrize("changed", ["the request", "its run"])
def test_nobody_makes_it_a_plain_run_or_a_plain_one_to_this(changed: str) -> None:
    body = (whole() if changed == "the request" else run()).request("web-1", "uid-1", ("app",))
    options = json.loads(body["metadata"]["annotations"][ANNOTATION_RUN])
    options["options"] |= {"whole_pod": changed == "its run", "containers": ["app"]}
    body["metadata"]["annotations"][ANNOTATION_RUN] = json.dumps(options)
    assert read_run_request(body) is None
    assert whole().aim != run().aim


@pytest.mark.parametrize(("kind", "label", "fits"), [(True, ACTIVE_POD, True), (False, ACTIVE, False)])
def test_an_api_server_that_drops_the_field_is_noticed(kind: bool, label: str, *, fits: bool) -> None:
    body = run().request("web-1", "uid-1", ("app",)) | {"kind": "any"}
    body["spec"] |= {"wholePod": kind}
    body["metadata"]["labels"][LABEL_ACTIVE] = label
    assert was_admitted(whole(), parse_request(body)) is fits
    assert was_admitted(run(), parse_request(body)) is not fits


def test_everybody_is_told_that_whole_pods_restart() -> None:
    assert whole().purpose == "restarts all containers (whole pods) of deployment.apps/web"
    assert whole().describe(2) == "all containers (whole pods) of deployment.apps/web, 2 pods, at most 1 unready"


# Configuration of init containers


def with_config(*names: str, use: Reference = CONFIG, **changes: Any) -> Member:
    there = started(*names)
    return replace(there, config={"setup": (use,), "app": ()}, **changes)


def test_stale_init_containers_are_a_reason_to_restart() -> None:
    of = whole(stale=True)
    assert only(with_config(), of, config=CHANGED)[0] is Stage.WAITING
    assert only(with_config("setup"), of, config=CHANGED)[1] == Skip.POD_FRESH
    assert only(with_config(), of)[1] == Skip.POD_FRESH
    preview = make_preview(World((with_config(),), config=CHANGED), of, NOW)
    assert [(each.pod, each.container) for each in preview.stale] == [("web-0", "setup")]


def test_what_init_containers_use_is_in_reach() -> None:
    lost = [
        Unreached(name, "ConfigMap", "web", why)
        for name, why in (("setup", OutOfReach.INIT_CONTAINER), ("app", OutOfReach.CSI_DRIVER))
    ]
    world = World((replace(member("web-0", *POD), unreached=tuple(lost)),))
    assert out_of_reach(world, whole(stale=True)) == (lost[1],)
    assert out_of_reach(world, run(stale=True)) == tuple(lost)


CHANGE = ("ConfigMap web (data.*) 2026-01-01T12:00:20Z",)


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        (with_config(), None),
        (with_config("side", "app"), None),
        (replace(started(pod=(replace(INIT, name="first"), *POD)), config={"setup": (CONFIG,)}), None),
        (with_config("setup"), Skip.POD_FRESH),
        (with_config("setup", "side", "app"), Skip.POD_RECENT),
        (replace(with_config(), config={"app": (CONFIG,)}), Skip.POD_FRESH),  # only a regular container misses it
    ],
)
def test_a_run_for_changes_restarts_pods_whose_init_containers_miss_one(pod: Member, expected: Skip | None) -> None:
    stage, reason, _ = only(pod, whole(objects=CHANGE, since="2026-01-01T12:00:20Z"))
    assert (stage, expected or reason) == (Stage.WAITING if expected is None else Stage.SKIPPED, reason)


def test_files_of_init_containers_are_refreshed_before() -> None:
    of = whole(objects=("ConfigMap web () 2026-01-01T12:00:20Z",))
    world = World((with_config(use=FILE),), config=CHANGED, extra=Files())
    plan = planned(world, of)
    assert isinstance(plan.actions, FileActions)
    assert [row.pod for row, _ in plan.actions.due] == ["web-0"]


def test_an_object_that_an_init_container_needs_must_exist() -> None:
    world = World((with_config(),), config={CONFIG.object: None})
    assert only(with_config(), whole(preflight=True), config=world.config)[1] == WaitReason.CONFIG_MISSING
    without = replace(with_config(), config={})
    assert only(without, whole(preflight=True), config=world.config)[1] != WaitReason.CONFIG_MISSING


def test_the_start_of_an_init_container() -> None:
    ended = {"terminated": {"startedAt": AFTER, "finishedAt": AFTER}}
    removed = {"terminated": {"reason": "Completed", "startedAt": None}}
    for state, restarts, since, mounted in (
        (ended, 0, AFTER, BEFORE),
        (ended, 1, AFTER, None),
        (removed, 0, BEFORE, BEFORE),
        ({"waiting": {}}, 1, None, None),
    ):
        status: dict[str, Any] = {"name": "setup", "containerID": "c://1", "state": state, "restartCount": restarts}
        spec = {"initContainers": [{"name": "setup", "envFrom": [{"configMapRef": {"name": "web"}}]}]}
        obj = {"metadata": {"creationTimestamp": BEFORE}, "spec": spec, "status": {"initContainerStatuses": [status]}}
        found = read_member(obj, with_init=True)
        assert (_text(found.started("setup")), _text(found.mounted("setup"))) == (since, mounted), state
        assert (found.config, read_member(obj).config) == ({"setup": (CONFIG,)}, {})


def _text(moment: Any) -> str | None:
    return None if moment is None else moment.strftime("%Y-%m-%dT%H:%M:%SZ")
