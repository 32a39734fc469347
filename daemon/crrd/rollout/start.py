"""Starts a run for each target, and `resume`: continues a run, with other limits if the user gives any."""

import secrets
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import chain

from crrd.core.api.time import parse_time, rfc3339
from crrd.core.rollout.kinds import kind_of
from crrd.core.rollout.overview import undone_by, unfinished
from crrd.core.rollout.parts import sizes, written
from crrd.core.rollout.phases import End
from crrd.core.rollout.plan import Plan, make_plan
from crrd.core.rollout.preview import Preview, make_preview, out_of_reach
from crrd.core.rollout.requests import RunRequest, creator_of, longest_lived, newest_run
from crrd.core.rollout.rows import count_left, failed_requests
from crrd.core.rollout.run import LABEL_RUN, OF_STEPS, Options, Run
from crrd.core.rollout.run_limits import limits_annotation
from crrd.core.rollout.state import World
from crrd.lib.errors import ApiRefusedError, ConfigurationError, OutputError
from crrd.rollout.carry_out import carry_out
from crrd.rollout.cluster import Cluster
from crrd.rollout.creator import check_creator
from crrd.rollout.display import failures, summary
from crrd.rollout.image.follow import following
from crrd.rollout.image.start import check_undo, undone
from crrd.rollout.jsonlines import JsonLines
from crrd.rollout.kept import annotate
from crrd.rollout.kind import Maker
from crrd.rollout.kinds import check_resumed, cluster_of, complete_run, find_pulls, make_cluster, make_writer
from crrd.rollout.refusals import describe
from crrd.rollout.remedies import FLAGS
from crrd.rollout.same_run import another_run, check_metrics, check_same, template_differs
from crrd.rollout.session import Session, Via
from crrd.rollout.target import Aim, check_run, find_again, find_target, split_targets
from crrd.rollout.way import check_way, with_way

_LETTERS = "bcdfghjklmnpqrstvwxz2456789"  # The letters of Kubernetes' generated names, which cannot form words


async def start(session: Session) -> int:
    """Start a run for each target, one after the other, or resume an existing run of the given name."""
    command = session.command
    of_run, strict = f"{LABEL_RUN}={command.run_name}", command.via is Via.DAEMON
    if command.run_name and (made := await session.requests(of_run, strict=strict)):
        run = newest_run(made)
        await check_same(session, run, _since(command.since, parse_time(run.started) or session.clock.now()))
        return await resume(session, by_name=True)
    found: dict[tuple[str, ...], Aim] = {}  # By identity, because a kind has several names
    for names in split_targets(command.targets):
        aim = await find_target(session.client, session.namespace, names, command.selector)
        found.setdefault(aim.target.identity, aim)
    if command.dry_run:
        return max([await _show(session, aim) for aim in found.values()])
    due = [(each, aim) for aim in found.values() if (each := await following(session, aim)) is not None]
    due = [(await _on_its_way(each, aim), aim) for each, aim in due]
    aims = [aim for _, aim in due]
    for each, aim in due if len(due) > 1 else ():  # check all targets before the first run
        await _check(each, aim)
    worst = 0
    for done, (each, aim) in enumerate(due, start=1):
        code, over = End.FAILED.exit_code, False
        try:
            code, over = await _start(each, aim)
            worst = max(worst, code)
        finally:
            if not over and (left := [other.target.words for other in aims[done:]]):
                with suppress(OutputError):
                    session.display.print_line(f"not started: {', '.join(left)}")
        if not over:
            return code or worst
    return worst


async def _show(session: Session, aim: Aim) -> int:
    """Show what a run on the target would do. Return the exit code."""
    session.display.about(aim.target.words)
    follows = await following(session, aim)
    return 0 if follows is None else (await _start(await _on_its_way(follows, aim), aim))[0]


async def _on_its_way(session: Session, aim: Aim) -> Session:
    """Return the session with the way in which the run restarts containers, and say it if it is not by requests."""
    session, why = await with_way(session, aim)
    if why:
        session.display.print_line(f"restarts by patches: {why}")
    return session


async def _check(session: Session, aim: Aim) -> None:
    """Raise ConfigurationError if a run on this target must not begin. Changes and prints nothing."""
    async with make_cluster(session.client, session.namespace, aim, session.command.options) as cluster:
        run = await _make_run(session, aim, cluster)
        quiet = JsonLines(session.clock.now, dry_run=True)
        checked = replace(session, command=replace(session.command, dry_run="client"), display=quiet)
        await complete_run(checked, aim, cluster, run)


async def undo(session: Session) -> int:
    """Start a run that gives the pods of another run the image back that they had before."""
    command = session.command
    requests = await _requests_of(session, command.run_name)
    run = newest_run(requests)
    aim, change = await find_again(session.client, session.namespace, run.target), undone(run)
    plain = {name: getattr(Options(()), name) for name in ("first", "since", "policy", *OF_STEPS)}
    options = replace(run.options, image=change, **{**plain, **command.changed_options})
    await check_creator(session, creator_of(requests), run.name, replace(run, options=options))
    template = "adopt" if change.adopt else "keep"
    again = replace(command, run_name="", options=options, template=template, allow_mutable_tag=True)
    again = replace(again, parts=(), partition=None)
    return (await _start(replace(session, command=again), aim))[0]


async def resume(session: Session, *, by_name: bool = False) -> int:
    """Continue the run of this name, or show what is left of it.

    `by_name`: the command is the one that starts the run. A Job may repeat it, so it overrules nothing.
    """
    command, name = session.command, session.command.run_name
    requests = await _requests_of(session, name)
    run = newest_run(requests)
    await check_creator(session, creator_of(requests), name, run)
    run = run.changed(**command.changed_options)
    check_way(run.options)
    check_metrics(session, run)
    if command.undo_on_failure:
        check_undo(run)
    async with await cluster_of(session, run) as cluster:
        world, now = cluster.world(), session.clock.now()
        if command.follows_template and (differs := template_differs(world, run)):
            raise another_run(session, run, differs)
        if name in world.aborted:
            undo = undone_by(run, world.requests)
            why = f"undone by run {undo}" if undo else "aborted"
            raise ConfigurationError(f"run {name} was {why}: start a new one")
        if command.retry_failed:
            cluster.retried = failed_requests(make_plan(world, run, now).rows)
            world = cluster.world()
        if command.dry_run:
            return await _preview(session, cluster, run, overrules=command.yes and not by_name)
        if (first := unfinished(kind_of(world, run), now)) is not None:
            other = f"run {first.name} on {first.target.words} is not finished"
            way_out = f"finish it, or abort it: {session.command_line('abort', first.name)}"
            raise ConfigurationError(f"cannot resume run {name}: {other}; {way_out}")
        await check_resumed(session, run)
        left = count_left(make_plan(world, run, now).rows)
        await _record_options(session, run, cluster)
        begins = f"resuming on {run.target.words}, {left} left to restart"
        end = await carry_out(session, run, cluster, begins, resumed=not by_name)
    await _go_back(session, run, end)
    return end.exit_code


async def _requests_of(session: Session, name: str) -> list[RunRequest]:
    """Return the requests of a run. Raises ConfigurationError if there are none, also if there are pull pods.

    Only requests record what a run does, and who has written that.
    """
    if not (requests := await session.requests(f"{LABEL_RUN}={name}")) and await find_pulls(session, name):
        way_out = f"give its command again, with --run {name}, or delete them: {session.command_line('abort', name)}"
        raise ConfigurationError(f"run {name} has only pull pods, which do not say what it does: {way_out}")
    return requests or await session.requests_of(name)


async def _start(session: Session, aim: Aim) -> tuple[int, bool]:
    """Carry out a run for the target, or show it. Return the exit code, and whether the next target may follow."""
    command = session.command
    async with make_cluster(session.client, session.namespace, aim, command.options) as cluster:
        run = await complete_run(session, aim, cluster, await _make_run(session, aim, cluster))
        world = cluster.world()
        plan = make_plan(world, run, session.clock.now()).worded(FLAGS)
        waiting = count_left(plan.rows)
        for each in out_of_reach(world, run) if not command.dry_run else ():
            session.display.print_line(f"not covered by --stale: {each}")
        if not waiting and plan.end is not None and not plan.wait_before_end.why:  # no pod is just being recreated
            why = f"nothing to do: {_nothing_to_do(run, plan)}"
            if not command.dry_run:
                session.display.begin(run, run.describe(0))
                session.display.show(plan)
                session.display.end(End.DONE.word, why)
                return 0, True
            session.display.print_line(why)
        if command.partition is not None and waiting:
            first_part = min(waiting, command.partition.of(waiting))
            run = replace(run, options=replace(run.options, first=first_part), partition=str(command.partition))
        if command.parts and waiting:
            options = replace(run.options, steps=sizes(command.parts, waiting), step_pause=command.step_pause)
            run = replace(run, options=options, steps=written(command.parts))
        if command.dry_run:
            return await _preview(session, cluster, run), True
        end = await carry_out(session, run, cluster, run.describe(waiting))
    await _go_back(session, run, end)
    return end.exit_code, end.next_follows


async def _go_back(session: Session, run: Run, end: End) -> None:
    """Undo a halted run, if the user has asked for it. If it cannot be undone, print why."""
    if not session.command.undo_on_failure or end is not End.HALTED:
        return
    try:
        await undo(replace(session, command=replace(session.command, run_name=run.name, undo_on_failure=False)))
    except (ConfigurationError, ApiRefusedError) as error:
        session.display.print_line(f"cannot undo run {run.name}: {describe(error)}")


def _wants_no_pods(world: World, aim: Aim) -> bool:
    """Whether the target is a workload that is scaled to zero. Then there is nothing to do, which is no error."""
    there = world.workload
    return not world.members and aim.owns_pods and there is not None and there.desired == 0


async def _make_run(session: Session, aim: Aim, cluster: Cluster) -> Run:
    """Return a run for the target. Raises ConfigurationError if it is not possible."""
    command, world, now = session.command, cluster.world(), session.clock.now()
    options = replace(command.options, since=_since(command.since, now))
    name = command.run_name or _make_name(aim.target.name)
    run = Run(session.namespace, name, aim.target, options, rfc3339(now))
    if not _wants_no_pods(world, aim):
        check_run(world, run)
    if not command.dry_run and (first := unfinished(kind_of(world, run), now)) is not None:
        way_out = f"check it with {session.command_line('status', first.name)}, then resume or abort it"
        raise ConfigurationError(f"run {first.name} on {first.target.words} is not finished: {way_out}")
    return run


def _nothing_to_do(run: Run, plan: Plan) -> str:
    """Return why no pod is recreated. Raises ConfigurationError if the user must act on the reason."""
    odd = [row for row in plan.rows if row.is_odd]
    if odd:
        skipped = "pod" if len(odd) == 1 else f"{len(odd)} pods are skipped, for example"
        raise ConfigurationError(f"no container can be restarted: {skipped} {odd[0].pod} ({odd[0].wait.why})")
    if plan.end not in (None, End.DONE):  # it has changed since the target was found
        raise ConfigurationError(f"nothing was done: {plan.message or failures(plan.rows)}")
    return summary(plan.rows) if plan.rows else f"{run.target.words} has no pods"


async def _preview(session: Session, cluster: Cluster, run: Run, *, overrules: bool = False) -> int:
    """Show what the run would do. `overrules` as in `make_preview`."""
    preview = make_preview(cluster.world(), run, session.clock.now(), overrules=overrules).worded(FLAGS)
    refused: dict[str, str] = {}
    if session.command.dry_run == "server":
        maker = make_writer(session.client, cluster, run, session.display, session.clock).maker
        refused = await _refusals(maker, run, preview, rfc3339(session.clock.now()))
    several = len(split_targets(session.command.targets)) > 1
    session.display.print_preview(run.target.words, preview, refused, of_several=several)
    return End.FAILED.exit_code if refused else 0


async def _refusals(maker: Maker, run: Run, preview: Preview, now: str) -> dict[str, str]:
    """Return the pods whose requests the API server would reject (admission and policies), and its messages."""
    refused: dict[str, str] = {}
    for row in chain(*preview.batches, *preview.later):
        body = run.request(row.pod, row.uid, row.containers, row.failed)
        try:
            if why := await maker.refusal(run, row, body, now):
                refused[row.pod] = why
        except ApiRefusedError as error:
            refused[row.pod] = str(error)
    return refused


async def _record_options(session: Session, run: Run, cluster: Cluster) -> None:
    """Write changed limits to the request that will live longest."""
    own = cluster.world().requests_of(run)
    if own and newest_run(own).revision < run.revision:
        cluster.written(await annotate(session.client, longest_lived(own), limits_annotation(run)))


def _since(given: datetime | timedelta | None, now: datetime) -> str:
    """Return the time as RFC 3339 by the API server's clock. Raises ConfigurationError."""
    if given is None:
        return ""
    moment = now - given if isinstance(given, timedelta) else given
    if moment > now:
        raise ConfigurationError(f"--since {rfc3339(moment)} must not be in the future")
    return rfc3339(moment)


def _make_name(target: str) -> str:
    """Generate a name for a run."""
    letters = "".join(secrets.choice(_LETTERS) for _ in range(5))
    return f"{(target or 'pods')[:30].rstrip('-.').replace('.', '-')}-{letters}"
