"""Adoptions while everything happens in between: no controller rolls out a pod, and in the end the template is adopted.

The run may be killed after any write, because it keeps nothing: each step is decided from what its watches show, which
may be old. The controllers have caches that lag, too.
"""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crrd.core.rollout.image.adoption import ADOPTED_BY
from crrd.core.rollout.image.controllers import Write
from tests.support.adoptions import NEW, OLD, Model, image_of, pod_template

KINDS = st.sampled_from(ADOPTED_BY)
HAPPENINGS: dict[str, Callable[[Model], object]] = {
    "step": Model.step,
    "look": Model.look,
    "controller": Model.controller,
    "see": Model.see,
    "see the workload": lambda model: model.see(model.own.partition("/")[0]),
    "see its ReplicaSets": lambda model: model.see("replicasets"),
    "lose a pod": lambda model: model.lose(1),
    "scale up": lambda model: model.scale(min(5, model.workload["spec"]["replicas"] + 1)),
    "scale down": lambda model: model.scale(max(1, model.workload["spec"]["replicas"] - 1)),
}
OFTEN = ("step", "look", "controller", "see", "step", "look", "controller", "see")
MOVES = st.lists(st.sampled_from((*OFTEN, *HAPPENINGS)), max_size=40)


def check_adopted(model: Model) -> None:
    spec, labels = model.workload["spec"], model.workload["metadata"].get("labels", {})
    assert image_of({"spec": spec["template"]["spec"]}) == NEW
    assert (spec.get("paused"), labels) == (None, {})
    assert {image_of(pod) for pod in model.pods()} <= {NEW}
    strategy = spec.get("updateStrategy", {})
    assert strategy.get("type", "RollingUpdate") == "RollingUpdate"
    assert strategy.get("rollingUpdate", {}).get("partition", 0) == 0


@settings(max_examples=150)
@given(KINDS, MOVES)
def test_no_pod_is_rolled_out(kind: str, moves: list[str]) -> None:
    model = Model(kind)
    for move in moves:
        HAPPENINGS[move](model)
    adoption = model.settle()
    assert adoption.done, adoption
    assert model.rollouts == []
    check_adopted(model)


@pytest.mark.parametrize("kind", ADOPTED_BY)
def test_a_template_gets_no_image_that_no_pod_has(kind: str) -> None:
    """The only pod was evicted, and the next one does not exist yet. It would begin with an image that nobody tried."""
    model = Model(kind, replicas=1)
    model.lose(0)
    model.look()
    waits = model.step()
    assert (waits.writes, waits.wait) == ((), f"waiting for a pod of {kind.lower()}.apps/web")
    assert model.settle().done


@pytest.mark.parametrize("kind", ADOPTED_BY)
def test_the_pods_stay_and_a_later_rollout_works(kind: str) -> None:
    model = Model(kind)
    before = model.uids()
    assert model.settle().done
    assert (model.uids(), model.rollouts) == (before, [])
    model.edit()
    model.see()
    model.controller()
    assert model.rollouts


@pytest.mark.parametrize("kind", ADOPTED_BY)
@given(moves=st.lists(st.sampled_from(("step", "look", "controller", "see")), max_size=20), revert=st.booleans())
@settings(max_examples=40)
def test_a_change_by_somebody_else_is_never_fought(kind: str, moves: list[str], revert: bool) -> None:
    """The run does not set the image again. What the controller does with the other template is its writer's choice."""
    model = Model(kind)
    for move in moves:
        HAPPENINGS[move](model)
    if model.workload["metadata"].get("labels"):
        (model.revert if revert else model.edit)()
        model.look()
        before = [model.workload["spec"]["template"], model.workload["spec"].get("paused")]
        for _ in range(3):
            adoption = model.step()
            assert (adoption.writes, adoption.done) == ((), False)
            assert adoption.problem or adoption.wait == "a pod gets the image"
        assert [model.workload["spec"]["template"], model.workload["spec"].get("paused")] == before


def test_without_the_wait_for_the_controller_a_release_rolls_out_new_pods() -> None:
    """So the model shows what `next_adoption` waits for."""
    model = Model("Deployment")
    model.step()  # paused, with the new template
    model.look()
    model.see("deployments")
    model.controller()
    model.look()
    model.step()  # the ReplicaSet has the template, which the controller has not seen
    model.look()
    wait = model.step().wait
    assert wait == "waiting until the controller of deployment.apps/web has seen the new template of its ReplicaSet"
    operations = ({"op": "remove", "path": "/spec/paused"},)
    model.write(Write("deployments", "web", "uid-web", operations))
    model.see("deployments")
    model.controller()
    assert model.rollouts == ["ReplicaSet"]


@pytest.mark.parametrize("kind", ["StatefulSet", "DaemonSet"])
def test_a_set_is_released_when_its_controller_has_seen_the_labels(kind: str) -> None:
    """It watches its pods and itself separately, so it can see the release first."""
    model = Model(kind)
    before = model.uids()
    model.step()  # held, with the new template
    model.see()
    model.controller()
    model.look()
    model.step()  # the pods have the label, which the controller has not seen
    for _ in range(3):
        model.see(f"{kind.lower()}s")
        model.controller()
        model.look()
        wait = model.step().wait
    assert model.rollouts == []
    assert wait == f"waiting until the controller of {kind.lower()}.apps/web has seen the labels of its pods"
    assert model.settle().done
    assert (model.rollouts, model.uids()) == ([], before)


def test_an_older_replicaset_with_the_target_template_is_deleted_first() -> None:
    """The controller takes the oldest one with the template, and would scale it up."""
    model = Model("Deployment")
    template = pod_template(NEW, **{"pod-template-hash": "web-old"})
    owner = {"kind": "Deployment", "name": "web", "uid": "uid-web", "controller": True}
    meta = {"name": "web-old", "uid": "uid-old", "labels": {"app": "web"}, "ownerReferences": [owner], "generation": 1}
    meta["annotations"] = {"deployment.kubernetes.io/revision": "0"}
    twin = {"metadata": meta, "spec": {"replicas": 0, "template": template}}
    model.put("replicasets/web-old", twin)
    model.look()
    (write,) = model.step().writes
    assert (write.plural, write.name, write.operations) == ("replicasets", "web-old", ())
    assert image_of({"spec": model.workload["spec"]["template"]["spec"]}) == OLD
    assert model.settle().done
    assert model.rollouts == []
