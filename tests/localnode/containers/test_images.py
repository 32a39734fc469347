"""The local runtime's images over its real socket: the names of an image, what a pull gives, what a container reports.

containerd 2.1 does the same with images that were pulled.
"""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from cri_stubs import api_pb2 as pb
from tests.support.local_runtime import Client, refused, serving

NOT_FOUND = grpc.StatusCode.NOT_FOUND
OTHER_DIGEST = f"sha256:{'0' * 64}"


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Client]:
    async with serving(tmp_path) as found:
        yield found


async def image(client: Client, name: str) -> pb.Image | None:
    answer = await client.images.ImageStatus(pb.ImageStatusRequest(image=pb.ImageSpec(image=name)))
    return answer.image if answer.HasField("image") else None


async def known(client: Client, name: str) -> pb.Image:
    found = await image(client, name)
    assert found is not None, name
    return found


async def digest_of(client: Client, name: str) -> str:
    return (await known(client, name)).repo_digests[0].partition("@")[2]


async def test_a_pulled_image_is_known_by_its_tag_its_digest_and_its_id(client: Client) -> None:
    assert await image(client, "shop/web:1") is None
    reference = await client.pull("shop/web:1")
    assert await client.pull("shop/web:1") == reference
    found = await known(client, "shop/web:1")
    digest = await digest_of(client, "shop/web:1")
    assert found.id == reference
    assert reference.startswith("sha256:")
    assert digest != reference, "the digest is of the manifest, the ID of the config"
    assert list(found.repo_tags) == ["docker.io/shop/web:1"]
    assert list(found.repo_digests) == [f"docker.io/shop/web@{digest}"]
    assert found.size > 0
    names = ("docker.io/shop/web:1", f"shop/web@{digest}", f"shop/web:1@{digest}", f"shop/web:other@{digest}")
    digits = reference.removeprefix("sha256:")
    for name in (*names, reference, reference[:20], digits, digits[:12]):
        assert await image(client, name) == found, name
    others = ("shop/web:2", "shop/web", f"shop/db@{digest}", f"shop/web@{OTHER_DIGEST}", f"shop/web:1@{OTHER_DIGEST}")
    for name in (*others, digest, OTHER_DIGEST, "sha256:", "", "Not a name"):
        assert await image(client, name) is None, name


async def test_a_prefix_of_several_ids_is_no_name(client: Client) -> None:
    ids: list[str] = []
    while len({each[:8] for each in ids}) == len(ids):
        ids.append(await client.pull(f"shop/web:{len(ids)}"))
    assert await image(client, ids[-1][:8]) is None
    assert (await known(client, ids[-1])).id == ids[-1]


async def test_each_tag_is_an_image_of_its_own(client: Client) -> None:
    assert await client.pull("shop/web") == await client.pull("docker.io/shop/web:latest")
    await client.pull("shop/web:2")
    assert len({(await known(client, f"shop/web:{tag}")).id for tag in ("latest", "2")}) == 2
    listed = (await client.images.ListImages(pb.ListImagesRequest())).images
    assert [list(each.repo_tags) for each in listed[1:]] == [["docker.io/shop/web:latest"], ["docker.io/shop/web:2"]]
    wanted = pb.ImageFilter(image=pb.ImageSpec(image=f"shop/web@{await digest_of(client, 'shop/web:2')}"))
    listed = (await client.images.ListImages(pb.ListImagesRequest(filter=wanted))).images
    assert [list(each.repo_tags) for each in listed] == [["docker.io/shop/web:2"]]


async def test_a_removed_image_has_no_name_left(client: Client) -> None:
    await client.pull("shop/web:1")
    digest = await digest_of(client, "shop/web:1")
    for _ in range(2):
        await client.images.RemoveImage(pb.RemoveImageRequest(image=pb.ImageSpec(image=f"shop/web@{digest}")))
    assert await image(client, "shop/web:1") is None
    async with refused(NOT_FOUND, digest):
        await client.pull(f"shop/web@{digest}")


async def test_a_digest_is_pulled_without_its_tag(client: Client) -> None:
    await client.pull("shop/web:1")
    digest = await digest_of(client, "shop/web:1")
    await client.images.RemoveImage(pb.RemoveImageRequest(image=pb.ImageSpec(image="shop/web:1")))
    reference = await client.pull(f"shop/web:1@{digest}")
    assert await image(client, "shop/web:1") is None
    assert list((await known(client, f"shop/web@{digest}")).repo_tags) == []
    assert await client.pull(f"shop/web@{digest}") == reference, "which the registry knows"
    assert await client.pull("shop/web:1") == reference
    await client.pull(f"shop/web@{digest}")
    assert list((await known(client, reference)).repo_tags) == ["docker.io/shop/web:1"], "a pull takes no name away"


@pytest.mark.parametrize(
    "name",
    ["shop/web:does-not-exist", "does-not-exist/web:1", f"shop/web@{OTHER_DIGEST}", f"shop/web:1@{OTHER_DIGEST}",
     OTHER_DIGEST, "sha256:12"],
)  # fmt: skip
async def test_what_no_registry_knows_is_not_pulled(client: Client, name: str) -> None:
    await client.pull("shop/web:1")
    async with refused(NOT_FOUND, name):
        await client.pull(name)


async def test_an_image_by_its_id_is_in_no_registry(client: Client) -> None:
    reference = await client.pull("shop/web:1")
    async with refused(NOT_FOUND, reference):
        await client.pull(reference)


@pytest.mark.parametrize("name", ["", "Web", "a" * 64])
async def test_what_is_no_name_is_not_pulled(client: Client, name: str) -> None:
    async with refused(grpc.StatusCode.INVALID_ARGUMENT, "failed to parse image reference"):
        await client.pull(name)


async def test_a_container_reports_the_names_of_its_image(client: Client) -> None:
    reference = await client.pull("shop/web:1")
    digest = await digest_of(client, "shop/web:1")
    sandbox = await client.sandbox()
    for number, name in enumerate(("shop/web:1", f"shop/web@{digest}", f"shop/web:other@{digest}", reference)):
        container = await client.create(sandbox, attempt=number, image=name)
        status = await client.status(container)
        assert (status.image.image, status.image_ref) == ("docker.io/shop/web:1", f"docker.io/shop/web@{digest}")
        [listed] = await client.list(pb.ContainerFilter(id=container))
        assert (listed.image.image, listed.image_ref, listed.image_id) == (name, reference, reference)
        assert status.image_id == reference
    await client.images.RemoveImage(pb.RemoveImageRequest(image=pb.ImageSpec(image=reference)))
    status = await client.status(container)
    assert (status.image.image, status.image_ref) == (reference, reference)


async def test_the_state_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    async with serving(tmp_path) as client:
        container = await client.create(await client.sandbox())
    record = tmp_path / "root" / "containers" / container / "container.json"
    earlier = json.loads(record.read_text())
    del earlier["image_id"]
    record.write_text(json.dumps(earlier))
    (tmp_path / "root" / "images.json").write_text('["busybox"]')
    async with serving(tmp_path) as client:
        assert (await client.status(container)).image.image == "busybox"
        await client.remove(container)
