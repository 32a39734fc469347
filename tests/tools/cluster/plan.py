"""What a cluster is to be made of: the values of the flags, checked, and the addresses that follow from them."""

import ipaddress
import json
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from crrd.lib.errors import ConfigurationError
from tests.tools.cluster.machine import NEEDED, OWN_FOLDERS

PLAN_FILE = "plan.json"
CONTROL_PLANE = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
RUNTIMES = ("containerd",)
MOST_NODES = 20
OLDEST_MINOR = 30
RESTART_PERIOD_MINOR = 35  # kubelet has the setting since 1.32, and without a feature gate since 1.35
LONGEST_RESTART_PERIOD = 300
_CNI_FOLDERS = ("/usr/lib/cni", "/opt/cni/bin")
_CNI_PLUGINS = ("bridge", "host-local", "loopback", "portmap")
_LONGEST_FOLDER = 60  # the path of a unix socket in it must not be longer than 107 bytes
_MOST_SKEW = 3  # minor versions that a kubelet may be older than the API server


@dataclass(frozen=True)
class Plan:
    """A cluster before it is started. `load` finds it again."""

    folder: Path
    bin: Path
    etcd: Path
    cni: Path
    kubelets: tuple[Path, ...]
    """The nodes take these in turn, and the runtimes and zones too."""
    runtimes: tuple[Path, ...]
    nodes: int
    zones: int
    network: str
    restart_period: int = 0
    """Seconds of kubelet's longest pause before it starts a crashed container again; 0 for kubelet's own, 300."""

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The nodes' names."""
        return tuple(f"node{number}" for number in range(1, self.nodes + 1))

    @property
    def bridge(self) -> str:
        """The network interface of this machine to which all parts are connected."""
        return f"crrd-{self.network.split('.')[1]}"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.folder / "kubeconfig"

    def address(self, low: int, high: int = 0) -> str:
        """Return an address of the network by its last two bytes."""
        return str(ipaddress.ip_network(self.network)[high * 256 + low])

    @property
    def api_address(self) -> str:
        """The address of the API server."""
        return self.address(2)

    @property
    def service_address(self) -> str:
        """The API server's address as a Service, where pods look for it."""
        return self.address(1, 255)

    @property
    def services(self) -> str:
        """The addresses of Services."""
        return f"{self.address(0, 255)}/24"

    def node_address(self, number: int) -> str:
        """Return the address of a node, counted from 1."""
        return self.address(10 + number)

    def pod_network(self, number: int) -> str:
        """Return the addresses of the pods of a node, counted from 1."""
        return f"{self.address(0, number)}/24"

    def zone(self, number: int) -> str:
        """Return the zone of a node, counted from 1."""
        return f"zone-{(number - 1) % self.zones + 1}"

    def save(self) -> None:
        """Write it into its folder."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / PLAN_FILE).write_text(json.dumps(asdict(self), default=str, indent=1) + "\n")

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read it from the folder of a cluster. Raises ConfigurationError."""
        try:
            found: dict[str, Any] = json.loads((folder / PLAN_FILE).read_text())
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"{folder} is not the folder of a cluster: {error}") from error
        found |= {name: Path(found[name]) for name in ("folder", "bin", "etcd", "cni")}
        found |= {name: tuple(map(Path, found[name])) for name in ("kubelets", "runtimes")}
        return cls(**found)

    def check(self) -> None:
        """Raise ConfigurationError with what is wrong and what to do."""
        if os.geteuid() != 0:
            raise ConfigurationError("a cluster needs root: it makes namespaces and network interfaces")
        if absent := [name for name in (*NEEDED, "runc", "busybox") if shutil.which(name) is None]:
            packages = "apt-get install util-linux iproute2 runc busybox-static"
            raise ConfigurationError(f"not installed: {', '.join(absent)} ({packages})")
        if not 1 <= self.nodes <= MOST_NODES:
            raise ConfigurationError(f"--nodes {self.nodes}: must be between 1 and {MOST_NODES}")
        if not 0 <= self.restart_period <= LONGEST_RESTART_PERIOD:
            rule = f"must be between 1 and {LONGEST_RESTART_PERIOD} seconds"
            raise ConfigurationError(f"--restart-period {self.restart_period}: {rule}")
        self._check_network()
        self._check_folder()
        for plugin in _CNI_PLUGINS:
            if not os.access(self.cni / plugin, os.X_OK):
                where = "apt-get install containernetworking-plugins, or name their folder with --cni"
                raise ConfigurationError(f"CNI plugin {plugin} not found in {self.cni} ({where})")
        self._check_versions()

    def _check_network(self) -> None:
        try:
            network = ipaddress.ip_network(self.network)
        except ValueError as error:
            raise ConfigurationError(f"--network {self.network}: {error}") from error
        if network.version != 4 or network.prefixlen != 16 or not network.is_private:
            raise ConfigurationError(f"--network {self.network}: must be a private IPv4 network of size /16")
        for line in _output("ip", "-brief", "-4", "address").splitlines():
            name, _, *addresses = line.split()
            for found in addresses:
                if ipaddress.ip_interface(found).network.overlaps(network):
                    used = f"interface {name} has the address {found}"
                    raise ConfigurationError(f"--network {self.network}: {used}: choose another network")

    def _check_folder(self) -> None:
        folder = self.folder
        if len(str(folder)) > _LONGEST_FOLDER:
            raise ConfigurationError(f"{folder}: the path must not be longer than {_LONGEST_FOLDER} characters")
        if hidden := [each for each in OWN_FOLDERS.values() if folder.is_relative_to(each)]:
            raise ConfigurationError(f"{folder}: the nodes have a {hidden[0]} of their own: choose another folder")
        if (folder / PLAN_FILE).exists():
            advice = f"end it with --end {folder}, and remove the folder"
            raise ConfigurationError(f"{folder} has a cluster already: {advice}")

    def _check_versions(self) -> None:
        api, *others = (version_of(self.bin / name) for name in CONTROL_PLANE)
        if api[1] < OLDEST_MINOR:
            raise ConfigurationError(f"{self.bin}: Kubernetes 1.{api[1]} is too old: crrd needs 1.{OLDEST_MINOR}")
        for name, found in zip(CONTROL_PLANE[1:], others, strict=True):
            if found[1] != api[1]:
                raise ConfigurationError(f"{self.bin}: {name} is {_dotted(found)}, but kube-apiserver {_dotted(api)}")
        for kubelet in self.kubelets:
            found = version_of(kubelet)
            if not api[1] - _MOST_SKEW <= found[1] <= api[1]:
                rule = f"must be 1.{api[1] - _MOST_SKEW} to 1.{api[1]}, as the API server is {_dotted(api)}"
                raise ConfigurationError(f"{kubelet}: version {_dotted(found)} {rule}")
            if self.restart_period and found[1] < RESTART_PERIOD_MINOR:
                raise ConfigurationError(f"--restart-period: {kubelet} is older than 1.{RESTART_PERIOD_MINOR}")
        etcd = version_of(self.etcd)
        if api[1] >= 34 and etcd < (3, 5):
            rule = f"is too old for Kubernetes 1.{api[1]}, which needs 3.5"
            raise ConfigurationError(f"{self.etcd}: version {_dotted(etcd)} {rule}")
        for runtime in self.runtimes:
            if runtime.name not in RUNTIMES:
                raise ConfigurationError(f"--runtime {runtime}: must be the path of {' or '.join(RUNTIMES)}")
            version_of(runtime)


def found_etcd(folder: Path) -> Path:
    """Return etcd in the folder of binaries, or else in PATH."""
    here = folder / "etcd"
    return here if here.exists() else Path(shutil.which("etcd") or here)


def found_cni() -> Path:
    """Return the first usual folder of CNI plugins that exists."""
    return Path(next((each for each in _CNI_FOLDERS if Path(each).is_dir()), _CNI_FOLDERS[0]))


def version_of(program: Path) -> tuple[int, ...]:
    """Return the version that a program prints with --version. Raises ConfigurationError if there is none."""
    if not os.access(program, os.X_OK):
        raise ConfigurationError(f"{program}: not found, or not executable")
    output = _output(str(program), "--version")
    found = re.search(r"\bv?(\d+)\.(\d+)\.(\d+)", output)
    if found is None:
        raise ConfigurationError(f"{program} --version prints no version: {output.strip()[:200]!r}")
    return tuple(map(int, found.groups()))


def _dotted(version: Sequence[int]) -> str:
    return ".".join(map(str, version))


def _output(*command: str) -> str:
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigurationError(f"cannot run {' '.join(command)}: {error}") from error
