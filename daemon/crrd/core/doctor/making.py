"""What all checks of `crrd doctor` make their findings with."""

from collections.abc import Callable, Collection, Iterable
from typing import Any

from crrd.core.doctor.facts import Unread
from crrd.core.doctor.findings import Finding, State, Topic

_SHOWN = 3  # Names that a sentence lists

Make = Callable[..., Finding]  # Makes a finding of one check: state, what was seen, values


def unread(new: Make, *found: object) -> list[Finding]:
    """A finding for the first that could not be read; none where all could."""
    return [new(State.NOT_CHECKED, Topic.UNREAD, {"why": each.why}) for each in found if isinstance(each, Unread)][:1]


def names_of(names: Iterable[str]) -> dict[str, Any]:
    """Values for a sentence that lists names."""
    ordered = sorted(names)
    more = f" and {len(ordered) - _SHOWN} more" if len(ordered) > _SHOWN else ""
    return {"names": ", ".join(ordered[:_SHOWN]) + more, "count": len(ordered)}


def with_names(new: Make, found: Iterable[tuple[State, Topic, Collection[str]]]) -> list[Finding]:
    """A finding for each that has names."""
    return [new(state, topic, names_of(names)) for state, topic, names in found if names]
