"""One frozen configuration per command, read once from flags and environment.

A flag wins over its environment variable, an environment variable over the default.
"""

import argparse
import re
from collections.abc import Mapping
from dataclasses import dataclass

from daemon.flags import LEVELS, cri_endpoints
from daemon.ports import ConfigurationError
from daemon.telemetry.log import LogFormat


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
