"""The kinds of runs: which one a run is."""

from crrd.core.rollout.image.init import NewInitImage
from crrd.core.rollout.image.kind import NewImage
from crrd.core.rollout.kind import Kind
from crrd.core.rollout.patch.kind import PatchRestart
from crrd.core.rollout.reload import Reload
from crrd.core.rollout.restart import Restart
from crrd.core.rollout.run import Run
from crrd.core.rollout.state import World
from crrd.core.rollout.whole_pod import WholePod


def kind_of(world: World, run: Run) -> Kind:
    """Return the run in this world, as its kind."""
    if run.options.image is not None:
        return (NewInitImage if run.options.whole_pod else NewImage)(world, run)
    if run.options.reload:
        return Reload(world, run)
    if run.options.whole_pod:
        return WholePod(world, run)
    return PatchRestart(world, run) if run.options.patch else Restart(world, run)
