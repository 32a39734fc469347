"""`onFailure: Undo`, whatever happens to template, policy and pods: a failed run is undone once, and not repeated."""

from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from crrd.core.policy.course import ended
from crrd.core.policy.outcome import Outcome
from crrd.core.policy.types import Policy, RunRecord
from crrd.core.rollout.image.following import TemplateChange
from crrd.core.rollout.phases import End
from tests.core.policy.test_decide import History, app, at, data
from tests.core.policy.test_template_image import has
from tests.core.policy.test_undo import UNDO

NAMES = ("web-0", "web-1", "web-2")


@dataclass
class Workload:
    """A held workload with three pods, and a policy that looks at it after each event."""

    history: History = field(default_factory=lambda: History(UNDO))
    images: dict[str, str] = field(default_factory=lambda: dict.fromkeys(NAMES, "i:1"))
    template: str = "i:1"
    of_new_pods: str = "i:1"
    time: float = 0
    run: RunRecord | None = None  # In progress
    failed: RunRecord | None = None  # The last one that has failed, until the template or the policy changes
    runs: dict[str, RunRecord] = field(default_factory=dict)  # All that have ended by themselves
    undone: set[str] = field(default_factory=set)  # Those of them whose run back has ended

    @property
    def policy(self) -> Policy:
        return self.history.policy

    @property
    def is_behind(self) -> bool:
        return self.of_new_pods != self.template

    def look(self) -> None:
        """Look, and check what begins."""
        self.time += 20
        lacking = tuple((name, "a") for name, image in self.images.items() if image != self.template)
        before = {*self.images.values(), self.of_new_pods} - {self.template}
        change = TemplateChange("app", self.template, tuple(sorted(before)), lacking, "rest", behind=self.is_behind)
        changes = (change,) if before else ()
        pods = [app(pod=name) for name in NAMES]
        found = self.history.look(self.time, data("a"), *pods, template=has(*changes)).run
        if found is not None and (self.run is None or self.run.name != found.name):
            self._begins(found)
        elif changes and found is None and self.failed is not None and self.run is None:
            bad = self.failed.image in self.images.values()
            certain = len(self.failed.before) == 1 and not self.failed.undoes and self.is_behind
            assert not (bad and certain and self.failed.name not in self.undone), "nothing gives the pods their image"
        self.run = found

    def _begins(self, run: RunRecord) -> None:
        if not run.undoes:
            assert run.image == self.template
            given = self.failed is not None and not self.failed.undoes and run.image == self.failed.image
            assert not given, "a failed image is given again"
            return
        failed = self.runs[run.undoes]
        assert (run.before, failed.failed, failed.undoes) == ((failed.image,), True, "")
        assert (run.image,) == failed.before == (self.of_new_pods,)
        assert run.undoes not in self.undone, "undone twice"

    def give(self) -> None:
        """The run reaches one more pod."""
        if self.run is not None:
            wanted = (name for name, image in self.images.items() if image in self.run.before)
            if (name := next(wanted, "")) != "":
                self.images[name] = self.run.image

    def end(self, how: str) -> None:
        """The run ends by itself: if it succeeds, all pods that it is about have its image."""
        if (run := self.run) is None:
            return
        if how == "done":
            self.images = {name: run.image if image in run.before else image for name, image in self.images.items()}
            self.of_new_pods = run.image if {*self.images.values()} == {run.image} else self.of_new_pods
        record = replace(run, generation=self.policy.generation)  # as RunTask does
        outcome = Outcome(End.DONE if how == "done" else End.HALTED if how == "halted" else End.FAILED)
        status = ended(self.policy, record, outcome, message=how, now=at(self.time + 1))
        self.history.policy = replace(self.policy, status=status)
        assert status.run is not None
        self.runs[run.name] = status.run
        if run.undoes:
            self.undone.add(run.undoes)
        if how != "done":
            self.failed = status.run
        self.run = None

    def roll_out(self, image: str) -> None:
        """The template gets an image."""
        if image != self.template:
            self.template, self.failed = image, None

    def edit(self) -> None:
        """The policy is edited."""
        self.history.policy = replace(self.policy, generation=self.policy.generation + 1)
        self.failed = None


EVENTS = st.lists(
    st.sampled_from(["give", "give", "done", "failed", "halted", "i:1", "i:2", "i:2", "i:3", "edit", "wait"]),
    max_size=14,
)


@settings(max_examples=150)
@given(EVENTS)
def test_a_failed_image_goes_back_once_and_is_not_given_again(events: list[str]) -> None:
    found = Workload()
    found.look()
    for each in ["i:2", *events]:
        match each:
            case "give":
                found.give()
            case "done" | "failed" | "halted":
                found.end(each)
            case "edit":
                found.edit()
            case "wait":
                found.time += 700
            case image:
                found.roll_out(image)
        found.look()
