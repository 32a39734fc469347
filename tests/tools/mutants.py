"""`python -m tests.tools.mutants [COUNT] [SEED]`: how many random mutants of the core and the node the fast tests kill.

A mutant is the product with one small wrong: a comparison turned, a constant off by one, a condition negated, a
statement left out. Each is made in a copy of the tree, and the fast tests of its room run against it until the first
failure. One that survives is either a hole in the tests or says the same in other words; those are in EQUIVALENT, each
with its reason. Nothing here is run by `make test`.
"""

import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from typing import Any

ROOT = Path(__file__).parents[2]
SECONDS = 240
"""For one mutant's tests; one that runs longer hangs, and counts as killed."""
ALWAYS = ("tests/properties", "tests/node/test_controller.py")
TESTS = {
    "daemon/core/api": ("tests/core", *ALWAYS),
    "daemon/core/recreate": ("tests/core/recreate", *ALWAYS, "tests/core/explain"),
    "daemon/core/lifecycle": ("tests/core/lifecycle", "tests/manager/test_lifecycle_ends.py",
                              "tests/manager/test_lifecycle_readiness.py"),
    "daemon/core/admission": ("tests/core/admission", "tests/manager/webhook"),
    "daemon/core/explain": ("tests/core/explain", "tests/cli/test_explain.py"),
    "daemon/node": ("tests/node/test_controller.py", "tests/node/test_hooks.py", "tests/node/test_metrics.py",
                    "tests/node/test_watches.py", "tests/node/test_health.py", "tests/node/test_kubelet_health.py",
                    "tests/simulation"),
}  # fmt: skip
"""Which tests are asked about which room, the quick ones first."""
EQUIVALENT: dict[str, str] = {}
"""Mutant (as it is printed) -> why nobody could tell it from the product."""

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

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.what}"


def mutants_of(path: Path) -> Iterator[Mutant]:
    """Every mutant of one module."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    skipped = _not_behaviour(tree)
    for index, node in enumerate(ast.walk(tree)):
        if id(node) in skipped:
            continue
        for number, what in enumerate(_changes(node)):
            yield Mutant(str(path.relative_to(ROOT)), getattr(node, "lineno", 0), what, index, number)


def _not_behaviour(tree: ast.Module) -> set[int]:
    """Nodes that nobody's behaviour hangs on: docstrings, annotations, what is logged."""
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
    return isinstance(call, ast.Attribute) and isinstance(call.value, ast.Name) and call.value.id in ("log", "say")


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


def killed_by(mutant: Mutant, copied: Path) -> bool:
    """Whether a test fails with the mutant in place."""
    file = copied / mutant.path
    original = file.read_text(encoding="utf-8")
    tests = next(tests for room, tests in TESTS.items() if mutant.path.startswith(room))
    present = [test for test in tests if (copied / test).exists()]
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *present]
    tree = ast.parse(original)
    _apply(tree, mutant.index, mutant.number)
    file.write_text(ast.unparse(ast.fix_missing_locations(tree)), encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(copied), "PYTHONDONTWRITEBYTECODE": "1", "CRRD_SCHEDULES": "60"}
    options: dict[str, Any] = {"cwd": copied, "env": environment, "capture_output": True, "timeout": SECONDS}
    try:
        return subprocess.run(command, check=False, **options).returncode != 0
    except subprocess.TimeoutExpired:
        return True
    finally:
        file.write_text(original, encoding="utf-8")


def main() -> None:
    """Print each survivor, and the score."""
    count, seed = (*map(int, sys.argv[1:3]), 400, 1)[:2] if len(sys.argv) != 2 else (int(sys.argv[1]), 1)
    everything = [
        mutant
        for room in TESTS
        for path in sorted((ROOT / room).rglob("*.py"))
        for mutant in mutants_of(path)
        if str(mutant) not in EQUIVALENT
    ]
    chosen = random.Random(seed).sample(everything, min(count, len(everything)))
    copies: Queue[Path] = Queue()
    survivors = []
    with tempfile.TemporaryDirectory(prefix="crrd-mutants-") as folder, ThreadPoolExecutor(os.cpu_count()) as pool:
        for number in range(os.cpu_count() or 1):
            copied = Path(folder) / str(number)
            shutil.copytree(ROOT, copied, ignore=shutil.ignore_patterns(".venv", ".git", ".*_cache", "__pycache__"))
            copies.put(copied)

        def try_one(mutant: Mutant) -> bool:
            copied = copies.get()
            try:
                return killed_by(mutant, copied)
            finally:
                copies.put(copied)

        running = {pool.submit(try_one, mutant): mutant for mutant in chosen}
        for done, future in enumerate(as_completed(running), 1):
            if not future.result():
                survivors.append(running[future])
                print(f"\rsurvives: {running[future]}")
            print(f"\r{done} of {len(chosen)}, {len(survivors)} survive", end="", flush=True)
    print(f"\n{len(chosen) - len(survivors)} of {len(chosen)} killed ({len(everything)} possible, seed {seed})")


if __name__ == "__main__":
    main()
