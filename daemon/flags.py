"""Flags that several commands have, with their environment twins. Imports next to nothing: --help is quick."""

import argparse
import os

DEFAULT_BIND_ADDRESS = "127.0.0.1:9420"
LEVELS = ("debug", "info", "warning", "error")


def env_default(name: str, default: str = "") -> str:
    """The environment's value for a flag's default."""
    return os.environ.get(name) or default


def add_log_flags(parser: argparse.ArgumentParser) -> None:
    """Flags that every daemon has."""
    parser.add_argument(
        "--bind-address",
        metavar="HOST:PORT",
        default=env_default("CRRD_BIND_ADDRESS", DEFAULT_BIND_ADDRESS),
        help="where /metrics, /healthz and /readyz are served; port 0 picks a free one "
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
