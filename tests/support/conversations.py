"""The conversations with API servers: one for each part of Kubernetes' API that crrd relies on."""

from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp

from crrd.kube.access.config import Access
from tests.support.conversation import GROUP, JSON_PATCH, MERGE, STRATEGIC, TABLE, Conversation

Json = dict[str, Any]


def crr(name: str = "r", **metadata: Any) -> Json:
    spec = {"podName": "web", "containers": [{"name": "app"}, {"name": "log"}]}
    kind = {"apiVersion": "apps.kruise.io/v1alpha1", "kind": "ContainerRecreateRequest"}
    return {**kind, "metadata": {"name": name, **metadata}, "spec": spec}


def pod(name: str = "web", node: str = "n1", **metadata: Any) -> Json:
    containers = [{"name": "app", "image": "none.invalid/app", "imagePullPolicy": "Never"}]
    spec = {"nodeName": node, "containers": containers, "automountServiceAccountToken": False}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, **metadata}, "spec": spec}


async def objects(to: Conversation) -> None:
    """Create, read, invalid objects."""
    await to.ask("POST", to.requests, crr(labels={"a": "b"}, annotations={}))
    await to.ask("POST", to.requests, crr())
    await to.ask("GET", f"{to.requests}/r")
    await to.ask("GET", f"{to.requests}/none")
    await to.ask("GET", f"{GROUP}/namespaces/{to.namespace}/nothings")
    await to.ask("GET", "/apis/apps.kruise.io/v9/containerrecreaterequests")
    await to.ask("GET", to.requests)
    await to.ask("POST", to.requests, crr("Bad_Name"))
    await to.ask("POST", to.requests, {**crr("n"), "metadata": {}})
    await to.ask("POST", to.requests, {**crr("n"), "apiVersion": "apps.kruise.io/v1beta1"})
    await to.ask("POST", to.requests, crr("n", namespace="default"))
    await to.ask("POST", to.requests, b"{", content_type="application/json")
    await to.ask("POST", to.requests, crr("n"), content_type="text/plain")
    await to.ask("POST", to.requests, crr("n", labels={"a b": "c"}))
    await to.ask("POST", to.requests, {**crr("n"), "more": 1, "spec": {**crr()["spec"], "more": 1}})
    await to.ask("POST", to.requests, {**crr("m"), "more": 1}, fieldValidation="Strict")
    await to.ask("POST", to.requests, {**crr("m"), "spec": {"containers": []}})
    for strategy in ({"minStartedSeconds": -1}, {"terminationGracePeriodSeconds": 1.5},
                     {"failurePolicy": "fail"}, {"orderedRecreate": "yes"}):  # fmt: skip
        await to.ask("POST", to.requests, {**crr("m"), "spec": {**crr()["spec"], "strategy": strategy}})
    await to.ask("POST", to.requests, {**crr("m"), "spec": {**crr()["spec"], "podName": "x" * 254}})
    await to.ask("POST", to.requests, crr("m"), dryRun="All")
    await to.ask("GET", f"{to.requests}/m")
    await to.ask("POST", f"{GROUP}/namespaces/crrd-none/containerrecreaterequests", crr("m"))


async def versions(to: Conversation) -> None:
    """The same object in both versions."""
    beta = to.requests.replace("v1alpha1", "v1beta1")
    await to.ask("POST", beta, {**crr(), "apiVersion": "apps.kruise.io/v1beta1"})
    await to.ask("GET", f"{to.requests}/r")
    await to.ask("PATCH", f"{to.requests}/r/status", {"status": {"phase": "Pending"}}, MERGE)
    await to.ask("GET", f"{beta}/r")
    await to.ask("PATCH", f"{beta}/r", {"metadata": {"labels": {"a": "b"}}}, MERGE)
    await to.ask("GET", beta)
    await to.ask("GET", beta, accept=TABLE)
    await to.watch(beta, events=1, resourceVersion="0")
    await to.ask("DELETE", f"{beta}/r")


async def patches(to: Conversation) -> None:
    """Merge patches and their conditions."""
    first = (await to.ask("POST", to.requests, crr()))["metadata"]
    one = f"{to.requests}/r"
    await to.ask("PATCH", one, {"metadata": {"labels": {"a": "b"}}}, MERGE)
    await to.ask("PATCH", one, {"metadata": {"labels": {"a": "b"}}}, MERGE)
    stale = {"resourceVersion": first["resourceVersion"]}
    await to.ask("PATCH", one, {"metadata": {**stale, "labels": {"c": "d"}}}, MERGE)
    await to.ask("PATCH", one, {"metadata": stale}, MERGE)
    await to.ask("PATCH", one, {"metadata": {"uid": "another"}}, MERGE)
    await to.ask("PATCH", one, {"metadata": {"uid": "another", **stale}}, MERGE)
    await to.ask("PATCH", one, {"metadata": {"uid": first["uid"], "resourceVersion": "0"}}, MERGE)
    await to.ask("PATCH", one, {"metadata": {"uid": None, "resourceVersion": None}}, MERGE)
    await to.ask("PATCH", one, {"metadata": {"name": "s"}}, MERGE)
    await to.ask("PATCH", one, {"metadata": {"namespace": "s"}}, MERGE)
    await to.ask("PATCH", one, {"metadata": {"labels": {"a": None}}}, MERGE)
    await to.ask("PATCH", one, {"spec": {"podName": "other"}}, MERGE)
    await to.ask("PATCH", one, {"spec": {"containers": crr()["spec"]["containers"][::-1]}}, MERGE)
    await to.ask("PATCH", one, {"spec": {"activeDeadlineSeconds": 1}}, MERGE)
    await to.ask("PATCH", one, {"spec": {"more": 1}}, MERGE)
    await to.ask("PATCH", one, [], MERGE)
    await to.ask("PATCH", one, b"{", MERGE)
    await to.ask("PATCH", one, {}, STRATEGIC)
    await to.ask("PATCH", one, {}, "application/json")
    await to.ask("PATCH", one, [{"op": "test", "path": "/spec/podName", "value": "x"}], JSON_PATCH)
    await to.ask("PATCH", one, [{"op": "remove", "path": "/spec/none"}], JSON_PATCH)
    await to.ask("PATCH", one, [{"op": "add", "path": "/metadata/labels", "value": {"x": "y"}}], JSON_PATCH)
    await to.ask("PATCH", f"{to.requests}/none", {}, MERGE)
    await to.ask("PATCH", one, {"metadata": {"labels": {"a": "dry"}}}, MERGE, dryRun="All")


async def puts(to: Conversation) -> None:
    """Whole objects."""
    made = await to.ask("POST", to.requests, crr())
    one, meta = f"{to.requests}/r", made["metadata"]
    await to.ask("PUT", one, {**made, "metadata": {**meta, "labels": {"a": "b"}}})
    await to.ask("PUT", one, {**made, "metadata": {**meta, "labels": {"a": "c"}}})
    await to.ask("PUT", one, crr())
    await to.ask("PUT", one, {**made, "metadata": {**meta, "uid": "another"}})
    await to.ask("PUT", one, crr(resourceVersion="0"))
    await to.ask("PUT", f"{to.requests}/s", {**made, "metadata": {**meta, "name": "s"}})
    await to.ask("PUT", one, {**made, "metadata": {**meta, "name": "s"}})
    now = await to.ask("GET", one)
    await to.ask("PUT", f"{one}/status", {**now, "spec": {}, "status": {"phase": "Pending"}})
    now = await to.ask("GET", one)
    await to.ask("PUT", f"{one}/status", {**now, "status": {"phase": "Pending", "more": 1}})


async def status(to: Conversation) -> None:
    """The status subresource."""
    meta = (await to.ask("POST", to.requests, {**crr(), "status": {"phase": "Completed"}}))["metadata"]
    one = f"{to.requests}/r"
    await to.ask("PATCH", one, {"status": {"phase": "Completed"}}, MERGE)
    extra = {"metadata": {"labels": {"a": "b"}, "finalizers": ["a.b/c"]}, "spec": {"podName": "other"}}
    states = [{"name": "app", "phase": "Pending", "isKilled": True, "more": 1}]
    await to.ask("PATCH", f"{one}/status", {**extra, "status": {"containerRecreateStates": states}}, MERGE)
    await to.ask("PATCH", f"{one}/status", {"metadata": {"uid": "another"}, "status": {"message": "m"}}, MERGE)
    stale = {"resourceVersion": meta["resourceVersion"], "uid": meta["uid"]}
    await to.ask("PATCH", f"{one}/status", {"metadata": stale, "status": {"message": "n"}}, MERGE)
    await to.ask("PATCH", f"{one}/status", {"status": {"completionTime": "soon", "message": 1}}, MERGE)
    await to.ask("PATCH", f"{one}/status", {"status": {"containerRecreateStates": states * 2}}, MERGE)
    await to.ask("PATCH", f"{one}/status", {"status": {"phase": "x" * 33}}, MERGE)
    await to.ask("PATCH", f"{one}/status", {"status": None}, MERGE)
    ended = {"phase": "Completed", "completionTime": "2026-01-02T03:04:05Z",
             "containerRecreateStates": [{"name": "app", "phase": "Failed"}]}  # fmt: skip
    await to.ask("PATCH", f"{one}/status", {"status": ended}, MERGE)
    await to.ask("PATCH", f"{one}/status", {"status": {"phase": "Recreating"}}, MERGE)
    await to.ask("PATCH", f"{one}/status", {"status": {"containerRecreateStates": []}}, MERGE)
    await to.ask("PATCH", f"{one}/status", {"status": None}, MERGE)
    await to.ask("PATCH", f"{one}/status", {"status": {"message": "late", "reason": None}}, MERGE)
    await to.ask("GET", f"{one}/status")
    await to.ask("PATCH", f"{to.requests}/none/status", {"status": {}}, MERGE)


async def deletion(to: Conversation) -> None:
    """Finalizers and preconditions."""
    made = (await to.ask("POST", to.requests, crr(finalizers=["a.b/c", "a.b/d"])))["metadata"]
    one = f"{to.requests}/r"
    await to.ask("DELETE", one, {"preconditions": {"uid": "another"}})
    await to.ask("DELETE", one, {"preconditions": {"resourceVersion": "1"}})
    await to.ask("DELETE", one, {"preconditions": {"uid": made["uid"]}})
    await to.ask("DELETE", one)
    await to.ask("PATCH", one, {"metadata": {"finalizers": ["a.b/c", "a.b/d", "a.b/e"]}}, MERGE)
    await to.ask("PATCH", f"{one}/status", {"status": {"phase": "Pending"}}, MERGE)
    await to.ask("PATCH", one, {"metadata": {"finalizers": ["a.b/c"]}}, MERGE)
    await to.ask("PATCH", one, {"metadata": {"finalizers": []}}, MERGE)
    await to.ask("GET", one)
    await to.ask("DELETE", one)
    await to.ask("POST", to.requests, crr())
    await to.ask("DELETE", one, dryRun="All")
    await to.ask("DELETE", one, {"preconditions": {"uid": made["uid"]}})
    await to.ask("DELETE", one)


async def lists(to: Conversation) -> None:
    """The state that a list shows, and its pages."""
    made = [await to.ask("POST", to.requests, crr(f"r{n}", labels={"n": str(n % 2)})) for n in range(5)]
    middle = made[2]["metadata"]["resourceVersion"]
    page = await to.ask("GET", to.requests, limit="2")
    more = page["metadata"]["continue"]
    await to.ask("DELETE", f"{to.requests}/r3")
    page = await to.ask("GET", to.requests, limit="2", **{"continue": more})
    await to.ask("GET", to.requests, **{"continue": more})
    await to.ask("GET", to.requests, limit="2", resourceVersion="0", **{"continue": more})
    await to.ask("GET", to.requests, limit="2", resourceVersion=middle, **{"continue": more})
    await to.ask("GET", to.requests, limit="2", **{"continue": "rubbish"})
    await to.ask("GET", to.requests, limit="2", labelSelector="n=0")
    await to.ask("GET", to.requests, limit="2", resourceVersion="0")
    await to.ask("GET", to.requests, limit="2", resourceVersion="0", resourceVersionMatch="NotOlderThan")
    await to.ask("GET", to.requests, limit="2", resourceVersion=middle)
    await to.ask("GET", to.requests, limit="2", resourceVersion=middle, resourceVersionMatch="NotOlderThan")
    await to.ask("GET", to.requests, limit="2", resourceVersion=middle, resourceVersionMatch="Exact")
    await to.ask("GET", to.requests, resourceVersion=middle)
    await to.ask("GET", to.requests, resourceVersion=middle, resourceVersionMatch="Exact")
    await to.ask("GET", to.requests, resourceVersion="0", resourceVersionMatch="Exact")
    await to.ask("GET", to.requests, resourceVersionMatch="Exact")
    await to.ask("GET", to.requests, resourceVersion=middle, resourceVersionMatch="Other")
    await to.ask("GET", to.requests, resourceVersionMatch="Exact", resourceVersion=middle, **{"continue": more})
    await to.ask("GET", to.requests, resourceVersion="x")
    await to.ask("GET", to.requests, limit="x")
    await to.ask("GET", to.requests, limit="-1")


async def future(to: Conversation) -> None:
    """Future versions."""
    await to.ask("POST", to.requests, crr())
    await to.ask("GET", to.requests, resourceVersion="900000000")
    await to.ask("GET", to.requests, resourceVersion="900000000", resourceVersionMatch="Exact")
    await to.ask("GET", to.requests, resourceVersion="900000000", limit="1")
    await to.watch(to.requests, resourceVersion="900000000", timeoutSeconds="4")


async def selectors(to: Conversation) -> None:
    """Labels and fields."""
    await to.ask("POST", to.requests, crr("a", labels={"x.y/active": "true", "n": "1"}))
    await to.ask("POST", to.requests, crr("b", labels={"n": "2"}))
    await to.ask("POST", to.requests, crr("c"))
    for words in ("n=1", "n==1", "n!=1", "n in (1, 2)", "n notin (1)", "n", "!n", "x.y/active=true,n=1", "n=", ",",
                  "n=1,", "n in ()", "=1", "n=a b", "n in 1", ""):  # fmt: skip
        await to.ask("GET", to.requests, labelSelector=words, limit="500")
    for words in ("metadata.name=b", f"metadata.namespace={to.namespace}", "metadata.namespace=other",
                  "spec.podName=web", "spec.podName=db", "metadata.name!=b", "metadata.uid=x", "name",
                  "metadata.name in (b)"):  # fmt: skip
        await to.ask("GET", to.requests, fieldSelector=words)
    await to.ask("POST", to.pods, pod("p"))
    await to.ask("POST", to.pods, pod("q", "n2"))
    for words in ("metadata.name=p", "spec.nodeName=n1", "spec.nodeName=n2,metadata.name=p", "spec.nodeName!=n1",
                  "status.phase=Pending", "status.phase!=Pending", "spec.restartPolicy=Always", "spec.none=1",
                  "spec.nodeName=", "metadata.labels.a=b"):  # fmt: skip
        await to.ask("GET", to.pods, fieldSelector=words)
        await to.ask("GET", to.pods, fieldSelector=words, resourceVersion="0")


async def watches(to: Conversation) -> None:
    """Start, events and end of a watch."""
    first = (await to.ask("POST", to.requests, crr("a")))["metadata"]["resourceVersion"]
    await to.ask("POST", to.requests, crr("b", labels={"n": "1"}))

    async def changes() -> None:
        await to.ask("PATCH", f"{to.requests}/b", {"metadata": {"labels": {"n": "2"}}}, MERGE)
        await to.ask("PATCH", f"{to.requests}/b/status", {"status": {"phase": "Pending"}}, MERGE)
        await to.ask("DELETE", f"{to.requests}/b")

    await to.watch(to.requests, changes, 4, resourceVersion=first)
    await to.watch(to.requests, events=4, resourceVersion=first, labelSelector="n")
    await to.watch(to.requests, events=2, resourceVersion=first, labelSelector="n=1")
    await to.watch(to.requests, events=1)
    await to.watch(to.requests, events=1, resourceVersion="0")
    await to.watch(to.requests, resourceVersion="0", timeoutSeconds="4", allowWatchBookmarks="true")
    await to.watch(to.requests, resourceVersion=first, resourceVersionMatch="NotOlderThan")
    await to.watch(to.requests, events=1, fieldSelector="metadata.name=a")
    await to.watch(to.requests, events=1, accept=TABLE)
    await to.watch(to.requests, events=1, fieldSelector="spec.podName=web")
    await to.watch(to.requests, fieldSelector="status.phase=Completed")


async def initial_events(to: Conversation) -> None:
    """A watch that begins with a list (sendInitialEvents)."""
    first = (await to.ask("POST", to.requests, crr("a")))["metadata"]["resourceVersion"]
    await to.ask("POST", to.requests, crr("b"))
    whole: dict[str, Any] = {
        "sendInitialEvents": "true",
        "resourceVersionMatch": "NotOlderThan",
        "allowWatchBookmarks": "true",
    }
    await to.watch(to.requests, events=3, **whole)
    await to.watch(to.requests, events=3, resourceVersion="0", **whole)
    await to.watch(to.requests, events=3, resourceVersion=first, **whole)
    await to.watch(to.requests, events=2, sendInitialEvents="true", resourceVersionMatch="NotOlderThan")
    await to.watch(to.requests, events=1, sendInitialEvents="true", allowWatchBookmarks="true")
    await to.watch(to.requests, events=1, resourceVersion=first, **{**whole, "sendInitialEvents": "false"})
    await to.ask("GET", to.requests, sendInitialEvents="true")


async def pods(to: Conversation) -> None:
    """Pods: status, graceful deletion, allowed changes."""
    made = (await to.ask("POST", to.pods, pod()))["metadata"]
    first = made["resourceVersion"]
    one = f"{to.pods}/web"
    running = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    await to.ask("PATCH", f"{one}/status", {"metadata": {"labels": {"a": "b"}}, "status": running}, MERGE)
    gate = {"type": "KruisePodReady", "status": "False", "message": "m"}
    await to.ask("PATCH", f"{one}/status", {"status": {"conditions": [gate]}}, STRATEGIC)
    stale = {"uid": made["uid"], "resourceVersion": made["resourceVersion"]}
    await to.ask("PATCH", f"{one}/status", {"metadata": stale, "status": {"conditions": [gate]}}, STRATEGIC)
    ready = {"type": "Ready", "status": "False"}
    other = {"type": "Other", "status": "True"}
    await to.ask("PATCH", f"{one}/status", {"status": {"conditions": [ready, other]}}, STRATEGIC)
    await to.ask("PATCH", f"{one}/status", {"metadata": {"uid": "another"}, "status": {"message": "m"}}, STRATEGIC)
    await to.ask("PATCH", one, {"spec": {"nodeName": "n2"}}, MERGE)
    await to.ask("PATCH", one, {"spec": {"containers": [{"name": "app", "image": "none.invalid/b"}]}}, STRATEGIC)
    await to.ask("PATCH", one, {"status": {"phase": "Failed"}}, MERGE)
    await to.ask("DELETE", one, {"preconditions": {"uid": "another"}})
    await to.ask("DELETE", one, {"gracePeriodSeconds": 20})
    await to.ask("DELETE", one, {"gracePeriodSeconds": 10})
    await to.ask("DELETE", one)
    await to.ask("PATCH", f"{one}/status", {"status": {"phase": "Succeeded"}}, MERGE)
    await to.ask("DELETE", one, {"gracePeriodSeconds": 0})
    await to.ask("DELETE", one, {"gracePeriodSeconds": 0})
    await to.ask("POST", to.pods, pod("free", ""))
    await to.ask("DELETE", f"{to.pods}/free")
    await to.ask("POST", to.pods, pod("kept", finalizers=["a.b/c"]))
    await to.ask("DELETE", f"{to.pods}/kept", {"gracePeriodSeconds": 0})
    await to.ask("PATCH", f"{to.pods}/kept", {"metadata": {"finalizers": None}}, MERGE)
    await to.ask("GET", f"{to.pods}/kept")
    await to.watch(to.pods, resourceVersion=first, timeoutSeconds="2")


async def leases(to: Conversation) -> None:
    """Leases, as leader election writes them."""
    path = f"/apis/coordination.k8s.io/v1/namespaces/{to.namespace}/leases"
    lease = {"metadata": {"name": "l"}, "spec": {"holderIdentity": "a", "leaseDurationSeconds": 15}}
    made = (await to.ask("POST", path, lease))["metadata"]
    await to.ask("POST", path, lease)
    bound = {"resourceVersion": made["resourceVersion"]}
    await to.ask("PATCH", f"{path}/l", {"metadata": bound, "spec": {"holderIdentity": "b"}}, MERGE)
    await to.ask("PATCH", f"{path}/l", {"metadata": bound, "spec": {"holderIdentity": "c"}}, MERGE)
    await to.ask("PATCH", f"{path}/l", {"spec": {"holderIdentity": ""}}, MERGE)
    await to.ask("PATCH", f"{path}/l", {"spec": {"leaseDurationSeconds": 0}}, MERGE)
    await to.ask("PATCH", f"{path}/l", {"spec": {"renewTime": "2026-01-02T03:04:05.000000Z"}}, MERGE)


async def tables(to: Conversation) -> None:
    """The tables for `kubectl get`."""
    await to.ask("POST", to.requests, crr(labels={"crr.apps.kruise.io/node-name": "n1"}))
    await to.ask("PATCH", f"{to.requests}/r/status", {"status": {"phase": "Pending"}}, MERGE)
    await to.ask("GET", to.requests, accept=TABLE)
    await to.ask("GET", to.requests, accept=TABLE, includeObject="None")
    await to.ask("GET", f"{to.requests}/r", accept=TABLE, includeObject="Object")
    await to.ask("GET", to.requests, accept=TABLE, includeObject="All")
    await to.ask("GET", f"{to.requests}/none", accept=TABLE)
    await to.ask("GET", to.requests, accept="application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io")
    await to.ask("GET", f"{to.requests}/r", accept="application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io")
    await to.ask("GET", to.requests, accept="text/html")
    await to.ask("POST", to.pods, pod())
    await to.ask("GET", to.pods, accept=TABLE)


CONVERSATIONS: dict[str, Callable[[Conversation], Awaitable[None]]] = {
    each.__name__: each
    for each in (objects, versions, patches, puts, status, deletion, lists, future, selectors, watches, initial_events,
                 pods, leases, tables)
}  # fmt: skip


async def answers(access: Access, name: str) -> list[Any]:
    """Return a server's responses in one of the conversations, with the replaced values."""
    async with aiohttp.ClientSession() as session:
        to = Conversation(access, session)
        await to.begin()
        try:
            await CONVERSATIONS[name](to)
        finally:
            await to.end()
        return to.said
