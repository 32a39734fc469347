"""The kinds of runs: what each needs to be carried out. Everything else in this package knows no kind."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial

from crrd.core.rollout.run import Options, Run
from crrd.kube.client import KubeClient
from crrd.kube.clock import ServerClock
from crrd.lib.errors import ApiRefusedError
from crrd.rollout.cluster import Cluster
from crrd.rollout.daemons import NodeDaemons
from crrd.rollout.display import RunDisplay
from crrd.rollout.image.leftovers import find_pull_pods
from crrd.rollout.image.objects import ImageObjects
from crrd.rollout.image.start import check_rights, complete_image
from crrd.rollout.image.writer import ImageWriter
from crrd.rollout.kind import KindObjects, KindWriter
from crrd.rollout.patch import PatchWriter
from crrd.rollout.refresher import FileObjects, FileRefresher
from crrd.rollout.session import Session
from crrd.rollout.target import Aim, find_again
from crrd.rollout.watched import Watched


def make_cluster(
    client: KubeClient,
    namespace: str,
    aim: Aim,
    options: Options,
    daemons: NodeDaemons | None = None,
    *,
    peers: list[Cluster] | None = None,
    memory: object = None,
) -> Cluster:
    """Return the cluster for a run with these options. `memory` is `KindObjects.memory` of an earlier turn of the run.

    The other parameters are those of Watched and Cluster.
    """
    objects: Callable[[Callable[[], None]], KindObjects] = FileObjects
    if options.image is not None:
        objects = partial(ImageObjects, client, namespace, aim, options.containers[0], memory)
    return Cluster(Watched(client, namespace, aim, options, daemons, make_objects=objects), peers)


async def cluster_of(session: Session, run: Run) -> Cluster:
    """Return the pods of an existing run, and the other objects that it needs."""
    aim = await find_again(session.client, session.namespace, run.target)
    return make_cluster(session.client, session.namespace, aim, run.options)


async def complete_run(session: Session, aim: Aim, cluster: Cluster, run: Run) -> Run:
    """Return a new run with all that its kind must know. Raises ConfigurationError if it must not begin."""
    return await complete_image(session, aim, cluster, run) if run.options.image is not None else run


async def check_resumed(session: Session, run: Run) -> None:
    """Raise ConfigurationError if the user lacks a right that the run needs."""
    if run.options.image is not None:
        await check_rights(session, run.target, run.options.image)


async def find_pulls(session: Session, name: str = "") -> Mapping[str, Sequence[datetime]]:
    """Return, by run, when its pull pods were created. With a name, of that run only. Empty if pods cannot be read."""
    found: dict[str, list[datetime]] = {}
    with suppress(ApiRefusedError):
        for each in await find_pull_pods(session.client, session.namespace, name):
            found.setdefault(each.run, []).append(each.created or session.clock.now())
    return found


def make_writer(client: KubeClient, cluster: Cluster, run: Run, display: RunDisplay, clock: ServerClock) -> KindWriter:
    """Return what carries out the steps of a run."""
    if isinstance(cluster.kind_objects, ImageObjects):
        return ImageWriter(client, cluster, cluster.kind_objects, run, display)
    assert isinstance(cluster.kind_objects, FileObjects)  # noqa: S101 - there is no other kind
    if run.options.patch:
        return PatchWriter(client, cluster, cluster.kind_objects, display, clock)
    return FileRefresher(client, cluster, cluster.kind_objects, display)
