"""The uninstall: whatever is active, nothing stays unready or half deleted; no manager runs here."""

import asyncio
import json
import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from crrd.core.api import types as model
from tests.support.local_api import CRRS, PODS, Api, crr, pod, running
from tests.support.manifests import MANIFESTS, needs_kubectl

pytestmark = [needs_kubectl, pytest.mark.skipif(shutil.which("sh") is None, reason="there is no shell")]
Json = dict[str, Any]
CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    async with running() as api:
        yield api


async def uninstall(api: Api, folder: Path, *arguments: str, path: str = os.environ["PATH"]) -> tuple[int, str]:
    config = api.server.kubeconfig(folder / "config")
    process = await asyncio.create_subprocess_exec(
        "sh", str(MANIFESTS / "uninstall.sh"), *arguments,
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "KUBECONFIG": str(config), "HOME": str(folder), "PATH": path},
    )  # fmt: skip
    output, _ = await process.communicate()
    return process.returncode or 0, output.decode()


def entry(key: str, agent: str = "ContainerRecreateRequest") -> Json:
    return {"userAgent": agent, "key": key}


async def held(api: Api, name: str, *entries: Json, message: str = "") -> None:
    """A pod that these reasons make unready, or a condition with this message."""
    message = message or json.dumps(entries, separators=(",", ":"))
    conditions = [
        {"type": "Ready", "status": "False"},
        {"type": model.READINESS_GATE, "status": "False", "message": message},
    ]
    made = await api.post(PODS, pod(name))
    assert made.status == 201, made.body
    assert (await api.patch(f"{PODS}/{name}/status", {"status": {"conditions": conditions}})).status == 200


async def condition(api: Api, name: str) -> tuple[str, str]:
    conditions = (await api.get(f"{PODS}/{name}")).body["status"]["conditions"]
    assert [each["type"] for each in conditions] == ["Ready", model.READINESS_GATE]
    return conditions[1]["status"], conditions[1].get("message", "")


async def test_without_a_manager_everything_of_ours_is_released_and_nothing_else(api: Api, tmp_path: Path) -> None:
    others = entry("web-1", 'Operation "Job"')
    await held(api, "web-0", entry("default/one"), entry("default/two"))
    await held(api, "web-1", entry("default/one"), others, entry("default/two"))
    await held(api, "web-2", others)
    for name, finalizers in (("one", [model.FINALIZER]), ("two", [model.FINALIZER, "a.example/b"]), ("three", [])):
        assert (await api.post(CRRS, crr(name))).status == 201
        assert (await api.patch(f"{CRRS}/{name}", {"metadata": {"finalizers": finalizers}})).status == 200

    async def other_controller() -> None:
        """Takes its own finalizer when the request is deleted, as its owner would."""
        while True:
            found = (await api.get(f"{CRRS}/two")).body
            if found["metadata"].get("finalizers") == ["a.example/b"]:
                await api.patch(f"{CRRS}/two", {"metadata": {"finalizers": []}})
                return
            await asyncio.sleep(0.05)

    taking = asyncio.create_task(other_controller())
    code, output = await uninstall(api, tmp_path)
    await taking
    assert code == 0, output
    assert output.splitlines()[-1] == "done: all requests are deleted, and no pod is kept unready"
    assert await condition(api, "web-0") == ("True", "")
    assert await condition(api, "web-1") == ("False", json.dumps([others], separators=(",", ":")))
    assert await condition(api, "web-2") == ("False", json.dumps([others], separators=(",", ":")))
    assert (await api.get(CRRS)).body["items"] == []


async def test_what_was_installed_goes_too_and_once_more_does_no_harm(api: Api, tmp_path: Path) -> None:
    await held(api, "web-0", entry("default/one"))
    await api.post(CRRS, crr("one"))
    await api.patch(f"{CRRS}/one", {"metadata": {"finalizers": [model.FINALIZER]}})
    assert (await api.delete(f"{CRRS}/one")).status == 200  # and waits for a manager that is no more
    for _ in range(2):
        code, output = await uninstall(api, tmp_path, "-f", str(MANIFESTS / "base" / "crd.yaml"))
        assert code == 0, output
        assert await condition(api, "web-0") == ("True", "")
        assert (await api.get(CRRS)).status == 404


@pytest.mark.parametrize(("verb", "time"), [("delete", 1), ("get", 1), ("get", 2)])
async def test_the_definition_may_go_between_two_questions(api: Api, tmp_path: Path, verb: str, time: int) -> None:
    kubectl, shim, asked = shutil.which("kubectl"), tmp_path / "kubectl", tmp_path / "asked"
    gone = f"{kubectl} delete crd {model.PLURAL}.{model.GROUP} >> {tmp_path}/deleted"
    shim.write_text(f"""#!/bin/sh
case "$*" in "{verb} {model.PLURAL}"*)
  echo >> {asked}
  if test "$(wc -l < {asked})" -eq {time}; then {gone}; fi;;
esac
exec {kubectl} "$@"
""")
    shim.chmod(0o755)
    code, output = await uninstall(api, tmp_path, path=f"{tmp_path}:{os.environ['PATH']}")
    assert code == 0, output
    assert "deleted" in (tmp_path / "deleted").read_text()
    assert "error" not in output, "what ends well shows no error"
    assert output.splitlines()[-1].startswith("done: ")


@pytest.mark.parametrize(("question", "nth"), [("get mutatingwebhookconfiguration", 1), ("get crd", 1), ("get crd", 3)])
async def test_what_cannot_be_asked_is_not_taken_for_an_answer(
    api: Api, tmp_path: Path, question: str, nth: int
) -> None:
    """From the nth time on, the API server does not answer this question: nothing is deleted, or said to be."""
    await held(api, "web-0", entry("default/one"))
    await api.post(CRRS, crr("one"))
    await api.patch(f"{CRRS}/one", {"metadata": {"finalizers": [model.FINALIZER]}})
    kubectl, shim, asked = shutil.which("kubectl"), tmp_path / "kubectl", tmp_path / "asked"
    shim.write_text(f"""#!/bin/sh
case "$*" in "{question}"*)
  echo >> {asked}
  if test "$(wc -l < {asked})" -ge {nth}; then echo "Error from server (Forbidden)" >&2; exit 1; fi;;
esac
exec {kubectl} "$@"
""")
    shim.chmod(0o755)
    code, output = await uninstall(api, tmp_path, path=f"{tmp_path}:{os.environ['PATH']}")
    assert code != 0, output
    assert "Forbidden" in output
    assert "done: " not in output
    if nth == 1:
        assert "deletionTimestamp" not in (await api.get(f"{CRRS}/one")).body["metadata"]


async def test_what_is_still_being_deleted_is_said(api: Api, tmp_path: Path) -> None:
    """Who installs again at once gets half of it: a namespace that is being deleted takes no new objects."""
    kubectl, shim = shutil.which("kubectl"), tmp_path / "kubectl"
    shim.write_text(f"""#!/bin/sh
case "$*" in "delete --ignore-not-found --timeout=60s"*) exit 1;; esac
exec {kubectl} "$@"
""")
    shim.chmod(0o755)
    arguments = ("-f", str(MANIFESTS / "base" / "crd.yaml"))
    code, output = await uninstall(api, tmp_path, *arguments, path=f"{tmp_path}:{os.environ['PATH']}")
    assert code == 0, output
    assert "still being deleted" in output.splitlines()[-2]


FLAGS = ("--context", "prod", "--kubeconfig=it's mine.yaml", "-s", "https://x", "--token", "secret", "--as=ann")


def scripted(folder: Path, *arguments: str) -> tuple[subprocess.CompletedProcess[str], list[list[str]]]:
    """The end of the script, and the calls of a kubectl that finds nothing."""
    (folder / "kubectl").write_text(f"""#!/bin/sh
{{ printf '%s\\t' "$@"; echo; }} >> {folder}/calls
""")
    (folder / "kubectl").chmod(0o755)
    (folder / "calls").touch()
    command = ["sh", str(MANIFESTS / "uninstall.sh"), *arguments]
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    return ended, [line.split("\t")[:-1] for line in (folder / "calls").read_text().splitlines()]


def test_every_call_goes_to_the_cluster_that_is_given(tmp_path: Path) -> None:
    """A call without these flags would delete the requests of the current context's cluster."""
    ended, calls = scripted(tmp_path, "-f", "install.yaml", *FLAGS)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert [tuple(call[-len(FLAGS) :]) for call in calls] == [FLAGS] * len(calls)
    deleted = [call[: -len(FLAGS)] for call in calls if call[0] == "delete"]
    delete = ["delete", "--ignore-not-found"]
    assert deleted == [[*delete, wait, "-f", "install.yaml"] for wait in ("--wait=false", "--timeout=60s")]
    assert len([call for call in calls if "install.yaml" in call]) == len(deleted)
    (shown, *_) = ended.stdout.splitlines()
    assert shown.endswith("--context prod '--kubeconfig=it'\\''s mine.yaml' -s https://x --as=ann")


@pytest.mark.parametrize(
    "arguments", [("install.yaml",), ("-n", "crrd"), ("-l", "a=b"), ("-f",), ("--context",), ("--dry-run=client",)]
)
def test_what_would_change_the_calls_is_refused(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    ended, calls = scripted(tmp_path, *arguments)
    assert (ended.returncode, calls) == (2, [])
    assert ended.stderr.startswith(arguments[0])


async def test_a_definition_that_is_being_deleted_is_let_go(api: Api, tmp_path: Path) -> None:
    """Somebody deleted it, or everything, with kubectl: it waits for its requests, and they for a manager."""
    await held(api, "web-0", entry("default/one"))
    await api.post(CRRS, crr("one"))
    await api.patch(f"{CRRS}/one", {"metadata": {"finalizers": [model.FINALIZER]}})
    definition = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{model.PLURAL}.{model.GROUP}"
    assert (await api.delete(definition)).body["metadata"]["deletionTimestamp"]
    code, output = await uninstall(api, tmp_path)
    assert code == 0, output
    assert await condition(api, "web-0") == ("True", "")
    assert (await api.get(definition)).status == 404


OPTION = "--server=http://127.0.0.1:9"
FORGED = f"\ndefault\t{OPTION}\t1\t[]"
"""Looks like another pod, by the name of an option of kubectl."""
OUR_ENTRY, OTHERS_ENTRY = (json.dumps(each, separators=(",", ":")) for each in (entry("default/one"), entry("a", "b")))
COMMAS = json.dumps(entry(",]a,,b[,", "[,c,,"), separators=(",", ":"))
MESSAGES = {
    "line": (f"[{OUR_ENTRY}]{FORGED}{OUR_ENTRY}", f"[]{FORGED}"),
    "line in another entry": (
        json.dumps([entry("default/one"), entry(f"a{FORGED}", "b")], separators=(",", ":")),
        json.dumps([entry(f"a{FORGED}", "b")], separators=(",", ":")),
    ),
    "control characters": (
        f"[{OUR_ENTRY},{OTHERS_ENTRY}]\a\v\x1b[2J\U000e0001é",
        f"[{OTHERS_ENTRY}]\a\v\x1b[2J\U000e0001é",
    ),
    "commas in another entry": (f"[{OUR_ENTRY},{COMMAS},{OUR_ENTRY},{OUR_ENTRY}]", f"[{COMMAS}]"),
    "commas after ours": (f"[{OUR_ENTRY},{OUR_ENTRY},{COMMAS}]", f"[{COMMAS}]"),
    "spaces": (
        json.dumps([entry("default/one"), entry("a", "b"), entry("default/two")]),
        f"[{json.dumps(entry('a', 'b'))}]",
    ),
    "quotes": (f"[{OUR_ENTRY},{OTHERS_ENTRY}]'\"\\$(exit 1)`exit 1`", f"[{OTHERS_ENTRY}]'\"\\$(exit 1)`exit 1`"),
}
"""A message, which anybody may have written who may write a pod's status, and what is left of it."""


@pytest.mark.parametrize("what", MESSAGES)
async def test_a_message_never_becomes_an_argument(api: Api, tmp_path: Path, what: str) -> None:
    message, left = MESSAGES[what]
    await held(api, "web-0", message=message)
    shim, arguments = tmp_path / "kubectl", tmp_path / "arguments"
    shim.write_text(f"""#!/bin/sh
printf '%s\\n' "$@" >> {arguments}
exec {shutil.which("kubectl")} "$@"
""")
    shim.chmod(0o755)
    code, output = await uninstall(api, tmp_path, path=f"{tmp_path}:{os.environ['PATH']}")
    assert not [each for each in arguments.read_text().split("\n") if each.startswith(OPTION)], output
    assert code == 0, output
    assert await condition(api, "web-0") == ("False", left)


async def test_beside_openkruise_nothing_is_touched(api: Api, tmp_path: Path) -> None:
    await api.post(CRRS, crr("one"))
    body = {"metadata": {"name": "kruise-mutating-webhook-configuration"}, "webhooks": []}
    assert (await api.post(CONFIGURATIONS, body)).status == 201
    code, output = await uninstall(api, tmp_path, "-k", str(MANIFESTS / "default"))
    assert code == 2
    cluster, why, *_ = output.splitlines()
    assert cluster == f"cluster: context local, {api.server.url}"
    assert why.startswith("OpenKruise is installed")
    assert (await api.get(f"{CRRS}/one")).status == 200
