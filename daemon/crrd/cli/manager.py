"""`crrd manager`: flags and their configuration; the daemon itself is `crrd.manager.daemon`."""

import argparse
import ipaddress
import os
import re
import socket
from functools import partial
from pathlib import Path

from crrd.cli.options import add_daemon_flags, add_flag, add_kubeconfig_flag, from_flags, label, number, subdomain
from crrd.core.lifecycle.steps import DEFAULT_SLACK_SECONDS
from crrd.lib.descriptors import raise_limit
from crrd.lib.errors import ConfigurationError
from crrd.lib.memory import tune_allocator
from crrd.manager.daemon import ManagerConfig, run_manager

_HOST = re.compile(
    r"(?=.{1,253}\Z)(\*\.)?([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?\.)*(?![0-9]+\Z)[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?",
    re.ASCII | re.IGNORECASE,
)
"""RFC 1123, in either case; `*.` is any one label (RFC 6125). What ends in a number is an address, if anything."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags and words."""
    parser.description = (
        "Serves the admission webhooks (defaults, status context, labels) and, where it leads, ends requests by\n"
        "deadline, keeps pods unready while they are recreated, and deletes requests after their TTL."
    )
    parser.epilog = (
        "examples:\n"
        "  crrd manager --namespace crrd-system\n"
        "  crrd manager --tls-cert-file /certs/tls.crt --tls-key-file /certs/tls.key\n\n"
        "exit codes: 0 after SIGTERM or Ctrl-C, 2 for a configuration that waiting does not heal"
    )
    flag = partial(add_flag, parser)
    name = partial(add_flag, parser, metavar="NAME")
    name(
        "--namespace",
        "where its Lease, Secret and Service are",
        env="POD_NAMESPACE",
        default="crrd-system",
        convert=label,
    )
    name("--identity", "which candidate for leadership this is", env="POD_NAME", shown="made up")
    flag(
        "--webhook-address",
        "where admission is served, over TLS",
        env="CRRD_WEBHOOK_ADDRESS",
        default=":9443",
        metavar="HOST:PORT",
    )
    flag(
        "--drain-seconds",
        "how long it is unready before it accepts no more calls, for Services to notice",
        default="10",
        convert=number(0, 600),
        metavar="SECONDS",
    )
    flag(
        "--default-deadline-slack-seconds",
        "what a request without activeDeadlineSeconds gets above its grace periods and minStartedSeconds",
        default=str(DEFAULT_SLACK_SECONDS),
        convert=number(60, 7 * 86400),
        metavar="SECONDS",
    )
    name(
        "--service",
        "the Service in front of it, for the certificate",
        env="CRRD_SERVICE",
        default="crrd-manager",
        convert=label,
    )
    name(
        "--certificate-name",
        "a further DNS name or IP address for the certificate; may be repeated",
        action="append",
        convert=_host,
    )
    name(
        "--secret",
        "the Secret that keeps CA and certificate",
        env="CRRD_SECRET",
        default="crrd-manager-tls",
        convert=subdomain,
    )
    name(
        "--webhook-configuration",
        "webhook configurations of this name get the caBundle; may be repeated",
        shown="crrd",
        action="append",
        convert=subdomain,
    )
    file = partial(add_flag, parser, metavar="FILE")
    file("--tls-cert-file", "a mounted certificate instead of an own one", env="CRRD_TLS_CERT_FILE")
    file("--tls-key-file", "its key", env="CRRD_TLS_KEY_FILE")
    file("--ca-file", "its CA, to be written as caBundle; without it somebody else writes that", env="CRRD_CA_FILE")
    file(
        "--client-ca-file",
        "answer admission only to callers with a certificate of this CA; without it, to anybody",
        env="CRRD_CLIENT_CA_FILE",
    )
    add_kubeconfig_flag(parser)
    add_daemon_flags(parser)


def _host(found: str) -> str:
    """What a certificate can name."""
    try:
        known = "%" not in str(ipaddress.ip_address(found))  # a certificate has no room for a zone
    except ValueError:
        known = _HOST.fullmatch(found) is not None
    if not known:
        raise ValueError("an IP address, or a DNS name in ASCII like crrd.example or *.crrd.example")
    return found


def run(args: argparse.Namespace) -> int:
    """Run the daemon until it is told to end. Raises ConfigurationError."""
    tune_allocator()
    raise_limit()
    return run_manager(manager_config(args))


def manager_config(args: argparse.Namespace) -> ManagerConfig:
    """The configuration of `crrd manager`. Raises ConfigurationError for a value that is missing or impossible."""
    if bool(args.tls_cert_file) != bool(args.tls_key_file):
        raise ConfigurationError("--tls-cert-file and --tls-key-file go together: give both, or none")
    if args.ca_file and not args.tls_cert_file:
        raise ConfigurationError("--ca-file goes with --tls-cert-file: without it, crrd has a CA of its own")
    for flag in ("tls_cert_file", "tls_key_file", "ca_file", "client_ca_file"):
        file = getattr(args, flag)
        if file and not Path(file).is_file():
            raise ConfigurationError(f"--{flag.replace('_', '-')}: there is no file {file}")
    return from_flags(
        ManagerConfig,
        args,
        identity=args.identity or f"{socket.gethostname()}-{os.getpid()}",
        names=tuple(args.certificate_name or ()),
        default_deadline_slack=int(args.default_deadline_slack_seconds),
        webhook_configurations=tuple(args.webhook_configuration or ("crrd",)),
    )
