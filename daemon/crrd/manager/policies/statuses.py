"""The known policies, and writes of their status."""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from functools import partial

from crrd.core.policy.conditions import Condition
from crrd.core.policy.reasons import PolicyReason
from crrd.core.policy.types import Policy, PolicyStatus
from crrd.core.policy.v1alpha1 import read_policy, write_status
from crrd.kube.client import KubeClient
from crrd.kube.informer import Informer, Objects
from crrd.kube.reflector import Selection
from crrd.kube.resources import POLICIES
from crrd.lib.jsonfields import lost_fields


class Policies:
    """All policies of the cluster, never older than own writes.

    `changed` is as in Objects, the other parameters as in `read_policy`.
    """

    def __init__(
        self,
        client: KubeClient,
        changed: Callable[[Policy | None, Policy | None], None],
        pull_resources: str = "",
        *,
        patch: bool = False,
    ) -> None:
        self._client, self._read = client, partial(read_policy, pull_resources=pull_resources, patch=patch)
        self.objects = Objects[Policy](changed, group=lambda policy: policy.key)
        self.informer = Informer(client, Selection(POLICIES, self._read), self.objects)

    def get(self, key: str) -> Policy | None:
        """Return the policy `namespace/name`, or None."""
        return next(reversed(tuple(self.objects.of(key))), None)

    def states(self, failing: Collection[str]) -> dict[str, int]:
        """Return the number of policies by the reason of their condition Ready. Looks at those in `failing` fail."""
        counts = Counter[str]()
        for policy in self.objects:
            ready = next((each for each in policy.conditions if each.get("type") == "Ready"), {})
            reason = PolicyReason.LOOK_FAILING if policy.key in failing else ready.get("reason") or "Unknown"
            counts[str(reason)] += 1
        return counts

    async def write(
        self, policy: Policy, status: PolicyStatus, conditions: Sequence[Condition], *, always: bool = False
    ) -> tuple[str, ...]:
        """Write the status if it has changed, or `always`. Return the fields that the API server has dropped.

        Raises ConflictError if the policy has changed meanwhile.
        """
        if status == policy.status and conditions == policy.conditions and not always:
            return ()
        ready = next((each for each in conditions if each.get("type") == "Ready"), {})  # others may be older
        generation = ready.get("observedGeneration", -1)
        whole = {**write_status(status), "conditions": conditions, "observedGeneration": generation}
        body = {"metadata": {"resourceVersion": policy.resource_version}, "status": whole}
        name = policy.namespace, policy.name
        answer = await self._client.merge_patch(POLICIES, *name, body, subresource="status")
        self.objects.put(self._read(answer))
        return tuple(dict.fromkeys(lost_fields(whole, answer.get("status"), "status")))
