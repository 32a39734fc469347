"""Watches what a run with an image needs besides pods and requests: its pull pods, and the workload's template."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, TypeVar

from crrd.core.rollout.image.adoption import ADOPTED_BY
from crrd.core.rollout.image.pull import LABEL_PULL, PullMemory, PullPod, PullState, read_pull_pod
from crrd.core.rollout.image.state import ImageState
from crrd.core.rollout.image.template import NO_TEMPLATE, Revision, read_revision, read_template
from crrd.core.rollout.run import Run
from crrd.kube.client import KubeClient
from crrd.kube.informer import Informer, Values
from crrd.kube.reflector import Reflector, Selection
from crrd.kube.resources import CONTROLLER_REVISIONS, PODS, REPLICA_SETS, Where
from crrd.lib.looptime import loop_time
from crrd.rollout.kind import KindObjects
from crrd.rollout.target import Aim

Json = Mapping[str, Any]
T = TypeVar("T")


class ImageObjects(KindObjects):
    """The objects for one target."""

    def __init__(  # noqa: PLR0917 - all but the last are bound before
        self,
        client: KubeClient,
        namespace: str,
        aim: Aim,
        container: str,
        memory: object,
        changed: Callable[[], None],
    ) -> None:
        """`changed` is called after every change. `memory` is that of an earlier turn of the run."""
        self._client, self._namespace, self._aim, self._container = client, namespace, aim, container
        kind = {"apiVersion": aim.target.api_version, "kind": aim.target.kind}  # the items of a list do not have it
        self._pulls = Values(read_pull_pod, changed)
        self._templates = Values(lambda obj: read_template({**obj, **kind}, container), changed)
        self._revisions: tuple[Revision, ...] | None = None
        self.memory = self._pull_memory = memory if isinstance(memory, PullMemory) else PullMemory()
        self._refused: dict[str, PullPod] = {}  # By node
        self.released = False  # As `ImageState.released`
        self.sent: dict[str, str] = {}  # As `ImageState.sent`

    def informers(self) -> Iterator[Reflector[Any]]:
        """See KindObjects."""
        pulls = Selection(PODS, self._pulls.parse, self._namespace, LABEL_PULL)
        yield Informer(self._client, pulls, self._pulls, strict=True)
        if self._aim.resource is not None:
            fields = f"metadata.name={self._aim.target.name}"
            workload = Selection(self._aim.resource, self._templates.parse, self._namespace, "", fields)
            yield Informer(self._client, workload, self._templates, strict=True)

    def state(self) -> ImageState:
        """See KindObjects."""
        now = loop_time()
        pulls = tuple(self._pull_memory.seen(each, now) for each in self._pulls.values())
        made = {each.node for each in pulls}
        refused = (each for node, each in self._refused.items() if node not in made)
        template = next((each for each in self._templates.values() if each.uid == self._aim.target.uid), NO_TEMPLATE)
        known = (*pulls, *refused), template, self._revisions, self._container
        return ImageState(*known, released=self.released, sent=dict(self.sent))

    async def read_revisions(self) -> None:
        """Read the workload's ReplicaSets or ControllerRevisions. No watch reports them, because few runs need them."""
        if self._aim.target.kind not in ADOPTED_BY:
            return
        parse = partial(read_revision, container=self._container)
        self._revisions = await list_revisions(self._client, self._namespace, self._aim, parse)

    async def read_workload(self) -> None:
        """Read the workload, because the watch may lag. Raises ApiUnavailableError, ApiRefusedError."""
        if self._aim.resource is not None:
            name = self._aim.target.name
            self.workload_written(await self._client.get(self._aim.resource, self._namespace, name))

    def pull_written(self, obj: Json) -> None:
        """Record a pull pod that the API server has just returned."""
        self._pulls.put(self._pulls.parse(obj))

    def pull_refused(self, run: Run, node: str, message: str) -> None:
        """Record that the API server has rejected a pull pod."""
        self._refused[node] = PullPod("", "", run.name, node, PullState.REFUSED, message)

    def workload_written(self, obj: Json) -> None:
        """Record a workload that the API server has just returned."""
        self._templates.put(self._templates.parse(obj))


async def list_revisions(client: KubeClient, namespace: str, aim: Aim, parse: Callable[[Json], T]) -> tuple[T, ...]:
    """Return the ReplicaSets, or ControllerRevisions, that the selector of a workload selects."""
    resource = REPLICA_SETS if aim.target.kind == "Deployment" else CONTROLLER_REVISIONS
    where = Where(namespace=namespace, label_selector=aim.selector)
    return (await client.list_all(resource, parse, **where)).items
