import json
import os
from pathlib import Path
from typing import Any

import pytest

from crrd_forecast.spec_store import SpecStore


def spec(size: int = 0) -> dict[str, Any]:
    return {"name": "app", "args": ["x" * size]}


def age(folder: Path, container_id: str, seconds: int) -> None:
    os.utime(folder / f"{container_id}.json", (seconds, seconds))


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_is_put_is_there_for_the_next_process(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    assert SpecStore(folder).get("c1") is None
    assert SpecStore(folder).put("c1", spec())
    assert SpecStore(folder).get("c1") == spec()
    assert "c1" in SpecStore(folder)
    assert "c2" not in SpecStore(folder)
    assert files(folder) == ["c1.json"]


def test_specs_are_for_the_owner_alone(tmp_path: Path) -> None:
    SpecStore(tmp_path / "s").put("c1", spec())
    assert (tmp_path / "s").stat().st_mode & 0o077 == 0
    assert (tmp_path / "s" / "c1.json").stat().st_mode & 0o077 == 0


def test_the_newer_spec_wins(tmp_path: Path) -> None:
    store = SpecStore(tmp_path)
    store.put("c1", spec())
    store.put("c1", spec(5))
    assert store.get("c1") == spec(5)


def test_the_oldest_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("crrd_forecast.spec_store.MAX_FILES", 3)
    store = SpecStore(tmp_path)
    for number, when in enumerate((300, 100, 200)):
        store.put(f"c{number}", spec())
        age(tmp_path, f"c{number}", when)
    store.put("c3", spec())
    assert files(tmp_path) == ["c0.json", "c2.json", "c3.json"]


def test_the_folder_never_has_more_than_its_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("crrd_forecast.spec_store.MAX_BYTES", 3000)
    store = SpecStore(tmp_path)
    for number in range(8):
        assert store.put(f"c{number}", spec(1000))
        age(tmp_path, f"c{number}", 1000 + number)
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 3000
    assert files(tmp_path) == ["c6.json", "c7.json"]


def test_writing_one_again_makes_no_room_at_the_cost_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("crrd_forecast.spec_store.MAX_FILES", 2)
    store = SpecStore(tmp_path)
    for container_id in ("c1", "c2", "c2", "c1"):
        store.put(container_id, spec())
    assert files(tmp_path) == ["c1.json", "c2.json"]


def test_one_that_is_too_large_is_not_kept_and_costs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("crrd_forecast.spec_store.MAX_BYTES", 1000)
    store = SpecStore(tmp_path)
    store.put("c1", spec())
    assert not store.put("c2", spec(2000))
    assert files(tmp_path) == ["c1.json"]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        b"null",
        b"{}",
        b'{"sha256": "0", "body": "{}"}',
        b'{"sha256": 1, "body": 1}',
        b"[" * 100_000,
    ],
)
def test_what_is_corrupt_is_skipped_and_left_until_it_is_put_anew(tmp_path: Path, content: bytes) -> None:
    store = SpecStore(tmp_path)
    store.put("good", spec())
    (tmp_path / "bad.json").write_bytes(content)
    assert store.get("good") == spec()
    assert store.get("bad") is None
    assert (tmp_path / "bad.json").read_bytes() == content
    assert "bad" in store
    store.put("bad", spec())
    assert store.get("bad") == spec()


def test_a_file_under_another_name_is_corrupt(tmp_path: Path) -> None:
    store = SpecStore(tmp_path)
    store.put("c1", spec())
    (tmp_path / "c1.json").rename(tmp_path / "c2.json")
    assert store.get("c2") is None
    assert files(tmp_path) == ["c2.json"]


def test_a_changed_byte_is_noticed(tmp_path: Path) -> None:
    store = SpecStore(tmp_path)
    store.put("c1", spec())
    path = tmp_path / "c1.json"
    path.write_text(path.read_text().replace("app", "apq"))
    assert store.get("c1") is None


def test_a_spec_that_is_no_object_is_corrupt(tmp_path: Path) -> None:
    store = SpecStore(tmp_path)
    store.put("c1", [])  # type: ignore[arg-type]  # what a disk may hold
    assert store.get("c1") is None


def test_a_writer_that_was_killed_leaves_nothing_that_is_read(tmp_path: Path) -> None:
    store = SpecStore(tmp_path)
    store.put("c1", spec())
    (tmp_path / ".half").write_text(json.dumps({"half": 1}))
    assert store.get("c1") == spec()
    assert ".half" not in store
    store.keep_only(["c1"])
    assert files(tmp_path) == ["c1.json"]


def test_containers_that_are_gone_are_forgotten(tmp_path: Path) -> None:
    store = SpecStore(tmp_path)
    for container_id in ("c1", "c2", "c3"):
        store.put(container_id, spec())
    store.keep_only({"c2", "c9"})
    assert files(tmp_path) == ["c2.json"]
    SpecStore(tmp_path / "none").keep_only(["c1"])


@pytest.mark.parametrize("container_id", ["", "../c1", "a/b", ".c1", "c" * 300, "c\n", "ü"])
def test_only_what_can_be_an_id_becomes_a_name(tmp_path: Path, container_id: str) -> None:
    store = SpecStore(tmp_path)
    with pytest.raises(ValueError, match="is not a container ID"):
        store.put(container_id, spec())
    assert store.get(container_id) is None
    assert container_id not in store


def test_a_write_that_fails_leaves_the_earlier_one(tmp_path: Path) -> None:
    store = SpecStore(tmp_path)
    (tmp_path / "c1.json").mkdir()  # nothing can take its place
    with pytest.raises(OSError, match="directory"):
        store.put("c1", spec())
    assert files(tmp_path) == ["c1.json"]
