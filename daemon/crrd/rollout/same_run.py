"""Compares a command with the existing run of the name that it gives: it continues that run, or is another one."""

from dataclasses import replace

from crrd.core.api.time import format_duration
from crrd.core.judge.metrics import digest_of
from crrd.core.rollout.image.facts import ImageRun
from crrd.core.rollout.parts import written
from crrd.core.rollout.run import Options, Run
from crrd.core.rollout.state import World
from crrd.lib.errors import ConfigurationError
from crrd.rollout.session import Session, Via
from crrd.rollout.target import find_target, split_targets


async def check_same(session: Session, run: Run, since: str) -> None:
    """Raise ConfigurationError if the command asks for something that this run does not do.

    Limits may differ, because `resume` changes them. `since` is what --since would be for this run.
    """
    command, differs = session.command, ""
    if command.targets or command.selector:
        (arguments,) = split_targets(command.targets)
        aim = await find_target(session.client, session.namespace, arguments, command.selector)
        if aim.target.identity != run.target.identity:
            differs = f"is on {run.target.words}, not on {aim.target.words}"
    given = command.options.containers
    if not differs and given and given != run.options.containers:
        differs = f"recreates {run.options.what}, not {', '.join(given)}"
    if not differs:
        parts = (run.partition or str(run.options.first or "")) if command.partition is not None else ""
        own = _flags(run.options, parts, command.template)
        asked = _flags(replace(command.options, since=since), str(command.partition or ""), command.template)
        if command.parts:
            own |= _steps(run.steps, run.options.step_pause)
            asked |= _steps(written(command.parts), command.step_pause)
        if command.options.judge:
            own |= _judgement(run.options)
            asked |= _judgement(command.options)
        own["--via"] = f"--via {Via.PATCH if run.options.patch else Via.DAEMON}"
        asked["--via"] = f"--via {command.via}" if command.via is not Via.AUTO else own["--via"]
        if command.template:
            asked["--template"] = f"--template {command.template}"
        flag = next((flag for flag in own if own[flag] != asked[flag]), "")
        if flag:
            began = f"with {own[flag]}" if own[flag] else f"without {flag}"
            differs = f"was started {began}, but this command has {asked[flag] or f'no {flag}'}"
    if differs:
        raise another_run(session, run, differs)


def check_metrics(session: Session, run: Run) -> None:
    """Raise ConfigurationError unless the command has the metrics of this run, which are not stored.

    Else who may write requests would choose whom a user's machine asks, maybe with a token.
    """
    if run.options.metrics_digest == digest_of(session.command.metrics):
        return
    if not session.command.metrics:
        raise ConfigurationError(f"run {run.name} asks metrics, which are not stored: give its --metrics FILE again")
    has = "other metrics" if run.options.metrics_digest else "no metrics"
    raise ConfigurationError(f"run {run.name} was started with {has}: give what it was started with")


def template_differs(world: World, run: Run) -> str:
    """Return how a run from a template differs from what the template has by now, or ""."""
    if run.options.image is None:
        return ""
    facts = ImageRun.of(world, run)
    if not facts.template.uid or facts.template.content.image == facts.image:
        return ""
    return f"gives the pods {facts.image}, but the template has {facts.template.content.image} by now"


def another_run(session: Session, run: Run, differs: str) -> ConfigurationError:
    """Return the error for a command that differs from the existing run of its name."""
    again = session.resume_line(run)
    return ConfigurationError(f"run {run.name} {differs}: use another --run NAME, or resume it: {again}")


def _steps(steps: str, pause: int | None) -> dict[str, str]:
    """Return the flags for the steps of a run."""
    shown = "wait" if pause is None else format_duration(pause) if pause else ""
    values = {"--steps": steps, "--step-pause": shown if steps else ""}
    return {flag: f"{flag} {value}" if value else "" for flag, value in values.items()}


def _judgement(options: Options) -> dict[str, str]:
    """Return the flags for the judgement of a run."""
    values = {
        "--judge": format_duration(options.judge) if options.judge else "",
        "--max-restarts": str(options.max_restarts),
        "--failure-limit": str(options.failure_limit),
    }
    return {flag: f"{flag} {value}" if value else "" for flag, value in values.items()}


def _flags(options: Options, partition: str, template: str) -> dict[str, str]:
    """Return the flags of a run that cannot be changed, "" for those that it does not have.

    A command without --template, --partition or --steps accepts each. `template` is that of the command.
    """
    change = options.image
    values = {
        "--image": "",
        "--image-from-template": change is not None and change.follow,
        "--template": "",
        "--pull": "never" if change is not None and not change.pulls else "",
        "--whole-pod": options.whole_pod,
        "--reload": options.reload,
        "--stale": options.stale,
        "--since": options.since,
        "--partition": partition,
    }
    if change is not None and not change.follow:
        values["--image"] = change.given or change.image
        values["--template"] = template and ("adopt" if change.adopt else "keep")
    return {flag: flag if value is True else f"{flag} {value}" if value else "" for flag, value in values.items()}
