"""kubectl against the local API server: what people will do by hand in the demo."""

import asyncio
import json
import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from crrd_localnode.api.crds import crd_path
from tests.support.local_api import CRRS, PODS, Api, pod, running

KUBECTL = shutil.which("kubectl")
pytestmark = pytest.mark.skipif(KUBECTL is None, reason="kubectl is not on the PATH")
REQUEST = """
apiVersion: apps.kruise.io/v1alpha1
kind: ContainerRecreateRequest
metadata:
  name: again
  labels: {crr.apps.kruise.io/node-name: n1}
spec:
  podName: web
  containers: [{name: app}]
"""
POD = """
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  nodeName: n1
  containers: [{name: a, image: b}]
"""
POLICY = """
apiVersion: crrd.dev/v1alpha1
kind: ContainerRecreatePolicy
metadata: {name: web}
spec:
  targetRef: {apiVersion: apps/v1, kind: Deployment, name: front}
  triggers: {configChange: {}}
"""
Kubectl = Callable[..., Awaitable[tuple[int, str]]]


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    async with running() as api:
        yield api


@pytest.fixture
def kubectl(api: Api, tmp_path: Path) -> Kubectl:
    config = api.server.kubeconfig(tmp_path / "config")

    async def run(*arguments: str, given: str = "") -> tuple[int, str]:
        process = await asyncio.create_subprocess_exec(
            KUBECTL or "", *arguments,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
            env={**os.environ, "KUBECONFIG": str(config), "HOME": str(tmp_path)},
        )  # fmt: skip
        output, _ = await process.communicate(given.encode())
        return process.returncode or 0, output.decode()

    return run


async def test_a_request_from_apply_to_delete(api: Api, kubectl: Kubectl) -> None:
    await api.post(PODS, pod())
    assert await kubectl("apply", "-f", "-", given=REQUEST) == (
        0, "containerrecreaterequest.apps.kruise.io/again created\n"
    )  # fmt: skip
    assert (await kubectl("apply", "-f", "-", given=REQUEST))[1].endswith("unchanged\n")
    patch = '{"status":{"phase":"Recreating"}}'
    assert (await kubectl("patch", "crr", "again", "--subresource=status", "--type=merge", "-p", patch))[0] == 0
    head, row = (await kubectl("get", "crr"))[1].splitlines()
    assert head.split() == ["NAME", "PHASE", "POD", "NODE", "ACTION", "AGE"]
    assert row.split()[:4] == ["again", "Recreating", "web", "n1"]
    code, text = await kubectl("patch", "crr", "again", "--type=merge", "-p", '{"spec":{"podName":"other"}}')
    assert code == 1
    assert "the spec cannot be changed after creation" in text
    assert "Pod Name:  web" in (await kubectl("describe", "crr", "again"))[1]
    assert "phase: Recreating" in (await kubectl("get", "crr", "again", "-o", "yaml"))[1]
    assert (await kubectl("wait", "crr/again", "--for=jsonpath={.status.phase}=Recreating", "--timeout=20s"))[0] == 0
    assert (await kubectl("delete", "crr", "again"))[0] == 0
    assert (await api.get(CRRS + "/again")).status == 404


async def test_what_is_written_in_one_version_is_read_in_the_other(api: Api, kubectl: Kubectl) -> None:
    beta = REQUEST.replace("v1alpha1", "v1beta1")
    assert (await kubectl("apply", "-f", "-", given=beta))[0] == 0
    for version in ("v1alpha1", "v1beta1"):
        kind = f"containerrecreaterequests.{version}.apps.kruise.io"  # by a short name kubectl asks for the newest
        text = (await kubectl("get", kind, "again", "-o", "yaml"))[1]
        assert f"apiVersion: apps.kruise.io/{version}\n" in text
        assert "podName: web" in text
        head, row = (await kubectl("get", kind))[1].splitlines()
        assert (head.split()[0], row.split()[0]) == ("NAME", "again")
        patch = f'{{"status":{{"message":"{version}"}}}}'
        assert (await kubectl("patch", kind, "again", "--subresource=status", "--type=merge", "-p", patch))[0] == 0
        assert (await api.get(CRRS + "/again")).body["status"]["message"] == version
    assert (await kubectl("apply", "-f", "-", given=beta))[1].endswith("unchanged\n")
    assert (await kubectl("apply", "-f", "-", given=REQUEST))[1].endswith(("unchanged\n", "configured\n"))
    text = (await kubectl("get", "crr.v1beta1.apps.kruise.io", "again", "-o", "yaml"))[1]
    assert text.startswith("apiVersion: apps.kruise.io/v1beta1\n")
    assert (await api.get(CRRS + "/again")).body["apiVersion"] == "apps.kruise.io/v1alpha1"


async def test_typing_mistakes_are_caught(kubectl: Kubectl) -> None:
    code, text = await kubectl("apply", "-f", "-", given=REQUEST.replace("podName", "podname"))
    assert code == 1
    assert 'unknown field "spec.podname"' in text
    code, text = await kubectl("apply", "-f", "-", given=REQUEST.replace("[{name: app}]", "[]"))
    assert code == 1
    assert "should have at least 1 items" in text


async def test_pods(api: Api, kubectl: Kubectl) -> None:
    assert (await kubectl("apply", "-f", "-", given=POD))[0] == 0
    assert (await kubectl("apply", "-f", "-", given=POD.replace("image: b", "image: 'b:2'")))[0] == 0
    assert (await api.get(PODS + "/web")).body["spec"]["containers"][0]["image"] == "b:2"
    row = (await kubectl("get", "pods", "-o", "wide"))[1].splitlines()[1].split()
    assert row[:4] == ["web", "0/1", "Pending", "0"]
    assert row[6] == "n1"
    assert "Image:        b:2" in (await kubectl("describe", "pod", "web"))[1]
    code, text = await kubectl("apply", "-f", "-", given=POD.replace("nodeName: n1", "nodeName: n2"))
    assert code == 1
    assert "pod updates may not change fields" in text
    assert (await kubectl("delete", "pod", "web", "--force", "--grace-period=0"))[0] == 0


async def test_the_columns_of_policies(api: Api, kubectl: Kubectl) -> None:
    assert (await kubectl("apply", "-f", "-", given=POLICY))[0] == 0
    head, row = (await kubectl("get", "crp"))[1].splitlines()
    assert head.split() == ["NAME", "TARGET", "READY", "REASON", "RUN", "AGE"]
    assert row.split()[:2] == ["web", "front"]
    status = {
        "conditions": [
            {
                "type": kind,
                "status": "True",
                "reason": reason,
                "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }
            for kind, reason in (("Other", "No"), ("Ready", "Idle"))
        ],
        "run": {"name": "front-1"},
    }
    patch = json.dumps({"status": status})
    assert (await kubectl("patch", "crp", "web", "--subresource=status", "--type=merge", "-p", patch))[0] == 0
    assert (await kubectl("get", "crp"))[1].splitlines()[1].split()[:5] == ["web", "front", "True", "Idle", "front-1"]


async def test_explain_and_the_definition_itself(kubectl: Kubectl) -> None:
    text = (await kubectl("explain", "crr.spec.strategy"))[1]
    assert "unreadyGracePeriodSeconds" in text
    assert "enum: Fail, Ignore" in text
    assert (await kubectl("apply", "-f", str(crd_path())))[0] == 0
    assert "containerrecreaterequests.apps.kruise.io" in (await kubectl("get", "crd"))[1]
