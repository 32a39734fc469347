"""The Prometheus that the manager asks about the shop's pods. It may fail, and a metric may be missing or wrong."""

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

from tests.simulation.network import Reply, Response, Sent, refused

if TYPE_CHECKING:
    from tests.simulation.world import SimulatedWorld

METRICS_HOST = "prometheus"
PROMETHEUS = f"http://{METRICS_HOST}:9090"
MOST = 5.0  # The largest value that holds, and the largest difference
FEW, MANY = 1.0, 100.0  # The errors of a pod that works, and of one that does not
DELAY = 0.01
MODES = ("none", "NaN", "wrong", "error", "hangs", "refused", "foreign")
_QUERY = re.compile(r'(avg\()?errors\{policy="([^"]*)",namespace="shop",pod=~"([^"]*)"\}\)?')


def query_of(policy: str, form: str) -> dict[str, Any]:
    """Return a metric of a policy."""
    query = f'errors{{policy="{policy}",namespace="{{{{namespace}}}}",pod=~"{{{{pods}}}}"}}'
    shape: dict[str, Any] = {"address": PROMETHEUS, "query": query, "max": MOST}
    return shape | {"query": f"avg({query})", "baseline": True} if form == "baseline" else shape


@dataclass(frozen=True, slots=True)
class Asked:
    """An answer."""

    at: float
    pods: frozenset[str]  # Names of those that were asked about
    good: bool | None  # None if it says nothing


class Metrics:
    """The server."""

    def __init__(self, world: "SimulatedWorld") -> None:
        self._world = world
        self.asked: dict[str, list[Asked]] = {}  # By policy
        self.mode, self._until = "", 0.0

    def fail(self, mode: str, seconds: float) -> None:
        """Let it fail in this way for a while."""
        self.mode, self._until = mode, self._world.loop.time() + seconds

    def visit(self, sent: Sent, reply: Reply) -> None:
        """Answer a query."""
        loop = self._world.loop
        (query,) = parse_qs((sent.body or b"").decode())["query"]
        found = _QUERY.fullmatch(query)
        assert found is not None, query
        averaged, policy, regex = found.groups()
        pods = [pod["metadata"]["name"] for pod in self._world.shop.pods()]
        pods = [each for each in pods if re.fullmatch(regex, each)]
        values = {name: value for name in pods if (value := self._world.changes.errors(name, policy)) is not None}
        mode = self.mode if loop.time() < self._until else ""
        if averaged:  # a difference of two answers shows no error that both have
            mode = "none" if mode == "wrong" else mode
            values = {"": sum(values.values()) / len(values)} if values else {}
        elif mode == "wrong":
            values = dict.fromkeys(values, MANY)
        good = max(values.values()) <= MOST if mode in ("", "wrong") and values else None
        self.asked.setdefault(policy, []).append(Asked(loop.time(), frozenset(pods), good))
        self._world.say("metrics", f"{policy} of {', '.join(pods)}: {mode or values}")
        match mode:
            case "hangs":
                return
            case "refused":
                loop.call_later(DELAY, reply.fail, refused(sent.host, sent.port or 0))
            case "error":
                loop.call_later(DELAY, reply.answer, Response(503, b'{"status":"error","error":"so it is"}'))
            case "foreign":
                loop.call_later(DELAY, reply.answer, Response(200, b"<html></html>"))
            case _:
                values = {} if mode == "none" else values
                shown = {name: "NaN" if mode == "NaN" else str(value) for name, value in values.items()}
                samples = [
                    {"metric": {"pod": name} if name else {}, "value": [loop.true_wall(), value]}
                    for name, value in shown.items()
                ]
                data = {"resultType": "vector", "result": samples}
                body = json.dumps({"status": "success", "data": data}).encode()
                loop.call_later(DELAY, reply.answer, Response(200, body))
