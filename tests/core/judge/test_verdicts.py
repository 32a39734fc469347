"""What answers of Prometheus say: each form of an answer, and each way to hold or not."""

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crrd.core.judge.metrics import Metric
from crrd.core.judge.verdicts import Answer, Holds, Sample, Verdict, judge, read_answer

METRIC = Metric("http://prometheus", "up", high=0.05)
NAN, INF = float("nan"), float("inf")


def success(kind: str, result: Any, **more: Any) -> dict[str, Any]:
    return {"status": "success", "data": {"resultType": kind, "result": result}, **more}


def vector(*values: str, **more: Any) -> dict[str, Any]:
    samples = [{"metric": {"pod": f"web-{at}"}, "value": [1.5, value]} for at, value in enumerate(values)]
    return success("vector", samples, **more)


@pytest.mark.parametrize(
    ("body", "samples"),
    [
        (success("scalar", [1435781451.781, "1"]), [Sample(1.0)]),
        (success("scalar", [1, "+Inf"]), [Sample(INF)]),
        (success("vector", [{"metric": {}, "value": [1, "0.5"]}]), [Sample(0.5)]),
        (vector("-Inf", "1e-3"), [Sample(-INF, {"pod": "web-0"}), Sample(0.001, {"pod": "web-1"})]),
        (vector("1", warnings=["x"], infos=["y"]), [Sample(1.0, {"pod": "web-0"})]),
        (success("vector", [{"metric": None, "value": [1, "1"]}]), [Sample(1.0)]),
        (success("vector", [{"metric": {"a": 1}, "value": [1, "1"]}]), [Sample(1.0, {"a": ""})]),
    ],
)
def test_answers_with_values(body: object, samples: list[Sample]) -> None:
    assert read_answer(200, body) == Answer(tuple(samples))


def test_nan_is_a_value() -> None:
    (sample,) = read_answer(200, vector("NaN")).samples
    assert math.isnan(sample.value)


NOT_NUMBERS = "the answer has a value that is not a number, such as a native histogram"
NOT_PROMETHEUS = "the answer is not that of Prometheus' HTTP API"


@pytest.mark.parametrize(
    ("status", "body", "problem"),
    [
        (200, success("vector", []), "no data"),
        (200, success("string", [1, "a"]), "the query gives a string, but must give a number or an instant vector"),
        (200, success("matrix", []), "the query gives a matrix, but must give a number or an instant vector"),
        (200, success("streams", []), NOT_PROMETHEUS),
        (200, {"status": "success"}, NOT_PROMETHEUS),
        (200, success("scalar", []), NOT_NUMBERS),
        (200, success("scalar", [1]), NOT_NUMBERS),
        (200, success("scalar", [1, 1.0]), NOT_NUMBERS),
        (200, success("scalar", [1, ""]), NOT_NUMBERS),
        (200, success("scalar", [1, "a"]), NOT_NUMBERS),
        (200, success("scalar", {"a": 1}), NOT_NUMBERS),
        (200, success("vector", [None]), NOT_NUMBERS),
        (200, success("vector", [{"metric": {}, "histogram": [1, {"count": "1"}]}]), NOT_NUMBERS),
        (200, None, "the server answers HTTP 200"),
        (200, [], "the server answers HTTP 200"),
        (200, {"status": "error", "error": "x"}, "the server answers HTTP 200: x"),
        (400, {"status": "error", "errorType": "bad_data", "error": "parse error\n at 1"},
         "the server answers HTTP 400: parse error at 1"),
        (400, {"error": "x" * 1000}, f"the server answers HTTP 400: {'x' * 200}"),
        (400, {"error": ["x"]}, "the server answers HTTP 400"),
        (422, {"status": "error", "error": "\x1b[2J"}, "the server answers HTTP 422: [2J"),
        (503, vector("1"), "the server answers HTTP 503"),
        (502, None, "the server answers HTTP 502"),
        (302, None,
         "the server answers HTTP 302: redirects are not followed, so set the address that the server redirects to"),
    ],
)  # fmt: skip
def test_answers_without_values(status: int, body: object, problem: str) -> None:
    assert read_answer(status, body) == Answer(problem=problem)


def judged(*values: float, low: float | None = None, high: float | None = None) -> tuple[str, str]:
    """Judge values of pods; one value has no labels."""
    samples = [Sample(value, {"pod": f"web-{at}"} if len(values) > 1 else {}) for at, value in enumerate(values)]
    verdict = judge(Metric("http://a", "up", low, high), Answer(tuple(samples)))
    return verdict.holds.value, verdict.message


@pytest.mark.parametrize(
    ("values", "low", "high", "expected"),
    [
        ([0.37], None, 0.05, ("No", "0.37 is above 0.05")),
        ([0.05], None, 0.05, ("Yes", "0.05 is not above 0.05")),
        ([0.9], 0.95, None, ("No", "0.9 is below 0.95")),
        ([0.95], 0.95, None, ("Yes", "0.95 is not below 0.95")),
        ([0.5], 0, 1, ("Yes", "0.5 is not below 0 and not above 1")),
        ([-1], 0, 1, ("No", "-1 is below 0")),
        ([2], 0, 1, ("No", "2 is above 1")),
        ([1 / 3], None, 1, ("Yes", "0.333333 is not above 1")),
        ([0.0500000001], None, 0.05, ("No", "0.0500000001 is above 0.05")),
        ([0.1 + 0.2], None, 0.3, ("No", "0.30000000000000004 is above 0.3")),
        ([0.12345678], None, 0.12345678, ("Yes", "0.12345678 is not above 0.12345678")),
        ([12345678], None, 1e6, ("No", "12345678 is above 1000000")),
        ([1e300], None, 1e15, ("No", "1e+300 is above 1e+15")),
        ([INF], None, 1, ("No", "+Inf is above 1")),
        ([-INF], None, 1, ("Yes", "-Inf is not above 1")),
        ([-INF], 0, 1, ("No", "-Inf is below 0")),
        ([NAN], None, 1, ("Unknown", "NaN cannot be compared")),
        ([0.01, 0.03, 0.02], None, 0.05,
         ("Yes", '0.03 is not above 0.05 for {pod="web-1"}, the worst of 3 values')),
        ([0.1, 0.3, 0.02], None, 0.05,
         ("No", '0.3 is above 0.05 for {pod="web-1"}, the worst of 2 values that do not hold')),
        ([0.01, 0.3], None, 0.05, ("No", '0.3 is above 0.05 for {pod="web-1"}')),
        ([NAN, 0.3], None, 0.05, ("No", '0.3 is above 0.05 for {pod="web-1"}')),
        ([0.01, NAN], None, 0.05, ("Unknown", 'NaN for {pod="web-1"} cannot be compared')),
        ([-3, 2], 0, 1, ("No", '-3 is below 0 for {pod="web-0"}, the worst of 2 values that do not hold')),
        ([2, 2], 0, 1, ("No", '2 is above 1 for {pod="web-1"}, the worst of 2 values that do not hold')),
    ],
)  # fmt: skip
def test_values_and_bounds(
    values: list[float], low: float | None, high: float | None, expected: tuple[str, str]
) -> None:
    assert judged(*values, low=low, high=high) == expected


@pytest.mark.parametrize(
    ("labels", "shown"),
    [
        ({"job": "a", "pod": "web-1"}, ' for {pod="web-1", job="a"}'),
        ({"a": "1", "b": "2", "c": "3", "d": "4", "pod": "web-1"}, ' for {pod="web-1", a="1", b="2", ...}'),
        ({"a": "x" * 100}, f' for {{a="{"x" * 63}"}}'),
        ({"a": '"\\\n\u202e'}, r' for {a="\"\\\\n\\u202e"}'),
        ({"a\x1b" + "b" * 100: "\ud800"}, rf' for {{a\x1b{"b" * 58}="\\ud800"}}'),
        ({"a": "ü"}, ' for {a="ü"}'),
        ({}, ""),
    ],
)
def test_which_value_it_is(labels: dict[str, str], shown: str) -> None:
    assert judge(METRIC, Answer((Sample(1.0, labels),))) == Verdict(Holds.NO, f"1 is above 0.05{shown}")


BASELINE = Metric("http://prometheus", "up", high=0.05, baseline=True)
ONE = Answer((Sample(0.04),))


@pytest.mark.parametrize(
    ("own", "other", "holds", "message"),
    [
        (0.375, 0.125, Holds.NO, "0.375 - 0.125 = 0.25 is above 0.05"),
        (0.125, 0.375, Holds.YES, "0.125 - 0.375 = -0.25 is not above 0.05"),
        (INF, 1.0, Holds.NO, "+Inf - 1 = +Inf is above 0.05"),
        (1.0, INF, Holds.YES, "1 - +Inf = -Inf is not above 0.05"),
        (INF, INF, Holds.UNKNOWN, "+Inf - +Inf = NaN cannot be compared"),
        (NAN, 1.0, Holds.UNKNOWN, "for the restarted pods: the value is NaN"),
        (1.0, NAN, Holds.UNKNOWN, "for the other pods: the value is NaN"),
    ],
)
def test_a_baseline(own: float, other: float, holds: Holds, message: str) -> None:
    answers = (Answer((Sample(each, {"a": "b"}),)) for each in (own, other))
    assert judge(BASELINE, *answers) == Verdict(holds, message)


@pytest.mark.parametrize(
    ("answer", "others", "message"),
    [
        (Answer(problem="no data"), ONE, "for the restarted pods: no data"),
        (ONE, Answer(problem="no data"), "for the other pods: no data"),
        (ONE, Answer(ONE.samples * 2), "for the other pods: the query gives 2 values, but a baseline needs one number"),
    ],
)
def test_a_baseline_that_is_not_known(answer: Answer, others: Answer, message: str) -> None:
    assert judge(BASELINE, answer, others) == Verdict(Holds.UNKNOWN, message)


def test_without_other_pods_there_is_nothing_to_compare() -> None:
    assert judge(BASELINE, Answer(problem="no data")) == Verdict(
        Holds.YES, "not compared, because no other pods are left"
    )


def test_an_answer_without_values_is_not_known() -> None:
    assert judge(METRIC, Answer(problem="no data")) == Verdict(Holds.UNKNOWN, "no data")


NUMBERS = st.floats(width=32) | st.floats() | st.integers(-5, 5).map(float)
BOUNDS = st.none() | st.floats(allow_nan=False, allow_infinity=False)


@given(st.lists(NUMBERS, min_size=1, max_size=5), BOUNDS, BOUNDS)
def test_each_value_must_hold(values: list[float], low: float | None, high: float | None) -> None:
    if low is None and high is None:
        high = 0.0
    holds, message = judged(*values, low=low, high=high)
    broken = any((high is not None and each > high) or (low is not None and each < low) for each in values)
    expected = Holds.NO if broken else Holds.UNKNOWN if any(map(math.isnan, values)) else Holds.YES
    assert holds == expected
    again, _ = judged(*reversed(values), low=low, high=high)
    assert again == holds
    if broken:
        shown, _, bound = message.partition(" for ")[0].partition(" is ")
        word, _, limit = bound.partition(" ")
        assert (float(shown) > float(limit)) if word == "above" else (float(shown) < float(limit))


JSON: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.sampled_from(["1", "NaN"])),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(["status", "data", "resultType", "result", "metric", "value", "error"]), inner, max_size=4
        ),
    ),
    max_leaves=8,
)


@given(st.integers(100, 599), st.one_of(JSON, JSON.map(lambda found: success("vector", found))))
def test_no_answer_raises(status: int, body: object) -> None:
    answer = read_answer(status, body)
    assert bool(answer.samples) is not bool(answer.problem)
    assert not answer.samples or status == 200
    for metric in (METRIC, BASELINE):
        verdict = judge(metric, answer, answer)
        assert verdict.message.isprintable()
        assert len(verdict.message) < 1000
        json.dumps(verdict.message)
