"""The command line: reads flags, starts one command, turns errors into one line and an exit code.

Commands are imported when they are run: `crrd node` must not carry what only `crrd demo` needs.
"""

import argparse
import os
import sys
from collections.abc import Callable, Sequence

from daemon import __version__

EXIT_CONFIGURATION = 2
"""Exit code for what waiting does not heal: argparse's own, too."""

DESCRIPTION = """\
crrd restarts single containers of running Kubernetes pods in place: the pod, its IP and its volumes stay.
Ask for it with a ContainerRecreateRequest (kubectl get crr)."""


def build_parser() -> argparse.ArgumentParser:
    """The parser of `crrd` and all its commands."""
    parser = argparse.ArgumentParser(prog="crrd", description=DESCRIPTION, formatter_class=_Formatter)
    parser.add_argument("--version", action="version", version=f"crrd {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    _add_node(commands)
    _add_manager(commands)
    _add_explain(commands)
    _add_forecast(commands)
    _add_demo(commands)
    return parser


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Keeps the examples as they are written, and gives the flags some room."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=32)


Commands = argparse._SubParsersAction  # noqa: SLF001 - argparse gives the type no public name


def _add_node(commands: "Commands[argparse.ArgumentParser]") -> None:
    from daemon.flags import add_cri_flag, add_kubeconfig_flag, add_log_flags, env_default  # noqa: PLC0415

    node = commands.add_parser(
        "node",
        help="the daemon of one node: recreates the containers that requests name",
        description="Watches the ContainerRecreateRequests of one node, runs preStop hooks, stops containers through "
        "the CRI\nsocket, and reports. Runs as a DaemonSet; runs as well on a node by hand.",
        epilog="examples:\n"
        "  crrd node --node-name worker-1 --kubeconfig ~/.kube/config\n"
        "  crrd node --node-name worker-1 --cri-endpoint unix:///run/crio/crio.sock --log-format json\n\n"
        "exit codes: 0 after SIGTERM or Ctrl-C, 2 for a configuration that waiting does not heal",
        formatter_class=_Formatter,
    )
    node.add_argument(
        "--node-name",
        metavar="NAME",
        default=env_default("NODE_NAME"),
        help="this node's name in the cluster (environment: NODE_NAME)",
    )
    node.add_argument(
        "--spec-dir",
        metavar="DIR",
        default=env_default("CRRD_SPEC_DIR"),
        help="keep the specs that containers were started with in this folder, for `crrd forecast`, and count those\n"
        "whose hash their kubelet would not compute: looks at start, after busy times, and every six hours\n"
        "(environment: CRRD_SPEC_DIR; default: keep none)",
    )
    node.add_argument(
        "--serve-forecast",
        action=argparse.BooleanOptionalAction,
        default=env_default("CRRD_SERVE_FORECAST", "false"),
        help="serve /forecast, for `crrd forecast --all-nodes`: whoever reaches the bind address can read which pods\n"
        "the node has (environment: CRRD_SERVE_FORECAST; default: off)",
    )
    add_kubeconfig_flag(node)
    add_cri_flag(node)
    add_log_flags(node)
    node.set_defaults(run=_run_node)


def _run_node(args: argparse.Namespace) -> int:
    from daemon.lean import keep_imports_lean, tune_allocator  # noqa: PLC0415

    tune_allocator()
    with keep_imports_lean():
        from daemon.app import run_node  # noqa: PLC0415
    from daemon.config import node_config  # noqa: PLC0415

    return run_node(node_config(args))


def _add_manager(commands: "Commands[argparse.ArgumentParser]") -> None:
    from daemon.flags import add_kubeconfig_flag, add_log_flags, env_default  # noqa: PLC0415

    manager = commands.add_parser(
        "manager",
        help="admission and lifecycle of requests, for the whole cluster",
        description="Serves the admission webhooks (defaults, status context, labels) and, where it leads, ends "
        "requests by\ndeadline, keeps pods unready while they are recreated, and deletes requests after their TTL.",
        epilog="examples:\n"
        "  crrd manager --namespace crrd-system\n"
        "  crrd manager --tls-cert-file /certs/tls.crt --tls-key-file /certs/tls.key\n\n"
        "exit codes: 0 after SIGTERM or Ctrl-C, 2 for a configuration that waiting does not heal",
        formatter_class=_Formatter,
    )
    add = manager.add_argument
    add(
        "--namespace",
        default=env_default("POD_NAMESPACE", "crrd-system"),
        metavar="NAME",
        help="where its Lease, Secret and Service are (environment: POD_NAMESPACE; default: %(default)s)",
    )
    add(
        "--identity",
        default=env_default("POD_NAME"),
        metavar="NAME",
        help="which candidate for leadership this is (environment: POD_NAME; default: made up)",
    )
    add(
        "--webhook-address",
        default=env_default("CRRD_WEBHOOK_ADDRESS", "0.0.0.0:9443"),
        metavar="HOST:PORT",
        help="where admission is served, over TLS (environment: CRRD_WEBHOOK_ADDRESS; default: %(default)s)",
    )
    add(
        "--drain-seconds",
        type=float,
        default=10.0,
        metavar="SECONDS",
        help="how long it is unready before it accepts no more calls, for Services to notice (default: %(default)g)",
    )
    add(
        "--service",
        default=env_default("CRRD_SERVICE", "crrd-manager"),
        metavar="NAME",
        help="the Service in front of it, for the certificate (environment: CRRD_SERVICE; default: %(default)s)",
    )
    add(
        "--certificate-name",
        action="append",
        metavar="NAME",
        help="a further DNS name or IP address for the certificate; may be repeated",
    )
    add(
        "--secret",
        default=env_default("CRRD_SECRET", "crrd-manager-tls"),
        metavar="NAME",
        help="the Secret that keeps CA and certificate (environment: CRRD_SECRET; default: %(default)s)",
    )
    add(
        "--webhook-configuration",
        action="append",
        metavar="NAME",
        help="webhook configurations of this name get the caBundle; may be repeated (default: crrd)",
    )
    add(
        "--tls-cert-file",
        default=env_default("CRRD_TLS_CERT_FILE"),
        metavar="FILE",
        help="a mounted certificate instead of an own one (environment: CRRD_TLS_CERT_FILE)",
    )
    add(
        "--tls-key-file",
        default=env_default("CRRD_TLS_KEY_FILE"),
        metavar="FILE",
        help="its key (environment: CRRD_TLS_KEY_FILE)",
    )
    add(
        "--ca-file",
        default=env_default("CRRD_CA_FILE"),
        metavar="FILE",
        help="its CA, to be written as caBundle; without it somebody else writes that (environment: CRRD_CA_FILE)",
    )
    add_kubeconfig_flag(manager)
    add_log_flags(manager)
    manager.set_defaults(run=_run_manager)


def _run_manager(args: argparse.Namespace) -> int:
    from daemon.config import manager_config  # noqa: PLC0415
    from daemon.manager_app import run_manager  # noqa: PLC0415

    return run_manager(manager_config(args))


def _add_explain(commands: "Commands[argparse.ArgumentParser]") -> None:
    from daemon.flags import add_kubeconfig_flag  # noqa: PLC0415

    explain = commands.add_parser(
        "explain",
        help="tells where a request stands, what it waits for, and what to do about it",
        description="Says in plain words where a ContainerRecreateRequest stands: what it waits for and since when,\n"
        "what became of its containers, and what to do. Reads the API server alone; changes nothing.",
        epilog="examples:\n"
        "  crrd explain shop/restart-app\n"
        "  crrd explain restart-app -n shop -o json\n\n"
        "exit codes: 0 explained, 1 no such request or no answer from the API server, 2 bad input",
        formatter_class=_Formatter,
    )
    explain.add_argument("request", metavar="NAMESPACE/NAME", help="the request; with -n its name alone")
    explain.add_argument("-n", "--namespace", metavar="NAME", default="", help="the request's namespace")
    explain.add_argument("-o", "--output", choices=("text", "json"), default="text", help="(default: %(default)s)")
    add_kubeconfig_flag(explain)
    explain.set_defaults(run=_run_explain)


def _run_explain(args: argparse.Namespace) -> int:
    from daemon.explain_command import explain_config, run_explain  # noqa: PLC0415

    return run_explain(explain_config(args))


def _add_forecast(commands: "Commands[argparse.ArgumentParser]") -> None:
    from daemon.flags import add_cri_flag, add_kubeconfig_flag, env_default  # noqa: PLC0415

    forecast = commands.add_parser(
        "forecast",
        help="tells which containers an upgrade of kubelet will rebuild, and why",
        description="Compares the hash that kubelet left on each running container with the one that another version\n"
        "of kubelet computes from the pod's spec. Reads the container runtime and the API server; changes nothing.",
        epilog="examples:\n"
        "  crrd forecast --to 1.31 --node-name worker-1\n"
        "  crrd forecast --to 1.31 --from v1.30.2 --pods pods.json     (kubectl get pods -A -o json > pods.json)\n"
        "  crrd forecast --to 1.31 --all-nodes --plot upgrade.png\n\n"
        "exit codes: 0 everything is kept, 2 bad input, 3 something will be rebuilt, 4 nothing that is known will be,\n"
        "but not everything could be judged",
        formatter_class=_Formatter,
    )
    add = forecast.add_argument
    add("--to", dest="to_version", metavar="VERSION", required=True, help="the version to upgrade to, e.g. 1.31")
    add(
        "--from",
        dest="from_version",
        metavar="VERSION",
        default="auto",
        help="the running kubelet's version, for the reasons (default: %(default)s, as its Node says)",
    )
    add("-o", "--output", choices=("table", "json", "yaml"), default="table", help="(default: %(default)s)")
    add(
        "--node-name",
        metavar="NAME",
        default=env_default("NODE_NAME"),
        help="this node's name in the cluster (environment: NODE_NAME; default: the host's name)",
    )
    add(
        "--pods",
        metavar="FILE",
        default="",
        help="read the pods from a file (kubectl get pods -A -o json or yaml; - for standard input), not from the API",
    )
    add("--all-nodes", action="store_true", help="ask the node daemon of every node, through the API server")
    add(
        "--daemon-port",
        metavar="PORT",
        type=int,
        default=9420,
        help="where node daemons serve their pages, for --all-nodes (default: %(default)s)",
    )
    add(
        "--spec-dir",
        metavar="DIR",
        default=env_default("CRRD_SPEC_DIR"),
        help="where the node daemon keeps specs: also tell what changed since each container's start "
        "(environment: CRRD_SPEC_DIR)",
    )
    add("--plot", metavar="FILE", default="", help="also draw a bar per node into a .png, .svg or .pdf file")
    add_kubeconfig_flag(forecast)
    add_cri_flag(forecast)
    forecast.set_defaults(run=_run_forecast)


def _run_forecast(args: argparse.Namespace) -> int:
    from daemon.forecast_command import forecast_config, run_forecast  # noqa: PLC0415

    return run_forecast(forecast_config(args))


def _add_demo(commands: "Commands[argparse.ArgumentParser]") -> None:
    from daemon.flags import add_cri_flag  # noqa: PLC0415

    demo = commands.add_parser(
        "demo",
        help="shows a container recreated, on a local node of its own",
        description="Starts a local node (API server, kubelet and a runtime of plain processes, all on loopback), a "
        "pod of\ntwo containers and the node daemon; posts a request, and shows what happens.",
        epilog="examples:\n"
        "  crrd demo\n"
        "  crrd demo --cri-endpoint unix:///run/containerd/containerd.sock --image busybox:1.36",
        formatter_class=_Formatter,
    )
    add_cri_flag(demo)
    demo.add_argument(
        "--image",
        default="busybox",
        metavar="IMAGE",
        help="an image with a shell that the runtime has or can pull (default: %(default)s)",
    )
    demo.add_argument("--keep", action="store_true", help="leave everything running until Ctrl-C, to try kubectl")
    demo.set_defaults(run=_run_demo)


def _run_demo(args: argparse.Namespace) -> int:
    from daemon.localnode.demo import run_demo  # noqa: PLC0415

    return run_demo(cri_endpoints=args.cri_endpoint or [], image=args.image, keep=args.keep)


def main(argv: Sequence[str] | None = None) -> None:
    """Run `crrd` and leave the process with its exit code."""
    # gRPC's C core would write lines of its own format beside the log; its errors reach us as exceptions.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from daemon.ports import ConfigurationError  # noqa: PLC0415

    args = build_parser().parse_args(argv)
    run: Callable[[argparse.Namespace], int] = args.run
    try:
        code = run(args)
    except ConfigurationError as error:
        print(f"crrd {args.command}: {error}", file=sys.stderr)
        code = EXIT_CONFIGURATION
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)
