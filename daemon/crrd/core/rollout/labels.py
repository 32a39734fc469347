"""Label selectors as objects carry them (`matchLabels`, `matchExpressions`): whether labels match, and as a query.

The meaning is that of k8s.io/apimachinery's `LabelSelectorAsSelector`: no selector selects nothing, an empty one
everything.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from crrd.lib.jsonfields import items, mapping, text


class Operator(StrEnum):
    """What a requirement asks of a label."""

    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"


@dataclass(frozen=True, slots=True)
class Requirement:
    """One condition on one label."""

    key: str
    operator: Operator
    values: tuple[str, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether the labels meet it; a label that is missing meets NotIn."""
        match self.operator:
            case Operator.IN:
                return labels.get(self.key) in self.values
            case Operator.NOT_IN:
                return labels.get(self.key) not in self.values
            case Operator.EXISTS:
                return self.key in labels
            case _:
                return self.key not in labels

    @property
    def query(self) -> str:
        """As the query parameter labelSelector has it."""
        match self.operator:
            case Operator.IN:
                (*more, first) = self.values
                return f"{self.key} in ({','.join(self.values)})" if more else f"{self.key}={first}"
            case Operator.NOT_IN:
                return f"{self.key} notin ({','.join(self.values)})"
            case Operator.EXISTS:
                return self.key
            case _:
                return f"!{self.key}"


@dataclass(frozen=True, slots=True)
class LabelSelector:
    """All of its requirements have to be met."""

    requirements: tuple[Requirement, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether an object with these labels is selected."""
        return all(each.matches(labels) for each in self.requirements)

    @property
    def query(self) -> str:
        """As the query parameter labelSelector has it."""
        return ",".join(each.query for each in self.requirements)


def read_selector(found: object) -> LabelSelector | None:
    """A selector out of a spec; None where there is none, or one that nobody here can read.

    A plain map of labels, as ReplicationControllers have it, is one too.
    """
    if not isinstance(found, Mapping):
        return None
    structured = "matchLabels" in found or "matchExpressions" in found
    plain: Mapping[str, Any] = mapping(found.get("matchLabels")) if structured else found
    requirements = []
    for key, value in plain.items():
        if not isinstance(value, str):
            return None
        requirements.append(Requirement(key, Operator.IN, (value,)))
    for entry in map(mapping, items(found.get("matchExpressions"))):
        operator, values = text(entry.get("operator")), tuple(map(text, items(entry.get("values"))))
        key = text(entry.get("key"))
        if not key or operator not in list(Operator) or (operator in (Operator.IN, Operator.NOT_IN)) != bool(values):
            return None
        requirements.append(Requirement(key, Operator(operator), values))
    return LabelSelector(tuple(requirements))
