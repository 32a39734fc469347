"""Other spellings of the image that a container runs.

Kubelet compares a container with its spec, in which the image is a string (`computePodActions` in
pkg/kubelet/kuberuntime). Another spelling of the same image makes it restart the container: preStop hook, grace period,
next instance.

Each spelling names the image by its digest or its ID. A tag alone does not, because it may have been moved on the node
since the container started, and then the next instance would run another image.
"""

import re
from collections.abc import Sequence

from crrd.core.api.images import read_image_name
from crrd.core.api.pod import PodContainer

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_CONTAINERD = "containerd://"
_ENOUGH = len("sha256:") + 48  # Characters of an ID that no other image begins with


def spellings(container: PodContainer) -> tuple[str, ...]:
    """Return the spellings of the image that a container runs, other than the present one, the best first.

    They are names that the runtime has reported for the image (`imageID`), so kubelet finds it on the node without a
    pull. containerd also knows an image by its ID, and by the first digits of it; CRI-O does not. If kubelet pulls at
    each start (imagePullPolicy Always), an ID is of no use, because no registry knows it.
    """
    repository, _, digest = container.image_id.rpartition("://")[2].rpartition("@")
    name = read_image_name(container.image)
    if repository and _DIGEST.fullmatch(digest):
        if name.repository != read_image_name(repository).repository:
            return ()  # the image is known by several names, and kubelet may not be allowed to pull it by this one
        tagged = (f"{repository}:{name.tag}@{digest}",) if name.tag else ()
        found = (*tagged, f"{repository}@{digest}")
    elif _DIGEST.fullmatch(digest) and container.container_id.startswith(_CONTAINERD) and not container.pulls_image:
        found = (digest, digest[:_ENOUGH])
    else:
        found = ()
    return tuple(each for each in found if each != container.image)


def next_spelling(container: PodContainer, used: Sequence[str]) -> str:
    """Return the spelling for the next restart, "" if there is none.

    `used` has the spellings that the container had before, the last one at the end. Those with the digest of the image
    that runs can be used again, unless somebody has given it another name since: that may be of another registry.
    Kubelet keeps a back-off for each spelling, so a new one is best, then the one that was
    used longest ago. An image that only has a digest gets a tag if there is nothing else.
    """
    digest = container.image_id.rpartition("@")[2]
    known = used if container.image in used else ()
    again = (each for each in known if each.endswith(f"@{digest}") and each != container.image)
    order = {each: number for number, each in enumerate(used)}
    return min((*spellings(container), *again), key=lambda each: order.get(each, -1), default=_tagged(container))


def _tagged(container: PodContainer) -> str:
    """Return the name of an image with its digest and a tag, which runtimes ignore; "" if it has not its digest alone.

    containerd (`ParseDockerRef`) and CRI-O look for such a name without the tag.
    """
    repository, at, digest = container.image.rpartition("@")
    reported = at and container.image == container.image_id.rpartition("://")[2]
    return f"{repository}:latest@{digest}" if reported and _DIGEST.fullmatch(digest) else ""


def is_same_image(one: str, other: str) -> bool:
    """Whether two values of `imageID` may be one image. Runtimes name an image by its digest, or by its ID."""
    digests = [each.rpartition("@")[2].removeprefix("sha256:") for each in (one, other)]
    comparable = ("@" in one) == ("@" in other) and all(digests)
    return digests[0] == digests[1] or not comparable
