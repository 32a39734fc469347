"""Evaluates a cluster's rules for a write from rendered manifests: RBAC, ValidatingAdmissionPolicies, CRD rules.

The CEL library evaluates the expressions, with kube-apiserver's variables. Around them is only the part of
kube-apiserver that our rules use. It knows neither the types of Kubernetes' objects nor cost limits, which a real API
server checks (`CRRD_TEST_KUBECONFIG`).
"""

import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from cel_expr_python import cel
from cel_expr_python.ext import ext_optional

from crrd_forecast.hash.quantity import parse

Json = dict[str, Any]
Change = Callable[[Json], object]  # Changes an object in place
MASTERS = "system:masters"
_POLICY, _BINDING = "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"
_REQUESTS = "apps.kruise.io", "containerrecreaterequests"
_MARKS = "crr.apps.kruise.io", "pods"
_CHECKED = (
    *((*_REQUESTS, verb) for verb in ("serve", "manage")),
    *((*_MARKS, verb) for verb in ("refresh", "update-images", "respell")),
    *(("", "pods", verb) for verb in ("update", "patch")),
    ("crr.apps.kruise.io", "configmaps", "restore"),
    ("", "configmaps", "update"),
    ("apps", "controllerrevisions", "update"),
)
"""Group, resource and verb of the rights that policies ask RBAC for."""


@dataclass(frozen=True)
class Who:
    """A user as authenticated by the API server."""

    name: str
    groups: tuple[str, ...] = ()
    node: str = ""  # The node to which a ServiceAccount's token is bound
    bound: tuple[str, ...] = ()  # The ClusterRoles that RoleBindings give to the user, in all namespaces

    @staticmethod
    def service_account(namespace: str, name: str, node: str = "") -> "Who":
        return Who(f"system:serviceaccount:{namespace}:{name}", ("system:serviceaccounts",), node)

    def info(self) -> Json:
        extra = {"authentication.kubernetes.io/node-name": [self.node]} if self.node else {}
        info = {"username": self.name, "groups": [*self.groups, "system:authenticated"], "extra": extra}
        return {key: value for key, value in info.items() if value}


@dataclass(frozen=True)
class Write:
    """A create, an update or a delete, with the objects as they are when admission validates."""

    old: Json | None
    new: Json
    subresource: str = ""
    group: str = "apps.kruise.io"
    resource: str = "containerrecreaterequests"
    deletes: bool = False  # Whether `old` is deleted, and `new` does not count

    @property
    def operation(self) -> str:
        return "DELETE" if self.deletes else "CREATE" if self.old is None else "UPDATE"


@dataclass
class Rules:
    """The rendered objects, and their decisions."""

    objects: Sequence[Json]
    expressions: set[str] = field(default_factory=set)
    """The evaluated expressions, so that tests can find those that they never reached."""

    def grants(self, who: Who, verb: str, group: str, resource: str, *, namespaced: bool = False) -> bool:
        """Whether RBAC allows a call at cluster scope, or in a namespace, where RoleBindings count, too."""
        if MASTERS in who.groups:
            return True
        bound = {
            binding["roleRef"]["name"]
            for binding in self._kind("ClusterRoleBinding")
            if any(_is(subject, who) for subject in binding["subjects"])
        }
        bound |= {*who.bound} if namespaced else set()
        return any(
            _has(rule["verbs"], verb) and _has(rule["apiGroups"], group) and _has(rule["resources"], resource)
            for role in self._kind("ClusterRole")
            if role["metadata"]["name"] in bound
            for rule in role["rules"]
        )

    def refused(self, who: Who, write: Write) -> str:
        """Return the message of the first policy that denies the write, or ""."""
        return next(self._failed("Deny", who, write), "")

    def warnings(self, who: Who, write: Write) -> list[str]:
        """Return the messages of the policies that warn of the write."""
        return list(self._failed("Warn", who, write))

    def _failed(self, action: str, who: Who, write: Write) -> Iterator[str]:
        """Yield the messages of the policies that are bound with this action. Policies need a binding."""
        bound = {
            each["spec"]["policyName"] for each in self._kind(_BINDING) if action in each["spec"]["validationActions"]
        }
        for policy in self._kind(_POLICY):
            spec = policy["spec"]
            if policy["metadata"]["name"] not in bound or not _concerns(spec["matchConstraints"], write):
                continue
            variables = {each["name"]: each["expression"] for each in spec.get("variables", ())}
            if not all(self._true(each["expression"], {}, who, write) for each in spec.get("matchConditions", ())):
                continue
            for validation in spec["validations"]:
                if not self._true(validation["expression"], variables, who, write):
                    yield str(validation["message"])

    def _kind(self, kind: str) -> Iterable[Json]:
        return (each for each in self.objects if each["kind"] == kind)

    def _true(self, expression: str, variables: Mapping[str, str], who: Who, write: Write) -> bool:
        self.expressions.add(expression)
        granted = [
            "|".join([group, resource, *("namespace",) * namespaced, verb])
            for group, resource, verb in _CHECKED
            for namespaced in (False, True)
            if self.grants(who, verb, group, resource, namespaced=namespaced)
        ]
        namespace = write.new.get("metadata", {}).get("namespace", "")
        request = {"operation": write.operation, "userInfo": who.info(), "namespace": namespace}
        if write.subresource:
            request["subResource"] = write.subresource
        data = {
            "object": None if write.deletes else write.new,
            "oldObject": write.old,
            "request": request,
            "authorizer": " ".join(granted),
        }
        return evaluate(_inlined(expression, variables), data)


def _has(named: Sequence[str], one: str) -> bool:
    return one in named or "*" in named


def _is(subject: Json, who: Who) -> bool:
    if subject["kind"] == "ServiceAccount":
        return who.name == f"system:serviceaccount:{subject['namespace']}:{subject['name']}"
    return subject["name"] in ((who.name,) if subject["kind"] == "User" else who.groups)


def _concerns(constraints: Json, write: Write) -> bool:
    resource = f"{write.resource}/{write.subresource}" if write.subresource else write.resource
    return any(
        write.group in rule["apiGroups"] and resource in rule["resources"] and write.operation in rule["operations"]
        for rule in constraints["resourceRules"]
    )


def _inlined(expression: str, variables: Mapping[str, str]) -> str:
    """Return the expression with all variables replaced by their expressions, which gives the same result."""
    while found := re.search(r"\bvariables\.(\w+)", expression):
        expression = f"{expression[: found.start()]}({variables[found[1]]}){expression[found.end() :]}"
    return expression


def _word(name: str) -> cel.FunctionDecl:
    """A step of `authorizer.group(...).resource(...).check(...)`, which is text: the rights, and what is asked."""
    text = cel.Type.STRING
    separator = "\n" if name == "group" else "|"
    overload = cel.Overload(
        f"authorizer_{name}", text, [text, text], is_member=True, impl=lambda path, word: f"{path}{separator}{word}"
    )
    return cel.FunctionDecl(name, [overload])


def _in_namespace(path: str, namespace: str) -> str:
    assert namespace
    return f"{path}|namespace"


def _allowed(path: str) -> bool:
    granted, _, asked = path.partition("\n")
    assert tuple(asked.replace("|namespace|", "|").split("|")) in _CHECKED
    return asked in granted.split(" ")


def _find_all(text: str, pattern: str) -> list[str]:
    """Kubernetes' own function: return all matches of the pattern."""
    return [found[0] for found in re.finditer(pattern, text)]


def _quantity(text: str) -> float:
    return float(parse(text).value)


@cache
def _environment() -> cel.Env:
    dynamic = ("object", "oldObject", "request", "self", "oldSelf")
    variables = {**dict.fromkeys(dynamic, cel.Type.DYN), "authorizer": cel.Type.STRING}
    allowed = cel.Overload("authorizer_allowed", cel.Type.BOOL, [cel.Type.STRING], is_member=True, impl=_allowed)
    strings = cel.Type.List(cel.Type.STRING)
    overload = cel.Overload("find_all", strings, [cel.Type.STRING] * 2, is_member=True, impl=_find_all)
    functions = [*map(_word, ("group", "resource", "check"))]
    text = cel.Type.STRING
    namespace = cel.Overload("authorizer_namespace", text, [text, text], is_member=True, impl=_in_namespace)
    functions.append(cel.FunctionDecl("namespace", [namespace]))
    functions += [cel.FunctionDecl("allowed", [allowed]), cel.FunctionDecl("findAll", [overload])]
    number = cel.Type.DOUBLE  # Kubernetes has a type for quantities
    quantity = cel.Overload("quantity", number, [text], is_member=False, impl=_quantity)
    compared = cel.Overload("is_greater", cel.Type.BOOL, [number] * 2, is_member=True, impl=operator.gt)
    functions += [cel.FunctionDecl("quantity", [quantity]), cel.FunctionDecl("isGreaterThan", [compared])]
    return cel.NewEnv(variables=variables, extensions=[ext_optional.ExtOptional()], functions=functions)


@cache
def _compiled(expression: str) -> cel.Expression:
    return _environment().compile(expression)


def annotated(name: str, value: str = "x") -> Change:
    """Return a change that sets an annotation."""
    return lambda found: found["metadata"].setdefault("annotations", {}).update({name: value})


def without(part: str, name: str) -> Change:
    """Return a change that removes a label or an annotation."""
    return lambda found: found["metadata"][part].pop(name)


def no_finalizer(found: Json) -> None:
    """Remove all finalizers."""
    found["metadata"]["finalizers"] = []


def evaluate(expression: str, data: Mapping[str, Any]) -> bool:
    """Evaluate a rule. AssertionError if it has no result, which kube-apiserver treats as a denial."""
    value = _compiled(expression).eval(data=dict(data))
    assert value.type() == cel.Type.BOOL, f"{expression}: {value.value()}"
    return bool(value.value())


def transition_refused(schema: Json, old: Json, new: Json) -> str:
    """Return the message of the first top-level rule of an object that an update violates, or ""."""
    for rule in schema.get("x-kubernetes-validations", ()):
        if "oldSelf" in rule["rule"] and not evaluate(rule["rule"], {"self": new, "oldSelf": old}):
            return str(rule["message"])
    return ""
