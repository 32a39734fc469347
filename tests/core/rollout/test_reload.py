"""Runs whose containers reload: which pods are skipped, when a pod is done, and what a request says."""

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from crrd.core.api.reasons import Reason
from crrd.core.api.time import rfc3339
from crrd.core.api.types import (
    ACTIVE,
    ACTIVE_RELOAD,
    ANNOTATION_REFRESH,
    LABEL_ACTIVE,
    Action,
    RecreateState,
    RequestPhase,
    StatePhase,
    Strategy,
)
from crrd.core.api.v1alpha1 import parse_request
from crrd.core.config.parts import Part, PartChange
from crrd.core.config.references import Kind, Reference, Use
from crrd.core.rollout.kinds import kind_of
from crrd.core.rollout.phases import End, Stage
from crrd.core.rollout.reload import Reload
from crrd.core.rollout.requests import RunRequest, read_run_request
from crrd.core.rollout.restart import FileActions, FileRefresh, Files
from crrd.core.rollout.run import ANNOTATION_RUN, Run
from crrd.core.rollout.state import Member, NodeDaemon, World
from crrd.core.rollout.waits import Skip
from crrd.kubelet.restart_rules import RestartPolicy
from crrd.rollout.maker import was_admitted
from tests.support.rollouts import AFTER, NOW, asked, chosen, container, member, planned, run

HUP = '{"signal": "HUP"}'
APP = container(reload=HUP)


def reload(*containers: str, **options: Any) -> Run:
    """Return a run that has containers reload."""
    return replace(run(), options=replace(run().options, containers=containers, reload=True, **options))


def only(pod: Member, of: Run | None = None, **world: Any) -> tuple[Stage, str, tuple[str, ...]]:
    """Return the stage of the only pod, what it waits for, and its containers."""
    (row,) = planned(World((pod,), **world), of or reload()).rows
    return row.stage, row.wait.reason, row.containers


CASES: dict[str, tuple[Member, Skip | None]] = {
    "it declares how": (member("web-0", APP), None),
    "one of two does": (member("web-0", APP, container("side")), None),
    "none does": (member("web-0", container()), Skip.CANNOT_RELOAD),
    "its declaration is invalid": (member("web-0", container(reload="{}")), Skip.CANNOT_RELOAD),
    "it does not run": (member("web-0", replace(APP, running=False)), Skip.NOT_RUNNING),
    "it has started since": (member("web-0", replace(APP, started_at=AFTER)), Skip.RECENT),
    "it may end": (member("web-0", replace(APP, restart_policy=RestartPolicy.NEVER)), None),
}


@pytest.mark.parametrize("case", CASES)
def test_a_pod_is_skipped_or_reloads(case: str) -> None:
    pod, skip = CASES[case]
    stage, reason, names = only(pod)
    assert (stage, skip or reason) == (Stage.WAITING if skip is None else Stage.SKIPPED, reason)
    assert names == (("app",) if skip is None else ())
    assert isinstance(kind_of(World(()), reload()), Reload)


def test_a_container_that_is_named_must_declare_it() -> None:
    pod = member("web-0", APP, container("side"))
    (row,) = planned(World((pod,)), reload("side")).rows
    assert row.wait.why == ("the pod does not declare how container side reloads (annotation reload.crrd.dev/side)")


@pytest.mark.parametrize(("reloads", "skip"), [(True, None), (False, Skip.OLD_DAEMON)])
def test_a_node_daemon_that_is_too_old_is_not_asked(*, reloads: bool, skip: Skip | None) -> None:
    daemons = {"node-a": NodeDaemon("node-a", ready=True, reloads=reloads)}
    (row,) = planned(World((member("web-0", APP),), daemons=daemons), reload()).rows
    assert row.skip is skip


def test_a_node_daemon_that_is_away_counts_as_one_that_reloads() -> None:
    """It is not known which version comes back."""
    away = {"node-a": NodeDaemon("node-a", ready=False)}
    assert only(member("web-0", APP), daemons=away)[0] is Stage.PUT_OFF


FILE = Reference(Kind.CONFIG_MAP, "cfg", Use.VOLUME)
CHANGED = (str(PartChange(Part(Kind.CONFIG_MAP, "cfg"), NOW - timedelta(seconds=60))),)


@pytest.mark.parametrize(
    ("uses", "ago", "restarts", "skip"),
    [
        ((FILE,), 70, 0, None),
        ((FILE,), 50, 1, Skip.RECENT),
        ((FILE,), 50, 0, None),  # kubelet had set up its files before it started
        ((replace(FILE, name="other"),), 70, 0, Skip.FRESH),
        ((replace(FILE, name="other"),), 50, 0, Skip.RECENT),
    ],
)
def test_only_containers_reload_that_miss_a_change(
    uses: tuple[Reference, ...], ago: int, restarts: int, skip: Skip | None
) -> None:
    def before(seconds: int) -> str:
        return rfc3339(NOW - timedelta(seconds=seconds))

    own = replace(APP, started_at=before(ago), restart_count=restarts)
    pod = replace(member("web-0", own), created=before(70), config={"app": uses})
    of = reload("app", objects=CHANGED, since=before(60), policy="u")
    (row,) = planned(World((pod,)), of).rows
    assert row.skip is skip
    (other,) = planned(World((pod,)), replace(of, only=frozenset({"web-1"}))).rows
    assert other.skip in (Skip.FRESH, Skip.RECENT), "the policy knows that it has reloaded"


def test_files_are_refreshed_first_and_the_node_waits_for_kubelet() -> None:
    of, pods = reload(), (member("web-0", APP), member("web-1", APP))
    token = of.refresh_token("")
    first = planned(World(pods, extra=Files()), of)
    assert chosen(first) == []
    assert isinstance(first.actions, FileActions)
    assert [(row.pod, each) for row, each in first.actions.due] == [("web-0", token)]
    assert first.actions.starting == (), "all of them run"
    done = Files({"uid-web-0": FileRefresh(token, 0.0)})
    assert chosen(planned(World(pods, extra=done), of)) == ["web-0"]
    other = Files({"uid-web-0": FileRefresh("other", 9.0)})
    assert chosen(planned(World(pods, extra=other), of)) == []
    refused = Files({"uid-web-0": FileRefresh(token, 0.0, problem="forbidden")})
    assert chosen(planned(World(pods, extra=refused), of)) == ["web-0"], "its request waits for kubelet's own sync"


def test_a_retry_has_the_files_refreshed_again() -> None:
    of = reload()
    assert of.refresh_token("run-0a1b2c3d4e") != of.refresh_token("") != replace(of, name="b").refresh_token("")


def succeeded(of: Run, pod: Member, ago: float) -> RunRequest:
    """Return a request that has succeeded so many seconds before NOW."""
    at = (NOW - timedelta(seconds=ago)).strftime("%Y-%m-%dT%H:%M:%SZ")
    state = RecreateState("app", StatePhase.SUCCEEDED, "reloaded", reason=Reason.RELOADED)
    found = asked(replace(of, options=replace(of.options, containers=("app",))), pod, RequestPhase.COMPLETED)
    status = replace(found.request.status, states=(state,), completion_time=at)
    return replace(
        found, request=replace(found.request, strategy=Strategy(action=Action.RELOAD), status=status), run=of
    )


@pytest.mark.parametrize(("min_ready", "stage"), [(0, Stage.DONE), (5, Stage.DONE), (30, Stage.SETTLING)])
def test_a_pod_is_done_when_it_stays_ready_after_its_reload(min_ready: int, stage: Stage) -> None:
    """Its container is the one from before, and its condition Ready may be as old as the pod."""
    of, pod = reload(min_ready=min_ready), member("web-0", APP)
    world = World((pod,), requests=(succeeded(of, pod, 10),))
    assert only(pod, of, requests=world.requests)[0] is stage
    wake_at = NOW + timedelta(seconds=20) if stage is Stage.SETTLING else None
    assert planned(World((pod, member("web-1", APP)), world.requests), of).wake_at == wake_at


def test_a_failed_pod_that_is_retried_reloads_again_even_if_it_has_started_since() -> None:
    of, pod = reload(), member("web-0", replace(APP, started_at=AFTER))
    done = succeeded(of, pod, 10)
    state = RecreateState("app", StatePhase.FAILED, "no", reason=Reason.RELOAD_FAILED)
    failed = replace(done, request=replace(done.request, status=replace(done.request.status, states=(state,))))
    (row,) = planned(World((pod,), requests=(failed,), retried=frozenset({failed.request.uid})), of).rows
    assert (row.stage, row.containers) == (Stage.WAITING, ("app",))


NEXT = replace(APP, container_id="containerd://app-2", started_at=AFTER, restart_count=1)
GONE = replace(APP, running=False, ready=False)
ENDED: dict[str, tuple[Member, dict[str, Any], Stage, Skip | None]] = {
    "the next one is ready": (member("web-0", NEXT), {}, Stage.SKIPPED, Skip.RECENT),
    "the next one is not ready yet": (member("web-0", NEXT, ready=False), {}, Stage.SETTLING, None),
    "there is no next one yet": (member("web-0", GONE, ready=False), {}, Stage.SETTLING, None),
    "its node is down": (member("web-0", GONE, ready=False), {"down": frozenset({"node-a"})}, Stage.PUT_OFF, None),
    "the next one may have the old files": (member("web-0", APP), {}, Stage.WAITING, None),
    "the pod is being deleted": (member("web-0", NEXT, deleting=True), {}, Stage.GONE, None),
    "it lost its declaration": (member("web-0", container()), {}, Stage.SKIPPED, Skip.CANNOT_RELOAD),
}


def unreloaded(pod: Member, ago: float, attempt: str = "", why: Reason = Reason.ENDED_BEFORE_RELOAD) -> RunRequest:
    """Return a request whose container had ended, so many seconds ago."""
    done = succeeded(reload(), pod, ago)
    states = (RecreateState("app", StatePhase.FAILED, "no", reason=why),)
    request = replace(done.request, status=replace(done.request.status, states=states))
    return replace(done, request=replace(request, name=f"{request.name}{attempt}"))


@pytest.mark.parametrize("case", ENDED)
def test_a_container_that_ends_before_its_reload_reads_its_files_at_its_start(case: str) -> None:
    pod, world, stage, skip = ENDED[case]
    (row,) = planned(World((pod,), requests=(unreloaded(pod, 10),), **world), reload()).rows
    assert (row.stage, row.skip) == (stage, skip)


def test_a_container_that_ends_before_its_reload_has_failed_if_it_does_not_come_back() -> None:
    gone, same = member("web-0", GONE, ready=False), member("web-0", APP)
    assert only(gone, requests=(unreloaded(gone, 600),))[0] is Stage.FAILED
    assert only(same, requests=(unreloaded(same, 10, ".3"),))[0] is Stage.FAILED, "and again, and again"
    later = unreloaded(gone, 10, why=Reason.ENDED_AFTER_RELOAD)
    assert only(gone, requests=(later,))[0] is Stage.FAILED, "the reload may have been the cause"


def test_a_restart_after_a_reload_speaks_against_the_pod() -> None:
    of, pod = reload(judge=60), member("web-0", APP)
    crashed = member("web-0", replace(APP, container_id="containerd://app-2", restart_count=1, exit_code=3))
    other = member("web-1", APP)
    done = succeeded(of, pod, 10)
    assert planned(World((pod, other), requests=(done,)), of).end is None
    halted = planned(World((crashed, other), requests=(done,)), of)
    assert halted.end is End.HALTED
    assert "web-0 has restarted once more (app ended with 3)" in halted.message


def test_its_request_names_containers_where_no_restart_does() -> None:
    body = reload().request("web-0", "uid-web-0", ("app",), "")
    assert "containers" not in body["spec"]
    assert body["spec"]["strategy"] == {
        "failurePolicy": "Fail",
        "orderedRecreate": False,
        "action": "Reload",
        "reloadContainers": ["app"],
    }
    assert body["metadata"]["annotations"][ANNOTATION_REFRESH] == reload().refresh_token("")
    body["metadata"] |= {"uid": "u"}
    body["metadata"]["labels"] |= {LABEL_ACTIVE: ACTIVE_RELOAD}
    found = read_run_request(body)
    assert found is not None
    assert found.run == reload()
    assert was_admitted(reload(), found.request)
    body["metadata"]["labels"] |= {LABEL_ACTIVE: ACTIVE}
    assert not was_admitted(reload(), parse_request(body)), "an older manager has admitted it"


def test_a_request_whose_spec_says_otherwise_is_not_of_the_run() -> None:
    body = reload().request("web-0", "uid-web-0", ("app",), "")
    body["metadata"] |= {"uid": "u"}
    del body["spec"]["strategy"]["action"], body["spec"]["strategy"]["reloadContainers"]
    body["spec"]["containers"] = [{"name": "app"}]
    assert read_run_request(body) is None
    plain = run().request("web-0", "uid-web-0", ("app",), "")
    stored = json.loads(plain["metadata"]["annotations"][ANNOTATION_RUN])
    assert "reload" not in stored["options"], "older versions can continue a plain run"
    assert was_admitted(run(), parse_request(plain | {"metadata": {"labels": {LABEL_ACTIVE: ACTIVE}, "uid": "u"}}))


def test_what_it_does_is_said() -> None:
    what = "reload of all containers that declare it of deployment.apps/web"
    assert reload().describe(3) == f"{what}, 3 pods, at most 1 unready"
    assert reload("app").options.what == "reload of app"
    assert reload().purpose == what
