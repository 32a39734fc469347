"""Finds out which pods a workload owns. A label selector may match pods of other workloads, too."""

from collections.abc import Iterable, Iterator

from crrd.core.rollout.workload import Owner, read_owner
from crrd.kube.client import KubeClient
from crrd.kube.discovery import kind_of
from crrd.lib.errors import ApiRefusedError, ConfigurationError, GoneError
from crrd.lib.jsonfields import text, value_at
from crrd.rollout.target import Aim

_GENERATIONS = 8  # Levels of owners that are followed, because owner references can form a loop


class Owners:
    """The controllers of pods and their controllers, each read once. They decide whether a pod is the target's."""

    def __init__(self, client: KubeClient, namespace: str, aim: Aim) -> None:
        """The constructor reads nothing."""
        self._client, self._namespace, self._aim = client, namespace, aim
        self._known: dict[str, Owner | None] = {}
        """By UID: the controller of each object that owns pods, or None if it has none, or could not be read."""
        self._unreadable: ApiRefusedError | ConfigurationError | None = None

    def lead_to_target(self, controller: Owner | None) -> bool:
        """Whether the target owns a pod with this controller, as far as is known. Always, if it is no workload."""
        uid = self._aim.target.uid
        return self._aim.resource is None or any(owner.uid == uid for owner in self._line(controller))

    async def learn(self, controllers: Iterable[Owner | None]) -> None:
        """Read the owners of pods with these controllers.

        An owner that cannot be read is most likely another workload, with labels that the target selects, too. So it is
        an error only if the target has no pods.

        Raises ConfigurationError, ApiRefusedError, ApiUnavailableError.
        """
        if self._aim.resource is None:
            return
        pods = tuple({each.uid: each for each in controllers if each is not None}.values())
        for controller in pods:
            for owner in self._line(controller):
                if owner.uid == self._aim.target.uid:
                    break
                if owner.uid not in self._known:
                    self._known[owner.uid] = await self._read(owner)
        if self._unreadable is not None and not any(map(self.lead_to_target, pods)):
            raise self._unreadable

    def _line(self, owner: Owner | None) -> Iterator[Owner]:
        """Yield a pod's controller, then the controller's controller, and so on, as far as they are known."""
        for _ in range(_GENERATIONS):
            if owner is None:
                return
            yield owner
            owner = self._known.get(owner.uid)

    async def _read(self, owner: Owner) -> Owner | None:
        """Return the controller of an object, or None if it has none, was deleted, or cannot be read."""
        try:
            served = await kind_of(self._client, owner.api_version, owner.kind)
            if served.namespaced:
                found = await self._client.get(served.resource, self._namespace, owner.name)
                return read_owner(found) if text(value_at(found, "metadata.uid")) == owner.uid else None
        except GoneError:
            return None
        except (ApiRefusedError, ConfigurationError) as error:
            if isinstance(error, ApiRefusedError) and error.status == 401:
                raise
            self._unreadable = error
        return None
