"""Kubelet's hash of a container in its three eras, by vectors made with kubelet's own code."""

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.forecast.container_hash import container_hash, hashed_text, parse_version
from daemon.forecast.go_format import marshal
from daemon.forecast.quantity import ZERO, UnknownQuantityError, parse

VECTORS: list[dict[str, Any]] = json.loads((Path(__file__).parent / "data" / "kubelet-container-hash.json").read_text())
EXPORTER = {
    "name": "prometheus-node-exporter",
    "image": "harbor.finupgroup.com/kubernetes/node-exporter:v0.16.0",
    "ports": [{"name": "prom-node-exp", "hostPort": 9100, "containerPort": 9100, "protocol": "TCP"}],
    "volumeMounts": [
        {
            "name": "default-token-bks80",
            "readOnly": True,
            "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount",
        }
    ],
    "resources": {},
    "terminationMessagePath": "/dev/termination-log",
    "terminationMessagePolicy": "File",
    "imagePullPolicy": "IfNotPresent",
}


@pytest.mark.parametrize("number", range(len(VECTORS)))
def test_vectors(number: int) -> None:
    vector = VECTORS[number]
    container = vector["container"]
    assert hashed_text(container, "1.13") == vector["struct_1_13"]["dump"]
    assert marshal(container, (1, 26)) == vector["json_1_26"]["json"]
    for era, version in (("struct_1_13", "1.13.4"), ("json_1_26", "v1.26.0"), ("name_image_1_36", "1.36")):
        assert container_hash(container, version) == vector[era]["hash"]


def test_the_two_numbers_of_the_log_line() -> None:
    assert container_hash(EXPORTER, "1.7.16") == 1559107639
    assert container_hash(EXPORTER, "1.9.11") == 1428860573


def test_the_borders_of_the_eras() -> None:
    hashes = {version: container_hash(EXPORTER, version) for version in ("1.15", "1.16", "1.30", "1.31")}
    assert len({hashes["1.15"], hashes["1.16"], hashes["1.31"]}) == 3
    assert hashes["1.16"] == hashes["1.30"]
    assert container_hash(EXPORTER, "1.6") is None


@pytest.mark.parametrize(
    ("text", "version"), [("1.26", (1, 26)), ("v1.9.11", (1, 9)), ("1.31.0-rc.1+k3s1", (1, 31)), (" 1.7.16 ", (1, 7))]
)
def test_versions(text: str, version: tuple[int, int]) -> None:
    assert parse_version(text) == version


@pytest.mark.parametrize("text", ["", "latest", "1", "1.x", "v1.2.3.4"])
def test_what_is_no_version(text: str) -> None:
    with pytest.raises(ValueError, match="is no Kubernetes version"):
        container_hash(EXPORTER, text)


@pytest.mark.parametrize(
    ("container", "version", "known"),
    [
        ({"name": "a", "startupProbe": {}}, "1.15", False),
        ({"name": "a", "startupProbe": {}}, "1.16", True),
        ({"name": "a", "restartPolicy": "Always"}, "1.27", False),
        ({"name": "a", "restartPolicy": "Always"}, "1.28", True),
        ({"name": "a", "restartPolicy": "Always"}, "1.31", True),
        ({"name": "a", "volumeDevices": []}, "1.8", False),
        ({"name": "a", "securityContext": {"procMount": "Default"}}, "1.11", False),
        ({"name": "a", "securityContext": {"procMount": "Default"}}, "1.12", True),
        ({"name": "a", "volumeMounts": [{"name": "v", "mountPath": "/", "subPathExpr": "x"}]}, "1.13", False),
        ({"name": "a", "lifecycle": {"preStop": {"sleep": {"seconds": 1}}}}, "1.28", False),
        ({"name": "a", "lifecycle": {"preStop": {"sleep": {"seconds": 1}}}}, "1.29", True),
        ({"name": "a", "inTheFuture": 1}, "1.30", False),
        ({"name": 1}, "1.36", False),
        ({"name": 1}, "1.20", False),
        ({"name": "a", "stdin": "yes"}, "1.20", False),
        ({"name": "a", "ports": {}}, "1.20", False),
        ({"name": "a", "ports": [1]}, "1.13", False),
        ({"name": "a", "ports": [{"containerPort": 2**31}]}, "1.13", False),
        ({"name": "a", "livenessProbe": 1}, "1.13", False),
        ({"name": "a", "livenessProbe": {"nope": 1}}, "1.13", False),
        ({"name": "a", "resources": {"limits": {"cpu": "much"}}}, "1.13", False),
        ({"name": "a", "resources": {"limits": {"cpu": True}}}, "1.20", False),
        ({"name": "a", "resources": {"limits": 1}}, "1.13", False),
        ({"name": "a", "resources": {"limits": 1}}, "1.20", False),
        ({"name": "a", "resources": {"limits": {"cpu": "1e30"}}}, "1.20", True),
        ({"name": "a", "resources": {"limits": {"cpu": 2}}}, "1.20", True),
        ({"name": "\ud800"}, "1.20", False),
        ({"name": "\ud800"}, "1.13", False),
    ],
)
def test_what_a_version_cannot_express_is_unknown(container: dict[str, Any], version: str, *, known: bool) -> None:
    assert (container_hash(container, version) is not None) is known


def test_grpc_probes_have_a_service_even_without_one() -> None:
    container = {"name": "a", "livenessProbe": {"grpc": {"port": 1}}}
    assert marshal(container, (1, 24)) == (
        '{"name":"a","resources":{},"livenessProbe":{"grpc":{"port":1,"service":null}}}'
    )


@given(st.permutations(sorted(EXPORTER)), st.sampled_from(["1.7", "1.13", "1.26", "1.36"]))
def test_the_order_of_keys_does_not_matter(names: list[str], version: str) -> None:
    assert container_hash({name: EXPORTER[name] for name in names}, version) == container_hash(EXPORTER, version)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("0.5", "500m"),
        ("500m", "500m"),
        ("1.5Gi", "1536Mi"),
        ("1024", "1024"),
        ("1024Ki", "1Mi"),
        ("1000", "1k"),
        ("0", "0"),
        ("00.10", "100m"),
        ("-1.5", "-1500m"),
        ("1e3", "1e3"),
        ("1000e0", "1e3"),
        ("12e0", "12e0"),
        ("0.5Ki", "512"),
        ("0.0001Ki", "102400u"),
        ("100n", "100n"),
        ("12345678901234567890", "12345678901234567890"),
        ("-2.5Gi", "-2560Mi"),
    ],
)
def test_canonical_quantities(text: str, canonical: str) -> None:
    assert parse(text).canonical() == canonical


@pytest.mark.parametrize("text", ["", ".", "1x", "much", "9e40Gi", "9999999999Ei"])
def test_what_is_no_quantity(text: str) -> None:
    with pytest.raises(UnknownQuantityError):
        parse(text)


def test_a_quantity_beyond_the_suffixes() -> None:
    with pytest.raises(UnknownQuantityError):
        parse("1000000000000000000000").canonical()
    assert ZERO.canonical() == "0"


@given(st.integers(0, 2**40))
def test_a_canonical_quantity_means_the_same(number: int) -> None:
    for suffix in ("", "m", "k", "Ki", "Mi"):
        found = parse(f"{number}{suffix}")
        assert parse(found.canonical()).value == found.value
        assert found.value >= Fraction(0)
