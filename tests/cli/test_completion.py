"""What is offered while somebody types `kubectl recreate`: by kubectl itself, in bash, in zsh."""

import asyncio
import os
import shutil
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from crrd.cli.completion import _BASH, complete
from crrd.cli.main import main
from crrd.kube.resources import PODS
from tests.support.played_cluster import NAMESPACE, PlayedCluster, played

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[PlayedCluster]:
    async with played(tmp_path) as found:
        await found.workload("Deployment", "web", 1)
        await found.workload("StatefulSet", "db", 1, "app")
        yield found


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """The console scripts, as an installation makes them."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, function in (
        ("kubectl-recreate", "kubectl_recreate"),
        ("kubectl_complete-recreate", "kubectl_complete_recreate"),
    ):
        script = folder / name
        code = f"from crrd.cli.main import {function}; {function}()"
        script.write_text(f"#!/bin/sh\nexec {sys.executable} -c '{code}' \"$@\"\n")
        script.chmod(0o755)
    return folder


async def run(cluster: PlayedCluster, programs: Path, *command: str) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        *command,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env={**os.environ, "KUBECONFIG": str(cluster.kubeconfig), "PATH": f"{programs}:{os.environ['PATH']}"},
    )
    out, _ = await process.communicate()
    return process.returncode or 0, out.decode()


async def offered(cluster: PlayedCluster, programs: Path, *words: str) -> list[str]:
    return (await run(cluster, programs, "kubectl_complete-recreate", *words))[1].splitlines()


async def test_names_of_what_is_there(cluster: PlayedCluster, programs: Path) -> None:
    assert await offered(cluster, programs, "deploy/") == ["deploy/web", ":4"]
    assert await offered(cluster, programs, "stat") == ["statefulset/", "status", ":6"]
    assert await offered(cluster, programs, "deployment/web", "-c", "") == ["app", "side", ":4"]
    assert await offered(cluster, programs, "deployment/web", "-c", "app,") == ["app,side", ":4"]
    assert await offered(cluster, programs, "-c", "app", "pod/d") == ["pod/db-0", ":4"]
    assert await offered(cluster, programs, "pod/db-0", "--container", "") == ["app", ":4"]
    inits = [{"name": "migrate", "image": "i"}, {"name": "proxy", "image": "i", "restartPolicy": "Always"}]
    spec = {"initContainers": inits, "containers": [{"name": "app", "image": "i"}]}
    await cluster.client.create(PODS, NAMESPACE, {"metadata": {"name": "one"}, "spec": spec})
    assert await offered(cluster, programs, "pod/one", "-c", "") == ["app", "proxy", ":4"], "what can be recreated"
    assert "default" in await offered(cluster, programs, "-n", "")
    assert await offered(cluster, programs, "deployment/web", "another") == [":4"]
    assert await offered(cluster, programs, "deployment/web", "stat") == ["statefulset/", ":6"]
    assert await offered(cluster, programs, "pod/db-0", "deploy/web", "-c", "") == ["app", "side", ":4"]
    assert (await cluster.recreate("deployment/web", "-c", "app", "--run", "one")).code == 0
    assert await offered(cluster, programs, "status", "") == ["one", ":4"]
    assert await offered(cluster, programs, "-n", NAMESPACE, "resume", "") == ["one", ":4"]
    assert await offered(cluster, programs, "resume", "one", "") == [":4"]


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not on the PATH")
async def test_kubectl_asks_and_runs_the_plugin(cluster: PlayedCluster, programs: Path) -> None:
    code, out = await run(cluster, programs, "kubectl", "__complete", "recreate", "deployment/w")
    assert (code, out.splitlines()) == (0, ["deployment/web", ":4"])
    code, out = await run(cluster, programs, "kubectl", "recreate", "deployment/web", "-c", "app", "--dry-run")
    assert (code, out.splitlines()[0].startswith("batch 1: web-")) == (0, True)


@pytest.mark.parametrize("shell", ["bash", "zsh"])
async def test_shells(cluster: PlayedCluster, programs: Path, shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["completion", shell])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not here to load it")
    file = programs / "completion"
    if shell == "bash":
        ask = "COMP_LINE='crrd recreate deploy/'; COMP_WORDS=($COMP_LINE); COMP_CWORD=2; _crrd_recreate\n"
        ask += "printf '%s\\n' \"${COMPREPLY[@]}\""
        file.write_text(f"compopt() {{ :; }}\n{text}{ask}\n")
    else:
        ask = 'words=(crrd recreate deploy/); CURRENT=3; compadd() { print -l -- "${@[-1]}" }; _crrd_recreate'
        file.write_text(f"compdef() {{ : }}\n{text}{ask}\n")
    code, out = await run(cluster, programs, shell, str(file))
    assert (code, "deploy/web" in out.splitlines()) == (0, True), out


@pytest.mark.parametrize(
    ("line", "parts", "offered"),
    [
        ("crrd recreate --max-unavailable=2 deploy/", "crrd recreate --max-unavailable = 2 deploy/", "deploy/web"),
        ("crrd recreate --as system:masters deploy/", "crrd recreate --as system : masters deploy/", "deploy/web"),
        ("crrd recreate --dry-run=cl", "crrd recreate --dry-run = cl", "client"),
        ("crrd recreate --dry-run=", "crrd recreate --dry-run =", "client"),
        ("crrd recreate -l app= -o ", "crrd recreate -l app = -o ''", "json"),
    ],
)
async def test_bash_parts_words(cluster: PlayedCluster, programs: Path, line: str, parts: str, offered: str) -> None:
    file = programs / "completion"
    typed = f"COMP_LINE='{line}'; COMP_WORDS=({parts}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _crrd_recreate"
    file.write_text(f"compopt() {{ :; }}\n{_BASH}{typed}; printf '%s\\n' \"${{COMPREPLY[@]}}\"\n")
    code, out = await run(cluster, programs, "bash", str(file))
    assert (code, offered in out.splitlines()) == (0, True), out


@pytest.mark.parametrize(
    ("words", "offers"),
    [
        (["--max-un"], ["--max-unavailable"]),
        (["status", "--w"], ["--watch"]),
        (["abort", "--as"], ["--as", "--as-group", "--as-uid"]),
        (["resume", "a", "--retry"], ["--retry-failed"]),
        (["abort", "--max"], []),
        (["--dry"], ["--dry-run", "--dry-run=client", "--dry-run=server"]),
        (["deployment/web", "-o", ""], ["json", "name", "text", "yaml"]),
        (["deployment/web", "--template", ""], ["adopt", "keep"]),
        (["--timeout", ""], []),
        (["--kubeconfig", "/nonexistent", "deployment/"], []),
        (["--max-unavailable", "none", "deployment/"], []),
    ],
)
def test_what_needs_no_cluster_and_what_goes_wrong(
    words: list[str], offers: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", "/nonexistent")
    monkeypatch.delenv("KUBECONFIG", raising=False)
    assert complete(words) == 0
    assert capsys.readouterr().out.splitlines() == [*offers, ":4"]
