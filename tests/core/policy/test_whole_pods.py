"""A policy that may restart whole pods: for changes that init containers use, and for no others."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from crrd.core.config.parts import Part
from crrd.core.config.references import Kind, Reference, Use
from crrd.core.policy.course import is_repaired, make_run
from crrd.core.policy.observed import Data, Look, Observed, Running, UseKey, observe, read_pod
from crrd.core.policy.problems import problems
from crrd.core.policy.reasons import PolicyReason
from crrd.core.policy.triggers import find_wanted
from crrd.core.policy.types import ConfigChange, Policy, PolicyStatus, RunRecord, Schedule
from crrd.core.policy.v1alpha1 import read_policy, write_status
from crrd.core.rollout.image.following import TemplateChange, TemplateImages
from crrd.core.rollout.run import Target
from crrd.core.rollout.waits import Skip
from tests.core.policy.test_decide import PLAIN, History, app, at, message, reason, text

ALLOWED = replace(PLAIN, config=ConfigChange(10, allow_pod_restart=True))
OF_INIT = Reference(Kind.CONFIG_MAP, "init", Use.ENV_FROM)
OF_APP = Reference(Kind.CONFIG_MAP, "app", Use.ENV_FROM)
ALL = ("data.*",)
INIT: UseKey = ("setup", Part(Kind.CONFIG_MAP, "init", ALL))
APP: UseKey = ("app", Part(Kind.CONFIG_MAP, "app", ALL))
BOTH: UseKey = ("app", Part(Kind.CONFIG_MAP, "init", ALL))


def setup(started: float = -3600, pod: str = "web-0", *uses: Reference, **changes: Any) -> Running:
    made = Running(pod, "setup", at(started), uses or (OF_INIT,), ready=True, is_init=True)
    return replace(made, **changes)


def main(started: float = -3600, pod: str = "web-0", *uses: Reference) -> Running:
    return app(started, pod, "app", *(uses or (OF_APP,)), ready=True)


def data(values: Mapping[UseKey, tuple[str, float | None]]) -> dict[UseKey, Data]:
    return {key: Data(value, None if at_ is None else at(at_)) for key, (value, at_) in values.items()}


OLD = data({INIT: ("a", None), APP: ("a", None)})
NEW_INIT, NEW_APP = data({INIT: ("b", 99), APP: ("a", None)}), data({INIT: ("a", None), APP: ("b", 99)})
NEW = data({INIT: ("b", 99), APP: ("b", 99)})


def runs_of(history: History, seconds: float, known: Mapping[UseKey, Data], *running: Running) -> list[tuple[Any, ...]]:
    """Return the runs that are wanted: whether for whole pods, and for which containers."""
    look = Look(history.policy, Observed(running, known), at(seconds))
    return [(each.pods, each.containers) for each in find_wanted(look).runs]


@pytest.mark.parametrize(
    ("known", "pods", "containers"),
    [(NEW_INIT, True, ("setup",)), (NEW_APP, False, ("app",)), (NEW, True, ("setup",))],
)
def test_the_user_of_a_change_decides_what_restarts(
    known: Mapping[UseKey, Data], containers: tuple[str, ...], *, pods: bool
) -> None:
    history = History(ALLOWED)
    history.look(1, OLD, setup(), main())
    begins = history.look(109, known, setup(), main())
    assert begins.run is not None
    assert (begins.run.pods, begins.run.containers) == (pods, containers)
    made = make_run(ALLOWED, begins.run, Target("t")).options
    assert (made.whole_pod, made.containers) == (pods, () if pods else ("app",))
    said = "policy web: ConfigMap init changed, which setup uses; restarting whole pods"
    assert (begins.run.reason == said) is pods
    assert (said in message(begins)) is pods


def test_one_pod_restart_is_enough_for_both() -> None:
    history = History(ALLOWED)
    history.look(1, OLD, setup(), main())
    first = history.look(109, NEW, setup(), main())
    assert runs_of(history, 109, NEW, setup(), main()) == [(True, ("setup",)), (False, ("app",))]
    history.end(120)
    after = history.look(121, NEW, setup(112), main(113))
    assert (first.run is not None, after.run, reason(after)) == (True, None, PolicyReason.IDLE)


def test_a_restart_that_did_not_run_the_init_container_is_not_enough() -> None:
    history = History(ALLOWED)
    history.look(1, OLD, setup(), main())
    assert runs_of(replaced(history, 109), 115, NEW, setup(), main(112)) == [(True, ("setup",))]


def replaced(history: History, seconds: float) -> History:
    history.look(seconds, NEW, setup(), main())
    return history


def test_a_pod_without_the_init_container_gets_a_plain_restart() -> None:
    history, other = History(ALLOWED), main(-3600, "other-0")
    history.look(1, OLD, setup(), main(), other)
    history.look(109, NEW, setup(), main(), other)
    history.end(120)
    then = history.look(121, NEW, setup(112), main(113), other)
    assert then.run is not None
    assert (then.run.pods, then.run.containers) == (False, ("app",))


def test_all_changes_of_a_pod_settle_before_it_restarts() -> None:
    history, late = History(ALLOWED), data({INIT: ("b", 105), APP: ("b", 99)})
    history.look(1, OLD, setup(), main())
    history.look(106, late, setup(), main())
    waits = history.look(110, late, setup(), main())
    assert (waits.run, reason(waits), waits.wake_at) == (None, PolicyReason.SETTLING, at(115))
    begins = history.look(115, late, setup(), main())
    assert begins.run is not None
    assert begins.run.pods


def test_a_container_alone_does_not_wait_for_other_pods() -> None:
    history, late = History(ALLOWED), data({INIT: ("b", 105), APP: ("b", 99)})
    pods = setup(-3600, "other-0"), main()
    history.look(1, OLD, *pods)
    begins = history.look(110, late, *pods)
    assert begins.run is not None
    assert not begins.run.pods


def test_a_restart_of_the_pods_takes_over_from_one_of_their_containers() -> None:
    history = History(ALLOWED)
    history.look(1, OLD, setup(), main())
    plain = history.look(109, NEW_APP, setup(), main())
    later = data({INIT: ("b", 150), APP: ("b", 99)})
    assert plain.run is not None
    assert history.look(151, later, setup(), main()).run == plain.run
    taken = history.look(160, later, setup(), main())
    assert taken.run is not None
    assert taken.run.pods
    assert history.look(170, data({INIT: ("b", 150), APP: ("c", 158)}), setup(), main()).run == taken.run


def test_a_restart_of_other_pods_does_not_take_over() -> None:
    history, pods = History(ALLOWED), (setup(-3600, "other-0"), main())
    history.look(1, OLD, *pods)
    plain = history.look(109, NEW_APP, *pods)
    later = data({INIT: ("b", 150), APP: ("b", 99)})
    assert history.look(170, later, *pods).run == plain.run


def test_an_image_is_given_first() -> None:
    policy = replace(ALLOWED, template_image=True)
    history = History(policy)
    change = TemplateChange("app", "i:2", ("i:1",), (("web-0", "node-a"),), "rest")
    found = {"template": TemplateImages(changes=(change,))}
    history.look(1, OLD, setup(), main(), **found)
    gives = history.look(50, OLD, setup(), main(), **found)
    assert gives.run is not None
    assert gives.run.image == "i:2"
    during = history.look(120, NEW, setup(), main(), **found)
    assert during.run is not None
    assert (during.run.image, during.run.pods) == ("i:2", False)


@pytest.mark.parametrize(
    ("first", "second", "repaired"),
    [(112, 113, True), (-3600, 113, False), (112, -3600, True)],
)
def test_a_failed_run_is_repaired_once_the_init_containers_have_run(
    first: float, second: float, *, repaired: bool
) -> None:
    record = RunRecord(
        "r",
        "configChange",
        ("setup",),
        text(109),
        text(109),
        1,
        objects=(f"ConfigMap init (data.*) {text(109)}",),
        pods=True,
    )
    look = Look(ALLOWED, Observed((setup(first), main(second, "web-0", OF_INIT))), at(200))
    assert is_repaired(look, record) is repaired


def test_other_triggers_restart_no_init_container() -> None:
    for policy in (
        replace(ALLOWED, config=ALLOWED.config, schedule=Schedule("* * * * *", "UTC")),
        replace(ALLOWED, max_age=600),
    ):
        history = History(policy)
        history.look(1, OLD, setup(), main())
        begins = history.look(700, OLD, setup(), main())
        assert begins.run is not None
        assert (begins.run.pods, begins.run.containers) == (False, ("app",))


def test_pods_on_nodes_that_are_down_wait() -> None:
    history = History(ALLOWED)
    history.look(1, OLD, replace(setup(), node="b"), replace(main(), node="b"))
    down = {"b": "node b is not ready"}
    waits = history.look(109, NEW_INIT, replace(setup(), node="b"), replace(main(), node="b"), down=down)
    assert (waits.run, reason(waits)) == (None, PolicyReason.NODES)


# What is observed of pods

INITS = [{"name": "setup", "envFrom": [{"configMapRef": {"name": "init"}}]}, {"name": "idle"}]


def pod(**spec: Any) -> dict[str, Any]:
    ran = {"terminated": {"startedAt": "2026-01-01T11:00:00Z"}}
    runs = {"running": {"startedAt": "2026-01-01T11:00:05Z"}}
    return {
        "metadata": {"name": "web-0", "creationTimestamp": "2026-01-01T10:59:00Z"},
        "spec": {"containers": [{"name": "app"}], "initContainers": INITS, **spec},
        "status": {
            "phase": "Running",
            "initContainerStatuses": [{"name": "setup", "ready": True, "state": ran}],
            "containerStatuses": [{"name": "app", "ready": True, "state": runs}],
        },
    }


def chosen(**changes: Any) -> Policy:
    config = {"allowPodRestart": True, **changes.pop("config", {})}
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}
    return read_policy({"spec": {"targetRef": target, "triggers": {"configChange": config}, **changes}})


def found(policy: Policy, **spec: Any) -> Observed:
    return observe(policy, [read_pod(pod(**spec), at(0))], {})


@pytest.mark.parametrize(
    ("policy", "there"),
    [
        (chosen(), ["setup"]),
        (chosen(containers=["setup"]), ["setup"]),
        (chosen(containers=["app"]), []),
        (chosen(config={"ignore": ["init"]}), []),
        (chosen(config={"allowPodRestart": False}), []),
    ],
)
def test_only_init_containers_that_count_are_observed(policy: Policy, there: list[str]) -> None:
    seen = found(policy)
    initial = [each for each in seen.running if each.is_init]
    assert [each.name for each in initial] == there
    assert [(each.uses, each.started, each.ready) for each in initial] == [((OF_INIT,), at(-3600), True) for _ in there]
    reported = {each.reason for each in problems(Look(policy, seen, at(0)))}
    counts = "init" not in (policy.config.ignore if policy.config else ())
    assert (PolicyReason.UNREACHED in reported) is (counts and not there)
    assert PolicyReason.CONTAINER not in reported


def test_a_pod_that_must_not_restart_is_named() -> None:
    both = [{"name": "app"}, {"name": "end", "restartPolicy": "Never"}]
    shown = pod(containers=both, restartPolicy="Never")
    policy = chosen()
    seen = observe(policy, [read_pod(shown, at(0))], {})
    assert [each.barred for each in seen.running if each.is_init] == [Skip.POD_WOULD_END]
    (barred,) = [
        each.message
        for each in problems(Look(policy, seen, at(0)))
        if "the restartPolicy of container app or of its pod is not Always (web-0)" in each.message
    ]
    assert barred.startswith("the whole pod may end")


def test_a_debug_container_that_stays_in_the_pod_bars_nothing() -> None:
    """An ephemeral container is in the spec for ever, and never starts again."""
    seen = found(chosen(), ephemeralContainers=[{"name": "debugger-x"}])
    assert {each.barred for each in seen.running} == {None}


# What is stored


def test_the_record_says_so_and_older_managers_see_no_new_field_without_need() -> None:
    record = RunRecord("r", "configChange", ("setup",), text(1), text(1), 1)
    for pods in (True, False):
        status = PolicyStatus(run=replace(record, pods=pods))
        written = write_status(status)
        assert written["run"]["pods"] is (pods or None)
        kept = {key: value for key, value in written["run"].items() if value is not None}
        assert read_policy({"status": {"run": kept}}).status.run == status.run


def test_it_needs_node_daemons() -> None:
    spec = {"selector": {"matchLabels": {"a": "b"}}, "triggers": {"configChange": {"allowPodRestart": True}}}
    assert read_policy({"spec": spec}).error == ""
    assert read_policy({"spec": spec}, patch=True).error == (
        "spec.triggers.configChange.allowPodRestart needs node daemons, and the manager runs without them (--via patch)"
    )
