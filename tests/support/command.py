"""Runs a command of crrd like a user, to its end."""

import os
from typing import NamedTuple

from tests.support import warm
from tests.support.cluster import Cluster
from tests.support.warm import Started


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


class Begun:
    """A run in a process of its own, read line by line."""

    def __init__(self, process: Started) -> None:
        self.process = process
        self.lines: list[str] = []

    async def until(self, words: str) -> str:
        """The next line that has these words in it."""
        async for line in self.process.stdout:
            self.lines.append(line.decode())
            if words in self.lines[-1]:
                return self.lines[-1]
        raise AssertionError(f"it ended without {words!r}: {self.lines}")

    async def end(self) -> tuple[int, str]:
        """Its exit code, and all that it said."""
        code, out = await self.process.ended()
        return code, "".join(self.lines) + out


async def explained(cluster: Cluster, name: str, *flags: str) -> str:
    """Return the output of `crrd explain` for a request."""
    where = ("-n", cluster.namespace)
    code, out, err = await crrd("explain", name, *where, *flags, KUBECONFIG=str(cluster.kubeconfig))
    assert (code, err) == (0, "")
    return out
