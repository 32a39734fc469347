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
    error.__cause__ = ApiRefusedError('web is forbidden: User "ann" cannot patch web', status=status)
    assert shown in describe(error)


def test_what_a_quota_or_a_policy_refuses_needs_no_role() -> None:
    refused = ApiRefusedError("create pods web: exceeded quota: few (403)", status=403)
    refused.resource = "pods"
    assert describe(refused) == str(refused)
    error = ConfigurationError("nothing was changed: few")
    error.__cause__ = refused
    assert describe(error) == "nothing was changed: few"
