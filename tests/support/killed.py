"""`python -m tests.support.killed N ARGUMENTS`: crrd with these arguments, killed by SIGKILL after its Nth write.

Dry runs, access reviews and events are no writes. With fewer writes, it ends by itself.
"""

import os
import signal
import sys

from crrd.cli.main import main
from crrd.kube import transport
from crrd.kube.resources import EVENTS

_READ, _LAST, _WRITES = transport.Transport.read, int(sys.argv.pop(1)), [0]


async def _counted(self: transport.Transport, call: transport.Call) -> bytes:
    answer = await _READ(self, call)
    reviewed = call.resource == EVENTS or "review" in call.resource.plural
    if call.method != "GET" and "dryRun" not in call.params and not reviewed:
        _WRITES[0] += 1
        if _WRITES[0] == _LAST:
            os.kill(os.getpid(), signal.SIGKILL)
    return answer


transport.Transport.read = _counted  # type: ignore[method-assign]
sys.exit(main())
