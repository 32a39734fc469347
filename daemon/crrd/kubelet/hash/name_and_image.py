"""The hash by which kubelet finds that a container's image has changed: since 1.31, that of its name and image only."""

import json

from crrd.kubelet.hash.fnv import fnv32a_of_printed_bytes

SINCE = 31  # Minor version


def hash_of_name_and_image(name: str, image: str) -> str:
    """Return the hash as in kubelet's annotation. Names of containers and images need no escapes of Go."""
    shape = json.dumps({"image": image, "name": name}, separators=(",", ":"), ensure_ascii=False)
    return format(fnv32a_of_printed_bytes(shape.encode(errors="replace")), "x")
