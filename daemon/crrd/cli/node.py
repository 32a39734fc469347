"""`crrd node`: its flags and configuration. The daemon itself is `crrd.node.daemon`."""

import argparse
import re
from functools import partial

from crrd.cli.options import (
    add_cri_flag,
    add_daemon_flags,
    add_flag,
    add_kubeconfig_flag,
    count,
    cri_endpoints,
    from_flags,
)
from crrd.lib.descriptors import raise_limit
from crrd.lib.errors import ConfigurationError
from crrd.lib.imports import keep_imports_lean


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags and arguments."""
    parser.description = (
        "Watches the ContainerRecreateRequests of one node, runs preStop hooks, stops containers through the CRI\n"
        "socket, and writes the status. Usually runs as a DaemonSet."
    )
    parser.epilog = (
        "examples:\n"
        "  crrd node --node-name worker-1 --kubeconfig ~/.kube/config\n"
        "  crrd node --node-name worker-1 --cri-endpoint unix:///run/crio/crio.sock --log-format json\n\n"
        "exit codes: 0 after SIGTERM or Ctrl-C, 2 for a configuration error"
    )
    flag = partial(add_flag, parser)
    flag("--node-name", "name of this node in the cluster", env="NODE_NAME", metavar="NAME")
    specs = (
        "directory to keep the specs of started containers in, for `crrd forecast` and the metric "
        "crrd_kubelet_hash_mismatch_containers"
    )
    flag("--spec-dir", specs, env="CRRD_SPEC_DIR", shown="do not keep specs", metavar="DIR")
    serve = (
        "serve /forecast for `crrd forecast --all-nodes`; everyone who can reach the bind address can "
        "list the pods of the node"
    )
    on_or_off = argparse.BooleanOptionalAction
    flag("--serve-forecast", serve, env="CRRD_SERVE_FORECAST", shown="off", action=on_or_off)
    healthz = (
        "kubelet's healthz port on 127.0.0.1; while kubelet does not answer, no container is stopped (0 = no check)"
    )
    port = partial(flag, convert=count(0, 65535), metavar="PORT")
    port("--kubelet-healthz-port", healthz, env="CRRD_KUBELET_HEALTHZ_PORT", default="10248")
    pod = "UID of the daemon's pod; at shutdown, the daemon does not wait for the stop of its own container"
    flag("--pod-uid", pod, env="POD_UID", shown="not in a pod", metavar="UID")
    add_kubeconfig_flag(parser)
    add_cri_flag(parser)
    add_daemon_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Run the daemon until SIGTERM or Ctrl-C. Raises ConfigurationError for a missing or invalid value."""
    from crrd.lib.memory import tune_allocator  # noqa: PLC0415 - before large imports

    tune_allocator()
    raise_limit()
    with keep_imports_lean():
        from crrd.node.daemon import NodeConfig, run_node  # noqa: PLC0415
    if not args.node_name:
        way_out = "use --node-name or NODE_NAME (in a DaemonSet from spec.nodeName)"
        raise ConfigurationError(f"the node name is not set: {way_out}")
    if not re.fullmatch(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", args.node_name):
        raise ConfigurationError(f"{args.node_name!r} is not a node name: use a name that kubectl get nodes shows")
    return run_node(from_flags(NodeConfig, args, cri_endpoints=cri_endpoints(args.cri_endpoint)))
