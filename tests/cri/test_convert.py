"""What kubelet leaves on a container, read back: identity, restarts, grace period, hooks and ports."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cri_stubs import api_pb2
from crrd.core.api.types import Pin
from crrd.core.recreate.observation import Hook, HookKind, Instance, Sandbox
from crrd.cri import convert
from crrd.kubelet.runtime_status import ContainerState
from tests.support.scripted_cri import labels

HOOK = "io.kubernetes.container.preStopHandler"


def container(**annotations: str) -> api_pb2.Container:
    return api_pb2.Container(
        id="a1",
        metadata=api_pb2.ContainerMetadata(name="app", attempt=7),
        state=api_pb2.CONTAINER_RUNNING,
        created_at=123,
        labels=labels("uid-1", "app"),
        annotations={name.replace("__", "."): text for name, text in annotations.items()},
    )


def test_the_whole_of_a_container() -> None:
    message = container()
    message.annotations["io.kubernetes.container.hash"] = "8aef3f0a"
    message.image.CopyFrom(api_pb2.ImageSpec(image="sha256:1f", user_specified_image="shop/app:1"))
    message.annotations["io.kubernetes.container.restartCount"] = "4"
    message.annotations["io.kubernetes.pod.terminationGracePeriod"] = "45"
    message.annotations[HOOK] = '{"exec":{"command":["sh","-c","sleep 5"]}}'
    message.annotations["io.kubernetes.container.ports"] = (
        '[{"name":"web","containerPort":8080,"protocol":"TCP"},{"containerPort":9090,"protocol":"TCP"}]'
    )

    assert convert.instance(message, "containerd") == Instance(
        id="a1",
        runtime="containerd",
        name="app",
        pod_namespace="shop",
        pod_name="web-0",
        pod_uid="uid-1",
        state=ContainerState.RUNNING,
        created_at=123,
        restart_count=4,
        grace_seconds=45,
        hook=Hook(HookKind.EXEC, command=("sh", "-c", "sleep 5")),
        ports=(("web", 8080),),
        image="shop/app:1",
        hash="8aef3f0a",
    )


def test_a_container_that_is_not_kubelets() -> None:
    found = convert.instance(api_pb2.Container(id="a1", state=api_pb2.CONTAINER_CREATED), "containerd")

    assert (found.name, found.pod_name, found.pod_namespace, found.pod_uid) == ("", "", "", "")
    assert (found.restart_count, found.grace_seconds, found.hook, found.ports) == (0, None, None, ())
    assert found.state is ContainerState.CREATED


@pytest.mark.parametrize("text", ["", "-1", "+2", "1.5", "٣", "9" * 30, "4294967296", "many"])
def test_a_restart_count_that_is_none_falls_back_to_the_attempt(text: str) -> None:
    message = container()
    message.annotations["io.kubernetes.container.restartCount"] = text

    assert convert.instance(message, "containerd").restart_count == 7


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0", 0), ("30", 30), (str(2**63 - 1), 2**63 - 1), (str(2**63), None), ("-5", None), ("30s", None)],
)
def test_the_pods_grace_period(text: str, seconds: int | None) -> None:
    message = container()
    message.annotations["io.kubernetes.pod.terminationGracePeriod"] = text

    assert convert.instance(message, "containerd").grace_seconds == seconds


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (api_pb2.CONTAINER_EXITED, ContainerState.EXITED),
        (api_pb2.CONTAINER_UNKNOWN, ContainerState.UNKNOWN),
    ],
)
def test_states(state: api_pb2.ContainerState.ValueType, expected: ContainerState) -> None:
    message = container()
    message.state = state

    assert convert.instance(message, "containerd").state is expected


@pytest.mark.parametrize(
    ("handler", "expected"),
    [
        ({"exec": {"command": ["a", "b c"]}}, Hook(HookKind.EXEC, command=("a", "b c"))),
        ({"sleep": {"seconds": 5}}, Hook(HookKind.SLEEP, seconds=5.0)),
        ({"sleep": {}}, Hook(HookKind.SLEEP, seconds=0.0)),
        ({"tcpSocket": {"port": 80}}, Hook(HookKind.TCP_SOCKET)),
        ({"httpGet": {"port": 8080}}, Hook(HookKind.HTTP_GET, port=8080)),
        (
            {
                "httpGet": {
                    "path": "/bye?now=1",
                    "port": "web",
                    "host": "10.0.0.1",
                    "scheme": "HTTPS",
                    "httpHeaders": [{"name": "X-A", "value": "1"}, {"name": "X-A"}],
                }
            },
            Hook(
                HookKind.HTTP_GET,
                path="/bye?now=1",
                port="web",
                host="10.0.0.1",
                scheme="https",
                headers=(("X-A", "1"), ("X-A", "")),
            ),
        ),
        ({"exec": {"command": ["x"]}, "httpGet": {"port": 1}}, Hook(HookKind.EXEC, command=("x",))),
    ],
)
def test_hooks(handler: object, expected: Hook) -> None:
    assert convert.hook(json.dumps(handler)) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "null",
        "[]",
        "[" * 100_000,
        "{}",
        '{"exec":[]}',
        '{"exec":{}}',
        '{"exec":{"command":[]}}',
        '{"exec":{"command":"rm -rf /"}}',
        '{"exec":{"command":["a",1]}}',
        '{"sleep":{"seconds":-1}}',
        '{"sleep":{"seconds":true}}',
        '{"sleep":{"seconds":"5"}}',
        '{"sleep":{"seconds":9223372036854775808}}',
        '{"httpGet":{}}',
        '{"httpGet":{"port":0}}',
        '{"httpGet":{"port":65536}}',
        '{"httpGet":{"port":true}}',
        '{"httpGet":{"port":80.5}}',
        '{"httpGet":{"port":""}}',
        '{"httpGet":{"port":80,"path":7}}',
        '{"httpGet":{"port":80,"host":7}}',
        '{"httpGet":{"port":80,"scheme":7}}',
        '{"httpGet":{"port":80,"scheme":"ftp"}}',
        '{"httpGet":{"port":80,"httpHeaders":{"a":"b"}}}',
        '{"httpGet":{"port":80,"httpHeaders":["a"]}}',
        '{"httpGet":{"port":80,"httpHeaders":[{"name":""}]}}',
        '{"httpGet":{"port":80,"httpHeaders":[{"name":"a","value":1}]}}',
    ],
)
def test_a_hook_that_cannot_be_read_says_why(text: str) -> None:
    hook = convert.hook(text)

    assert hook.kind is HookKind.INVALID
    assert hook.error.startswith("the preStop hook")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ()),
        ("{}", ()),
        ("[1, null]", ()),
        ('[{"name":"a"},{"name":"b","containerPort":"80"},{"name":"","containerPort":1}]', ()),
        ('[{"name":"a","containerPort":80},{"name":"a","containerPort":81}]', (("a", 80), ("a", 81))),
    ],
)
def test_named_ports(text: str, expected: tuple[tuple[str, int], ...]) -> None:
    assert convert.named_ports(text) == expected


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
handlers = st.dictionaries(
    st.sampled_from(["exec", "httpGet", "sleep", "tcpSocket", "other"]),
    st.dictionaries(
        st.sampled_from(["command", "port", "path", "host", "scheme", "httpHeaders", "seconds", "name"]), json_values
    )
    | json_values,
)
utf8 = st.text(st.characters(exclude_categories=["Cs"]))
texts = utf8 | st.one_of(handlers, json_values).map(json.dumps)


@given(
    annotations=st.dictionaries(
        st.sampled_from(
            [
                HOOK,
                "io.kubernetes.container.ports",
                "io.kubernetes.container.restartCount",
                "io.kubernetes.pod.terminationGracePeriod",
            ]
        ),
        texts,
    ),
    own_labels=st.dictionaries(st.sampled_from(sorted(labels("", ""))), utf8),
)
def test_no_annotation_and_no_label_is_too_odd(annotations: dict[str, str], own_labels: dict[str, str]) -> None:
    message = api_pb2.Container(id="a1", labels=own_labels, annotations=annotations)

    found = convert.instance(message, "containerd")

    assert found.name == own_labels.get("io.kubernetes.container.name", "")
    assert (found.hook is None) == (HOOK not in annotations)
    assert found.restart_count >= 0
    assert found.grace_seconds is None or found.grace_seconds >= 0
    if found.hook is not None:
        assert (found.hook.kind is HookKind.INVALID) == bool(found.hook.error)
        assert found.hook.kind in HookKind


SANDBOX_LABELS = {
    "io.kubernetes.pod.name": "web-0",
    "io.kubernetes.pod.namespace": "shop",
    "io.kubernetes.pod.uid": "uid-1",
}


@pytest.mark.parametrize("made", [True, False])
@pytest.mark.parametrize("ready", [True, False])
def test_a_sandbox(ready: bool, made: bool) -> None:
    listed = api_pb2.PodSandbox(
        id="s1",
        metadata=api_pb2.PodSandboxMetadata(name="web-0", uid="uid-1", namespace="shop", attempt=3),
        state=api_pb2.SANDBOX_READY if ready else api_pb2.SANDBOX_NOTREADY,
        created_at=7,
        labels={**SANDBOX_LABELS, **({"crrd.dev/request-uid": "r1"} if made else {})},
    )
    expected = Sandbox("s1", "containerd", "shop", "web-0", "uid-1", ready, 7, 3, "r1" if made else "")
    assert convert.sandbox(listed, "containerd") == expected
    assert expected.pin == Pin("containerd://s1", 3)


def test_a_sandbox_of_kubelet_is_never_taken_for_one_of_crrd() -> None:
    """Kubelet copies the labels of the pod, which its author chooses."""
    marks = {**SANDBOX_LABELS, "crrd.dev/made-by": "crrd", "crrd.dev/request-uid": "r1"}
    listed = api_pb2.PodSandbox(id="s1", labels=marks, annotations={"kubernetes.io/config.source": "api"})
    assert convert.sandbox(listed, "containerd").request_uid == ""


def test_kubelet_never_asks_for_the_number_of_the_second_sandbox_with_cri_o() -> None:
    """CRI-O would give it the second sandbox, and the pod's containers would be on the host's network."""
    first = Sandbox("s1", "cri-o", "shop", "web-0", "uid-1", True, 7, 3)
    assert convert.second_sandbox(first, "r1", "").metadata.attempt == 5


def test_the_second_sandbox_is_one_of_the_pod_for_kubelet_and_needs_no_network_of_its_own() -> None:
    config = convert.second_sandbox(Sandbox("s1", "containerd", "shop", "web-0", "uid-1", True, 7, 3), "r1", "/pods/x")
    meta = config.metadata
    assert (meta.namespace, meta.name, meta.uid, meta.attempt) == ("shop", "web-0", "uid-1", 4)
    assert dict(config.labels) == {
        **SANDBOX_LABELS,
        "crrd.dev/made-by": "crrd",
        "crrd.dev/request-uid": "r1",
    }
    assert config.linux.cgroup_parent == "/pods/x"
    assert config.linux.security_context.namespace_options.network == api_pb2.NODE
    assert config.linux.security_context.namespace_options.pid == api_pb2.CONTAINER
    assert config.log_directory == "/var/log/pods/shop_web-0_uid-1"


@pytest.mark.parametrize(
    ("told", "parent"),
    [
        ({"config": {"linux": {"cgroup_parent": "/kubepods/burstable/podu1"}}}, "/kubepods/burstable/podu1"),
        ({"config": {"linux": {}}, "runtimeSpec": {"linux": {"cgroupsPath": "/k8s.io/s1"}}}, ""),
        ({"runtimeSpec": {"linux": {"cgroupsPath": "kubepods-podu1.slice:crio:s1"}}}, "kubepods-podu1.slice"),
        ({"runtimeSpec": {"linux": {"cgroupsPath": "/kubepods/podu1/crio-s1"}}}, "/kubepods/podu1"),
        ({"runtimeSpec": "odd"}, ""),
        ([], ""),
    ],
)
def test_the_cgroup_of_a_sandbox(told: object, parent: str) -> None:
    assert convert.cgroup_parent({"info": json.dumps(told)}) == parent


@pytest.mark.parametrize("info", [{}, {"info": ""}, {"info": "{"}])
def test_a_runtime_that_tells_no_cgroup_has_its_default(info: dict[str, str]) -> None:
    assert convert.cgroup_parent(info) == ""
