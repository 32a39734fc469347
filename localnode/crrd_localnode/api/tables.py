"""Reads the requested form of a response (Accept), and converts objects to other forms: Table, metadata only.

`kubectl get` requests tables, so the server decides on the columns.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from functools import lru_cache

from crrd_localnode.api.errors import ApiError, bad_request
from crrd_localnode.api.kinds import Kind
from crrd_localnode.api.objects import Object
from crrd_localnode.api.store import Stored

_META_VERSIONS = ("v1", "v1beta1")


class Form(StrEnum):
    """The `as` parameter of a media type."""

    OBJECT = ""
    TABLE = "Table"
    METADATA = "PartialObjectMetadata"
    METADATA_LIST = "PartialObjectMetadataList"


@dataclass(frozen=True, slots=True)
class Accepted:
    """The form that the client accepts."""

    form: Form = Form.OBJECT
    version: str = "v1"  # Version of meta.k8s.io, for forms other than the object


@lru_cache(maxsize=256)
def accepted(header: str) -> Accepted:
    """Return the first supported media type of an Accept header. Raises ApiError 406 if there is none."""
    for part in header.split(","):
        media, *parameters = (piece.strip() for piece in part.split(";"))
        options = dict(piece.partition("=")[::2] for piece in parameters)
        if media not in ("application/json", "application/*", "*/*", ""):
            continue
        if "as" not in options:
            return Accepted()
        known = options["as"] in list(Form) and options.get("g") == "meta.k8s.io"
        if known and options.get("v") in _META_VERSIONS:
            return Accepted(Form(options["as"]), options["v"])
    raise ApiError(406, "only the following media types are accepted: application/json")


def metadata_only(stored: Stored, version: str = "v1") -> Object:
    """Return the object as PartialObjectMetadata."""
    return {"kind": "PartialObjectMetadata", "apiVersion": f"meta.k8s.io/{version}", "metadata": stored.obj["metadata"]}


@dataclass(slots=True)
class TableForm:
    """Converts objects of one kind to tables for one request. Like the real server, only the first has columns."""

    kind: Kind
    version: str
    include: str  # `includeObject`: None, Metadata or Object
    columns_sent: bool = False

    def __post_init__(self) -> None:
        if self.include not in ("", "None", "Metadata", "Object"):
            raise bad_request(f"unrecognized includeObject value: {self.include}")

    def table(self, items: Iterable[Stored], meta: Object, now: datetime) -> Object:
        """Return the table of some objects. `meta` is the list's metadata."""
        name = {"name": "Name", "type": "string", "format": "name", "priority": 0, "description": "Name of the object."}
        others = ({field: getattr(column, field) for field in name} for column in self.kind.columns)
        columns = [] if self.columns_sent else [name, *others]
        self.columns_sent = True
        return {
            "kind": "Table",
            "apiVersion": f"meta.k8s.io/{self.version}",
            "metadata": meta,
            "columnDefinitions": columns,
            "rows": [self._row(item, now) for item in items],
        }

    def _row(self, stored: Stored, now: datetime) -> Object:
        stored = self.kind.shown(stored)
        cells = [stored.obj["metadata"]["name"], *(column.value(stored.obj, now) for column in self.kind.columns)]
        row: Object = {"cells": cells}
        if self.include == "Object":
            row["object"] = stored.obj
        elif self.include != "None":
            row["object"] = metadata_only(stored, self.version)
        return row
