"""What the answer of Prometheus says about a metric."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from crrd.core.judge.metrics import Metric
from crrd.lib.jsonfields import items, mapping, text
from crrd.lib.plain import one_line, plain

_MOST_CHARACTERS = 200  # Of a server's message
_MOST_LABELS = 3  # Of a sample that is named, the pod first
_MOST_OF_LABEL = 63  # Characters of a label's name and value


class Holds(StrEnum):
    """Whether a metric holds."""

    YES = "Yes"
    NO = "No"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a metric holds, and why, with the numbers."""

    holds: Holds
    message: str


@dataclass(frozen=True, slots=True)
class Sample:
    """A value of an answer; NaN if Prometheus says so."""

    value: float
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a query."""

    samples: tuple[Sample, ...] = ()
    problem: str = ""  # Why there are no samples


def read_answer(status: int, body: object) -> Answer:
    """Read an answer of /api/v1/query (Prometheus' HTTP API). `body` is the JSON, None if it is not JSON."""
    shape = mapping(body)
    if status != 200 or shape.get("status") != "success":
        why = one_line(text(shape.get("error")))[:_MOST_CHARACTERS]
        if 300 <= status < 400:
            why = "redirects are not followed, so set the address that the server redirects to"
        return Answer(problem=f"the server answers HTTP {status}" + (f": {why}" if why else ""))
    data = mapping(shape.get("data"))
    kind, result = data.get("resultType"), items(data.get("result"))
    if kind in ("string", "matrix"):
        return Answer(problem=f"the query gives a {kind}, but must give a number or an instant vector")
    if kind not in ("scalar", "vector"):
        return Answer(problem="the answer is not that of Prometheus' HTTP API")
    vector: list[Mapping[str, object]] = [{"value": result}] if kind == "scalar" else [*map(mapping, result)]
    samples = []
    for each in vector:
        value = _value(each.get("value"))
        if value is None:
            return Answer(problem="the answer has a value that is not a number, such as a native histogram")
        samples.append(Sample(value, {name: text(label) for name, label in mapping(each.get("metric")).items()}))
    return Answer(tuple(samples)) if samples else Answer(problem="no data")


def _value(pair: object) -> float | None:
    """Return the number of a pair of time and text, None if it is none."""
    try:
        return float(text(items(pair)[1]))
    except (IndexError, ValueError):
        return None


def judge(metric: Metric, answer: Answer, others: Answer | None = None) -> Verdict:
    """Judge a metric by the answer for the restarted pods.

    `others`: for a baseline, the answer for the pods that are not restarted yet; None if there are none, which holds.
    The result is NO if any value breaks a bound, else UNKNOWN if any is NaN. A bound holds at its own value.
    """
    if not metric.baseline:
        return _each(metric, answer)
    if others is None:
        return Verdict(Holds.YES, "not compared, because no other pods are left")
    values = []
    for pods, each in (("restarted", answer), ("other", others)):
        problem, found = each.problem, [sample.value for sample in each.samples]
        if not problem and len(found) != 1:
            problem = f"the query gives {len(found)} values, but a baseline needs one number"
        if not problem and math.isnan(found[0]):
            problem = "the value is NaN"
        if problem:
            return Verdict(Holds.UNKNOWN, f"for the {pods} pods: {problem}")
        values += found
    own, other = values
    verdict = _each(metric, Answer((Sample(own - other),)))
    return Verdict(verdict.holds, f"{_number(own)} - {_number(other)} = {verdict.message}")


def _each(metric: Metric, answer: Answer) -> Verdict:
    """Judge each value of an answer, and name the one that is the furthest outside, or else the closest to a bound."""
    if answer.problem:
        return Verdict(Holds.UNKNOWN, answer.problem)
    known = [each for each in answer.samples if not math.isnan(each.value)]
    broken = sum(_excess(metric, each.value) > 0 for each in known)
    if not broken and len(known) < len(answer.samples):
        nan = next(each for each in answer.samples if math.isnan(each.value))
        return Verdict(Holds.UNKNOWN, f"NaN{_labels(nan)} cannot be compared")
    worst = max(known, key=lambda each: (_excess(metric, each.value), sorted(each.labels.items())))
    message = f"{_compared(metric, worst.value)}{_labels(worst)}"
    if broken > 1:
        message += f", the worst of {broken} values that do not hold"
    elif not broken and len(known) > 1:
        message += f", the worst of {len(known)} values"
    return Verdict(Holds.NO if broken else Holds.YES, message)


def _excess(metric: Metric, value: float) -> float:
    """Return how far a value is outside of the bounds, at most 0 if it holds."""
    below = -math.inf if metric.low is None else metric.low - value
    return max(below, -math.inf if metric.high is None else value - metric.high)


def _compared(metric: Metric, value: float) -> str:
    low, high = metric.low, metric.high
    shown = _number(value, *(each for each in (low, high) if each is not None))
    if high is not None and value > high:
        return f"{shown} is above {_number(high, high)}"
    if low is not None and value < low:
        return f"{shown} is below {_number(low, low)}"
    held = (("below", low), ("above", high))
    return f"{shown} is " + " and ".join(f"not {word} {_number(each, each)}" for word, each in held if each is not None)


def _number(value: float, *bounds: float) -> str:
    """Return a number with six digits, or with all where six would change how it compares with a bound."""
    if not math.isfinite(value):
        return f"{value:+}".replace("inf", "Inf").replace("+nan", "NaN")
    short = f"{value:.0f}" if float(value).is_integer() and abs(value) < 1e15 else f"{value:.6g}"
    read = float(short)
    return short if all((read < each, read > each) == (value < each, value > each) for each in bounds) else repr(value)


def _labels(sample: Sample) -> str:
    """Return which sample it is, the pod first."""
    order = sorted(sample.labels.items(), key=lambda label: (label[0] != "pod", label))
    shown = [f"{_cut(name)}={json.dumps(_cut(label), ensure_ascii=False)}" for name, label in order[:_MOST_LABELS]]
    more = [] if len(order) <= _MOST_LABELS else ["..."]
    return f" for {{{', '.join([*shown, *more])}}}" if shown else ""


def _cut(given: str) -> str:
    """Return the beginning of a text that anybody may have written."""
    return plain(given[:_MOST_OF_LABEL])[:_MOST_OF_LABEL]
