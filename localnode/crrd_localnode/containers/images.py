"""Images that are only names: the local runtime runs the node's own programs, whatever the image.

Each tag of a repository is an image of its own, with a digest and an ID. The runtime knows it by the names that
containerd 2.1 has for a pulled image. A registry knows a digest only if it is beside its own tag, or on the node.

A reference that contains `does-not-exist` is unknown to all registries, so that a failed pull can be shown. The pull of
one that contains `slow-5s` takes 5 seconds.
"""
# ruff: noqa: D102 - methods are documented by the call they answer

import asyncio
import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path

from cri_stubs import api_pb2
from crrd_localnode.containers.rpc import invalid, not_found
from crrd_localnode.containers.shim import write_json
from crrd_localnode.reference import DIGEST, InvalidReferenceError, Reference, parse_reference

MISSING = "does-not-exist"
_SLOW = re.compile(r"slow-(\d{1,3})s")
_IDS_AS_REPOSITORY = "docker.io/library/sha256"  # What a registry is asked for if a reference is an image's ID
_ID_PREFIX = re.compile(r"(?:sha256:)?([0-9a-f]+)")


@dataclass(frozen=True, slots=True)
class Image:
    """An image of the node."""

    name: str  # Its full name with the tag in the registry
    tagged: bool  # Whether the runtime knows the tag, or the digest alone

    @property
    def id(self) -> str:
        """The digest of its config."""
        return _digest(f"config of {self.name}")

    @property
    def digest_name(self) -> str:
        """Its full name with the digest."""
        return f"{self.name.rpartition(':')[0]}@{_digest(f'manifest of {self.name}')}"

    def message(self) -> api_pb2.Image:
        """Return it as CRI message."""
        tags = [self.name] if self.tagged else []
        # Kubelet considers an image of size 0 broken.
        return api_pb2.Image(id=self.id, size=1, repo_tags=tags, repo_digests=[self.digest_name])


class ImageService:
    """The CRI's ImageService for the images of a node, whose names are stored in one file."""

    def __init__(self, root: Path) -> None:
        self._file = root / "image-names.json"
        self._images: dict[str, Image] = {}  # By full name with the tag

    def load(self) -> None:
        """Load the list of an earlier process."""
        if self._file.exists():
            self._images = {name: Image(name, tagged) for name, tagged in json.loads(self._file.read_text()).items()}

    def find(self, wanted: str) -> Image | None:
        """Return the image with this ID, the beginning of an ID, or name. A tag beside a digest is ignored."""
        if DIGEST.fullmatch(wanted):
            return next((image for image in self._images.values() if image.id == wanted), None)
        try:
            reference = parse_reference(wanted)
        except InvalidReferenceError:
            return self._find_prefix(wanted)
        return self._find_name(reference) or self._find_prefix(wanted)

    def _find_name(self, reference: Reference) -> Image | None:
        if reference.digest:
            name = f"{reference.repository}@{reference.digest}"
            return next((image for image in self._images.values() if image.digest_name == name), None)
        found = self._images.get(reference.tagged)
        return found if found and found.tagged else None

    def _find_prefix(self, wanted: str) -> Image | None:
        """Return the only image whose ID begins with these digits."""
        digits = _ID_PREFIX.fullmatch(wanted)
        found = [image for image in self._images.values() if digits and image.id.startswith(f"sha256:{digits[1]}")]
        return found[0] if len(found) == 1 else None

    async def list_images(self, request: api_pb2.ListImagesRequest) -> api_pb2.ListImagesResponse:
        wanted = request.filter.image.image
        found = self.find(wanted)
        listed = self._images.values() if not wanted else [found] if found else []
        return api_pb2.ListImagesResponse(images=[image.message() for image in listed])

    async def image_status(self, request: api_pb2.ImageStatusRequest) -> api_pb2.ImageStatusResponse:
        """Answer ImageStatus. The response is empty if the image was not pulled."""
        found = self.find(request.image.image)
        return api_pb2.ImageStatusResponse(image=found.message() if found else None)

    async def pull_image(self, request: api_pb2.PullImageRequest) -> api_pb2.PullImageResponse:
        wanted = request.image.image
        try:
            reference = parse_reference(wanted)
        except InvalidReferenceError as error:
            raise invalid(f"failed to parse image reference {wanted!r}: {error}") from error
        if slow := _SLOW.search(wanted):
            await asyncio.sleep(int(slow[1]))
        image = self._in_registry(reference)
        if image is None:
            raise not_found("image", wanted)
        known = self._images.get(image.name)
        self._images[image.name] = Image(image.name, tagged=image.tagged or (known is not None and known.tagged))
        self._save()
        return api_pb2.PullImageResponse(image_ref=image.id)

    def _in_registry(self, reference: Reference) -> Image | None:
        """Return the image for a pull, None if the registry does not know it."""
        if MISSING in f"{reference.repository}:{reference.tag}" or reference.repository == _IDS_AS_REPOSITORY:
            return None
        if not reference.digest:
            return Image(reference.tagged, tagged=True)
        if found := self._find_name(reference):
            return found
        made = Image(reference.tagged, tagged=False)
        return made if reference.tag and made.digest_name.endswith(f"@{reference.digest}") else None

    async def remove_image(self, request: api_pb2.RemoveImageRequest) -> api_pb2.RemoveImageResponse:
        """Answer RemoveImage: the image is removed with all its names."""
        found = self.find(request.image.image)
        if found is not None:
            del self._images[found.name]
            self._save()
        return api_pb2.RemoveImageResponse()

    def _save(self) -> None:
        write_json(str(self._file), {image.name: image.tagged for image in self._images.values()})


def _digest(text: str) -> str:
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
