"""`crrd recreate` and `kubectl recreate`: its verbs, and what their flags ask for. `crrd.rollout` carries them out."""

import argparse
import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import cache
from itertools import islice
from typing import Any

from crrd.cli.connection import access_flags, overrides_of
from crrd.cli.explain import explained, render
from crrd.cli.options import as_flag, as_flags, from_flags
from crrd.cli.recreate_flags import MetricsFile, add_flags
from crrd.core.judge.metrics import digest_of
from crrd.core.rollout.change import ImageChange, TemplateMode
from crrd.core.rollout.phases import End
from crrd.core.rollout.run import Options
from crrd.kube.client import KubeClient
from crrd.kube.clock import ServerClock
from crrd.lib.errors import ApiUnavailableError, ConfigurationError
from crrd.lib.log import configure as configure_log
from crrd.lib.output import complain
from crrd.lib.plain import plain
from crrd.rollout.abort import abort
from crrd.rollout.session import Command, execute
from crrd.rollout.start import resume, start, undo
from crrd.rollout.status import status
from crrd.rollout.target import split_targets

_PROCESS_FLAGS = ("timeout", "yes", "retry_failed")  # Flags of the process that carries out a run


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verbs, with their flags and arguments."""
    parser.set_defaults(called=parser.prog)
    verbs = parser.add_subparsers(dest="verb", required=True)
    for name, work in _VERBS.items():
        called = f"{parser.prog} {name}".rstrip()
        verb = verbs.add_parser(name, prog=called, formatter_class=parser.formatter_class, allow_abbrev=False)
        verb.set_defaults(work=work)
        add_flags(verb, name)


def arranged(words: Sequence[str]) -> list[str]:
    """Return the words in the order that argparse needs: the verb ("" to start a run), its arguments, then the flags.

    As with kubectl, flags may be before the verb and between arguments, the value of one may begin with a dash, and
    one dash may stand for several switches. But where a value is missing, the next flag is none.
    """
    arguments: list[str] = []
    given: list[str] = []
    rest = iter(words)
    for word in rest:
        if word.startswith("-"):
            while _is_switch(word[:2]) and word[2:3] not in ("", "="):
                given, word = [*given, word[:2]], f"-{word[2:]}"  # noqa: PLW2901 - what is left of it
            _check_value(word)
            value = list(islice(rest, 1)) if find_flag(word) else []
            is_text = bool(value) and value[0].startswith("-") and not _is_flag(value[0].partition("=")[0])
            given += [f"{word}={value[0]}"] if is_text else [word, *value]
        else:
            arguments.append(word)
    verb = arguments.pop(0) if arguments and arguments[0] in VERBS else ""
    return [verb, *arguments, *given]


def _is_flag(word: str) -> bool:
    return any(word in flags_of(verb) for verb in _VERBS)


def _is_switch(word: str) -> bool:
    """Whether this is a flag that has no value."""
    return _is_flag(word) and find_flag(word) is None


def _check_value(word: str) -> None:
    """Raise ConfigurationError for a switch with a value that it cannot have. argparse calls such a value ignored."""
    name, equals, value = word.partition("=")
    flags = [flags for flags in map(flags_of, _VERBS) if name in flags]
    if equals and any(each[name].nargs == 0 for each in flags) and not any(word in each for each in flags):
        values = "none, client or server" if name == "--dry-run" else "true or false"
        raise ConfigurationError(f"{name} is {value!r}, but must be {values}")


@cache
def flags_of(verb: str) -> Mapping[str, argparse.Action]:
    """Return the flags of a verb."""
    add_flags(parser := argparse.ArgumentParser(), verb)
    actions = parser._actions  # noqa: SLF001 - argparse has no public way
    return {flag: action for action in actions for flag in action.option_strings}


def find_flag(word: str) -> argparse.Action | None:
    """Return the flag, of any verb, whose value is the word after this one; None if this is no such flag."""
    found = (flags_of(verb).get(word) for verb in _VERBS)
    return next((flag for flag in found if flag is not None and flag.nargs != 0), None)


_VERBS = {"": start, "status": status, "resume": resume, "undo": undo, "abort": abort}
VERBS = tuple(filter(None, _VERBS))
"""The words that are no target, if they come first."""


def run(args: argparse.Namespace) -> int:
    """Carry out the command. Return the exit code. Raises ConfigurationError if it cannot be done."""
    configure_log("console", "error")
    try:
        return asyncio.run(execute(args.work, requested(args), _explanation))
    except (KeyboardInterrupt, asyncio.CancelledError):
        return End.INTERRUPTED.exit_code
    except ConfigurationError as error:
        raise ConfigurationError(plain(str(error))) from error
    except ApiUnavailableError as error:
        complain(f"{args.called}: cannot reach the API server: {plain(str(error))}")
        return End.FAILED.exit_code


async def _explanation(client: KubeClient, clock: ServerClock, request: Mapping[str, Any], flags: str) -> str:
    return render(await explained(client, clock, request), flags)


def _check(args: argparse.Namespace) -> None:
    """Raise ConfigurationError for contradictory or unsupported arguments."""
    if args.all_namespaces:
        raise ConfigurationError("--all-namespaces is not supported: a run covers one namespace (use -n NAMESPACE)")
    if args.verb == "status":
        if args.watch and not args.run_name:
            raise ConfigurationError("--watch needs the name of one run")
        return
    if args.verb:
        if not args.run_name:
            raise ConfigurationError(f"{args.verb} needs the name of one run; to list runs: {args.called} status")
        return
    if bool(args.targets) == bool(args.selector) and (args.targets or not (args.stale and args.dry_run)):
        raise ConfigurationError("use either TYPE/NAME (for example deployment/web) or -l SELECTOR")
    if "run_name" in args and len(split_targets(tuple(args.targets))) > 1:
        raise ConfigurationError("--run can be used with only one TYPE/NAME, because each TYPE/NAME gets its own run")
    if args.whole_pod:
        _check_whole_pod(vars(args))
    if args.reload:
        _check_reload(vars(args))
    _check_steps(vars(args))
    if getattr(args, "retry_failed", False) and "run_name" not in args:
        raise ConfigurationError("--retry-failed needs resume RUN or --run NAME")


def _check_steps(given: Mapping[str, Any]) -> None:
    """Raise ConfigurationError for flags that do not fit to --steps and --judge."""
    if "step_pause" in given and "parts" not in given:
        raise ConfigurationError("--step-pause needs --steps")
    alone = [name for name in ("max_restarts", "failure_limit", "metrics", "undo_on_failure") if name in given]
    if alone and "judge" not in given:
        raise ConfigurationError(f"{as_flag(alone[0])} needs --judge TIME")
    if "undo_on_failure" in given and not (given.get("image_name") or given.get("follows_template")):
        raise ConfigurationError("--undo-on-failure needs --image: a restart cannot be undone")
    if "parts" not in given:
        return
    if "partition" in given:
        raise ConfigurationError("--steps cannot be used with --partition: use --steps N --step-pause wait")
    if given.get("yes") and given.get("step_pause", 0) is None:
        raise ConfigurationError("--step-pause wait cannot be used with --yes: after a step, use resume RUN --yes")


def _check_whole_pod(given: Mapping[str, Any]) -> None:
    """Raise ConfigurationError for a flag that does not fit to --whole-pod."""
    if given.get("container") and not given.get("image_name"):
        why = "all containers of a pod restart (-c is for the init container that gets an --image)"
        raise ConfigurationError(f"--whole-pod cannot be used with --container: {why}")
    if given.get("follows_template"):
        why = "it gives containers that run another image"
        raise ConfigurationError(f"--whole-pod cannot be used with --image-from-template: {why}")


def _check_reload(given: Mapping[str, Any]) -> None:
    """Raise ConfigurationError for a flag that does not fit to --reload."""
    for flag, name, why in (
        ("--whole-pod", "whole_pod", "no container is stopped"),
        ("--image", "image_name", "no container is stopped"),
        ("--image-from-template", "follows_template", "no container is stopped"),
        ("--stale", "stale", "a container that has reloaded is as old as before, so --stale would find it again"),
    ):
        if given.get(name):
            raise ConfigurationError(f"--reload cannot be used with {flag}: {why}")


def requested(args: argparse.Namespace) -> Command:
    """Return the parsed command line. Raises ConfigurationError for invalid arguments."""
    _check(args)
    given = vars(args)
    containers = tuple(filter(None, dict.fromkeys(given.get("container", ()))))
    # `since` is relative to the run's start.
    options = {each.name: given[each.name] for each in fields(Options) if each.name in given.keys() - {"since"}}
    changed = {name: value for name, value in options.items() if as_flag(name) in flags_of("resume")}
    resume_flags = {name: given[name] for name in _PROCESS_FLAGS if name in given}  # the run's requests have the limits
    metrics_file, metrics = given.get("metrics", MetricsFile("", ()))
    return from_flags(
        Command,
        args,
        targets=tuple(given.get("targets", ())),
        options=Options(containers, image=_image(args, containers), metrics_digest=digest_of(metrics), **options),
        changed_options=changed,
        metrics=metrics,
        metrics_file=metrics_file,
        overrides=overrides_of(args),
        access_flags=access_flags(args),
        resume_flags=(*as_flags(resume_flags), *(() if args.output.is_text else ("-o", str(args.output)))),
    )


def _image(args: argparse.Namespace, containers: tuple[str, ...]) -> ImageChange | None:
    """Return the change to another image. Raises ConfigurationError for flags that do not fit."""
    given = vars(args)
    name, follows = given.get("image_name", ""), given.get("follows_template", False)
    if follows and (name or args.template or args.selector):
        raise ConfigurationError("--image-from-template needs a workload, and no --image and --template")
    if not name and not follows:
        alone = [flag for flag in ("template", "allow_mutable_tag", "pull_resources") if given.get(flag)]
        if alone and not args.verb:
            raise ConfigurationError(f"{as_flag(alone[0])} needs --image IMAGE")
        return None
    other = next((flag for flag in ("stale", "since", "ordered", "preflight") if given.get(flag)), "")
    flag = "--image-from-template" if follows else "--image"
    if other:
        raise ConfigurationError(f"{flag} cannot be used with --{other}")
    if len(containers) != 1 and (containers or not follows):
        raise ConfigurationError(f"{flag} needs one container: -c NAME")
    mode = TemplateMode.FOLLOW if follows else TemplateMode(args.template or TemplateMode.KEEP)
    return ImageChange(name, mode=mode, pulls=args.pull == "kubelet")
