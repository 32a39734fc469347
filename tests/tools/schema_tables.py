"""`python -m tests.tools.schema_tables` writes the table of `core/api/schema.py` into docs/contract.md."""

import re
from enum import StrEnum
from pathlib import Path

from crrd.core.api.schema import FIELDS, Field, SetBy, Type

CONTRACT = Path(__file__).parents[2] / "docs" / "contract.md"
WRITTEN = re.compile(r"(<!-- fields of (\w+): .*? -->\n).*?(<!-- end of fields -->)", re.DOTALL)
HEAD = "| field | type | default | set by | meaning |\n|---|---|---|---|---|\n"


def table(part: str) -> str:
    """The fields of `spec` or of `status`, one a row."""
    return HEAD + "".join(
        f"| {' | '.join(row(field))} |\n" for field in FIELDS.values() if field.path.startswith(part + ".")
    )


def row(field: Field) -> tuple[str, ...]:
    """One field as its table shows it."""
    name = field.path.partition(".")[2]
    return f"`{name}`", kind(field), default(field), field.set_by.value, field.description


def kind(field: Field) -> str:
    """Type and bounds."""
    if isinstance(field.default, StrEnum):
        return ", ".join(f"`{member}`" for member in type(field.default) if member)
    unit = {Type.STRING: " characters", Type.LIST: " entries"}.get(field.type, "")
    bounds = [field.type.value]
    if field.low and field.high:
        bounds.append(f"{field.low} to {field.high}{unit}")
    elif field.low or field.type in (Type.INT32, Type.INT64):
        bounds.append(f"at least {field.low}")
    elif field.high:
        bounds.append(f"at most {field.high}{unit}")
    if field.longest:
        bounds.append(f"at most {field.longest[1]}")
    return ", ".join(bounds)


def default(field: Field) -> str:
    """What an absent field means."""
    if field.required and field.set_by is SetBy.USER:
        return "required"
    if field.of_pod:
        return "the pod's"
    if isinstance(field.default, StrEnum):
        return f"`{field.default}`" if field.default else "empty"
    return "none" if field.default is None else str(field.default).lower()


def written_in(page: str) -> str:
    """The page with the tables that the schema gives."""
    return WRITTEN.sub(lambda found: found[1] + "\n" + table(found[2]) + "\n" + found[3], page)


def main() -> None:
    """Bring the page up to date."""
    CONTRACT.write_text(written_in(CONTRACT.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
