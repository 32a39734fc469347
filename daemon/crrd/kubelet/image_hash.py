"""The hash by which kubelet finds that a container's image has changed: since 1.31, that of its name and image only.

Source: `HashContainer` in pkg/kubelet/container/helpers.go. It is FNV-1a with 32 bits of the container's JSON, whose
bytes are printed as numbers. Those of earlier versions are in `crrd_forecast.hash`.
"""

import json

SINCE = 31  # Minor version
OFFSET, PRIME = 0x811C9DC5, 0x01000193  # Of FNV-1a with 32 bits


def hash_of_name_and_image(name: str, image: str) -> str:
    """Return the hash as in kubelet's annotation. Names of containers and images need no escapes of Go."""
    shape = json.dumps({"image": image, "name": name}, separators=(",", ":"), ensure_ascii=False)
    printed = f"([]uint8)[{' '.join(map(str, shape.encode(errors='replace')))}]"
    return format(fnv1a(printed.encode()), "x")


def fnv1a(data: bytes, value: int = OFFSET) -> int:
    """Return the hash of the bytes, or continue a hash with them (http://www.isthe.com/chongo/tech/comp/fnv/)."""
    for byte in data:
        value = ((value ^ byte) * PRIME) & 0xFFFFFFFF
    return value
