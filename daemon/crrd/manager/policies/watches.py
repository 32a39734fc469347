"""Watches in the namespaces of policies: versions of ConfigMaps and Secrets, pods that use them, and targets.

Each begins when a look needs it, if the namespace allows it, and ends with the last policy that needs it.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple, NoReturn

from crrd.core.config.kept import NodeUse, ObjectUses, UserPod, read_user
from crrd.core.config.references import Kind, ObjectName
from crrd.kube.client import KubeClient
from crrd.kube.informer import Informer, Objects, Version, versioned
from crrd.kube.reflector import Selection
from crrd.kube.resources import CONFIGURATION, PODS, Resource, metadata_of
from crrd.kube.watchset import WatchSet
from crrd.lib.errors import ApiRefusedError
from crrd.lib.jsonfields import mapping, text


class Scope(NamedTuple):
    """What one watch covers."""

    namespace: str
    resource: Resource


class _Object(NamedTuple):
    name: str
    version: str
    """UID and resourceVersion, so that an object that was created again has another one. Of a workload: the generation,
    because only its spec matters. A ConfigMap may have one, too, that its writer has set, and that never changes."""


class _Users(Objects[Version[UserPod]]):
    """The pods of a namespace as users of objects."""

    def __init__(self, freed: Callable[[ObjectName], None], listed: Callable[[], None]) -> None:
        super().__init__(self._note, listed=listed)
        self.uses = ObjectUses(freed)

    def replace(self, listed: Iterable[Version[UserPod]], version: str) -> None:
        """See Objects."""
        with self.uses.listing():
            super().replace(listed, version)

    def _note(self, before: Version[UserPod] | None, after: Version[UserPod] | None) -> None:
        if (pod := after or before) is not None:
            values = (None if each is None else each.value for each in (before, after))
            self.uses.change(pod.uid, *values)


class NamespaceWatches:
    """The running watches. The constructor starts nothing.

    `on_change` is called with the namespace, resource and name of a changed object; the name is "" after a list.
    `on_freed` is called with the namespace of an object that no pod on some node uses any more.
    """

    def __init__(
        self, client: KubeClient, on_change: Callable[[Scope, str], None], on_freed: Callable[[str, ObjectName], None]
    ) -> None:
        self._client, self._on_change, self._on_freed = client, on_change, on_freed
        self._scopes: dict[str, Scope] = {}
        self._watches: WatchSet[Informer[Any]] = WatchSet(self._informer)
        self._group: asyncio.TaskGroup | None = None

    async def run(self) -> NoReturn:
        """Run the watches, also those that begin meanwhile, until cancelled."""
        async with asyncio.TaskGroup() as self._group:
            await asyncio.Event().wait()
        raise AssertionError("nothing sets the event")

    def check(self) -> str:
        """For liveness: return which watch has ended or hangs, "" for none."""
        return self._watches.check()

    def version(self, namespace: str, kind: Kind, name: str) -> str:
        """Return the version of an object, or "" if there is none."""
        informer = self._watches.get(_key(Scope(namespace, CONFIGURATION[kind])))
        return next((each.value.version for each in informer.objects.of(name)), "") if informer is not None else ""

    def uses(self, namespace: str, name: ObjectName) -> Mapping[str, NodeUse]:
        """Return the uses of an object by pods, by node."""
        informer = self._watches.get(_key(Scope(namespace, PODS)))
        return informer.objects.uses.of(name) if informer is not None and isinstance(informer.objects, _Users) else {}

    async def watch(self, namespace: str, resource: Resource) -> bool:
        """Watch a namespace, if it is not watched yet. Return whether the list is complete and up to date.

        Call it while `run` runs. Raises ApiRefusedError (403 if the manager has no right to read the namespace) and
        ApiUnavailableError.
        """
        scope = Scope(namespace, resource)
        key = _key(scope)
        reflector = self._watches.get(key)
        if reflector is None or reflector.last_error:
            try:
                await self._client.first(metadata_of(resource), namespace=namespace)
            except ApiRefusedError:
                self.forget(namespace, resource)
                raise
        reflector = self._watches.get(key)  # another look may have begun or ended it meanwhile
        if reflector is None:
            assert self._group is not None  # noqa: S101 - `run` runs
            self._scopes[key] = scope
            self._watches.begin([key], self._group)
            return False
        return reflector.listed and not reflector.last_error

    def problem(self, namespace: str) -> str:
        """Return why a list of a namespace is incomplete, as far as that is known."""
        watches = (self._watches.get(_key(each)) for each in self._scopes.values() if each.namespace == namespace)
        return next(
            (each.last_error for each in watches if each is not None and each.last_error), "no list is complete"
        )

    def forget(self, namespace: str, resource: Resource) -> None:
        """End the watch of a namespace."""
        key = _key(Scope(namespace, resource))
        if self._scopes.pop(key, None) is not None:
            self._watches.cancel([key])

    def keep_only(self, namespace: str, resources: Collection[Resource]) -> None:
        """End the watches of a namespace of other resources than these."""
        for scope in [each for each in self._scopes.values() if each.namespace == namespace]:
            if scope.resource not in resources:
                self.forget(*scope)

    def _informer(self, key: str) -> Informer[Any]:
        scope = self._scopes[key]
        notify = partial(self._on_change, scope)
        if scope.resource == PODS:
            users = _Users(partial(self._on_freed, scope.namespace), partial(notify, ""))
            return Informer(self._client, Selection(PODS, versioned(read_user), scope.namespace), users)

        def changed(before: Version[_Object] | None, after: Version[_Object] | None) -> None:
            if before is not None and after is not None and before.value == after.value:
                return
            if informer.listed and (found := after or before) is not None:  # else the whole list is reported once
                notify(found.value.name)

        objects = Objects[Version[_Object]](changed, listed=partial(notify, ""), group=lambda found: found.value.name)
        read = partial(_read, field="resourceVersion" if scope.resource in CONFIGURATION.values() else "generation")
        selection = Selection(metadata_of(scope.resource), versioned(read), scope.namespace)
        informer = Informer(self._client, selection, objects)
        return informer


def _key(scope: Scope) -> str:
    return f"{scope.namespace}/{scope.resource.full_name}"


def _read(obj: Mapping[str, Any], field: str) -> _Object:
    meta = mapping(obj.get("metadata"))
    version = meta.get(field) or meta.get("resourceVersion")
    return _Object(text(meta.get("name")), f"{text(meta.get('uid'))}/{version}")
