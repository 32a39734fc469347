"""What a kind of run has to bring to be carried out, besides its decisions (`core.rollout.kind`)."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from crrd.core.rollout.plan import Plan
from crrd.core.rollout.requests import RunRequest
from crrd.core.rollout.rows import Row
from crrd.core.rollout.run import Run
from crrd.core.rollout.state import Extra
from crrd.kube.reflector import Reflector


class KindObjects(ABC):
    """What a run of this kind must know of the cluster in addition. The constructor starts nothing."""

    memory: object = None  # What the next turn of the same run needs

    def informers(self) -> Iterable[Reflector[Any]]:
        """Return its watches. The caller runs them."""
        return ()

    @abstractmethod
    def state(self) -> Extra:
        """Return what is known."""


class Maker(ABC):
    """Makes the requests of a run, one for each pod."""

    what: ClassVar[str]  # What it does for a pod, for messages: `cannot ..., retrying`

    @abstractmethod
    async def make(self, run: Run, row: Row, body: Mapping[str, Any], now: str, ending: Iterable[RunRequest]) -> bool:
        """Make the request (JSON) for a pod, and record it in the cluster. Return whether this call has made it.

        `now` is the API server's time (RFC 3339). `ending` are the open requests of other runs that it replaces. Raises
        ConflictError and ApiUnavailableError if it may be tried again, ApiRefusedError, and ConfigurationError if the
        run cannot go on.
        """

    @abstractmethod
    async def refusal(self, run: Run, row: Row, body: Mapping[str, Any], now: str) -> str:
        """Return why the API server would reject the request, "" if it would not. Raises ApiRefusedError, too."""


class KindWriter(ABC):
    """Carries out the steps of one run, besides the requests. The constructor starts nothing."""

    maker: Maker  # Makes the requests

    async def begin(self, run: Run) -> None:  # noqa: B027 - most kinds need nothing
        """Prepare a run that is started or resumed."""

    @abstractmethod
    async def carry_out(self, run: Run, plan: Plan) -> None:
        """Carry out what is due. Raises ConfigurationError if waiting cannot help."""

    async def end(self) -> None:  # noqa: B027
        """Begin nothing more. Return when it is known what each write that was sent has done to containers."""

    @abstractmethod
    async def cancel(self) -> None:
        """Stop at once."""

    @property
    def problem(self) -> str:
        """Why a write has failed, until it is tried again; "" for none."""
        return ""

    @property
    def unfinished(self) -> str:
        """What to say if `clean_up` was interrupted."""
        return ""

    async def clean_up(self, seconds: float) -> str:
        """Delete what the run leaves behind, and try for so long. Return what is left then, "" for nothing."""
        return ""

    async def look_back(self, run: Run, plan: Plan, seconds: float) -> str:
        """Read what a write that was interrupted may have changed. Return what is not known, "" for nothing."""
        return ""
