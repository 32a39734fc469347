"""Flags: one helper makes a flag, its environment variable and their help. Imports next to nothing.

A flag wins over its environment variable, which wins over the default. The value is checked when flags are read.
"""

import argparse
import os
import re
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from crrd.core.api.time import parse_duration
from crrd.lib.errors import ConfigurationError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

C = TypeVar("C", bound="DataclassInstance")
Convert = Callable[[str], Any]
"""Makes a value of a text; ValueError with what the text has to be, for a sentence that ends with it."""


class _FromEnvironment(str):
    """A default that came from a variable: what is wrong with it is the variable's fault, not a flag's."""

    __slots__ = ("variable",)
    variable: str


def add_flag(
    parser: argparse.ArgumentParser,
    name: str,
    text: str,
    *,
    env: str = "",
    default: str = "",
    shown: str = "",
    convert: Convert = str,
    **more: Any,
) -> None:
    """Add one flag.

    Args:
        parser: the command's.
        name: with its dashes.
        text: what it is for; the variable and the default are added to it.
        env: the variable that stands in for the flag.
        default: in place of both, as text.
        shown: what --help says of the default; "" for the default itself, where there is one.
        convert: makes the value.
        more: as `ArgumentParser.add_argument` takes it.

    Raises ConfigurationError for a switch's variable that is neither on nor off.
    """
    parts = [f"environment: {env}"] if env else []
    if shown or default:
        parts.append(f"default: {shown or default.replace('%', '%%')}")
    where = f"{text} ({'; '.join(parts)})" if parts else text
    given = _FromEnvironment(os.environ.get(env) or default) if env else default
    if isinstance(given, _FromEnvironment):
        given.variable = env
    if more.get("action") is argparse.BooleanOptionalAction:
        parser.add_argument(name, default=_value(given or "false", switch), help=where, **more)
    elif "action" in more:
        parser.add_argument(name, type=lambda found: _value(found, convert), help=where, **more)
    else:
        parser.add_argument(name, default=given, type=lambda found: _value(found, convert), help=where, **more)


def _value(found: str, convert: Convert) -> Any:
    try:
        return convert(found)
    except ValueError as error:
        if isinstance(found, _FromEnvironment):
            raise ConfigurationError(f"{found.variable} is {str(found)!r}, but must be {error}") from error
        raise argparse.ArgumentTypeError(f"{found!r} must be {error}") from error


def one_of(*choices: str) -> Convert:
    """One of these words."""

    def convert(found: str) -> str:
        if found not in choices:
            raise ValueError(f"one of {', '.join(choices)}")
        return found

    return convert


def switch(found: str) -> bool:
    """On or off."""
    if found.lower() not in ("true", "false", "1", "0"):
        raise ValueError("true or false")
    return found.lower() in ("true", "1")


def label(found: str) -> str:
    """What a Namespace or a Service can be called: a label of RFC 1123."""
    if not re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", found):
        raise ValueError("at most 63 characters (a-z, 0-9, '-'), and start and end with a letter or digit")
    return found


def subdomain(found: str) -> str:
    """What other objects can be called: a subdomain of RFC 1123, as Kubernetes reads that (IsDNS1123Subdomain)."""
    one = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
    if len(found) > 253 or not re.fullmatch(rf"{one}(\.{one})*", found):
        raise ValueError("at most 253 characters (a-z, 0-9, '-', '.'), and start and end with a letter or digit")
    return found


def port(found: str) -> int:
    """A port's number, 0 for none."""
    if not (found.isascii() and found.isdigit() and int(found) < 2**16):
        raise ValueError("a number from 0 to 65535")
    return int(found)


def number(low: float, high: float) -> Convert:
    """A number of these bounds."""

    def convert(found: str) -> float:
        try:
            value = float(found)
        except ValueError:
            value = float("nan")
        if not low <= value <= high:
            raise ValueError(f"a number from {low:g} to {high:g}")
        return value

    return convert


def duration(low: int = 0, most: tuple[int, str] | None = None) -> Convert:
    """Whole seconds, as kubectl takes a time: 30s, 5m, 1h30m, or a number of seconds; at least `low`.

    `most` is the most that it may be, in seconds and in words; None for no bound.
    """
    bounds = f"at least {low}s" if most is None else f"from {low}s to {most[1]}"

    def convert(found: str) -> int:
        total = parse_duration(found)
        if total is None or total < low or (most is not None and total > most[0]):
            raise ValueError(f"a time like 30s, 5m or 1h30m, {bounds}")
        return total

    return convert


def count(low: int) -> Convert:
    """A whole number from `low` on."""

    def convert(found: str) -> int:
        if not (found.isascii() and found.isdigit() and int(found) >= low):
            raise ValueError(f"a whole number of at least {low}")
        return int(found)

    return convert


def add_daemon_flags(parser: argparse.ArgumentParser) -> None:
    """Flags that every daemon has."""
    flag = partial(add_flag, parser)
    flag(
        "--bind-address",
        "address that serves /metrics, /healthz and /readyz; port 0 picks a free port",
        env="CRRD_BIND_ADDRESS",
        default="127.0.0.1:9420",
        metavar="HOST:PORT",
    )
    flag(
        "--log-format",
        "log format: console or json",
        env="CRRD_LOG_FORMAT",
        default="console",
        convert=one_of("console", "json"),
        metavar="{console,json}",
    )
    flag(
        "--log-level",
        "minimum log level; SIGUSR1 switches debug on and off",
        env="CRRD_LOG_LEVEL",
        default="info",
        convert=one_of("debug", "info", "warning", "error"),
        metavar="{debug,info,warning,error}",
    )


def add_kubeconfig_flag(parser: argparse.ArgumentParser) -> None:
    """The flag of every command that speaks to the API server."""
    add_flag(
        parser,
        "--kubeconfig",
        "path to the kubeconfig file",
        env="KUBECONFIG",
        shown="~/.kube/config, or the pod's service account",
        metavar="FILE",
    )


def add_cri_flag(parser: argparse.ArgumentParser) -> None:
    """The flag of every command that speaks to the container runtime; read it with `cri_endpoints`."""
    parser.add_argument(
        "--cri-endpoint",
        metavar="SOCKET",
        action="append",
        help=(
            "CRI socket of the container runtime, e.g. unix:///run/containerd/containerd.sock; can be "
            "repeated (environment: CRRD_CRI_ENDPOINTS, separated by commas; default: the well-known sockets)"
        ),
    )


def cri_endpoints(given: list[str] | None) -> tuple[str, ...]:
    """The sockets from the flag, else from the environment."""
    listed = os.environ.get("CRRD_CRI_ENDPOINTS", "").split(",")
    return tuple(given or [part.strip() for part in listed if part.strip()])


def from_flags(config: type[C], args: argparse.Namespace, **made: Any) -> C:
    """A command's configuration: each field has the value of the flag of its name, except those that are given here."""
    names = [field.name for field in fields(config) if field.name not in made]
    return config(**{name: getattr(args, name) for name in names}, **made)
