"""The local API server's patches: RFC 7386, RFC 6902, strategic merge."""

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crrd_localnode.api.errors import ApiError
from crrd_localnode.api.patches import merge_patch, patch_maker, strategic_merge_patch
from crrd_localnode.api.resources import POD as POD_KIND

scalars = st.none() | st.booleans() | st.integers(-3, 3) | st.text("ab", max_size=2)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab~/", max_size=2), inner, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(st.text("ab", max_size=2), values, max_size=3)


@pytest.mark.parametrize(
    ("target", "patch", "result"),
    [  # the cases of RFC 7386's appendix
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        (["a", "b"], ["c", "d"], ["c", "d"]),
        ({"a": "b"}, ["c"], ["c"]),
        ({"a": "foo"}, None, None),
        ({"a": "foo"}, "bar", "bar"),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_merge_patch(target: Any, patch: Any, result: Any) -> None:
    assert merge_patch(target, patch) == result


@given(objects, objects)
def test_merge_patch_twice_is_as_once_and_changes_nothing_given(target: dict[str, Any], patch: dict[str, Any]) -> None:
    before = copy.deepcopy((target, patch))
    once = merge_patch(target, patch)
    assert merge_patch(once, patch) == once
    assert (target, patch) == before


@pytest.mark.parametrize(
    ("operation", "code"),
    [
        ({"op": "test", "path": "/a", "value": True}, 422),
        ({"op": "test", "path": "/l", "value": [1]}, 422),
        ({"op": "test", "path": "/none", "value": 1}, 422),
        ({"op": "test", "path": "/none"}, 422),
        ({"op": "test", "path": "/none/x", "value": None}, 422),
        ({"op": "remove", "path": "/none"}, 422),
        ({"op": "replace", "path": "/none", "value": 1}, 422),
        ({"op": "add", "path": "/none/x", "value": 1}, 422),
        ({"op": "add", "path": "/a/x", "value": 1}, 422),
        ({"op": "add", "path": "/l/3", "value": 1}, 422),
        ({"op": "add", "path": "/l/01", "value": 1}, 422),
        ({"op": "remove", "path": "/l/-"}, 422),
        ({"op": "remove", "path": "/l/2"}, 422),
        ({"op": "add", "path": "/b"}, 422),
        ({"op": "add", "path": "b", "value": 1}, 422),
        ({"op": "add", "value": 1}, 422),
        ({"op": "move", "from": "/d", "path": "/d/x"}, 422),
        ({"op": "copy", "path": "/b"}, 422),
        ({"op": "swap", "path": "/a"}, 422),
        ({"op": 1, "path": ["/a"]}, 422),
        ("remove", 400),
    ],
)
def test_a_json_patch_that_cannot_be_applied_is_refused(operation: Any, code: int) -> None:
    document = {"a": 1, "l": [1, 2], "d": {"x": 1}}
    with pytest.raises(ApiError) as refused:
        patch_maker(POD_KIND, "application/json-patch+json", json.dumps([operation]).encode())(document)
    assert refused.value.code == code
    assert document == {"a": 1, "l": [1, 2], "d": {"x": 1}}


def test_a_json_patch_may_test_that_a_key_is_absent() -> None:
    operations = [{"op": "test", "path": "/none", "value": None}, {"op": "add", "path": "/none", "value": 1}]
    maker = patch_maker(POD_KIND, "application/json-patch+json", json.dumps(operations).encode())
    assert maker({"a": 1}) == {"a": 1, "none": 1}
    with pytest.raises(ApiError):
        maker({"a": 1, "none": 2})


POD: dict[str, Any] = {
    "kind": "Pod",
    "metadata": {"finalizers": ["a/x"]},
    "spec": {
        "containers": [{"name": "app", "image": "a:1", "args": ["x", "y"]}, {"name": "log", "image": "l:1"}],
        "volumes": [{"name": "v", "emptyDir": {}}],
        "tolerations": [{"key": "a"}],
    },
}


@pytest.mark.parametrize(
    ("patch", "path", "result"),
    [
        ({"spec": {"containers": [{"name": "log", "image": "l:2"}]}}, ("spec", "containers", 1),
         {"name": "log", "image": "l:2"}),
        ({"spec": {"containers": [{"name": "app", "args": ["z"], "image": None}]}}, ("spec", "containers", 0),
         {"name": "app", "args": ["z"]}),
        ({"spec": {"containers": [{"name": "new", "ports": [{"containerPort": 1}]}]}}, ("spec", "containers", 0),
         {"name": "new", "ports": [{"containerPort": 1}]}),
        ({"spec": {"containers": [{"name": "app", "$patch": "delete"}]}}, ("spec", "containers"),
         [{"name": "log", "image": "l:1"}]),
        ({"spec": {"containers": [{"$patch": "replace"}, {"name": "z"}]}}, ("spec", "containers"), [{"name": "z"}]),
        ({"spec": {"$patch": "replace", "x": [{"$y": 1, "z": 2}]}}, ("spec",), {"x": [{"z": 2}]}),
        ({"spec": {"$patch": "delete"}}, ("spec",), {}),
        ({"spec": {"$patch": "merge", "nodeName": "n"}}, ("spec", "nodeName"), "n"),
        ({"spec": {"volumes": [{"name": "v", "$retainKeys": ["name", "secret"], "secret": {"secretName": "s"}}]}},
         ("spec", "volumes"), [{"name": "v", "secret": {"secretName": "s"}}]),
        ({"spec": {"tolerations": [{"key": "b"}]}}, ("spec", "tolerations"), [{"key": "b"}]),
        ({"spec": {"containers": None}}, ("spec",), {key: POD["spec"][key] for key in ("volumes", "tolerations")}),
        ({"metadata": {"finalizers": ["a/y", "a/x"]}}, ("metadata", "finalizers"), ["a/x", "a/y"]),
        ({"metadata": {"finalizers": ["a/y"], "$setElementOrder/finalizers": ["a/y", "a/x"]}},
         ("metadata", "finalizers"), ["a/y", "a/x"]),
        ({"metadata": {"$deleteFromPrimitiveList/finalizers": ["a/x"]}}, ("metadata", "finalizers"), []),
        ({"metadata": {"labels": {"a": "b"}}}, ("metadata", "labels"), {"a": "b"}),
    ],
)  # fmt: skip
def test_strategic_merge_patch(patch: dict[str, Any], path: tuple[Any, ...], result: Any) -> None:
    before = copy.deepcopy(POD)
    found: Any = strategic_merge_patch(POD, patch)
    for step in path:
        found = found[step]
    assert found == result
    assert before == POD


@pytest.mark.parametrize(
    ("containers", "order", "result"),
    [
        ([{"name": "new"}], ["new", "log", "app"], ["new", "log", "app"]),
        ([{"name": "app"}], ["log"], ["app", "log"]),
        ([{"name": "new"}], ["app", "new"], ["app", "log", "new"]),
        (None, ["log", "app"], ["log", "app"]),
    ],
)
def test_order_of_a_strategic_merge(containers: list[Any] | None, order: list[str], result: list[str]) -> None:
    patch = {"$setElementOrder/containers": [{"name": name} for name in order]}
    given_containers = {} if containers is None else {"containers": containers}
    merged = strategic_merge_patch(POD, {"spec": {**patch, **given_containers}})
    assert [container["name"] for container in merged["spec"]["containers"]] == result


@pytest.mark.parametrize(
    ("names", "result"),
    [
        (["new", "log"], ["new", "app", "log"]),
        (["log", "new"], ["app", "log", "new"]),
        (["log", "app"], ["log", "app"]),
        (["x", "y"], ["x", "y", "app", "log"]),
    ],
)
def test_what_is_new_in_a_strategic_merge_goes_before_what_is_not_named(names: list[str], result: list[str]) -> None:
    merged = strategic_merge_patch(POD, {"spec": {"containers": [{"name": name} for name in names]}})
    assert [container["name"] for container in merged["spec"]["containers"]] == result


@pytest.mark.parametrize("patch", [{"$patch": "destroy"}, {"containers": [{"image": "x"}]}, {"containers": ["x"]}])
def test_strategic_merge_refuses(patch: dict[str, Any]) -> None:
    with pytest.raises(ApiError) as refused:
        strategic_merge_patch(POD, {"spec": patch})
    assert refused.value.code == 400


@given(objects, objects)
def test_without_directives_and_keyed_lists_a_strategic_patch_is_a_merge_patch(
    target: dict[str, Any], patch: dict[str, Any]
) -> None:
    assert strategic_merge_patch(target, patch) == merge_patch(target, patch)
