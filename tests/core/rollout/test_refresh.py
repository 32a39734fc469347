"""When the files of a pod are refreshed before its containers are restarted."""

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from crrd.core.api.types import ANNOTATION_REFRESH
from crrd.core.config.objects import ConfigObject
from crrd.core.config.references import Kind, Reference, Use
from crrd.core.rollout.plan import Plan
from crrd.core.rollout.preview import make_preview
from crrd.core.rollout.restart import FileActions, FileRefresh, Files
from crrd.core.rollout.run import Amount, Run
from crrd.core.rollout.state import Member, World, read_member
from tests.support.rollouts import NOW, asked, chosen, container, member, members, planned, run, why

CHANGED = datetime(2026, 1, 1, 11, 30, tzinfo=UTC)
LATER = CHANGED + timedelta(minutes=1)
FILE = Reference(Kind.CONFIG_MAP, "web", Use.VOLUME)
EDIT = "ConfigMap web () 2026-01-01T11:45:00Z"
ENV = replace(FILE, use=Use.ENV, keys=frozenset({"LOG"}))
EDIT_OF_ENV = "ConfigMap web (LOG) 2026-01-01T11:45:00Z"
BOTH = Amount(2)


def edited(at: datetime = CHANGED) -> ConfigObject:
    return ConfigObject(frozenset({"LOG"}), at, {"LOG": at})


def of_policy(**options: Any) -> Run:
    return run("app", objects=(EDIT,), preflight=True, **options)


def stale(**options: Any) -> Run:
    return run(containers=(), stale=True, **options)


def world(*pods: Member, at: datetime = CHANGED, **refreshes: FileRefresh) -> World:
    known = {f"uid-{name.replace('_', '-')}": each for name, each in refreshes.items()}
    return World(pods or readers(), config={FILE.object: edited(at)}, extra=Files(known))


def readers(*uses: Reference) -> tuple[Member, ...]:
    """Two pods whose container uses these."""
    return tuple(replace(each, config={"app": uses or (FILE,)}) for each in members(2))


def file_actions(found: Plan) -> FileActions:
    return found.actions if isinstance(found.actions, FileActions) else FileActions()


def due(found: Plan) -> list[str]:
    return [row.pod for row, _ in file_actions(found).due]


def token(of: Run, at: datetime = CHANGED) -> str:
    return file_actions(planned(world(at=at), of)).due[0][1]


@pytest.mark.parametrize("of", [of_policy(), stale(), run(policy="u1")])
def test_a_pod_is_refreshed_waited_for_and_then_restarted(of: Run) -> None:
    first = planned(world(), of)
    assert (due(first), chosen(first), first.wait.why) == (["web-0"], [], "")
    assert why(first)["web-0"] == "kubelet refreshes its files before the restart"
    assert why(first)["web-1"] == "1 pod is unready or in progress, the limit is 1: web-0"
    fresh = planned(world(web_0=FileRefresh(token(of), 0.5)), of)
    assert (due(fresh), chosen(fresh), fresh.wake_at) == ([], [], NOW + timedelta(seconds=1.5))
    assert why(fresh)["web-0"] == "kubelet refreshes its files before the restart"
    old = planned(world(web_0=FileRefresh(token(of), 2.0)), of)
    assert (due(old), chosen(old), why(old)["web-0"]) == ([], ["web-0"], "")


def test_pods_of_one_batch_do_not_wait_for_each_other() -> None:
    of = of_policy(max_unavailable=BOTH)
    assert due(planned(world(), of)) == ["web-0", "web-1"]
    found = planned(world(web_0=FileRefresh(token(of), 2.0)), of)
    assert (chosen(found), due(found)) == (["web-0"], ["web-1"])
    both = planned(world(web_0=FileRefresh(token(of), 0.5), web_1=FileRefresh(token(of), 1.5)), of)
    assert both.wake_at == NOW + timedelta(seconds=0.5)


def test_a_pod_that_cannot_be_patched_is_restarted_without() -> None:
    of = of_policy()
    found = planned(world(web_0=FileRefresh(token(of), 0.0, problem="pods is forbidden")), of)
    assert (due(found), chosen(found)) == ([], ["web-0"])


def starting(found: Plan) -> list[str]:
    return [row.pod for row, _ in file_actions(found).starting]


def test_a_container_in_its_back_off_gets_new_files_before_kubelet_starts_it() -> None:
    """It would count as having the change, with files as old as its last start."""
    down = container(running=False)
    pod = replace(member("web-0", down), config={"app": (FILE,)})
    found = planned(world(pod, readers()[1]), of_policy())
    assert (due(found), starting(found), chosen(found)) == (["web-1"], ["web-0"], [])
    ((_, own),) = file_actions(found).starting
    assert own == token(of_policy())
    again = planned(world(pod, readers()[1], web_0=FileRefresh(own, 0.0)), of_policy())
    assert starting(again) == []
    edited_again = world(pod, readers()[1], web_0=FileRefresh(own, 60.0), at=LATER)
    assert starting(planned(edited_again, of_policy())) == ["web-0"]


@pytest.mark.parametrize("uses", [(ENV,), ()])
def test_one_that_has_no_changed_files_is_left_alone(uses: tuple[Reference, ...]) -> None:
    pod = replace(member("web-0", container(running=False)), config={"app": uses})
    assert starting(planned(world(pod, readers()[1]), of_policy())) == []


def test_files_of_another_container_do_not_count_for_one_that_is_down() -> None:
    """Only the container that is down is meant."""
    pod = replace(member("web-0", container(running=False), container("side")), config={"side": (FILE,)})
    assert starting(planned(world(pod, readers()[1]), of_policy())) == []


@pytest.mark.parametrize(
    ("of", "uses"),
    [
        (run(objects=(EDIT_OF_ENV,)), ENV),
        (stale(), ENV),
        (stale(), replace(FILE, use=Use.ENV_FROM)),
        (run(), FILE),
        (run(preflight=True), FILE),
        (run(policy="u1"), ENV),
        (run(policy="u1"), replace(FILE, name="secret")),
    ],
)
def test_a_restart_that_brings_no_file_waits_for_none(of: Run, uses: Reference) -> None:
    found = planned(world(*readers(uses)), of)
    assert (due(found), chosen(found)) == ([], ["web-0"])


@pytest.mark.parametrize("use", [Use.VOLUME, Use.SUB_PATH])
def test_each_way_to_mount_it_counts(use: Use) -> None:
    pods = readers(replace(ENV, use=use))
    assert due(planned(world(*pods), run(objects=(EDIT_OF_ENV,)))) == ["web-0"]
    assert due(planned(world(*pods), stale())) == ["web-0"]


@pytest.mark.parametrize("of", [run(objects=(EDIT_OF_ENV,)), run(stale=True)])
def test_files_of_other_objects_or_containers_do_not_count(of: Run) -> None:
    other = replace(FILE, name="other")
    pod = replace(member("web-0", container(), container("side")), config={"app": (ENV, other), "side": (FILE,)})
    found = planned(world(pod), of)
    assert (due(found), chosen(found)) == ([], ["web-0"])
    if of.options.objects:
        known = replace(world(pod), config={each.object: edited() for each in (ENV, other)})
        counted = planned(known, run(objects=of.options.objects, policy="u1"))
        assert due(counted) == ["web-0"], "after the restart, no later change of it counts as missed"


def test_the_token_identifies_the_change() -> None:
    assert re.fullmatch("[0-9a-f]{16}", token(of_policy()))
    assert token(of_policy()) == token(of_policy())
    assert token(of_policy()) != token(of_policy(), at=LATER)
    assert token(of_policy()) != token(of_policy(name="next"))
    unread = replace(world(), config={})
    assert file_actions(planned(unread, of_policy())).due[0][1] != token(of_policy())


def test_data_that_has_changed_since_is_refreshed_again_but_not_for_ever() -> None:
    of = of_policy()
    before = FileRefresh(token(of), 60.0)
    assert due(planned(world(at=LATER, web_0=before), of)) == ["web-0"]
    assert due(planned(world(at=LATER, web_0=replace(before, count=2)), of)) == ["web-0"]
    assert chosen(planned(world(at=LATER, web_0=replace(before, count=3)), of)) == ["web-0"]
    young = planned(world(at=LATER, web_0=replace(before, count=3, age=1.0)), of)
    assert (due(young), chosen(young)) == ([], [])


def test_pods_that_may_not_start_are_not_refreshed() -> None:
    of = of_policy()
    busy = replace(world(), requests=(asked(run(name="other", target=replace(of.target, name="api")), readers()[0]),))
    assert due(planned(busy, of)) == []


def test_a_preview_shows_the_batches_without_refreshes() -> None:
    preview = make_preview(world(), of_policy(), NOW)
    assert [[row.pod for row in batch] for batch in preview.batches] == [["web-0"], ["web-1"]]


def test_the_token_of_a_pod_is_read() -> None:
    pod = {"metadata": {"name": "web-0", "annotations": {ANNOTATION_REFRESH: "0123456789abcdef"}}}
    assert read_member(pod).refresh_token == "0123456789abcdef"
    assert read_member({}).refresh_token == ""
