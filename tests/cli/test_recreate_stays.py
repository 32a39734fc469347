"""A run stays in the cluster in which it began, whatever happens to the kubeconfig meanwhile."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from crrd.kube.resources import REQUESTS
from crrd.lib.errors import ApiRefusedError
from tests.support.command import Begun, crrd
from tests.support.played_cluster import NAMESPACE, PlayedCluster, played
from tests.support.warm import begun

pytestmark = pytest.mark.timeout(120)


@dataclass
class Two:
    """Two clusters with the same pods, and a kubeconfig with a context for each."""

    a: PlayedCluster
    b: PlayedCluster
    kubeconfig: Path

    def write(self, current: str, **servers: str) -> None:
        """Make a context the current one. `servers` are other addresses for clusters, "" for one that is left out."""
        known = {"a": self.a.api.url, "b": self.b.api.url} | servers
        there = [name for name in known if known[name]]
        shape: dict[str, Any] = {"current-context": current}
        shape["clusters"] = [{"name": name, "cluster": {"server": known[name]}} for name in there]
        shape["users"] = [{"name": f"user-{name}", "user": {"exec": self.plugin(name)}} for name in there]
        contexts = {name: {"cluster": name, "user": f"user-{name}"} for name in there}
        shape["contexts"] = [{"name": name, "context": each} for name, each in contexts.items()]
        self.kubeconfig.write_text(json.dumps(shape))

    def plugin(self, name: str) -> dict[str, Any]:
        """Return an exec plugin whose tokens are renewed after 2 seconds."""
        script, version = self.kubeconfig.parent / f"login-{name}", "client.authentication.k8s.io/v1"
        status = {"token": f"of-{name}", "expirationTimestamp": "END"}
        issued = json.dumps({"apiVersion": version, "kind": "ExecCredential", "status": status})
        end = "$(date -u -d @$(($(date +%s) + 62)) +%Y-%m-%dT%H:%M:%SZ)"  # renewed a minute before
        script.write_text(f"#!/bin/sh\necho . >> {script}.runs\necho '{issued}' | sed s/END/{end}/\n")
        script.chmod(0o700)
        return {"apiVersion": version, "command": str(script), "interactiveMode": "Never"}

    @property
    def logins(self) -> int:
        """How often a plugin has run."""
        return sum(len(each.read_text()) for each in self.kubeconfig.parent.glob("login-*.runs"))

    @asynccontextmanager
    async def begun(self, *words: str) -> AsyncIterator[Begun]:
        """Begin a run in the current context; its pods do not go on yet."""
        self.a.goes_on.clear()
        environment = {**os.environ, "KUBECONFIG": str(self.kubeconfig)}
        async with begun(["recreate", *words], environment) as process:
            yield Begun(process)


@pytest.fixture
async def two(tmp_path: Path) -> AsyncIterator[Two]:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    async with played(tmp_path / "a") as a, played(tmp_path / "b") as b:
        for each in (a, b):
            await each.workload("StatefulSet", "db", 2, "app")
        found = Two(a, b, tmp_path / "kubeconfig")
        found.write("a")
        yield found


@pytest.mark.parametrize("target", [("-l", "app=db"), ("statefulset/db",)])
async def test_another_context_becomes_the_current_one(two: Two, target: tuple[str, ...]) -> None:
    async with two.begun(*target, "-c", "app") as run:
        await run.until("recreating")
        two.write("b")
        before = two.logins
        while two.logins == before:
            await asyncio.sleep(0.05)
        two.a.goes_on.set()
        code, out = await run.end()
    assert (code, len(two.a.stops), two.b.stops) == (0, 2, []), out
    assert not await two.b.requests()
    assert out.splitlines()[0].endswith("; namespace default, context a")


async def test_the_cluster_has_another_server(two: Two) -> None:
    async with two.begun("statefulset/db", "-c", "app") as run:
        await run.until("recreating")
        two.write("a", a=two.b.api.url)
        code, out = await run.end()
    host = {name: each.api.url.removeprefix("http://") for name, each in (("a", two.a), ("b", two.b))}
    why = f"its cluster 'a' now has the server {host['b']}, but this command began with the server {host['a']}, and"
    stopped, error = out.splitlines()[-2:]
    assert (code, why in error, two.b.stops) == (2, True, []), out
    assert (why in stopped, stopped.startswith("stopped: 0 of 2 pods recreated")) == (True, True)
    assert "after fixing the cause, to continue: crrd recreate --context a resume db-" in stopped


async def test_the_commands_that_the_output_suggests_name_the_context(two: Two) -> None:
    words = ("statefulset/db", "-c", "app", "--partition", "1", "--run", "mine")
    _, out, err = await crrd("recreate", *words, KUBECONFIG=str(two.kubeconfig))
    (line,) = [line for line in out.splitlines() if line.startswith("paused: ")]
    again = line.partition("to continue: crrd ")[2].partition(" (after")[0]
    assert again == "recreate --context a resume mine -n default --yes", err
    two.write("b")
    code, out, err = await crrd(*again.split(), "-o", "json", KUBECONFIG=str(two.kubeconfig))
    begin = json.loads(out.splitlines()[0])
    assert (begin["event"], begin["namespace"], begin["context"]) == ("begin", "default", "a")
    assert (code, two.a.stops, two.b.stops) == (0, [("db-1", "app"), ("db-0", "app")], []), err
    code, out, err = await crrd("recreate", "resume", "mine", KUBECONFIG=str(two.kubeconfig))
    assert (code, out) == (2, "")
    assert err == (
        "crrd recreate: run 'mine' not found in namespace 'default'; to list runs: crrd recreate --context b status "
        "-n default\n"
    )


async def test_no_context_is_named_where_there_is_only_one(two: Two) -> None:
    two.write("a", b="")
    code, _, err = await crrd("recreate", "resume", "mine", KUBECONFIG=str(two.kubeconfig))
    assert (code, err.rpartition("to list runs: ")[2]) == (2, "crrd recreate status -n default\n")


async def test_copies_of_requests_are_no_run_in_another_cluster(two: Two) -> None:
    """As from a backup, or with `kubectl get -o yaml` and `kubectl apply`."""
    words = ("-l", "app=db", "-c", "app", "--run", "mine", "--partition", "1")
    assert (await crrd("recreate", *words, KUBECONFIG=str(two.kubeconfig))).code == 0
    (request,) = await two.a.requests()
    meta = {key: request["metadata"][key] for key in ("name", "labels", "annotations")}
    with pytest.raises(ApiRefusedError, match="statusContext must be left out: admission takes it from the pod"):
        await two.b.client.create(REQUESTS, NAMESPACE, {**request, "metadata": meta})
    for verb in ("resume", "undo", "abort"):
        code, out, err = await two.b.recreate(verb, "mine")
        assert (code, out) == (2, "")
        assert err.startswith("crrd recreate: run 'mine' not found in namespace 'default'; ")
