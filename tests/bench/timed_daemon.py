"""`python -m tests.bench.timed_daemon node ...`: crrd, with the CPU time of its metrics taken and written at its end.

Every call into the metrics is wrapped, from the controller's, the edges' and the page's side; what reading the clock
takes is measured beside each call and taken off, and what one wrapped call spends inside another counts once, for the
inner one. SIGUSR2 begins anew.
"""

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

OUTPUT = "CRRD_BENCH_METRICS_COST"
"""The variable that names the file for the result: CPU seconds and calls, by what was called."""
OF_WATCHES = "watch_restarted"
"""What the watches tell NodeMetrics. What the controller tells is in Recorder, and of a request in RequestRecorder."""
OBSERVERS = ("api_call", "cri_call")
"""What the clients tell it, by attributes of its instance."""

spent: dict[str, list[float]] = {}
_inside = [0.0]
"""Seconds that wrapped calls took inside each of those under way, the innermost last."""


def timed(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """The same call, its own CPU time added up."""
    own = spent.setdefault(name, [0.0, 0])

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        _inside.append(0.0)
        began = time.thread_time()
        try:
            return call(*args, **kwargs)
        finally:
            ended = time.thread_time()
            took = ended - began
            own[0] += took - (time.thread_time() - ended) - _inside.pop()
            own[1] += 1
            _inside[-1] += time.thread_time() - began

    return wrapper


def begin_anew(*_: object) -> None:
    """Forget what was spent so far."""
    for own in spent.values():
        own[:] = [0.0, 0]


def main() -> None:
    """Run crrd."""
    from crrd.cli.main import main as cli  # noqa: PLC0415 - the command line imports what it needs, in its own way
    from crrd.lib.imports import keep_imports_lean  # noqa: PLC0415

    with keep_imports_lean():
        from prometheus_client import exposition  # noqa: PLC0415

        from crrd.node.metrics import NodeMetrics, RequestMetrics  # noqa: PLC0415
        from crrd.ports import Recorder, RequestRecorder  # noqa: PLC0415

    class Timed(NodeMetrics):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            for name in OBSERVERS:
                setattr(self, name, timed(name, getattr(self, name)))

    for kind, port, more in ((Timed, Recorder, (OF_WATCHES,)), (RequestMetrics, RequestRecorder, ())):
        for name in (*(name for name in vars(port) if not name.startswith("_")), *more):
            setattr(kind, name, timed(name, getattr(kind, name)))
    with keep_imports_lean():
        from crrd.node import daemon as app  # noqa: PLC0415
    setattr(app, "NodeMetrics", Timed)  # noqa: B010 - replaced in the one place that makes them
    exposition.generate_latest = timed("page", exposition.generate_latest)
    signal.signal(signal.SIGUSR2, begin_anew)
    try:
        cli()
    finally:
        Path(os.environ[OUTPUT]).write_text(json.dumps(spent), encoding="utf-8")


if __name__ == "__main__":
    main()
