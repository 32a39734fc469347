"""Lists cut into their objects, whatever the order of their keys."""

import json
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crrd.kube import stream
from crrd.kube.errors import MalformedAnswerError
from crrd.kube.stream import listed


@pytest.fixture(autouse=True, scope="module")
def every_list_is_large() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream, "SMALL_BYTES", 0)
        yield


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.lists(st.dictionaries(st.text(), JSON, max_size=4), max_size=5)
METADATA = {"resourceVersion": "7", "continue": "c"}


def shape(objects: list[Any], order: str) -> dict[str, Any]:
    """A list with its keys in this order."""
    values = {"k": ("kind", "PodList"), "m": ("metadata", METADATA), "i": ("items", objects), "a": ("apiVersion", "v1")}
    return dict(values[key] for key in order)


@given(
    objects=OBJECTS,
    order=st.sampled_from(["kami", "aikm", "iakm", "kmai"]),
    indent=st.sampled_from([None, 1]),
    ascii_only=st.booleans(),
)
def test_any_list(objects: list[Any], order: str, indent: int | None, *, ascii_only: bool) -> None:
    raw = json.dumps(shape(objects, order), indent=indent, ensure_ascii=ascii_only).encode(errors="replace")
    metadata, found = listed(raw, "list")
    wanted = json.loads(raw)["items"]
    assert (metadata, list(found)) == (METADATA, wanted)


@pytest.mark.parametrize(
    ("raw", "metadata"),
    [
        ('{"metadata": {}, "items": null}', {}),
        ('{"metadata": {"resourceVersion": "1"}}', {"resourceVersion": "1"}),
        ('{"items": [1, {}, []], "metadata": {}}', {}),
    ],
)
def test_what_is_no_array_of_objects_is_read_as_a_whole(raw: str, metadata: dict[str, str]) -> None:
    assert listed(raw.encode(), "list")[0] == metadata


@pytest.mark.parametrize(
    "raw",
    [b"", b"[]", b'{"items": [{}', b'{"items": [{}}', b'{"items": [{"a": }], "metadata": {}}',
     b'{"items": [{}] "a": 1}',     b'{"items": [{},], "metadata": {}}', b'{"items": [{"a": "\xff"}], "metadata": {}}'],
)  # fmt: skip
def test_what_is_no_list(raw: bytes) -> None:
    with pytest.raises(MalformedAnswerError):
        list(listed(raw, "list")[1])


@pytest.mark.parametrize("order", ["kami", "aikm"])
def test_a_list_of_large_objects_takes_little_more_than_one_of_them(order: str) -> None:
    """Also with a character that has a text take four bytes for each of its own."""
    large = {"metadata": {"annotations": {"a": "x" * 1_000_000 + "\N{PILE OF POO}"}}}
    raw = json.dumps(shape([large] * 20, order), ensure_ascii=False).encode()
    tracemalloc.start()
    try:
        _, found = listed(raw, "list")
        assert sum(1 for _ in found) == 20
        assert tracemalloc.get_traced_memory()[1] < 16_000_000
    finally:
        tracemalloc.stop()


def test_nothing_is_decoded_before_it_is_asked_for() -> None:
    broken = json.dumps(shape([{"a": 1}, {"a": 2}], "aikm")).replace('"a": 2', '"a": x').encode()
    objects = iter(listed(broken, "list")[1])
    assert next(objects) == {"a": 1}
    with pytest.raises(MalformedAnswerError):
        next(objects)
