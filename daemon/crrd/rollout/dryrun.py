"""A dry run that asks the API server: whether it would take each request, by admission and policies."""

from crrd.core.rollout.preview import Preview
from crrd.core.rollout.run import Run
from crrd.kube.client import KubeClient
from crrd.kube.resources import REQUESTS
from crrd.lib.errors import ApiRefusedError, ConflictError


async def refusals(client: KubeClient, run: Run, preview: Preview) -> dict[str, str]:
    """The pods whose requests the API server refuses, and what it says. Raises ApiUnavailableError."""
    refused: dict[str, str] = {}
    for row in (row for batch in (*preview.batches, *preview.later) for row in batch):
        try:
            await client.create(REQUESTS, run.namespace, run.request(row.pod, row.uid, row.containers), dry_run=True)
        except ConflictError:
            pass  # one that has failed, which would be deleted first
        except ApiRefusedError as error:
            refused[row.pod] = str(error)
    return refused
