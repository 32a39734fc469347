"""The local API server's label and field selectors."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crrd_localnode.api.errors import ApiError
from crrd_localnode.api.selectors import both, field_selector, label_error, label_selector

LABELS = {"app": "web", "tier": "", "n": "5", "example.com/a": "b"}
OBJ = {
    "metadata": {"name": "x", "namespace": "ns", "labels": LABELS},
    "spec": {"nodeName": "n1", "unschedulable": True, "count": 3},
}
FIELDS = {
    name: tuple(name.split(".")) for name in ("spec.nodeName", "spec.unschedulable", "spec.count", "status.phase")
}


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("app=web", True), ("app==web", True), ("app = web", True), ("app=x", False), ("none=x", False),
        ("app!=x", True), ("app!=web", False), ("none!=x", True),
        ("app", True), ("none", False), ("!none", True), ("!app", False), ("! none", True), ("tier", True),
        ("app in (web, x)", True), ("app in (x,y)", False), ("app in(web)", True), ("none in (x)", False),
        ("app notin (x)", True), ("app notin (web,x)", False), ("none notin (x)", True),
        ("tier=", True), ("tier in ()", True), ("app=", False), ("none=", False),
        ("example.com/a=b,app in (web,y),!none", True), ("example.com/a=b,app in (x,y)", False),
    ],
)  # fmt: skip
def test_labels(text: str, matches: bool) -> None:
    selects = label_selector(text)
    assert selects is not None
    assert selects(OBJ) is matches


@pytest.mark.parametrize("text", ["", "  "])
def test_no_selector_selects_all(text: str) -> None:
    assert label_selector(text) is None
    assert field_selector(text, FIELDS) is None


@pytest.mark.parametrize(
    "text",
    ["a b", "=x", "a=b=c", "a in x", "a in (b", "a=-", "-a", "a/b/c=d", "a>5", ",", "a=b,", "a in (b),(c)", "(a)",
     "a=" + "x" * 64, "a in (-)"],
)  # fmt: skip
def test_labels_that_cannot_be_parsed(text: str) -> None:
    with pytest.raises(ApiError) as refused:
        label_selector(text)
    assert refused.value.code == 400


@given(st.dictionaries(st.sampled_from("abc"), st.sampled_from("xyz")), st.sampled_from("abc"), st.sampled_from("xyz"))
def test_every_form_agrees_with_the_set_of_labels(labels: dict[str, str], key: str, value: str) -> None:
    obj = {"metadata": {"labels": labels}}

    def selected(text: str) -> bool:
        selects = label_selector(text)
        return selects is not None and selects(obj)

    has = labels.get(key) == value
    assert selected(f"{key}={value}") is selected(f"{key} in ({value})") is has
    assert selected(f"{key}!={value}") is selected(f"{key} notin ({value})") is not has
    assert selected(key) is not selected(f"!{key}")
    assert selected(f"{key},{key}={value}") is has


@pytest.mark.parametrize(
    ("key", "value", "good"),
    [("a", "", True), ("a", "x_y.z-1", True), ("example.com/a", "b", True), ("a" * 63, "b" * 63, True),
     ("a" * 64, "", False), ("a", "b" * 64, False), ("a", "-b", False), ("a", "b c", False), ("/a", "", False),
     ("Example.com/a", "", False), ("a/", "", False), ("x" * 254 + "/a", "", False), ("a", "b\n", False)],
)  # fmt: skip
def test_label_rules(key: str, value: str, good: bool) -> None:
    assert (label_error(key, value) is None) is good


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("metadata.name=x", True), ("metadata.name==y", False), ("metadata.namespace!=ns", False),
        ("spec.nodeName=n1,metadata.name=x", True), ("spec.nodeName=n1,metadata.name=y", False),
        ("status.phase=", True), ("status.phase!=Running", True), ("spec.unschedulable=true", True),
        ("spec.unschedulable!=false", True), ("spec.count=3", True), (r"metadata.name=a\,b", False),
    ],
)  # fmt: skip
def test_fields(text: str, matches: bool) -> None:
    selects = field_selector(text, FIELDS)
    assert selects is not None
    assert selects(OBJ) is matches


def test_escapes_in_field_values() -> None:
    selects = field_selector(r"metadata.name=a\,b\=c\\d", {})
    assert selects is not None
    assert selects({"metadata": {"name": "a,b=c\\d"}})


@pytest.mark.parametrize("text", ["metadata.name", "spec.other=x", "=x", "metadata.uid=1"])
def test_fields_that_are_not_supported(text: str) -> None:
    with pytest.raises(ApiError) as refused:
        field_selector(text, FIELDS)
    assert refused.value.code == 400


def test_both() -> None:
    app, node = label_selector("app=web"), field_selector("spec.nodeName=n2", FIELDS)
    assert both(None, None) is None
    assert both(None, app) is app
    joined = both(app, node)
    assert joined is not None
    assert not joined(OBJ)
