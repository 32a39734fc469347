"""What the command line of `crrd recreate` asks for, as a value."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from crrd.core.rollout.run import Amount, Options


@dataclass(frozen=True, slots=True)
class Command:
    """What the command line asks for."""

    called: str  # As the user called it, for commands that messages suggest
    verb: str  # "" to start a run, or to resume the one of this name
    arguments: tuple[str, ...]  # TYPE/NAME, or TYPE and NAME; the same several times
    selector: str
    run_name: str  # "" to make one up, or for `status` of all runs
    retry_failed: bool  # Restart the pods once more whose requests have failed
    options: Options
    changes: Mapping[str, Any]  # Options that a run that is resumed gets in place of its own
    partition: Amount | None
    since: datetime | timedelta | None  # Options.since of a new run, or how long before its start that is
    dry_run: str
    """"" to change something, else `client` or `server`, which asks the API server whether it takes the requests."""
    watch: bool  # With `status`: go on to show it
    timeout: int | None  # Seconds for the whole run; 0 for as long as it takes, None for the default
    yes: bool  # Nobody has to be asked after the first part
    output: str  # text or json
    namespace: str
    context: str
    kubeconfig: str
    access_flags: tuple[str, ...]  # The flags that say which cluster, for commands that messages suggest
    resume_flags: tuple[str, ...]  # The flags just given that `resume` takes, for the same

    @property
    def as_json(self) -> bool:
        """Whether a machine reads the output."""
        return self.output == "json"
