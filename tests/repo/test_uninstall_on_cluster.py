"""The uninstall on a real API server, the one that CRRD_TEST_KUBECONFIG names: it deletes a CRD in its own order.

Takes the CRD and all requests away, and puts the CRD back. Not for a cluster that runs crrd, or has requests.
"""

import json
import os
import secrets
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from crrd.core.api import types as model
from tests.support.manifests import MANIFESTS, needs_kubectl

KUBECONFIG = os.environ.get("CRRD_TEST_KUBECONFIG", "")
pytestmark = [
    needs_kubectl,
    pytest.mark.cluster,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not KUBECONFIG, reason="CRRD_TEST_KUBECONFIG names no cluster: the local API server is asked"),
]
CRD_FILE, CRD = MANIFESTS / "base" / "crd.yaml", f"{model.PLURAL}.{model.GROUP}"
HELD = json.dumps([{"userAgent": "ContainerRecreateRequest", "key": "one"}], separators=(",", ":"))


@dataclass(frozen=True)
class Server:
    """kubectl in a namespace of the test's own."""

    namespace: str

    def ran(self, *words: str, given: str = "") -> tuple[int, str]:
        environment = {**os.environ, "KUBECONFIG": KUBECONFIG}
        done = subprocess.run(words, input=given, capture_output=True, text=True, check=False, env=environment)
        return done.returncode, done.stdout + done.stderr

    def kubectl(self, *words: str, given: str = "") -> str:
        code, output = self.ran("kubectl", "-n", self.namespace, *words, given=given)
        assert code == 0, output
        return output

    def until(self, *words: str, says: str) -> None:
        """Ask kubectl until its answer, without what surrounds it, is this."""
        ends = time.monotonic() + 60
        while self.ran("kubectl", "-n", self.namespace, *words)[1].strip() != says:
            assert time.monotonic() < ends, f"kubectl {' '.join(words)}"
            time.sleep(0.2)

    def install(self) -> None:
        """The CRD, served; one that is being deleted has to go first."""
        self.until("get", "crd", CRD, "--ignore-not-found", "-o", "jsonpath={.metadata.deletionTimestamp}", says="")
        self.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(CRD_FILE))
        self.kubectl("wait", "--for=condition=Established", "crd", CRD, "--timeout=60s")
        self.until("get", CRD, "-o", "name", says="")


@pytest.fixture
def server() -> Iterator[Server]:
    found = Server(f"crrd-test-{secrets.token_hex(3)}")
    for resource in ("mutatingwebhookconfiguration/crrd", f"{CRD} -A"):
        if found.ran("kubectl", "get", *resource.split(), "-o", "name")[1].startswith(
            ("mutating", "containerrecreate")
        ):
            pytest.skip(f"the cluster has {resource}")
    found.ran("kubectl", "create", "namespace", found.namespace)
    try:
        found.install()
        found.until("get", "serviceaccount", "default", "-o", "name", says="serviceaccount/default")
        yield found
    finally:
        found.install()
        found.ran("kubectl", "delete", "namespace", found.namespace, "--wait=false")


@pytest.mark.parametrize("first", ["nothing", "the CRD"])
@pytest.mark.parametrize("arguments", [(), ("-f", str(CRD_FILE))], ids=["mend", "uninstall"])
def test_nothing_stays_unready_or_half_deleted(server: Server, first: str, arguments: tuple[str, ...]) -> None:
    spec = {"schedulerName": "nobody", "containers": [{"name": "app", "image": "none.invalid/none"}]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}, "spec": spec}
    request = {
        "apiVersion": model.API_VERSION,
        "kind": model.KIND,
        "metadata": {"name": "one", "finalizers": [model.FINALIZER]},
        "spec": {"podName": "web", "containers": [{"name": "app"}]},
    }
    for each in (pod, request):
        server.kubectl("create", "-f", "-", given=json.dumps(each))
    condition = {"type": model.READINESS_GATE, "status": "False", "message": HELD}
    patch = json.dumps({"status": {"conditions": [condition]}})
    server.kubectl("patch", "pod", "web", "--subresource=status", "-p", patch)
    if first == "the CRD":
        server.kubectl("delete", "crd", CRD, "--wait=false")
    code, output = server.ran("sh", str(MANIFESTS / "uninstall.sh"), *arguments)
    assert code == 0, output
    assert output.splitlines()[-1] == "done: all requests are deleted, and no pod is kept unready"
    (found,) = json.loads(server.kubectl("get", "pod", "web", "-o", "json"))["status"]["conditions"]
    assert (found["status"], found.get("message", "")) == ("True", "")
    server.until(
        "get",
        "crd",
        CRD,
        "--ignore-not-found",
        "-o",
        "name",
        says="" if arguments or first == "the CRD" else f"customresourcedefinition.apiextensions.k8s.io/{CRD}",
    )
    if not arguments and first == "nothing":
        assert server.kubectl("get", CRD, "-o", "name") == ""
