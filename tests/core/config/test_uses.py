"""Which ConfigMaps and Secrets the containers of a pod use: each rule of kubelet, with its place in Kubernetes."""

from typing import Any

import pytest

from crrd.core.api.pod import parse_pod
from crrd.core.config.references import Kind, Reference, Use
from crrd.core.config.uses import OutOfReach, Unreached, parse_reloading_pod, references, unreached

CM, SECRET = Kind.CONFIG_MAP, Kind.SECRET
KUBELET, CONFIG_MAP_GO, SECRET_GO, PROJECTED_GO, WRITER, ADMISSION = (
    "pkg/kubelet/kubelet_pods.go",
    "pkg/volume/configmap/configmap.go",
    "pkg/volume/secret/secret.go",
    "pkg/volume/projected/projected.go",
    "pkg/volume/util/atomic_writer.go",
    "plugin/pkg/admission/serviceaccount/admission.go",
)
ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"


def keys(*names: str) -> frozenset[str]:
    return frozenset(names)


def pod(container: dict[str, Any], *volumes: dict[str, Any]) -> dict[str, Any]:
    spec = {"containers": [{"name": "app", **container}], "volumes": list(volumes)}
    return {"metadata": {"name": "web-0", "namespace": "shop"}, "spec": spec}


def key_of(name: str, key: str, *, optional: bool = False) -> Reference:
    return Reference(CM, name, Use.ENV, keys(key), keys() if optional else keys(key), optional)


def from_key(variable: str, name: str, key: str, *, optional: bool = False) -> dict[str, Any]:
    source: dict[str, Any] = {"name": name, "key": key, **({"optional": True} if optional else {})}
    return {"name": variable, "valueFrom": {"configMapKeyRef": source}}


def all_of(name: str, *without: str) -> Reference:
    return Reference(CM, name, Use.ENV_FROM, without=keys(*without))


WEB = {"configMapRef": {"name": "web"}}
FIELD = {"name": "LOG", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}


@pytest.mark.parametrize(
    ("rule", "source", "container", "expected"),
    [
        (
            "a variable from a key uses this key, and is required",
            KUBELET,
            {"env": [{"name": "PLAIN", "value": "x"}, from_key("A", "web", "LOG")]},
            [key_of("web", "LOG")],
        ),
        (
            "an optional key may be missing",
            KUBELET,
            {"env": [from_key("A", "web", "LOG", optional=True)]},
            [key_of("web", "LOG", optional=True)],
        ),
        (
            "a key of a Secret counts likewise",
            KUBELET,
            {"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "token", "key": "value"}}}]},
            [Reference(SECRET, "token", Use.ENV, keys("value"), keys("value"))],
        ),
        (
            "a variable with a value ignores its source",
            KUBELET,
            {"env": [{**from_key("A", "web", "LOG"), "value": "x"}]},
            [],
        ),
        (
            "a variable from a file of a volume reads no object: such a volume is an emptyDir",
            "pkg/apis/core/validation/validation.go",
            {"env": [{"name": "A", "valueFrom": {"fileKeyRef": {"volumeName": "v", "path": "env", "key": "A"}}}]},
            [],
        ),
        (
            "references to other variables use no object of their own",
            KUBELET,
            {"env": [from_key("A", "web", "LOG"), {"name": "B", "value": "$(A)-$(C)"}]},
            [key_of("web", "LOG")],
        ),
        ("envFrom uses all keys", KUBELET, {"envFrom": [WEB]}, [all_of("web")]),
        (
            "an object of envFrom may be optional",
            KUBELET,
            {"envFrom": [{"secretRef": {"name": "token", "optional": True}}, {"prefix": "A_"}]},
            [Reference(SECRET, "token", Use.ENV_FROM, optional=True)],
        ),
        (
            "env replaces variables of envFrom",
            KUBELET,
            {"envFrom": [WEB], "env": [{"name": "LOG", "value": "x"}, {"name": "EMPTY"}]},
            [all_of("web", "LOG", "EMPTY")],
        ),
        (
            "a prefix belongs to the name of the variable, not to the key",
            KUBELET,
            {"envFrom": [{**WEB, "prefix": "A_"}], "env": [{"name": "A_LOG", "value": "x"}, {"name": "LOG"}]},
            [all_of("web", "LOG")],
        ),
        (
            "env from another object replaces them, too",
            KUBELET,
            {"envFrom": [WEB], "env": [FIELD]},
            [all_of("web", "LOG")],
        ),
        (
            "an optional source may leave the variable of envFrom",
            KUBELET,
            {"envFrom": [WEB], "env": [from_key("LOG", "other", "a", optional=True)]},
            [key_of("other", "a", optional=True), all_of("web")],
        ),
        (
            "another value may show the replaced variable",
            KUBELET,
            {"envFrom": [WEB], "env": [{"name": "LOG", "value": "$(LOG),json"}]},
            [all_of("web")],
        ),
        (
            "the last of two variables with one name counts, but the key of the other is still required",
            KUBELET,
            {"env": [from_key("A", "web", "old"), from_key("A", "web", "new")]},
            [Reference(CM, "web", Use.ENV, keys(), keys("old")), key_of("web", "new")],
        ),
        (
            "the name of a variable need not be valid: kubelet 1.32 and later accept any key",
            KUBELET,
            {"envFrom": [WEB], "env": [from_key("1-A", "web", "1-A")]},
            [key_of("web", "1-A"), all_of("web", "1-A")],
        ),
    ],
)
def test_variables(rule: str, source: str, container: dict[str, Any], expected: list[Reference]) -> None:
    assert list(references(pod(container))["app"]) == expected, f"{rule} ({source})"


WHOLE = {"name": "cfg", "configMap": {"name": "web"}}
TLS = [{"key": "crt", "path": "tls/cert.pem"}, {"key": "key", "path": "tls/key.pem"}]
PARTS = {"name": "cfg", "secret": {"secretName": "tls", "items": TLS}}
PROJECTED = {
    "name": "cfg",
    "projected": {
        "sources": [
            {"configMap": {"name": "web", "items": [{"key": "a", "path": "a"}], "optional": True}},
            {"secret": {"name": "token"}},
            {"serviceAccountToken": {"path": "token"}},
            {"downwardAPI": {"items": []}},
            {"clusterTrustBundle": {"name": "bundle", "path": "ca"}},
        ]
    },
}
BOTH = keys("crt", "key")
HIDING = {
    "name": "cfg",
    "projected": {
        "sources": [
            {"configMap": {"name": "web", "items": [{"key": "a", "path": "x"}, {"key": "b", "path": "y"}]}},
            {"configMap": {"name": "all"}},
            {"secret": {"name": "tls", "items": [{"key": "crt", "path": "x"}]}},
            {"secret": {"name": "maybe", "items": [{"key": "c", "path": "y"}], "optional": True}},
            {"serviceAccountToken": {"path": "token"}},
        ]
    },
}


def listed(*pairs: tuple[str, str]) -> dict[str, Any]:
    return {"name": "cfg", "configMap": {"name": "web", "items": [{"path": path, "key": key} for path, key in pairs]}}


def file(*names: str) -> Reference:
    return Reference(CM, "web", Use.SUB_PATH, keys(*names))


def tls(use: Use, *names: str) -> Reference:
    return Reference(SECRET, "tls", use, keys(*names), BOTH)


ALL_FILES = Reference(CM, "web", Use.SUB_PATH)


@pytest.mark.parametrize(
    ("rule", "source", "volume", "mount", "expected"),
    [
        ("a volume has all keys", CONFIG_MAP_GO, WHOLE, {}, [Reference(CM, "web", Use.VOLUME)]),
        ("items choose keys, and require them", SECRET_GO, PARTS, {}, [tls(Use.VOLUME, "crt", "key")]),
        (
            "an optional object may lack the keys of items",
            CONFIG_MAP_GO,
            {"name": "cfg", "configMap": {"name": "web", "optional": True, "items": [{"key": "a", "path": "b"}]}},
            {},
            [Reference(CM, "web", Use.VOLUME, keys("a"), optional=True)],
        ),
        (
            "empty items are no items",
            CONFIG_MAP_GO,
            {"name": "cfg", "configMap": {"name": "web", "items": []}},
            {},
            [Reference(CM, "web", Use.VOLUME)],
        ),
        (
            "of two items with one path the last counts, but both keys are required",
            CONFIG_MAP_GO,
            listed(("x", "old"), ("x", "new")),
            {},
            [Reference(CM, "web", Use.VOLUME, keys("new"), keys("old", "new"))],
        ),
        (
            "one key may have several paths",
            CONFIG_MAP_GO,
            listed(("x", "a"), ("y", "a")),
            {"subPath": "y"},
            [Reference(CM, "web", Use.SUB_PATH, keys("a"), keys("a"))],
        ),
        (
            "a projected volume has the files of its sources, each by its own items and optional",
            PROJECTED_GO,
            PROJECTED,
            {},
            [
                Reference(CM, "web", Use.VOLUME, keys("a"), optional=True),
                Reference(SECRET, "token", Use.VOLUME, without=keys("token", "ca")),
            ],
        ),
        (
            "a path in a projected volume is looked up in all sources",
            PROJECTED_GO,
            PROJECTED,
            {"subPath": "a"},
            [
                Reference(CM, "web", Use.SUB_PATH, keys("a"), optional=True),
                Reference(SECRET, "token", Use.SUB_PATH, keys("a")),
            ],
        ),
        (
            "a later source hides the files of an earlier one, whose keys are still required",
            PROJECTED_GO,
            HIDING,
            {},
            [
                Reference(CM, "web", Use.VOLUME, keys("b"), keys("a", "b")),
                Reference(CM, "all", Use.VOLUME, without=keys("x", "token")),
                Reference(SECRET, "tls", Use.VOLUME, keys("crt"), keys("crt")),
                Reference(SECRET, "maybe", Use.VOLUME, keys("c"), optional=True),
            ],
        ),
        (
            "a subPath has the file of the last source",
            PROJECTED_GO,
            HIDING,
            {"subPath": "x"},
            [Reference(SECRET, "tls", Use.SUB_PATH, keys("crt"), keys("crt"))],
        ),
        (
            "an optional source hides nothing for certain",
            PROJECTED_GO,
            HIDING,
            {"subPath": "y"},
            [
                Reference(CM, "web", Use.SUB_PATH, keys("b"), keys("a", "b")),
                Reference(CM, "all", Use.SUB_PATH, keys("y")),
                Reference(SECRET, "maybe", Use.SUB_PATH, keys("c"), optional=True),
            ],
        ),
        ("other volumes have no objects", KUBELET, {"name": "cfg", "emptyDir": {}}, {}, []),
        ("only mounted volumes count", KUBELET, {"name": "another", "configMap": {"name": "web"}}, {}, []),
        ("mountPath does not matter", KUBELET, WHOLE, {"mountPath": "relative"}, [Reference(CM, "web", Use.VOLUME)]),
        ("a subPath uses one key", KUBELET, WHOLE, {"subPath": "nginx.conf"}, [file("nginx.conf")]),
        ("a subPath is cleaned", KUBELET, WHOLE, {"subPath": "./nginx.conf"}, [file("nginx.conf")]),
        ("slashes in a subPath are cleaned", KUBELET, WHOLE, {"subPath": ".//nginx.conf/"}, [file("nginx.conf")]),
        ("a subPath of the directory itself uses all keys", KUBELET, WHOLE, {"subPath": "./"}, [ALL_FILES]),
        ("an empty subPath is none", KUBELET, WHOLE, {"subPath": ""}, [Reference(CM, "web", Use.VOLUME)]),
        ("a subPath with .. is rejected", "pkg/volume/validation/pv_validation.go", WHOLE, {"subPath": "a/../b"}, []),
        ("an absolute subPath is rejected", KUBELET, WHOLE, {"subPath": "/nginx.conf"}, []),
        ("two dots may be a part of a name", KUBELET, WHOLE, {"subPath": "a..b"}, [file("a..b")]),
        ("the link to the data may be in a subPath", WRITER, WHOLE, {"subPath": "..data/a"}, [file("a")]),
        ("the link alone is the directory", WRITER, WHOLE, {"subPath": "..data"}, [ALL_FILES]),
        ("below a file there is nothing", KUBELET, WHOLE, {"subPath": "a/b"}, [file("a/b")]),
        ("a subPath means paths, not keys", KUBELET, PARTS, {"subPath": "tls/cert.pem"}, [tls(Use.SUB_PATH, "crt")]),
        (
            "a subPath may be a directory of several files",
            KUBELET,
            PARTS,
            {"subPath": "tls/"},
            [tls(Use.SUB_PATH, "crt", "key")],
        ),
        ("the name of a key is no path if items are listed", KUBELET, PARTS, {"subPath": "crt"}, []),
        ("names that only begin alike differ", KUBELET, PARTS, {"subPath": "tls/cert"}, []),
        (
            "the link to the data also leads to listed paths",
            WRITER,
            PARTS,
            {"subPath": "..data/tls/key.pem"},
            [tls(Use.SUB_PATH, "key")],
        ),
        (
            "paths of items are cleaned",
            WRITER,
            listed(("./conf.d//a.conf", "a"), ("b.conf", "b")),
            {"subPath": "conf.d/a.conf"},
            [Reference(CM, "web", Use.SUB_PATH, keys("a"), keys("a", "b"))],
        ),
        (
            "two paths that are equal when cleaned may each win",
            WRITER,
            listed(("a.conf", "a"), ("./a.conf", "b")),
            {"subPath": "a.conf"},
            [Reference(CM, "web", Use.SUB_PATH, keys("a", "b"), keys("a", "b"))],
        ),
        ("an expression without variables is a path", KUBELET, WHOLE, {"subPathExpr": "./a"}, [file("a")]),
        ("an expression has the container's variables", KUBELET, WHOLE, {"subPathExpr": "$(DIR)a"}, [file("a")]),
        ("an expression may have the pod's name", KUBELET, WHOLE, {"subPathExpr": "$(POD).conf"}, [file("web-0.conf")]),
        ("a doubled dollar sign is none", KUBELET, WHOLE, {"subPathExpr": "$$(POD)"}, [file("$(POD)")]),
        ("a variable may have an unknown value", KUBELET, WHOLE, {"subPathExpr": "$(LOG)"}, [ALL_FILES]),
        ("a variable from a replaced one may be unknown", KUBELET, WHOLE, {"subPathExpr": "$(LATER)"}, [ALL_FILES]),
        ("a variable from envFrom may be any", KUBELET, WHOLE, {"subPathExpr": "$(OTHER)"}, [ALL_FILES]),
        (
            "an expression takes the place of a subPath",
            KUBELET,
            WHOLE,
            {"subPath": "a", "subPathExpr": "b"},
            [file("b")],
        ),
        (
            "an expression that is empty in the end is the whole volume",
            KUBELET,
            WHOLE,
            {"subPathExpr": "$(NOTHING)"},
            [Reference(CM, "web", Use.VOLUME)],
        ),
        ("the mount of the ServiceAccount's token is the platform's", ADMISSION, WHOLE, {"mountPath": ACCOUNT}, []),
        (
            "a slash at its end makes no difference",
            ADMISSION,
            PROJECTED,
            {"mountPath": f"{ACCOUNT}/"},
            [],
        ),
    ],
)
def test_mounts(
    rule: str, source: str, volume: dict[str, Any], mount: dict[str, Any], expected: list[Reference]
) -> None:
    env = [
        {"name": "DIR", "value": "./"},
        {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "LOG", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
        {"name": "LATER", "value": "a-$(LOG)"},
        {"name": "NOTHING"},
    ]
    found = references(pod({"env": env, "volumeMounts": [{"name": "cfg", "mountPath": "/etc/cfg", **mount}]}, volume))
    assert list(found["app"]) == expected, f"{rule} ({source})"


def test_several_volumes_of_an_object_and_several_mounts_of_a_volume_each_count() -> None:
    second = {**WHOLE, "name": "second"}
    mounts = [
        {"name": "cfg", "mountPath": "/a", "subPath": "a"},
        {"name": "cfg", "mountPath": "/b", "subPath": "b"},
        {"name": "second", "mountPath": "/c"},
        {"name": "second", "mountPath": "/d"},
    ]
    found = references(pod({"volumeMounts": mounts}, WHOLE, second))["app"]
    assert found == (file("a"), file("b"), Reference(CM, "web", Use.VOLUME))


@pytest.mark.parametrize("name", ["kube-root-ca.crt", "openshift-service-ca.crt", "istio-ca-root-cert", "istio-ca-crl"])
def test_what_the_platform_puts_into_every_namespace_does_not_count(name: str) -> None:
    ref = {"name": name, "key": "ca.crt"}
    container = {
        "env": [{"name": "CA", "valueFrom": {"configMapKeyRef": ref}}],
        "envFrom": [{"configMapRef": {"name": name}}],
        "volumeMounts": [{"name": "ca", "mountPath": "/etc/ca"}, {"name": "all", "mountPath": "/etc/all"}],
    }
    sources = [{"configMap": {"name": name}}, {"secret": {"name": name}}]
    volumes = [{"name": "ca", "configMap": {"name": name}}, {"name": "all", "projected": {"sources": sources}}]
    assert references(pod(container, *volumes))["app"] == (Reference(SECRET, name, Use.VOLUME),)


def test_init_containers_are_left_out_and_sidecars_are_not() -> None:
    env = {"envFrom": [WEB]}
    spec = {
        "containers": [{"name": "app"}],
        "initContainers": [{"name": "setup", **env}, {"name": "proxy", "restartPolicy": "Always", **env}],
        "ephemeralContainers": [{"name": "debug", **env}],
        "imagePullSecrets": [{"name": "registry"}],
    }
    assert references({"spec": spec}) == {"app": (), "proxy": (all_of("web"),)}


class TestUnreached:
    @pytest.mark.parametrize(
        ("init", "app", "expected"),
        [
            ({"envFrom": [WEB]}, {}, True),
            ({"envFrom": [WEB]}, {"envFrom": [WEB]}, False),
            ({"envFrom": [WEB]}, {"env": [from_key("A", "web", "a")]}, True),
            ({"env": [from_key("A", "web", "a")]}, {"env": [from_key("B", "web", "a")]}, False),
            ({"env": [from_key("A", "web", "a")]}, {"env": [from_key("B", "web", "b")]}, True),
            ({"env": [from_key("A", "web", "a")]}, {"envFrom": [WEB]}, False),
            ({"env": [from_key("A", "web", "a")]}, {"envFrom": [{"configMapRef": {"name": "other"}}]}, True),
            ({"envFrom": [{"configMapRef": {"name": "kube-root-ca.crt"}}]}, {}, False),
        ],
    )
    def test_is_what_only_an_init_container_uses(
        self, init: dict[str, Any], app: dict[str, Any], *, expected: bool
    ) -> None:
        spec = {"initContainers": [{"name": "setup", **init}], "containers": [{"name": "app", **app}]}
        found = Unreached("setup", "ConfigMap", "web", OutOfReach.INIT_CONTAINER)
        assert unreached({"spec": spec}) == ((found,) if expected else ())

    def test_is_what_the_csi_driver_mounts(self) -> None:
        def volume(name: str, driver: str) -> dict[str, Any]:
            return {"name": name, "csi": {"driver": driver, "volumeAttributes": {"secretProviderClass": "vault"}}}

        mounts = [{"name": name, "mountPath": f"/{name}"} for name in ("a", "a", "b")]
        volumes = [volume("a", "secrets-store.csi.k8s.io"), volume("b", "csi.example"), WHOLE]
        (found,) = unreached(pod({"volumeMounts": mounts}, *volumes))
        assert found == Unreached("app", "SecretProviderClass", "vault", OutOfReach.CSI_DRIVER)
        assert str(found).startswith("SecretProviderClass vault of container app: the CSI driver ")
        assert unreached(pod({}, *volumes)) == ()


@pytest.mark.parametrize("field", ["env", "envFrom", "volumeMounts"])
@pytest.mark.parametrize("junk", [None, 7, "x", [7], [{}], [{"valueFrom": 7, "configMapRef": 7, "name": 7}]])
def test_bad_input_uses_nothing(field: str, junk: object) -> None:
    bad = pod({field: junk}, {"name": 7, "configMap": 7, "projected": {"sources": [7]}})
    assert references(bad)["app"] == ()
    assert unreached(bad) == ()


def test_one_use_is_named_once_and_in_words() -> None:
    mounts = [{"name": "cfg", "mountPath": "/a"}, {"name": "cfg", "mountPath": "/b"}]
    (found,) = references(pod({"volumeMounts": mounts}, WHOLE))["app"]
    assert str(found) == "ConfigMap web (volume)"
    assert found.object == (CM, "web")


def test_thousands_of_variables_are_read_at_once() -> None:
    """Each step that compares them with each other would take an hour here."""
    variables = [from_key(f"V{number % 2_000}", "web", f"key-{number}") for number in range(4_000)]
    shown = {"name": "SHOWN", "value": "$$(V0) $(V1$(V2)"}
    (found,) = {each.object for each in references(pod({"env": [*variables, shown]}))["app"]}
    assert found == (CM, "web")
    used = [use for use in references(pod({"env": [*variables, shown]}))["app"] if use.keys]
    replaced = {f"key-{number}" for number in range(2_000) if number not in (0, 2)}
    assert len(used) == 4_000 - len(replaced)


def test_a_container_that_reloads_knows_which_files_kubelet_refreshes() -> None:
    reads = {"name": "cfg", "mountPath": "/cfg"}
    pod = {
        "metadata": {"annotations": {"reload.crrd.dev/app": '{"signal": "HUP"}'}},
        "spec": {
            "containers": [
                {
                    "name": "app",
                    "envFrom": [{"configMapRef": {"name": "variables"}}],
                    "volumeMounts": [reads, {"name": "cfg", "mountPath": "/part", "subPath": "part"}],
                },
                {"name": "side", "volumeMounts": [{"name": "data", "mountPath": "/data"}]},
            ],
            "volumes": [{"name": "cfg", "configMap": {"name": "files"}}, {"name": "data", "emptyDir": {}}],
        },
    }
    found = parse_reloading_pod(pod).containers
    assert found["app"].refreshed
    assert found["app"].needs_restart == ("ConfigMap variables (envFrom)", "ConfigMap files (subPath)")
    assert (found["side"].refreshed, found["side"].needs_restart) == (False, ())
    plain = {**pod, "metadata": {}}
    assert parse_reloading_pod(plain) == parse_pod(plain), "what no container declares is not looked at"
