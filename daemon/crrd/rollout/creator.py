"""Asks before what another user has written is done with the rights of this one.

A run with an image changes pods and their workload. What it does is on its requests, and those may be another user's.
"""

from crrd.core.rollout.run import Run
from crrd.kube.client import KubeClient
from crrd.kube.errors import ResourceMissingError
from crrd.kube.resources import Resource
from crrd.lib.errors import ApiRefusedError, ConfigurationError
from crrd.lib.jsonfields import text, value_at
from crrd.rollout.session import Session

_GROUP = "authentication.k8s.io"
_REVIEWS = Resource("selfsubjectreviews", _GROUP)


async def check_creator(session: Session, creator: str, name: str, run: Run) -> None:
    """Show what `run` does if another user has started the run `name`, and ask if it sets an image.

    Raises ConfigurationError if the user, or nobody, says no.
    """
    if (line := await line_about(session.client, creator, name, run)) == "":
        return
    if run.options.image is None or session.command.yes or session.command.dry_run:
        session.display.print_line(line)
    elif not await session.display.ask(f"{line}, with your rights"):
        raise ConfigurationError(f"{line}; to do this with your rights, add --yes")


async def line_about(client: KubeClient, creator: str, name: str, run: Run) -> str:
    """Return who has started the run `name`, and what `run` does; "" if it is the user of this process."""
    me = await current_user(client)
    if me is None or (me and me == creator):
        return ""
    return f"run {name} was started by {creator or 'an unknown user'}: {run.purpose}"


async def current_user(client: KubeClient) -> str | None:
    """Return the name of this process's user, "" if the API server does not tell it, None if it never does."""
    body = {"apiVersion": f"{_GROUP}/v1", "kind": "SelfSubjectReview"}
    try:
        return text(value_at(await client.create(_REVIEWS, "", body), "status.userInfo.username"))
    except ResourceMissingError:  # the local API server has no users
        return None
    except ApiRefusedError:
        return ""
