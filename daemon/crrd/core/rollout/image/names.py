"""Images as names: which ones are not fixed, which pods differ, and the patch that replaces one."""

import re
from collections.abc import Mapping

from crrd.lib import jsonpatch
from crrd.lib.jsonpatch import Operation

_TAG = re.compile(r"[^/]+:(?P<tag>[^/:@]+)")


def is_mutable(image: str) -> bool:
    """Whether an image has no digest, and no tag but `latest`, so that two pulls may give two images."""
    tag = _TAG.fullmatch(image.rpartition("/")[2])
    return "@" not in image and (tag is None or tag["tag"] == "latest")


def image_ids(statuses: Mapping[str, str], image: str) -> str:
    """Return a warning if pods with one image have several image IDs (pod -> ID); "" if not, or with a digest."""
    if "@" in image or len(set(filter(None, statuses.values()))) < 2:
        return ""
    return f"{image} is not the same image on all nodes, because the tag was moved: use a digest"


def image_operations(path: str, container: str, before: str, after: str) -> tuple[Operation, ...]:
    """Return the operations that replace an image, if it still is what it was decided on.

    `path` is the JSON pointer to the container.
    """
    tests = jsonpatch.test(f"{path}/name", container), jsonpatch.test(f"{path}/image", before)
    return (*tests, jsonpatch.replace(f"{path}/image", after))
