"""The local API server's life: the state file, starting again, TLS, and the command of its own."""

import asyncio
import json
import os
import signal
import ssl
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import trustme

from daemon.localnode.api import journal
from daemon.localnode.apiserver import ApiServer, main
from tests.support.local_api import ALL_CRRS, CRRS, Api, crr, running


async def test_objects_versions_and_history_outlive_the_server(tmp_path: Path) -> None:
    state = tmp_path / "deep" / "state"
    async with running(state_file=state) as api:
        start = (await api.get(CRRS)).version
        await api.post(CRRS, crr("a", finalizers=["example.com/x"]))
        await api.post(CRRS, crr("b"))
        await api.delete(CRRS + "/b")
        kept = await api.patch(CRRS + "/a/status", {"status": {"phase": "Pending"}})
        revision = api.server.store.revision
    async with running(state_file=state) as api:
        assert api.server.store.revision == revision
        assert (await api.get(CRRS + "/a")).body == kept.body
        assert (await api.get(CRRS + "/b")).status == 404
        async with api.watch(CRRS, f"resourceVersion={start}") as watch:
            seen = [await watch.seen() for _ in range(4)]
        assert seen == [("ADDED", "a"), ("ADDED", "b"), ("DELETED", "b"), ("MODIFIED", "a")]
        assert int((await api.post(CRRS, crr("c"))).version) == revision + 1


async def test_a_compaction_is_remembered(tmp_path: Path) -> None:
    state = tmp_path / "state"
    async with running(state_file=state) as api:
        await api.post(CRRS, crr())
        api.server.compact()
    async with running(state_file=state) as api, api.watch(CRRS, "resourceVersion=1") as watch:
        assert (await watch.event())["object"]["code"] == 410


async def test_a_line_that_was_cut_off_is_as_if_never_written(tmp_path: Path) -> None:
    state = tmp_path / "state"
    async with running(state_file=state) as api:
        await api.post(CRRS, crr("a"))
    with state.open("ab") as file:
        file.write(b'{"key":"apps.kruise.io/containerrec')
    async with running(state_file=state) as api:
        await api.post(CRRS, crr("b"))
    async with running(state_file=state) as api:
        assert len((await api.get(CRRS)).body["items"]) == 2


@pytest.mark.parametrize("line", ["{}", "nonsense", '{"key":"x","name":["","y"],"deleted":3}', "[]"])
async def test_a_file_of_another_make_is_refused(tmp_path: Path, line: str) -> None:
    state = tmp_path / "state"
    state.write_text(line + "\n")
    with pytest.raises(ValueError, match="line 1: not a line of this server's state file"):
        await ApiServer(state_file=state).start()


async def test_a_long_file_is_rewritten_as_its_objects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = tmp_path / "state"
    async with running(state_file=state) as api:
        await api.post(CRRS, crr())
        for number in range(20):
            await api.patch(CRRS + "/r", {"metadata": {"labels": {"n": str(number)}}})
        expected = (await api.get(CRRS + "/r")).body
    before = len(state.read_bytes().splitlines())
    monkeypatch.setattr(journal, "REWRITE_ABOVE", 10)
    for _ in range(2):
        async with running(state_file=state) as api:
            assert (await api.get(CRRS + "/r")).body == expected
            async with api.watch(CRRS, "resourceVersion=3") as watch:
                assert (await watch.event())["type"] == "ERROR"
    assert len(state.read_bytes().splitlines()) < before - 15


async def test_the_same_server_starts_again_on_its_port(tmp_path: Path) -> None:
    server = ApiServer(state_file=tmp_path / "state")
    await server.stop()
    async with server, aiohttp.ClientSession() as session:
        await Api(server, session).post(CRRS, crr())
        url = server.url
    async with server, aiohttp.ClientSession() as session:
        assert server.url == url
        assert (await Api(server, session).get(CRRS + "/r")).status == 200
        await Api(server, session).post(CRRS, crr("s"))
    async with running(state_file=tmp_path / "state") as api:
        assert len((await api.get(CRRS)).body["items"]) == 2


async def test_a_newer_definition_replaces_the_stored_one(tmp_path: Path) -> None:
    schema: dict[str, Any] = {"type": "object", "properties": {}}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"kind": "Thing", "plural": "things", "singular": "thing"}
    spec = {"group": "example.com", "scope": "Namespaced", "names": names, "versions": [version]}
    crd = {"kind": "CustomResourceDefinition", "metadata": {"name": "things.example.com"}, "spec": spec}
    things = "/apis/example.com/v1/namespaces/default/things"
    async with running(state_file=tmp_path / "state", crds=[crd]) as api:
        dropped = await api.post(things, {"metadata": {"name": "a"}, "size": 1})
        assert "size" not in dropped.body
        assert (await api.get(ALL_CRRS)).status == 404
    schema["properties"]["size"] = {"type": "integer"}
    async with running(state_file=tmp_path / "state", crds=[crd]) as api:
        kept = await api.post(things, {"metadata": {"name": "b"}, "size": 1})
        assert kept.body["size"] == 1
        assert len((await api.get(things)).body["items"]) == 2


def test_what_is_no_definition_is_refused() -> None:
    with pytest.raises(ValueError, match="not a CustomResourceDefinition"):
        ApiServer(crds=[{"kind": "Pod"}])


async def test_tls_with_a_kubeconfig_that_trusts_it(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    async with ApiServer(ssl_context=context) as server:
        config = json.loads(server.kubeconfig(tmp_path / "config", token="t", ca_file=tmp_path / "ca.pem").read_text())
        cluster = config["clusters"][0]["cluster"]
        assert cluster["server"].startswith("https://127.0.0.1:")
        assert config["users"][0]["user"] == {"token": "t"}
        trust = ssl.create_default_context(cafile=cluster["certificate-authority"])
        connector = aiohttp.TCPConnector(ssl=trust)
        async with aiohttp.ClientSession(connector=connector) as session:
            assert (await Api(server, session).get("/readyz")).body == "ok"


async def test_the_command_serves_until_it_is_told_to_end(tmp_path: Path) -> None:
    config, state = tmp_path / "config", tmp_path / "state"
    arguments = ["--kubeconfig-out", str(config), "--state", str(state), "--bookmark-seconds", "0.05"]
    for expected in (404, 200):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "daemon.localnode.apiserver", *arguments,
            stdout=asyncio.subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        )  # fmt: skip
        assert process.stdout is not None
        async with asyncio.timeout(30):
            url = (await process.stdout.readline()).decode().strip()
        assert json.loads(config.read_text())["clusters"][0]["cluster"]["server"] == url
        async with aiohttp.ClientSession(url) as session:
            async with session.get(CRRS + "/r") as reply:
                assert reply.status == expected
            await (await session.post(CRRS, json=crr())).read()
            async with session.get(CRRS + "?watch=1&allowWatchBookmarks=1&resourceVersion=1") as watch:
                assert b"BOOKMARK" in await watch.content.readuntil(b"BOOKMARK")
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(30):
            assert await process.wait() == 0


def test_the_command_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert all(option in text for option in ("--port", "--state", "--kubeconfig-out", "--bookmark-seconds", "Example"))
