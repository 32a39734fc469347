"""Images that are only names: the local runtime runs the node's own programs, whatever the image.

A reference that contains `does-not-exist` is unknown to all registries, so that a failed pull can be shown. The pull of
one that contains `slow-5s` takes 5 seconds.
"""
# ruff: noqa: D102 - methods are documented by the call they answer

import asyncio
import hashlib
import json
import re
from pathlib import Path

from cri_stubs import api_pb2
from crrd_localnode.containers.rpc import invalid, not_found
from crrd_localnode.containers.shim import write_json

MISSING = "does-not-exist"
_SLOW = re.compile(r"slow-(\d{1,3})s")


def image_id(reference: str) -> str:
    """Return the ID of a reference. An ID is returned unchanged."""
    if reference.startswith("sha256:"):
        return reference
    return f"sha256:{hashlib.sha256(reference.encode()).hexdigest()}"


def check_reference(reference: str) -> None:
    """Raise CallError if a reference is empty or its image does not exist."""
    if not reference:
        raise invalid("the image has no name")
    if MISSING in reference:
        raise not_found("image", reference)


class ImageService:
    """The CRI's ImageService for a list of references, stored in one file."""

    def __init__(self, root: Path) -> None:
        self._file = root / "images.json"
        self._references: list[str] = []

    def load(self) -> None:
        """Load the list of an earlier process."""
        if self._file.exists():
            self._references = json.loads(self._file.read_text())

    async def list_images(self, request: api_pb2.ListImagesRequest) -> api_pb2.ListImagesResponse:
        wanted = request.filter.image.image
        found = [reference for reference in self._references if not wanted or _is(reference, wanted)]
        return api_pb2.ListImagesResponse(images=map(self._image, found))

    async def image_status(self, request: api_pb2.ImageStatusRequest) -> api_pb2.ImageStatusResponse:
        """Answer ImageStatus. The response is empty if the image was not pulled."""
        found = self._find(request.image.image)
        return api_pb2.ImageStatusResponse(image=self._image(found) if found else None)

    async def pull_image(self, request: api_pb2.PullImageRequest) -> api_pb2.PullImageResponse:
        reference = request.image.image
        if slow := _SLOW.search(reference):
            await asyncio.sleep(int(slow[1]))
        check_reference(reference)
        if self._find(reference) is None:
            self._save([*self._references, reference])
        return api_pb2.PullImageResponse(image_ref=image_id(reference))

    async def remove_image(self, request: api_pb2.RemoveImageRequest) -> api_pb2.RemoveImageResponse:
        found = self._find(request.image.image)
        if found is not None:
            self._save([reference for reference in self._references if reference != found])
        return api_pb2.RemoveImageResponse()

    def _find(self, wanted: str) -> str | None:
        return next((reference for reference in self._references if _is(reference, wanted)), None)

    def _image(self, reference: str) -> api_pb2.Image:
        spec = api_pb2.ImageSpec(image=reference)
        # Kubelet considers an image of size 0 broken.
        return api_pb2.Image(id=image_id(reference), size=1, repo_tags=[reference], spec=spec)

    def _save(self, references: list[str]) -> None:
        self._references = references
        write_json(str(self._file), references)


def _is(reference: str, wanted: str) -> bool:
    return wanted in (reference, image_id(reference))
