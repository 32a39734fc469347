"""The files of volumes: kubelet's atomic writer, and what is written from objects and the pod's fields."""

import os
import stat
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

from crrd.core.config.references import Kind, ObjectName
from crrd_localnode.pods.atomic_writer import File, VolumeError, write
from crrd_localnode.pods.payloads import files_of, used_objects

Json = dict[str, Any]
POD: Json = {
    "metadata": {
        "name": "web", "namespace": "shop", "uid": "u", "labels": {"b": "2", "a": 'say "hi"'},
        "annotations": {"n": "x\ny"},
    },
    "spec": {"containers": []},
}  # fmt: skip
OBJECTS: dict[ObjectName, Json] = {
    (Kind.CONFIG_MAP, "cfg"): {"data": {"a": "1", "b": "2"}, "binaryData": {"c": b64encode(b"\xff").decode()}},
    (Kind.CONFIG_MAP, "empty"): {},
    (Kind.SECRET, "key"): {"data": {"k": b64encode(b"\xfesecret").decode()}},
}


def text(**files: str) -> dict[str, File]:
    return {path.replace("__", "/"): File(content.encode(), 0o644) for path, content in files.items()}


def tree(folder: Path) -> dict[str, str]:
    """Return the files that a container sees, by path."""
    seen = {}
    for root, folders, files in os.walk(folder, followlinks=True):
        folders[:] = [name for name in folders if not name.startswith("..")]
        for name in files:
            seen[str((Path(root) / name).relative_to(folder))] = (Path(root) / name).read_text()
    return seen


def stamped(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.startswith("..2"))


# The atomic writer


def test_files_are_links_into_the_folder_that_data_leads_to(tmp_path: Path) -> None:
    assert write(tmp_path, text(key="one", deep__er__x="two"))
    assert tree(tmp_path) == {"key": "one", "deep/er/x": "two"}
    assert {name: str((tmp_path / name).readlink()) for name in ("key", "deep")} == {
        "key": "..data/key",
        "deep": "..data/deep",
    }
    assert stamped(tmp_path) == [str((tmp_path / "..data").readlink())]
    assert stat.S_IMODE((tmp_path / "..data/").stat().st_mode) == 0o755


def test_nothing_is_written_that_is_there(tmp_path: Path) -> None:
    write(tmp_path, text(key="one"))
    before = stamped(tmp_path)
    assert not write(tmp_path, text(key="one"))
    assert not write(tmp_path, {"./key": File(b"one", 0o600)})  # a mode alone is no reason
    assert stamped(tmp_path) == before


def test_a_change_replaces_all_files_and_removes_the_old_ones(tmp_path: Path) -> None:
    write(tmp_path, text(key="one", old="x", deep__a="1"))
    mounted = (tmp_path / "key").resolve()  # what a subPath is bound to
    assert write(tmp_path, text(key="two", deep__b="2"))
    assert tree(tmp_path) == {"key": "two", "deep/b": "2"}
    assert not os.path.lexists(tmp_path / "old")
    assert not mounted.exists()
    assert len(stamped(tmp_path)) == 1
    assert write(tmp_path, {})
    assert tree(tmp_path) == {}


def test_a_folder_made_for_a_missing_sub_path_stays_in_the_way(tmp_path: Path) -> None:
    write(tmp_path, text(key="one"))
    (tmp_path / "late").mkdir()
    write(tmp_path, text(key="one", late="two"))
    assert tree(tmp_path) == {"key": "one"}
    write(tmp_path, text(key="one"))
    assert (tmp_path / "late").is_dir()


@pytest.mark.parametrize("path", ["", "/abs", "../up", "a/../b", "..hidden", "x" * 256, "a/" * 2100])
def test_paths_that_are_not_allowed(tmp_path: Path, path: str) -> None:
    with pytest.raises(VolumeError, match="invalid path"):
        write(tmp_path, {path: File(b"", 0o644)})
    assert stamped(tmp_path) == []


def test_modes_are_those_of_the_spec_and_a_group_may_read(tmp_path: Path) -> None:
    write(tmp_path, {"secret": File(b"", 0o400), "dir/plain": File(b"", 0o600)})
    assert stat.S_IMODE((tmp_path / "secret").stat().st_mode) == 0o400
    write(tmp_path, {"secret": File(b"x", 0o400), "dir/plain": File(b"", 0o600)}, os.getgid())
    assert stat.S_IMODE((tmp_path / "secret").stat().st_mode) == 0o440
    assert stat.S_IMODE((tmp_path / "dir/plain").stat().st_mode) == 0o640
    assert (tmp_path / "dir").stat().st_mode & stat.S_ISGID
    assert (tmp_path / "secret").stat().st_gid == os.getgid()


# What is written


def files(volume: Json, **spec: Any) -> dict[str, tuple[bytes, int]]:
    pod = {**POD, "spec": {**POD["spec"], **spec}}
    found = files_of(pod, {"name": "v", **volume}, lambda kind, name: OBJECTS.get((kind, name)))
    return {path: (file.data, file.mode) for path, file in found.items()}


def projected(*sources: Json, mode: int = 0o644) -> Json:
    return {"projected": {"sources": list(sources), "defaultMode": mode}}


@pytest.mark.parametrize(
    ("volume", "expected"),
    [
        ({"configMap": {"name": "cfg", "defaultMode": 0o640}},
         {"a": (b"1", 0o640), "b": (b"2", 0o640), "c": (b"\xff", 0o640)}),
        ({"configMap": {"name": "cfg", "defaultMode": 0o644, "items": [{"key": "a", "path": "x/y", "mode": 0o400},
                                                                         {"key": "c", "path": "z"}]}},
         {"x/y": (b"1", 0o400), "z": (b"\xff", 0o644)}),
        ({"configMap": {"name": "cfg", "optional": True, "items": [{"key": "no", "path": "x"}]}}, {}),
        ({"configMap": {"name": "no", "optional": True}}, {}),
        ({"configMap": {"name": "empty"}}, {}),
        ({"secret": {"secretName": "key", "defaultMode": 0o400}}, {"k": (b"\xfesecret", 0o400)}),
        ({"downwardAPI": {"items": [
            {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}},
            {"path": "notes", "fieldRef": {"fieldPath": "metadata.annotations"}, "mode": 0o400},
            {"path": "label", "fieldRef": {"fieldPath": "metadata.labels['b']"}},
            {"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}},
         {"labels": (b'a="say \\"hi\\""\nb="2"', 0o644), "notes": (b'n="x\\ny"', 0o400), "label": (b"2", 0o644),
          "name": (b"web", 0o644)}),
        (projected({"configMap": {"name": "cfg", "items": [{"key": "a", "path": "x"}]}}, {"secret": {"name": "key"}},
                   {"downwardAPI": {"items": [{"path": "x", "fieldRef": {"fieldPath": "metadata.uid"}}]}}, mode=0o600),
         {"x": (b"u", 0o600), "k": (b"\xfesecret", 0o600)}),
        (projected({"serviceAccountToken": {"path": "token", "audience": "vault"}}),
         {"token": (b"local-node:shop:default:vault", 0o644)}),
        (projected(), {}),
    ],
)  # fmt: skip
def test_the_files_of_a_volume(volume: Json, expected: dict[str, tuple[bytes, int]]) -> None:
    assert files(volume) == expected


def test_a_token_is_private_where_its_pod_has_a_group() -> None:
    volume = projected({"serviceAccountToken": {"path": "token"}})
    found = files(volume, securityContext={"fsGroup": 0}, serviceAccountName="web")
    assert found == {"token": (b"local-node:shop:web:", 0o600)}


@pytest.mark.parametrize(
    ("volume", "fault"),
    [
        ({"configMap": {"name": "no"}}, 'configmap "no" not found'),
        ({"secret": {"secretName": "no"}}, 'secret "no" not found'),
        ({"configMap": {"name": "cfg", "items": [{"key": "no", "path": "x"}]}},
         "configmap references non-existent config key: no"),
        ({"secret": {"secretName": "key", "items": [{"key": "no", "path": "x"}]}},
         "references non-existent secret key: no"),
        ({"downwardAPI": {"items": [{"path": "x", "fieldRef": {"fieldPath": "spec.no"}}]}},
         'fieldRef "spec.no" is not known'),
        ({"downwardAPI": {"items": [{"path": "x", "resourceFieldRef": {"resource": "limits.cpu"}}]}},
         "a local node has no values from resourceFieldRef"),
        (projected({"configMap": {"name": "no"}}, {"clusterTrustBundle": {"path": "x"}}),
         '[configmap "no" not found, a local node has no volume source of kind clusterTrustBundle]'),
    ],
)  # fmt: skip
def test_a_volume_that_cannot_be_written_names_all_faults(volume: Json, fault: str) -> None:
    with pytest.raises(VolumeError) as error:
        files(volume)
    assert str(error.value) == fault


def test_the_objects_that_a_volume_uses() -> None:
    volume = projected({"configMap": {"name": "a"}}, {"secret": {"name": "b"}}, {"serviceAccountToken": {"path": "t"}})
    assert list(used_objects(volume)) == [(Kind.CONFIG_MAP, "a"), (Kind.SECRET, "b")]
    assert list(used_objects({"name": "v", "secret": {"secretName": "c"}})) == [(Kind.SECRET, "c")]
    assert list(used_objects({"name": "v", "emptyDir": {}})) == []
