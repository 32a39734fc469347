"""kubectl's flags for the connection, on the command line of `crrd recreate`."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from crrd.lib.errors import ConfigurationError
from tests.support.command import crrd
from tests.support.played_cluster import NAMESPACE, PlayedCluster, played
from tests.support.scripted_api import ScriptedApi, reply, scripted_api
from tests.support.sessions import command

NOTHING = {"metadata": {"resourceVersion": "1"}, "items": []}


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[PlayedCluster]:
    async with played(tmp_path) as found:
        yield found


@pytest.fixture
async def api() -> AsyncIterator[ScriptedApi]:
    async with scripted_api() as found:
        for kind in ("ContainerRecreateRequestList", "PodList", "PodList"):
            found.then(reply({"kind": kind, **NOTHING}))
        yield found


async def test_a_run_without_a_kubeconfig_and_the_command_that_continues_it(cluster: PlayedCluster) -> None:
    await cluster.workload("Deployment", "web", 2, "app")
    access = ("--server", cluster.api.url, "--as", "ann", "--as-group", "a", "--as-group", "b", "--request-timeout=20s")
    words = ("deployment/web", "-c", "app", "--run", "mine", "--partition", "1", "--token", "secret")
    code, out, err = await crrd("recreate", *words, *access)
    assert (code, err) == (0, "")
    shown = f"--token TOKEN --server {cluster.api.url} --as ann --as-group a --as-group b --request-timeout 20s"
    end = out.splitlines()[-1]
    assert end.partition("to continue: ")[2].startswith(f"crrd recreate {shown} resume mine -n default --yes (after ")
    assert "secret" not in out + json.dumps(await cluster.requests())
    line = end.partition("to continue: crrd ")[2].partition(" (after")[0]
    code, out, err = await crrd(*line.split())
    assert (code, len(cluster.stops)) == (0, 2), err


async def test_headers(api: ScriptedApi) -> None:
    flags = ("-s", api.url, "--token", "t", "--as", "ann", "--as-uid", "7", "--as-group", "a", "--as-group", "b")
    code, out, err = await crrd("recreate", *flags, "status")
    assert (code, out, err) == (0, "no runs\n", "")
    for seen in api.seen:
        assert seen.headers["Authorization"] == "Bearer t"
        assert (seen.headers["Impersonate-User"], seen.headers["Impersonate-Uid"]) == ("ann", "7")
        assert seen.headers.getall("Impersonate-Group") == ["a", "b"]


async def test_a_proxy(api: ScriptedApi) -> None:
    code, out, err = await crrd("recreate", "status", "-s", "http://api.invalid", http_proxy=api.url)
    assert (code, out, err) == (0, "no runs\n", "")
    assert {each.headers["Host"] for each in api.seen} == {"api.invalid"}


async def test_a_time_limit_for_each_call() -> None:
    async with scripted_api() as silent:
        code, out, err = await crrd("recreate", "status", "-s", silent.url, "--request-timeout", "1")
    assert (code, out) == (1, "")
    assert err.startswith("crrd recreate: cannot reach the API server: list ")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--cluster", "c"), "--cluster c needs a kubeconfig: set --kubeconfig, or put the kubeconfig at "),
        (("--user", "u"), "--user u needs a kubeconfig: "),
        (("-s", "here"), "the given flags: the cluster's server must be a URL that begins with https:// or http://"),
        (
            ("-s", "http://x", "--as-uid", "7"),
            "the given flags: the user has as-uid, as-groups or as-user-extra, but as",
        ),
        (("-s", "https://x", "--certificate-authority", "/nope"), "the given flags: /nope cannot be read: "),
    ],
)
async def test_errors_name_the_plugin(flags: tuple[str, ...], said: str) -> None:
    code, out, err = await crrd("recreate", "status", *flags)
    assert (code, out, err.startswith(f"crrd recreate: {said}"), len(err.splitlines())) == (2, "", True, 1), err


def test_a_flag_with_a_value_as_kubectl_takes_it() -> None:
    for flag in ("--insecure-skip-tls-verify", "--insecure-skip-tls-verify=true"):
        assert command("status", flag).overrides.cluster_fields == {"insecure-skip-tls-verify": True}
    for words in (("status",), ("status", "--insecure-skip-tls-verify=false")):
        assert command(*words).overrides.cluster_fields == {}
        assert command(*words).access_flags == ""
    for given, seconds in (("0", 0), ("500ms", 1), ("1001ms", 2), ("1m", 60)):
        assert command("status", "--request-timeout", given).request_timeout == seconds
    start = ("deployment/web", "-c", "app")
    for flags, yes in (
        (("--yes=true",), True),
        (("-y=1",), True),
        (("-y", "--yes=False"), False),
        (("--yes=f", "-y"), True),
    ):
        assert command(*start, *flags).yes is yes
    off = command("resume", "r", "--yes=false", "--force=false", "--retry-failed=false", "-A=false", "--timeout", "0")
    assert (off.resume_flags, off.changed_options) == (("--timeout", "0s"), {"force": False})
    for word, why in (
        ("--dry-run=sever", "--dry-run is 'sever', but must be none, client or server"),
        ("--yes=no", "--yes is 'no', but must be true or false"),
    ):
        with pytest.raises(ConfigurationError, match=f"^{why}$"):
            command(*start, word)
    assert command("-n", NAMESPACE, "deployment/web", "-c", "app", "--as=ann").overrides.user_fields == {"as": "ann"}
