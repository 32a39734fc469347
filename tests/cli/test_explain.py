"""`crrd explain` as its user meets it, on the local node: where requests really stand, and input that cannot work."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from crrd.cli.explain import render, render_json
from crrd.core.api import types as model
from crrd.core.api.time import rfc3339
from crrd.core.explain.findings import Explanation, Finding, Topic
from crrd.kube.clock import ServerClock
from crrd.kube.resources import EVENTS, REQUESTS
from tests.support.cluster import (
    PATIENCE,
    Cluster,
    Json,
    container,
    container_status,
    crr_for,
    local_cluster,
    pod_ready,
)
from tests.support.command import crrd, explained
from tests.support.daemons import NodeDaemon
from tests.support.faulty_api import Match
from tests.support.recreates import recreate
from tests.support.scripted_api import reply, scripted_api

GATE: dict[str, Any] = {"readinessGates": [{"conditionType": model.READINESS_GATE}]}

DAEMONS = "kubectl get pods -A -l app.kubernetes.io/name=crrd,app.kubernetes.io/component=node -o wide --field-selector"


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """Its kubelet's back-off outlasts any test."""
    async with local_cluster(tmp_path, backoff=300) as found:
        yield found


async def told(cluster: Cluster, name: str) -> Json:
    answer: Json = json.loads(await explained(cluster, name, "-o", "json"))
    return answer


async def once_told(cluster: Cluster, name: str, condition: Callable[[Json], bool]) -> Json:
    """The explanation once it is the one that is waited for."""
    last: Json = {}
    try:
        async with asyncio.timeout(PATIENCE):
            while not condition(last):
                last = await told(cluster, name)
    except TimeoutError:
        pytest.fail(f"last: {last}")
    return last


def on(part: str) -> Match:
    """Reads with this in their path: the kubelet only writes once it runs."""
    return lambda call: call.verb in ("get", "list") and part in call.path


def says(words: str) -> Callable[[Json], bool]:
    return lambda answer: words in answer.get("what", "")


async def test_no_daemon_is_there(cluster: Cluster) -> None:
    pod = await cluster.run_pod("web", [container("app")])
    await cluster.recreate(pod, ["app"], name="one")
    answer = await once_told(cluster, "one", says("has not answered"))
    assert re.fullmatch(
        rf"the daemon on node {cluster.node_name} has not answered for \d+s; the manager fails the request in \d+s",
        answer["what"],
    )
    assert (answer["verdict"], answer["phase"]) == ("stuck", "")
    assert answer["advice"] == [
        (
            f"check that the DaemonSet's pod is running on node {cluster.node_name}: "
            f"{DAEMONS} spec.nodeName={cluster.node_name}"
        )
    ]
    labels = {"app.kubernetes.io/name": "crrd", "app.kubernetes.io/component": "node"}
    await cluster.create_pod("crrd-node-x", [container("crrd")], metadata={"labels": labels}, nodeName="elsewhere")
    out = await explained(cluster, "one")
    assert out.splitlines()[0].startswith(f"{cluster.namespace}/one: no phase yet, created ")
    assert "\n  > the DaemonSet has no pod on node " in out
    await cluster.delete_pod("crrd-node-x", grace=0)


async def test_the_manager_alone_serves_it(cluster: Cluster) -> None:
    pod = await cluster.run_pod("web", [container("app")])
    await cluster.recreate(pod, ["app"], name="one")
    labels = {"app.kubernetes.io/name": "crrd", "app.kubernetes.io/component": "manager"}
    for name, args, server in (
        ("ordinary", [], "the daemon on node "),
        ("patches", ["manager", "--via", "patch"], "the manager"),
    ):
        spec = container("crrd") | {"args": args}
        await cluster.create_pod(name, [spec], metadata={"labels": labels}, nodeName="elsewhere")
        answer = await once_told(cluster, "one", says("has not answered"))
        assert answer["what"].startswith(server)
    assert f"kubectl get pods -A -l {model.MANAGERS}" in answer["advice"][0]
    for name in ("ordinary", "patches"):
        await cluster.delete_pod(name, grace=0)


async def test_a_request_without_admission_is_nobodys(cluster: Cluster) -> None:
    pod = await cluster.run_pod("web", [container("app")])
    body = crr_for(pod, ["app"], name="one")
    del body["metadata"]["labels"]
    del body["spec"]["containers"][0]["statusContext"]
    await cluster.create_request(body)
    answer = await told(cluster, "one")
    assert answer["what"] == f"no node daemon handles the request, because the label {model.LABEL_NODE_NAME} is missing"
    assert answer["notes"][1:] == [], "no daemon stops anything"


async def test_what_became_of_it(cluster: Cluster, node_daemon: NodeDaemon) -> None:
    assert node_daemon.pid
    pod = await cluster.run_pod("web", [container("app"), container("log")])
    await cluster.create_request(crr_for(pod, ["app", "log"], name="one"))
    await cluster.wait_completed("one")
    answer = await told(cluster, "one")
    assert (answer["verdict"], answer["what"]) == ("succeeded", "Completed: 2 of 2 containers recreated")
    assert [(each["name"], each["phase"]) for each in answer["containers"]] == [
        ("app", "Succeeded"),
        ("log", "Succeeded"),
    ]
    for each in answer["containers"]:
        assert re.fullmatch(r"recreated: [\w-]+://\w{12} -> [\w-]+://\w{12}, restart count 0 -> 1", each["what"])
    assert "ttlSecondsAfterFinished is not set, so the request stays until you delete it" in answer["notes"]
    out = await explained(cluster, "one")
    assert "\n  app  Succeeded  recreated: " in out
    assert re.search(r"^Completed: 2 of 2 containers recreated \(\d+s ago\)$", out, re.MULTILINE)

    body = crr_for(pod, ["app"], name="two")
    body["spec"]["containers"][0] = {"name": "nope"}
    await cluster.create_request(body)
    await cluster.wait_completed("two")
    answer = await told(cluster, "two")
    assert answer["verdict"] == "failed"
    assert answer["what"].endswith(f'nope: pod {cluster.namespace}/web has no container "nope"')
    assert answer["advice"] == [
        f"use the name of a container of the pod: kubectl -n {cluster.namespace} describe pod web"
    ]


async def test_kubelet_holds_the_container_back(cluster: Cluster, node_daemon: NodeDaemon) -> None:
    assert node_daemon.pid
    pod = await cluster.run_pod("web", [container("app")])
    await cluster.recreate(pod, ["app"], name="one")
    await cluster.wait_completed("one")
    await cluster.recreate(await cluster.pod("web"), ["app"], name="two", terminationGracePeriodSeconds=5)

    def held(found: Json) -> bool:
        waiting = container_status(found, "app").get("state", {}).get("waiting") or {}
        return bool(waiting.get("reason") == "CrashLoopBackOff")

    await cluster.wait_pod("web", held, "held back")
    answer = await told(cluster, "two")
    assert re.fullmatch(
        r"container app: waiting for kubelet: CrashLoopBackOff, back-off 5m0s restarting failed container; "
        r"next try in about [45]m(\d+s)?",
        answer["what"],
    )
    assert answer["verdict"] == "moving"
    assert answer["sinceSeconds"] is not None
    assert answer["advice"][1].endswith(f"kubectl logs -n {cluster.namespace} web -c app --previous")


async def test_a_probe_that_fails(cluster: Cluster, node_daemon: NodeDaemon) -> None:
    """The test is kubelet where it writes the event."""
    assert node_daemon.pid
    succeeds = cluster.shared("web") / "succeeds"
    probe = {"exec": {"command": ["test", "-e", "/shared/succeeds"]}, "periodSeconds": 1}
    await cluster.create_pod("web", [container("app", readinessProbe=probe)])
    succeeds.touch()
    pod = await cluster.wait_pod("web", pod_ready, "ready")
    succeeds.unlink()
    await cluster.recreate(pod, ["app"], name="one")
    await once_told(cluster, "one", lambda answer: answer.get("reason") == "NotReady")
    involved = {"kind": "Pod", "uid": pod["metadata"]["uid"], "fieldPath": "spec.containers{app}"}
    for number, reason in enumerate(("Unhealthy", "Pulled")):
        meta = {"namespace": cluster.namespace, "name": f"web.{number}"}
        event = {"metadata": meta, "involvedObject": involved, "reason": reason, "message": f"{reason} probe failed"}
        at = rfc3339(ServerClock().now() + timedelta(seconds=number))
        await cluster.client.create(EVENTS, cluster.namespace, {**event, "lastTimestamp": at})
    answer = await told(cluster, "one")
    assert re.search(r"; kubelet's last event, \d+s ago: unhealthy probe failed$", answer["what"])
    cluster.local.api.fail_next(2, status=403, match=on("/events"))
    answer = await told(cluster, "one")
    assert answer["what"].endswith("its readiness probe has not succeeded yet")
    unread = {"cannot read events: forbidden", "cannot read the pod's events: forbidden"}
    assert unread <= set(answer["notes"])


async def test_unready_grace_and_the_one_behind(cluster: Cluster, node_daemon: NodeDaemon) -> None:
    """The test is the manager: it marks the request once it waits for that."""
    assert node_daemon.pid
    await cluster.create_pod("web", [container("app")], **GATE)
    pod = await cluster.wait_pod("web", lambda found: bool(container_status(found, "app").get("ready")), "runs")
    await cluster.recreate(pod, ["app"], name="one", unreadyGracePeriodSeconds=600)
    await cluster.wait_request("one", lambda found: bool(found.get("status")), "answered")
    answer = await told(cluster, "one")
    assert (answer["what"], answer["verdict"]) == ("waiting for the manager to make the pod unready", "moving")

    clock = ServerClock()
    mark = {"metadata": {"annotations": {model.ANNOTATION_UNREADY_ACQUIRED: rfc3339(clock.now())}}}
    await cluster.client.merge_patch(REQUESTS, cluster.namespace, "one", mark)
    answer = await told(cluster, "one")
    assert re.fullmatch(
        r"the pod has been unready for \d+s; containers are stopped in at most (10m|9m\d+s)", answer["what"]
    )

    await cluster.recreate(pod, ["app"], name="two")
    await cluster.wait_request("two", lambda found: bool(found.get("status")), "answered")
    answer = await told(cluster, "two")
    first = f"{cluster.namespace}/one"
    assert answer["what"] == f"waiting for request {first} of the same pod"
    assert answer["advice"][0] == f"to see what that request waits for: crrd explain {first}"


async def test_the_pod_is_gone(cluster: Cluster) -> None:
    pod = await cluster.run_pod("web", [container("app")])
    await cluster.recreate(pod, ["app"], name="one")
    await cluster.delete_pod("web", grace=0)
    assert (await told(cluster, "one"))["what"] == f"pod {cluster.namespace}/web not found"


async def test_what_may_not_be_read_is_left_out(cluster: Cluster) -> None:
    pod = await cluster.run_pod("web", [container("app")])
    await cluster.recreate(pod, ["app"], name="one")
    for what in ("/api/v1/nodes/", "/pods/web", "/events", "/api/v1/pods"):
        cluster.local.api.fail_next(status=403, match=on(what))
    answer = await told(cluster, "one")
    assert sorted(note for note in answer["notes"] if "cannot read" in note) == [
        "cannot read events: forbidden",
        "cannot read the node daemon's pod: forbidden",
        "cannot read the node: forbidden",
        "cannot read the pod: forbidden",
    ]


async def test_a_pod_whose_image_has_another_name(cluster: Cluster) -> None:
    await cluster.run_pod("web", [container("app"), container("side")])
    assert "no container has another name of its image" in await explained(cluster, "pod/web")
    ended = await recreate(cluster, "pod/web", "-c", "app", "--via", "patch")
    assert ended.code == 0, ended
    out = await explained(cluster, "pods/web")
    assert out.splitlines()[0] == f"pod {cluster.namespace}/web: Running, on node {cluster.node_name}"
    said = r"^container app: run \S+ restarted it by a patch \d+s ago; since then its image is named"
    assert re.search(said, out, re.MULTILINE)
    assert await explained(cluster, "po/web", "-o", "name") == "pod/web\n"
    cluster.local.api.fail_next(status=403, match=on(model.PLURAL))
    answer = await told(cluster, "pod/web")
    (app,) = answer["containers"]
    image = next(each for each in (await cluster.pod("web"))["spec"]["containers"] if each["name"] == "app")["image"]
    assert (app["image"], app["imageBefore"], app["reason"]) == (image, cluster.image, "OtherName")
    assert answer["notes"] == ["cannot read the requests of this pod: forbidden"]


async def test_the_namespace_is_that_of_the_context(cluster: Cluster, tmp_path: Path) -> None:
    await cluster.run_pod("web", [container("app")])
    await cluster.recreate(await cluster.pod("web"), ["app"], name="one")
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    config["contexts"][0]["context"]["namespace"] = cluster.namespace
    (tmp_path / "config").write_text(yaml.safe_dump(config))
    printed = "containerrecreaterequests.apps.kruise.io/one", "containerrecreaterequest.apps.kruise.io/one", "crr/one"
    for name in ("pod/web", "one", *printed):  # as kubectl and crrd print the request
        code, out, err = await crrd("explain", name, "--kubeconfig", str(tmp_path / "config"))
        assert (code, err) == (0, "")
        assert f"{cluster.namespace}/" in out.splitlines()[0]


async def test_a_pod_that_cannot_be_read_is_one_line(cluster: Cluster) -> None:
    where = "-n", cluster.namespace, "--kubeconfig", str(cluster.kubeconfig)
    gone = await crrd("explain", "pod/web", *where)
    assert (gone.code, gone.err) == (1, f"crrd explain: pod 'web' not found in namespace {cluster.namespace!r}\n")
    cluster.local.api.fail_next(status=403, match=on("/pods/web"))
    refused = await crrd("explain", "pod/web", *where)
    assert (refused.code, refused.out, len(refused.err.splitlines())) == (1, "", 1)
    assert f"cannot read pod 'web' in namespace {cluster.namespace!r}: " in refused.err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("pod/",), "'pod/' is not the name of a pod: use pod/NAME, with -n NAMESPACE if it is in another one (for a"),
        (("pods/a/b", "-n", "shop"), "'pods/a/b' is not the name of a pod"),
        (
            ("shop/",),
            "'shop/' is not the name of a request: use NAMESPACE/NAME, or NAME -n NAMESPACE (kubectl get crr -A)",
        ),
        (("/one",), "'/one' is not the name of a request"),
        (("a/b/c",), "'a/b/c' is not the name of a request"),
        (("shop/one", "-n", "other"), "shop/one and --namespace other are different namespaces: use one"),
        (("shop/one",), "not in a cluster (KUBERNETES_SERVICE_HOST is not set) and no --kubeconfig"),
        (("shop/one", "--kubeconfig", "/nonexistent"), "/nonexistent"),
    ],
)
async def test_bad_input_is_one_line(flags: tuple[str, ...], said: str) -> None:
    code, out, err = await crrd("explain", *flags)
    assert (code, out) == (2, "")
    assert err.startswith("crrd explain: ")
    assert len(err.splitlines()) == 1
    assert said in err


async def test_what_cannot_be_had_is_one_line(cluster: Cluster) -> None:
    api, name = cluster.local.api, f"{cluster.namespace}/one"
    where: tuple[str, ...] = ("--kubeconfig", str(cluster.kubeconfig), "--as", "ann", "--token", "secret")

    async def refused() -> str:
        code, out, err = await crrd("explain", name, *where)
        assert (code, out, len(err.splitlines())) == (1, "", 1)
        return err

    assert await refused() == (
        f"crrd explain: request 'one' not found in namespace '{cluster.namespace}'; "
        f"to list requests: kubectl --as ann --token TOKEN --kubeconfig {cluster.kubeconfig} get crr -A\n"
    )

    api.fail_next(status=403, match=on(model.PLURAL))
    assert f"not allowed to read requests in namespace '{cluster.namespace}'" in await refused()
    api.fail_next(status=401, match=on(model.PLURAL))
    assert "the API server does not accept the kubeconfig" in await refused()
    api.fail_next(status=503, match=on(model.PLURAL))
    assert "cannot reach the API server" in await refused()
    name = "shop/one"
    nobody = cluster.kubeconfig.read_text().replace(f":{api.port}", ":1")
    elsewhere = cluster.folder / "elsewhere"
    elsewhere.write_text(nobody)
    where = ("--kubeconfig", str(elsewhere))
    assert "cannot reach the API server" in await refused()


@pytest.mark.parametrize(
    ("kind", "meta"),
    [
        (None, {"namespace": "shop", "name": "one"}),
        ("Pod", {"namespace": "shop", "name": "one", "uid": "1"}),
        (model.KIND, {"namespace": "shop", "name": "one"}),
    ],
)
async def test_what_is_no_request_is_not_explained(tmp_path: Path, kind: str | None, meta: Json) -> None:
    async with scripted_api() as api:
        api.then(*[reply({"kind": kind, "metadata": meta})] * 4)
        config = {
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {"server": api.url}}],
            "users": [{"name": "u", "user": {}}],
        }
        where = tmp_path / "kubeconfig"
        where.write_text(json.dumps(config))
        code, out, err = await crrd("explain", "shop/one", "--kubeconfig", str(where))
    assert (code, out) == (1, "")
    assert err == (
        "crrd explain: unexpected response from the API server: it is not a ContainerRecreateRequest named 'one'\n"
    )


WRITTEN_BY_OTHERS = "\x1b]0;owned\x07 \x1b[2J\r\n\x00 \u202e \ud800 \x9b"
SHOWN = r"\x1b]0;owned\x07 \x1b[2J\r\n\x00 \u202e \ud800 \x9b"


def test_a_terminal_gets_no_control_characters() -> None:
    """From a status or an event that anybody has written, or a name that no admission has checked."""
    words = WRITTEN_BY_OTHERS
    node = Finding(Topic.NODE_NOT_READY, words, None, stuck=True, advice=(words,))
    status = model.Status(model.RequestPhase.RECREATING)
    found = Explanation(
        request=model.Request(words, words, "", "", "", words, "", words, (), status=status),
        age=1.0,
        node=words,
        cause=node,
        containers=(Finding(Topic.FAILED, words, None, stuck=True, advice=(), container=words, phase="Recreating"),),
        notes=(Finding(Topic.UNREAD, words, None, stuck=False, advice=()),),
    )
    text = render(found)
    assert all(character.isprintable() or character == "\n" for character in text)
    assert text.count(SHOWN) == 10
    assert all(character.isprintable() or character == "\n" for character in json.dumps(render_json(found), indent=2))
