"""Which nodes lack a ready node daemon, from the pods of the API server: admission warns about these."""

import asyncio
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import Any

import pytest

from crrd.core.api.types import NODE_DAEMONS
from crrd.core.rollout.state import NodeDaemon
from crrd.kube.client import KubeClient
from crrd.kube.informer import Version
from crrd.kube.resources import PODS
from crrd.rollout.daemons import NodeDaemons, ReadyDaemons
from tests.support.faulty_api import FaultyApiServer
from tests.support.local_api import until
from tests.support.scripted_api import FixedAccess

Json = dict[str, Any]


def daemon(node: str) -> Json:
    labels = dict(each.split("=") for each in NODE_DAEMONS.split(","))
    spec = {"nodeName": node, "containers": [{"name": "crrd"}]}
    return {"kind": "Pod", "metadata": {"name": f"crrd-{node}", "labels": labels}, "spec": spec}


async def test_nodes_without_a_ready_daemon_are_known_while_the_watch_works() -> None:
    async with AsyncExitStack() as stack:
        api = await stack.enter_async_context(FaultyApiServer())
        client = await stack.enter_async_context(KubeClient(FixedAccess(api.url)))
        daemons = ReadyDaemons(client)
        assert not daemons.lacks("a"), "nothing is known yet"
        task = asyncio.create_task(daemons.informer.run())
        stack.callback(task.cancel)
        await until(lambda: not daemons.informer.ready())
        assert not daemons.lacks("a"), "another program may serve requests where there is no node daemon at all"

        async def put(node: str, ready: str) -> None:
            at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            condition = {"type": "Ready", "status": ready, "lastTransitionTime": at}
            name, status = f"crrd-{node}", {"status": {"conditions": [condition]}}
            await client.merge_patch(PODS, "default", name, status, subresource="status")

        for node in ("a", "b"):
            await client.create(PODS, "default", daemon(node))
            await put(node, "True")
        await until(lambda: [daemons.lacks(each) for each in "abc"] == [False, False, True])
        await put("b", "False")
        await until(lambda: daemons.lacks("b"))
        await client.delete(PODS, "default", "crrd-a")
        await until(lambda: daemons.lacks("a"))
        api.fail_next(1000, 500, match=lambda call: call.resource == "pods")
        api.drop_connections()
        await until(lambda: bool(daemons.informer.ready()))
        assert not daemons.lacks("b"), "what was known may be old"


@pytest.mark.virtual_time
async def test_a_node_waits_for_an_update_of_its_daemon_and_no_longer() -> None:
    """Nodes come and go, and a pool may be left out by the DaemonSet's nodeSelector."""
    daemons = NodeDaemons(lambda: None)

    def known() -> set[str]:
        return {*(daemons.by_node or {})}

    def pod(node: str, uid: str) -> Version[NodeDaemon]:
        return daemons.parse({**daemon(node), "metadata": {"name": node, "uid": uid, "resourceVersion": "1"}})

    assert daemons.by_node is None
    daemons.put(pod("a", "a1"))
    daemons.put(pod("b", "b1"))
    assert known() == {"a", "b"}
    daemons.delete(pod("a", "a1"))
    assert NodeDaemon("a", ready=False) in (daemons.by_node or {}).values()
    await asyncio.sleep(599)
    daemons.put(pod("b", "b2"))
    assert known() == {"a", "b"}
    await asyncio.sleep(2)
    assert known() == {"b"}
    daemons.put(pod("a", "a2"))
    assert known() == {"a", "b"}
    for each in (pod("a", "a2"), pod("b", "b1"), pod("b", "b2")):
        daemons.delete(each)
    assert known() == {"a", "b"}
    await asyncio.sleep(601)
    assert daemons.by_node == {}, "there were some, so nobody else serves the requests"
