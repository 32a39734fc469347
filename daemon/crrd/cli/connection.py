"""kubectl's flags for the connection to the API server."""

import argparse
import os
import re
import shlex
from functools import partial

from crrd.cli.options import add_kubeconfig_flag, add_switch, as_flags, duration, parsed
from crrd.kube.access.config import find_access
from crrd.kube.access.kubeconfig import Overrides
from crrd.kube.client import Deadlines, KubeClient
from crrd.kube.clock import ServerClock

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
_FLAGS = ("context", "cluster", "user", *_OF_CLUSTER, *_OF_USER, "request_timeout")


def add_connection_flags(parser: argparse.ArgumentParser) -> None:
    """Add kubectl's flags for the connection. Only given ones are in the namespace, where `overrides_of` finds them."""
    add_kubeconfig_flag(parser)
    group = parser.add_argument_group("connection, as in kubectl")
    add = partial(group.add_argument, default=argparse.SUPPRESS)
    for flag, text in (("context", "context"), ("cluster", "cluster"), ("user", "user")):
        add(f"--{flag}", metavar="NAME", help=f"{text} of the kubeconfig")
    add("-s", "--server", metavar="URL", help="address of the API server")
    add("--certificate-authority", metavar="FILE", help="CA certificate of the API server")
    insecure = "do not check the certificate of the API server"
    add_switch(group, "--insecure-skip-tls-verify", text=insecure, default=argparse.SUPPRESS)
    add("--tls-server-name", metavar="NAME", help="name in the certificate of the API server, if it is not its host")
    add("--token", metavar="TOKEN", help="bearer token")
    add("--client-certificate", metavar="FILE", help="client certificate")
    add("--client-key", metavar="FILE", help="key of the client certificate")
    add("--as", metavar="NAME", help="user to impersonate")
    add("--as-group", metavar="NAME", action="append", help="group to impersonate; can be repeated")
    add("--as-uid", metavar="UID", help="UID to impersonate")
    limit = "time limit of each call, except watches; 0 for none (default: 15s, and 60s for a page of a list)"
    add("--request-timeout", metavar="TIME", type=partial(parsed, convert=_time_limit), help=limit)


def _time_limit(given: str) -> int:
    """Parse a time. Milliseconds, which kubectl accepts, are rounded up to seconds."""
    milliseconds = re.fullmatch(r"([0-9]+)ms", given)
    return duration()(given) if milliseconds is None else -(-int(milliseconds[1]) // 1000)


def overrides_of(args: argparse.Namespace) -> Overrides:
    """Return what the flags for the connection replace in the kubeconfig."""
    given = {name: value for name, value in vars(args).items() if name in _FLAGS and value}
    return Overrides(
        **{name: given[name] for name in ("context", "cluster", "user") if name in given},
        cluster_fields={key: given[name] for name, key in _OF_CLUSTER.items() if name in given},
        user_fields={key: given[name] for name, key in _OF_USER.items() if name in given},
    )


def access_flags(args: argparse.Namespace) -> str:
    """Return the given flags as they are typed, for commands that the output suggests: with TOKEN for the token."""
    given = {name: value for name, value in vars(args).items() if name in _FLAGS}
    kubeconfig = "" if args.kubeconfig == os.environ.get("KUBECONFIG") else args.kubeconfig
    return shlex.join(as_flags(given | {"kubeconfig": kubeconfig} | ({"token": "TOKEN"} if "token" in given else {})))


def connect(args: argparse.Namespace, clock: ServerClock | None = None) -> KubeClient:
    """Return a client for the cluster that the flags select. Raises ConfigurationError if they select none."""
    deadlines = Deadlines().limited(getattr(args, "request_timeout", None))
    access = find_access(args.kubeconfig, os.environ, overrides_of(args))
    return KubeClient(access, deadlines=deadlines, on_date=clock.observe if clock is not None else None)
