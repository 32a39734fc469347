"""The minor version of a kubelet, on which its hash depends, and the range of versions that are known."""

import re

OLDEST_MINOR = 7  # The oldest minor version whose structs are known
NEWEST_MINOR = 36  # The newest minor version that was examined; later ones are treated in the same way
_VERSION = re.compile(r"v?(\d{1,3})\.(\d{1,3})(?:\.(\d{1,5}))?\+?(?:[-+][0-9A-Za-z.+~-]+)?", re.ASCII)


def parse_minor(version: str) -> int:
    """Return the minor version N of "1.N", "v1.N.P", "1.N.P-rc.1+k3s1". Raises ValueError with a message for users."""
    match = _VERSION.fullmatch(version.strip())
    if match is None:
        raise ValueError(f"{version[:40]!r} is not a Kubernetes version: use one such as 1.31 or v1.30.2")
    major, minor = int(match[1]), int(match[2])
    if major != 1:
        raise ValueError(f"{version[:40]!r} is not a Kubernetes version: the major version must be 1")
    return minor
