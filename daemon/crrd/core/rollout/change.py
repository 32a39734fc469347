"""What a run does to its containers, as far as it is stored with the run's options.

The plain kind restarts them as they are, and stores nothing. A kind that needs more has a subclass of `Change`, and its
decisions in a folder of its own (`core.rollout.kind`).
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Annotated, Any

from crrd.lib.jsonfields import items, mapping, text


class Change:
    """The plain restart."""

    __slots__ = ()

    @property
    def undoes(self) -> str:
        """The run that is undone, "" for none."""
        return ""

    @property
    def image_back(self) -> str:
        """The image that an undo gives back, "" if there is none."""
        return ""

    @property
    def label(self) -> str:
        """What the containers get, for messages; "" for nothing."""
        return ""

    @property
    def fields(self) -> Mapping[str, str]:
        """The fields that each container of a request has in addition."""
        return {}

    def stored(self) -> Mapping[str, Any]:
        """Return what the annotation with the run's options has in addition."""
        return {}


RESTART = Change()


class TemplateMode(StrEnum):
    """What becomes of the workload's template in the end."""

    KEEP = "keep"  # It stays as it is, and new pods get its image
    ADOPT = "adopt"  # The run writes the image into it
    FOLLOW = "follow"
    """It has the image already, and the workload is held. What new pods are made of gets the image (`following`)."""


@dataclass(frozen=True, slots=True)
class ImageChange(Change):
    """Another image for the run's only container, in the pods that exist.

    Kubelet replaces one container of a running pod if its image changes in the pod's spec. No controller of Kubernetes
    uses this. The run sets it pod by pod. In the end, the template of the workload can get it, too.
    """

    image: Annotated[str, "The image that the container gets."]
    before: Annotated[tuple[str, ...], "The other images that the container had at the start of the run."] = ()
    mode: Annotated[
        TemplateMode, "Whether the template stays (`keep`), gets the image (`adopt`) or has it already (`follow`)."
    ] = TemplateMode.KEEP
    pulls: Annotated[bool, "Whether the image is pulled to each node before a container there is replaced."] = True
    template: Annotated[
        str, "Digest of the rest of the workload's template at the start. Empty if it does not have the container."
    ] = ""
    undoes: Annotated[str, "The run that is undone."] = ""
    had: Annotated[str, "The image of the template at the start of the run."] = ""
    given: Annotated[str, "The image as the user gave it, if a webhook has replaced it."] = ""
    of_pods: Annotated[str, "Of several images in `before`: the one that all pods had."] = ""
    of_template: Annotated[
        str, "The image that the template gets in the end, if it is not that of the pods, as after an undo."
    ] = ""

    @property
    def adopt(self) -> bool:
        """Whether new pods get the image in the end."""
        return self.mode is not TemplateMode.KEEP

    @property
    def follow(self) -> bool:
        """Whether the template has the image already."""
        return self.mode is TemplateMode.FOLLOW

    @property
    def template_image(self) -> str:
        """The image that the template, and what new pods are made of, get in the end."""
        return self.of_template or self.image

    def is_foreign(self, image: str) -> bool:
        """Whether somebody has given the container an image since the run began. It may be a newer one."""
        return image not in (self.image, self.template_image, *self.before)

    def is_foreign_template(self, image: str) -> bool:
        """Whether somebody has given the template an image since the run began. One that only pods had counts, too."""
        return image not in (self.template_image, self.had) if self.had else self.is_foreign(image)

    @property
    def image_back(self) -> str:
        """See Change. There is none if the pods had several images, or new pods would have more than one other."""
        had = self.of_pods or next(iter(self.before), "")
        others = [each for each in self.before if each != had]
        is_unclear = others and (not self.of_pods or (self.adopt and len(others) > 1))
        return "" if is_unclear else had

    @property
    def label(self) -> str:
        """See Change."""
        return self.image

    @property
    def fields(self) -> Mapping[str, str]:
        """See Change."""
        return {"image": self.image}

    def stored(self) -> Mapping[str, Any]:
        """See Change."""
        shape = {**asdict(self), "before": list(self.before)}
        return {"image": {key: value for key, value in shape.items() if value or key not in _LATER}}


_LATER = ("given", "of_pods", "of_template")
"""Fields that processes of older versions do not know. They can continue runs without them."""
_FIRST_FORM = {
    (False, False): TemplateMode.KEEP,
    (True, False): TemplateMode.ADOPT,
    (True, True): TemplateMode.FOLLOW,
}
"""What `adopt` and `follow` mean, which were recorded before there was `mode`."""


def read_image_change(found: object) -> ImageChange | None:
    """Parse it; None if there is none. Raises TypeError or ValueError if it is malformed."""
    if found is None:
        return None
    raw = dict(mapping(found))
    first_form = raw.pop("adopt", False), raw.pop("follow", False)  # in place of `mode`
    mode = TemplateMode(text(raw.get("mode") or _FIRST_FORM.get(first_form, "")))
    read = ImageChange(**{**raw, "mode": mode, "before": tuple(map(text, items(raw.get("before"))))})
    texts = (read.image, read.template, read.undoes, read.had, read.given, read.of_pods, read.of_template)
    if not read.image or not all(isinstance(each, str) for each in texts) or not isinstance(read.pulls, bool):
        raise ValueError("an image change has other types")
    return read
