"""What the manager needs besides `crrd-read-config` for some policies, by ClusterRole."""

from contextlib import suppress
from enum import Enum

from crrd.core.policy.triggers import PATCH_ROLE, RESTORE_ROLE, UPDATE_ROLE, grant
from crrd.kube.client import KubeClient
from crrd.kube.errors import ResourceMissingError
from crrd.kube.resources import REQUESTS
from crrd.kube.rights import missing_rights


class Rights(Enum):
    """A row has the name of a ClusterRole, and the rights that it grants and other policies do not need."""

    PATCH = PATCH_ROLE, ("patch pods", "respell pods.crr.apps.kruise.io")
    RESTORE = (
        RESTORE_ROLE,
        (
            "restore configmaps.crr.apps.kruise.io",
            "patch configmaps",
            "get,list,create,delete controllerrevisions.apps",
        ),
    )
    UPDATE = (
        UPDATE_ROLE,
        (
            "patch,create,delete pods",
            "patch,delete replicasets.apps",
            "list controllerrevisions.apps",
            f"create {REQUESTS.full_name}",
            "update-images pods.crr.apps.kruise.io",
        ),
    )

    def __init__(self, role: str, rights: tuple[str, ...]) -> None:
        self.role, self.rights = role, rights

    async def missing(self, client: KubeClient, namespace: str, account: str) -> str:
        """Return which of the rights the manager lacks, and what to do; "" for none.

        `account` as in `grant`. Raises ApiUnavailableError.
        """
        missing: tuple[str, ...] = ()
        with suppress(ResourceMissingError):  # the local API server has no access reviews, and no rights
            missing = await missing_rights(client, self.rights, namespace)
        what = f"the manager may not {', '.join(missing)} in this namespace"
        return f"{what}; to allow it: {grant(namespace, self.role, account)}" if missing else ""
