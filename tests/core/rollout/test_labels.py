"""Label selectors of objects: what they select, and as a query."""

from typing import Any

import pytest

from crrd.core.rollout.labels import read_selector

EXPRESSION = {"key": "tier", "operator": "In", "values": ["web", "api"]}


@pytest.mark.parametrize(
    ("selector", "query", "selected", "left"),
    [
        ({"matchLabels": {"app": "web"}}, "app=web", {"app": "web"}, {"app": "db"}),
        ({"matchExpressions": [EXPRESSION]}, "tier in (web,api)", {"tier": "api"}, {}),
        (
            {"matchExpressions": [{**EXPRESSION, "operator": "NotIn"}]},
            "tier notin (web,api)",
            {},
            {"tier": "web"},
        ),
        ({"matchExpressions": [{"key": "a", "operator": "Exists"}]}, "a", {"a": ""}, {}),
        ({"matchExpressions": [{"key": "a", "operator": "DoesNotExist"}]}, "!a", {}, {"a": ""}),
        (
            {"matchLabels": {"app": "web"}, "matchExpressions": [EXPRESSION]},
            "app=web,tier in (web,api)",
            {"app": "web", "tier": "web"},
            {"app": "web"},
        ),
        ({"app": "web"}, "app=web", {"app": "web"}, {}),
    ],
)
def test_what_is_selected(selector: Any, query: str, selected: dict[str, str], left: dict[str, str]) -> None:
    found = read_selector(selector)
    assert found is not None
    assert found.query == query
    assert found.matches(selected)
    assert not found.matches(left)


def test_none_selects_nothing_and_an_empty_one_everything() -> None:
    assert read_selector(None) is None
    empties: list[Any] = [{}, {"matchLabels": {}}, {"matchLabels": None, "matchExpressions": None}]
    for empty in empties:
        found = read_selector(empty)
        assert found is not None
        assert (found.query, found.matches({}), found.matches({"a": "b"})) == ("", True, True)


@pytest.mark.parametrize(
    "odd",
    [
        "app=web",
        {"matchLabels": {"app": 1}},
        {"matchExpressions": [{"operator": "Exists"}]},
        {"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["1"]}]},
        {"matchExpressions": [{"key": "a", "operator": "In"}]},
        {"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["b"]}]},
    ],
)
def test_what_cannot_be_read_selects_nothing(odd: Any) -> None:
    assert read_selector(odd) is None
