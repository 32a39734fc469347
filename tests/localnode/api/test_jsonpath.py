"""JSONPaths of printer columns, as client-go evaluates them for the API server."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from crrd.lib.jsonpath import find_all, parse_path
from crrd_localnode.api.crds import POLICIES, crd_rules, kinds_of, load_crd

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
OBJECT: dict[str, Any] = {
    "spec": {"replicas": 3, "ratio": 0.5, "paused": False, "names": ["a", "b", "c"], "app.kubernetes.io/x": "dotted"},
    "status": {
        "none": None,
        "conditions": [
            {"type": "Ready", "status": "True", "count": 2},
            {"type": "Failed", "status": "False", "count": 7, "old": True},
        ],
    },
}


@pytest.mark.parametrize(
    ("path", "found"),
    [
        (".spec.replicas", [3]),
        ("spec.replicas", [3]),
        (".spec.missing.deeper", []),
        (".spec['replicas']", [3]),
        (r".spec.app\.kubernetes\.io/x", ["dotted"]),
        (".spec.names[1]", ["b"]),
        (".spec.names[-1]", ["c"]),
        (".spec.names[*]", ["a", "b", "c"]),
        (".status.conditions[*].type", ["Ready", "Failed"]),
        ('.status.conditions[?(@.type=="Ready")].status', ["True"]),
        (".status.conditions[?(@.type == 'Failed')].status", ["False"]),
        ('.status.conditions[?(@.type!="Ready")].type', ["Failed"]),
        (".status.conditions[?(@.count!=2)].type", ["Failed"]),
        (".status.conditions[?(@.count==2)].type", ["Ready"]),
        (".status.conditions[0].*", ["Ready", "True", 2]),
        (".status.conditions[?(@.old)].type", ["Failed"]),
        ('.status.conditions[?(@.type=="None")].status', []),
        ('.status.missing[?(@.type=="Ready")].status', []),
    ],
)
def test_a_path_finds_all_values(path: str, found: list[Any]) -> None:
    assert find_all(parse_path(path), OBJECT) == found


@pytest.mark.parametrize(
    "path",
    [
        ".spec.names[3]",
        ".spec.replicas[0]",
        ".spec.replicas[*]",
        ".spec[?(@.x==1)]",
        ".status.conditions[?(@.old==true)].type",  # the first condition has no such field
        ".status.conditions[?(@.type==3)].type",
        ".status.conditions[?(@.count=='2')].type",
    ],
)
def test_what_the_api_server_cannot_evaluate_is_an_error(path: str) -> None:
    with pytest.raises(LookupError):
        find_all(parse_path(path), OBJECT)


@pytest.mark.parametrize(
    "path", [".a[", ".a[?(@.b=)]", ".a[x]", "..a", ".a[]", ".a[1:2]", ".a[?(@.b==x)]", ".a[?(@.b>1)]"]
)
def test_other_paths_are_refused(path: str) -> None:
    with pytest.raises(ValueError, match=r"path|Expecting"):
        parse_path(path)


def crd_with(*columns: dict[str, Any]) -> dict[str, Any]:
    crd = load_crd()
    version = {**crd["spec"]["versions"][0], "additionalPrinterColumns": [{"name": "X", **each} for each in columns]}
    return {**crd, "spec": {**crd["spec"], "versions": [version]}}


@pytest.mark.parametrize(
    ("kind", "path", "cell"),
    [
        ("string", ".spec.replicas", "3"),
        ("string", ".spec.paused", "false"),
        ("string", ".spec.names", '["a","b","c"]'),
        ("string", ".spec.names[*]", "a"),
        ("string", ".status.none", "<no value>"),
        ("string", ".spec.missing", None),
        ("string", ".spec.names[9]", None),
        ("integer", ".spec.ratio", 0),
        ("integer", ".spec.paused", None),
        ("number", ".spec.ratio", 0.5),
        ("boolean", ".spec.paused", False),
        ("boolean", ".spec.replicas", None),
        ("date", ".spec.names[0]", "<invalid>"),
        ("date", ".spec.replicas", None),
    ],
)
def test_a_cell_is_shown_by_the_column_s_type(kind: str, path: str, cell: Any) -> None:
    (served,) = kinds_of(crd_with({"type": kind, "jsonPath": path}))
    assert served.columns[0].value(OBJECT, NOW) == cell


def test_a_crd_with_a_column_that_cannot_be_read_is_refused() -> None:
    (cause,) = crd_rules(crd_with({"type": "string", "jsonPath": ".a"}, {"type": "string", "jsonPath": ".a[x]"}))
    assert cause.field == "spec.versions[0].additionalPrinterColumns[1].jsonPath"


def test_the_columns_of_a_policy() -> None:
    (kind,) = kinds_of(load_crd(POLICIES))
    conditions = [{"type": "Stalled", "status": "False"}, {"type": "Ready", "status": "True", "reason": "Idle"}]
    created = (NOW - timedelta(minutes=3)).strftime("%Y-%m-%dT%H:%M:%SZ")
    policy = {
        "metadata": {"creationTimestamp": created},
        "spec": {"targetRef": {"name": "web"}},
        "status": {"conditions": conditions, "run": {"name": "web-1"}},
    }
    assert {column.name: column.value(policy, NOW) for column in kind.columns} == {
        "TARGET": "web", "READY": "True", "REASON": "Idle", "RUN": "web-1", "AGE": "3m"
    }  # fmt: skip
