"""What kubelet does next: the rules of `computePodActions`, one by one."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from crrd.kubelet.runtime_status import ContainerState
from crrd_forecast.hash.container_hash import container_hash
from crrd_localnode.planner.pod_actions import end_pod, pod_actions
from crrd_localnode.planner.values import (
    ContainerStatus,
    NetworkMode,
    PodActions,
    PodRuntimeStatus,
    SandboxStatus,
)

Json = dict[str, Any]

VERSION = "1.36"
APP: Json = {"name": "app", "image": "web:1"}
OTHER: Json = {"name": "other", "image": "web:1"}
FIRST: Json = {"name": "first", "image": "i:1"}
SECOND: Json = {"name": "second", "image": "i:1"}
SIDECAR: Json = {"name": "side", "image": "s:1", "restartPolicy": "Always"}
PROXY: Json = {"name": "proxy", "image": "s:1", "restartPolicy": "Always"}
SANDBOX = SandboxStatus("s1", 0, ready=True, network=NetworkMode.POD, ip="10.0.0.1", created_at=1)
LOST = replace(SANDBOX, ready=False)
WEB_2 = {**APP, "image": "web:2"}
CHANGED, UNKNOWN = "definition changed", "try killing it before restart"  # Parts of messages
UNHEALTHY, SLOW = "failed liveness probe", "failed startup probe"


def pod(*containers: Json, init: tuple[Json, ...] = (), policy: str | None = "Always", **spec: Any) -> Json:
    return {
        "spec": {"containers": [*containers], "initContainers": [*init], "restartPolicy": policy} | spec,
        "metadata": {"name": "web"},
    }


def running(spec: Json, version: str = VERSION, **fields: Any) -> ContainerStatus:
    given: Json = {
        "id": f"{spec['name']}-1",
        "name": spec["name"],
        "state": ContainerState.RUNNING,
        "hash": f"{container_hash(spec, version) or 0:x}",
        "created_at": 1,
        "sandbox_id": "s1",
    }
    return ContainerStatus(**(given | fields))


def exited(spec: Json, code: int, **fields: Any) -> ContainerStatus:
    given: Json = {"state": ContainerState.EXITED, "exit_code": code, "finished_at": 2}
    return replace(running(spec), **(given | fields))


def created(spec: Json) -> ContainerStatus:
    return running(spec, state=ContainerState.CREATED)


def lost(spec: Json) -> ContainerStatus:
    return running(spec, state=ContainerState.UNKNOWN)


def with_rules(spec: Json, policy: str, *rules: tuple[str, list[int], str]) -> Json:
    listed = [
        {"action": action, "exitCodes": {"operator": operator, "values": values}} for operator, values, action in rules
    ]
    return {**spec, "restartPolicy": policy, "restartPolicyRules": listed}


def act(
    given: Mapping[str, Any],
    *containers: ContainerStatus,
    sandboxes: tuple[SandboxStatus, ...] = (SANDBOX,),
    version: str = VERSION,
    **probed: Any,
) -> PodActions:
    return pod_actions(given, PodRuntimeStatus(sandboxes, containers, **probed), version)


@dataclass(frozen=True)
class Case:
    """A pod, what there is of it, and what is to be done."""

    given: Json
    has: tuple[ContainerStatus, ...] = ()
    sandboxes: tuple[SandboxStatus, ...] = (SANDBOX,)
    version: str = VERSION
    probed: Json = field(default_factory=dict)
    kill: tuple[tuple[str, str], ...] = ()  # A container, and a part of the message
    start: tuple[str, ...] = ()
    kill_pod: bool = False
    new_sandbox: bool = False
    attempt: int = 0
    why: str = ""

    def check(self) -> None:
        made = act(self.given, *self.has, sandboxes=self.sandboxes, version=self.version, **self.probed)
        assert [each.container.name for each in made.kill] == [name for name, _ in self.kill]
        assert all(why in each.message for each, (_, why) in zip(made.kill, self.kill, strict=True))
        assert made.start == self.start
        assert (made.kill_pod, made.new_sandbox, made.attempt) == (self.kill_pod, self.new_sandbox, self.attempt)
        assert made.remove == ()
        assert self.why in made.why
        assert bool(made.why) == (self.kill_pod or self.new_sandbox)


def ended(*names: str) -> tuple[tuple[str, str], ...]:
    return tuple((name, "Stopping container") for name in names)


PAIR = pod(APP, OTHER)
BOTH = (running(APP), running(OTHER))
OLDER = replace(SANDBOX, id="s0", created_at=0, attempt=0)
NEWER = replace(SANDBOX, id="s1", created_at=9, attempt=1)

SANDBOXES = {
    "a new pod gets a sandbox and all its containers": Case(
        PAIR, sandboxes=(), start=("app", "other"), new_sandbox=True, why="no sandbox"
    ),
    "a new pod with init containers begins with the first": Case(
        pod(APP, init=(FIRST, SECOND)), sandboxes=(), start=("first",), new_sandbox=True
    ),
    "sandbox gone, containers running": Case(
        PAIR, BOTH, (), kill=ended("app", "other"), start=("app", "other"), kill_pod=True, new_sandbox=True
    ),
    "sandbox not ready": Case(
        pod(APP),
        (exited(APP, 137),),
        (replace(LOST, attempt=3),),
        start=("app",),
        kill_pod=True,
        new_sandbox=True,
        attempt=4,
        why="not ready",
    ),
    "two ready sandboxes": Case(
        PAIR,
        BOTH,
        (OLDER, NEWER),
        kill=ended("app", "other"),
        start=("app", "other"),
        kill_pod=True,
        new_sandbox=True,
        attempt=2,
        why="more than one",
    ),
    "the newest sandbox counts, in whatever order they are": Case(
        pod(APP),
        (running(APP),),
        (replace(OLDER, ready=False), NEWER),
        attempt=1,
    ),
    "the newest sandbox is the one that is not ready": Case(
        pod(APP),
        (running(APP),),
        (OLDER, replace(NEWER, ready=False)),
        kill=ended("app"),
        start=("app",),
        kill_pod=True,
        new_sandbox=True,
        attempt=2,
    ),
    "the pod wants the host's network": Case(
        pod(APP, hostNetwork=True),
        (running(APP),),
        kill=ended("app"),
        start=("app",),
        kill_pod=True,
        new_sandbox=True,
        attempt=1,
        why="network namespace POD, the pod wants NODE",
    ),
    "the sandbox has the host's network": Case(
        pod(APP),
        (running(APP),),
        (replace(SANDBOX, network=NetworkMode.NODE),),
        kill=ended("app"),
        start=("app",),
        kill_pod=True,
        new_sandbox=True,
        attempt=1,
    ),
    "a network that is not to be compared": Case(
        pod(APP, hostNetwork=True),
        (running(APP),),
        (replace(SANDBOX, network=None),),
    ),
    "no IP": Case(
        pod(APP),
        (running(APP),),
        (replace(SANDBOX, ip=""),),
        kill=ended("app"),
        start=("app",),
        kill_pod=True,
        new_sandbox=True,
        attempt=1,
        why="no IP",
    ),
    "an IP that the runtime does not tell": Case(
        pod(APP),
        (running(APP),),
        (replace(SANDBOX, ip=None),),
    ),
    "no IP on the host's network": Case(
        pod(APP, hostNetwork=True),
        (running(APP),),
        (replace(SANDBOX, network=NetworkMode.NODE, ip=""),),
    ),
    "a lost sandbox under Never": Case(
        pod(APP, policy="Never"), (exited(APP, 1),), (LOST,), kill_pod=True, attempt=1, why="not restarted"
    ),
    "a lost sandbox under Never that never held a container": Case(
        pod(APP, policy="Never"), (), (LOST,), start=("app",), kill_pod=True, new_sandbox=True, attempt=1
    ),
    "a sandbox that is gone under Never counts as none": Case(
        pod(APP, policy="Never"), (exited(APP, 1),), (), start=("app",), new_sandbox=True
    ),
    "under OnFailure, what has succeeded is not begun again": Case(
        pod(APP, OTHER, policy="OnFailure"),
        (exited(APP, 0), exited(OTHER, 1)),
        (LOST,),
        start=("other",),
        kill_pod=True,
        new_sandbox=True,
        attempt=1,
    ),
    "under OnFailure, all have succeeded": Case(
        pod(APP, init=(FIRST,), policy="OnFailure"), (exited(APP, 0),), (LOST,), kill_pod=True, attempt=1
    ),
    "a container's own OnFailure, after it succeeded": Case(
        pod({**APP, "restartPolicy": "OnFailure"}, OTHER),
        (exited(APP, 0), exited(OTHER, 0)),
        (LOST,),
        start=("other",),
        kill_pod=True,
        new_sandbox=True,
        attempt=1,
    ),
    "a container's own OnFailure, before it counted": Case(
        pod({**APP, "restartPolicy": "OnFailure"}),
        (exited(APP, 0),),
        (LOST,),
        version="1.34",
        start=("app",),
        kill_pod=True,
        new_sandbox=True,
        attempt=1,
    ),
    "a container of an unknown state may run on in a lost sandbox": Case(
        pod(APP, policy="OnFailure"),
        (lost(APP),),
        (LOST,),
        kill=ended("app"),
        start=("app",),
        kill_pod=True,
        new_sandbox=True,
        attempt=1,
    ),
    "no regular containers, and nothing was created": Case(pod(), (), (), new_sandbox=True),
}

RESTARTED = {
    ("Always", 0): True,
    ("Always", 1): True,
    (None, 1): True,
    ("OnFailure", 0): False,
    ("OnFailure", 1): True,
    ("Never", 0): False,
    ("Never", 1): False,
}

CONTAINERS = {
    "all is well": Case(
        PAIR,
        BOTH,
    ),
    "one is missing": Case(
        PAIR,
        BOTH[:1],
        start=("other",),
    ),
    "one is missing under Never": Case(
        pod(APP, OTHER, policy="Never"),
        BOTH[:1],
        start=("other",),
    ),
    "created and not started, under Never": Case(pod(APP, policy="Never"), (created(APP),), start=("app",)),
    "unknown state": Case(
        pod(APP, policy="Never"),
        (lost(APP),),
        kill=(("app", UNKNOWN),),
        start=("app",),
    ),
    "the newest instance counts": Case(
        pod(APP),
        (running(APP, id="b", created_at=5), exited(APP, 1, id="a", created_at=4)),
    ),
    "of instances that were created at once, the higher restart count": Case(
        pod(APP, policy="Never"),
        (exited(APP, 1, id="a", restart_count=0), running(APP, id="b", restart_count=1)),
    ),
    "nothing is left to run": Case(pod(APP, policy="Never"), (exited(APP, 0),), kill_pod=True, attempt=1),
    "sidecars end with the last regular container": Case(
        pod(APP, init=(SIDECAR, PROXY), policy="OnFailure"),
        (running(SIDECAR), exited(APP, 0), running(PROXY)),
        kill=ended("proxy", "side"),
        kill_pod=True,
        attempt=1,
        why="no container",
    ),
    "an ended sidecar is not restarted when the pod ends": Case(
        pod(APP, init=(SIDECAR, PROXY), policy="Never"),
        (exited(SIDECAR, 0), running(PROXY), exited(APP, 0)),
        kill=ended("proxy"),
        kill_pod=True,
        attempt=1,
    ),
    "ephemeral containers start beside running ones": Case(
        pod(APP, ephemeralContainers=[{"name": "debug", "image": "d"}]),
        (running(APP),),
        start=("debug",),
    ),
    "ephemeral containers start before the pod is initialized": Case(
        pod(APP, init=(FIRST,), ephemeralContainers=[{"name": "debug", "image": "d"}]), start=("debug", "first")
    ),
    "ephemeral containers are not restarted": Case(
        pod(APP, ephemeralContainers=[{"name": "debug", "image": "d"}]),
        (running(APP), exited({"name": "debug", "image": "d"}, 1)),
    ),
}

PROBES = {
    f"{name} under {policy}": Case(
        pod(APP, OTHER, policy=policy),
        BOTH,
        probed={key: frozenset({"app-1"})},
        kill=(("app", cause),),
        start=() if policy == "Never" else ("app",),
    )
    for name, key, cause in (
        ("liveness", "liveness_failed", UNHEALTHY),
        ("startup", "startup_failed", SLOW),
    )
    for policy in ("Always", "OnFailure", "Never")
} | {
    "a failed probe of the only container under Never ends the pod": Case(
        pod(APP, policy="Never"),
        (running(APP),),
        probed={"liveness_failed": frozenset({"app-1"})},
        kill=ended("app"),
        kill_pod=True,
        attempt=1,
    ),
    "a failed probe under the container's own Always": Case(
        pod({**APP, "restartPolicy": "Always"}, policy="Never"),
        (running({**APP, "restartPolicy": "Always"}),),
        probed={"liveness_failed": frozenset({"app-1"})},
        kill=(("app", UNHEALTHY),),
        start=("app",),
    ),
    "a failed probe under the container's own Never: rules are not asked": Case(
        pod(with_rules(APP, "Never", ("NotIn", [0], "Restart")), OTHER),
        BOTH,
        probed={"liveness_failed": frozenset({"app-1"})},
        kill=(("app", UNHEALTHY),),
    ),
    "a probe that failed for an earlier instance": Case(
        pod(APP),
        (running(APP),),
        probed={"liveness_failed": frozenset({"app-0"})},
    ),
}

HASHES = {
    f"the image has changed, under {policy}": Case(
        pod(WEB_2, OTHER, policy=policy),
        BOTH,
        kill=(("app", CHANGED),),
        start=("app",),
    )
    for policy in ("Always", "OnFailure", "Never")
} | {
    "a change comes before a failed probe": Case(
        pod(WEB_2, policy="Never"),
        (running(APP),),
        probed={"liveness_failed": frozenset({"app-1"})},
        kill=(("app", CHANGED),),
        start=("app",),
    ),
    "what 1.31 does not hash": Case(
        pod({**APP, "command": ["x"]}),
        (running(APP),),
        version="1.31",
    ),
    "what 1.30 hashes": Case(
        pod({**APP, "command": ["x"]}),
        (running(APP, "1.30"),),
        version="1.30",
        kill=(("app", CHANGED),),
        start=("app",),
    ),
    "an upgrade across eras": Case(
        pod(APP),
        (running(APP, "v1.30.4"),),
        version="v1.31.0",
        kill=(("app", CHANGED),),
        start=("app",),
    ),
    "an upgrade within an era": Case(
        pod(APP),
        (running(APP, "1.31"),),
        version="1.36",
    ),
    "no annotation": Case(
        pod(APP),
        (running(APP, hash=""),),
        kill=(("app", CHANGED),),
        start=("app",),
    ),
    "a broken annotation": Case(
        pod(APP),
        (running(APP, hash="what"),),
        kill=(("app", CHANGED),),
        start=("app",),
    ),
    "capitals in the annotation": Case(
        pod(APP),
        (running(APP, hash=f"{container_hash(APP, VERSION):X}"),),
    ),
    "a hash that cannot be told": Case(pod({**APP, "inTheFuture": 1}), (running(APP),), version="1.30"),
    "a hash that cannot be told, and a failed probe": Case(
        pod({**APP, "inTheFuture": 1}),
        (running(APP),),
        version="1.30",
        probed={"liveness_failed": frozenset({"app-1"})},
        kill=(("app", UNHEALTHY),),
        start=("app",),
    ),
}

TWO = pod(APP, init=(FIRST, SECOND))
NEVER = pod(APP, init=(FIRST, SECOND), policy="Never")
INIT = {
    "the first begins": Case(TWO, start=("first",)),
    "the first runs": Case(
        TWO,
        (running(FIRST),),
    ),
    "the first has ended": Case(TWO, (exited(FIRST, 0),), start=("second",)),
    "the second runs": Case(
        TWO,
        (exited(FIRST, 0), running(SECOND)),
    ),
    "both have ended": Case(TWO, (exited(FIRST, 0), exited(SECOND, 0)), start=("app",)),
    "the first has been removed meanwhile": Case(TWO, (exited(SECOND, 0),), start=("app",)),
    "both have been removed while the pod runs": Case(
        TWO,
        (running(APP),),
    ),
    "both have been removed after the container ended": Case(TWO, (exited(APP, 1),), start=("first",)),
    "a container that was created tells as much as one that runs": Case(TWO, (created(APP),), start=("app",)),
    "the first has failed": Case(TWO, (exited(FIRST, 1),), start=("first",)),
    "the first has failed under OnFailure": Case(
        pod(APP, init=(FIRST, SECOND), policy="OnFailure"), (exited(FIRST, 1),), start=("first",)
    ),
    "the first has failed under Never": Case(
        NEVER, (exited(FIRST, 1),), kill_pod=True, attempt=1, why="first failed and is not restarted"
    ),
    "a failure beside a running sidecar under Never": Case(
        pod(APP, init=(SIDECAR, FIRST), policy="Never"),
        (running(SIDECAR), exited(FIRST, 1)),
        kill=ended("side"),
        kill_pod=True,
        attempt=1,
    ),
    "one that was out of memory has failed whatever it says": Case(
        TWO, (exited(FIRST, 0, reason="OOMKilled"),), start=("first",)
    ),
    "its own OnFailure under Never": Case(
        pod(APP, init=({**FIRST, "restartPolicy": "OnFailure"},), policy="Never"),
        (exited(FIRST, 1),),
        start=("first",),
    ),
    "its own Never under Always": Case(
        pod(APP, init=({**FIRST, "restartPolicy": "Never"},)), (exited(FIRST, 1),), kill_pod=True, attempt=1
    ),
    "its own rule": Case(
        pod(APP, init=(with_rules(FIRST, "Never", ("In", [42], "Restart")),)),
        (exited(FIRST, 42),),
        start=("first",),
    ),
    "created and not started": Case(NEVER, (created(FIRST),), start=("first",)),
    "unknown state": Case(TWO, (lost(FIRST),), kill=(("first", UNKNOWN),), start=("first",)),
    "unknown state under Never": Case(NEVER, (lost(FIRST),), kill=ended("first"), kill_pod=True, attempt=1),
    "a change of a running one means nothing": Case(
        pod(APP, init=({**FIRST, "image": "i:2"},)),
        (running(FIRST),),
    ),
    "one of a sandbox before does not count": Case(
        TWO, (exited(FIRST, 0, sandbox_id="s0"), exited(APP, 137, sandbox_id="s0")), start=("first",)
    ),
    "where nobody tells the sandbox, it counts": Case(TWO, (exited(FIRST, 0, sandbox_id=""),), start=("second",)),
    "one that has ended is left alone once the pod runs": Case(
        TWO,
        (running(APP), exited(SECOND, 1)),
    ),
}

STARTUP = {**SIDECAR, "startupProbe": {"exec": {"command": ["true"]}}}
LIVENESS = {**SIDECAR, "livenessProbe": {"exec": {"command": ["true"]}}}
MIXED = pod(APP, init=(SIDECAR, FIRST, PROXY))
SIDECARS = {
    "the first begins": Case(MIXED, start=("side",)),
    "what follows begins when it runs": Case(
        MIXED,
        (running(SIDECAR),),
        start=("first",),
    ),
    "what follows is there": Case(
        MIXED,
        (running(SIDECAR), running(FIRST)),
    ),
    "the next one, and the regular ones, one after the other": Case(
        MIXED,
        (running(SIDECAR), exited(FIRST, 0)),
        start=("proxy",),
    ),
    "the last one runs": Case(
        MIXED,
        (running(SIDECAR), exited(FIRST, 0), running(PROXY)),
        start=("app",),
    ),
    "one ends while the pod is initialized": Case(
        MIXED,
        (exited(SIDECAR, 0), running(FIRST)),
        start=("side",),
    ),
    "one ends while an init container has to be started": Case(
        MIXED, (exited(SIDECAR, 1), exited(FIRST, 0)), start=("side", "proxy")
    ),
    "one ends while the pod runs, under Never": Case(
        pod(APP, init=(SIDECAR,), policy="Never"),
        (exited(SIDECAR, 0), running(APP)),
        start=("side",),
    ),
    "one is gone while the pod runs": Case(
        pod(APP, init=(SIDECAR, PROXY)),
        (running(PROXY), running(APP)),
        start=("side",),
    ),
    "both are gone, and start in order": Case(
        pod(APP, init=(SIDECAR, PROXY)),
        (running(APP),),
        start=("side", "proxy"),
    ),
    "sidecars and regular ones start in this order": Case(
        pod(APP, OTHER, init=(SIDECAR, PROXY)),
        (exited(SIDECAR, 1), running(PROXY), running(OTHER)),
        start=("side", "app"),
    ),
    "created and not started": Case(MIXED, (created(SIDECAR),), start=("side",)),
    "unknown state": Case(
        pod(APP, init=(SIDECAR,), policy="Never"),
        (lost(SIDECAR),),
        kill=(("side", UNKNOWN),),
        start=("side",),
    ),
    "its startup probe has not succeeded": Case(
        pod(APP, init=(STARTUP,)),
        (running(STARTUP),),
    ),
    "its startup probe has succeeded": Case(
        pod(APP, init=(STARTUP,)),
        (running(STARTUP),),
        probed={"started": frozenset({"side-1"})},
        start=("app",),
    ),
    "its startup probe has failed": Case(
        pod(APP, init=(STARTUP,), policy="Never"),
        (running(STARTUP),),
        probed={"startup_failed": frozenset({"side-1"})},
        kill=(("side", SLOW),),
        start=("side",),
    ),
    "its liveness probe has failed": Case(
        pod(APP, init=(LIVENESS,), policy="Never"),
        (running(LIVENESS), running(APP)),
        probed={"liveness_failed": frozenset({"side-1"})},
        kill=(("side", UNHEALTHY),),
        start=("side",),
    ),
    "it has changed": Case(
        pod(APP, init=({**SIDECAR, "image": "s:2"},), policy="Never"),
        (running(SIDECAR), running(APP)),
        kill=(("side", CHANGED),),
        start=("side",),
    ),
    "it has changed while the pod is initialized": Case(
        pod(APP, init=({**SIDECAR, "image": "s:2"}, FIRST)),
        (running(SIDECAR),),
        kill=(("side", CHANGED),),
        start=("side", "first"),
    ),
    "it has changed, and 1.31 does not look": Case(
        pod(APP, init=({**SIDECAR, "image": "s:2"},)),
        (running(SIDECAR), running(APP)),
        version="1.31",
    ),
    "its name tells nothing": Case(
        pod(APP, init=({**SIDECAR, "image": 5},)),
        (running(SIDECAR), running(APP)),
    ),
    "1.28 takes it for an init container": Case(
        pod(APP, init=(SIDECAR,)),
        (running(SIDECAR),),
        version="1.28",
    ),
    "1.29 does not": Case(
        pod({"name": "app", "image": "web:1"}, init=(SIDECAR,)),
        (running(SIDECAR),),
        version="1.29",
        start=("app",),
    ),
}

DELETED = {
    "a deleted pod": Case(
        {**PAIR, "metadata": {"deletionTimestamp": "2030-01-01T00:00:00Z"}},
        BOTH,
        kill=ended("app", "other"),
        kill_pod=True,
        attempt=1,
        why="being deleted",
    ),
    "a deleted pod whose sandbox is lost": Case(
        {**PAIR, "metadata": {"deletionTimestamp": "2030-01-01T00:00:00Z"}}, (), (LOST,), kill_pod=True, attempt=1
    ),
    "a deleted pod's container has ended": Case(
        {**PAIR, "metadata": {"deletionTimestamp": "2030-01-01T00:00:00Z"}},
        (exited(APP, 1), lost(OTHER)),
        kill=ended("other"),
        kill_pod=True,
        attempt=1,
    ),
}

TABLES = {
    "sandbox": SANDBOXES,
    "container": CONTAINERS,
    "probe": PROBES,
    "hash": HASHES,
    "init": INIT,
    "sidecar": SIDECARS,
    "deleted": DELETED,
}


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=f"{kind}: {name}") for kind, cases in TABLES.items() for name, case in cases.items()]
)
def test_what_kubelet_does(case: Case) -> None:
    case.check()


@pytest.mark.parametrize(("policy", "code"), RESTARTED)
def test_an_exited_container_is_restarted_by_the_pod_s_policy(policy: str | None, code: int) -> None:
    made = act(pod(APP, OTHER, policy=policy), exited(APP, code), running(OTHER))
    assert made.start == (("app",) if RESTARTED[policy, code] else ())
    assert not made.kill_pod


@pytest.mark.parametrize(
    ("own", "of_pod", "code", "restarted"),
    [
        ("Always", "Never", 0, True),
        ("OnFailure", "Never", 1, True),
        ("OnFailure", "Always", 0, False),
        ("Never", "Always", 1, False),
    ],
)
def test_a_container_s_own_policy_wins_over_the_pod_s_since_1_35(
    own: str, of_pod: str, code: int, *, restarted: bool
) -> None:
    given = pod({**APP, "restartPolicy": own}, OTHER, policy=of_pod)
    for version, expected in (("1.35", restarted), ("1.34", RESTARTED[of_pod, code])):
        made = act(given, exited(APP, code), running(OTHER), version=version)
        assert made.start == (("app",) if expected else ())


@pytest.mark.parametrize(
    ("rules", "code", "restarted"),
    [
        ([("In", [42, 43], "Restart")], 43, True),
        ([("In", [42], "Restart")], 1, False),
        ([("NotIn", [42], "Restart")], 1, True),
        ([("NotIn", [42], "Restart")], 42, False),
        ([("NotIn", [42], "Restart")], 0, True),
        ([("In", [1], "Sing"), ("In", [1], "Restart")], 1, False),
        ([("In", [2], "Sing"), ("In", [1], "Restart")], 1, True),
        ([("Like", [1], "Restart")], 1, False),
        ([], 1, False),
    ],
)
def test_the_first_rule_that_holds_decides(
    rules: list[tuple[str, list[int], str]], code: int, *, restarted: bool
) -> None:
    given = pod(with_rules(APP, "Never", *rules), OTHER)
    made = act(given, exited(APP, code), running(OTHER))
    assert made.start == (("app",) if restarted else ())


def test_rules_without_a_policy_of_the_container_s_own_are_not_asked() -> None:
    spec = {**APP, "restartPolicyRules": [{"action": "Restart", "exitCodes": {"operator": "In", "values": [1]}}]}
    assert act(pod(spec, OTHER, policy="Never"), exited(spec, 1), running(OTHER)).start == ()


def test_a_rule_without_exit_codes_holds_for_none() -> None:
    spec = {**APP, "restartPolicy": "Never", "restartPolicyRules": [{"action": "Restart"}]}
    assert act(pod(spec, OTHER), exited(spec, 1), running(OTHER)).start == ()


def test_sidecars_are_stopped_when_all_others_have_ended_the_last_first() -> None:
    third = {**PROXY, "name": "third"}
    given = pod(APP, OTHER, init=(SIDECAR, PROXY, third))
    given["metadata"]["deletionTimestamp"] = "2030-01-01T00:00:00Z"
    made = act(given, running(SIDECAR), exited(PROXY, 1), running(APP), running(third), running(OTHER))
    assert [(each.container.name, each.stage) for each in made.kill] == [
        ("app", 0),
        ("other", 0),
        ("third", 1),
        ("side", 2),
    ]


def test_all_instances_that_run_are_killed_with_the_pod() -> None:
    made = act(pod(APP), running(APP, id="a"), running(APP, id="b", created_at=2), sandboxes=(LOST,))
    assert {each.container.id for each in made.kill} == {"a", "b"}


class TestAllContainersAreRestarted:
    RULED = with_rules(APP, "Never", ("In", [42], "RestartAllContainers"))
    GIVEN = pod(RULED, OTHER, init=(FIRST, SIDECAR))
    HAS = (
        exited(APP, 42, created_at=3),
        exited(APP, 1, id="app-0"),
        running(OTHER),
        exited(FIRST, 0),
        running(SIDECAR),
    )

    def test_by_removing_each_instance_what_asked_for_it_last(self) -> None:
        made = act(self.GIVEN, *self.HAS)
        assert [(each.container.id, each.kill) for each in made.remove] == [
            ("app-0", False),
            ("other-1", True),
            ("first-1", False),
            ("side-1", True),
            ("app-1", False),
        ]
        assert "all containers" in made.why
        assert (made.kill_pod, made.new_sandbox, made.kill, made.start) == (False, False, (), ())

    def test_and_then_the_pod_begins_anew_in_its_sandbox(self) -> None:
        made = act(self.GIVEN)
        assert made.start == ("first",)
        assert not made.new_sandbox

    def test_not_for_an_instance_that_has_a_successor(self) -> None:
        made = act(self.GIVEN, *self.HAS, running(self.RULED, id="app-2", created_at=4))
        assert made.remove == ()

    def test_in_a_new_sandbox_where_the_old_one_is_lost_too(self) -> None:
        made = act(self.GIVEN, *self.HAS, sandboxes=(LOST,))
        assert (made.kill_pod, made.new_sandbox, made.start, made.remove) == (True, True, (), ())

    def test_since_1_36(self) -> None:
        made = act(self.GIVEN, *self.HAS, version="1.35")
        assert made.remove == ()
        assert made.start == ()

    def test_not_while_the_pod_is_deleted(self) -> None:
        given = {**self.GIVEN, "metadata": {"deletionTimestamp": "2030-01-01T00:00:00Z"}}
        assert act(given, *self.HAS).remove == ()


def test_a_pod_that_the_caller_knows_to_be_over_is_killed() -> None:
    made = end_pod(
        pod(APP, init=(SIDECAR,)), PodRuntimeStatus((SANDBOX,), (running(SIDECAR), running(APP))), VERSION, "x"
    )
    assert [(each.container.name, each.stage) for each in made.kill] == [("app", 0), ("side", 1)]
    assert (made.kill_pod, made.new_sandbox, made.start, made.why) == (True, False, (), "x")


def test_the_words_of_kubelet() -> None:
    changed = act(pod(WEB_2), running(APP))
    assert changed.kill[0].message == "Container app definition changed, will be restarted"
    probed = act(pod(APP, OTHER, policy="Never"), *BOTH, liveness_failed=frozenset({"app-1"}))
    assert probed.kill[0].message == "Container app failed liveness probe"


def test_a_version_that_is_none() -> None:
    with pytest.raises(ValueError, match="is not a Kubernetes version"):
        act(pod(APP), version="latest")
