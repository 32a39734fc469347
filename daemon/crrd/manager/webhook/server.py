"""The admission webhook: an HTTPS server for the API server, with limits for each caller, and a graceful shutdown.

A call that cannot be parsed gets a 4xx. Any other call gets the answer of `handler`, with its UID.

Without a client CA (see `certificates.keeper`), every client that reaches the port can send reviews. The answers then
reveal which pods and containers exist, on which node and with which IDs, but not their contents.
"""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import structlog
from aiohttp import web

from crrd.core.admission.rules import Allowed, Denied
from crrd.core.api.types import GROUP, KIND, VERSIONS
from crrd.kube.resources import ObjectReader
from crrd.lib.connections import CloseObserver, Connections
from crrd.lib.descriptors import room_for_connections
from crrd.lib.health import Health, listen, split_address
from crrd.lib.heartbeat import Heartbeat
from crrd.lib.looptime import loop_time
from crrd.manager.certificates.tls import ServingTls
from crrd.manager.webhook.handler import LOOKUP_FAILED, LOOKUP_REFUSED, OVERLOADED, AdmissionHandler, Answer, NodeCheck
from crrd.manager.webhook.review import CREATE, BadReviewError, Review, encode, read_review

log = structlog.get_logger(__name__)

REQUEST_KINDS = tuple(f"{GROUP}/{version} {KIND}" for version in VERSIONS)
POD_KINDS = ("v1 Pod",)
_TIMEOUT = re.compile(r"([1-9][0-9]?)s")
"""The API server sends its own timeout in the query, in whole seconds, at most 30."""
_TIMEOUT_MARGIN_SECONDS = 0.5
_ANSWER_MARGIN_SECONDS = 5.0  # Time by which an answer may exceed its limits before the server counts as hanging

WEBHOOKS = {"/mutate-crr": "mutate", "/mutate-pod": "pods"}  # Paths, and their short names for metrics
ALLOWED, DENIED, ERROR = "allowed", "denied", "error"
BAD_CALL, INTERNAL = "bad_call", "internal"  # Reasons of errors, in addition to those of `handler`
ERROR_REASONS = (BAD_CALL, INTERNAL, LOOKUP_REFUSED, LOOKUP_FAILED, OVERLOADED)

ReviewObserver = Callable[[str, str, str, float], None]
"""Called for each answer with the webhook, the decision, the reason ("" if allowed) and the duration in seconds."""
AdmissionObserver = Callable[[str], None]
"""Called for each admitted new request that will be stored, with the user who created it."""
_Answerer = Callable[[Review, float], Awaitable[Answer]]


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits for callers, and the times of the shutdown."""

    body: int = 3 * 2**20  # Bytes of one call, the API server's own limit for one object
    bodies: int = 48 * 2**20  # Bytes of all unanswered calls; each is answered after `answer_seconds`
    read_seconds: float = 5.0  # For receiving the body of a call
    answer_seconds: float = 8.0  # For the whole answer, or the API server's own timeout if that is shorter
    idle_seconds: float = 100.0
    """For an unused connection. It is more than the 90 s after which API servers close theirs (`SetTransportDefaults`
    in apimachinery), so that no connection is closed during a call, which fails the user's write (`EOF`)."""
    head_seconds: float = 100.0
    """For receiving the first call on a connection, for the same reason: for many calls at once, an API server opens
    more connections than it needs, and uses the others later."""
    handshake_seconds: float = 10.0
    connections: int = 1024
    """In total. An API server uses one for each pending call. Each takes 40 KB. Fewer if the process may not have so
    many file descriptors."""
    min_open_seconds: float = 1.0
    """A new or just used connection is not closed within this time, because hundreds of handshakes take that long."""
    drain_seconds: float = 10.0  # From turning unready until accepting nothing, so that Services can notice
    stop_seconds: float = 10.0  # After that, for calls in flight to end
    linger_seconds: float = 1.0
    """From accepting nothing until closing connections, for calls that are just arriving on open ones."""


class WebhookServer:
    """Serves /mutate-crr, /mutate-pod and the pages of `health` over TLS.

    It starts serving when `tls` has a certificate. `address` is parsed by `split_address`; port 0 picks a free port.
    `served`, `lacking` and `deny` are as in AdmissionHandler.
    Adds to `health` the readiness checks `webhook` and `certificate`, and the liveness check `webhook`.
    """

    def __init__(
        self,
        address: str,
        tls: ServingTls,
        pods: ObjectReader,
        health: Health,
        *,
        served: NodeCheck | None = None,
        lacking: Callable[[str], bool] = lambda _: False,
        deny: bool = False,
        limits: Limits | None = None,
        on_review: ReviewObserver = lambda *_: None,
        on_admitted: AdmissionObserver = lambda _: None,
        on_close: CloseObserver | None = None,
    ) -> None:
        self._address, self._tls = split_address(address), tls
        self._limits = limits = limits or Limits()
        self._on_review, self._on_admitted = on_review, on_admitted
        self.connections = Connections(
            lambda: tls.context,
            most=room_for_connections(limits.connections),
            min_open_seconds=limits.min_open_seconds,
            handshake_seconds=limits.handshake_seconds,
            head_seconds=limits.head_seconds,
            on_close=on_close,
        )
        self._listening = self._draining = False
        self._nothing_in_flight = asyncio.Event()
        self._nothing_in_flight.set()
        self._held_bytes = 0
        self._heartbeat = Heartbeat()
        self._began: dict[asyncio.Task[object] | None, float] = {}  # Start times of calls in flight, the oldest first
        health.live["webhook"] = self._check_alive
        health.ready["webhook"] = self._check
        health.ready["certificate"] = tls.check
        handler = AdmissionHandler(pods, served, lacking=lacking, deny=deny)
        app = web.Application()
        app.router.add_post("/mutate-crr", partial(self._handle, REQUEST_KINDS, handler.review_request))
        app.router.add_post("/mutate-pod", partial(self._handle, POD_KINDS, handler.mutate_pod))
        app.add_routes(health.routes())
        app.on_response_prepare.append(self._answered)
        self._runner = web.AppRunner(
            app,
            access_log=None,
            auto_decompress=False,
            keepalive_timeout=limits.idle_seconds,
            shutdown_timeout=limits.stop_seconds,
            lingering_time=limits.read_seconds,
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Serve as soon as there is a certificate, until `stop` is set. Then drain. Raises the errors of `start`."""
        self._heartbeat.until(self._tls.loaded, "waiting for a certificate")
        stopping = asyncio.create_task(stop.wait())
        loaded = asyncio.create_task(self._tls.loaded.wait())
        try:
            await asyncio.wait((stopping, loaded), return_when=asyncio.FIRST_COMPLETED)
            self._heartbeat.rest()
            if not stop.is_set():
                log.info("serving admission", address=await self.start())
                await stopping
                await self.drain()
        finally:
            for task in (stopping, loaded):
                task.cancel()
            await self._close()

    async def start(self) -> str:
        """Listen, and return the address with the port that was picked. ConfigurationError if it cannot be bound."""
        remedy = "choose another address for the webhook"
        address = await listen(self._runner, self.connections, self._address, remedy)
        self._listening = True
        return address

    async def drain(self) -> None:
        """Shut down without losing a call: turn unready, stop accepting, finish calls in flight. Return when closed."""
        self._draining = True
        log.info("draining", seconds=self._limits.drain_seconds)
        await asyncio.sleep(self._limits.drain_seconds)
        self._stop_accepting()
        await asyncio.sleep(self._limits.linger_seconds)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._limits.stop_seconds):
                await self._nothing_in_flight.wait()
        await self._close()

    def _stop_accepting(self) -> None:
        self._listening = False
        self.connections.stop_accepting()

    async def _close(self) -> None:
        self._stop_accepting()
        self.connections.close()
        await self._runner.cleanup()

    def _check(self) -> str:
        waiting = "" if self._listening else "not listening yet"
        return "draining" if self._draining else waiting

    def _check_alive(self) -> str:
        if self._listening and not self.connections.listening:
            return "the listener has ended"
        now = loop_time()
        longest = now - next(iter(self._began.values()), now)
        if longest > self._limits.read_seconds + self._limits.answer_seconds + _ANSWER_MARGIN_SECONDS:
            return f"hangs: a call has been under way for {longest:.0f}s"
        return self._heartbeat.check()

    async def _answered(self, request: web.Request, response: web.StreamResponse) -> None:
        """While draining, close the connection after this answer, so that the next call goes to another replica."""
        self.connections.used(request.protocol)
        if self._draining:
            response.headers["Connection"] = "close"
            response.force_close()

    async def _handle(self, kinds: tuple[str, ...], answerer: _Answerer, request: web.Request) -> web.StreamResponse:
        """Answer a call, and observe it if it cannot be answered. `_answer` observes the others."""
        task, began = asyncio.current_task(), time.monotonic()
        self._began[task] = loop_time()
        self._nothing_in_flight.clear()
        try:
            return await self._answer(request, kinds, answerer, began)
        except web.HTTPException as error:
            self._observe(request.path, ERROR, OVERLOADED if error.status == 503 else BAD_CALL, began)
            raise
        except Exception:
            self._observe(request.path, ERROR, INTERNAL, began)
            raise
        finally:
            del self._began[task]
            if not self._began:
                self._nothing_in_flight.set()

    async def _answer(
        self, request: web.Request, kinds: tuple[str, ...], answerer: _Answerer, began: float
    ) -> web.Response:
        body = bytearray()
        try:
            await self._receive(request, body)
            self.connections.busy(request.protocol)
            review = read_review(body, kinds)
            outcome = Allowed() if review.subresource else await answerer(review, began + self._seconds(request))
            answer = encode(review.uid, outcome)
            self._report(request.path, review, outcome, began)
            return web.Response(body=answer, content_type="application/json")
        except BadReviewError as error:
            wrong = str(error)
        except RecursionError:
            wrong = "the body is nested too deeply"
        except ValueError:  # a number such as 1e999
            wrong = "the body must contain only numbers that JSON allows"
        finally:
            self._held_bytes -= len(body)
        raise _refused(web.HTTPBadRequest, wrong)  # without a cause, which would keep the parsed body in memory

    async def _receive(self, request: web.Request, body: bytearray) -> None:
        """Read the body of a call into `body`, within the limits. Raises the HTTP error if a limit is exceeded.

        The received bytes count as held until the caller subtracts them.
        """
        if request.content_type != "application/json":
            raise _refused(web.HTTPUnsupportedMediaType, "the content type must be application/json")
        if "Content-Encoding" in request.headers:
            raise _refused(web.HTTPUnsupportedMediaType, "the body must not be compressed")
        if (request.content_length or 0) > self._limits.body:
            raise self._too_large()
        try:
            async with asyncio.timeout(self._limits.read_seconds):
                async for chunk in request.content.iter_any():
                    body += chunk
                    self._held_bytes += len(chunk)
                    if len(body) > self._limits.body:
                        raise self._too_large()
                    if self._held_bytes > self._limits.bodies:
                        raise _refused(web.HTTPServiceUnavailable, "too many calls at once: try again")
        except TimeoutError as error:
            raise _refused(web.HTTPRequestTimeout, "timed out reading the request body") from error
        except (web.RequestPayloadError, ConnectionError) as error:
            wrong = "the connection was closed before the request body was complete"
            raise _refused(web.HTTPBadRequest, wrong) from error

    def _too_large(self) -> web.HTTPException:
        most = self._limits.body
        return _refused(partial(web.HTTPRequestEntityTooLarge, most), f"the body must not be larger than {most} bytes")

    def _seconds(self, request: web.Request) -> float:
        limit = _TIMEOUT.fullmatch(request.query.get("timeout", ""))
        longest = self._limits.answer_seconds
        return min(longest, int(limit[1]) - _TIMEOUT_MARGIN_SECONDS) if limit else longest

    def _report(self, path: str, review: Review, outcome: Answer, began: float) -> None:
        if isinstance(outcome, Denied):
            why, user = (value.encode("ascii", "backslashreplace").decode() for value in (outcome.message, review.user))
            log.info("admission denied", path=path, namespace=review.namespace, user=user, code=outcome.code, why=why)
            self._observe(path, ERROR if outcome.code >= 500 else DENIED, outcome.reason, began)
            return
        self._observe(path, ALLOWED, "", began)
        # An empty patch: the API server asks again about a request that was already admitted.
        if outcome.patch and path == "/mutate-crr" and review.operation == CREATE and not review.dry_run:
            self._on_admitted(review.user)

    def _observe(self, path: str, decision: str, reason: str, began: float) -> None:
        self._on_review(WEBHOOKS[path], decision, reason, time.monotonic() - began)


def _refused(kind: Callable[..., web.HTTPException], sentence: str) -> web.HTTPException:
    refusal = kind(text=f"{sentence}\n")
    refusal.force_close()  # otherwise the rest of the body would be parsed as the next call
    return refusal
