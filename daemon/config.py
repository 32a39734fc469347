"""One frozen configuration per command, read once from flags and environment.

A flag wins over its environment variable, an environment variable over the default.
"""

import argparse
import os
import re
import socket
from dataclasses import dataclass
from pathlib import Path

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
    spec_dir: str = ""
    """Where to keep the specs of what was seen to start; "" to keep none, and to look for nothing."""
    serve_forecast: bool = False
    """Whether anybody who reaches the bind address may read which containers the node has."""


def check_log_choices(args: argparse.Namespace) -> None:
    """Check what argparse does not: choices that came from the environment.

    Raises:
        ConfigurationError: naming the variable and what it may be.
    """
    choices = {"CRRD_LOG_FORMAT": (args.log_format, ("console", "json")), "CRRD_LOG_LEVEL": (args.log_level, LEVELS)}
    for name, (value, allowed) in choices.items():
        if value not in allowed:
            raise ConfigurationError(f"{name} is {value!r}, but has to be one of {', '.join(allowed)}")


def _switch(name: str, value: bool | str) -> bool:
    """A flag that is on or off, or the text of its variable."""
    if isinstance(value, bool):
        return value
    if value.lower() not in ("true", "false", "1", "0"):
        raise ConfigurationError(f"{name} is {value!r}, but has to be true or false")
    return value.lower() in ("true", "1")


def node_config(args: argparse.Namespace) -> NodeConfig:
    """The configuration of `crrd node`.

    Raises:
        ConfigurationError: a value is missing or impossible.
    """
    check_log_choices(args)
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
        spec_dir=args.spec_dir,
        serve_forecast=_switch("CRRD_SERVE_FORECAST", args.serve_forecast),
    )


@dataclass(frozen=True, slots=True)
class ManagerConfig:
    """What `crrd manager` runs with."""

    kubeconfig: str
    namespace: str
    """Where its Lease, its Secret and its Service are."""
    identity: str
    """Which candidate for leadership it is: the name of its pod."""
    webhook_address: str
    drain_seconds: float
    """From being unready to accepting no admission call."""
    service: str
    names: tuple[str, ...]
    """Further DNS names and IP addresses for the serving certificate."""
    secret: str
    webhook_configurations: tuple[str, ...]
    """Names of the mutating and validating webhook configurations whose caBundle is its to write."""
    tls_cert_file: str
    tls_key_file: str
    ca_file: str
    bind_address: str
    log_format: LogFormat
    log_level: str


def manager_config(args: argparse.Namespace) -> ManagerConfig:
    """The configuration of `crrd manager`.

    Raises:
        ConfigurationError: a value is missing or impossible.
    """
    check_log_choices(args)
    if bool(args.tls_cert_file) != bool(args.tls_key_file):
        raise ConfigurationError("--tls-cert-file and --tls-key-file go together: give both, or none")
    if not 0 <= args.drain_seconds <= 600:
        raise ConfigurationError(f"--drain-seconds is {args.drain_seconds:g}, but has to be from 0 to 600")
    if args.ca_file and not args.tls_cert_file:
        raise ConfigurationError("--ca-file goes with --tls-cert-file: without it, crrd has a CA of its own")
    for flag, file in (
        ("--tls-cert-file", args.tls_cert_file),
        ("--tls-key-file", args.tls_key_file),
        ("--ca-file", args.ca_file),
    ):
        if file and not Path(file).is_file():
            raise ConfigurationError(f"{flag}: there is no file {file}")
    return ManagerConfig(
        kubeconfig=args.kubeconfig,
        namespace=args.namespace,
        identity=args.identity or f"{socket.gethostname()}-{os.getpid()}",
        webhook_address=args.webhook_address,
        drain_seconds=args.drain_seconds,
        service=args.service,
        names=tuple(args.certificate_name or ()),
        secret=args.secret,
        webhook_configurations=tuple(args.webhook_configuration or ("crrd",)),
        tls_cert_file=args.tls_cert_file,
        tls_key_file=args.tls_key_file,
        ca_file=args.ca_file,
        bind_address=args.bind_address,
        log_format=args.log_format,
        log_level=args.log_level,
    )
