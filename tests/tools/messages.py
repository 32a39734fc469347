"""`python -m tests.tools.messages` prints every sentence that a person meets, by kind, in one listing.

It takes them from the tables and parsers where there are any, from the manifests, and else from the source: every text
of the product that has a space in it. A new message is in the listing without a change here.
"""

import argparse
import ast
import os
from collections.abc import Iterator
from unittest.mock import patch

from crrd.cli.main import COMMANDS, build_parser
from crrd.core.api.reasons import Reason
from crrd.core.doctor import findings as doctor
from crrd.core.explain import findings as explain
from crrd.core.policy.reasons import PolicyReason
from tests.tools.manifest_texts import HEADS, ROOT, Sentence, manifest_sentences

PRODUCT = ROOT / "daemon" / "crrd"
LOG, ERROR, EVENT, METRIC, HELP = "log events", "errors", "events", "metrics", "--help"
STATUS, REMEDY, EXPLAIN, STEP = "status", "remedies", "crrd explain", "crrd explain: steps"
ADMISSION, RECREATE, FORECAST, DOCTOR = "admission", "crrd recreate", "crrd forecast", "crrd doctor"
CONDITION, HEALTH, DEMO, OTHER = "conditions of policies", "healthz and readyz", "crrd demo", "other texts"
_LEVELS = {"debug", "info", "warning", "error", "exception", "critical"}
_METRICS = {"Counter", "Gauge", "Histogram", "GaugeMetricFamily", "CounterMetricFamily", "CallMetrics"}
_NOT_READ = {
    *("compile", "fullmatch", "search", "get", "TypeVar", "strftime", "AssertionError", "split", "StrEnum", "Enum"),
    *("InexpressibleError", "to_bytes"),
}
"""Functions whose texts no person reads."""
_ELSEWHERE = {"description", "epilog", "usage", "COMMANDS", "DESCRIPTION", "_BASH", "_ZSH", "_TABLE", "SHELL_LOOP"}
"""Names of what `_help` lists, and of what is no sentence."""
_FLAGS = {"add_argument", "add_flag", "flag", "add", "name", "file"}
_TABLES = (
    *("core/api/reasons.py", "core/explain/findings.py", "core/doctor/findings.py", "core/api/schema.py"),
    *("core/policy/reasons.py", "core/policy/schema.py", "crrd_forecast/hash/go_dump.py"),
)
"""Modules whose sentences are taken from their tables, and one whose texts are for hashing."""
_ROOMS = {
    **dict.fromkeys(("core/admission", "manager/webhook"), ADMISSION),
    **dict.fromkeys(("core/rollout", "rollout"), RECREATE),
    "crrd_forecast": FORECAST,
    **dict.fromkeys(("core/doctor", "cli/doctor.py"), DOCTOR),
    **dict.fromkeys(("core/policy", "core/config", "manager/policies"), CONDITION),
    **dict.fromkeys(("core/explain", "cli/explain.py"), EXPLAIN),
    "crrd_localnode": DEMO,
    **dict.fromkeys(("lib/health.py", "lib/heartbeat.py", "node/daemon.py", "manager/daemon.py"), HEALTH),
}
"""Packages and modules, each with the group of its texts."""


def sentences() -> list[Sentence]:
    """All of them."""
    return [*_tables(), *_help(), *manifest_sentences(), *_source()]


def _tables() -> Iterator[Sentence]:
    for reason in filter(None, Reason):
        yield Sentence(STATUS, reason, reason.sentence)
        yield from (Sentence(REMEDY, reason, each) for each in reason.remedy)
    found = (explain.Topic, EXPLAIN, STEP), (doctor.Topic, DOCTOR, DOCTOR), (PolicyReason, CONDITION, CONDITION)
    for table, group, steps in found:
        for topic in table:
            yield Sentence(group, topic, topic.sentence)
            yield from (Sentence(steps, topic, each) for each in topic.remedy)


def _help() -> Iterator[Sentence]:
    names = [name for name in os.environ if name.startswith("CRRD_")]
    with patch.dict(os.environ):
        for name in (*names, "KUBECONFIG", "NODE_NAME", "POD_NAME", "POD_NAMESPACE", "POD_UID"):
            os.environ.pop(name, None)
        parser = build_parser(*COMMANDS)
    yield Sentence(HELP, "crrd", parser.description or "")
    for command, text in COMMANDS.items():
        yield Sentence(HELP, f"crrd {command}", text)
    yield from _help_below(parser, "crrd")


def _help_below(parser: argparse.ArgumentParser, called: str) -> Iterator[Sentence]:
    """The help of a parser's commands and their flags, and of their verbs."""
    for action in parser._actions:
        if not isinstance(action, argparse._SubParsersAction):
            continue
        for word, sub in action.choices.items():
            command = f"{called} {word}".rstrip()
            for text in filter(None, (sub.usage, sub.description, sub.epilog)):
                yield Sentence(HELP, command, text.replace("%(prog)s", command).replace("%%", "%"))
            for flag in sub._actions:
                name = "/".join(flag.option_strings) or str(flag.metavar or flag.dest)
                if flag.help and flag.help != argparse.SUPPRESS and name != "-h/--help":
                    yield Sentence(HELP, f"{command} {name}", flag.help.replace("%%", "%"))
            yield from _help_below(sub, command)


def _source() -> Iterator[Sentence]:
    files = [(PRODUCT, each) for each in sorted(PRODUCT.rglob("*.py"))]
    files += [(ROOT / "forecast", each) for each in sorted((ROOT / "forecast").rglob("*.py"))]
    local = ROOT / "localnode"
    files += [(local, local / "crrd_localnode" / name) for name in ("demo.py", "demo_view.py")]
    for folder, path in files:
        where = str(path.relative_to(folder))
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node, parents in _texts(tree, ()):
            text = _text(node)
            group = _group(node, parents, where)
            if group and (" " in text.strip() or group == LOG):
                yield Sentence(group, f"{where}:{node.lineno}", text)


def _texts(node: ast.AST, parents: tuple[ast.AST, ...]) -> Iterator[tuple[ast.expr, tuple[ast.AST, ...]]]:
    """Every text below a node, docstrings excepted, with what it stands in, the innermost last."""
    if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str)):
        yield node, parents
        if isinstance(node, ast.Constant):
            return
    for child in ast.iter_child_nodes(node):
        docstring = isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)
        within_text = isinstance(node, ast.JoinedStr) and isinstance(child, ast.Constant)
        annotation = isinstance(node, ast.AnnAssign | ast.arg | ast.FunctionDef | ast.AsyncFunctionDef) and (
            child is getattr(node, "annotation", None) or child is getattr(node, "returns", None)
        )
        if not docstring and not within_text and not annotation:
            yield from _texts(child, (*parents, node))


def _text(node: ast.expr) -> str:
    """The text, with the expressions of an f-string in braces."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    assert isinstance(node, ast.JoinedStr)
    parts = []
    for value in node.values:
        if isinstance(value, ast.Constant):
            parts.append(str(value.value))
        elif isinstance(value, ast.FormattedValue):
            parts.append(f"{{{_value_name(value.value)}}}")
    return "".join(parts)


def _value_name(node: ast.expr) -> str:
    """A short name for a value: the last one that its expression has."""
    match node:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
        case ast.Call(func=function):
            return _value_name(function)
    return "..."


def _group(node: ast.expr, parents: tuple[ast.AST, ...], where: str) -> str:
    """Which kind of text it is; "" for one that no person reads, or that a table has."""
    if where in _TABLES:
        return ""
    for parent in reversed(parents):
        match parent:
            case ast.Call(func=ast.Attribute(attr=level, value=ast.Name(id="log"))) if level in _LEVELS:
                return LOG if parent.args and parent.args[0] is node else ""
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
                if (group := _of_call(name, where)) is not None:
                    return group
            case ast.Assign(targets=[ast.Attribute(attr=name) | ast.Name(id=name)]):
                if name in _ELSEWHERE:
                    return ""
                if name.endswith(("COLUMNS", "HEADINGS")):
                    return HEADS
    return next((group for room, group in _ROOMS.items() if where == room or where.startswith(room + "/")), OTHER)


def _of_call(name: str, where: str) -> str | None:
    """Which kind of text an argument of a function is; "" for one to leave out, None where the function tells "
    "nothing."""
    if name in _NOT_READ or (name in _FLAGS and where.startswith(("cli/", "crrd_forecast/command.py"))):
        return ""
    if name in _METRICS:
        return METRIC
    if name in ("emit", "EmitEvent"):
        return EVENT
    if name in ("within", "until", "Heartbeat"):
        return HEALTH
    return ERROR if name.endswith("Error") or name == "_refused" else None


def main() -> None:
    """Print the listing."""
    listed = sentences()
    for group in dict.fromkeys(each.group for each in listed):
        print(f"\n== {group}")
        last = ""
        for each in listed:
            if each.group == group:
                print(f"{'' if each.source == last else each.source}\n    " + each.text.replace("\n", "\n    "))
                last = each.source


if __name__ == "__main__":
    main()
