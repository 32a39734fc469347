"""A client stays with the cluster, the namespace and the user of its kubeconfig's first read."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from crrd.kube.access.config import KubeconfigAccess
from crrd.kube.access.kubeconfig import Overrides
from crrd.kube.client import KubeClient
from crrd.kube.resources import PODS
from crrd.lib.errors import ApiUnavailableError, ConfigurationError
from tests.support.scripted_api import ScriptedApi, refuse, reply, scripted_api

POD = {"kind": "Pod", "metadata": {"name": "db-1", "namespace": "shop", "uid": "u"}}
_OLD = "2020-01-02T03:04:05Z"


class File:
    """A kubeconfig with the clusters a and b. Each user's plugin issues other tokens each time: a-1, a-2, ..."""

    def __init__(self, folder: Path, servers: Mapping[str, str], expiry: str = "") -> None:
        self.path, self._folder = folder / "config", folder
        contexts = {"a": ("a", "user-a", "shop"), "b": ("b", "user-b", "other")}
        self.content: dict[str, Any] = {
            "current-context": "a",
            "clusters": {name: {"server": server} for name, server in servers.items()},
            "users": {f"user-{name}": self.plugin(name, expiry) for name in servers},
            "contexts": {
                name: {"cluster": cluster, "user": user, "namespace": namespace}
                for name, (cluster, user, namespace) in contexts.items()
            },
        }
        self.write()

    def plugin(self, name: str, expiry: str = "") -> dict[str, Any]:
        script = self._folder / f"login-{name}"
        status = f'{{"token":"{name}-%s","expirationTimestamp":"{expiry or "2099-01-02T03:04:05Z"}"}}'
        kind = '"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential"'
        script.write_text(
            f"#!/bin/sh\necho . >> {script}.count\nprintf '{{{kind},\"status\":{status}}}' $(wc -l < {script}.count)\n"
        )
        script.chmod(0o700)
        return {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": str(script)}}

    def write(self, path: Path | None = None) -> None:
        """Write it, with the lists that a kubeconfig has."""
        lists = {
            f"{key}s": [{"name": name, key: each} for name, each in self.content[f"{key}s"].items()]
            for key in ("cluster", "user", "context")
        }
        (path or self.path).write_text(json.dumps({"current-context": self.content["current-context"], **lists}))

    def use_b(self) -> None:
        """Do what `kubectl config use-context b` does."""
        self.content["current-context"] = "b"
        self.write()


@asynccontextmanager
async def two_clusters(folder: Path, expiry: str = "") -> AsyncIterator[tuple[File, ScriptedApi, ScriptedApi]]:
    async with scripted_api() as a, scripted_api() as b:
        yield File(folder, {"a": a.url, "b": b.url}, expiry), a, b


def tokens(api: ScriptedApi) -> list[str]:
    return [request.headers.get("Authorization", "").removeprefix("Bearer ") for request in api.seen]


def wait_for_renewal(access: KubeconfigAccess) -> None:
    """Let the time pass in which an access is not renewed again."""
    access._renewed = float("-inf")


async def test_it_stays_after_use_context_when_a_token_is_refused(tmp_path: Path) -> None:
    async with two_clusters(tmp_path) as (file, a, b):
        access = KubeconfigAccess(str(file.path))
        a.then(reply(POD), refuse(401), reply(POD))
        async with KubeClient(access) as client:
            await client.get(PODS, "shop", "db-1")
            file.use_b()
            await client.get(PODS, "shop", "db-1")
        assert (tokens(a), tokens(b)) == (["a-1", "a-1", "a-2"], [])
        found = await access.current()
        assert (found.context, found.namespace, found.server, found.is_only_context) == ("a", "shop", a.url, False)


async def test_it_stays_after_use_context_when_a_token_ends(tmp_path: Path) -> None:
    async with two_clusters(tmp_path, _OLD) as (file, a, b):
        a.then(reply(POD), reply(POD))
        async with KubeClient(KubeconfigAccess(str(file.path))) as client:
            await client.get(PODS, "shop", "db-1")
            file.use_b()
            await client.get(PODS, "shop", "db-1")
        assert (tokens(a), tokens(b)) == (["a-1", "a-2"], [])


async def test_what_a_context_has_beside_its_user_is_not_read_again(tmp_path: Path) -> None:
    async with two_clusters(tmp_path) as (file, a, _):
        file.content["users"]["user-a"]["as"] = "ann"
        file.write()
        access = KubeconfigAccess(str(file.path))
        before = await access.current()
        file.content["contexts"] = {"renamed": {"cluster": "a", "user": "user-b", "namespace": "other"}}
        file.content["clusters"]["a"] = {"server": f"{a.url}/", "proxy-url": "http://p", "tls-server-name": "x"}
        file.content["users"]["user-a"]["as"] = "bob"
        file.write()
        after = await access.renew(before)
        assert (before.authorization, after.authorization) == ("Bearer a-1", "Bearer a-2")
        for each in (before, after):
            assert (each.server, each.namespace, each.proxy, each.server_hostname) == (a.url, "shop", None, None)
            assert each.impersonation == (("Impersonate-User", "ann"),)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("server", "its cluster 'a' now has the server other.example:6443, but"),
        ("cluster", "it no longer has the cluster 'a', but"),
        ("context", "its cluster 'b' now has the server {b}, but"),
        ("user", "it no longer has the user 'user-a', but"),
    ],
)
async def test_an_entry_that_is_gone_or_another_ends_the_command(tmp_path: Path, change: str, said: str) -> None:
    async with two_clusters(tmp_path) as (file, a, b):
        access = KubeconfigAccess(str(file.path))
        before = await access.current()
        whole = json.loads(json.dumps(file.content))
        if change == "server":
            file.content["clusters"]["a"]["server"] = "https://ann:secret@other.example:6443/"
        elif change == "context":
            file.content["contexts"]["a"]["cluster"] = "b"
        else:
            del file.content[f"{change}s"]["user-a" if change == "user" else "a"]
        file.write()
        with pytest.raises(ApiUnavailableError) as first:  # somebody may be writing the file
            await access.renew(before)
        with pytest.raises(ApiUnavailableError) as again:  # soon after: the file is not read again
            await access.renew(before)
        wait_for_renewal(access)
        with pytest.raises(ConfigurationError) as last:
            await access.renew(before)
        host, other = a.url.removeprefix("http://"), b.url.removeprefix("http://")
        assert str(first.value) == str(again.value) == str(last.value)
        assert str(last.value) == (
            f"the kubeconfig {file.path}: {said.format(b=other)} this command began with the server {host}, and works "
            "with no other: put the entry back, or start the command again"
        )
        file.content = whole
        file.write()
        wait_for_renewal(access)
        assert (await access.renew(before)).authorization == "Bearer a-2", "no token was issued for another server"


async def test_an_entry_that_is_back_in_time_is_used(tmp_path: Path) -> None:
    async with two_clusters(tmp_path) as (file, a, _):
        access = KubeconfigAccess(str(file.path))
        before = await access.current()
        file.path.write_text("")
        with pytest.raises(ApiUnavailableError, match="it no longer has the cluster 'a'"):
            await access.renew(before)
        file.write()
        wait_for_renewal(access)
        assert (await access.renew(before)).server == a.url


async def test_of_several_files_the_first_still_decides(tmp_path: Path) -> None:
    """A file that comes before the others later has another current context, and its own users."""
    async with two_clusters(tmp_path) as (file, a, b):
        first = tmp_path / "first"
        access = KubeconfigAccess(f"{first}:{file.path}")
        before = await access.current()
        file.content |= {"current-context": "b", "users": {}, "clusters": {"b": {"server": b.url}}}
        file.write(first)
        renewed = await access.renew(before)
        assert (renewed.server, renewed.authorization) == (a.url, "Bearer a-2")
        file.content["clusters"]["a"] = {"server": b.url}
        file.write(first)
        wait_for_renewal(access)
        with pytest.raises(ApiUnavailableError, match="its cluster 'a' now has the server"):
            await access.renew(renewed)


async def test_flags_stay_what_they_are(tmp_path: Path) -> None:
    async with two_clusters(tmp_path) as (file, a, b):
        flags = Overrides(cluster="b", user_fields={"token": "t"}, namespace="x")
        access = KubeconfigAccess(str(file.path), flags)
        before = await access.current()
        file.content["contexts"]["a"]["cluster"] = "elsewhere"
        file.write()
        assert (await access.renew(before)).server == b.url
        by_url = KubeconfigAccess(
            str(file.path), Overrides(cluster_fields={"server": a.url}, user_fields={"token": "t"})
        )
        before = await by_url.current()
        file.path.write_text("{}")
        with pytest.raises(ApiUnavailableError, match="it no longer has the user 'user-a'"):
            await by_url.renew(before)


async def test_a_user_without_an_entry_has_no_credentials_later_either(tmp_path: Path) -> None:
    async with two_clusters(tmp_path) as (file, _, __):
        file.content["contexts"]["a"]["user"] = "nobody"
        file.write()
        access = KubeconfigAccess(str(file.path))
        before = await access.current()
        file.content["users"]["nobody"] = {"token": "t"}
        file.write()
        assert (before.authorization, (await access.renew(before)).authorization) == ("", "")
