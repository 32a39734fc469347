"""The shape of a table of reasons or findings: a row has a name, a sentence for people, and what to do about it.

Programs go by the name, and never parse the sentence.
"""

from enum import StrEnum
from string import Formatter
from typing import Any, Self


class ReasonTable(StrEnum):
    """A table whose members are its rows. The name is in CamelCase, like the reasons of Kubernetes' conditions."""

    sentence: str  # `say` fills in each `{name}`
    remedy: tuple[str, ...]  # What to do, one sentence or command each; `advise` fills in each `{name}`

    def __new__(cls, name: str, *_: Any) -> Self:
        """Create a row."""
        row = str.__new__(cls, name)
        row._value_ = name
        return row

    def __init__(self, _: str, sentence: str = "", *remedy: str) -> None:
        self.sentence, self.remedy = sentence, remedy

    def say(self, **values: object) -> str:
        """Return the sentence with its values."""
        return self.sentence.format(**values)

    def advise(self, **values: object) -> tuple[str, ...]:
        """Return what to do."""
        return tuple(step.format(**values) for step in self.remedy)

    def takes(self, value: str) -> bool:
        """Whether the sentence contains this value."""
        return any(name == value for _, name, _, _ in Formatter().parse(self.sentence))
