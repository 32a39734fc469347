"""Asks Prometheus about the metrics of pods. Every failure is a verdict of its own: not known, and why."""

import asyncio
import base64
import json
import re
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import aiohttp
from yarl import URL

from crrd import __version__
from crrd.core.judge.addresses import allowed, read_address
from crrd.core.judge.metrics import Metric, render
from crrd.core.judge.verdicts import Answer, Holds, Verdict, judge, read_answer
from crrd.kube.access.config import tls_context
from crrd.kube.access.files import read_text
from crrd.kube.access.proxy import proxy_for
from crrd.kube.client import KubeClient
from crrd.kube.resources import SECRETS
from crrd.kube.transport import reason_of
from crrd.lib.errors import ConfigurationError, CrrdError
from crrd.lib.jsonfields import mapping, text
from crrd.lib.plain import one_line

SECONDS = 10.0  # For one query, all of it
MOST_BYTES = 2**20  # Of an answer
Token = Callable[[Metric, str], Awaitable[str]]
"""Returns the bearer token of a metric in a namespace. May raise CrrdError and ValueError."""
_tls_context = lru_cache(maxsize=16)(tls_context)  # Making one takes milliseconds, for which the loop stands still


async def token_of_file(metric: Metric, _namespace: str) -> str:
    """Return the token in the file of the metric, for a command."""
    return read_text(Path(metric.token_file))


def token_of_secret(client: KubeClient) -> Token:
    """Return what reads the token from the Secret of the metric, for the manager."""

    async def read(metric: Metric, namespace: str) -> str:
        secret = await client.get(SECRETS, namespace, metric.token_secret)
        found = text(mapping(secret.get("data")).get(metric.token_key))
        if not found:
            raise ConfigurationError(f"the Secret {metric.token_secret} has no key {metric.token_key}")
        return base64.b64decode(found).decode("latin-1")

    return read


class Prometheus:
    """Asks any server for any metric. The constructor starts nothing."""

    def __init__(self, token: Token, allow: Sequence[str] | None, environ: Mapping[str, str]) -> None:
        """`allow` is as in `allowed`, None for all addresses, and `environ` as in `proxy_for`."""
        self._token, self._allow, self._environ = token, allow, environ

    async def ask(self, metric: Metric, pods: Collection[str], others: Collection[str], namespace: str) -> Verdict:
        """Judge a metric for the restarted pods, by their names; `others` are not restarted yet. Raises no error."""
        if self._allow is not None and (why := allowed(metric.address, self._allow)):
            return Verdict(Holds.UNKNOWN, why)
        groups = [pods, others] if metric.baseline and others else [pods]
        return judge(metric, *await asyncio.gather(*(self._answer(metric, each, namespace) for each in groups)))

    async def _answer(self, metric: Metric, pods: Collection[str], namespace: str) -> Answer:
        try:
            async with asyncio.timeout(SECONDS):
                return await self._post(metric, render(metric.query, pods, namespace), namespace)
        except TimeoutError:
            return Answer(problem=f"no answer within {SECONDS:.0f}s")
        except (CrrdError, aiohttp.ClientError, OSError, ValueError) as error:
            return Answer(problem=one_line(reason_of(error)))

    async def _post(self, metric: Metric, query: str, namespace: str) -> Answer:
        """Send a query. It is a form, because a URL has no room for the names of many pods."""
        address, token = read_address(metric.address), ""
        if metric.token_secret or metric.token_file:
            token = (await self._token(metric, namespace)).strip()
            if address.scheme != "https":
                raise ValueError("a bearer token needs an address with https")
            if not re.fullmatch(r"[!-~]+", token):
                raise ValueError("the bearer token must be one line of ASCII characters without spaces")
        proxy = proxy_for(str(address), self._environ)
        is_encrypted = any(each.startswith("https://") for each in (str(address), proxy))
        form = urlencode({"query": query, "timeout": f"{SECONDS:.0f}s"}).encode()
        call: dict[str, Any] = {
            "data": BytesIO(form),  # which is sent piece by piece
            "headers": {"Authorization": f"Bearer {token}"} if token else {},
            "ssl": _tls_context(metric.ca, where="ca") if is_encrypted else True,
            "proxy": proxy or None,
            "allow_redirects": False,
        }
        # Not compressed: a small answer could become a large one.
        headers = {"User-Agent": f"crrd/{__version__}", "Accept": "application/json", "Accept-Encoding": "identity"}
        headers["Content-Type"] = "application/x-www-form-urlencoded"
        options: dict[str, Any] = {"cookie_jar": aiohttp.DummyCookieJar(), "auto_decompress": False}
        async with (
            aiohttp.ClientSession(headers=headers, **options) as session,
            session.post(URL(f"{address}/api/v1/query", encoded=True), **call) as response,
        ):
            body = bytearray()
            async for chunk in response.content.iter_any():
                body += chunk
                if len(body) > MOST_BYTES:
                    raise ValueError(f"the answer has more than {MOST_BYTES >> 20} MiB: make the query more specific")
            return read_answer(response.status, _parsed(body))


def _parsed(body: bytes | bytearray) -> object:
    """Return the JSON of an answer, None if it is something else."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None
