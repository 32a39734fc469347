"""Runs a command of crrd like a user, to its end."""

import os
from typing import NamedTuple

from tests.support import warm
from tests.support.cluster import Cluster


class Ended(NamedTuple):
    """The result of a command."""

    code: int
    out: str
    err: str

    @property
    def last_line(self) -> str:
        """The last line on stderr."""
        return self.err.strip().splitlines()[-1]


async def crrd(*arguments: str, stdin: str = "", **environment: str) -> Ended:
    """Run `crrd` without the variables of this process' environment that could name a cluster."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("CRRD_", "KUBE", "NODE_NAME"))}
    given = clean | {"HOME": "/nonexistent"} | environment
    code, out, err = await warm.run(list(arguments), given, stdin.encode())
    assert b"Traceback" not in err, err.decode()
    return Ended(code, out.decode(), err.decode())


async def explained(cluster: Cluster, name: str, *flags: str) -> str:
    """Return the output of `crrd explain` for a request."""
    where = ("-n", cluster.namespace)
    code, out, err = await crrd("explain", name, *where, *flags, KUBECONFIG=str(cluster.kubeconfig))
    assert (code, err) == (0, "")
    return out
