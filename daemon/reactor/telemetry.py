"""What the reactor tells about its work, for metrics: a Protocol, and one that listens to nothing."""

from collections.abc import Mapping
from typing import Protocol

from daemon.core.actions import FailureCause
from daemon.core.model import Hook, HookResult, Request


class Recorder(Protocol):
    """Is told what happened to requests. Calls are synchronous and quick."""

    def seen(self, request: Request) -> None:
        """A live request is looked at for the first time."""
        ...

    def turn(self, request: Request) -> None:
        """The request is its pod's current one; told in each round."""
        ...

    def hook_started(self, request: Request) -> None:
        """A preStop hook is about to run."""
        ...

    def hook_ended(self, request: Request, hook: Hook, result: HookResult) -> None:
        """A preStop hook has ended."""
        ...

    def stop_sent(self, request: Request, container: str) -> None:
        """A StopContainer is about to be sent."""
        ...

    def stop_ended(self, request: Request, container: str, seconds: float, error: str) -> None:
        """A StopContainer has returned after this many seconds."""
        ...

    def successor_seen(self, request: Request, container: str) -> None:
        """The runtime lists the next instance of a container that the request waits for."""
        ...

    def written(self, before: Request, after: Request, causes: Mapping[str, FailureCause]) -> None:
        """A request was written; the status says how far it has come, `causes` why containers failed by this write."""
        ...

    def forgotten(self, request: Request) -> None:
        """A request is no longer this node's business: it has ended or is gone."""
        ...


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
