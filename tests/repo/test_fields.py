"""The tables of fields are the only ones: CRDs, docs and readers say what they say."""

import importlib.util
import json
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from crrd.core.api import schema as requests
from crrd.core.api.fields import Field, Type
from crrd.core.api.v1alpha1 import parse_request
from crrd.core.policy import schema as policies
from crrd.core.policy.cron import CRON_NAMES
from crrd.core.policy.v1alpha1 import read_policy
from crrd.core.rollout.change import ImageChange, TemplateMode
from crrd.core.rollout.phases import End, RunPhase
from crrd.core.rollout.progress import ANNOTATION_PROGRESS, Progress
from crrd.core.rollout.requests import read_run_request
from crrd.core.rollout.run import ANNOTATION_RUN, OF_STEPS, Amount, Options, Run, Target
from crrd.core.rollout.run_limits import ANNOTATION_LIMITS, limits_annotation
from crrd.lib.jsonfields import items, value_at, with_values
from crrd_localnode.api.crds import POLICIES, REQUESTS, load_crd
from crrd_localnode.api.schema import Schema
from tests.support.policies import evaluate

ROOT = Path(__file__).parents[2]
GENERATOR = ROOT / "manifests" / "base" / "generate.py"
Json = dict[str, Any]
TABLES = {REQUESTS: requests.FIELDS, POLICIES: policies.FIELDS}


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fields", GENERATOR)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def openapi(file: str) -> Json:
    schema: Json = load_crd(file)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema


def inside(schema: Json, path: str) -> Iterator[tuple[str, Json]]:
    """The schema of each field, by the path that the table has for it."""
    for name, inner in schema.get("properties", {}).items():
        entries = inner.get("items", inner)
        where = f"{path}.{name}".lstrip(".") + ("[]" if "properties" in inner.get("items", {}) else "")
        yield where, inner
        yield from inside(entries, where)


def test_what_is_committed_is_what_is_generated(generate: ModuleType) -> None:
    for name, text in generate.files().items():
        assert (ROOT / name).read_text(encoding="utf-8") == text, "run: python manifests/base/generate.py"


@pytest.mark.parametrize("file", TABLES)
def test_every_field_is_explained_and_bounded(file: str) -> None:
    """CEL's estimated cost needs a bound for all that a rule reads."""
    for path, schema in inside({"properties": openapi(file)["properties"]}, ""):
        assert path == "metadata" or schema["description"], path
        if path.startswith("spec") and schema.get("type") == "array":
            assert "maxItems" in schema, path
        if path.startswith("spec.") and schema.get("type") == "string":
            assert "maxLength" in schema or "enum" in schema, path


def test_a_changed_row_changes_the_crd_and_the_docs(generate: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    path = "spec.triggers.maxAge"
    changed = replace(policies.FIELDS[path], low=300, default="24h", description="Another one.")
    monkeypatch.setitem(policies.FIELDS, path, changed)
    files = generate.files()
    crd = yaml.safe_load(files["manifests/base/policies-crd.yaml"])["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    found = crd["properties"]["spec"]["properties"]["triggers"]["properties"]["maxAge"]
    assert found["description"] == "Another one. At least 5m. The default is 24h."
    assert found["x-kubernetes-validations"][0]["rule"] == "duration(self) >= duration('300s')"
    assert "| `triggers.maxAge` | duration, at least 5m | 24h | Another one. |" in files["docs/policy.md"]
    spec = {"targetRef": {"apiVersion": "apps/v1", "kind": "x", "name": "x"}, "triggers": {"configChange": {}}}
    assert read_policy({"spec": spec}).max_age == 86_400
    assert read_policy({"spec": {**spec, "triggers": {"maxAge": "299s"}}}).error.endswith("at least 5m")
    assert read_policy({"spec": {**spec, "triggers": {"maxAge": "300s"}}}).max_age == 300


CRONS: list[Any] = [
    "0 4 * * *",
    "*/5 1-3 * jan,feb sun",
    "0 0 29 2 *",
    "@every 1h",
    "@dayly",
    "0 4 * *",
    "",
    *CRON_NAMES,
]
"""What else is no cron expression, and no time zone, is not in the CRD."""
KEPT: dict[str, list[Any]] = {
    "spec.podName": ["", "a", "web-1.x", "a" * 254],
    "spec.containers[].statusContext.containerID": ["containerd://x"],
    "spec.containers[].statusContext": [{"containerID": "containerd://x", "restartCount": 1}, {"restartCount": 1}],
    "spec.triggers.schedule": [{"cron": "0 4 * * *"}],
    "spec.triggers.schedule.cron": CRONS,
    "spec.window.cron": CRONS,
    "spec.triggers.schedule.timeZone": ["UTC", "Europe/Berlin"],
    "spec.window.timeZone": ["UTC", "Europe/Berlin"],
    "spec.judge.metrics[].prometheus.address": ["https://prometheus.example:9090/p", "https://[::1]"],
    "spec.judge.metrics[].prometheus.query": ["up", 'up{pod=~"{{pods}}"}', "x" * 8193],
    "spec.judge.metrics[].prometheus.ca": ["", "-----BEGIN CERTIFICATE-----", "x" * 16385],
}
"""Values of fields whose texts the readers know better than a schema can."""
WRONG: list[Any] = [None, 0, 7, -1, 1.0, True, "x", [], {}, [None], ["a"], {"a": "b"}]
LABEL_VALUES: list[Json] = [{}, {"values": []}, {"values": ["a", "b"]}]
OF_TYPE: dict[Type, list[Any]] = {
    Type.STRING: ["a", "Fail", "Ignore", "x" * 63, "x" * 64, "x" * 254],
    Type.BOOLEAN: [False],
    **{each: [1, 2, 3, 3.5, 2**31 - 1, 2**31, 2.0**31, 2**63 - 1, 2**63] for each in (Type.INT32, Type.INT64)},
    Type.NUMBER: [0.05, -1.5, 2**63, 1e300],
    Type.STRINGS: [["a", "b"], ["a"] * 65, [""], ["c" * 64], [1]],
    Type.AMOUNT: [1.5, 5, 999_999, 10**6, "0", "1", "007", "0%", "1%", "100%", "101%", "10 %", "1000"],
    Type.AMOUNTS: [[1, "10%"], [3, 1], ["0"], [1.5], [True], ["1"] * 17],
    Type.QUANTITY: [5, 1.5, 10**9, "0", "5", "07", "1.5", "50m", "64Mi", "1Gi", "1Ti", "999999999Mi", "5 Mi", "-1"],
    Type.SELECTOR: [
        {"matchLabels": {}},
        {"matchLabels": {"app": "web", "tier": ""}},
        {"matchLabels": {"app": 1}},
        {"matchExpressions": []},
        *(
            {"matchExpressions": [{"key": key, "operator": operator, **some}]}
            for key in ("app", "")
            for operator in ("In", "NotIn", "Exists", "DoesNotExist", "Gt")
            for some in LABEL_VALUES
        ),
    ],
}
PARTS = st.sampled_from(
    ["", "0", "1", "2", "59", "60", "61", "0059", "0060", "10", "599", "600", "999999", "1234567", "9999999999"]
)
DURATIONS = st.one_of(
    st.tuples(PARTS, PARTS, PARTS).map(
        lambda parts: "".join(part + unit for part, unit in zip(parts, "hms", strict=True) if part)
    ),
    st.sampled_from(["", "10", "1h30", "-5m", "1d", "90 s", "1.5h", "1m\n", "\u0661m"]),
)
BASES: dict[str, list[Json]] = {
    REQUESTS: [{"podName": "web", "containers": [{"name": "app"}]}],
    POLICIES: [
        {"targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}, "triggers": {"maxAge": "72h"}},
        {
            "selector": {"matchLabels": {"app": "web"}},
            "triggers": {"configChange": {}, "schedule": {"cron": "0 4 * * *"}},
            "window": {"cron": "0 2 * * *", "duration": "1h"},
            "budget": {"minReady": "1m", "steps": [1, "10%"], "stepPause": "10m"},
            "judge": {"for": "2m", "metrics": [{"prometheus": {"address": "https://a", "query": "up", "min": 1}}]},
        },
        {
            "targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
            "triggers": {"templateImage": {"pullResources": {"cpu": 1, "memory": "64Mi"}}},
        },
    ],
}


def values(field: Field) -> st.SearchStrategy[Any]:
    if field.path in KEPT:
        return st.sampled_from([*KEPT[field.path], *(each for each in WRONG if not isinstance(each, str))])
    known = st.sampled_from([*OF_TYPE.get(field.type, []), *WRONG])
    return st.one_of(DURATIONS, known) if field.type is Type.DURATION else known


def specs(file: str, path: str = "") -> st.SearchStrategy[Json]:
    """Specs that are good but for up to three fields, or for the field at this path."""
    table = {each: field for each, field in TABLES[file].items() if each.startswith("spec.")}
    edit = st.sampled_from([path] if path else sorted(table)).flatmap(
        lambda each: st.tuples(st.just(each), values(table[each]))
    )
    edits = st.lists(edit, min_size=1, max_size=1 if path else 3)
    return st.builds(_edited, st.sampled_from(BASES[file]), edits)


def _edited(base: Json, edits: list[tuple[str, Any]]) -> Json:
    spec: Any = {"spec": base}
    for path, value in edits:
        head, entry, inner = path.partition("[].")
        if entry:
            first = (items(value_at(spec, head)) or [{}])[0]
            path, value = head, [with_values(first, {inner.replace("[]", ""): value})]  # noqa: PLW2901
        spec = with_values(spec, {path.replace("[]", ""): value})
    return dict(spec["spec"])


def admitted(file: str, spec: Json) -> Json | None:
    """What the API server stores of an object with this spec; None if it is refused."""
    schema = Schema(openapi(file))
    stored, _ = schema.complete({"metadata": {"namespace": "shop", "name": "x", "uid": "u"}, "spec": spec})
    return None if schema.check(stored, None) else stored


def read_error(file: str, obj: Json) -> str:
    return parse_request(obj).error if file == REQUESTS else read_policy(obj).error


@pytest.mark.parametrize("file", TABLES)
@given(st.data())
def test_the_reader_accepts_what_the_api_server_admits(file: str, data: st.DataObject) -> None:
    stored = admitted(file, data.draw(specs(file)))
    if stored is not None:
        assert (read_error(file, stored) != "") is bool([*broken_rules(openapi(file), stored)])


def broken_rules(schema: Json, value: Any) -> Iterator[str]:
    """The rules in CEL that a value breaks: the local API server knows few of them."""
    for rule in schema.get("x-kubernetes-validations", ()):
        if "oldSelf" not in rule["rule"] and not evaluate(rule["rule"], {"self": value}):
            yield rule["rule"]
    if isinstance(value, dict):
        for name, inner in schema.get("properties", {}).items():
            if name in value and name != "metadata":
                yield from broken_rules(inner, value[name])
    for each in value if isinstance(value, list) else ():
        yield from broken_rules(schema.get("items", {}), each)


SAME = (Type.DURATION, Type.BOOLEAN, Type.INT32, Type.INT64, Type.NUMBER)
"""Types of which the reader accepts nothing that the API server refuses. It takes longer strings and lists."""
CASES = [
    (file, path)
    for file, table in TABLES.items()
    for path, field in table.items()
    if path.startswith("spec.") and field.type in SAME and "statusContext" not in path
]


@pytest.mark.parametrize(("file", "path"), CASES)
@given(st.data())
def test_the_api_server_admits_what_the_reader_accepts(file: str, path: str, data: st.DataObject) -> None:
    spec = data.draw(specs(file, path))
    obj = {"metadata": {"namespace": "shop", "name": "x", "uid": "u"}, "spec": spec}
    if not read_error(file, obj):
        assert admitted(file, spec) is not None


@pytest.mark.parametrize("path", ["spec.triggers.schedule.cron", "spec.window.cron"])
@pytest.mark.parametrize("cron", CRONS)
def test_a_cron_expression_is_refused_with_the_readers_words(path: str, cron: str) -> None:
    spec = with_values({"spec": BASES[POLICIES][1]}, {path: cron})["spec"]
    causes = Schema(openapi(POLICIES)).check({"spec": spec}, None)
    error = read_error(POLICIES, {"spec": spec})
    assert bool(causes) == bool(error)
    if cron:  # an empty text is also too short
        messages = [cause.message.partition(": must have ")[2] for cause in causes]
        assert messages == ([error.partition(" must have ")[2]] if error else [])


IMAGE = ImageChange("i:2", ("i:1",), TemplateMode.ADOPT, template="digest", undoes="first", had="i:1")
STORED = Run(
    "shop",
    "run",
    Target("deployment.apps/web", "apps/v1", "Deployment", "web", "uid-of-web"),
    Options(
        ("app",),
        Amount(20, percent=True),
        policy="uid-of-policy",
        pull_resources="cpu=50m",
        steps=(1, 2),
        step_pause=60,
        judge=120,
        max_restarts=1,
        metrics_digest="0a1b",
        failure_limit=1,
        image=replace(IMAGE, given="i", of_pods="i:1", of_template="i:1"),
    ),
    "2026-01-01T12:00:00Z",
    revision=1,
    partition="10%",
    steps="1,10%",
)


def names_in(value: Json, path: str = "") -> Iterator[str]:
    """The names of all fields that have a value, as the tables of docs have them."""
    for name, inner in value.items():
        yield from names_in(inner, f"{path}{name}.") if isinstance(inner, dict) else [path + name]


def test_what_runs_store_is_described(generate: ModuleType) -> None:
    limits = json.loads(limits_annotation(STORED)[ANNOTATION_LIMITS])
    progress = Progress(
        "2026-01-01T12:00:55Z", "laptop/42", RunPhase.ADOPTING, 1, 4, "web-1", blocked=True, end=End.PUT_OFF, steps=1
    )
    written = {
        "run-options": {
            *names_in(json.loads(STORED.to_json())),
            *(f"options.{name}" for name in ("image", "patch", "whole_pod", "reload")),
        },
        "run-limits": {*limits},
        "run-progress": {*json.loads(progress.annotation()[ANNOTATION_PROGRESS])},
    }
    assert {each: {name for name, *_ in generate.stored(each)} for each in generate.STORED} == written


def test_an_image_that_was_stored_is_read_by_every_later_version() -> None:
    """The other annotations have such a test each beside their own ones."""
    text = (
        '{"options":{"allow_pod_restart":false,"containers":["app"],"first":0,"force":false,"image":{"before":["i:1"],'
        '"given":"i","had":"i:1","image":"i:2","mode":"adopt","of_pods":"i:1","of_template":"i:1","pulls":true,'
        '"template":"digest","undoes":"first"},"max_failures":1,"max_per_node":0,"max_per_zone":0,'
        '"max_unavailable":"20%","min_ready":null,"objects":[],"ordered":false,"pod_timeout":600,'
        '"policy":"uid-of-policy","preflight":false,"pull_resources":"cpu=50m","reason":"","since":"","stale":false,'
        '"unready_grace":null},"partition":"10%","revision":1,"started":"2026-01-01T12:00:00Z",'
        '"target":{"api_version":"apps/v1","kind":"Deployment","name":"web","selector":"","uid":"uid-of-web",'
        '"words":"deployment.apps/web"},"version":1}'
    )
    plain = Options(("app",))
    options = replace(STORED.options, **{name: getattr(plain, name) for name in OF_STEPS})
    earlier = replace(STORED, options=options, steps="")
    assert earlier.to_json() == text
    body = STORED.request("web-1", "uid-1", ("app",))
    body["metadata"]["annotations"][ANNOTATION_RUN] = text
    request = read_run_request(body)
    assert request is not None
    assert request.run == earlier
