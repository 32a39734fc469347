"""Which signals a test's processes ignore. They inherit it, so that `nohup make test &` would give them its own.

A test that sends a signal, or looks at its effect, says so: `with ignoring(): ...` for the process of a user on a
terminal, which ignores none.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

OF_TERMINALS = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)  # What nohup and shells make jobs ignore


@contextmanager
def ignoring(*numbers: signal.Signals) -> Iterator[None]:
    """Processes that are started here ignore these of a terminal's signals, and no other."""
    ways = {number: signal.SIG_IGN if number in numbers else signal.SIG_DFL for number in OF_TERMINALS}
    before = {number: signal.signal(number, way) for number, way in ways.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
