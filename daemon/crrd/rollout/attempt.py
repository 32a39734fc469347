"""Makes one call until it succeeds, for a limited time."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from crrd.lib.backoff import retry_delay
from crrd.lib.errors import ApiRefusedError, ApiUnavailableError, ConflictError, OutputError
from crrd.lib.looptime import loop_time
from crrd.rollout.display import RunDisplay


async def attempt(
    call: Callable[[], Awaitable[object]], seconds: float, display: RunDisplay, what: str = "cleaning up"
) -> str:
    """Make a call until it succeeds, is refused, or the time is over. Return its error, "" for none.

    `what` says what the call does, for a user who has to wait.
    """
    ends, failures, problem = loop_time() + seconds, 0, f"the API server has not answered within {seconds:.0f}s"
    while True:
        try:
            async with asyncio.timeout(ends - loop_time()):
                await call()
        except TimeoutError:
            return problem
        except (ApiRefusedError, ApiUnavailableError) as error:
            failures, problem = failures + 1, str(error)
            delay = retry_delay(error, failures)
            refused = isinstance(error, ApiRefusedError) and not isinstance(error, ConflictError)
            if refused or loop_time() + delay > ends:
                return problem
            if failures == 1:
                with suppress(OutputError):
                    display.print_line(f"{what}, retrying: {error}")
            await asyncio.sleep(delay)
        else:
            return ""
