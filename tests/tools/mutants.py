"""`python -m tests.tools.mutants [COUNT] [SEED]`: how many random mutants of the core and the node the fast tests kill.

A mutant is the product with one small wrong: a comparison turned, a constant off by one, a condition negated, a
statement left out. Each is made in a copy of the tree. The fast tests of its room that run its line are then run until
the first failure, the quickest first. One that survives is either a hole in the tests or says the same in other words;
those are in EQUIVALENT, each with its reason. Nothing here is run by `make test`.
"""

import ast
import importlib.util
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import coverage
import pytest

ROOT = Path(__file__).parents[2]
LOGS = ("log", "say", "bound")  # Names of loggers in the product
TIMES = 4
"""A mutant whose tests run this many times as long as those of the tree as it is hangs, and counts as killed."""
START_SECONDS = 20
"""For the start of the tests: they are imported, and their objects are made."""
MEASURED = "measured.json"
SECONDS = 1800
"""For the tests of the tree as it is."""
FOREIGN = ("aiohttp.web", "grpc.aio", "hypothesis.strategies", "prometheus_client", "structlog", "yaml", "jsonpatch")
"""What the tests need and is not ours, imported once for all of them."""
SCHEDULES = tuple(f"tests/simulation/test_simulation.py::test_schedules[{first}]" for first in (0, 50))
TESTS = {
    "daemon/crrd/core/api": ("tests/core/api", "tests/repo/test_fields.py", "tests/core", "tests/properties",
                        *SCHEDULES),
    "daemon/crrd/core/recreate": ("tests/core/recreate", "tests/properties", "tests/core/explain",
                             "tests/node/test_controller.py", "tests/node/test_restart_pod.py", *SCHEDULES),
    "daemon/crrd/core/lifecycle": ("tests/core/lifecycle", "tests/manager/test_lifecycle_ends.py",
                              "tests/manager/test_lifecycle_readiness.py", "tests/core/explain"),
    "daemon/crrd/core/admission": ("tests/core/admission", "tests/manager/webhook"),
    "daemon/crrd/core/rollout": ("tests/core/rollout", "tests/properties/test_rollouts.py", "tests/rollout"),
    "daemon/crrd/core/explain": ("tests/core/explain", "tests/cli/test_explain.py"),
    "daemon/crrd/node": ("tests/node/test_controller.py", "tests/node/test_hooks.py", *SCHEDULES, "tests/node",
                    "tests/lib/test_metrics.py", "tests/cli/test_node.py", "tests/forecast/test_all_nodes.py",
                    "tests/forecast/test_command.py"),
}  # fmt: skip
"""The tests for each package, one after the other, the quick ones first."""
EQUIVALENT: dict[str, str] = {
    "core/explain/notes.py: 0.0 -> 1.0: late = (facts.seconds_since(completed) or 0.0) > MANAGER_PAT":
        "only asked whether it is above 30",
    "core/explain/facts.py: condition true: pod, started = (self.pod.uid if self.pod else '', parse_time":
        "asked only about a container that the pod's status shows: there is a pod",
    "core/explain/request.py: Lt -> LtE: before = sorted((other for other in served if serving_order(":
        "no two requests of a namespace have one name",
    "core/lifecycle/steps.py: statement left out: check_move(request.status, status)": "it raises only for a bug",
    "core/recreate/request_view.py: statement left out: check_move(self.request.status, status)":
        "it raises only for a bug",
    "core/rollout/rivals.py: Lt -> LtE: return first if first is not None and age_of(first) < age_of":
        "another run has another name",
    "core/rollout/budgets.py: 0 -> 1: desired = world.workload.desired if world.workload is not No":
        "a pod whose turn can come is one itself",
    "core/rollout/state.py: False -> True: ready: bool = False": "who reads a pod always says it",
    "core/rollout/workload.py: 0 -> 1: desired: int = 0": "who reads a workload always says it",
    "core/rollout/standing.py: condition false: if known is not None and known[0] is member and (known[1] is":
        "speed only",
    "core/rollout/standing.py: condition true: if context != self._context:": "speed only",
    "core/rollout/limits.py: 60.0 -> 61.0: NODE_SECONDS = 60.0": "nobody is promised a second of it",
    "node/agenda.py: 100 -> 101: LOOKS = 100": "nobody is promised the number",
    "node/watches.py: 0.02 -> 1.02: PAUSE_SECONDS = 0.02": "speed only",
    "node/writes.py: Lt -> LtE: if repeated and now < record.overwrite_retry.next_try:":
        "one instant, which nobody hits",
    "node/hooks.py: 1024 -> 1025: HEAD_BYTES = 80 * 1024": "nobody is promised a byte of it",
    "core/recreate/stop.py: 1000 -> 1001: return base * (1 + RETRY_JITTER * (crc32(f'{salt}/{attempts}":
        "a thousandth of a jitter",
    "core/recreate/restart_pod.py: condition false: pins = {} if found is None else {WHOLE_POD: found.pin}":
        "an earlier turn comes where there is none",
    "core/recreate/restart_pod.py: condition false: first = () if view.first is None else (RestartPod(whole.requ":
        "likewise",
    "core/recreate/actions.py: False -> True: warning: bool = False": "whoever makes an event says it",
    "core/recreate/observation.py: 0.0 -> 1.0: seconds: float = 0.0": "read only of a sleep, which always says it",
    "core/recreate/observation.py: 0 -> 1: port: int | str = 0": "read only of an httpGet, which always says it",
    "core/recreate/observation.py: 0.0 -> 1.0: listed_at: float = 0.0":
        "left out only where every request is malformed: nobody reads it then",
    "core/recreate/observation.py: 0.0 -> 1.0: wall: float = 0.0": "likewise",
    "core/recreate/observation.py: 0.0 -> 1.0: pod_at: float = 0.0": "read only where there is a pod, with its time",
    "core/recreate/observation.py: 0.0 -> 1.0: pod_grace: float = 0.0":
        "shorter than LEFT_SECONDS, for which it counts in any case",
    "core/rollout/labels.py: False -> True: negated, takes_values = _OPERATORS.get(text(entry.get('opera":
        "an operator that is not known ends the reading",
    "core/rollout/run.py: 16 -> 17: return hashlib.sha256(f'{self.name} {failed}'.encode()).hexd":
        "a token of any length",
    "core/api/reasons.py: False -> True: def __init__(self, name: str, final: bool=False, sentence: s":
        "each row says it",
    "node/daemon.py: 3.0 -> 4.0: TIDY_SECONDS = 3.0": "nobody is promised a second of it",
    "node/hooks.py: 0 -> 1: while left > 0 and (chunk := (await response.content.read(le":
        "whether the last byte of an answer that nobody uses is read",
    "node/lookups.py: 2.0 -> 3.0: RUNTIME_RETRY = Backoff(initial=0.5, factor=2.0, maximum=5.0":
        "how soon a runtime that was away for long is asked again: nobody is promised a second of it",
    "node/lookups.py: 0.5 -> 1.5: RUNTIME_RETRY = Backoff(initial=0.5, factor=2.0, maximum=5.0": "likewise",
    "node/lookups.py: 5.0 -> 6.0: RUNTIME_RETRY = Backoff(initial=0.5, factor=2.0, maximum=5.0": "likewise",
    "node/kubelet_health.py: 0.5 -> 1.5: FRESH_SECONDS = 0.5": "how old an answer may be: nobody is promised a second",
    "node/pods.py: 60.0 -> 61.0: LEFT_SECONDS = 60.0": "nobody is promised a second of it",
    "node/daemon.py: 0 -> 1: kubelet_healthz_port: int = 0": "the command line always says it",
    "node/slots.py: statement left out: timer.cancel()": "a slot is given back once, whoever comes first",
    "node/daemon.py: statement left out: small_tls_buffers()": "memory only",
    "node/execute.py: 0.0 -> 1.0: result = HookResult(0.0, 'it was interrupted')":
        "only the daemon's own end cuts a hook off: nobody reads it",
    "node/hooks.py: 3.0 -> 4.0: HOOK_MARGIN_SECONDS = 3.0": "nobody is promised a second of it",
    "node/watches.py: 20.0 -> 21.0: FIND_SECONDS = 20.0": "nobody is promised a second of it",
    "node/kubelet_health.py: 1.0 -> 2.0: PATIENCE_SECONDS = 1.0": "nobody is promised a second of it",
    "node/kubelet_health.py: Gt -> GtE: if self._port and began - self._learned > FRESH_SECONDS and ":
        "one instant, which nobody hits",
    "node/kubelet_health.py: 30.0 -> 31.0: STALE_SECONDS = 30.0": "nobody is promised a second of it",
    "node/kubelet_health.py: 1 -> 2: answered = await reader.read(1)": "only asked whether there is any byte",
    "node/daemon.py: statement left out: asking.cancel()": "asyncio.run cancels what is left, right after it",
    "node/metrics.py: 64 -> 65: self._metrics.stages[stage].observe(seconds, {'request_uid':":
        "a UID has 36 characters",
    "node/hooks.py: Gt -> GtE: while left > 0 and (chunk := (await response.content.read(le":
        "reading no bytes reads none",
    "node/lookups.py: 0.1 -> 1.1: RUNTIME_RETRY = Backoff(initial=0.5, factor=2.0, maximum=5.0": "likewise",
    "node/daemon.py: False -> True: serve_forecast: bool = False": "the command line always says it",
    "node/daemon.py: statement left out: freeze_objects()": "memory and speed only",
    "node/writes.py: Lt -> LtE: if now < retry.next_try and retry.version in ('', request.re":
        "one instant, which nobody hits",
    "node/pods.py: 0.0 -> 1.0: until = max(work.stop_until, (work.hook_began or 0.0) + LEFT":
        "a hook that has an end has a beginning",
    "node/observe.py: Gt -> GtE: if loop_time() > answered + WAITED_SECONDS:": "one instant, which nobody hits",
    "node/pods.py: Lt -> LtE: if loop.time() < kept_until:": "one instant, which nobody hits",
    "node/pods.py: 0.0 -> 1.0: until = 0.0": "an instant soon after the machine has started",
    "node/reconcile.py: 1.0 -> 2.0: ANSWER_SECONDS = 1.0": "nobody is promised a second of it",
    "core/recreate/decide.py: 5.0 -> 6.0: WITHHELD_SECONDS = 5.0": "nobody is promised a second of it",
    "core/rollout/preview.py: 0 -> 1: min_ready: int = 0": "who makes a preview always says it",
    "node/sweep.py: 1 -> 2: report('looking for second sandboxes failed', error=str(erro": "how a log is rounded",
    "node/sweep.py: statement left out: self.heartbeat.within(delay + LATE_SECONDS, 'waiting for the":
        "the sleep that it watches ends by itself",
    "node/reconcile.py: Add -> Sub: return None if at is None else max(at, loop_time() + ROUND_S":
        "whether a look that wants another one at once waits 10 ms: nobody is promised it",
    "node/execute.py: 12 -> 13: task = asyncio.create_task(run, name=f'{type(action).__name_": "a task's name",
    "node/controller.py: statement left out: self.pods_heartbeat.within(LATE_SECONDS, 'ending')":
        "an end that hangs is told all the same, in other words and sooner",
    "node/daemon.py: condition false: if pods.none_live.is_set():": "memory only",
    "node/writes.py: 1 -> 2: fields = {**log_fields(request), 'error': str(error), 'retry": "decimals in a log line",
    "core/rollout/image/pull.py: 10 -> 11: return f'{run.name}-pull-{hashlib.sha256(node.encode()).hexd":
        "a token of any length",
    "core/rollout/image/template.py: 0 -> 1: generation: int = 0": "who reads a template always says it",
    "core/rollout/image/template.py: 0 -> 1: number: int = 0": "who reads a revision always says it",
    "node/agenda.py: condition true: if place != self._places.get(uid):":
        "memory only: a place that is there twice counts once",
    "node/hooks.py: 80 -> 81: HEAD_BYTES = 80 * 1024":
        "no header line is just so long, and Go limits all of them together",
    "node/hooks.py: condition true: reason = error.os_error.reason if isinstance(error.os_error,":
        "only mypy needs it: aiohttp makes this error of an ssl.SSLError alone",
    "node/kubelet_health.py: Gt -> GtE: if silent_seconds > MOVED_SECONDS and await self._ready():":
        "one instant, which no question hits",
    "node/kubelet_health.py: Gt -> GtE: if began - self._learned > STALE_SECONDS:":
        "one instant, which no question hits",
    "node/lookups.py: 30.0 -> 31.0: FORGIVEN_SECONDS = 30.0":
        "nobody is promised a second of it",
    "node/lookups.py: 0.0 -> 1.0: late_at: float = 0.0":
        "the first call, which is made at once, sets it",
    "node/observe.py: 3.0 -> 4.0: LAST_LOOK_SECONDS = 3.0":
        "nobody is promised a second of it",
    "node/records.py: Gt -> GtE: return earliest(*(at for at in due if at > now))":
        "one instant, and only a round more",
    "core/rollout/restart.py: 1 -> 2: count: int = 1": "who refreshes the files of a pod always says it",
    "core/rollout/restart.py: condition true: for use in self._changed_files(row.containers, row.member) i":
        "a pod that may start is there",
    "core/rollout/spelling.py: 1 -> 2: return min((*spellings(container), *again), key=lambda each:":
        "only asked whether it is below 0",
    "core/rollout/standing.py: condition false: if row.stage in _TIMELESS:":
        "speed only",
    "core/rollout/standing.py: 0 -> 1: if known is not None and known[0] is member and (known[1] is": "speed only",
    "core/rollout/standing.py: 1 -> 2: if known is not None and known[0] is member and (known[1] is": "speed only",
    "core/rollout/state.py: condition true: for each in self.pod.containers.values() if given else ():": "speed only",
    "core/rollout/state.py: False -> True: disrupted: bool = False": "who reads a pod always says it",
    "core/rollout/state.py: 0 -> 1: unknown: int = 0": "who asks the metrics always says it",
    "core/rollout/state.py: 0 -> 1: peer_starts: int = 0": "who makes a world to start pods in always says it",
    "core/rollout/workload.py: 0 -> 1: min_ready: int = 0": "who reads a workload always says it",
    "core/explain/facts.py: condition true: return self.request.strategy.grace(self.pod.grace_seconds if":
        "only mypy needs it: the grace is only asked for containers of a pod that was read",
    "core/rollout/candidates.py: condition true: return Wait.of(skip, container=container, pod=pod.name, name":
        "asked only of a pod that is skipped",
    "core/rollout/overview.py: False -> True: def run_status(run: Run, requests: Sequence[RunRequest], now":
        "only asked whether the run is over then, which its process must have recorded",
    "core/rollout/patched.py: condition false: if not annotation:": "speed only",
    "core/rollout/plan.py: condition true: rows = tuple((row.waiting_for(row.wait.worded(remedies)) if ":
        "speed only",
    "core/rollout/preview.py: 0 -> 1: workload = replace(world.workload, rolling='', desired=0) if":
        "a pod that can be in a batch is one itself",
    "core/rollout/plan.py: 0 -> 1: min_ready: int = 0":
        "read only of a plan with pods, which always says it",
    "core/recreate/decide.py: condition true: states = all_states(request, done) if rewrite else request.s":
        "every status that crrd writes has a state for each container, in their order",
    "core/recreate/init_image.py: True -> False: return Step(state=state, poll_runtime=True)":
        "a container that has not come with it looks at the runtime, too",
    "core/recreate/reload.py: condition false: return None if self.instance is None else recorded_for(self.":
        "an earlier turn comes where there is none",
    "core/recreate/reload.py: condition false: why, more_at = (NO_MESSAGE, None) if view.instance is None e":
        "likewise",
    "core/recreate/reload.py: condition false: run = () if view.instance is None else (RunReload(whole.requ":
        "likewise",
    "core/recreate/step.py: condition false: return state if silent else replace(state, message=message.t":
        "speed only: it makes an equal state",
    "core/recreate/stop.py: 0.0 -> 1.0: seconds = work.stop_seconds((work.hook_until or 0.0) - (work":
        "a stop that is due has a hook with a beginning and an end",
    "core/recreate/view.py: condition false: return () if self.outgoing is None else tuple((work for _, w":
        "only asked about an instance that is still there",
    "core/recreate/view.py: condition true: return self.request.strategy.grace(self.outgoing.grace_secon":
        "likewise",
}  # fmt: skip
"""Mutant (as it is printed, without its line) -> why nobody could tell it from the product."""

_COMPARE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
}  # fmt: skip
_SWAPPED = {"min": "max", "max": "min", "any": "all", "all": "any"}


@dataclass(frozen=True, slots=True)
class Mutant:
    """One small wrong."""

    path: str
    line: int
    what: str
    index: int
    """Of the node, in a walk of the module's tree."""
    number: int
    """Of the change, among those that the node can have."""
    code: str
    """The statement that it is in, cut short."""
    lines: range
    """Of the body of its function, because tracing loses lines after an `await`; else its own."""

    @property
    def key(self) -> str:
        """What it is called in EQUIVALENT: it stays when lines above it come and go."""
        return f"{self.path.removeprefix('daemon/crrd/')}: {self.what}: {self.code}"

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.what}: {self.code}"


def mutants_of(path: Path) -> Iterator[Mutant]:
    """Every mutant of one module."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    skipped = _not_behaviour(tree)
    statements: dict[int, str] = {}
    lines: dict[int, range] = {}
    for index, node in enumerate(ast.walk(tree)):
        if isinstance(node, ast.stmt):  # an outer one comes before those in it, which write over what it says
            code = ast.unparse(node).splitlines()[0][:60]
            statements |= {id(each): code for each in ast.walk(node)}
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            whole = range(node.body[0].lineno, (node.end_lineno or 0) + 1)
            lines |= {id(part): whole for each in node.body for part in ast.walk(each)}
        if id(node) in skipped:
            continue
        for number, what in enumerate(_changes(node)):
            line = getattr(node, "lineno", 0)
            own = lines.get(id(node), range(line, line + 1))
            yield Mutant(str(path.relative_to(ROOT)), line, what, index, number, statements[id(node)], own)


def all_mutants() -> list[tuple[str, Mutant]]:
    """Every mutant of all rooms, each with its room."""
    rooms = ((room, path) for room in TESTS for path in sorted((ROOT / room).rglob("*.py")))
    return [(room, mutant) for room, path in rooms for mutant in mutants_of(path)]


def _not_behaviour(tree: ast.Module) -> set[int]:
    """Nodes without an effect on behaviour: docstrings, annotations, logging."""
    found: set[int] = set()
    for node in ast.walk(tree):
        parts: list[ast.AST] = []
        if (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)) or (
            isinstance(node, ast.Expr) and _is_log(node.value)
        ):
            parts = [node]
        elif isinstance(node, ast.AnnAssign | ast.arg):
            parts = [node.annotation] if node.annotation else []
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            parts = [*node.decorator_list, *([node.returns] if node.returns else [])]
        elif isinstance(node, ast.ClassDef):
            parts = [*node.decorator_list, *node.bases]
        for part in parts:
            found |= {id(each) for each in ast.walk(part)}
    return found


def _is_log(value: ast.expr) -> bool:
    call = value.func if isinstance(value, ast.Call) else None
    return isinstance(call, ast.Attribute) and isinstance(call.value, ast.Name) and call.value.id in LOGS


def _changes(node: ast.AST) -> list[str]:
    """What can be made wrong about a node, in words."""
    match node:
        case ast.Compare(ops=[op]) if type(op) in _COMPARE:
            return [f"{type(op).__name__} -> {_COMPARE[type(op)].__name__}"]
        case ast.BoolOp(op=op):
            return [f"{type(op).__name__} turned"]
        case ast.UnaryOp(op=ast.Not()):
            return ["not left out"]
        case ast.BinOp(op=op) if type(op) in _ARITHMETIC and not isinstance(node.left, ast.Constant | ast.JoinedStr):
            return [f"{type(op).__name__} -> {_ARITHMETIC[type(op)].__name__}"]
        case ast.Constant(value=bool() as value):
            return [f"{value} -> {not value}"]
        case ast.Constant(value=int() | float() as value):
            return [f"{value} -> {value + 1}"]
        case ast.If() | ast.IfExp():
            return ["condition true", "condition false"]
        case ast.Call(func=ast.Name(id=name)) if name in _SWAPPED:
            return [f"{name} -> {_SWAPPED[name]}"]
        case ast.Expr(value=ast.Call()):
            return ["statement left out"]
        case _:
            return []


def _apply(tree: ast.Module, index: int, number: int) -> None:
    """Make one change to the node that comes at this place of a walk."""
    node = list(ast.walk(tree))[index]
    match node:
        case ast.Compare():
            node.ops = [_COMPARE[type(node.ops[0])]()]
        case ast.BoolOp():
            node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        case ast.UnaryOp():
            node.op, node.operand = ast.Not(), ast.UnaryOp(ast.Not(), node.operand)
        case ast.BinOp():
            node.op = _ARITHMETIC[type(node.op)]()
        case ast.Constant(value=bool() as value):
            node.value = not value
        case ast.Constant():
            node.value = node.value + 1  # type: ignore[operator]  # a number, see _changes
        case ast.If() | ast.IfExp():
            node.test = ast.Constant(number == 0)
        case ast.Call(func=ast.Name() as name):
            name.id = _SWAPPED[name.id]
        case ast.Expr():
            node.value = ast.Constant(None)


@dataclass(frozen=True, slots=True)
class Room:
    """The tests of a room, as they ran against the tree as it is."""

    names: list[str]
    """Of the tests, by pytest."""
    seconds: list[float]
    """How long each took. Measuring makes them slower."""
    ran: dict[str, dict[str, list[int]]]
    """Module -> line -> the tests that run it; -1 for an import."""

    def tests_of(self, mutant: Mutant) -> list[str]:
        """Return the tests that can notice a mutant, the quickest first: all if an import runs it, or nothing does."""
        lines = self.ran.get(mutant.path, {})
        found = {test for line in mutant.lines for test in lines.get(str(line), ())}
        chosen = range(len(self.names)) if -1 in found or not found else found
        return [self.names[each] for each in sorted(chosen, key=self.seconds.__getitem__)]

    def limit(self, tests: Iterable[str]) -> float:
        """Return the seconds after which these tests hang."""
        took = dict(zip(self.names, self.seconds, strict=True))
        return TIMES * (START_SECONDS + sum(took[each] for each in tests))


class _Measured:
    """A plugin of pytest: notes which tests run which lines of a room, and how long each takes."""

    def __init__(self, folder: Path, room: str) -> None:
        self._folder = folder
        self._coverage = coverage.Coverage(data_file=None, config_file=False, include=[str(folder / room / "*")])
        self._seconds: dict[str, float] = {}
        self._coverage.start()
        setattr(coverage.Coverage, "current", lambda: None)  # noqa: B010 - else the fixture `unmeasured` stops it

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self._coverage.switch_context(item.nodeid)
        began = time.monotonic()
        try:
            return (yield)
        finally:
            self._seconds[item.nodeid] = time.monotonic() - began
            self._coverage.switch_context("")

    def write(self) -> None:
        """Write a Room as JSON."""
        self._coverage.stop()
        data = self._coverage.get_data()
        numbers = {"": -1, **{name: number for number, name in enumerate(self._seconds)}}
        ran = {
            str(Path(file).relative_to(self._folder)): {
                line: [numbers[each] for each in tests] for line, tests in data.contexts_by_lineno(file).items()
            }
            for file in data.measured_files()
        }
        room = {"names": [*self._seconds], "seconds": [*self._seconds.values()], "ran": ran}
        (self._folder / MEASURED).write_text(json.dumps(room), encoding="utf-8")


class _Chosen:
    """A plugin of pytest: leaves these tests, in this order."""

    def __init__(self, tests: Iterable[str]) -> None:
        self._places = {test: place for place, test in enumerate(tests)}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted((each for each in items if each.nodeid in self._places), key=self._place)

    def _place(self, item: pytest.Item) -> int:
        return self._places[item.nodeid]


class Worker:
    """One copy of the tree, and the process that asks the tests about the mutant in it.

    The process is forked from this one, which has imported all that is not ours: most of what a short run costs.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(".venv", ".git", ".*_cache", "__pycache__"))
        self._mutant: Mutant | None = None
        self._pid = 0
        self._ends = 0.0

    def measure(self, room: str) -> None:
        """Begin the tests of a room, against the tree as it is, and note what they run."""
        self._begin(SECONDS, lambda: _measure(self.folder, room))

    def ask(self, mutant: Mutant, room: str, tests: list[str], seconds: float) -> None:
        """Put the mutant in place and begin these tests of its room, which hang after `seconds`."""
        self._mutant = mutant
        tree = ast.parse((ROOT / mutant.path).read_text(encoding="utf-8"))
        _apply(tree, mutant.index, mutant.number)
        self._write(mutant.path, ast.unparse(ast.fix_missing_locations(tree)))
        self._begin(seconds, lambda: _ask(self.folder, room, tests))

    def _begin(self, seconds: float, run: Callable[[], int]) -> None:
        self._ends = time.monotonic() + seconds
        self._pid = os.fork()
        if not self._pid:
            os.setpgid(0, 0)
            os._exit(run())

    def passed(self) -> bool | None:
        """Whether all tests passed; None while they run."""
        pid, status = os.waitpid(self._pid, os.WNOHANG)
        if not pid and time.monotonic() < self._ends:
            return None
        if not pid:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
        with suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGKILL)  # what its tests had begun
        if self._mutant:
            self._write(self._mutant.path, (ROOT / self._mutant.path).read_text(encoding="utf-8"))
        return bool(pid) and os.waitstatus_to_exitcode(status) == 0

    def _write(self, path: str, source: str) -> None:
        """Put a module in place. What was compiled from another could be taken for it, by its time and size."""
        file = self.folder / path
        file.write_text(source, encoding="utf-8")
        Path(importlib.util.cache_from_source(str(file))).unlink(missing_ok=True)


def _measure(folder: Path, room: str) -> int:
    """Run the tests of a room, in this process, and write what they run. Returns pytest's exit code."""
    _enter(folder)
    measured = _Measured(folder, room)
    code = _run([[one] for one in TESTS[room]], measured)
    measured.write()
    return code


def _ask(folder: Path, room: str, tests: list[str]) -> int:
    """Run these tests of a room, in this process. Returns pytest's exit code."""
    _enter(folder)
    places = [one.partition("[")[0] for one in TESTS[room]]
    files: dict[str, dict[str, None]] = {each: {} for each in places}
    for test in tests:
        place = next(each for each in places if test.startswith(each))
        files[place][test.partition("::")[0]] = None
    return _run([[*each] for each in files.values() if each], _Chosen(tests))


def _enter(folder: Path) -> None:
    """Make a copy of the tree the one that is imported, and write to its file."""
    os.chdir(folder)
    own = ("daemon", "forecast", "localnode", "")
    sys.path[:] = [str(folder / each) for each in own] + [
        entry for entry in sys.path if entry not in ("", *(str(ROOT / each) for each in own))
    ]
    os.environ["CI"] = "true"  # properties have the same examples each time
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path[: len(own)])
    ours = ("tests", "crrd", "crrd_forecast", "crrd_localnode", "cri_stubs")
    for name in [name for name in sys.modules if name.split(".")[0] in ours]:
        del sys.modules[name]
    with (folder / "said.txt").open("w", encoding="utf-8") as said:
        os.dup2(said.fileno(), 1)
        os.dup2(said.fileno(), 2)


def _run(places: list[list[str]], plugin: object) -> int:
    """Run tests, in this process, until the first one fails. Returns pytest's exit code."""
    try:
        early = "ignore::pytest.PytestAssertRewriteWarning"  # what was imported above
        options = ["-x", "-q", "-p", "no:cacheprovider", "-W", early]
        return next((code for one in places if (code := int(pytest.main([*options, *one], [plugin])))), 0)
    except BaseException:  # noqa: BLE001 - a test that ends its process has failed
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


_Job = TypeVar("_Job")


def finished(
    jobs: Iterable[_Job], begin: Callable[[Worker, _Job], None], workers: list[Worker]
) -> Iterator[tuple[_Job, Worker, bool]]:
    """Carry out jobs, and yield each with its worker and whether its tests passed, once it is over."""
    idle, waiting = [*workers], deque(jobs)
    busy: dict[Worker, _Job] = {}
    while waiting or busy:
        while idle and waiting:
            job = waiting.popleft()
            busy[worker := idle.pop()] = job
            begin(worker, job)
        for worker, job in list(busy.items()):
            if (passed := worker.passed()) is not None:
                del busy[worker]
                idle.append(worker)
                yield job, worker, passed
        time.sleep(0.02)


def measure(workers: list[Worker]) -> dict[str, Room]:
    """Return what is known of the tests of each room.

    As they are, they must be green, or every mutant would count as killed.
    """
    rooms = {}
    for room, worker, passed in finished(TESTS, Worker.measure, workers):
        if not passed:
            sys.exit(f"{room}: its tests fail without any mutant:\n{(worker.folder / 'said.txt').read_text()[-3000:]}")
        rooms[room] = Room(**json.loads((worker.folder / MEASURED).read_text(encoding="utf-8")))
        print(f"{room}: its tests take {sum(rooms[room].seconds):.0f} s", file=sys.stderr, flush=True)
    return rooms


def survivors(chosen: list[tuple[str, Mutant]], rooms: dict[str, Room], workers: list[Worker]) -> Iterator[Mutant]:
    """Each mutant that no test notices, with the progress on standard error."""
    tests = {mutant: rooms[room].tests_of(mutant) for room, mutant in chosen}

    def begin(worker: Worker, job: tuple[str, Mutant]) -> None:
        room, mutant = job
        worker.ask(mutant, room, tests[mutant], rooms[room].limit(tests[mutant]))

    for done, ((_, mutant), _, passed) in enumerate(finished(chosen, begin, workers), 1):
        if passed:
            yield mutant
        print(f"\r{done} of {len(chosen)} ", end="", file=sys.stderr, flush=True)


def main() -> None:
    """Print each survivor, and the score."""
    count, seed = ([int(word) for word in sys.argv[1:]] + [400, 1][len(sys.argv) - 1 :])[:2]
    everything = all_mutants()
    chosen = random.Random(seed).sample(everything, min(count, len(everything)))
    equivalent = [mutant for _, mutant in chosen if mutant.key in EQUIVALENT]
    stale = EQUIVALENT.keys() - {mutant.key for _, mutant in everything}
    if stale:
        sys.exit("listed as equivalent, but no longer possible:\n" + "\n".join(sorted(stale)))
    asked = [(room, mutant) for room, mutant in chosen if mutant.key not in EQUIVALENT]
    lived = 0
    for name in FOREIGN:
        importlib.import_module(name)
    with tempfile.TemporaryDirectory(prefix="crrd-mutants-") as folder:
        workers = [Worker(Path(folder) / str(number)) for number in range(os.cpu_count() or 1)]
        for mutant in survivors(asked, measure(workers), workers):
            lived += 1
            print(f"\rsurvives: {mutant}", flush=True)
    killed = len(asked) - lived
    print(f"\n{killed} of {len(asked)} killed ({killed / len(asked):.1%}); {len(equivalent)} more say the same as the")
    print(f"product and are listed with the reason; {len(everything)} possible, seed {seed}")


if __name__ == "__main__":
    main()
