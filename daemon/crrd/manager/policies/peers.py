"""What policies of one namespace need to know of each other, so that their runs for one change follow each other."""

from collections.abc import Callable, Iterable, Mapping

from crrd.core.policy.observed import Observed, Peer
from crrd.core.policy.order import Claims, peer_of
from crrd.core.policy.types import Policy
from crrd.manager.policies.look import Memory
from crrd.manager.policies.runs import PolicyRuns
from crrd.manager.policies.watches import NamespaceWatches


class Peers:
    """Knows what each policy has decided last. `wake` is called with the key of a policy that may go on."""

    def __init__(
        self,
        memories: Mapping[str, Memory],
        runs: PolicyRuns,
        watches: NamespaceWatches,
        wake: Callable[[str], None],
    ) -> None:
        self._memories, self._runs, self._watches, self._wake = memories, runs, watches, wake

    def of(self, policies: Iterable[Policy]) -> tuple[Peer, ...]:
        """Return these policies as others see them now."""
        return tuple(map(self._peer, policies))

    def claim(self, policy: Policy, found: Observed, claims: Claims, others: Iterable[Policy]) -> None:
        """Note what was decided. Call it right after the decision, so that two runs do not begin at the same moment."""
        memory = self._memories[policy.key]
        memory.versions = {part.object_name: memory.seen[container, part][0] for container, part in found.data}
        memory.claims, before = claims, memory.peer
        memory.peer = self._peer(policy)
        if memory.peer != before:
            for each in others:
                waiting = self._memories[each.key].claims if each.key in self._memories else None
                if waiting is not None and waiting.waits:
                    self._wake(each.key)

    def _peer(self, policy: Policy) -> Peer:
        memory, active = self._memories.get(policy.key, Memory()), self._runs.active(policy.key)
        now = {each: self._watches.version(policy.namespace, *each) for each in memory.versions}
        seen = {each: version == now[each] for each, version in memory.versions.items()}
        past_first_step = active is not None and active.past_first_step
        return peer_of(policy, memory.claims, seen, past_first_step=past_first_step)
