"""kubectl's flags for the connection to the API server."""

import argparse
from functools import partial

from crrd.cli.options import add_kubeconfig_flag, duration, parsed
from crrd.kube.kubeconfig import Overrides

_OF_CLUSTER = {
    "server": "server",
    "certificate_authority": "certificate-authority",
    "insecure_skip_tls_verify": "insecure-skip-tls-verify",
    "tls_server_name": "tls-server-name",
}
"""Flags for fields of a kubeconfig's cluster, and the fields' keys."""
_OF_USER = {
    "token": "token",
    "client_certificate": "client-certificate",
    "client_key": "client-key",
    "as": "as",
    "as_uid": "as-uid",
    "as_group": "as-groups",
}
"""Flags for fields of a kubeconfig's user, and the fields' keys."""
CONNECTION_FLAGS = ("context", "cluster", "user", *_OF_CLUSTER, *_OF_USER, "request_timeout")


def add_connection_flags(parser: argparse.ArgumentParser) -> None:
    """Add kubectl's flags for the connection. Only given ones are in the namespace, where `overrides_of` finds them."""
    add_kubeconfig_flag(parser)
    add = partial(parser.add_argument_group("connection, as in kubectl").add_argument, default=argparse.SUPPRESS)
    for flag, text in (("context", "context"), ("cluster", "cluster"), ("user", "user")):
        add(f"--{flag}", metavar="NAME", help=f"{text} of the kubeconfig")
    add("-s", "--server", metavar="URL", help="address of the API server")
    add("--certificate-authority", metavar="FILE", help="CA certificate of the API server")
    insecure = ("--insecure-skip-tls-verify", "--insecure-skip-tls-verify=true")
    add(*insecure, action="store_true", help="do not check the certificate of the API server")
    add("--tls-server-name", metavar="NAME", help="name in the certificate of the API server, if it is not its host")
    add("--token", metavar="TOKEN", help="bearer token")
    add("--client-certificate", metavar="FILE", help="client certificate")
    add("--client-key", metavar="FILE", help="key of the client certificate")
    add("--as", metavar="NAME", help="user to impersonate")
    add("--as-group", metavar="NAME", action="append", help="group to impersonate; can be repeated")
    add("--as-uid", metavar="UID", help="UID to impersonate")
    limit = "time limit of each call, except watches; 0 for none (default: 15s, and 60s for a page of a list)"
    add("--request-timeout", metavar="TIME", type=partial(parsed, convert=duration()), help=limit)


def overrides_of(args: argparse.Namespace) -> Overrides:
    """Return what the flags for the connection replace in the kubeconfig."""
    given = {name: value for name, value in vars(args).items() if name in CONNECTION_FLAGS and value}
    return Overrides(
        **{name: given[name] for name in ("context", "cluster", "user") if name in given},
        cluster_fields={key: given[name] for name, key in _OF_CLUSTER.items() if name in given},
        user_fields={key: given[name] for name, key in _OF_USER.items() if name in given},
    )
