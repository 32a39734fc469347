"""Flags: `add_flag` adds a flag with its environment variable and help. Imports almost nothing.

A flag overrides its environment variable, which overrides the default. Values are checked when flags are parsed.
"""

import argparse
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from crrd.core.api.time import parse_duration
from crrd.lib.errors import ConfigurationError
from crrd.lib.formats import FORMATS, Format, read_format

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

C = TypeVar("C", bound="DataclassInstance")
Convert = Callable[[str], Any]  # Converts text to a value. A ValueError's message completes the sentence "... must be"


class _FromEnvironment(str):
    """A default from an environment variable, so that an error names the variable and not the flag."""

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
    """Add one flag. `more` is passed to `ArgumentParser.add_argument`.

    `env` is the variable that replaces a missing flag, `default` (also a text, or argparse.SUPPRESS) replaces both, and
    `shown` is the default in --help. Raises ConfigurationError if a switch's variable is neither on nor off.
    """
    parts = [f"environment: {env}"] if env else []
    if shown or default not in ("", argparse.SUPPRESS):
        parts.append(f"default: {shown or default.replace('%', '%%')}")
    where = f"{text} ({'; '.join(parts)})" if parts else text
    given = _FromEnvironment(os.environ.get(env) or default) if env else default
    if isinstance(given, _FromEnvironment):
        given.variable = env
    if more.get("action") is argparse.BooleanOptionalAction:
        more["default"] = parsed(given or "false", switch)
    else:
        more["type"] = partial(parsed, convert=convert)
        if "action" not in more:
            more["default"] = given
    parser.add_argument(name, help=where, **more)


_BOOLEANS = {"true": ("true", "True", "TRUE", "t", "T", "1"), "false": ("false", "False", "FALSE", "f", "F", "0")}
"""What Go's strconv.ParseBool accepts."""


def with_value(flags: Iterable[str], value: str) -> Iterator[str]:
    """Yield flags with `=true` or `=false`, in all spellings that kubectl accepts."""
    return (f"{flag}={spelling}" for flag in flags for spelling in _BOOLEANS[value])


def add_switch(
    parser: "argparse._ActionsContainer", *flags: str, text: str, default: Any = False, dest: str | None = None
) -> None:
    """Add a flag that needs no value. As with kubectl it may have one (`--yes=false`), and the last one counts."""
    more: Any = {} if dest is None else {"dest": dest}
    made = parser.add_argument(*flags, action="store_true", default=default, help=text, **more)
    for value in _BOOLEANS:
        spellings = with_value(flags, value)
        hidden = {"dest": made.dest, "default": default, "help": argparse.SUPPRESS}
        parser.add_argument(*spellings, action=f"store_{value}", **hidden)


def add_output(parser: "argparse._ActionsContainer", *, names: bool = True) -> None:
    """Add `-o`. `names` tells whether there are names for `-o name`."""
    known = [each for each in FORMATS if names or each != "name"]

    def convert(given: str) -> Format:
        if given not in known and given in FORMATS:
            raise ValueError(f"{', '.join(known)} or jsonpath=TEMPLATE")
        return read_format(given)

    shown = f"{'|'.join(known)}|jsonpath=TEMPLATE"
    read: Any = partial(parsed, convert=convert)
    parser.add_argument("-o", "--output", metavar="FORMAT", type=read, default="text", help=f"format: {shown}")


def as_flag(name: str) -> str:
    """Return the flag of a name in the namespace of flags."""
    return f"--{name.replace('_', '-')}"


def as_flags(given: Mapping[str, Any]) -> Iterator[str]:
    """Yield flags as they are typed, except those without a value. All numbers are seconds."""
    for name, value in given.items():
        for each in value if isinstance(value, list) else [value]:
            if each != "" and each is not False:
                yield as_flag(name)
                yield from () if each is True else [f"{each}s" if isinstance(each, int) else str(each)]


def parsed(found: str, convert: Convert) -> Any:
    """Convert a flag's value. Raises argparse.ArgumentTypeError, or ConfigurationError for one of the environment."""
    try:
        return convert(found)
    except ValueError as error:
        if isinstance(found, _FromEnvironment):
            raise ConfigurationError(f"{found.variable} is {str(found)!r}, but must be {error}") from error
        raise argparse.ArgumentTypeError(f"{found!r} must be {error}") from error


def choice(*choices: str) -> dict[str, Any]:
    """Return the arguments of `add_flag` for one of these words. argparse does not check the environment's value."""

    def convert(given: str) -> str:
        if given not in choices:
            raise ValueError(f"one of {', '.join(choices)}")
        return given

    return {"convert": convert, "metavar": f"{{{','.join(choices)}}}"}


def switch(found: str) -> bool:
    """Parse on or off."""
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
label = _name(_LABEL, 63, "a-z, 0-9, '-'")  # Names of Namespaces and Services: a label of RFC 1123
run_name = _name(_LABEL, 40, "a-z, 0-9, '-'")  # As RUN_NAME in core.rollout.run
subdomain = _name(rf"{_LABEL}(\.{_LABEL})*", 253, "a-z, 0-9, '-', '.'")
"""Names of other objects: a subdomain of RFC 1123, as Kubernetes checks it (IsDNS1123Subdomain)."""


def number(low: float, high: float) -> Convert:
    """A converter for numbers in these bounds."""

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
    """A converter for whole seconds in kubectl's notation: 30s, 5m, 1h30m, or a number of seconds; at least `low`.

    `most` is the upper bound, in seconds and as text. None means no bound.
    """
    bounds = f"at least {low}s" if most is None else f"from {low}s to {most[1]}"

    def convert(found: str) -> int:
        total = parse_duration(found)
        if total is None or total < low or (most is not None and total > most[0]):
            raise ValueError(f"a time like 30s, 5m or 1h30m, {bounds}")
        return total

    return convert


def count(low: int, most: int | None = None) -> Convert:
    """A converter for whole numbers from `low` to `most`."""
    must_be = f"a whole number of at least {low}" if most is None else f"a number from {low} to {most}"

    def convert(given: str) -> int:
        if not (given.isascii() and given.isdigit()) or int(given) < low or (most is not None and int(given) > most):
            raise ValueError(must_be)
        return int(given)

    return convert


def add_daemon_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of all daemons."""
    flag = partial(add_flag, parser)
    address = "address that serves /metrics, /healthz and /readyz; port 0 picks a free port"
    flag("--bind-address", address, env="CRRD_BIND_ADDRESS", default="127.0.0.1:9420", metavar="HOST:PORT")
    formats = choice("console", "json")
    flag("--log-format", "log format: console or json", env="CRRD_LOG_FORMAT", default="console", **formats)
    levels, level = choice("debug", "info", "warning", "error"), "minimum log level; SIGUSR1 switches debug on and off"
    flag("--log-level", level, env="CRRD_LOG_LEVEL", default="info", **levels)


def add_kubeconfig_flag(parser: argparse.ArgumentParser) -> None:
    """Add the flag of all commands that use the API server."""
    shown = "~/.kube/config, or the pod's service account"
    add_flag(parser, "--kubeconfig", "path to the kubeconfig file", env="KUBECONFIG", shown=shown, metavar="FILE")


def add_cri_flag(parser: argparse.ArgumentParser) -> None:
    """Add the flag of all commands that use the container runtime. `cri_endpoints` reads it."""
    text = (
        "CRI socket of the container runtime, e.g. unix:///run/containerd/containerd.sock; can be repeated "
        "(environment: CRRD_CRI_ENDPOINTS, separated by commas; default: the well-known sockets)"
    )
    parser.add_argument("--cri-endpoint", metavar="SOCKET", action="append", help=text)


def cri_endpoints(given: list[str] | None) -> tuple[str, ...]:
    """Return the sockets from the flag, or else from the environment."""
    return listed(given, "CRRD_CRI_ENDPOINTS")


def listed(given: list[str] | None, variable: str, convert: Convert = str) -> tuple[str, ...]:
    """Return the values of a repeated flag, or else those of the environment, separated by commas and converted here.

    Raises ConfigurationError if one of the environment is invalid.
    """
    if given:
        return tuple(given)
    parts = [_FromEnvironment(part.strip()) for part in os.environ.get(variable, "").split(",") if part.strip()]
    for each in parts:
        each.variable = variable
    return tuple(parsed(each, convert) for each in parts)


def from_flags(config: type[C], args: argparse.Namespace, **made: Any) -> C:
    """Return a command's configuration: each field is from `made`, or the flag with its name, or a default."""
    names = [field.name for field in fields(config) if field.name in args and field.name not in made]
    return config(**{name: getattr(args, name) for name in names}, **made)
