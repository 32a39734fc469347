"""A private containerd for the tests, with its own config, socket and folder. The system's own is not touched.

It uses the system's packages (`containerd`, `runc`, `busybox-static`), or the binary in `CRRD_TEST_CONTAINERD`, so that
the same tests run on other versions. `destroy` removes everything: containers, shims, mounts, cgroups and files.
"""

import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import grpc

from cri_stubs import api_pb2, api_pb2_grpc
from tests.support.images import BUSYBOX_IMAGE, write_archive

BINARY_VARIABLE = "CRRD_TEST_CONTAINERD"
_CAP_SYS_ADMIN = 21
_START_SECONDS = 30.0
_STOP_SECONDS = 15.0
_CALL_SECONDS = 30.0

_CONFIG_2 = """\
version = 2
root = "{folder}/root"
state = "{folder}/state"
[grpc]
  address = "{address}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/pause:1"
  restrict_oom_score_adj = true
  stream_server_address = "127.0.0.1"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{folder}/cni/bin"
    conf_dir = "{folder}/cni/conf"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "{snapshotter}"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        Root = "{folder}/runc"
[plugins."io.containerd.nri.v1.nri"]
  disable = true
"""

_NETWORK = '{"cniVersion": "0.4.0", "name": "none", "plugins": [{"type": "loopback"}]}'
"""Without one, the runtime reports that its network is not ready. All pods of the local node use the host's network."""

_CONFIG_3 = """\
version = 3
root = "{folder}/root"
state = "{folder}/state"
[grpc]
  address = "{address}"
[plugins."io.containerd.cri.v1.images"]
  snapshotter = "{snapshotter}"
  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = "localhost/pause:1"
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["{folder}/cni/bin"]
    conf_dir = "{folder}/cni/conf"
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
      Root = "{folder}/runc"
[plugins."io.containerd.grpc.v1.cri"]
  stream_server_address = "127.0.0.1"
[plugins."io.containerd.nri.v1.nri"]
  disable = true
"""


def configuration(version: str, folder: Path, address: str) -> str:
    """Return the configuration of a containerd that has all its data in a folder."""
    template = _CONFIG_2 if int(version.partition(".")[0]) < 2 else _CONFIG_3
    # overlayfs does not work on overlayfs, which a container's /tmp uses.
    snapshotter = "native" if _filesystem_of(folder) == "overlay" else "overlayfs"
    return template.format(folder=folder, address=address, snapshotter=snapshotter)


def missing() -> str:
    """Return why no real containerd can be run here, or ""."""
    if os.geteuid() != 0:
        return "a real containerd needs root"
    wanted = (os.environ.get(BINARY_VARIABLE, "containerd"), "ctr", "runc", "busybox")
    absent = [name for name in wanted if shutil.which(name) is None]
    if absent:
        return f"not installed: {', '.join(absent)} (apt-get install containerd runc busybox-static)"
    effective = re.search(r"^CapEff:\s*([0-9a-f]+)$", Path("/proc/self/status").read_text(), re.MULTILINE)
    if effective is None or not int(effective[1], 16) >> _CAP_SYS_ADMIN & 1:
        return "a real containerd needs CAP_SYS_ADMIN (a privileged container)"
    if not os.access("/sys/fs/cgroup", os.W_OK):
        return "a real containerd needs a writable /sys/fs/cgroup (a privileged container)"
    return ""


def _mounts_under(folder: Path) -> list[str]:
    """Return the mount points below the folder, the deepest first."""
    points = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    return sorted((point for point in points if point.startswith(f"{folder}/")), key=len, reverse=True)


def _filesystem_of(folder: Path) -> str:
    """Return the type of the folder's filesystem."""
    best = ("", "")
    for line in Path("/proc/mounts").read_text().splitlines():
        _, point, kind = line.split()[:3]
        if folder.is_relative_to(point) and len(point) >= len(best[0]):
            best = (point, kind)
    return best[1]


def processes_naming(text: str) -> Iterator[int]:
    """Yield the PIDs of the processes with the text as a whole argument of their command line."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                arguments = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:  # it has ended
                continue
            if text.encode() in arguments:
                yield int(entry.name)


class Containerd:
    """A containerd process with all its data. The methods block, so async code must call them in a thread."""

    def __init__(self, binary: str = "") -> None:
        self.binary = shutil.which(binary or os.environ.get(BINARY_VARIABLE, "containerd")) or "containerd"
        # The path of a unix socket is limited to 107 bytes, so the folder's path must be short, unlike pytest's.
        self.folder = Path(tempfile.mkdtemp(prefix="crrd-ctd-")).resolve()
        self.address = str(self.folder / "c.sock")
        self.endpoint = f"unix://{self.address}"
        self.version = self._version()
        self._process: subprocess.Popen[bytes] | None = None

    def _version(self) -> str:
        """The version, for example "1.6.20~ds1"."""
        out = subprocess.run([self.binary, "--version"], check=True, capture_output=True, text=True).stdout
        return out.split()[2].removeprefix("v")

    @property
    def pid(self) -> int:
        """The PID of the running process.

        Raises:
            RuntimeError: it is not running.
        """
        if self._process is None:
            raise RuntimeError("containerd is not running")
        return self._process.pid

    @property
    def log(self) -> str:
        """The log so far."""
        return (self.folder / "log").read_text(errors="replace")

    def prepare(self) -> None:
        """Start it for the first time, and import the tests' images."""
        archive = self.folder / "images.tar"
        write_archive(archive, Path(shutil.which("busybox") or "/bin/busybox"))
        (self.folder / "config.toml").write_text(configuration(self.version, self.folder, self.address))
        network = self.folder / "cni" / "conf" / "10-none.conflist"
        network.parent.mkdir(parents=True)
        network.write_text(_NETWORK)
        self.start()
        self.ctr("images", "import", str(archive))
        archive.unlink()
        self._wait_for_image()

    def start(self) -> None:
        """Start the process, and return when its CRI service responds.

        Raises:
            RuntimeError: it ended, or did not respond in time; with its log.
        """
        environment = dict(os.environ)
        # The shim must have the same version, and is searched beside the binary first.
        environment["PATH"] = f"{Path(self.binary).parent}:{environment.get('PATH', '/usr/bin:/bin')}:/usr/sbin:/sbin"
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self.binary, "--config", str(self.folder / "config.toml")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        deadline = time.monotonic() + _START_SECONDS
        while not self._serves():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"containerd did not start:\n{self.log[-4000:]}")
            time.sleep(0.02)

    def _serves(self) -> bool:
        if not Path(self.address).exists():
            return False
        with grpc.insecure_channel(self.endpoint) as channel:
            try:
                api_pb2_grpc.RuntimeServiceStub(channel).Version(api_pb2.VersionRequest(), timeout=_CALL_SECONDS)
            except grpc.RpcError:
                return False
        return True

    def _wait_for_image(self) -> None:
        """Wait until the CRI service knows the imported image, which it does a moment after the import."""
        request = api_pb2.ImageStatusRequest(image=api_pb2.ImageSpec(image=BUSYBOX_IMAGE))
        deadline = time.monotonic() + _START_SECONDS
        with grpc.insecure_channel(self.endpoint) as channel:
            stub = api_pb2_grpc.ImageServiceStub(channel)
            while not stub.ImageStatus(request, timeout=_CALL_SECONDS).HasField("image"):
                if time.monotonic() > deadline:
                    raise RuntimeError(f"the imported image is not seen by CRI:\n{self.log[-4000:]}")
                time.sleep(0.02)

    def stop(self) -> None:
        """Send SIGTERM, and wait for the process to end. Its containers keep running."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL, and wait for the process to end. Its containers keep running."""
        self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(number)
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        Path(self.address).unlink(missing_ok=True)

    def restart(self) -> None:
        """Stop and start it. Its containers keep running."""
        self.stop()
        self.start()

    @property
    def running(self) -> bool:
        """Whether the process is running."""
        return self._process is not None and self._process.poll() is None

    def ctr(self, *arguments: str) -> str:
        """Run `ctr` in CRI's namespace, and return its output."""
        command = ["ctr", "-a", self.address, "-n", "k8s.io", *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout

    def remove_pods(self, namespace: str = "") -> None:
        """Stop and remove every sandbox with its containers (of one Kubernetes namespace, or of all)."""
        with grpc.insecure_channel(self.endpoint) as channel:
            stub = api_pb2_grpc.RuntimeServiceStub(channel)
            listed = stub.ListPodSandbox(api_pb2.ListPodSandboxRequest(), timeout=_CALL_SECONDS)
            for sandbox in listed.items:
                if namespace in ("", sandbox.metadata.namespace):
                    # Stopping a sandbox kills its containers at once, without a grace period.
                    stop = api_pb2.StopPodSandboxRequest(pod_sandbox_id=sandbox.id)
                    stub.StopPodSandbox(stop, timeout=_CALL_SECONDS)
                    remove = api_pb2.RemovePodSandboxRequest(pod_sandbox_id=sandbox.id)
                    stub.RemovePodSandbox(remove, timeout=_CALL_SECONDS)

    def destroy(self) -> None:
        """Remove all pods, end the process, and remove everything that could be left: shims, mounts, files."""
        try:
            if not self.running and (self.folder / "config.toml").exists():
                self.start()  # needed to remove its containers
            self.remove_pods()
        finally:
            self.stop()
            for pid in list(processes_naming(self.address)):
                os.kill(pid, signal.SIGKILL)
            for point in _mounts_under(self.folder):
                subprocess.run(["/bin/umount", "-l", point], check=False)
            shutil.rmtree(self.folder)
