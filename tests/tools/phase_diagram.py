"""`python -m tests.tools.phase_diagram` draws the tables of `core/api/phases.py` in docs/contract.md, as Mermaid."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from crrd.core.api.phases import CONTAINER_MOVES, REQUEST_MOVES

CONTRACT = Path(__file__).parents[2] / "docs" / "contract.md"
DRAWN = re.compile(r"(<!-- phases: .*? -->\n).*?(<!-- end of phases -->)", re.DOTALL)
Phase = TypeVar("Phase", bound=str)


def diagram(moves: Mapping[tuple[Phase, Phase], str]) -> str:
    """The state diagram of one table. The first row begins in the first phase; a phase without a way out is an end."""
    begins = [old for old, _ in moves]
    ends = [new for new in dict.fromkeys(new for _, new in moves) if new not in begins]
    rows: list[tuple[str, str, str]] = [("[*]", begins[0], ""), *((old, new, why) for (old, new), why in moves.items())]
    rows += [(end, "[*]", "") for end in ends]
    drawn = (f"    {old or 'Empty'} --> {new or 'Empty'}{why and ': '}{why}\n" for old, new, why in rows)
    return f"```mermaid\nstateDiagram-v2\n{''.join(drawn)}```\n"


def drawn_in(page: str) -> str:
    """The page with the diagrams that the tables give."""
    both = f"\nA request:\n\n{diagram(REQUEST_MOVES)}\nA container of it:\n\n{diagram(CONTAINER_MOVES)}\n"
    return DRAWN.sub(lambda found: found[1] + both + found[2], page)


def main() -> None:
    """Bring the page up to date."""
    CONTRACT.write_text(drawn_in(CONTRACT.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
