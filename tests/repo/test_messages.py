"""No code searches or compares a message: what a sentence is made of is data, and is passed on as data."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PRODUCT = (ROOT / "daemon" / "crrd", ROOT / "forecast")
MESSAGES = {
    *("message", "messages", "waiting_message", "sentence", "what", "why", "words", "text", "said", "note", "notes"),
    *("reason", "details", "limit", "advice", "answer", "problem", "description", "line", "lines"),
}
"""Names and attributes that hold sentences, or parts of sentences."""
VALUES = {"reason"}
"""Those that may hold a word of a few: to compare it is right, to search in it is not."""
SEARCHES = {
    *("startswith", "endswith", "find", "rfind", "index", "rindex", "count", "removeprefix", "removesuffix"),
    *("partition", "rpartition", "split", "rsplit", "search", "match", "fullmatch", "findall", "finditer", "sub"),
}
ALLOWED = {
    "core/api/reasons.py: reason_of: _VALUE.split(reason.sentence)":
        "a template of the table, to read back by it what a CRD has pruned of a status",
    "core/api/reasons.py: reason_of: re.fullmatch('.*?'.join(fixed), message, re.DOTALL)": "likewise",
    "core/explain/container.py: _not_running: _BACK_OFF.match(known.waiting_message)":
        "kubelet's own words for its back-off, which the API gives nowhere else",
    "core/explain/facts.py: begun: container in message.split()":
        "an event on a request has no field for the container that it is about",
    "cri/client.py: translate: details.startswith(_NOT_CONNECTED)":
        "gRPC's words for a socket that nobody listens on: the code is the same for all causes",
    "cri/client.py: translate: details.rpartition('error: ')": "likewise",
    "cri/client.py: translate: 'no such container' in details.lower()":
        "cri-dockerd's words for a container that is gone, with the code UNKNOWN",
    "kube/writer.py: _patch: 'metadata.uid' in str(error)":
        "the API server's 422 tells which precondition failed by the field that it names",
    "lib/plain.py: with_flags: _COMMAND.sub(lambda found: f'{found[0]} {flags}', text)":
        "commands in what a user sees get the flags that select the cluster; nothing is decided by it",
    "rollout/refusals.py: _where_granted: ' cannot patch resource \"' in message":
        "RBAC has no other place for the verb, and crrd-recreate grants it on requests, not on pods",
    "rollout/refusals.py: lacks_right: ' is forbidden: User \"' in str(error)":
        "the API server's 403 for a missing right differs from that of a quota or a policy in its words only",
}  # fmt: skip
"""Each expression that searches or compares a message all the same, and why."""
_FOLDS = {"split", "lower", "upper", "strip", "lstrip", "rstrip", "casefold", "details", "splitlines"}
"""Methods that give a message in another shape."""


def _is_message(node: ast.expr) -> bool:
    match node:
        case ast.BoolOp(values=values):
            return any(map(_is_message, values))
        case ast.IfExp(body=body, orelse=orelse):
            return _is_message(body) or _is_message(orelse)
        case ast.NamedExpr(value=value) | ast.Subscript(value=value):
            return _is_message(value)
        case ast.Call(func=ast.Name(id="str"), args=args):
            return any("error" in ast.unparse(each) for each in args)
        case ast.Call(func=ast.Attribute(attr=attr, value=owner)) if attr in _FOLDS:
            return attr in MESSAGES or _is_message(owner)
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name in MESSAGES
    return False


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _compares(left: ast.expr, operator: ast.cmpop, right: ast.expr) -> bool:
    """Whether one comparison, of a chain or alone, looks into a message, or asks whether it is a certain sentence."""
    if isinstance(operator, ast.In | ast.NotIn):
        return _is_message(right)
    if not isinstance(operator, ast.Eq | ast.NotEq) or {_name(left), _name(right)} & VALUES:
        return False
    sides = (left, right)
    literal = any(isinstance(each, ast.Constant) and each.value for each in sides)
    return all(map(_is_message, sides)) or (literal and any(map(_is_message, sides)))


def _is_search(node: ast.AST) -> bool:
    match node:
        case ast.Compare(left=left, ops=operators, comparators=others):
            sides = [left, *others]
            return any(map(_compares, sides, operators, others))
        case ast.Call(func=ast.Attribute(attr=attr, value=owner), args=args) if attr in SEARCHES:
            folded = attr == "split" and not args  # white space is folded, nothing is looked for
            return (_is_message(owner) and not folded) or any(map(_is_message, args))
    return False


def searches(source: str) -> Iterator[str]:
    """Every expression of a module that searches a message or compares it, as `function: expression`."""

    def visit(node: ast.AST, function: str) -> Iterator[str]:
        if _is_search(node):
            yield f"{function}: {ast.unparse(node)}"
        inner = node.name if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) else function
        for child in ast.iter_child_nodes(node):
            yield from visit(child, inner)

    return visit(ast.parse(source), "module")


def test_no_message_is_searched() -> None:
    found = {
        f"{path.relative_to(folder)}: {expression}"
        for folder in PRODUCT
        for path in sorted(folder.rglob("*.py"))
        for expression in searches(path.read_text(encoding="utf-8"))
    }
    assert found == ALLOWED.keys()


CAUGHT = [
    '"over" in limit',
    '"over" not in state.message',
    '"" < "over" in state.message',
    '0 < len(name) and "gone" in note',
    'cause.what.endswith("come")',
    'message.removeprefix("waiting: ")',
    'message.removesuffix(".")',
    'message.count("pod")',
    'words.find("pod")',
    'words.rfind("pod")',
    'why.index("pod")',
    'reason.startswith("Pod")',
    '"Pod" in reason',
    "PATTERN.search(state.message)",
    "PATTERN.findall(text)",
    "[*PATTERN.finditer(text)]",
    'PATTERN.sub("", said)',
    're.match("x", str(error))',
    're.findall("x", each.why)',
    "about in event.message.split()",
    'said.partition(": ")',
    'said[:10].rpartition(": ")',
    'message.split(": ")[0]',
    '"pod" in (message or why).lower()',
    '"pod" in (message if message else why)',
    "note != cause.what",
    "each.what == said",
    'state.message == "its turn has not come yet"',
]
PASSES = [
    '" ".join(message.split())',
    "name in names",
    'key.partition("/")',
    'path.removeprefix("/")',
    "reason == Reason.DEADLINE",
    "reason in (Reason.DEADLINE, Reason.NO_ANSWER)",
    "state.reason is not reason",
    'state.message == ""',
    "state.message != other",
    "message[:100]",
    "len(message) > 100",
]


@pytest.mark.parametrize("code", CAUGHT)
def test_a_search_is_noticed(code: str) -> None:
    assert len(list(searches(code))) == 1
    assert next(searches(f"async def look():\n    return [{code} for each in there]")).startswith("look: ")
    assert next(searches(f"class Look:\n    each = {code}")).startswith("Look: ")


@pytest.mark.parametrize("code", PASSES)
def test_what_searches_no_message_passes(code: str) -> None:
    assert list(searches(code)) == []
