"""The pages of `make compare`: tables and the picture, from figures that are made up here."""

import json
from pathlib import Path
from typing import Any

import pytest

from crrd.lib.errors import ConfigurationError
from tests.bench.compare import kruise, page
from tests.bench.compare.__main__ import main
from tests.bench.compare.measure import KEPT, Seen
from tests.bench.compare.ways import WAYS

DOCS = Path(__file__).parents[2] / "docs"
BURST: dict[str, Any] = {"row": "at once", "way": "crrd", "pods": 2, "seconds": [1.0, 3.0], "missing": 0.5, "most": 2}
BURST |= {"down": [0.1, 0.3]}
BURST |= {"writes": 12.0, "cpu": {"kube-apiserver": 20.0, "all": 90.0, "node daemon": 7.0, "commands": 1.0}}
BURST |= {"memory": {"node daemon": 50.0}}
ROWS: list[dict[str, Any]] = [
    {"row": "keeps", "way": "crrd", "keeps": dict.fromkeys(KEPT, True), "asked by": "kubectl recreate"},
    {"row": "keeps", "way": "pod deleted", "keeps": dict.fromkeys(KEPT, False), "asked by": ""},
    {"row": "one", "way": "crrd", "pods": 1, "seconds": [0.5, 0.7], "missing": [0.1, 0.2], "down": [0.4]},
    BURST,
    {**BURST, "seconds": [1.0, 5.0]},
    {**BURST, "row": "run", "pods": 300},
]


def pod(uid: str, container: str, *, ready: bool = True, deleting: bool = False) -> dict[str, Any]:
    meta = {"uid": uid, "name": uid, **({"deletionTimestamp": "now"} if deleting else {})}
    statuses = [{"name": "app", "containerID": f"containerd://{container}"}]
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    return {"metadata": meta, "status": {"containerStatuses": statuses, "conditions": conditions}}


def test_the_page_has_a_table_for_each_kind_of_row() -> None:
    found = {"date": "2026-01-01", "commit": "c", "versions": {"kubelet": "v1"}, "rows": ROWS}
    said = page.page(found)
    assert "| crrd | 0.60 | 0.70 | 0.15 | 0.40 | 2 |" in said
    assert "| crrd | 2.50 (2.00 to 3.00) | 4.00 (3.00 to 5.00) |" in said, "the medians of two rounds"
    assert "| 90 (90 to 90) | 20 (20 to 20) | 8 (8 to 8) | 50 (50 to 50) |" in said, (
        "CPU: all, the API server, the tool"
    )
    assert "300 pods, at most 10 % unready:" in said
    assert "| pod deleted | no | no |" in said
    assert "| yes, with kubectl recreate |" in said


def test_docs_have_what_was_measured() -> None:
    text = (DOCS / "benchmarks.md").read_text(encoding="utf-8")
    tables = [each for each in page.page(page.read(DOCS / "compare.json")).split("\n\n") if each.startswith("|")]
    assert len(tables) >= 6
    assert [each for each in tables if each not in text] == []


def test_the_picture_names_each_way_and_the_limit_of_kubelet(tmp_path: Path) -> None:
    page.draw([each for each in ROWS if each["row"] == "at once"], tmp_path / "compare.svg")
    assert (tmp_path / "compare.svg").read_text(encoding="utf-8").startswith("<?xml")


def test_a_replica_is_renewed_once_it_is_ready_with_another_container(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter((10.0, 11.0, 14.0, 15.0, 20.0, 21.0))
    monkeypatch.setattr("time.monotonic", lambda: next(times))
    seen = Seen(frozenset({"containerd://a", "containerd://b"}), 2, 10.0)
    seen.start([pod("1", "a"), pod("2", "b")])
    seen.add(pod("1", "a", ready=False), gone=False)
    assert (seen.renewed, seen.over) == ({}, False)
    seen.add(pod("1", "c"), gone=False)
    assert (seen.renewed, seen.missing) == ({"1": 1.0}, 1.0)
    seen.add(pod("2", "b", deleting=True), gone=False)
    seen.add(pod("2", "b"), gone=True)
    assert not seen.over
    seen.add(pod("3", "d"), gone=False)
    assert (seen.over, seen.missing, seen.most_missing) == (True, 7.0, 1)


def test_what_has_failed_is_said_and_the_rest_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    failed = {"row": "failed", "of": "run", "way": "crrd", "error": "TimeoutError()"}
    found = {"date": "2026-01-01", "commit": "c", "versions": {"kubelet": "v1"}, "rows": [*ROWS, failed]}
    file = tmp_path / "compare.json"
    file.write_text(json.dumps(found), encoding="utf-8")
    assert main(["--page", str(file), "--out", str(tmp_path)]) == 1
    said = capsys.readouterr()
    assert said.err == "error: crrd, run: TimeoutError()\n"
    assert said.out.index("| pod deleted | no |") < said.out.index("| crrd | yes |"), "in the order of the ways"


def test_the_help_names_each_way(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    said = " ".join(capsys.readouterr().out.split())
    assert [each.name for each in WAYS if each.name not in said] == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "name the folder of a cluster"),
        (["/nowhere"], "/nowhere"),
        (["/nowhere", "--kruise", "/nowhere"], "/nowhere"),
    ],
)
def test_what_is_missing_is_said(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert said in capsys.readouterr().err


def test_a_folder_without_openkruise_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigurationError, match=r"lacks kruise-daemon, kruise-manager, config/default/kustomization\.yaml"
    ):
        kruise.check(tmp_path)
