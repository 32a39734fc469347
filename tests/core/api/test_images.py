"""Names of images: which of them mean the image that a container runs."""

import json
from typing import Any

import pytest

from crrd.core.api.images import (
    ANNOTATION_PATCHED,
    ImageName,
    has_image,
    is_rewritten,
    pins,
    plainest,
    read_image_name,
    recorded_names,
)
from crrd.core.api.pod import parse_pod

HEX = "0123456789abcdef" * 4
DIGEST, OTHER = f"sha256:{HEX}", f"sha256:{HEX[::-1]}"
APP = "docker.io/library/app"
RUNS = f"{APP}@{DIGEST}"


@pytest.mark.parametrize(
    ("image", "found"),
    [
        ("app", ImageName(APP)),
        ("app:1", ImageName(APP, "1")),
        (f"app:1@{DIGEST}", ImageName(APP, "1", DIGEST)),
        (RUNS, ImageName(APP, "", DIGEST)),
        ("docker.io/app:1", ImageName(APP, "1")),
        ("index.docker.io/team/app:1", ImageName("docker.io/team/app", "1")),
        ("team/app:1", ImageName("docker.io/team/app", "1")),
        ("localhost/app:1", ImageName("localhost/app", "1")),
        ("localhost:5000/app", ImageName("localhost:5000/app")),
        ("registry.example/team/app:v1.2-rc_3", ImageName("registry.example/team/app", "v1.2-rc_3")),
        ("Registry/app:1", ImageName("Registry/app", "1")),
        (DIGEST, ImageName("", "", DIGEST)),
        (DIGEST[:55], ImageName("", "", DIGEST[:55])),
        ("sha256:1", ImageName("docker.io/library/sha256", "1")),
        ("", ImageName("docker.io/library/")),
    ],
)
def test_a_name_is_read_as_the_runtimes_read_it(image: str, found: ImageName) -> None:
    assert read_image_name(image) == found


@pytest.mark.parametrize(
    ("image", "other", "image_id", "same", "pinned"),
    [
        ("app:1", "app:1", "", True, False),
        (f"{APP}:1@{DIGEST}", "app:1", RUNS, False, True),
        (f"app:1@{DIGEST}", f"{APP}:1", RUNS, False, True),
        (f"app:1@{DIGEST}", "app:1", f"docker-pullable://app@{DIGEST}", False, True),
        (f"app:latest@{DIGEST}", "app", RUNS, False, True),
        (f"{APP}@{DIGEST}", f"app:1@{DIGEST}", RUNS, True, False),
        (f"app:1@{DIGEST}", RUNS, RUNS, True, False),
        (f"app:1@{DIGEST}", "app:2", RUNS, False, False),
        (f"app:1@{DIGEST}", "app", RUNS, False, False),
        (f"app:1@{DIGEST}", "mirror.example/app:1", RUNS, False, False),
        (f"app:1@{DIGEST}", f"app:1@{OTHER}", RUNS, False, False),
        (f"app:1@{DIGEST}", f"app:2@{DIGEST}", RUNS, False, False),  # somebody means another tag
        (f"app:1@{DIGEST}", "app:1", f"{APP}@{OTHER}", False, False),  # it has yet to start, or another image runs
        (f"app:1@{DIGEST}", "app:1", "", False, False),  # it has never run
        (f"app:1@{DIGEST}", "app:1", DIGEST, False, False),  # an ID and a digest cannot be compared
        ("app:1", f"app:1@{DIGEST}", RUNS, False, False),  # the tag may have been moved
        ("app:1", f"{APP}:1", RUNS, False, False),
        (RUNS, "app:1", RUNS, False, False),  # of which tag it was is not known
        (DIGEST, "localhost/app:1", DIGEST, False, False),
    ],
)
def test_without_a_record_only_a_name_with_the_same_digest_is_the_same_image(
    image: str, other: str, image_id: str, same: bool, pinned: bool
) -> None:
    """With the digest of what runs, a name may be the tag of a template that a webhook has pinned."""
    assert (has_image(image, other, image_id), pins(image, other, image_id)) == (same, pinned)


TAGGED = ("app:1", f"{APP}:1@{DIGEST}", RUNS)
IMPORTED = ("localhost/app:1", DIGEST, DIGEST[:55])


@pytest.mark.parametrize(
    ("image", "other", "image_id", "names", "same"),
    [
        (RUNS, "app:1", RUNS, TAGGED, True),
        (RUNS, f"{APP}:1", RUNS, TAGGED, True),
        (RUNS, "app:1", "", TAGGED, True),  # kubelet has yet to report its image
        (RUNS, f"app:1@{DIGEST}", RUNS, TAGGED, True),
        (DIGEST[:55], "localhost/app:1", DIGEST, IMPORTED, True),
        (DIGEST, "localhost/app:1", f"localhost/app@{OTHER}", IMPORTED, True),  # it was tagged by its digest meanwhile
        (RUNS, "app:2", RUNS, TAGGED, False),
        (RUNS, f"app:1@{OTHER}", RUNS, (f"app:1@{OTHER}", RUNS), True),  # an index, and its image for the node
        (RUNS, f"app:1@{OTHER}", RUNS, TAGGED, False),
        (RUNS, "app:1", f"{APP}@{OTHER}", TAGGED, False),  # not what was spelled anew
        (DIGEST, "localhost/app:1", OTHER, IMPORTED, False),
        ("app:2", "app:1", RUNS, TAGGED, False),  # somebody else has given it another image
    ],
)
def test_names_that_a_restart_by_a_patch_has_recorded(
    image: str, other: str, image_id: str, names: tuple[str, ...], same: bool
) -> None:
    assert has_image(image, other, image_id, names) is same


def test_a_tag_that_a_webhook_had_pinned_before_a_restart_by_a_patch() -> None:
    names = (f"app:1@{DIGEST}", RUNS)
    assert pins(RUNS, "app:1", RUNS, names)
    assert not has_image(RUNS, "app:1", RUNS, names)
    assert not pins(RUNS, "app:1", f"{APP}@{OTHER}", names), "another image runs"


@pytest.mark.parametrize(
    ("image", "given", "may_be"),
    [
        ("mirror.example/app:2", "app:2", True),
        ("mirror.example/app", "app:latest", True),
        ("mirror.example/registry-team-app:2", "registry/team/app:2", True),
        (f"app:2@{DIGEST}", "app:2", True),
        (RUNS, "app:2", True),
        (f"mirror.example/app@{DIGEST}", f"app:2@{DIGEST}", True),
        ("app:1", "app:2", False),
        ("other:2", "app:2", False),
        (f"app:1@{DIGEST}", "app:2", False),
        (f"app:2@{OTHER}", f"app:2@{DIGEST}", False),
        ("app:2", f"app:2@{DIGEST}", False),
    ],
)
def test_what_a_webhook_may_have_made_of_an_image(image: str, given: str, may_be: bool) -> None:
    assert is_rewritten(image, given) is may_be


def test_the_plainest_name_is_that_of_the_template() -> None:
    assert plainest(TAGGED[::-1]) == "app:1"
    assert plainest((RUNS, f"{APP}:1@{DIGEST}")) == f"{APP}:1@{DIGEST}"
    assert plainest(IMPORTED) == "localhost/app:1"


def record(**changes: Any) -> str:
    """What a second restart of `app` has recorded, and the only one of `side`, which waits for that."""
    containers = [
        {"name": "app", "before": f"app:1@{DIGEST}", "given": RUNS},
        {"name": "side", "before": "side:1", "given": ""},
    ]
    return json.dumps({"version": 1, "containers": containers, "used": {"app": ["app:1"], "log": ["log:1"]}, **changes})


def test_the_names_of_a_record() -> None:
    assert recorded_names(record()) == {"app": ("app:1", f"app:1@{DIGEST}", RUNS), "log": ("log:1",)}


@pytest.mark.parametrize("text", ["", "{", "[]", "[" * 100_000, record(version=0), record(version=2)])
def test_what_cannot_be_read_records_no_names(text: str) -> None:
    assert recorded_names(text) == {}


def container(image: str, image_id: str = RUNS, **annotations: str) -> Any:
    status = {"name": "app", "imageID": image_id}
    shape = {
        "metadata": {"annotations": annotations},
        "spec": {"containers": [{"name": "app", "image": image}]},
        "status": {"containerStatuses": [status]},
    }
    return parse_pod(shape).containers["app"]


def test_a_container_knows_its_image_by_all_its_names() -> None:
    found = container(RUNS, **{ANNOTATION_PATCHED: record()})
    assert found.has_image("app:1")
    assert found.plain_image == "app:1"
    assert found.image_among(("app:2", f"{APP}:1")) == f"{APP}:1"
    assert found.image_among(("app:2",)) == "app:1"
    changed = container("app:2", **{ANNOTATION_PATCHED: record()})
    assert (changed.has_image("app:1"), changed.plain_image) == (False, "app:2")
    wrong = container(RUNS, f"{APP}@{OTHER}", **{ANNOTATION_PATCHED: record()})
    assert (wrong.has_image("app:1"), wrong.plain_image) == (False, RUNS)
    assert container("app:1").image_among(()) == "app:1"
    pinned = f"app:1@{DIGEST}"
    assert container(pinned).image_among(("app:2", "app:1")) == "app:1"
    assert container(pinned).image_among(("app:1", pinned)) == pinned, "it means itself"
