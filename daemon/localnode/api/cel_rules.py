"""A custom resource's `x-kubernetes-validations`, outside of lists, where a CEL library is at hand.

`crrd[demo]` brings none: without it no such rule is evaluated (`self == oldSelf` is schema.py's own). With it, rules
that use CEL functions of Kubernetes' own (`indexOf` of a list, `url`, quantities) are still left out.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from daemon.localnode.api.errors import Cause
from daemon.localnode.api.objects import Object, dig

try:
    from cel_expr_python import cel
    from cel_expr_python.ext import ext_optional
except ImportError:
    cel = None


@dataclass(frozen=True, slots=True)
class CelRule:
    """One rule of one place of the schema, compiled."""

    path: tuple[str, ...]
    expression: Any
    message: str
    transition: bool
    """Whether it is about an update: one that names oldSelf."""

    def broken(self, obj: Object, old: Object | None) -> Iterator[Cause]:
        """What the API server would say, if anything; a rule that cannot be answered is broken."""
        found = dig(obj, *self.path) if self.path else obj
        before = dig(old or {}, *self.path) if self.path else old
        if found is None or (self.transition and before is None):
            return
        answer = self.expression.eval(data={"self": found, "oldSelf": before})
        if answer.value() is not True:
            yield Cause(".".join(self.path) or "<nil>", f'Invalid value: "object": {self.message}')


def cel_rules(schema: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[CelRule]:
    """The rules that can be evaluated here; none without a CEL library."""
    if cel is None:
        return
    for rule in schema.get("x-kubernetes-validations", ()):
        variables = dict.fromkeys(("self", "oldSelf"), cel.Type.DYN)
        try:
            compiled = cel.NewEnv(variables=variables, extensions=[ext_optional.ExtOptional()]).compile(rule["rule"])
        except RuntimeError:  # a function of Kubernetes' own
            continue
        message = rule.get("message") or f"failed rule: {rule['rule']}"
        yield CelRule(path, compiled, message, "oldSelf" in rule["rule"])
    for name, inner in schema.get("properties", {}).items():
        yield from cel_rules(inner, (*path, name))
