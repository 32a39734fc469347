"""The spellings of an image: which ones are exact, and which one is next."""

from dataclasses import replace

import pytest

from crrd.core.api.pod import PodContainer
from crrd.core.rollout.spelling import is_same_image, next_spelling, spellings

HEX = "0123456789abcdef" * 4
DIGEST, OTHER = f"sha256:{HEX}", f"sha256:{HEX[::-1]}"
PULLED = f"registry.example/team/app@{DIGEST}"
LATEST = f"registry.example/team/app:latest@{DIGEST}"


def container(image: str, image_id: str, runtime: str = "containerd", *, pulls: bool = False) -> PodContainer:
    return PodContainer("app", image=image, image_id=image_id, container_id=f"{runtime}://one", pulls_image=pulls)


@pytest.mark.parametrize(
    ("image", "image_id", "found"),
    [
        ("registry.example/team/app:1", PULLED, (f"registry.example/team/app:1@{DIGEST}", PULLED)),
        ("registry.example/team/app", PULLED, (PULLED,)),
        ("app:1", f"docker.io/library/app@{DIGEST}", (
            f"docker.io/library/app:1@{DIGEST}", f"docker.io/library/app@{DIGEST}")),
        (f"registry.example/team/app:1@{DIGEST}", PULLED, (PULLED,)),
        (PULLED, PULLED, ()),
        (LATEST, PULLED, (PULLED,)),
        ("localhost:5000/app", f"localhost:5000/app@{DIGEST}", (f"localhost:5000/app@{DIGEST}",)),
        ("localhost:5000/app:v1.2-rc_3", f"localhost:5000/app@{DIGEST}", (
            f"localhost:5000/app:v1.2-rc_3@{DIGEST}", f"localhost:5000/app@{DIGEST}")),
        ("app:1", f"docker-pullable://app@{DIGEST}", (f"app:1@{DIGEST}", f"app@{DIGEST}")),
        ("team/app:1", f"docker.io/team/app@{DIGEST}", (
            f"docker.io/team/app:1@{DIGEST}", f"docker.io/team/app@{DIGEST}")),
        ("registry.example/app:1", f"mirror.example/app@{DIGEST}", ()),  # known by two names
        (f"sha256:{HEX}", f"registry.example/app@{DIGEST}", ()),
        ("localhost/app:1", DIGEST, (DIGEST, DIGEST[:55])),
        (DIGEST, DIGEST, (DIGEST[:55],)),
        ("app:1", "", ()),
        ("app:1", "app:1", ()),
        ("app:1", f"app@sha512:{HEX}", ()),
        ("app:1", f"@{DIGEST}", (DIGEST, DIGEST[:55])),
    ],
)  # fmt: skip
def test_each_names_the_image_that_runs_by_its_digest_or_id(image: str, image_id: str, found: tuple[str, ...]) -> None:
    assert spellings(container(image, image_id)) == found


def test_only_containerd_knows_an_image_by_its_id() -> None:
    assert spellings(container("localhost/app:1", DIGEST, "cri-o")) == ()
    assert spellings(container("localhost/app:1", HEX, "cri-o")) == ()


def test_no_registry_knows_an_id() -> None:
    assert spellings(container("localhost/app:1", DIGEST, pulls=True)) == ()
    assert spellings(container("registry.example/team/app:1", PULLED, pulls=True))


def test_the_next_one_was_used_longest_ago_because_kubelet_backs_off_by_spelling() -> None:
    one = container("registry.example/team/app:1", PULLED)
    tagged, plain = spellings(one)
    assert next_spelling(one, ()) == tagged
    assert next_spelling(one, (tagged,)) == plain
    assert next_spelling(one, (plain, tagged)) == plain
    assert next_spelling(one, (tagged, plain)) == tagged
    assert next_spelling(replace(one, image=tagged), (one.image, tagged)) == plain
    assert next_spelling(container("app", ""), ()) == ""


def test_an_earlier_spelling_with_the_same_digest_is_used_again() -> None:
    one = container(PULLED, PULLED)
    tagged, moved = f"registry.example/team/app:1@{DIGEST}", f"registry.example/team/app:1@{OTHER}"
    assert next_spelling(one, ("registry.example/team/app:1", moved, PULLED)) == LATEST
    assert next_spelling(one, ("registry.example/team/app:1", tagged, moved, PULLED)) == tagged


def test_a_spelling_of_another_registry_is_not_used_again() -> None:
    """Somebody has moved the pod to a mirror, and the runtime knows the same image by its first name."""
    moved = container("mirror.example/app:1", PULLED)
    assert next_spelling(moved, ("registry.example/team/app:1", f"registry.example/team/app:1@{DIGEST}")) == ""


@pytest.mark.parametrize("image", ["app:1", "app", f"app@{DIGEST}", f"app:1@{DIGEST}"])
def test_a_pulled_image_has_another_name_for_each_restart(image: str) -> None:
    one, used = container(image.replace("app", "registry.example/team/app"), PULLED), list[str]()
    for _ in range(5):
        name = next_spelling(one, used)
        assert name.endswith(f"@{DIGEST}")
        assert name != one.image
        used.append(one.image)
        one = replace(one, image=name)


def test_only_a_digest_that_the_runtime_reports_gets_a_tag() -> None:
    assert next_spelling(container(PULLED, PULLED), ()) == LATEST
    assert next_spelling(container(PULLED, f"docker-pullable://{PULLED}"), ()) == LATEST
    assert next_spelling(container(f"mirror.example/app@{DIGEST}", PULLED), ()) == ""
    assert next_spelling(container(f"app@sha512:{HEX}", f"app@sha512:{HEX}"), ()) == ""
    assert next_spelling(container(DIGEST, DIGEST, "cri-o"), ()) == ""


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (PULLED, PULLED, True),
        (PULLED, f"mirror.example/app@{DIGEST}", True),
        (PULLED, f"registry.example/team/app@{OTHER}", False),
        (DIGEST, OTHER, False),
        (DIGEST, HEX, True),
        (PULLED, OTHER, True),  # an ID and a digest cannot be compared
        (PULLED, "", True),
        (HEX, "", True),  # nothing is known of one of them
    ],
)
def test_two_image_ids_are_compared_by_digest(one: str, other: str, same: bool) -> None:
    assert is_same_image(one, other) is same
