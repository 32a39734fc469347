"""The command line: parses flags, runs one command, and turns errors into one line and an exit code.

Each command is a module: `configure` adds its flags, and `run` runs it and returns the exit code. A command with verbs
has `arranged`, which moves the verb to the front. Only the module of the given command is imported, so that `crrd node`
does not load what other commands need.
"""

import argparse
import importlib
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from functools import partial
from types import ModuleType
from typing import NoReturn, TextIO, cast

from crrd import __version__
from crrd.lib.distributions import ELSEWHERE, find
from crrd.lib.errors import ConfigurationError, OutputError
from crrd.lib.imports import keep_imports_lean
from crrd.lib.output import Output, complain

EXIT_CONFIGURATION = 2  # Errors that retrying does not fix; argparse uses it too
EXIT_INTERRUPTED = 130
EXIT_NO_READER = 141  # stdout was closed: the exit code that shells use for SIGPIPE (128 plus the signal's number)

COMMANDS = {
    "node": "run the node daemon, which restarts the containers of one node",
    "manager": "run the manager: admission webhooks and lifecycle of requests",
    "doctor": "check an installation: CRD, admission, daemons, clocks and rights",
    "explain": "show what a request waits for, and what to do",
    "recreate": "restart containers of a whole workload, a few pods at a time",
    "policies": "print policies in place of what another tool does (Stakater Reloader)",
    "forecast": "show which containers a kubelet upgrade would restart, and why",
    "demo": "restart a container on a local demo node",
    "completion": "print a shell completion script for `crrd recreate`",
}
"""Each is a module of this package, or of another distribution, which has it in the group `crrd.commands`."""
DAEMONS = ("node", "manager")
DESCRIPTION = """\
crrd restarts single containers of running Kubernetes pods in place: the pod, its IP and its volumes stay.
To restart containers of a workload, use `kubectl recreate`, with nothing installed in the cluster. Where crrd is
installed, a ContainerRecreateRequest (kubectl get crr) does it, and policies do it after changes."""
_formatter = partial(argparse.RawDescriptionHelpFormatter, max_help_position=32)
"""Keeps the line breaks of the examples, and gives the flags a wide column."""


def build_parser(*wanted: str, prog: str = "crrd") -> argparse.ArgumentParser:
    """Return the parser of `crrd`, called `prog`, with the flags of the wanted commands.

    Raises ConfigurationError for an environment variable with an invalid value.
    """
    parser = argparse.ArgumentParser(prog=prog, description=DESCRIPTION, formatter_class=_formatter)
    parser.add_argument("--version", action="version", version=f"crrd {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, text in COMMANDS.items():
        command = commands.add_parser(name, help=text, formatter_class=_formatter)
        if name in wanted:
            module_of(name).configure(command)
    return parser


def module_of(command: str) -> ModuleType:
    """Return the module of a command. Raises ConfigurationError if its distribution is not installed."""
    if command not in ELSEWHERE:
        with keep_imports_lean():
            return importlib.import_module(f"crrd.cli.{command}")
    module: ModuleType = find("crrd.commands", command).load()
    return module


def main(argv: Sequence[str] | None = None, *, prog: str = "crrd") -> NoReturn:
    """Run `crrd`, and exit the process with its exit code."""
    # gRPC's C core would write lines in its own format to the log. Its errors are raised as exceptions anyway.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    arguments = sys.argv[1:] if argv is None else list(argv)
    command = arguments[0] if arguments else ""
    if command in DAEMONS:
        # Without shareProcessNamespace the daemon is process 1, for which the kernel drops a SIGTERM without a handler.
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))

    def work() -> int:
        if command in COMMANDS:
            _check_platform()
        parser = build_parser(command, prog=prog)
        if command in COMMANDS and (arranged := getattr(module_of(command), "arranged", None)) is not None:
            arguments[1:] = arranged(arguments[1:])
        args, unknown = parser.parse_known_args(arguments)
        if unknown:
            called = " ".join(filter(None, (prog, command, getattr(args, "verb", ""))))
            raise ConfigurationError(f"unknown arguments: {' '.join(unknown)}; `{called} --help` lists what there is")
        code: int = module_of(args.command).run(args)
        return code

    _carry_out(f"{prog} {command}", work)


def _check_platform() -> None:
    """Raise ConfigurationError where the commands lack signals and modules that they need."""
    if sys.platform == "win32":
        raise ConfigurationError(
            "crrd runs on Linux and macOS; on Windows, use it in the Windows Subsystem for Linux (WSL)"
        )


def _carry_out(name: str, work: Callable[[], int]) -> NoReturn:
    """Exit the process with the result of `work`, or print its error in one line and exit with its code."""
    out = Output(sys.stdout)
    try:
        with redirect_stdout(cast("TextIO", out)):
            try:
                code = work()
            finally:
                out.flush()
    except OutputError as error:
        code = EXIT_NO_READER if error.reader_gone else EXIT_CONFIGURATION
        if not error.reader_gone:
            complain(f"{name}: {error}")
    except ConfigurationError as error:
        complain(f"{name}: {error}")
        code = EXIT_CONFIGURATION
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
    sys.exit(code)


def kubectl_recreate() -> None:
    """Run `kubectl recreate`: kubectl runs the program `kubectl-recreate` with the remaining arguments."""
    main(["recreate", *sys.argv[1:]], prog="kubectl")


def kubectl_complete_recreate() -> None:
    """Answer kubectl's completion, which runs `kubectl_complete-recreate` with the words so far."""

    def work() -> int:
        _check_platform()
        code: int = importlib.import_module("crrd.cli.completion").complete(sys.argv[1:])
        return code

    _carry_out("kubectl recreate", work)
