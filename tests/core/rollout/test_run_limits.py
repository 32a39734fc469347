"""Limits that were changed after a run began. They are read as they were written, and change nothing else."""

import json
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from crrd.cli.options import as_flag
from crrd.cli.recreate import flags_of
from crrd.core.api.types import ANNOTATION_REQUESTED_BY
from crrd.core.rollout.change import ImageChange, TemplateMode
from crrd.core.rollout.requests import RunRequest, creator_of, newest_run, read_run_request
from crrd.core.rollout.run import ANNOTATION_RUN, Amount, Options, Run, Target
from crrd.core.rollout.run_limits import ANNOTATION_LIMITS, LIMITS, limits_annotation
from tests.support.rollouts import run

PLAIN = run("app")
IMAGE = run("app", image=ImageChange("i:2", ("i:1",)))


class Row(NamedTuple):
    """An option of runs."""

    other: Any  # A value that is not the default one
    limit: bool  # Whether `resume` can change it. Else it is part of the aim, which never changes
    optional: bool = False  # Whether it is stored only if it is set, so that older versions can continue other runs


OPTIONS = {
    "containers": Row(("app", "side"), limit=False),
    "max_unavailable": Row(Amount(20, percent=True), limit=True),
    "max_per_node": Row(1, limit=True),
    "max_per_zone": Row(2, limit=True),
    "min_ready": Row(30, limit=True),
    "first": Row(3, limit=False),
    "steps": Row((1, 3), limit=False, optional=True),
    "step_pause": Row(0, limit=False, optional=True),
    "judge": Row(120, limit=False, optional=True),
    "max_restarts": Row(1, limit=False, optional=True),
    "metrics_digest": Row("0a1b", limit=False, optional=True),
    "failure_limit": Row(1, limit=False, optional=True),
    "ordered": Row(other=True, limit=True),
    "unready_grace": Row(5, limit=True),
    "pod_timeout": Row(60, limit=True),
    "max_failures": Row(2, limit=True),
    "force": Row(other=True, limit=True),
    "allow_pod_restart": Row(other=True, limit=True),
    "stale": Row(other=True, limit=False),
    "objects": Row(("ConfigMap/web",), limit=False),
    "preflight": Row(other=True, limit=True),
    "since": Row("2026-01-01T11:00:00Z", limit=False),
    "reason": Row("log level", limit=True),
    "policy": Row("uid-of-policy", limit=False, optional=True),
    "image": Row(ImageChange("i:2", ("i:1",)), limit=False, optional=True),
    "patch": Row(other=True, limit=False, optional=True),
    "whole_pod": Row(other=True, limit=False, optional=True),
    "reload": Row(other=True, limit=False, optional=True),
    "pull_resources": Row("cpu=50m", limit=True, optional=True),
}
CHANGES = {name: row.other for name, row in OPTIONS.items() if row.limit}


def test_each_option_has_a_row() -> None:
    assert [*OPTIONS] == [*Options.__slots__]


@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_is_a_limit_or_part_of_the_aim(name: str) -> None:
    row, changed = OPTIONS[name], PLAIN.changed(**{name: OPTIONS[name].other})
    assert changed != PLAIN
    assert (name in LIMITS) is row.limit
    assert (changed.aim != PLAIN.aim) is not row.limit


@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_that_is_not_set_is_stored_unless_it_is_optional(name: str) -> None:
    row, changed = OPTIONS[name], PLAIN.changed(**{name: OPTIONS[name].other})

    def stored(made: Run) -> bool:
        return name in json.loads(made.to_json())["options"]

    def kept(made: Run) -> bool:
        return name in json.loads(limits_annotation(made)[ANNOTATION_LIMITS])["limits"]

    assert (stored(PLAIN), stored(changed)) == (not row.optional, True)
    assert (kept(PLAIN), kept(changed)) == (row.limit and not row.optional, row.limit)
    assert read(changed, None).run == changed


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
    ("name", "value"),
    [
        *((name, 0) for name in ("max_per_node", "max_per_zone", "min_ready", "unready_grace")),
        *(("max_failures", 1), ("pod_timeout", 3), ("pod_timeout", 7 * 86_400), ("unready_grace", 86_400)),
        *(("min_ready", None), ("unready_grace", None)),
    ],
)
def test_each_value_that_a_flag_accepts_is_read(name: str, value: int | None) -> None:
    found = read(PLAIN, json.dumps({"revision": 1, "limits": {name: value, "reason": "r"}})).run
    assert found == PLAIN.changed(**{name: value, "reason": "r"})


@pytest.mark.parametrize(
    "shape",
    [
        *({"revision": 1, "limits": {name: value}} for name, value in (("min_ready", "3"), ("force", 1), ("speed", 1))),
        *({"revision": 1, "limits": {name: 10**12}} for name in ("pod_timeout", "min_ready", "unready_grace")),
        *(
            {"revision": 1, "limits": {"max_failures": 9, name: -1}}
            for name in ("max_per_node", "max_per_zone", "min_ready", "unready_grace", "pod_timeout")
        ),
        {"revision": 1, "limits": {"max_failures": 0}},
        {"revision": 1, "limits": {"pod_timeout": 2}},
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


def test_requests_that_record_the_same_run_share_it() -> None:
    """Else a run over ten thousand pods would keep ten thousand copies."""
    of = run("app")
    first, second = (read_run_request(of.request(name, name, ("app",))) for name in ("web-0", "web-1"))
    assert first is not None
    assert second is not None
    assert first.run is second.run
    assert first.run == of
    changed = read_run_request(of.changed(max_per_node=7).request("web-2", "u", ("app",)))
    assert changed is not None
    assert changed.run != of


def test_a_long_record_is_not_kept_in_memory() -> None:
    """Who may create requests could fill the manager's memory with them."""
    of = run("app", objects=tuple(f"ConfigMap/config-{number}" for number in range(1000)))
    bodies = [of.request(name, name, ("app",)) for name in ("web-0", "web-1")]
    assert len(bodies[0]["metadata"]["annotations"][ANNOTATION_RUN]) > 20_000
    first, second = map(read_run_request, bodies)
    assert first is not None
    assert second is not None
    assert first.run == second.run == of
    assert first.run is not second.run
