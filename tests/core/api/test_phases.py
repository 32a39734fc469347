"""Which moves of phases are legal."""

from itertools import pairwise, product

import pytest

from crrd.core.api.phases import CONTAINER_MOVES, REQUEST_MOVES, IllegalMoveError, check_move
from crrd.core.api.types import RecreateState, RequestPhase, StatePhase, Status
from tests.support.worlds import recreating


@pytest.mark.parametrize("messages", [("", ""), ("waits", ""), ("", "waits"), ("a", "b")])
def test_a_status_is_quiet_while_no_container_has_a_message(messages: tuple[str, ...]) -> None:
    states = tuple(RecreateState(f"c{at}", message=message) for at, message in enumerate(messages))
    assert Status(RequestPhase.PENDING, states).quiet is not any(messages)


def test_completed_is_final() -> None:
    done = Status(RequestPhase.COMPLETED)
    with pytest.raises(IllegalMoveError, match="Completed -> Recreating"):
        check_move(done, Status(RequestPhase.RECREATING))


def test_completed_is_written_once() -> None:
    with pytest.raises(IllegalMoveError, match="Completed -> Completed"):
        check_move(Status(RequestPhase.COMPLETED), Status(RequestPhase.COMPLETED, message="again"))


def test_final_states_do_not_move() -> None:
    old = recreating(RecreateState("app", StatePhase.SUCCEEDED))
    with pytest.raises(IllegalMoveError, match="container app: Succeeded -> Failed"):
        check_move(old, recreating(RecreateState("app", StatePhase.FAILED)))


@pytest.mark.parametrize(("old", "new"), list(product(StatePhase, repeat=2)))
def test_a_container_stays_or_goes_on(old: StatePhase, new: StatePhase) -> None:
    legal = old is new or (not old.final and new is not StatePhase.PENDING)
    assert ((old, new) in CONTAINER_MOVES) is (legal and old is not new)
    try:
        check_move(recreating(RecreateState("app", old)), recreating(RecreateState("app", new)))
    except IllegalMoveError:
        assert not legal
    else:
        assert legal


@pytest.mark.parametrize(("old", "new"), list(product(RequestPhase, repeat=2)))
def test_a_request_goes_from_empty_to_completed_and_never_back(old: RequestPhase, new: RequestPhase) -> None:
    order = list(RequestPhase)
    assert all(pair in REQUEST_MOVES for pair in pairwise(order))
    stays = old in (RequestPhase.PENDING, RequestPhase.RECREATING)
    assert ((old, new) in REQUEST_MOVES) is (order.index(new) > order.index(old) or (old is new and stays))
