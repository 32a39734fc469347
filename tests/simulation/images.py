"""The images of the node: kubelet's pulls, which may be slow or fail, its back-off, and its garbage collection."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.simulation.world import SimulatedWorld

APP, OLD, NEW, OTHER = "app:1", "proxy:1", "proxy:2", "proxy:3"
FIRST_BACK_OFF, LAST_BACK_OFF = 10.0, 300.0
YOUNG = 120.0  # Seconds for which the garbage collection spares an image (imageMinimumGCAge)


def with_digest(image: str) -> str:
    """Return the image as a webhook rewrites it."""
    return image.replace(":", "@sha256:") if "@" not in image else image


def without_digest(image: str) -> str:
    """Return the image as users write it."""
    return image.replace("@sha256:", ":")


class Images:
    """What is on the node, and the registry."""

    def __init__(self, world: "SimulatedWorld") -> None:
        self._world = world
        self._since: dict[str, float] = dict.fromkeys((APP, OLD), 0.0)
        self._pulling: set[str] = set()
        self._failed: dict[tuple[str, str], tuple[float, float]] = {}
        """Pod and image -> the back-off in seconds, and until when it lasts."""
        self.down = False  # Whether the registry refuses all pulls
        self.hangs_until = 0.0  # Loop time until which pulls do not end
        self.pods: dict[str, str] = {}  # UID of a pull pod on this node -> its image

    def has(self, image: str) -> bool:
        """Whether the image is on the node."""
        return without_digest(image) in self._since

    def find(self, pod_uid: str, image: str, again: Callable[[], None]) -> tuple[str, str] | None:
        """Return None if the image is on the node. Otherwise pull it, and return kubelet's reason and message.

        `again` is called when that may have changed.
        """
        if self.has(image):
            return None
        key, now = (pod_uid, image), self._world.loop.time()
        if image in self._pulling:
            self._world.loop.call_later(0.5, again)
            return "ContainerCreating", ""
        seconds, until = self._failed.get(key, (0.0, 0.0))
        if now < until:
            self._world.loop.call_at(until + 0.001, again)
            return "ImagePullBackOff", f'Back-off pulling image "{image}"'
        self._pulling.add(image)
        shop = self._world.setup.shop
        late = max(shop.pull_seconds if shop is not None else 0.0, self.hangs_until - now)

        def end() -> None:
            self._pulling.discard(image)
            if self.down or self._is_unknown(image):
                longer = min(max(FIRST_BACK_OFF, 2 * seconds), LAST_BACK_OFF)
                self._failed[key] = longer, self._world.loop.time() + longer
                self._world.say("kubelet", f"cannot pull {image}")
            else:
                self._since.setdefault(without_digest(image), self._world.loop.time())
                self._world.say("kubelet", f"has pulled {image}")
            again()

        self._world.loop.call_later(late, end)
        return "ContainerCreating", ""

    def _is_unknown(self, image: str) -> bool:
        shop = self._world.setup.shop
        return shop is not None and shop.missing and without_digest(image) == NEW

    def collect(self) -> None:
        """Remove the images that no container uses, except new ones."""
        used = {one.image for one in self._world.containers.present.values()} | set(self.pods.values())
        kept, late = {APP, *map(without_digest, used)}, self._world.loop.time() - YOUNG
        for image in [name for name, since in self._since.items() if name not in kept and since < late]:
            del self._since[image]
            self._world.say("kubelet", f"removes the unused image {image}")

    # Pull pods, which have one container that cannot start.

    def take(self, pod: Mapping[str, Any]) -> None:
        """Kubelet sees a new pull pod."""
        uid, image = pod["metadata"]["uid"], pod["spec"]["containers"][0]["image"]
        self.pods[uid] = image
        self._world.loop.call_later(0.05, self._sync, pod, image)
        self._world.loop.call_later(float(pod["spec"]["activeDeadlineSeconds"]), self._expire, pod)

    def leave(self, pod: Mapping[str, Any]) -> None:
        """A pull pod was deleted."""
        self.pods.pop(pod["metadata"]["uid"], None)

    def _sync(self, pod: Mapping[str, Any], image: str) -> None:
        if pod["metadata"]["uid"] not in self.pods:
            return
        if self._world.kubelet.asleep or self._world.kubelet.mute:
            self._world.loop.call_later(1.0, self._sync, pod, image)
            return
        waiting = self.find(pod["metadata"]["uid"], image, lambda: self._sync(pod, image))
        state: dict[str, Any] = {"terminated": {"reason": "StartError", "exitCode": 128}}
        if waiting is not None:
            state = {"waiting": {"reason": waiting[0], "message": waiting[1]}}
        self._write(pod, {"phase": "Pending" if waiting else "Failed"}, state)

    def _expire(self, pod: Mapping[str, Any]) -> None:
        """Its activeDeadlineSeconds are over."""
        found = self._world.store.get("pods", f"{pod['metadata']['namespace']}/{pod['metadata']['name']}")
        if pod["metadata"]["uid"] in self.pods and found is not None and found["status"].get("phase") == "Pending":
            self._write(pod, {"phase": "Failed", "reason": "DeadlineExceeded"}, {"waiting": {"reason": "ErrImagePull"}})

    def _write(self, pod: Mapping[str, Any], status: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        key = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
        whole = {**status, "containerStatuses": [{"name": "pull", "state": state}]}
        found = self._world.store.get("pods", key)
        if found is not None and found["metadata"]["uid"] == pod["metadata"]["uid"]:
            self._world.store.update("pods", {**found, "status": whole})
