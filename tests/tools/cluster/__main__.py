"""`python -m tests.tools.cluster`: a real Kubernetes of several nodes on this machine, from binaries."""

import argparse
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

from crrd.lib.errors import ConfigurationError
from tests.tools.cluster.cluster import RealCluster
from tests.tools.cluster.plan import Plan, found_cni, found_etcd

_DESCRIPTION = """\
Starts a real Kubernetes on this machine, as root: etcd, kube-apiserver, kube-controller-manager, kube-scheduler and
several nodes. Each node has a kubelet and a containerd in namespaces of its own, with its own /run, /var/lib and
/var/log. It uses no port of this machine, only a network bridge. Ctrl-C ends everything."""
_EPILOG = """\
binaries: --bin needs kube-apiserver, kube-controller-manager, kube-scheduler and kubelet of one version, as in
kubernetes-server-linux-amd64.tar.gz; etcd too, unless --etcd names it. On Debian, the rest is in the packages
containerd runc containernetworking-plugins busybox-static iproute2.

examples:
  python -m tests.tools.cluster --bin ~/k8s-1.36 --nodes 3
  python -m tests.tools.cluster --bin ~/k8s-1.36 --runtime /usr/bin/containerd --runtime ~/containerd-2.1/bin/containerd
  python -m tests.tools.cluster --bin ~/k8s-1.36 --kubelet ~/k8s-1.36/kubelet --kubelet ~/k8s-1.34/kubelet

while it runs, in another terminal (it prints FOLDER):
  export KUBECONFIG=FOLDER/kubeconfig; kubectl get nodes -L topology.kubernetes.io/zone
  set -a; . FOLDER/env; set +a; FOLDER/node1/enter .venv/bin/python -m pytest tests/e2e
  FOLDER/node1/kubelet.log, FOLDER/control/kube-apiserver.log, FOLDER/control/audit.log

There is no DNS and no kube-proxy: of all Services, pods reach only the API server's.

exit codes: 0 after Ctrl-C, 2 if something is missing or does not start"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.tools.cluster",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--bin", type=Path, metavar="FOLDER", help="folder with the binaries of Kubernetes")
    add("--etcd", type=Path, metavar="PATH", help="etcd (default: in the folder of --bin, else in PATH)")
    runtime = "containerd of a node; can be repeated, and the nodes take them in turn (default: containerd in PATH)"
    add("--runtime", type=Path, action="append", metavar="PATH", help=runtime)
    kubelet = "kubelet of a node; can be repeated, and the nodes take them in turn (default: in the folder of --bin)"
    add("--kubelet", type=Path, action="append", metavar="PATH", help=kubelet)
    add("--cni", type=Path, metavar="FOLDER", help="folder of the CNI plugins (default: /usr/lib/cni or /opt/cni/bin)")
    add("--nodes", type=int, default=3, metavar="N", help="number of nodes (default: %(default)s)")
    zones = "number of zones, which the nodes take in turn: zone-1, zone-2, ... (default: one for each node)"
    add("--zones", type=int, default=0, metavar="N", help=zones)
    network = "private network of size /16 for nodes, pods and Services (default: %(default)s)"
    add("--network", default="10.44.0.0/16", metavar="NETWORK", help=network)
    period = "longest pause before a crashed container starts again (default: kubelet's, 300; needs kubelet 1.35)"
    add("--restart-period", type=int, default=0, metavar="SECONDS", help=period)
    image = "image archive to import on all nodes; can be repeated"
    add("--image", type=Path, action="append", metavar="ARCHIVE", help=image)
    keep = "keep logs and data in this folder, which must not have a cluster yet (default: a temporary folder)"
    add("--keep", type=Path, metavar="FOLDER", help=keep)
    add("--end", type=Path, metavar="FOLDER", help="only end the cluster of this folder, whose command was killed")
    return parser


def _plan(args: argparse.Namespace, folder: Path) -> Plan:
    if args.bin is None:
        raise ConfigurationError("--bin FOLDER is required: the folder with the binaries of Kubernetes")
    binaries = args.bin.resolve()
    runtimes = args.runtime or [Path(shutil.which("containerd") or "/usr/bin/containerd")]
    kubelets = args.kubelet or [binaries / "kubelet"]
    return Plan(
        folder=folder.resolve(),
        bin=binaries,
        etcd=(args.etcd or found_etcd(binaries)).resolve(),
        cni=(args.cni or found_cni()).resolve(),
        kubelets=tuple(each.resolve() for each in kubelets),
        runtimes=tuple(each.resolve() for each in runtimes),
        nodes=args.nodes,
        zones=args.zones or args.nodes,
        network=args.network,
        restart_period=args.restart_period,
    )


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _serve(plan: Plan, images: Sequence[Path]) -> None:
    """Run the cluster until SIGINT or SIGTERM."""
    cluster = RealCluster(plan, _tell)
    ended = threading.Event()
    try:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        cluster.start(images)
        signal.signal(signal.SIGTERM, lambda *_: ended.set())
        signal.signal(signal.SIGINT, lambda *_: ended.set())
        _tell(f"all {plan.nodes} nodes are Ready; Ctrl-C ends them")
        print(f"export KUBECONFIG={plan.kubeconfig}", flush=True)
        ended.wait()
    finally:
        _tell("ending the cluster")
        cluster.end()


def main(arguments: Sequence[str]) -> int:
    """Start a cluster, or end one. Return the exit code."""
    args = _parser().parse_args(arguments)
    temporary: Path | None = None
    try:
        if args.end:
            RealCluster.find(args.end).end()
            return 0
        if not args.keep:
            temporary = Path(tempfile.mkdtemp(prefix="crrd-k8s-"))
        plan = _plan(args, args.keep or temporary or Path())
        plan.check()
        _serve(plan, [each.resolve() for each in args.image or ()])
    except ConfigurationError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 0
    finally:
        if temporary:
            shutil.rmtree(temporary)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
