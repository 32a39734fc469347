"""Another image for the run's container, in the pods that exist.

Kubelet replaces one container of a running pod if its image changes in the pod's spec. No controller of Kubernetes uses
this. A run with an image sets it pod by pod. In the end, the template of the workload can get it, too (`adoption`).
"""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from crrd.lib import jsonpatch
from crrd.lib.jsonfields import items, mapping, text
from crrd.lib.jsonpatch import Operation

_TAG = re.compile(r"[^/]+:(?P<tag>[^/:@]+)")


@dataclass(frozen=True, slots=True)
class ImageChange:
    """What a run with an image does."""

    image: str
    before: tuple[str, ...] = ()  # The container's images when the run started
    adopt: bool = False  # Whether the workload's template gets the image in the end
    pulls: bool = True  # Whether pods of the run pull the image to each node, before a container there is replaced
    template: str = ""
    """Digest of the workload's template without this image (`template.Content.rest`) when the run started; "" if the
    template does not have the container."""
    undoes: str = ""  # The run that is undone
    follow: bool = False
    """Whether the template of a held workload has the image already (`following`). Then the run does not write the
    workload; what new pods are made of gets the image in the end, as with `adopt`, which is true, too."""
    had: str = ""  # The image in the workload's template when the run started; "" also in runs of older versions
    given: str = ""  # The image as the user gave it, if a webhook has replaced it

    def is_foreign(self, image: str) -> bool:
        """Whether somebody has given the container an image since the run began. It may be a newer one."""
        return image not in (self.image, *self.before)

    def is_foreign_template(self, image: str) -> bool:
        """Whether somebody has given the template an image since the run began. One that only pods had counts, too."""
        return image not in (self.image, self.had) if self.had else self.is_foreign(image)

    def to_json(self) -> dict[str, Any]:
        """Return it for the annotation with the run's options."""
        shape = {**asdict(self), "before": list(self.before)}
        return shape if self.given else {key: value for key, value in shape.items() if key != "given"}


def read_image_change(found: object) -> ImageChange | None:
    """Parse it; None if there is none. Raises TypeError or ValueError if it is malformed."""
    if found is None:
        return None
    raw = dict(mapping(found))
    read = ImageChange(**{**raw, "before": tuple(map(text, items(raw.get("before"))))})
    texts, flags = (read.image, read.template, read.undoes, read.had, read.given), (read.adopt, read.pulls, read.follow)
    sound = all(isinstance(each, str) for each in texts) and all(isinstance(each, bool) for each in flags)
    if not read.image or not sound:
        raise ValueError("an image change has other types")
    return read


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
