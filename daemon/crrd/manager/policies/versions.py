"""Which version each ConfigMap and Secret of a namespace has: metadata-only watches, in namespaces that allow it."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from crrd.core.config.references import Kind
from crrd.kube.client import KubeClient
from crrd.kube.reflector import Handler, Reflector, Selection
from crrd.kube.resources import CONFIGURATION, metadata_of
from crrd.kube.watchset import WatchSet
from crrd.lib.errors import ApiRefusedError
from crrd.lib.jsonfields import mapping, text


@dataclass(frozen=True, slots=True)
class _Version:
    name: str
    version: str  # UID and resourceVersion: an object that was made anew has another one


def _read(obj: Mapping[str, Any]) -> _Version:
    meta = mapping(obj.get("metadata"))
    return _Version(text(meta.get("name")), f"{text(meta.get('uid'))}/{text(meta.get('resourceVersion'))}")


class ConfigVersions:
    """The versions of all ConfigMaps and Secrets in the namespaces that are watched. The constructor starts nothing.

    Args:
        on_change: called with the namespace, the kind and the name of a changed object; name "" for a whole list.
    """

    def __init__(self, client: KubeClient, on_change: Callable[[str, Kind, str], None]) -> None:
        self._client = client
        self._on_change = on_change
        self._known: dict[str, dict[str, str]] = {}  # Key of the watch -> name -> version
        self._watches: WatchSet[Reflector[_Version]] = WatchSet(self._reflector)

    def get(self, namespace: str, kind: Kind, name: str) -> str:
        """The version of an object, "" where there is none."""
        return self._known.get(f"{namespace}/{kind}", {}).get(name, "")

    async def watch(self, namespace: str, kind: Kind, group: asyncio.TaskGroup) -> bool:
        """Watch a namespace, if that was not begun already; returns whether all is listed and up to date.

        Raises ApiRefusedError (403) where the namespace does not allow it, ApiUnavailableError.
        """
        key = f"{namespace}/{kind}"
        reflector = self._watches.get(key)
        if reflector is None or reflector.last_error:
            try:
                async for _ in self._client.list_pages(metadata_of(CONFIGURATION[kind]), namespace=namespace, limit=1):
                    break
            except ApiRefusedError:
                self.forget(namespace, kind)
                raise
        if reflector is None:
            self._watches.begin([key], group)
            return False
        return reflector.listed and not reflector.last_error

    def forget(self, namespace: str, kind: Kind) -> None:
        """End the watch of a namespace."""
        key = f"{namespace}/{kind}"
        if self._watches.get(key) is not None:
            self._watches.cancel([key])
        self._known.pop(key, None)

    def check_alive(self) -> str:
        """For liveness: what of it has ended or hangs."""
        return self._watches.check()

    def _reflector(self, key: str) -> Reflector[_Version]:
        namespace, _, kind = key.partition("/")
        resource = metadata_of(CONFIGURATION[Kind(kind)])
        handler = Handler(partial(self._listed, key), partial(self._put, key), partial(self._drop, key))
        return Reflector(self._client, Selection(resource, _read, namespace), handler, strict=False)

    def _listed(self, key: str, listed: tuple[_Version, ...], _: str) -> None:
        self._known[key] = {each.name: each.version for each in listed}
        self._notify(key, "")

    def _put(self, key: str, found: _Version) -> None:
        if self._known.setdefault(key, {}).get(found.name) != found.version:
            self._known[key][found.name] = found.version
            self._notify(key, found.name)

    def _drop(self, key: str, found: _Version) -> None:
        self._known.get(key, {}).pop(found.name, None)
        self._notify(key, found.name)

    def _notify(self, key: str, name: str) -> None:
        namespace, _, kind = key.partition("/")
        self._on_change(namespace, Kind(kind), name)
