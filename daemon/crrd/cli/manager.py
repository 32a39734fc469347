"""`crrd manager`: its flags and configuration. The daemon itself is `crrd.manager.daemon`."""

import argparse
import ipaddress
import os
import socket
from functools import partial

from crrd.cli.options import (
    add_daemon_flags,
    add_flag,
    add_kubeconfig_flag,
    choice,
    from_flags,
    label,
    listed,
    number,
    subdomain,
)
from crrd.core.judge.addresses import HOST, read_address
from crrd.core.lifecycle.steps import DEFAULT_SLACK_SECONDS
from crrd.core.rollout.image.resources import PULL_RESOURCES, read_resources
from crrd.kube.access.files import is_file
from crrd.lib.descriptors import raise_limit
from crrd.lib.errors import ConfigurationError
from crrd.lib.memory import tune_allocator
from crrd.manager.daemon import ManagerConfig, run_manager
from crrd.manager.gated import GATED_NAMESPACES
from crrd.manager.webhook.server import Limits


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags and arguments."""
    parser.description = (
        "Serves the admission webhooks (defaults, status context, labels). The leader also applies\n"
        "deadlines and TTLs, keeps pods unready during a recreate, and carries out ContainerRecreatePolicies."
    )
    parser.epilog = (
        "examples:\n"
        "  crrd manager --namespace crrd-system\n"
        "  crrd manager --tls-cert-file /certs/tls.crt --tls-key-file /certs/tls.key\n\n"
        "exit codes: 0 after SIGTERM or Ctrl-C, 2 for a configuration error"
    )
    name = partial(add_flag, parser, metavar="NAME")
    namespace = "namespace of the manager's Lease, Secret and Service"
    name("--namespace", namespace, env="POD_NAMESPACE", default="crrd-system", convert=label)
    name("--identity", "identity of this manager in leader election", env="POD_NAME", shown="host name and process ID")
    address = "address that serves the admission webhooks over TLS"
    add_flag(parser, "--webhook-address", address, env="CRRD_WEBHOOK_ADDRESS", default=":9443", metavar="HOST:PORT")
    seconds = partial(add_flag, parser, metavar="SECONDS")
    drain = "at shutdown, seconds to stay unready before the webhook server stops accepting calls"
    seconds("--drain-seconds", drain, default=f"{Limits().drain_seconds:g}", convert=number(0, 600))
    slack = (
        "for requests without activeDeadlineSeconds: the deadline is this time plus their grace periods and "
        "minStartedSeconds"
    )
    env, default, bounded = "CRRD_DEFAULT_DEADLINE_SLACK_SECONDS", str(DEFAULT_SLACK_SECONDS), number(60, 7 * 86400)
    seconds("--default-deadline-slack-seconds", slack, env=env, default=default, convert=bounded)
    pulls = "what pods that pull images for policies request, and may use: cpu, memory, ephemeral-storage"
    shown: dict[str, str] = {"env": "CRRD_PULL_RESOURCES", "shown": PULL_RESOURCES, "metavar": "NAME=QUANTITY,..."}
    add_flag(parser, "--pull-resources", pulls, convert=read_resources, **shown)
    asked = (
        "Prometheus that policies may let the manager ask, such as https://HOST:PORT or https://*.DOMAIN/PREFIX; can "
        "be repeated (environment: CRRD_JUDGE_ADDRESSES, separated by commas)"
    )
    add_flag(parser, "--judge-address", asked, convert=_judge_address, action="append", metavar="ADDRESS")
    via = "who restarts containers: the node daemons, or this manager by patches of the pods, without node daemons"
    add_flag(parser, "--via", via, env="CRRD_VIA", default="daemon", **choice("daemon", "patch"))
    lacking = "requests for pods on a node without a ready node daemon: admit them with a warning, or deny them"
    add_flag(parser, "--without-daemon", lacking, env="CRRD_WITHOUT_DAEMON", default="warn", **choice("warn", "deny"))
    gate = "namespaces whose new pods get the readiness gate: those labelled enabled, or all not labelled disabled"
    gates = choice(*GATED_NAMESPACES)
    add_flag(parser, "--readiness-gate", gate, env="CRRD_READINESS_GATE", default="labelled", **gates)
    service = "Service name for the serving certificate"
    name("--service", service, env="CRRD_SERVICE", default="crrd-manager", convert=label)
    certificate = "additional DNS name or IP address for the serving certificate; can be repeated"
    name("--certificate-name", certificate, action="append", convert=_host)
    secret = "Secret that stores the CA and the serving certificate"  # noqa: S105 - a help text
    name("--secret", secret, env="CRRD_SECRET", default="crrd-manager-tls", convert=subdomain)
    webhooks = "name of a webhook configuration whose caBundle the manager writes; can be repeated"
    name("--webhook-configuration", webhooks, shown="crrd", action="append", convert=subdomain)
    file = partial(add_flag, parser, metavar="FILE")
    serving = "serving certificate file, instead of one that the manager issues"
    file("--tls-cert-file", serving, env="CRRD_TLS_CERT_FILE")
    file("--tls-key-file", "private key of --tls-cert-file", env="CRRD_TLS_KEY_FILE")
    ca = "CA of --tls-cert-file, written to caBundle; if not set, the manager does not write caBundle"
    file("--ca-file", ca, env="CRRD_CA_FILE")
    client_ca = "accept admission calls only with a client certificate from this CA; if not set, accept all"
    file("--client-ca-file", client_ca, env="CRRD_CLIENT_CA_FILE")
    add_kubeconfig_flag(parser)
    add_daemon_flags(parser)


def _host(found: str) -> str:
    """Check that a certificate can contain the name."""
    try:
        known = "%" not in str(ipaddress.ip_address(found))  # a certificate cannot contain a zone
    except ValueError:
        known = HOST.fullmatch(found) is not None
    if not known:
        raise ValueError("an IP address, or a DNS name in ASCII like crrd.example or *.crrd.example")
    return found


def _judge_address(found: str) -> str:
    return str(read_address(found, wildcard=True))


def run(args: argparse.Namespace) -> int:
    """Run the daemon until SIGTERM or Ctrl-C. Raises ConfigurationError."""
    tune_allocator()
    raise_limit()
    return run_manager(manager_config(args))


def manager_config(args: argparse.Namespace) -> ManagerConfig:
    """Return the configuration of `crrd manager`. Raises ConfigurationError for a missing or invalid value."""
    if bool(args.tls_cert_file) != bool(args.tls_key_file):
        raise ConfigurationError("--tls-cert-file and --tls-key-file must be set together")
    if args.ca_file and not args.tls_cert_file:
        raise ConfigurationError("--ca-file needs --tls-cert-file")
    for flag in ("tls_cert_file", "tls_key_file", "ca_file", "client_ca_file"):
        file = getattr(args, flag)
        if file and not is_file(file):
            raise ConfigurationError(f"--{flag.replace('_', '-')}: file {file} not found")
    return from_flags(
        ManagerConfig,
        args,
        identity=args.identity or f"{socket.gethostname()}-{os.getpid()}",
        names=tuple(args.certificate_name or ()),
        default_deadline_slack=int(args.default_deadline_slack_seconds),
        webhook_configurations=tuple(args.webhook_configuration or ("crrd",)),
        deny_without_daemon=args.without_daemon == "deny",
        via_patch=args.via == "patch",
        judge_addresses=listed(args.judge_address, "CRRD_JUDGE_ADDRESSES", _judge_address),
    )
