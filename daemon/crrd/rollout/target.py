"""From the words on the command line to the pods that a run is about."""

from dataclasses import dataclass

from crrd.core.rollout.run import Target
from crrd.core.rollout.state import Workload, read_workload
from crrd.kube.client import KubeClient
from crrd.kube.discovery import Served, find_kind, kind_of
from crrd.kube.resources import Resource
from crrd.lib.errors import ConfigurationError, GoneError


@dataclass(frozen=True, slots=True)
class Aim:
    """What is watched for a run."""

    target: Target
    resource: Resource | None = None
    """The workload's, None for pods themselves."""
    workload: Workload | None = None

    @property
    def pods_query(self) -> str:
        """The label selector that the pods are watched with; "" for one pod by its name."""
        selector = self.workload.selector if self.workload is not None else None
        return selector.query if selector is not None else self.target.selector


def split_words(words: list[str]) -> tuple[str, str]:
    """The type and the name in `TYPE/NAME` or `TYPE NAME`.

    Raises:
        ConfigurationError: they are something else.
    """
    parts = words[0].split("/") if len(words) == 1 else words
    if len(parts) != 2 or not all(parts):
        raise ConfigurationError(
            f"{' '.join(words)!r} does not name what to recreate: give TYPE/NAME (deployment/web), or -l SELECTOR"
        )
    return parts[0], parts[1]


async def find_target(client: KubeClient, namespace: str, words: list[str], selector: str) -> Aim:
    """What a command line names.

    Raises:
        ConfigurationError: there is nothing of that name, or it is nothing that has pods.
        ApiUnavailableError, ApiRefusedError: see there.
    """
    if selector:
        return Aim(Target(f"pods {selector}", selector=selector))
    word, name = split_words(words)
    served = await find_kind(client, word)
    if not served.namespaced:
        raise ConfigurationError(f"{served.word}/{name} has no pods: it is not of any namespace")
    if served.kind == "Pod":
        return Aim(Target(f"pod/{name}", "v1", "Pod", name))
    return await _workload(client, namespace, served, name)


async def find_again(client: KubeClient, namespace: str, target: Target) -> Aim:
    """The target of a run that has begun; a workload that was replaced by another one of its name is not it.

    Raises as `find_target` does.
    """
    if target.kind in ("", "Pod"):
        return Aim(target)
    aim = await _workload(client, namespace, await kind_of(client, target.api_version, target.kind), target.name)
    if aim.target.uid != target.uid:
        raise ConfigurationError(f"{target.words} was deleted since the run began; the one of today is another")
    return aim


async def _workload(client: KubeClient, namespace: str, served: Served, name: str) -> Aim:
    words = f"{served.word}/{name}"
    try:
        found = await client.get(served.resource, namespace, name)
    except GoneError as error:
        raise ConfigurationError(f"there is no {words} in namespace {namespace!r}") from error
    workload = read_workload({**found, "apiVersion": served.api_version, "kind": served.kind})
    if workload.selector is None:
        raise ConfigurationError(f"{words} has no spec.selector: name what its pods are owned by, or give -l SELECTOR")
    target = Target(words, served.api_version, served.kind, name, workload.uid)
    return Aim(target, served.resource, workload)
