"""Names of images: whether two of them mean the image that a container runs.

A restart by a patch gives a container's image another name (`core.rollout.spelling`), and the pod's template keeps its
own. Whatever compares the image of a pod with that of a template, a run or a request asks `has_image`, by
`PodContainer.has_image`.
"""

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache

from crrd.lib.jsonfields import items, mapping, number, text

ANNOTATION_PATCHED = "crr.apps.kruise.io/restarted-by-patch"
"""On a pod: the last restart of its containers by a patch (`core.rollout.patched`)."""
RECORD_VERSION = 1
_ID = re.compile(r"sha256:[0-9a-f]{48,64}")  # With fewer digits it may be a repository `sha256` and a tag
_TAG = re.compile(r"[^/@]*:(?P<tag>\w[\w.-]{0,127})")
_HUB, _HUB_BEFORE = "docker.io", "index.docker.io"
_DEFAULT_TAG = "latest"


@dataclass(frozen=True, slots=True)
class ImageName:
    """An image name, read as the runtimes read it (github.com/distribution/reference)."""

    repository: str  # With its registry; "" for the ID of an image
    tag: str = ""  # "" for none
    digest: str = ""  # `sha256:...` of a manifest, or the ID of an image or its first digits; "" for none

    def is_of(self, image_id: str) -> bool | None:
        """Whether its digest or ID is that of the image that kubelet reports; None if they cannot be compared."""
        repository, _, digest = image_id.rpartition("://")[2].rpartition("@")
        if not (self.digest and digest) or bool(self.repository) != bool(repository):
            return None
        return digest == self.digest if repository else digest.removeprefix("sha256:").startswith(self.digest[7:])


def is_tag_of(name: ImageName, shown: str) -> bool:
    """Whether a name without a digest is the one that kubelet shows for a container's image."""
    other = read_image_name(shown)
    tags = name.tag or _DEFAULT_TAG, other.tag or _DEFAULT_TAG
    known = name.repository and not name.digest and shown and not other.digest
    return bool(known) and name.repository == other.repository and tags[0] == tags[1]


@lru_cache(maxsize=1024)
def read_image_name(image: str) -> ImageName:
    """Parse the name of an image."""
    name, _, digest = image.partition("@")
    if not digest and _ID.fullmatch(name):
        return ImageName("", "", name)
    tag = _TAG.fullmatch(name.rpartition("/")[2])
    repository = name.removesuffix(f":{tag['tag']}") if tag else name
    return ImageName(_with_registry(repository), tag["tag"] if tag else "", digest)


def _with_registry(repository: str) -> str:
    first, slash, rest = repository.partition("/")
    if not slash or not (set(".:") & set(first) or first == "localhost" or first != first.lower()):
        first, rest = _HUB, repository
    if first in (_HUB, _HUB_BEFORE):
        return f"{_HUB}/{rest}" if "/" in rest else f"{_HUB}/library/{rest}"
    return f"{first}/{rest}"


def has_image(image: str, other: str, image_id: str, names: Collection[str] = ()) -> bool:
    """Whether a container with `image` in its spec has the image that `other` means.

    Equal names do. Else restarts by a patch must have recorded both, or `image` must have the digest of what runs, and
    `other` no other digest and no other tag. A tag alone is not enough, because it may have been moved. Recorded
    names may have several digests, because a runtime may report that of an index, or that of its image for the node.

    Args:
        image: the image in the pod's spec.
        other: the image of a template, a run or a request.
        image_id: the container's `imageID`, as kubelet reports it.
        names: what `recorded_names` has for the container.
    """
    if image == other:
        return True
    own, wanted = read_image_name(image), read_image_name(other)
    if own.is_of(image_id) is False:
        return False
    known = {read_image_name(each) for each in (names if image in names else ())}
    return wanted in known or any(_is_exactly(each, wanted, image_id) for each in {own, *known})


def _is_exactly(own: ImageName, wanted: ImageName, image_id: str) -> bool:
    if own.repository != wanted.repository or not own.is_of(image_id):
        return False
    if not wanted.digest:
        return own.tag == (wanted.tag or _DEFAULT_TAG)
    return own.digest == wanted.digest and (own.tag == wanted.tag or "" in (own.tag, wanted.tag))


def recorded_names(annotation: str) -> Mapping[str, tuple[str, ...]]:
    """Return, by container, the names of its image that restarts by a patch have recorded on a pod, the oldest first.

    Empty if there is no such record, or one that cannot be read.
    """
    try:
        shape = mapping(json.loads(annotation or "{}"))
    except (ValueError, RecursionError):
        return {}
    if not 0 < number(shape.get("version")) <= RECORD_VERSION:
        return {}
    found = {name: tuple(map(text, items(used))) for name, used in mapping(shape.get("used")).items()}
    for each in map(mapping, items(shape.get("containers"))):
        name, before, given = (text(each.get(key)) for key in ("name", "before", "given"))
        found |= {name: (*found.get(name, ()), before, given)} if given else {}
    return found


def plainest(names: Collection[str]) -> str:
    """Return the name without a digest, else one with a tag, else the oldest one."""
    read = {each: read_image_name(each) for each in names}
    return min(names, key=lambda each: (bool(read[each].digest), not read[each].tag))
