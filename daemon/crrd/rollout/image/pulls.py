"""Creates pull pods, and names the LimitRange that refuses one."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from crrd.core.rollout.image.pull import pull_pod
from crrd.core.rollout.image.resources import refused_by
from crrd.core.rollout.run import Run
from crrd.kube.client import KubeClient
from crrd.kube.resources import LIMIT_RANGES, PODS
from crrd.lib.errors import ApiRefusedError, ApiUnavailableError, ConflictError
from crrd.rollout.refusals import ends_run

Json = Mapping[str, Any]


async def create_pull_pod(
    client: KubeClient, run: Run, node: str, image: str, like: Json, *, dry_run: bool = False
) -> Json:
    """Create the pull pod of a node, like a pod of the run there. Return it.

    Where its user is rejected, it has none: OpenShift then chooses one. Raises ConflictError if it exists, and
    ApiRefusedError, with the name of a LimitRange that does not accept it, and what to do.
    """
    body, before = pull_pod(run, node, image, like), ""
    while True:
        try:
            return await client.create(PODS, run.namespace, body, dry_run=dry_run)
        except ConflictError:
            raise
        except ApiRefusedError as error:
            if ends_run(error):
                raise
            message = str(error)
            if body["spec"]["securityContext"].pop("runAsUser", None) is None:
                if before not in ("", message):
                    message = f"{before}; without runAsUser: {message}"
                raise ApiRefusedError(await _explained(client, run, message), status=error.status) from error
            before = message


async def _explained(client: KubeClient, run: Run, message: str) -> str:
    """Return the API server's message about a pull pod. If a LimitRange refuses it: with its name, and what to do."""
    names: tuple[str, ...] = ()
    with suppress(ApiRefusedError, ApiUnavailableError):  # the right is not needed otherwise
        found = (await client.list_all(LIMIT_RANGES, dict, namespace=run.namespace)).items
        names = refused_by(run.options.pull_resources, found)
    remedy = "spec.triggers.templateImage.pullResources" if run.options.policy else "--pull-resources"
    more = f" (LimitRange {', '.join(names)}); to set what pull pods request: {remedy}"
    return f"{message}{more if names else ''}"
