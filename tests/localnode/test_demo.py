"""`crrd demo`: what it shows where it succeeds; where it cannot, it says why, ends with 1 and leaves nothing behind."""

import re

import pytest

from crrd_localnode import demo
from crrd_localnode.containers.images import MISSING
from crrd_localnode.runtime import ProcessRuntime
from tests.support.command import crrd


async def test_it_shows_a_recreated_container() -> None:
    code, out, err = await crrd("demo")
    assert code == 0, out + err
    first, second = out.split("installing crrd")
    assert "crrd is not installed in this cluster" in out
    for part, count in ((first, 0), (second, 1)):
        for words in ("container side       same", "pod UID              same", "pod IP               same"):
            assert words in part
        pattern = rf"container app        changed  \w+, restartCount {count} -> \w+, restartCount {count + 1}\n"
        assert re.search(pattern, part), part
        assert f"preStop hook runs    changed  {count} -> {count + 1}" in part
    assert "image of app         changed  busybox -> docker.io/library/busybox@sha256:" in first
    assert "image ID of app      same" in first
    assert "Completed: 1 of 1 containers recreated" in out
    assert out.count("changed  hello -> welcome") == 3, "an edit of a ConfigMap goes live in the same pods"
    assert "policy: 3 of 3 pods recreated" in out
    assert out.count("changed  busybox -> side:2") == 3, "another image, in the same pods"


def test_it_finds_the_volume_where_nothing_can_be_mounted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def cannot_mount(_: ProcessRuntime) -> bool:
        return False

    monkeypatch.setattr(ProcessRuntime, "_can_mount", cannot_mount)
    assert demo.run_demo(cri_endpoints=[], image="busybox", keep=False) == 0
    assert "preStop hook runs    changed  1 -> 2" in capsys.readouterr().out


def test_an_image_that_nobody_has(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(demo, "PATIENCE_SECONDS", 3.0)
    assert demo.run_demo(cri_endpoints=[], image=f"{MISSING}:1", keep=False) == 1
    said = capsys.readouterr().out
    assert f"image '{MISSING}:1' not found" in said
    assert said.splitlines()[-1].endswith("timed out after 3s")
    assert "crictl" not in said  # advice for a real runtime only
