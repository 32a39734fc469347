"""What a policy does next: nothing is restarted without a change it could see, and nothing twice for one change."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from crrd.core.config.kept import NodeUse
from crrd.core.config.parts import Part
from crrd.core.config.references import Kind, Reference, Use
from crrd.core.policy.config import due
from crrd.core.policy.course import ended, make_run
from crrd.core.policy.decide import Decision, decide
from crrd.core.policy.observed import Data, Look, Observed, Running, Stopped, UseKey, read_pod, used_parts
from crrd.core.policy.outcome import Outcome
from crrd.core.policy.reasons import PolicyReason
from crrd.core.policy.schedule import MOST_WINDOWS
from crrd.core.policy.types import (
    Budget,
    ConfigChange,
    Policy,
    PolicyStatus,
    RunRecord,
    Schedule,
    TargetRef,
    UsedObject,
    Window,
)
from crrd.core.rollout.phases import End
from crrd.core.rollout.run import Amount, Target
from tests.support.worlds import BUDGET

START = datetime(2026, 1, 1, 12, tzinfo=UTC)
USE = Reference(Kind.CONFIG_MAP, "cfg", Use.ENV_FROM)
FILE = Reference(Kind.CONFIG_MAP, "cfg", Use.VOLUME)
ALL = ("data.*",)
KEY: UseKey = ("app", Part(Kind.CONFIG_MAP, "cfg", ALL))
OTHER: UseKey = ("app", Part(Kind.CONFIG_MAP, "other", ALL))
SIDE: UseKey = ("side", Part(Kind.CONFIG_MAP, "cfg", ALL))
PLAIN = Policy(
    "shop",
    "web",
    "u1",
    "1",
    1,
    "2026-01-01T12:00:00Z",
    BUDGET,
    TargetRef("apps/v1", "Deployment", "web"),
    config=ConfigChange(10),
)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def text(seconds: float) -> str:
    return at(seconds).strftime("%Y-%m-%dT%H:%M:%SZ")


def app(
    started: float = -3600, pod: str = "web-0", name: str = "app", *uses: Reference, ready: bool = False
) -> Running:
    return Running(pod, name, at(started), uses or (USE,), ready=ready)


def of_keys(*names: str) -> Reference:
    return Reference(Kind.CONFIG_MAP, "cfg", Use.ENV, frozenset(names), frozenset(names))


def part(*names: str) -> Part:
    return Part(Kind.CONFIG_MAP, "cfg", names)


def data(value: str, changed: float | None = None, *keys: UseKey) -> dict[UseKey, Data]:
    return {key: Data(value, None if changed is None else at(changed)) for key in keys or (KEY,)}


class History:
    """A policy over a series of decisions. Each decision gets the status that the one before it returned."""

    def __init__(self, policy: Policy = PLAIN) -> None:
        self.policy = policy
        self.last: Decision | None = None

    def look(
        self, seconds: float, known: Mapping[UseKey, Data] | None = None, *running: Running, **found: Any
    ) -> Decision:
        self.last = decide(self.policy, Observed(running or (app(),), known or {}, **found), at(seconds))
        self.policy = replace(self.policy, status=self.last.status, conditions=self.last.conditions)
        return self.last

    def end(self, seconds: float, end: End = End.DONE, *, message: str = "", **left: tuple[str, ...]) -> None:
        """End the run. `left` is as in `Outcome`."""
        assert self.policy.status.run is not None
        status = ended(self.policy, self.policy.status.run, Outcome(end, **left), message=message, now=at(seconds))
        self.policy = replace(self.policy, status=status)


def reason(decision: Decision) -> str:
    return next(str(each["reason"]) for each in decision.conditions if each["type"] == "Ready")


def message(decision: Decision) -> str:
    return next(str(each["message"]) for each in decision.conditions if each["type"] == "Ready")


class TestNodes:
    """Pods whose node is down start no run, and get one once the node is back."""

    DOWN: Mapping[str, str] = {"b": "node b is not ready"}
    PODS = (app(), replace(app(pod="web-1"), node="b"))

    def test_others_are_restarted_and_the_rest_later(self) -> None:
        history = History()
        history.look(1, data("a"), *self.PODS)
        history.look(100, data("b", 99), *self.PODS, down=self.DOWN)
        first = history.look(109, data("b", 99), *self.PODS, down=self.DOWN)
        assert first.run is not None
        history.end(120, End.PUT_OFF)
        pods = (app(started=115), self.PODS[1])
        waits = history.look(121, data("b", 99), *pods, down=self.DOWN)
        assert (waits.run, reason(waits)) == (None, PolicyReason.NODES)
        back = history.look(500, data("b", 99), *pods)
        assert back.run is not None
        assert back.run.name == first.run.name, "its requests are known"
        history.end(510)
        assert reason(history.look(511, data("b", 99), app(started=115), app(505, "web-1"))) == PolicyReason.IDLE

    def test_alone_they_start_no_run(self) -> None:
        for policy in (PLAIN, replace(PLAIN, config=None, max_age=600)):
            history = History(policy)
            history.look(1, data("a"), *self.PODS[1:], down=self.DOWN)
            history.look(700, data("b", 699), *self.PODS[1:], down=self.DOWN)
            found = history.look(800, data("b", 699), *self.PODS[1:], down=self.DOWN)
            assert (found.run, reason(found)) == (None, PolicyReason.NODES)


class TestConfigChange:
    def test_begins_a_run_when_it_has_settled(self) -> None:
        history = History()
        assert reason(history.look(1, data("a"))) == PolicyReason.IDLE
        waits = history.look(100, data("b", 99))
        assert (reason(waits), waits.wake_at, waits.run) == (PolicyReason.SETTLING, at(109), None)
        assert message(waits) == f"ConfigMap cfg changed; waiting until {text(109)} for more changes"
        begins = history.look(109, data("b", 99))
        assert begins.run is not None
        assert (begins.run.containers, begins.run.since, begins.run.started) == (("app",), text(109), text(109))
        assert begins.run.reason == "policy web: ConfigMap cfg changed"
        assert begins.run == begins.status.run
        again = history.look(111, data("b", 99), progress="0 of 3 pods recreated")
        assert again.run == begins.run, "it goes on with it"
        assert message(again) == f"run {begins.run.name}: 0 of 3 pods recreated"
        history.end(120)
        over = history.look(121, data("b", 99), app(115))
        assert (reason(over), over.run) == (PolicyReason.IDLE, None)
        assert reason(history.look(122, data("b", 99))) == PolicyReason.IDLE, (
            "for example a container that could not be restarted"
        )

    def test_that_only_removes_a_key_counts_from_when_it_was_seen(self) -> None:
        """The API server leaves managedFields' times alone in an update that only removes fields."""
        history = History()
        history.look(1, data("a", -60), app(-30))
        history.look(100, data("b", -60), app(-30))
        assert history.look(109, data("b", -60), app(-30)).run is None
        begins = history.look(110, data("b", -60), app(-30)).run
        assert begins is not None
        assert begins.since == text(110)

    def test_that_is_taken_back_restarts_nothing(self) -> None:
        history = History()
        history.look(1, data("a"))
        history.look(100, data("b", 99))
        history.look(104, data("c", 104))
        back = history.look(108, data("a", 108))
        assert (reason(back), back.wake_at) == (PolicyReason.SETTLING, at(118)), "a container may start meanwhile"
        over = history.look(118, data("a", 108))
        assert (reason(over), over.run) == (PolicyReason.IDLE, None)
        history.look(200, data("b", 199))
        history.look(204, data("a", 203))
        assert history.look(300, data("a", 203), app(150)).run is None, "it started between the two"

    def test_that_is_taken_back_restarts_what_started_in_between(self) -> None:
        history = History()
        history.look(1, data("a"))
        history.look(100, data("b", 99))
        history.look(108, data("a", 108))
        assert history.look(118, data("a", 108), app(), app(103, "web-1")).run is not None

    def test_in_the_second_of_the_first_look_counts(self) -> None:
        history = History()
        history.look(1, data("a", 1))
        history.look(1, data("b", 1))
        assert history.look(11, data("b", 1)).run is not None

    def test_that_is_taken_back_after_a_run_began_ends_it(self) -> None:
        """Only containers that started in between are restarted."""
        history, pods = History(), (app(), app(pod="web-1"))
        history.look(1, data("a"), *pods)
        history.look(100, data("b", 99), *pods)
        assert history.look(110, data("b", 99), *pods).run is not None
        pods = (app(111), app(pod="web-1"))
        assert history.look(112, data("a", 112), *pods).run is None
        assert history.policy.status.run is not None
        assert history.policy.status.run.message == "ended because its changes were taken back"
        second = history.look(122, data("a", 112), *pods)
        assert second.run is not None
        assert second.run.objects == (f"ConfigMap cfg (data.*) {text(122)} {text(97)}",)
        history.end(130)
        assert reason(history.look(131, data("a", 112), app(125), app(pod="web-1"))) == PolicyReason.IDLE

    @pytest.mark.parametrize(("started", "restarts"), [(-3600, False), (96, False), (97, True), (111, True)])
    def test_that_is_taken_back_restarts_none_that_cannot_have_it(self, started: int, restarts: bool) -> None:
        """Also if the file was mounted before, when the pod was created."""
        history, pod = History(), replace(app(started, "web-0", "app", FILE), mounted=at(min(started, 50)))
        key = ("app", part())
        history.look(1, data("a", None, key), app(-3600, "web-0", "app", FILE))
        history.look(100, data("b", 99, key), pod)
        history.look(110, data("b", 99, key), pod)
        history.look(112, data("a", 112, key), pod)
        assert (history.look(122, data("a", 112, key), pod).run is not None) is restarts

    def test_during_a_run_begins_another_one(self) -> None:
        history = History()
        history.look(1, data("a"))
        history.look(100, data("b", 99))
        first = history.look(110, data("b", 99)).run
        assert history.look(112, data("c", 111)).run == first, "not before it has settled"
        second = history.look(121, data("c", 111)).run
        assert first is not None
        assert second is not None
        assert (second.since, second.name != first.name) == (text(121), True)

    def test_in_the_second_in_which_a_run_begins_is_not_covered_by_it(self) -> None:
        history = History()
        history.look(1, data("a"))
        history.look(100, data("b", 99))
        first = history.look(109, data("b", 99)).run
        history.look(109.5, data("c", 109))
        history.end(110)
        second = history.look(119, data("c", 109), app(started=109.5)).run
        assert first is not None
        assert second is not None
        assert (second.since, second.name != first.name) == (text(119), True)

    def test_of_another_object_during_a_run_begins_another_one(self) -> None:
        uses = app(-3600, "web-0", "app", USE, replace(USE, name="other"))
        history = History()
        history.look(1, data("a", None, KEY, OTHER), uses)
        assert history.look(110, data("a", None, OTHER) | data("b", 99), uses).run is not None
        history.look(112, data("b", 111, OTHER) | data("b", 99), uses)
        second = history.look(121, data("b", 111, OTHER) | data("b", 99), uses).run
        assert second is not None
        assert second.since == text(121), "a container that is restarted for the first change would not have the second"
        assert second.objects == (f"ConfigMap cfg (data.*) {text(109)}", f"ConfigMap other (data.*) {text(121)}")

    def test_of_two_containers_at_two_times_are_two_runs(self) -> None:
        history = History()
        both = (app(), app(name="side"))
        history.look(1, data("a", None, KEY, SIDE), *both)
        history.look(100, data("a", None, SIDE) | data("b", 99), *both)
        history.look(104, data("b", 103, SIDE) | data("b", 99), *both)
        first = history.look(115, data("b", 103, SIDE) | data("b", 99), *both).run
        assert first is not None
        assert (first.containers, first.since) == (("app",), text(109))
        history.end(116)
        second = history.look(117, data("b", 103, SIDE) | data("b", 99), app(112), both[1]).run
        assert second is not None
        assert (second.containers, second.since) == (("side",), text(113))

    def test_of_an_object_that_two_containers_use_is_one_run(self) -> None:
        history = History()
        both = (app(), app(name="side"))
        history.look(1, data("a", None, KEY, SIDE), *both)
        history.look(100, data("b", 99, KEY, SIDE), *both)
        run = history.look(109, data("b", 99, KEY, SIDE), *both).run
        assert run is not None
        assert run.containers == ("app", "side")

    def test_while_the_manager_was_away_counts_from_the_change(self) -> None:
        history = History()
        history.look(1, data("a"))
        first = history.look(1000, data("b", 500), app(505), app(520, "web-1")).run
        assert first is not None
        assert first.since == text(510)
        history = History()
        history.look(1, data("a"))
        late = history.look(1000, data("b", 500), app(520))
        assert (late.run, reason(late)) == (None, PolicyReason.IDLE), "it has the new data"

    @pytest.mark.parametrize("changed", [None, -100, 5000])
    def test_whose_time_cannot_be_is_of_now(self, changed: float | None) -> None:
        history = History()
        history.look(1, data("a"))
        assert history.look(100, data("b", changed)).status.config[0].since == text(100)

    def test_of_other_keys_is_a_change_only_if_a_container_started_before_it(self) -> None:
        """A rollout that changes which keys are used makes a new record, and leaves the old one to the old pods."""

        def known(**changed: float) -> dict[UseKey, Data]:
            return {("app", part(*names)): Data(f"{names}{at_}", at(at_)) for names, at_ in changed.items()}

        old, new = app(-30, "web-0", "app", of_keys("a")), app(50, "web-1", "app", of_keys("a", "b"))
        history = History()
        history.look(1, known(a=-60), old)
        both = history.look(100, known(a=-60, ab=-60), old, new)
        assert [each.keys for each in both.status.config] == [("a",), ("a", "b")]
        last = history.look(200, known(ab=-60), new)
        assert (last.run, [each.keys for each in last.status.config]) == (None, [("a", "b")])
        history.look(300, known(ab=299), new)
        assert history.look(310, known(ab=299), new).run is not None

    def test_restarts_only_containers_whose_own_keys_have_changed(self) -> None:
        """Two workloads under one selector use other keys of one object, in containers of one name."""
        both = (app(-30, "web-0", "app", of_keys("a")), app(-30, "api-0", "app", of_keys("b")))
        keys: list[UseKey] = [("app", part("a")), ("app", part("b"))]
        history = History()
        history.look(1, data("x", None, *keys), *both)
        changed = data("y", 99, keys[0]) | data("x", None, keys[1])
        history.look(100, changed, *both)
        run = history.look(109, changed, *both).run
        assert run is not None
        assert run.objects == (f"ConfigMap cfg (a) {text(109)}",)
        history.end(120)
        assert history.look(121, changed, app(110, "web-0", "app", of_keys("a")), both[1]).run is None

    def test_of_two_objects_within_settle_is_one_run(self) -> None:
        uses = app(-3600, "web-0", "app", USE, replace(USE, name="other"))
        history = History()
        history.look(1, data("a", None, KEY, OTHER), uses)
        history.look(100, data("a", None, OTHER) | data("b", 99), uses)
        now = data("b", 105, OTHER) | data("b", 99)
        waits = history.look(109, now, uses)
        assert (waits.run, reason(waits), waits.wake_at) == (None, PolicyReason.SETTLING, at(115))
        expected = f"ConfigMap cfg, ConfigMap other changed; waiting until {text(115)} for more changes"
        assert message(waits) == expected
        run = history.look(115, now, uses).run
        assert run is not None
        assert run.since == text(115)
        history.end(120)
        again = app(116, "web-0", "app", USE, replace(USE, name="other"))
        assert history.look(121, now, again).run is None

    def test_leaves_the_records_of_other_objects_alone(self) -> None:
        """Otherwise a run that fails would make a change due that the policy has ignored."""
        uses = app(-3600, "web-0", "app", USE, replace(USE, name="other"))
        history = History()
        history.look(1, data("a", -7200) | data("a", -60, OTHER), uses)
        known = data("b", 99) | data("a", -60, OTHER)
        history.look(100, known, uses)
        history.look(109, known, uses)
        history.end(120, End.FAILED)
        assert [(each.done, each.left) for each in history.policy.status.config] == [("a", text(99)), ("a", "")]

    def test_shows_what_settles_next_and_no_other_change(self) -> None:
        history, both = History(), (app(), app(name="side"))
        history.look(1, data("a", None, KEY, SIDE), *both)
        history.look(100, data("b", 99) | data("a", None, SIDE), *both)
        later = history.look(104, data("b", 99) | data("b", 103, SIDE), *both)
        assert message(later) == f"ConfigMap cfg changed; waiting until {text(109)} for more changes"

    def test_of_another_workload_under_the_policy_is_not_waited_for(self) -> None:
        """Its container has the same name, but uses none of the same objects."""
        both = app(), app(-3600, "api-0", "app", replace(USE, name="other"))
        history = History()
        history.look(1, data("a", None, KEY, OTHER), *both)
        for seconds in range(100, 112, 4):
            decision = history.look(seconds, data("b", 99) | data(str(seconds), seconds, OTHER), *both)
        assert decision.run is None
        last = data("b", 99) | data("108", 108, OTHER)
        first = history.look(110, last, *both).run
        assert first is not None
        assert first.objects == (f"ConfigMap cfg (data.*) {text(109)}",)
        assert history.look(118, last, *both).run == first, "it waits for a run that does not concern it"
        history.end(119)
        assert [each.done for each in history.policy.status.config] == ["b", "a"]
        second = history.look(120, last, app(115), both[1]).run
        assert second is not None
        assert second.objects == (f"ConfigMap other (data.*) {text(118)}",)

    def test_that_never_settles_is_shown(self) -> None:
        history, unsettled = History(), dict[UseKey, datetime]()
        history.look(1, data("a"))
        for seconds in range(100, 709, 8):
            found = history.look(seconds, data(str(seconds), seconds), unsettled=unsettled)
            unsettled = dict(found.unsettled)
            assert (found.run, reason(found)) == (
                None,
                PolicyReason.SETTLING if seconds < 700 else PolicyReason.UNSETTLED,
            )
        assert message(found).startswith(f"ConfigMap cfg has changed again and again since {text(100)}")
        assert history.look(720, data("708", 708), unsettled=unsettled).unsettled == {}

    def test_that_is_reverted_leaves_those_alone_that_never_had_it(self) -> None:
        history = History()
        history.look(1, data("a"))
        history.look(100, data("b", 99))
        history.look(108, data("a", 108))
        run = history.look(118, data("a", 108), app(), app(103, "web-1")).run
        assert run is not None
        assert run.objects == (f"ConfigMap cfg (data.*) {text(118)} {text(97)}",)

    def test_of_an_object_that_has_never_been_there_has_no_record(self) -> None:
        missing = {KEY: Data("", None)}
        assert History().look(1, missing, missing=("ConfigMap cfg not found",)).status.config == ()

    def test_before_the_policy_was_created_is_not_its_concern(self) -> None:
        history = History()
        assert history.look(1, data("a", -60)).run is None
        assert history.look(500, data("a", -60)).run is None

    @pytest.mark.parametrize(
        ("started", "created", "restarted"),
        [(20, 0, True), (48, 0, True), (52, 0, True), (53, 0, False), (50, 50, False), (47, 50, True)],
    )
    def test_between_the_creation_and_the_first_look(self, started: float, created: float, *, restarted: bool) -> None:
        """An object may be created together with its pods."""
        known = {KEY: replace(data("a", 50)[KEY], created=at(created))}
        assert (History().look(100, known, app(started)).run is not None) is restarted

    @pytest.mark.parametrize(
        ("use", "mounted", "restarted"), [(FILE, 95, True), (FILE, 110, False), (FILE, None, False), (USE, 95, False)]
    )
    def test_a_first_start_has_the_files_of_when_its_pod_was_created(
        self, use: Reference, mounted: float | None, *, restarted: bool
    ) -> None:
        """kubelet has set them up then, and pulls the image after that."""
        (key,) = app(0, "web-0", "app", use).keys
        late = replace(app(125, "web-1", "app", use), mounted=None if mounted is None else at(mounted))
        history = History()
        history.look(1, data("a", None, key), app(0, "web-0", "app", use))
        pods = app(115, "web-0", "app", use), late
        history.look(100, data("b", 99, key), *pods)
        assert (history.look(130, data("b", 99, key), *pods).run is not None) is restarted

    @pytest.mark.parametrize(
        ("writes", "generation", "restarted"),
        [
            ({"create": (-60, ".")}, 1, True),
            ({"create": (-60, ".", "f:image"), "image": (120, "f:image")}, 2, True),
            ({"create": (-60, "."), "odd": (None, "."), "apply": (120, ".")}, 2, True),
            ({"dynamic": (120, ".", "f:image")}, 2, False),
            ({"dynamic": (90, ".", "f:image")}, 2, True),
            ({"label": (120, ".")}, 1, True),
            ({"create": (127, ".")}, 2, True),
        ],
        ids=[
            "created with the pod",
            "another image",
            "two owners",
            "added",
            "added before",
            "the spec is unchanged",
            "its creator has written again",
        ],
    )
    def test_a_container_that_was_added_has_the_files_of_when_it_was_added(
        self, writes: dict[str, tuple[float | str | None, ...]], generation: int, *, restarted: bool
    ) -> None:
        """Not of when its pod was created. The file changed at 99, and the container started at 125."""
        fields: list[dict[str, Any]] = [
            {
                "manager": manager,
                "time": None if not isinstance(when, float | int) else text(when),
                "fieldsV1": {"f:spec": {"f:containers": {'k:{"name":"app"}': {each: {} for each in owned}}}},
            }
            for manager, (when, *owned) in writes.items()
        ]
        volume = {"name": "files", "configMap": {"name": "cfg"}}
        mounts = [{"name": "files", "mountPath": "/etc/app"}]
        state = {"name": "app", "containerID": "containerd://a", "state": {"running": {"startedAt": text(125)}}}
        pod = read_pod(
            {
                "metadata": {
                    "name": "web-0",
                    "creationTimestamp": text(-60),
                    "generation": generation,
                    "managedFields": fields,
                },
                "spec": {"volumes": [volume], "containers": [{"name": "app", "volumeMounts": mounts}]},
                "status": {"containerStatuses": [state]},
            },
            at(130),
        )
        (key,) = pod.running[0].keys
        assert (History().look(130, data("b", 99, key), *pod.running).run is not None) is restarted

    def test_of_an_object_that_is_used_elsewhere_says_nothing_of_this_container(self) -> None:
        other = app(20, "web-0", "app", Reference(Kind.CONFIG_MAP, "other", Use.ENV_FROM))
        assert History().look(100, data("a", 50), other).run is None

    def test_only_of_the_containers_that_are_named(self) -> None:
        history = History(replace(PLAIN, containers=("side",)))
        history.look(1, data("a"))
        history.look(100, data("b", 99))
        assert history.look(200, data("b", 99)).run is None

    def test_objects_that_are_not_used_any_more_are_forgotten(self) -> None:
        history = History()
        history.look(1, data("a"))
        kept = history.look(2, {})
        assert [each.name for each in kept.status.config] == ["cfg"], "it is gone, or cannot be read now"
        gone = history.look(3, {}, app(-3600, "web-0", "app", Reference(Kind.SECRET, "tls", Use.ENV_FROM)))
        assert gone.status.config == ()

    def test_a_status_that_somebody_has_spoilt_begins_nothing(self) -> None:
        odd = UsedObject("app", Kind.CONFIG_MAP, "cfg", "a", "soon")
        history = History(replace(PLAIN, status=PolicyStatus((odd,))))
        assert history.look(1, data("a")).run is None
        history.look(100, data("b", 99))
        assert history.look(200, data("b", 99)).run is not None
        history.policy = replace(history.policy, status=replace(history.policy.status, config=(odd,)))
        history.end(201)
        assert history.policy.status.config == (odd,)


class TestImmutable:
    """kubelet keeps an immutable object while a pod uses it, even after it was deleted and created again."""

    OLD = NodeUse(at(-3600), at(-3600), whole=True)

    @staticmethod
    def known(value: str, uid: str, created: float, *, immutable: bool = True) -> dict[UseKey, Data]:
        return {KEY: Data(value, at(created), uid, at(created), immutable)}

    @staticmethod
    def look(
        history: History, seconds: float, known: Mapping[UseKey, Data], *pods: Running, **uses: NodeUse
    ) -> Decision:
        nodes = {(Kind.CONFIG_MAP, "cfg"): uses}
        return history.look(seconds, known, *pods, names=frozenset({"app"}), uses=nodes)

    def replaced(self, **uses: NodeUse) -> History:
        """The object was replaced, and pods use it on these nodes."""
        history = History()
        self.look(history, 1, self.known("a", "u1", -7200), **uses)
        self.look(history, 100, self.known("b", "u2", 99), **uses)
        return history

    def test_a_replaced_object_restarts_nothing_and_is_not_done(self) -> None:
        history = self.replaced(a=self.OLD)
        for seconds, started in ((150, -3600), (200, -3600), (300, 250)):
            found = self.look(history, seconds, self.known("b", "u2", 99), app(started), a=self.OLD)
            assert (found.run, reason(found)) == (None, PolicyReason.IMMUTABLE)
            assert message(found).startswith(
                "ConfigMap cfg is immutable and was replaced under its name; kubelet on a may keep the old data while "
            )
            (record,) = found.status.config
            assert (record.done, record.nodes, record.is_kept) == ("a", ("a",), True)
            assert {each["type"]: each["status"] for each in found.conditions}["Effective"] == "False"
        gap = NodeUse(at(350), at(360), whole=True)
        found = self.look(history, 400, self.known("b", "u2", 99), app(360), a=gap)
        assert (found.run, reason(found)) == (None, PolicyReason.IDLE), "the new pod has the new data"
        assert found.status.config[0].replaced == ""

    def test_a_pod_of_a_rollout_gets_the_old_data_where_an_old_pod_runs(self) -> None:
        history, new = self.replaced(a=self.OLD), NodeUse(at(200), at(210), whole=True)
        found = self.look(history, 300, self.known("b", "u2", 99), app(210), app(211, "web-1"), a=self.OLD, b=new)
        assert (found.run, found.status.config[0].nodes) == (None, ("a",))

    def test_another_leader_does_not_know_of_older_pods(self) -> None:
        listed, pods = NodeUse(at(200), at(210)), (app(210), app(211, "web-1"))
        history = self.replaced(a=self.OLD)
        found = self.look(history, 300, self.known("b", "u2", 99), *pods, a=listed, b=listed)
        assert found.status.config[0].nodes == ("a",), "it is recorded where there were old pods"
        history = History()
        self.look(history, 1, self.known("a", "u1", -7200), a=self.OLD)
        found = self.look(history, 300, self.known("b", "u2", 99), *pods, a=listed, b=listed)
        assert found.status.config[0].nodes == ("a", "b"), "nobody has looked in between"

    def test_a_watch_that_lags_behind(self) -> None:
        history = self.replaced()
        assert history.policy.status.config[0].nodes == ()
        late = NodeUse(at(98), at(99), whole=True)
        found = self.look(history, 110, self.known("b", "u2", 99), app(99), a=late)
        assert (found.run, found.status.config[0].nodes) == (None, ("a",))

    def test_the_same_data_again_is_no_problem(self) -> None:
        history = History()
        self.look(history, 1, self.known("a", "u1", -7200), a=self.OLD)
        again = self.look(history, 100, self.known("a", "u2", 99, immutable=False), a=self.OLD)
        assert (again.run, reason(again)) == (None, PolicyReason.IDLE)
        self.look(history, 200, self.known("b", "u2", 99, immutable=False), a=self.OLD)
        edited = self.look(history, 300, self.known("b", "u2", 99, immutable=False), a=self.OLD)
        assert (edited.run, reason(edited)) == (None, PolicyReason.IMMUTABLE), "kubelet does not see the edit"

    def test_after_two_replacements_the_nodes_have_different_data(self) -> None:
        history = self.replaced(a=self.OLD)
        found = self.look(history, 300, self.known("a", "u3", 299), a=self.OLD, b=NodeUse(at(200), at(200), whole=True))
        assert (reason(found), found.status.config[0].nodes) == (PolicyReason.IMMUTABLE, ("a", "b"))

    def test_an_object_that_was_deleted_is_kept_too(self) -> None:
        history = History()
        self.look(history, 1, self.known("a", "u1", -7200), a=self.OLD)
        gone = {KEY: Data("nothing", None)}
        assert self.look(history, 100, gone, a=self.OLD).run is None
        assert reason(self.look(history, 200, gone, a=self.OLD)) == PolicyReason.IMMUTABLE

    def test_a_pod_that_waits_for_a_deleted_object_gets_the_next_one(self) -> None:
        history, waits = History(), NodeUse(at(150), whole=True)
        self.look(history, 1, self.known("a", "u1", -7200), a=self.OLD)
        self.look(history, 100, {KEY: Data("", None)}, a=self.OLD)
        self.look(history, 151, {KEY: Data("", None)}, a=waits)
        found = self.look(history, 300, self.known("b", "u2", 299), app(300), a=waits)
        assert reason(found) == PolicyReason.SETTLING
        assert found.status.config[0].nodes == ()

    def test_nodes_are_known_while_the_policy_has_no_pods(self) -> None:
        """Pods of another workload still use the object, so new pods get the old data."""
        history = self.replaced(a=self.OLD, b=self.OLD)
        uses = {(Kind.CONFIG_MAP, "cfg"): {"a": self.OLD}}
        empty = decide(history.policy, Observed(uses=uses), at(200))
        assert (reason(empty), empty.status.config[0].nodes) == (PolicyReason.IMMUTABLE, ("a",))
        freed = decide(history.policy, Observed(), at(200))
        assert (reason(freed), freed.status.config[0].nodes) == (PolicyReason.IDLE, ())

    def test_a_part_that_nodes_keep_is_not_done_by_a_run_for_another_one(self) -> None:
        history, two = self.replaced(a=self.OLD), app(-3600, "web-0", "app", USE, replace(USE, name="other"))
        self.look(history, 150, self.known("b", "u2", 99) | data("x", None, OTHER), two, a=self.OLD)
        now = self.known("b", "u2", 99) | data("y", 199, OTHER)
        self.look(history, 200, now, two, a=self.OLD)
        run = self.look(history, 209, now, two, a=self.OLD).run
        assert run is not None
        assert run.objects == (f"ConfigMap other (data.*) {text(209)}",)
        history.end(220)
        assert [each.done for each in history.policy.status.config] == ["a", "y"]

    def test_what_replaces_a_mutable_one_is_read_again(self) -> None:
        history = History()
        self.look(history, 1, self.known("a", "u1", -7200, immutable=False), a=self.OLD)
        self.look(history, 100, self.known("b", "u2", 99), a=self.OLD)
        assert self.look(history, 110, self.known("b", "u2", 99), a=self.OLD).run is not None

    def test_one_that_is_edited_to_be_immutable_is_read_before(self) -> None:
        history = History()
        self.look(history, 1, self.known("a", "u1", -7200, immutable=False), a=self.OLD)
        self.look(history, 100, self.known("a", "u1", -7200), a=self.OLD)
        assert reason(self.look(history, 200, self.known("b", "u2", 150), a=self.OLD)) == PolicyReason.IMMUTABLE

    def test_without_a_record_it_counts_as_kept_for_pods_that_ran_before(self) -> None:
        """A container that has crashed since started after the object was created, and has the old data."""
        found = self.look(History(), 100, self.known("b", "u2", 50), app(60), a=NodeUse(at(-3600), at(-3600)))
        assert (found.run, found.status.config[0].nodes, reason(found)) == (None, ("a",), PolicyReason.IMMUTABLE)
        waited = self.look(History(), 100, self.known("b", "u2", 50), app(52), a=NodeUse(at(45), at(52)))
        assert (waited.run, reason(waited)) == (None, PolicyReason.IDLE), "its pod waited for the object"


class TestOptional:
    def test_a_deleted_object_is_a_change_and_so_is_a_new_one(self) -> None:
        """The container would start without it."""
        history = History()
        history.look(1, data("a"))
        history.look(100, data("nothing"))
        assert history.look(110, data("nothing")).run is not None
        history.end(120)
        history.look(200, data("b", 199), app(115))
        assert history.look(210, data("b", 199), app(115)).run is not None


class TestLeft:
    """Pods that a run could not restart although their nodes work: it would only leave them once more."""

    STUCK = app(pod="web-1")

    def left(self) -> History:
        history = History()
        history.look(1, data("a"), app(), self.STUCK)
        assert history.look(109, data("b", 99), app(), self.STUCK).run is not None
        history.end(120, End.LEFT_OUT, left=("web-1",), message="web-1: container side has not started yet")
        return history

    def test_they_are_tried_again_later(self) -> None:
        history, pods = self.left(), (app(started=115), self.STUCK)
        first = history.policy.status.run
        waits = history.look(121, data("b", 99), *pods)
        assert (waits.run, reason(waits), waits.wake_at) == (None, PolicyReason.RETRY, at(720))
        assert message(waits) == (
            f"run {first and first.name}: web-1: container side has not started yet. "
            f"Trying again at {text(720)}, because pods lack the new data"
        )
        again = history.look(720, data("b", 99), *pods).run
        assert (again and again.name) == (first and first.name), "its requests are known"

    def test_other_pods_do_not_wait_for_them(self) -> None:
        """A node is back."""
        assert self.left().look(130, data("b", 99), app(started=115), app(pod="web-2"), self.STUCK).run is not None

    def test_a_newer_change_does_not_wait_for_them(self) -> None:
        history, pods = self.left(), (app(started=115), self.STUCK)
        assert reason(history.look(130, data("c", 129), *pods)) == PolicyReason.SETTLING
        assert history.look(140, data("c", 129), *pods).run is not None

    def test_a_run_in_between_changes_nothing_about_that(self) -> None:
        history, pods = self.left(), (app(started=115), self.STUCK)
        aged = replace(history.policy, config=None, max_age=600)
        history.policy = replace(aged, config=PLAIN.config)
        assert history.look(121, data("b", 99), *pods).run is not None, "web-1 is too old, too"
        history.end(125, End.LEFT_OUT, left=("web-1",))
        assert reason(history.look(126, data("b", 99), *pods)) == PolicyReason.RETRY

    def test_two_runs_that_leave_pods_do_not_follow_each_other(self) -> None:
        """Of two containers with changes of their own, in two pods that cannot be restarted."""
        other: UseKey = ("side", Part(Kind.CONFIG_MAP, "side", ("data.*",)))
        side = app(-3600, "web-2", "side", Reference(Kind.CONFIG_MAP, "side", Use.ENV_FROM))
        old = data("a") | data("a", None, other)
        new = data("b", 99) | data("b", 100, other)
        history = History()
        history.look(1, old, self.STUCK, side)
        for seconds, pod in ((110, "web-1"), (121, "web-2")):
            assert history.look(seconds, new, self.STUCK, side).run is not None
            history.end(seconds + 1, End.LEFT_OUT, left=(pod,))
        waits = history.look(130, new, self.STUCK, side)
        assert (waits.run, reason(waits), waits.wake_at) == (None, PolicyReason.RETRY, at(711))
        assert len(history.policy.status.left) == 2
        first = history.look(711, new, self.STUCK, side)
        assert (first.run and first.run.containers) == ("app",)
        assert len(history.policy.status.left) == 1

    def test_an_edit_of_the_policy_has_them_tried_at_once(self) -> None:
        history = self.left()
        history.policy = replace(history.policy, generation=2)
        assert history.look(130, data("b", 99), app(started=115), self.STUCK).run is not None

    def test_an_older_crd_drops_no_pause(self) -> None:
        """It has no `status.left`."""
        history = History(replace(PLAIN, config=None, max_age=600))
        assert history.look(1).run is not None
        history.end(5, End.LEFT_OUT)
        history.policy = replace(history.policy, status=replace(history.policy.status, left=()))
        assert reason(history.look(6)) == PolicyReason.RETRY

    def test_once_they_have_started_again_nothing_is_left(self) -> None:
        assert reason(self.left().look(130, data("b", 99), app(115), app(125, "web-1"))) == PolicyReason.IDLE


class TestObstacles:
    @pytest.mark.parametrize(
        ("policy", "found", "why"),
        [
            (replace(PLAIN, error="spec is wrong"), {}, PolicyReason.INVALID),
            (replace(PLAIN, suspended=True), {}, PolicyReason.SUSPENDED),
            (PLAIN, {"stopped": Stopped(PolicyReason.TARGET, "deployment.apps/web not found")}, PolicyReason.TARGET),
            (PLAIN, {"stopped": Stopped(PolicyReason.UNREADABLE, "bind the role")}, PolicyReason.UNREADABLE),
            (PLAIN, {"missing": ("ConfigMap cfg has no key a",)}, PolicyReason.MISSING),
        ],
    )
    def test_nothing_is_begun_and_the_status_says_why(self, policy: Policy, found: dict[str, Any], why: str) -> None:
        history = History()
        history.look(1, data("a"))
        history.look(100, data("b", 99))
        history.policy = replace(policy, status=history.policy.status)
        decision = history.look(200, data("b", 99), **found)
        assert (decision.run, reason(decision)) == (None, why)
        ready, *others = (each for each in decision.conditions if each["type"] != "Effective")
        assert (ready["status"], ready["lastTransitionTime"], ready["observedGeneration"]) == ("False", text(200), 1)
        assert [each["status"] for each in others] == (
            []
            if why in (PolicyReason.INVALID, PolicyReason.SUSPENDED, PolicyReason.TARGET)
            else ["False" if why is PolicyReason.UNREADABLE else "True"]
        )

    def test_pods_that_cannot_be_listed_are_not_said_to_be_missing(self) -> None:
        by_labels = replace(PLAIN, target=None, selector="app=web")
        decision = decide(
            by_labels, Observed(stopped=Stopped(PolicyReason.UNREADABLE, "400: the selector is wrong")), at(1)
        )
        assert [each["type"] for each in decision.conditions] == ["Ready", "ConfigReadable"]

    def test_a_condition_keeps_the_time_of_its_last_transition(self) -> None:
        history = History()
        history.look(1, data("a"))
        assert {each["lastTransitionTime"] for each in history.look(50, data("a")).conditions} == {text(1)}

    def test_a_failed_run_stops_the_policy_until_the_next_change(self) -> None:
        history = History()
        history.look(1, data("a"))
        history.look(100, data("b", 99))
        failed = history.look(110, data("b", 99)).run
        assert failed is not None
        history.end(120, End.FAILED, message="web-0: it broke")
        stopped = history.look(121, data("b", 99))
        assert (stopped.run, reason(stopped)) == (None, PolicyReason.FAILED)
        assert message(stopped) == (
            f"run {failed.name} failed: web-0: it broke; no run starts until the policy or the configuration changes, "
            f"or `kubectl recreate resume {failed.name} --retry-failed -n shop` succeeds"
        )
        fresh = history.look(122, data("b", 99), app(115))
        assert reason(fresh) == PolicyReason.FAILED, "also when nothing is due"
        edited = History(replace(history.policy, generation=2))
        again = edited.look(130, data("b", 99)).run
        assert again is not None
        assert again.name != failed.name
        history.look(200, data("c", 199))
        assert history.look(209, data("c", 199)).run is not None

    def failed(self, *running: Running) -> History:
        """A policy whose run for a change has failed."""
        history = History()
        history.look(1, data("a"), *running)
        history.look(110, data("b", 99), *running)
        history.end(120, End.FAILED, message="web-0: it broke")
        return history

    def test_what_a_user_did_after_a_failed_run_counts(self) -> None:
        before = (app(pod="web-0"), app(pod="web-1"), app(pod="web-1", name="side"))
        history = self.failed(*before)
        left = history.look(130, data("b", 99), app(115, "web-0", ready=True), *before[1:])
        assert reason(left) == PolicyReason.FAILED
        assert left.wake_at == at(145), "no watch reports what becomes of it"
        restarted = app(140, "web-0", ready=True), app(141, "web-1"), before[2]
        assert reason(history.look(145, data("b", 99), *restarted)) == PolicyReason.FAILED, "not ready yet"
        ready = app(140, "web-0", ready=True), app(141, "web-1", ready=True), before[2]
        over = history.look(160, data("b", 99), *ready)
        assert (reason(over), over.run) == (PolicyReason.IDLE, None)
        assert over.status.run is not None
        assert not over.status.run.failed
        assert over.status.run.message == (
            "web-0: it broke; after that, all containers of the run were restarted and are ready"
        )
        assert [each.done for each in over.status.config] == ["b"]
        assert reason(history.look(170, data("b", 99), *before)) == PolicyReason.IDLE, "as after any run"
        assert history.look(310, data("c", 300), *ready).run is not None

    def test_a_ready_container_counts_after_min_ready(self) -> None:
        history = self.failed(app())
        history.policy = replace(history.policy, budget=replace(BUDGET, min_ready=30))
        assert reason(history.look(169, data("b", 99), app(140, ready=True))) == PolicyReason.FAILED
        assert reason(history.look(170, data("b", 99), app(140, ready=True))) == PolicyReason.IDLE

    def test_the_workload_says_how_long_a_container_must_be_ready_unless_the_policy_does(self) -> None:
        history = self.failed(app())
        found = data("b", 99), app(140, ready=True)
        assert reason(history.look(169, *found, workload_min_ready=30)) == PolicyReason.FAILED
        assert reason(history.look(170, *found, workload_min_ready=30)) == PolicyReason.IDLE
        history = self.failed(app())
        history.policy = replace(history.policy, budget=replace(BUDGET, min_ready=0))
        assert reason(history.look(169, *found, workload_min_ready=30)) == PolicyReason.IDLE

    def test_containers_that_do_not_use_what_changed_do_not_hold_up_the_policy(self) -> None:
        other = app(-3600, "web-1", "app", Reference(Kind.CONFIG_MAP, "other", Use.ENV_FROM))
        history = self.failed(app(), other)
        assert reason(history.look(130, data("b", 99), app(), other)) == PolicyReason.FAILED
        assert reason(history.look(145, data("b", 99), app(140, ready=True), other)) == PolicyReason.IDLE

    def test_a_window_holds_runs_and_ends_them(self) -> None:
        policy = replace(PLAIN, window=Window(Schedule("10 12 * * *", "UTC"), 600))
        history = History(policy)
        history.look(1, data("a"))
        history.look(100, data("b", 99))
        waits = history.look(110, data("b", 99))
        assert (waits.run, reason(waits), waits.wake_at) == (None, PolicyReason.WINDOW, at(600))
        assert message(waits) == f"the window opens at {text(600)}"
        opens = history.look(600, data("b", 99))
        assert opens.run is not None
        assert (opens.run_until, opens.wake_at) == (at(1200), at(1200))
        closed = history.look(1201, data("b", 99))
        assert (closed.run, closed.status.run) == (None, opens.run)
        assert history.look(600 + 24 * 3600, data("b", 99)).run == opens.run, "the next day it goes on"

    def test_two_runs_keep_their_distance(self) -> None:
        history = History(replace(PLAIN, budget=replace(BUDGET, min_interval=600)))
        history.look(1, data("a"))
        history.look(100, data("b", 99))
        history.look(110, data("b", 99))
        history.end(120)
        history.look(200, data("c", 199), app(115))
        waits = history.look(210, data("c", 199), app(115))
        assert (waits.run, reason(waits), waits.wake_at) == (None, PolicyReason.INTERVAL, at(710))
        assert reason(history.look(709, data("c", 199), app(115))) == PolicyReason.INTERVAL, "it began at 110"
        assert history.look(710, data("c", 199), app(115)).run is not None

    def test_a_run_goes_on_while_the_next_one_has_to_wait(self) -> None:
        """Pods that it restarts meanwhile have the newest data."""
        history = History(replace(PLAIN, budget=replace(BUDGET, min_interval=600)))
        history.look(1, data("a"))
        history.look(100, data("b", 99))
        first = history.look(110, data("b", 99)).run
        history.look(120, data("c", 120), app(115), app(pod="web-1"))
        waits = history.look(130, data("c", 120), app(115), app(pod="web-1"))
        assert (waits.run, reason(waits), waits.wake_at) == (first, PolicyReason.RUNNING, at(710))
        then = history.look(710, data("c", 120), app(115), app(pod="web-1")).run
        assert then is not None
        assert then != first
        assert then.since == text(130)

    @pytest.mark.parametrize(("idle_for", "min_ready", "shown"), [(1799, 0, False), (1860, 0, True), (1860, 61, False)])
    def test_a_run_without_progress_makes_the_policy_unready(
        self, idle_for: float, min_ready: int, *, shown: bool
    ) -> None:
        history = History(replace(PLAIN, budget=replace(BUDGET, min_ready=min_ready)))
        history.look(1, data("a"))
        history.look(100, data("b", 99))
        found = history.look(110, data("b", 99), progress="1 pod is unready", idle_for=idle_for)
        assert found.run is not None
        assert reason(found) == (PolicyReason.BLOCKED if shown else PolicyReason.RUNNING)
        assert message(found) == f"run {found.run.name}: 1 pod is unready" + "; no progress for 31m" * shown

    def test_their_distance_counts_from_when_a_window_lets_a_run_start(self) -> None:
        budget, window = replace(BUDGET, min_interval=600), Window(Schedule("0 13 * * *", "UTC"), 3600)
        history = History(replace(PLAIN, budget=budget, window=window))
        history.look(1, data("a"))
        history.look(100, data("b", 99))
        first = history.look(3600, data("b", 99)).run
        assert first is not None
        assert (first.since, first.started) == (text(109), text(3600))
        history.end(3700)
        history.look(3701, data("c", 3700), app(3650))
        waits = history.look(3711, data("c", 3700), app(3650))
        assert (waits.run, reason(waits), waits.wake_at) == (None, PolicyReason.INTERVAL, at(4200))


class TestSchedule:
    POLICY = replace(PLAIN, config=None, schedule=Schedule("0 * * * *", "UTC"))

    def test_begins_a_run_once_for_each_time(self) -> None:
        history = History(self.POLICY)
        assert history.look(1).wake_at == at(3600)
        run = history.look(3601).run
        assert run is not None
        assert (run.trigger, run.since, run.started, run.containers) == ("schedule", text(3600), text(3601), ("app",))
        history.end(3700)
        assert history.look(3701).run is None
        missed = history.look(4 * 3600 + 5).run
        assert missed is not None
        assert missed.since == text(4 * 3600), "only the last of those that were missed"

    def test_lets_a_change_go_first_and_goes_on_after_it(self) -> None:
        """The run may have given the first pod bad data, and the change repairs it."""
        history = History(replace(PLAIN, schedule=Schedule("0 * * * *", "UTC")))
        pods = app(), app(pod="web-1")
        history.look(1, data("a"), *pods)
        first = history.look(3600, data("a"), *pods).run
        assert first is not None
        history.look(3602, data("b", 3602), app(3601), pods[1])
        repair = history.look(3612, data("b", 3602), app(3601), pods[1])
        assert repair.run is not None
        assert repair.run.trigger == "configChange"
        assert history.look(3613, data("b", 3602), app(3601), pods[1]).run == repair.run
        history.end(3620)
        again = history.look(3621, data("b", 3602), app(3614), app(3616, "web-1")).run
        assert again == replace(first, started=text(3621)), "pods that it has not restarted get their turn"
        history.end(3622)
        assert history.look(3623, data("b", 3602), app(3614), app(3616, "web-1")).run is None

    def test_that_is_added_later_counts_from_then(self) -> None:
        history = History()
        history.look(1, data("a"))
        history.policy = replace(history.policy, generation=2, schedule=Schedule("0 3 * * *", "UTC"))
        day = 24 * 3600
        added = history.look(day, data("a"))
        assert (added.run, added.wake_at) == (None, at(day + 15 * 3600)), "the next 03:00"
        assert history.look(day + 15 * 3600 + 1, data("a")).run is not None

    @pytest.mark.parametrize("edited", [Schedule("0 14 * * *", "UTC"), Schedule("0 13 * * *", "Atlantic/Azores")])
    def test_that_is_edited_counts_from_then(self, edited: Schedule) -> None:
        history = History(replace(self.POLICY, schedule=Schedule("0 13 * * *", "UTC")))
        assert history.look(3601).run is not None
        history.end(3700)
        history.policy = replace(history.policy, generation=2, schedule=edited)
        assert history.look(3 * 3600).run is None, "14:00 and 13:00 of the Azores were an hour ago"

    def test_that_is_taken_away_and_put_back_counts_from_then(self) -> None:
        history = History(self.POLICY)
        assert history.look(3601).run is not None
        history.end(3700)
        for seconds, schedule in ((3800, None), (10 * 3600 + 5, self.POLICY.schedule)):
            history.policy = replace(history.policy, schedule=schedule)
            assert history.look(seconds).run is None

    def test_that_was_missed_runs_within_its_deadline(self) -> None:
        history = History(replace(self.POLICY, schedule=Schedule("0 * * * *", "UTC", 600)))
        history.look(1)
        run = history.look(3600 + 600).run
        assert run is not None
        assert (run.since, history.policy.status.skipped) == (text(3600), "")

    def test_that_was_missed_on_sunday_does_not_run_on_monday(self) -> None:
        """START is a Thursday."""
        history = History(replace(self.POLICY, schedule=Schedule("0 4 * * 0", "UTC", 3600)))
        sunday, week = (2 * 24 + 16) * 3600, 7 * 24 * 3600
        assert history.look(1).wake_at == at(sunday)
        late = history.look(sunday + 30 * 3600)
        skipped = f"{text(sunday)}: no run could start within 1h"
        assert (late.run, late.status.skipped, late.wake_at) == (None, skipped, at(sunday + week))
        assert (reason(late), message(late)) == (
            PolicyReason.IDLE, f"no container has to be restarted; skipped {skipped}"
        )  # fmt: skip
        again = history.look(sunday + 30 * 3600 + 1)
        assert (again.run, again.status) == (None, late.status)
        run = history.look(sunday + week).run
        assert run is not None
        assert (run.since, history.policy.status.skipped) == (text(sunday + week), "")

    def test_is_not_late_while_it_waits_for_its_window(self) -> None:
        window = Window(Schedule("0 22 * * *", "UTC"), 3600)
        policy = replace(self.POLICY, schedule=Schedule("0 13 * * *", "UTC", 600), window=window)
        history = History(policy)
        history.look(1)
        assert reason(history.look(3601)) == PolicyReason.WINDOW
        run = history.look(10 * 3600).run
        assert run is not None
        assert run.since == text(3600)
        late = History(policy).look(10 * 3600 + 601)
        assert (late.run, late.status.skipped) == (None, f"{text(3600)}: no run could start within 10m")

    def test_is_not_late_while_it_waits_for_min_interval(self) -> None:
        window, budget = Window(Schedule("0 13,15 * * *", "UTC"), 600), replace(BUDGET, min_interval=5400)
        policy = replace(self.POLICY, schedule=Schedule("0,5 13 * * *", "UTC", 60), window=window, budget=budget)
        history = History(policy)
        assert history.look(3600).run is not None
        history.end(3610)
        assert reason(history.look(3900)) == PolicyReason.INTERVAL
        run = history.look(3 * 3600 + 60).run
        assert run is not None
        assert run.since == text(3900), "minInterval is over at 14:30, and the window opens at 15:00"

    def test_is_not_late_while_it_waits_for_its_window_and_then_for_min_interval(self) -> None:
        """It is due at 13:00, the window opens at 14:30, and another trigger starts a run then."""
        window, budget = Window(Schedule("30 14 * * *", "UTC"), 4 * 3600), replace(BUDGET, min_interval=7200)
        policy = replace(self.POLICY, schedule=Schedule("0 13 * * *", "UTC", 3600), window=window, budget=budget)
        history = History(policy)
        assert reason(history.look(3605)) == PolicyReason.WINDOW
        other = RunRecord("web-o", "configChange", ("app",), text(9000), text(9000), 1, finished=text(9300))
        history.policy = replace(history.policy, status=replace(history.policy.status, run=other))
        assert reason(history.look(9600)) == PolicyReason.INTERVAL
        assert reason(history.look(9000 + 3601)) == PolicyReason.INTERVAL
        run = history.look(9000 + 7201).run
        assert run is not None
        assert (run.since, history.policy.status.skipped) == (text(3600), "")

    def test_is_not_late_while_the_window_is_closed_again(self) -> None:
        """It is due at 13:50, ten minutes before the window closes, and nobody looks until then."""
        window = Window(Schedule("0 8 * * *", "UTC"), 6 * 3600)
        policy = replace(self.POLICY, schedule=Schedule("50 13 * * *", "UTC", 3600), window=window)
        history, due, opens = History(policy), 3600 + 50 * 60, 20 * 3600
        history.look(1)
        assert reason(history.look(due + 601)) == PolicyReason.WINDOW
        assert reason(history.look(due + 3601)) == PolicyReason.WINDOW
        run = history.look(opens + 50 * 60).run
        assert run is not None
        assert run.since == text(due)
        late = History(policy).look(opens + 50 * 60 + 1)
        assert (late.run, late.status.skipped) == (None, f"{text(due)}: no run could start within 1h")

    def test_waits_through_so_many_windows(self) -> None:
        window = Window(Schedule("*/2 * * * *", "UTC"), 60)
        policy = replace(self.POLICY, schedule=Schedule("0 13 * * *", "UTC", 36_000), window=window)
        assert History(policy).look(3600 + (MOST_WINDOWS - 1) * 120).run is not None
        assert History(policy).look(3600 + MOST_WINDOWS * 120).run is None

    def test_runs_nothing_that_was_missed_while_suspended(self) -> None:
        history = History(replace(self.POLICY, schedule=Schedule("0 * * * *", "UTC", 3600)))
        history.look(1)
        history.policy = replace(history.policy, suspended=True)
        for seconds in (100, 3605):
            assert reason(history.look(seconds)) == PolicyReason.SUSPENDED
        history.policy = replace(history.policy, error="spec is wrong")
        assert reason(history.look(3610)) == PolicyReason.INVALID
        history.policy = replace(history.policy, suspended=False, error="")
        resumed = history.look(3700)
        assert (resumed.run, resumed.wake_at) == (None, at(7200))
        assert message(resumed).endswith(f"; skipped {text(3600)}: the policy was suspended")
        run = history.look(7200).run
        assert run is not None
        assert (run.since, history.policy.status.skipped) == (text(7200), "")

    @pytest.mark.parametrize("why", [PolicyReason.UNREADABLE, PolicyReason.TARGET])
    @pytest.mark.parametrize("is_edited", [False, True])
    def test_counts_also_while_an_obstacle_lasts(self, why: PolicyReason, *, is_edited: bool) -> None:
        """For example until the role is bound."""
        history, stopped = History(self.POLICY), Stopped(why, "bind the role")
        if is_edited:
            history = History(replace(self.POLICY, schedule=Schedule("0 3 * * *", "UTC")))
            history.look(1)
            history.policy = replace(history.policy, schedule=self.POLICY.schedule, generation=2)
        for seconds in (100, 3605):
            assert (history.look(seconds, stopped=stopped).run, history.policy.status.skipped) == (None, "")
        run = history.look(3700).run
        assert run is not None
        assert run.since == text(3600)

    def test_does_not_count_from_before_an_edit_or_a_suspension_that_an_obstacle_follows(self) -> None:
        history, stopped = History(self.POLICY), Stopped(PolicyReason.UNREADABLE, "bind the role")
        history.policy = replace(history.policy, suspended=True)
        history.look(100)
        history.policy = replace(history.policy, suspended=False, generation=2)
        history.look(3605, stopped=stopped)
        assert history.policy.status.skipped == f"{text(3600)}: the policy was suspended"
        assert history.look(3700).run is None
        history.policy = replace(history.policy, schedule=Schedule("30 * * * *", "UTC"), generation=3)
        history.look(5460, stopped=stopped)
        assert history.look(5500).run is None, "13:30 was before the edit"
        assert history.look(9000).run is not None

    def test_says_nothing_of_a_suspension_without_a_scheduled_time(self) -> None:
        history = History(self.POLICY)
        assert history.look(3600).run is not None
        history.end(3700)
        for suspended in (True, False):
            history.policy = replace(history.policy, suspended=suspended)
            history.look(3800)
        assert history.policy.status.skipped == ""

    def test_without_containers_there_is_nothing_to_do(self) -> None:
        found = decide(self.POLICY, Observed(), at(3601))
        assert (found.run, found.status.scheduled) == (None, self.POLICY.created)

    def test_a_policy_without_a_time_of_creation_begins_now(self) -> None:
        assert History(replace(self.POLICY, created="")).look(3601).run is None


class TestEdits:
    """A run goes on after an edit of its policy only as far as it fits."""

    POLICY = replace(PLAIN, config=None, schedule=Schedule("0 * * * *", "UTC"))
    BOTH = (app(), app(name="side"))

    @pytest.mark.parametrize(
        ("edit", "why"),
        [
            ({"schedule": None, "max_age": 99999}, "the policy no longer has the trigger schedule"),
            ({"containers": ("side",)}, "the policy no longer has all of its containers"),
            ({"target": TargetRef("apps/v1", "Deployment", "other")}, "the policy has another target"),
            ({"target": None, "selector": "app=web"}, "the policy has another target"),
        ],
    )
    def test_end_a_run_that_does_not_fit_any_more(self, edit: dict[str, Any], why: str) -> None:
        history = History(self.POLICY)
        history.look(1, None, *self.BOTH)
        run = history.look(3600, None, *self.BOTH).run
        assert run is not None
        history.policy = replace(history.policy, **{"generation": 2, **edit})
        edited = history.look(3605, None, *self.BOTH)
        assert (edited.run, reason(edited)) == (None, PolicyReason.IDLE)
        assert edited.status.run == replace(run, finished=text(3605), message=f"ended because {why}")

    @pytest.mark.parametrize(
        ("before", "edit", "why"),
        [
            ({"ignore": ()}, {"ignore": ("cfg",)}, "not all of its objects count any more (triggers.configChange)"),
            ({"secrets": True}, {"secrets": False}, "not all of its objects count any more (triggers.configChange)"),
            (
                {"allow_pod_restart": True},
                {"allow_pod_restart": False},
                "whole pods must not be restarted any more (triggers.configChange.allowPodRestart)",
            ),
            ({"ignore": ()}, {"ignore": ("other",)}, ""),
            ({"allow_pod_restart": True}, {"allow_pod_restart": True, "settle": 20}, ""),
        ],
    )
    def test_of_which_changes_count_end_a_run_that_is_not_for_one(
        self, before: dict[str, Any], edit: dict[str, Any], why: str
    ) -> None:
        kind, whole = Kind.SECRET if "secrets" in before else Kind.CONFIG_MAP, "allow_pod_restart" in before
        key: UseKey = ("app", Part(kind, "cfg", ALL))
        pod = replace(app(-3600, "web-0", "app", replace(USE, kind=kind)), is_init=whole)
        history = History(replace(PLAIN, config=ConfigChange(**{"settle": 10, **before})))
        history.look(1, data("a", None, key), pod)
        history.look(100, data("b", 99, key), pod)
        run = history.look(109, data("b", 99, key), pod).run
        assert run is not None
        assert run.pods is whole
        config = ConfigChange(**{"settle": 10, **edit})
        history.policy = replace(history.policy, generation=2, config=config)
        counts = config.allow_pod_restart if whole else config.counts(pod.uses[0])
        used = pod if counts else replace(pod, uses=(), is_init=False)
        edited = history.look(112, data("b", 99, key) if used.uses else None, used)
        assert edited.status.run is not None
        assert (edited.run, edited.status.run.message) == (None if why else run, why and f"ended because {why}")

    @pytest.mark.parametrize(("age", "fits"), [(7200, False), (1800, True)])
    def test_of_max_age_end_a_run_for_containers_that_are_not_too_old_any_more(self, age: int, *, fits: bool) -> None:
        history = History(replace(PLAIN, config=None, max_age=3600))
        run = history.look(1).run
        assert run is not None
        history.policy = replace(history.policy, generation=2, max_age=age)
        edited = history.look(5)
        assert edited.status.run is not None
        ended = "" if fits else "ended because maxAge is longer now"
        assert (edited.run, edited.status.run.message) == (run if fits else None, ended)

    def test_a_deletion_that_a_finalizer_delays_ends_all_of_it(self) -> None:
        history = History()
        history.look(1, data("a"))
        history.look(100, data("b", 99))
        history.policy = replace(history.policy, generation=2, deleting=True)
        found = history.look(110, data("b", 99))
        assert (found.run, reason(found), message(found)) == (
            None,
            PolicyReason.SUSPENDED,
            "the policy is being deleted",
        )
        history.policy = replace(history.policy, error="spec.target is missing")
        assert reason(history.look(120, data("b", 99))) == PolicyReason.SUSPENDED

    @pytest.mark.parametrize(("seconds", "counts"), [(3605, True), (7300, False)], ids=["soon", "too late"])
    def test_of_how_the_manager_restarts_lose_no_scheduled_time(self, seconds: float, counts: bool) -> None:
        history = History(replace(self.POLICY, schedule=Schedule("0 */6 * * *", "UTC", 3600)))
        history.look(1, None, *self.BOTH)
        first = history.look(21_600, None, *self.BOTH).run
        assert first is not None
        history.policy = replace(history.policy, patch=True)
        second = history.look(18_000 + seconds, None, *self.BOTH).run
        assert (second and (second.since, second.containers)) == ((first.since, first.containers) if counts else None)
        assert second is None or second.name != first.name

    def test_a_change_that_another_one_has_interrupted_is_brought_again(self) -> None:
        """A container has started in between, and has the other one."""
        history = History()
        for seconds, value, changed in ((1, "a", None), (100, "b", 99), (109, "b", 99), (112, "c", 112)):
            history.look(seconds, data(value, changed))
        history.look(116, data("b", 116))
        history.end(118)
        assert history.look(130, data("b", 116), app(started=113)).run is not None

    @pytest.mark.parametrize(("seconds", "again"), [(108, False), (109, True)])
    def test_a_run_of_an_older_manager_is_judged_by_times_alone(self, seconds: float, *, again: bool) -> None:
        """It has no hashes. A change in the second of its start may be one that it does not bring."""
        history = History()
        history.look(1, data("a"))
        history.look(100, data("b", 99))
        run = history.look(109, data("b", 99)).run
        assert run is not None
        history.policy = history.policy.with_status(replace(history.policy.status, run=replace(run, hashes=())))
        history.look(109.5, data("c", seconds))
        history.end(110)
        found = history.look(120, data("c", seconds), app(started=seconds - 1))
        assert (found.run is not None) is again

    def test_begin_a_run_that_fits(self) -> None:
        history = History()
        known = data("b", 99, KEY, SIDE)
        history.look(1, data("a", None, KEY, SIDE), *self.BOTH)
        history.look(100, known, *self.BOTH)
        first = history.look(109, known, *self.BOTH).run
        history.policy = replace(history.policy, generation=2, containers=("side",))
        second = history.look(112, data("b", 99, SIDE), app(name="side")).run
        assert first is not None
        assert second is not None
        assert (second.containers, second.since, second.name != first.name) == (("side",), first.since, True)

    def test_keep_a_run_that_still_fits(self) -> None:
        history = History(self.POLICY)
        history.look(1)
        run = history.look(3600).run
        edit: dict[str, Any] = {
            "containers": ("app", "side"),
            "budget": replace(BUDGET, max_unavailable=Amount(2)),
            "schedule": Schedule("30 * * * *", "UTC"),
        }
        history.policy = replace(history.policy, generation=2, **edit)
        assert history.look(3605).run == run


class TestMaxAge:
    POLICY = replace(PLAIN, config=None, max_age=600)

    def test_begins_a_run_for_what_is_too_old(self) -> None:
        history = History(self.POLICY)
        running = (app(0), app(300, "web-1", "side"))
        assert history.look(500, None, *running).wake_at == at(600)
        run = history.look(600, None, *running).run
        assert run is not None
        assert (run.containers, run.since, run.started) == (("app",), text(0), text(600))
        history.end(620)
        left = history.look(621, None, *running)
        assert (left.run, left.wake_at) == (None, at(900)), "it could not be restarted"
        assert history.look(1220, None, *running).run is not None

    def test_says_what_it_has_left_and_when_it_tries_again(self) -> None:
        history = History(self.POLICY)
        run = history.look(600, None, app(0)).run
        assert run is not None
        history.end(620, message="0 of 1 pods recreated; web-0: skipped")
        left = history.look(621, None, app(0))
        assert (reason(left), left.wake_at) == (PolicyReason.RETRY, at(1220))
        assert message(left) == (
            f"run {run.name}: 0 of 1 pods recreated; web-0: skipped. Trying again at {text(1220)}, because containers "
            "are older than maxAge"
        )
        assert reason(history.look(622, None, app(610))) == PolicyReason.IDLE, "it has restarted by itself"

    def test_does_not_wait_for_what_it_has_left(self) -> None:
        history = History(self.POLICY)
        history.look(600, None, app(0), app(300, "web-1", "side"))
        history.end(620)
        run = history.look(900, None, app(0), app(300, "web-1", "side")).run
        assert run is not None
        assert run.containers == ("side",)

    def test_counts_from_the_restart_also_after_a_run_that_took_long(self) -> None:
        history = History(self.POLICY)
        history.look(600, None, app(0), app(0, "web-1"))
        history.end(1190)
        assert history.look(1200, None, app(601), app(1100, "web-1")).wake_at == at(1201)
        assert history.look(1201, None, app(601), app(1100, "web-1")).run is not None
        assert History(self.POLICY).look(500, None, app(450)).wake_at == at(1050)


def test_the_run_as_kubectl_recreate_knows_it() -> None:
    budget = Budget(Amount(10, percent=True), 10, 1, 0)
    why = "policy web: ConfigMap cfg changed"
    changes = (f"ConfigMap cfg () {text(10)}",)
    record = RunRecord("web-1", "configChange", ("app",), text(10), text(10), 1, why, changes)
    run = make_run(replace(PLAIN, budget=budget), record, Target("deployment.apps/web"))
    options = run.options
    assert (run.namespace, run.name, run.started, options.containers) == ("shop", "web-1", text(10), ("app",))
    assert (options.stale, options.preflight, options.since) == (False, True, text(10)), "the policy knows who is due"
    assert options.objects == changes
    assert (options.max_unavailable, options.min_ready, options.max_per_node) == (Amount(10, percent=True), 10, 1)


def test_names_of_runs_fit_and_differ() -> None:
    history = History(replace(PLAIN, name="a.very.long.name-of-a-policy-that-goes-on-and-on"))
    history.look(1, data("a"))
    history.look(100, data("b", 99))
    run = history.look(110, data("b", 99)).run
    assert run is not None
    assert run.name.startswith("a-very-long-name-of-a-policy-")
    assert len(run.name) <= 40


def test_uses_of_equal_parts_are_taken_together() -> None:
    one, two = of_keys("a"), replace(of_keys("a"), required=frozenset(), optional=True)
    pods = (app(0, "web-0", "app", one), app(0, "web-1", "app", two), app(0, "web-2", "app", of_keys("b")))
    assert used_parts(pods) == {("app", part("a")): (one, two), ("app", part("b")): (of_keys("b"),)}


def test_without_the_trigger_no_change_is_due() -> None:
    assert due(Look(replace(PLAIN, config=None), Observed(), at(1)), ()) == ([], [])


def files_refreshed(decision: Decision) -> list[tuple[object, object]]:
    return [(each["status"], each["message"]) for each in decision.conditions if each["type"] == "FilesRefreshed"]


@pytest.mark.parametrize(
    "policy", [PLAIN, replace(PLAIN, config=None, max_age=7200), replace(PLAIN, template_image=True)]
)
def test_why_files_may_be_old_is_a_condition_until_a_run_knows_more(policy: Policy) -> None:
    """Runs of all triggers have files refreshed, except for those for images alone."""
    history = History(policy)
    assert files_refreshed(history.look(1, data("a"))) == []
    old = [("False", "pods is forbidden")]
    assert files_refreshed(history.look(2, data("a"), old_files="pods is forbidden")) == old
    assert files_refreshed(history.look(3, data("a"))) == old, "another manager leads"
    assert reason(history.look(4, data("a"))) == PolicyReason.IDLE
    history.policy = replace(history.policy, config=None, max_age=None, template_image=True)
    assert files_refreshed(history.look(5, data("a"))) == [], "its runs read no configuration"
    history.policy = policy
    assert files_refreshed(history.look(6, data("a"), old_files="")) == []
