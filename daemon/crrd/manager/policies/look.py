"""What there is to see of a policy's target: its containers, and hashes of the configuration that they use."""

import asyncio
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from crrd.core.api.pod import parse_pod
from crrd.core.api.time import parse_time
from crrd.core.config.objects import data_hash, missing, read_object
from crrd.core.config.references import Kind, Reference, references
from crrd.core.policy.config import Data, Running, UseKey, merged_uses
from crrd.core.policy.decide import Observed
from crrd.core.policy.types import Policy
from crrd.core.rollout.run import Target
from crrd.kube.client import KubeClient
from crrd.kube.discovery import kind_of
from crrd.kube.resources import CONFIGURATION, PODS
from crrd.lib.errors import ApiRefusedError, ConfigurationError, GoneError
from crrd.manager.policies.versions import ConfigVersions
from crrd.rollout.target import Aim, find_workload

_STRETCH = {"n": 2**12, "r": 8, "p": 1, "dklen": 16}
"""Of the hash of a Secret, which everybody may read who may read the policy: 4 MiB and some ms for each guess."""


UNUSED_SECONDS = 300.0
"""How long an object counts as unused. Some objects change every few seconds, and a look reads all pods."""


@dataclass(slots=True)
class Memory:
    """What is known of the objects that one policy uses, so that each version is read once."""

    seen: dict[UseKey, tuple[str, Reference, Data | None, str]] = field(default_factory=dict)
    """Version, what of the object is used, the data (None for no object), and what is missing of it."""
    unused: dict[tuple[Kind, str], float] = field(default_factory=dict)
    """Objects that changed and that no container used -> the loop's time of the look that their change caused."""

    def wants_look(self, kind: Kind, name: str, now: float) -> bool:
        """Whether to look because an object has changed: it is used, or new pods may use it.

        A look for an object that turns out to be unused is not repeated before UNUSED_SECONDS have passed.
        """
        if any(key[1:] == (kind, name) for key in self.seen):
            return True
        self.unused = {each: at for each, at in self.unused.items() if now < at + UNUSED_SECONDS}
        if (kind, name) in self.unused:
            return False
        self.unused[kind, name] = now
        return True


class Looker:
    """Looks at the targets of policies."""

    def __init__(self, client: KubeClient, versions: ConfigVersions, account: str) -> None:
        """`account`: the manager's ServiceAccount as `namespace:name`, for the command that grants it a right."""
        self._client, self._versions, self._account = client, versions, account

    async def aim(self, policy: Policy) -> Aim:
        """The pods that a policy is about. Raises ConfigurationError, ApiUnavailableError, ApiRefusedError."""
        ref = policy.target
        if ref is None:
            return Aim(Target(f"pods {policy.selector}", selector=policy.selector))
        return await find_workload(
            self._client, policy.namespace, await kind_of(self._client, ref.api_version, ref.kind), ref.name
        )

    async def look(
        self, policy: Policy, memory: Memory, group: asyncio.TaskGroup
    ) -> tuple[Aim | None, Observed | None]:
        """The target and its observed state; None while a list is not complete yet.

        Raises ApiUnavailableError.
        """
        if policy.error or policy.suspended:
            return None, Observed()
        try:
            aim = await self.aim(policy)
        except ConfigurationError as error:
            return None, Observed(problem=str(error))
        except ApiRefusedError as error:
            return None, Observed(unreadable=self._grant(error, policy.namespace, "crrd-read-config"))
        try:
            listing = await self._client.list_all(
                PODS, _running, namespace=policy.namespace, label_selector=aim.pods_query
            )
        except ApiRefusedError as error:  # also for a selector that only the API server knows to be wrong
            return None, Observed(unreadable=self._grant(error, policy.namespace, "crrd-read-config"))
        wanted = {*policy.containers}
        running = tuple(each for pod in listing.items for each in pod if not wanted or each.name in wanted)
        if policy.config is None:
            return aim, Observed(running)
        running = tuple(replace(each, uses=tuple(filter(policy.config.includes, each.uses))) for each in running)
        kinds = [Kind.CONFIG_MAP, *([Kind.SECRET] if policy.config.secrets else [])]
        listed = True
        for kind in kinds:
            try:
                listed &= await self._versions.watch(policy.namespace, kind, group)
            except ApiRefusedError as error:
                role = "crrd-read-config" if kind is Kind.CONFIG_MAP else "crrd-read-secrets"
                return aim, Observed(running, unreadable=self._grant(error, policy.namespace, role))
        if not listed:
            return aim, None
        try:
            return aim, await self._with_data(policy, memory, running)
        except ApiRefusedError as error:
            return aim, Observed(running, unreadable=self._grant(error, policy.namespace, "crrd-read-config"))

    async def _with_data(self, policy: Policy, memory: Memory, running: tuple[Running, ...]) -> Observed:
        uses = merged_uses(running)
        for key in [*memory.seen]:
            if key not in uses:
                del memory.seen[key]
        for key, reference in uses.items():
            version = self._versions.get(policy.namespace, *reference.object)
            known = memory.seen.get(key)
            if known is None or known[:2] != (version, reference):
                memory.seen[key] = (version, reference, *await self._read(policy, reference))
        data = {key: found for key, (_, _, found, _) in memory.seen.items() if found is not None}
        gaps = tuple(dict.fromkeys(gap for *_, gap in memory.seen.values() if gap))
        return Observed(running, data, gaps)

    async def _read(self, policy: Policy, reference: Reference) -> tuple[Data | None, str]:
        """The data that is used of an object as a hash, and what is missing of it."""
        try:
            obj = await self._client.get(CONFIGURATION[reference.kind], policy.namespace, reference.name)
        except GoneError:
            return None, missing(reference, None)
        found = read_object(obj)
        digest = data_hash(obj, reference)
        if reference.kind is Kind.SECRET:
            salt = f"{policy.uid}/{reference.name}".encode()
            digest = hashlib.scrypt(digest.encode(), salt=salt, **_STRETCH).hex()
        return Data(digest, found.changed_at(reference)), missing(reference, found)

    def _grant(self, error: ApiRefusedError, namespace: str, role: str) -> str:
        """A refusal, with the command that grants what is needed."""
        if error.status != 403:
            return str(error)
        return (
            f"the manager may not read this namespace; to allow it: kubectl create rolebinding {role} -n {namespace} "
            f"--clusterrole={role} --serviceaccount={self._account}"
        )


def _running(pod: Mapping[str, Any]) -> Iterable[Running]:
    """The containers of a pod that run and can be recreated."""
    found = parse_pod(pod)
    if found.deleting or found.ended:
        return ()
    uses = references(pod)
    started = {name: parse_time(each.started_at) for name, each in found.containers.items() if each.kind.recreatable}
    return tuple(Running(found.name, name, at, uses.get(name, ())) for name, at in started.items() if at is not None)
