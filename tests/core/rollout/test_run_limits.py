"""Limits that were changed after a run began. They are read as they were written, and change nothing else."""

import json
from dataclasses import replace
from typing import Any

import pytest

from crrd.cli.options import as_flag
from crrd.cli.recreate import flags_of
from crrd.core.api.types import ANNOTATION_REQUESTED_BY
from crrd.core.rollout.change import ImageChange, TemplateMode
from crrd.core.rollout.requests import RunRequest, creator_of, newest_run, read_run_request
from crrd.core.rollout.run import Amount, Options, Run, Target
from crrd.core.rollout.run_limits import ANNOTATION_LIMITS, LIMITS, limits_annotation
from tests.support.rollouts import run

PLAIN = run("app")
IMAGE = run("app", image=ImageChange("i:2", ("i:1",)))
CHANGES: dict[str, Any] = {
    "max_unavailable": Amount(20, percent=True),
    "max_per_node": 1,
    "max_per_zone": 2,
    "min_ready": 30,
    "ordered": True,
    "unready_grace": 5,
    "pod_timeout": 60,
    "max_failures": 2,
    "force": True,
    "allow_pod_restart": True,
    "preflight": True,
    "reason": "log level",
    "pull_resources": "cpu=50m",
}


def read(made: Run, annotation: str | None, **meta: Any) -> RunRequest:
    body = made.request("web-1", "uid-1", ("app",))
    body["metadata"] |= meta
    if annotation is not None:
        body["metadata"]["annotations"][ANNOTATION_LIMITS] = annotation
    found = read_run_request(body)
    assert found is not None
    return found


def test_these_are_the_options_that_resume_can_change() -> None:
    assert {*LIMITS} == {name for name in Options.__slots__ if as_flag(name) in flags_of("resume")}
    assert CHANGES.keys() == {*LIMITS}


@pytest.mark.parametrize("made", [PLAIN, IMAGE])
@pytest.mark.parametrize("names", [*((name,) for name in LIMITS), LIMITS])
def test_changed_limits_are_read_again(made: Run, names: tuple[str, ...]) -> None:
    changed = made.changed(**{name: CHANGES[name] for name in names})
    written = limits_annotation(changed)[ANNOTATION_LIMITS]
    found = read(made, written)
    assert found.run == changed
    assert found.run.aim == made.aim
    assert read(changed.changed(max_per_node=7), written).run.options.max_per_node == 7, "an older change"


def test_the_text_that_other_versions_read() -> None:
    assert limits_annotation(PLAIN.changed(reason="r"))[ANNOTATION_LIMITS] == (
        '{"limits":{"allow_pod_restart":false,"force":false,"max_failures":1,"max_per_node":0,"max_per_zone":0,'
        '"max_unavailable":"1","min_ready":null,"ordered":false,"pod_timeout":600,"preflight":false,"reason":"r",'
        '"unready_grace":null},"revision":1,"version":1}'
    )
    assert read(PLAIN, '{"limits":{"max_failures":9},"revision":1}').run.options.max_failures == 9


@pytest.mark.parametrize(
    "shape",
    [
        *({"revision": 1, "limits": {name: value}} for name, value in (("min_ready", "3"), ("force", 1), ("speed", 1))),
        *({"revision": 1, "limits": {"max_unavailable": value}} for value in ("0", 1, None)),
        {"revision": 0, "limits": {"max_failures": 9}},
        {"version": 2, "revision": 1, "limits": {"max_failures": 9}},
        {"revision": "1", "limits": {"max_failures": 9}},
        *(
            {"revision": 1, "limits": {name: value}}
            for name, value in (("containers", ["b"]), ("image", {"image": "x"}))
        ),
        *(
            {"revision": 1, "limits": {name: value}}
            for name, value in (("target", {}), ("policy", "p"), ("since", "x"))
        ),
        *({"revision": 1, "limits": {name: value}} for name, value in (("stale", True), ("first", 1), ("objects", []))),
        *([], "x", 1, {}),
    ],
)
def test_nothing_else_is_taken_from_it(shape: object) -> None:
    for made in (PLAIN, IMAGE):
        assert read(made, json.dumps(shape)).run == made


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000])
def test_a_text_that_is_no_json(text: str) -> None:
    assert read(IMAGE, text).run == IMAGE


def test_the_creator_is_that_of_the_request_whose_run_counts() -> None:
    def of(user: str, created: str, made: Run) -> RunRequest:
        annotations = {**made.annotations(), **({ANNOTATION_REQUESTED_BY: user} if user else {})}
        return read(made, None, annotations=annotations, creationTimestamp=created)

    other = replace(IMAGE, options=replace(IMAGE.options, image=ImageChange("evil:1")))
    mine, later = of("ann", "2026-01-01T00:00:01Z", IMAGE), of("bob", "2026-01-01T00:00:02Z", other)
    assert (creator_of([later, mine]), newest_run([later, mine])) == ("ann", IMAGE)
    assert (creator_of([later]), newest_run([later])) == ("bob", other)
    assert creator_of([of("", "2026-01-01T00:00:00Z", IMAGE), mine]) == ""


@pytest.mark.parametrize(
    ("target", "options", "purpose"),
    [
        (
            Target("a lie", "apps/v1", "Deployment", "web", "uid"),
            Options(("app",), image=ImageChange("i:2", mode=TemplateMode.ADOPT)),
            "gives container app of deployment.apps/web the image i:2, and its template, too",
        ),
        (
            Target("a lie", "apps/v1", "StatefulSet", "db", "uid"),
            Options(("app",), image=ImageChange("i:2", mode=TemplateMode.FOLLOW)),
            "gives container app of statefulset.apps/db the image i:2",
        ),
        (
            Target("a lie", "apps/v1", "Deployment", "web", "uid"),
            Options(("app",), image=ImageChange("i:0", mode=TemplateMode.ADOPT, of_template="i:1")),
            "gives container app of deployment.apps/web the image i:0, and its template i:1",
        ),
        (
            Target("a lie", "apps/v1", "StatefulSet", "db", "uid"),
            Options(("app",), image=ImageChange("i:0", mode=TemplateMode.FOLLOW, of_template="i:1")),
            "gives container app of statefulset.apps/db the image i:0, and new pods i:1",
        ),
        (Target("a lie", "v1", "Pod", "a"), Options(("app", "side")), "restarts app, side of pod/a"),
        (Target("a lie", selector="app=web"), Options((), stale=True), "restarts stale containers of pods app=web"),
        (Target("a lie"), Options(("app",)), "restarts app of all pods"),
    ],
)
def test_what_a_run_does_is_told_by_the_names_that_it_uses(target: Target, options: Options, purpose: str) -> None:
    assert Run("shop", "r", target, options, "2026-01-01T00:00:00Z").purpose == purpose
