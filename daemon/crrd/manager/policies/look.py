"""Observes a policy's target: its containers, and hashes of the configuration that they use."""

import asyncio
import hashlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from math import inf
from typing import Any

from crrd.core.config.objects import as_json, data_hash, missing, read_object, whole_data, whole_hash
from crrd.core.config.parts import Part
from crrd.core.config.references import Kind, ObjectName, Reference
from crrd.core.policy.failures import lasting
from crrd.core.policy.observed import Data, Observed, Peer, Stopped, TargetPod, UseKey, observe, read_pod, used_parts
from crrd.core.policy.order import Claims
from crrd.core.policy.reasons import PolicyReason
from crrd.core.policy.schedule import window_at
from crrd.core.policy.triggers import SECRETS_ROLE, grant, role_for
from crrd.core.policy.types import Policy
from crrd.core.rollout.requests import read_run_request
from crrd.core.rollout.run import LABEL_RUN, Target
from crrd.core.rollout.skips import kubelet_matters
from crrd.kube.client import KubeClient
from crrd.kube.discovery import kind_of
from crrd.kube.kubelet_version import KubeletVersions
from crrd.kube.resources import CONFIG_MAPS, CONFIGURATION, PODS, REQUESTS, SECRETS, Resource
from crrd.lib.backoff import Backoff
from crrd.lib.errors import ApiRefusedError, ConfigurationError, GoneError
from crrd.manager.policies.obstacles import Obstacle
from crrd.manager.policies.rights import Rights
from crrd.manager.policies.template_images import TemplateObserver
from crrd.manager.policies.watches import NamespaceWatches, Scope
from crrd.rollout.owners import Owners
from crrd.rollout.target import Aim, find_workload

_SCRYPT_COST = {"n": 2**12, "r": 8, "p": 1, "dklen": 16}
"""Cost of the hash of a Secret, because all readers of the policy can read it: 4 MiB and some ms for each guess."""
_GROUPS = ("", "apps", "batch", "apps.kruise.io", "policy")  # Of the kinds that the ClusterRoles include
KUBELET_SECONDS, KUBELETS, _NODES_AT_ONCE = 600.0, 20_000, 5
"""For how long the version of a kubelet is known to looks, of how many nodes, and how many are read at once. Before a
run starts a pod, it reads the node again."""
UNUSED_SECONDS = 300.0
"""How long an object counts as unused. Some objects change every few seconds, and a look reads all pods."""
CHANGES = Backoff(initial=0.5, factor=2.0, maximum=10.0, jitter=0.0)
"""Between two looks at a policy because of changes that follow each other. So an object that changes all the time costs
a look of each policy every ten seconds."""
QUIET_SECONDS = 30.0  # After this time without a change, the next one is looked at at once again


Uses = tuple[Reference, ...]


@dataclass(slots=True)
class Memory:
    """The known state of the objects that one policy uses, so that each version is read once."""

    seen: dict[UseKey, tuple[str, Uses, frozenset[str], Data, str]] = field(default_factory=dict)
    """Version, uses, the object's keys, the data, and what is missing."""
    unused: dict[tuple[Kind, str], float] = field(default_factory=dict)
    """Objects that changed and that no container used -> the loop's time of the observation that the change caused."""
    old_files: str | None = None  # As in Observed
    dropped: tuple[str, ...] = ()  # As in Observed
    absent: Resource | None = None  # The kind of the target, if it does not exist, and a watch reports when it does
    workload: Resource | None = None  # The kind of the target, if its template counts
    obstacle: Obstacle | None = None  # What the last look has found
    hindered: int = 0  # Looks in a row that have found it
    unsettled: Mapping[UseKey, datetime] = field(default_factory=dict)  # As in Observed
    failing_since: float | None = None  # The loop's time of the first look of a row that did not succeed
    fails: bool = False  # Whether that is so long ago that the status should say so
    begins: str = ""  # The run that is about to be carried out, "" for none
    claims: Claims | None = None  # What the last decision was about; None before the first one
    versions: Mapping[ObjectName, str] = field(default_factory=dict)  # Of the objects that it was about
    peer: Peer | None = None  # The policy as others have seen it at the last decision
    written: set[tuple[str, str]] = field(default_factory=set)  # As in Observed
    refused: dict[str, str] = field(default_factory=dict)  # As in Observed
    look_at: float = -inf  # The loop's time of the last look because of a change, or of the next one
    hurried: int = 0  # Such looks in a row

    def resources(self, policy: Policy) -> set[Resource]:
        """Return the kinds that must be watched in the policy's namespace."""
        workload = self.workload if policy.template_image else None
        found = {each for each in (self.absent, workload) if each is not None}
        if policy.config is not None:
            found |= {CONFIG_MAPS, SECRETS} if policy.config.secrets else {CONFIG_MAPS}
            kept = any(each.immutable or each.replaced for each in policy.status.config)
            if kept or any(data.immutable for *_, data, _ in self.seen.values()):
                found.add(PODS)
        return found

    def should_observe(self, policy: Policy, scope: Scope, name: str, now: float) -> bool:
        """Whether to observe the target because an object has changed, or ("") because a list is complete.

        The object is the target, or is used, or new pods may use it. If it turns out to be unused, this is False for
        the next UNUSED_SECONDS.
        """
        if scope.resource not in self.resources(policy):
            return False
        if not name or scope.resource in (self.absent, self.workload):
            return not name or (policy.target is not None and policy.target.name == name)
        kind = next(each for each, resource in CONFIGURATION.items() if resource == scope.resource)
        if any(part.object_name == (kind, name) for _, part in self.seen):
            return True
        self.unused = {each: at for each, at in self.unused.items() if now < at + UNUSED_SECONDS}
        if (kind, name) in self.unused:
            return False
        self.unused[kind, name] = now
        return True

    def when_to_look(self, now: float) -> float:
        """Return the loop's time of the look because of a change now. It has the newest data, also of later changes."""
        if now > self.look_at:
            self.hurried = self.hurried + 1 if now <= self.look_at + QUIET_SECONDS else 0
            self.look_at = max(now, self.look_at + (CHANGES.delay(self.hurried) if self.hurried else 0.0))
        return self.look_at


class TargetObserver:
    """Observes the targets of policies."""

    def __init__(self, client: KubeClient, watches: NamespaceWatches, account: str) -> None:
        """`account` is the manager's ServiceAccount as `namespace:name`, for the command that grants it a right."""
        self._client, self._watches, self._account = client, watches, account
        self._template = TemplateObserver(client, account)
        self._kubelets = KubeletVersions(client, fresh=KUBELET_SECONDS, most=KUBELETS)

    async def look(self, policy: Policy, memory: Memory, now: datetime) -> tuple[Aim | None, Observed | None]:
        """Return the target and its observed state, or None for the state while a list is incomplete.

        `now` is the API server's time.
        Raises ApiUnavailableError.
        """
        if policy.is_off:
            return None, Observed()
        namespace, role = policy.namespace, role_for(policy)
        found = Observed()
        try:
            if policy.patch and (missing := await Rights.PATCH.missing(self._client, namespace, self._account)):
                return None, Observed(stopped=Stopped(PolicyReason.UNPATCHABLE, missing))
            aim = await self._find(policy, memory)
        except ConfigurationError as error:
            found = Observed(stopped=Stopped(PolicyReason.TARGET, str(error)))
            return None, await self._without_target(policy, memory, found)
        except ApiRefusedError as error:
            return None, Observed(stopped=self._unreadable(error, namespace, role))
        try:
            query = aim.pods_query
            parse = partial(read_pod, now=now)
            pods = (await self._client.list_all(PODS, parse, namespace=namespace, label_selector=query)).items
            owners = Owners(self._client, namespace, aim)
            await owners.learn([pod.member.owner for pod in pods])
            owned = [pod for pod in pods if owners.lead_to_target(pod.member.owner)]
            kubelets = await self._kubelets_of(policy, owned)
            found = observe(policy, owned, kubelets)
            not_owned = 0 if aim.owns_pods else len(pods) - len(owned)  # a workload may be scaled to 0
            found = replace(found, workload_min_ready=aim.min_ready, not_owned=not_owned)
            listed = True
            if policy.template_image and aim.resource is not None:
                memory.workload = aim.resource
                listed = await self._watches.watch(namespace, aim.resource)
                members = [pod.member for pod in owned]
                if listed:
                    found = replace(found, template=await self._template.look(policy, aim, members, now, kubelets))
            if policy.config is None:
                return aim, found if listed else None
            found = replace(found, reloaded=await self._reloaded(policy, now))
            listed &= await self._watches.watch(namespace, CONFIG_MAPS)
            if policy.config.secrets:
                role = SECRETS_ROLE
                listed &= await self._watches.watch(namespace, SECRETS)
                role = role_for(policy)
            return aim, await self._with_data(policy, memory, found) if listed else None
        except ConfigurationError as error:
            return None, Observed(stopped=Stopped(PolicyReason.TARGET, str(error)))
        except ApiRefusedError as error:  # also if only the API server finds the selector invalid
            return aim, replace(found, stopped=self._unreadable(error, namespace, role))

    async def _kubelets_of(self, policy: Policy, pods: Iterable[TargetPod]) -> Mapping[str, str]:
        """Return by node the version of the kubelet, where it decides what can be restarted."""
        sidecars = policy.template_image or policy.patch
        matter = (each.member.pod for each in pods if kubelet_matters(each.member.pod, for_image=sidecars))
        nodes = sorted({pod.node_name for pod in matter} - {""})
        found: dict[str, str] = {}
        for first in range(0, len(nodes), _NODES_AT_ONCE):
            some = nodes[first : first + _NODES_AT_ONCE]
            found |= zip(some, await asyncio.gather(*map(self._kubelets.version, some)), strict=True)
        return found

    async def _reloaded(self, policy: Policy, now: datetime) -> Mapping[str, frozenset[str]]:
        """Return `Observed.reloaded`. A user may have continued a run that has failed."""
        last, (opens, _) = policy.status.run, window_at(policy.window, now)
        runs = [*policy.status.failed, *([last] if last is not None else [])]
        closed = opens is not None
        names = [each.name for each in runs if each.reload and (each.failed or (closed and not each.finished))]
        if not names:
            return {}
        selector, space = f"{LABEL_RUN} in ({','.join(names)})", policy.namespace
        found = await self._client.list_all(REQUESTS, read_run_request, namespace=space, label_selector=selector)
        known = sorted(filter(None, found.items), key=lambda each: each.age)
        ended = {(each.run.name, each.request.pod_name): each for each in known}
        done = [key for key, each in ended.items() if each.request.reloads and each.succeeded]
        return {name: frozenset(pod for run, pod in done if run == name) for name in names}

    async def _find(self, policy: Policy, memory: Memory) -> Aim:
        """Find the target. One that does not exist is watched for. Raises the errors of `find_target`."""
        if (ref := policy.target) is None:
            return Aim(Target(f"pods {policy.selector}", selector=policy.selector))
        absent: Resource | None = None
        try:
            kind = await kind_of(self._client, ref.api_version, ref.kind)
            try:
                return await find_workload(self._client, policy.namespace, kind, ref.name)
            except ConfigurationError:
                with suppress(ApiRefusedError):
                    await self._watches.watch(policy.namespace, kind.resource)
                    absent = kind.resource
                raise
        finally:  # not before, because the target may be created while it is looked for
            memory.absent = absent

    async def _without_target(self, policy: Policy, memory: Memory, found: Observed) -> Observed | None:
        """Return the state without a target, or None while a list is incomplete.

        Other policies wait until data with which a run has failed is corrected, so that is observed all the same.
        """
        if policy.config is None or not lasting(policy, ()):
            return found
        wanted = (CONFIG_MAPS, SECRETS) if policy.config.secrets else (CONFIG_MAPS,)
        with suppress(ApiRefusedError):
            listed = [await self._watches.watch(policy.namespace, each) for each in wanted]
            return await self._with_data(policy, memory, found) if all(listed) else None
        return found

    async def _with_data(self, policy: Policy, memory: Memory, found: Observed) -> Observed | None:
        """Return the state with the data that the containers use, or None while a list is incomplete.

        So it is with data with which a run has failed, and that no container uses any more.
        """
        used = {each.key: each.part.uses for each in lasting(policy, found.running)} | used_parts(found.running)
        memory.seen = {key: seen for key, seen in memory.seen.items() if key in used}
        for key, uses in used.items():
            _, part = key
            version = self._watches.version(policy.namespace, part.kind, part.name)
            known = memory.seen.get(key)
            if known is None or known[:2] != (version, uses):
                keys = known[2] if known is not None else frozenset[str]()
                memory.seen[key] = (version, uses, *await self._read(policy, part, uses, keys))
        data = {key: each for key, (*_, each, _) in memory.seen.items()}
        gaps = tuple(dict.fromkeys(gap for *_, gap in memory.seen.values() if gap))
        found = replace(found, data=data, missing=gaps)
        if PODS not in memory.resources(policy):
            return found
        if not await self._watches.watch(policy.namespace, PODS):
            return None
        names = {part.object_name for _, part in data} | {each.part.object_name for each in policy.status.config}
        return replace(found, uses={name: self._watches.uses(policy.namespace, name) for name in names})

    async def _read(
        self, policy: Policy, part: Part, uses: Uses, had: frozenset[str]
    ) -> tuple[frozenset[str], Data, str]:
        """Return the keys of an object, the used data as a hash, and what is missing. `had` are the keys before."""
        obj: Mapping[str, Any] = {}
        with suppress(GoneError):
            obj = await self._client.get(CONFIGURATION[part.kind], policy.namespace, part.name)
        found = read_object(obj) if obj else None
        gap = next(filter(None, (missing(use, found) for use in uses)), "")
        digest = "" if gap else data_hash(obj, uses)  # an optional object that does not exist has no data
        if part.kind is Kind.SECRET and digest:
            salt = f"{policy.uid}/{part.name}".encode()
            digest = hashlib.scrypt(digest.encode(), salt=salt, **_SCRYPT_COST).hex()
        if found is None:
            return frozenset(), Data(digest, None), gap
        times = [found.changed_at(use) for use in uses if had <= found.keys]  # no time is recorded for a removed key
        changed = max((at for at in times if at is not None), default=None)
        known = Data(digest, changed, found.uid, found.created, found.immutable, version=found.version)
        if part.kind is Kind.CONFIG_MAP:
            whole = whole_data(obj)
            known = replace(known, whole=whole_hash(whole), size=len(as_json(whole)))
        return found.keys, known, gap

    def _unreadable(self, error: ApiRefusedError, namespace: str, role: str) -> Stopped:
        """Return what a refusal means, with the command that grants the right."""
        why = f"the manager may not read this namespace; to allow it: {grant(namespace, role, self._account)}"
        if error.status != 403:
            why = str(error)
        elif error.resource.partition(".")[2] not in _GROUPS:
            what = f"a Role with get, list and watch of {error.resource} to the ServiceAccount {self._account}"
            why = f"the manager may not read {error.resource}, which {role} does not allow: bind {what} in {namespace}"
        return Stopped(PolicyReason.UNREADABLE, why)
