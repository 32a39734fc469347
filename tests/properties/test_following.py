"""Runs that follow the template of a held workload: its controller rolls out nothing, before or after its release.

As in test_adoptions.py, everything happens in between, and all caches lag.
"""

from dataclasses import replace

import pytest
from hypothesis import given, settings

from crrd.core.rollout.change import TemplateMode
from crrd.core.rollout.image.adoption import ADOPTED_BY, next_adoption
from crrd.core.rollout.image.controllers import Adoption
from crrd.core.rollout.image.facts import ImageRun
from crrd.core.rollout.run import Run
from tests.properties.test_adoptions import HAPPENINGS, KINDS, MOVES
from tests.support.adoptions import NEW, OLD, Model, image_of, pod_template


class Held(Model):
    """A workload that is held, and whose template has the image already."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for pod in self.pods():
            pod["spec"]["containers"][1]["image"] = OLD
        self.hold(held=True)
        self.workload["spec"]["template"] = pod_template(NEW)
        self.changed()
        for _ in range(2):
            self.see()
            self.controller()
        self.look()
        self.written = [self.workload["spec"]["template"], self.workload["metadata"].get("labels")]

    def hold(self, *, held: bool) -> None:
        spec = self.workload["spec"]
        if self.kind == "Deployment":
            spec["paused"] = held
        elif self.kind == "StatefulSet":
            spec["updateStrategy"]["rollingUpdate"]["partition"] = 9 * held
        else:
            spec["updateStrategy"]["type"] = "OnDelete" if held else "RollingUpdate"
        self.changed()

    back = False  # Whether the run is one back to the old image
    odd = ""  # Another image that the pods had then, unlike what new pods are made of

    @property
    def run(self) -> Run:
        run = super().run
        change = run.options.image
        assert change is not None
        change = replace(change, mode=TemplateMode.FOLLOW)
        if self.back:
            change = replace(change, image=OLD, before=(NEW,), undoes="run")
            change = replace(change, image=self.odd, of_template=OLD) if self.odd else change
        return replace(run, options=replace(run.options, image=change))

    @property
    def wanted(self) -> str:
        return (self.odd or OLD) if self.back else NEW

    def next_step(self) -> Adoption:
        return next_adoption(ImageRun.of(self.world(), self.run))


@settings(max_examples=40)
@given(KINDS, MOVES)
def test_nothing_is_rolled_out_while_held_and_after_the_release(kind: str, moves: list[str]) -> None:
    model = Held(kind)
    for move in moves:
        HAPPENINGS[move](model)
    followed = model.settle()
    assert followed.done, followed
    assert {image_of(pod) for pod in model.pods()} == {NEW}
    before = model.uids()
    assert [model.workload["spec"]["template"], model.workload["metadata"].get("labels")] == model.written
    model.hold(held=False)
    for plural in ("deployments", "replicasets", "pods", ""):
        model.see(plural)
        model.controller()
    assert (model.rollouts, model.uids()) == ([], before)


@pytest.mark.parametrize("kind", ADOPTED_BY)
def test_a_release_before_the_end_rolls_out_new_pods(kind: str) -> None:
    """So the model shows why the records must follow."""
    model = Held(kind)
    for pod in model.pods():
        pod["spec"]["containers"][1]["image"] = NEW
    model.hold(held=False)
    model.see()
    model.controller()
    assert model.rollouts


@pytest.mark.parametrize("odd", ["", "proxy:0"])
@pytest.mark.parametrize("kind", ADOPTED_BY)
def test_after_a_run_back_the_controller_knows_that_the_pods_are_old(kind: str, odd: str) -> None:
    """So a release rolls out the template, and another run follows it again."""
    for again in (False, True):
        model = Held(kind)
        model.odd = odd
        assert model.settle().done
        before, model.back = model.uids(), True
        assert model.settle().done
        assert {image_of(pod) for pod in model.pods()} == {odd or OLD}
        model.back = not again
        if again:
            assert model.settle().done
        assert (model.rollouts, model.uids()) == ([], before)
        model.hold(held=False)
        model.see()
        model.controller()
        assert bool(model.rollouts) is not again
        assert [model.workload["spec"]["template"]] == model.written[:1]


def test_pods_below_a_partition_follow_those_that_were_replaced() -> None:
    model = Held("StatefulSet")
    model.workload["spec"]["updateStrategy"]["rollingUpdate"]["partition"] = 1
    model.changed()
    model.see()
    model.controller()
    assert model.rollouts == ["web-1", "web-2"], "by the controller, as its partition says"
    assert model.settle().done
    model.hold(held=False)
    model.see()
    model.controller()
    assert model.rollouts == ["web-1", "web-2"]
    assert {image_of(pod) for pod in model.pods()} == {NEW}
