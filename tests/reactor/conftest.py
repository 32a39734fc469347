"""The reactor's tests run in virtual time."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.support.virtual_time import VirtualLoop


def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, Callable[[], VirtualLoop]] | None:
    if item.path.is_relative_to(Path(__file__).parent):
        return {"virtual": VirtualLoop}
    return None
