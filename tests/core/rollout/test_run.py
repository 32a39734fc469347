"""A run on its requests: what it writes there is what it reads there, and nothing that others write breaks it."""

import json
from dataclasses import replace
from typing import Any

import pytest

from crrd.core.api.types import ANNOTATION_ABORTED
from crrd.core.api.v1alpha1 import parse_request
from crrd.core.rollout.change import ImageChange
from crrd.core.rollout.requests import newest_run, read_run_request
from crrd.core.rollout.run import (
    ANNOTATION_REASON,
    ANNOTATION_RUN,
    ANNOTATION_TARGET,
    LABEL_RUN,
    Amount,
    Options,
    Run,
    read_amount,
)
from crrd.core.rollout.state import World
from tests.support.rollouts import asked, member, run

FULL = run(
    "app",
    "side",
    max_unavailable=Amount(20, percent=True),
    max_per_node=1,
    max_per_zone=2,
    min_ready=30,
    first=3,
    ordered=True,
    unready_grace=5,
    pod_timeout=60,
    max_failures=2,
    force=True,
    allow_pod_restart=True,
    stale=True,
    objects=("ConfigMap web",),
    preflight=True,
    since="2026-01-01T00:00:00Z",
    reason="log level",
)


def test_a_request_says_all_of_its_run() -> None:
    body = FULL.request("web-1", "uid-1", ("app",))
    assert body["metadata"]["name"] == FULL.request_name("uid-1")
    assert body["metadata"]["labels"] == {LABEL_RUN: "run"}
    annotations = body["metadata"]["annotations"]
    assert (annotations[ANNOTATION_TARGET], annotations[ANNOTATION_REASON]) == ("deployment.apps/web", "log level")
    assert body["spec"] == {
        "podName": "web-1",
        "containers": [{"name": "app"}],
        "strategy": {
            "failurePolicy": "Fail",
            "orderedRecreate": True,
            "allowPodRestart": True,
            "unreadyGracePeriodSeconds": 5,
        },
        "activeDeadlineSeconds": 60,
        "ttlSecondsAfterFinished": 86400,
    }
    mark = read_run_request(body)
    assert mark is not None
    assert (mark.run, mark.request.aborted) == (FULL, "")
    body["metadata"]["uid"] = "uid-of-the-request"
    found = read_run_request(body)
    assert found is not None
    assert found.request == parse_request(body)
    assert found.request.error == ""


def test_what_is_not_asked_for_is_not_written() -> None:
    body = run().request("web-1", "uid-1", ("app",))
    assert ANNOTATION_REASON not in body["metadata"]["annotations"]
    assert body["spec"]["strategy"].keys() == {"failurePolicy", "orderedRecreate"}


def test_each_pod_has_one_name_in_each_run() -> None:
    names = {run(name=name).request_name(uid) for name in ("a", "b") for uid in ("1", "2")}
    assert len(names) == 4
    assert run().request_name("1") == FULL.request_name("1")


def test_what_retries_a_failed_request_has_the_next_number() -> None:
    """Two processes that retry one request create one of the same name."""
    assert FULL.request_name("uid-1", FULL.request_name("uid-1")) == "run-4a49acf8a6.2"
    assert FULL.request_name("uid-1", "run-4a49acf8a6.9") == "run-4a49acf8a6.10"
    for odd in ("x", "9" * 5000):  # names that are kept on pods have no limit of length
        assert FULL.request_name("uid-1", f"run-4a49acf8a6.{odd}") == "run-4a49acf8a6.2"
    assert FULL.request("web-0", "uid-1", ("app",), "run-4a49acf8a6")["metadata"]["name"] == "run-4a49acf8a6.2"


def test_another_version_goes_on_with_the_same_run() -> None:
    """Requests live for a day: a name that changes would restart pods twice, a text that does would be of no run."""
    assert FULL.request_name("uid-1") == "run-4a49acf8a6"
    text = (
        '{"options":{"allow_pod_restart":true,"containers":["app","side"],"first":3,"force":true,"max_failures":2,"max_per_node":1,'
        '"max_per_zone":2,"max_unavailable":"20%","min_ready":30,"objects":["ConfigMap web"],"ordered":true,'
        '"pod_timeout":60,"preflight":true,"reason":"log level","since":"2026-01-01T00:00:00Z","stale":true,'
        '"unready_grace":5},'
        '"started":"2026-01-01T12:00:00Z",'
        '"target":{"api_version":"apps/v1","kind":"Deployment","name":"web","selector":"","uid":"uid-of-web",'
        '"words":"deployment.apps/web"}'
    )
    assert FULL.to_json() == f'{text},"version":1}}'
    for stored, found in ((f"{text}}}", FULL), (f'{text},"version":1}}', FULL), (f'{text},"version":2}}', None)):
        body = FULL.request("web-1", "uid-1", ("app",))
        body["metadata"]["annotations"][ANNOTATION_RUN] = stored
        request = read_run_request(body)
        assert (request and request.run) == found, "the first form had no version"


def test_options_that_a_request_does_not_know_are_off() -> None:
    mark = read_run_request(written(options={"containers": ["app"], "max_unavailable": "2"}))
    assert mark is not None
    assert mark.run.options == Options(
        ("app",),
        Amount(2),
        max_per_node=0,
        max_per_zone=0,
        min_ready=None,
        first=0,
        ordered=False,
        unready_grace=None,
        pod_timeout=600,
        max_failures=1,
        force=False,
        allow_pod_restart=False,
        stale=False,
        objects=(),
        preflight=False,
        since="",
        reason="",
    )


def test_one_that_was_aborted_says_so() -> None:
    body = run().request("web-1", "uid-1", ("app",))
    body["metadata"]["annotations"][ANNOTATION_ABORTED] = "2026-01-01T12:00:00Z"
    mark = read_run_request(body)
    assert mark is not None
    assert mark.request.aborted


def written(**changes: Any) -> dict[str, Any]:
    """A request whose annotation somebody has changed."""
    body: dict[str, Any] = FULL.request("web-1", "uid-1", ("app",))
    shape = json.loads(FULL.to_json())
    shape["options"]["stale"] = False  # such a run needs no containers
    for path, value in changes.items():
        *above, last = path.split("__")
        at = shape
        for key in above:
            at = at[key]
        at[last] = value
    body["metadata"]["annotations"][ANNOTATION_RUN] = json.dumps(shape)
    return body


@pytest.mark.parametrize(
    "changes",
    [
        {"started": "yesterday"},
        {"started": None},
        {"target": None},
        {"target__kind": 1},
        {"target__color": "red"},
        {"options": []},
        {"options__containers": []},
        {"options__containers": "app"},
        {"options__max_unavailable": 1},
        {"options__max_unavailable": "0"},
        {"options__min_ready": "30"},
        {"options__min_ready": True},
        {"options__force": 1},
        {"options__unready_grace": "5"},
        {"started": "9999-12-31T23:59:59Z"},
        *({f"options__{name}": seconds} for name in ("pod_timeout", "min_ready") for seconds in (-1, 10**12)),
        {"options__first": -1},
        {"options__max_failures": 0},
        {"options__speed": 9},
    ],
)
def test_what_cannot_be_read_is_of_no_run(changes: dict[str, Any]) -> None:
    assert read_run_request(written()) is not None
    assert read_run_request(written(**changes)) is None
    assert read_run_request(written(**changes)) is None


@pytest.mark.parametrize("text", ["", "{", "[]", "1", "{}"])
def test_an_annotation_that_is_something_else(text: str) -> None:
    body = written()
    body["metadata"]["annotations"][ANNOTATION_RUN] = text
    assert read_run_request(body) is None


@pytest.mark.parametrize("name", ["", "Web", "a b", "-a", "x" * 41])
def test_a_label_that_is_no_name(name: str) -> None:
    body = written()
    body["metadata"]["labels"][LABEL_RUN] = name
    assert read_run_request(body) is None


@pytest.mark.parametrize(("given", "text"), [("1", "1"), ("20%", "20%"), ("100%", "100%")])
def test_amounts(given: str, text: str) -> None:
    assert str(read_amount(given)) == text


@pytest.mark.parametrize("given", ["", "0", "-1", "0%", "101%", "%", "1.5", "ten", "٣", "9" * 5000, f"{'9' * 5000}%"])
def test_amounts_that_are_none(given: str) -> None:
    with pytest.raises(ValueError, match="a number of at least 1, or a percentage"):
        read_amount(given)


def test_options_that_are_changed_are_known_as_the_latest() -> None:
    assert FULL.changed(min_ready=30) == FULL
    changed = FULL.changed(min_ready=31).changed(reason="")
    assert (changed.revision, changed.options.min_ready, changed.options.reason) == (2, 31, "")
    body = changed.request("web-1", "uid-1", ("app",))
    assert ANNOTATION_REASON not in body["metadata"]["annotations"]
    mark = read_run_request(body)
    assert mark is not None
    assert mark.run == changed
    one, two = member("web-1"), member("web-2")
    newer = replace(asked(FULL, two), request=replace(asked(FULL, two).request, created="2026-01-01T13:00:00Z"))
    other = asked(run(name="other").changed(min_ready=1).changed(min_ready=2).changed(min_ready=3), two)
    world = World((one, two), (asked(changed, one), newer, other))
    assert newest_run(world.requests[:2]) == changed, "the request that is newer has the options of before"
    assert world.latest(FULL) == changed
    ahead = changed.changed(min_ready=32)
    assert world.latest(ahead) == ahead, "the watch may lag behind"
    assert World(()).latest(FULL) == FULL


@pytest.mark.parametrize("image", [None, ImageChange("evil:1", ("app:1",))])
@pytest.mark.parametrize("revision", [0, 999])
@pytest.mark.parametrize("policy", ["", "uid-of-policy"])
def test_nobody_changes_what_a_run_does(image: ImageChange | None, revision: int, policy: str) -> None:
    """Who may write requests may not have the rights of the user, or the manager, whose process carries out the run."""
    own = run(image=ImageChange("app:2", ("app:1",)), policy=policy)
    forged = replace(own, options=replace(own.options, image=image, min_ready=99), revision=revision)
    world = World((), (asked(own, member("web-1")), replace(asked(forged, member("web-2")), run=forged)))
    assert world.latest(own) == own
    first, last = sorted(world.requests, key=lambda each: each.age)
    assert newest_run((last, first)) == first.run
    for changes in ({"objects": ()}, {"since": ""}, {"policy": "other"}, {"containers": ("side",)}):
        of_change = run(image=image, objects=("ConfigMap cfg () 2026-01-01T00:00:00Z",), since="2026-01-01T00:00:00Z")
        other = replace(of_change, options=replace(of_change.options, **changes), revision=revision)
        assert World((), (replace(asked(of_change, member("web-1")), run=other),)).latest(of_change) == of_change


@pytest.mark.parametrize("image", ["", "evil:1"])
def test_the_image_of_a_run_is_that_of_the_spec(image: str) -> None:
    body = run(image=ImageChange("app:2", ("app:1",))).request("web-1", "uid-1", ("app",))
    assert read_run_request(body) is not None
    body["spec"]["containers"][0]["image"] = image
    assert read_run_request(body) is None


def test_what_was_given_is_stored_beside_what_the_run_does() -> None:
    """Requests of runs without it are as those of older versions, which have no such fields."""
    pinned = ImageChange("i@sha256:2", given="i:2")
    of = replace(run(image=pinned, first=1), partition="20%")
    body = of.request("web-0", "u", ("app",))
    found = read_run_request(body)
    assert found is not None
    assert (found.run.partition, found.run.options.image) == ("20%", pinned)
    stepped = replace(run(steps=(1, 2)), steps="20%,50%")
    found = read_run_request(stepped.request("web-0", "u", ("app",)))
    assert found is not None
    assert found.run == stepped
    plain = json.loads(run(image=ImageChange("i:2")).to_json())
    assert ("partition" in plain, "steps" in plain, "given" in plain["options"]["image"]) == (False, False, False)


@pytest.mark.parametrize(
    ("of", "said"),
    [
        (run(), "app of deployment.apps/web, 1 pod, at most 1 unready"),
        (run(reason="log level"), "app of deployment.apps/web, 1 pod, at most 1 unready (log level)"),
        (
            replace(run(steps=(1,), reason="log level"), steps="10%"),
            "app of deployment.apps/web, 1 pod, at most 1 unready, in steps 10% (log level)",
        ),
    ],
)
def test_a_run_says_what_it_does(of: Run, said: str) -> None:
    assert of.describe(1) == said
