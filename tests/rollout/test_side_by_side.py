"""Work for many pods side by side."""

import asyncio
import gc
from functools import partial
from typing import Any

import pytest

from crrd.rollout.side_by_side import SideBySide


async def test_the_first_of_several_errors_is_raised_and_the_others_are_told_by_nobody() -> None:
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    ended = asyncio.Semaphore(0)
    work = SideBySide(ended.release)

    async def fails(why: str) -> None:
        raise ValueError(why)

    for uid in ("one", "two", "three"):
        work.begin(uid, partial(fails, uid))
    for _ in range(3):
        await ended.acquire()
    await asyncio.sleep(0)
    with pytest.raises(ValueError, match="one"):
        work.raise_error()
    gc.collect()
    assert told == []
