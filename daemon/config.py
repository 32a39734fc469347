"""One frozen configuration per command, read once from flags and environment.

A flag wins over its environment variable, an environment variable over the default.
"""

import argparse
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from daemon.ports import ConfigurationError
from daemon.telemetry.log import LEVELS, LogFormat

DEFAULT_BIND_ADDRESS = "127.0.0.1:9420"


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """What `crrd node` runs with."""

    node_name: str
    kubeconfig: str
    """Path; "" for in-cluster credentials, or ~/.kube/config outside a cluster."""
    cri_endpoints: tuple[str, ...]
    """Sockets as the user gave them; none for discovery."""
    bind_address: str
    log_format: LogFormat
    log_level: str


def env_default(name: str, default: str = "") -> str:
    """The environment's value for a flag's default."""
    return os.environ.get(name) or default


def add_log_flags(parser: argparse.ArgumentParser) -> None:
    """Flags that every daemon has."""
    parser.add_argument(
        "--bind-address",
        metavar="HOST:PORT",
        default=env_default("CRRD_BIND_ADDRESS", DEFAULT_BIND_ADDRESS),
        help="where /healthz, /readyz and /metrics are served; port 0 picks a free one "
        "(environment: CRRD_BIND_ADDRESS; default: %(default)s)",
    )
    parser.add_argument(
        "--log-format",
        choices=("console", "json"),
        default=env_default("CRRD_LOG_FORMAT", "console"),
        help="console for people, json for machines (environment: CRRD_LOG_FORMAT; default: %(default)s)",
    )
    parser.add_argument(
        "--log-level",
        choices=LEVELS,
        default=env_default("CRRD_LOG_LEVEL", "info"),
        help="least severe level that is logged; SIGUSR1 switches debug on and off "
        "(environment: CRRD_LOG_LEVEL; default: %(default)s)",
    )


def add_kubeconfig_flag(parser: argparse.ArgumentParser) -> None:
    """The flag of every command that speaks to the API server."""
    parser.add_argument(
        "--kubeconfig",
        metavar="FILE",
        default=env_default("KUBECONFIG"),
        help="kubeconfig to reach the API server with (environment: KUBECONFIG; "
        "default: the pod's service account, outside a cluster ~/.kube/config)",
    )


def add_cri_flag(parser: argparse.ArgumentParser) -> None:
    """The flag of every command that speaks to the container runtime."""
    parser.add_argument(
        "--cri-endpoint",
        metavar="SOCKET",
        action="append",
        default=None,
        help="CRI socket of the container runtime, e.g. unix:///run/containerd/containerd.sock; may be repeated "
        "(environment: CRRD_CRI_ENDPOINTS, separated by commas; default: the well-known sockets are looked for)",
    )


def cri_endpoints(given: list[str] | None) -> tuple[str, ...]:
    """The sockets from the flag, else from the environment."""
    return tuple(given or [part.strip() for part in env_default("CRRD_CRI_ENDPOINTS").split(",") if part.strip()])


def check_choices(values: Mapping[str, str], choices: Mapping[str, tuple[str, ...]]) -> None:
    """Check what argparse does not: choices that came from the environment.

    Raises:
        ConfigurationError: naming the variable and what it may be.
    """
    for name, value in values.items():
        if value not in choices[name]:
            raise ConfigurationError(f"{name} is {value!r}, but has to be one of {', '.join(choices[name])}")


def node_config(args: argparse.Namespace) -> NodeConfig:
    """The configuration of `crrd node`.

    Raises:
        ConfigurationError: a value is missing or impossible.
    """
    check_choices(
        {"CRRD_LOG_FORMAT": args.log_format, "CRRD_LOG_LEVEL": args.log_level},
        {"CRRD_LOG_FORMAT": ("console", "json"), "CRRD_LOG_LEVEL": LEVELS},
    )
    if not args.node_name:
        raise ConfigurationError("no node name: give --node-name, or NODE_NAME (in a DaemonSet from spec.nodeName)")
    if not re.fullmatch(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", args.node_name):
        raise ConfigurationError(f"{args.node_name!r} is no node name: give the one that kubectl get nodes shows")
    return NodeConfig(
        node_name=args.node_name,
        kubeconfig=args.kubeconfig,
        cri_endpoints=cri_endpoints(args.cri_endpoint),
        bind_address=args.bind_address,
        log_format=args.log_format,
        log_level=args.log_level,
    )
