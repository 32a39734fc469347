import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crrd.kubelet.image_hash import SINCE, hash_of_name_and_image
from crrd_forecast.hash import go_dump
from crrd_forecast.hash.container_hash import container_hash, era_of, hash_of
from crrd_forecast.hash.fnv import fnv32a, fnv32a_of_printed_bytes
from crrd_forecast.hash.go_json import Writer
from crrd_forecast.hash.go_values import Texts
from crrd_forecast.hash.version import NEWEST_MINOR

VECTORS: list[dict[str, Any]] = json.loads((Path(__file__).parent / "data" / "kubelet-container-hash.json").read_text())
REPORTED: dict[str, Any] = {
    "name": "prometheus-node-exporter",
    "image": "harbor.finupgroup.com/kubernetes/node-exporter:v0.16.0",
    "ports": [{"name": "prom-node-exp", "hostPort": 9100, "containerPort": 9100, "protocol": "TCP"}],
    "resources": {},
    "volumeMounts": [
        {
            "name": "default-token-bks80",
            "readOnly": True,
            "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount",
        }
    ],
    "terminationMessagePath": "/dev/termination-log",
    "terminationMessagePolicy": "File",
    "imagePullPolicy": "IfNotPresent",
}


@pytest.mark.parametrize("vector", VECTORS, ids=range(len(VECTORS)))
class TestGoldenVectors:
    def test_dump(self, vector: dict[str, Any]) -> None:
        assert go_dump.dump(vector["container"], 13) == vector["struct_1_13"]["dump"]
        assert container_hash(vector["container"], "v1.13.12") == vector["struct_1_13"]["hash"]

    def test_json(self, vector: dict[str, Any]) -> None:
        assert Writer(26).struct(vector["container"]) == vector["json_1_26"]["json"]
        assert container_hash(vector["container"], "1.26") == vector["json_1_26"]["hash"]

    def test_name_and_image(self, vector: dict[str, Any]) -> None:
        assert container_hash(vector["container"], "v1.36.0") == vector["name_image_1_36"]["hash"]

    def test_is_the_same_within_an_era_where_no_field_came(self, vector: dict[str, Any]) -> None:
        container = vector["container"]
        assert len({container_hash(container, f"1.{minor}") for minor in range(16, 31)}) == 1
        assert len({container_hash(container, f"1.{minor}") for minor in range(31, 40)}) == 1


def test_the_two_numbers_of_the_log_line() -> None:
    assert container_hash(REPORTED, "1.7.16") == 1559107639
    assert container_hash(REPORTED, "1.9.11") == 1428860573


def test_what_1_9_added_makes_the_difference_of_the_log_line() -> None:
    newer = go_dump.dump(REPORTED, 9)
    older = newer.replace(" MountPropagation:(*v1.MountPropagationMode)<nil>", "")
    older = older.replace(" VolumeDevices:([]v1.VolumeDevice)<nil>", "")
    assert (fnv32a(older.encode()), fnv32a(newer.encode())) == (1559107639, 1428860573)


@pytest.mark.parametrize(
    ("older", "newer"), [("1.7", "1.8"), ("1.8", "1.9"), ("1.13", "1.14"), ("1.15", "1.16"), ("1.30", "1.31")]
)
def test_versions_that_rebuilt_containers(older: str, newer: str) -> None:
    assert container_hash(REPORTED, older) != container_hash(REPORTED, newer)


@pytest.mark.parametrize(("older", "newer"), [("1.9", "1.13"), ("1.14", "1.15"), ("1.16", "1.30"), ("1.31", "1.36")])
def test_versions_that_did_not(older: str, newer: str) -> None:
    assert container_hash(REPORTED, older) == container_hash(REPORTED, newer)


@pytest.mark.parametrize("since", [("1.11", "1.12"), ("1.14", "1.15"), ("1.7", "1.8"), ("1.9", "1.10")])
def test_fields_of_the_security_context_change_the_dump_of_containers_that_have_one(since: tuple[str, str]) -> None:
    container = {"name": "a", "image": "i", "securityContext": {}}
    assert container_hash(container, since[0]) != container_hash(container, since[1])


@pytest.mark.parametrize(
    "version", ["1.26", "v1.26.1", "1.26+", " v1.26.0-rc.1+k3s1 ", "v1.26.5-eks-0a21954", "1.26.9-gke.1"]
)
def test_versions_as_they_are_written(version: str) -> None:
    assert container_hash(REPORTED, version) == container_hash(REPORTED, "1.26")


@pytest.mark.parametrize("version", ["", "latest", "1", "1.x", "v1.2.3.4", "2.0", "1.26 1.27", "1.٣", "1.26.0-"])
def test_what_is_no_version(version: str) -> None:
    with pytest.raises(ValueError, match="is not a Kubernetes version"):
        container_hash(REPORTED, version)


def test_before_1_7_nothing_is_known() -> None:
    assert container_hash(REPORTED, "1.6") is None
    assert "the oldest known version is 1.7" in hash_of(REPORTED, 6).why


UNKNOWN: list[tuple[Any, str, str]] = [
    ({"startupProbe": {}}, "1.15", "container.startupProbe is not known to kubelet 1.15"),
    ({"restartPolicy": "Always"}, "1.27", "container.restartPolicy is not known"),
    ({"resizePolicy": []}, "1.26", "container.resizePolicy is not known"),
    ({"volumeDevices": [{"name": "d", "devicePath": "/d"}]}, "1.8", "container.volumeDevices is not known"),
    ({"securityContext": {"procMount": "Default"}}, "1.11", "container.securityContext.procMount is not known"),
    ({"securityContext": {"allowPrivilegeEscalation": False}}, "1.7", "allowPrivilegeEscalation is not known"),
    ({"volumeMounts": [{"name": "v", "mountPath": "/", "subPathExpr": "x"}]}, "1.13", "[0].subPathExpr is not known"),
    ({"lifecycle": {"preStop": {"sleep": {"seconds": 1}}}}, "1.28", "preStop.sleep is not known"),
    ({"lifecycle": {"preStop": {"grpc": {"port": 1}}}}, "1.30", "preStop.grpc is not known"),
    ({"livenessProbe": {"sleep": {"seconds": 1}}}, "1.30", "livenessProbe.sleep is not known"),
    ({"inTheFuture": 1}, "1.30", "container.inTheFuture is not known"),
    ({"name": 1}, "1.36", "container.name is no text"),
    ({"name": 1}, "1.20", "container.name is no text"),
    ({"stdin": "yes"}, "1.20", "container.stdin is neither true nor false"),
    ({"ports": {}}, "1.20", "container.ports is no list"),
    ({"ports": [1]}, "1.13", "container.ports[0] is no object"),
    ({"ports": [{"containerPort": 2**31}]}, "1.13", "container.ports[0].containerPort is no whole number of 32 bits"),
    ({"ports": [{"containerPort": True}]}, "1.20", "is no whole number of 32 bits"),
    ({"livenessProbe": 1}, "1.13", "container.livenessProbe is no object"),
    ({"resources": {"limits": {"cpu": "much"}}}, "1.13", "container.resources.limits[cpu]"),
    ({"resources": {"limits": {"cpu": True}}}, "1.20", "is no text"),
    ({"resources": {"limits": 1}}, "1.13", "container.resources.limits is no object"),
    ({"resources": {"limits": 1}}, "1.20", "container.resources.limits is no object"),
    ({"resources": {"limits": {"cpu": "1000E"}}}, "1.20", "no suffix"),
    ({"resources": {"limits": {"memory": "0.0Mi"}}}, "1.13", "odd way"),
    ({"command": ["\b"]}, "1.28", "control character"),
]


@pytest.mark.parametrize(("change", "version", "why"), UNKNOWN)
def test_what_a_version_cannot_express_is_unknown(change: dict[str, Any], version: str, why: str) -> None:
    container = {"name": "a", "image": "i"} | change
    assert container_hash(container, version) is None
    assert why in hash_of(container, int(version.split(".")[1])).why


@pytest.mark.parametrize("version", ["1.13", "1.26", "1.31"])
def test_what_is_no_object_is_unknown(version: str) -> None:
    assert container_hash([], version) is None  # type: ignore[arg-type]  # anything may stand in a file


@pytest.mark.parametrize(
    ("change", "version"),
    [
        ({"startupProbe": {}}, "1.16"),
        ({"startupProbe": None}, "1.15"),
        ({"restartPolicy": "Always"}, "1.28"),
        ({"resizePolicy": [{"resourceName": "cpu", "restartPolicy": "NotRequired"}]}, "1.27"),
        ({"securityContext": {"procMount": "Default"}}, "1.12"),
        ({"lifecycle": {"preStop": {"sleep": {"seconds": 1}}}}, "1.29"),
        ({"inTheFuture": 1}, "1.31"),
        ({"resources": {"limits": {"cpu": 2, "memory": 0.5}}}, "1.20"),
    ],
)
def test_what_a_version_can_express_is_known(change: dict[str, Any], version: str) -> None:
    assert container_hash({"name": "a", "image": "i"} | change, version) is not None


@pytest.mark.parametrize(
    ("change", "written"),
    [
        ({"livenessProbe": {"grpc": {"port": 1}}}, '"livenessProbe":{"grpc":{"port":1,"service":null}}'),
        ({"livenessProbe": {"tcpSocket": {"port": 0}}}, '"livenessProbe":{"tcpSocket":{"port":0}}'),
        ({"livenessProbe": {"tcpSocket": {}}}, '"livenessProbe":{"tcpSocket":{"port":0}}'),
        ({"livenessProbe": {"exec": {}}}, '"livenessProbe":{"exec":{}}'),
        ({"env": [{"name": "", "value": ""}]}, '"env":[{"name":""}]'),
        ({"env": [{"valueFrom": {"fieldRef": {}}}]}, '"env":[{"name":"","valueFrom":{"fieldRef":{"fieldPath":""}}}]'),
        (
            {"env": [{"name": "a", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}}]},
            '"env":[{"name":"a","valueFrom":{"resourceFieldRef":{"resource":"limits.cpu","divisor":"0"}}}]',
        ),
        ({"ports": [{}]}, '"ports":[{"containerPort":0}]'),
        ({"stdin": False, "workingDir": "", "command": []}, None),
        ({"resources": {"limits": {}}}, None),
        ({"securityContext": {"privileged": False}}, '"securityContext":{"privileged":false}'),
        (
            {"workingDir": '\x00\n\r\t"\\<>&\u2028\u2029\x7fü'},
            r'"workingDir":"\u0000\n\r\t\"\\\u003c\u003e\u0026\u2028\u2029' + '\x7fü"',
        ),
        ({"workingDir": "\b\f"}, r'"workingDir":"\u0008\u000c"'),
        ({"workingDir": "\ud800"}, '"workingDir":"\ufffd"'),
    ],
)
def test_what_go_writes(change: dict[str, Any], written: str | None) -> None:
    shape = Writer(24).struct({"name": "a"} | change)
    plain = shape.replace('"resources":{},', "").replace(',"resources":{}', "")
    assert '"resources":{}' in shape
    assert plain == f'{{"name":"a"{"," + written if written else ""}}}'


def test_what_go_writes_since_1_22() -> None:
    assert Writer(30).text("\b\f") == r'"\b\f"'


@pytest.mark.parametrize(
    ("change", "printed"),
    [
        (
            {"livenessProbe": {"httpGet": {}}},
            "Port:(intstr.IntOrString){Type:(intstr.Type)0 IntVal:(int32)0 StrVal:(string)}",
        ),
        (
            {"env": [{"name": "a", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}}]},
            (
                "Divisor:(resource.Quantity){i:(resource.int64Amount){value:(int64)0 scale:(resource.Scale)0} "
                "d:(resource.infDecAmount){Dec:(*inf.Dec)<nil>} s:(string) Format:(resource.Format)}"
            ),
        ),
        (
            {"resources": {"limits": {"memory": "-20.5Ei"}}},
            "Dec:(*inf.Dec){unscaled:(big.Int){neg:(bool)true abs:(big.nat)[9223372036854775807]} scale:(inf.Scale)0}",
        ),
        (
            {"resources": {"limits": {"cpu": "12345678901234567890"}}},
            "abs:(big.nat)[5097733592002180096 669260594]} scale:(inf.Scale)9}",
        ),
        ({"command": []}, "Command:([]string)<nil>"),
    ],
)
def test_what_spew_prints(change: dict[str, Any], printed: str) -> None:
    assert printed in go_dump.dump({"name": "a"} | change, 13)


def test_the_eras_in_words() -> None:
    assert [era_of(minor).hashed for minor in (15, 16, 30, 31)] == [
        "a dump of the whole container",
        "the whole container's JSON",
        "the whole container's JSON",
        "only name and image",
    ]


def test_the_node_knows_another_image_by_the_hash_of_kubelet() -> None:
    """If a version hashes more or less than name and image: `_started_for_image` in core/recreate/image.py."""
    wanted = int(hash_of_name_and_image("a", "i"), 16)
    container = {"name": "a", "image": "i", "command": ["run"], "restartPolicy": "Always"}
    hashes = {minor: container_hash(container, f"1.{minor}") for minor in range(SINCE, NEWEST_MINOR + 1)}
    assert hashes == dict.fromkeys(hashes, wanted)
    assert hashes


def shuffled(value: Any, draw: st.DrawFn) -> Any:
    if isinstance(value, dict):
        return {key: shuffled(value[key], draw) for key in draw(st.permutations(list(value)))}
    return [shuffled(each, draw) for each in value] if isinstance(value, list) else value


@st.composite
def reordered(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, Any]]:
    container = draw(st.sampled_from(VECTORS))["container"]
    return container, shuffled(container, draw)


@given(reordered(), st.sampled_from(["1.13", "1.26", "1.36"]))
def test_the_order_of_keys_does_not_matter(pair: tuple[dict[str, Any], dict[str, Any]], version: str) -> None:
    assert container_hash(pair[0], version) == container_hash(pair[1], version) is not None


def plain(data: bytes) -> int:
    value = 0x811C9DC5
    for byte in data:
        value = (value ^ byte) * 0x01000193 % 2**32
    return value


texts = st.binary(max_size=300) | st.lists(st.sampled_from([b" ", b'"', b"a", b"Name:(string)"]), max_size=50).map(
    b"".join
)


@given(texts)
def test_the_short_ways_to_the_hash(data: bytes) -> None:
    printed = f"([]uint8)[{' '.join(str(byte) for byte in data)}]"
    assert fnv32a_of_printed_bytes(data) == plain(printed.encode())
    assert fnv32a(data) == plain(data)


def test_the_hash_when_no_more_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("crrd_forecast.hash.fnv._MOST_KEPT", 0)
    data = b"never before seen: " * 3
    assert fnv32a(data) == plain(data)


def test_texts_begin_anew_when_they_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("crrd_forecast.hash.go_values._MOST_KEPT", 2)
    texts, written = Texts(), []

    def text(port: int) -> str:
        def write() -> str:
            written.append(port)
            return f"port {port}"

        return texts({"port": port}, "Probe", 30, write)

    ports = [1, 1, 2, 3, 3, 1]
    assert [text(port) for port in ports] == [f"port {port}" for port in ports]
    assert written == [1, 2, 3, 1]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.sampled_from(VECTORS), st.data(), json_values, st.sampled_from([7, 13, 20, 30, 31]))
def test_anything_may_stand_anywhere(vector: dict[str, Any], data: st.DataObject, value: Any, minor: int) -> None:
    container = vector["container"]
    key = data.draw(st.sampled_from(sorted(container)))
    found = hash_of(container | {key: value}, minor)
    assert (found.value is None) == bool(found.why)


@pytest.mark.parametrize("version", ["1.15", "1.30"])
def test_parts_that_are_alike_but_not_the_same_are_told_apart(version: str) -> None:
    """What was written once is remembered: true and 1, and a text and a number, are not the same part."""

    def with_part(part: Any) -> int | None:
        return container_hash({"name": "a", "image": "b", "livenessProbe": {"httpGet": part}}, version)

    hashes = [with_part({"port": port}) for port in (1, "1", 2)]
    assert len(set(hashes)) == 3
    assert [with_part({"port": port}) for port in (1, "1", 2)] == hashes
    for _ in range(2):
        assert with_part({"port": True}) is None
        assert with_part({"port": 1, "path": 1}) is None
    assert with_part({"port": 1, "path": "/"}) == with_part({"path": "/", "port": 1})
