"""No code searches a message: what a sentence is made of is data, and is passed on as data."""

import ast
from collections.abc import Iterator
from pathlib import Path

PRODUCT = Path(__file__).parents[2] / "daemon" / "crrd"
MESSAGES = {"message", "what", "said", "sentence", "details", "limit", "waiting_message", "why", "advice"}
"""Names and attributes that hold sentences."""
SEARCHES = {
    "startswith",
    "endswith",
    "find",
    "index",
    "partition",
    "rpartition",
    "split",
    "search",
    "match",
    "fullmatch",
}
ALLOWED = {
    "core/api/reasons.py: reason_of": "a status whose CRD prunes reasons, read back by the table that it was made from",
    "core/explain/container.py: _not_running": "kubelet's own words for its back-off, which the API gives nowhere else",
    "core/explain/facts.py: last_event": "an event on a request has no field for the container that it is about",
    "cri/errors.py: translate": "gRPC's words for a socket that nobody listens on: the code is the same for all causes",
    "cri/errors.py: _is_not_found": "cri-dockerd's words for a container that is gone, with the code UNKNOWN",
    "cri/errors.py: not_implemented": "cri-dockerd answers a plain Go error, with the code UNKNOWN",
    "kube/writer.py: _patch": "the API server's 422 tells which precondition failed by the field that it names",
}
"""Where a message is searched all the same, and why."""


def _is_message(node: ast.expr) -> bool:
    if isinstance(node, ast.BoolOp):
        return any(map(_is_message, node.values))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "str":
        return any("error" in ast.unparse(each) for each in node.args)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr in {"split", "lower", "strip", "details"} and (
            node.func.attr in MESSAGES or _is_message(node.func.value)
        )
    name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
    return name in MESSAGES


def searches(source: str) -> Iterator[str]:
    """Names of the functions that search a message."""
    functions = [
        each for each in ast.walk(ast.parse(source)) if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    for function in functions:
        for node in ast.walk(function):
            match node:
                case ast.Compare(ops=[ast.In() | ast.NotIn()], comparators=[where]) if _is_message(where):
                    yield function.name
                case ast.Call(func=ast.Attribute(attr=attr, value=owner), args=args) if attr in SEARCHES:
                    joined = attr == "split" and not args  # white space is folded, nothing is looked for
                    if (_is_message(owner) and not joined) or any(map(_is_message, args)):
                        yield function.name


def test_no_message_is_searched() -> None:
    found = {
        f"{path.relative_to(PRODUCT)}: {name}"
        for path in sorted(PRODUCT.rglob("*.py"))
        for name in searches(path.read_text(encoding="utf-8"))
    }
    assert found == ALLOWED.keys()


def test_a_search_is_noticed() -> None:
    for line in (
        'if "over" in limit: pass',
        'if "over" not in state.message: pass',
        'if cause.what.endswith("come"): pass',
        "PATTERN.search(state.message)",
        're.match("x", str(error))',
        "about in event.message.split()",
        'head, _, rest = said.partition(": ")',
    ):
        assert list(searches(f"def look(): \n    {line}")) == ["look"], line
    for line in ("' '.join(message.split())", "name in names", "key.partition('/')"):
        assert list(searches(f"def look(): \n    {line}")) == [], line
