"""Pods whose image has another name since a restart by a patch: runs take it for the image that it is."""

from dataclasses import replace
from typing import Any

import pytest

from crrd.core.api.pod import PodContainer
from crrd.core.rollout.change import ImageChange, TemplateMode
from crrd.core.rollout.image.controllers import set_label
from crrd.core.rollout.image.facts import ImageRun
from crrd.core.rollout.image.following import template_images
from crrd.core.rollout.image.state import ImageState
from crrd.core.rollout.image.steps import patch_of
from crrd.core.rollout.image.template import Template
from crrd.core.rollout.kinds import kind_of
from crrd.core.rollout.phases import End
from crrd.core.rollout.requests import RunRequest
from crrd.core.rollout.run import read_amount
from crrd.core.rollout.state import Member, World
from tests.core.rollout.test_following import record, template
from tests.support.adoptions import NEW, OLD
from tests.support.rollouts import (
    AFTER,
    BEFORE,
    container,
    image_actions,
    member,
    planned,
    run,
    stages,
    succeeded,
    why,
    workload,
)

HEX = "0123456789abcdef" * 4
DIGEST, OTHER = f"sha256:{HEX}", f"sha256:{HEX[::-1]}"
HUB = "docker.io/library/proxy"
TAGGED, BARE = f"{HUB}:1@{DIGEST}", f"{HUB}@{DIGEST}"  # of OLD


def proxy(image: str, *names: str, digest: str = DIGEST, **changes: Any) -> PodContainer:
    return container("proxy", image=image, image_id=f"{HUB}@{digest}", image_names=names, **changes)


def pod(number: int, image: str, *names: str, label: str = "old", **changes: Any) -> Member:
    both = container("app", image="app:1"), proxy(image, *names, **changes)
    return replace(member(f"web-{number}", *both), labels={"controller-revision-hash": label})


ONCE, TWICE, ALIKE = pod(0, TAGGED, OLD, TAGGED), pod(1, BARE, OLD, TAGGED, BARE), pod(2, OLD)
MIXED = (ONCE, TWICE, ALIKE)
"""One was restarted by a patch once, one twice, and one was not."""
PINNED = pod(0, TAGGED)
"""A webhook has pinned the tag of its template."""


def images(found: Template, *pods: Member, given: Any = ()) -> Any:
    first = record("old", replicas=2)
    records = (first,) if found.kind == "Deployment" else (first, record("new", found.content.image, number=2))
    return template_images("web", ImageState((), found, records), pods, given)


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet", "DaemonSet"])
def test_a_template_whose_image_the_pods_have_by_other_names_asks_for_no_run(kind: str) -> None:
    assert images(template(kind, OLD), *MIXED, PINNED).changes == ()
    assert images(template(kind, OLD), ONCE, TWICE, given={("proxy", TAGGED)}).changes == ()


def test_a_template_that_gives_up_a_digest_is_followed() -> None:
    """Its tag may be another image by now. Only what a webhook has pinned is the tag."""
    (found,) = images(template(image=OLD), PINNED, ALIKE, given={("proxy", TAGGED)}).changes
    assert (found.before, found.lacking) == ((TAGGED,), (("web-0", "node-a"),))
    pinned = ImageState((), template(image=OLD), (record("old", image=TAGGED, replicas=1),))
    (found,) = template_images("web", pinned, (PINNED,)).changes
    assert (found.before, found.lacking) == ((TAGGED,), (("web-0", "node-a"),))


def test_a_template_that_changes_is_followed_whatever_the_names() -> None:
    (found,) = images(template(image=NEW), *MIXED).changes
    assert (found.image, found.before) == (NEW, (OLD,)), "one image had several names"
    assert [name for name, _ in found.lacking] == ["web-0", "web-1", "web-2"]
    (found,) = images(template(image=f"proxy:1@{OTHER}"), *MIXED).changes
    assert len(found.lacking) == 3, "the tag was moved"


def test_an_image_that_a_run_has_given_is_known_by_its_other_names() -> None:
    """All pods have it, and their record has not followed. The template was set back."""
    bad = pod(0, f"{HUB}:bad@{DIGEST}"), pod(1, BARE, "proxy:bad", BARE)
    assert images(template(image=OLD), *bad).changes == ()
    (found,) = images(template(image=OLD), *bad, given={("proxy", "proxy:bad")}).changes
    assert (found.before, len(found.lacking)) == (("proxy:bad",), 2)


def test_only_the_record_lacks_an_image_that_the_pods_have_by_other_names() -> None:
    newer = pod(0, f"{HUB}:2@{DIGEST}"), pod(1, BARE, NEW, f"{HUB}:2@{DIGEST}", BARE)
    (found,) = images(template(image=NEW), *newer).changes
    assert (found.image, found.lacking) == (NEW, ())


CHANGE = ImageChange(NEW, (OLD,), pulls=False)


def world(*pods: Member, image: str = OLD) -> World:
    return World(pods, (), workload(len(pods)), extra=ImageState((), template(image=image, paused=False), ()))


def facts(*pods: Member, image: str = OLD, **changes: Any) -> ImageRun:
    return ImageRun.of(world(*pods, image=image), run("proxy", image=replace(CHANGE, **changes)))


def test_a_run_with_the_image_that_the_pods_have_leaves_them_alone() -> None:
    of = run("proxy", image=ImageChange(OLD, pulls=False))
    plan = planned(world(*MIXED), of)
    assert (plan.end, {*stages(plan).values()}) == (End.DONE, {"skipped"})
    assert {*why(plan).values()} == {"container proxy has the image"}
    assert kind_of(world(*MIXED), of).report() == f"3 of 3 pods have {OLD}; so has the template"


def test_a_run_with_another_image_gives_it_to_all() -> None:
    plan = planned(world(*MIXED), run("proxy", image=CHANGE, max_unavailable=read_amount("3")))
    assert {*stages(plan).values()} == {"waiting"}
    later = pod(3, f"{HUB}:0@{DIGEST}")
    plan = planned(world(later), run("proxy", image=CHANGE))
    assert why(plan)["web-3"] == f"container proxy was given the image {HUB}:0@{DIGEST} meanwhile"


def test_a_pod_that_is_restarted_by_a_patch_meanwhile_has_no_foreign_image() -> None:
    """Also one that has the image of the run already."""
    newer = f"{HUB}:2@{DIGEST}"
    plan = planned(world(pod(0, BARE, OLD, BARE), pod(1, newer, NEW, newer)), run("proxy", image=CHANGE))
    assert stages(plan) == {"web-0": "waiting", "web-1": "skipped"}


def test_images_have_one_name_in_a_run() -> None:
    assert [facts(*MIXED).image_of(each) for each in MIXED] == [OLD] * 3
    kept = pod(0, f"{HUB}:0@{DIGEST}", "proxy:0", f"{HUB}:0@{DIGEST}"), pod(1, BARE, "proxy:0", BARE), pod(2, "proxy:0")
    assert {facts(*kept).image_of(each) for each in kept} == {"proxy:0"}, "an earlier run has left the template"
    alone = pod(0, BARE)
    assert facts(alone).image_of(alone) == BARE, "nothing says of which tag it was"
    assert facts(*MIXED).image_of(member("web-9")) == ""
    assert facts(*MIXED).image_of(None) == ""


@pytest.mark.parametrize(
    ("mode", "before", "created", "stage"),
    [
        (TemplateMode.KEEP, (), BEFORE, "waiting"),  # an earlier run may have given it
        (TemplateMode.KEEP, (), AFTER, "skipped"),  # of the template, as a webhook names it
        (TemplateMode.KEEP, (TAGGED,), AFTER, "waiting"),
        (TemplateMode.FOLLOW, (), BEFORE, "skipped"),
        (TemplateMode.FOLLOW, (TAGGED,), BEFORE, "waiting"),
    ],
)
def test_a_tag_with_a_digest_is_the_tag_only_if_a_webhook_has_pinned_it(
    mode: TemplateMode, before: tuple[str, ...], created: str, stage: str
) -> None:
    known, found = world(replace(PINNED, created=created)), template(image=OLD)
    change = ImageChange(OLD, before, mode, pulls=False, template=found.content.rest)
    known = replace(known, extra=ImageState((), found, (record("old", replicas=1),)))
    of = run("proxy", image=change)
    row = next(iter(planned(known, of).rows))
    assert (row.stage.value, ImageRun.of(known, of).has_image(row)) == (stage, stage == "skipped")


def test_what_a_webhook_pins_in_a_new_pod_is_not_foreign() -> None:
    """Also if its tag was moved since the run began."""
    moved = f"{HUB}:1@{OTHER}"
    for given, why_not in (
        ((), {"web-0": ""}),
        ((moved,), {"web-0": f"container proxy was given the image {moved} meanwhile"}),
    ):
        there = replace(world(pod(0, moved, digest=OTHER)), requests=tuple(map(given_earlier, given)))
        assert why(planned(there, run("proxy", image=CHANGE))) == why_not


def given_earlier(image: str) -> RunRequest:
    """A request of another run, which has given a pod this image."""
    found = succeeded(run("proxy", name="earlier", image=ImageChange(image)), pod(9, image))
    (only,) = found.request.containers
    return replace(found, request=replace(found.request, containers=(replace(only, image=image),)))


def test_writes_are_bound_to_the_name_that_the_pod_has() -> None:
    (row,) = planned(world(ONCE), run("proxy", image=CHANGE)).rows
    test, change = patch_of(facts(ONCE), row)[-2:]
    assert (test["value"], change["value"]) == (TAGGED, NEW)
    there = pod(0, f"{HUB}:2@{DIGEST}")
    label = set_label(facts(there), there, "old", "new")
    assert [each["value"] for each in label.operations if each["path"].endswith("/image")] == [f"{HUB}:2@{DIGEST}"]


@pytest.mark.parametrize("kind", ["StatefulSet", "DaemonSet"])
def test_the_revision_follows_the_images_whatever_their_names(kind: str) -> None:
    """Another container of the pod has its new image by another name."""
    found = template(kind, NEW, "app:2")
    app = container("app", image=f"docker.io/library/app:2@{DIGEST}", image_id=f"docker.io/library/app@{DIGEST}")
    there = replace(member("web-0", app, proxy(NEW)), labels={"controller-revision-hash": "old"})
    records = record("old"), record("new", NEW, "app:2", number=2)
    follow = ImageChange(NEW, (OLD,), TemplateMode.FOLLOW, template=found.content.rest)
    known = World((there,), (), workload(1), extra=ImageState((), found, records))
    adoption = image_actions(planned(known, run("proxy", image=follow))).adoption
    assert adoption is not None
    (write,) = adoption.writes
    assert write.operations[-1]["value"] == "new"


def test_a_deployment_adopts_pods_that_have_the_image_by_other_names() -> None:
    newer = pod(0, BARE, NEW, f"{HUB}:2@{DIGEST}", BARE), pod(1, BARE, NEW, BARE), pod(2, NEW)
    there = replace(
        world(*newer), extra=ImageState((), template(image=OLD, paused=False), (record("old", replicas=3),))
    )
    of = run("proxy", image=replace(CHANGE, mode=TemplateMode.ADOPT, template=template(image=OLD).content.rest))
    adoption = image_actions(planned(there, of)).adoption
    assert adoption is not None
    assert (adoption.wait, adoption.problem, [each.name for each in adoption.writes]) == ("", "", ["web"])
