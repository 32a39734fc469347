"""The progress of a run, as the process that carries it out writes it on a request of the run.

It is on the request that will be deleted last, because the TTL counts from the completion. It is the record of how a
run has ended: a run is over if its process wrote so. Else it goes on, or its process has stopped.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from math import inf
from typing import Annotated

from crrd.core.api.time import parse_time
from crrd.core.rollout.phases import End, RunPhase
from crrd.lib.jsonfields import mapping, number, text

ANNOTATION_PROGRESS = "crr.apps.kruise.io/run-progress"
LIVE_SECONDS = 60.0  # A process that has written no progress for this long counts as ended
QUEUED_SECONDS = 3600.0  # The same for a run of a policy that waits for its next turn


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a run."""

    at: Annotated[str, "When it was written, by the API server's clock."]
    by: Annotated[str, "Host and process ID: `laptop/4711`."]
    phase: Annotated[RunPhase, "What the run is doing."]
    done: Annotated[int, "Pods that are done or have failed."]
    total: Annotated[int, "Pods that are neither skipped nor deleted."]
    waits: Annotated[str, "What the run waits for. If it was halted: why the judgement is no."] = ""
    blocked: Annotated[bool, "Whether it makes no progress because of that."] = False
    end: Annotated[End | None, "How it ended, or why its process has stopped."] = None
    steps: Annotated[int, "How many steps are over. The highest number of all requests counts."] = 0

    def is_live(self, now: datetime) -> bool:
        """Whether its process may still run."""
        return self.end is None and self._age(now) <= LIVE_SECONDS

    def is_between_turns(self, now: datetime) -> bool:
        """Whether the run of a policy may still get its next turn."""
        return self.end is End.YIELDED and self._age(now) <= QUEUED_SECONDS

    def _age(self, now: datetime) -> float:
        """Return how far from now it was written. It is in the future if the clock was set back since then."""
        at = parse_time(self.at)
        return abs((now - at).total_seconds()) if at is not None else inf

    def annotation(self) -> dict[str, str]:
        """Return the annotation that stores it on a request."""
        shape = {key: value for key, value in asdict(self).items() if value not in (None, "", False)}
        return {ANNOTATION_PROGRESS: json.dumps({"version": 1, **shape}, separators=(",", ":"))}


_FIRST_FORM = {
    "done": End.DONE,
    "failed": End.FAILED,
    "aborted": End.ABORTED,
    "paused": End.PAUSED,
    "incomplete": End.PUT_OFF,
    "stopped": End.STOPPED,
}
"""The words for ends in progress without a version, which had no phase."""


def read_progress(annotation: str) -> Progress | None:
    """Parse the annotation. Return None if there is none, or it is invalid. Fields of later versions are ignored."""
    try:
        shape: Mapping[str, object] = mapping(json.loads(annotation))
        found = Progress(
            text(shape.get("at")),
            text(shape.get("by")),
            RunPhase(text(shape.get("phase", RunPhase.RESTARTING))),
            number(shape.get("done")),
            number(shape.get("total")),
            text(shape.get("waits")),
            shape.get("blocked") is True or shape.get("state") == "waiting",
            End.named(text(shape.get("end"))) if "version" in shape else _FIRST_FORM.get(text(shape.get("state"))),
            number(shape.get("steps")),
        )
    except (ValueError, TypeError, RecursionError):
        return None
    return found if parse_time(found.at) is not None else None
