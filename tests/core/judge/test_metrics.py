"""Metrics as users write them: what is read, the message for each mistake, and the names of pods in queries."""

import json
import re
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from crrd.core.api.fields import Section
from crrd.core.judge.metrics import Metric, fields, read_metric, read_metrics, render, write_metric
from crrd.lib.jsonfields import Reader

QUERY = 'sum(rate(errors{pod=~"{{pods}}",namespace="{{namespace}}"}[1m]))'
CA = "-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----\n"
LEAST = {"address": "https://prometheus.example:9090", "query": QUERY, "max": 0.05}
SECRET = {"name": "token", "key": "value"}
PATH = "spec.judge.metrics[]"
TABLE = {each.path: each for each in fields(PATH)}


def read(given: object) -> tuple[Metric, str]:
    """Read as a policy's."""
    reader = Reader()
    return read_metric(Section(TABLE, reader, given, PATH, "spec.judge.metrics[0]")), reader.error


def error_of(**changes: object) -> str:
    _, error = read({"prometheus": {**LEAST, **changes}})
    return error


def test_all_fields() -> None:
    given = {**LEAST, "min": 0, "baseline": True, "ca": CA, "bearerTokenSecret": SECRET}
    assert read({"prometheus": given}) == (
        Metric(LEAST["address"], QUERY, 0.0, 0.05, True, CA, "token", "value"),  # type: ignore[arg-type]
        "",
    )


def test_the_least() -> None:
    assert read({"prometheus": LEAST}) == (Metric("https://prometheus.example:9090", QUERY, high=0.05), "")
    absent = {"min": None, "baseline": None, "ca": "", "bearerTokenSecret": None}
    assert read({"prometheus": {**LEAST, **absent}}) == read({"prometheus": LEAST})


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"address": None}, ".address must be a string that is not empty"),
        ({"address": 7}, ".address must be a string"),
        ({"address": "prometheus:9090"}, ".address must be an address like https://prometheus.example:9090/prefix: "),
        ({"address": "https://u:p@prometheus"}, ".address must be an address like "),
        ({"address": "https://*.example"}, ".address must be an address like "),
        ({"query": ""}, ".query must be a string that is not empty"),
        ({"query": ["up"]}, ".query must be a string"),
        ({"query": "up{{pod}}"}, ".query has '{{pod}}', but the only placeholders are {{pods}} and {{namespace}}"),
        ({"query": "up{{ pods }}"}, ".query has '{{ pods }}', but the only placeholders are "),
        ({"query": 'up{a=~"{{pods}}"} or {{x'}, ".query has '{{x', but the only placeholders are "),
        ({"query": "{{pods}" + "}" + "{{Pods}}"}, ".query has '{{Pods}}', but "),
        (
            {"query": 'up{pod="{{pods}}"}'},
            '.query must use {{pods}} as a regular expression, for example pod=~"{{pods}}"',
        ),
        ({"query": 'up{a="b",pod!= "{{pods}}"}'}, ".query must use {{pods}} as a regular expression"),
        ({"query": "up{pod='{{pods}}'}"}, ".query must use {{pods}} as a regular expression"),
        ({"query": "up", "baseline": True}, ".query must have {{pods}}, because baseline compares pods"),
        ({"max": None}, " must have min or max"),
        ({"max": "0.05"}, ".max must be a number, not '0.05'"),
        ({"max": True}, ".max must be a number, not true"),
        ({"max": float("nan")}, ".max must be a number, not NaN"),
        ({"max": float("inf")}, ".max must be a number, not Infinity"),
        ({"min": -float("inf")}, ".min must be a number, not -Infinity"),
        ({"max": 10**400}, ".max must be a number, not 1000"),
        ({"min": []}, ".min must be a number, not a list"),
        ({"min": 0.06}, ".min must not be above max"),
        ({"baseline": "true"}, ".baseline must be true or false"),
        ({"ca": "/etc/ca.crt"}, ".ca must be PEM text with -----BEGIN CERTIFICATE-----"),
        ({"ca": 1}, ".ca must be a string"),
        ({"ca": CA, "address": "http://a"}, ".ca needs an address with https"),
        ({"bearerTokenSecret": SECRET, "address": "http://a"}, ".bearerTokenSecret needs an address with https"),
        ({"bearerTokenSecret": "token"}, ".bearerTokenSecret must be an object"),
        ({"bearerTokenSecret": {"name": "a"}}, ".bearerTokenSecret.key must be a string that is not empty"),
        ({"bearerTokenSecret": {"key": "a"}}, ".bearerTokenSecret.name must be a string that is not empty"),
        ({"bearerTokenSecret": {**SECRET, "namespace": "x"}}, ".bearerTokenSecret has an unknown field 'namespace'; "),
        (
            {"bearerTokenFile": "/token"},
            " has an unknown field 'bearerTokenFile'; its fields are address, query, min, ",
        ),
        ({True: 1}, " has an unknown field 'True'; its fields are "),
    ],
    ids=str,
)
def test_what_is_wrong(changes: Any, error: str) -> None:
    _, found = read({"prometheus": {**LEAST, **changes}})
    assert found.startswith(f"spec.judge.metrics[0].prometheus{error}")


@pytest.mark.parametrize(
    ("given", "error"),
    [
        (None, "spec.judge.metrics[0].prometheus.address must be a string that is not empty"),
        ([], "spec.judge.metrics[0] must be an object"),
        ({"datadog": {}}, "spec.judge.metrics[0] has an unknown field 'datadog'; its fields are prometheus"),
        ({"prometheus": "up"}, "spec.judge.metrics[0].prometheus must be an object"),
    ],
)
def test_what_is_no_metric(given: object, error: str) -> None:
    assert read(given)[1] == error


@pytest.mark.parametrize(
    "query",
    [
        "up",
        'up{pod=~"{{pods}}"}',
        'up{pod!~ `{{pods}}`,a="x"}',
        'up{instance=~"({{pods}}):9090",namespace="{{namespace}}"}',
        'label_replace(up, "a", "{x}", "pod", "{{pods}}")',
        'up{pod="web-1"} == 1',
    ],
)
def test_queries_as_users_write_them(query: str) -> None:
    assert error_of(query=query) == ""


LOCAL = """
- prometheus:
    address: http://localhost:9090/prometheus
    query: up{pod=~"{{pods}}"}
    min: 1
- prometheus: {address: "https://a.example", query: up, max: 0.001, bearerTokenFile: /token}
"""


def test_the_metrics_of_a_command() -> None:
    assert read_metrics(yaml.safe_load(LOCAL)) == (
        Metric("http://localhost:9090/prometheus", 'up{pod=~"{{pods}}"}', low=1.0),
        Metric("https://a.example", "up", high=0.001, token_file="/token"),
    )
    assert read_metrics(None) == ()


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ("up", "metrics must be a list"),
        ([{"prometheus": LEAST}, {}], "metrics[1].prometheus.address must be a string that is not empty"),
        (
            [{"prometheus": {**LEAST, "bearerTokenSecret": SECRET}}],
            "metrics[0].prometheus has an unknown field 'bearer",
        ),
        (yaml.safe_load('[{"prometheus": {"max": 2026-01-01}}]'), "metrics[0].prometheus.address must be"),
        (
            [{"prometheus": {**LEAST, "max": yaml.safe_load("2026-01-01")}}],
            "metrics[0].prometheus.max must be a number, ",
        ),
        (
            [{"prometheus": {**LEAST, "address": "http://a", "bearerTokenFile": "/token"}}],
            "metrics[0].prometheus.bearerTokenFile needs an address with https",
        ),
    ],
)
def test_what_is_wrong_in_a_command(given: object, error: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(error)}"):
        read_metrics(given)


NUMBERS = st.one_of(st.none(), st.floats(allow_nan=False, allow_infinity=False))


@given(
    low=NUMBERS,
    high=NUMBERS,
    baseline=st.booleans(),
    ca=st.sampled_from(["", CA]),
    token=st.sampled_from([("", "", ""), ("a", "b", ""), ("", "", "/token")]),
)
def test_what_is_written_is_read(
    low: float | None, high: float | None, baseline: bool, ca: str, token: tuple[str, str, str]
) -> None:
    metric = Metric("https://a.example", QUERY, low, high, baseline, ca, *token)
    wrong = (low is None and high is None) or (low is not None and high is not None and low > high)
    shape = json.loads(json.dumps(write_metric(metric)))
    if metric.token_file:
        if not wrong:
            assert read_metrics([shape]) == (metric,)
    else:
        found, error = read(shape)
        assert found == metric
        assert bool(error) is wrong


JSON: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(st.text(max_size=5), inner, max_size=2)),
    max_leaves=4,
)


@given(st.dictionaries(st.sampled_from([*LEAST, "min", "baseline", "ca", "bearerTokenSecret", "x"]), JSON))
def test_no_input_raises(changes: dict[str, Any]) -> None:
    metric, error = read({"prometheus": {**LEAST, **changes}})
    if not error:
        assert render(metric.query, ["web-1"], "shop")
        assert read(write_metric(metric)) == (metric, "")


@pytest.mark.parametrize(
    ("query", "pods", "expected"),
    [
        (QUERY, ["web-1"], 'sum(rate(errors{pod=~"(?:web-1)",namespace="shop"}[1m]))'),
        ("{{pods}}", ["web-2", "web-10", "db.0"], "(?:db[.]0|web-10|web-2)"),
        ("{{pods}}{{pods}}", ["a"], "(?:a)(?:a)"),
        ("up", ["a"], "up"),
    ],
)
def test_a_query_for_pods(query: str, pods: list[str], expected: str) -> None:
    assert render(query, pods, "shop") == expected
    assert render(query, frozenset(pods), "shop") == expected


@pytest.mark.parametrize(
    ("pods", "namespace", "why"),
    [
        ([], "shop", "there are no pods to ask about"),
        (["a", 'b"} or up{x="'], "shop", " is no name of a pod or namespace"),
        (["a|b"], "shop", "'a|b' is no name"),
        (["{{namespace}}"], "shop", "is no name"),
        (["a\n"], "shop", "is no name"),
        (["a\u0663"], "shop", "is no name"),
        ([""], "shop", "'' is no name"),
        (["a"], 'x"', " is no name"),
        (["a"], "", "'' is no name"),
    ],
)
def test_what_gets_into_no_query(pods: list[str], namespace: str, why: str) -> None:
    with pytest.raises(ValueError, match=re.escape(why)):
        render(QUERY, pods, namespace)


NAMES = st.from_regex(r"[a-z0-9]([-a-z0-9.]{0,8}[a-z0-9])?", fullmatch=True)


@given(st.sets(NAMES, min_size=1, max_size=4), NAMES)
def test_the_expression_matches_these_pods_alone(pods: set[str], other: str) -> None:
    """Prometheus anchors it at both ends, and reads the quotes first."""
    found = json.loads(f'"{render("{{pods}}", pods, "shop")}"')
    assert all(re.fullmatch(found, pod) for pod in pods)
    assert bool(re.fullmatch(found, other)) is (other in pods)


def test_five_thousand_pods() -> None:
    pods = [f"{'a' * 240}-{at:05}.{at}" for at in range(5000)]
    assert len(render(QUERY, pods, "shop")) < 2**21  # Go reads forms of up to 10 MiB
