"""Names of images: whether two of them mean the image that a container runs.

A restart by a patch gives a container's image another name (`core.rollout.spelling`), and the pod's template keeps its
own. A webhook may pin the tag of a template to a digest when it admits a pod. So there are two questions:

- Does a container have the image that a run or a request gives (`has_image`)? By this name, or by one that is recorded.
- Which of several names, those of a template among them, means its image (`PodContainer.image_among`)? One that it has,
  or else one that it pins (`pins`).
"""

import json
import re
from collections.abc import Collection, Mapping, Sequence
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
    """Whether a container with `image` in its spec has the image that `other` names.

    Equal names do. Else restarts by a patch must have recorded both, or both must have the digest of what runs, and no
    two tags. A tag is never enough: it may have been moved, and then a run that gives it to pods with the digest from
    before replaces their image. Recorded names may have several digests, because a runtime may report that of an
    index, or that of its image for the node.

    Args:
        image: the image in the pod's spec.
        other: the image of a run or a request.
        image_id: the container's `imageID`, as kubelet reports it.
        names: what `recorded_names` has for the container.
    """
    if image == other:
        return True
    wanted = read_image_name(other)
    known = _names_of(image, image_id, names)
    return wanted in known[1:] or any(_has_digest(each, wanted, image_id) for each in known)


def pins(image: str, tag: str, image_id: str, names: Collection[str] = ()) -> bool:
    """Whether a container's image is a tag without a digest, to which somebody has added the digest of what runs.

    The parameters are those of `has_image`.
    """
    wanted = read_image_name(tag)
    plain = wanted.repository, wanted.tag or _DEFAULT_TAG
    known = (each for each in _names_of(image, image_id, names) if each.is_of(image_id))
    return not wanted.digest and plain in {(each.repository, each.tag) for each in known}


def _names_of(image: str, image_id: str, names: Collection[str]) -> Sequence[ImageName]:
    """Return the name of what a container runs, and then those that are recorded; none if it runs another image."""
    own = read_image_name(image)
    if own.is_of(image_id) is False:
        return ()
    return own, *(read_image_name(each) for each in (names if image in names else ()))


def _has_digest(own: ImageName, wanted: ImageName, image_id: str) -> bool:
    same = own.repository == wanted.repository and own.digest == wanted.digest and own.is_of(image_id)
    return bool(same) and (own.tag == wanted.tag or "" in (own.tag, wanted.tag))


def is_rewritten(image: str, given: str) -> bool:
    """Whether a webhook may have made `image` of the `given` one: of another registry, or with a digest."""
    one, other = read_image_name(image), read_image_name(given)
    if not one.repository.endswith(other.repository.rpartition("/")[2]):  # a mirror may write the rest otherwise
        return False
    tag = other.tag or _DEFAULT_TAG
    if one.digest == other.digest:
        return bool(one.digest) or (one.tag or _DEFAULT_TAG) == tag
    return not other.digest and one.tag in ("", tag)


def recorded_names(annotation: str) -> Mapping[str, tuple[str, ...]]:
    """Return, by container, the names of its image that restarts by a patch have recorded on a pod, the oldest first.

    Empty if there is no such record, or one that cannot be read.
    """
    if not annotation:
        return {}
    try:
        shape = mapping(json.loads(annotation))
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
