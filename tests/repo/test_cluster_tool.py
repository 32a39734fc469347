"""`python -m tests.tools.cluster`: what it checks before it starts anything, and the machines that it makes."""

import dataclasses
import os
import signal
from pathlib import Path

import pytest

from crrd.lib.errors import ConfigurationError
from tests.support.containerd import missing
from tests.tools.cluster import plan as plans
from tests.tools.cluster.__main__ import main
from tests.tools.cluster.machine import Machine, wait
from tests.tools.cluster.plan import Plan

PROGRAMS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet")
needs_root = pytest.mark.skipif(bool(missing()), reason=missing())


def program(path: Path, version: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho {version}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    """A plan without faults, in which no program is real."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(plans, "NEEDED", ("sh",))
    monkeypatch.setattr(plans, "_LONGEST_FOLDER", 1000)
    for name in ("runc", "busybox", "ip"):
        program(tmp_path / "path" / name, "'lo UNKNOWN 127.0.0.1/8'")
    monkeypatch.setenv("PATH", f"{tmp_path / 'path'}:{os.environ['PATH']}")
    for name in PROGRAMS:
        program(tmp_path / "bin" / name, "Kubernetes v1.36.2")
    for name in ("bridge", "host-local", "loopback", "portmap"):
        program(tmp_path / "cni" / name, "")
    return Plan(
        folder=tmp_path / "state",
        bin=tmp_path / "bin",
        etcd=program(tmp_path / "etcd", "'etcd Version: 3.5.16'"),
        cni=tmp_path / "cni",
        kubelets=(tmp_path / "bin" / "kubelet", program(tmp_path / "old" / "kubelet", "Kubernetes v1.33.13")),
        runtimes=(program(tmp_path / "containerd", "'containerd github.com/containerd/containerd 2.1.9'"),),
        nodes=3,
        zones=2,
        network="10.44.0.0/16",
    )


def test_a_plan_without_faults(plan: Plan) -> None:
    plan.check()
    plan.save()
    assert Plan.load(plan.folder) == plan
    assert [plan.zone(number) for number in (1, 2, 3)] == ["zone-1", "zone-2", "zone-1"]
    assert (plan.service_address, plan.node_address(3), plan.pod_network(3)) == (
        "10.44.255.1",
        "10.44.0.13",
        "10.44.3.0/24",
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"nodes": 0}, "--nodes 0: must be between 1 and 20"),
        ({"restart_period": 301}, "--restart-period 301: must be between 1 and 300 seconds"),
        ({"restart_period": 10}, "old/kubelet is older than 1.35"),
        ({"network": "10.44.0.0/24"}, "must be a private IPv4 network of size /16"),
        ({"network": "10.44.1.0/16"}, "has host bits set"),
        ({"network": "127.0.0.0/16"}, "interface lo has the address 127.0.0.1/8: choose another network"),
        ({"folder": Path("/run/cluster")}, "the nodes have a /run of their own: choose another folder"),
        ({"cni": Path("/nowhere")}, "CNI plugin bridge not found in /nowhere (apt-get install"),
        ({"etcd": Path("/nowhere/etcd")}, "/nowhere/etcd: not found, or not executable"),
        ({"runtimes": (Path("/nowhere/docker"),)}, "--runtime /nowhere/docker: must be the path of containerd"),
    ],
)
def test_what_is_wrong_is_named(plan: Plan, change: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        dataclasses.replace(plan, **change).check()  # type: ignore[arg-type]
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("name", "output", "message"),
    [
        ("bin/kube-apiserver", "Kubernetes v1.29.1", "Kubernetes 1.29 is too old: crrd needs 1.30"),
        ("bin/kube-scheduler", "Kubernetes v1.35.1", "kube-scheduler is 1.35.1, but kube-apiserver 1.36.2"),
        ("old/kubelet", "Kubernetes v1.32.1", "version 1.32.1 must be 1.33 to 1.36, as the API server is 1.36.2"),
        ("old/kubelet", "Kubernetes v1.37.0", "version 1.37.0 must be 1.33 to 1.36"),
        ("etcd", "'etcd Version: 3.4.23'", "version 3.4.23 is too old for Kubernetes 1.36, which needs 3.5"),
        ("containerd", "no", "containerd --version prints no version: 'no'"),
    ],
)
def test_versions_that_do_not_fit(plan: Plan, name: str, output: str, message: str) -> None:
    program(plan.folder.parent / name, output)
    with pytest.raises(ConfigurationError) as error:
        plan.check()
    assert message in str(error.value)


def test_a_second_cluster_in_a_folder_is_refused(plan: Plan) -> None:
    plan.save()
    with pytest.raises(ConfigurationError, match="has a cluster already: end it with --end"):
        plan.check()


def test_messages_of_the_command(
    plan: Plan, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([]) == 2
    assert "--bin FOLDER is required" in capsys.readouterr().err
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert main(["--bin", str(plan.bin), "--keep", str(plan.folder)]) == 2
    assert capsys.readouterr().err == "error: a cluster needs root: it makes namespaces and network interfaces\n"
    assert main(["--end", str(plan.folder)]) == 2
    assert "is not the folder of a cluster" in capsys.readouterr().err


@needs_root
def test_a_machine_ends_all_that_runs_in_it(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "one")
    machine.start()
    try:
        again = Machine(machine.folder)  # another process finds it by its folder
        assert again.pid == machine.pid
        again.run("sh", "-c", "touch /run/mine && test ! -e /run/lock")
        assert (machine.folder / "run" / "mine").exists()
        assert "eth0" not in again.run("ip", "-brief", "link")
        for name in ("stays", "goes"):
            again.begin(name, ["sh", "-c", "echo started; exec sleep 1000"])
        wait("output", lambda: again.last_line("goes") == "started", 10)
        again.kill("goes", signal.SIGTERM)
        assert (again.runs("goes"), again.runs("stays")) == (False, True)
        with pytest.raises(ConfigurationError, match="goes on one has ended: started"):
            again.need("goes")
    finally:
        machine.end()
    assert (machine.pid, machine.runs("stays")) == (0, False)
