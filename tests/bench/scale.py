"""What crrd costs a cluster's API server, by its number of nodes: the table in docs/scale.md.

`python -m tests.bench.scale` prints it. A model of few figures, each with its origin; nothing is measured here.
"""

from dataclasses import dataclass

NODES = (100, 1_000, 6_000, 20_000)
WRITES = {"create": 1, "node": 2, "manager": 1, "delete": 1}
"""Of one request for one container without a hook: `make bench` counts the node's, the tests of the lifecycle the
manager's; the deletion is that of its time to live."""
OTHER_CALLS = {
    "admission": 1,
    "pod in admission": 1,
    "pod's list": 1,
    "pod's watch": 1,
    "events": 2,
}
"""Calls about the same request that no node's watch is told of. Admission is a call of the API server's own."""
ETCD_WRITES = sum(WRITES.values()) + OTHER_CALLS["events"]
CALL_SECONDS = 0.002
"""API server CPU of one call. Measured on Kubernetes 1.36: a write that 6 000 watches by label were asked about took
32 ms, of which 30 ms went with the watches."""
WATCHER_SECONDS = 5e-6
"""API server CPU by which each watch of requests makes a write of any request dearer. Same measurement."""
HEARD_SECONDS = 22e-3 / 6_000
"""How much later each watch makes a write heard. Same measurement."""
BOOKMARK_BYTES = 400
"""Of a bookmark, which an idle watch brings every minute, with what TLS and TCP add."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What a cluster of so many nodes pays."""

    nodes: int

    @property
    def write(self) -> float:
        """API server CPU of one write of a request, seconds."""
        return CALL_SECONDS + self.nodes * WATCHER_SECONDS

    @property
    def request(self) -> float:
        """API server CPU of a whole request, seconds."""
        return sum(WRITES.values()) * self.write + sum(OTHER_CALLS.values()) * CALL_SECONDS

    @property
    def row(self) -> str:
        """A row of the table."""
        heard, idle = self.nodes * HEARD_SECONDS, self.nodes * BOOKMARK_BYTES / 60 / 1024
        return (
            f"| {self.nodes:,} | {self.write * 1000:.1f} ms | {self.request * 1000:.0f} ms | {1 / self.request:.1f} | "
            f"{heard * 1000:.1f} ms | {ETCD_WRITES} | {idle:.1f} KiB/s |"
        )


def main() -> None:
    """Print the table."""
    for nodes in NODES:
        print(Cost(nodes).row)


if __name__ == "__main__":
    main()
