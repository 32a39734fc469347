"""Observes a policy's target: its containers, and hashes of the configuration that they use.

Metadata-only watches report the version of each ConfigMap and Secret, in namespaces that allow it.
"""

import asyncio
import hashlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple, NoReturn

from crrd.core.config.objects import data_hash, missing, read_object
from crrd.core.config.parts import Part
from crrd.core.config.references import Kind, Reference
from crrd.core.policy.observed import Data, Observed, UseKey, observe, read_pod, used_parts
from crrd.core.policy.types import Policy
from crrd.core.rollout.run import Target
from crrd.kube.client import KubeClient
from crrd.kube.discovery import kind_of
from crrd.kube.informer import Informer, Objects, Version, versioned
from crrd.kube.reflector import Selection
from crrd.kube.resources import CONFIGURATION, PODS, metadata_of
from crrd.kube.watchset import WatchSet
from crrd.lib.errors import ApiRefusedError, ConfigurationError, GoneError
from crrd.lib.jsonfields import mapping, text
from crrd.rollout.owners import Owners
from crrd.rollout.target import Aim, find_workload

_SCRYPT_COST = {"n": 2**12, "r": 8, "p": 1, "dklen": 16}
"""Cost of the hash of a Secret, because all readers of the policy can read it: 4 MiB and some ms for each guess."""
UNUSED_SECONDS = 300.0
"""How long an object counts as unused. Some objects change every few seconds, and a look reads all pods."""


Uses = tuple[Reference, ...]


@dataclass(slots=True)
class Memory:
    """The known state of the objects that one policy uses, so that each version is read once."""

    seen: dict[UseKey, tuple[str, Uses, frozenset[str], Data | None, str]] = field(default_factory=dict)
    """Version, uses, the object's keys, the data (None if it is missing), and what is missing."""
    unused: dict[tuple[Kind, str], float] = field(default_factory=dict)
    """Objects that changed and that no container used -> the loop's time of the observation that the change caused."""
    old_files: str | None = None  # As in Observed

    def should_observe(self, kind: Kind, name: str, now: float) -> bool:
        """Whether to observe the target because an object has changed: it is used, or new pods may use it.

        If the object turns out to be unused, this is False for the next UNUSED_SECONDS.
        """
        if any((part.kind, part.name) == (kind, name) for _, part in self.seen):
            return True
        self.unused = {each: at for each, at in self.unused.items() if now < at + UNUSED_SECONDS}
        if (kind, name) in self.unused:
            return False
        self.unused[kind, name] = now
        return True


class _Object(NamedTuple):
    name: str
    version: str  # UID and resourceVersion, so that an object that was created again has another one


class ConfigVersions:
    """The versions of all ConfigMaps and Secrets in the watched namespaces. The constructor starts nothing.

    `on_change` is called with the namespace, kind and name of a changed object; the name is "" after a list.
    """

    def __init__(self, client: KubeClient, on_change: Callable[[str, Kind, str], None]) -> None:
        self._client, self._on_change = client, on_change
        self._watches: WatchSet[Informer[Version[_Object]]] = WatchSet(self._informer)
        self._group: asyncio.TaskGroup | None = None

    async def run(self) -> NoReturn:
        """Run the watches, also those that begin meanwhile, until cancelled."""
        async with asyncio.TaskGroup() as self._group:
            await asyncio.Event().wait()
        raise AssertionError("nothing sets the event")

    def check(self) -> str:
        """For liveness: return which watch has ended or hangs, "" for none."""
        return self._watches.check()

    def get(self, namespace: str, kind: Kind, name: str) -> str:
        """Return the version of an object, or "" if there is none."""
        informer = self._watches.get(f"{namespace}/{kind}")
        return next((each.value.version for each in informer.objects.of(name)), "") if informer is not None else ""

    async def watch(self, namespace: str, kind: Kind) -> bool:
        """Watch a namespace, if it is not watched yet. Return whether the list is complete and up to date.

        Call it while `run` runs. Raises ApiRefusedError (403 if the manager has no right to read the namespace) and
        ApiUnavailableError.
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
        reflector = self._watches.get(key)  # another look may have begun or ended it meanwhile
        if reflector is None:
            assert self._group is not None  # noqa: S101 - `run` runs
            self._watches.begin([key], self._group)
            return False
        return reflector.listed and not reflector.last_error

    def forget(self, namespace: str, kind: Kind) -> None:
        """End the watch of a namespace."""
        key = f"{namespace}/{kind}"
        if self._watches.get(key) is not None:
            self._watches.cancel([key])

    def _informer(self, key: str) -> Informer[Version[_Object]]:
        namespace, _, kind = key.partition("/")
        notify = partial(self._on_change, namespace, Kind(kind))

        def changed(before: Version[_Object] | None, after: Version[_Object] | None) -> None:
            if informer.listed and (found := after or before) is not None:  # else the whole list is reported once
                notify(found.value.name)

        objects = Objects[Version[_Object]](changed, listed=partial(notify, ""), group=lambda found: found.value.name)
        selection = Selection(metadata_of(CONFIGURATION[Kind(kind)]), versioned(_read), namespace)
        informer = Informer(self._client, selection, objects)
        return informer


def _read(obj: Mapping[str, Any]) -> _Object:
    meta = mapping(obj.get("metadata"))
    return _Object(text(meta.get("name")), f"{text(meta.get('uid'))}/{text(meta.get('resourceVersion'))}")


class TargetObserver:
    """Observes the targets of policies."""

    def __init__(self, client: KubeClient, versions: ConfigVersions, account: str) -> None:
        """`account` is the manager's ServiceAccount as `namespace:name`, for the command that grants it a right."""
        self._client, self._versions, self._account = client, versions, account

    async def look(self, policy: Policy, memory: Memory, now: datetime) -> tuple[Aim | None, Observed | None]:
        """Return the target and its observed state, or None for the state while a list is incomplete.

        `now` is the API server's time.
        Raises ApiUnavailableError.
        """
        if policy.error or policy.suspended:
            return None, Observed()
        namespace, role = policy.namespace, "crrd-read-config"
        found = Observed()
        aim = Aim(Target(f"pods {policy.selector}", selector=policy.selector))
        try:
            if (ref := policy.target) is not None:
                kind = await kind_of(self._client, ref.api_version, ref.kind)
                aim = await find_workload(self._client, namespace, kind, ref.name)
        except ConfigurationError as error:
            return None, Observed(problem=str(error))
        except ApiRefusedError as error:
            return None, Observed(unreadable=self._grant(error, namespace, role))
        try:
            query = aim.pods_query
            parse = partial(read_pod, now=now)
            pods = (await self._client.list_all(PODS, parse, namespace=namespace, label_selector=query)).items
            owners = Owners(self._client, namespace, aim)
            await owners.learn([pod.owner for pod in pods])
            owned = [pod for pod in pods if owners.lead_to_target(pod.owner)]
            found = observe(policy, owned)
            found = replace(found, workload_min_ready=aim.min_ready, not_owned=len(pods) - len(owned))
            if policy.config is None:
                return aim, found
            listed = await self._versions.watch(namespace, Kind.CONFIG_MAP)
            if policy.config.secrets:
                role = "crrd-read-secrets"
                listed &= await self._versions.watch(namespace, Kind.SECRET)
                role = "crrd-read-config"
            return aim, await self._with_data(policy, memory, found) if listed else None
        except ConfigurationError as error:
            return None, Observed(problem=str(error))
        except ApiRefusedError as error:  # also if only the API server finds the selector invalid
            return aim, replace(found, unreadable=self._grant(error, namespace, role))

    async def _with_data(self, policy: Policy, memory: Memory, found: Observed) -> Observed:
        used = used_parts(found.running)
        memory.seen = {key: seen for key, seen in memory.seen.items() if key in used}
        for key, uses in used.items():
            _, part = key
            version = self._versions.get(policy.namespace, part.kind, part.name)
            known = memory.seen.get(key)
            if known is None or known[:2] != (version, uses):
                keys = known[2] if known is not None else frozenset[str]()
                memory.seen[key] = (version, uses, *await self._read(policy, part, uses, keys))
        data = {key: each for key, (*_, each, _) in memory.seen.items() if each is not None}
        gaps = tuple(dict.fromkeys(gap for *_, gap in memory.seen.values() if gap))
        return replace(found, data=data, missing=gaps)

    async def _read(
        self, policy: Policy, part: Part, uses: Uses, had: frozenset[str]
    ) -> tuple[frozenset[str], Data | None, str]:
        """Return the keys of an object, the used data as a hash, and what is missing. `had` are the keys before."""
        obj: Mapping[str, Any] = {}
        with suppress(GoneError):
            obj = await self._client.get(CONFIGURATION[part.kind], policy.namespace, part.name)
        found = read_object(obj) if obj else None
        gap = next(filter(None, (missing(use, found) for use in uses)), "")
        if found is None and gap:
            return frozenset(), None, gap
        digest = data_hash(obj, uses)  # an optional object that does not exist has no data
        if part.kind is Kind.SECRET:
            salt = f"{policy.uid}/{part.name}".encode()
            digest = hashlib.scrypt(digest.encode(), salt=salt, **_SCRYPT_COST).hex()
        if found is None:
            return frozenset(), Data(digest, None), gap
        times = [found.changed_at(use) for use in uses if had <= found.keys]  # no time is recorded for a removed key
        changed = max((at for at in times if at is not None), default=None)
        return found.keys, Data(digest, changed, found.uid, found.created, found.immutable), gap

    def _grant(self, error: ApiRefusedError, namespace: str, role: str) -> str:
        """Return the message of a refusal, with the command that grants the right."""
        if error.status != 403:
            return str(error)
        return f"the manager may not read this namespace; to allow it: {self.grant(namespace, role)}"

    def grant(self, namespace: str, role: str) -> str:
        """Return the command that gives the rights of a ClusterRole to the manager."""
        options = f"-n {namespace} --clusterrole={role} --serviceaccount={self._account}"
        return f"kubectl create rolebinding {role} {options}"
