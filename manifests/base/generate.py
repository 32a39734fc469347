"""Writes the CRDs and the tables of fields in docs: `python manifests/base/generate.py`.

What runs store in annotations is described by the dataclasses that are stored. All other fields come from the tables in
`daemon/crrd/core/api/schema.py` and `daemon/crrd/core/policy/schema.py`. parts.yaml has the rest: names, versions,
columns, and rules about more than one field. The tests check that the committed files are up to date.
"""

import re
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import is_dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, get_args, get_type_hints

import yaml

from crrd.core.api import schema as requests
from crrd.core.api.fields import NUMBERS, Field, SetBy, Type
from crrd.core.api.time import format_duration
from crrd.core.policy import schema as policies
from crrd.core.rollout.progress import Progress
from crrd.core.rollout.run import Amount, Options, Target
from crrd.core.rollout.run_limits import LIMITS

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
PARTS = yaml.safe_load((FOLDER / "parts.yaml").read_text(encoding="utf-8"))
Json = dict[str, Any]
Fields = Mapping[str, Field]

KINDS: Mapping[str, tuple[Fields, str]] = {
    "manifests/base/crd.yaml": (requests.FIELDS, "docs/contract.md"),
    "manifests/base/policies-crd.yaml": (policies.FIELDS, "docs/policy.md"),
}
"""The file of a CRD -> the table of its fields, and the page that shows it."""
HEAD = "# Made by generate.py of parts.yaml and the table of fields.\n"
SHOWN = re.compile(r"(<!-- fields of (\w+): .*? -->\n).*?(<!-- end of fields -->)", re.DOTALL)


class _Dumper(yaml.SafeDumper):
    """Lists are indented. What stands twice is written once."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, indentless=False)

    def generate_anchor(self, _node: yaml.Node) -> str:
        self.last_anchor_id += 1
        return ("subresources", "columns", "selectable", "schema")[self.last_anchor_id - 1]

    def ignore_aliases(self, data: Any) -> bool:
        return not isinstance(data, dict | list) or not data


def about(field: Field) -> str:
    """The description of a field, with its bound and its default where these are not clear without."""
    least = f" At least {format_duration(field.low)}." if field.type is Type.DURATION and field.low else ""
    stated = field.set_by is SetBy.USER and field.default is not None
    default = "" if not stated or isinstance(field.default, StrEnum | bool) else f" The default is {field.default}."
    return f"{field.description}{least}{default}"


def schema(field: Field, fields: Fields, rules: Mapping[str, list[Json]]) -> Json:
    """The schema of a field, and of those in it."""
    unit = {Type.STRING: "Length", Type.OBJECT: "Properties"}.get(field.type, "Items")
    made = {**deepcopy(PARTS["types"][field.type]), "description": about(field)}
    if field.type in NUMBERS:
        made["minimum"] = field.low
    elif field.low and field.type is not Type.DURATION:
        made[f"min{unit}"] = field.low
    if field.high:
        made[f"max{unit}"] = field.high
    if isinstance(field.default, StrEnum) and field.set_by is SetBy.USER:
        made["enum"] = [str(member) for member in type(field.default)]  # a status is not refused for its phase
    asked = [*made.get("x-kubernetes-validations", ()), *rules.get(field.path, ())]
    if field.type is Type.DURATION and field.low:
        asked.append(
            {
                "rule": f"duration(self) >= duration('{field.low}s')",
                "message": f"must be at least {format_duration(field.low)}",
            }
        )
    if asked:
        made["x-kubernetes-validations"] = asked
    if field.type is Type.STRINGS:
        made["items"] = {
            "type": "string",
            **({"minLength": 1, "maxLength": field.high_each} if field.high_each else {}),
        }
    if field.type is Type.OBJECT:
        made |= inside(field.path, fields, rules)
    if field.type is Type.LIST:
        entries = inside(field.path, fields, rules)
        if "name" in entries.get("required", ()):
            made |= {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}
        made["items"] = {"type": "object", **entries}
    return made


def inside(path: str, fields: Fields, rules: Mapping[str, list[Json]]) -> Json:
    """What a schema has to say of an object's fields."""
    own = [each for each in fields.values() if each.parent == path]
    required = [each.name for each in own if each.required]
    if not own:
        return {"x-kubernetes-preserve-unknown-fields": True}
    made = {"properties": {each.name: schema(each, fields, rules) for each in own}}
    return {"required": required, **made} if required else made


def crd(name: str, fields: Fields) -> str:
    """The text of a CRD."""
    parts = PARTS["crds"][name]
    names, rules = parts["names"], parts["rules"]
    top = inside("", fields, rules)
    top["properties"] = {
        "apiVersion": {"type": "string", "description": parts["apiVersion"]},
        "kind": {"type": "string", "description": f"{names['kind']}."},
        "metadata": {"type": "object"},
        **top["properties"],
    }
    if "status" in parts:
        top["properties"]["status"]["default"] = parts["status"]
    validations = {"x-kubernetes-validations": rules[""]} if "" in rules else {}
    whole = {"type": "object", "description": parts["description"], **validations, **top}
    same = {
        "subresources": {"status": {}},
        "additionalPrinterColumns": parts["columns"],
        **({"selectableFields": parts["selectable"]} if "selectable" in parts else {}),
        "schema": {"openAPIV3Schema": whole},
    }
    versions = [
        {"name": version, "served": True, "storage": version == parts["versions"][0], **same}
        for version in parts["versions"]
    ]
    made = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{names['plural']}.{parts['group']}"},
        "spec": {"group": parts["group"], "scope": parts["scope"], "names": names, "versions": versions},
    }
    return HEAD + yaml.dump(made, Dumper=_Dumper, sort_keys=False, width=120)


def page(text: str, fields: Fields) -> str:
    """A page of docs with its tables of fields."""
    return SHOWN.sub(lambda found: f"{found[1]}\n{table(found[2], fields)}\n{found[3]}", text)


def table(part: str, fields: Fields) -> str:
    """The fields of `spec` or of `status`, one a row. A page whose fields are all set by users does not say so."""
    shown = [field for field in fields.values() if field.path.startswith(part + ".")]
    writers = {field.set_by for field in shown} - {SetBy.USER}
    heads = ["field", "type", "default", *(["set by"] if writers else []), "meaning"]
    rows = [heads]
    for field in shown:
        writer = [field.set_by.value] if writers else []
        name = field.path.partition(".")[2]
        rows.append([f"`{name}`", bounds(field), default(field), *writer, field.description])
    first, *others = (f"| {' | '.join(row)} |\n" for row in rows)
    return "".join([first, "|---" * len(heads) + "|\n", *others])


def bounds(field: Field) -> str:
    """Type and bounds."""
    if isinstance(field.default, StrEnum):
        return ", ".join(f"`{member}`" for member in type(field.default) if member)
    units = {Type.STRING: " characters", Type.LIST: " entries", Type.STRINGS: " entries"}
    unit, made = units.get(field.type, ""), [field.type.value]
    if field.low and field.high:
        made.append(f"{field.low} to {field.high}{unit}")
    elif field.type is not Type.OBJECT and (field.low or field.type in NUMBERS):
        made.append(f"at least {format_duration(field.low) if field.type is Type.DURATION else field.low}{unit}")
    elif field.high:
        made.append(f"at most {field.high}{unit}")
    if field.longest:
        made.append(f"at most {field.longest[1]}")
    return ", ".join(made)


def default(field: Field) -> str:
    """What an absent field means."""
    if field.required and field.set_by is SetBy.USER:
        return "required"
    if field.of_pod:
        return "the pod's"
    if isinstance(field.default, StrEnum):
        return f"`{field.default}`" if field.default else "empty"
    if isinstance(field.default, bool):
        return str(field.default).lower()
    return "none" if field.default is None else str(field.default)


STORED_PAGE = "docs/recreate.md"
STORED: Mapping[str, tuple[tuple[str, str, str] | tuple[str, type], ...]] = {
    "run-options": (
        ("version", "integer", "1: the form. A process does not continue a run of a later one."),
        ("started", "string", "When the run was started, by the API server's clock."),
        ("revision", "integer", "How often its limits have changed before. Absent for 0."),
        ("partition", "string", "`--partition` as it was given, of which `options.first` is the number of pods."),
        ("steps", "string", "`--steps` as it was given, of which `options.steps` has the numbers of pods."),
        ("target.", Target),
        ("options.", Options),
    ),
    "run-limits": (
        ("version", "integer", "1: the form. The first one had none, and limits of a later one are not used."),
        ("revision", "integer", "Which change it is. The last one counts."),
        ("limits", "object", f"These fields of `options`: {', '.join(f'`{name}`' for name in LIMITS)}."),
    ),
    "run-progress": (("version", "integer", "1: the form. The first one had none."), ("", Progress)),
}
"""What runs store, by annotation: rows, and dataclasses with the beginning of their fields' names."""
_STORED = re.compile(r"(<!-- stored: ([-\w]+) -->\n).*?(<!-- end of stored -->)", re.DOTALL)
_OF_PYTHON: Mapping[Any, str] = {
    str: "string",
    int: "integer",
    bool: "bool",
    tuple[str, ...]: "list of strings",
    tuple[int, ...]: "list of integers",
    int | None: "integer or null",
    Amount: "string: number or percentage",
}


def stored(annotation: str) -> Iterator[tuple[str, str, str]]:
    """Name, type and meaning of each field that an annotation of runs has."""
    for name, kind, *about in STORED[annotation]:
        yield from _rows(name, kind) if isinstance(kind, type) else [(name, kind, *map(str, about))]


def _rows(path: str, kind: type) -> Iterator[tuple[str, str, str]]:
    for name, hint in get_type_hints(kind, include_extras=True).items():
        python, about = get_args(hint)
        inner = next(iter(get_args(python)), python)
        is_object = python not in _OF_PYTHON and is_dataclass(inner)
        yield path + name, "object" if is_object else _OF_PYTHON.get(python, "string"), about
        yield from _rows(f"{path}{name}.", inner) if is_object else ()


def stored_table(annotation: str) -> str:
    """The fields of an annotation, one a row."""
    rows = (f"| `{name}` | {kind} | {about} |\n" for name, kind, about in stored(annotation))
    return f"| field | type | meaning |\n|---|---|---|\n{''.join(rows)}"


def files() -> dict[str, str]:
    """What is generated: path in the repository -> text."""
    made = {}
    for file, (fields, docs) in KINDS.items():
        made[file] = crd(Path(file).name, fields)
        made[docs] = page((ROOT / docs).read_text(encoding="utf-8"), fields)
    text = (ROOT / STORED_PAGE).read_text(encoding="utf-8")
    made[STORED_PAGE] = _STORED.sub(lambda found: f"{found[1]}\n{stored_table(found[2])}\n{found[3]}", text)
    return made


if __name__ == "__main__":
    for name, text in files().items():
        (ROOT / name).write_text(text, encoding="utf-8")
