"""What another user has written is not done with the rights of this one before this one has agreed."""

from typing import Any

import pytest

from crrd.core.api.types import ANNOTATION_ABORTED
from crrd.core.rollout.change import ImageChange
from crrd.core.rollout.run import Target
from crrd.kube.client import KubeClient
from crrd.kube.resources import PODS, REQUESTS
from crrd.lib.errors import ApiUnavailableError, ConfigurationError
from crrd.rollout import creator
from crrd.rollout.text import TextLines
from crrd_localnode.workload import RESOURCES
from tests.support.played_cluster import NAMESPACE, PlayedCluster
from tests.support.played_images import Images, image_of
from tests.support.rollouts import run
from tests.support.scripted_api import FixedAccess, refuse, reply, scripted_api
from tests.support.sessions import recreated

Json = dict[str, Any]
STARTED = "run begun was started by system:anonymous: "  # The user of the tests' requests
GIVES = f"{STARTED}gives container app of deployment.apps/web the image "


class Answering(TextLines):
    """A display whose user answers each question so."""

    def __init__(self, *, yes: bool) -> None:
        super().__init__()
        self.yes, self.questions = yes, list[str]()

    async def ask(self, question: str) -> bool:
        self.questions.append(question)
        return self.yes


@pytest.fixture
def as_user(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let the API server say that this is the user (None: it never says so)."""

    def become(name: str | None) -> None:
        async def current_user(_: KubeClient) -> str | None:
            return name

        monkeypatch.setattr(creator, "current_user", current_user)

    return become


async def begun(cluster: PlayedCluster, *, image: str = "i:2", serves: bool = False) -> Json:
    """Begin a run with an image, or a restart, on one pod of a Deployment. Return its request."""
    names = await cluster.workload("Deployment", "web", 2)
    cluster.deaf |= set() if serves else {*names}
    uid = (await cluster.client.get(RESOURCES["Deployment"], NAMESPACE, "web"))["metadata"]["uid"]
    change = ImageChange(image, ("i:1",)) if image else None
    made = run(image=change, name="begun", target=Target("a lie", "apps/v1", "Deployment", "web", uid))
    (pod, *_) = await cluster.pods()
    body = made.request(pod["metadata"]["name"], pod["metadata"]["uid"], ("app",))
    return dict(await cluster.client.create(REQUESTS, NAMESPACE, body))


async def images_of(cluster: PlayedCluster) -> set[str]:
    return {image_of(pod, "app") for pod in await cluster.pods()}


@pytest.mark.parametrize(("verb", "image"), [("resume", "i:2"), ("undo", "i:1")])
@pytest.mark.parametrize("name", ["bob", ""])
async def test_a_run_with_an_image_of_another_user_is_asked_about(
    cluster: PlayedCluster, as_user: Any, verb: str, image: str, name: str
) -> None:
    as_user(name)
    before, display = await begun(cluster), Answering(yes=False)
    with pytest.raises(ConfigurationError) as caught:
        await recreated(cluster, verb, "begun", display=display)
    assert str(caught.value) == f"{GIVES}{image}; to do this with your rights, add --yes"
    assert display.questions == [f"{GIVES}{image}, with your rights"]
    assert await cluster.requests() == [before], "nothing was written"
    assert len(await cluster.pods()) == 2, "not even a pull pod"


@pytest.mark.parametrize("name", ["bob", ""])
@pytest.mark.parametrize("verb", ["resume", "undo"])
async def test_a_run_of_an_unknown_user_is_asked_about(
    cluster: PlayedCluster, as_user: Any, monkeypatch: pytest.MonkeyPatch, verb: str, name: str
) -> None:
    """Its request was made before admission recorded who makes it. It may be anybody's."""
    as_user(name)
    await begun(cluster)
    monkeypatch.setattr("crrd.rollout.start.creator_of", lambda _: "")
    with pytest.raises(ConfigurationError, match="run begun was started by an unknown user: gives container app"):
        await recreated(cluster, verb, "begun", display=Answering(yes=False))
    assert len(await cluster.requests()) == 1


async def test_it_goes_on_once_its_user_has_agreed(
    cluster: PlayedCluster, images: Images, as_user: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    as_user("bob")
    images.on_node.add("i:2")
    await begun(cluster, serves=True)
    display = Answering(yes=True)
    assert await recreated(cluster, "resume", "begun", "--min-ready", "0", display=display) == 0
    assert (len(display.questions), await images_of(cluster)) == (1, {"i:2"})
    assert await recreated(cluster, "undo", "begun", "--min-ready", "0", "--yes", display=display) == 0
    assert (len(display.questions), await images_of(cluster)) == (1, {"i:1"})
    assert f"{GIVES}i:1\n" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["system:anonymous", None])
async def test_nothing_is_asked_about_a_run_of_this_user(
    cluster: PlayedCluster, as_user: Any, capsys: pytest.CaptureFixture[str], name: str | None
) -> None:
    as_user(name)
    await begun(cluster)
    for verb in ("resume", "undo"):
        assert await recreated(cluster, verb, "begun", "--dry-run", display=Answering(yes=False)) == 0
    assert await recreated(cluster, "abort", "begun") == 0
    assert "was started by" not in capsys.readouterr().out


async def test_a_restart_of_another_user_is_shown(
    cluster: PlayedCluster, as_user: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Who may create requests can do that anyway."""
    as_user("bob")
    await begun(cluster, image="")
    display = Answering(yes=False)
    assert await recreated(cluster, "resume", "begun", "--dry-run", display=display) == 0
    assert f"{STARTED}restarts app of deployment.apps/web\n" in capsys.readouterr().out
    assert display.questions == []


async def test_an_abort_shows_whose_run_it_ends(
    cluster: PlayedCluster, as_user: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    as_user("bob")
    await begun(cluster)
    assert await recreated(cluster, "abort", "begun") == 0
    assert f"{GIVES}i:2\n" in capsys.readouterr().out
    (request,) = await cluster.requests()
    assert ANNOTATION_ABORTED in request["metadata"]["annotations"]


async def test_an_abort_goes_on_if_it_cannot_know_whose_run_it_is(
    cluster: PlayedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(_: KubeClient) -> None:
        raise ApiUnavailableError("busy")

    monkeypatch.setattr(creator, "current_user", fails)
    await begun(cluster)
    with pytest.raises(ApiUnavailableError):
        await recreated(cluster, "resume", "begun")
    assert await recreated(cluster, "abort", "begun") == 0


async def test_an_abort_leaves_pods_that_were_given_the_label_of_a_pull_pod(
    cluster: PlayedCluster, as_user: Any
) -> None:
    await begun(cluster)
    (pod, *_) = await cluster.pods()
    labels = {"metadata": {"labels": {"crr.apps.kruise.io/pull-for-run": "begun"}}}
    await cluster.client.merge_patch(PODS, NAMESPACE, pod["metadata"]["name"], labels)
    assert await recreated(cluster, "abort", "begun") == 0
    assert len(await cluster.pods()) == 2


async def test_who_this_is_the_api_server_says() -> None:
    review = {"status": {"userInfo": {"username": "bob", "groups": ["system:authenticated"]}}}
    missing = reply(b"404 page not found", 404)
    async with scripted_api() as api, KubeClient(FixedAccess(api.url)) as client:
        api.then(reply(review, 201), refuse(403), missing)
        assert [await creator.current_user(client) for _ in range(3)] == ["bob", "", None]
    assert api.calls() == ["POST /apis/authentication.k8s.io/v1/selfsubjectreviews"] * 3
    assert api.bodies[0] == b'{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}'
