"""A node: kubelet and its runtime, on a machine of their own."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import yaml

from cri_stubs import api_pb2, api_pb2_grpc
from tests.support.containerd import configuration
from tests.support.images import BUSYBOX_IMAGE
from tests.tools.cluster.machine import Machine, wait
from tests.tools.cluster.plan import RESTART_PERIOD_MINOR, Plan, version_of

_READY_SECONDS = 60.0
_CALL_SECONDS = 20.0


class Node(Machine):
    """One node of a cluster, by its number from 1."""

    def __init__(self, plan: Plan, number: int) -> None:
        super().__init__(plan.folder / plan.names[number - 1])
        self.plan = plan
        self.number = number
        self.address = plan.node_address(number)
        self.runtime = plan.runtimes[(number - 1) % len(plan.runtimes)]
        self.kubelet = plan.kubelets[(number - 1) % len(plan.kubelets)]

    @property
    def endpoint(self) -> str:
        """The CRI endpoint, as processes outside of the node see it."""
        return f"unix://{self._socket}"

    @property
    def _socket(self) -> Path:
        """The runtime's socket. On the node it is also in /run/containerd; this path tells apart the shims of nodes."""
        return self.folder / "run" / "containerd" / "containerd.sock"

    @property
    def static_pods(self) -> Path:
        """The folder from which kubelet reads static pods."""
        return self.folder / "static"

    def prepare(self) -> None:
        """Write the configuration of CNI and the runtime. The machine must run."""
        conf = self.folder / "cni" / "conf"
        conf.mkdir(parents=True, exist_ok=True)
        (self.folder / "cni" / "bin").symlink_to(self.plan.cni)
        self.static_pods.mkdir(exist_ok=True)
        (self.folder / "run" / "containerd").mkdir(exist_ok=True)
        (conf / "10-pods.conflist").write_text(json.dumps(_pod_network(self.plan.pod_network(self.number))))
        version = ".".join(map(str, version_of(self.runtime)))
        (self.folder / "containerd.toml").write_text(configuration(version, self.folder, str(self._socket)))

    # The runtime

    def start_runtime(self) -> None:
        """Start the runtime. `wait_runtime` says when it answers."""
        command = [str(self.runtime), "--config", str(self.folder / "containerd.toml")]
        self.begin("containerd", command, str(self.runtime.parent))

    def wait_runtime(self, tell: Callable[[str], None] = lambda _: None) -> None:
        """Wait until the runtime answers."""
        wait(f"containerd on {self.name}", self._runtime_answers, _READY_SECONDS, tell)

    def _runtime_answers(self) -> bool:
        with grpc.insecure_channel(self.endpoint) as channel:
            try:
                api_pb2_grpc.RuntimeServiceStub(channel).Version(api_pb2.VersionRequest(), timeout=_CALL_SECONDS)
            except grpc.RpcError:
                return False
        return True

    def load(self, archive: Path) -> None:
        """Import the images of an archive."""
        words = ("ctr", "-a", str(self._socket), "-n", "k8s.io", "images", "import", str(archive))
        self.run(*words, path=str(self.runtime.parent))

    def has_images(self) -> bool:
        """Whether the runtime's CRI knows the imported images, which it does a moment after the import."""
        request = api_pb2.ImageStatusRequest(image=api_pb2.ImageSpec(image=BUSYBOX_IMAGE))
        with grpc.insecure_channel(self.endpoint) as channel:
            return api_pb2_grpc.ImageServiceStub(channel).ImageStatus(request, timeout=_CALL_SECONDS).HasField("image")

    def _remove_cgroups(self) -> None:
        """Remove the cgroups of all containers, once nothing runs in them: they alone outlive the machine.

        Every kubelet of this kernel watches all cgroups, so those that stay make the next cluster slower.
        """
        for state in self.folder.glob("runc/*/*/state.json"):
            for path in json.loads(state.read_text())["cgroup_paths"].values():
                for folder, _, _ in os.walk(path, topdown=False):
                    Path(folder).rmdir()

    # Kubelet

    def start_kubelet(self, program: Path | None = None) -> None:
        """Start kubelet, or one of another version, on the containers that run."""
        program = program or self.kubelet
        config = self.folder / "kubelet.yaml"
        config.write_text(yaml.safe_dump(self._kubelet_configuration(version_of(program)[1])))
        flags = {
            "config": config,
            "kubeconfig": self.plan.folder / "control" / f"{self.name}.kubeconfig",
            "hostname-override": self.name,
            "node-ip": self.address,
            "node-labels": f"topology.kubernetes.io/zone={self.plan.zone(self.number)}",
            "v": 2,
        }
        self.begin("kubelet", [str(program), *(f"--{name}={value}" for name, value in flags.items())])

    def _kubelet_configuration(self, minor: int) -> dict[str, Any]:
        """Return it without cgroups for pods and QoS, which not every machine and container has."""
        configuration = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": False},
                "x509": {"clientCAFile": str(self.plan.folder / "control" / "client.crt")},
            },
            "authorization": {"mode": "AlwaysAllow"},
            "cgroupDriver": "cgroupfs",
            "cgroupsPerQOS": False,
            "containerRuntimeEndpoint": self.endpoint,
            "enforceNodeAllocatable": [],
            "evictionHard": {"memory.available": "1Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
            "failSwapOn": False,
            "localStorageCapacityIsolation": False,
            "maxPods": 250,
            "staticPodPath": str(self.static_pods),
        }
        if minor > 30:  # a field of 1.31
            configuration["failCgroupV1"] = False
        if self.plan.restart_period and minor >= RESTART_PERIOD_MINOR:
            configuration["crashLoopBackOff"] = {"maxContainerRestartPeriod": f"{self.plan.restart_period}s"}
        return configuration

    def stop(self) -> None:
        """End everything on the node. The end of the machine ends its containers."""
        self.end()
        self._remove_cgroups()


def _pod_network(subnet: str) -> dict[str, Any]:
    ipam = {"type": "host-local", "ranges": [[{"subnet": subnet}]], "routes": [{"dst": "0.0.0.0/0"}]}
    bridge = {"type": "bridge", "bridge": "pods", "isGateway": True, "hairpinMode": True, "ipam": ipam}
    portmap = {"type": "portmap", "capabilities": {"portMappings": True}}
    return {"cniVersion": "0.4.0", "name": "pods", "plugins": [bridge, portmap]}
