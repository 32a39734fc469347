"""Observes which images of its template the pods of a policy's workload lack, and whether a run may give them to pods.

What would make the run fail is found out here, so that it does not begin: the run's writes are tried as dry runs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from crrd.core.policy.course import make_run
from crrd.core.policy.failures import stops
from crrd.core.policy.observed import Look, Observed
from crrd.core.policy.records import last_try, make_image_record
from crrd.core.policy.types import Policy
from crrd.core.rollout.image.facts import ImageRun
from crrd.core.rollout.image.following import TemplateChange, TemplateImages
from crrd.core.rollout.image.names import is_mutable
from crrd.core.rollout.image.steps import never_adopted
from crrd.core.rollout.kinds import kind_of
from crrd.core.rollout.phases import Stage
from crrd.core.rollout.standing import make_rows
from crrd.core.rollout.state import Member, World
from crrd.kube.client import KubeClient
from crrd.lib.errors import ConfigurationError
from crrd.manager.policies.rights import Rights
from crrd.rollout.image.follow import Held, read_held
from crrd.rollout.image.trial import try_adoption, try_pods
from crrd.rollout.target import Aim


class TemplateObserver:
    """Observes the templates of workloads for policies with the trigger templateImage."""

    def __init__(self, client: KubeClient, account: str) -> None:
        """`account` as in `TargetObserver`."""
        self._client, self._account = client, account

    async def look(
        self, policy: Policy, aim: Aim, members: Sequence[Member], now: datetime, kubelets: Mapping[str, str]
    ) -> TemplateImages:
        """Return which images the pods lack, or why they cannot get them.

        `members` are the target's pods, and `kubelets` versions by node. Raises ApiUnavailableError, ApiRefusedError,
        ConfigurationError.
        """
        if missing := await Rights.UPDATE.missing(self._client, policy.namespace, self._account):
            return TemplateImages(problem=missing, lacks_right=True)
        held = await read_held(self._client, policy.namespace, aim, members)
        runs = [each for each in (policy.status.run, *policy.status.tried) if each is not None and each.image]
        given, failed = (
            {(name, each.image) for each in some for name in each.containers}
            for some in (runs, [each for each in runs if each.failed and not each.undoes])
        )
        found = held.images(given, failed)
        chosen = Look(policy, Observed(template=found), now).changes
        whys = [await self._tried(policy, held, each, now, kubelets) for each in chosen]
        fit = tuple(each for each, why in zip(chosen, whys, strict=True) if not why)
        return replace(found, changes=fit, refused=tuple(filter(None, whys)))

    async def _tried(
        self, policy: Policy, held: Held, change: TemplateChange, now: datetime, kubelets: Mapping[str, str]
    ) -> str:
        """Return why a run must not begin, after its writes were tried as dry runs; "" if it may."""
        if is_mutable(change.image):
            why = f"the template of {held.aim.target.words} has {change.image} for {change.container}"
            return f"{why}, which has no fixed tag, so two nodes may pull two images: use a tag or a digest"
        look, last = Look(policy, Observed(), now), policy.status.run
        run, tried = make_image_record(look, change), last_try(look, change)
        waits = last is not None and not last.finished and change.container not in last.containers
        begun = last is not None and not last.finished and last.gives == run.gives
        if waits or begun or (tried is not None and stops(policy, tried)):
            return ""
        trial = make_run(policy, run, held.aim.target)
        world = World(held.members, kubelets=kubelets, extra=held.state(change.container))
        rows, facts = make_rows(kind_of(world, trial), now), ImageRun.of(world, trial)
        if why := never_adopted(facts, rows):
            return f"{why}: fix this first"
        left = [each for each in rows if each.stage is Stage.WAITING and each.member is not None]
        try:
            ready_first = sorted(left, key=lambda row: not (row.member and row.member.ready))
            await try_adoption(self._client, await try_pods(self._client, facts, ready_first))
        except ConfigurationError as error:
            return str(error)
        return ""
