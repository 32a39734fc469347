"""Where the API server is and who we are: service accounts, kubeconfigs, and what can be wrong with them."""

import asyncio
import base64
import errno
import json
import os
import pty
import signal
import ssl
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import kubernetes
import pytest
import trustme
import yaml
from aiohttp import web

from crrd.kube.access import config
from crrd.kube.access.config import (
    SERVICE_ACCOUNT,
    Access,
    AccessSource,
    KubeconfigAccess,
    ServiceAccountAccess,
    find_access,
    tls_context,
)
from crrd.kube.access.kubeconfig import Login, Overrides, read_kubeconfig
from crrd.kube.client import KubeClient
from crrd.kube.resources import PODS
from crrd.lib.errors import ApiRefusedError, ApiUnavailableError, ConfigurationError
from tests.support.scripted_api import ScriptedApi, refuse, reply, scripted_api

POD = {"metadata": {"name": "b"}}  # As far as the client looks at it
AUTHORITY = trustme.CA()
CA = AUTHORITY.cert_pem.bytes().decode()
ANOTHER_CA = trustme.CA().cert_pem.bytes().decode()


@asynccontextmanager
async def https(host: str = "127.0.0.1") -> AsyncIterator[ScriptedApi]:
    """A server that asks clients for a certificate, but does not insist."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    AUTHORITY.issue_cert(host).configure_cert(context)
    AUTHORITY.configure_trust(context)
    context.verify_mode = ssl.CERT_OPTIONAL
    async with scripted_api(context) as api:
        yield api


async def get(access: AccessSource) -> None:
    async with KubeClient(access) as client:
        await client.get(PODS, "a", "b")


def b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


Write = Callable[[Any], str]


def tokens(api: ScriptedApi) -> list[str]:
    return [request.headers.get("Authorization", "") for request in api.seen]


class Mount:
    """A service account as kubelet mounts it: files behind a link that is swapped."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._count = 0
        self.swap("one", CA)
        for name in ("token", "ca.crt"):
            (folder / name).symlink_to(Path("..data") / name)

    def swap(self, token: str, ca: str | bytes) -> None:
        self._count += 1
        version = self.folder / f"..{self._count}"
        version.mkdir()
        (version / "token").write_text(f"{token}\n")
        (version / "ca.crt").write_bytes(ca.encode() if isinstance(ca, str) else ca)
        link = self.folder / "..next"
        link.symlink_to(version.name)
        link.rename(self.folder / "..data")

    def remove(self) -> None:
        (self.folder / "..data").unlink()


@pytest.fixture
def mount(tmp_path: Path) -> Mount:
    folder = tmp_path / "serviceaccount"
    folder.mkdir()
    return Mount(folder)


async def test_a_service_account_is_followed_as_kubelet_swaps_it(mount: Mount) -> None:
    async with https() as api:
        access = ServiceAccountAccess(api.url, mount.folder)
        assert access.description == f"the service account's token in {mount.folder}/token"
        api.then(*[reply(POD)] * 4)
        async with KubeClient(access) as client:
            await client.get(PODS, "a", "b")
            mount.swap("two", CA)
            await client.get(PODS, "a", "b")
            mount.remove()
            await client.get(PODS, "a", "b")
            mount.swap("three", ANOTHER_CA)
            with pytest.raises(ApiUnavailableError):  # the server's certificate is the old authority's
                await client.get(PODS, "a", "b")
            mount.swap("four", CA)
            await client.get(PODS, "a", "b")
        assert tokens(api) == ["Bearer one", "Bearer two", "Bearer two", "Bearer four"]


async def test_a_service_account_knows_its_namespace(mount: Mount) -> None:
    assert (await ServiceAccountAccess("https://127.0.0.1", mount.folder).current()).namespace == ""
    (mount.folder / "namespace").write_text("shop\n")
    assert (await ServiceAccountAccess("https://127.0.0.1", mount.folder).current()).namespace == "shop"


async def test_a_refused_service_account_token_is_read_again(mount: Mount) -> None:
    async with https() as api:

        async def refuse_and_swap(request: web.Request) -> web.StreamResponse:
            mount.swap("two", CA)
            return await refuse(401)(request)

        api.then(refuse_and_swap, reply(POD), refuse(401))
        async with KubeClient(ServiceAccountAccess(api.url, mount.folder)) as client:
            await client.get(PODS, "a", "b")
            with pytest.raises(ApiRefusedError):
                await client.get(PODS, "a", "b")
        assert tokens(api) == ["Bearer one", "Bearer two", "Bearer two"]


async def test_a_service_account_keeps_its_tls_context_while_the_ca_is_the_same(mount: Mount) -> None:
    access = ServiceAccountAccess("https://127.0.0.1", mount.folder)
    first = await access.current()
    assert await access.current() is first
    mount.swap("two", CA)
    second = await access.current()
    assert second.authorization == "Bearer two"
    assert second.tls is first.tls
    assert "two" not in repr(second)


COMMENT = "# Zürich root\nCertificate:\n    Issuer: O=ÄÖ\n"


@pytest.mark.parametrize("comment", [COMMENT.encode(), COMMENT.encode("latin-1"), b"\xef\xbb\xbf"])
async def test_a_comment_in_a_ca_file_need_not_be_ascii(mount: Mount, write: Write, comment: bytes) -> None:
    plain = tls_context(CA, where="x").get_ca_certs()
    ca = comment + CA.encode() + comment + ANOTHER_CA.encode()
    mount.swap("two", ca)
    of_account = await ServiceAccountAccess("https://x", mount.folder).current()
    data = {"certificate-authority-data": base64.b64encode(ca).decode()}
    for cluster in ({"certificate-authority": str(mount.folder / "ca.crt")}, data):
        access = await KubeconfigAccess(write(kubeconfig("https://x", {}, **cluster))).current()
        assert first_certs(access) == first_certs(of_account)
    assert first_certs(of_account) == plain + tls_context(ANOTHER_CA, where="x").get_ca_certs()


@pytest.mark.parametrize("spoilt", ["", CA[: len(CA) // 2], "no certificate", "kein Zürich", CA.replace("\n", "\nü")])
async def test_a_spoilt_authority_leaves_the_connections_as_they_are(mount: Mount, spoilt: str) -> None:
    access = ServiceAccountAccess("https://127.0.0.1", mount.folder)
    first = await access.current()
    mount.swap("two", spoilt)
    second = await access.current()
    assert second.authorization == "Bearer two"
    assert second.tls is first.tls
    assert await access.current() is second  # and is not read at every call
    assert (await access.renew(second)).tls is first.tls
    mount.swap("three", ANOTHER_CA)
    third = await access.current()
    assert third.tls is not first.tls
    assert third.tls is not None
    assert third.tls.get_ca_certs() != first_certs(first)


def first_certs(access: Access) -> object:
    assert access.tls is not None
    return access.tls.get_ca_certs()


async def test_service_accounts_that_cannot_be_used(mount: Mount, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"the service account of this pod cannot be read: .*nowhere/token"):
        await ServiceAccountAccess("https://x", tmp_path / "nowhere").current()
    mount.swap("two", "no certificate")
    with pytest.raises(ConfigurationError, match=r"ca.crt: the TLS certificates cannot be used: "):
        await ServiceAccountAccess("https://x", mount.folder).current()


def kubeconfig(server: str, user: dict[str, Any] | None, **cluster: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "contexts": [
            {"name": "here", "context": {"cluster": "c", "user": "u"}},
            {"name": "elsewhere", "context": {"cluster": "d", "user": "u"}},
        ],
        "clusters": [
            {"name": "c", "cluster": {"server": server, **cluster}},
            {"name": "d", "cluster": {"server": "http://elsewhere.example/prefix/"}},
        ],
        "users": [{"name": "u", "user": user or {}}],
    }


def resolve(path: str, context: str = "") -> Login:
    return asyncio.run(read_kubeconfig(path, Overrides(context)))


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def to_file(content: Any) -> str:
        file = tmp_path / "kubeconfig"
        file.write_text(content if isinstance(content, str) else json.dumps(content))
        return str(file)

    return to_file


def plugin(folder: Path, *answers: dict[str, Any]) -> dict[str, Any]:
    """An exec plugin that gives each of these answers once, and then fails."""
    for index, answer in enumerate(answers, start=1):
        (folder / f"answer-{index}").write_text(
            json.dumps({"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": answer})
        )
    script = folder / "plugin"
    script.write_text(
        "#!/bin/sh\n"
        f"cd {folder}; echo . >> count; n=$(wc -l < count)\n"
        'test -e "answer-$n" && cat "answer-$n" && exit 0\n'
        'echo "log in first" >&2; exit 1\n'
    )
    script.chmod(0o700)
    return {
        "exec": {
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": str(script),
            "interactiveMode": "Never",
        }
    }


async def test_a_client_certificate_of_a_kubeconfig(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.setenv("TMPDIR", str(temporary))
    client = AUTHORITY.issue_cert(common_name="crrd")
    user = {
        "client-certificate-data": b64(client.cert_chain_pems[0].bytes().decode()),
        "client-key-data": b64(client.private_key_pem.bytes().decode()),
    }
    async with https("api.example") as api:
        seen: list[Any] = []

        async def who(request: web.Request) -> web.StreamResponse:
            assert request.transport is not None
            seen.append(request.transport.get_extra_info("peercert")["subject"])
            return web.json_response(POD)

        api.then(who)
        ca = {"certificate-authority-data": b64(CA), "tls-server-name": "api.example"}
        access = KubeconfigAccess(write(kubeconfig(api.url, user, **ca)))
        await get(access)
        (subject,) = seen
        assert (("commonName", "crrd"),) in subject
        assert access.description == f"the kubeconfig {tmp_path}/kubeconfig"
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize(
    ("function", "number"),
    [
        ("asyncio.base_events.BaseEventLoop.subprocess_exec", errno.EMFILE),
        ("pathlib.Path.read_text", errno.ENFILE),
        ("tempfile.TemporaryDirectory", errno.ENOSPC),
    ],
)
async def test_a_system_without_room_may_have_some_later(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str, number: int
) -> None:
    def no_room(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    client = AUTHORITY.issue_cert(common_name="crrd")
    user = {
        "client-certificate-data": b64(client.cert_chain_pems[0].bytes().decode()),
        "client-key-data": b64(client.private_key_pem.bytes().decode()),
        **plugin(tmp_path, {"token": "t"}, {"token": "t"}),
    }
    access = KubeconfigAccess(write(kubeconfig("https://x", user)))
    with monkeypatch.context() as patched:
        patched.setattr(function, no_room)
        with pytest.raises(
            ApiUnavailableError, match=rf"^the kubeconfig .* temporarily cannot be .*{os.strerror(number)}"
        ):
            await access.current()
    await access.current()


async def test_a_server_of_another_authority_is_not_trusted(write: Write) -> None:
    async with https() as api:
        ca = b64(ANOTHER_CA)
        content = kubeconfig(api.url, {"token": "t"}, **{"certificate-authority-data": ca})
        with pytest.raises(ApiUnavailableError, match=r"(?i)certificate"):
            await get(KubeconfigAccess(write(content)))
        assert api.seen == []


async def test_an_exec_plugin_is_run_again_when_its_token_is_refused_or_old(write: Write, tmp_path: Path) -> None:
    async with scripted_api() as api:
        answers = (
            {"token": "one"},
            {"token": "two", "expirationTimestamp": "2020-01-02T03:04:05Z"},
            {"token": "three", "expirationTimestamp": "2099-01-02T03:04:05Z"},
        )
        access = KubeconfigAccess(write(kubeconfig(api.url, plugin(tmp_path, *answers))))
        api.then(reply(POD), refuse(401), *[reply(POD)] * 4)
        await get(access)
        await get(access)
        assert tokens(api) == ["Bearer one", "Bearer one", "Bearer two"]
        await get(access)  # the token is old, but it was renewed only just now
        access._renewed = float("-inf")
        await get(access)
        await get(access)
        assert tokens(api)[3:] == ["Bearer two", "Bearer three", "Bearer three"]
        used = await access.current()
        access._renewed = float("-inf")
        with pytest.raises(ApiUnavailableError, match=r"^the kubeconfig .*: exec: process returned 1. log in first$"):
            await access.renew(used)
        assert await access.current() is used
        assert await access.renew(await KubeconfigAccess(write(kubeconfig(api.url, {}))).current()) is used


async def test_a_kubeconfig_that_breaks_later_may_be_whole_again(write: Write) -> None:
    access = KubeconfigAccess(write(kubeconfig("http://x", {"token": "one"})))
    first = await access.renew(await KubeconfigAccess(write(kubeconfig("http://x", {"token": "zero"}))).current())
    assert first.authorization == "Bearer zero"
    write("{broken")
    with pytest.raises(ApiUnavailableError):
        await access.renew(first)
    write(kubeconfig("http://x", {"token": "two"}))
    access._renewed = float("-inf")
    assert (await access.renew(first)).authorization == "Bearer two"


def wait_until_dead(pid: str) -> None:
    """Gone, or a zombie: those have no command line."""
    deadline = time.monotonic() + 30
    cmdline = Path(f"/proc/{pid}/cmdline")
    while cmdline.exists() and cmdline.read_bytes():
        assert time.monotonic() < deadline, "the plugin still runs"
        time.sleep(0.01)


async def test_a_plugin_that_never_answers_is_ended(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = plugin(tmp_path)
    (tmp_path / "plugin").write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\nexec sleep 600\n")
    monkeypatch.setattr("crrd.kube.access.execplugin._DEADLINE_SECONDS", 4.0)
    with pytest.raises(ApiUnavailableError, match=r"no credentials after 4s$"):
        await KubeconfigAccess(write(kubeconfig("http://x", user))).current()
    wait_until_dead((tmp_path / "pid").read_text().strip())


@pytest.mark.parametrize("seconds", [0, 20])
async def test_the_deadline_holds_though_a_plugin_leaves_something_behind(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: int
) -> None:
    """A process with a session of its own keeps the plugin's output open, as a cache of tokens may."""
    user = plugin(tmp_path)
    (tmp_path / "plugin").write_text(f"#!/bin/sh\nsetsid sleep 20 &\necho $! > {tmp_path}/pid\nsleep {seconds}\n")
    monkeypatch.setattr("crrd.kube.access.execplugin._DEADLINE_SECONDS", 2.0)
    began = time.monotonic()
    with pytest.raises(ApiUnavailableError, match=r"no credentials after 2s$"):
        await KubeconfigAccess(write(kubeconfig("http://x", user))).current()
    assert time.monotonic() - began < 10
    with suppress(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)


@contextmanager
def terminal() -> Iterator[int]:
    """The other side of the terminal that stderr is meanwhile."""
    ours, theirs = pty.openpty()
    os.set_blocking(ours, False)
    with os.fdopen(theirs, "w", encoding="utf-8") as file, pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys, "stderr", file)
        yield ours
    os.close(ours)


PROMPT = "To sign in, open https://login.example and enter the code ABCD"


def prompting(folder: Path, then: str) -> dict[str, Any]:
    """A plugin that asks for something on stderr, without a line's end."""
    user = plugin(folder, {"token": "t"})
    (folder / "plugin").write_text(f"#!/bin/sh\necho first >&2; printf '{PROMPT}' >&2\n{then}\n")
    return user


async def test_what_a_plugin_says_is_shown_on_a_terminal_at_once(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the user has all the time to do it: no limit ends a plugin that waits for a login."""
    monkeypatch.setattr("crrd.kube.access.execplugin._DEADLINE_SECONDS", 0.0)
    until_read = f"until test -e {tmp_path}/read; do sleep 0.02; done; cat {tmp_path}/answer-1"
    access = KubeconfigAccess(write(kubeconfig("http://x", prompting(tmp_path, until_read))))
    shown = b""
    with terminal() as screen:
        async with asyncio.TaskGroup() as tasks, asyncio.timeout(30):
            found = tasks.create_task(access.current())
            while PROMPT.encode() not in shown:
                with suppress(BlockingIOError):
                    shown += os.read(screen, 1000)
                await asyncio.sleep(0.02)
            (tmp_path / "read").touch()
    assert shown == f"first\r\n{PROMPT}".encode()
    assert found.result().authorization == "Bearer t"


async def test_a_plugins_failure_is_not_told_twice(write: Write, tmp_path: Path) -> None:
    access = KubeconfigAccess(write(kubeconfig("http://x", prompting(tmp_path, "exit 3"))))
    with terminal() as screen:
        with pytest.raises(ApiUnavailableError, match=rf"exec: process returned 3. first {PROMPT}$"):
            await access.current()
        assert os.read(screen, 1000) == f"first\r\n{PROMPT}".encode()


async def test_without_a_terminal_a_plugin_is_quoted_alone(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("crrd.kube.access.execplugin._DEADLINE_SECONDS", 4.0)
    with pytest.raises(ApiUnavailableError, match=rf"no credentials after 4s: {PROMPT}$"):
        await KubeconfigAccess(write(kubeconfig("http://x", prompting(tmp_path, "exec sleep 600")))).current()
    assert capfd.readouterr().err == ""


def test_a_plugin_that_has_to_ask_is_told(write: Write, tmp_path: Path) -> None:
    user = plugin(tmp_path, {"token": "t"})
    user["exec"]["interactiveMode"] = "Always"
    path = write(kubeconfig("http://x", user))
    assert resolve(path).authorization == "Bearer t"  # it had no need to ask
    with pytest.raises(ApiUnavailableError) as caught:
        resolve(path)
    assert str(caught.value) == (
        "exec: process returned 1. log in first (its interactiveMode is Always, but crrd cannot pass input to "
        "plugins: log in first, for example with kubectl)"
    )


PLUGIN_ANSWERS = [
    ("not json", "the plugin's output is not JSON"),
    ("[]", "the plugin's output cannot be used: apiVersion must be a string that is not empty"),
    ({"apiVersion": "v0", "status": {"token": "t"}}, "apiVersion must be client.authentication.k8s.io/v1"),
    ({"status": {}}, "status must have a token or clientCertificateData"),
    ({"status": {"clientCertificateData": "x"}}, "status must have both or none of clientCertificateData and client"),
    ({"status": {"token": "t", "expirationTimestamp": "soon"}}, "status.expirationTimestamp must be a time"),
]


@pytest.mark.parametrize(("answer", "sentence"), PLUGIN_ANSWERS)
def test_what_a_plugin_prints_may_be_wrong(write: Write, tmp_path: Path, answer: Any, sentence: str) -> None:
    user = plugin(tmp_path, {})
    full = {"apiVersion": "client.authentication.k8s.io/v1", **answer} if isinstance(answer, dict) else answer
    (tmp_path / "answer-1").write_text(full if isinstance(full, str) else json.dumps(full))
    with pytest.raises(ApiUnavailableError) as caught:
        resolve(write(kubeconfig("http://x", user)))
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("crrd-no-such-plugin", "No such file or directory"),
        ("./empty", "Exec format error"),
        ("./text", "Permission denied"),
        ("./text/x", "Not a directory"),
    ],
)
def test_a_plugin_that_is_not_installed_says_how_to_install_it(
    write: Write, tmp_path: Path, command: str, why: str
) -> None:
    (tmp_path / "text").touch()
    (tmp_path / "empty").touch(mode=0o755)
    user = {"exec": {"apiVersion": "v1", "command": command, "installHint": "Get it\nfrom here."}}
    with pytest.raises(ConfigurationError) as caught:
        resolve(write(kubeconfig("http://x", user)))
    located = command.replace("./", f"{tmp_path}/")
    assert str(caught.value) == f"exec: the plugin {located} cannot be started: {why}. Get it from here."


def test_what_a_plugin_is_given(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INHERITED", "here")
    user = plugin(tmp_path, {"token": "t"})
    user["exec"] |= {"args": ["one", "two three"], "env": [{"name": "OWN", "value": "x"}], "provideClusterInfo": True}
    script = tmp_path / "plugin"
    given = 'printf "%s|" "$@" "$OWN" "$INHERITED" > given; printenv KUBERNETES_EXEC_INFO > info; cat > input'
    script.write_text(script.read_text().replace("\ncd", f"\ncd {tmp_path}; {given}; cd"))
    (tmp_path / "ca.pem").write_text(CA)
    extensions = [
        {"name": "other", "extension": "no"},
        {"name": "client.authentication.k8s.io/exec", "extension": {"audience": "a"}},
    ]
    cluster = {"certificate-authority": "ca.pem", "tls-server-name": "api", "extensions": extensions}
    assert resolve(write(kubeconfig("https://x", user, **cluster))).authorization == "Bearer t"
    assert (tmp_path / "given").read_text() == "one|two three|x|here|"
    assert (tmp_path / "input").read_text() == ""
    assert json.loads((tmp_path / "info").read_text()) == {
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "spec": {
            "interactive": False,
            "cluster": {
                "server": "https://x",
                "tls-server-name": "api",
                "certificate-authority-data": b64(CA),
                "config": {"audience": "a"},
            },
        },
    }


def test_a_plugin_may_give_a_certificate(write: Write, tmp_path: Path) -> None:
    user = plugin(tmp_path, {"clientCertificateData": "certificate", "clientKeyData": "key"})
    found = resolve(write(kubeconfig("https://x", user)))
    assert (found.authorization, found.certificate, found.key) == ("", "certificate", "key")
    assert "key=" not in repr(found)


def test_a_token_comes_before_a_plugin_and_a_password(write: Write, tmp_path: Path) -> None:
    password = {"username": "u", "password": "p"}
    everything = {"token": "own", **plugin(tmp_path, {"token": "the plugin's"}), **password}
    assert resolve(write(kubeconfig("http://x", everything))).authorization == "Bearer own"
    everything.pop("token")
    assert resolve(write(kubeconfig("http://x", everything))).authorization == "Bearer the plugin's"
    oidc = {"auth-provider": {"name": "oidc", "config": {"id-token": "id"}}, **password}
    assert resolve(write(kubeconfig("http://x", oidc))).authorization == "Bearer id"


async def test_a_missing_kubeconfig(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name in ("none", "file/none"):
        with pytest.raises(ConfigurationError) as caught:
            await KubeconfigAccess(str(tmp_path / name), Overrides("x")).current()
        assert str(caught.value) == f"the kubeconfig {tmp_path}/{name}: file not found: check --kubeconfig"
    with pytest.raises(ConfigurationError, match=rf"{tmp_path} cannot be read: .*Is a directory"):
        await KubeconfigAccess(str(tmp_path)).current()


async def test_a_kubeconfig_may_come_from_a_pipe(tmp_path: Path) -> None:
    """As with `--kubeconfig <(sops -d kubeconfig.enc)`: it is read once, and credentials are renewed all the same."""
    reader, writer = os.pipe()
    content = kubeconfig("http://x", plugin(tmp_path, {"token": "one"}, {"token": "two"}))
    os.write(writer, json.dumps(content).encode())
    os.close(writer)
    access = KubeconfigAccess(f"/dev/fd/{reader}")
    first = await access.current()
    assert (first.authorization, (await access.renew(first)).authorization) == ("Bearer one", "Bearer two")
    os.close(reader)


async def test_an_error_may_hold_what_cannot_be_written(write: Write) -> None:
    content = kubeconfig("http://x", {})
    content["users"] += [{"name": "\ud800"}] * 2
    with pytest.raises(ConfigurationError, match=r"names '\\ud800' twice in its users$"):
        await KubeconfigAccess(write(content)).current()


async def test_a_kubeconfig_with_broken_certificates(write: Write) -> None:
    content = kubeconfig("https://x", {"token": "t"}, **{"certificate-authority-data": b64("none")})
    with pytest.raises(ConfigurationError, match="the TLS certificates cannot be used"):
        await KubeconfigAccess(write(content)).current()


async def test_the_namespace_that_is_meant(write: Write) -> None:
    content = kubeconfig("http://127.0.0.1:8080", None)
    content["contexts"][1]["context"]["namespace"] = "shop"
    assert (await KubeconfigAccess(write(content)).current()).namespace == ""
    assert (await KubeconfigAccess(write(content), Overrides("elsewhere")).current()).namespace == "shop"


def test_what_a_kubeconfig_comes_to(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://everybodys.example")
    plain = resolve(write(kubeconfig("http://127.0.0.1:8080/", {"token": "t"})))
    assert (plain.context, plain.cluster, plain.user) == ("here", "c", "u")
    unnamed = replace(plain, context="", cluster="", user="", cluster_info={})
    assert unnamed == Login("http://127.0.0.1:8080", "Bearer t")
    elsewhere = resolve(write(kubeconfig("http://x", {"username": "u", "password": "p"})), "elsewhere")
    assert elsewhere.server == "http://elsewhere.example/prefix"
    assert elsewhere.authorization == f"Basic {b64('u:p')}"
    (tmp_path / "token").write_text("from a file\n")
    (tmp_path / "ca.pem").write_text(CA)
    content = kubeconfig(
        "https://x",
        {"tokenFile": "token"},
        **{"certificate-authority": "ca.pem", "proxy-url": "http://proxy.example:3128"},
    )
    files = resolve(write(content))
    assert files.authorization == "Bearer from a file"
    assert files.ca == CA
    assert files.proxy == "http://proxy.example:3128"
    assert resolve(write(kubeconfig("https://x", {}, **{"insecure-skip-tls-verify": True}))).insecure
    exec_user = plugin(tmp_path, {"token": "t", "expirationTimestamp": "1970-01-02T00:00:00Z"})
    assert resolve(write(kubeconfig("http://x", exec_user))).expiry == 86400.0


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("", "it has no current-context: set one with kubectl config use-context"),
        ("{", " is not valid YAML: "),
        (f"since: {'9' * 5000}", " is not valid YAML: "),
        ("\x00", " is not valid YAML: "),
        ("[1]", " is not a kubeconfig"),
        ({"current-context": "x"}, "it has no context named 'x'"),
        ({**kubeconfig("http://x", {}), "clusters": []}, "it has no cluster named 'c', which the context 'here' needs"),
        ({"contexts": [{"name": 5}]}, "each name in contexts must be a string"),
        (kubeconfig("https://x", {"token": 5}), "the user's token must be a string"),
        (
            kubeconfig("https://x", {}, **{"insecure-skip-tls-verify": "false"}),
            "the cluster's insecure-skip-tls-verify must be true or false",
        ),
        (kubeconfig("https://x", {"auth-provider": {"name": "gcp"}}), "the user's auth-provider has no id-token"),
        (kubeconfig("https://x", {"exec": {"command": "x"}}), "the user's exec.apiVersion must be a string"),
        (kubeconfig("ftp://x", {}), "the cluster's server must be a URL that begins with https:// or http://"),
        *(
            (kubeconfig(server, {}), f"the cluster's server cannot be used: {said}")
            for server, said in (
                ("http://127.0.0.1:99999", "Port out of range 0-65535"),
                ("https://x:1a", "Port could not be cast to integer value as '1a'"),
                ("https://x:0", "it has no host and port"),
                ("https:///p", "it has no host and port"),
                ("https://größe", "it has a character that is not allowed in a URL"),
                ("https://a\nb", "it has a character that is not allowed in a URL"),
                ("https://a/b c", "it has a character that is not allowed in a URL"),
            )
        ),
        (
            kubeconfig("https://x", {}, **{"proxy-url": "http://proxy:99999"}),
            "the cluster's proxy-url cannot be used: Port out of range 0-65535",
        ),
        (
            kubeconfig("https://x", {}, **{"proxy-url": "socks5://proxy"}),
            "the cluster's proxy-url must be a URL that begins with https:// or http://",
        ),
        *(
            (kubeconfig("https://x", {"token": token}), "the user's token has a character that cannot be sent")
            for token in ("ÎÏ\ncode", "a\x00b", "\ud800")
        ),
        (kubeconfig("https://x", {"client-certificate": "/nowhere"}), "/nowhere cannot be read: "),
        (
            kubeconfig("https://x", {}, **{"certificate-authority-data": "a"}),
            " cannot be read: ",
        ),
    ],
)
def test_kubeconfigs_that_cannot_be_used(write: Write, content: Any, sentence: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        resolve(write(content))
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


AS = {
    "as": "ann",
    "as-uid": "7",
    "as-groups": ["viewers", "größe"],
    "as-user-extra": {"example.org/Scopes%": ["a", ""], "ä_b": ["c"], "Ä_b": ["d"], "none": []},
}


async def test_impersonation_goes_with_every_call(write: Write) -> None:
    async with scripted_api() as api:
        api.then(reply(POD), refuse(401), reply(POD))
        access = KubeconfigAccess(write(kubeconfig(api.url, {"token": "t", **AS})))
        await get(access)
        access._renewed = float("-inf")
        write(kubeconfig(api.url, {"token": "u", **AS}))
        await get(access)
        for request in api.seen:
            sent = [(key, value) for key, value in request.headers.items() if key.startswith("Impersonate-")]
            assert sent == [
                ("Impersonate-User", "ann"),
                ("Impersonate-Uid", "7"),
                ("Impersonate-Group", "viewers"),
                ("Impersonate-Group", "größe"),
                ("Impersonate-Extra-example.org%2fscopes%25", "a"),
                ("Impersonate-Extra-example.org%2fscopes%25", ""),
                ("Impersonate-Extra-%c3%a4_b", "c"),
                ("Impersonate-Extra-%c3%84_b", "d"),
            ]
        assert tokens(api) == ["Bearer t", "Bearer t", "Bearer u"]
        api.then(reply(POD))
        await get(KubeconfigAccess(write(kubeconfig(api.url, {"token": "t"}))))
        assert not [key for key in api.seen[-1].headers if key.startswith("Impersonate-")]


@pytest.mark.parametrize(
    ("user", "sentence"),
    [
        *(
            ({name: AS[name]}, "the user has as-uid, as-groups or as-user-extra, but as is missing")
            for name in ("as-uid", "as-groups", "as-user-extra")
        ),
        ({"as": "", "as-groups": ["g"]}, "the user has as-uid, as-groups or as-user-extra, but as is missing"),
        ({"as": 5}, "the user's as must be a string"),
        ({"as": "a", "as-uid": 5}, "the user's as-uid must be a string"),
        ({"as": "a", "as-groups": "g"}, "the user's as-groups must be a list of strings"),
        ({"as": "a", "as-groups": [None]}, "the user's as-groups must be a list of strings"),
        ({"as": "a", "as-user-extra": ["g"]}, "the user's as-user-extra must hold lists of strings"),
        ({"as": "a", "as-user-extra": {"k": "v"}}, "the user's as-user-extra must hold lists of strings"),
        ({"as": "a\nb"}, "the user's as has a character that cannot be sent"),
        ({"as": "a", "as-uid": "\ud800"}, "the user's as-uid has a character that cannot be sent"),
        ({"as": "a", "as-groups": ["a", "\x00"]}, "the user's as-groups has a character that cannot be sent"),
        ({"as": "a", "as-user-extra": {"k": ["\r"]}}, "the user's as-user-extra has a character that cannot be sent"),
        (
            {"as": "a", "as-user-extra": {"\ud800": ["v"]}},
            "the user's as-user-extra has a character that cannot be sent",
        ),
    ],
)
def test_impersonations_that_cannot_be_sent(write: Write, user: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        resolve(write(kubeconfig("http://x", user)))
    assert str(caught.value).startswith(sentence)


def named(name: str, token: str) -> dict[str, Any]:
    """A kubeconfig with one context, and all in it of this name."""
    return {
        "current-context": name,
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "clusters": [{"name": name, "cluster": {"server": f"http://{token}.example"}}],
        "users": [{"name": name, "user": {"token": token}}],
    }


NOTHING = {"current-context": "", "contexts": None, "clusters": None, "users": None}


@pytest.mark.parametrize(
    ("contents", "context", "token"),
    [
        ((named("a", "one"), named("b", "two")), None, "one"),
        ((named("a", "one"), named("b", "two")), "b", "two"),
        ((named("a", "one"), named("a", "two")), None, "one"),
        ((named("a", "one"), NOTHING), None, "one"),
        ((NOTHING, named("b", "two")), None, "two"),
        (({"current-context": None}, named("b", "two"), named("c", "three")), None, "two"),
        (({"current-context": "c"}, named("b", "two"), named("c", "three")), None, "three"),
        (("", named("b", "two"), "# nothing"), None, "two"),
        ((None, named("b", "two"), None), None, "two"),
    ],
)
def test_of_several_files_the_first_that_says_it_counts(
    tmp_path: Path, contents: tuple[Any, ...], context: str | None, token: str
) -> None:
    for index, content in enumerate(contents):
        if content is not None:
            (tmp_path / str(index)).write_text(content if isinstance(content, str) else json.dumps(content))
    found = resolve(":".join(["", *(str(tmp_path / str(index)) for index in range(len(contents)))]), context or "")
    assert (found.server, found.authorization) == (f"http://{token}.example", f"Bearer {token}")


@pytest.mark.parametrize("name", ["here", "elsewhere"])
@pytest.mark.parametrize(
    "user",
    [
        {"token": "t"},
        {"tokenFile": "token"},
        {"username": "u", "password": "p"},
        {"token": "t", "username": "u", "password": "p"},
        {"client-certificate-data": b64("certificate"), "client-key-data": b64("key")},
        {"client-certificate": "certificate", "client-key": "key"},
        {"client-certificate": "token", "client-certificate-data": b64("certificate"), "client-key-data": b64("key")},
    ],
)
def test_the_official_client_reads_the_same(
    write: Write, tmp_path: Path, user: dict[str, Any], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for file in ("token", "certificate", "key"):
        (tmp_path / file).write_text(file)
    cluster = {"certificate-authority-data": b64(CA), "tls-server-name": "api", "proxy-url": "http://proxy:3128"}
    path = write(kubeconfig("https://x:6443/prefix/", user, **cluster))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    client: Any = kubernetes  # it has no types
    official = client.client.Configuration()
    client.config.load_kube_config(path, name, official, persist_config=False)

    def content(file: str | None) -> str:
        return Path(file).read_text() if file else ""

    found = resolve(path, name)
    assert found.server == official.host
    assert found.authorization == official.api_key.get("BearerToken", "")
    assert (found.ca, found.certificate, found.key) == (
        content(official.ssl_ca_cert),
        content(official.cert_file),
        content(official.key_file),
    )
    assert found.insecure is not official.verify_ssl
    assert (found.tls_server_name, found.proxy) == (official.tls_server_name or "", official.proxy or "")


@pytest.mark.parametrize(
    "users",
    [None, [], [{"name": "u"}], [{"name": "u", "user": None}], [{"name": "u", "user": {"token": None, "exec": None}}]],
)
def test_a_user_may_have_no_credentials(write: Write, users: Any) -> None:
    assert resolve(write({**kubeconfig("http://x", {}), "users": users})).authorization == ""


def test_what_is_null_or_empty_is_not_there(write: Write, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("from a file")
    (tmp_path / "ca.pem").write_text(CA)
    cluster = {"certificate-authority": "ca.pem", "certificate-authority-data": "", "insecure-skip-tls-verify": None}
    content = kubeconfig("https://x", {"token": "", "tokenFile": "token"}, **cluster, **{"proxy-url": ""})
    content["users"].append({"user": {"token": "nobody's"}})
    found = resolve(write(content))
    assert (found.authorization, found.ca, found.insecure) == ("Bearer from a file", CA, False)


@pytest.mark.parametrize(
    ("file", "flags", "token"),
    [
        ("fresh\n", {}, "fresh"),
        ("", {}, "stale"),
        (None, {}, "stale"),
        ("fresh", {"token": "given"}, "given"),
    ],
)
def test_a_token_file_counts_before_the_token_of_the_same_user(
    write: Write, tmp_path: Path, file: str | None, flags: dict[str, str], token: str
) -> None:
    """As in kubectl: the file is what is renewed, in a pod for example. The official Python client differs."""
    if file is not None:
        (tmp_path / "token").write_text(file)
    path = write(kubeconfig("https://x", {"token": "stale", "tokenFile": "token"}))
    found = asyncio.run(read_kubeconfig(path, Overrides(user_fields=flags)))
    assert found.authorization == f"Bearer {token}"


@pytest.mark.parametrize(
    "form",
    [
        lambda config: json.dumps(config, indent="\t"),
        lambda config: "\ufeff" + json.dumps(config, indent="\t"),
        lambda config: f"# ours\n{yaml.safe_dump(config)}\t# the end\n",
        lambda config: yaml.safe_dump(config).replace("\n", "\t\n"),
    ],
)
def test_tabs_where_kubectl_accepts_them(write: Write, tmp_path: Path, form: Callable[[Any], str]) -> None:
    (tmp_path / "own").write_text(form(kubeconfig("https://first", {})))
    assert resolve(str(tmp_path / "own")).server == "https://first"


def test_tabs_in_a_text_stay(write: Write) -> None:
    config = f"""{yaml.safe_dump(kubeconfig("https://x", {}))}"""
    quoted = config.replace("user: {}", 'user: {username: u, password: "a\t#b"}')
    assert quoted != config
    assert resolve(write(quoted)).authorization == "Basic " + b64("u:a\t#b")


def test_of_several_documents_the_first_counts(write: Write) -> None:
    first, second = (json.dumps(kubeconfig(f"https://{name}", {})) for name in ("first", "second"))
    assert resolve(write(f"{first}\n---\n{second}\n--- {{")).server == "https://first"


def test_a_name_may_look_like_a_date(write: Write) -> None:
    content = json.dumps(kubeconfig("https://x", {})).replace('"here"', "2026-02-30")
    assert resolve(write(content)).server == "https://x"


def test_relative_paths_are_those_of_their_own_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("clusters", "users", "here"):
        (tmp_path / folder).mkdir()
    client = AUTHORITY.issue_cert(common_name="crrd")
    (tmp_path / "clusters" / "ca.pem").write_text(CA)
    (tmp_path / "users" / "crt").write_bytes(client.cert_chain_pems[0].bytes())
    (tmp_path / "users" / "key").write_bytes(client.private_key_pem.bytes())
    user = {"client-certificate": "crt", "client-key": "./key", **plugin(tmp_path / "users", {"token": "t"})}
    user["exec"]["command"] = "./plugin"
    cluster = {"server": "https://x", "certificate-authority": "ca.pem"}
    context = {"current-context": "c", "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}]}
    (tmp_path / "clusters" / "config").write_text(
        json.dumps({**context, "clusters": [{"name": "c", "cluster": cluster}]})
    )
    (tmp_path / "users" / "config").write_text(json.dumps({"users": [{"name": "u", "user": user}]}))
    monkeypatch.chdir(tmp_path / "here")
    found = resolve("../clusters/config:../users/config")
    assert found.ca == CA
    assert found.certificate == client.cert_chain_pems[0].bytes().decode()
    assert found.key == client.private_key_pem.bytes().decode()
    assert found.authorization == "Bearer t"


@pytest.mark.parametrize("listed", ["clusters", "contexts", "users"])
def test_a_name_twice_in_one_file_is_refused(write: Write, listed: str) -> None:
    content = kubeconfig("http://x", {})
    content[listed].append(content[listed][0])
    with pytest.raises(ConfigurationError, match=rf"/kubeconfig names .* twice in its {listed}$"):
        resolve(write(content))


def test_contexts_that_are_not_there(write: Write) -> None:
    with pytest.raises(ConfigurationError, match=r"^it has no context named 'nowhere'$"):
        resolve(write(kubeconfig("http://x", {})), "nowhere")


@pytest.mark.parametrize("status", [{}, {"clientCertificateData": "x"}])
def test_plugins_that_give_nothing(write: Write, tmp_path: Path, status: dict[str, str]) -> None:
    with pytest.raises(ApiUnavailableError):
        resolve(write(kubeconfig("http://x", plugin(tmp_path, status))))


def test_without_verification_anything_is_trusted() -> None:
    context = tls_context("", insecure=True, where="here")
    assert context.verify_mode is ssl.CERT_NONE
    assert not context.check_hostname
    assert tls_context("", where="here").verify_mode is ssl.CERT_REQUIRED
    with pytest.raises(ConfigurationError, match=r"^here: "):
        tls_context("", certificate="no", key="no", where="here")


async def test_a_proxy_is_gone_through(write: Write) -> None:
    async with scripted_api() as proxy:
        proxy.then(reply(POD))
        access = KubeconfigAccess(write(kubeconfig("http://api.invalid", {}, **{"proxy-url": proxy.url})))
        await get(access)
        assert proxy.seen[0].headers["Host"] == "api.invalid"


def test_credentials_are_looked_for_in_the_order_of_kubectl(tmp_path: Path) -> None:
    outside = {"HOME": str(tmp_path)}
    inside = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443", **outside}
    named = find_access("/some/file", inside)
    assert isinstance(named, KubeconfigAccess)
    assert named.description == "the kubeconfig /some/file"
    cluster = find_access("", inside)
    assert isinstance(cluster, ServiceAccountAccess)
    assert cluster.description == f"the service account's token in {SERVICE_ACCOUNT}/token"
    assert cluster._server == "https://10.0.0.1:443"
    six = find_access("", {**inside, "KUBERNETES_SERVICE_HOST": "fd00::1"})
    assert isinstance(six, ServiceAccountAccess)
    assert six._server == "https://[fd00::1]:443"
    with pytest.raises(ConfigurationError, match=r"not in a cluster .* and no --kubeconfig: set --kubeconfig"):
        find_access("", outside)
    own = tmp_path / ".kube" / "config"
    own.parent.mkdir()
    assert isinstance(find_access("", inside), ServiceAccountAccess)
    own.write_text("{}")
    for environ in (inside, outside):
        assert find_access("", environ).description == f"the kubeconfig {own}"
    assert find_access("/some/file", inside).description == "the kubeconfig /some/file"


def test_a_home_that_cannot_be_looked_into_has_no_kubeconfig() -> None:
    """A name that is too long stands for a folder that may not be entered, which root always may."""
    home = "/" + "x" * 300
    inside = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443", "HOME": home}
    assert isinstance(find_access("", inside), ServiceAccountAccess)


async def test_a_kubeconfig_that_cannot_be_looked_at_is_not_found() -> None:
    with pytest.raises(ConfigurationError, match="file not found: check --kubeconfig"):
        await KubeconfigAccess("/" + "x" * 300).current()


async def test_a_context_is_never_the_pods_own_cluster(tmp_path: Path) -> None:
    inside = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443", "HOME": str(tmp_path)}
    own = tmp_path / ".kube" / "config"
    for environ in (inside, {"HOME": str(tmp_path)}):
        with pytest.raises(ConfigurationError) as caught:
            find_access("", environ, Overrides("elsewhere"))
        assert str(caught.value) == (
            f"--context elsewhere needs a kubeconfig: set --kubeconfig, or put the kubeconfig at {own}"
        )
    own.parent.mkdir()
    own.write_text(json.dumps(kubeconfig("http://here.example", {})))
    assert (await find_access("", inside, Overrides("elsewhere")).current()).server == "http://elsewhere.example/prefix"


class TestOverrides:
    """kubectl's flags for the connection, by the rules of client-go's clientcmd/client_config.go."""

    BASE = kubeconfig(
        "https://x",
        {"token": "own", "client-certificate-data": b64("cert"), "client-key-data": b64("key"), "as": "ann"},
        **{"certificate-authority-data": b64(CA), "tls-server-name": "x.example"},
    )

    def login(self, write: Write, **given: Any) -> Login:
        return asyncio.run(read_kubeconfig(write(self.BASE), Overrides(**given)))

    def test_entries(self, write: Write) -> None:
        assert self.login(write, cluster="d").server == "http://elsewhere.example/prefix"
        assert self.login(write, context="elsewhere", cluster="c", user="u").server == "https://x"
        for given, said in (
            ({"cluster": "nope"}, "it has no cluster named 'nope', which --cluster needs"),
            ({"user": "nope"}, "it has no user named 'nope', which --user needs"),
            ({"context": "nope"}, "it has no context named 'nope'"),
        ):
            with pytest.raises(ConfigurationError) as caught:
                self.login(write, **given)
            assert str(caught.value) == said

    def test_another_server_has_another_name(self, write: Write) -> None:
        found = self.login(write, cluster_fields={"server": "https://y:6443/"})
        assert (found.server, found.tls_server_name, found.ca) == ("https://y:6443", "", CA)
        found = self.login(write, cluster_fields={"server": "https://y", "tls-server-name": "y.example"})
        assert (found.server, found.tls_server_name) == ("https://y", "y.example")
        assert self.login(write, cluster_fields={"tls-server-name": "y.example"}).server == "https://x"

    def test_what_is_given_about_trust_replaces_what_there_is(self, write: Write, tmp_path: Path) -> None:
        found = self.login(write, cluster_fields={"insecure-skip-tls-verify": True})
        assert (found.insecure, found.ca) == (True, "")
        (tmp_path / "ca.pem").write_text("other")
        found = self.login(write, cluster_fields={"certificate-authority": str(tmp_path / "ca.pem")})
        assert (found.insecure, found.ca) == (False, "other")
        both = {"insecure-skip-tls-verify": True, "certificate-authority": "ca.pem"}
        with pytest.raises(ConfigurationError, match="exclude each other"):
            self.login(write, cluster_fields=both)

    def test_credentials(self, write: Write, tmp_path: Path) -> None:
        for name in ("cert", "key"):
            (tmp_path / name).write_text(f"my {name}")
        files = {"client-certificate": str(tmp_path / "cert"), "client-key": str(tmp_path / "key")}
        found = self.login(write, user_fields={"token": "mine", **files})
        assert (found.authorization, found.certificate, found.key) == ("Bearer mine", "my cert", "my key")
        assert (self.login(write).authorization, self.login(write).certificate) == ("Bearer own", "cert")

    def test_impersonation(self, write: Write) -> None:
        found = self.login(write, user_fields={"as": "bob", "as-uid": "7", "as-groups": ["a", "b"]})
        groups = (("Impersonate-Group", "a"), ("Impersonate-Group", "b"))
        assert found.impersonation == (("Impersonate-User", "bob"), ("Impersonate-Uid", "7"), *groups)

    async def test_a_server_needs_no_kubeconfig(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        given = Overrides(cluster_fields={"server": "http://x"}, user_fields={"token": "t"})
        found = await find_access("", {"HOME": str(tmp_path)}, given).current()
        assert (found.server, found.authorization) == ("http://x", "Bearer t")

    async def test_in_a_pod_they_replace_parts_of_the_service_account(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name, content in (("token", "pods"), ("ca.crt", CA), ("namespace", "shop")):
            (tmp_path / name).write_text(content)
        monkeypatch.setattr(config, "SERVICE_ACCOUNT", tmp_path)
        inside = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}
        found = await find_access("", inside, Overrides(user_fields={"as": "ann"})).current()
        assert (found.server, found.authorization, found.namespace) == ("https://10.0.0.1:443", "Bearer pods", "shop")
        assert found.impersonation == (("Impersonate-User", "ann"),)
        assert found.tls is not None
        assert found.tls.verify_mode is ssl.CERT_REQUIRED
        given = Overrides(cluster_fields={"insecure-skip-tls-verify": True}, user_fields={"token": "mine"})
        found = await find_access("", inside, given).current()
        assert found.tls is not None
        assert (found.authorization, found.tls.verify_mode) == ("Bearer mine", ssl.CERT_NONE)

    async def test_the_proxy_of_the_environment(self, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
        async with scripted_api() as proxy:
            monkeypatch.setenv("HTTP_PROXY", proxy.url)
            monkeypatch.setenv("no_proxy", "direct.invalid")
            proxy.then(reply(POD))
            await get(KubeconfigAccess(write(kubeconfig("http://api.invalid", {}))))
            assert proxy.seen[0].headers["Host"] == "api.invalid"
            own = kubeconfig("http://api.invalid", {}, **{"proxy-url": "http://other:3128"})
            assert (await KubeconfigAccess(write(own)).current()).proxy == "http://other:3128"
            direct = KubeconfigAccess(write(kubeconfig("http://direct.invalid", {})))
            assert (await direct.current()).proxy is None
        monkeypatch.setenv("HTTP_PROXY", "HTTPS://proxy.invalid")
        encrypted = await KubeconfigAccess(write(kubeconfig("http://api.invalid", {}))).current()
        assert encrypted.tls is not None, "the proxy's certificate is checked with the system's authorities"

    async def test_a_proxy_that_is_not_there_or_refuses_is_named_without_its_password(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def refuse_all(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
            writer.close()

        proxy = await asyncio.start_server(refuse_all, "127.0.0.1", 0)
        host, port = proxy.sockets[0].getsockname()
        monkeypatch.setenv("HTTPS_PROXY", f"http://ann:secret@{host}:{port}")
        access = KubeconfigAccess("", Overrides(cluster_fields={"server": "https://api.invalid"}))
        for said in (
            "the proxy refuses the connection: Proxy Authentication Required (407)",
            f"cannot connect to the proxy {host}:{port}: Connection refused",
        ):
            with pytest.raises(ApiUnavailableError) as caught:
                await get(access)
            assert str(caught.value).endswith(f": {said}")
            proxy.close()
            await proxy.wait_closed()
