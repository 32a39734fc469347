import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crrd_forecast.spec_diff import diff

Json = dict[str, Any]
CONTAINERS: list[Json] = [
    vector["container"]
    for vector in json.loads((Path(__file__).parent / "hash" / "data" / "kubelet-container-hash.json").read_text())
]
BASE: Json = {"name": "app", "image": "nginx:1.25"}


def spec(**fields: Any) -> Json:
    return BASE | fields


def env(*entries: tuple[str, str]) -> Json:
    return spec(env=[{"name": name, "value": value} for name, value in entries])


def probe(**fields: Any) -> Json:
    return spec(livenessProbe=fields)


def resources(**fields: Any) -> Json:
    return spec(resources=fields)


def policies(**fields: str) -> list[Json]:
    return [{"resourceName": name, "restartPolicy": policy} for name, policy in fields.items()]


SAME: dict[str, tuple[Json, Json]] = {
    "quantities": (
        resources(limits={"cpu": "0.5", "memory": "1Gi"}),
        resources(limits={"cpu": "500m", "memory": "1024Mi"}),
    ),
    "a quantity as a number": (resources(limits={"cpu": 2}), resources(limits={"cpu": "2000m"})),
    "requests from limits": (
        resources(limits={"cpu": "1"}),
        resources(limits={"cpu": "1"}, requests={"cpu": "1000m"}),
    ),
    "a null": (resources(limits={"cpu": "1"}, requests={"cpu": None}), resources(limits={"cpu": "1"})),
    "what the API server fills in": (
        BASE,
        spec(
            terminationMessagePath="/dev/termination-log",
            terminationMessagePolicy="File",
            imagePullPolicy="IfNotPresent",
            resources={},
            stdin=False,
            workingDir="",
            command=[],
            env=None,
        ),
    ),
    "pull policy of latest": ({"image": "nginx"}, {"image": "nginx", "imagePullPolicy": "Always"}),
    "pull policy of a digest": (
        {"image": "r:5000/nginx@sha256:0"},
        {"image": "r:5000/nginx@sha256:0", "imagePullPolicy": "IfNotPresent"},
    ),
    "protocol": (spec(ports=[{"containerPort": 80}]), spec(ports=[{"containerPort": 80, "protocol": "TCP"}])),
    "order of ports": (
        spec(ports=[{"containerPort": 80}, {"containerPort": 81}]),
        spec(ports=[{"containerPort": 81}, {"containerPort": 80}]),
    ),
    "order of variables": (env(("A", "1"), ("B", "2")), env(("B", "2"), ("A", "1"))),
    "order of what is escaped": (env(("A", "1"), ("B", "$$(A)")), env(("B", "$$(A)"), ("A", "1"))),
    "order of mounts": (
        spec(volumeMounts=[{"name": "a", "mountPath": "/a"}, {"name": "b", "mountPath": "/b"}]),
        spec(volumeMounts=[{"name": "b", "mountPath": "/b", "readOnly": False}, {"name": "a", "mountPath": "/a"}]),
    ),
    "an empty variable": (spec(env=[{"name": "A"}]), spec(env=[{"name": "A", "value": ""}])),
    "capabilities": (
        spec(securityContext={"capabilities": {"add": ["A", "B"]}}),
        spec(securityContext={"capabilities": {"add": ["B", "A"], "drop": []}}),
    ),
    "an empty security context": (BASE, spec(securityContext={"privileged": False, "seLinuxOptions": {}})),
    "an empty lifecycle": (BASE, spec(lifecycle={})),
    "times of probes": (
        probe(exec={"command": ["x"]}),
        probe(exec={"command": ["x"]}, periodSeconds=10, timeoutSeconds=1, initialDelaySeconds=0, failureThreshold=3),
    ),
    "path and scheme": (probe(httpGet={"port": 80}), probe(httpGet={"port": 80, "path": "/", "scheme": "HTTP"})),
    "order of headers": (
        probe(httpGet={"port": 80, "httpHeaders": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]}),
        probe(httpGet={"port": 80, "httpHeaders": [{"name": "B", "value": "2"}, {"name": "A", "value": "1"}]}),
    ),
    "divisor": (
        spec(env=[{"name": "A", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}}]),
        spec(env=[{"name": "A", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "0"}}}]),
    ),
    "the default of resizing": (BASE, spec(resizePolicy=policies(cpu="NotRequired"))),
}


@pytest.mark.parametrize("pair", SAME.values(), ids=SAME)
def test_what_means_the_same(pair: tuple[Json, Json]) -> None:
    assert diff(*pair) == []


GRPC = {"grpc": {"port": 1}}
DIFFERENT: list[tuple[Json, Json, list[str]]] = [
    (BASE, spec(image="nginx:1.26"), ['image: "nginx:1.25" → "nginx:1.26" (needs a restart)']),
    (BASE, spec(imagePullPolicy="Always"), ['imagePullPolicy: "IfNotPresent" → "Always"']),
    (env(("A", "1")), env(("A", "2")), ['env[A].value: "1" → "2" (needs a restart)']),
    (env(("A", "1")), env(), ['env[A]: {"name": "A", "value": "1"} → absent (needs a restart)']),
    (
        env(("A", "1"), ("B", "$(A)")),
        env(("B", "$(A)"), ("A", "1")),
        ['env[B].references: ["A"] → absent (needs a restart)'],
    ),
    (
        env(("A", "1"), ("A", "2")),
        env(("A", "2"), ("A", "1")),
        [
            'env[A#2].value: "2" → "1" (needs a restart)',
            'env[A].value: "1" → "2" (needs a restart)',
        ],
    ),
    (
        resources(limits={"cpu": "1"}),
        resources(limits={"cpu": "1500m"}),
        ['resources.limits.cpu: "1" → "1500m"', 'resources.requests.cpu: "1" → "1500m"'],
    ),
    (
        resources(requests={"cpu": "1"}),
        resources(requests={"cpu": "1"}, limits={"cpu": "2"}),
        ['resources.limits.cpu: absent → "2"'],
    ),
    (
        resources(requests={"cpu": "1", "memory": "1Gi"}) | {"resizePolicy": policies(memory="RestartContainer")},
        resources(requests={"cpu": "2", "memory": "2Gi"}) | {"resizePolicy": policies(memory="RestartContainer")},
        ['resources.requests.cpu: "1" → "2"', 'resources.requests.memory: "1Gi" → "2Gi" (needs a restart)'],
    ),
    (
        resources(requests={"ephemeral-storage": "1Gi"}),
        resources(requests={"ephemeral-storage": "2Gi"}),
        ['resources.requests.ephemeral-storage: "1Gi" → "2Gi" (needs a restart)'],
    ),
    (
        resources(requests={"cpu": "1"}) | {"resizePolicy": policies(cpu="NotRequired")},
        resources(requests={"cpu": "2"}) | {"resizePolicy": policies(cpu="NotRequired")},
        ['resources.requests.cpu: "1" → "2"'],
    ),
    (
        resources(requests={"cpu": "1"}) | {"resizePolicy": policies(cpu="NotRequired")},
        resources(requests={"cpu": "2"}) | {"resizePolicy": policies(cpu="RestartContainer")},
        [
            'resizePolicy[cpu]: absent → {"resourceName": "cpu", "restartPolicy": "RestartContainer"}',
            'resources.requests.cpu: "1" → "2" (needs a restart)',
        ],
    ),
    (
        resources(limits={"nvidia.com/gpu": "1"}, requests={"nvidia.com/gpu": "1"}),
        resources(),
        [
            'resources.limits.nvidia.com/gpu: "1" → absent (needs a restart)',
            'resources.requests.nvidia.com/gpu: "1" → absent (needs a restart)',
        ],
    ),
    (BASE, spec(ports=[{"containerPort": 80}]), ['ports[80/TCP]: absent → {"containerPort": 80, "protocol": "TCP"}']),
    (
        spec(ports=[{"containerPort": 80}]),
        spec(ports=[{"containerPort": 80, "hostPort": 8080}]),
        ["ports[80/TCP].hostPort: absent → 8080 (needs a restart)"],
    ),
    (
        BASE,
        spec(ports=[{"containerPort": 80, "hostPort": 8080}]),
        ['ports[80/TCP]: absent → {"hostPort": 8080, "containerPort": 80, "protocol": "TCP"} (needs a restart)'],
    ),
    (
        spec(ports=[{"containerPort": 80, "name": "a"}]),
        spec(ports=[{"containerPort": 80, "name": "b"}]),
        ['ports[80/TCP].name: "a" → "b"'],
    ),
    (probe(periodSeconds=5, **GRPC), probe(periodSeconds=10, **GRPC), ["livenessProbe.periodSeconds: 5 → 10"]),
    (
        spec(lifecycle={"preStop": {"sleep": {"seconds": 1}}}),
        spec(lifecycle={"preStop": {"sleep": {"seconds": 2}}, "postStart": {"exec": {"command": ["x"]}}}),
        [
            'lifecycle.postStart: absent → {"exec": {"command": ["x"]}} (needs a restart)',
            "lifecycle.preStop.sleep.seconds: 1 → 2",
        ],
    ),
    (spec(args=["a", "b"]), spec(args=["b", "a"]), ['args: ["a", "b"] → ["b", "a"] (needs a restart)']),
    (
        spec(envFrom=[{"configMapRef": {"name": "a"}}, {"configMapRef": {"name": "b"}}]),
        spec(envFrom=[{"configMapRef": {"name": "b"}}, {"configMapRef": {"name": "a"}}]),
        [
            'envFrom[0].configMapRef.name: "a" → "b" (needs a restart)',
            'envFrom[1].configMapRef.name: "b" → "a" (needs a restart)',
        ],
    ),
    (
        BASE,
        spec(securityContext={"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}),
        [
            "securityContext.allowPrivilegeEscalation: true → false (needs a restart)",
            'securityContext.capabilities.drop[ALL]: absent → "ALL" (needs a restart)',
        ],
    ),
    (BASE, spec(inTheFuture={"a": 1}), ['inTheFuture: absent → {"a": 1} (needs a restart)']),
    (spec(inTheFuture=1), spec(inTheFuture=True), ["inTheFuture: 1 → true (needs a restart)"]),
    (
        resources(limits={"cpu": "much"}),
        resources(limits={"cpu": [1]}),
        [
            'resources.limits.cpu: "much" → [1]',
            'resources.requests.cpu: "much" → [1]',
        ],
    ),
    (spec(ports="x"), spec(ports=[1]), ['ports: "x" → absent (needs a restart)', "ports[0]: absent → 1"]),
    (
        spec(resources=1),
        spec(resources={"limits": 1, "requests": 2}),
        [
            'resources: 1 → {"limits": 1, "requests": 2} (needs a restart)',
        ],
    ),
]


@pytest.mark.parametrize(("before", "after", "said"), DIFFERENT)
def test_what_differs(before: Json, after: Json, said: list[str]) -> None:
    assert [str(each) for each in diff(before, after)] == said


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-9, 9)
    | st.floats()
    | st.sampled_from(["", "A", "$(A)", "1", "500m", "TCP"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["name", "value", "limits", "requests", "cpu", "exec", "port", "mountPath"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=6,
)
KEYS = [
    "env",
    "envFrom",
    "ports",
    "resources",
    "volumeMounts",
    "livenessProbe",
    "securityContext",
    "image",
    "lifecycle",
]
containers = st.builds(
    lambda base, change: base | change,
    st.sampled_from(CONTAINERS),
    st.dictionaries(st.sampled_from([*KEYS, "resizePolicy", "args", "other"]), values, max_size=3),
)


@given(containers)
def test_nothing_differs_from_itself(container: Json) -> None:
    assert diff(container, json.loads(json.dumps(container))) == []


@given(containers, containers)
def test_both_ways_round_the_same_differs(one: Json, other: Json) -> None:
    there, back = diff(one, other), diff(other, one)
    mirrored = [replace(each, before=each.after, after=each.before) for each in back]
    assert list(map(repr, there)) == list(map(repr, mirrored))  # NaN is not equal to itself, and reads the same


amounts = st.integers(0, 10**6).flatmap(
    lambda number: st.sampled_from(
        [f"{number}", f"{number * 1000}m", f"{number}e0", f"{number}.000", f"{number * 1000000}u", f"+{number}"]
    ).map(lambda text: (number, text))
)


@given(amounts, amounts, st.sampled_from(["cpu", "memory", "example.com/x"]))
def test_equivalent_quantities_are_one(one: tuple[int, str], other: tuple[int, str], name: str) -> None:
    found = diff(resources(limits={name: one[1]}), resources(limits={name: other[1]}))
    assert (found == []) == (one[0] == other[0])
    assert diff(resources(requests={name: f"{one[0]}Ki"}), resources(requests={name: f"{one[0] * 1024}"})) == []
