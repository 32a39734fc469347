"""The formats for programs, as kubectl prints them."""

import json
from typing import Any

import pytest
import yaml

from crrd.lib.formats import Format, read_format

SHAPE: dict[str, Any] = {
    "state": "problem",
    "count": 2,
    "none": None,
    "checks": [
        {"check": "Crd", "state": "ok", "advice": ""},
        {"check": "Manager", "state": "problem", "advice": "kubectl describe deployment crrd"},
    ],
}


@pytest.mark.parametrize("given", ["text", "json", "yaml", "name", "jsonpath={.state}"])
def test_a_format_is_read_and_written_the_same(given: str) -> None:
    assert str(read_format(given)) == given


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("wide", "text, json, yaml, name or jsonpath=TEMPLATE"),
        ("jsonpath", "text, json, yaml, name or jsonpath=TEMPLATE"),
        ("jsonpath={.a", "a JSONPath template whose braces belong together, not '{.a'"),
        ("jsonpath=a}", "a JSONPath template whose braces belong together, not 'a}'"),
        ("jsonpath={a}", "a JSONPath template with paths like {.checks[*].state}, not 'a'"),
        ("jsonpath={..a}", "a JSONPath template with paths like {.checks[*].state}, not '..a'"),
        ("jsonpath={.a[}", "unrecognized part of the path: [$"),
    ],
)
def test_a_wrong_format_is_refused(given: str, why: str) -> None:
    with pytest.raises(ValueError, match=why.replace("[*]", r"\[\*\]").replace("path: [", r"path: \[")):
        read_format(given)


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{.state}", "problem\n"),
        ("{$.state}", "problem\n"),
        ("{.count} {.none}", "2 null\n"),
        ("{.checks[*].check}", "Crd Manager\n"),
        ("{.checks[1].state}", "problem\n"),
        ('{.checks[?(@.state=="problem")].check}', "Manager\n"),
        ("{.checks[0]}", '{"check": "Crd", "state": "ok", "advice": ""}\n'),
        ("{.missing}{.state.deeper}", ""),
        ("{.checks[9].state}{.count[0]}", ""),
        ('state: {.state}{"\\n"}', "state: problem\n"),
        ("{range .checks[*]}{.check}{'\\t'}{.state}{\"\\n\"}{end}", "Crd\tok\nManager\tproblem\n"),
        ("{range .missing[*]}{.check}{end}{.state}", "problem\n"),
        ("{range .checks[*]}<{@}>{end}", f"<{json.dumps(SHAPE['checks'][0])}><{json.dumps(SHAPE['checks'][1])}>\n"),
        ("{range .checks[*]}{.check} ", "Crd Manager \n"),
        ('{"{"}', "{\n"),
    ],
)
def test_a_template(template: str, text: str) -> None:
    assert read_format(f"jsonpath={template}").render(SHAPE, "") == text


def test_the_other_formats() -> None:
    names = ["pod/a", "pod/b"]
    assert json.loads(Format("json").render(SHAPE, "", names)) == SHAPE
    assert Format("json").render({"a": [1]}, "", one_line=True) == '{"a":[1]}\n'
    assert yaml.safe_load(Format("yaml").render(SHAPE, "", names)) == SHAPE
    assert Format("yaml").render({"b": 1, "a": "x: y"}, "", one_line=True) == "---\nb: 1\na: 'x: y'\n"
    assert Format("name").render(SHAPE, "", names) == "pod/a\npod/b\n"
    assert Format("name").render(SHAPE, "") == ""


@pytest.mark.parametrize("given", ["json", "yaml", "jsonpath={.checks[1].advice}"])
def test_each_command_has_the_flags_that_select_the_cluster(given: str) -> None:
    assert "kubectl --context 'a b' describe deployment crrd" in read_format(given).render(
        SHAPE, "--context 'a b'"
    ).replace("''", "'")
