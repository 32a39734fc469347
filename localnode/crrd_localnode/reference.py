"""References of images, as kubelet and containerd read them.

Source: github.com/distribution/reference (`ParseNormalizedNamed`).
"""

import re
from dataclasses import dataclass

from crrd.lib.errors import CrrdError

DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_DEFAULT_DOMAIN, _OFFICIAL = "docker.io", "library"
_LABEL = r"(?:[a-zA-Z0-9]|[a-zA-Z0-9][a-zA-Z0-9-]*[a-zA-Z0-9])"
_PART = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_REFERENCE = re.compile(
    rf"(?P<domain>{_LABEL}(?:\.{_LABEL})*(?::[0-9]+)?)/(?P<path>{_PART}(?:/{_PART})*)"
    rf"(?::(?P<tag>\w[\w.-]{{0,127}}))?(?:@(?P<digest>{DIGEST.pattern}))?",
    re.ASCII,
)
_HEX = re.compile(r"[0-9a-f]{64}")


class InvalidReferenceError(CrrdError):
    """The text is not a reference of an image."""


@dataclass(frozen=True, slots=True)
class Reference:
    """A reference with its full name. Without a digest, it has a tag."""

    repository: str  # With the registry's name
    tag: str
    digest: str

    @property
    def tagged(self) -> str:
        """The full name with the tag, "" without a tag."""
        return f"{self.repository}:{self.tag}" if self.tag else ""


def parse_reference(text: str) -> Reference:
    """Return the reference with the defaults docker.io and `latest`. Raises InvalidReferenceError."""
    if _HEX.fullmatch(text):
        raise InvalidReferenceError(f"invalid repository name ({text}), cannot specify 64-byte hexadecimal strings")
    first, slash, rest = text.partition("/")
    if not slash or not ({".", ":"} & set(first) or first == "localhost" or first != first.lower()):
        first, rest = _DEFAULT_DOMAIN, text if slash else f"{_OFFICIAL}/{text}"
    found = _REFERENCE.fullmatch(f"{first}/{rest}")
    if found is None:
        raise InvalidReferenceError("invalid reference format")
    digest = found["digest"] or ""
    return Reference(f"{found['domain']}/{found['path']}", found["tag"] or ("" if digest else "latest"), digest)
