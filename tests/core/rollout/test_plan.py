"""Which pods are next, why the others wait, and how a run ends."""

from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from crrd.core.api.reasons import Reason
from crrd.core.api.time import rfc3339
from crrd.core.api.types import RecreateState, RequestedContainer, RequestPhase, StatePhase
from crrd.core.config.kept import kept_of_pods
from crrd.core.config.objects import Change, ConfigObject
from crrd.core.config.references import Kind, Reference, Use
from crrd.core.config.uses import OutOfReach, Unreached
from crrd.core.rollout.kinds import kind_of
from crrd.core.rollout.overview import unfinished
from crrd.core.rollout.parts import Allowed
from crrd.core.rollout.phases import End, RunPhase
from crrd.core.rollout.plan import make_plan
from crrd.core.rollout.preview import Stale, make_preview
from crrd.core.rollout.progress import Progress
from crrd.core.rollout.rivals import first_rival, taken_over
from crrd.core.rollout.rows import Row
from crrd.core.rollout.run import Amount, Run, Target
from crrd.core.rollout.skips import barred_containers
from crrd.core.rollout.standing import RowMemo
from crrd.core.rollout.state import Member, NodeDaemon, World
from crrd.core.rollout.waits import NO_WAIT, Skip
from crrd.core.rollout.workload import Workload
from crrd.kubelet.restart_rules import RestartPolicy
from tests.support.rollouts import (
    AFTER,
    BEFORE,
    NOW,
    again,
    asked,
    budget,
    chosen,
    container,
    failed,
    member,
    members,
    planned,
    recreated,
    run,
    stages,
    succeeded,
    why,
    workload,
)

ONE, TWO, THREE = members(3)
PODS = (ONE, TWO, THREE)
RESTARTS_ALL = ({"action": "RestartAllContainers", "exitCodes": {"operator": "NotIn", "values": [0]}},)


CHANGED = datetime(2026, 1, 1, 11, 30, tzinfo=UTC)
USES = Reference(Kind.CONFIG_MAP, "web", Use.ENV, frozenset({"LOG"}), frozenset({"LOG"}))
EDITED = {USES.object: ConfigObject(frozenset({"LOG"}), CHANGED, {"LOG": CHANGED})}


class TestStaleContainers:
    """A run with `stale` recreates what uses configuration that has changed since it started."""

    BOTH = (container(), container("side", started_at="2026-01-01T11:45:00Z"))

    def test_only_those_are_recreated(self) -> None:
        pods = (
            member("web-0", *self.BOTH, config={"app": (USES,), "side": (USES,)}),
            member("web-1", *self.BOTH, config={"side": (USES,)}),
        )
        found = planned(World(pods, config=EDITED), run(containers=(), stale=True))
        assert [(row.pod, row.containers) for row in found.create] == [("web-0", ("app",))]
        assert why(found)["web-1"] == "container app uses no ConfigMap or Secret that has changed since it started"
        assert [row.skip.normal for row in found.rows if row.skip is not None] == [True]
        assert planned(World(pods, config=EDITED), run("side", stale=True)).end is End.DONE

    def test_or_what_uses_the_objects_of_the_run(self) -> None:
        pods = (
            member("web-0", *self.BOTH, config={"app": (USES,), "side": (USES,)}),
            member("web-1", *self.BOTH, config={"app": (replace(USES, name="other"),)}),
        )
        found = planned(World(pods), run("app", "side", objects=("ConfigMap web (LOG) 2026-01-01T11:45:00Z",)))
        assert [(row.pod, row.containers) for row in found.create] == [("web-0", ("app", "side"))]
        assert why(found)["web-1"] == "container app uses no ConfigMap or Secret that has changed since it started"

    def test_the_preview_says_what_has_changed(self) -> None:
        world = World((member("web-0", config={"app": (USES,)}), member("web-1")), config=EDITED)
        preview = make_preview(world, run(containers=(), stale=True), NOW)
        assert preview.stale == (Stale("web-0", "app", (Change(USES, CHANGED),), BEFORE),)
        assert make_preview(world, run(), NOW).stale == preview.stale, "also where it is not asked for"
        both = World((member("web-0", container(), container("side"), config={"app": (USES,), "side": (USES,)}),))
        found = make_preview(replace(both, config=EDITED), run(), NOW)
        assert [each.container for each in found.stale] == ["app"], "of those that the run restarts"
        under_way = replace(world, requests=(asked(run(), world.members[0]),))
        assert make_preview(under_way, run(), NOW).stale == ()

    def test_the_preview_says_what_a_restart_in_place_does_not_bring(self) -> None:
        """An immutable object that was replaced: kubelet keeps the old one while a pod uses it."""
        replaced = replace(EDITED[USES.object], immutable=True, created=CHANGED)
        lost = Unreached("setup", "ConfigMap", "init", OutOfReach.INIT_CONTAINER)
        old = member("web-0", config={"app": (USES,)}, unreached=(lost,))
        pods = (old, replace(old, pod=replace(old.pod, uid="other")))
        config = {USES.object: replaced}
        world = World(pods, config=config, kept=kept_of_pods([each.user for each in pods], config))
        of = run(containers=(), stale=True)
        assert planned(world, of).create == ()
        kept = Unreached("app", "ConfigMap", "web", OutOfReach.IMMUTABLE)
        assert make_preview(world, of, NOW).unreached == (lost, kept)
        assert make_preview(world, run(), NOW).unreached == ()


class TestMissingConfiguration:
    """No pod begins whose container could not start again."""

    def test_holds_the_pods_that_need_it(self) -> None:
        world = World((member("web-0", config={"app": (USES,)}), member("web-1")), config={USES.object: None})
        found = planned(world)
        assert (chosen(found), why(found)["web-0"]) == (["web-1"], "ConfigMap web not found")
        assert chosen(planned(replace(world, config={}))) == ["web-0"], "nothing is known of it"
        assert chosen(planned(replace(world, config=EDITED))) == ["web-0"]

    @pytest.mark.parametrize(("use", "held"), [(Use.ENV, False), (Use.VOLUME, True), (Use.SUB_PATH, True)])
    def test_of_another_container_only_its_volumes_count(self, use: Use, *, held: bool) -> None:
        pod = member("web-0", container(), container("side"), config={"side": (replace(USES, use=use),)})
        found = planned(World((pod,), config={USES.object: ConfigObject(frozenset())}))
        assert why(found)["web-0"] == ("ConfigMap web has no key LOG" if held else "")


class TestBudgets:
    def test_one_at_a_time_unless_more_may(self) -> None:
        found = planned(World(PODS))
        assert chosen(found) == ["web-0"]
        assert why(found)["web-1"] == "1 pod is unready or in progress, the limit is 1: web-0", (
            "nobody has touched web-0 yet"
        )
        assert (found.end, found.wait.why) == (None, "")
        assert chosen(planned(World(PODS), run(max_unavailable=Amount(2)))) == ["web-0", "web-1"]

    @pytest.mark.parametrize(("share", "pods"), [(20, 2), (25, 2), (1, 1), (100, 10)])
    def test_a_share_is_rounded_down_to_one_at_least(self, share: int, pods: int) -> None:
        found = planned(World(members(10)), run(max_unavailable=Amount(share, percent=True)))
        assert len(found.create) == pods

    def test_whoever_is_unready_counts(self) -> None:
        found = planned(World((ONE, replace(TWO, ready=False)), workload=workload(2)))
        assert chosen(found) == ["web-1"], "what is unready anyway costs nothing"
        skipped = replace(member("web-9", container(running=False)), ready=False)
        found = planned(World((ONE, skipped)))
        assert chosen(found) == []
        assert found.wait.why == "1 pod is unready, the limit is 1: web-9"

    def test_unready_ones_go_first_and_not_all_at_once(self) -> None:
        down = tuple(replace(each, ready=False) for each in members(4))
        found = planned(World((*down, member("web-4"))), run(max_unavailable=Amount(2)))
        assert chosen(found) == ["web-0", "web-1"]
        assert why(found)["web-2"] == "2 pods are in progress, the limit is 2"
        assert why(found)["web-4"] == "4 pods are unready, the limit is 2: web-0, web-1, web-2 and 1 more"
        found = planned(World((*down[1:], member("web-4"))), run(max_unavailable=Amount(2)))
        assert why(found)["web-4"] == "3 pods are unready, the limit is 2: web-1, web-2, web-3"
        found = planned(World((ONE, replace(TWO, ready=False))), run(max_unavailable=Amount(2), first=1))
        assert chosen(found) == ["web-1"]

    def test_those_that_have_run_for_longest_go_first(self) -> None:
        """The next change begins another run before the end of this one, again and again."""
        pods = tuple(member(f"web-{n}", container(started_at=f"2026-01-01T11:0{(n + 2) % 4}:00Z")) for n in range(4))
        assert chosen(planned(World(pods), run(max_unavailable=Amount(3)))) == ["web-2", "web-3", "web-0"]
        side = container("side", started_at="2026-01-01T11:40:00Z")
        young, old = (
            member(name, container(started_at=app), replace(side, started_at=at))
            for name, app, at in (
                ("web-0", "2026-01-01T11:10:00Z", "2026-01-01T11:20:00Z"),
                ("web-1", "2026-01-01T11:00:00Z", "2026-01-01T11:30:00Z"),
            )
        )
        assert chosen(planned(World((young, old)), run("app", "side"))) == ["web-1"], "the oldest container counts"

    def test_an_unready_one_takes_its_place_among_those_under_way(self) -> None:
        of = run()
        found = planned(World((ONE, replace(TWO, ready=False)), (asked(of, ONE),)), of)
        assert (chosen(found), why(found)["web-1"]) == ([], "1 pod is in progress, the limit is 1")

    def test_of_pods_that_are_unready_a_command_is_given_for_one_on_which_nobody_works(self) -> None:
        of, down = run(), replace(ONE, ready=False)
        found = planned(World((down, TWO), (asked(of, down),)), of)
        assert (why(found)["web-1"], found.rows[1].wait.command) == (
            "1 pod is unready, the limit is 1: web-0",
            "",
        )
        found = planned(World((replace(down, pod=member("web-0", container(running=False)).pod), TWO)), of)
        assert found.rows[1].wait.command == "kubectl describe pod web-0 -n default"

    def test_pods_that_are_missing_count(self) -> None:
        found = planned(World(PODS, workload=workload(4)))
        assert chosen(found) == []
        assert found.wait.why == "1 pod is unready, the limit is 1: 1 not created yet"
        going = replace(ONE, pod=replace(ONE.pod, deleting=True))
        found = planned(World((going, TWO, THREE), workload=workload(3)))
        assert (chosen(found), stages(found)["web-0"]) == ([], "skipped")

    def test_a_disruption_budget_is_heeded(self) -> None:
        wide = run(max_unavailable=Amount(3))
        assert chosen(planned(World(PODS, budgets=(budget(2),)), wide)) == ["web-0", "web-1"]
        found = planned(World(PODS, budgets=(budget(5), budget(0, "strict"))), wide)
        assert chosen(found) == []
        assert found.wait.why == "PodDisruptionBudget strict allows no disruption now"
        describe = "kubectl describe pdb strict -n default"
        assert {row.wait.command for row in found.rows} == {found.wait.command} == {describe}
        found = planned(World(PODS, budgets=(budget(2, current=False),)), wide)
        assert found.wait.why == "the status of PodDisruptionBudget guard is out of date"

    @pytest.mark.parametrize("selector", [{"matchLabels": {"app": "other"}}, None, {"matchLabels": {"app": 1}}])
    def test_a_disruption_budget_of_others_is_not(self, selector: dict[str, object] | None) -> None:
        other = replace(budget(0), selector=None) if selector is None else budget(0, selector=selector)
        assert chosen(planned(World(PODS, budgets=(other,)))) == ["web-0"]

    def test_what_a_budget_allows_is_spent_until_all_of_ours_are_back(self) -> None:
        """Nobody can tell which of ours its controller has counted already."""
        wide = run(max_unavailable=Amount(3))
        under_way = World(PODS, (asked(wide, ONE),), budgets=(budget(1),))
        assert chosen(planned(under_way, wide)) == []
        assert why(planned(under_way, wide))["web-1"] == "PodDisruptionBudget guard allows no disruption now"
        assert chosen(planned(replace(under_way, budgets=(budget(2),)), wide)) == ["web-1"]

    def test_pods_of_other_workloads_under_way_may_be_of_the_same_disruption_budget(self) -> None:
        """Two runs on two workloads, and a budget that selects the pods of both."""
        wide = run(max_unavailable=Amount(3))
        other = run(name="other", target=Target("deployment.apps/api"))
        foreign = asked(other, member("api-0"), RequestPhase.RECREATING)
        found = planned(World(PODS, (foreign,), budgets=(budget(1),)), wide)
        assert chosen(found) == []
        assert found.wait.why == (
            "PodDisruptionBudget guard allows no disruption now while run other restarts pod api-0"
        )
        assert chosen(planned(World(PODS, (foreign,), budgets=(budget(2),)), wide)) == ["web-0"]
        again = asked(run(name="third", target=Target("pod/api-0")), member("api-0"))
        assert chosen(planned(World(PODS, (foreign, again), budgets=(budget(2),)), wide)) == ["web-0"], "one pod is one"
        assert len(chosen(planned(World(PODS, (foreign,)), wide))) == 3, "without a budget it does not matter"
        ended = succeeded(other, member("api-0"))
        assert chosen(planned(World(PODS, (ended,), budgets=(budget(1),)), wide)) == ["web-0"]
        found = planned(World(PODS, (foreign,), budgets=(budget(0),)), wide)
        assert found.wait.why == "PodDisruptionBudget guard allows no disruption now"

    def test_of_several_runs_beside_it_the_first_by_name_is_told(self) -> None:
        foreign = tuple(
            asked(run(name=name, target=Target(f"pod/{pod}")), member(pod))
            for name, pod in (("c", "api-0"), ("b", "api-1"))
        )
        found = planned(World(PODS, foreign, budgets=(budget(2),)), run(max_unavailable=Amount(3)))
        assert found.wait.why.endswith(" while run b restarts pod api-1")

    def test_a_pod_of_another_workload_spends_what_selects_it(self) -> None:
        other = run(name="other", target=Target("deployment.apps/api"))
        foreign = asked(other, member("api-0"), RequestPhase.RECREATING)
        for labels, begun in (({"app": "api"}, ["web-0"]), ({"app": "web"}, []), ({}, ["web-0"])):
            world = World(PODS, (foreign,), budgets=(budget(1),), labels={"uid-api-0": labels})
            assert chosen(planned(world, run(max_unavailable=Amount(3)))) == begun

    @pytest.mark.parametrize(("seconds", "expected"), [(0, ["web-0"]), (4, ["web-0"]), (5, ["web-0", "web-1"])])
    def test_a_budget_may_not_know_yet_that_a_pod_has_become_unready(self, seconds: int, expected: list[str]) -> None:
        """Its controller writes the status a moment later. The pod itself may start at once."""
        since = NOW - timedelta(seconds=seconds)
        crashed = replace(PODS[0], ready=False, ready_since=since)
        found = planned(World((crashed, PODS[1]), budgets=(budget(1),)), run(max_unavailable=Amount(2)))
        assert chosen(found) == expected
        if len(expected) == 1:
            assert found.wake_at == since + timedelta(seconds=5)

    def test_a_pod_spends_no_disruption_budget_but_its_own(self) -> None:
        pods = (replace(ONE, labels={"app": "a"}), replace(TWO, labels={"app": "b"}))
        budgets = tuple(budget(1, app, selector={"matchLabels": {"app": app}}) for app in ("a", "b"))
        assert len(chosen(planned(World(pods, budgets=budgets), run(max_unavailable=Amount(3))))) == 2

    def test_an_unready_pod_costs_a_disruption_budget_nothing(self) -> None:
        found = planned(World((replace(ONE, ready=False), TWO), budgets=(budget(0),)))
        assert chosen(found) == ["web-0"]
        one, two = World((replace(ONE, ready=False), TWO), budgets=(budget(1),)), run(max_unavailable=Amount(2))
        assert chosen(planned(one, two)) == ["web-0", "web-1"], "it leaves the budget for the next one"

    def test_nodes_and_zones(self) -> None:
        pods = (member("a1"), member("a2"), member("b1", node="node-b"), member("c1", node="node-c"))
        zones = {"node-a": "east", "node-b": "east", "node-c": "west"}
        wide = Amount(4)
        found = planned(World(pods), run(max_unavailable=wide, max_per_node=1))
        assert chosen(found) == ["a1", "b1", "c1"]
        assert why(found)["a2"] == "node node-a has reached the limit of 1 pods in progress or unready"
        found = planned(World(pods, zones=zones), run(max_unavailable=wide, max_per_zone=2))
        assert chosen(found) == ["a1", "a2", "c1"]
        assert why(found)["b1"] == "zone east has reached the limit of 2 pods in progress or unready"
        assert len(planned(World(pods), run(max_unavailable=wide, max_per_zone=1)).create) == 4, "no zone is known"

    def test_a_pod_that_is_not_ready_for_long_enough_counts_but_not_against_itself(self) -> None:
        fresh, ahead = (replace(TWO, ready_since=NOW + timedelta(seconds=seconds)) for seconds in (-5, 5))
        limited = run(min_ready=60, max_per_node=1)
        assert chosen(planned(World((fresh,)), limited)) == ["web-1"]
        assert chosen(planned(World((ONE, fresh)), limited)) == ["web-1"]
        assert chosen(planned(World((ONE, ahead)))) == ["web-0"], "a node's clock that is ahead does not matter"

    def test_unready_ones_on_a_node_count_but_not_against_each_other(self) -> None:
        limited = run(max_unavailable=Amount(4), max_per_node=1)
        lost = replace(member("lost", container(running=False)), ready=False)
        assert (
            why(planned(World((ONE, lost)), limited))["web-0"]
            == "node node-a has reached the limit of 1 pods in progress or unready"
        )
        found = planned(World((replace(ONE, ready=False), replace(TWO, ready=False))), limited)
        assert (chosen(found), why(found)["web-1"]) == (
            ["web-0"],
            "node node-a has reached the limit of 1 pods in progress or unready",
        )

    def test_an_unready_one_that_starts_counts_once_on_its_node(self) -> None:
        limited = run(max_unavailable=Amount(4), max_per_node=2)
        found = planned(World((replace(ONE, ready=False), TWO, THREE)), limited)
        assert (chosen(found), why(found)["web-2"]) == (
            ["web-0", "web-1"],
            "node node-a has reached the limit of 2 pods in progress or unready",
        )

    def test_somebody_elses_request_is_waited_for(self) -> None:
        other = run(name="other", started=AFTER, target=Target("pod/web-0"))
        found = planned(World((ONE,), (asked(other, ONE),)))
        assert why(found)["web-0"] == "another request for this pod is in progress"


class TestOrder:
    def test_statefulsets_go_from_the_highest_ordinal(self) -> None:
        world = World(members(11), workload=workload(11, in_order=True))
        found = planned(world, run(max_unavailable=Amount(2)))
        assert chosen(found) == ["web-10", "web-9"]
        assert why(found)["web-8"] == "2 pods are unready or in progress, the limit is 2: web-10, web-9"
        assert why(found)["web-0"] == f"pods are restarted in order, and web-8 waits: {why(found)['web-8']}"

    def test_nobody_overtakes(self) -> None:
        pods = (replace(member("web-0"), ready=False), member("web-1"))
        found = planned(World(pods, workload=workload(2, in_order=True)))
        assert chosen(found) == []
        assert found.wait.why == "1 pod is unready, the limit is 1: web-0; web-0 comes later in the order"
        assert found.wait.command == "kubectl describe pod web-0 -n default"
        above = (member("web-0"), replace(member("web-1", container(running=False)), ready=False))
        found = planned(World(above, workload=workload(2, in_order=True)))
        assert found.wait.why == "1 pod is unready, the limit is 1: web-1", "its turn does not come at all"

    def test_but_a_change_of_data_reaches_broken_pods_first(self) -> None:
        """They may be unready because of the data from before, and hold the budget of all others."""
        of = run("app", objects=("ConfigMap web (LOG) 2026-01-01T11:45:00Z",), max_unavailable=Amount(2))
        pods = [member(f"web-{number}", config={"app": (USES,)}) for number in range(3)]
        pods[1] = replace(pods[1], ready=False)
        found = planned(World(tuple(pods), (), workload(3, in_order=True), (budget(0),)), of)
        assert chosen(found) == ["web-1"]
        assert why(found)["web-2"] == "PodDisruptionBudget guard allows no disruption now"
        assert why(found)["web-0"] == f"pods are restarted in order, and web-2 waits: {why(found)['web-2']}"

    def test_a_name_without_an_ordinal_is_the_last(self) -> None:
        world = World((member("odd"), member("web-0")), workload=workload(2, in_order=True))
        assert chosen(planned(world)) == ["web-0"]


class TestProgress:
    @pytest.mark.parametrize(
        ("own", "least", "wait"),
        [(None, 40, "must be ready for 40s"), (50, 40, "must be ready for 50s"), (0, 40, ""), (None, 0, "")],
    )
    def test_the_workload_says_how_long_a_pod_must_be_ready_unless_the_run_does(
        self, own: int | None, least: int, wait: str
    ) -> None:
        of = run(min_ready=own)
        world = World((recreated(ONE),), (succeeded(of, ONE),), workload=workload(1, min_ready=least))
        found = planned(world, of)
        assert (why(found)["web-0"], found.end) == (wait, None if wait else End.DONE)
        assert make_preview(world, of, NOW).min_ready == (least if own is None else own)

    def test_the_way_of_a_pod(self) -> None:
        of = run()
        assert stages(planned(World((ONE,), (asked(of, ONE),)), of)) == {"web-0": "requested"}
        assert [planned(World(PODS, asks), of).started for asks in ((), (asked(of, TWO),))] == [False, True]
        states = (RecreateState("app", StatePhase.RECREATING, "stopping"),)
        found = planned(World((ONE,), (asked(of, ONE, RequestPhase.RECREATING, states=states),)), of)
        assert (stages(found), why(found)) == ({"web-0": "recreating"}, {"web-0": "stopping"})
        found = planned(World((ONE,), (asked(of, ONE, RequestPhase.PENDING, message="waits behind another"),)), of)
        assert why(found) == {"web-0": "waits behind another"}
        found = planned(World((ONE,), (succeeded(of, ONE),)), of)
        assert why(found) == {"web-0": "waiting for the pod's new status"}
        found = planned(World((recreated(ONE, ready=False),), (succeeded(of, ONE),)), of)
        assert (stages(found), why(found)) == ({"web-0": "getting ready"}, {"web-0": "the pod is not ready"})
        found = planned(World((recreated(ONE),), (succeeded(of, ONE),)), of)
        assert (stages(found), found.end) == ({"web-0": "done"}, End.DONE)

    def test_what_is_waited_for_is_neither_over_nor_silent(self) -> None:
        of = run("app", "side", "more")
        states = (
            RecreateState("app", StatePhase.SUCCEEDED, "recreated"),
            RecreateState("side"),
            RecreateState("more", StatePhase.RECREATING, "starting"),
        )
        found = planned(World((ONE,), (asked(of, ONE, RequestPhase.RECREATING, states=states),)), of)
        assert why(found) == {"web-0": "starting"}

    def test_ready_for_long_enough(self) -> None:
        of = run(min_ready=40)
        world = World((recreated(ONE), TWO), (succeeded(of, ONE),))
        found = planned(world, of)
        assert stages(found) == {"web-0": "getting ready", "web-1": "waiting"}
        assert why(found)["web-0"] == "must be ready for 40s"
        assert found.wake_at == NOW + timedelta(seconds=10)
        assert chosen(make_plan(world, of, NOW + timedelta(seconds=10))) == ["web-1"]
        unknown = replace(recreated(ONE), ready_since=None)
        bare = replace(unknown, pod=replace(unknown.pod, containers={}))
        found = planned(World((bare,), (succeeded(of, ONE),)), of)
        assert why(found)["web-0"] == "the pod's Ready condition has no transition time"

    def test_without_a_time_to_be_ready_for_no_clock_is_looked_at(self) -> None:
        of = run()
        ahead = recreated(ONE, seconds=-30)
        assert stages(planned(World((ahead,), (succeeded(of, ONE),)), of)) == {"web-0": "done"}
        silent = replace(recreated(ONE, seconds=0), ready_since=None)
        silent = replace(silent, pod=replace(silent.pod, containers={}))
        assert stages(planned(World((silent,), (succeeded(of, ONE),)), of)) == {"web-0": "done"}

    def test_the_next_look_is_when_the_first_has_been_ready_for_long_enough(self) -> None:
        of = run(min_ready=40)
        pods = (recreated(ONE, seconds=10), recreated(TWO, seconds=30), THREE)
        found = planned(World(pods, (succeeded(of, ONE), succeeded(of, TWO))), of)
        assert found.wake_at == NOW + timedelta(seconds=10)

    def test_a_container_counts_from_its_start_even_where_ready_never_changed(self) -> None:
        of = run(min_ready=40)
        steady = replace(recreated(ONE), ready_since=ONE.ready_since)
        assert stages(planned(World((steady,), (succeeded(of, ONE),)), of)) == {"web-0": "getting ready"}

    def test_a_restart_counts_from_its_container_not_from_the_end_of_its_request(self) -> None:
        """The request ends when the new container is ready, as far as its node knows."""
        of = run(min_ready=20)
        ended = succeeded(of, ONE, completion_time="2026-01-01T12:00:50Z")
        assert stages(planned(World((recreated(ONE),), (ended,)), of)) == {"web-0": "done"}

    def test_a_request_that_is_being_created_counts(self) -> None:
        """The watch may show the one that failed, or the new one already."""
        of = run()
        before = failed(of, ONE)
        after = again(failed(of, ONE), before)
        for there, name, stage in (
            ((), before.request.name, "requested"),
            ((before,), after.request.name, "requested"),
            ((before, after), after.request.name, "failed"),
        ):
            world = World((ONE,), there, starting={ONE.pod.uid: name})
            assert stages(planned(world, of)) == {"web-0": stage}

    @pytest.mark.parametrize(
        "changes",
        [
            {},
            {"members": (recreated(ONE), replace(TWO, ready=False), THREE)},
            {"requests": ()},
            {"requests": (asked(run(min_ready=40), TWO),)},
            {"down": frozenset({"node-a"})},
            {"daemons": {}},
            {"refused": {TWO.pod.uid: "denied"}},
        ],
    )
    def test_the_rows_that_are_kept_for_the_next_plan_are_as_new_ones(self, changes: dict[str, Any]) -> None:
        of, memo = run(min_ready=40), RowMemo()
        world = World((recreated(ONE), TWO, THREE), (succeeded(of, ONE),))
        for there, own, later in ((world, of, 0), (replace(world, **changes), of, 20), (world, run(name="next"), 20)):
            now = NOW + timedelta(seconds=later)
            assert make_plan(there, own, now, memo=memo) == make_plan(there, own, now)

    def test_a_request_without_context_is_done_when_the_pod_is_ready(self) -> None:
        of = run()
        found = succeeded(of, ONE)
        bare = replace(found, request=replace(found.request, containers=(RequestedContainer("app"),)))
        assert stages(planned(World((ONE,), (bare,)), of)) == {"web-0": "done"}

    def test_what_is_left_out_and_why(self) -> None:
        pods = (
            member("deleting", deleting=True),
            member("ended", phase="Succeeded"),
            member("new", created=AFTER),
            member("other", container("side")),
            member("never", container(restart_policy=RestartPolicy.NEVER)),
            member("stopped", container(running=False)),
            member("over", container(running=False, restart_policy=RestartPolicy.NEVER)),
            member("recent", container(started_at=AFTER)),
            member("lost", node="node-z"),
        )
        found = planned(World(pods, daemons={"node-a": NodeDaemon("node-a", ready=True)}))
        assert why(found) == {
            "deleting": "the pod is being deleted",
            "ended": "the pod has ended",
            "new": "the pod was created after the run started",
            "other": "container app not found in the pod",
            "never": "container app would not be started again (restartPolicy Never)",
            "stopped": "container app is not running",
            "over": "container app would not be started again (restartPolicy Never)",
            "recent": "container app was already restarted",
            "lost": "the node has no node daemon",
        }
        assert found.end is End.DONE
        odd = {row.pod for row in found.rows if row.skip is not None and not row.skip.normal}
        assert odd == {"other", "never", "stopped", "over", "lost"}, "these somebody has to see to"

    @pytest.mark.parametrize(
        ("kubelet", "skipped"), [("", True), ("?", True), ("v1.35.4", False), ("v1.36.0", True), ("v1.37.1+k3s1", True)]
    )
    def test_a_container_whose_stop_may_restart_the_whole_pod(self, kubelet: str, *, skipped: bool) -> None:
        """The rules count from kubelet 1.36 on, and where nobody knows its version."""
        pods = (member("web-0", container(restart_rules=RESTARTS_ALL)), member("web-1", node="node-b"))
        world = World(pods, kubelets={"node-a": kubelet} if kubelet else {})
        found = planned(world)
        assert chosen(found) == (["web-1"] if skipped else ["web-0"])
        if skipped:
            assert why(found)["web-0"] == (
                "container app: stopping it may restart all containers of the pod (restartPolicyRules)"
            )
            assert [row.skip.normal for row in found.rows if row.skip is not None] == [False]
        assert chosen(planned(world, run(allow_pod_restart=True))) == ["web-0"]

    def test_one_such_container_is_enough_unless_it_was_restarted_already(self) -> None:
        ruled = container(restart_rules=RESTARTS_ALL)
        both = run("app", "side")
        found = planned(World((member("web-0", ruled, container("side")),)), both)
        assert (chosen(found), stages(found)) == ([], {"web-0": "skipped"})
        recent = replace(ruled, started_at=AFTER)
        (row,) = planned(World((member("web-0", recent, container("side")),)), both).create
        assert row.containers == ("side",)
        (row,) = planned(World((member("web-0", ruled, container("side")),)), run("side")).create
        assert row.containers == ("side",), "the rules of a container that is not stopped do not matter"

    @pytest.mark.parametrize(
        ("of_pod", "own", "kubelet", "skipped"),
        [
            (RestartPolicy.ALWAYS, RestartPolicy.NEVER, "v1.34.9", False),
            (RestartPolicy.ALWAYS, RestartPolicy.NEVER, "v1.35.0", True),
            (RestartPolicy.ALWAYS, RestartPolicy.NEVER, "", True),
            (RestartPolicy.NEVER, RestartPolicy.ALWAYS, "v1.34.9", True),
            (RestartPolicy.NEVER, RestartPolicy.ALWAYS, "v1.35.0", False),
            (RestartPolicy.NEVER, RestartPolicy.ALWAYS, "", True),
        ],
    )
    def test_the_restart_policy_is_that_of_the_kubelet_there(
        self, of_pod: RestartPolicy, own: RestartPolicy, kubelet: str, *, skipped: bool
    ) -> None:
        pod = member("web-0", container(restart_policy=of_pod, own_restart_policy=own))
        found = planned(World((pod,), kubelets={"node-a": kubelet}))
        assert chosen(found) == ([] if skipped else ["web-0"])
        if skipped:
            assert why(found)["web-0"] == "container app would not be started again (restartPolicy Never)"

    def test_what_cannot_be_restarted_beside_what_can_is_named(self) -> None:
        side = container("side", restart_policy=RestartPolicy.NEVER)
        pods = (
            member("web-0", container(), side),
            member("web-1", side, phase="Succeeded"),
            member("web-2", container()),
        )
        of = run("app", "side")
        found = planned(World(pods), of)
        assert [row.containers for row in found.create] == [("app",)]
        assert [*barred_containers(kind_of(World(pods), of), found.rows)] == [
            "web-0: container side would not be started again (restartPolicy Never)"
        ]

    def test_a_node_whose_name_fits_in_no_label_is_skipped_with_a_reason(self) -> None:
        """Admission could not write it on a request."""
        long, longest = (member(f"web-{n}", node="n" * n) for n in (64, 63))
        found = planned(World((long, longest)), run(max_unavailable=Amount(2)))
        assert chosen(found) == ["web-63"]
        assert why(found)["web-64"].startswith("the name of its node is longer than 63 characters")

    def test_only_what_is_left_of_a_pod_is_asked_for(self) -> None:
        pod = member("web-0", container("app", started_at=AFTER), container("side"), container("other"))
        (row,) = planned(World((pod,)), run("side", "app", "missing")).create
        assert row.containers == ("side",)

    @pytest.mark.parametrize(
        ("of", "left", "side", "stage"),
        [
            (run("app"), ("side",), {}, "skipped"),
            (run("app"), ("app", "side"), {}, "skipped"),
            (run("app", "side"), ("side",), {}, "waiting"),
            (run("app", "side"), ("app", "side"), {}, "waiting"),
            (run("app", "side"), ("side",), {"started_at": AFTER, "ready": False}, "getting ready"),
            (run("app", "side"), ("side",), {"running": False, "ready": False}, "getting ready"),
            (run("app", "side"), ("side",), {"started_at": AFTER}, "skipped"),
        ],
        ids=["alone", "not seen yet", "of two", "of two, not seen", "the other starts", "it ended", "it was restarted"],
    )
    def test_a_container_that_is_removed_from_a_pod_is_no_failure(
        self, of: Run, left: tuple[str, ...], side: dict[str, Any], stage: str
    ) -> None:
        """Its request has failed for that. The other container of the run gets another request."""
        there = {"app": container("app"), "side": container("side", **side)}
        pod = replace(member("web-0", *(there[name] for name in left)), ready=side.get("ready", True))
        states = (
            RecreateState("app", StatePhase.FAILED, reason=Reason.CONTAINER_NOT_FOUND),
            RecreateState("side", StatePhase.FAILED, reason=Reason.EARLIER_FAILURE),
        )
        request = asked(of, pod, RequestPhase.COMPLETED, states=states[: len(of.options.containers)])
        found = planned(World((pod,), (request,)), of)
        assert stages(found) == {"web-0": stage}
        assert [(row.containers, row.failed) for row in found.create] == [(("side",), request.request.name)] * (
            stage == "waiting"
        )
        assert found.end is (End.DONE if stage == "skipped" else None)

    def test_the_rest_of_a_pod_from_which_a_container_was_removed_waits_for_its_node(self) -> None:
        of = run("app", "side")
        pod = replace(member("web-0", container("side", started_at=AFTER, ready=False), node="node-b"), ready=False)
        states = (
            RecreateState("app", StatePhase.FAILED, reason=Reason.CONTAINER_NOT_FOUND),
            RecreateState("side", StatePhase.FAILED, reason=Reason.EARLIER_FAILURE),
        )
        request = asked(of, pod, RequestPhase.COMPLETED, states=states)
        for down, stage in ((frozenset[str](), "getting ready"), (frozenset({"node-b"}), "put off")):
            assert stages(planned(World((pod,), (request,), down=down), of)) == {"web-0": stage}

    def test_a_container_that_is_removed_from_a_pod_hides_no_failure_of_another(self) -> None:
        pod, of = member("web-0", container("side")), run("app", "side")
        states = (
            RecreateState("app", StatePhase.FAILED, reason=Reason.CONTAINER_NOT_FOUND),
            RecreateState("side", StatePhase.FAILED, reason=Reason.DEADLINE),
        )
        request = asked(of, pod, RequestPhase.COMPLETED, states=states)
        assert planned(World((pod,), (request,)), of).end is End.FAILED
        both = (states[0], RecreateState("side", StatePhase.RECREATING))
        busy = asked(of, pod, RequestPhase.RECREATING, states=both)
        assert stages(planned(World((pod,), (busy,)), of)) == {"web-0": "recreating"}, "not until it has ended"

    def test_a_container_that_is_added_to_a_pod_is_judged_by_its_own_start(self) -> None:
        pod, late = member("web-0", container("side")), container("app", started_at=AFTER)
        none, starting = (replace(late, container_id="", running=False), Skip.NOT_RUNNING), (late, Skip.RECENT)
        for there, skip in (none, starting):
            added = replace(pod, pod=replace(pod.pod, containers={**pod.pod.containers, "app": there}))
            assert [row.skip for row in planned(World((added,))).rows] == [skip]
        before = replace(pod, pod=replace(pod.pod, containers={"app": container("app")}))
        assert chosen(planned(World((before,)))) == ["web-0"]

    @pytest.mark.parametrize(
        ("created", "restarts", "restarted"),
        [("2026-01-01T11:50:00Z", 0, True), ("2026-01-01T11:50:00Z", 1, False), ("2026-01-01T11:59:00Z", 0, False)],
    )
    def test_a_first_start_after_a_change_may_have_the_files_from_before(
        self, created: str, restarts: int, *, restarted: bool
    ) -> None:
        app, until = container(started_at="2026-01-01T11:58:00Z", restart_count=restarts), "2026-01-01T11:55:00Z"
        pod = replace(member("web-0", app, created=created), config={"app": (replace(USES, use=Use.VOLUME),)})
        found = planned(World((pod,)), run(objects=(f"ConfigMap web (LOG) {until}",), since=until))
        assert chosen(found) == ["web-0"] * restarted
        if not restarted:
            assert [row.skip for row in found.rows] == [Skip.RECENT]

    def test_restarted_since_a_time_of_ones_own(self) -> None:
        pod = member("web-0", container(started_at="2026-01-01T11:30:00Z"))
        assert chosen(planned(World((pod,)), run(since="2026-01-01T11:40:00Z"))) == ["web-0"]
        assert chosen(planned(World((pod,)), run(since="2026-01-01T11:20:00Z"))) == []

    def test_what_is_as_old_as_the_run_is_not_left_out(self) -> None:
        """Kubelet's times are whole seconds: who cannot tell which was first restarts it."""
        of = run()
        assert chosen(planned(World((member("web-0", created=of.started),)), of)) == ["web-0"]
        assert chosen(planned(World((member("web-0", container(started_at=of.started)),)), of)) == ["web-0"]

    def test_while_the_workload_is_being_rolled_out(self) -> None:
        world = World(PODS, workload=workload(3, rolling="1 of 3 pods are updated"))
        found = planned(world)
        assert chosen(found) == []
        rolling = "the rollout of deployment.apps/web is not finished: 1 of 3 pods are updated"
        assert found.wait.why == rolling
        assert set(why(found).values()) == {found.wait.why}
        assert found.wait.command == "kubectl describe deployment.apps/web -n default"
        assert chosen(planned(world, run(force=True))) == ["web-0"]


class TestEnds:
    def test_a_stale_container_that_can_never_be_restarted_is_left_out(self) -> None:
        """Another one of the pod was restarted. One that is not stale is not left out."""
        of = run("app", "side", stale=True)
        side = container("side", restart_policy=RestartPolicy.NEVER)
        pod = member("web-0", container(), side, config={"side": (USES,)})
        there = {**recreated(pod).pod.containers, "side": side}
        after, done = replace(pod, pod=replace(pod.pod, containers=there)), succeeded(run("app"), pod)
        found = planned(World((after,), (done,), config=EDITED), of)
        assert (found.end, found.message) == (
            End.LEFT_OUT,
            "web-0: container side would not be started again (restartPolicy Never)",
        )
        fresh = replace(after, config={})
        assert planned(World((fresh,), (done,), config=EDITED), of).end is End.DONE

    def test_the_first_failure_stops_it(self) -> None:
        of = run(max_unavailable=Amount(3))
        world = World(PODS, (failed(of, ONE),))
        found = planned(world, of)
        assert (found.end, found.message) == (End.FAILED, "1 failed, 2 not started")
        assert why(found)["web-0"] == "app: it would not end"
        away = replace(TWO, pod=replace(TWO.pod, node_name="node-z"))
        found = planned(World((ONE, away, THREE), (failed(of, ONE),), down=frozenset({"node-z"})), of)
        assert found.message == "1 failed, 2 not started", "one of them is put off"
        more = planned(world, run(max_unavailable=Amount(3), max_failures=2))
        assert (more.end, chosen(more)) == (None, ["web-1", "web-2"])
        done = (failed(of, ONE), succeeded(of, TWO), succeeded(of, THREE))
        last = planned(World((ONE, recreated(TWO), recreated(THREE)), done), run(max_failures=2))
        assert last.end is End.FAILED

    def test_what_admission_would_not_have_is_a_failure(self) -> None:
        found = planned(World(PODS, refused={"uid-web-0": "denied"}))
        assert (found.end, why(found)["web-0"]) == (End.FAILED, "denied")

    @pytest.mark.parametrize(
        ("reason", "stage"),
        [
            (Reason.POD_GONE, "deleted"),
            (Reason.POD_REPLACED, "deleted"),
            (Reason.POD_DELETING, "deleted"),
            (Reason.LEFT_DOWN, "failed"),
        ],
    )
    def test_pods_come_and_go(self, reason: Reason, stage: str) -> None:
        of = run()
        assert stages(planned(World((ONE,), (failed(of, ONE, reason),)), of)) == {"web-0": stage}

    @pytest.mark.parametrize(("disrupted", "end"), [(True, None), (False, End.FAILED)])
    def test_an_evicted_pod_is_no_failure_of_the_run(self, end: End | None, *, disrupted: bool) -> None:
        """The pod object stays, with phase Failed. A pod that ends because its container was stopped is a failure."""
        of = run()
        evicted = replace(member("web-0", phase="Failed"), ready=False, disrupted=disrupted)
        found = planned(World((evicted, TWO), (failed(of, evicted, Reason.POD_ENDED),)), of)
        assert (found.end, stages(found)["web-0"]) == (end, "deleted" if disrupted else "failed")
        assert why(found)["web-0"] == ("the pod was evicted" if disrupted else "app: it would not end")

    def test_one_failed_container_fails_its_pod(self) -> None:
        of = run("app", "side")
        states = (
            RecreateState("app", StatePhase.SUCCEEDED),
            RecreateState("side", StatePhase.FAILED, "still runs", reason=Reason.STILL_RUNS),
        )
        pod = member("web-0", container("app"), container("side"))
        half = asked(of, pod, RequestPhase.COMPLETED, states=states)
        found = planned(World((recreated(pod),), (half,)), of)
        assert (found.end, stages(found), why(found)) == (
            End.FAILED,
            {"web-0": "failed"},
            {"web-0": "side: still runs"},
        )
        assert stages(planned(World((), (half,)), of)) == {"web-0": "deleted"}

    def test_pods_that_are_no_more(self) -> None:
        of = run()
        world = World((), (succeeded(of, ONE), failed(of, TWO), asked(of, THREE)), workload(0))
        found = planned(world, of)
        assert stages(found) == {"web-0": "done", "web-1": "deleted", "web-2": "deleted"}
        assert found.end is End.DONE
        going = replace(ONE, pod=replace(ONE.pod, deleting=True))
        assert stages(planned(World((going,), (failed(of, ONE),)), of)) == {"web-0": "deleted"}

    def test_a_pod_without_a_workload_that_is_no_more_was_not_recreated(self) -> None:
        """Nobody replaces it, so its end is not what was asked for."""
        of = run(target=Target("db"))
        gone = planned(World((), (failed(of, ONE, Reason.POD_GONE),)), of)
        assert (gone.end, gone.message) == (End.LEFT_OUT, "web-0: the pod was deleted")
        assert planned(World((), (failed(of, ONE, Reason.POD_GONE), succeeded(of, TWO))), of).end is End.DONE

    def test_a_first_part_counts_only_what_says_something_about_the_rest(self) -> None:
        of = run(first=1, max_failures=2, max_unavailable=Amount(3))
        bad = planned(World(PODS, (failed(of, ONE),)), of)
        assert bad.end is End.FAILED, "not paused"
        gone = planned(World((TWO, THREE), (failed(of, ONE, Reason.POD_GONE),)), of)
        assert (gone.end, chosen(gone)) == (None, ["web-1"])
        daemons = {"node-a": NodeDaemon("node-a", ready=True), "node-b": NodeDaemon("node-b", ready=False)}
        away = replace(ONE, pod=replace(ONE.pod, node_name="node-b"))
        off = planned(World((away, TWO, THREE), (failed(of, away, Reason.NO_ANSWER),), daemons=daemons), of)
        assert (stages(off)["web-0"], off.end, chosen(off)) == ("put off", None, ["web-1"])

    def test_a_failed_pod_is_a_failure_also_beside_one_that_is_put_off(self) -> None:
        of = run(max_failures=2)
        daemons = {"node-a": NodeDaemon("node-a", ready=True), "node-b": NodeDaemon("node-b", ready=False)}
        away = replace(TWO, pod=replace(TWO.pod, node_name="node-b"))
        found = planned(World((ONE, away), (failed(of, ONE),), daemons=daemons), of)
        assert found.end is End.FAILED

    def test_a_chosen_container_that_is_never_restarted_is_named_at_the_end(self) -> None:
        job = container("job", restart_policy=RestartPolicy.NEVER)
        of, pod = run("app", "job"), member("web-0", container("app"), job)
        done = recreated(pod)
        done = replace(done, pod=replace(done.pod, containers={**done.pod.containers, "job": job}))
        whole = planned(World((done,), (succeeded(run("app"), pod),)), of)
        assert (whole.end, whole.message) == (
            End.LEFT_OUT,
            "web-0: container job would not be started again (restartPolicy Never)",
        )
        every = run()
        every = replace(every, options=replace(every.options, containers=()))
        assert planned(World((done,), (succeeded(run("app"), pod),)), every).end is End.DONE, "nobody has named it"

    @pytest.mark.parametrize(("pods", "more"), [(10, ""), (11, " and 1 more"), (13, " and 3 more")])
    def test_of_pods_that_are_left_out_ten_are_named(self, pods: int, more: str) -> None:
        job = container("job", restart_policy=RestartPolicy.NEVER)
        done = [
            replace(each, pod=replace(each.pod, containers={**each.pod.containers, "job": job}))
            for each in map(recreated, members(pods))
        ]
        found = planned(World(tuple(done), tuple(succeeded(run("app"), each) for each in done)), run("app", "job"))
        assert found.message.count("container job would not be started again") == 10
        assert found.message.endswith(f"(restartPolicy Never){more}")

    @pytest.mark.parametrize(
        ("there", "pods", "end", "why_not"),
        [
            (None, (), End.LEFT_OUT, "was deleted"),
            (None, (recreated(ONE),), End.DONE, ""),
            (workload(2), (), End.LEFT_OUT, "owns no pods any more"),
            (workload(0), (), End.DONE, ""),
            (workload(2, deleting=True), (), End.LEFT_OUT, "was deleted"),
            (workload(2, deleting=True), (recreated(ONE),), End.LEFT_OUT, "was deleted"),
            (workload(2, deleting=True), (recreated(ONE), TWO), None, ""),
        ],
    )
    def test_a_workload_that_is_gone_has_left_its_pods_alone(
        self, there: Workload | None, pods: tuple[Member, ...], end: End | None, why_not: str
    ) -> None:
        """After `kubectl delete --cascade=orphan`, another workload owns them, and they have the old data."""
        of = run(max_unavailable=Amount(2))
        found = planned(World(pods, (succeeded(of, ONE),), there), of)
        assert (found.end, found.message) == (end, f"deployment.apps/web {why_not}" if why_not else "")
        other = run(target=Target("pods app=web", selector="app=web"))
        assert planned(World((), (succeeded(other, ONE),)), other).end is End.DONE

    @pytest.mark.parametrize("options", [{}, {"whole_pod": True}, {"reload": True}, {"patch": True}])
    def test_a_workload_whose_last_pod_was_deleted_gets_the_next_one_soon(self, options: dict[str, Any]) -> None:
        """So a run ends without it only if the controller does not create it."""
        of = run(**options)
        known = World((), (asked(of, ONE),), workload(1))
        found = planned(known, of)
        assert (found.end, found.message) == (End.LEFT_OUT, "deployment.apps/web owns no pods any more")
        wait = found.wait_before_end
        assert wait.why == "waiting for new pods of deployment.apps/web, it has 0 of 1"
        assert wait.command == "kubectl describe deployment.apps/web -n default"
        for other in (
            replace(known, workload=None),
            replace(known, workload=workload(1, deleting=True)),
            replace(known, workload=workload(0)),
            replace(known, aborted=frozenset({"run"})),
            replace(known, members=(replace(TWO, created=AFTER),)),
        ):
            ended = planned(other, of)
            assert (ended.end is None, ended.wait_before_end) == (False, NO_WAIT)

    @pytest.mark.parametrize("there", [None, workload(2, deleting=True)])
    def test_a_node_is_not_waited_for_once_the_workload_is_deleted(self, there: Workload | None) -> None:
        """The run could not be resumed when the node is back, because its target does not exist any more."""
        of, daemons = run(), {"node-a": NodeDaemon("node-a", ready=True), "node-b": NodeDaemon("node-b", ready=False)}
        away = member("web-1", node="node-b")
        known = World((recreated(ONE), away), (succeeded(of, ONE),), workload(2), daemons=daemons)
        off = planned(known, of)
        assert (off.end, off.wait_before_end.why) == (End.PUT_OFF, off.message), "else it may be back soon"
        found = planned(replace(known, workload=there), of)
        assert (found.end, found.wait_before_end) == (End.LEFT_OUT, NO_WAIT)
        assert found.message == "deployment.apps/web was deleted"

    def test_a_failure_in_its_own_words(self) -> None:
        of = run("app", "side")
        states = (
            RecreateState("app", StatePhase.FAILED, "was not begun", reason=Reason.EARLIER_FAILURE),
            RecreateState("side", StatePhase.FAILED, "still runs", reason=Reason.STILL_RUNS),
        )
        both = asked(of, ONE, RequestPhase.COMPLETED, states=states)
        assert why(planned(World((ONE,), (both,)), of)) == {"web-0": "side: still runs"}
        bare = asked(of, ONE, RequestPhase.COMPLETED, message="pod has an odd name")
        assert why(planned(World((ONE,), (bare,)), of)) == {"web-0": "pod has an odd name"}
        silent = asked(of, ONE, RequestPhase.COMPLETED)
        assert why(planned(World((ONE,), (silent,)), of)) == {"web-0": "no reason was recorded"}

    def test_aborted(self) -> None:
        found = planned(World(PODS, aborted=frozenset({"run"})))
        assert (found.end, found.message, found.phase) == (End.ABORTED, "the run was aborted", RunPhase.CLEANING_UP)
        assert planned(World(PODS, aborted=frozenset({"other"}))).end is None

    def test_the_first_part_then_somebody_is_asked(self) -> None:
        of = run(first=2, max_unavailable=Amount(3))
        found = planned(World(PODS), of)
        assert chosen(found) == ["web-0", "web-1"]
        assert why(found)["web-2"] == "waiting for the first 2 pods"
        half = World((recreated(ONE), TWO, THREE), (succeeded(of, ONE), asked(of, TWO)))
        assert (planned(half, of).end, chosen(planned(half, of))) == (None, [])
        assert planned(half, of).wait.why == "", "while a pod is under way it goes on"
        part = World((recreated(ONE), recreated(TWO), THREE), (succeeded(of, ONE), succeeded(of, TWO)))
        found = planned(part, of)
        assert (found.end, found.message) == (End.PAUSED, "the first part of the run is done, 1 left")
        assert chosen(planned(part, of, allowed=Allowed(1))) == ["web-2"]


class TestRetries:
    """`resume --retry-failed`: the failed requests stay, and each pod gets another one."""

    def retried(self, world: World) -> World:
        return replace(world, retried=frozenset(each.request.uid for each in world.requests))

    def test_what_was_restarted_and_never_got_ready_is_restarted_again(self) -> None:
        of = run()
        world = World((recreated(ONE, ready=False), TWO), (failed(of, ONE, Reason.DEADLINE),))
        assert planned(world, of).end is End.FAILED, "without --retry-failed"
        found = planned(self.retried(world), of)
        assert (found.end, chosen(found), stages(found)["web-0"]) == (None, ["web-0"], "waiting")

    def test_of_several_containers_those_that_were_recreated_are_left_alone(self) -> None:
        of = run("app", "side")
        states = (RecreateState("app", StatePhase.SUCCEEDED), RecreateState("side", StatePhase.FAILED))
        pod = member("web-0", container("app"), container("side"))
        world = World((recreated(pod),), (asked(of, pod, RequestPhase.COMPLETED, states=states),))
        (row,) = planned(self.retried(world), of).create
        assert row.containers == ("side",)

    def test_that_its_configuration_has_not_changed_since_does_not_matter(self) -> None:
        of = run(containers=(), stale=True)
        pod = member("web-0", config={"app": (USES,)})
        bad = failed(run(stale=True), pod, Reason.DEADLINE)
        world = World((recreated(pod, ready=False),), (replace(bad, run=of),), config=EDITED)
        (row,) = planned(self.retried(world), of).create
        assert row.containers == ("app",)

    @pytest.mark.parametrize("status", ["", "open", "well", "failed"])
    def test_once_it_has_its_next_request_that_one_counts(self, status: str) -> None:
        of = run()
        before = failed(of, ONE, Reason.DEADLINE)
        after = {"open": asked(of, ONE), "well": succeeded(of, ONE), "failed": failed(of, ONE)}
        requests = (before, again(after[status], before)) if status else (before,)
        world = replace(World((recreated(ONE),), requests), retried=frozenset({before.request.uid}))
        stage = {"": "waiting", "open": "requested", "well": "done", "failed": "failed"}[status]
        for known in (world, replace(world, requests=requests[::-1])):
            assert stages(planned(known, of)) == {"web-0": stage}
            by_another = stages(planned(replace(known, retried=frozenset()), of))
            assert by_another == {"web-0": stage if status else "failed"}, "another process knows the requests only"

    @pytest.mark.parametrize(
        ("pod", "reason"),
        [
            (member("web-0", container(running=False)), "container app is not running"),
            (member("web-0", node="node-z"), "the node has no node daemon"),
        ],
    )
    def test_what_cannot_be_restarted_now_has_still_failed(self, pod: Member, reason: str) -> None:
        of = run()
        world = World((pod,), (failed(of, pod, Reason.DEADLINE),), daemons={"node-a": NodeDaemon("node-a", ready=True)})
        found = planned(self.retried(world), of)
        assert (found.end, why(found)) == (End.FAILED, {"web-0": reason})

    def test_what_admission_would_not_have_is_told(self) -> None:
        of = run()
        world = World((ONE,), (failed(of, ONE),), refused={"uid-web-0": "denied"})
        assert why(planned(self.retried(world), of)) == {"web-0": "denied"}

    def test_they_go_first(self) -> None:
        of = run()
        assert chosen(planned(self.retried(World(PODS, (failed(of, TWO),))), of)) == ["web-1"]

    def test_they_are_of_the_part_in_which_they_were_begun(self) -> None:
        of = run(first=1, max_unavailable=Amount(3))
        four = member("web-3")
        first = self.retried(World((ONE, TWO, THREE), (failed(of, ONE),)))
        assert chosen(planned(first, of)) == ["web-0"], "of the first part"
        held = replace(first, members=(replace(ONE, config={"app": (USES,)}), TWO, THREE), config={USES.object: None})
        assert (planned(held, of).end, planned(held, of).wait.why) == (None, "ConfigMap web not found")
        rest = self.retried(World((recreated(ONE), TWO, THREE, four), (failed(of, TWO),)))
        began = Progress(rfc3339(NOW), "host/1", RunPhase.RESTARTING, 1, 4, steps=1)
        rest = replace(rest, requests=(succeeded(of, ONE), replace(rest.requests[0], progress=began)))
        assert chosen(planned(rest, of)) == ["web-1", "web-2", "web-3"], "the user has allowed the rest"

    def test_a_preview_shows_them(self) -> None:
        of = run()
        bad = failed(of, ONE, Reason.DEADLINE)
        later = again(failed(of, ONE), bad)
        world = World((recreated(ONE, ready=False), TWO), (bad, later), retried=frozenset({later.request.uid}))
        assert [[row.pod for row in batch] for batch in make_preview(world, of, NOW).batches] == [["web-0"], ["web-1"]]


class TestAvailability:
    """Whether a pod is available is a fact about the pod, whichever run restarted it."""

    FRESH = replace(
        member("web-0", container(started_at="2026-01-01T12:00:52Z")), ready_since=NOW - timedelta(seconds=6)
    )

    def test_the_next_pod_waits_until_one_that_another_run_restarted_is_ready_for_long_enough(self) -> None:
        world, of = World((self.FRESH, TWO)), run(min_ready=20)
        waits = planned(world, of)
        assert (waits.create, waits.wake_at) == ((), NOW + timedelta(seconds=14))
        assert waits.wait.why == "1 pod is not ready for 20s yet, the limit is 1: web-0"
        assert [row.pod for row in make_plan(world, of, NOW + timedelta(seconds=14)).create] == ["web-1"]
        assert [row.pod for row in planned(world, run()).create] == ["web-1"], "without minReady it is ready"

    def test_the_start_of_its_container_counts_if_readiness_did_not_change_visibly(self) -> None:
        at = NOW - timedelta(seconds=8)
        assert replace(self.FRESH, ready_since=NOW - timedelta(hours=1)).available_at(20) == at + timedelta(seconds=20)
        assert replace(self.FRESH, ready=False).available_at(20) is None
        unknown = member("web-0", container(started_at="", running=False), ready_since=None)
        assert unknown.available_at(20) is None
        assert [row.pod for row in planned(World((unknown, TWO)), run(min_ready=20)).create] == ["web-1"]

    def test_its_own_restart_still_uses_a_disruption_budget(self) -> None:
        again_now = run(min_ready=20, since="2026-01-01T12:00:55Z")
        assert [row.pod for row in planned(World((self.FRESH, TWO)), again_now).create] == ["web-0"]
        held = planned(World((self.FRESH,), budgets=(budget(0),)), again_now)
        assert held.wait.why == "PodDisruptionBudget guard allows no disruption now"
        both = World((self.FRESH, TWO), budgets=(budget(1),))
        wide = planned(both, run(min_ready=20, since="2026-01-01T12:00:55Z", max_unavailable=Amount(2)))
        assert [row.pod for row in wide.create] == ["web-0"], "the budget allows one"


class TestReplacedRuns:
    """A policy has one run at a time: the newer one takes over what the older one has left open."""

    OLD = run(name="old", policy="uid-of-policy")
    NEW = run(name="new", policy="uid-of-policy", started=AFTER, since=AFTER)
    BAD = recreated(ONE, ready=False)

    def test_the_new_run_restarts_the_pod_whose_request_is_open(self) -> None:
        world = World((self.BAD, TWO, THREE), (asked(self.OLD, ONE, RequestPhase.RECREATING),))
        plan = planned(world, self.NEW)
        assert (plan.end, [row.pod for row in plan.create]) == (None, ["web-0"]), "it is down, and counts once"
        assert taken_over(world, self.NEW) == {ONE.pod.uid: list(world.requests)}
        assert taken_over(world, self.OLD) == {}

    def test_its_request_takes_the_place_of_the_other(self) -> None:
        world = World((self.BAD, TWO, THREE), (asked(self.NEW, ONE), asked(self.OLD, ONE, RequestPhase.RECREATING)))
        assert planned(world, self.NEW).create == ()
        assert first_rival(world, self.NEW) is None
        assert first_rival(world, self.OLD) is None

    @pytest.mark.parametrize("other", [run(name="old"), run(name="old", policy="uid-of-another")])
    def test_others_are_left_alone(self, other: Run) -> None:
        world = World((self.BAD, TWO), (asked(other, ONE, RequestPhase.RECREATING),))
        assert planned(world, self.NEW).end is End.RIVAL
        assert taken_over(world, self.NEW) == {}
        assert planned(world, replace(self.NEW, options=replace(self.NEW.options, policy=""))).end is End.RIVAL

    def test_a_request_that_is_done_stays(self) -> None:
        world = World((ONE, TWO), (succeeded(self.OLD, ONE),))
        assert taken_over(world, self.NEW) == {}


class TestRivals:
    def test_the_one_that_began_first_goes_on(self) -> None:
        first, second = run(name="b"), run(name="a", started="2026-01-01T12:00:05Z")
        world = World(PODS, (asked(first, ONE), asked(second, TWO)))
        assert planned(world, first).end is None
        found = planned(world, second)
        assert (found.end, found.message) == (
            End.RIVAL,
            "run b on deployment.apps/web started first: wait for it, or abort it",
        )

    def test_of_two_at_the_same_second_the_name_decides(self) -> None:
        first, second = run(name="a"), run(name="b")
        world = World(PODS, (asked(first, ONE), asked(second, TWO)))
        assert first_rival(world, first) is None
        assert first_rival(world, second) == first

    def test_of_several_the_one_that_began_first_is_told(self) -> None:
        runs = [run(name=name, started=f"2026-01-01T12:00:0{at}Z") for at, name in enumerate(("c", "b", "a"))]
        world = World(PODS, tuple(asked(of, pod) for of, pod in zip(reversed(runs), PODS, strict=True)))
        assert first_rival(world, runs[1]) == runs[0], "a later run is not a rival"
        assert unfinished(kind_of(world, run(name="new", started=AFTER)), NOW) == runs[0]

    def test_another_target_with_a_pod_in_common(self) -> None:
        other = run(name="a", target=Target("pod/web-1"))
        assert first_rival(World(PODS, (asked(other, TWO),)), run(name="b")) == other
        assert unfinished(kind_of(World(PODS, (asked(other, TWO),)), run(name="b")), NOW) == other
        stranger = member("stranger")
        assert first_rival(World(PODS, (asked(other, stranger),)), run(name="b")) is None

    @pytest.mark.parametrize(
        ("end", "open_request", "stands_in_the_way"),
        [
            *((end, False, not end.over) for end in End),
            (None, False, True),
            (None, True, True),
            *((end, True, True) for end in (End.DONE, End.FAILED, End.ABORTED)),
        ],
    )
    def test_a_new_run_waits_for_one_that_is_not_over(
        self, end: End | None, *, open_request: bool, stands_in_the_way: bool
    ) -> None:
        """It is over if its process has recorded so. Today's pods do not matter, nor its requests that have failed."""
        old = run(name="old", started="2026-01-01T11:59:00Z")
        for last in (succeeded(old, ONE), failed(old, ONE)):
            written = replace(last, progress=Progress(AFTER, "laptop/42", RunPhase.RESTARTING, 1, 2, end=end))
            requests = (written, asked(old, TWO)) if open_request else (written,)
            for pods in (PODS, (recreated(ONE), recreated(TWO)), ()):
                found = unfinished(kind_of(World(pods, requests), run(name="new")), NOW)
                assert found == (old if stands_in_the_way else None)

    def test_a_run_without_a_record_of_its_end_stands_in_the_way(self) -> None:
        """Its process was killed. The user says whether it goes on."""
        old = run(name="old", started="2026-01-01T11:59:00Z")
        world = World((recreated(ONE),), (succeeded(old, ONE),))
        assert unfinished(kind_of(world, run(name="new")), NOW) == old
        aborted = replace(world.requests[0].request, aborted=AFTER)
        ended = replace(world, requests=(replace(world.requests[0], request=aborted),))
        assert unfinished(kind_of(ended, run(name="new")), NOW) is None
        assert unfinished(kind_of(World(PODS), run(name="new")), NOW) is None

    def test_a_policys_run_that_another_has_replaced_stands_in_nobodys_way(self) -> None:
        """Its process was ended by the policy, and recorded no end."""
        options = replace(run().options, policy="config")
        old = replace(run(name="old", started="2026-01-01T11:59:00Z"), options=options)
        new = replace(run(name="new"), options=options)
        end = Progress(AFTER, "manager/1", RunPhase.OVER, 1, 1, end=End.DONE)
        world = World(PODS, (succeeded(old, ONE), replace(succeeded(new, TWO), progress=end)))
        assert unfinished(kind_of(world, run(name="users", started=AFTER)), NOW) is None
        alone = replace(world, requests=world.requests[:1])
        assert unfinished(kind_of(alone, run(name="users", started=AFTER)), NOW) == old

    @pytest.mark.parametrize(("version", "is_rival"), [("apps/v1beta1", True), ("example.com/v1", False)])
    def test_a_workload_of_another_api_group_is_another_target(self, version: str, *, is_rival: bool) -> None:
        of, stranger = run(name="b"), member("stranger")
        other = run(name="a", target=replace(of.target, api_version=version))
        assert first_rival(World(PODS, (asked(other, stranger),)), of) == (other if is_rival else None)

    def test_a_run_is_not_its_own_rival(self) -> None:
        of = run()
        assert unfinished(kind_of(World(PODS, (succeeded(of, ONE),)), of), NOW) is None


def test_another_wait_changes_nothing_else_of_a_row() -> None:
    row = Row(*(each.name for each in fields(Row)))  # type: ignore[arg-type]  # any values do
    assert row.waiting_for(NO_WAIT) == replace(row, wait=NO_WAIT)
