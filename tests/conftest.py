"""Fixtures that several folders of the suite share."""

from collections.abc import Iterator

import pytest

from tests.support.containerd import Containerd, missing


@pytest.fixture(scope="session")
def containerd() -> Iterator[Containerd]:
    """A private containerd with the tests' images, one for the whole session; tests keep to pods of their own."""
    reason = missing()
    if reason:
        pytest.skip(reason)
    runtime = Containerd()
    try:
        runtime.prepare()
        yield runtime
    finally:
        runtime.destroy()
