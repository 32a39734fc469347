"""What the controller tells about its work, for metrics: a Protocol, and one that listens to nothing."""

from collections.abc import Mapping

from daemon.core.api.types import Request
from daemon.core.recreate.actions import FailureCause
from daemon.core.recreate.observation import Hook, HookResult


class Silence:
    """A Recorder for which nobody listens."""

    def seen(self, request: Request) -> None:
        """Do nothing."""

    def turn(self, request: Request) -> None:
        """Do nothing."""

    def hook_started(self, request: Request) -> None:
        """Do nothing."""

    def hook_ended(self, request: Request, hook: Hook, result: HookResult) -> None:
        """Do nothing."""

    def stop_sent(self, request: Request, container: str) -> None:
        """Do nothing."""

    def stop_ended(self, request: Request, container: str, seconds: float, error: str) -> None:
        """Do nothing."""

    def successor_seen(self, request: Request, container: str) -> None:
        """Do nothing."""

    def written(self, before: Request, after: Request, causes: Mapping[str, FailureCause]) -> None:
        """Do nothing."""

    def forgotten(self, request: Request) -> None:
        """Do nothing."""
