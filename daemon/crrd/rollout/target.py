"""Finds the pods of a run from the arguments on the command line."""

from dataclasses import dataclass

from crrd.core.api.pod import ContainerKind
from crrd.core.rollout.run import Options, Run, Target
from crrd.core.rollout.state import World
from crrd.core.rollout.workload import read_workload
from crrd.kube.client import KubeClient
from crrd.kube.discovery import Served, find_kind, kind_of
from crrd.kube.resources import Resource
from crrd.lib.errors import ConfigurationError, GoneError
from crrd.lib.jsonfields import value_at

_COUNTS = ("spec.replicas", "spec.parallelism", "status.desiredNumberScheduled")
"""Where the kinds of workloads have their number of pods, which may be 0."""


class TargetGoneError(ConfigurationError):
    """The workload does not exist, or is another one of that name by now."""


@dataclass(frozen=True, slots=True)
class Aim:
    """What to watch for a run."""

    target: Target
    resource: Resource | None = None  # The workload's resource. None if the target is not a workload
    selector: str = ""  # The workload's label selector as a query
    min_ready: int = 0  # The workload's minReadySeconds
    owns_pods: bool = True  # Whether it has a number of pods, unlike for example a Service

    @property
    def pods_query(self) -> str:
        """The label selector for watching the pods, or "" for one pod by its name."""
        return self.selector or self.target.selector

    @property
    def pods_fields(self) -> str:
        """The field selector for watching the pods."""
        return f"metadata.name={self.target.name}" if self.target.kind == "Pod" else ""


def split_targets(names: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Return type and name of each target, from `TYPE/NAME TYPE/NAME ...` or `TYPE NAME NAME ...`. [()] if none.

    Raises ConfigurationError for anything else.
    """
    apart = len(names) > 1 and not any("/" in word for word in names)
    pairs = [(names[0], name) for name in names[1:]] if apart else [tuple(word.split("/")) for word in names]
    for pair in pairs:
        if len(pair) != 2 or not all(pair):
            way_out = "use TYPE/NAME (for example deployment/web) or -l SELECTOR"
            raise ConfigurationError(f"{'/'.join(pair)!r} is not a workload or pod: {way_out}")
    return list(dict.fromkeys(pairs)) or [()]


async def find_target(client: KubeClient, namespace: str, names: tuple[str, ...], selector: str) -> Aim:
    """Find the target that the command line names or selects. Without either, it is all pods of the namespace.

    Raises ConfigurationError if the object does not exist or has no pods, ApiUnavailableError, ApiRefusedError.
    """
    if selector or not names:
        return Aim(Target(f"pods {selector}".strip() if selector else "all pods", selector=selector))
    word, name = names
    served = await find_kind(client, word)
    if not served.namespaced:
        cause = "because it is not namespaced: use a workload, pod/NAME or -l SELECTOR"
        raise ConfigurationError(f"{served.word}/{name} cannot be restarted, {cause}")
    if served.kind == "Pod":
        return Aim(Target(f"pod/{name}", "v1", "Pod", name))
    return await find_workload(client, namespace, served, name)


async def find_again(client: KubeClient, namespace: str, target: Target) -> Aim:
    """Find the target of an existing run again, by the workload's UID. Raises the errors of `find_target`."""
    if target.kind in ("", "Pod"):
        return Aim(target)
    aim = await find_workload(client, namespace, await kind_of(client, target.api_version, target.kind), target.name)
    if aim.target.uid != target.uid:
        raise TargetGoneError(f"{target.words} was deleted and created again after the run started: start a new run")
    return aim


async def find_workload(client: KubeClient, namespace: str, served: Served, name: str) -> Aim:
    """Find a workload of a served kind. Raises the errors of `find_target`."""
    shown = f"{served.word}/{name}"
    try:
        found = await client.get(served.resource, namespace, name)
    except GoneError as error:
        raise TargetGoneError(f'{served.word} "{name}" not found in namespace "{namespace}"') from error
    workload = read_workload({**found, "apiVersion": served.api_version, "kind": served.kind})
    if workload.selector is None:
        raise ConfigurationError(f"{shown} has no spec.selector: use the owner of its pods, or -l SELECTOR")
    target = Target(shown, served.api_version, served.kind, name, workload.uid)
    counts = (value_at(found, path) for path in _COUNTS)
    owns_pods = any(each is not None for each in counts)
    return Aim(target, served.resource, workload.selector.query, workload.min_ready, owns_pods)


def check_run(world: World, run: Run) -> None:
    """Raise ConfigurationError if the target has no pods, or a container cannot be recreated."""
    if not world.members:
        if run.target.kind == "Pod":
            raise ConfigurationError(f'pod "{run.target.name}" not found in namespace "{run.namespace}"')
        owned = f"no pod is owned by {run.target.words}" if run.target.uid else f"{run.target.words} not found"
        raise ConfigurationError(f"no pods found in namespace {run.namespace!r}: {owned}")
    there = sorted({name for member in world.members for name in member.pod.recreatable})
    options = run.options
    if not (options.containers or options.stale or options.whole_pod or options.reload):
        raise ConfigurationError(
            f"use -c NAME to select a container, or --whole-pod; {run.target.words} has {', '.join(there)}"
        )
    kinds = {name: each.kind for member in world.members for name, each in member.pod.containers.items()}
    for name in run.options.containers:
        if name in there and options.whole_pod:
            raise ConfigurationError(f"{name} is no init container: without --whole-pod, only {name} gets the image")
        if name not in there and name in kinds:
            if kinds[name] is ContainerKind.INIT and options.whole_pod:
                continue
            raise ConfigurationError(f"{name} is an {kinds[name]}: {_not_recreated(options, kinds[name])}")
        if name not in there:
            raise ConfigurationError(f"{run.target.words} has no container {name!r}; it has {', '.join(there)}")


def _not_recreated(options: Options, kind: ContainerKind) -> str:
    """Return why a container of this kind is not recreated, and what to do instead."""
    if kind is ContainerKind.INIT and options.image is not None and not options.image.follow:
        return "it runs only when its pod starts. With --whole-pod, it gets the image, and the pods restart in place"
    return "only app containers and native sidecars (restartPolicy: Always) can be recreated"
