"""Which ConfigMaps and Secrets the containers of a pod use."""

from typing import Any

import pytest

from crrd.core.config.references import Kind, Reference, Use, references

CM, SECRET = Kind.CONFIG_MAP, Kind.SECRET


def keys(*names: str) -> frozenset[str]:
    return frozenset(names)


def uses(container: dict[str, Any], *volumes: dict[str, Any]) -> tuple[Reference, ...]:
    pod = {"spec": {"containers": [{"name": "app", **container}], "volumes": list(volumes)}}
    return references(pod)["app"]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (
            {"configMapKeyRef": {"name": "web", "key": "LOG"}},
            Reference(CM, "web", Use.ENV, keys("LOG"), keys("LOG")),
        ),
        (
            {"configMapKeyRef": {"name": "web", "key": "LOG", "optional": True}},
            Reference(CM, "web", Use.ENV, keys("LOG"), optional=True),
        ),
        (
            {"secretKeyRef": {"name": "token", "key": "value"}},
            Reference(SECRET, "token", Use.ENV, keys("value"), keys("value")),
        ),
    ],
)
def test_an_environment_variable_uses_one_key(source: dict[str, Any], expected: Reference) -> None:
    assert uses({"env": [{"name": "PLAIN", "value": "x"}, {"name": "A", "valueFrom": source}]}) == (expected,)


def test_env_from_uses_all_keys() -> None:
    sources = [{"configMapRef": {"name": "web"}}, {"secretRef": {"name": "token", "optional": True}}, {"prefix": "A_"}]
    assert uses({"envFrom": sources}) == (
        Reference(CM, "web", Use.ENV_FROM),
        Reference(SECRET, "token", Use.ENV_FROM, optional=True),
    )


WHOLE = {"name": "cfg", "configMap": {"name": "web"}}
PARTS = {
    "name": "cfg",
    "secret": {
        "secretName": "tls",
        "items": [{"key": "crt", "path": "tls/cert.pem"}, {"key": "key", "path": "tls/key.pem"}],
    },
}
PROJECTED = {
    "name": "cfg",
    "projected": {
        "sources": [
            {"configMap": {"name": "web", "items": [{"key": "a", "path": "a"}], "optional": True}},
            {"secret": {"name": "token"}},
            {"serviceAccountToken": {"path": "token"}},
        ]
    },
}


@pytest.mark.parametrize(
    ("volume", "mount", "expected"),
    [
        (WHOLE, {}, [Reference(CM, "web", Use.VOLUME)]),
        (PARTS, {}, [Reference(SECRET, "tls", Use.VOLUME, keys("crt", "key"), keys("crt", "key"))]),
        (
            PROJECTED,
            {},
            [Reference(CM, "web", Use.VOLUME, keys("a"), optional=True), Reference(SECRET, "token", Use.VOLUME)],
        ),
        (WHOLE, {"subPath": "nginx.conf"}, [Reference(CM, "web", Use.SUB_PATH, keys("nginx.conf"))]),
        (WHOLE, {"subPathExpr": "$(POD_NAME)"}, [Reference(CM, "web", Use.SUB_PATH)]),
        (
            PARTS,
            {"subPath": "tls/cert.pem"},
            [Reference(SECRET, "tls", Use.SUB_PATH, keys("crt"), keys("crt", "key"))],
        ),
        (PARTS, {"subPath": "tls/"}, [Reference(SECRET, "tls", Use.SUB_PATH, keys("crt", "key"), keys("crt", "key"))]),
        (PARTS, {"subPath": "other"}, []),
        ({"name": "cfg", "emptyDir": {}}, {}, []),
        ({"name": "another", "configMap": {"name": "web"}}, {}, []),
    ],
)
def test_a_volume_is_used_by_who_mounts_it(
    volume: dict[str, Any], mount: dict[str, Any], expected: list[Reference]
) -> None:
    assert list(uses({"volumeMounts": [{"name": "cfg", "mountPath": "/etc/cfg", **mount}]}, volume)) == expected


def test_init_containers_are_left_out_and_sidecars_are_not() -> None:
    env = {"envFrom": [{"configMapRef": {"name": "web"}}]}
    spec = {
        "containers": [{"name": "app"}],
        "initContainers": [{"name": "setup", **env}, {"name": "proxy", "restartPolicy": "Always", **env}],
    }
    assert references({"spec": spec}) == {"app": (), "proxy": (Reference(CM, "web", Use.ENV_FROM),)}


@pytest.mark.parametrize("field", ["env", "envFrom", "volumeMounts"])
@pytest.mark.parametrize("junk", [None, 7, "x", [7], [{}], [{"valueFrom": 7, "configMapRef": 7, "name": 7}]])
def test_bad_input_uses_nothing(field: str, junk: object) -> None:
    assert uses({field: junk}, {"name": 7, "configMap": 7, "projected": {"sources": [7]}}) == ()


def test_one_use_is_named_once_and_in_words() -> None:
    mounts = [{"name": "cfg", "mountPath": "/a"}, {"name": "cfg", "mountPath": "/b"}]
    (found,) = uses({"volumeMounts": mounts}, WHOLE)
    assert str(found) == "ConfigMap web (volume)"
    assert found.object == (CM, "web")
