"""The allowed changes of a request's phase and of its containers' phases, each with its cause.

Node and manager call `check_move` before they write a status. The state diagrams in docs/contract.md are generated from
the tables: `python -m tests.tools.phase_diagram`.
"""

from collections.abc import Mapping
from types import MappingProxyType

from crrd.core.api.types import RequestPhase, StatePhase, Status

REQUEST_MOVES: Mapping[tuple[RequestPhase, RequestPhase], str] = MappingProxyType(
    {
        (RequestPhase.EMPTY, RequestPhase.PENDING): "waits for its pod, the runtime or another request",
        (RequestPhase.EMPTY, RequestPhase.RECREATING): "is served at once",
        (RequestPhase.EMPTY, RequestPhase.COMPLETED): "cannot be served, or nothing is left to do",
        (RequestPhase.PENDING, RequestPhase.PENDING): "waits for something else",
        (RequestPhase.PENDING, RequestPhase.RECREATING): "is served",
        (RequestPhase.PENDING, RequestPhase.COMPLETED): "cannot be served, or nothing is left to do",
        (RequestPhase.RECREATING, RequestPhase.RECREATING): "the state of a container has changed",
        (RequestPhase.RECREATING, RequestPhase.COMPLETED): "every container is Succeeded or Failed",
    }
)
"""A status with the same phase is listed, too. Completed is written only once."""
CONTAINER_MOVES: Mapping[tuple[StatePhase, StatePhase], str] = MappingProxyType(
    {
        (StatePhase.PENDING, StatePhase.RECREATING): "its hook or stop begins, or it is already gone",
        (StatePhase.PENDING, StatePhase.SUCCEEDED): "was already recreated",
        (StatePhase.PENDING, StatePhase.FAILED): "cannot be recreated, or the request ends",
        (StatePhase.RECREATING, StatePhase.SUCCEEDED): "the new instance is running and ready",
        (StatePhase.RECREATING, StatePhase.FAILED): "does not stop or does not start again, or the request ends",
    }
)
"""A container that keeps its phase is not listed."""


class IllegalMoveError(Exception):
    """A phase was about to change against the tables. This is always a bug of crrd."""


def check_move(old: Status, new: Status) -> None:
    """Raise IllegalMoveError if the status must not be replaced by the new one."""
    if (old.phase, new.phase) not in REQUEST_MOVES:
        raise IllegalMoveError(f"request: {old.phase or 'new'} -> {new.phase}")
    for state in new.states:
        before = old.state(state.name).phase
        if state.phase is not before and (before, state.phase) not in CONTAINER_MOVES:
            raise IllegalMoveError(f"container {state.name}: {before} -> {state.phase}")
