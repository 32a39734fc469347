"""The API server of a run: HTTP in front of the store, and all its faults.

A fault is the network's or the server's, and can also happen with a real server or a proxy before it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import TYPE_CHECKING, Any

import aiohttp

from crrd.core.api.types import GROUP, PLURAL, POLICY_GROUP, VERSION
from tests.simulation.answers import (
    FOREIGN,
    OLD_STATE_FIELDS,
    OLD_STATUS_FIELDS,
    STATE_FIELDS,
    STATUS_FIELDS,
    as_json,
    refusal,
    shown,
    status,
)
from tests.simulation.network import Reply, Response, Sent, refused
from tests.simulation.schedule import SHOP, is_own
from tests.simulation.store import Object, Store, Watch, key_of, line, merged, selector

if TYPE_CHECKING:
    from tests.simulation.daemon import Life
    from tests.simulation.world import SimulatedWorld

BOOKMARK_SECONDS = 60.0
_SORTS = {"node": "read"}  # A kind of calls -> the kind that includes it
_GROUPS = (
    ["apis", GROUP, VERSION],
    ["apis", POLICY_GROUP, "v1alpha1"],
    ["apis", "apps", "v1"],
    ["apis", "policy", "v1"],
)
_RUN_SORTS = {"PATCH": "write", "POST": "write", "DELETE": "write"}
PATIENCE_SECONDS = 3.0  # Time that a server waits for a future version before it returns an error


@dataclass(slots=True)
class Rule:
    """A fault that lasts for a while, or for some calls."""

    kind: str
    until: float
    about: Mapping[str, Any]
    left: int | None = None
    hit: bool = False  # Whether it has had an effect


@dataclass(slots=True, eq=False)
class _Open:
    """One watch of the daemon."""

    watch: Watch
    response: Response
    kind: str
    life: "Life"
    mute: bool = False


class ApiServer:
    """Answers the daemon. All other parts use the store directly."""

    def __init__(self, world: "SimulatedWorld") -> None:
        self._world = world
        self.store = Store(world.changed, world.loop.true_utc, world.loop.time)
        self.rules: list[Rule] = []
        self.opened: list[_Open] = []
        self.late = False  # Whether the sender of the call that is carried out no longer waits for its answer
        self.behind: int | None = None  # The version at which a server that is behind has stopped
        self.pruning = False
        self.latency = world.setup.latency
        self._touches = 0
        self.writer: Life | None = None  # The process whose call is being carried out

    # Faults.

    def rule(self, kind: str, about: Mapping[str, Any]) -> None:
        now = self._world.loop.time()
        self.rules.append(Rule(kind, now + about["seconds"], about, about.get("times")))

    def drop_watches(self, *, gone: bool = False) -> None:
        """Cut every watch. `gone` first reports that its version has expired."""
        for opened in self.opened:
            if gone and not opened.mute:
                opened.response.content.feed(line("ERROR", status(410, "Expired", "too old resource version")))
            opened.response.content.feed(aiohttp.ClientPayloadError("Response payload is not completed"))
            self._forget(opened)
        self.opened.clear()

    def half_open(self) -> None:
        """The other end of every watch disappears without closing the connection."""
        for opened in self.opened:
            opened.mute = True

    def stand_still(self, back: float, open_too: bool) -> None:
        """Put a server behind by this many seconds, with `open_too` also the one of the daemon's open watches."""
        self.behind = self.store.version_at(self._world.loop.time() - back)
        for opened in self.opened if open_too else ():
            opened.watch.held = True

    def catch_up(self) -> None:
        self.behind = None
        for opened in self.opened:
            opened.watch.held = False
            self.store.tell(opened.kind, opened.watch, self.store.version)

    def forget(self, life: "Life") -> None:
        """Drop the connections of a daemon process that has died."""
        for opened in [one for one in self.opened if one.life is life]:
            self._forget(opened)
            self.opened.remove(opened)

    def _forget(self, opened: _Open) -> None:
        watches = self.store.kinds[opened.kind].watches
        if opened.watch in watches:
            watches.remove(opened.watch)

    def _fault(self, sort: str) -> Rule | None:
        now = self._world.loop.time()
        self.rules = [rule for rule in self.rules if rule.until > now and rule.left != 0]
        for rule in self.rules:
            if rule.kind in ("conflict", "half_open") or rule.about["calls"] not in ("all", sort, _SORTS.get(sort)):
                continue
            if rule.left is not None:
                rule.left -= 1
            self._world.count_hit(rule)
            return rule
        return None

    # Calls.

    def send(self, life: "Life", sent: Sent, reply: Reply) -> None:
        """Handle one request of the daemon."""
        runs = life.shops or (not life.judged and self._world.setup.changes is not None)
        sorts = _RUN_SORTS if runs and not sent.path.endswith("/events") else {"PATCH": "write", "POST": "events"}
        sort = sorts.get(sent.method, "watch" if "watch" in sent.query else "read")
        self._show(life, sort, sent, reply)
        if not life.judged and self._world.teams.hangs(sent):
            return
        rule = self._fault("node" if "/nodes/" in sent.path else sort)
        kind = rule.kind if rule else ""
        if life.trapped(sent, "before"):
            return
        delay = self.latency
        if rule is not None:
            self._world.say("api", f"{sort} {sent.path}: {kind}")
        match kind:
            case "api_status":
                assert rule is not None
                self._later(delay, reply.answer, refusal(rule.about["code"], rule.about.get("retry_after")))
                return
            case "api_hang":
                return
            case "api_cut":
                self._later(delay, reply.fail, aiohttp.ServerDisconnectedError())
                return
            case "api_refused":
                self._later(0.0, reply.fail, refused("api", 443))
                return
            case "api_foreign":
                assert rule is not None
                headers = {"Content-Type": "text/html" if rule.about["body"] == "html" else "application/json"}
                self._later(delay, reply.answer, Response(200, FOREIGN[rule.about["body"]], headers))
                return
            case "api_slow":
                assert rule is not None
                delay += rule.about["delay"]
        self._later(delay, self._carry_out, life, sent, reply, kind)

    def _show(self, life: "Life", sort: str, sent: Sent, reply: Reply) -> None:
        """Let the judge see a call."""
        judge = self._world.judge
        if life.judged:
            judge.called(life, sort, sent)
            if sort == "write":
                judge.sends(life, sent, reply)
        elif not life.shops:
            judge.manages(sent)

    def _later(self, seconds: float, step: Any, *arguments: Any) -> None:
        self._world.loop.call_later(seconds, step, *arguments)

    def _carry_out(self, life: "Life", sent: Sent, reply: Reply, fault: str) -> None:
        if sent.query.get("watch"):
            self._watch(life, sent, reply)
            return
        self.late = reply.given_up
        self.writer = life
        status, answer = self._dispatch(life, sent)
        self.writer = None
        if status == 409 and life.judged and not reply.given_up:
            self._world.judge.conflicts(life, sent)
        if status == 504 and not life.dead:
            self._later(PATIENCE_SECONDS, reply.answer, as_json(status, answer))
            return
        if life.trapped(sent, "after") or life.dead:
            return
        if sent.method != "GET" or fault:
            self._world.say("api", f"{sent.method} {sent.path} -> {status}{f', {fault}' if fault else ''}")
        response = as_json(status, answer)
        response.headers["Date"] = format_datetime(
            datetime.fromtimestamp(self._world.loop.true_wall(), UTC), usegmt=True
        )
        if fault == "api_lost":
            self._later(self.latency, reply.fail, aiohttp.ServerDisconnectedError())
            return
        if fault == "api_torn":
            response = Response(status, None)
            response.content.feed(json.dumps(answer).encode()[:-7])
            response.content.feed(aiohttp.ClientPayloadError("Response payload is not completed"))
        self._later(self.latency, self._hand_over, life, sent, reply, response, None if fault == "api_torn" else answer)

    def _hand_over(self, life: "Life", sent: Sent, reply: Reply, response: Response, answer: Object | None) -> None:
        """Deliver the response to the daemon, and record that it knows the content."""
        if answer is not None and response.status == 200 and life.judged and not reply.given_up:
            if "items" in answer:
                kind, namespace, *_ = self._target(sent)
                asked_for = None
                if "labelSelector" in sent.query or kind == "pods":
                    asked_for = selector("", sent.query.get("fieldSelector", ""), namespace)
                life.listed(kind, answer["items"], asked_for)
            elif sent.method == "PATCH":
                reply.whole = True
                life.answered[answer["metadata"]["uid"]] = answer["metadata"]["resourceVersion"]
                life.told("containerrecreaterequests", "MODIFIED", answer)
        reply.answer(response)

    @staticmethod
    def _target(sent: Sent) -> tuple[str, str, str, str]:
        """Return kind, namespace, name and subresource of a path."""
        parts = sent.path.strip("/").split("/")
        root = 3 if parts[:3] in _GROUPS else 2 if parts[:2] == ["api", "v1"] else len(parts)
        parts = parts[root:]
        namespace = ""
        if parts[:1] == ["namespaces"] and len(parts) > 2:
            namespace, parts = parts[1], parts[2:]
        kind, name, sub = (*parts, "", "", "")[:3]
        return kind, namespace, name, sub

    def _dispatch(self, life: "Life", sent: Sent) -> tuple[int, Object]:
        kind, namespace, name, sub = self._target(sent)
        if kind == "events":
            return self._events(life, sent)
        if kind not in self.store.kinds:
            return 404, status(404, "NotFound", "the server could not find the requested resource")
        if not name and sent.method == "POST":
            return self._create(life, kind, namespace, sent)
        if not name:
            return self._list(kind, namespace, sent.query)
        obj = self.store.get(kind, f"{namespace}/{name}")
        if obj is None:
            return 404, status(404, "NotFound", f'{kind} "{name}" not found', name)
        if sent.method == "GET":
            return 200, obj
        body = json.loads(sent.body or b"{}")
        if sent.method == "PATCH" and isinstance(body, list):
            return self._world.shop.json_patch(kind, obj, body, dry_run="dryRun" in sent.query)
        if sent.method == "PATCH" and (kind == PLURAL or not life.judged):
            return self._patch(life, kind, obj, sub, body)
        if sent.method == "DELETE" and not life.judged:
            return self._delete(kind, obj, body)
        return 405, status(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")

    def _list(self, kind: str, namespace: str, query: Mapping[str, str]) -> tuple[int, Object]:
        version = query.get("resourceVersion", "")
        at = self.store.version
        if self.behind is not None and version:
            if int(version) > self.behind:
                said = f"Timeout: Too large resource version: {version}, current: {self.behind}"
                return 504, status(504, "Timeout", said, retry_after=1)
            at = self.behind
        passes = selector(query.get("labelSelector", ""), query.get("fieldSelector", ""), namespace)
        found = [obj for obj in self.store.at(kind, at) if passes(obj)]
        self._world.say("api", f"list {kind} at {at}: {', '.join(shown(obj) for obj in found) or 'none'}")
        return 200, {"kind": "List", "metadata": {"resourceVersion": str(at)}, "items": found}

    def _create(self, life: "Life", kind: str, namespace: str, sent: Sent) -> tuple[int, Object]:
        """Create a request of a run, or a pull pod."""
        body, dry_run = json.loads(sent.body or b"{}"), "dryRun" in sent.query
        name, shop = body["metadata"]["name"], self._world.shop
        if life.judged or kind not in (PLURAL, "pods", "controllerrevisions"):
            return 405, status(405, "MethodNotAllowed", "the server does not allow this method on the resource")
        if self.store.get(kind, f"{namespace}/{name}") is not None:
            return 409, status(409, "AlreadyExists", f'{kind} "{name}" already exists', name)
        if kind == "controllerrevisions":
            return 201, self._world.changes.keep(body, namespace)
        if namespace == SHOP:
            create = shop.create_request if kind == PLURAL else shop.create_pull_pod
            return create(body, dry_run=dry_run)
        return 201, self._world.teams.admit(body, namespace)

    def _delete(self, kind: str, obj: Object, body: Mapping[str, Any]) -> tuple[int, Object]:
        if any(obj["metadata"][key] != value for key, value in body.get("preconditions", {}).items()):
            return 409, status(409, "Conflict", "the preconditions do not hold", obj["metadata"]["name"])
        self.store.delete(kind, key_of(obj))
        return 200, status(200, "", "deleted")

    def _events(self, life: "Life", sent: Sent) -> tuple[int, Object]:
        """Events are not kept."""
        if sent.method != "POST":
            return 200, {"kind": "List", "metadata": {"resourceVersion": "1"}, "items": []}
        body = json.loads(sent.body or b"{}")
        if life.judged:
            self._world.judge.event(body)
        return 201, body

    def _patch(self, life: "Life", kind: str, obj: Object, sub: str, patch: Mapping[str, Any]) -> tuple[int, Object]:
        if kind == PLURAL:
            self._touch(obj)
        elif kind == "configmaps":
            self._world.changes.race()
        obj = self.store.get(kind, key_of(obj)) or obj
        name, meta = obj["metadata"]["name"], patch.get("metadata", {})
        if meta.get("resourceVersion", obj["metadata"]["resourceVersion"]) != obj["metadata"]["resourceVersion"]:
            said = (
                f'Operation cannot be fulfilled on {kind} "{name}": the object has been modified; '
                "please apply your changes to the latest version and try again"
            )
            return 409, status(409, "Conflict", said, name)
        # a write of the status alone ignores the uid
        if sub != "status" and meta.get("uid", obj["metadata"]["uid"]) != obj["metadata"]["uid"]:
            wrong = f'metadata.uid: Invalid value: "{meta["uid"]}": field is immutable'
            said = f'{kind} "{name}" is invalid: {wrong}'
            return 422, status(422, "Invalid", said, name)
        if sub == "status":
            written = merged(obj.get("status"), patch.get("status", {}))
            new = {**obj, "status": self._pruned(written) if kind == PLURAL else written}
        else:
            new = merged(obj, {key: value for key, value in patch.items() if key != "status"})
            new = self._world.changes.written(obj, new, patch) if kind == "configmaps" else new
        if life.judged and is_own(new):
            self._world.judge.written(life, obj, new, sub)
        elif sub == "status" and kind == PLURAL and is_own(new) and new["status"].get("phase") == "Completed":
            self._world.judge.ended_by_manager(new)
        return 200, self.store.update(kind, new)

    def _touch(self, obj: Object) -> None:
        """Another client writes first."""
        now = self._world.loop.time()
        for rule in self.rules:
            if rule.kind == "conflict" and rule.until > now and rule.left:
                rule.left -= 1
                self._world.count_hit(rule)
                self._touches += 1
                self.store.patch(PLURAL, key_of(obj), {"metadata": {"annotations": {"touched": str(self._touches)}}})
                return

    def _pruned(self, status: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the fields of a status that the CRD's schema knows."""
        whole, each = (OLD_STATUS_FIELDS, OLD_STATE_FIELDS) if self.pruning else (STATUS_FIELDS, STATE_FIELDS)
        pruned = {key: value for key, value in status.items() if key in whole}
        if "containerRecreateStates" in pruned:
            pruned["containerRecreateStates"] = [
                {key: value for key, value in state.items() if key in each}
                for state in pruned["containerRecreateStates"]
            ]
        return pruned

    # Watches.

    def _watch(self, life: "Life", sent: Sent, reply: Reply) -> None:
        if life.dead or reply.given_up:
            return
        kind, namespace, *_ = self._target(sent)
        version = int(sent.query.get("resourceVersion") or 0)
        response = Response(200, None)
        if version < self.store.kinds[kind].oldest:
            gone = status(410, "Expired", f"too old resource version: {version} ({self.store.kinds[kind].oldest})")
            if not self._world.setup.gone_in_stream:
                self._later(self.latency, reply.answer, as_json(410, gone))
                return
            response.content.feed(line("ERROR", gone))
            response.content.feed(None)
            self._later(self.latency, reply.answer, response)
            return
        now = self._world.loop.time()
        mute = any(rule.kind == "half_open" and rule.until > now for rule in self.rules)
        passes = selector(sent.query.get("labelSelector", ""), sent.query.get("fieldSelector", ""), namespace)
        watch = Watch(passes, None, version)  # type: ignore[arg-type]
        opened = _Open(watch, response, kind, life, mute)
        waiting: list[tuple[list[bytes], list[tuple[str, Object]]]] = []

        def flush() -> None:
            for lines, told in waiting:
                if not (opened.mute or life.dead or response.closed) and opened in self.opened:
                    for piece in self._pieces(b"".join(lines)):
                        response.content.feed(piece)
                    for what, obj in told:
                        life.told(kind, what, obj)
            waiting.clear()

        def tell(lines: list[bytes], told: list[tuple[str, Object]]) -> None:
            if response.closed:
                self._forget(opened)
                return
            if not waiting:
                self._later(self.latency, flush)
            waiting.append((lines, told))

        watch.tell = tell
        self.opened.append(opened)
        self.store.kinds[kind].watches.append(watch)
        reply.answer(response)
        watch.held = self.behind is not None
        self.store.tell(kind, watch, self.store.version if self.behind is None else self.behind)
        self._later(float(sent.query.get("timeoutSeconds", "300")), self._end_watch, opened)
        self._later(BOOKMARK_SECONDS, self._bookmark, opened)

    def _pieces(self, lines: bytes) -> list[bytes]:
        """Split the lines like a network: a piece may end in the middle of a line or of a character."""
        size = 1 + len(lines) * 2 // 5 if self._world.setup.in_pieces else len(lines)
        return [lines[at : at + size] for at in range(0, len(lines), size)]

    def _bookmark(self, opened: _Open) -> None:
        if opened not in self.opened or opened.response.closed:
            return
        if not opened.mute:
            version = opened.watch.seen if opened.watch.held else self.store.version
            obj = {"kind": "Object", "metadata": {"resourceVersion": str(version)}}
            opened.watch.tell([line("BOOKMARK", obj)], [])
        self._later(BOOKMARK_SECONDS, self._bookmark, opened)

    def _end_watch(self, opened: _Open) -> None:
        if opened in self.opened:
            self.opened.remove(opened)
            self._forget(opened)
            if not opened.mute:
                opened.response.content.feed(None)
