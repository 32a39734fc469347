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
    """Add one flag; `more` is as `ArgumentParser.add_argument` takes it.

    `env` names the variable that stands in for the flag, `default` (a text, too) stands in for both, and `shown` is
    what --help says of the default. Raises ConfigurationError for a switch's variable that is neither on nor off.
    """
    parts = [f"environment: {env}"] if env else []
    if shown or default:
        parts.append(f"default: {shown or default.replace('%', '%%')}")
    where = f"{text} ({'; '.join(parts)})" if parts else text
    given = _FromEnvironment(os.environ.get(env) or default) if env else default
    if isinstance(given, _FromEnvironment):
        given.variable = env
    if more.get("action") is argparse.BooleanOptionalAction:
        more["default"] = _value(given or "false", switch)
    else:
        more["type"] = partial(_value, convert=convert)
        if "action" not in more:
            more["default"] = given
    parser.add_argument(name, help=where, **more)


def _value(found: str, convert: Convert) -> Any:
    try:
        return convert(found)
    except ValueError as error:
        if isinstance(found, _FromEnvironment):
            raise ConfigurationError(f"{found.variable} is {str(found)!r}, but must be {error}") from error
        raise argparse.ArgumentTypeError(f"{found!r} must be {error}") from error


def _choice(*choices: str) -> dict[str, Any]:
    """What `add_flag` needs for one of these words; argparse's own do not look at the environment's."""

    def convert(given: str) -> str:
        if given not in choices:
            raise ValueError(f"one of {', '.join(choices)}")
        return given

    return {"convert": convert, "metavar": f"{{{','.join(choices)}}}"}


def switch(found: str) -> bool:
    """On or off."""
    if found.lower() not in ("true", "false", "1", "0"):
        raise ValueError("true or false")
    return found.lower() in ("true", "1")


def _name(pattern: str, most: int, characters: str) -> Convert:
    def convert(given: str) -> str:
        if len(given) > most or not re.fullmatch(pattern, given):
            raise ValueError(f"at most {most} characters ({characters}), and start and end with a letter or digit")
        return given

    return convert


_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
label = _name(_LABEL, 63, "a-z, 0-9, '-'")  # What a Namespace or a Service can be called: a label of RFC 1123
subdomain = _name(rf"{_LABEL}(\.{_LABEL})*", 253, "a-z, 0-9, '-', '.'")
"""What other objects can be called: a subdomain of RFC 1123, as Kubernetes reads that (IsDNS1123Subdomain)."""


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


def count(low: int, most: int | None = None) -> Convert:
    """A whole number from `low` on, up to `most`."""
    must_be = f"a whole number of at least {low}" if most is None else f"a number from {low} to {most}"

    def convert(given: str) -> int:
        if not (given.isascii() and given.isdigit()) or int(given) < low or (most is not None and int(given) > most):
            raise ValueError(must_be)
        return int(given)

    return convert


def add_daemon_flags(parser: argparse.ArgumentParser) -> None:
    """Flags that every daemon has."""
    flag = partial(add_flag, parser)
    address = "address that serves /metrics, /healthz and /readyz; port 0 picks a free port"
    flag("--bind-address", address, env="CRRD_BIND_ADDRESS", default="127.0.0.1:9420", metavar="HOST:PORT")
    formats = _choice("console", "json")
    flag("--log-format", "log format: console or json", env="CRRD_LOG_FORMAT", default="console", **formats)
    levels, level = _choice("debug", "info", "warning", "error"), "minimum log level; SIGUSR1 switches debug on and off"
    flag("--log-level", level, env="CRRD_LOG_LEVEL", default="info", **levels)


def add_kubeconfig_flag(parser: argparse.ArgumentParser) -> None:
    """The flag of every command that speaks to the API server."""
    shown = "~/.kube/config, or the pod's service account"
    add_flag(parser, "--kubeconfig", "path to the kubeconfig file", env="KUBECONFIG", shown=shown, metavar="FILE")


def add_cri_flag(parser: argparse.ArgumentParser) -> None:
    """The flag of every command that speaks to the container runtime; read it with `cri_endpoints`."""
    text = (
        "CRI socket of the container runtime, e.g. unix:///run/containerd/containerd.sock; can be repeated "
        "(environment: CRRD_CRI_ENDPOINTS, separated by commas; default: the well-known sockets)"
    )
    parser.add_argument("--cri-endpoint", metavar="SOCKET", action="append", help=text)


def cri_endpoints(given: list[str] | None) -> tuple[str, ...]:
    """The sockets from the flag, else from the environment."""
    listed = os.environ.get("CRRD_CRI_ENDPOINTS", "").split(",")
    return tuple(given or [part.strip() for part in listed if part.strip()])


def from_flags(config: type[C], args: argparse.Namespace, **made: Any) -> C:
    """A command's configuration: each field has the value of the flag of its name, except those that are given here."""
    names = [field.name for field in fields(config) if field.name not in made]
    return config(**{name: getattr(args, name) for name in names}, **made)
