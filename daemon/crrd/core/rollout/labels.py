"""Label selectors as objects carry them (`matchLabels`, `matchExpressions`), and as a query.

As k8s.io/apimachinery's `LabelSelectorAsSelector`: no selector selects nothing, an empty one everything.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from crrd.lib.jsonfields import items, mapping, text

_OPERATORS = {"In": (False, True), "NotIn": (True, True), "Exists": (False, False), "DoesNotExist": (True, False)}
"""By name: whether it is the negation of another one, and whether it takes values."""


@dataclass(frozen=True, slots=True)
class Requirement:
    """One condition on one label."""

    key: str
    values: tuple[str, ...] = ()  # One of these; empty for any value
    negated: bool = False  # Whether the label must not be so; one that is missing meets that

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether the labels meet it."""
        there = labels.get(self.key) in self.values if self.values else self.key in labels
        return there is not self.negated

    @property
    def query(self) -> str:
        """As the query parameter labelSelector has it."""
        if not self.values:
            return f"!{self.key}" if self.negated else self.key
        if len(self.values) == 1 and not self.negated:
            return f"{self.key}={self.values[0]}"
        return f"{self.key} {'notin' if self.negated else 'in'} ({','.join(self.values)})"


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
    """A selector out of a spec, or a plain map of labels as ReplicationControllers have; None for an unreadable one."""
    if not isinstance(found, Mapping):
        return None
    structured = "matchLabels" in found or "matchExpressions" in found
    plain: Mapping[str, Any] = mapping(found.get("matchLabels")) if structured else found
    if not all(isinstance(value, str) for value in plain.values()):
        return None
    requirements = [Requirement(key, (value,)) for key, value in plain.items()]
    for entry in map(mapping, items(found.get("matchExpressions"))):
        key, values = text(entry.get("key")), tuple(map(text, items(entry.get("values"))))
        negated, takes_values = _OPERATORS.get(text(entry.get("operator")), (False, not values))
        if not key or takes_values != bool(values):
            return None
        requirements.append(Requirement(key, values, negated))
    return LabelSelector(tuple(requirements))
