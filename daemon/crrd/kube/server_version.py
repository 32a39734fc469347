"""Says at a daemon's start, once, that the API server is older than what crrd is made for.

Nothing hangs on it: a version that cannot be read keeps nobody from working.
"""

import re
from collections.abc import Mapping
from typing import Any

import structlog

from crrd.kube.client import KubeClient
from crrd.lib.errors import CrrdError
from crrd.lib.jsonfields import text

LEAST = (1, 30)
"""The first version of Kubernetes with ValidatingAdmissionPolicies (v1) and with the node's name in tokens of pods,
by which the policy of the node daemon goes."""
_NUMBER = re.compile(r"\d+", re.ASCII)

log = structlog.get_logger(__name__)


async def warn_of_old_server(client: KubeClient) -> None:
    """Ask the API server for its version, and log one line where that is too old."""
    try:
        answer = await client.document("/version")
    except CrrdError as error:
        log.debug("API server version unknown", error=str(error))
        return
    found = parse(answer)
    if found is not None and found < LEAST:
        least = ".".join(map(str, LEAST))
        log.warning(
            "API server too old",
            version=text(answer.get("gitVersion")),
            least=least,
            consequence="the policies that keep a node daemon to its own node's requests do not work there",
            remedy=f"upgrade the control plane to Kubernetes {least} or newer",
        )


def parse(answer: Mapping[str, Any]) -> tuple[int, int] | None:
    """Major and minor version out of `/version`; None where it does not say. Some providers add a plus: `29+`."""
    numbers = [_NUMBER.match(text(answer.get(key))) for key in ("major", "minor")]
    major, minor = (None if number is None else int(number[0]) for number in numbers)
    return None if major is None or minor is None else (major, minor)
