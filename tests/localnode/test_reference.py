"""References of images: the cases of the reference grammar, and of kubelet's own."""

import pytest

from crrd_localnode.reference import InvalidReferenceError, Reference, parse_reference

HEX = "0123456789abcdef" * 4
DIGEST = f"sha256:{HEX}"


@pytest.mark.parametrize(
    ("text", "repository", "tag", "digest"),
    [
        ("web", "docker.io/library/web", "latest", ""),
        ("web:1", "docker.io/library/web", "1", ""),
        ("shop/web:1", "docker.io/shop/web", "1", ""),
        ("docker.io/shop/web", "docker.io/shop/web", "latest", ""),
        ("localhost/web:1", "localhost/web", "1", ""),
        ("registry.example/a/b/c:v1.2_3-x", "registry.example/a/b/c", "v1.2_3-x", ""),
        ("10.0.0.1:5000/web", "10.0.0.1:5000/web", "latest", ""),
        ("Registry/web:1", "Registry/web", "1", ""),
        ("a__b/c-d.e", "docker.io/a__b/c-d.e", "latest", ""),
        (f"web@{DIGEST}", "docker.io/library/web", "", DIGEST),
        (f"web:1@{DIGEST}", "docker.io/library/web", "1", DIGEST),
        (DIGEST, "docker.io/library/sha256", HEX, ""),
        (HEX[:12], f"docker.io/library/{HEX[:12]}", "latest", ""),
    ],
)
def test_names_are_completed(text: str, repository: str, tag: str, digest: str) -> None:
    assert parse_reference(text) == Reference(repository, tag, digest)


@pytest.mark.parametrize(
    "text",
    ["", ":1", "Web:1", "web:", "web:-1", "web//a", "/web", "web/", "web@", f"web@{HEX}", "web@sha256:12", " web",
     "web:1:2", f"web:{'x' * 129}", "web_:1", "a..b"],
)  # fmt: skip
def test_others_are_invalid(text: str) -> None:
    with pytest.raises(InvalidReferenceError, match="invalid reference format"):
        parse_reference(text)


def test_an_id_without_its_algorithm_is_no_name() -> None:
    with pytest.raises(InvalidReferenceError, match="cannot specify 64-byte hexadecimal strings"):
        parse_reference(HEX)
