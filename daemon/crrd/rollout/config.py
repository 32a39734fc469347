"""Reads the ConfigMaps and Secrets that pods of a run use, one by one. Their data is not kept."""

import asyncio
import time
from collections.abc import Iterable

from crrd.core.config.objects import ConfigObject, read_object
from crrd.core.config.references import Kind, ObjectName
from crrd.core.rollout.state import Member
from crrd.kube.client import KubeClient
from crrd.kube.resources import CONFIGURATION
from crrd.lib.errors import ApiRefusedError, GoneError

_AGE_SECONDS = 10.0  # Time for which a result is reused while no pod is about to be recreated


class ConfigObjects:
    """The known objects of one namespace.

    With `strict`, a missing right is an error. Otherwise the object stays unknown.
    """

    def __init__(self, client: KubeClient, namespace: str, *, strict: bool) -> None:
        self._client, self._namespace, self._strict = client, namespace, strict
        self.known: dict[ObjectName, ConfigObject | None] = {}  # None for an object that does not exist
        self._asked: dict[ObjectName, float] = {}

    async def learn(self, members: Iterable[Member], max_age: float = _AGE_SECONDS) -> None:
        """Read the objects that the pods use, unless they were read in the last `max_age` seconds.

        Raises ApiUnavailableError, and with `strict` ApiRefusedError.
        """
        now = time.monotonic()
        used = {use.object for member in members for uses in member.config.values() for use in uses}
        late = [each for each in used if now - self._asked.get(each, float("-inf")) >= max_age]
        await asyncio.gather(*(self._ask(kind, name) for kind, name in sorted(late)))

    async def _ask(self, kind: Kind, name: str) -> None:
        try:
            self.known[kind, name] = read_object(await self._client.get(CONFIGURATION[kind], self._namespace, name))
        except GoneError:
            self.known[kind, name] = None
        except ApiRefusedError as error:
            if self._strict or error.status != 403:
                raise
            self.known.pop((kind, name), None)
        self._asked[kind, name] = time.monotonic()
