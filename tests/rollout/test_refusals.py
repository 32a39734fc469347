"""What the API server refuses, in words for the user."""

import pytest

from crrd.lib.errors import ApiRefusedError, ConfigurationError
from crrd.rollout.refusals import describe


@pytest.mark.parametrize(
    ("status", "shown"),
    [(422, "nothing was changed: patch web"), (404, "nothing"), (401, "does not accept"), (403, "forbidden")],
)
def test_a_refused_call_keeps_what_the_command_says_about_it(status: int, shown: str) -> None:
    """If rights or credentials are missing, the message says what to do about that."""
    error = ConfigurationError("nothing was changed: patch web")
    error.__cause__ = ApiRefusedError("patch web", status=status)
    assert shown in describe(error)
