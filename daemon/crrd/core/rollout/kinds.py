"""The kinds of runs: which one a run is."""

from crrd.core.rollout.image.kind import NewImage
from crrd.core.rollout.kind import Kind
from crrd.core.rollout.restart import Restart
from crrd.core.rollout.run import Run
from crrd.core.rollout.state import World


def kind_of(world: World, run: Run) -> Kind:
    """Return the run in this world, as its kind."""
    change = run.options.image
    return Restart(world, run) if change is None else NewImage(world, run, change)
