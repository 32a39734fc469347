"""The ConfigMap of the shop, all that it ever had, and who has written it, as the API server records that."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.simulation.schedule import SHOP
from tests.simulation.store import Object

if TYPE_CHECKING:
    from tests.simulation.world import SimulatedWorld

CONFIG, KEY = "conf", "mode"
NEVER = "never"  # A version of data that no object had
Data = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Version:
    """Data that the ConfigMap had from a time on."""

    at: float
    version: str  # resourceVersion
    data: Data
    edit: int  # How often what containers use of it was changed until then

    @property
    def whole(self) -> str:
        """All of it as a text."""
        return json.dumps(self.data, sort_keys=True)


class ConfigMap:
    """Its present and past."""

    def __init__(self, world: "SimulatedWorld", *, keyed: bool) -> None:
        self._world, self._keyed = world, keyed
        self.versions: list[Version] = []

    @property
    def key(self) -> str:
        return f"{SHOP}/{CONFIG}"

    @property
    def now(self) -> Version:
        """What it has."""
        return self.versions[-1]

    def used(self, data: Data) -> str:
        """Return what containers use of data."""
        return data[KEY] if self._keyed else " ".join(data[key] for key in sorted(data))

    def at(self, moment: float) -> Data:
        """Return what it had at a time."""
        return next((each.data for each in reversed(self.versions) if each.at <= moment), self.versions[0].data)

    def open(self, data: Data) -> None:
        """Create it."""
        meta = {"namespace": SHOP, "name": CONFIG, "uid": "uid-conf"}
        made = self.owned({"metadata": meta, "data": {}}, {"metadata": meta, "data": data}, "kubectl")
        self._world.store.create("configmaps", made)

    def write(self, data: Data, writer: str) -> bool:
        """Write it, as somebody else than the manager. Return whether that changed anything."""
        old = self._world.store.get("configmaps", self.key)
        if old is None or old["data"] == data:
            return False
        self._world.say(writer, f"writes {json.dumps(data)}")
        self._world.store.update("configmaps", self.owned(old, {**old, "data": data}, writer))
        return True

    def changed(self, new: Object) -> None:
        """It was written."""
        edit = self.versions[-1].edit if self.versions else 0
        if self.versions and self.used(new["data"]) != self.used(self.now.data):
            edit += 1
        version = new["metadata"]["resourceVersion"]
        self.versions.append(Version(self._world.loop.time(), version, new["data"], edit))

    def owned(self, old: Object, new: Object, writer: str) -> dict[str, Any]:
        """Return the new state with its managedFields: who owns which key since when.

        A write takes the keys that it changes from their owners. One that only removes keys gets no time.
        """
        before, after = old["data"], new["data"]
        taken = {key for key in after if before.get(key) != after[key]}
        entries = {each["manager"]: each for each in old["metadata"].get("managedFields", ())}
        owned = {name: {*each["fieldsV1"]["f:data"]} for name, each in entries.items()}
        for name in owned:
            owned[name] -= {f"f:{key}" for key in (*taken, *(before.keys() - after.keys()))}
        if taken:
            first = {"."} if not entries else set[str]()
            owned[writer] = owned.get(writer, set()) | {f"f:{key}" for key in taken} | first
        times = {name: entries[name]["time"] for name in entries}
        times |= {writer: self._world.loop.true_utc()} if taken else {}
        fields = [
            {
                "manager": name,
                "operation": "Update",
                "apiVersion": "v1",
                "time": times[name],
                "fieldsType": "FieldsV1",
                "fieldsV1": {"f:data": {key: {} for key in sorted(keys)}},
            }
            for name, keys in owned.items()
            if keys
        ]
        return {**new, "metadata": {**new["metadata"], "managedFields": fields}}
