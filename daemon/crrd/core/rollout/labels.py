"""Label selectors of objects (`matchLabels`, `matchExpressions`), and their conversion to a query parameter.

As in k8s.io/apimachinery's `LabelSelectorAsSelector`, no selector selects nothing, and an empty one everything.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from crrd.lib.jsonfields import items, mapping, text

_OPERATORS = {"In": (False, True), "NotIn": (True, True), "Exists": (False, False), "DoesNotExist": (True, False)}
"""Operator -> whether it is negated, and whether it takes values."""


@dataclass(frozen=True, slots=True)
class Requirement:
    """One condition on one label."""

    key: str
    values: tuple[str, ...] = ()  # The label must have one of these; empty for any value
    negated: bool = False  # Whether the condition is inverted; then a missing label matches

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether the labels meet the condition."""
        there = labels.get(self.key) in self.values if self.values else self.key in labels
        return there is not self.negated

    @property
    def query(self) -> str:
        """The condition in the syntax of the query parameter labelSelector."""
        if not self.values:
            return f"!{self.key}" if self.negated else self.key
        if len(self.values) == 1 and not self.negated:
            return f"{self.key}={self.values[0]}"
        return f"{self.key} {'notin' if self.negated else 'in'} ({','.join(self.values)})"


@dataclass(frozen=True, slots=True)
class LabelSelector:
    """A label selector: all of its requirements must be met."""

    requirements: tuple[Requirement, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether an object with these labels is selected."""
        return all(each.matches(labels) for each in self.requirements)

    @property
    def query(self) -> str:
        """The selector in the syntax of the query parameter labelSelector."""
        return ",".join(each.query for each in self.requirements)


def read_selector(found: object) -> LabelSelector | None:
    """Parse a spec's selector, or a plain map of labels as in ReplicationControllers. None if it is invalid."""
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
