import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from crrd.core.api.pod import ContainerKind
from crrd.kubelet.labels import ANNOTATION_CONFIG_HASH, ANNOTATION_MIRROR
from crrd_forecast.hash.container_hash import container_hash
from crrd_forecast.hash.version import NEWEST_MINOR
from crrd_forecast.inputs import Join
from crrd_forecast.render import draw, report_from, shape, to_text
from crrd_forecast.report import Change, ForecastInput, Outcome, Report, make_report, parse_stored

Json = dict[str, Any]
SPEC: Json = {"name": "app", "image": "nginx:1.25", "resources": {}, "terminationMessagePath": "/dev/termination-log"}


SPELLED = SPEC | {"image": f"docker.io/library/nginx:1.25@sha256:{'0' * 64}"}


def stored(version: str, spec: Json = SPEC) -> str:
    value = container_hash(spec, version)
    assert value is not None
    return f"{value:x}"


def one(
    stored_hash: str | None, spec: Json | None = SPEC, kind: ContainerKind = ContainerKind.REGULAR, pod: str = "web"
) -> ForecastInput:
    return ForecastInput("shop", pod, "app", "c1", stored_hash, spec, kind)


def static(container: ForecastInput, uid: str = "171513caa49344de9d8830d589070e70") -> ForecastInput:
    return replace(container, uid=uid)


def judged(container: ForecastInput, from_version: str, to_version: str) -> tuple[str, str]:
    (found,) = make_report([container], from_version, to_version).containers
    return found.outcome.value, found.reason


ERAS = "kubelet 1.30 hashes the whole container's JSON, 1.31 only name and image"
DUMPS = "kubelet 1.15 hashes a dump of the whole container, 1.16 the whole container's JSON"
BETWEEN = (
    "the hash includes fields that were added between 1.7 and 1.9: "
    "VolumeDevices, MountPropagation, AllowPrivilegeEscalation"
)
CHANGED = "the container's spec has changed since it started, so kubelet 1.31 would restart it, too"
NO_POD = "the pods that were read do not include this container"
INIT, SIDECAR, EPHEMERAL = ContainerKind.INIT, ContainerKind.SIDECAR, ContainerKind.EPHEMERAL
SINCE_1_32 = "kubelet 1.32 compares the hash of a sidecar, but 1.31 does not"
UNKNOWN_VERSION = (
    f"this version of crrd does not know kubelet 1.99, only versions up to 1.{NEWEST_MINOR}. The report assumes that "
    f"kubelet 1.99 computes the same hashes as 1.{NEWEST_MINOR}. Use a newer crrd, or drain the node first"
)
NO_RECORD = (
    "the hash stays the same, but kubelet 1.33 may take the container's resources for a resize, and its resizePolicy "
    "is RestartContainer"
)
SAME = "the hash stays the same"
RESTART = [{"resourceName": "memory", "restartPolicy": "RestartContainer"}]
RESIZABLE = SPEC | {"resources": {"limits": {"memory": "1Gi"}}, "resizePolicy": RESTART}
OTHER = RESIZABLE | {"resources": {"requests": {"cpu": "1"}}}
STATIC = "kubelet derives the UID of a static pod from the fields that its version knows"
NOT = " differs from the stored one"
CASES: list[tuple[ForecastInput, str, str, str, str]] = [
    (one(stored("1.30")), "1.30", "1.31", "restart", ERAS),
    (one(stored("1.15")), "1.15", "1.16", "restart", DUMPS),
    (one(stored("1.7")), "v1.7.16", "v1.9.11", "restart", BETWEEN),
    (
        one(stored("1.9")),
        "1.9",
        "1.8",
        "restart",
        "the hash includes fields that were added between 1.8 and 1.9: VolumeDevices",
    ),
    (one(stored("1.31")), "1.31", "1.36", "keep", "the hash stays the same"),
    (one(stored("1.20")), "1.20", "1.30", "keep", "the hash stays the same"),
    (one(stored("1.31")), "1.30", "1.31", "keep", "the hash stays the same"),
    (one("abc"), "1.31", "1.32", "restart", CHANGED),
    (
        one("abc"),
        "1.6",
        "1.7",
        "restart",
        "the hash that kubelet 1.7 computes (of a dump of the whole container)" + NOT,
    ),
    (one(None), "1.30", "1.31", "unknown", "kubelet recorded no hash on the container"),
    (one("x" * 50), "1.30", "1.31", "unknown", f"the hash on the container is invalid: {'x' * 40!r}"),
    (one("abc", None), "1.30", "1.31", "unknown", NO_POD),
    (one("abc", SPEC | {"newer": 1}), "1.29", "1.30", "unknown", "container.newer is not known to kubelet 1.30"),
    (one("abc", kind=INIT), "1.30", "1.31", "keep", "kubelet does not compare the hash of an init container"),
    (one(None, kind=EPHEMERAL), "1.30", "1.31", "keep", "kubelet does not compare the hash of an ephemeral container"),
    (one("abc", kind=SIDECAR), "1.30", "1.27", "unknown", "kubelet 1.27 does not support sidecars"),
    (one("abc", kind=SIDECAR), "1.29", "1.28", "unknown", "kubelet 1.28 does not support sidecars"),
    (
        one(stored("1.30"), kind=SIDECAR),
        "1.30",
        "1.31",
        "keep",
        "kubelet compares the hash of a sidecar only since 1.32",
    ),
    (one(stored("1.30"), kind=SIDECAR), "1.30", "1.32", "restart", ERAS.replace("1.31", "1.32")),
    (one(stored("1.30"), kind=SIDECAR), "1.31", "1.32", "restart", SINCE_1_32),
    (one(stored("1.30"), kind=SIDECAR), "1.32", "1.33", "restart", CHANGED.replace("1.31", "1.32")),
    (one(stored("1.32"), kind=SIDECAR), "1.32", "1.33", "keep", "the hash stays the same"),
    (one(stored("1.32", RESIZABLE), RESIZABLE), "1.32", "1.33", "unknown", NO_RECORD),
    (one(stored("1.32", RESIZABLE), RESIZABLE), "1.33", "1.36", "keep", SAME),
    (one(stored("1.32", RESIZABLE), RESIZABLE), "1.31", "1.32", "keep", SAME),
    (one(stored("1.32", RESIZABLE), RESIZABLE, SIDECAR), "1.32", "1.33", "unknown", NO_RECORD),
    (one(stored("1.32", OTHER), OTHER), "1.32", "1.33", "keep", SAME),
    (static(one(stored("1.33"))), "1.33", "1.36", "restart", f"{STATIC}, so 1.36 replaces the pod"),
    (static(one(stored("1.36"))), "1.36", "1.33", "restart", f"{STATIC}, so 1.33 replaces the pod"),
    (static(one(stored("1.33"), kind=SIDECAR)), "1.30", "1.31", "restart", f"{STATIC}, so 1.31 replaces the pod"),
    (static(one(stored("1.29"))), "1.29", "1.30", "unknown", f"{STATIC}, so 1.30 may replace the pod"),
    (static(one(stored("1.33"))), "1.33.1", "1.33.13", "keep", SAME),
    (static(one(stored("1.33")), "of-the-manifest"), "1.33", "1.36", "keep", SAME),
]


@pytest.mark.parametrize(("container", "from_version", "to_version", "outcome", "reason"), CASES)
def test_outcomes(container: ForecastInput, from_version: str, to_version: str, outcome: str, reason: str) -> None:
    assert judged(container, from_version, to_version) == (outcome, reason)


def test_what_changed_since_the_start_is_told_by_meaning() -> None:
    limits = {"resources": {"limits": {"cpu": "0.5"}}}
    same = replace(one(stored("1.31"), SPEC | {"resources": {"limits": {"cpu": "500m"}}}), started_with=SPEC | limits)
    other = replace(one("abc"), pod="x", started_with=SPEC | {"image": "nginx:1.24", "workingDir": "/"})
    report = make_report([same, other, replace(one("abc"), pod="y")], "1.31", "1.32")
    changed = (
        Change('image: "nginx:1.24" → "nginx:1.25" (needs a restart)', restart=True),
        Change('workingDir: "/" → absent (needs a restart)', restart=True),
    )
    assert [each.changes for each in report.containers] == [(), changed, None]
    assert report_from(shape(report)) == report
    table = to_text([report], "table")
    assert "the hash stays the same; the spec has not changed since its start" in table
    assert f"{CHANGED}; changed since its start: image: " in table
    assert table.count(CHANGED) == 2


def mixed() -> Report:
    return make_report(
        [one(stored("1.31"), pod="b"), one(stored("1.30"), pod="a"), one(None, pod="c")], "v1.31.4", "1.32", node="n1"
    )


def test_totals_and_order() -> None:
    report = mixed()
    assert report.totals == {Outcome.KEEP: 1, Outcome.RESTART: 1, Outcome.UNKNOWN: 1}
    assert [each.pod for each in report.containers] == ["a", "b", "c"]


def test_what_differs_now_is_counted_whatever_comes() -> None:
    containers = [one(stored("1.30")), one(stored("1.31")), one("abc", kind=ContainerKind.INIT), one(None)]
    assert make_report(containers, "1.31", "1.30").differing_now == 1
    assert make_report(containers, "1.30", "1.30").differing_now == 1
    sidecars = [one("abc", kind=ContainerKind.SIDECAR)]
    assert [make_report(sidecars, version, "1.36").differing_now for version in ("1.31", "1.32")] == [0, 1]
    assert make_report([], "1.30", "1.30").totals == dict.fromkeys(Outcome, 0)


@pytest.mark.parametrize(("from_version", "to_version"), [("1.30", "soon"), ("soon", "1.30")])
def test_what_is_no_version(from_version: str, to_version: str) -> None:
    with pytest.raises(ValueError, match="'soon' is not a Kubernetes version"):
        make_report([], from_version, to_version)


def test_a_version_that_is_newer_than_what_is_known_is_said_to_be() -> None:
    assert make_report([], "1.36", "1.36").notes == ()
    assert make_report([], "1.36", "1.99").notes == (UNKNOWN_VERSION,)


@pytest.mark.parametrize(
    ("annotation", "value"), [("5cede6d7", 0x5CEDE6D7), ("0", 0), ("", None), (None, None), ("-1", None), ("0x1", None)]
)
def test_the_annotation(annotation: str | None, value: int | None) -> None:
    assert parse_stored(annotation) == value


def running(container_id: str, uid: str, name: str) -> ForecastInput:
    return ForecastInput("shop", "web", name, container_id, "abc", uid=uid)


def meta(uid: str, namespace: str = "shop", name: str = "web", **annotations: str) -> Json:
    return {"namespace": namespace, "name": name, "uid": uid, "annotations": annotations}


POD: Json = {
    "metadata": meta("u1"),
    "spec": {
        "containers": [{"name": "app"}],
        "initContainers": [{"name": "setup"}, {"name": "proxy", "restartPolicy": "Always"}],
        "ephemeralContainers": [{"name": "debug"}],
    },
}


def test_specs_are_found_by_pod_and_name() -> None:
    names = ("app", "setup", "proxy", "debug", "gone")
    join = Join([running(name, "u1", name) for name in names] + [running("other", "u2", "app")])
    found = {each.id: each for each in join.pod(POD)}
    assert {name: found[name].kind for name in names} == {
        "app": ContainerKind.REGULAR,
        "setup": ContainerKind.INIT,
        "proxy": ContainerKind.SIDECAR,
        "debug": ContainerKind.EPHEMERAL,
        "gone": ContainerKind.REGULAR,
    }
    assert (found["app"].spec, found["gone"].spec) == ({"name": "app"}, None)
    assert [each.id for each in join.rest()] == ["other"]
    assert join.rest() == []


@pytest.mark.parametrize(
    ("started_with", "versions", "outcome", "reason"),
    [
        (SPELLED, ("1.31", "1.36"), "keep", SAME),
        (SPELLED, ("1.36", "1.31"), "keep", SAME),
        (SPELLED, ("1.30", "1.31"), "restart", ERAS),
        (SPEC, ("1.31", "1.36"), "restart", CHANGED),  # kubelet has not restarted it yet
    ],
)
def test_a_container_that_a_patch_has_restarted(
    started_with: Json, versions: tuple[str, str], outcome: str, reason: str
) -> None:
    """What counts is the pod's spec, with the name of the image that the patch has left, and not the template."""
    hashed = f"{container_hash(started_with, versions[0]):x}"
    join = Join([replace(running("c1", "u1", "app"), stored_hash=hashed)])
    (found,) = join.pod({**POD, "spec": {"containers": [SPELLED]}})
    assert judged(found, *versions) == (outcome, reason)


def test_a_static_pod_is_found_by_its_mirror() -> None:
    join = Join([running("c1", "hash", "app")])
    mirror = {**POD, "metadata": meta("mirror", **{ANNOTATION_CONFIG_HASH: "hash", ANNOTATION_MIRROR: "hash"})}
    assert [each.spec for each in join.pod(mirror)] == [{"name": "app"}]


@pytest.mark.parametrize(
    "metadata",
    [
        None,
        1,
        meta(""),
        meta("u2"),
        meta("u1", namespace="other"),
        meta("u1", name="other"),
        meta("u2", **{ANNOTATION_CONFIG_HASH: "u1"}),
        meta("u2", name="other", **{ANNOTATION_CONFIG_HASH: "u1", ANNOTATION_MIRROR: "u1"}),
    ],
)
def test_pods_that_run_nothing_here(metadata: Json) -> None:
    pod = {**POD, "metadata": metadata}
    join = Join([running("c1", "u1", "app"), running("c2", "", "by hand")])
    assert join.pod(pod) == []
    assert {each.id for each in join.rest()} == {"c1", "c2"}


def test_table() -> None:
    first, *_, last = to_text([mixed()], "table").splitlines()
    assert first.split() == ["NAMESPACE", "POD", "CONTAINER", "STORED", "EXPECTED", "OUTCOME", "REASON"]
    assert last == "node n1: 1 keep, 1 restart, 1 unknown (kubelet v1.31.4 to 1.32)"
    assert f"shop       b    app        {int(stored('1.31'), 16)}" in to_text([mixed()], "table")


def test_a_table_without_containers_and_without_a_report() -> None:
    failed = make_report([], "1.30", "1.31", node="n2").failing("no daemon")
    assert to_text([make_report([], "1.30", "1.99"), failed], "table") == (
        f"0 keep, 0 restart, 0 unknown (kubelet 1.30 to 1.99)\n{UNKNOWN_VERSION}\n\nnode n2: no report\nno daemon"
    )


def test_json_and_yaml_say_the_same() -> None:
    as_json = json.loads(to_text([mixed()], "json"))
    assert as_json == yaml.safe_load(to_text([mixed()], "yaml")) == shape(mixed())
    assert as_json["totals"] == {"keep": 1, "restart": 1, "unknown": 1}
    assert as_json["containers"][0]["targetHash"] == container_hash(SPEC, "1.32")
    assert json.loads(to_text([mixed()] * 2, "json", several=True)) == [as_json, as_json]
    assert json.loads(to_text([mixed()], "json", several=True)) == [as_json]


def test_a_report_survives_the_way_through_json() -> None:
    report = mixed().failing("only for the test")
    assert report_from(json.loads(json.dumps(shape(report)))) == report


@pytest.mark.parametrize("body", [{}, {"containers": 1}, {"containers": [{}]}, shape(mixed()) | {"containers": [1]}])
def test_an_answer_that_is_no_report(body: Json) -> None:
    found = report_from(body)
    assert found.failed
    assert found.notes == ("the node daemon's response cannot be read",)


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_the_picture(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"nodes.{ending}"
    draw([mixed(), make_report([], "1.30", "1.31", node="n2")], str(path))
    assert path.stat().st_size > 1000
    if ending == "svg":
        assert "<svg" in path.read_text()


def test_the_picture_of_many_nodes_can_be_looked_at(tmp_path: Path) -> None:
    path = tmp_path / "nodes.png"
    draw([make_report([], "1.30", "1.31", node=f"n{number}") for number in range(450)], str(path))
    height = int.from_bytes(path.read_bytes()[20:24])  # of the IHDR chunk
    assert 8_000 < height <= 16_384
